//! A small HTTP server on loopback that counts its connections and requests, and certificates for
//! it.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// An address of loopback with a free port.
const ANY_PORT: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));

/// Requests in flight that the server permits on an HTTP/2 connection. nginx permits 128.
const HTTP2_STREAMS_MAX: u32 = 100;

/// Counts accepted connections and served requests.
#[derive(Default)]
pub(crate) struct Seen {
    connections: AtomicUsize,
    requests: AtomicUsize,
}

pub(crate) struct Server {
    pub(crate) port: u16,
    seen: Arc<Seen>,
}

impl Server {
    pub(crate) async fn plain() -> Self {
        Self::at(ANY_PORT, None).await
    }

    pub(crate) async fn tls(config: ServerConfig) -> Self {
        Self::at(ANY_PORT, Some(config)).await
    }

    /// Starts a server at the address, with TLS if it is given.
    pub(crate) async fn at(address: SocketAddr, tls: Option<ServerConfig>) -> Self {
        let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        Self::start(TcpListener::bind(address).await.unwrap(), tls)
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::SeqCst)
    }

    fn start(listener: TcpListener, tls: Option<TlsAcceptor>) -> Self {
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Seen::default());
        let counted = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.connections.fetch_add(1, Ordering::SeqCst);
                let (seen, tls) = (Arc::clone(&counted), tls.clone());
                tokio::spawn(async move {
                    let service = service_fn(move |request| answer(Arc::clone(&seen), request));
                    let mut server = auto::Builder::new(TokioExecutor::new());
                    server.http2().max_concurrent_streams(HTTP2_STREAMS_MAX);
                    match tls {
                        None => drop(server.serve_connection(TokioIo::new(stream), service).await),
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return };
                            drop(server.serve_connection(TokioIo::new(stream), service).await);
                        }
                    }
                });
            }
        });
        Self { port, seen }
    }
}

/// `/echo` returns the body, `/redirect` points to `/echo`, `/header` answers with a 20,000 byte
/// header, the body of `/stream` does not end, and `/hang` gets no answer.
async fn answer(
    seen: Arc<Seen>,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    seen.requests.fetch_add(1, Ordering::SeqCst);
    let path = request.uri().path().to_owned();
    let host = request.headers().get(header::HOST).cloned();
    let version = format!("{:?}", request.version());
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut response = Response::new(Full::new(body).boxed());
    response.headers_mut().insert("x-version", version.parse().unwrap());
    if let Some(host) = host {
        response.headers_mut().insert("x-host", host);
    }
    match path.as_str() {
        "/redirect" => {
            *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
            response.headers_mut().insert(header::LOCATION, "/echo".parse().unwrap());
        }
        "/header" => {
            drop(response.headers_mut().insert("x-large", "h".repeat(20_000).parse().unwrap()))
        }
        "/hang" => std::future::pending::<()>().await,
        "/stream" => {
            let silent = stream::pending::<Result<Frame<Bytes>, Infallible>>();
            *response.body_mut() = StreamBody::new(silent).boxed();
        }
        _ => {}
    }
    Ok(response)
}

/// A certificate authority of a test.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) certificate: CertificateDer<'static>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// Returns a server certificate for the names that is valid for many years.
    pub(crate) fn server(&self, names: &[&str]) -> ServerConfig {
        self.server_until(names, 2090)
    }

    /// Returns a server certificate that expires on the first day of the year.
    pub(crate) fn server_until(&self, names: &[&str], year: i32) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let mut params = params_for(names);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        server_config(certificate, &key)
    }
}

/// Returns a server certificate that no authority has signed.
pub(crate) fn self_signed(names: &[&str]) -> ServerConfig {
    let key = KeyPair::generate().unwrap();
    let certificate = params_for(names).self_signed(&key).unwrap().der().clone();
    server_config(certificate, &key)
}

fn params_for(names: &[&str]) -> CertificateParams {
    CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
}

fn server_config(certificate: CertificateDer<'static>, key: &KeyPair) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}
