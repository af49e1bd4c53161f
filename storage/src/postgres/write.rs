//! Batches of writes: one statement that calls a function of the schema for each half of the batch, its sessions and its
//! tasks, which it gets as columns. The statement is its own transaction: however long the batch is, it costs one round trip,
//! and no lock is held for as long as an answer is on its way.
//!
//! A statement that was not sent takes no effect, and one is sent only over a connection that was heard of just now. When the
//! connection is lost after that, nobody knows whether it took effect. The batch is then carried out again on a new connection
//! and told that it may have been before (`again`). The locks of the first attempt, should the server still be at it, make the
//! second one wait for its end. Each kind of write then finds out by itself what is its own:
//!
//! | kind | on the second attempt |
//! |---|---|
//! | open, create | the row is there with our owner: ours, since nobody else knows its key |
//! | update, step, subscribe, unsubscribe, ask, close | the same again changes nothing more |
//! | release | the row has the next epoch and no owner |
//! | end of a session | the row is gone |
//! | end of a task | over with the same status, message, outcome and epoch |
//! | answer | answered with the same bytes |

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use sqlx::{Executor as _, SqlSafeStr as _, postgres::PgRow};
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    ANSWER_WITHIN, PostgresStore, SETTLED_WITHIN, StatementError, TRIES_MAX,
    columns::Columns,
    error_mapping::{RetryAction, remedy},
    moment,
    rows::get,
};
use crate::{DurableStore, StoreError, TaskLimit, WriteOp, WriteOutcome, fault_point};

/// How long after a batch whose outcome nobody knows writes are taken for possible repetitions of its own. A write that is
/// none is done no harm: what it would have been refused for is then as it wanted it to be.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// A connection that was heard of as recently is there: a batch right behind another one needs not ask.
const SURE_FOR: Duration = Duration::from_millis(2);
/// Before a lost connection's batch is carried out again.
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

    async fn write(&self, batch: &[WriteOp]) -> Result<Vec<WriteOutcome>, StoreError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let columns = Columns::of(batch);
        let started = Instant::now();
        let give_up_at = started + SETTLED_WITHIN;
        // An earlier batch may have been this one.
        let repeats = self.unanswered().writes_until.is_some_and(|end| started < end);
        let is_open = AtomicBool::new(false);
        let mut tries = 1;
        loop {
            let end = give_up_at.min(Instant::now() + ANSWER_WITHIN);
            let again = repeats || is_open.load(Ordering::Acquire);
            let error = match timeout_at(end, self.attempt(&columns, again, &is_open)).await {
                Ok(Ok(outcomes)) => return Ok(outcomes),
                Ok(Err(error)) => error,
                Err(_) => {
                    let error = self.late(started);
                    if Instant::now() >= give_up_at {
                        return Err(self.given_up(error, &is_open));
                    }
                    // It may have been the answer alone that was lost: what is left of the time is for finding out.
                    continue;
                }
            };
            let cause = match &error {
                StatementError::Failed(cause) => cause,
                // It was tried for as long as there is hope. What went before may have been carried out all the same.
                StatementError::NotConnected(_) | StatementError::TimedOut(_) => {
                    return Err(self.given_up(error.into(), &is_open));
                }
            };
            let remedy = remedy(cause);
            if remedy == RetryAction::None || tries >= TRIES_MAX || Instant::now() >= give_up_at {
                return Err(self.given_up(error.into(), &is_open));
            }
            if remedy == RetryAction::Reconnect {
                self.distrust();
                sleep(SETTLE_AFTER).await;
            } else {
                sleep(moment()).await;
            }
            tries += 1;
        }
    }
}

impl PostgresStore {
    /// There is no more time. Where the batch was sent, nobody knows whether the batch was carried out; its sender may try again.
    fn given_up(&self, error: StoreError, is_open: &AtomicBool) -> StoreError {
        if !is_open.load(Ordering::Acquire) {
            return error;
        }
        self.unanswered().writes_until = Some(Instant::now() + REMEMBERED_FOR);
        StoreError::OutcomeUnknown(Box::new(error))
    }

    /// `is_open`: the batch was sent, in this attempt or before, whose answer is not known.
    async fn attempt(
        &self,
        columns: &Columns<'_>,
        again: bool,
        is_open: &AtomicBool,
    ) -> Result<Vec<WriteOutcome>, StatementError> {
        let mut connection =
            self.write_pool.take_heard_of(SURE_FOR).await.map_err(StatementError::NotConnected)?;
        match carry_out(&mut connection, columns, again, is_open).await {
            Ok(rows) => {
                connection.keep();
                outcomes(&rows, columns.length).map_err(StatementError::TimedOut)
            }
            Err(error) => {
                connection.keep_after(&error);
                Err(StatementError::Failed(error))
            }
        }
    }
}

async fn carry_out(
    connection: &mut sqlx::PgConnection,
    columns: &Columns<'_>,
    again: bool,
    is_open: &AtomicBool,
) -> Result<Vec<PgRow>, sqlx::Error> {
    fault_point::passed("write.begun");
    // By itself, so that what follows is one round trip, and what fails before it was certainly not done.
    connection.prepare(columns.statement().into_sql_str()).await?;
    let was_open = is_open.swap(true, Ordering::AcqRel);
    let rows = columns.query(again).fetch_all(&mut *connection).await.inspect_err(|error| {
        // The server's own word that it did not.
        if remedy(error) != RetryAction::Reconnect {
            is_open.store(was_open, Ordering::Release);
        }
    })?;
    fault_point::passed("write.committed");
    Ok(rows)
}

/// In the order of the batch.
fn outcomes(rows: &[PgRow], length: usize) -> Result<Vec<WriteOutcome>, StoreError> {
    let missing = || StoreError::Corrupt {
        detail: "the functions of its schema are not those of this build".into(),
    };
    let mut outcomes = vec![None; length];
    for row in rows {
        let place = usize::try_from(get::<i64>(row, "place")?).ok();
        *place.and_then(|place| outcomes.get_mut(place)).ok_or_else(missing)? =
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
