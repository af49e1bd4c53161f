//! Handling of HTTP responses with an error status: an answer, a lost session, or a failure.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use protocol::{
    envelope::{Body, Kind, Message},
    stateless::{HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION, downgrade, is_stateless_error},
};
use rules::{
    limits::{ERROR_BODY_BYTES_MAX, RETRY_AFTER_MAX, RETRY_AFTER_MIN},
    tasks::decoded,
};
use transport::{HttpResponse, http_client::ResponseBody};

use super::{
    http_wire::HttpWire,
    post_outcome::{PostOutcome, accept_answer, accept_batch, has_answer},
};
use crate::backends::{
    inbound,
    link::{Era, Link, connection::Connection, failure::Failure},
};

/// The refusal of an unknown session in the examples of the TypeScript SDK, in lower case.
const EXAMPLE_REFUSAL: &str = "bad request: no valid session id provided";

/// The refusal of an unknown session by older Rust SDKs, in lower case.
const SESSION_NOT_FOUND: &str = "session not found";

/// Phrases by which servers refuse the id of a session that they do not know, in lower case.
const LOST_SESSION: [&str; 6] = [
    SESSION_NOT_FOUND,
    "no valid session id provided",
    "invalid session id",
    "unknown session id",
    "invalid or expired session",
    "invalid or missing session",
];

impl HttpWire {
    /// Handles a response with an error status to a request of a session. A server that no longer
    /// supports sessions did not process the request. Its errors alone do not show that: a server
    /// with sessions may use the same codes.
    pub(super) async fn handle_session_refusal(
        &self,
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        wire_id: u64,
        response: HttpResponse<ResponseBody>,
    ) -> Result<PostOutcome, Failure> {
        let outcome = self.handle_error_status(link, connection, wire_id, response).await?;
        if let PostOutcome::Answer(answer) = &outcome
            && connection.negotiated().is_some()
            && names_other_era(answer)
            && self.changed_to_stateless(link, connection).await
        {
            return Err(era_mismatch(link, connection));
        }
        Ok(outcome)
    }

    /// Finds out whether a backend that had sessions is stateless now. One request probes at a
    /// time, and a change that one has found holds for all.
    async fn changed_to_stateless(&self, link: &Arc<Link>, connection: &Arc<Connection>) -> bool {
        let mut is_changed = self.era_check.lock().await;
        if !*is_changed {
            *is_changed = link.probe_era(connection).await == Some(Era::Stateless);
        }
        *is_changed
    }

    /// Handles a response with an error status: an answer in its body, a lost session, or a
    /// failure.
    pub(super) async fn handle_error_status(
        &self,
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        wire_id: u64,
        response: HttpResponse<ResponseBody>,
    ) -> Result<PostOutcome, Failure> {
        let status = response.status();
        let has_retry_after = response.headers().contains_key(RETRY_AFTER);
        let retry_after = retry_after(response.headers());
        let text = self.body(response, ERROR_BODY_BYTES_MAX).await.unwrap_or_default();
        let message = match inbound::decode(connection, text.clone(), &self.limits).ok() {
            Some(Body::Batch(messages)) if has_answer(&messages, wire_id) => {
                return accept_batch(link, connection, wire_id, None, messages);
            }
            Some(Body::One(message)) => Some(message),
            Some(Body::Batch(_)) | None => None,
        };
        let lost_session =
            self.has_session() && refuses_session(status, message.as_ref(), &text, wire_id);
        // Whatever the status, a message with the id of the request is its answer. The backend did
        // process it.
        let answer = message.filter(|message| message.is_response_to(wire_id) && !lost_session);
        if let Some(answer) = answer {
            return accept_answer(connection, wire_id, answer);
        }
        if connection.negotiated().is_none() && status.is_client_error() {
            let _first_counts = self.refused.set(status);
        }
        Err(match status {
            StatusCode::NOT_FOUND if self.is_session() => Failure::SessionGone,
            _ if lost_session => Failure::SessionGone,
            StatusCode::TOO_MANY_REQUESTS => {
                Failure::Throttled { reason: format!("status {status}"), retry_after }
            }
            StatusCode::SERVICE_UNAVAILABLE if has_retry_after => {
                Failure::Busy { reason: format!("status {status}"), retry_after }
            }
            // Proxies also send this when the backend's connection breaks after they forwarded the
            // request.
            StatusCode::SERVICE_UNAVAILABLE => Failure::Unclear(format!("status {status}")),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Failure::Denied(format!("the backend refused the broker's credentials ({status})"))
            }
            // An error of one request, such as its size, does not show that the backend is
            // unhealthy.
            status if status.is_client_error() => Failure::Denied(format!("status {status}")),
            status => Failure::Protocol(status_text(status)),
        })
    }

    /// Returns whether the refusal of a GET states that the server does not know the session.
    pub(super) async fn is_refusal_of_session(&self, response: HttpResponse<ResponseBody>) -> bool {
        if response.status() != StatusCode::UNAUTHORIZED || !self.has_session() {
            return false;
        }
        let text = self.body(response, ERROR_BODY_BYTES_MAX).await.unwrap_or_default();
        states(&text, &[SESSION_NOT_FOUND])
    }

    /// Handles an error status of a request of 2026-07-28. An error message is an answer, even
    /// without an id, and gets the id of the request. Any other body comes from a server without
    /// that revision, or from a proxy. A proxy can refuse one request only, such as one with a long
    /// header.
    /// `is_discover` is true for `server/discover`.
    pub(super) async fn handle_stateless_refusal(
        &self,
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        wire_id: u64,
        is_discover: bool,
        response: HttpResponse<ResponseBody>,
    ) -> Result<PostOutcome, Failure> {
        let status = response.status();
        let agreed = connection.stateless().is_some();
        let is_ambiguous = matches!(
            status,
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
        );
        if !is_ambiguous {
            return self.handle_error_status(link, connection, wire_id, response).await;
        }
        let body = self.body(response, ERROR_BODY_BYTES_MAX).await;
        let message = body
            .ok()
            .and_then(|body| Message::decode(body, &self.limits).ok())
            .filter(|message| message.kind == Kind::Error);
        let answers = |message: &Message| {
            let is_known = || {
                downgrade::error_code(message).is_some_and(|code| {
                    is_stateless_error(code) || (-32603..=-32600).contains(&code)
                })
            };
            message.is_response_to(wire_id) || (message.id.is_none() && is_known())
        };
        match message.filter(answers).and_then(|answer| with_id(answer, wire_id)) {
            Some(answer) => Ok(PostOutcome::Answer(answer)),
            None if agreed && !is_discover => {
                Err(self.era_or_request_refused(link, connection, status).await)
            }
            None => Err(Failure::Protocol(format!("status {status}"))),
        }
    }

    /// Finds out whether the backend refuses the era of the connection, or only one request. One
    /// refused request probes at a time, and the others wait for its result.
    async fn era_or_request_refused(
        &self,
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        status: StatusCode,
    ) -> Failure {
        let _turn = self.era_check.lock().await;
        if connection.is_closed() {
            return Failure::SessionGone;
        }
        match link.probe_era(connection).await {
            Some(Era::Sessions) => era_mismatch(link, connection),
            Some(Era::Stateless) | None => Failure::Denied(format!("status {status}")),
        }
    }
}

/// Returns a status for operators. Many servers redirect from the URL without a slash at its end.
pub(super) fn status_text(status: StatusCode) -> String {
    match status.is_redirection() {
        true => format!(
            "status {status}: the broker follows no redirects; register the URL to which this one leads, often the same with a slash at its end"
        ),
        false => format!("status {status}"),
    }
}

/// Returns an error with the id of its request. A server that refuses a request before it reads the
/// body does not know the id.
fn with_id(error: Message, wire_id: u64) -> Option<Message> {
    if error.id.is_some() {
        return Some(error);
    }
    let head = format!("{{\"jsonrpc\":\"2.0\",\"id\":{wire_id},\"error\":");
    let frame = [head.as_bytes(), error.bytes(error.error)?, b"}"].concat();
    decoded(Bytes::from(frame))
}

/// Returns the time of `Retry-After`, within the bounds of what a backend can tell clients (RFC 9110,
/// 10.2.3). `None`: the header is absent, or is neither seconds nor a date.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let wait = match is_number {
        true => text.parse().map_or(RETRY_AFTER_MAX, Duration::from_secs),
        false => {
            let date = httpdate::parse_http_date(text).ok()?;
            date.duration_since(SystemTime::now()).unwrap_or_default()
        }
    };
    Some(wait.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX))
}

/// Closes the connection so that the next one negotiates the era again. The backend did not process
/// the request.
fn era_mismatch(link: &Arc<Link>, connection: &Connection) -> Failure {
    connection.close_forgotten();
    link.backend.on_era_changed(link);
    Failure::SessionGone
}

/// Returns whether an answer has an error that a stateless server sends to a request of a session.
fn names_other_era(answer: &Message) -> bool {
    let code = downgrade::error_code(answer);
    matches!(code, Some(HEADER_MISMATCH | UNSUPPORTED_PROTOCOL_VERSION))
}

/// Returns whether a refusal states that the server does not know the session, and so did not
/// process the request. Some servers send 400 where the specification demands 404. Those with an
/// older Rust SDK send 401 with a text that is not JSON-RPC. Other texts with 401 are about the
/// login of a user.
fn refuses_session(
    status: StatusCode,
    message: Option<&Message>,
    text: &[u8],
    wire_id: u64,
) -> bool {
    // A message that the broker cannot read, or a batch, may be the answer of a tool that ran.
    if message.is_none() && memchr::memmem::find(text, b"\"jsonrpc\"").is_some() {
        return false;
    }
    match (status, message) {
        (StatusCode::UNAUTHORIZED, None) => states(text, &[SESSION_NOT_FOUND]),
        (StatusCode::BAD_REQUEST, None) => states(text, &LOST_SESSION),
        (StatusCode::BAD_REQUEST, Some(message)) => is_error_of_session(message, wire_id),
        _ => false,
    }
}

/// Returns whether an error is about the session, not about the request. Servers that copy the
/// examples of the TypeScript SDK use the id of the request, although they have not processed it.
/// Any other error under that id is the answer.
fn is_error_of_session(message: &Message, wire_id: u64) -> bool {
    let Some(text) =
        message.text(message.fields.error_message).filter(|_| message.kind == Kind::Error)
    else {
        return false;
    };
    let text = text.to_ascii_lowercase();
    match &message.id {
        None => text.contains("session"),
        Some(_) if message.is_response_to(wire_id) => text.starts_with(EXAMPLE_REFUSAL),
        Some(_) => states(text.as_bytes(), &LOST_SESSION),
    }
}

/// Returns whether one of these phrases begins a statement of the text. Within one, it may be about
/// something else: a tool that was called may miss a checkout session.
fn states(text: &[u8], phrases: &[&str]) -> bool {
    let text = String::from_utf8_lossy(text).to_ascii_lowercase();
    let begins = |at: usize| !text[..at].trim_end().ends_with(char::is_alphanumeric);
    phrases.iter().any(|phrase| text.match_indices(*phrase).any(|(at, _)| begins(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_redirect_names_the_remedy() {
        let text = status_text(StatusCode::TEMPORARY_REDIRECT);
        assert!(text.starts_with("status 307 Temporary Redirect: "), "{text}");
        assert!(text.contains("register the URL to which this one leads"), "{text}");
        assert_eq!(status_text(StatusCode::BAD_GATEWAY), "status 502 Bad Gateway");
    }

    #[test]
    fn only_a_refusal_of_the_session_id_is_a_lost_session() {
        let error = |id: &str, text: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32000,"message":"{text}"}}}}"#)
        };
        let refusal = "Bad Request: No valid session ID provided";
        for (status, text, is_lost) in [
            (400, refusal.to_owned(), true),
            (400, "Invalid session ID\n".to_owned(), true),
            (400, r#"{"error":"Session not found"}"#.to_owned(), true),
            (400, r#"{"error":"checkout session not found"}"#.to_owned(), false),
            (400, r#"{"jsonrpc":"2.0","id":7,"result":["Session not found"]"#.to_owned(), false),
            (400, "the request has no name".to_owned(), false),
            (400, String::new(), false),
            (400, error("null", "the session is unknown"), true),
            (400, error("null", "unknown method"), false),
            (400, error("\"server-error\"", "Session not found"), true),
            (400, error("\"server-error\"", "Validation error: input_value={'session': 1}"), false),
            (400, error("7", refusal), true),
            (400, error("7", "Session not found"), false),
            (400, error("7", &format!("paid, then another server answered: {refusal}")), false),
            (401, "Unauthorized: Session not found".to_owned(), true),
            (401, "Unauthorized: the token has expired".to_owned(), false),
            (401, r#"{"error":"Invalid or expired session"}"#.to_owned(), false),
            (401, error("null", "Session not found"), false),
            (403, "Session not found".to_owned(), false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let message = decoded(Bytes::from(text.clone()));
            let found = refuses_session(status, message.as_ref(), text.as_bytes(), 7);
            assert_eq!(found, is_lost, "{status}: {text}");
        }
    }

    #[test]
    fn an_error_without_an_id_gets_the_id_of_its_request() {
        for (id, expected) in [("", 7), (r#""id":null,"#, 7), (r#""id":3,"#, 3)] {
            let text = format!(
                r#"{{"jsonrpc":"2.0",{id}"error":{{"code":-32602,"message":"m","data":{{"a":1.0}}}}}}"#
            );
            let error = with_id(decoded(Bytes::from(text)).unwrap(), 7).unwrap();
            assert!(error.is_response_to(expected) && error.id_span.is_some(), "{id}");
            assert_eq!(error.bytes(error.fields.error_data), Some(&br#"{"a":1.0}"#[..]));
        }
    }
}
