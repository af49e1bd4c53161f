//! Metrics of this process from the operating system, with the names of common Prometheus
//! dashboards. The values come from `/proc/self` at each request. A value that cannot be read is
//! left out. The module also counts the dropped lines of the log.

use std::{
    fmt::Write as _,
    fs,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

/// `USER_HZ`: unit of times in `/proc`. It is part of Linux's program interface, and 100 on every
/// supported architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// Start of this process, in seconds since 1970.
static STARTED_AT: OnceLock<f64> = OnceLock::new();

static LOG_LINES_DROPPED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn log_line_dropped() {
    LOG_LINES_DROPPED.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn log_lines_dropped() -> u64 {
    LOG_LINES_DROPPED.load(Ordering::Relaxed)
}

pub(super) fn append(text: &mut String) {
    let help = "Log lines dropped because the reader did not take them in time.";
    metric(text, "mcp_log_lines_dropped_total", "counter", help, log_lines_dropped() as f64);
    let stat = fs::read_to_string("/proc/self/stat").ok().and_then(|line| ProcStat::parse(&line));
    if let Some(stat) = &stat {
        metric(
            text,
            "process_cpu_seconds_total",
            "counter",
            "Processor time, user and system.",
            stat.cpu_ticks as f64 / TICKS_PER_SECOND,
        );
        metric(text, "process_threads", "gauge", "Threads.", stat.threads as f64);
        if let Some(started) = start_time(&STARTED_AT, stat, boot_time) {
            metric(
                text,
                "process_start_time_seconds",
                "gauge",
                "Start of the process, in seconds since 1970.",
                started,
            );
        }
    }
    if let Some(bytes) = resident_bytes() {
        metric(text, "process_resident_memory_bytes", "gauge", "Memory held in RAM.", bytes as f64);
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        // One of them is the directory listing itself.
        metric(
            text,
            "process_open_fds",
            "gauge",
            "Open file descriptors.",
            entries.count().saturating_sub(1) as f64,
        );
    }
    if let Some(max) = descriptors_max() {
        metric(
            text,
            "process_max_fds",
            "gauge",
            "File descriptors the process may open.",
            max as f64,
        );
    }
}

fn metric(text: &mut String, name: &str, kind: &str, help: &str, value: f64) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
}

struct ProcStat {
    cpu_ticks: u64,
    threads: u64,
    started_ticks: u64,
}

impl ProcStat {
    fn parse(line: &str) -> Option<Self> {
        // The name in parentheses may contain spaces and parentheses: fields are counted after the
        // last one.
        let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
        // proc(5) counts from 1. The state, at index 0 here, is field 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            started_ticks: field(22)?,
        })
    }
}

/// Returns the time in `known`. The first call with a boot time sets it, because the kernel moves the
/// boot time with each step of the clock.
fn start_time(
    known: &OnceLock<f64>,
    stat: &ProcStat,
    boot_time: impl FnOnce() -> Option<u64>,
) -> Option<f64> {
    if known.get().is_none() {
        let booted = boot_time()? as f64;
        let _set_meanwhile = known.set(booted + stat.started_ticks as f64 / TICKS_PER_SECOND);
    }
    known.get().copied()
}

fn boot_time() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

pub(crate) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?;
    kib.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

fn descriptors_max() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_any_characters_is_parsed() {
        let line =
            "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 7 0 12345 1000 200";
        let stat = ProcStat::parse(line).unwrap();
        assert_eq!((stat.cpu_ticks, stat.threads, stat.started_ticks), (300, 7, 12345));
        assert!(ProcStat::parse("42 (short) S 1").is_none());
    }

    #[test]
    fn a_step_of_the_clock_does_not_move_the_start_of_the_process() {
        let (known, stat) =
            (OnceLock::new(), ProcStat { cpu_ticks: 0, threads: 1, started_ticks: 250 });
        assert_eq!(start_time(&known, &stat, || None), None);
        assert_eq!(start_time(&known, &stat, || Some(1_000)), Some(1_002.5));
        assert_eq!(start_time(&known, &stat, || Some(8_000)), Some(1_002.5));
    }

    #[test]
    fn this_process_reports_all_process_metrics() {
        let mut text = String::new();
        append(&mut text);
        assert_eq!(text.lines().filter(|line| line.starts_with("process_")).count(), 6, "{text}");
    }
}
