//! The outcome of a POST that carries a request.

use std::sync::Arc;

use protocol::envelope::{Body, Message, RefusedMessage};
use tokio::sync::oneshot;
use tokio_util::sync::DropGuard;

use crate::backends::{
    inbound,
    link::{
        Link,
        connection::{Connection, requester::Requester},
        failure::Failure,
    },
};

/// The outcome of a POST.
pub(in crate::backends::link) enum PostOutcome {
    Answer(Message),
    /// The answer arrives on this stream.
    Stream(AnswerStream),
}

/// The stream of an awaited answer. Dropping it ends the stream, unless the answer has come.
pub(in crate::backends::link) struct AnswerStream {
    pub(super) failure: oneshot::Receiver<Failure>,
    pub(super) _stop: DropGuard,
}

impl AnswerStream {
    /// Waits until the stream cannot carry the answer any more.
    pub(in crate::backends::link) async fn failed(&mut self) -> Failure {
        match (&mut self.failure).await {
            Ok(failure) => failure,
            Err(_) => std::future::pending().await,
        }
    }
}

/// Returns the answer to the sender directly, without a lookup by wire id.
pub(super) fn accept_answer(
    connection: &Connection,
    wire_id: u64,
    message: Message,
) -> Result<PostOutcome, Failure> {
    if !message.is_response_to(wire_id) {
        return Err(Failure::Protocol(
            "the backend's answer belongs to another request".to_owned(),
        ));
    }
    inbound::task_created(connection, &message);
    Ok(PostOutcome::Answer(message))
}

/// Returns the answer in a batch to the sender, and takes the other messages as if each had come
/// alone.
pub(super) fn accept_batch(
    link: &Arc<Link>,
    connection: &Arc<Connection>,
    wire_id: u64,
    requester: Option<&Arc<dyn Requester>>,
    mut messages: Vec<Result<Message, RefusedMessage>>,
) -> Result<PostOutcome, Failure> {
    let answer = position(&messages, wire_id).map(|at| messages.remove(at));
    inbound::receive_body(link, connection, Body::Batch(messages), requester);
    match answer {
        Some(Ok(answer)) => accept_answer(connection, wire_id, answer),
        _ => Err(Failure::Protocol("the batch has no answer to this request".to_owned())),
    }
}

/// Returns whether a batch has the answer to a request.
pub(super) fn has_answer(messages: &[Result<Message, RefusedMessage>], wire_id: u64) -> bool {
    position(messages, wire_id).is_some()
}

fn position(messages: &[Result<Message, RefusedMessage>], wire_id: u64) -> Option<usize> {
    messages
        .iter()
        .position(|message| message.as_ref().is_ok_and(|message| message.is_response_to(wire_id)))
}
