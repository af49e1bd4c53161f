//! Cleanup of a connection that its owner gives up: its handshake failed, or its owner was cancelled.

use std::{ops::Deref, sync::Arc};

use tokio_util::task::TaskTracker;

use super::connection::Connection;

/// Closes the connection when dropped, so that an abandoned one leaves no child, no session and no
/// stream behind.
#[derive(Debug)]
pub(in crate::backends) struct ConnectionGuard {
    connection: Arc<Connection>,
    running: TaskTracker,
    is_armed: bool,
}

impl ConnectionGuard {
    pub(super) fn new(connection: &Arc<Connection>, running: &TaskTracker) -> Self {
        Self { connection: connection.clone(), running: running.clone(), is_armed: true }
    }

    /// Leaves the connection open.
    pub(super) fn disarm(mut self) {
        self.is_armed = false;
    }

    /// Closes the connection and waits for its orderly end.
    pub(in crate::backends) async fn close(self) {
        self.connection.close().await;
        self.disarm();
    }
}

impl Deref for ConnectionGuard {
    type Target = Arc<Connection>;

    fn deref(&self) -> &Arc<Connection> {
        &self.connection
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        if self.is_armed {
            let connection = self.connection.clone();
            connection.close_now();
            self.running.spawn(async move { connection.close().await });
        }
    }
}
