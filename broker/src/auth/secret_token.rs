//! Bearer tokens that the broker makes itself: API keys and operators' tokens.
//!
//! A token is `{prefix}{id}_{secret}`. The prefix is for secret scanners. The broker stores the id
//! and a keyed hash of the whole text.

use aws_lc_rs::{hmac, rand};

use super::root_secret::KeysError;

const ID_CHARS: usize = 12;
/// 43 characters of 62 kinds carry 256 bits.
const SECRET_CHARS: usize = 43;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A new token. Not `Debug`, because the text is the secret.
pub struct SecretToken {
    pub id: String,
    /// `{prefix}{id}_{secret}`, shown once.
    pub text: String,
    pub hash: Vec<u8>,
}

impl SecretToken {
    pub(super) fn mint(prefix: &str, hasher: &hmac::Key) -> Result<Self, KeysError> {
        let (id, secret) = (random_text(ID_CHARS)?, random_text(SECRET_CHARS)?);
        let text = format!("{prefix}{id}_{secret}");
        let hash = hmac::sign(hasher, text.as_bytes()).as_ref().to_vec();
        Ok(Self { id, text, hash })
    }
}

/// Returns the id inside a token that has the broker's format. The function checks no characters of
/// the secret, because the hash does that.
pub(super) fn token_id<'t>(prefix: &str, bearer: &'t str) -> Option<&'t str> {
    let (id, secret) = bearer.strip_prefix(prefix)?.split_at_checked(ID_CHARS)?;
    (secret.len() == 1 + SECRET_CHARS && secret.starts_with('_')).then_some(id)
}

fn random_text(chars: usize) -> Result<String, KeysError> {
    // The largest multiple of 62 in a byte: larger values would make the first characters likelier.
    const EVEN: u8 = (256 / ALPHABET.len() * ALPHABET.len()) as u8;
    let mut text = String::with_capacity(chars);
    while text.len() < chars {
        let mut bytes = [0; 64];
        rand::fill(&mut bytes).map_err(|_| KeysError::NoRandomness)?;
        let wanted = chars - text.len();
        text.extend(
            bytes
                .iter()
                .filter(|byte| **byte < EVEN)
                .take(wanted)
                .map(|byte| char::from(ALPHABET[usize::from(*byte) % 62])),
        );
    }
    Ok(text)
}
