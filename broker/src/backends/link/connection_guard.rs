//! Cleanup of a connection that its owner gives up: its handshake failed, or its owner was cancelled.

use std::{ops::Deref, sync::Arc};

use tokio_util::task::TaskTracker;

use super::connection::Connection;

/// Closes the connection when dropped, so that an abandoned one leaves no child and no stream behind,
/// and no session that it began.
#[derive(Debug)]
pub(in crate::backends) struct ConnectionGuard {
    connection: Arc<Connection>,
    running: TaskTracker,
    is_armed: bool,
    /// Whether the session at the backend outlives the connection.
    keeps_session: bool,
}

impl ConnectionGuard {
    pub(super) fn new(connection: &Arc<Connection>, running: &TaskTracker) -> Self {
        let (connection, running) = (connection.clone(), running.clone());
        Self { connection, running, is_armed: true, keeps_session: false }
    }

    /// Keeps the session at the backend when the connection is given up, because another attempt or
    /// another process resumes it.
    pub(super) fn keep_session(&mut self) {
        self.keeps_session = true;
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
            let (connection, keeps_session) = (self.connection.clone(), self.keeps_session);
            connection.close_now();
            self.running.spawn(async move {
                if keeps_session {
                    connection.close_keeping_session().await;
                } else {
                    connection.close().await;
                }
            });
        }
    }
}
