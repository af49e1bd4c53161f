//! Key pairs that sign tokens. The tokens are put together by hand, so that they can be as wrong as a
//! test needs.

use std::sync::Arc;

use aws_lc_rs::{
    rand::SystemRandom,
    rsa::KeySize,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
        Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaEncoding, RsaKeyPair,
    },
};
use serde_json::{Value, json};

use crate::authorization::encoded;

/// A key pair with a name. Clones are the same key.
#[derive(Clone)]
pub struct SigningKey {
    pub id: Option<String>,
    algorithm: &'static str,
    pair: Arc<Pair>,
}

enum Pair {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair, &'static str),
    Ed(Ed25519KeyPair),
}

impl SigningKey {
    fn new(id: &str, algorithm: &'static str, pair: Pair) -> Self {
        Self { id: Some(id.to_owned()), algorithm, pair: Arc::new(pair) }
    }

    /// Makes a key for RS256.
    pub fn rsa(id: &str) -> Self {
        Self::new(id, "RS256", Pair::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).expect("a key")))
    }

    /// Makes a key for ES256.
    pub fn ec(id: &str) -> Self {
        Self::new(
            id,
            "ES256",
            Pair::Ec(
                EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key"),
                "P-256",
            ),
        )
    }

    /// Makes a key for ES384.
    pub fn ec_384(id: &str) -> Self {
        Self::new(
            id,
            "ES384",
            Pair::Ec(
                EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).expect("a key"),
                "P-384",
            ),
        )
    }

    /// Makes a key for EdDSA.
    pub fn ed(id: &str) -> Self {
        Self::new(id, "EdDSA", Pair::Ed(Ed25519KeyPair::generate().expect("a key")))
    }

    /// Returns the key without a name.
    pub fn unnamed(&self) -> Self {
        Self { id: None, ..self.clone() }
    }

    /// Returns the RSA key with PS256 as the algorithm of its tokens.
    pub fn pss(&self) -> Self {
        Self { algorithm: "PS256", ..self.clone() }
    }

    pub fn algorithm(&self) -> &'static str {
        self.algorithm
    }

    /// Returns the public half in the form of a key set.
    pub fn public(&self) -> Value {
        let mut key = match &*self.pair {
            Pair::Rsa(pair) => {
                // PKCS #1: a sequence of the modulus and the exponent 65537. The modulus has 256
                // bytes and one more that marks it as positive.
                let der = pair.public_key().as_ref().to_vec();
                json!({"kty": "RSA", "n": encoded(&der[9..265]), "e": encoded([1, 0, 1])})
            }
            Pair::Ec(pair, curve) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                json!({"kty": "EC", "crv": curve, "x": encoded(x), "y": encoded(y)})
            }
            Pair::Ed(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": encoded(pair.public_key())})
            }
        };
        if let Some(id) = &self.id {
            key["kid"] = json!(id);
        }
        key
    }

    /// Returns the bytes of the public half, which an attacker may use as a shared secret.
    pub fn public_bytes(&self) -> Vec<u8> {
        match &*self.pair {
            Pair::Rsa(pair) => pair.public_key().as_ref().to_vec(),
            Pair::Ec(pair, _) => pair.public_key().as_ref().to_vec(),
            Pair::Ed(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    /// Returns the header that belongs to the key.
    pub fn header(&self) -> Value {
        let mut header = json!({"alg": self.algorithm, "typ": "at+jwt"});
        if let Some(id) = &self.id {
            header["kid"] = json!(id);
        }
        header
    }

    pub fn sign(&self, claims: &Value) -> String {
        self.sign_text(&self.header().to_string(), &claims.to_string())
    }

    /// Signs the claims under a header of the test's own.
    pub fn sign_under(&self, header: &Value, claims: &Value) -> String {
        self.sign_text(&header.to_string(), &claims.to_string())
    }

    /// Signs any texts as header and claims.
    pub fn sign_text(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", encoded(header), encoded(claims));
        let random = SystemRandom::new();
        let signature = match &*self.pair {
            Pair::Rsa(pair) => {
                let encoding: &'static dyn RsaEncoding =
                    if self.algorithm == "PS256" { &RSA_PSS_SHA256 } else { &RSA_PKCS1_SHA256 };
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &random, signed.as_bytes(), &mut signature)
                    .expect("a signature");
                signature
            }
            Pair::Ec(pair, _) => {
                pair.sign(&random, signed.as_bytes()).expect("a signature").as_ref().to_vec()
            }
            Pair::Ed(pair) => pair.sign(signed.as_bytes()).as_ref().to_vec(),
        };
        format!("{signed}.{}", encoded(signature))
    }
}
