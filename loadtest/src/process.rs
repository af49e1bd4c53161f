//! Resource use of a process from /proc on Linux: processor time and resident memory.

use std::{fs, time::Duration};

use anyhow::Context as _;

/// The unit of processor time in /proc. It is the same on all Linux systems.
const TICK: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// User and system time of all threads together, since the start of the process.
    pub cpu: Duration,
    pub resident_bytes: u64,
}

/// Returns the use of the process with this id.
pub fn usage(pid: u32) -> anyhow::Result<Usage> {
    let read = |name: &str| {
        fs::read_to_string(format!("/proc/{pid}/{name}"))
            .with_context(|| format!("process {pid} does not exist"))
    };
    let cpu = cpu_of(&read("stat")?)
        .with_context(|| format!("/proc/{pid}/stat has an unknown format"))?;
    let resident = resident_of(&read("status")?)
        .with_context(|| format!("/proc/{pid}/status does not show the resident memory"))?;
    Ok(Usage { cpu, resident_bytes: resident })
}

/// The name, in parentheses, may contain any character, and the fields follow it. utime and stime
/// are the 14th and 15th of all.
fn cpu_of(stat: &str) -> Option<Duration> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let ticks: u32 =
        fields.next()?.parse::<u32>().ok()?.checked_add(fields.next()?.parse().ok()?)?;
    Some(TICK * ticks)
}

fn resident_of(status: &str) -> Option<u64> {
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?;
    Some(kib.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resource_use_of_this_process_is_measured() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.resident_bytes > 1024 * 1024, "{usage:?}");
    }

    #[test]
    fn a_process_name_with_parentheses_is_parsed() {
        assert_eq!(
            cpu_of("1 (a) b) R 1 2 3 4 5 6 7 8 9 10 150 50 0 0"),
            Some(Duration::from_secs(2))
        );
        assert_eq!(cpu_of("1 (a"), None);
    }
}
