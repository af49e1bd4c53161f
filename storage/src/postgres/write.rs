//! Batches of writes. One statement calls a function of the schema for each half of the batch, its
//! sessions and its tasks, and passes the half as columns. The statement is its own transaction. So
//! a batch of any length costs one round trip, and holds no lock while an answer is on its way.
//!
//! A statement that was not sent takes no effect, and the store sends one only over a connection
//! that answered a moment ago. If the connection is lost after that, the outcome is unknown. The
//! store then repeats the batch on a new connection, and marks it as a repetition (`again`). If the
//! server still runs the first attempt, its locks make the second one wait for its end. Each kind
//! of write then recognises its own effect:
//!
//! | kind | on the second attempt |
//! |---|---|
//! | open, create | the row exists with our owner, and no other replica knows its key |
//! | update, step, subscribe, unsubscribe, ask, close | a repetition changes nothing more |
//! | release | the row has the next epoch and no owner |
//! | end of a session | the row is gone |
//! | end of a task | over with the same status, message, outcome and epoch |
//! | answer | answered with the same bytes |

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use records::{RestoreSummary, TaskLimit, WriteOp, WriteOutcome};
use sqlx::postgres::PgRow;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    ANSWER_WITHIN, PostgresStore, SETTLED_WITHIN, StatementError, TRIES_MAX,
    columns::Columns,
    error_mapping::{RetryAction, retry_action},
    pool::PooledConnection,
    retry_jitter,
    rows::get,
};
use crate::{DurableStore, StoreError, fault_point};

/// Time after a batch with an unknown outcome in which each write may be its repetition. Other
/// writes suffer no harm from the mark: a write that would be refused finds the state that it
/// wanted.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// Idle time below which a connection needs no ping, such as for a batch directly after another
/// one.
const SURE_FOR: Duration = Duration::from_millis(2);
/// Pause before a batch whose connection was lost is repeated.
const SETTLE_AFTER: Duration = Duration::from_millis(20);

#[async_trait]
impl DurableStore for PostgresStore {
    fn engine(&self) -> &'static str {
        "postgres"
    }

    fn is_exclusive(&self) -> bool {
        false
    }

    fn unreadable_rows(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    async fn end_restored_state(&self) -> Result<RestoreSummary, StoreError> {
        self.end_restored().await
    }

    async fn write(&self, batch: &[WriteOp]) -> Result<Vec<WriteOutcome>, StoreError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let columns = Columns::of(batch);
        let started = Instant::now();
        let give_up_at = started + SETTLED_WITHIN;
        // This batch may repeat an earlier one.
        let repeats = self.in_doubt().writes_until.is_some_and(|end| started < end);
        let is_open = AtomicBool::new(false);
        let mut tries = 1;
        loop {
            let end = give_up_at.min(Instant::now() + ANSWER_WITHIN);
            let again = repeats || is_open.load(Ordering::Acquire);
            let error = match timeout_at(end, self.attempt(&columns, again, &is_open)).await {
                Ok(Ok(outcomes)) => return Ok(outcomes),
                Ok(Err(error)) => error,
                Err(_) => {
                    let error = self.timeout_error(started);
                    if Instant::now() >= give_up_at {
                        return Err(self.given_up(error, &is_open));
                    }
                    // Only the answer may have been lost. The rest of the time serves to find out.
                    continue;
                }
            };
            let cause = match &error {
                StatementError::Failed(cause) => cause,
                // No time is left for another attempt. An earlier attempt may still have taken
                // effect.
                StatementError::NotConnected(_) | StatementError::TimedOut(_) => {
                    return Err(self.given_up(error.into(), &is_open));
                }
            };
            let remedy = retry_action(cause);
            if remedy == RetryAction::None || tries >= TRIES_MAX || Instant::now() >= give_up_at {
                return Err(self.given_up(error.into(), &is_open));
            }
            if remedy == RetryAction::Reconnect {
                self.invalidate_idle();
                sleep(SETTLE_AFTER).await;
            } else {
                sleep(retry_jitter()).await;
            }
            tries += 1;
        }
    }
}

impl PostgresStore {
    /// Returns the error of a batch that ran out of time. If the batch was sent, its outcome is
    /// unknown, and the caller may try again.
    fn given_up(&self, error: StoreError, is_open: &AtomicBool) -> StoreError {
        if !is_open.load(Ordering::Acquire) {
            return error;
        }
        self.in_doubt().writes_until = Some(Instant::now() + REMEMBERED_FOR);
        StoreError::OutcomeUnknown(Box::new(error))
    }

    /// `is_open` is true if the batch was sent, in this or an earlier attempt, without a known
    /// answer.
    async fn attempt(
        &self,
        columns: &Columns<'_>,
        again: bool,
        is_open: &AtomicBool,
    ) -> Result<Vec<WriteOutcome>, StatementError> {
        let mut connection = self
            .write_pool
            .acquire_verified(SURE_FOR)
            .await
            .map_err(StatementError::NotConnected)?;
        match execute(&mut connection, columns, again, is_open).await {
            Ok(rows) => {
                connection.release();
                outcomes(&rows, columns.length).map_err(StatementError::TimedOut)
            }
            Err(error) => {
                self.release_after(connection, &error);
                Err(StatementError::Failed(error))
            }
        }
    }
}

async fn execute(
    connection: &mut PooledConnection<'_>,
    columns: &Columns<'_>,
    again: bool,
    is_open: &AtomicBool,
) -> Result<Vec<PgRow>, sqlx::Error> {
    fault_point::hit("write.begun");
    // A separate step: the statement itself is then one round trip, and an error before it
    // certainly had no effect.
    connection.prepare(columns.statement()).await?;
    let was_open = is_open.swap(true, Ordering::AcqRel);
    let rows = connection.execute(columns.query(again)).await.inspect_err(|error| {
        // The server itself reported that the statement had no effect.
        if retry_action(error) != RetryAction::Reconnect {
            is_open.store(was_open, Ordering::Release);
        }
    })?;
    fault_point::hit("write.committed");
    Ok(rows)
}

/// Returns the outcomes in the order of the batch.
fn outcomes(rows: &[PgRow], length: usize) -> Result<Vec<WriteOutcome>, StoreError> {
    let missing = || StoreError::Corrupt {
        detail: "its schema functions differ from those of this build".into(),
    };
    let mut outcomes = vec![None; length];
    for row in rows {
        let position = usize::try_from(get::<i64>(row, "place")?).ok();
        *position.and_then(|position| outcomes.get_mut(position)).ok_or_else(missing)? =
            Some(outcome(row)?.ok_or_else(missing)?);
    }
    outcomes.into_iter().collect::<Option<Vec<WriteOutcome>>>().ok_or_else(missing)
}

fn outcome(row: &PgRow) -> Result<Option<WriteOutcome>, StoreError> {
    Ok(Some(match get::<i16>(row, "outcome")? {
        0 => WriteOutcome::Done,
        1 => WriteOutcome::Created { at_us: get(row, "at_us")? },
        2 => WriteOutcome::Fenced,
        3 => WriteOutcome::AlreadyFinished,
        4 => WriteOutcome::NotFound,
        5 => WriteOutcome::Duplicate(protocol::ids::TaskId::new(get::<&str>(row, "known")?)),
        6 => WriteOutcome::LimitReached(TaskLimit::Running),
        7 => WriteOutcome::LimitReached(TaskLimit::Stored),
        8 => WriteOutcome::LimitReached(TaskLimit::Bytes),
        _ => return Ok(None),
    }))
}
