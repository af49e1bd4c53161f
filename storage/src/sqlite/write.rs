//! [`DurableStore`] on SQLite: a batch of writes is one transaction.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use records::{RestoreSummary, WriteOp, WriteOutcome};
use sqlx::sqlite::SqliteConnection;

use super::{
    SqliteStore, now_us,
    session_writes::{self, OwnedSession, seen},
    task_writes::{self, InputBytes, TaskEnd},
    with_deadline,
};
use crate::{DurableStore, StoreError, fault_point};

#[async_trait]
impl DurableStore for SqliteStore {
    fn engine(&self) -> &'static str {
        "sqlite"
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn unreadable_rows(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    async fn end_restored_state(&self) -> Result<RestoreSummary, StoreError> {
        self.end_restored().await
    }

    async fn write(&self, batch: &[WriteOp]) -> Result<Vec<WriteOutcome>, StoreError> {
        let is_open = AtomicBool::new(false);
        let written = with_deadline("a write", commit_batch(self, batch, &is_open)).await;
        written.map_err(|error| {
            if is_open.load(Ordering::Acquire) {
                StoreError::OutcomeUnknown(Box::new(error))
            } else {
                error
            }
        })
    }
}

/// Carries out a batch in one transaction. Sets `is_open` while a commit is requested and its
/// outcome is unknown.
async fn commit_batch(
    store: &SqliteStore,
    batch: &[WriteOp],
    is_open: &AtomicBool,
) -> Result<Vec<WriteOutcome>, StoreError> {
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    let mut writing = store.begin().await?;
    fault_point::hit("write.begun");
    // All writes of a batch get the same time.
    let now = now_us();
    let mut outcomes = Vec::with_capacity(batch.len());
    for change in batch {
        outcomes.push(one(writing.connection(), change, now).await?);
    }
    fault_point::hit("write.executed");
    is_open.store(true, Ordering::Release);
    writing.commit().await.inspect_err(|error| {
        // SQLite itself reported that the commit had no effect.
        is_open
            .store(!matches!(error, StoreError::Busy { .. } | StoreError::Full), Ordering::Release);
    })?;
    fault_point::hit("write.committed");
    Ok(outcomes)
}

async fn one(
    connection: &mut SqliteConnection,
    change: &WriteOp,
    now: i64,
) -> Result<WriteOutcome, StoreError> {
    match change {
        WriteOp::OpenSession { record, owner } => {
            session_writes::open(connection, record, owner, now).await
        }
        WriteOp::UpdateSession { key, epoch, idle, state, links } => {
            let session = OwnedSession { key, epoch: *epoch };
            session_writes::update(
                connection,
                session,
                seen(now, *idle),
                state.as_deref(),
                links.as_deref(),
            )
            .await
        }
        WriteOp::ReleaseSession { key, epoch, idle, state, links } => {
            session_writes::release(
                connection,
                OwnedSession { key, epoch: *epoch },
                seen(now, *idle),
                state,
                links,
            )
            .await
        }
        WriteOp::EndSession { key, epoch } => {
            session_writes::end(connection, OwnedSession { key, epoch: *epoch }).await
        }
        WriteOp::Subscribe { key, epoch, subscription } => {
            session_writes::subscribe(connection, OwnedSession { key, epoch: *epoch }, subscription)
                .await
        }
        WriteOp::Unsubscribe { key, epoch, exposed_uri } => {
            session_writes::unsubscribe(
                connection,
                OwnedSession { key, epoch: *epoch },
                exposed_uri,
            )
            .await
        }
        WriteOp::CreateTask { record, owner, limits } => {
            task_writes::create(connection, record, owner, limits, now).await
        }
        WriteOp::AdvanceTask { task, epoch, step } => {
            task_writes::step(connection, task, *epoch, step).await
        }
        WriteOp::EndTask { task, epoch, status, message, outcome } => {
            let ending = TaskEnd {
                status: *status,
                message: message.as_deref(),
                outcome: outcome.as_deref(),
            };
            task_writes::end(connection, task, *epoch, ending, now).await
        }
        WriteOp::ReleaseTask { task, epoch } => {
            task_writes::release(connection, task, *epoch).await
        }
        WriteOp::RequestInput { task, epoch, number, request, bytes_max } => {
            let input = InputBytes { number: *number, bytes: request, bytes_max: *bytes_max };
            task_writes::request_input(connection, task, *epoch, input, now).await
        }
        WriteOp::AnswerInput { task, number, answer, bytes_max } => {
            let input = InputBytes { number: *number, bytes: answer, bytes_max: *bytes_max };
            task_writes::answer(connection, task, input).await
        }
        WriteOp::CloseInput { task, epoch, number } => {
            task_writes::close(connection, task, *epoch, *number, now).await
        }
    }
}
