//! Requests to a QUIC backend on streams of their own, if the backend takes them
//! (docs/transports.md, QUIC). A lost packet delays only one of them. The reset of a stream is a
//! cancellation.
//!
//! The wait for an answer writes and reads its stream, so the stream needs no task and ends with
//! the wait. A request that finds no free stream uses the control stream. All requests use it
//! before its first answer, because that proves that the backend has read the frames that must come
//! first.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use protocol::{
    envelope::{Kind, Message},
    json,
};
use rules::limits::NOISE_LINES_MAX;
use transport::{
    frame::{FrameSink, FrameSource, ReadError},
    quic::{QuicClient, RequestStream},
};

use super::{Link, connection::Connection, failure::Failure, request::WireRequest};
use crate::{
    backends::inbound,
    metrics::{Direction, Side},
};

/// Member of `_meta` in the answer to `initialize` or `server/discover`. A server sets it to take
/// requests on streams of their own.
pub(crate) const STREAMS: &str = "dev.mcp-broker/streams";

/// The request streams of one connection.
#[derive(Debug)]
pub(super) struct RequestStreams {
    client: QuicClient,
    /// Setting of the operator. `None`: the backend decides.
    configured: Option<bool>,
    agreed: AtomicBool,
    /// Set when the backend has read the frames that must precede the first request.
    ready: AtomicBool,
}

impl RequestStreams {
    pub(super) fn new(client: QuicClient, configured: Option<bool>) -> Self {
        Self { client, configured, agreed: AtomicBool::new(false), ready: AtomicBool::new(false) }
    }

    /// Enables or disables the streams, by the first answer of the backend.
    pub(super) fn agree(&self, answer: &Message) {
        let agreed = self.configured.unwrap_or_else(|| offers_streams(answer));
        self.ready.store(false, Ordering::Relaxed);
        self.agreed.store(agreed, Ordering::Relaxed);
    }

    pub(super) fn are_agreed(&self) -> bool {
        self.agreed.load(Ordering::Relaxed)
    }

    /// Notes that a request was answered over the control stream.
    pub(super) fn note_ready(&self) {
        if self.are_agreed() {
            self.ready.store(true, Ordering::Relaxed);
        }
    }

    /// Opens a stream for a request. `None`: the request uses the control stream.
    pub(super) fn try_open(&self) -> Option<RequestStream> {
        self.ready.load(Ordering::Relaxed).then(|| self.client.try_open_stream()).flatten()
    }
}

fn offers_streams(answer: &Message) -> bool {
    let result =
        answer.bytes(answer.result).filter(|_| answer.kind == Kind::Result).unwrap_or_default();
    let document = json::Document::parse(
        result,
        &json::Limits { bytes_max: result.len(), ..json::Limits::default() },
    );
    document.is_ok_and(|document| {
        document.root().path(&["_meta", STREAMS]).is_some_and(|value| value.raw() == b"true")
    })
}

/// A request in flight. Dropping it cancels both directions of the stream, unless it was answered.
struct StreamRequest {
    stream: RequestStream,
    answered: bool,
}

impl Drop for StreamRequest {
    fn drop(&mut self) {
        if !self.answered {
            self.stream.cancel();
        }
    }
}

/// Sends a request on its stream and receives the messages on it. Resolves when the answer cannot
/// come on it any more.
pub(super) async fn exchange(
    stream: RequestStream,
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    request: WireRequest<'_>,
) -> Failure {
    let mut under_way = StreamRequest { stream, answered: false };
    let sink = &mut under_way.stream.sink;
    if let Err(error) = sink.send_all(&mut vec![request.frame.into_bytes()]).await {
        return Failure::Lost(format!("the request's stream ended: {error}"));
    }
    sink.finish();
    let limits = json::Limits {
        bytes_max: link.backend.shared.config.limits.message_bytes,
        ..json::Limits::default()
    };
    let mut noise = 0;
    loop {
        let frame = match under_way.stream.source.next().await {
            Ok(Some(frame)) => frame,
            // The answer was the last message on the stream. The wait for it has it already.
            _ if under_way.answered => return std::future::pending().await,
            Ok(None) => {
                return Failure::Lost("the request's stream ended without an answer".to_owned());
            }
            Err(ReadError::TooLong { limit }) => return Failure::TooLarge { max: limit },
            // The connection continues. Each of these failures counts on its own.
            Err(ReadError::Cancelled) => {
                return Failure::Unclear("the backend gave the request's stream up".to_owned());
            }
            Err(error) => return Failure::Lost(format!("the request's stream ended: {error}")),
        };
        link.backend.shared.metrics.bytes(Direction::In, Side::Backend, frame.len());
        match Message::decode(frame.clone(), &limits) {
            Ok(message) => {
                under_way.answered |= message.is_response_to(request.wire_id);
                inbound::receive(link, connection, message, request.asker);
            }
            // The stream broke off here. Its end comes next.
            Err(_) if under_way.stream.source.is_unterminated() => {}
            // A malformed message may still hold an id.
            Err(rejected) => {
                connection.broken_message(&rejected, &frame);
                if noise == NOISE_LINES_MAX {
                    return Failure::Protocol(
                        "too much on the request's stream is not MCP".to_owned(),
                    );
                }
                noise += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &str) -> Message {
        Message::decode(
            format!(r#"{{"jsonrpc":"2.0","id":1,{body}}}"#).into(),
            &json::Limits::default(),
        )
        .unwrap()
    }

    #[test]
    fn only_a_backend_that_says_so_gets_streams() {
        assert!(offers_streams(&answer(r#""result":{"_meta":{"dev.mcp-broker/streams":true}}"#)));
        for other in [
            r#""result":{}"#,
            r#""result":{"_meta":{"dev.mcp-broker/streams":"true"}}"#,
            r#""result":{"_meta":{"dev.mcp-broker/streams":false}}"#,
            r#""error":{"code":1,"message":"m"}"#,
        ] {
            assert!(!offers_streams(&answer(other)), "{other}");
        }
    }
}
