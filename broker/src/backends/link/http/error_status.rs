//! What an answer with an error status means: an answer after all, a lost session, or a failure.

use std::sync::Arc;

use http::{StatusCode, header::RETRY_AFTER};
use protocol::{
    envelope::{Kind, Message},
    stateless::{HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION, downgrade, is_stateless_error},
};
use transport::{HttpResponse, http_client::ResponseBody};

use super::{HttpWire, PostOutcome, accept_answer};
use crate::{
    backends::link::{
        Link,
        connection::{Connection, Failure},
    },
    limits::ERROR_BODY_BYTES_MAX,
};

impl HttpWire {
    /// Any other status: an answer in an odd dress, a lost session, or a failure.
    pub(super) async fn handle_error_status(
        &self,
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        wire_id: u64,
        response: HttpResponse<ResponseBody>,
    ) -> Result<PostOutcome, Failure> {
        let status = response.status();
        let says_when = response.headers().contains_key(RETRY_AFTER);
        let message = match self.body(response, ERROR_BODY_BYTES_MAX).await {
            Ok(body) => Message::decode(body, &self.limits).ok(),
            Err(_) => None,
        };
        // Whatever the status, a message that names our request is its answer: the backend did process it.
        if let Some(message) = message.as_ref().filter(|message| message.answers(wire_id)) {
            // But for a server that knows no sessions any more: it did not look at the request either.
            let code = downgrade::error_code(message);
            if connection.negotiated().is_some()
                && matches!(code, Some(HEADER_MISMATCH | UNSUPPORTED_PROTOCOL_VERSION))
            {
                return Err(era_mismatch(link, connection));
            }
            return accept_answer(link, connection, wire_id, message.clone());
        }
        // Some servers say 400 "no valid session" where the specification asks for 404.
        let about_session = message.is_some_and(|message| {
            message.kind == Kind::Error && message.id.is_none() && mentions_session(&message)
        });
        Err(match status {
            StatusCode::NOT_FOUND if self.has_session() => Failure::SessionGone,
            StatusCode::BAD_REQUEST if self.has_session() && about_session => Failure::SessionGone,
            StatusCode::TOO_MANY_REQUESTS => Failure::Throttled(format!("status {status}")),
            StatusCode::SERVICE_UNAVAILABLE if says_when => {
                Failure::Busy(format!("status {status}"))
            }
            // Proxies say this too when the backend's connection breaks, the request having been passed on.
            StatusCode::SERVICE_UNAVAILABLE => Failure::Unclear(format!("status {status}")),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Failure::Denied(format!("the broker's credentials are not taken ({status})"))
            }
            // One client's request, such as one that is too large, says nothing of the backend.
            status if status.is_client_error() => Failure::Denied(format!("status {status}")),
            status => Failure::Protocol(format!("status {status}")),
        })
    }

    /// The same for a request of 2026-07-28: an error is an answer, also where it could not say to what. What is none
    /// comes from a server that does not know that revision, or from something before it.
    pub(super) async fn modern_refused(
        &self,
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        wire_id: u64,
        response: HttpResponse<ResponseBody>,
    ) -> Result<PostOutcome, Failure> {
        let status = response.status();
        let agreed = connection.modern().is_some();
        let doubtful = matches!(
            status,
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
        );
        if !doubtful {
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
            message.answers(wire_id) || (message.id.is_none() && is_known())
        };
        match message.filter(answers) {
            Some(answer) => Ok(PostOutcome::Answer(answer)),
            // It lives in another era than it did: it is asked again.
            None if agreed => Err(era_mismatch(link, connection)),
            None => Err(Failure::Protocol(format!("status {status}"))),
        }
    }
}

/// The backend did not look at the request; who comes next asks it what it speaks.
fn era_mismatch(link: &Arc<Link>, connection: &Connection) -> Failure {
    connection.close_forgotten();
    link.backend.on_era_changed(link);
    Failure::SessionGone
}

fn mentions_session(message: &Message) -> bool {
    message
        .text(message.fields.error_message)
        .is_some_and(|text| text.to_ascii_lowercase().contains("session"))
}
