//! How connections come in: with TLS or without, and who a client is by its certificate.
//!
//! Used by every listener of clients and operators. A certificate speaks for a principal as a key does.

use std::{
    io,
    net::IpAddr,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use protocol::ids::{PrincipalId, TenantId};
use tokio::net::TcpStream;
use transport::{
    tcp::{self, Stream},
    tls::{
        self, CertificateIdentity, CertificateSource, ClientCertificate, ListenerKind,
        ReloadedCertificates, ServerTls, TlsError,
    },
};

use crate::{
    auth::{Caller, RemotePeer, is_printable, reserved},
    config::{self, Certificate, Config},
};

/// The first byte of a TLS connection: a handshake record (RFC 8446, 5.1). No text begins with it.
const TLS_HANDSHAKE: u8 = 22;

/// One for all listeners; clones are cheap.
#[derive(Debug, Clone)]
pub struct TlsAcceptor {
    tls: Option<Arc<ServerTls>>,
    /// Nobody comes in without.
    only_tls: bool,
    limit: Duration,
}

/// For whom a client's certificate speaks, for as long as it is good. Clones are cheap.
#[derive(Debug, Clone)]
pub(super) struct CertificateCaller(Arc<CertificateCallerInner>);

#[derive(Debug)]
struct CertificateCallerInner {
    caller: Caller,
    certificate: ClientCertificate,
    tls: Arc<ServerTls>,
}

impl CertificateCaller {
    /// [`CertificateCaller::by`] of the certificate that a connection has shown, and what is known of the connection.
    pub(super) fn identified(
        shown: Option<(ClientCertificate, &Arc<ServerTls>)>,
        address: IpAddr,
    ) -> (Option<Self>, RemotePeer) {
        let has_shown = shown.is_some();
        let certified = shown.and_then(|(certificate, tls)| Self::by(certificate, tls));
        let remote = RemotePeer {
            address: Some(address),
            certificate_is_foreign: has_shown && certified.is_none(),
        };
        (certified, remote)
    }

    /// One that names nobody of ours is as good as none.
    fn by(certificate: ClientCertificate, tls: &Arc<ServerTls>) -> Option<Self> {
        Some(Self(Arc::new(CertificateCallerInner {
            caller: caller_by(&certificate)?,
            certificate,
            tls: tls.clone(),
        })))
    }

    pub(super) fn caller(&self) -> &Caller {
        &self.0.caller
    }

    /// Resolves when the certificate is good no longer: it has ended, was revoked, or its authority is believed no more.
    pub(super) async fn outlived(&self) {
        self.0.tls.outlived(&self.0.certificate).await;
    }
}

/// Why a connection does not come in.
#[derive(Debug, thiserror::Error)]
pub(super) enum AcceptError {
    #[error(transparent)]
    Handshake(#[from] tls::TlsHandshakeError),
    #[error("it does not speak TLS")]
    PlaintextRefused,
    #[error("nothing was said in time")]
    TimedOut,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The doors of clients, and of operators, who show no certificate.
pub fn doors(config: &Config) -> Result<[TlsAcceptor; 2], TlsError> {
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
    let (client_auth, asked) = match &tls.client_auth {
        config::ClientAuth::None => (tls::ClientAuth::None, false),
        config::ClientAuth::Optional { ca, crl } => {
            (tls::ClientAuth::Optional { ca: ca.clone(), crl: crl.clone() }, false)
        }
        config::ClientAuth::Required { ca, crl } => {
            (tls::ClientAuth::Required { ca: ca.clone(), crl: crl.clone() }, true)
        }
    };
    let door = |client_auth, only_tls| {
        let tls = Some(Arc::new(ServerTls::load(source.clone(), client_auth)?));
        Ok::<_, TlsError>(TlsAcceptor { tls, only_tls, limit: config.timeouts.handshake })
    };
    Ok([
        door(client_auth, tls.require_https || asked)?,
        door(tls::ClientAuth::None, tls.require_https)?,
    ])
}

impl TlsAcceptor {
    /// Without TLS.
    pub fn plain(config: &Config) -> Self {
        Self { tls: None, only_tls: false, limit: config.timeouts.handshake }
    }

    /// Reads certificates anew, and changes nothing before [`TlsAcceptor::present`].
    pub fn read_certificates(&self) -> Result<Option<ReloadedCertificates>, TlsError> {
        self.tls.as_ref().map(|tls| tls.read()).transpose()
    }

    pub fn present(&self, renewed: Option<ReloadedCertificates>) {
        if let (Some(tls), Some(renewed)) = (&self.tls, renewed) {
            tls.present(renewed);
        }
    }

    /// When the certificate that is presented now ends, in seconds since 1970; `None` without one.
    pub fn certificate_ends_at(&self) -> Option<i64> {
        let until = self.tls.as_ref()?.valid_until()?.duration_since(UNIX_EPOCH).ok()?;
        i64::try_from(until.as_secs()).ok()
    }

    /// For a listener that is never without.
    pub fn tls(&self) -> Option<Arc<ServerTls>> {
        self.tls.clone()
    }

    /// For whom a connection speaks by its certificate, and what else is known of its other end.
    pub(super) fn identified(
        &self,
        stream: &Stream,
        address: IpAddr,
    ) -> (Option<CertificateCaller>, RemotePeer) {
        let shown = stream.client_certificate().zip(self.tls.as_ref());
        CertificateCaller::identified(shown, address)
    }

    /// Lets a connection in, with the handshake it begins.
    pub(super) async fn open(
        &self,
        socket: TcpStream,
        kind: ListenerKind,
    ) -> Result<Stream, AcceptError> {
        tcp::tune(&socket);
        let Some(tls) = &self.tls else { return Ok(Stream::Plain(socket)) };
        let mut first = [0];
        let seen = tokio::time::timeout(self.limit, socket.peek(&mut first))
            .await
            .map_err(|_| AcceptError::TimedOut)??;
        if seen == 1 && first[0] == TLS_HANDSHAKE {
            return Ok(tls.accept(socket, kind, self.limit).await?);
        }
        if self.only_tls { Err(AcceptError::PlaintextRefused) } else { Ok(Stream::Plain(socket)) }
    }
}

/// Whether the TLS handshake settled on HTTP/2.
pub(super) fn speaks_http2(stream: &Stream) -> bool {
    match stream {
        Stream::Tls(stream) => stream.get_ref().1.alpn_protocol() == Some(b"h2"),
        Stream::Plain(_) => false,
    }
}

/// What a development certificate is for.
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

fn caller_by(certificate: &ClientCertificate) -> Option<Caller> {
    let CertificateIdentity { tenant, principal } = certificate.identity()?;
    let tenant = TenantId::parse(&tenant).ok()?;
    (is_printable(&principal) && reserved(&principal).is_none()).then(|| Caller {
        tenant,
        principal: PrincipalId::new(principal),
        key: None,
    })
}
