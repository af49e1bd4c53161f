//! The turn of a change, and its repetition if another replica changes the configuration meanwhile.
//!
//! Invariant: the checks of a change and its commit see the same version of the configuration, on
//! every replica. So two replicas never both accept changes of which the first refuses the second.

use std::{
    ops::Deref,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use records::AdminChange;
use storage::{StoreError, Wakeup};

use super::{Author, Control, ControlError};

/// Longest time of attempts at a change. Each attempt fails only if another replica makes a change
/// at the same time.
const ATTEMPTS_WITHIN: Duration = Duration::from_secs(10);
/// Longest pause before the second attempt. Later pauses grow by it, up to ten times.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);

/// One attempt at a change. It sees every change of other replicas, and commits only if there are
/// no further ones.
pub(super) struct ChangeAttempt {
    control: Arc<Control>,
    /// The version of the stored configuration in force. `None`: no other replica has the store.
    version: Option<i64>,
}

impl Deref for ChangeAttempt {
    type Target = Arc<Control>;

    fn deref(&self) -> &Arc<Control> {
        &self.control
    }
}

impl ChangeAttempt {
    /// Commits the change with its audit record. Returns false if nothing was changed.
    pub(super) async fn commit(
        &self,
        change: AdminChange<'_>,
        author: &Author,
    ) -> Result<bool, ControlError> {
        let made = self.control.commit(self.version, change, author).await;
        if let Err(ControlError::Store(StoreError::Outdated)) = &made {
            author.forget_values();
        }
        made
    }
}

impl Control {
    /// Runs one change in a task of its own, so that a client that disconnects cannot interrupt it.
    /// Each attempt at it gets a copy of `input`.
    pub(super) async fn change<Input, T, Work>(
        self: &Arc<Self>,
        input: Input,
        change: impl Fn(ChangeAttempt, Input) -> Work + Send + Sync + 'static,
    ) -> Result<T, ControlError>
    where
        Input: Clone + Send + Sync + 'static,
        T: Send + 'static,
        Work: Future<Output = Result<T, ControlError>> + Send + 'static,
    {
        let control = Arc::clone(self);
        let task = tokio::spawn(async move {
            let _turn = control.changing.lock().await;
            let (started, mut attempts) = (Instant::now(), 1);
            let done = loop {
                let attempt = control.attempt().await?;
                match change(attempt, input.clone()).await {
                    Err(ControlError::Store(StoreError::Outdated))
                        if started.elapsed() < ATTEMPTS_WITHIN =>
                    {
                        let pause = ATTEMPT_PAUSE * attempts.min(10);
                        tokio::time::sleep(pause.mul_f64(rand::random_range(0.0..1.0))).await;
                        attempts += 1;
                    }
                    done => break done,
                }
            };
            control.settle_doubt().await;
            control.reapply_breakers();
            if control.persistence().is_shared() {
                control.persistence().hot.publish(Wakeup::Config);
            }
            done
        });
        task.await.unwrap_or_else(|fault| {
            tracing::error!(%fault, "an internal fault stopped a change");
            Err(ControlError::Internal)
        })
    }

    /// Begins an attempt: applies the changes that another replica has just made. The caller holds
    /// the lock `changing`.
    async fn attempt(self: &Arc<Self>) -> Result<ChangeAttempt, StoreError> {
        let is_shared = self.persistence().is_shared();
        if is_shared || self.is_in_doubt() {
            self.apply_store_changes().await?;
        }
        let version = is_shared.then(|| self.applied.load(Ordering::Acquire));
        Ok(ChangeAttempt { control: Arc::clone(self), version })
    }
}
