//! Requests that the broker executes to their end, also if their client disconnects.
//!
//! The HTTP library drops the future of a client that hangs up, even before its first poll. Such a
//! future frees its HTTP/2 stream, so the answers that run without one have a limit of their own.

use std::sync::Arc;

use futures_util::{FutureExt as _, future::Either};
use rules::limits::HTTP2_STREAMS_MAX;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

/// Detached answers of one connection.
#[derive(Debug)]
pub(super) struct DetachedAnswers {
    tasks: TaskTracker,
    permits: Arc<Semaphore>,
}

impl DetachedAnswers {
    pub(super) fn new(tasks: TaskTracker) -> Self {
        Self { tasks, permits: Arc::new(Semaphore::new(HTTP2_STREAMS_MAX as usize)) }
    }

    /// Starts an answer now. At the limit, it ends with the returned future instead. Returns `None`
    /// if the answer panicked.
    pub(super) fn start<Answering>(
        &self,
        answer: Answering,
    ) -> impl Future<Output = Option<Answering::Output>> + Send + use<Answering>
    where
        Answering: Future<Output: Send + 'static> + Send + 'static,
    {
        match self.permits.clone().try_acquire_owned() {
            Ok(permit) => {
                let task = self.tasks.spawn(async move {
                    let _permit = permit;
                    answer.await
                });
                Either::Left(task.map(Result::ok))
            }
            Err(_) => Either::Right(answer.map(Some)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn a_client_that_hangs_up_detaches_only_so_many_answers() {
        let (tasks, over) = (TaskTracker::new(), CancellationToken::new());
        let (answers, answered) =
            (DetachedAnswers::new(tasks.clone()), Arc::<AtomicUsize>::default());
        let limit = HTTP2_STREAMS_MAX as usize;
        let start = || {
            let (over, answered) = (over.clone(), answered.clone());
            answers.start(async move {
                over.cancelled().await;
                answered.fetch_add(1, Ordering::Relaxed);
            })
        };
        for _ in 0..2 * limit {
            drop(start());
        }
        assert_eq!(tasks.len(), limit);
        let waited_for = start();
        over.cancel();
        assert_eq!(waited_for.await, Some(()), "the client of this one waits");
        tasks.close();
        tasks.wait().await;
        assert_eq!(answered.load(Ordering::Relaxed), limit + 1);
        drop(start());
        assert_eq!(tasks.len(), 1, "the permits are free again");
    }
}
