//! Common part of links over a wire that carries frames in both directions: the standard streams of
//! a child, or a socket.
//!
//! One task writes queued frames, another reads messages. Generic over [`FrameSource`] and
//! [`FrameSink`]. The file of the wire opens it and handles its end.

use std::{sync::Arc, time::Duration};

use protocol::json;
use rules::limits::{LINK_QUEUE_FRAMES, NOISE_LINES_MAX, WRITE_BATCH_FRAMES};
use tokio::{sync::mpsc, task::JoinHandle};
use transport::frame::{CloseReason, FrameSink, FrameSource, ReadError};

use super::{
    Link,
    connection::Connection,
    connection_guard::ConnectionGuard,
    failure::Failure,
    queue::{FrameQueue, QueueOwner, QueuedFrame},
    stateless,
    wire::WireSender,
};
use crate::{
    backends::{fault_lines::RepeatedFault, inbound},
    metrics::{Direction, Side},
};

/// Time after which a peer that does not read loses the writer and the wire.
pub(super) const LAST_WRITE_WAIT: Duration = Duration::from_secs(1);

/// An open pipe: its connection, and the task that writes on it.
pub(super) struct Pipe {
    pub(super) connection: Arc<Connection>,
    pub(super) writing: JoinHandle<()>,
}

/// Starts to read and write. The caller must call [`Connection::mark_flushed`] at the end.
pub(super) fn start<Source, Sink>(link: &Arc<Link>, source: Source, sink: Sink) -> Pipe
where
    Source: FrameSource + 'static,
    Sink: FrameSink + 'static,
{
    started(link, source, sink, |_| {})
}

fn started<Source, Sink>(
    link: &Arc<Link>,
    source: Source,
    sink: Sink,
    prepare: impl FnOnce(&Connection),
) -> Pipe
where
    Source: FrameSource + 'static,
    Sink: FrameSink + 'static,
{
    let metrics = &link.backend.context.metrics;
    let depth = metrics.queue_depth("pipe");
    let owner = QueueOwner::new(&link.backend.tenant, &link.backend.id);
    let (queue, frames) = FrameQueue::new(owner, LINK_QUEUE_FRAMES, depth);
    let connection = Connection::new(WireSender::Pipe(queue), metrics.clone());
    prepare(&connection);
    let running = &link.backend.context.running;
    let writing = running.spawn(write(connection.clone(), sink, frames));
    running.spawn(read(link.clone(), connection.clone(), source));
    Pipe { connection, writing }
}

/// Opens a connection over a wire that ends with its streams, and performs the handshake.
pub(super) async fn open<Source, Sink>(
    link: &Arc<Link>,
    source: Source,
    sink: Sink,
) -> Result<Arc<Connection>, Failure>
where
    Source: FrameSource + 'static,
    Sink: FrameSink + 'static,
{
    open_prepared(link, source, sink, |_| {}).await
}

/// Opens a connection as [`open`] does. `prepare` sets it up before the first frame is sent.
pub(super) async fn open_prepared<Source, Sink>(
    link: &Arc<Link>,
    source: Source,
    sink: Sink,
    prepare: impl FnOnce(&Connection),
) -> Result<Arc<Connection>, Failure>
where
    Source: FrameSource + 'static,
    Sink: FrameSink + 'static,
{
    let Pipe { connection, writing } = started(link, source, sink, prepare);
    let running = &link.backend.context.running;
    running.spawn(watch(link.clone(), connection.clone(), writing));
    let guard = ConnectionGuard::new(&connection, running);
    stateless::handshake::agree(&connection, link).await?;
    guard.disarm();
    Ok(connection)
}

/// Waits for the end of the connection and reports it.
async fn watch(link: Arc<Link>, connection: Arc<Connection>, writing: JoinHandle<()>) {
    connection.closed().await;
    let abort = writing.abort_handle();
    if tokio::time::timeout(LAST_WRITE_WAIT, writing).await.is_err() {
        tracing::debug!(tenant = %link.backend.tenant, backend = %link.backend.id, "a backend did not read the last messages of the broker");
        abort.abort();
    }
    connection.mark_flushed();
    link.backend.connection_ended(&link, &connection);
}

/// Writes all queued frames in few system calls, and closes the sink when the queue is closed. A
/// backend that does not take frames loses its connection, even if it still sends some.
async fn write(
    connection: Arc<Connection>,
    mut sink: impl FrameSink,
    mut frames: mpsc::Receiver<QueuedFrame>,
) {
    let (mut taken, mut batch) =
        (Vec::with_capacity(WRITE_BATCH_FRAMES), Vec::with_capacity(WRITE_BATCH_FRAMES));
    while frames.recv_many(&mut taken, WRITE_BATCH_FRAMES).await > 0 {
        batch.extend(taken.drain(..).map(QueuedFrame::into_frame));
        if let Err(error) = sink.send_all(&mut batch).await {
            let QueueOwner { tenant, backend } = &connection.queue().owner;
            tracing::debug!(%tenant, %backend, %error, "the broker could not write to a backend");
            drop(frames); // a writer now learns that its frame was not sent
            connection.record_fault(error);
            // The last messages of the backend, such as an answer, may still arrive.
            let _ended = tokio::time::timeout(LAST_WRITE_WAIT, connection.closed()).await;
            return connection.close_now();
        }
    }
    sink.close(CloseReason::Done).await;
}

async fn read(link: Arc<Link>, connection: Arc<Connection>, mut source: impl FrameSource) {
    let limits = json::Limits::with_bytes_max(link.backend.message_bytes());
    let (tenant, backend) = (&link.backend.tenant, &link.backend.id);
    let checked = |fault| link.backend.resources.fault_lines.check(tenant, backend, fault);
    let mut noise = 0;
    loop {
        let frame = tokio::select! {
            biased;
            () = connection.closed() => break,
            frame = source.next() => frame,
        };
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(error) => {
                if let Some(left_out) = checked(RepeatedFault::BrokenConnection) {
                    let redacted = link.backend.redactor.redact(&error);
                    tracing::warn!(%tenant, %backend, left_out, error = redacted, "reading from a backend failed");
                }
                if let ReadError::TooLong { limit } = error {
                    connection.record_overlong(limit);
                }
                connection.record_fault(error);
                break;
            }
        };
        link.backend.context.metrics.bytes(Direction::In, Side::Backend, frame.len());
        match inbound::decode(&connection, frame.clone(), &limits) {
            Ok(body) => {
                noise = 0;
                inbound::receive_body(&link, &connection, body, None);
            }
            // The connection broke in the middle of a message. Its end comes next and reports the
            // loss.
            Err(_) if source.is_unterminated() => {
                connection.record_fault("the stream ended in the middle of a message")
            }
            Err(rejected) => {
                noise += 1;
                connection.broken_message(&rejected, &frame);
                if let Some(left_out) = checked(RepeatedFault::Noise) {
                    tracing::warn!(%tenant, %backend, left_out, "a backend sent a message that is not valid MCP");
                }
                if noise > NOISE_LINES_MAX {
                    if let Some(left_out) = checked(RepeatedFault::NoisyConnection) {
                        tracing::warn!(%tenant, %backend, left_out, "a backend sent too many messages that are not valid MCP: the broker closes the connection");
                    }
                    connection
                        .record_fault("the backend sent too many messages that are not valid MCP");
                    break;
                }
            }
        }
    }
    connection.close_now();
}

#[cfg(test)]
mod tests {
    use transport::frame::WriteError;

    use super::*;
    use crate::metrics::Metrics;

    /// A sink that takes no frame.
    struct Stuck;

    impl FrameSink for Stuck {
        async fn send_all(&mut self, _frames: &mut Vec<bytes::Bytes>) -> Result<(), WriteError> {
            Err(WriteError::Closed)
        }

        async fn close(&mut self, _goodbye: CloseReason) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_cannot_write_ends_even_if_its_backend_still_sends() {
        let metrics = Arc::new(Metrics::new(false));
        let (queue, frames) = FrameQueue::for_tests(2, metrics.queue_depth("pipe"));
        queue.push(bytes::Bytes::from_static(b"{}")).unwrap();
        let connection = Connection::new(WireSender::Pipe(queue), metrics);
        write(connection.clone(), Stuck, frames).await;
        assert!(connection.is_closed());
    }
}
