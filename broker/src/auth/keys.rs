//! All keys of the broker, derived from one root secret. Operators store and back up that secret
//! only.
//!
//! The root is `node.secret` if it is configured. Otherwise it is 32 random bytes in `secret.key`
//! next to the database, created at the first start. The broker reads the file after it locks the
//! database, so two brokers never create two roots. None of these types shows its bytes.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    hkdf, hmac, rand,
};

use super::signing::SigningKey;
use crate::config::{Config, DatabaseConfig};

const ROOT_BYTES: usize = 32;
/// Name of the secret file next to an SQLite database.
pub const ROOT_FILE: &str = "secret.key";
/// Separates these derivations from those of other products and of later formats.
const SALT: &[u8] = b"mcp-broker root 1";
/// First byte of sealed data. A later key or cipher takes the next number.
const SEAL_VERSION: u8 = 1;

#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error("secret file {}: {source}; make it readable and writable for the broker's user, or set node.secret", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("secret file {} holds {found} bytes instead of {ROOT_BYTES}; restore it from a copy", path.display())]
    Damaged { path: PathBuf, found: usize },
    #[error("a PostgreSQL database needs node.secret, the same on every replica")]
    NotShared,
    #[error("the operating system gives no random numbers")]
    NoRandomness,
}

/// The sealed text does not open: the root secret or the place differs, or the bytes changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "stored settings cannot be opened with this broker's secret; restore the node.secret or secret.key they were stored with"
)]
pub struct SealError;

/// The derived keys, one per purpose. Cheap to clone.
#[derive(Clone)]
pub struct Keys {
    /// Signs list cursors.
    pub cursor: hmac::Key,
    /// Hashes API keys.
    pub api_key: hmac::Key,
    /// Hashes operators' tokens.
    pub operator: hmac::Key,
    /// Seals credentials at rest.
    pub seal: SealKey,
    /// Signs the values that the broker stores in Redis.
    pub redis: Arc<[u8; 32]>,
    /// Authenticates replicas to each other.
    pub peer: [u8; 32],
    /// Signs checkpoints and truncations of the audit log.
    pub audit: SigningKey,
    /// Secret of the QUIC listener. Its stateless resets end connections that an earlier process
    /// had.
    pub quic: [u8; 32],
    /// Set when the root was created at this start. Data that was sealed earlier does not open with
    /// it.
    pub newly_created: bool,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Keys(…)")
    }
}

impl Keys {
    pub fn from_root(root: &[u8]) -> Self {
        let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(root);
        let derive = |purpose: &str| {
            let mut key = [0; 32];
            let info = [purpose.as_bytes()];
            let okm = extracted
                .expand(&info, hkdf::HKDF_SHA256)
                .expect("32 bytes are within what HKDF-SHA256 can give");
            okm.fill(&mut key).expect("the buffer has the length asked for");
            key
        };
        let sign = |purpose| hmac::Key::new(hmac::HMAC_SHA256, &derive(purpose));
        Self {
            cursor: sign("list cursor"),
            api_key: sign("api key"),
            operator: sign("operator token"),
            seal: SealKey::new(&derive("settings at rest")),
            redis: Arc::new(derive("redis")),
            peer: derive("replicas"),
            audit: SigningKey::new(&derive("audit log")),
            quic: derive("quic"),
            newly_created: false,
        }
    }

    /// Loads the root from the configured secret, or from the file next to the database. Creates a
    /// missing file.
    pub fn load(config: &Config) -> Result<Self, KeysError> {
        if let Some(secret) = &config.node.secret {
            return Ok(Self::from_root(secret.expose().as_bytes()));
        }
        let path = root_path(config).ok_or(KeysError::NotShared)?;
        let (root, made_now) = match read_root(&path)? {
            Some(root) => (root, false),
            None => (create_root(&path)?, true),
        };
        Ok(Self { newly_created: made_now, ..Self::from_root(&root) })
    }

    /// Deletes a root that this start created, after the start was refused because the real root is
    /// missing. The next start must find it missing too.
    pub fn remove_new_root(&self, config: &Config) {
        let Some(path) = root_path(config).filter(|_| self.newly_created) else { return };
        if fs::remove_file(&path).is_err() {
            tracing::warn!(path = %path.display(), "remove this secret file, it opens nothing that is stored");
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

/// Seals each text for one place. Clones share the key.
#[derive(Clone)]
pub struct SealKey(Arc<RandomizedNonceKey>);

impl SealKey {
    fn new(key: &[u8; 32]) -> Self {
        Self(Arc::new(RandomizedNonceKey::new(&AES_256_GCM, key).expect("AES-256 takes 32 bytes")))
    }

    /// Seals a text. The cipher authenticates `place` with the text: sealed bytes in another row do
    /// not open.
    pub fn seal(&self, place: &str, text: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut body = text.to_vec();
        let nonce = self
            .0
            .seal_in_place_append_tag(Aad::from(place.as_bytes()), &mut body)
            .map_err(|_| SealError)?;
        let mut sealed = Vec::with_capacity(1 + NONCE_LEN + body.len());
        sealed.push(SEAL_VERSION);
        sealed.extend_from_slice(nonce.as_ref());
        sealed.append(&mut body);
        Ok(sealed)
    }

    pub fn open(&self, place: &str, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let rest = sealed.strip_prefix(&[SEAL_VERSION]).ok_or(SealError)?;
        let (nonce, body) = rest.split_at_checked(NONCE_LEN).ok_or(SealError)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError)?;
        let mut body = body.to_vec();
        let text = self
            .0
            .open_in_place(nonce, Aad::from(place.as_bytes()), &mut body)
            .map_err(|_| SealError)?;
        Ok(text.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_follow_from_the_root_and_differ_by_purpose() {
        let (one, same, other) =
            (Keys::from_root(b"root"), Keys::from_root(b"root"), Keys::from_root(b"toor"));
        let sign = |key: &hmac::Key| hmac::sign(key, b"text").as_ref().to_vec();
        assert_eq!(sign(&one.cursor), sign(&same.cursor));
        assert_ne!(sign(&one.cursor), sign(&other.cursor));
        assert_ne!(sign(&one.cursor), sign(&one.api_key));
        assert_eq!(one.peer, same.peer);
        assert_ne!(one.peer, other.peer);
    }

    #[test]
    fn sealed_text_opens_in_its_place_only() {
        let seal = Keys::from_root(b"root").seal;
        let sealed = seal.seal("acme/one", b"bearer").unwrap();
        assert_eq!(seal.open("acme/one", &sealed).unwrap(), b"bearer");
        assert_eq!(seal.open("acme/two", &sealed), Err(SealError));
        assert_eq!(Keys::from_root(b"toor").seal.open("acme/one", &sealed), Err(SealError));
        assert_ne!(
            sealed,
            seal.seal("acme/one", b"bearer").unwrap(),
            "every sealing takes a nonce of its own"
        );
    }

    #[test]
    fn changed_or_cut_bytes_do_not_open() {
        let seal = Keys::from_root(b"root").seal;
        let sealed = seal.seal("p", b"text").unwrap();
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(seal.open("p", &changed), Err(SealError), "byte {at}");
            assert_eq!(seal.open("p", &sealed[..at]), Err(SealError), "cut at {at}");
        }
    }

    #[test]
    fn the_secret_file_is_made_once_and_private() {
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

    #[test]
    fn debug_output_shows_no_key() {
        assert_eq!(format!("{:?}", Keys::from_root(b"root")), "Keys(…)");
    }
}
