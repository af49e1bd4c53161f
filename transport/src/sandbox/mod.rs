//! Confines a child process: its own user, Landlock rules for files and TCP ports, and a seccomp
//! filter.
//!
//! The broker chooses a [`Sandbox`] and passes it to the launcher ([`crate::child_launcher`]) as
//! [`Sandbox::arguments`]. The launcher reads the arguments with [`Sandbox::read_argument`] and
//! applies the sandbox to itself before it becomes the command. Invariant: a part that cannot be
//! applied is an error, and the command is not executed.

mod landlock;
mod seccomp;
pub mod support;
mod user;

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
};

/// Restrictions of one child process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// User and group id of the child, which has no supplementary groups. `None` keeps those of the
    /// broker.
    pub user: Option<u32>,
    /// Files the child may access (Landlock). With `None` only the file modes decide.
    pub files: Option<FileRules>,
    pub network: Network,
    /// True if the child may signal only its own process and group. From ABI 6 on Landlock enforces
    /// this better.
    pub own_signals_only: bool,
    /// Folder for temporary files. The child's user creates it if it is missing.
    pub temporary: Option<PathBuf>,
}

/// Canonical paths. The child may access files below them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileRules {
    /// Paths for reading and executing.
    pub read: Vec<PathBuf>,
    /// Paths for every access except the creation of devices.
    pub write: Vec<PathBuf>,
    /// Paths for reading and writing existing files.
    pub devices: Vec<PathBuf>,
}

/// Network access of the child.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Network {
    #[default]
    Any,
    /// Every TCP port except these. Landlock enforces it from ABI 4 on.
    Except(Vec<u16>),
    /// No socket of the internet protocols.
    None,
}

/// Reason why a child could not be confined.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("the user {user} of the child: {source}")]
    User { user: u32, source: io::Error },
    #[error("the capabilities of the child: {0}")]
    Capabilities(io::Error),
    #[error("the folder {}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("the path {} of the sandbox now leads to {}", path.display(), target.display())]
    Moved { path: PathBuf, target: PathBuf },
    #[error("the Landlock rules: {0}")]
    Landlock(#[from] ::landlock::RulesetError),
    #[error("the path {} of the sandbox: {source}", path.display())]
    Path { path: PathBuf, source: ::landlock::PathFdError },
    #[error("this kernel has no Landlock")]
    NoLandlock,
    #[error("the seccomp filter: {0}")]
    Seccomp(#[from] seccompiler::Error),
}

/// A sandbox whose paths were opened while the process still had the rights of the broker.
#[derive(Debug)]
pub struct PreparedSandbox {
    sandbox: Sandbox,
    rules: Option<::landlock::RulesetCreated>,
}

impl Sandbox {
    /// Returns the arguments for the launcher.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = vec![OsString::from("--sandbox=1")];
        let mut add = |name: &str, value: &OsStr| {
            let mut argument = OsString::from(format!("--{name}="));
            argument.push(value);
            arguments.push(argument);
        };
        if let Some(user) = self.user {
            add("user", user.to_string().as_ref());
        }
        if let Some(files) = &self.files {
            add("landlock", "1".as_ref());
            for (name, paths) in
                [("read", &files.read), ("write", &files.write), ("device", &files.devices)]
            {
                paths.iter().for_each(|path| add(name, path.as_os_str()));
            }
        }
        match &self.network {
            Network::Any => {}
            Network::Except(ports) => {
                ports.iter().for_each(|port| add("closed-port", port.to_string().as_ref()))
            }
            Network::None => add("network", "0".as_ref()),
        }
        if self.own_signals_only {
            add("own-signals", "1".as_ref());
        }
        if let Some(folder) = &self.temporary {
            add("temporary", folder.as_os_str());
        }
        arguments
    }

    /// Reads one of [`Sandbox::arguments`]. Returns `None` for any other argument.
    pub fn read_argument(&mut self, name: &str, value: &OsStr) -> Option<()> {
        let path = || PathBuf::from(value);
        let text = value.to_str();
        match name {
            "--sandbox" => {}
            "--user" => self.user = Some(text?.parse().ok()?),
            "--landlock" => drop(self.files.get_or_insert_default()),
            "--read" => self.files.get_or_insert_default().read.push(path()),
            "--write" => self.files.get_or_insert_default().write.push(path()),
            "--device" => self.files.get_or_insert_default().devices.push(path()),
            "--network" => self.network = Network::None,
            "--closed-port" => {
                let port = text?.parse().ok()?;
                match &mut self.network {
                    Network::Except(ports) => ports.push(port),
                    other => *other = Network::Except(vec![port]),
                }
            }
            "--own-signals" => self.own_signals_only = true,
            "--temporary" => self.temporary = Some(path()),
            _ => return None,
        }
        Some(())
    }

    /// Opens the paths of the rules. Call it while the process has the rights of the broker.
    pub fn prepare(self) -> Result<PreparedSandbox, SandboxError> {
        let rules =
            self.files.as_ref().map(|files| landlock::ruleset(files, &self.network)).transpose()?;
        Ok(PreparedSandbox { sandbox: self, rules })
    }
}

impl PreparedSandbox {
    /// Drops the broker's user and every capability. Settings that a change of the user clears,
    /// such as the parent death signal, come after this.
    pub fn change_user(&self) -> Result<(), SandboxError> {
        if let Some(user) = self.sandbox.user {
            user::become_user(user).map_err(|source| SandboxError::User { user, source })?;
        }
        user::drop_capabilities().map_err(SandboxError::Capabilities)?;
        let Some(path) = &self.sandbox.temporary else { return Ok(()) };
        user::make_folder(path)
            .map_err(|source| SandboxError::Folder { path: path.clone(), source })
    }

    /// Applies Landlock and seccomp to this process and all its descendants. This is the last step
    /// before the command, and requires that the process cannot gain new privileges.
    pub fn enforce(self) -> Result<(), SandboxError> {
        if let Some(rules) = self.rules {
            landlock::enforce(rules)?;
        }
        seccomp::enforce(&self.sandbox)
    }
}

/// Splits `--name=value`.
pub(crate) fn split(argument: &OsStr) -> Option<(&str, &OsStr)> {
    let bytes = argument.as_bytes();
    let at = memchr::memchr(b'=', bytes)?;
    Some((std::str::from_utf8(&bytes[..at]).ok()?, OsStr::from_bytes(&bytes[at + 1..])))
}
