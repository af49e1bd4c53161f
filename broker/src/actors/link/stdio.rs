//! A link over a child process: newline-delimited JSON on its standard streams (MCP 2025-11-25, stdio).
//!
//! Three tasks: one writes what is queued, one reads lines, one watches the process and says goodbye (standard input
//! closed, SIGTERM, SIGKILL of the whole group).

use std::{path::PathBuf, sync::Arc};

use protocol::{envelope::Message, json};
use tokio::sync::mpsc;
use transport::{
    child_process::{self, Child, ChildLimits, ChildProcess, ChildSpec},
    lines::{LineReader, LineWriter},
};

use super::{
    CloseUnlessOpened, Link,
    connection::{Connection, Failure, Wire},
    queue::{FrameQueue, Queued},
};
use crate::{
    actors::incoming,
    config::spec::TransportSpec,
    limits::{LINK_QUEUE_FRAMES, NOISE_LINES_MAX, WRITE_BATCH_FRAMES},
    metrics::{Direction, Side},
};

/// Starts the child and performs the handshake.
pub(super) async fn open(link: &Arc<Link>) -> Result<Arc<Connection>, Failure> {
    let TransportSpec::Stdio { command, args, env, cwd } = &link.backend.spec.transport else {
        return Err(Failure::NotSent("the backend is not a child process".to_owned()));
    };
    let mut spec = ChildSpec::new(command.clone());
    spec.args = args.clone();
    spec.env = env.clone();
    spec.cwd = cwd.as_ref().map(PathBuf::from);
    let limits = ChildLimits { line_bytes_max: link.backend.shared.config.limits.message_bytes, ..ChildLimits::default() };
    let Child { reader, writer, process } = child_process::spawn(&spec, &limits).map_err(|error| Failure::NotSent(error.to_string()))?;
    tracing::info!(backend = %link.backend.id, pid = process.pid(), "child process started");

    let metrics = &link.backend.shared.metrics;
    let (queue, frames) = FrameQueue::new(LINK_QUEUE_FRAMES, metrics.queue_depth("pipe"));
    let connection = Connection::new(Wire::Pipe(queue), metrics.clone());
    let running = &link.backend.shared.running;
    let writing = running.spawn(write(writer, frames));
    running.spawn(read(link.clone(), connection.clone(), reader));
    running.spawn(watch(link.clone(), connection.clone(), process, writing));
    let guard = CloseUnlessOpened::new(&connection, running);
    connection.initialize(link).await?;
    guard.opened();
    Ok(connection)
}

/// Writes everything queued in as few system calls as it takes. Ends when the queue's sender is gone, which closes the
/// child's standard input.
async fn write(mut writer: LineWriter<tokio::process::ChildStdin>, mut frames: mpsc::Receiver<Queued>) {
    let (mut taken, mut batch) = (Vec::with_capacity(WRITE_BATCH_FRAMES), Vec::with_capacity(WRITE_BATCH_FRAMES));
    while frames.recv_many(&mut taken, WRITE_BATCH_FRAMES).await > 0 {
        batch.extend(taken.drain(..).map(Queued::into_frame));
        if let Err(error) = writer.send_all(&mut batch).await {
            tracing::debug!(%error, "a child process closed its standard input");
            return;
        }
    }
}

async fn read(link: Arc<Link>, connection: Arc<Connection>, mut reader: LineReader<tokio::process::ChildStdout>) {
    let limits = json::Limits { bytes_max: link.backend.shared.config.limits.message_bytes, ..json::Limits::default() };
    let mut noise = 0;
    loop {
        let line = tokio::select! {
            biased;
            () = connection.closed() => break,
            line = reader.next() => line,
        };
        let line = match line {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(error) => {
                tracing::warn!(backend = %link.backend.id, %error, "reading from a child process failed");
                break;
            }
        };
        link.backend.shared.metrics.bytes(Direction::In, Side::Backend, line.len());
        match Message::decode(line.clone(), &limits) {
            Ok(message) => {
                noise = 0;
                incoming::receive(&link, &connection, message, None);
            }
            Err(rejected) => {
                noise += 1;
                connection.broken_message(&rejected, &line);
                if noise == 1 {
                    tracing::warn!(backend = %link.backend.id, "a child process writes something that is not MCP on its standard output");
                }
                if noise > NOISE_LINES_MAX {
                    tracing::warn!(backend = %link.backend.id, "too much noise on a child's standard output, the link is closed");
                    break;
                }
            }
        }
    }
    connection.close_now();
}

/// Waits for the process to end, or for the link to be closed, and leaves nothing of its group behind.
async fn watch(link: Arc<Link>, connection: Arc<Connection>, mut process: ChildProcess, writing: tokio::task::JoinHandle<()>) {
    let pid = process.pid();
    tokio::select! {
        () = connection.closed() => {}
        status = process.wait() => {
            let stderr = process.stderr_tail();
            let last = stderr.lines().last().unwrap_or_default();
            tracing::warn!(backend = %link.backend.id, pid, %status, stderr = last, "child process ended");
        }
    }
    connection.close_now();
    // A child that does not read must not keep the writer, and with it the pipe, open.
    if tokio::time::timeout(std::time::Duration::from_secs(1), writing).await.is_err() {
        tracing::debug!(pid, "a child process does not read its standard input");
    }
    process.close().await;
    connection.finished();
    link.backend.connection_ended(&link, &connection);
}
