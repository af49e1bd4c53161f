//! A process group whose leader we started: signals to all of it, and whether anything of it still runs.
//!
//! Used by `child_process` only. Invariant: once the group was seen empty nothing is ever sent to its id again, because
//! the system may have given it to somebody else. A group's id stays taken as long as it has a member, zombies included.

use std::fs;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid,
};

#[derive(Debug, Clone)]
pub(crate) struct ProcessGroup {
    id: Pid,
    is_gone: bool,
    /// A member seen running. Looking at it again is cheap, looking for another one reads the whole process table.
    witness: Option<Pid>,
}

impl ProcessGroup {
    /// `leader` is a child of ours that was started in a group of its own.
    pub(crate) fn led_by(leader: Pid) -> Self {
        Self { id: leader, is_gone: false, witness: None }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id.as_raw_nonzero().get().unsigned_abs()
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if !self.is_gone {
            // An error means that nobody is left to receive it.
            let _ = kill_process_group(self.id, signal);
        }
    }

    /// Looks whether a member still runs. Only called once the leader has been waited for, or its status would be taken
    /// from under tokio: members that became our own children (the orphans of a dead leader, where the broker is
    /// process 1 of a container) are waited for here, as nobody else would.
    pub(crate) fn look(&mut self) {
        if self.is_gone {
            return;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        while let Ok(Some(_)) = waitid(WaitId::Pgid(Some(self.id)), options) {}
        self.is_gone = test_kill_process_group(self.id) == Err(Errno::SRCH) || !self.find_witness();
    }

    /// Whether a member runs that is not a zombie: those are for another process to wait for, which may never happen.
    fn find_witness(&mut self) -> bool {
        if self.witness.is_some_and(|pid| self.runs_here(pid) == Some(true)) {
            return true;
        }
        // Twice, because a process that forks and ends while the table is read can be missed together with its child.
        (0..2).any(|_| self.search_process_table())
    }

    fn search_process_table(&mut self) -> bool {
        let numbered =
            |entry: fs::DirEntry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
        let pids: Vec<Pid> = fs::read_dir("/proc")
            .map(|entries| entries.flatten().filter_map(numbered).collect())
            .unwrap_or_default();
        self.witness = pids.iter().copied().find(|pid| self.runs_here(*pid) == Some(true));
        // Without a process table to look at, the answer to the signal is all there is to know.
        self.witness.is_some() || pids.is_empty()
    }

    /// Whether the process is a member of this group and not a zombie; `None` when there is no such process.
    fn runs_here(&self, pid: Pid) -> Option<bool> {
        let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        // pid (name) state parent group …, where the name may hold anything, parentheses included.
        let after_name = memchr::memrchr(b')', &stat)? + 1;
        let mut fields = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
        let state = fields.next()?;
        let group = fields.nth(1)?.parse::<i32>().ok()?;
        Some(group == self.id.as_raw_nonzero().get() && !matches!(state, "Z" | "X"))
    }
}
