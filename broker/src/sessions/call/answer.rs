//! The answer of a call as its client gets it: the backend's answer in the client's terms, or a
//! refusal.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    downlevel,
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    handshake, json,
    method::Method,
    splice::{self, Splice},
};
use rules::{completion, exposure::ResourceUris, tool_error::is_tool_error};

use super::{Call, CallOutcome};
use crate::{metrics::RequestOutcome, sessions::session::questions};

/// Smallest answer that gets the client's id in place, without a copy.
const IN_PLACE_BYTES_MIN: usize = 8 * 1024;

impl Call {
    /// Returns how the end of the call counts.
    pub(super) fn outcome(&self, ending: &CallOutcome) -> RequestOutcome {
        match ending {
            CallOutcome::Answered(answer, _) if answer.kind == Kind::Error => RequestOutcome::Error,
            CallOutcome::Answered(answer, _)
                if self.method == Method::ToolsCall && is_tool_error(answer) =>
            {
                RequestOutcome::ToolError
            }
            // A stateless client gets `input_required`, and sends the call again.
            CallOutcome::NotApproved(notice)
                if !self.session.kind.has_client() && notice.is_waiting() =>
            {
                RequestOutcome::Ok
            }
            CallOutcome::NotApproved(_) => RequestOutcome::ToolError,
            CallOutcome::Answered(..) => RequestOutcome::Ok,
            CallOutcome::Refused(_) => RequestOutcome::Refused,
            CallOutcome::Cancelled => RequestOutcome::Cancelled,
            CallOutcome::TimedOut => RequestOutcome::Timeout,
        }
    }

    pub(super) fn answer(self: &Arc<Self>, ending: CallOutcome) -> Option<Bytes> {
        match ending {
            CallOutcome::Answered(answer, uris) => Some(self.for_client(answer, &uris)),
            CallOutcome::NotApproved(notice) => {
                Some(handshake::success(&self.client_id, notice.result().as_bytes()))
            }
            CallOutcome::Refused(refusal) if refusal.kind == ErrorKind::ConnectionRequired => {
                let frame = self.session.refusal_frame(&refusal, Some(&self.client_id));
                let Ok(error) = Message::decode(frame.clone(), &json::Limits::default()) else {
                    return Some(frame);
                };
                if let Some(converted) = self.urls_as_result(&error) {
                    return Some(converted);
                }
                if self.session.kind.has_client() && self.opens_urls() {
                    questions::record_elicitations_required(&self.session, &error);
                }
                Some(frame)
            }
            CallOutcome::Refused(refusal)
                if refusal.kind == ErrorKind::TokenRequired && self.method == Method::ToolsCall =>
            {
                let text = json::quote(&refusal.message);
                let result =
                    format!(r#"{{"content":[{{"type":"text","text":{text}}}],"isError":true}}"#);
                Some(handshake::success(&self.client_id, result.as_bytes()))
            }
            CallOutcome::Refused(refusal) => {
                Some(self.session.refusal_frame(&refusal, Some(&self.client_id)))
            }
            CallOutcome::TimedOut => {
                let refusal = match self.sent.was_sent() {
                    true => Refusal::new(
                        ErrorKind::Timeout,
                        format!("backend {} did not answer in time", self.backend()),
                    ),
                    false => {
                        let text = format!(
                            "the broker could not send the call to backend {} before its deadline",
                            self.backend()
                        );
                        Refusal::new(ErrorKind::Timeout, text).mark_idempotent()
                    }
                };
                Some(self.session.refusal_frame(&refusal, Some(&self.client_id)))
            }
            CallOutcome::Cancelled => None,
        }
    }

    /// Returns the backend's answer with its ids and URIs in the client's terms.
    fn for_client(self: &Arc<Self>, answer: Message, uris: &ResourceUris) -> Bytes {
        let frame = answer.frame.clone();
        let mut splice = Splice::new(&frame);
        // The holder of a pooled session rewrites the answer under its own id.
        let id_span = answer.id_span.filter(|_| self.session.kind.has_client());
        if let Some(span) = id_span {
            splice.replace(span, self.client_id.raw());
        }
        uris.expose(self.backend(), &mut splice);
        if answer.bytes(answer.fields.error_code) == Some(b"-32042") {
            if let Some(converted) = self.urls_as_result(&answer) {
                return converted;
            }
            questions::record_elicitations_required(&self.session, &answer);
        }
        if self.method == Method::CompletionComplete {
            completion::limit_values(&answer, &mut splice);
        }
        let converted = match id_span {
            // A large answer is not copied to change its id. An answer that the stream may retain
            // is copied, because the copy does not hold the rest of the read buffer.
            Some(span)
                if frame.len() >= IN_PLACE_BYTES_MIN
                    && splice.is_only(span)
                    && !self.stream.is_retainable() =>
            {
                drop((splice, answer));
                splice::replace_in_place(frame, span, self.client_id.raw())
            }
            Some(_) => splice.finish(),
            None => match splice.finish_message(answer) {
                Ok(converted) => self.parsed_answer.lock().insert(converted).frame.clone(),
                Err(frame) => frame,
            },
        };
        self.session.client_dialect().answer(self.method, converted)
    }

    fn opens_urls(&self) -> bool {
        let agreement = &self.session.agreement;
        agreement.client.elicitation_url && agreement.version.elicitation_url()
    }

    /// Returns an error that requires URLs to be opened as a result, for a client that does not
    /// know this error. A client without a session declares its capabilities with each request, and
    /// the error reports the missing one.
    fn urls_as_result(&self, error: &Message) -> Option<Bytes> {
        if self.opens_urls() || !self.session.kind.has_client() || self.method != Method::ToolsCall
        {
            return None;
        }
        downlevel::urls_as_result(error).map(|result| handshake::success(&self.client_id, &result))
    }
}
