//! The log level that a link sets at its backend.

use std::{sync::Arc, time::Duration};

use protocol::{envelope::Kind, method::Method};
use rules::log_level::LogLevel;

use super::{Link, connection::Connection};

/// Longest wait for the answer on a new connection. The first call does not wait longer for a
/// backend that does not answer.
const NEW_CONNECTION_WAIT: Duration = Duration::from_secs(1);

impl Link {
    /// Raises the log level for a session that begins to use the link.
    pub fn raise_level(self: &Arc<Self>, level: LogLevel) {
        let wanted = {
            let mut users = self.lock();
            let wanted = users.level.map_or(level, |known| known.min(level));
            users.level = Some(wanted);
            (users.level_sent != Some(wanted)).then_some(wanted)
        };
        if let (Some(level), Some(connection)) = (wanted, self.live()) {
            let link = self.clone();
            self.backend
                .shared
                .running
                .spawn(async move { link.send_level(&connection, level).await });
        }
    }

    /// Sets the log level of the link to the most verbose level of its sessions. The broker filters
    /// the messages for the other sessions.
    pub async fn set_level(self: &Arc<Self>) {
        let wanted = self.clients().iter().filter_map(|client| client.log_level()).min();
        let Some(level) = wanted else { return };
        let taken = {
            let mut users = self.lock();
            users.level = wanted;
            users.level_sent == wanted
        };
        if let Some(connection) = self.live().filter(|_| !taken) {
            self.send_level(&connection, level).await;
        }
    }

    /// Sets the log level on a new connection.
    pub(super) async fn restore_level(self: &Arc<Self>, connection: &Arc<Connection>) {
        let level = {
            let mut users = self.lock();
            users.level_sent = None;
            users.level
        };
        let Some(level) = level else { return };
        let (link, connection) = (self.clone(), connection.clone());
        let running = &self.backend.shared.running;
        let sent = running.spawn(async move { link.send_level(&connection, level).await });
        let _late = tokio::time::timeout(NEW_CONNECTION_WAIT, sent).await;
    }

    async fn send_level(self: &Arc<Self>, connection: &Arc<Connection>, level: LogLevel) {
        // Each request of 2026-07-28 carries the log level of its client.
        if connection.stateless().is_some() || connection.permits(Method::LoggingSetLevel).is_err()
        {
            return;
        }
        let params = format!("{{\"level\":\"{}\"}}", level.name());
        match connection
            .control_request(self, Method::LoggingSetLevel, Some(params.as_bytes()))
            .await
        {
            Ok(answer) if answer.kind == Kind::Error => {
                tracing::info!(backend = %self.backend.id, "the backend refused the log level")
            }
            Ok(_) if self.live().is_some_and(|live| Arc::ptr_eq(&live, connection)) => {
                self.lock().level_sent = Some(level)
            }
            Ok(_) => {}
            Err(failure) => {
                let redacted = self.backend.redactor.redact(&failure);
                tracing::info!(backend = %self.backend.id, failure = redacted, "the backend did not take the log level");
            }
        }
    }
}
