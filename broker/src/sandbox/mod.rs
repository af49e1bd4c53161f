//! Confinement of the children of stdio backends on this host: a user for each tenant, Landlock, or
//! both.
//!
//! The stdio link calls it before it starts a child. Invariant: a child starts only if it cannot
//! access the broker's files and memory, and the homes of other tenants. Otherwise the start fails
//! with the reason. The mode `off` of `stdio.sandbox` disables this.

mod broker_files;
mod file_access;
mod homes;
mod paths;
pub mod peer_user;

use std::{
    collections::BTreeSet,
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use config::{
    Config,
    sandbox::{SandboxMode, SandboxRules},
};
use protocol::ids::TenantId;
use transport::{
    SpawnError,
    child_process::{self, ChildSpec},
    sandbox::{FileRules, Network, Sandbox, support},
};

use self::{
    broker_files::BrokerFiles,
    homes::{FolderFault, Homes},
    paths::SystemPaths,
};

/// Variables about the broker's user, which a child with a home of its own does not inherit.
const OF_THE_USER: [&str; 4] = ["HOME", "TMPDIR", "USER", "LOGNAME"];
/// User name that a child sees.
const USER_NAME: &str = "mcp";
/// Folder of named shared memory. Users separate its files only if children have users of their
/// own.
const SHARED_MEMORY: &str = "/dev/shm";

/// Confinement of a child, for operators.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfinementLevel {
    /// `uid+landlock`, `uid`, `landlock` or `off`.
    pub name: &'static str,
    /// Protections that the host does not support, or the backend does not permit.
    pub missing: Vec<String>,
    /// Why the user of the child cannot read or write what the backend permits, one text for each path.
    pub unreachable: Vec<String>,
}

/// Reason why a child is not started.
#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    #[error(transparent)]
    Command(#[from] SpawnError),
    #[error("stdio.sandbox: {0}")]
    Sandbox(String),
}

impl From<String> for ConfinementError {
    fn from(why: String) -> Self {
        Self::Sandbox(why)
    }
}

/// Confines every child of this process.
#[derive(Debug)]
pub struct Confinement {
    mode: SandboxMode,
    range: RangeInclusive<u32>,
    homes: Homes,
    own_files: BrokerFiles,
    /// TCP ports of the listeners for operators and replicas.
    closed_ports: OnceLock<Vec<u16>>,
    host: OnceLock<HostSupport>,
}

/// Support by this host, determined when the first child starts.
#[derive(Debug)]
struct HostSupport {
    /// Reason why children cannot have users of their own.
    no_users: Option<String>,
    landlock_abi: Option<i32>,
    paths: SystemPaths,
}

/// Confinement of one child.
struct ChildConfinement {
    has_user: bool,
    landlock_abi: Option<i32>,
    missing: Vec<String>,
}

impl Confinement {
    pub fn new(config: &Config) -> Arc<Self> {
        let stdio = &config.stdio;
        Arc::new(Self {
            mode: stdio.sandbox,
            range: stdio.uid_range.clone(),
            homes: Homes::new(config),
            own_files: BrokerFiles::new(config),
            closed_ports: OnceLock::new(),
            host: OnceLock::new(),
        })
    }

    /// Protects the files of a configuration that comes into force from children that start later.
    pub fn record_reload(&self, config: &Config) {
        self.own_files.record_reload(&config.private_files);
    }

    /// Sets the ports that no child may connect to, as soon as they are known.
    pub fn deny_ports(&self, ports: Vec<u16>) {
        let _set_before = self.closed_ports.set(ports);
    }

    /// Returns whether children with users of their own may exist. Before this process starts one,
    /// there may be some of an earlier process.
    pub fn may_have_users(&self) -> bool {
        let is_possible = matches!(self.mode, SandboxMode::Auto | SandboxMode::Uid);
        is_possible && self.host.get().is_none_or(|host| host.no_users.is_none())
    }

    /// Returns whether this process has started a child, and children may have users of their own.
    pub fn has_users(&self) -> bool {
        self.may_have_users() && self.host.get().is_some()
    }

    /// Completes a child's specification. Reads file metadata, so it may block briefly.
    pub fn confine(
        &self,
        tenant: &TenantId,
        rules: &SandboxRules,
        spec: &mut ChildSpec,
    ) -> Result<ConfinementLevel, ConfinementError> {
        if self.mode == SandboxMode::Off {
            return Ok(ConfinementLevel { name: "off", ..ConfinementLevel::default() });
        }
        if spec.command.contains('/') && spec.cwd.is_none() {
            // The child starts in its home, where a relative path would have another meaning.
            let absolute = std::path::absolute(&spec.command).map_err(|error| error.to_string())?;
            spec.command = absolute.to_string_lossy().into_owned();
        }
        let program = child_process::find_command(spec)?;
        let choice = self.choose(&program, rules)?;
        let home = self.homes.open(tenant.as_str(), choice.has_user.then_some(&self.range))?;
        let path = std::env::split_paths(&variable(spec, "PATH")).collect::<Vec<_>>();
        let files = choice.landlock_abi.map(|_| {
            let program = self.host()?.paths.of_program(&program, &path);
            let read = program
                .into_iter()
                .chain(spec.cwd.clone())
                .chain(rules.read.iter().map(PathBuf::from));
            let shared =
                choice.has_user.then(|| PathBuf::from(SHARED_MEMORY)).filter(|path| path.is_dir());
            let write = rules.write.iter().map(PathBuf::from).chain(shared);
            self.files(read, write, &home.path, choice.has_user)
        });
        let network = match rules.network {
            false => Network::None,
            // The listeners for operators check the user of a peer themselves.
            true if choice.has_user => Network::Any,
            true if choice.landlock_abi >= Some(support::ABI_TCP) => {
                Network::Except(self.closed_ports.get().cloned().unwrap_or_default())
            }
            true => Network::Any,
        };
        let temporary = home.path.join("tmp");
        let of_the_child = [("HOME", home.path.as_path()), ("TMPDIR", temporary.as_path())]
            .map(|(name, path)| (name, path.to_string_lossy().into_owned()));
        let named = [("USER", USER_NAME.to_owned()), ("LOGNAME", USER_NAME.to_owned())];
        spec.inherit_env.retain(|name| !OF_THE_USER.contains(&name.as_str()));
        for (name, value) in of_the_child.into_iter().chain(named) {
            spec.env.entry(name.to_owned()).or_insert(value);
        }
        spec.cwd.get_or_insert_with(|| home.path.clone());
        spec.sandbox = Some(Sandbox {
            user: home.user,
            files: files.transpose()?,
            network,
            own_signals_only: !choice.has_user && choice.landlock_abi < Some(support::ABI_SCOPES),
            temporary: Some(temporary),
        });
        Ok(choice.level(rules, home.user))
    }

    /// Returns the support by this host. A host that lacks descriptors, threads or disk space cannot
    /// be examined. The child is then refused, and the next one tries again: a wrong result would
    /// take a protection from all later children.
    fn host(&self) -> Result<&HostSupport, String> {
        if let Some(host) = self.host.get() {
            return Ok(host);
        }
        let unknown =
            |error: io::Error| format!("the broker cannot examine this host now: {error}");
        let no_users = match support::user_change_obstacle(&self.range).map_err(unknown)? {
            Some(obstacle) => Some(obstacle),
            None => match self.homes.make_traversable() {
                Ok(()) => None,
                Err(FolderFault::Lasting(why)) => Some(why),
                Err(FolderFault::Passing(why)) => return Err(why),
            },
        };
        if no_users.is_none() {
            self.own_files.restrict_permissions();
        }
        let landlock_abi = support::landlock_abi().map_err(unknown)?;
        Ok(self.host.get_or_init(|| HostSupport {
            no_users,
            landlock_abi,
            paths: SystemPaths::find(),
        }))
    }

    /// Selects the confinement of this child: a user, Landlock, or both.
    fn choose(&self, program: &Path, rules: &SandboxRules) -> Result<ChildConfinement, String> {
        let host = self.host()?;
        let no_user = host
            .no_users
            .clone()
            .or_else(|| file_access::closed_to_others(program, file_access::EXECUTE));
        let (wants_user, wants_landlock) = match self.mode {
            SandboxMode::Uid => (true, false),
            SandboxMode::Landlock => (false, true),
            SandboxMode::Auto | SandboxMode::Off => (true, true),
        };
        let has_user = wants_user && no_user.is_none();
        let landlock_abi = host.landlock_abi.filter(|_| wants_landlock);
        let mut missing = Vec::new();
        if let Some(why) = no_user.filter(|_| wants_user) {
            missing.push(format!("uid: {why}"));
        }
        match landlock_abi {
            None if wants_landlock => {
                missing.push("landlock: this kernel does not offer it".to_owned())
            }
            Some(abi) if abi < support::ABI_SCOPES => missing.push(lacking(abi, has_user, rules)),
            _ => {}
        }
        if !has_user && landlock_abi.is_none() {
            let why = missing.join("; ");
            return Err(format!(
                "the broker cannot confine a child on this host ({why}); fix the cause, or set stdio.sandbox to off, which disables confinement"
            ));
        }
        if landlock_abi.is_none() {
            // Only file modes keep this child from the broker's files.
            self.own_files.check_restricted()?;
        }
        Ok(ChildConfinement { has_user, landlock_abi, missing })
    }

    /// Returns the rules for files, or an error that names the broker's file that they would open.
    fn files(
        &self,
        read: impl Iterator<Item = PathBuf>,
        write: impl Iterator<Item = PathBuf>,
        home: &Path,
        has_user: bool,
    ) -> Result<FileRules, String> {
        let system = &self.host()?.paths;
        let canonical = |path: PathBuf| {
            path.canonicalize().map_err(|error| {
                format!("the path {} of the sandbox cannot be used: {error}", path.display())
            })
        };
        let mut read: BTreeSet<PathBuf> = read.map(canonical).collect::<Result<_, _>>()?;
        read.extend(system.read.iter().cloned());
        let mut write: BTreeSet<PathBuf> = write.map(canonical).collect::<Result<_, _>>()?;
        for path in read.iter().chain(&write) {
            if let Some(own) =
                self.own_files.below(path, has_user).or_else(|| self.homes.overlaps(path))
            {
                return Err(format!(
                    "this child could access {}, because it may use {}; move the first path, or allow narrower paths",
                    own.display(),
                    path.display()
                ));
            }
        }
        write.insert(home.to_owned());
        Ok(FileRules {
            read: read.into_iter().collect(),
            write: write.into_iter().collect(),
            devices: system.devices.clone(),
        })
    }
}

impl ChildConfinement {
    fn level(self, rules: &SandboxRules, user: Option<u32>) -> ConfinementLevel {
        let name = match (self.has_user, self.landlock_abi) {
            (true, Some(_)) => "uid+landlock",
            (true, None) => "uid",
            (false, _) => "landlock",
        };
        let read = rules.read.iter().map(|path| (path, file_access::READ));
        let write = rules.write.iter().map(|path| (path, file_access::READ | file_access::WRITE));
        let unreachable = read.chain(write).filter_map(|(path, access)| {
            let why = file_access::closed_to_user(user?, Path::new(path), access)?;
            Some(if why.starts_with(path) { why } else { format!("{path}: {why}") })
        });
        ConfinementLevel { name, unreachable: unreachable.collect(), missing: self.missing }
    }
}

/// Returns the protections that an older kernel lacks.
fn lacking(abi: i32, has_user: bool, rules: &SandboxRules) -> String {
    let tcp = match (abi < support::ABI_TCP && rules.network, has_user) {
        (true, false) => {
            "connections to the listeners of operators and replicas are not refused (ABI 4), "
        }
        _ => "",
    };
    format!(
        "landlock: this kernel has ABI {abi}: {tcp}signals and abstract sockets are kept apart by other means (ABI 6)"
    )
}

/// Returns a variable as the child will have it.
fn variable(spec: &ChildSpec, name: &str) -> std::ffi::OsString {
    child_process::environment(spec).remove(std::ffi::OsStr::new(name)).unwrap_or_default()
}
