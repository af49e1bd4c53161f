//! The log level that a link sets at its backend.

use std::{sync::Arc, time::Duration};

use protocol::{envelope::Kind, method::Method};
use rules::log_level::{self, LogLevel};
use tokio::sync::watch;

use super::{Link, connection::Connection, era::Era};

/// Longest wait for the answer on a new connection. The first call does not wait longer for a
/// backend that does not answer.
const NEW_CONNECTION_WAIT: Duration = Duration::from_secs(1);

impl Link {
    /// Adapts the log level in the background, because a user with this level begins to use the
    /// link, or one ends to use it. Does nothing until a user sets a level.
    pub fn adapt_level(self: &Arc<Self>, level: Option<LogLevel>) {
        let has_level = {
            let mut users = self.lock();
            users.has_level |= level.is_some();
            users.has_level
        };
        if has_level && self.live().is_some() {
            let _sent = self.send_level();
        }
    }

    /// Sets the log level that the users of the link need. The broker filters the messages for each
    /// of them. A backend that does not answer delays the end as long as one request.
    pub async fn set_level(self: &Arc<Self>) {
        self.lock().has_level = true;
        let mut sent = self.send_level();
        let _late = tokio::time::timeout(self.backend.timeouts().control, sent.changed()).await;
    }

    /// Sets the log level on a new connection.
    pub(super) async fn restore_level(self: &Arc<Self>, connection: &Arc<Connection>) {
        if !self.lock().has_level {
            return;
        }
        let (link, connection) = (self.clone(), connection.clone());
        let sent = self.backend.context.running.spawn(async move {
            let mut level_sent = link.level_sent.lock().await;
            *level_sent = None;
            link.send_level_over(&connection, &mut level_sent).await;
        });
        let _late = tokio::time::timeout(NEW_CONNECTION_WAIT, sent).await;
    }

    /// Sends the level in the background. The returned receiver is closed at the end.
    fn send_level(self: &Arc<Self>) -> watch::Receiver<()> {
        let mut users = self.lock();
        // A sender that waits for its turn reads the levels later, so it sends the newest one.
        if let Some(sent) = &users.waiting_level {
            return sent.clone();
        }
        let (sending, sent) = watch::channel(());
        users.waiting_level = Some(sent.clone());
        drop(users);
        let link = self.clone();
        self.backend.context.running.spawn(async move {
            let _sending = sending;
            let mut level_sent = link.level_sent.lock().await;
            link.lock().waiting_level = None;
            if let Some(connection) = link.live() {
                link.send_level_over(&connection, &mut level_sent).await;
            }
        });
        sent
    }

    /// Sends the level that the users need now, unless the backend has it.
    async fn send_level_over(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        level_sent: &mut Option<LogLevel>,
    ) {
        // Each request of 2026-07-28 carries the log level of its client.
        if connection.stateless().is_some() || connection.permits(Method::LoggingSetLevel).is_err()
        {
            return;
        }
        let needed = log_level::shared_level(&self.user_levels(), level_sent.is_some());
        let Some(level) = needed.filter(|_| needed != *level_sent) else { return };
        let params = format!("{{\"level\":\"{}\"}}", level.name());
        match connection
            .control_request(self, Method::LoggingSetLevel, Some(params.as_bytes()))
            .await
        {
            Ok(answer) => {
                *level_sent = Some(level);
                if answer.kind == Kind::Error {
                    tracing::info!(tenant = %self.backend.tenant, backend = %self.backend.id, "the backend refused the log level");
                }
            }
            Err(failure) => {
                let redacted = self.backend.redactor.redact(&failure);
                tracing::info!(tenant = %self.backend.tenant, backend = %self.backend.id, failure = redacted, "the broker could not set the log level at the backend");
            }
        }
    }

    /// Returns the levels of the users that get log messages. Clients of 2026-07-28 and tasks get none
    /// without a level.
    fn user_levels(&self) -> Vec<Option<LogLevel>> {
        let (clients, runs) = (self.clients(), self.task_runs());
        let of_clients =
            clients.iter().map(|client| (client.log_level(), client.client_era() == Era::Sessions));
        let of_runs = runs.iter().map(|run| (run.log_level(), false));
        let all = of_clients.chain(of_runs);
        all.filter(|(level, gets_all)| level.is_some() || *gets_all)
            .map(|(level, _)| level)
            .collect()
    }
}
