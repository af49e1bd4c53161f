//! A process group whose leader is a child of this process: sends signals to the group, and checks
//! whether a member still runs.
//!
//! Used by `child_process` only. A group's id stays taken as long as the group has a member,
//! zombies included. Invariant: after the group was seen empty, no signal is sent to its id again,
//! because the system may have assigned the id to another group.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid,
};

#[derive(Debug, Clone)]
pub(crate) struct ProcessGroup {
    id: Pid,
    is_gone: bool,
    /// A member that was running at the last look. Checking it is cheap, but a search for another
    /// one reads the whole process table.
    live_member: Option<Pid>,
    /// Folder of the process table.
    table: PathBuf,
}

impl ProcessGroup {
    /// `leader` is a child of this process that was started in its own group.
    pub(crate) fn with_leader(leader: Pid) -> Self {
        let table = Path::new("/proc").to_owned();
        Self { id: leader, is_gone: false, live_member: None, table }
    }

    pub(crate) fn id(&self) -> u32 {
        self.id.as_raw_nonzero().get().unsigned_abs()
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if !self.is_gone {
            // An error means that no process is left to receive the signal.
            let _ = kill_process_group(self.id, signal);
        }
    }

    /// Checks whether a member still runs. Call it only after the wait for the leader, because it
    /// would otherwise take the leader's status from tokio.
    ///
    /// It also waits for members that became children of this process. These are the orphans of a
    /// dead leader when the broker is process 1 of a container. No other process would wait for
    /// them.
    pub(crate) fn refresh(&mut self) {
        if self.is_gone {
            return;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        while let Ok(Some(_)) = waitid(WaitId::Pgid(Some(self.id)), options) {}
        if test_kill_process_group(self.id) == Err(Errno::SRCH) {
            self.is_gone = true;
        } else if !self.find_live_member() {
            // The table has zombies only, or it hides members with another user (`hidepid=2`). The
            // group is not signalled later, so a hidden member would never end.
            self.signal(Signal::KILL);
            self.is_gone = true;
        }
    }

    /// Returns whether a member other than a zombie runs. A zombie that is left belongs to another
    /// process, which may never wait for it.
    fn find_live_member(&mut self) -> bool {
        if self.live_member.is_some_and(|pid| self.runs_here(pid) == Some(true)) {
            return true;
        }
        // Two searches, because one search can miss a process that forks and ends meanwhile,
        // together with its child.
        (0..2).any(|_| self.search_process_table())
    }

    fn search_process_table(&mut self) -> bool {
        let numbered =
            |entry: fs::DirEntry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
        let pids: Vec<Pid> = fs::read_dir(&self.table)
            .map(|entries| entries.flatten().filter_map(numbered).collect())
            .unwrap_or_default();
        self.live_member = pids.iter().copied().find(|pid| self.runs_here(*pid) == Some(true));
        // Without a readable process table, the result of the test signal decides.
        self.live_member.is_some() || pids.is_empty()
    }

    /// Returns whether the process is a member of this group and not a zombie, or `None` if the
    /// process does not exist.
    fn runs_here(&self, pid: Pid) -> Option<bool> {
        let stat = fs::read(self.table.join(format!("{}/stat", pid.as_raw_nonzero()))).ok()?;
        // pid (name) state parent group …, where the name may contain any character, parentheses
        // included.
        let after_name = memchr::memrchr(b')', &stat)? + 1;
        let mut fields = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
        let state = fields.next()?;
        let group = fields.nth(1)?.parse::<i32>().ok()?;
        Some(group == self.id.as_raw_nonzero().get() && !matches!(state, "Z" | "X"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_member_that_the_process_table_hides_is_killed() {
        let mut leader = Command::new("sh")
            .args(["-c", "sleep 600 & echo started"])
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = leader.stdout.take().unwrap();
        let id = i32::try_from(leader.id()).ok().and_then(Pid::from_raw).unwrap();
        leader.wait().unwrap();

        // This table has one process, which is in another group.
        let table = tempfile::tempdir().unwrap();
        fs::create_dir(table.path().join("1")).unwrap();
        fs::write(table.path().join("1/stat"), "1 (init) S 0 1 1").unwrap();
        let mut group = ProcessGroup::with_leader(id);
        group.table = table.path().to_owned();
        group.refresh();
        assert!(group.is_gone());

        let (ended, is_over) = mpsc::channel();
        thread::spawn(move || ended.send(output.read_to_end(&mut Vec::new())));
        let read = is_over.recv_timeout(Duration::from_secs(60));
        assert!(read.is_ok(), "the hidden process still has its output open");
    }
}
