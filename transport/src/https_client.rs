//! The HTTP library's client for URLs with TLS.
//!
//! Used by `http_client`. The library uses a connection for as long as one request follows another,
//! and HTTP/2 sends all requests to a server over a single one. A name that gets other addresses
//! would have no effect on them. So this client replaces the library's client, and with it all
//! connections, at the age of [`HttpClientConfig::connection_age_max`]. Requests and bodies on a
//! replaced connection continue to their end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper_util::{
    client::legacy::{Client, ResponseFuture},
    rt::{TokioExecutor, TokioTimer},
};
use parking_lot::Mutex;

use crate::{connect::Connector, http_client_config::HttpClientConfig};

/// Interval between pings on an HTTP/2 connection with open streams, and the time limit for the
/// answer.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct HttpsClient {
    config: Arc<HttpClientConfig>,
    connector: Connector,
    head_bytes_max: usize,
    current: Mutex<LibraryClient>,
}

struct LibraryClient {
    client: Client<Connector, Full<Bytes>>,
    made_at: Instant,
}

impl HttpsClient {
    pub(crate) fn new(
        config: Arc<HttpClientConfig>,
        connector: Connector,
        head_bytes_max: usize,
    ) -> Self {
        let current = Mutex::new(library_client(&config, &connector, head_bytes_max));
        Self { config, connector, head_bytes_max, current }
    }

    /// Sends the request and waits for the response's head.
    pub(crate) fn request(&self, request: Request<Full<Bytes>>) -> ResponseFuture {
        let mut current = self.current.lock();
        if current.made_at.elapsed() >= self.config.connection_age_max {
            *current = library_client(&self.config, &self.connector, self.head_bytes_max);
        }
        current.client.request(request)
    }
}

fn library_client(
    config: &HttpClientConfig,
    connector: &Connector,
    head_bytes_max: usize,
) -> LibraryClient {
    let client = Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(config.idle_timeout)
        .pool_max_idle_per_host(config.idle_per_host)
        // Repeats only a request that was never written, for example on a pooled connection
        // that had just been closed.
        .retry_canceled_requests(true)
        .http1_max_buf_size(head_bytes_max)
        .http2_max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
        .http2_keep_alive_interval(Some(HTTP2_PING_INTERVAL))
        .http2_keep_alive_timeout(HTTP2_PING_TIMEOUT)
        .build(connector.clone());
    LibraryClient { client, made_at: Instant::now() }
}
