//! Landlock rules: the files a child may access, the TCP ports it may connect to, and the processes
//! it may signal.
//!
//! Invariant: the ruleset handles every access right that the kernel knows up to ABI 7, so all
//! accesses without a rule are denied. Older kernels handle fewer rights, which [`super::support`]
//! reports. A kernel without Landlock is an error.

use std::{os::fd::AsRawFd as _, path::Path};

use ::landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, NetPort,
    PathBeneath, PathFd, Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _,
    RulesetError, RulesetStatus, Scope,
};

use super::{FileRules, Network, SandboxError};

/// Newest ABI that this code was tested with.
const TESTED: ABI = ABI::V7;

/// Creates the rules of a child. Opens the paths.
pub(super) fn ruleset(
    files: &FileRules,
    network: &Network,
) -> Result<RulesetCreated, SandboxError> {
    let all = AccessFs::from_all(TESTED);
    // The library leaves out rights that the kernel does not know.
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(TESTED))?;
    ruleset = match network {
        Network::Any => ruleset,
        Network::Except(_) => ruleset.handle_access(AccessNet::ConnectTcp)?,
        Network::None => ruleset.handle_access(AccessNet::from_all(TESTED))?,
    };
    let mut created = ruleset.create()?;
    let write = all & !(AccessFs::MakeChar | AccessFs::MakeBlock);
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    for (paths, access) in [
        (&files.read, AccessFs::from_read(TESTED)),
        (&files.write, write),
        (&files.devices, device),
    ] {
        for path in paths {
            created = created.add_rule(beneath(path, access)?)?;
        }
    }
    if let Network::Except(closed) = network {
        let open = (0..=u16::MAX).filter(|port| !closed.contains(port));
        created = created.add_rules(
            open.map(|port| Ok::<_, RulesetError>(NetPort::new(port, AccessNet::ConnectTcp))),
        )?;
    }
    Ok(created)
}

/// Creates a rule for one canonical path.
fn beneath(path: &Path, access: BitFlags<AccessFs>) -> Result<PathBeneath<PathFd>, SandboxError> {
    let opened =
        PathFd::new(path).map_err(|source| SandboxError::Path { path: path.to_owned(), source })?;
    // A link may have replaced the path since the broker checked it.
    let unread = |source| SandboxError::Folder { path: path.to_owned(), source };
    let own = std::os::fd::AsFd::as_fd(&opened).as_raw_fd();
    let target = std::fs::read_link(format!("/proc/self/fd/{own}")).map_err(unread)?;
    if target != path {
        return Err(SandboxError::Moved { path: path.to_owned(), target });
    }
    let is_folder = std::fs::metadata(path).map_err(unread)?.is_dir();
    Ok(PathBeneath::new(
        opened,
        if is_folder { access } else { access & AccessFs::from_file(TESTED) },
    ))
}

pub(super) fn enforce(rules: RulesetCreated) -> Result<(), SandboxError> {
    match rules.restrict_self()?.ruleset {
        RulesetStatus::NotEnforced => Err(SandboxError::NoLandlock),
        _ => Ok(()),
    }
}
