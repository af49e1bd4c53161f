//! Batches of writes: one transaction of at most two statements, each a function of the schema that takes its half of the
//! batch as columns. With the begin and the commit this is four round trips, however long the batch is.
//!
//! A transaction whose commit was not sent takes no effect. When the connection is lost after that, nobody knows. The batch is
//! then carried out again on a new connection and told that it may have been before (`again`). The locks of the first attempt,
//! should the server still be at it, make the second one wait for its end. Each kind of write then finds out by itself what is
//! its own:
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

use sqlx::{Connection as _, postgres::PgRow};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    ANSWER_WITHIN, PostgresStore, SETTLED_WITHIN, StatementError, TRIES_MAX,
    columns::Columns,
    fault::{Remedy, remedy},
    moment,
    rows::get,
};
use crate::{StoreError, TaskLimit, Write, Written, fault_point};

/// How long after a batch whose outcome nobody knows writes are taken for possible repetitions of its own. A write that is
/// none is done no harm: what it would have been refused for is then as it wanted it to be.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// Before a lost connection's batch is carried out again.
const SETTLE_AFTER: Duration = Duration::from_millis(20);

impl PostgresStore {
    pub(super) async fn write_batch(&self, batch: &[Write]) -> Result<Vec<Written>, StoreError> {
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
                StatementError::NotConnected(_) | StatementError::Late(_) => return Err(self.given_up(error.into(), &is_open)),
            };
            let remedy = remedy(cause);
            if remedy == Remedy::None || tries >= TRIES_MAX || Instant::now() >= give_up_at {
                return Err(self.given_up(error.into(), &is_open));
            }
            if remedy == Remedy::Reconnect {
                self.distrust();
                sleep(SETTLE_AFTER).await;
            } else {
                sleep(moment()).await;
            }
            tries += 1;
        }
    }

    /// There is no more time. Where a commit was sent, nobody knows whether the batch was carried out; its sender may try again.
    fn given_up(&self, error: StoreError, is_open: &AtomicBool) -> StoreError {
        if !is_open.load(Ordering::Acquire) {
            return error;
        }
        self.unanswered().writes_until = Some(Instant::now() + REMEMBERED_FOR);
        StoreError::Unsettled(Box::new(error))
    }

    /// `is_open`: a commit was sent, in this attempt or before, whose answer is not known.
    async fn attempt(&self, columns: &Columns<'_>, again: bool, is_open: &AtomicBool) -> Result<Vec<Written>, StatementError> {
        let mut connection = self.write_pool.take().await.map_err(StatementError::NotConnected)?;
        match transaction(&mut connection, columns, again, is_open).await {
            Ok(rows) => {
                connection.keep();
                outcomes(&rows, columns.length).map_err(StatementError::Late)
            }
            Err(error) => {
                // Dropping the transaction has queued its end; it is over before anybody else gets the connection.
                if remedy(&error) != Remedy::Reconnect && matches!(timeout(ANSWER_WITHIN, connection.ping()).await, Ok(Ok(()))) {
                    connection.keep_after(&error);
                }
                Err(StatementError::Failed(error))
            }
        }
    }
}

async fn transaction(
    connection: &mut sqlx::PgConnection,
    columns: &Columns<'_>,
    again: bool,
    is_open: &AtomicBool,
) -> Result<Vec<PgRow>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    fault_point::passed("write.begun");
    let mut rows = Vec::with_capacity(columns.length);
    if !columns.sessions.is_empty() {
        rows.extend(columns.sessions.query(again).fetch_all(&mut *transaction).await?);
    }
    if !columns.tasks.is_empty() {
        rows.extend(columns.tasks.query(again).fetch_all(&mut *transaction).await?);
    }
    fault_point::passed("write.executed");
    let was_open = is_open.swap(true, Ordering::AcqRel);
    transaction.commit().await.inspect_err(|error| {
        // The server's own word that it did not.
        if remedy(error) != Remedy::Reconnect {
            is_open.store(was_open, Ordering::Release);
        }
    })?;
    fault_point::passed("write.committed");
    Ok(rows)
}

/// In the order of the batch.
fn outcomes(rows: &[PgRow], length: usize) -> Result<Vec<Written>, StoreError> {
    let missing = || StoreError::Corrupt { detail: "the functions of its schema are not those of this build".into() };
    let mut outcomes = vec![None; length];
    for row in rows {
        let place = usize::try_from(get::<i64>(row, "place")?).ok();
        *place.and_then(|place| outcomes.get_mut(place)).ok_or_else(missing)? = Some(outcome(row)?.ok_or_else(missing)?);
    }
    outcomes.into_iter().collect::<Option<Vec<Written>>>().ok_or_else(missing)
}

fn outcome(row: &PgRow) -> Result<Option<Written>, StoreError> {
    Ok(Some(match get::<i16>(row, "outcome")? {
        0 => Written::Done,
        1 => Written::Created { at_us: get(row, "at_us")? },
        2 => Written::Fenced,
        3 => Written::Over,
        4 => Written::Absent,
        5 => Written::Known(protocol::ids::TaskId::new(get::<&str>(row, "known")?)),
        6 => Written::Full(TaskLimit::Running),
        7 => Written::Full(TaskLimit::Stored),
        8 => Written::Full(TaskLimit::Bytes),
        _ => return Ok(None),
    }))
}
