//! The outcome of a POST that carries a request.

use protocol::envelope::Message;
use tokio::sync::oneshot;
use tokio_util::sync::DropGuard;

use crate::backends::{
    inbound,
    link::{connection::Connection, failure::Failure},
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
        return Err(Failure::Protocol("the answer is not to this request".to_owned()));
    }
    inbound::task_created(connection, &message);
    Ok(PostOutcome::Answer(message))
}
