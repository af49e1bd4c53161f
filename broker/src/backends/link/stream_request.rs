//! A request on a stream of its own ([`super::request_streams`]). The wait for an answer writes and
//! reads its stream, so the stream needs no task and ends with the wait. The reset of a stream is a
//! cancellation.

use std::sync::Arc;

use protocol::json;
use rules::limits::NOISE_LINES_MAX;
use transport::{
    frame::{FrameSink, FrameSource, ReadError},
    quic::RequestStream,
};

use super::{Link, connection::Connection, failure::Failure, request::WireRequest};
use crate::{
    backends::inbound,
    metrics::{Direction, Side},
};

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
    let mut stream_request = StreamRequest { stream, answered: false };
    let sink = &mut stream_request.stream.sink;
    if let Err(error) = sink.send_all(&mut vec![request.frame.into_bytes()]).await {
        return Failure::Lost(format!("the request's stream ended: {error}"));
    }
    sink.finish();
    let limits = json::Limits::with_bytes_max(link.backend.message_bytes());
    let mut noise = 0;
    loop {
        let frame = match stream_request.stream.source.next().await {
            Ok(Some(frame)) => frame,
            // The answer was the last message on the stream. The wait for it has it already.
            _ if stream_request.answered => return std::future::pending().await,
            Ok(None) => {
                return Failure::Lost("the request's stream ended without an answer".to_owned());
            }
            Err(ReadError::TooLong { limit }) => return Failure::TooLarge { max: limit },
            // The connection continues. Each of these failures counts on its own.
            Err(ReadError::Cancelled) => {
                return Failure::Unclear(
                    "the backend cancelled the stream of the request".to_owned(),
                );
            }
            Err(error) => return Failure::Lost(format!("the request's stream ended: {error}")),
        };
        link.backend.context.metrics.bytes(Direction::In, Side::Backend, frame.len());
        match inbound::decode(connection, frame.clone(), &limits) {
            Ok(body) => {
                stream_request.answered |= body.answers(request.wire_id);
                inbound::receive_body(link, connection, body, request.requester);
            }
            // The stream broke off here. Its end comes next.
            Err(_) if stream_request.stream.source.is_unterminated() => {}
            // A malformed message may still hold an id.
            Err(rejected) => {
                connection.broken_message(&rejected, &frame);
                if noise == NOISE_LINES_MAX {
                    return Failure::Protocol(
                        "the request's stream has too many messages that are not valid MCP"
                            .to_owned(),
                    );
                }
                noise += 1;
            }
        }
    }
}
