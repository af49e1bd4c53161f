//! The cancellation of a task that a backend made of a call.
//!
//! The task outlives the connection, so a link without a connection opens one for the cancellation.

use std::sync::Arc;

use protocol::{envelope::Message, json, method::Method};
use rules::limits::BACKOFF_FIRST;

use super::{Link, failure::Failure};

impl Link {
    /// Cancels a task at the backend, on the next connection if there is none now. Ends within the
    /// control timeout. A repetition does no harm.
    pub async fn cancel_task(self: &Arc<Self>, task: &str) -> Result<Message, Failure> {
        let params = format!("{{\"taskId\":{}}}", json::quote(task));
        let cancelling = async {
            loop {
                let failure = match self.connection().await {
                    Ok(connection) => {
                        let request = connection.control_request(
                            self,
                            Method::TasksCancel,
                            Some(params.as_bytes()),
                        );
                        match request.await {
                            Ok(answer) => return Ok(answer),
                            Err(failure) => failure,
                        }
                    }
                    Err(refusal) if refusal.kind.retryable() => Failure::NotSent(refusal.message),
                    Err(refusal) => return Err(Failure::NotSent(refusal.message)),
                };
                let is_repeatable = failure.was_not_seen() || failure.is_lost();
                if self.is_closed() || !is_repeatable {
                    return Err(failure);
                }
                self.wait_or_closed(failure.retry_after().unwrap_or(BACKOFF_FIRST)).await;
            }
        };
        tokio::time::timeout(self.backend.timeouts().control, cancelling)
            .await
            .unwrap_or(Err(Failure::TimedOut(Method::TasksCancel)))
    }
}
