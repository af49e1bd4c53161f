//! Cleanup of a connection whose handshake fails.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use super::connection::Connection;

/// Closes the connection when dropped, so that a failed or abandoned handshake leaves no child, no
/// session and no stream behind.
pub(super) struct HandshakeGuard {
    connection: Option<Arc<Connection>>,
    running: TaskTracker,
}

impl HandshakeGuard {
    pub(super) fn new(connection: &Arc<Connection>, running: &TaskTracker) -> Self {
        Self { connection: Some(connection.clone()), running: running.clone() }
    }

    pub(super) fn disarm(mut self) {
        self.connection = None;
    }
}

impl Drop for HandshakeGuard {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close_now();
            self.running.spawn(async move { connection.close().await });
        }
    }
}
