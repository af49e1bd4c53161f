//! The HTTP library's client for URLs with TLS.
//!
//! Used by `http_client`. The library sends all requests of a pool to a server over a single HTTP/2
//! connection. [`crate::stream_permits`] spreads them over several pools.
//!
//! The library uses a connection for as long as one request follows another.
//! [`crate::connection_watch`] retires connections whose name has other addresses. While any is
//! retired, each request asks the library for its connection. A request over a retired one makes
//! the library forget it, even if its caller gives up. Requests and bodies on it continue to their
//! end.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Extensions, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{
        Client, Error as ClientError, ResponseFuture,
        connect::{CaptureConnection, capture_connection},
    },
    rt::{TokioExecutor, TokioTimer},
};
use parking_lot::Mutex;

use crate::{
    connect::Connector,
    connection_watch::WatchedConnection,
    http_client_config::HttpClientConfig,
    stream_permits::{StreamPermit, StreamPermits},
};

/// Interval between pings on an HTTP/2 connection with open streams, and the time limit for the
/// answer.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct HttpsClient {
    config: Arc<HttpClientConfig>,
    connector: Connector,
    head_bytes_max: usize,
    permits: StreamPermits,
    /// The library's clients, each with its own pool.
    clients: Mutex<Vec<LibraryClient>>,
}

type LibraryClient = Client<Connector, Full<Bytes>>;

impl HttpsClient {
    pub(crate) fn new(
        config: Arc<HttpClientConfig>,
        connector: Connector,
        head_bytes_max: usize,
    ) -> Self {
        let (permits, clients) = (StreamPermits::default(), Mutex::default());
        Self { config, connector, head_bytes_max, permits, clients }
    }

    /// Sends the request and waits for the response's head. The permit must live until the end of
    /// the response.
    pub(crate) async fn request(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, StreamPermit), ClientError> {
        let server = request.uri().authority().map_or("", |authority| authority.as_str());
        let permit = self.permits.take(server);
        let has_retired = self.connector.watch.has_retired();
        let _forgets = has_retired.then(|| UsedConnection(capture_connection(&mut request)));
        Ok((self.send(permit.pool(), request).await?, permit))
    }

    fn send(&self, pool: usize, request: Request<Full<Bytes>>) -> ResponseFuture {
        let mut clients = self.clients.lock();
        while clients.len() <= pool {
            clients.push(self.library_client());
        }
        clients[pool].request(request)
    }

    fn library_client(&self) -> LibraryClient {
        Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(self.config.idle_timeout)
            .pool_max_idle_per_host(self.config.idle_per_host)
            // Repeats only a request that was never written, for example on a pooled connection
            // that had just been closed.
            .retry_canceled_requests(true)
            .http1_max_buf_size(self.head_bytes_max)
            .http2_max_header_list_size(u32::try_from(self.head_bytes_max).unwrap_or(u32::MAX))
            .http2_keep_alive_interval(Some(HTTP2_PING_INTERVAL))
            .http2_keep_alive_timeout(HTTP2_PING_TIMEOUT)
            .build(self.connector.clone())
    }
}

/// Connection of a request. Its drop makes the library's pool forget the connection if that is
/// retired.
struct UsedConnection(CaptureConnection);

impl Drop for UsedConnection {
    fn drop(&mut self) {
        let metadata = self.0.connection_metadata();
        let Some(connected) = metadata.as_ref() else { return };
        let mut extras = Extensions::new();
        connected.get_extras(&mut extras);
        let watched = extras.get::<Arc<WatchedConnection>>();
        if watched.is_some_and(|watched| watched.take_retired()) {
            connected.poison();
        }
    }
}
