//! A verifier of tokens with one issuer, and the keys that sign for it. Used by the target `tokens`.
//!
//! The verifier fetches the public keys from a server on this machine, as in production.

use std::{cell::RefCell, convert::Infallible, sync::Arc};

use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ED25519, EcdsaKeyPair,
        Ed25519KeyPair, KeyPair as _, UnparsedPublicKey,
    },
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use broker::{
    auth::{AuthError, KeyFetcher, Keyring, Keys, TokenVerifier},
    metrics::Metrics,
};
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use protocol::ids::TenantId;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tracing::Dispatch;
use tracing_subscriber::filter::LevelFilter;
use transport::{HttpClient, HttpClientConfig, egress::EgressPolicy};

pub(super) const ISSUER: &str = "https://login.example.com/t";
pub(super) const RESOURCE: &str = "https://mcp.example.com";
pub(super) const TENANT: &str = "acme";
/// The broker as a client of the issuer, for people who sign in.
pub(super) const CLIENT: &str = "console";
pub(super) const NONCE: &str = "n-0S6_WzA2Mj";
/// Claim and value that make an operator.
pub(super) const ROLES: &str = "roles";
pub(super) const ADMIN: &str = "admin";

/// Key pairs. The issuer publishes all but the last.
pub(super) struct SigningKeys {
    ed: Ed25519KeyPair,
    ec: EcdsaKeyPair,
    stranger: Ed25519KeyPair,
}

/// A published key: its name and its algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PublishedKey {
    Ed,
    Ec,
}

impl PublishedKey {
    pub(super) const ALL: [Self; 2] = [Self::Ed, Self::Ec];

    pub(super) fn id(self) -> &'static str {
        match self {
            Self::Ed => "ed",
            Self::Ec => "ec",
        }
    }

    pub(super) fn algorithm(self) -> &'static str {
        match self {
            Self::Ed => "EdDSA",
            Self::Ec => "ES256",
        }
    }
}

impl SigningKeys {
    fn new() -> Self {
        let ed = |seed| Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("32 bytes");
        let ec = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        Self { ed: ed(1), ec, stranger: ed(2) }
    }

    /// Returns the signature that this signer makes. A signer of an unknown name signs nothing.
    pub(super) fn signature(&self, signer: &[u8], signed: &str) -> Vec<u8> {
        let secret = || hmac::Key::new(hmac::HMAC_SHA256, self.ed.public_key().as_ref());
        match signer {
            b"ed" => self.ed.sign(signed.as_bytes()).as_ref().to_vec(),
            b"ec" => {
                let signature = self.ec.sign(&SystemRandom::new(), signed.as_bytes());
                signature.expect("P-256 signs every text").as_ref().to_vec()
            }
            b"stranger" => self.stranger.sign(signed.as_bytes()).as_ref().to_vec(),
            // The public key as a shared secret.
            b"hmac" => hmac::sign(&secret(), signed.as_bytes()).as_ref().to_vec(),
            _ => Vec::new(),
        }
    }

    pub(super) fn verifies(&self, key: PublishedKey, signed: &str, signature: &[u8]) -> bool {
        let verified = match key {
            PublishedKey::Ed => UnparsedPublicKey::new(&ED25519, self.ed.public_key())
                .verify(signed.as_bytes(), signature),
            PublishedKey::Ec => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.ec.public_key())
                    .verify(signed.as_bytes(), signature)
            }
        };
        verified.is_ok()
    }

    /// Returns the key set that the issuer publishes.
    pub(super) fn published(&self) -> Value {
        let (x, y) = self.ec.public_key().as_ref()[1..].split_at(32);
        let [ed, x, y] =
            [self.ed.public_key().as_ref(), x, y].map(|bytes| URL_SAFE_NO_PAD.encode(bytes));
        json!({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": ed},
            {"kty": "EC", "crv": "P-256", "kid": "ec", "x": x, "y": y},
        ]})
    }
}

/// The verifier and what it knows.
pub(super) struct TokenRig {
    pub(super) keys: SigningKeys,
    pub(super) verifier: TokenVerifier,
    log: Dispatch,
}

thread_local! {
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl TokenRig {
    /// Returns a verifier that has fetched the keys.
    pub(super) fn new() -> Self {
        let keys = SigningKeys::new();
        let verifier = super::block_on(verifier_with(&keys));
        let log = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_ansi(false)
            .without_time()
            .with_writer(|| LogWriter)
            .finish();
        Self { keys, verifier, log: log.into() }
    }

    /// Does the work and returns its result with what it logged.
    pub(super) fn logged<T>(&self, work: impl FnOnce(&TokenVerifier) -> T) -> (T, String) {
        let done = tracing::dispatcher::with_default(&self.log, || work(&self.verifier));
        (done, String::from_utf8_lossy(&LOG.take()).into_owned())
    }
}

/// Writes to the log of this thread.
struct LogWriter;

impl std::io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns a verifier that has fetched these keys from a server, which ends afterwards.
async fn verifier_with(keys: &SigningKeys) -> TokenVerifier {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    let published = Bytes::from(keys.published().to_string());
    let server = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let published = published.clone();
            let answer = service_fn(move |_| {
                let answer = Response::new(Full::new(published.clone()));
                async { Ok::<_, Infallible>(answer) }
            });
            // A client that gives up ends its connection, and no other.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        }
    });
    let text = json!({"auth": {"resource": RESOURCE, "issuers": [{
        "issuer": ISSUER, "tenant": TENANT, "jwks_url": format!("http://{address}/keys"),
        "sign_in": {"client_id": CLIENT},
        "admin": {"claim": ROLES, "map": [{"value": ADMIN, "role": "admin"}]},
    }]}});
    let auth = config::load_from(&text.to_string(), []).expect("is a valid configuration").auth;
    let keyring = Arc::new(Keyring::new(Keys::from_root(b"root").api_key));
    keyring.set_enabled(&TenantId::parse(TENANT).expect("a name"), true);
    let egress = Arc::new(EgressPolicy { loopback: true, ..EgressPolicy::default() });
    let client = HttpClient::new(HttpClientConfig { egress, ..HttpClientConfig::default() });
    let client = client.expect("a client without certificates");
    let fetcher = KeyFetcher::new(client.clone(), client);
    let verifier = TokenVerifier::new(keyring, fetcher, Arc::new(Metrics::new(false)));
    verifier.set_issuers(Some(RESOURCE), &auth.issuers);
    let (header, claims) = (json!({"alg": "EdDSA", "kid": "ed"}), json!({"iss": ISSUER}));
    let signed = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let probe = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(keys.signature(b"ed", &signed)));
    while let Err(AuthError::KeyUnknown(key)) = verifier.verify(&probe, None) {
        key.wait_for_keys().await;
    }
    server.abort();
    verifier
}
