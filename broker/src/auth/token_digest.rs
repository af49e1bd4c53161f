//! Digests of verified tokens, by which [`super::TokenVerifier`] recognizes a token without storing
//! it.
//!
//! Invariant: the key of the digests is random for this process and never leaves it.

use std::fmt;

use aws_lc_rs::hmac;

const BYTES: usize = 32;

/// The HMAC-SHA-256 of a secret.
pub(super) type TokenDigest = [u8; BYTES];

/// Computes the digests.
pub(super) struct TokenDigester(hmac::Key);

impl fmt::Debug for TokenDigester {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Recall(…)")
    }
}

impl Default for TokenDigester {
    fn default() -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; BYTES]>()))
    }
}

impl TokenDigester {
    /// Returns the HMAC-SHA-256 (RFC 2104) of a text under the key of this process. As long as
    /// SHA-256 resists, an attacker cannot find a text with the digest of another text. A caller
    /// cannot compute a digest either, so the time of a lookup reveals nothing about the remembered
    /// ones.
    pub(super) fn digest(&self, text: &str) -> TokenDigest {
        let mut digest = [0; BYTES];
        digest.copy_from_slice(hmac::sign(&self.0, text.as_bytes()).as_ref());
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_same_for_one_text_and_one_process() {
        let (one, other) = (TokenDigester::default(), TokenDigester::default());
        assert_eq!(one.digest("token"), one.digest("token"));
        assert_ne!(one.digest("token"), one.digest("tokem"));
        assert_ne!(
            one.digest("token"),
            other.digest("token"),
            "each process draws a key of its own"
        );
        assert_eq!(format!("{one:?}"), "Recall(…)");
    }

    #[test]
    fn s16_a_digest_is_a_message_authentication_code_of_a_cryptographic_hash() {
        // RFC 4231, test case 2.
        let recall = TokenDigester(hmac::Key::new(hmac::HMAC_SHA256, b"Jefe"));
        let shown: String = recall
            .digest("what do ya want for nothing?")
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(shown, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }
}
