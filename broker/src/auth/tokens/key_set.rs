//! Public keys of an authorization server (RFC 7517), and the choice of the key for a token.
//!
//! Invariant: a key verifies only algorithms of its own type, and a secret is never a key.

use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use protocol::json::{Limits, Tape, TapeValue, ValueKind};
use rules::limits::tokens::KEY_SET_KEYS_MAX;

use super::{
    error::TokenError,
    jwt::{Header, Jwt, has_one_reading},
};

const RSA: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
const P256: &[Algorithm] = &[Algorithm::ES256];
const P384: &[Algorithm] = &[Algorithm::ES384];
const ED25519: &[Algorithm] = &[Algorithm::EdDSA];

/// The usable keys of a set.
#[derive(Debug, Default)]
pub(super) struct KeySet(Vec<VerificationKey>);

#[derive(Debug)]
struct VerificationKey {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
    /// Members that define the key, for comparison with other keys.
    material: Vec<String>,
}

impl KeySet {
    /// Parses a set. Leaves out keys of unknown kinds, keys for other uses, and secrets (RFC 7517,
    /// 5). Returns `None` for a text that is not a set, or that is ambiguous.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let tape = Tape::parse(text, &Limits::default()).ok().filter(|_| has_one_reading(text))?;
        let keys = tape.root().get("keys").filter(|keys| keys.kind() == ValueKind::Array)?;
        Some(Self(
            keys.elements().filter_map(VerificationKey::read).take(KEY_SET_KEYS_MAX).collect(),
        ))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether both sets verify the same tokens.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.0.iter().map(VerificationKey::parts).eq(other.0.iter().map(VerificationKey::parts))
    }

    /// Verifies the signature of a token with the key that its header selects.
    pub(super) fn verify(&self, header: &Header, jwt: &Jwt<'_>) -> Result<(), TokenError> {
        let key = self.select_key(header)?;
        match crypto::verify(jwt.signature, jwt.signed.as_bytes(), key, header.algorithm) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(TokenError::Signature),
        }
    }

    /// Returns the one key that a header selects.
    fn select_key(&self, header: &Header) -> Result<&DecodingKey, TokenError> {
        let is_meant = |key: &&VerificationKey| header.key_id.is_none() || key.id == header.key_id;
        let mut meant = self.0.iter().filter(is_meant).peekable();
        if meant.peek().is_none() {
            return Err(TokenError::UnknownKey);
        }
        let mut fitting = meant.filter(|key| key.algorithms.contains(&header.algorithm));
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => Ok(&key.key),
            // The header names no key id. A newer set may have a matching key.
            (None, _) if header.key_id.is_none() => Err(TokenError::UnknownKey),
            _ => Err(TokenError::KeyUnfit),
        }
    }
}

impl VerificationKey {
    /// Returns all properties that decide what the key verifies.
    fn parts(&self) -> (Option<&str>, &[Algorithm], &[String]) {
        (self.id.as_deref(), &self.algorithms, &self.material)
    }

    fn read(written: TapeValue<'_>) -> Option<Self> {
        let text = |name: &str| Some(written.get(name)?.as_str()?.into_owned());
        if text("use").is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        if let Some(operations) = written.get("key_ops")
            && !operations
                .elements()
                .any(|operation| operation.as_str().as_deref() == Some("verify"))
        {
            return None;
        }
        let (kind, curve) = (text("kty")?, text("crv"));
        let pair = |first, second| Some([text(first)?, text(second)?]);
        let (fits, key, material) = match (kind.as_str(), curve.as_deref()) {
            ("RSA", _) => pair("n", "e")
                .map(|[n, e]| (RSA, DecodingKey::from_rsa_components(&n, &e), vec![n, e]))?,
            ("EC", Some("P-256")) => pair("x", "y")
                .map(|[x, y]| (P256, DecodingKey::from_ec_components(&x, &y), vec![x, y]))?,
            ("EC", Some("P-384")) => pair("x", "y")
                .map(|[x, y]| (P384, DecodingKey::from_ec_components(&x, &y), vec![x, y]))?,
            ("OKP", Some("Ed25519")) => {
                text("x").map(|x| (ED25519, DecodingKey::from_ed_components(&x), vec![x]))?
            }
            _ => return None,
        };
        let fits: Vec<Algorithm> = match written.get("alg") {
            None => fits.to_vec(),
            // RFC 7517, 4.4: the algorithm of the key.
            Some(only) => vec![
                config::issuers::algorithm(&only.as_str()?).filter(|only| fits.contains(only))?,
            ],
        };
        let id = match written.get("kid") {
            None => None,
            Some(id) => Some(id.as_str()?.into_owned()),
        };
        Some(Self { id, algorithms: fits, key: key.ok()?, material })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s05_a_key_set_with_a_duplicate_member_is_refused() {
        let key = r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","kid":"a"}"#;
        assert_eq!(
            KeySet::parse(format!(r#"{{"keys":[{key}]}}"#).as_bytes()).map(|set| set.len()),
            Some(1)
        );
        for twice in [
            format!(r#"{{"keys":[],"keys":[{key}]}}"#),
            format!(r#"{{"keys":[{key}],"\u006beys":[]}}"#),
            format!(r#"{{"keys":[{}]}}"#, key.replace("\"kid\"", "\"kid\":\"b\",\"kid\"")),
        ] {
            assert!(KeySet::parse(twice.as_bytes()).is_none(), "{twice}");
        }
    }
}
