//! One HTTP request over a connection of its own (HTTP/1.1 or cleartext HTTP/2), with nothing added
//! or hidden; or as text.
//!
//! The clients of this crate use it. Dropping a [`RawResponse`] before its end closes the
//! connection, which is how tests make a client vanish.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::{
    abort_on_drop::AbortOnDrop, client::ACCEPT_BOTH, deadline::within, events::EventReader,
    judge::JudgedExchange,
};

/// HTTP version of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpVersion {
    Http1,
    /// Cleartext, with prior knowledge.
    Http2,
}

/// Returns a POST as bytes on a socket, with the required headers and `more` of them, as lines.
pub fn post(path: &str, more: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: {ACCEPT_BOTH}\r\n{more}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A response as it came.
#[derive(Debug)]
pub struct RawResponse {
    pub status: u16,
    pub headers: HeaderMap,
    body: Incoming,
    connection: Option<Arc<AbortOnDrop>>,
    hearing: Option<JudgedExchange>,
}

impl RawResponse {
    /// Judges this response as a message of the broker.
    pub(crate) fn judged_by(mut self, mut hearing: JudgedExchange) -> Self {
        hearing.new_session = self.header("mcp-session-id").map(str::to_owned);
        self.hearing = Some(hearing);
        self
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn content_type(&self) -> &str {
        self.header("content-type").unwrap_or("").split(';').next().unwrap_or("").trim()
    }

    pub fn is_event_stream(&self) -> bool {
        self.content_type() == "text/event-stream"
    }

    /// Returns the response if its status is this one; panics with the body otherwise.
    pub async fn expect_status(self, status: u16, what: &str) -> Self {
        if self.status == status {
            return self;
        }
        let got = self.status;
        panic!("{what}: expected status {status}, got {got}: {}", self.text().await)
    }

    /// Returns the whole body.
    pub async fn bytes(self) -> Bytes {
        within("the end of a response body", self.try_bytes())
            .await
            .expect("the body ended cleanly")
    }

    /// Returns the whole body, if its connection lives that long.
    pub async fn try_bytes(self) -> Result<Bytes, String> {
        let judged = (self.content_type() == "application/json").then_some(self.hearing).flatten();
        let bytes = self.body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        if let Some(hearing) = judged {
            hearing.check_broker_message(&bytes);
        }
        Ok(bytes)
    }

    pub async fn text(self) -> String {
        String::from_utf8(self.bytes().await.to_vec()).expect("the body is UTF-8")
    }

    pub async fn json(self) -> Value {
        let text = self.text().await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("not JSON ({error}): {text:?}"))
    }

    /// Returns the body as an event stream; panics if it is not one.
    pub fn events(self) -> EventReader {
        assert!(
            self.is_event_stream(),
            "expected an event stream, got {} {:?}",
            self.status,
            self.headers
        );
        EventReader::new(self.body, self.connection, self.hearing)
    }
}

type Http1Connection = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

/// A cleartext HTTP/2 connection that several requests share.
pub type Http2Connection = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

/// Opens a connection for several requests at once.
pub async fn connect_http2(address: SocketAddr) -> Result<(Http2Connection, AbortOnDrop), String> {
    let stream =
        TcpStream::connect(address).await.map_err(|error| format!("connect {address}: {error}"))?;
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
    let task = tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok((sender, AbortOnDrop(task)))
}

/// Sends over a new HTTP/1.1 connection.
pub async fn send_http1(
    address: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<RawResponse, String> {
    let (mut sender, task) = connect_http1(address).await?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    Ok(raw(response, Some(Arc::new(task))))
}

/// Sends over a new HTTP/1.1 connection, and tries again if the connection ends before any byte of
/// the request was sent. A listener closes connections that stay silent, and a test's own process
/// may have been too busy to send.
pub(crate) async fn send_http1_patiently(
    address: SocketAddr,
    mut request: Request<Full<Bytes>>,
) -> Result<RawResponse, String> {
    loop {
        let (mut sender, task) = connect_http1(address).await?;
        match sender.try_send_request(request).await {
            Ok(response) => return Ok(raw(response, Some(Arc::new(task)))),
            Err(mut failed) => {
                request = failed.take_message().ok_or_else(|| failed.into_error().to_string())?
            }
        }
    }
}

async fn connect_http1(address: SocketAddr) -> Result<(Http1Connection, AbortOnDrop), String> {
    let stream =
        TcpStream::connect(address).await.map_err(|error| format!("connect {address}: {error}"))?;
    let _ = stream.set_nodelay(true);
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let task = tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok((sender, AbortOnDrop(task)))
}

/// Sends over a shared HTTP/2 connection.
pub async fn send_http2(
    mut sender: Http2Connection,
    request: Request<Full<Bytes>>,
) -> Result<RawResponse, String> {
    sender.ready().await.map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    Ok(raw(response, None))
}

fn raw(response: hyper::Response<Incoming>, connection: Option<Arc<AbortOnDrop>>) -> RawResponse {
    let (parts, body) = response.into_parts();
    RawResponse {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body,
        connection,
        hearing: None,
    }
}
