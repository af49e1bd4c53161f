//! The broker's one HTTP client: pooled connections, HTTP/1.1 and HTTP/2, verified TLS, egress policy.
//!
//! Called by HTTP links. Without TLS it speaks HTTP/1.1 by itself ([`crate::http1_client`]), which costs a fraction of what the
//! library does. It follows no redirect, keeps no cookie, uses no proxy and decodes nothing: what the backend
//! answered is what the caller sees. An error tells whether the request can have reached the backend, which is what
//! decides whether it may be sent again.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, uri::Scheme};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use tokio_rustls::TlsConnector;

use crate::connect::Connector;
use crate::egress::EgressPolicy;
use crate::framing::ChunksTooLong;
use crate::http1_client::{self, BodyStreamError, Http1Body, Pool};
use crate::peer::PeerIdentityError;
use crate::response::HttpResponse;
use crate::send_error::SendError;
use crate::tls::{ClientIdentity, presenting, trust};
use crate::vectored_body::VectoredBody;

/// The HTTP library refuses smaller buffers than this.
const HEAD_BYTES_MIN: usize = 8 * 1024;
/// How often an HTTP/2 connection with open streams is asked whether it is alive, and how long it may take to answer.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
pub struct HttpClientConfig {
    /// Resolving, connecting and the TLS handshake together.
    pub connect_timeout: Duration,
    /// How long an unused connection is kept. Best below what servers use (often 5 s): a request that meets the
    /// server's closing has an unknown fate.
    pub idle_timeout: Duration,
    /// Unused connections kept for one scheme, host and port.
    pub idle_per_host: usize,
    /// Trusted beside the system's certificate authorities.
    pub extra_roots: Vec<CertificateDer<'static>>,
    pub egress: Arc<EgressPolicy>,
    /// Largest response head. At least 8 KiB are always accepted.
    pub head_bytes_max: usize,
}

impl Default for HttpClientConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(4),
            idle_per_host: 64,
            extra_roots: Vec::new(),
            egress: Arc::new(EgressPolicy::default()),
            head_bytes_max: 64 * 1024,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TlsSetupError {
    #[error("extra root certificate {position} is not usable: {source}")]
    Root { position: usize, source: rustls::Error },
    #[error("the tls library refused its configuration: {0}")]
    Provider(rustls::Error),
    #[error(transparent)]
    Peer(#[from] PeerIdentityError),
}

/// A shared client; clones use the same connections.
#[derive(Clone)]
pub struct HttpClient {
    /// Where there is TLS.
    client: Client<Connector, Full<Bytes>>,
    /// Where there is none.
    plain: Pool,
    connector: Connector,
    config: Arc<HttpClientConfig>,
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

/// The head of POSTs that differ in their bodies alone. See [`HttpClient::prepare`].
#[derive(Debug, Clone)]
pub struct PreparedPost(http1_client::PreparedHead);

impl HttpClient {
    pub fn new(config: HttpClientConfig) -> Result<Self, TlsSetupError> {
        Self::built(Arc::new(config), None)
    }

    /// Another one with the same settings and connections of its own, which presents a certificate to servers that ask for one.
    pub fn presenting(&self, identity: Arc<ClientIdentity>) -> Result<Self, TlsSetupError> {
        Self::built(self.config.clone(), Some(identity))
    }

    fn built(
        config: Arc<HttpClientConfig>,
        identity: Option<Arc<ClientIdentity>>,
    ) -> Result<Self, TlsSetupError> {
        let connector = Connector {
            tls: TlsConnector::from(Arc::new(tls_config(&config.extra_roots, identity)?)),
            egress: config.egress.clone(),
            connect_timeout: config.connect_timeout,
        };
        let head_bytes_max = config.head_bytes_max.max(HEAD_BYTES_MIN);
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(config.idle_timeout)
            .pool_max_idle_per_host(config.idle_per_host)
            // Repeats only what was never written, for example on a pooled connection that had just been closed.
            .retry_canceled_requests(true)
            .http1_max_buf_size(head_bytes_max)
            .http2_max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
            .http2_keep_alive_interval(Some(HTTP2_PING_INTERVAL))
            .http2_keep_alive_timeout(HTTP2_PING_TIMEOUT)
            .build(connector.clone());
        let plain = Pool::new(config.idle_timeout, config.idle_per_host, head_bytes_max);
        Ok(Self { client, plain, connector, config })
    }

    /// Sends the request and waits for the response's head. The URI is absolute, as [`crate::parse_http_url`] makes it.
    ///
    /// Waits without limit for the response; the caller bounds the call as a whole.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<HttpResponse<ResponseBody>, SendError> {
        if request.uri().scheme().is_none() || request.uri().host().is_none() {
            return Err(SendError::Connect {
                reason: format!("{} is not an absolute http url", request.uri()),
            });
        }
        if request.uri().scheme() == Some(&Scheme::HTTP) {
            let uri = request.uri().clone();
            let response = self
                .plain
                .send(request.map(bytes_of), || async move { self.connector.tcp(&uri).await })
                .await?;
            return Ok(response.map(|body| ResponseBody(BodyKind::Plain(body))));
        }
        // Boxed: those above would be moved with room for it.
        let response =
            Box::pin(self.client.request(request)).await.map_err(|error| classify(&error))?;
        let (head, body) = response.into_parts();
        Ok(HttpResponse::new(Arc::new(head), ResponseBody(BodyKind::Hyper(body))))
    }
}

impl HttpClient {
    /// Writes a POST's head once, for all that follow with other bodies: names and values are not looked at again. `None` where
    /// there is TLS, as the library writes heads by itself.
    pub fn prepare(&self, post: Request<()>) -> Option<PreparedPost> {
        let is_plain = post.uri().scheme() == Some(&Scheme::HTTP) && post.uri().host().is_some();
        is_plain.then(|| PreparedPost(http1_client::PreparedHead::new(post)))
    }

    /// [`HttpClient::send`] of a POST that was prepared.
    pub async fn send_prepared(
        &self,
        post: &PreparedPost,
        body: VectoredBody,
    ) -> Result<HttpResponse<ResponseBody>, SendError> {
        let response =
            self.plain.send_prepared(&post.0, body, || self.connector.tcp(post.0.uri())).await?;
        Ok(response.map(|body| ResponseBody(BodyKind::Plain(body))))
    }
}

fn bytes_of(mut body: Full<Bytes>) -> Bytes {
    match Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        Poll::Ready(_) | Poll::Pending => Bytes::new(),
    }
}

/// The body of a response. Dropped before its end, it ends what carries it.
#[derive(Debug)]
pub struct ResponseBody(BodyKind);

#[derive(Debug)]
enum BodyKind {
    Plain(Http1Body),
    Hyper(Incoming),
}

impl ResponseBody {
    /// [`read_body`], with a single copy where the length was announced.
    pub async fn whole(self, bytes_max: usize) -> Result<Bytes, BodyError> {
        match self.0 {
            BodyKind::Hyper(body) => read_body(body, bytes_max).await,
            BodyKind::Plain(body) => match body.exact_bytes().map(usize::try_from) {
                Some(Ok(bytes)) if bytes <= bytes_max => body
                    .all(bytes)
                    .await
                    .map_err(|error| BodyError::Aborted { reason: error.to_string() }),
                Some(_) => Err(BodyError::TooLarge { max: bytes_max }),
                None => read_body(body, bytes_max).await,
            },
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyStreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        match &mut self.0 {
            BodyKind::Plain(body) => Pin::new(body).poll_frame(context),
            BodyKind::Hyper(body) => {
                Pin::new(body).poll_frame(context).map_err(BodyStreamError::from)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyKind::Plain(body) => body.is_end_stream(),
            BodyKind::Hyper(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyKind::Plain(body) => body.size_hint(),
            BodyKind::Hyper(body) => body.size_hint(),
        }
    }
}

/// Certificates are always verified, against the system's authorities and the extra ones.
fn tls_config(
    extra_roots: &[CertificateDer<'static>],
    identity: Option<Arc<ClientIdentity>>,
) -> Result<ClientConfig, TlsSetupError> {
    let mut roots = trust::system_roots();
    for (index, root) in extra_roots.iter().enumerate() {
        roots
            .add(root.clone())
            .map_err(|source| TlsSetupError::Root { position: index + 1, source })?;
    }
    let builder = ClientConfig::builder_with_provider(trust::provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsSetupError::Provider)?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => presenting(builder.with_client_cert_resolver(identity)),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn classify(error: &ClientError) -> SendError {
    if let Some(cause) = error.source().and_then(|source| source.downcast_ref::<SendError>()) {
        return cause.clone();
    }
    let reason = innermost_reason(error);
    if error.is_connect() { SendError::Connect { reason } } else { SendError::Aborted { reason } }
}

/// The outer layers only say that a request failed; the cause is at the bottom.
pub(crate) fn innermost_reason(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Why a body could not be read whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the response body is larger than the {max} bytes allowed")]
    TooLarge { max: usize },
    #[error("the response body ended early: {reason}")]
    Aborted { reason: String },
}

/// Reads a body of at most `bytes_max` bytes; one that arrives in a single chunk is not copied.
pub async fn read_body<B>(mut body: B, bytes_max: usize) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Error + 'static,
{
    let too_large = BodyError::TooLarge { max: bytes_max };
    // A declared length over the limit need not be read to be refused.
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large);
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match ChunksTooLong::caused(&error) {
            true => too_large.clone(),
            false => BodyError::Aborted { reason: innermost_reason(&error) },
        })?;
        let Ok(chunk) = frame.into_data() else { continue };
        if chunk.len() > bytes_max - first.len() - rest.len() {
            return Err(too_large);
        }
        if first.is_empty() && rest.is_empty() {
            first = chunk;
            continue;
        }
        if rest.is_empty() {
            rest.extend_from_slice(&std::mem::take(&mut first));
        }
        rest.extend_from_slice(&chunk);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}
