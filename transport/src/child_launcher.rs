//! Prepares a child process from inside and then becomes its command: limits, sandbox, no new
//! privileges, death with the broker.
//!
//! The broker starts its own program with [`arguments`] instead of the command. The command line
//! passes the arguments after [`COMMAND`] to [`run`]. The launcher has one thread, so it may do all
//! of this with plain system calls. A fork of the broker, which has many threads, may not.
//!
//! Invariants:
//! - The launcher executes the command only when every requested restriction is in force.
//! - No variable of the child has an effect on the launcher, which runs without the restrictions: the
//!   loader of the system obeys some of them.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::{ffi::OsStrExt, process::CommandExt};
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::{
    Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::set_no_new_privs;

use crate::sandbox::{self, Sandbox, SandboxError};

/// Hidden command that runs the launcher.
pub const COMMAND: &str = "exec-child";

/// Begins the names under which the variables of the child reach the launcher.
const PASSED_PREFIX: &str = "MCP_BROKER_CHILD_";

/// Exit code for a command that could not be found or executed. Shells use the same code.
const EXIT_NOT_STARTED: u8 = 127;
/// Exit code for a process that could not be prepared.
const EXIT_NOT_PREPARED: u8 = 126;

/// File with the number that the kernel adds to the badness of this process. If memory runs out,
/// the kernel ends the process with the greatest badness.
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";
/// Difference between that number of a child and that of the broker, in thousandths of the memory.
const OOM_SCORE_OVER_BROKER: i32 = 500;
const OOM_SCORE_MAX: i32 = 1_000;

/// Resource limits of one child process. A limit that is `None` stays as the broker has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceLimits {
    /// Bytes of private memory of each process (`RLIMIT_DATA`: heap, thread stacks, private
    /// mappings).
    pub memory: Option<u64>,
    /// Processes and threads of the child's user, all together (`RLIMIT_NPROC`, which does not bind
    /// root).
    pub processes: Option<u64>,
    /// Descriptors that each process may have open at a time.
    pub open_files: Option<u64>,
    /// Processor time of each process.
    pub cpu: Option<Duration>,
}

/// Returns the arguments of the launcher. The caller appends the command and its arguments.
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
    // At least one whole second: a limit of zero would leave no time at all.
    limit("cpu", resources.cpu.map(|cpu| cpu.as_secs().max(1)));
    arguments.push("--".into());
    arguments
}

/// Returns the environment of the launcher for a child with these variables.
pub fn passed_environment(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    variables.into_iter().map(|(name, value)| {
        let mut passed = OsString::from(PASSED_PREFIX);
        passed.push(name);
        (passed, value)
    })
}

/// Returns the variables of the child from the environment of the launcher.
fn child_environment(
    passed: impl IntoIterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    passed.into_iter().filter_map(|(name, value)| {
        let name = name.as_bytes().strip_prefix(PASSED_PREFIX.as_bytes())?;
        Some((OsStr::from_bytes(name).to_owned(), value))
    })
}

#[derive(Debug, thiserror::Error)]
enum LaunchError {
    #[error("only the broker may run the launcher of child processes: {0}")]
    Usage(&'static str),
    #[error("the broker has already ended")]
    ParentGone,
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
    #[error("the sandbox cannot be applied: {0}")]
    Sandbox(#[from] SandboxError),
}

/// Becomes the command. Returns only on failure, after it has written the reason to standard error.
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

/// Options parsed from the arguments before `--`.
#[derive(Default)]
struct LaunchOptions {
    parent: Option<u64>,
    limits: Vec<(Resource, u64)>,
    sandbox: Option<Sandbox>,
}

impl LaunchOptions {
    fn read(arguments: &mut impl Iterator<Item = OsString>) -> Result<Self, LaunchError> {
        let mut options = Self::default();
        loop {
            let argument = arguments.next().ok_or(LaunchError::Usage("-- is missing"))?;
            if argument == OsStr::new("--") {
                return Ok(options);
            }
            let (name, value) =
                sandbox::split(&argument).ok_or(LaunchError::Usage("unknown argument"))?;
            let number = || {
                value
                    .to_str()
                    .and_then(|text| text.parse().ok())
                    .ok_or(LaunchError::Usage("a limit must be a number"))
            };
            match name {
                "--parent" => options.parent = Some(number()?),
                "--memory" => options.limits.push((Resource::Data, number()?)),
                "--processes" => options.limits.push((Resource::Nproc, number()?)),
                "--open-files" => options.limits.push((Resource::Nofile, number()?)),
                "--cpu" => options.limits.push((Resource::Cpu, number()?)),
                _ => {
                    let taken = options.sandbox.get_or_insert_default().read_argument(name, value);
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
    let sandbox = sandbox.map(Sandbox::prepare).transpose()?;
    // Before a change of the user, after which the file belongs to root. It does not restrict the
    // child, so the child also starts on a system that refuses it.
    let _refused = raise_oom_score();
    if let Some(sandbox) = &sandbox {
        sandbox.change_user()?;
    }
    // The kernel sends this signal when the thread that started this process ends. The broker
    // starts children on a thread that lives as long as its process. A change of the user clears
    // the setting, so the launcher makes it after that change.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(system("the signal at the broker's death"))?;
    if let Some(parent) = parent
        && getppid().map(|pid| u64::from(pid.as_raw_nonzero().get().unsigned_abs())) != Some(parent)
    {
        return Err(LaunchError::ParentGone); // it died before the line above
    }
    set_no_new_privs(true).map_err(system("no new privileges"))?;
    // A core dump would contain the child's credentials.
    limits.push((Resource::Core, 0));
    for (resource, value) in limits {
        // A lower limit that is already set stays: the configuration must not raise it.
        let hard = getrlimit(resource).maximum.map_or(value, |maximum| maximum.min(value));
        setrlimit(resource, Rlimit { current: Some(hard), maximum: Some(hard) })
            .map_err(system("a limit"))?;
    }
    let mut command = Command::new(&name);
    command.args(arguments).env_clear().envs(child_environment(std::env::vars_os()));
    if let Some(sandbox) = sandbox {
        sandbox.enforce()?;
    }
    Ok((command, name))
}

/// Makes the kernel end this process before the broker if memory runs out. Processes that it starts
/// inherit that.
fn raise_oom_score() -> io::Result<()> {
    let inherited = fs::read_to_string(OOM_SCORE_FILE)?;
    let inherited: i32 = inherited.trim().parse().map_err(io::Error::other)?;
    let raised = inherited.saturating_add(OOM_SCORE_OVER_BROKER).min(OOM_SCORE_MAX);
    fs::write(OOM_SCORE_FILE, raised.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_a_child_reach_it_under_their_names_and_the_launcher_under_others() {
        let variables = [("LD_PRELOAD", "/x.so"), ("PATH", "/bin"), ("MCP_BROKER_CHILD_A", "1")];
        let variables =
            variables.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let mut passed: Vec<_> = passed_environment(variables.clone()).collect();
        assert!(
            passed.iter().all(|(name, _)| name.as_bytes().starts_with(PASSED_PREFIX.as_bytes()))
        );
        passed.push(("HOME".into(), "/root".into()));
        assert_eq!(child_environment(passed).collect::<Vec<_>>(), variables);
    }
}
