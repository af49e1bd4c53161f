//! The root secrets, with which the broker opens its root key. Operators store and back up a root
//! secret only.
//!
//! The root secret is `node.secret` if it is configured. Otherwise it is 32 random bytes in
//! `secret.key` next to the database, created at the first start. The broker reads the file after
//! it locks the database, so two brokers never create two secrets.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use aws_lc_rs::rand;
use config::{Config, DatabaseConfig, PREVIOUS_ROOT_FILE, ROOT_FILE};
use storage::StoreError;

const ROOT_BYTES: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error("secret file {}: {source}; make it readable and writable for the broker's user, or set node.secret", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("secret file {} holds {found} bytes instead of {ROOT_BYTES}; restore it from a copy", path.display())]
    Damaged { path: PathBuf, found: usize },
    #[error("a PostgreSQL database needs node.secret, the same on every replica")]
    NotShared,
    #[error(
        "no root secret opens the root key of the database; restore the node.secret or secret.key that the database was used with, or name it as node.secret_previous"
    )]
    OtherSecret,
    #[error(
        "the database has a root key, but the secret.key that opens it is missing; restore it next to the database"
    )]
    SecretMissing,
    #[error("the root key of the database cannot be read: {0}")]
    Store(#[from] StoreError),
    #[error("the operating system returned no random numbers")]
    NoRandomness,
}

/// The root secret, and the one that it replaces.
pub struct RootSecrets {
    pub(super) current: Vec<u8>,
    /// `None`: the secret does not change.
    pub(super) previous: Option<Vec<u8>>,
    /// The current secret was created at this start.
    pub(super) newly_created: bool,
}

impl RootSecrets {
    /// Loads the secrets from the configuration, or from the files next to the database. Creates a
    /// missing file.
    pub fn load(config: &Config) -> Result<Self, KeysError> {
        let file = root_path(config);
        let (current, newly_created) = match (&config.node.secret, &file) {
            (Some(secret), _) => (secret.expose().as_bytes().to_vec(), false),
            (None, None) => return Err(KeysError::NotShared),
            (None, Some(file)) => {
                let found = read_root(file)?;
                let root = found.map_or_else(|| create_root(file), Ok)?;
                (root.to_vec(), found.is_none())
            }
        };
        let previous = match (&config.node.secret_previous, file) {
            (Some(secret), _) => Some(secret.expose().as_bytes().to_vec()),
            (None, Some(file)) => {
                read_root(&file.with_file_name(PREVIOUS_ROOT_FILE))?.map(Vec::from)
            }
            (None, None) => None,
        };
        Ok(Self { previous: previous.filter(|secret| *secret != current), current, newly_created })
    }

    /// Deletes a secret file that this start created, after the start was refused because the real
    /// one is missing. The next start must find it missing too.
    pub fn remove_new_file(config: &Config) {
        let Some(path) = root_path(config) else { return };
        if fs::remove_file(&path).is_err() {
            tracing::warn!(path = %path.display(), "this new secret file decrypts nothing in the database: remove it");
        }
    }
}

/// Returns the path next to an SQLite database, which one process owns. Returns `None` for
/// PostgreSQL.
fn root_path(config: &Config) -> Option<PathBuf> {
    match &config.storage.database {
        DatabaseConfig::Sqlite(path) => Some(path.with_file_name(ROOT_FILE)),
        DatabaseConfig::Postgres(_) => None,
    }
}

fn read_root(path: &Path) -> Result<Option<[u8; ROOT_BYTES]>, KeysError> {
    match fs::read(path) {
        Ok(bytes) => match <[u8; ROOT_BYTES]>::try_from(bytes.as_slice()) {
            Ok(root) => Ok(Some(root)),
            Err(_) => Err(KeysError::Damaged { path: path.to_owned(), found: bytes.len() }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(KeysError::File { path: path.to_owned(), source }),
    }
}

/// Creates the root. The file is written and synced under another name first, so a crash leaves no
/// file or the whole file.
fn create_root(path: &Path) -> Result<[u8; ROOT_BYTES], KeysError> {
    let mut root = [0; ROOT_BYTES];
    rand::fill(&mut root).map_err(|_| KeysError::NoRandomness)?;
    let write = || -> io::Result<()> {
        let folder =
            path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let draft = path.with_extension("key.new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(&root)?;
        file.sync_all()?;
        fs::rename(&draft, path)?;
        File::open(folder)?.sync_all()
    };
    write().map(|()| root).map_err(|source| KeysError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn config(folder: &Path, node: &str) -> Config {
        let mut config = config::load_from(node, []).unwrap();
        config.storage.database = DatabaseConfig::Sqlite(folder.join("broker.db"));
        config
    }

    #[test]
    fn a_renamed_file_is_the_previous_secret_unless_one_is_configured() {
        let folder = tempfile::tempdir().unwrap();
        let first = RootSecrets::load(&config(folder.path(), "{}")).unwrap();
        assert!(first.newly_created && first.previous.is_none());
        let again = RootSecrets::load(&config(folder.path(), "{}")).unwrap();
        assert!(!again.newly_created && again.current == first.current);

        let named = "node: {secret: a-secret-of-sixteen}";
        let named = RootSecrets::load(&config(folder.path(), named)).unwrap();
        assert_eq!(named.current, b"a-secret-of-sixteen");
        assert_eq!(named.previous, None, "the file may be left over");

        let both = "node: {secret: a-secret-of-sixteen, secret_previous: an-earlier-secret}";
        let both = RootSecrets::load(&config(folder.path(), both)).unwrap();
        assert_eq!(both.previous.as_deref(), Some(b"an-earlier-secret".as_slice()));
        let same = "node: {secret: a-secret-of-sixteen, secret_previous: a-secret-of-sixteen}";
        assert_eq!(RootSecrets::load(&config(folder.path(), same)).unwrap().previous, None);

        let (file, previous) = (folder.path().join(ROOT_FILE), PREVIOUS_ROOT_FILE);
        fs::rename(&file, folder.path().join(previous)).unwrap();
        let moved = RootSecrets::load(&config(folder.path(), "{}")).unwrap();
        assert!(moved.newly_created && moved.current != first.current);
        assert_eq!(moved.previous, Some(first.current.clone()));
        let named = "node: {secret: a-secret-of-sixteen}";
        let named = RootSecrets::load(&config(folder.path(), named)).unwrap();
        assert_eq!(named.previous, Some(first.current));
    }

    #[test]
    fn the_secret_file_is_created_once_with_private_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/secret.key");
        assert!(read_root(&path).unwrap().is_none());
        let made = create_root(&path).unwrap();
        assert_eq!(read_root(&path).unwrap(), Some(made));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(
            fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "no draft stays behind"
        );
    }

    #[test]
    fn a_damaged_secret_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret.key");
        fs::write(&path, b"short").unwrap();
        let error = read_root(&path).unwrap_err();
        assert!(matches!(error, KeysError::Damaged { found: 5, .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"short");
    }
}
