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
use config::{Config, DatabaseConfig};
use rustix::{io::Errno, process::geteuid};
use transport::sandbox::support::is_passing;

use super::broker_files::canonical;

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

/// Reason why children cannot reach the folder of their homes.
#[derive(Debug)]
pub(super) enum FolderFault {
    /// It stays until an operator changes the folder or the configuration.
    Lasting(String),
    /// The system could not carry out a call now.
    Passing(String),
}

impl FolderFault {
    fn of_call(folder: &Path, error: &io::Error) -> Self {
        let text = format!("{}: {error}", folder.display());
        if is_passing(error) { Self::Passing(text) } else { Self::Lasting(text) }
    }

    fn into_text(self) -> String {
        match self {
            Self::Lasting(text) | Self::Passing(text) => text,
        }
    }
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

    fn root(&self) -> Result<&Path, FolderFault> {
        let root = self.root.as_deref().ok_or_else(|| {
            let why = "stdio.homes is not set, and the user of the broker has no home folder";
            FolderFault::Lasting(why.to_owned())
        })?;
        let made = DirBuilder::new().recursive(true).mode(0o711).create(root);
        made.map_err(|error| FolderFault::of_call(root, &error))?;
        Ok(root)
    }

    /// Permits users of children to pass through the folders above their homes. They cannot list
    /// those folders. Returns an error that names a closed folder.
    pub(super) fn make_traversable(&self) -> Result<(), FolderFault> {
        let root = canonical(self.root()?);
        let above: Vec<&Path> = root.ancestors().collect();
        for folder in above.into_iter().rev() {
            let failed = |error: io::Error| FolderFault::of_call(folder, &error);
            let found = fs::metadata(folder).map_err(failed)?;
            let found = protected(folder, found)?;
            if found.mode() & 0o001 != 0 {
                continue;
            }
            let is_own = folder == root || self.data.as_deref() == Some(folder);
            if !is_own || found.uid() != geteuid().as_raw() {
                let folder = folder.display();
                return Err(FolderFault::Lasting(format!(
                    "other users cannot pass through {folder}; set stdio.homes to a folder that every user can reach"
                )));
            }
            if let Some(open) = readable_file_in(folder) {
                return Err(FolderFault::Lasting(format!(
                    "{} would be readable for children; remove the access of others (chmod o=), or set stdio.homes",
                    open.display()
                )));
            }
            let mode = (found.mode() & 0o7777) | 0o001;
            fs::set_permissions(folder, Permissions::from_mode(mode)).map_err(failed)?;
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
        let root = canonical(self.root().map_err(FolderFault::into_text)?);
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
fn protected(folder: &Path, found: fs::Metadata) -> Result<fs::Metadata, FolderFault> {
    const STICKY: u32 = 0o1000;
    const WRITABLE_FOR_OTHERS: u32 = 0o002;
    if found.mode() & WRITABLE_FOR_OTHERS == 0 || found.mode() & STICKY != 0 {
        return Ok(found);
    }
    if found.uid() != geteuid().as_raw() {
        let folder = folder.display();
        return Err(FolderFault::Lasting(format!(
            "other users can write into {folder}, which has no sticky bit; close it (chmod o-w), or set stdio.homes"
        )));
    }
    let mode = found.mode() & 0o7777 & !WRITABLE_FOR_OTHERS;
    let failed = |error: io::Error| FolderFault::of_call(folder, &error);
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
    // Another broker of this host may have assigned a user that runs a process.
    let taken = taken_users(owners_in(root), owners_in(Path::new("/proc")))?;
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

/// Returns the users that own a home or run a process. An owner of a home that could not be read
/// would be assigned a second time. The owner of a process may be hidden for ever, so only an error
/// that passes is one.
fn taken_users(
    of_homes: Vec<io::Result<u32>>,
    of_processes: Vec<io::Result<u32>>,
) -> io::Result<HashSet<u32>> {
    let known = |owner: &io::Result<u32>| owner.as_ref().err().is_none_or(is_passing);
    of_homes.into_iter().chain(of_processes.into_iter().filter(known)).collect()
}

/// Returns the owners of everything in the folder.
fn owners_in(folder: &Path) -> Vec<io::Result<u32>> {
    let owner = |entry: fs::DirEntry| entry.path().symlink_metadata().map(|found| found.uid());
    // It ended or was removed meanwhile.
    let is_gone =
        |error: &io::Error| matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::SRCH));
    match fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| entry.and_then(owner))
            .filter(|owner| !owner.as_ref().is_err_and(is_gone))
            .collect(),
        Err(error) => vec![Err(error)],
    }
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
    use config::load_from;

    use super::*;

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
    fn s03_a_full_disk_is_no_lasting_reason_for_children_without_users() {
        let fault = |errno: Errno| FolderFault::of_call(Path::new("/homes"), &errno.into());
        for errno in [Errno::NOSPC, Errno::ROFS, Errno::IO, Errno::MFILE] {
            assert!(matches!(fault(errno), FolderFault::Passing(_)), "{errno}");
        }
        assert!(matches!(fault(Errno::ACCESS), FolderFault::Lasting(_)));
    }

    #[test]
    fn s03_a_hidden_process_does_not_hide_the_users_of_others() {
        let lacks = |errno: Errno| Err(io::Error::from(errno));
        let taken = taken_users(vec![Ok(1)], vec![Ok(2), lacks(Errno::ACCESS), Ok(3)]).unwrap();
        assert_eq!(taken, HashSet::from([1, 2, 3]));
        assert!(taken_users(vec![Ok(1)], vec![lacks(Errno::MFILE)]).is_err());
        assert!(taken_users(vec![lacks(Errno::ACCESS)], Vec::new()).is_err());
    }

    #[test]
    fn s03_a_user_that_is_taken_or_may_be_taken_is_not_assigned() {
        let folder = tempfile::tempdir().unwrap();
        // This process and the folders of the test have this user.
        let own = geteuid().as_raw();
        assert_eq!(free_user(folder.path(), "acme", &(own..=own)).unwrap(), None);
        let (free, missing) = (3_000_000_000..=3_000_000_000, folder.path().join("missing"));
        assert_eq!(free_user(folder.path(), "acme", &free).unwrap(), Some(3_000_000_000));
        let unread = free_user(&missing, "acme", &free).unwrap_err();
        assert_eq!(unread.kind(), io::ErrorKind::NotFound, "the owners of homes are unknown");
    }

    #[test]
    fn s03_without_a_free_user_a_tenant_has_no_home() {
        let folder = tempfile::tempdir().unwrap();
        let (homes, own) = (homes(folder.path()), geteuid().as_raw());
        let refused = homes.open("acme", Some(&(own..=own))).unwrap_err();
        assert_eq!(refused, "every user of stdio.uid_range owns a home or runs a process");
        assert!(!folder.path().join("acme").exists());
        // The incomplete home does not prevent another attempt.
        assert!(folder.path().join(format!("{DRAFT}acme")).exists());
        let again = homes.open("acme", Some(&(own..=own))).unwrap_err();
        assert_eq!(again, refused);
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
