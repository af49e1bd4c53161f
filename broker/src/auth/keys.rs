//! All keys of the broker, derived from the root key. None of these types shows its bytes.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    hkdf, hmac,
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Serialize, de::DeserializeOwned};

use super::signing::SigningKey;

/// Separates these derivations from those of other products and of later formats.
const SALT: &[u8] = b"mcp-broker root 1";
/// Number of the seal key that derives from the root key. Later ones follow.
const FIRST_SEAL_KEY: u8 = 1;

/// The sealed text does not open: the root secret or the seal context differs, or the bytes
/// changed.
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
    /// Derives the marks by which a catalog that contains itself is found.
    pub catalog_marks: hmac::Key,
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
    /// Set when the root secret was created at this start. Data that was sealed earlier does not
    /// open with it.
    pub newly_created: bool,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Keys(…)")
    }
}

/// Derives a key for a purpose from a secret.
pub(super) fn derived(secret: &[u8], purpose: &str) -> [u8; 32] {
    let mut key = [0; 32];
    let info = [purpose.as_bytes()];
    let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(secret);
    let okm = extracted
        .expand(&info, hkdf::HKDF_SHA256)
        .expect("32 bytes are within what HKDF-SHA256 can give");
    okm.fill(&mut key).expect("the buffer has the length asked for");
    key
}

impl Keys {
    /// Derives the keys from a root key to which no seal keys were added.
    pub fn from_root(root: &[u8]) -> Self {
        Self::with_seal_keys(root, &[], FIRST_SEAL_KEY)
    }

    /// Derives the keys from a root key to which seal keys were added. Of all seal keys, `active` is
    /// the number of the one that seals.
    pub fn with_seal_keys(root: &[u8], added: &[[u8; 32]], active: u8) -> Self {
        let derive = |purpose: &str| derived(root, purpose);
        let sign = |purpose| hmac::Key::new(hmac::HMAC_SHA256, &derive(purpose));
        Self {
            cursor: sign("list cursor"),
            catalog_marks: sign("catalog marks"),
            api_key: sign("api key"),
            operator: sign("operator token"),
            seal: SealKey::new(&derive("settings at rest"), added, active),
            redis: Arc::new(derive("redis")),
            peer: derive("replicas"),
            audit: SigningKey::new(&derive("audit log")),
            quic: derive("quic"),
            newly_created: false,
        }
    }
}

/// Seals each text for one context, which the cipher authenticates. Clones share the keys.
///
/// The first byte of a sealed text is the number of its key. One key seals, and all of them open.
#[derive(Clone)]
pub struct SealKey {
    keys: Arc<[RandomizedNonceKey]>,
    /// Number of the key that seals.
    active: u8,
}

impl SealKey {
    /// Returns a single key.
    pub(super) fn single(key: &[u8; 32]) -> Self {
        Self::new(key, &[], FIRST_SEAL_KEY)
    }

    fn new(first: &[u8; 32], added: &[[u8; 32]], active: u8) -> Self {
        Self { keys: std::iter::once(first).chain(added).map(aead_key).collect(), active }
    }

    /// Returns the number of the key that seals.
    pub fn active(&self) -> u8 {
        self.active
    }

    fn key(&self, number: u8) -> Result<&RandomizedNonceKey, SealError> {
        let index = number.checked_sub(FIRST_SEAL_KEY).ok_or(SealError)?;
        self.keys.get(usize::from(index)).ok_or(SealError)
    }

    /// Seals a text. The cipher authenticates `seal_context` with the text: sealed bytes in another
    /// row do not open.
    pub fn seal(&self, seal_context: &str, text: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut body = text.to_vec();
        let nonce = self
            .key(self.active)?
            .seal_in_place_append_tag(Aad::from(seal_context.as_bytes()), &mut body)
            .map_err(|_| SealError)?;
        let mut sealed = Vec::with_capacity(1 + NONCE_LEN + body.len());
        sealed.push(self.active);
        sealed.extend_from_slice(nonce.as_ref());
        sealed.append(&mut body);
        Ok(sealed)
    }

    pub fn open(&self, seal_context: &str, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let (number, rest) = sealed.split_first().ok_or(SealError)?;
        let key = self.key(*number)?;
        let (nonce, body) = rest.split_at_checked(NONCE_LEN).ok_or(SealError)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError)?;
        let mut body = body.to_vec();
        let text = key
            .open_in_place(nonce, Aad::from(seal_context.as_bytes()), &mut body)
            .map_err(|_| SealError)?;
        Ok(text.to_vec())
    }

    /// Seals a text for clients, which return it: a cookie or a state. The result is base64url.
    pub fn seal_for_client(&self, seal_context: &str, text: &[u8]) -> Result<String, SealError> {
        self.seal(seal_context, text).map(|sealed| URL_SAFE_NO_PAD.encode(sealed))
    }

    /// Opens what a client returned. A sealed text has one spelling.
    pub fn open_from_client(&self, seal_context: &str, sealed: &str) -> Result<Vec<u8>, SealError> {
        let sealed = URL_SAFE_NO_PAD.decode(sealed).map_err(|_| SealError)?;
        self.open(seal_context, &sealed)
    }

    /// Seals a value that a client returns within `life`.
    pub fn seal_for_a_while<T: Serialize>(
        &self,
        seal_context: &str,
        value: &T,
        life: Duration,
    ) -> Result<String, SealError> {
        let text = serde_json::to_vec(&(unix_seconds() + life.as_secs(), value));
        self.seal_for_client(seal_context, &text.map_err(|_| SealError)?)
    }

    /// Opens such a value. `None`: its time is over, or it is not what the broker sealed.
    pub fn open_unexpired<T: DeserializeOwned>(
        &self,
        seal_context: &str,
        sealed: &str,
    ) -> Option<T> {
        let text = self.open_from_client(seal_context, sealed).ok()?;
        let (until, value): (u64, T) = serde_json::from_slice(&text).ok()?;
        (until > unix_seconds()).then_some(value)
    }
}

/// Returns the time in seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns the time in microseconds since 1970.
pub fn now_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
}

fn aead_key(key: &[u8; 32]) -> RandomizedNonceKey {
    RandomizedNonceKey::new(&AES_256_GCM, key).expect("AES-256 takes 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_derived_from_the_root_and_differ_by_purpose() {
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
    fn sealed_text_opens_only_under_its_name() {
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
    fn the_active_key_seals_and_every_key_opens() {
        let old = Keys::from_root(b"root");
        let ready = Keys::with_seal_keys(b"root", &[[7; 32]], 1);
        let new = Keys::with_seal_keys(b"root", &[[7; 32]], 2);
        let (by_old, by_new) =
            (ready.seal.seal("p", b"1").unwrap(), new.seal.seal("p", b"2").unwrap());
        assert_eq!((by_old[0], by_new[0]), (1, 2));
        for keys in [&ready, &new] {
            assert_eq!(keys.seal.open("p", &by_old).unwrap(), b"1");
            assert_eq!(keys.seal.open("p", &by_new).unwrap(), b"2");
        }
        assert_eq!(old.seal.open("p", &by_old).unwrap(), b"1");
        assert_eq!(old.seal.open("p", &by_new), Err(SealError));
        assert_eq!(old.seal.open("p", &[0; 40]), Err(SealError));
    }

    #[test]
    fn debug_output_shows_no_key() {
        assert_eq!(format!("{:?}", Keys::from_root(b"root")), "Keys(…)");
    }
}
