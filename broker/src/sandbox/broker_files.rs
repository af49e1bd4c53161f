//! The files of the broker that no child may read: configuration, database, secrets and keys of certificates.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::file_access::{self, READ};
use crate::{
    auth::ROOT_FILE,
    config::{Certificate, Config, DatabaseConfig},
};

/// What SQLite and the broker keep beside a database file.
const BESIDE: [&str; 4] = ["-wal", "-shm", "-journal", ".lock"];

#[derive(Debug)]
pub(super) struct BrokerFiles {
    /// Made by the broker: for its user only.
    made: Vec<PathBuf>,
    /// Given by the operator.
    given: Vec<PathBuf>,
    /// Folders of such.
    folders: Vec<PathBuf>,
}

impl BrokerFiles {
    pub(super) fn new(config: &Config) -> Self {
        let made = match &config.storage.database {
            DatabaseConfig::Sqlite(path) => {
                let beside = |suffix: &&str| {
                    let mut name = OsString::from(path);
                    name.push(suffix);
                    PathBuf::from(name)
                };
                let secret = path.with_file_name(ROOT_FILE);
                [path.clone(), secret.with_extension("key.new"), secret]
                    .into_iter()
                    .chain(BESIDE.iter().map(beside))
                    .collect()
            }
            DatabaseConfig::Postgres(_) => Vec::new(),
        };
        let mut given = config.private_files.clone();
        if let Some(Certificate::Files { key, .. }) = &config.tls.certificate {
            given.push(key.clone());
        }
        Self { made, given, folders: config.tls.client_cert_folders.clone() }
    }

    /// Takes what the broker made away from other users.
    pub(super) fn close(&self) {
        self.made.iter().for_each(|path| file_access::close(path));
    }

    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.made.iter().chain(&self.given)
    }

    /// Fails with the file that other users can read.
    pub(super) fn all_closed(&self) -> Result<(), String> {
        let open = self.files().find(|path| file_access::closed_to_others(path, READ).is_none());
        open.map_or(Ok(()), |path| {
            let path = path.display();
            Err(format!("{path} can be read by every user of this host, and so by a child; close it to them (chmod o= {path})"))
        })
    }

    /// A file of the broker that lies at or below this path, and that only the rules for paths keep a child from.
    pub(super) fn below(&self, path: &Path, has_user: bool) -> Option<PathBuf> {
        let is_below = |own: &PathBuf| canonical(own).starts_with(path);
        let is_open =
            |own: &PathBuf| !has_user || file_access::closed_to_others(own, READ).is_none();
        let file = self.files().find(|own| is_below(own) && is_open(own));
        let touches = |folder: &&PathBuf| is_below(folder) || path.starts_with(canonical(folder));
        file.or_else(|| self.folders.iter().find(touches)).cloned()
    }
}

/// Where the file is, or would be.
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

    use super::*;
    use crate::config::load_from;

    #[test]
    fn s03_what_the_broker_keeps_is_found_below_every_folder_above_it() {
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
        // With a user of its own a child is kept out by modes too.
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o711)).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(own.below(&secret, true), None);
        assert_eq!(own.all_closed(), Ok(()));
    }

    #[test]
    fn s03_a_file_that_everybody_reads_is_told_and_one_of_ours_is_closed() {
        // Every folder above it has to be open, so it lies where those of everybody are.
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
        assert!(own.all_closed().unwrap_err().contains("broker.db can be read by every user"));
        own.close();
        assert_eq!(own.all_closed(), Ok(()));
        assert_eq!(std::fs::metadata(&database).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
