//! TLS of the listeners: the presented certificate, and the check of client certificates.
//!
//! Used by every listener of the broker. A reload changes the *next* handshake only: existing
//! connections stay open. Files that cannot be used change nothing.

use std::{
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::CryptoProvider,
    pki_types::PrivatePkcs8KeyDer,
    server::{
        NoServerSessionStorage, ResolvesServerCert, VerifierBuilderError, WebPkiClientVerifier,
        danger::ClientCertVerifier,
    },
    sign::{CertifiedKey, SingleCertAndKey},
    version::{TLS12, TLS13},
};
use tokio::{
    net::TcpStream,
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{
    ALPN_H2, ALPN_HTTP1, ALPN_MCP, TlsError,
    certificate::{ClientCertificate, valid_until},
    trust,
};
use crate::tcp::Stream;

/// Longest time between two checks of a certificate.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(600);

/// Source of the server's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSource {
    /// PEM files: the chain, leaf first, and its key.
    Files { cert: PathBuf, key: PathBuf },
    /// A certificate made at each load, for these names and addresses. For development only,
    /// because no client can verify it.
    SelfSigned { names: Vec<String> },
}

/// Rule for client certificates. Holds a PEM file of trusted authorities, and one with their
/// revocation lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ClientAuth {
    #[default]
    None,
    /// A client without a certificate is accepted without an identity. An invalid certificate is
    /// refused.
    Optional {
        ca: PathBuf,
        crl: Option<PathBuf>,
    },
    Required {
        ca: PathBuf,
        crl: Option<PathBuf>,
    },
}

/// Protocol above TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerKind {
    /// HTTP/2 and HTTP/1.1.
    Http,
    /// Lines. A client need not name the protocol, but a client that names another one is refused.
    Tcp,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsHandshakeError {
    #[error("no tls handshake within {limit:?}")]
    Timeout { limit: Duration },
    #[error("tls handshake failed: {0}")]
    Failed(#[from] io::Error),
}

/// The TLS side of all listeners.
#[derive(Debug)]
pub struct ServerTls {
    source: CertificateSource,
    client_auth: ClientAuth,
    current: ArcSwap<TlsConfigs>,
    /// Notified after the presented certificate and the trusted authorities may have changed.
    renewed: Notify,
}

/// Result of one load of the files. Each use has its own configuration, because each has its own
/// protocols and its own resumption cache. A listener that requests certificates has no such cache:
/// a resumed session repeats its client's certificate, and the library does not verify it again.
#[derive(Debug)]
struct TlsConfigs {
    http: Arc<ServerConfig>,
    tcp: Arc<ServerConfig>,
    quic: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
    valid_until: Option<SystemTime>,
}

/// Certificates that were loaded and checked, and are not presented yet.
#[derive(Debug)]
pub struct ReloadedCertificates(Arc<TlsConfigs>);

impl ServerTls {
    pub fn load(source: CertificateSource, client_auth: ClientAuth) -> Result<Self, TlsError> {
        let configs = TlsConfigs::load(&source, &client_auth)?;
        Ok(Self {
            source,
            client_auth,
            current: ArcSwap::from_pointee(configs),
            renewed: Notify::new(),
        })
    }

    /// Reads the files again. After an error the old certificates stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.install(self.read_certificates()?);
        Ok(())
    }

    /// Reads the files again without a change to the presented certificate.
    pub fn read_certificates(&self) -> Result<ReloadedCertificates, TlsError> {
        TlsConfigs::load(&self.source, &self.client_auth)
            .map(|configs| ReloadedCertificates(Arc::new(configs)))
    }

    /// Presents the result of [`ServerTls::read_certificates`] from now on.
    pub fn install(&self, renewed: ReloadedCertificates) {
        self.current.store(renewed.0);
        self.renewed.notify_waiters();
    }

    /// Resolves when the listener would no longer accept this client certificate: it has expired,
    /// or the trusted authorities have changed.
    pub async fn until_untrusted(&self, certificate: &ClientCertificate) {
        loop {
            let renewed = self.renewed.notified();
            tokio::pin!(renewed);
            renewed.as_mut().enable(); // before looking, so that no change is missed
            if !certificate.is_trusted_by(&*self.current.load().verifier) {
                return;
            }
            // Validity has a resolution of seconds. A change of the clock is noticed at the next
            // check.
            let remaining =
                certificate.remaining_validity().unwrap_or(LOOK_EVERY_MAX) + Duration::from_secs(1);
            tokio::select! {
                () = renewed => {}
                () = sleep(remaining.min(LOOK_EVERY_MAX)) => {}
            }
        }
    }

    /// Makes the server's side of the handshake. The client has `limit` to complete it.
    pub async fn accept(
        &self,
        tcp: TcpStream,
        kind: ListenerKind,
        limit: Duration,
    ) -> Result<Stream, TlsHandshakeError> {
        let config = {
            let current = self.current.load();
            match kind {
                ListenerKind::Http => Arc::clone(&current.http),
                ListenerKind::Tcp => Arc::clone(&current.tcp),
            }
        };
        let stream = timeout(limit, TlsAcceptor::from(config).accept(tcp))
            .await
            .map_err(|_| TlsHandshakeError::Timeout { limit })??;
        Ok(Stream::Tls(Box::new(stream.into())))
    }

    /// Returns the end of the validity of the presented certificate, so that the operator can renew
    /// it.
    pub fn valid_until(&self) -> Option<SystemTime> {
        self.current.load().valid_until
    }

    /// Returns the current TLS 1.3 configuration for QUIC.
    pub(crate) fn quic(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().quic)
    }
}

impl TlsConfigs {
    fn load(source: &CertificateSource, client_auth: &ClientAuth) -> Result<Self, TlsError> {
        let provider = trust::provider();
        let key = match source {
            CertificateSource::Files { cert, key } => trust::certified_key(cert, key, &provider)?,
            CertificateSource::SelfSigned { names } => self_signed(names, &provider)?,
        };
        let valid_until = key.cert.first().and_then(|leaf| valid_until(leaf));
        let key: Arc<dyn ResolvesServerCert> = Arc::new(SingleCertAndKey::from(key));
        let verifier = client_verifier(client_auth, &provider)?;
        let config = |versions, protocols: &[&[u8]]| -> Result<Arc<ServerConfig>, TlsError> {
            let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(versions)?
                .with_client_cert_verifier(Arc::clone(&verifier))
                .with_cert_resolver(Arc::clone(&key));
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            if verifier.offer_client_auth() {
                config.session_storage = Arc::new(NoServerSessionStorage {});
            }
            Ok(Arc::new(config))
        };
        Ok(Self {
            http: config(&[&TLS13, &TLS12], &[ALPN_H2, ALPN_HTTP1])?,
            tcp: config(&[&TLS13, &TLS12], &[ALPN_MCP])?,
            quic: config(&[&TLS13], &[ALPN_MCP])?,
            verifier,
            valid_until,
        })
    }
}

fn client_verifier(
    client_auth: &ClientAuth,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let (ca, crl, required) = match client_auth {
        ClientAuth::None => return Ok(WebPkiClientVerifier::no_client_auth()),
        ClientAuth::Optional { ca, crl } => (ca, crl, false),
        ClientAuth::Required { ca, crl } => (ca, crl, true),
    };
    let mut roots = RootCertStore::empty();
    trust::add_authorities(&mut roots, ca)?;
    // If any list is given, an authority without a list is not trusted. An outdated list still
    // counts.
    let lists = crl.as_deref().map(trust::revocation_lists).transpose()?;
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            .with_crls(lists.unwrap_or_default());
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    match (builder.build(), crl) {
        (Ok(verifier), _) => Ok(verifier),
        (Err(VerifierBuilderError::InvalidCrl(error)), Some(crl)) => {
            Err(TlsError::RevocationList {
                path: crl.clone(),
                reason: rustls::Error::from(error).to_string(),
            })
        }
        (Err(error), _) => Err(TlsError::Authority { path: ca.clone(), reason: error.to_string() }),
    }
}

fn self_signed(names: &[String], provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let failed = |error: &dyn std::fmt::Display| TlsError::SelfSigned { reason: error.to_string() };
    let made = rcgen::generate_simple_self_signed(names).map_err(|error| failed(&error))?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    CertifiedKey::from_der(vec![made.cert.der().clone()], key.into(), provider)
        .map_err(|error| failed(&error))
}
