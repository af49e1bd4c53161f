//! Checks access by file modes: may a user without files and groups use a file, given its mode and
//! those of the folders above it?

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

pub(super) const READ: u32 = 0o004;
pub(super) const EXECUTE: u32 = 0o001;

/// Returns the reason why other users do not have this access, or `None` if they have it. A missing
/// file is closed.
pub(super) fn closed_to_others(path: &Path, access: u32) -> Option<String> {
    let Ok(path) = path.canonicalize() else {
        return Some(format!("{} is not there", path.display()));
    };
    let closed = |path: &Path, access: u32| match fs::metadata(path) {
        Ok(found) if found.mode() & access == access => None,
        Ok(found) => Some(format!(
            "{} is closed to other users (mode {:04o})",
            path.display(),
            found.mode() & 0o7777
        )),
        Err(error) => Some(format!("{}: {error}", path.display())),
    };
    let above = path.ancestors().skip(1).collect::<Vec<_>>();
    above
        .into_iter()
        .rev()
        .find_map(|folder| closed(folder, EXECUTE))
        .or_else(|| closed(&path, access))
}

/// Removes the access of all users but the owner, if they have any.
pub(super) fn restrict_to_owner(path: &Path) {
    let Ok(found) = fs::symlink_metadata(path).map(|found| found.mode()) else { return };
    if found & 0o077 == 0 {
        return;
    }
    match fs::set_permissions(path, fs::Permissions::from_mode(0o600)) {
        Ok(()) => {
            tracing::warn!(path = %path.display(), was = format!("{:04o}", found & 0o7777), "closed a file of the broker to other users")
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a file of the broker is open to other users")
        }
    }
}
