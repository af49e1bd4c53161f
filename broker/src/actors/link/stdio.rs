//! A link over a child process: newline-delimited JSON on its standard streams (MCP 2025-11-25, stdio).
//!
//! Beside the tasks of every pipe, one watches the process and says goodbye (standard input closed, SIGTERM, SIGKILL of the
//! whole group).

use std::{path::PathBuf, sync::Arc};

use transport::child_process::{self, Child, ChildLimits, ChildProcess, ChildSpec};

use super::{
    Link,
    connection::{Connection, Failure},
    modern,
    pipe::{self, LAST_WRITE_WAIT, Pipe},
    unopened::CloseUnlessOpened,
};
use crate::config::spec::TransportSpec;

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

    let Pipe { connection, writing } = pipe::start(link, reader, writer);
    let running = &link.backend.shared.running;
    running.spawn(watch(link.clone(), connection.clone(), process, writing));
    let guard = CloseUnlessOpened::new(&connection, running);
    modern::handshake::agree(&connection, link).await?;
    guard.opened();
    Ok(connection)
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
    if tokio::time::timeout(LAST_WRITE_WAIT, writing).await.is_err() {
        tracing::debug!(pid, "a child process does not read its standard input");
    }
    process.close().await;
    connection.finished();
    link.backend.connection_ended(&link, &connection);
}
