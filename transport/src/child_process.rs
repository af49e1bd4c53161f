//! Runs a stdio backend: a child process with its own process group and a clean environment.
//!
//! Called by the stdio link. Invariants:
//! - After [`ChildProcess::close`] or a plain drop, the child and every process it forked inside
//!   its process group is gone.
//! - No zombie stays.
//! - The child's standard error never blocks the child.
//! - The child gets only the allow-listed variables of the broker's environment.
//!
//! A descendant that leaves the group with `setsid` is out of reach.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::os::unix::{fs::PermissionsExt, process::ExitStatusExt};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::child_guardian::{GroupWatch, Guardian};
use crate::child_launcher::{self, ResourceLimits};
use crate::child_starter;
use crate::descriptor_reserve;
use crate::lines::{LineReader, LineWriter};
use crate::process_group::ProcessGroup;
use crate::sandbox::Sandbox;
use crate::stall::StallGuard;
use crate::stderr_tail::StderrTail;

/// Variables that a child inherits from the broker unless its specification names others.
pub const INHERITED_ENV: &[&str] =
    &["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TERM", "TZ", "TMPDIR", "SHELL"];

/// Interval between looks at a group whose members the broker cannot wait for. No event reports the
/// end of an orphan.
const GROUP_POLL: Duration = Duration::from_millis(10);
/// Time that a killed group has to vanish before the broker stops looking.
const KILLED_WAIT: Duration = Duration::from_secs(2);
/// Wait for the end of standard error after the child has ended. A grandchild may hold the pipe
/// open.
const STDERR_DRAIN_WAIT: Duration = Duration::from_millis(100);
const STDERR_READ_BYTES: usize = 8 * 1024;
/// Folders in which the system looks for a command when the environment has no `PATH` (execvp of
/// glibc).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// A command to run, with its environment and restrictions.
#[derive(Clone)]
pub struct ChildSpec {
    pub command: String,
    pub args: Vec<String>,
    /// Variables set for the child. They override inherited variables of the same name.
    pub env: BTreeMap<String, String>,
    /// Names of variables that the child inherits if the broker has them.
    pub inherit_env: Vec<String>,
    pub cwd: Option<PathBuf>,
    /// Program that passes its arguments to [`child_launcher::run`], which prepares the process and
    /// becomes the command. Without a launcher the broker starts the command directly, and
    /// `resources` have no effect.
    pub launcher: Option<PathBuf>,
    pub resources: ResourceLimits,
    /// Sandbox of the child. It takes effect only with a launcher.
    pub sandbox: Option<Sandbox>,
    /// Guardian that kills the child's process group if the broker is killed.
    pub guardian: Option<Arc<Guardian>>,
}

impl ChildSpec {
    /// Creates a specification without arguments, with the default inherited environment.
    pub fn new(command: impl Into<String>) -> Self {
        Self { command: command.into(), ..Self::default() }
    }
}

impl Default for ChildSpec {
    fn default() -> Self {
        let inherit_env = INHERITED_ENV.iter().map(|name| (*name).to_owned()).collect();
        Self {
            command: String::new(),
            args: Vec::new(),
            env: BTreeMap::new(),
            inherit_env,
            cwd: None,
            launcher: None,
            resources: ResourceLimits::default(),
            sandbox: None,
            guardian: None,
        }
    }
}

/// Arguments and environment often carry secrets, so the output has only their number and names.
impl std::fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChildSpec")
            .field("command", &self.command)
            .field("args", &self.args.len())
            .field("env", &self.env.keys())
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildLimits {
    /// Longest line accepted from the child's standard output, in bytes.
    pub line_bytes_max: usize,
    /// Bytes kept from the end of the child's standard error.
    pub stderr_bytes_max: usize,
    /// Time the child has to end after its standard input is closed.
    pub stdin_close: Duration,
    /// Time the group has to end after SIGTERM. SIGKILL follows.
    pub term: Duration,
    /// Time after which a write to a child that reads nothing fails.
    pub write_stall_max: Duration,
}

impl Default for ChildLimits {
    fn default() -> Self {
        Self {
            line_bytes_max: 16 * 1024 * 1024,
            stderr_bytes_max: 64 * 1024,
            stdin_close: Duration::from_secs(2),
            term: Duration::from_secs(2),
            write_stall_max: Duration::from_secs(300),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("command {command:?} not found (or the interpreter it names)")]
    NotFound { command: String },
    #[error("command {command:?} is not executable")]
    NotExecutable { command: String },
    #[error("working directory {} of command {command:?} does not exist or is not a directory", cwd.display())]
    WorkingDirectory { command: String, cwd: PathBuf },
    #[error("command {command:?} could not be started: {source}")]
    System { command: String, source: io::Error },
}

/// A running child: its output, its input and its process. Dropping `writer` closes the child's
/// input.
#[derive(Debug)]
pub struct Child {
    pub reader: LineReader<ChildStdout>,
    pub writer: LineWriter<StallGuard<ChildStdin>>,
    pub process: ChildProcess,
}

/// Starts the child. Must be called inside a tokio runtime with I/O and time enabled.
pub fn spawn(spec: &ChildSpec, limits: &ChildLimits) -> Result<Child, SpawnError> {
    let system = |source| SpawnError::System { command: spec.command.clone(), source };
    // This check comes first because the system reports a missing directory and a missing command
    // alike.
    if let Some(cwd) = spec.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        return Err(SpawnError::WorkingDirectory {
            command: spec.command.clone(),
            cwd: cwd.clone(),
        });
    }
    if !descriptor_reserve::is_available() {
        return Err(system(io::Error::other(descriptor_reserve::DESCRIPTORS_EXHAUSTED)));
    }
    if spec.launcher.is_some() {
        find_command(spec)?;
    }
    let mut leader =
        child_starter::start(command_of(spec)).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => SpawnError::NotFound { command: spec.command.clone() },
            io::ErrorKind::PermissionDenied => {
                SpawnError::NotExecutable { command: spec.command.clone() }
            }
            _ => system(source),
        })?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (leader.stdin.take(), leader.stdout.take(), leader.stderr.take())
    else {
        return Err(system(io::Error::other("a pipe is missing")));
    };
    let pid = leader
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw)
        .ok_or_else(|| system(io::Error::other("the process has no id")))?;
    let group = ProcessGroup::with_leader(pid);
    let watched = spec.guardian.as_ref().map(|guardian| guardian.watch(group.id()));
    let tail = StderrTail::new(limits.stderr_bytes_max);
    let drain = tokio::spawn(drain_stderr(stderr, tail.clone()));
    Ok(Child {
        reader: LineReader::new(stdout, limits.line_bytes_max),
        writer: LineWriter::new(StallGuard::new(stdin, limits.write_stall_max)),
        process: ChildProcess {
            leader: Some(leader),
            group,
            watched,
            stdin_close: limits.stdin_close,
            term: limits.term,
            tail,
            drain,
            stderr_drained: false,
        },
    })
}

fn command_of(spec: &ChildSpec) -> Command {
    let mut command = match &spec.launcher {
        Some(launcher) => {
            let mut command = Command::new(launcher);
            let prepared = child_launcher::arguments(
                &spec.resources,
                spec.sandbox.as_ref(),
                std::process::id(),
            );
            command.args(prepared).arg(&spec.command);
            command.env_clear().envs(child_launcher::passed_environment(environment(spec)));
            command
        }
        None => {
            let mut command = Command::new(&spec.command);
            command.env_clear().envs(environment(spec));
            command
        }
    };
    command.args(&spec.args);
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    command
}

/// Returns the complete environment of the child.
pub fn environment(spec: &ChildSpec) -> BTreeMap<OsString, OsString> {
    let inherited = spec
        .inherit_env
        .iter()
        .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)));
    inherited.chain(spec.env.iter().map(|(name, value)| (name.into(), value.into()))).collect()
}

/// Returns the path of the program that the command names.
///
/// Finds a missing command, and a file that is not a program, before the start. The launcher could
/// report them only on its standard error. Only the start itself proves that the program
/// runs.
pub fn find_command(spec: &ChildSpec) -> Result<PathBuf, SpawnError> {
    let in_folder = |folder: PathBuf| match &spec.cwd {
        Some(cwd) => cwd.join(folder),
        None => folder,
    };
    let candidates: Vec<PathBuf> = if spec.command.contains('/') {
        vec![in_folder(PathBuf::from(&spec.command))]
    } else {
        let path = environment(spec)
            .remove(OsStr::new("PATH"))
            .unwrap_or_else(|| OsString::from(DEFAULT_PATH));
        std::env::split_paths(&path).map(|folder| in_folder(folder).join(&spec.command)).collect()
    };
    let files: Vec<(PathBuf, Metadata)> = candidates
        .into_iter()
        .filter_map(|path| std::fs::metadata(&path).ok().map(|file| (path, file)))
        .collect();
    let (command, is_any) = (spec.command.clone(), !files.is_empty());
    let is_program = |file: &Metadata| file.is_file() && file.permissions().mode() & 0o111 != 0;
    match files.into_iter().find(|(_, file)| is_program(file)) {
        Some((path, _)) => Ok(path),
        None if is_any => Err(SpawnError::NotExecutable { command }),
        None => Err(SpawnError::NotFound { command }),
    }
}

async fn drain_stderr(mut stderr: ChildStderr, tail: StderrTail) {
    let mut chunk = vec![0; STDERR_READ_BYTES];
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        tail.push(&chunk[..count]);
    }
}

/// The process side of a child: its end, the tail of its standard error, and its process group.
#[derive(Debug)]
pub struct ChildProcess {
    /// `None` only during the drop.
    leader: Option<tokio::process::Child>,
    group: ProcessGroup,
    watched: Option<GroupWatch>,
    stdin_close: Duration,
    term: Duration,
    tail: StderrTail,
    drain: JoinHandle<()>,
    stderr_drained: bool,
}

impl ChildProcess {
    pub fn pid(&self) -> u32 {
        self.group.id()
    }

    /// Returns the tail of the child's standard error, without control characters.
    pub fn stderr_tail(&self) -> String {
        self.tail.text()
    }

    /// Waits for the child itself to end. Its descendants may still run. Cancel-safe, and may be
    /// called again.
    pub async fn wait(&mut self) -> ExitStatus {
        let status = self.leader_end().await;
        if !self.stderr_drained {
            // The caller can then quote the reason in its report of the end. Polling a finished
            // handle again would panic, so the flag below records the end.
            let _ = timeout(STDERR_DRAIN_WAIT, &mut self.drain).await;
            self.stderr_drained = true;
        }
        status
    }

    /// Ends the child and its group: waits for the child to end by itself, then sends SIGTERM, then
    /// SIGKILL.
    ///
    /// The caller must have dropped the [`Child::writer`] before: the closed input requests the end
    /// of a server (MCP 2025-11-25, Lifecycle, Shutdown). Dropping the future early kills the group
    /// at once.
    pub async fn close(mut self) {
        let _ = timeout(self.stdin_close, self.leader_end()).await;
        if self.group.is_gone() {
            return;
        }
        self.group.signal(Signal::TERM);
        if self.group_end(Instant::now() + self.term).await {
            return;
        }
        self.group.signal(Signal::KILL);
        if !self.group_end(Instant::now() + KILLED_WAIT).await {
            tracing::warn!(pid = self.pid(), "a killed process group still exists");
        }
    }

    /// Waits for the leader to end, then looks at the rest of its group for the first time.
    /// Cancel-safe.
    async fn leader_end(&mut self) -> ExitStatus {
        let leader = self.leader.as_mut().expect("taken in drop only");
        let status = leader.wait().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "the end of a child process could not be observed");
            ExitStatus::from_raw(1 << 8)
        });
        self.group.refresh();
        status
    }

    /// Returns true if every member of the group has ended before the deadline.
    async fn group_end(&mut self, deadline: Instant) -> bool {
        if timeout_at(deadline, self.leader_end()).await.is_err() {
            return false;
        }
        while !self.group.is_gone() {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(GROUP_POLL).await;
            self.group.refresh();
        }
        true
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.group.signal(Signal::KILL);
        self.drain.abort();
        let Some(mut leader) = self.leader.take() else { return };
        if self.group.is_gone() {
            return;
        }
        // Outside a runtime tokio's own orphan list waits for the killed leader.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (mut group, watched) = (self.group.clone(), self.watched.take());
            runtime.spawn(async move {
                let _until_it_is_gone = watched;
                let _ = leader.wait().await;
                let deadline = Instant::now() + KILLED_WAIT;
                group.refresh();
                while !group.is_gone() && Instant::now() < deadline {
                    sleep(GROUP_POLL).await;
                    group.refresh();
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_gets_no_variable_under_its_own_name() {
        let env = BTreeMap::from([("LD_PRELOAD".to_owned(), "/x.so".to_owned())]);
        let launched = ChildSpec { launcher: Some("/l".into()), env, ..ChildSpec::new("c") };
        let names = |spec: &ChildSpec| -> Vec<String> {
            let command = command_of(spec);
            let names = command.as_std().get_envs().map(|(name, _)| name.to_string_lossy());
            names.map(|name| name.into_owned()).collect()
        };
        let direct = names(&ChildSpec { launcher: None, ..launched.clone() });
        assert!(direct.contains(&"LD_PRELOAD".to_owned()), "{direct:?}");
        let passed = names(&launched);
        assert_eq!(passed.len(), direct.len());
        assert!(passed.iter().all(|name| !direct.contains(name)), "{passed:?}");
    }
}
