//! The public keys of an authorization server (RFC 7517), and which of them a token may be signed with.
//!
//! Invariant: a key verifies nothing but algorithms of its own type, and no secret is a key.

use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use serde_json::Value;

use super::{
    TokenError,
    jwt::{Header, Jwt},
};
use crate::limits::tokens::KEY_SET_KEYS_MAX;

const RSA: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// The keys that can be used, of a set.
#[derive(Debug, Default)]
pub(super) struct KeySet(Vec<VerificationKey>);

#[derive(Debug)]
struct VerificationKey {
    id: Option<String>,
    fits: Vec<Algorithm>,
    key: DecodingKey,
    /// As it was written, to be told from others.
    written: Value,
}

impl KeySet {
    /// Reads a set. Keys of kinds that are not known, for other uses, and secrets are left out (RFC 7517, 5). `None`: it is no set.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let document: Value = serde_json::from_slice(text).ok()?;
        let keys = document.get("keys")?.as_array()?;
        Some(Self(keys.iter().filter_map(VerificationKey::read).take(KEY_SET_KEYS_MAX).collect()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it says the same as another.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.0.iter().map(|key| &key.written).eq(other.0.iter().map(|key| &key.written))
    }

    /// Whether one of the keys has signed the token, by what its header says.
    pub(super) fn verify(&self, header: &Header, jwt: &Jwt<'_>) -> Result<(), TokenError> {
        let key = self.chosen(header)?;
        match crypto::verify(jwt.signature, jwt.signed.as_bytes(), key, header.algorithm) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(TokenError::Signature),
        }
    }

    /// The one key that a header means.
    fn chosen(&self, header: &Header) -> Result<&DecodingKey, TokenError> {
        let is_meant = |key: &&VerificationKey| header.key_id.is_none() || key.id == header.key_id;
        let mut meant = self.0.iter().filter(is_meant).peekable();
        if meant.peek().is_none() {
            return Err(TokenError::UnknownKey);
        }
        let mut fitting = meant.filter(|key| key.fits.contains(&header.algorithm));
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Ok(&key.key),
            // Which of them is meant is not said; a set that is newer may have one.
            (None, _) if header.key_id.is_none() => Err(TokenError::UnknownKey),
            _ => Err(TokenError::KeyUnfit),
        }
    }
}

impl VerificationKey {
    fn read(written: &Value) -> Option<Self> {
        let text = |name: &str| written.get(name).and_then(Value::as_str);
        if text("use").is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        if let Some(operations) = written.get("key_ops")
            && !operations.as_array()?.iter().any(|operation| operation == "verify")
        {
            return None;
        }
        let (fits, key) = match (text("kty")?, text("crv")) {
            ("RSA", _) => (RSA, DecodingKey::from_rsa_components(text("n")?, text("e")?)),
            ("EC", Some("P-256")) => {
                (&[Algorithm::ES256][..], DecodingKey::from_ec_components(text("x")?, text("y")?))
            }
            ("EC", Some("P-384")) => {
                (&[Algorithm::ES384][..], DecodingKey::from_ec_components(text("x")?, text("y")?))
            }
            ("OKP", Some("Ed25519")) => {
                (&[Algorithm::EdDSA][..], DecodingKey::from_ed_components(text("x")?))
            }
            _ => return None,
        };
        let fits: Vec<Algorithm> = match written.get("alg") {
            None => fits.to_vec(),
            // RFC 7517, 4.4: the one it is for.
            Some(only) => vec![
                crate::config::issuers::algorithm(only.as_str()?)
                    .filter(|only| fits.contains(only))?,
            ],
        };
        let id = match written.get("kid") {
            None => None,
            Some(id) => Some(id.as_str()?.to_owned()),
        };
        Some(Self { id, fits, key: key.ok()?, written: written.clone() })
    }
}
