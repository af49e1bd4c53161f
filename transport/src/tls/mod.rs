//! TLS on every listener and towards every backend: presented certificates, trusted authorities,
//! and client certificates.
//!
//! Used by the broker's listeners ([`ServerTls`]) and by the clients of TCP, WebSocket and QUIC
//! ([`ClientTls`]). TLS 1.2 is the minimum, and every certificate is verified. 0-RTT is off
//! everywhere, because its data can be replayed.

mod certificate;
mod client;
mod identity;
mod server;
pub(crate) mod trust;

use std::path::PathBuf;

pub use self::{
    certificate::{CertificateIdentity, ClientCertificate},
    client::{ClientTls, ClientTlsFiles},
    identity::{ClientIdentity, ClientIdentityFiles},
    server::{
        CertificateSource, ClientAuth, ListenerKind, ReloadedCertificates, ServerTls,
        TlsHandshakeError,
    },
};

/// Protocol name of this project's TCP and QUIC bindings (RFC 7301).
pub const ALPN_MCP: &[u8] = b"mcp";
const ALPN_H2: &[u8] = b"h2";
const ALPN_HTTP1: &[u8] = b"http/1.1";

/// Reason why certificates or keys cannot be used. Texts name the file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{} cannot be read: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    #[error("{} has no certificate in it", path.display())]
    NoCertificate { path: PathBuf },
    #[error("the certificate in {} cannot be used with the key in {}: {reason}", cert.display(), key.display())]
    Pair { cert: PathBuf, key: PathBuf, reason: String },
    #[error("a certificate authority in {} cannot be used: {reason}", path.display())]
    Authority { path: PathBuf, reason: String },
    #[error("{} has no revocation list in it", path.display())]
    NoRevocationList { path: PathBuf },
    #[error("a revocation list in {} cannot be used: {reason}", path.display())]
    RevocationList { path: PathBuf, reason: String },
    #[error("a self-signed certificate cannot be made: {reason}")]
    SelfSigned { reason: String },
    #[error("{name:?} is not the name of a server")]
    ServerName { name: String },
    #[error("the tls library refused its configuration: {0}")]
    Provider(#[from] rustls::Error),
}
