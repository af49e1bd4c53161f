//! Checks access by file modes: may a user use a file, given its mode and those of the folders above
//! it? The user is that of a child, or one without files and groups.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

pub(super) const READ: u32 = 0o004;
pub(super) const WRITE: u32 = 0o002;
pub(super) const EXECUTE: u32 = 0o001;

/// Returns the reason why other users do not have this access, or `None` if they have it. A missing
/// file is closed.
pub(super) fn closed_to_others(path: &Path, access: u32) -> Option<String> {
    closed_to(None, path, access)
}

/// Returns the reason why a user, whose only group has the same number, does not have this access.
pub(super) fn closed_to_user(user: u32, path: &Path, access: u32) -> Option<String> {
    closed_to(Some(user), path, access)
}

fn closed_to(user: Option<u32>, path: &Path, access: u32) -> Option<String> {
    let Ok(path) = path.canonicalize() else {
        return Some(format!("{} does not exist", path.display()));
    };
    let closed = |path: &Path, access: u32| match fs::metadata(path) {
        Ok(found) if modes_for(user, &found) & access == access => None,
        Ok(found) => {
            let problem = if access & WRITE == 0 { "closed to" } else { "not writable by" };
            let users = user.map_or("other users".to_owned(), |user| format!("the user {user}"));
            let (path, mode, owner) = (path.display(), found.mode() & 0o7777, found.uid());
            Some(format!("{path} is {problem} {users} (mode {mode:04o}, owner {owner})"))
        }
        Err(error) => Some(format!("{}: {error}", path.display())),
    };
    let above = path.ancestors().skip(1).collect::<Vec<_>>();
    above
        .into_iter()
        .rev()
        .find_map(|folder| closed(folder, EXECUTE))
        .or_else(|| closed(&path, access))
}

/// Returns the modes of a file that apply to a user, as those of other users.
fn modes_for(user: Option<u32>, found: &fs::Metadata) -> u32 {
    match user {
        Some(user) if found.uid() == user => found.mode() >> 6,
        Some(user) if found.gid() == user => found.mode() >> 3,
        _ => found.mode(),
    }
}

/// Removes the access of all users but the owner, if they have any.
pub(super) fn restrict_to_owner(path: &Path) {
    let Ok(found) = fs::symlink_metadata(path).map(|found| found.mode()) else { return };
    if found & 0o077 == 0 {
        return;
    }
    match fs::set_permissions(path, fs::Permissions::from_mode(0o600)) {
        Ok(()) => {
            tracing::warn!(path = %path.display(), was = format!("{:04o}", found & 0o7777), "the broker removed the access of other users to one of its files")
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a file of the broker is open to other users")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn the_owner_of_a_folder_writes_where_others_only_read() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let path = folder.path();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        let owner = fs::metadata(path).unwrap().uid();
        let other = owner + 1;
        assert_eq!(closed_to_user(owner, path, READ | WRITE), None);
        assert_eq!(closed_to_user(other, path, READ), None);
        let expected = format!(
            "{} is not writable by the user {other} (mode 0755, owner {owner})",
            path.display()
        );
        assert_eq!(closed_to_user(other, path, READ | WRITE), Some(expected));
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        let reason = closed_to_others(path, READ).unwrap();
        assert!(reason.ends_with(&format!("is closed to other users (mode 0700, owner {owner})")));
        if owner == 0 {
            chown(path, Some(other), None).unwrap();
            assert_eq!(closed_to_user(other, path, READ | WRITE), None);
        }
    }
}
