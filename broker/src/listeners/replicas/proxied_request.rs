//! A stateless request that was forwarded to the replica where it waits. The response there is
//! relayed here message by message: all responses over TCP, WebSocket and QUIC, and event streams
//! over HTTP.
//!
//! Invariant: the last message is the only answer. If the other replica is lost before it, an error
//! takes its place. A drop of the request cancels it there.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt;
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::RequestId,
    json,
    method::Method,
    sse::SseParser,
};
use rules::stateless;

use super::suspended_request::forward_suspended_from_connection;
use crate::{
    broker::Broker,
    listeners::http::response::{self, Body},
    sessions::{
        shared::Shared,
        stateless::{StatelessClient, SuspensionId},
    },
};

/// A forwarded request without its answer so far.
pub(in crate::listeners) struct ProxiedRequest {
    shared: Arc<Shared>,
    tenant: String,
    id: RequestId,
    body: Body,
    reading: ProxiedBody,
}

enum ProxiedBody {
    /// One JSON document.
    Whole(BytesMut),
    Events(SseParser),
    Over,
}

/// Sends the request. Returns a refusal if the replica that had it does not serve it.
pub(in crate::listeners) async fn proxy_to_replica(
    broker: &Arc<Broker>,
    client: &StatelessClient,
    suspension: &SuspensionId,
    method: Method,
    id: &RequestId,
    frame: &Bytes,
) -> Result<ProxiedRequest, Refusal> {
    let response =
        forward_suspended_from_connection(broker, client, suspension, method, frame).await?;
    Ok(ProxiedRequest::new(&broker.shared, client, id, response))
}

impl ProxiedRequest {
    pub(in crate::listeners) fn new(
        shared: &Arc<Shared>,
        client: &StatelessClient,
        id: &RequestId,
        response: Response<Body>,
    ) -> Self {
        let is_events = response::is_event_stream(response.headers());
        let reading = match is_events {
            // The other replica has bounded the messages.
            true => ProxiedBody::Events(SseParser::new(usize::MAX)),
            false => ProxiedBody::Whole(BytesMut::new()),
        };
        Self {
            shared: shared.clone(),
            tenant: client.tenant.id.to_string(),
            id: id.clone(),
            body: response.into_body(),
            reading,
        }
    }

    /// Returns the next message, and whether it is the answer. Cancel-safe: a dropped call loses
    /// nothing.
    pub(in crate::listeners) async fn next(&mut self) -> Option<(Bytes, bool)> {
        loop {
            match &mut self.reading {
                ProxiedBody::Over => return None,
                ProxiedBody::Whole(_) => {}
                ProxiedBody::Events(parser) => match parser.next_event() {
                    Ok(Some(event)) => {
                        let Some(frame) = event.data.filter(|data| !data.is_empty()) else {
                            continue;
                        };
                        let is_answer = is_answer(&frame);
                        if is_answer {
                            self.reading = ProxiedBody::Over;
                        }
                        return Some((frame, is_answer));
                    }
                    Ok(None) => {}
                    Err(_) => return Some((self.lost(), true)),
                },
            }
            let data = match self.body.frame().await {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(_)) => return Some((self.lost(), true)),
                None => return Some((self.whole(), true)),
            };
            match &mut self.reading {
                ProxiedBody::Whole(text) => text.extend_from_slice(&data),
                ProxiedBody::Events(parser) => parser.push(&data),
                ProxiedBody::Over => return None,
            }
        }
    }

    /// Returns the answer at the end of the body.
    fn whole(&mut self) -> Bytes {
        match std::mem::replace(&mut self.reading, ProxiedBody::Over) {
            ProxiedBody::Whole(text) if is_answer(&text.clone().freeze()) => text.freeze(),
            _ => self.lost(),
        }
    }

    /// Returns the answer for a client whose credential has ended before the answer came.
    pub(in crate::listeners) fn given_up(&mut self) -> Bytes {
        self.outcome_unknown(
            "the broker gave up the request: the backend may or may not have carried it out",
        )
    }

    fn lost(&mut self) -> Bytes {
        self.outcome_unknown("the replica where the request waited was lost before it answered: the request may or may not have been carried out")
    }

    fn outcome_unknown(&mut self, text: &'static str) -> Bytes {
        self.reading = ProxiedBody::Over;
        let refusal = Refusal::new(ErrorKind::OutcomeUnknown, text);
        let request_id = self.shared.record_refusal(&refusal, None, Some(&self.tenant));
        stateless::refusal_response(&refusal, Some(&self.id), &request_id)
    }
}

fn is_answer(frame: &Bytes) -> bool {
    let limits = json::Limits::with_bytes_max(frame.len());
    Message::decode(frame.clone(), &limits).is_ok_and(|message| message.is_response())
}
