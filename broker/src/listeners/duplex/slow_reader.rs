//! Writes to clients that may read slowly. The writes continue while a client reads something, and
//! the log reports a connection that is cut.

use std::io;

use bytes::Bytes;
use rules::client_transport::Transport;
use transport::frame::{FrameSink, WriteError};

use crate::{
    metrics::{Direction, Side},
    sessions::{session::Session, shared::Shared, stream::EventStream},
};

/// Reason why frames were not written.
#[derive(Debug)]
pub(super) enum SendFailure {
    /// The client does not read. The cut may be inside a message, so no message can follow it.
    SlowReader,
    Write(WriteError),
}

/// Writes `frames` while the client reads something, and while their stream `behind` is not cut.
pub(super) async fn send(
    shared: &Shared,
    sink: &mut impl FrameSink,
    frames: &mut Vec<Bytes>,
    behind: Option<&EventStream>,
) -> Result<(), SendFailure> {
    let was_cut = async {
        match behind {
            Some(stream) => stream.wait_until_cut().await,
            None => std::future::pending().await,
        }
    };
    shared.metrics.bytes(Direction::Out, Side::Client, frames.iter().map(Bytes::len).sum());
    let sent = tokio::select! {
        biased;
        sent = sink.send_all(frames) => sent,
        () = was_cut => return Err(SendFailure::SlowReader),
    };
    sent.map_err(|error| match is_stalled(&error) {
        true => SendFailure::SlowReader,
        false => SendFailure::Write(error),
    })
}

/// Returns whether the client has read nothing for too long.
fn is_stalled(error: &WriteError) -> bool {
    matches!(error, WriteError::Stalled { .. })
        || matches!(error, WriteError::Io(error) if error.kind() == io::ErrorKind::TimedOut)
}

/// Scope of the cut for a client that does not read.
#[derive(Debug, Clone, Copy)]
pub(super) enum SlowReaderScope {
    Connection,
    /// Stream of one request.
    Stream,
}

/// Logs that a client does not read its messages.
pub(super) fn log_slow_reader(
    shared: &Shared,
    session: Option<&Session>,
    transport: Transport,
    cut: SlowReaderScope,
) {
    shared.metrics.rate_limited("outbox_bytes");
    let session = session.map(|session| tracing::field::display(&session.digest));
    match cut {
        SlowReaderScope::Connection => {
            tracing::info!(
                session,
                transport = transport.name(),
                "a client does not read its messages: the broker closes the connection"
            )
        }
        SlowReaderScope::Stream => {
            tracing::info!(
                session,
                transport = transport.name(),
                "a client does not read the answer to a request: the broker resets the stream"
            )
        }
    }
}
