//! Files of the broker that children must not read: configuration, database, secrets and keys of
//! certificates.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use config::{Certificate, Config, DatabaseConfig, PREVIOUS_ROOT_FILE, ROOT_FILE};

use super::file_access::{self, READ};

/// Suffixes of the files that SQLite and the broker keep next to a database file.
const SUFFIXES: [&str; 4] = ["-wal", "-shm", "-journal", ".lock"];

#[derive(Debug)]
pub(super) struct BrokerFiles {
    /// Files that the broker creates, for its own user only.
    made: Vec<PathBuf>,
    /// Files of the operator, as the configuration named them at the start.
    given: Vec<PathBuf>,
    /// Files of the operator that the configuration in force names.
    reloaded: ArcSwap<Vec<PathBuf>>,
    /// Folders with files of the operator.
    folders: Vec<PathBuf>,
}

impl BrokerFiles {
    pub(super) fn new(config: &Config) -> Self {
        let made = match &config.storage.database {
            DatabaseConfig::Sqlite(path) => {
                let with_suffix = |suffix: &&str| {
                    let mut name = OsString::from(path);
                    name.push(suffix);
                    PathBuf::from(name)
                };
                let secret = path.with_file_name(ROOT_FILE);
                let previous = path.with_file_name(PREVIOUS_ROOT_FILE);
                [path.clone(), secret.with_extension("key.new"), secret, previous]
                    .into_iter()
                    .chain(SUFFIXES.iter().map(with_suffix))
                    .collect()
            }
            DatabaseConfig::Postgres(_) => Vec::new(),
        };
        let mut given = config.private_files.clone();
        if let Some(Certificate::Files { key, .. }) = &config.tls.certificate {
            given.push(key.clone());
        }
        let folders = config.tls.client_cert_folders.iter().chain(&config.include.folder);
        let folders = folders.cloned().collect();
        Self { made, given, reloaded: ArcSwap::default(), folders }
    }

    /// Protects the files of a configuration that comes into force. Those of the start stay
    /// protected: the broker uses some of them until it ends.
    pub(super) fn record_reload(&self, private_files: &[PathBuf]) {
        self.reloaded.store(Arc::new(private_files.to_vec()));
    }

    /// Removes the access of other users to the files that the broker created.
    pub(super) fn restrict_permissions(&self) {
        self.made.iter().for_each(|path| file_access::restrict_to_owner(path));
    }

    fn files(&self) -> impl Iterator<Item = PathBuf> {
        let reloaded = Vec::clone(&self.reloaded.load());
        self.made.iter().chain(&self.given).cloned().chain(reloaded)
    }

    /// Returns an error that names a file which other users can read.
    pub(super) fn check_restricted(&self) -> Result<(), String> {
        let mut files = self.files();
        let open = files.find(|path| file_access::closed_to_others(path, READ).is_none());
        open.map_or(Ok(()), |path| {
            let path = path.display();
            Err(format!("every user of this host, and so a child, can read {path}; remove this access (chmod o= {path})"))
        })
    }

    /// Returns a file of the broker at or below this path, if only the path rules keep a child from
    /// it.
    pub(super) fn below(&self, path: &Path, has_user: bool) -> Option<PathBuf> {
        let is_below = |own: &PathBuf| canonical(own).starts_with(path);
        let is_open =
            |own: &PathBuf| !has_user || file_access::closed_to_others(own, READ).is_none();
        let file = self.files().find(|own| is_below(own) && is_open(own));
        let touches = |folder: &&PathBuf| is_below(folder) || path.starts_with(canonical(folder));
        file.or_else(|| self.folders.iter().find(touches).cloned())
    }
}

/// Returns the path without links, even if the file does not exist.
pub(super) fn canonical(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if let Ok(canonical) = absolute.canonicalize() {
        return canonical;
    }
    match (absolute.parent(), absolute.file_name()) {
        (Some(folder), Some(name)) => canonical(folder).join(name),
        _ => absolute,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use config::load_from;

    use super::*;

    #[test]
    fn s03_files_of_the_broker_are_found_below_each_parent_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let secret = root.join("token");
        std::fs::write(&secret, "sixteen-characters-at-least").unwrap();
        let yaml = format!(
            "storage: {{url: 'sqlite:{0}/data/broker.db'}}\nauth: {{admin_token_file: '{0}/token'}}\ntls: {{client_cert_folders: ['{0}/certificates']}}\n",
            root.display()
        );
        let own = BrokerFiles::new(&load_from(&yaml, []).unwrap());
        for (path, found) in [
            (root.clone(), "data/broker.db"),
            (root.join("data"), "data/broker.db"),
            (root.join("data/broker.db-wal"), "data/broker.db-wal"),
            (root.join("data/secret.key"), "data/secret.key"),
            (secret.clone(), "token"),
            (root.join("certificates/one"), "certificates"),
        ] {
            assert_eq!(own.below(&path, false), Some(root.join(found)), "{}", path.display());
        }
        assert_eq!(own.below(&root.join("other"), false), None);
        // File modes also exclude a child with a user of its own.
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o711)).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(own.below(&secret, true), None);
        assert_eq!(own.check_restricted(), Ok(()));
    }

    #[test]
    fn s03_a_world_readable_file_is_reported_and_own_files_are_restricted() {
        // Every folder above it must be open, so it is in the shared temporary folder.
        let folder = tempfile::Builder::new()
            .permissions(std::fs::Permissions::from_mode(0o755))
            .tempdir_in("/tmp")
            .unwrap();
        let database = folder.path().join("broker.db");
        std::fs::write(&database, "x").unwrap();
        std::fs::set_permissions(&database, std::fs::Permissions::from_mode(0o644)).unwrap();
        let own = BrokerFiles::new(
            &load_from(&format!("storage: {{url: 'sqlite:{}'}}", database.display()), []).unwrap(),
        );
        assert!(own.check_restricted().unwrap_err().contains("can read "));
        own.restrict_permissions();
        assert_eq!(own.check_restricted(), Ok(()));
        assert_eq!(std::fs::metadata(&database).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
