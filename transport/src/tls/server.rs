//! What listeners present, and whom they ask for a certificate.
//!
//! Used by every listener of the broker. Reloading swaps what the *next* handshake gets: connections that exist go on, and files
//! that cannot be used change nothing.

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
        ResolvesServerCert, VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier,
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

/// How often a certificate that lasts longer is looked at.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(600);

/// Where the server's certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSource {
    /// PEM files: the chain, leaf first, and its key.
    Files { cert: PathBuf, key: PathBuf },
    /// Made anew at each loading, for these names and addresses. For development: no client can verify it.
    SelfSigned { names: Vec<String> },
}

/// Whether clients have to present a certificate, and whose are believed: a PEM file of authorities, and one with what each of them
/// has revoked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ClientAuth {
    #[default]
    None,
    /// Who presents none is let in without an identity; a bad one is refused.
    Optional {
        ca: PathBuf,
        crl: Option<PathBuf>,
    },
    Required {
        ca: PathBuf,
        crl: Option<PathBuf>,
    },
}

/// What is spoken above TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerKind {
    /// HTTP/2 and HTTP/1.1.
    Http,
    /// Lines. A client need not name the protocol, but one that names another is refused.
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
    /// Something else is presented, and others may be believed.
    renewed: Notify,
}

/// What one reading of the files gave. A configuration per use, because each has its own protocols and its own memory of
/// sessions to resume: nobody resumes past a change of the authorities.
#[derive(Debug)]
struct TlsConfigs {
    http: Arc<ServerConfig>,
    tcp: Arc<ServerConfig>,
    quic: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
    valid_until: Option<SystemTime>,
}

/// Certificates that were read and are good, and not presented yet.
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

    /// Reads the files again. After an error everything is as it was.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.present(self.read()?);
        Ok(())
    }

    /// Reads the files again, and changes nothing yet.
    pub fn read(&self) -> Result<ReloadedCertificates, TlsError> {
        TlsConfigs::load(&self.source, &self.client_auth)
            .map(|configs| ReloadedCertificates(Arc::new(configs)))
    }

    /// What [`ServerTls::read`] gave is presented from now on.
    pub fn present(&self, renewed: ReloadedCertificates) {
        self.current.store(renewed.0);
        self.renewed.notify_waiters();
    }

    /// Resolves when a client that came with this certificate would be let in with it no more: it has ended, or what was read since
    /// does not believe it.
    pub async fn outlived(&self, certificate: &ClientCertificate) {
        loop {
            let renewed = self.renewed.notified();
            tokio::pin!(renewed);
            renewed.as_mut().enable(); // before looking, so that no change is missed
            if !certificate.is_believed_by(&*self.current.load().verifier) {
                return;
            }
            // Validity counts whole seconds; a clock that was set is noticed at the next look.
            let left = certificate.lasts().unwrap_or(LOOK_EVERY_MAX) + Duration::from_secs(1);
            tokio::select! {
                () = renewed => {}
                () = sleep(left.min(LOOK_EVERY_MAX)) => {}
            }
        }
    }

    /// The server's side of the handshake, which the client has `limit` to get through.
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

    /// When the certificate presented now stops being valid, for whoever has to renew it.
    pub fn valid_until(&self) -> Option<SystemTime> {
        self.current.load().valid_until
    }

    /// TLS 1.3 for QUIC, as of now.
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
    // With lists at all, an authority without one is believed in nothing; one whose next list is late still counts.
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
