//! Opens connections with or without TLS, and identifies clients by their certificates.
//!
//! Used by every listener for clients and operators. A certificate authenticates a principal as a
//! key does.

use std::{
    io,
    net::IpAddr,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use aws_lc_rs::digest;
use config::{Certificate, Config};
use protocol::ids::{PrincipalId, TenantId};
use rules::access::{Attribute, Subject};
use tokio::net::TcpStream;
use transport::{
    socket_options,
    tcp::Stream,
    tls::{
        self, CertificateIdentity, CertificateSource, ClientCertificate, ListenerKind,
        ReloadedCertificates, ServerTls, TlsError,
    },
};

use crate::auth::{Caller, CertificateThumbprint, RemotePeer, is_printable, reserved_reason};

/// First byte of a TLS connection: a handshake record (RFC 8446, 5.1). No text begins with it.
const TLS_HANDSHAKE: u8 = 22;

/// One acceptor for all listeners. Clones are cheap.
#[derive(Debug, Clone)]
pub struct TlsAcceptor {
    tls: Option<Arc<ServerTls>>,
    /// True if connections without TLS are refused.
    require_tls: bool,
    limit: Duration,
}

/// Caller that a client's certificate names, while the certificate is valid. Clones are cheap.
#[derive(Debug, Clone)]
pub(super) struct CertificateCaller(Arc<CertificateCallerInner>);

#[derive(Debug)]
struct CertificateCallerInner {
    caller: Caller,
    certificate: ClientCertificate,
    tls: Arc<ServerTls>,
}

impl CertificateCaller {
    /// Returns the caller of a connection's certificate, and the properties of the remote peer.
    pub(super) fn identified(
        shown: Option<(ClientCertificate, &Arc<ServerTls>)>,
        address: IpAddr,
    ) -> (Option<Self>, RemotePeer) {
        let has_shown = shown.is_some();
        let certificate = shown.as_ref().map(|(certificate, _)| thumbprint(certificate));
        let certified =
            shown.and_then(|(certificate, tls)| Self::from_certificate(certificate, tls));
        let remote = RemotePeer {
            address: Some(address),
            certificate_is_foreign: has_shown && certified.is_none(),
            certificate,
        };
        (certified, remote)
    }

    /// Returns `None` for a certificate that names no known principal, as without a certificate.
    fn from_certificate(certificate: ClientCertificate, tls: &Arc<ServerTls>) -> Option<Self> {
        Some(Self(Arc::new(CertificateCallerInner {
            caller: caller_by(&certificate)?,
            certificate,
            tls: tls.clone(),
        })))
    }

    pub(super) fn caller(&self) -> &Caller {
        &self.0.caller
    }

    /// Resolves when the certificate is no longer valid: it expired, was revoked, or its authority
    /// is no longer trusted.
    pub(super) async fn expired(&self) {
        self.0.tls.until_untrusted(&self.0.certificate).await;
    }
}

/// Resolves when the certificate of a connection is no longer valid. Never resolves for a
/// connection without one.
pub(super) async fn certificate_expired(caller: Option<&CertificateCaller>) {
    match caller {
        // Boxed: few connections have a certificate.
        Some(caller) => Box::pin(caller.expired()).await,
        None => std::future::pending().await,
    }
}

/// Reason why a connection is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum AcceptError {
    #[error(transparent)]
    Handshake(#[from] tls::TlsHandshakeError),
    #[error("the client does not use TLS")]
    PlaintextRefused,
    #[error("the client sent nothing in time")]
    TimedOut,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Returns the acceptors for clients and for operators. Operators show no certificate.
pub fn acceptors(config: &Config) -> Result<[TlsAcceptor; 2], TlsError> {
    let tls = &config.tls;
    let Some(certificate) = &tls.certificate else {
        return Ok([TlsAcceptor::plain(config), TlsAcceptor::plain(config)]);
    };
    let source = match certificate {
        Certificate::Files { cert, key } => {
            CertificateSource::Files { cert: cert.clone(), key: key.clone() }
        }
        Certificate::SelfSigned => CertificateSource::SelfSigned { names: own_names(config) },
    };
    let (client_auth, is_required) = match &tls.client_auth {
        config::ClientAuth::None => (tls::ClientAuth::None, false),
        config::ClientAuth::Optional { ca, crl } => {
            (tls::ClientAuth::Optional { ca: ca.clone(), crl: crl.clone() }, false)
        }
        config::ClientAuth::Required { ca, crl } => {
            (tls::ClientAuth::Required { ca: ca.clone(), crl: crl.clone() }, true)
        }
    };
    let acceptor = |client_auth, only_tls| {
        let tls = Some(Arc::new(ServerTls::load(source.clone(), client_auth)?));
        Ok::<_, TlsError>(TlsAcceptor {
            tls,
            require_tls: only_tls,
            limit: config.timeouts.handshake,
        })
    };
    Ok([
        acceptor(client_auth, tls.require_https || is_required)?,
        acceptor(tls::ClientAuth::None, tls.require_https)?,
    ])
}

impl TlsAcceptor {
    /// Returns an acceptor without TLS.
    pub fn plain(config: &Config) -> Self {
        Self { tls: None, require_tls: false, limit: config.timeouts.handshake }
    }

    /// Reads the certificates again. They are not in use before [`TlsAcceptor::install_certificates`].
    pub fn load_certificates(&self) -> Result<Option<ReloadedCertificates>, TlsError> {
        self.tls.as_ref().map(|tls| tls.read_certificates()).transpose()
    }

    pub fn install_certificates(&self, renewed: Option<ReloadedCertificates>) {
        if let (Some(tls), Some(renewed)) = (&self.tls, renewed) {
            tls.install(renewed);
        }
    }

    /// Returns the expiry time of the current certificate, in seconds since 1970. `None` without a
    /// certificate.
    pub fn certificate_ends_at(&self) -> Option<i64> {
        let until = self.tls.as_ref()?.valid_until()?.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(until.as_secs()).ok()
    }

    /// Returns the TLS settings, for a listener that always uses TLS.
    pub fn tls(&self) -> Option<Arc<ServerTls>> {
        self.tls.clone()
    }

    /// Returns the caller of a connection's certificate, and the properties of the remote peer.
    pub(super) fn identified(
        &self,
        stream: &Stream,
        address: IpAddr,
    ) -> (Option<CertificateCaller>, RemotePeer) {
        let shown = stream.client_certificate().zip(self.tls.as_ref());
        CertificateCaller::identified(shown, address)
    }

    /// Opens a connection with the handshake that its first byte requests.
    pub(super) async fn accept(
        &self,
        socket: TcpStream,
        kind: ListenerKind,
    ) -> Result<Stream, AcceptError> {
        socket_options::tune(&socket);
        let Some(tls) = &self.tls else { return Ok(Stream::Plain(socket)) };
        let mut first = [0];
        let seen = tokio::time::timeout(self.limit, socket.peek(&mut first))
            .await
            .map_err(|_| AcceptError::TimedOut)??;
        if seen == 1 && first[0] == TLS_HANDSHAKE {
            return Ok(tls.accept(socket, kind, self.limit).await?);
        }
        if self.require_tls {
            Err(AcceptError::PlaintextRefused)
        } else {
            Ok(Stream::Plain(socket))
        }
    }
}

/// Returns whether the TLS handshake negotiated HTTP/2.
pub(super) fn negotiated_http2(stream: &Stream) -> bool {
    match stream {
        Stream::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
        Stream::Plain(_) => false,
    }
}

/// Returns the names of a development certificate.
fn own_names(config: &Config) -> Vec<String> {
    let addresses = config.listen.data().map(|(_, address)| address).chain([config.listen.admin]);
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(
        addresses
            .map(|address| address.ip())
            .filter(|ip| !ip.is_unspecified())
            .map(|ip| ip.to_string()),
    );
    names.sort();
    names.dedup();
    names
}

fn thumbprint(certificate: &ClientCertificate) -> CertificateThumbprint {
    let digest = digest::digest(&digest::SHA256, certificate.leaf_der());
    CertificateThumbprint(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

fn caller_by(certificate: &ClientCertificate) -> Option<Caller> {
    let CertificateIdentity { tenant, principal } = certificate.identity()?;
    let tenant = TenantId::parse(&tenant).ok()?;
    if !is_printable(&principal) || reserved_reason(&principal).is_some() {
        return None;
    }
    let units = certificate.organizational_units();
    let units = units.filter(|units| units.iter().all(|unit| is_printable(unit)));
    let groups = units.map_or(Attribute::Unknown, Attribute::of);
    let subject = Subject { groups, ..Subject::of_principal(PrincipalId::new(principal)) };
    Some(Caller::of_subject(tenant, subject))
}
