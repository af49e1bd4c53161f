//! Kills the process groups of child processes when the broker itself is killed.
//!
//! The guardian is one process next to the broker. The broker starts it from its own program with
//! [`COMMAND`], and the command line passes control to [`run`]. The broker reports the start and
//! the end of every process group to the guardian. The guardian kills the groups that are left when
//! its standard input ends.
//!
//! The kernel signals a child when the broker dies ([`crate::child_launcher`]). That signal does
//! not reach the descendants of the child, and a killed broker cannot reach them either.
//!
//! Invariants:
//! - The guardian holds a group from its start until no process of it is left.
//! - The guardian kills no process while the broker lives.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::{net::UnixStream, process::CommandExt as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

/// Hidden command that runs the guardian.
pub const COMMAND: &str = "guard-children";

/// The broker's side of the guardian. The first watched group starts the guardian process. A later
/// report starts it again if it has died.
#[derive(Debug)]
pub struct Guardian {
    program: PathBuf,
    state: Mutex<GuardianState>,
}

#[derive(Debug, Default)]
struct GuardianState {
    running: Option<GuardianProcess>,
    groups: BTreeSet<u32>,
}

#[derive(Debug)]
struct GuardianProcess {
    process: std::process::Child,
    line: UnixStream,
}

impl Guardian {
    /// Takes the path of a program that passes the arguments after [`COMMAND`] to [`run`].
    pub fn new(program: PathBuf) -> Arc<Self> {
        Arc::new(Self { program, state: Mutex::default() })
    }

    /// Has the guardian kill the group if the broker is killed while the returned value exists.
    pub(crate) fn watch(self: &Arc<Self>, group: u32) -> GroupWatch {
        let mut state = self.state.lock();
        state.groups.insert(group);
        if state.running.as_mut().is_none_or(|running| running.report('+', group).is_err()) {
            state.running = self.start(&state.groups);
        }
        GroupWatch { guardian: Arc::clone(self), group }
    }

    fn forget(&self, group: u32) {
        let mut state = self.state.lock();
        state.groups.remove(&group);
        if state.running.as_mut().is_some_and(|running| running.report('-', group).is_err()) {
            // A guardian that receives no more reports must not act on its old list of groups.
            state.running = None;
            if !state.groups.is_empty() {
                state.running = self.start(&state.groups);
            }
        }
    }

    fn start(&self, groups: &BTreeSet<u32>) -> Option<GuardianProcess> {
        let started = || {
            let (line, guardian_end) = UnixStream::pair()?;
            // A caller that starts a child must not wait for the guardian.
            line.set_nonblocking(true)?;
            let mut command = Command::new(&self.program);
            // The guardian has its own process group, because signals that a terminal sends to the
            // broker's group must not reach it.
            command.arg(COMMAND).env_clear().current_dir("/").process_group(0);
            command.stdin(OwnedFd::from(guardian_end)).stdout(Stdio::null()).stderr(Stdio::null());
            let mut running = GuardianProcess { process: command.spawn()?, line };
            // In one write: the guardian reads nothing before it runs, and the socket has capacity
            // for a few hundred writes only.
            let reports: String = groups.iter().map(|group| report_line('+', *group)).collect();
            running.line.write_all(reports.as_bytes())?;
            io::Result::Ok(running)
        };
        match started() {
            Ok(running) => Some(running),
            Err(error) => {
                tracing::warn!(%error, "processes that children started will not end when the broker is killed");
                None
            }
        }
    }

    /// Returns the process id of the guardian, or `None` if it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.state.lock().running.as_ref().map(|running| running.process.id())
    }
}

impl GuardianProcess {
    fn report(&mut self, what: char, group: u32) -> io::Result<()> {
        self.line.write_all(report_line(what, group).as_bytes())
    }
}

fn report_line(what: char, group: u32) -> String {
    format!("{what}{group}\n")
}

impl Drop for GuardianProcess {
    fn drop(&mut self) {
        // The kill comes before the line ends, because the end of the line makes the guardian kill
        // all groups it holds.
        let _gone_already = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// One watched group. The owner drops it when no process of the group is left.
#[derive(Debug)]
pub(crate) struct GroupWatch {
    guardian: Arc<Guardian>,
    group: u32,
}

impl Drop for GroupWatch {
    fn drop(&mut self) {
        self.guardian.forget(self.group);
    }
}

/// Runs the guardian: reads reports until standard input ends, then kills every group left.
pub fn run() -> ExitCode {
    let mut groups = BTreeSet::new();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let report = line
            .split_at_checked(1)
            .and_then(|(what, group)| Some((what, group.parse::<i32>().ok()?)));
        match report {
            Some(("+", group)) => groups.insert(group),
            Some(("-", group)) => groups.remove(&group),
            _ => return ExitCode::from(2),
        };
    }
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        let _gone_already = kill_process_group(group, Signal::KILL);
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guardian_that_starts_again_takes_any_number_of_groups_before_it_reads() {
        // This program reads nothing.
        let guardian = Guardian::new("/usr/bin/yes".into());
        let groups: BTreeSet<u32> = (1..=5_000).collect();
        assert!(guardian.start(&groups).is_some());
    }
}
