//! Homes of children: a folder for each tenant, which also records the tenant's user.
//!
//! The owner of a home is the tenant's user. A hash selects the user of a new tenant. If that user
//! is taken, the next one is used that owns no home here and runs no process on this host.
//! Invariants:
//! - A home is closed to all users but its owner.
//! - If tenants have users, no two homes of one folder have the same owner.

use std::{
    collections::HashSet,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    ops::RangeInclusive,
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown,
    },
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{SHA256, digest};
use rustix::process::geteuid;

use super::broker_files::canonical;
use crate::config::{Config, DatabaseConfig};

/// Locked during the selection of a user, so that two processes with the same folder do not select
/// at the same time.
const LOCK: &str = ".lock";
/// Name prefix of an incomplete home.
const DRAFT: &str = ".new-";
/// Home of children with the broker's user. It is in the folder of the homes of tenants' users.
const WITHOUT_USER: &str = ".landlock";

#[derive(Debug)]
pub(super) struct Homes {
    /// `None`: no location is configured or known.
    root: Option<PathBuf>,
    /// Folder of the database, if the homes are in it.
    data: Option<PathBuf>,
}

#[derive(Debug)]
pub(super) struct Home {
    pub(super) path: PathBuf,
    /// User of the tenant. `None` if children have the broker's user.
    pub(super) user: Option<u32>,
}

impl Homes {
    pub(super) fn new(config: &Config) -> Self {
        let data = match (&config.stdio.homes, &config.storage.database) {
            (None, DatabaseConfig::Sqlite(path)) => canonical(path).parent().map(Path::to_owned),
            _ => None,
        };
        let of_the_broker =
            || Some(PathBuf::from(std::env::var_os("HOME")?).join(".mcp-broker/homes"));
        let next_to_data =
            || data.as_ref().map(|folder| folder.join("homes")).or_else(of_the_broker);
        let root =
            config.stdio.homes.clone().or_else(next_to_data).filter(|root| root.is_absolute());
        Self { root, data }
    }

    fn root(&self) -> Result<&Path, String> {
        let root = self
            .root
            .as_deref()
            .ok_or("stdio.homes is not set, and the user of the broker has no home folder")?;
        let failed = |error: io::Error| {
            format!("the folder {} for homes of children: {error}", root.display())
        };
        DirBuilder::new().recursive(true).mode(0o711).create(root).map_err(failed)?;
        Ok(root)
    }

    /// Permits users of children to pass through the folders above their homes. They cannot list
    /// those folders. Returns an error that names a closed folder.
    pub(super) fn make_traversable(&self) -> Result<(), String> {
        let root = canonical(self.root()?);
        let above: Vec<&Path> = root.ancestors().collect();
        for folder in above.into_iter().rev() {
            let found =
                fs::metadata(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            let found = protected(folder, found)?;
            if found.mode() & 0o001 != 0 {
                continue;
            }
            let is_own = folder == root || self.data.as_deref() == Some(folder);
            if !is_own || found.uid() != geteuid().as_raw() {
                let folder = folder.display();
                return Err(format!(
                    "other users cannot pass through {folder}; set stdio.homes to a folder that every user can reach"
                ));
            }
            if let Some(open) = readable_file_in(folder) {
                return Err(format!(
                    "{} would be readable for children; remove the access of others (chmod o=), or set stdio.homes",
                    open.display()
                ));
            }
            let mode = (found.mode() & 0o7777) | 0o001;
            fs::set_permissions(folder, Permissions::from_mode(mode))
                .map_err(|error| format!("{}: {error}", folder.display()))?;
            tracing::info!(folder = %folder.display(), mode = format!("{mode:04o}"), "the broker changed the mode of a folder, so that the users of children can pass through it");
        }
        Ok(())
    }

    /// Returns the folder of all homes if the path is at, above or below it.
    pub(super) fn overlaps(&self, path: &Path) -> Option<PathBuf> {
        let root = canonical(self.root.as_deref()?);
        (root.starts_with(path) || path.starts_with(&root)).then_some(root)
    }

    /// Returns the home of a tenant. Creates it at the first call.
    pub(super) fn open(
        &self,
        tenant: &str,
        users: Option<&RangeInclusive<u32>>,
    ) -> Result<Home, String> {
        let root = canonical(self.root()?);
        let name =
            if users.is_some() { tenant.to_owned() } else { format!("{tenant}{WITHOUT_USER}") };
        let path = root.join(&name);
        let failed = |error: io::Error| format!("the home {}: {error}", path.display());
        let is_missing = |found: &io::Result<fs::Metadata>| {
            found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        if is_missing(&fs::symlink_metadata(&path)) {
            let lock = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(root.join(LOCK))
                .map_err(failed)?;
            lock.lock().map_err(failed)?;
            if is_missing(&fs::symlink_metadata(&path)) {
                make(&root, &name, users, &lock)?;
            }
        }
        let found = fs::symlink_metadata(&path).map_err(failed)?;
        let (owner, own) = (found.uid(), geteuid().as_raw());
        let is_owned = users.map_or(owner == own, |range| range.contains(&owner));
        if !found.is_dir() || !is_owned {
            let expected = users.map_or(format!("the user {own}"), |range| {
                format!("a user of stdio.uid_range ({}-{})", range.start(), range.end())
            });
            return Err(format!(
                "the home {} belongs to the user {owner}, and not to {expected}; remove it, or change its owner",
                path.display()
            ));
        }
        if found.mode() & 0o077 != 0 {
            return Err(format!(
                "the home {} is open to other users; close it (chmod 0700)",
                path.display()
            ));
        }
        Ok(Home { path, user: users.map(|_| owner) })
    }
}

/// Keeps children from replacing what is in a folder above their homes: others may not write into it,
/// or only with the sticky bit. The broker changes a folder of its own.
fn protected(folder: &Path, found: fs::Metadata) -> Result<fs::Metadata, String> {
    const STICKY: u32 = 0o1000;
    const WRITABLE_FOR_OTHERS: u32 = 0o002;
    if found.mode() & WRITABLE_FOR_OTHERS == 0 || found.mode() & STICKY != 0 {
        return Ok(found);
    }
    if found.uid() != geteuid().as_raw() {
        let folder = folder.display();
        return Err(format!(
            "other users can write into {folder}, which has no sticky bit; close it (chmod o-w), or set stdio.homes"
        ));
    }
    let mode = found.mode() & 0o7777 & !WRITABLE_FOR_OTHERS;
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    fs::set_permissions(folder, Permissions::from_mode(mode)).map_err(failed)?;
    tracing::info!(folder = %folder.display(), mode = format!("{mode:04o}"), "the broker changed the mode of a folder, so that children cannot replace the homes of others");
    fs::metadata(folder).map_err(failed)
}

/// Creates a home. It appears under its name with its owner, or not at all.
fn make(
    root: &Path,
    name: &str,
    users: Option<&RangeInclusive<u32>>,
    _lock: &File,
) -> Result<(), String> {
    let draft = root.join(format!("{DRAFT}{name}"));
    let failed = |error: io::Error| format!("the home {}: {error}", root.join(name).display());
    match fs::remove_dir(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    DirBuilder::new().mode(0o700).create(&draft).map_err(failed)?;
    if let Some(range) = users {
        let user = free_user(root, name, range)
            .map_err(failed)?
            .ok_or("every user of stdio.uid_range owns a home or runs a process")?;
        chown(&draft, Some(user), Some(user)).map_err(failed)?;
    }
    fs::rename(&draft, root.join(name)).map_err(failed)
}

fn free_user(root: &Path, name: &str, range: &RangeInclusive<u32>) -> io::Result<Option<u32>> {
    let owner = |entry: fs::DirEntry| entry.path().symlink_metadata().ok().map(|found| found.uid());
    let mut taken: HashSet<u32> = fs::read_dir(root)?.flatten().filter_map(owner).collect();
    // Another broker of this host may have assigned it.
    taken.extend(fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(owner));
    let count = u64::from(range.end() - range.start()) + 1;
    // The hash includes the folder, so that tenants of two brokers rarely start at the same number.
    let hash = digest(
        &SHA256,
        [root.as_os_str().as_encoded_bytes(), b"\0", name.as_bytes()].concat().as_slice(),
    );
    let first =
        hash.as_ref().iter().take(8).fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte)) % count;
    let candidates = (0..count)
        .map(|step| (first + step) % count)
        .filter_map(|offset| u32::try_from(offset).ok());
    Ok(candidates.map(|offset| range.start() + offset).find(|user| !taken.contains(user)))
}

/// Returns a file directly in the folder that every user could read if the folder were open.
fn readable_file_in(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let is_open = |path: &PathBuf| {
        path.symlink_metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o004 != 0)
    };
    entries.map(|entry| entry.path()).find(is_open)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_from;

    fn homes(root: &Path) -> Homes {
        Homes::new(&load_from(&format!("stdio: {{homes: '{}'}}", root.display()), []).unwrap())
    }

    #[test]
    fn s03_a_home_without_a_user_range_belongs_to_the_broker_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let homes = homes(folder.path());
        let home = homes.open("acme", None).unwrap();
        assert_eq!((home.user, fs::metadata(&home.path).unwrap().mode() & 0o777), (None, 0o700));
        fs::set_permissions(&home.path, Permissions::from_mode(0o755)).unwrap();
        assert!(homes.open("acme", None).unwrap_err().contains("open to other users"));
        assert!(
            homes.overlaps(folder.path()).is_some()
                && homes.overlaps(&folder.path().canonicalize().unwrap().join("acme")).is_some()
        );
    }

    #[test]
    fn s03_others_cannot_write_into_a_folder_above_the_homes() {
        let folder = tempfile::tempdir().unwrap();
        let mode_after = |mode: u32| {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            let found = fs::metadata(folder.path()).unwrap();
            protected(folder.path(), found).unwrap().mode() & 0o7777
        };
        // An `emptyDir` of Kubernetes has the first mode, or the second one with `fsGroup`.
        assert_eq!([0o777, 0o2777, 0o1777, 0o755].map(mode_after), [0o775, 0o2775, 0o1777, 0o755]);
    }

    #[test]
    fn s03_tenants_never_share_a_user_and_keep_theirs() {
        if !geteuid().is_root() {
            eprintln!("not run: only root gives folders to other users");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let homes = homes(folder.path());
        // As many tenants as users, so nearly all of them collide.
        let range = 3_000_000_000..=3_000_000_007;
        let users: Vec<u32> = (0..8)
            .map(|number| homes.open(&format!("t{number}"), Some(&range)).unwrap().user.unwrap())
            .collect();
        assert_eq!(users.iter().collect::<HashSet<_>>().len(), 8, "{users:?}");
        assert!(
            homes.open("t8", Some(&range)).unwrap_err().contains("every user of stdio.uid_range")
        );
        for (number, user) in users.iter().enumerate() {
            assert_eq!(homes.open(&format!("t{number}"), Some(&range)).unwrap().user, Some(*user));
        }
        // A removed home frees its user. A home with an unexpected owner is not used.
        fs::remove_dir(folder.path().join("t3")).unwrap();
        assert_eq!(homes.open("t8", Some(&range)).unwrap().user, Some(users[3]));
        assert!(
            homes
                .open("t0", Some(&(4_000_000_000..=4_000_000_001)))
                .unwrap_err()
                .contains("stdio.uid_range")
        );
    }
}
