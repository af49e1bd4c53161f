//! A link over HTTP+SSE, the transport of MCP 2024-11-05, in the client's role.
//!
//! The broker opens an event stream by GET. Its first event, `endpoint`, names the URL for POSTs,
//! which must have the origin of the stream. Every message of the backend arrives on the stream, and
//! its end is the end of the connection. So the rules of pipes decide who shares the stream.
//!
//! [`open_instead`] is the detection behind a URL that refused Streamable HTTP (MCP 2025-11-25,
//! Transports: Backwards Compatibility).

use std::{sync::Arc, time::Duration};

use config::spec::ProtocolChoice;
use http::StatusCode;
use rules::limits::ERA_SILENCE_MAX;
use transport::{HttpResponse, ResponseBody};

use super::{
    content_kind::ContentKind,
    error_status::{retry_after, status_text},
    event_stream::{BodyEnd, EventStreamReader},
    http_wire::{HttpWire, PostEndpoint},
    setup::send_one_way,
};
use crate::backends::link::{
    EraSupport, Link, connection::Connection, connection_guard::ConnectionGuard, failure::Failure,
    wire::WireSender,
};

/// Connects: the event stream, its endpoint, then the handshake.
pub(in crate::backends::link) async fn open(
    link: &Arc<Link>,
    url: &str,
) -> Result<Arc<Connection>, Failure> {
    let context = &link.backend.context;
    let (mut wire, frames) = HttpWire::to(&link.backend, link.principal.clone(), url).await?;
    wire.endpoint = Some(PostEndpoint::default());
    let wire = Arc::new(wire);
    let connection = Connection::new(WireSender::Http(wire.clone()), context.metrics.clone());
    let guard = ConnectionGuard::new(&connection, &context.running);
    context.running.spawn(send_one_way(wire.clone(), link.clone(), connection.clone(), frames));
    let response = wire.send(wire.get(None)).await?;
    check_stream(&response)?;
    context.running.spawn(read(
        wire.clone(),
        link.clone(),
        connection.clone(),
        response.into_body(),
    ));
    wire.wait_for_endpoint(&connection).await?;
    connection.initialize(link).await?;
    link.backend.era.record(EraSupport::Sessions);
    guard.disarm();
    Ok(connection)
}

/// Connects to a backend that was one of HTTP+SSE. `None`: it is none any more.
pub(super) async fn open_again(
    link: &Arc<Link>,
    url: &str,
) -> Option<Result<Arc<Connection>, Failure>> {
    match open(link, url).await {
        Err(Failure::Denied(_) | Failure::Protocol(_)) => {
            link.backend.era.record_http_sse(false);
            link.backend.era.forget();
            None
        }
        opened => Some(opened),
    }
}

/// Connects to a backend that refused Streamable HTTP. `None`: it does not serve HTTP+SSE either.
pub(super) async fn open_instead(link: &Arc<Link>, url: &str) -> Option<Arc<Connection>> {
    let opened = tokio::time::timeout(ERA_SILENCE_MAX, open(link, url)).await;
    match opened.unwrap_or_else(|_| Err(Failure::Protocol("no handshake in time".to_owned()))) {
        Ok(connection) => {
            link.backend.era.record_http_sse(true);
            tracing::info!(tenant = %link.backend.tenant, backend = %link.backend.id, "the backend speaks HTTP+SSE of 2024-11-05");
            Some(connection)
        }
        Err(failure) => {
            let redacted = link.backend.redactor.redact(&failure);
            tracing::debug!(tenant = %link.backend.tenant, backend = %link.backend.id, failure = redacted, "the backend does not speak HTTP+SSE either");
            None
        }
    }
}

/// Reads the stream. Its end closes the connection. After a close, the stream stays open until the
/// queued notifications are sent. Some servers end the connection of a POST that comes after the
/// end of its stream.
async fn read(
    wire: Arc<HttpWire>,
    link: Arc<Link>,
    connection: Arc<Connection>,
    mut body: ResponseBody,
) {
    let mut reading = EventStreamReader::new(&wire, &link, &connection, None, None);
    reading.resumable = false;
    let end = tokio::select! {
        biased;
        () = connection.closed() => None,
        end = reading.read(&mut body) => Some(end),
    };
    match end {
        Some(BodyEnd::Broken(failure)) => {
            if let Failure::TooLarge { max } = failure {
                connection.record_overlong(max);
            }
            connection.record_fault(failure);
        }
        Some(BodyEnd::Answered | BodyEnd::Ended) => {
            connection.record_fault("the event stream ended")
        }
        None => {}
    }
    connection.close_now();
    link.backend.connection_ended(&link, &connection);
    connection.flushed().await;
    drop(body);
}

/// Checks the answer to the GET.
fn check_stream(response: &HttpResponse<ResponseBody>) -> Result<(), Failure> {
    let is_events = ContentKind::of(response) == ContentKind::EventStream;
    judge_stream(response.status(), is_events, retry_after(response.headers()))
}

fn judge_stream(
    status: StatusCode,
    is_events: bool,
    retry_after: Option<Duration>,
) -> Result<(), Failure> {
    let text =
        format!("the backend answered the GET of the event stream with {}", status_text(status));
    Err(match status {
        StatusCode::OK if is_events => return Ok(()),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Failure::Denied(format!("the backend refused the broker's credentials ({status})"))
        }
        StatusCode::TOO_MANY_REQUESTS => Failure::Throttled { reason: text, retry_after },
        status if status.is_server_error() => Failure::Busy { reason: text, retry_after },
        status if status.is_client_error() => Failure::Denied(text),
        status if status.is_success() => {
            Failure::Protocol("the answer to the GET has no event stream".to_owned())
        }
        _ => Failure::Protocol(text),
    })
}

impl HttpWire {
    /// Returns whether the refusals of the backend leave HTTP+SSE as a possibility.
    pub(super) fn may_be_http_sse(&self, link: &Link) -> bool {
        link.backend.spec.protocol != ProtocolChoice::Modern
            && self.refused.get().is_some_and(|status| !is_about_the_caller(*status))
    }

    async fn wait_for_endpoint(&self, connection: &Connection) -> Result<(), Failure> {
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        tokio::select! {
            biased;
            () = endpoint.found.cancelled() => {}
            () = connection.closed() => {}
        }
        match endpoint.named.get() {
            Some(Ok(_)) => Ok(()),
            Some(Err(fault)) => Err(Failure::Protocol(format!("the endpoint event: {fault}"))),
            None => Err(Failure::Protocol("the event stream names no endpoint".to_owned())),
        }
    }
}

/// Returns whether a refusal concerns the caller or its rate, not the transport.
fn is_about_the_caller(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_of_the_transport_leads_to_http_sse() {
        for (status, about_the_caller) in
            [(400, false), (401, true), (403, true), (404, false), (405, false), (429, true)]
        {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(is_about_the_caller(status), about_the_caller, "{status}");
        }
    }

    #[test]
    fn an_answer_to_the_get_is_judged_by_its_status() {
        let name = |status: u16, is_events| {
            let status = StatusCode::from_u16(status).unwrap();
            judge_stream(status, is_events, None).map_err(|failure| failure.name())
        };
        assert_eq!(name(200, true), Ok(()));
        for (status, is_events, wanted) in [
            (200, false, "protocol"),
            (202, true, "protocol"),
            (302, false, "protocol"),
            (401, true, "denied"),
            (404, false, "denied"),
            (429, false, "throttled"),
            (500, false, "busy"),
            (503, false, "busy"),
        ] {
            assert_eq!(name(status, is_events), Err(wanted), "{status}");
        }
    }
}
