//! Connects to a WebSocket server: TCP under the egress policy, TLS for `wss`, the upgrade.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri, header::HOST};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::{Limits, Role, TcpHalves, handshake, over_tcp, shared_writer::fill_random};
use crate::{
    connect::{self, host_without_brackets},
    connect_error::ConnectError,
    egress::EgressPolicy,
    http_client::innermost_reason,
    resolver::Resolver,
    tcp::Stream,
    tls::ClientTls,
};

/// Largest response head. The HTTP library refuses buffers smaller than 8 KiB.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Options of a connect.
#[derive(Debug)]
pub struct ConnectOptions<'a> {
    /// `ws://` or `wss://`, absolute.
    pub url: &'a Uri,
    /// Headers sent with the upgrade in addition to its own, for example `Authorization`.
    pub headers: HeaderMap,
    pub egress: &'a EgressPolicy,
    /// For `wss`.
    pub tls: &'a ClientTls,
    pub limits: &'a Limits,
    /// Time limit for connect, TLS and upgrade together.
    pub timeout: Duration,
}

/// Opens a connection that is ready for messages. Follows no redirect.
pub async fn connect(options: ConnectOptions<'_>) -> Result<TcpHalves, ConnectError> {
    let limit = options.timeout;
    timeout(limit, upgraded(options)).await.unwrap_or(Err(ConnectError::Timeout))
}

async fn upgraded(options: ConnectOptions<'_>) -> Result<TcpHalves, ConnectError> {
    let stream = open(&options).await?;
    let (mut request, key) = request(&options)?;
    request.headers_mut().extend(options.headers);

    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| not_upgraded(&error))?;
    // The task ends with the upgrade, or when the sender is dropped.
    tokio::spawn(connection.with_upgrades());
    let response = sender.send_request(request).await.map_err(|error| not_upgraded(&error))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(ConnectError::Refused { status: response.status() });
    }
    handshake::check_answer(&response, &key).map_err(|reason| no_websocket(&reason))?;
    let upgraded = hyper::upgrade::on(response).await.map_err(|error| not_upgraded(&error))?;
    let parts = upgraded
        .downcast::<TokioIo<Stream>>()
        .map_err(|_| no_websocket(&"the connection is of another kind"))?;
    Ok(over_tcp(parts.io.into_inner(), parts.read_buf, options.limits, Role::Client))
}

async fn open(options: &ConnectOptions<'_>) -> Result<Stream, ConnectError> {
    let secure = match options.url.scheme_str() {
        Some("wss") => true,
        Some("ws") => false,
        _ => {
            return Err(ConnectError::Unreachable {
                reason: format!("{} is not a ws or wss url", options.url),
            });
        }
    };
    let host = host_without_brackets(options.url.host().unwrap_or_default());
    let tcp = connect::open(
        Resolver::shared(),
        host,
        options.url.port_u16().unwrap_or(if secure { 443 } else { 80 }),
        options.egress,
    )
    .await?;
    if secure { options.tls.secure_websocket(tcp, host).await } else { Ok(Stream::Plain(tcp)) }
}

fn request(
    options: &ConnectOptions<'_>,
) -> Result<(Request<Empty<Bytes>>, http::HeaderValue), ConnectError> {
    let invalid = |error: &dyn std::fmt::Display| ConnectError::Unreachable {
        reason: format!("{}: {error}", options.url),
    };
    let path = options.url.path_and_query().map_or("/", |path| path.as_str());
    let authority = options.url.authority().map_or("", |authority| authority.as_str());
    // The part before an `@` would be a password. The client ignores it and does not send it.
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let request =
        Request::builder().method(Method::GET).uri(path).header(HOST, host).body(Empty::new());
    let mut request = request.map_err(|error| invalid(&error))?;
    let mut nonce = [0; 16];
    fill_random(&mut nonce);
    let key = handshake::prepare(request.headers_mut(), nonce);
    Ok((request, key))
}

/// Uses the innermost error as the reason, such as a client certificate that the server requires.
fn not_upgraded(error: &hyper::Error) -> ConnectError {
    no_websocket(&innermost_reason(error))
}

fn no_websocket(reason: &dyn std::fmt::Display) -> ConnectError {
    ConnectError::Handshake { protocol: "websocket", reason: reason.to_string() }
}
