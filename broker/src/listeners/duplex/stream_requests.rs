//! Requests of one QUIC connection that have their own streams, and how long the connection waits for
//! them when it closes.

use rules::limits::{HALF_CLOSED_MAX, LAST_FRAMES_WAIT};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use transport::{frame::CloseReason, quic::QuicSink};

use super::{answers_over, reading_over};
use crate::sessions::shared::Shared;

/// Requests of a connection that have their own streams. Clones are cheap.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamRequests {
    pub(super) running: TaskTracker,
    /// Counts those whose answer is not ready.
    waiting: TaskTracker,
    /// Cancelled when the connection waits no longer for answers that are not ready.
    pub(super) unanswered: CancellationToken,
    /// Cancelled when the connection is about to close, and waits only for what was sent.
    closing: CancellationToken,
}

impl StreamRequests {
    /// Notes a request whose answer is not ready, until a drop of the token.
    pub(super) fn waits(&self) -> TaskTrackerToken {
        self.waiting.token()
    }

    /// Ends a stream, and waits until the client has received what was sent on it.
    pub(super) async fn deliver_end(&self, sink: &mut QuicSink) {
        let over = async {
            self.closing.cancelled().await;
            tokio::time::sleep(LAST_FRAMES_WAIT).await;
        };
        tokio::select! {
            biased;
            () = sink.finish_delivered() => {}
            () = over => {}
        }
    }

    /// Resolves when the last answers of the connection have had their time.
    pub(super) async fn over(&self, shared: &Shared, close_reason: Option<CloseReason>) {
        if close_reason == Some(CloseReason::Done) {
            self.waiting.close();
            tokio::select! {
                biased;
                () = self.waiting.wait() => {}
                () = tokio::time::sleep(HALF_CLOSED_MAX) => {}
            }
            self.unanswered.cancel();
            return reading_over(shared).await;
        }
        self.closing.cancel();
        answers_over(&shared.shutdown.grace_over, close_reason, LAST_FRAMES_WAIT).await
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{broker::Broker, persistence::Stores};

    #[tokio::test]
    async fn a_drain_gives_a_half_closed_client_time_for_answers_that_are_not_ready_only() {
        let broker = Broker::over(Stores::in_memory().await);
        broker.shared.shutdown.draining.cancel();
        tokio::time::pause();
        for is_answered in [true, false] {
            let requests = StreamRequests::default();
            let (_delivered, waits) = (requests.running.token(), requests.waits());
            let waits = Some(waits).filter(|_| !is_answered);
            let begun = Instant::now();
            requests.over(&broker.shared, Some(CloseReason::Done)).await;
            assert_eq!(begun.elapsed() < HALF_CLOSED_MAX, is_answered);
            drop(waits);
        }
    }
}
