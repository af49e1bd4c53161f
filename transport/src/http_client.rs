//! The broker's only HTTP client: pooled connections, HTTP/1.1 and HTTP/2, verified TLS, egress
//! policy.
//!
//! Called by HTTP links. For URLs without TLS it uses its own HTTP/1.1 client
//! ([`crate::http1_client`]), which costs a fraction of the library. It follows no redirect, keeps
//! no cookie, uses no proxy and decodes no content: the caller sees the unchanged response of the
//! backend. Each error states whether the request may have reached the backend. The caller uses
//! this to decide whether it may send the request again.

use std::error::Error;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http::{Request, uri::Scheme};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Error as ClientError;

use crate::connect::Connector;
use crate::connection_watch::ConnectionWatch;
use crate::framing::ChunksTooLong;
pub use crate::http_client_config::HttpClientConfig;
use crate::http_client_tls::HttpClientTls;
pub use crate::http_client_tls::TlsSetupError;
use crate::http1_client::{self, BodyStreamError, Http1Body, Pool};
use crate::http1_server::PIECE_BYTES_MAX;
use crate::https_client::HttpsClient;
use crate::message_bound::{MessageMemory, WaitRefused};
use crate::response::HttpResponse;
use crate::send_error::{SendError, was_not_processed};
use crate::stream_permits::StreamPermit;
use crate::tls::ClientIdentity;
use crate::vectored_body::VectoredBody;

/// The HTTP library refuses smaller buffers than this.
const HEAD_BYTES_MIN: usize = 8 * 1024;

/// A shared client. Clones use the same connections.
#[derive(Clone)]
pub struct HttpClient {
    /// Client for URLs with TLS.
    secure: Arc<HttpsClient>,
    /// Client for URLs without TLS.
    plain: Pool,
    connector: Connector,
    config: Arc<HttpClientConfig>,
}

impl std::fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpClient").finish_non_exhaustive()
    }
}

/// Encoded head of POSTs that differ only in their bodies. See [`HttpClient::prepare`].
#[derive(Debug, Clone)]
pub struct PreparedPost(http1_client::PreparedHead);

impl HttpClient {
    pub fn new(config: HttpClientConfig) -> Result<Self, TlsSetupError> {
        Self::built(Arc::new(config), None)
    }

    /// Creates a client with the same settings and its own connections. It presents a certificate
    /// to servers that request one.
    pub fn with_client_identity(
        &self,
        identity: Arc<ClientIdentity>,
    ) -> Result<Self, TlsSetupError> {
        Self::built(self.config.clone(), Some(identity))
    }

    fn built(
        config: Arc<HttpClientConfig>,
        identity: Option<Arc<ClientIdentity>>,
    ) -> Result<Self, TlsSetupError> {
        let connector = Connector {
            tls: Arc::new(HttpClientTls::new(config.extra_roots.clone(), identity.clone())?),
            egress: config.egress.clone(),
            connect_timeout: config.connect_timeout,
            watch: ConnectionWatch::new(
                config.resolver.clone(),
                config.address_check_interval,
                identity,
            ),
        };
        let head_bytes_max = config.head_bytes_max.max(HEAD_BYTES_MIN);
        let secure = HttpsClient::new(config.clone(), connector.clone(), head_bytes_max);
        let plain = Pool::new(&config, head_bytes_max);
        Ok(Self { secure: Arc::new(secure), plain, connector, config })
    }

    /// Sends the request and waits for the response's head. The URI must be absolute, as
    /// [`crate::parse_http_url`] returns it.
    ///
    /// Waits without limit for the response. The caller sets the time limit of the whole call.
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
        // Boxed because the futures above would otherwise contain space for it.
        let (response, permit) =
            Box::pin(self.secure.request(request)).await.map_err(|error| classify(&error))?;
        let (head, body) = response.into_parts();
        Ok(HttpResponse::new(Arc::new(head), ResponseBody(BodyKind::Hyper(body, permit))))
    }
}

impl HttpClient {
    /// Encodes the head of a POST once for all later bodies, so names and values are not checked
    /// again. Returns `None` for a URL with TLS, because the library encodes its own heads.
    pub fn prepare(&self, post: Request<()>) -> Option<PreparedPost> {
        let is_plain = post.uri().scheme() == Some(&Scheme::HTTP) && post.uri().host().is_some();
        is_plain.then(|| PreparedPost(http1_client::PreparedHead::new(post)))
    }

    /// Works as [`HttpClient::send`] for a prepared POST.
    pub async fn send_prepared(
        &self,
        post: &PreparedPost,
        body: VectoredBody,
    ) -> Result<HttpResponse<ResponseBody>, SendError> {
        let response =
            self.plain.send_post(&post.0, body, || self.connector.tcp(post.0.uri())).await?;
        Ok(response.map(|body| ResponseBody(BodyKind::Plain(body))))
    }
}

fn bytes_of(mut body: Full<Bytes>) -> Bytes {
    match Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        Poll::Ready(_) | Poll::Pending => Bytes::new(),
    }
}

/// The body of a response. Dropping it before its end closes the stream or connection below it.
#[derive(Debug)]
pub struct ResponseBody(BodyKind);

#[derive(Debug)]
enum BodyKind {
    Plain(Http1Body),
    Hyper(Incoming, StreamPermit),
}

impl ResponseBody {
    /// Works as [`read_body`], with a single copy if the length was announced.
    pub async fn read_whole(self, bytes_max: usize) -> Result<Bytes, BodyError> {
        match self.0 {
            BodyKind::Hyper(body, _permit) => read_body(body, bytes_max).await,
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
            BodyKind::Hyper(body, _) => {
                Pin::new(body).poll_frame(context).map_err(BodyStreamError::from)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyKind::Plain(body) => body.is_end_stream(),
            BodyKind::Hyper(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyKind::Plain(body) => body.size_hint(),
            BodyKind::Hyper(body, _) => body.size_hint(),
        }
    }
}

fn classify(error: &ClientError) -> SendError {
    if let Some(cause) = error.source().and_then(|source| source.downcast_ref::<SendError>()) {
        return cause.clone();
    }
    let reason = innermost_reason(error);
    if error.is_connect() {
        SendError::Connect { reason }
    } else if http2_cause(error).is_some_and(was_not_processed) {
        SendError::NotSent { reason }
    } else {
        SendError::Aborted { reason }
    }
}

/// Returns the HTTP/2 error that caused another one.
fn http2_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a h2::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(of_http2) = error.downcast_ref() {
            return Some(of_http2);
        }
        cause = error.source();
    }
    None
}

/// Returns the text of the innermost error. The outer errors only report that a request failed.
pub(crate) fn innermost_reason(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Reason why a body could not be read whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the response body is larger than the {max} bytes allowed")]
    TooLarge { max: usize },
    #[error("the response body ended early: {reason}")]
    Aborted { reason: String },
    #[error("too many bodies of the connection wait for memory")]
    Crowded,
}

/// Bytes of a body that need no memory of a budget if they are there without a wait.
const READY_BODY_BYTES: usize = 64 * 1024;

/// Reads a body of at most `bytes_max` bytes. A body that arrives in a single chunk is not copied.
pub async fn read_body<B>(body: B, bytes_max: usize) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Error + 'static,
{
    read_body_within(body, bytes_max, None).await
}

/// Reads a body as [`read_body`] does. While it is incomplete, it holds a part of `memory`.
pub async fn read_body_within<B>(
    mut body: B,
    bytes_max: usize,
    mut memory: Option<&mut MessageMemory>,
) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Error + 'static,
{
    let mut has_waited = false;
    let too_large = BodyError::TooLarge { max: bytes_max };
    // A declared length over the limit is refused without reading the body.
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large);
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    // A body that is known to be complete needs no permits.
    while !body.is_end_stream() {
        // One poll can read as much as this.
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        let bytes = first.len() + rest.len() + announced.min(PIECE_BYTES_MAX);
        let next = poll_fn(|context| {
            let mut poll_hold = |context: &mut Context<'_>| match &mut memory {
                Some(memory) => memory.poll_hold(context, bytes),
                None => Poll::Ready(Ok(())),
            };
            if has_waited || bytes > READY_BODY_BYTES {
                ready!(poll_hold(context)).map_err(|WaitRefused| BodyError::Crowded)?;
            }
            let polled = Pin::new(&mut body).poll_frame(context);
            if polled.is_pending() && !std::mem::replace(&mut has_waited, true) {
                // The next poll waits for the permits, if there are none now.
                let _later = poll_hold(context);
            }
            polled.map(Ok::<_, BodyError>)
        });
        let Some(frame) = next.await? else { break };
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::message_bound::{FREE_BYTES, MessageBudget};

    #[test]
    fn a_large_body_is_read_only_with_its_memory() {
        const BODY_BYTES: usize = 2 * READY_BODY_BYTES;
        let budget = MessageBudget::new(BODY_BYTES - FREE_BYTES);
        let [mut small, mut large, mut memory] =
            [(); 3].map(|()| MessageMemory::new(budget.clone()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(small.poll_hold(&mut context, 2 * FREE_BYTES).is_ready());
        assert!(large.poll_hold(&mut context, BODY_BYTES).is_ready(), "it has the overdraft");
        let body = || Full::new(Bytes::from(vec![b'x'; BODY_BYTES]));
        let reading = read_body_within(body(), usize::MAX, Some(&mut memory));
        assert_eq!(reading.now_or_never(), None);
        assert!(memory.is_waiting());
        drop((small, memory));
        let mut memory = MessageMemory::new(budget);
        let reading = read_body_within(body(), usize::MAX, Some(&mut memory));
        let read = reading.now_or_never().unwrap().unwrap();
        assert_eq!(read.len(), BODY_BYTES, "it needs nothing more for its end");
    }
}
