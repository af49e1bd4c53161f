//! The order of the changes of a tenant's catalog.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::long_work::run_long_work;

/// Runs one change of a catalog at a time, so that an older catalog never replaces a newer one.
///
/// A publication reads the lists of all backends, so it serves every request for one before it.
/// Without that, a tenant whose backends all start at once would build its catalog for each of them.
#[derive(Debug, Default)]
pub(super) struct CatalogChanges {
    publishing: Mutex<()>,
    /// Number of requests for a publication.
    requests: AtomicU64,
    /// Number of requests before the start of the last publication.
    served: tokio::sync::Mutex<u64>,
}

impl CatalogChanges {
    /// Runs a change. A large catalog takes long, so other threads run the tasks of this one
    /// meanwhile.
    pub(super) fn run(&self, change: impl FnOnce()) {
        run_long_work(|| {
            let _order = self.publishing.lock();
            change();
        });
    }

    /// Runs a publication, unless one that started after this call has ended meanwhile. The wait for
    /// another one occupies no thread.
    pub(super) async fn publish(&self, publish: impl FnOnce()) {
        let number = self.requests.fetch_add(1, Ordering::AcqRel) + 1;
        let mut served = self.served.lock().await;
        if *served >= number {
            return;
        }
        let before_start = self.requests.load(Ordering::Acquire);
        publish();
        *served = before_start;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{atomic::AtomicUsize, mpsc},
        time::Duration,
    };

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_long_change_leaves_its_thread_to_other_tasks() {
        let (sender, receiver) = mpsc::channel();
        let change = tokio::spawn(async move {
            tokio::spawn(async move { sender.send(()) });
            let mut others_ran = false;
            CatalogChanges::default().run(|| {
                others_ran = receiver.recv_timeout(Duration::from_secs(60)).is_ok();
            });
            others_ran
        });
        assert!(change.await.unwrap());
    }

    #[tokio::test]
    async fn callers_that_wait_for_one_publication_share_the_next() {
        let (changes, runs) = (CatalogChanges::default(), AtomicUsize::new(0));
        let publish = || {
            runs.fetch_add(1, Ordering::Relaxed);
        };
        let running = changes.served.lock().await;
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(changes.publish(publish))).collect();
        for one in &mut waiting {
            assert!(futures_util::poll!(one).is_pending());
        }
        drop(running);
        join_all(waiting).await;
        assert_eq!(runs.load(Ordering::Relaxed), 1, "it read the lists of all of them");
        changes.publish(publish).await;
        assert_eq!(runs.load(Ordering::Relaxed), 2, "the lists may have changed since");
    }
}
