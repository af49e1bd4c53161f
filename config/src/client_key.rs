//! Private key of the broker as a client of an authorization server (`private_key_jwt`).
//!
//! Invariant: neither `Debug` nor an error shows the key.

use std::{io::Read as _, sync::Arc};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
        RsaKeyPair,
    },
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};

use super::{Secret, field_error::InvalidReason};

const FILE_BYTES_MAX: u64 = 64 * 1024;

/// A private key. Clones share it.
#[derive(Clone)]
pub struct ClientKey {
    pair: Arc<Pair>,
    pem: Secret,
}

enum Pair {
    Ec(EcdsaKeyPair),
    Rsa(RsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl PartialEq for ClientKey {
    fn eq(&self, other: &Self) -> bool {
        self.pem == other.pem
    }
}

impl Eq for ClientKey {}

impl std::fmt::Debug for ClientKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("ClientKey(…)")
    }
}

impl ClientKey {
    /// Reads the first private key of a file.
    pub(super) fn read(file: &str) -> Result<Self, InvalidReason> {
        let mut text = String::new();
        std::fs::File::open(file)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
            .map_err(|error| format!("\"{file}\" cannot be read ({error})"))?;
        Self::from_pem(&text).ok_or_else(|| format!("\"{file}\" has no key that can be used"))
    }

    /// Reads the first private key of a text in PEM (PKCS #8).
    pub fn from_pem(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once("-----BEGIN PRIVATE KEY-----")?;
        let (body, _) = rest.split_once("-----END PRIVATE KEY-----")?;
        let body: String = body.split_ascii_whitespace().collect();
        let der = STANDARD.decode(body).ok()?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der)
            .map(Pair::Ec)
            .or_else(|_| RsaKeyPair::from_pkcs8(&der).map(Pair::Rsa))
            .or_else(|_| Ed25519KeyPair::from_pkcs8(&der).map(Pair::Ed))
            .ok()?;
        Some(Self { pair: Arc::new(pair), pem: Secret::new(text) })
    }

    /// Makes a P-256 key. Returns its text in PEM, or `None` if the operating system gives no random
    /// numbers.
    pub fn generate_pem() -> Option<String> {
        let random = SystemRandom::new();
        let document =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).ok()?;
        let body = STANDARD.encode(document.as_ref());
        Some(format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n"))
    }

    /// Returns the coordinates of the public key of a P-256 key, in base64url (RFC 7518, 6.2.1).
    pub fn public_point(&self) -> Option<(String, String)> {
        let Pair::Ec(pair) = &*self.pair else { return None };
        let point = pair.public_key().as_ref().strip_prefix(&[4])?;
        let (x, y) = point.split_at_checked(32)?;
        Some((URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y)))
    }

    /// Returns the text that it was read from.
    pub(super) fn pem(&self) -> Secret {
        self.pem.clone()
    }

    /// Returns the name of the algorithm of its signatures (RFC 7518, 3.1; RFC 8037, 3.1).
    pub fn algorithm(&self) -> &'static str {
        match &*self.pair {
            Pair::Ec(_) => "ES256",
            Pair::Rsa(_) => "RS256",
            Pair::Ed(_) => "EdDSA",
        }
    }

    /// Signs a text. Returns `None` if the operating system gives no random numbers.
    pub fn sign(&self, text: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match &*self.pair {
            Pair::Ec(pair) => Some(pair.sign(&random, text).ok()?.as_ref().to_vec()),
            Pair::Ed(pair) => Some(pair.sign(text).as_ref().to_vec()),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, text, &mut signature).ok()?;
                Some(signature)
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a new key in PEM.
    pub(crate) fn pem() -> String {
        ClientKey::generate_pem().unwrap()
    }

    #[test]
    fn a_key_is_read_from_pem_and_shown_nowhere() {
        let key = ClientKey::from_pem(&pem()).unwrap();
        assert_eq!((key.algorithm(), format!("{key:?}").as_str()), ("ES256", "ClientKey(…)"));
        assert_eq!(key.sign(b"text").unwrap().len(), 64);
        let (x, y) = key.public_point().unwrap();
        assert_eq!((x.len(), y.len()), (43, 43));
        for text in ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"] {
            assert!(ClientKey::from_pem(text).is_none());
        }
    }
}
