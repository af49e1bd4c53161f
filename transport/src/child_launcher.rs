//! Prepares a child process from inside and then becomes its command: limits, sandbox, no new privileges, death with the broker.
//!
//! The broker starts itself with [`arguments`] where it would start the command, and its command line hands what follows
//! [`COMMAND`] to [`run`]. A process of one thread may do all of this with plain system calls; a fork of the broker, which has
//! many, may not. Invariant: the command is not executed unless everything asked for is in force.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::{
    Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::set_no_new_privs;

use crate::sandbox::{self, Sandbox, SandboxError};

/// The hidden command of the program that launches.
pub const COMMAND: &str = "exec-child";

/// The command could not be found, or not be executed, as shells say it.
const EXIT_NOT_STARTED: u8 = 127;
/// The process could not be prepared.
const EXIT_NOT_PREPARED: u8 = 126;

/// What one child process may use. Absent: what the broker itself may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Bytes of memory of its own (`RLIMIT_DATA`: heap, stacks of threads, private mappings), in each of its processes.
    pub memory: Option<u64>,
    /// Processes and threads of the user it runs as, all together (`RLIMIT_NPROC`, which does not bind root).
    pub processes: Option<u64>,
    /// Descriptors open at a time, in each of its processes.
    pub open_files: Option<u64>,
    /// Processor time of each of its processes.
    pub cpu: Option<Duration>,
}

/// What the launcher is started with; the command and its arguments follow.
pub fn arguments(
    resources: &ResourceLimits,
    sandbox: Option<&Sandbox>,
    parent: u32,
) -> Vec<OsString> {
    let mut arguments = vec![OsString::from(COMMAND), format!("--parent={parent}").into()];
    arguments.extend(sandbox.into_iter().flat_map(Sandbox::arguments));
    let mut limit = |name: &str, value: Option<u64>| {
        arguments.extend(value.map(|value| OsString::from(format!("--{name}={value}"))))
    };
    limit("memory", resources.memory);
    limit("processes", resources.processes);
    limit("open-files", resources.open_files);
    // A whole second at least: zero would mean that no time is left at all.
    limit("cpu", resources.cpu.map(|cpu| cpu.as_secs().max(1)));
    arguments.push("--".into());
    arguments
}

#[derive(Debug, thiserror::Error)]
enum LaunchError {
    #[error("a launcher of child processes is not for people: {0}")]
    Usage(&'static str),
    #[error("the broker is gone already")]
    ParentGone,
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
    #[error("the sandbox cannot be put in force: {0}")]
    Sandbox(#[from] SandboxError),
}

/// Becomes the command. Returns only when that failed; standard error then says why.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let (mut command, name) = match prepare(arguments.into_iter()) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("mcp-broker: {error}");
            return EXIT_NOT_PREPARED.into();
        }
    };
    let error = command.exec();
    eprintln!("mcp-broker: command {name:?} could not be started: {error}");
    EXIT_NOT_STARTED.into()
}

/// What the arguments before `--` ask for.
#[derive(Default)]
struct LaunchOptions {
    parent: Option<u64>,
    limits: Vec<(Resource, u64)>,
    sandbox: Option<Sandbox>,
}

impl LaunchOptions {
    fn read(arguments: &mut impl Iterator<Item = OsString>) -> Result<Self, LaunchError> {
        let mut asked = Self::default();
        loop {
            let argument = arguments.next().ok_or(LaunchError::Usage("-- is missing"))?;
            if argument == OsStr::new("--") {
                return Ok(asked);
            }
            let (name, value) =
                sandbox::split(&argument).ok_or(LaunchError::Usage("unknown argument"))?;
            let number = || {
                value
                    .to_str()
                    .and_then(|text| text.parse().ok())
                    .ok_or(LaunchError::Usage("a limit is a number"))
            };
            match name {
                "--parent" => asked.parent = Some(number()?),
                "--memory" => asked.limits.push((Resource::Data, number()?)),
                "--processes" => asked.limits.push((Resource::Nproc, number()?)),
                "--open-files" => asked.limits.push((Resource::Nofile, number()?)),
                "--cpu" => asked.limits.push((Resource::Cpu, number()?)),
                _ => {
                    let taken = asked.sandbox.get_or_insert_default().read_argument(name, value);
                    taken.ok_or(LaunchError::Usage("unknown argument"))?;
                }
            }
        }
    }
}

fn prepare(
    mut arguments: impl Iterator<Item = OsString>,
) -> Result<(Command, OsString), LaunchError> {
    let LaunchOptions { parent, mut limits, sandbox } = LaunchOptions::read(&mut arguments)?;
    let name = arguments.next().ok_or(LaunchError::Usage("the command is missing"))?;
    let system =
        |what| move |source: rustix::io::Errno| LaunchError::System { what, source: source.into() };
    let sandbox = sandbox.map(Sandbox::open).transpose()?;
    if let Some(sandbox) = &sandbox {
        sandbox.change_user()?;
    }
    // The signal comes when the thread ends that started this process. The broker starts children on threads that live as
    // long as its runtime does. A change of the user would clear it, so it is asked for after that.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(system("the signal at the broker's death"))?;
    if let Some(parent) = parent
        && getppid().map(|pid| u64::from(pid.as_raw_nonzero().get().unsigned_abs())) != Some(parent)
    {
        return Err(LaunchError::ParentGone); // it died before the line above
    }
    set_no_new_privs(true).map_err(system("no new privileges"))?;
    // What a crash would leave behind holds the child's credentials.
    limits.push((Resource::Core, 0));
    for (resource, value) in limits {
        // A limit that is lower already stays: raising it is not what was asked for.
        let hard = getrlimit(resource).maximum.map_or(value, |maximum| maximum.min(value));
        setrlimit(resource, Rlimit { current: Some(hard), maximum: Some(hard) })
            .map_err(system("a limit"))?;
    }
    let mut command = Command::new(&name);
    command.args(arguments);
    if let Some(sandbox) = sandbox {
        sandbox.enforce()?;
    }
    Ok((command, name))
}
