//! A link over WebSocket: a message per text frame. The upgrade request carries the backend's
//! credentials.

use std::sync::Arc;

use config::spec::Credentials;
use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use rules::limits::BACKEND_WRITE_STALL_MAX;
use transport::websocket::{self, ConnectOptions, Limits};

use super::{Link, connection::Connection, failure::Failure, pipe};

/// Connects and performs the handshakes.
pub(super) async fn open(link: &Arc<Link>, url: &str) -> Result<Arc<Connection>, Failure> {
    let (context, spec) = (&link.backend.context, &link.backend.spec);
    let timeouts = &context.config.timeouts;
    let limits = Limits {
        message_bytes_max: link.backend.message_bytes(),
        ping_interval: timeouts.ping_interval,
        idle_timeout: timeouts.websocket_idle,
        stall_max: BACKEND_WRITE_STALL_MAX,
    };
    let options = ConnectOptions {
        url: &url
            .parse()
            .map_err(|error: http::uri::InvalidUri| Failure::NotSent(error.to_string()))?,
        headers: headers(&spec.credentials)?,
        egress: &context.config.egress,
        tls: &link.backend.resources.tls_clients.tls_client(None, spec.tls.identity()).await?,
        limits: &limits,
        timeout: timeouts.connect,
    };
    let (source, sink) =
        websocket::connect(options).await.map_err(|error| Failure::NotSent(error.to_string()))?;
    pipe::open(link, source, sink).await
}

fn headers(credentials: &Credentials) -> Result<HeaderMap, Failure> {
    let wrong = || Failure::NotSent("a configured header cannot be sent".to_owned());
    let mut headers = HeaderMap::new();
    for (name, value) in &credentials.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        headers.append(name, secret(value).ok_or_else(wrong)?);
    }
    if let Some(bearer) = &credentials.bearer {
        headers.insert(AUTHORIZATION, secret(&format!("Bearer {bearer}")).ok_or_else(wrong)?);
    }
    Ok(headers)
}

fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
