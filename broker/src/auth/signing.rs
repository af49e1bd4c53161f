//! Signatures with a key derived from the root secret, for texts that are verified later or
//! elsewhere.

use std::sync::Arc;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

/// An Ed25519 key pair. Clones share it. `Debug` never shows the private half.
#[derive(Clone)]
pub struct SigningKey(Arc<Ed25519KeyPair>);

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("SigningKey(…)")
    }
}

impl SigningKey {
    pub(super) fn new(seed: &[u8; 32]) -> Self {
        Self(Arc::new(
            Ed25519KeyPair::from_seed_unchecked(seed).expect("an Ed25519 seed is any 32 bytes"),
        ))
    }

    pub fn sign(&self, text: &str) -> Vec<u8> {
        self.0.sign(text.as_bytes()).as_ref().to_vec()
    }

    pub fn verify(&self, text: &str, signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.public()).verify(text.as_bytes(), signature).is_ok()
    }

    /// Returns the public half.
    pub fn public(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s15_a_signature_holds_for_its_text_and_key_only() {
        let key = SigningKey::new(&[7; 32]);
        let signature = key.sign("text");
        assert!(key.verify("text", &signature));
        assert!(!key.verify("texts", &signature));
        assert!(!key.verify("text", &signature[..63]) && !key.verify("text", b""));
        assert!(!SigningKey::new(&[8; 32]).verify("text", &signature));
    }
}
