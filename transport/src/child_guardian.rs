//! Ends what child processes started when the broker is killed: one process beside the broker, which is told of every process
//! group, and kills those it was told of when its standard input ends.
//!
//! The broker starts itself with [`COMMAND`], and its command line hands over to [`run`]. A child that the broker started dies with
//! it by a signal of the kernel's own ([`crate::child_launcher`]); that signal does not reach what the child started, and a
//! broker that is killed cannot reach it either. Invariants: a group is known from its start until nothing of it is left; while
//! the broker lives nothing is killed here.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::{net::UnixStream, process::CommandExt as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

/// The hidden command of the program that watches.
pub const COMMAND: &str = "guard-children";

/// The broker's side. Started with the first group it is told of; started anew should it die.
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
    /// `program` hands what follows [`COMMAND`] to [`run`].
    pub fn new(program: PathBuf) -> Arc<Self> {
        Arc::new(Self { program, state: Mutex::default() })
    }

    /// The group is ended should this process be killed, for as long as the value lives.
    pub(crate) fn watch(self: &Arc<Self>, group: u32) -> GroupWatch {
        let mut state = self.state.lock();
        state.groups.insert(group);
        if state.running.as_mut().is_none_or(|running| running.tell('+', group).is_err()) {
            state.running = self.start(&state.groups);
        }
        GroupWatch { guardian: Arc::clone(self), group }
    }

    fn forget(&self, group: u32) {
        let mut state = self.state.lock();
        state.groups.remove(&group);
        if state.running.as_mut().is_some_and(|running| running.tell('-', group).is_err()) {
            // One that is not told any more must not act on what it knows.
            state.running = None;
            if !state.groups.is_empty() {
                state.running = self.start(&state.groups);
            }
        }
    }

    fn start(&self, groups: &BTreeSet<u32>) -> Option<GuardianProcess> {
        let started = || {
            let (line, theirs) = UnixStream::pair()?;
            // Whoever starts children shall not wait for it.
            line.set_nonblocking(true)?;
            let mut command = Command::new(&self.program);
            // In a group of its own: what is sent to the broker's group at a terminal is not for it.
            command.arg(COMMAND).env_clear().current_dir("/").process_group(0);
            command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
            let mut running = GuardianProcess { process: command.spawn()?, line };
            groups.iter().try_for_each(|group| running.tell('+', *group))?;
            io::Result::Ok(running)
        };
        match started() {
            Ok(running) => Some(running),
            Err(error) => {
                tracing::warn!(%error, "nobody ends what child processes started, should the broker be killed");
                None
            }
        }
    }

    /// The process that watches, if there is one.
    pub fn pid(&self) -> Option<u32> {
        self.state.lock().running.as_ref().map(|running| running.process.id())
    }
}

impl GuardianProcess {
    fn tell(&mut self, what: char, group: u32) -> io::Result<()> {
        self.line.write_all(format!("{what}{group}\n").as_bytes())
    }
}

impl Drop for GuardianProcess {
    fn drop(&mut self) {
        // Before the line ends: it would kill all it knows.
        let _gone_already = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// One group. Dropped when nothing of it is left.
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

/// The other side: until standard input ends, then to the end of every group.
pub fn run() -> ExitCode {
    let mut groups = BTreeSet::new();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let told = line
            .split_at_checked(1)
            .and_then(|(what, group)| Some((what, group.parse::<i32>().ok()?)));
        match told {
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
