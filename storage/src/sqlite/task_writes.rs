//! Writes to tasks: creation, steps, inputs and end. Triggers maintain the usage of each tenant,
//! which contains the bytes of open inputs. This file only compares it with the tenant's limits.

use protocol::ids::TaskId;
use records::{NodeName, TaskLimit, TaskLimits, TaskRecord, TaskStatus, TaskStep, WriteOutcome};
use sqlx::{Row, sqlite::SqliteConnection};

use super::{error_mapping::map_error, micros, rows::step_columns};
use crate::StoreError;

pub(super) async fn create(
    connection: &mut SqliteConnection,
    record: &TaskRecord,
    owner: &NodeName,
    limits: &TaskLimits,
    now: i64,
) -> Result<WriteOutcome, StoreError> {
    let bytes = record.request.len() + record.details.len();
    if let Some(limit) = reached(connection, record, bytes, limits).await? {
        return Ok(known(connection, record, owner)
            .await?
            .unwrap_or(WriteOutcome::LimitReached(limit)));
    }
    let insert = sqlx::query_scalar(
        "INSERT INTO tasks (task, tenant, principal, session, private, backend, idempotency, owner, epoch, status, step, revision,
                            created_at_us, updated_at_us, ttl_us, expires_at_us, bytes, details, request)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, 'working', 'queued', 1, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING number",
    )
    .bind(record.task.as_str())
    .bind(record.tenant.as_str())
    .bind(record.principal.as_str())
    .bind(record.session.as_bytes().as_slice())
    .bind(record.private)
    .bind(record.backend.as_str())
    .bind(record.idempotency.as_deref())
    .bind(owner.as_str())
    .bind(now)
    .bind(now)
    .bind(record.ttl.map(micros))
    .bind(record.ttl.map(|ttl| now.saturating_add(micros(ttl))))
    .bind(i64::try_from(bytes).unwrap_or(i64::MAX))
    .bind(record.details.as_slice())
    .bind(record.request.as_slice());
    let number: Option<i64> = insert.fetch_optional(&mut *connection).await.map_err(map_error)?;
    let Some(number) = number else {
        // The task's id or its idempotency key is taken.
        return Ok(known(connection, record, owner).await?.unwrap_or(WriteOutcome::Fenced));
    };
    record_transition(
        connection,
        TaskRowRevision { number, revision: 1 },
        TaskStatus::Working,
        Some(1),
        now,
    )
    .await?;
    Ok(WriteOutcome::Created { at_us: now })
}

/// Returns the limit that the tenant has reached.
async fn reached(
    connection: &mut SqliteConnection,
    record: &TaskRecord,
    bytes: usize,
    limits: &TaskLimits,
) -> Result<Option<TaskLimit>, StoreError> {
    let select = sqlx::query(
        "SELECT coalesce(sum(tasks) FILTER (WHERE status IN ('working', 'input_required')), 0), coalesce(sum(tasks), 0),
                coalesce(sum(bytes), 0)
         FROM task_usage WHERE tenant = ?",
    );
    let row = select.bind(record.tenant.as_str()).fetch_one(connection).await.map_err(map_error)?;
    let at = |column: usize| {
        row.try_get::<i64, _>(column)
            .map(|count| u64::try_from(count).unwrap_or(0))
            .map_err(map_error)
    };
    let (running, stored, used) = (at(0)?, at(1)?, at(2)?);
    Ok(if running >= limits.running {
        Some(TaskLimit::Running)
    } else if stored >= limits.stored {
        Some(TaskLimit::Stored)
    } else if used.saturating_add(bytes as u64) > limits.bytes {
        Some(TaskLimit::Bytes)
    } else {
        None
    })
}

/// Returns the outcome for an existing task: the same task, written again by its owner, or an
/// earlier task with the same idempotency key.
async fn known(
    connection: &mut SqliteConnection,
    record: &TaskRecord,
    owner: &NodeName,
) -> Result<Option<WriteOutcome>, StoreError> {
    let same =
        sqlx::query("SELECT created_at_us, owner IS ? AND epoch = 1 FROM tasks WHERE task = ?");
    let same = same
        .bind(owner.as_str())
        .bind(record.task.as_str())
        .fetch_optional(&mut *connection)
        .await
        .map_err(map_error)?;
    if let Some(row) = same {
        let (at_us, is_its) =
            (row.try_get(0).map_err(map_error)?, row.try_get::<bool, _>(1).map_err(map_error)?);
        return Ok(Some(if is_its {
            WriteOutcome::Created { at_us }
        } else {
            WriteOutcome::Fenced
        }));
    }
    let Some(key) = record.idempotency.as_deref() else { return Ok(None) };
    let other = sqlx::query_scalar(
        "SELECT task FROM tasks WHERE tenant = ? AND principal = ? AND idempotency = ?",
    );
    let other = other.bind(record.tenant.as_str()).bind(record.principal.as_str()).bind(key);
    let other: Option<String> = other.fetch_optional(connection).await.map_err(map_error)?;
    Ok(other.map(|task| WriteOutcome::Duplicate(TaskId::new(task))))
}

pub(super) async fn step(
    connection: &mut SqliteConnection,
    task: &TaskId,
    epoch: i64,
    step: &TaskStep,
) -> Result<WriteOutcome, StoreError> {
    let (name, backend_task, link) = step_columns(step);
    let update = sqlx::query(
        "UPDATE tasks SET step = ?, backend_task = ?, link = ?
         WHERE task = ? AND epoch = ? AND status IN ('working', 'input_required')",
    );
    let update = update.bind(name).bind(backend_task).bind(link).bind(task.as_str()).bind(epoch);
    let updated = update.execute(&mut *connection).await.map_err(map_error)?.rows_affected() > 0;
    if updated { Ok(WriteOutcome::Done) } else { refusal(connection, task, Some(epoch)).await }
}

pub(super) async fn release(
    connection: &mut SqliteConnection,
    task: &TaskId,
    epoch: i64,
) -> Result<WriteOutcome, StoreError> {
    let update = sqlx::query(
        "UPDATE tasks SET owner = NULL, epoch = epoch + 1 WHERE task = ? AND epoch = ? AND status IN ('working', 'input_required')",
    );
    let updated = update
        .bind(task.as_str())
        .bind(epoch)
        .execute(&mut *connection)
        .await
        .map_err(map_error)?
        .rows_affected()
        > 0;
    if updated { Ok(WriteOutcome::Done) } else { refusal(connection, task, Some(epoch)).await }
}

/// Final state of a task.
pub(super) struct TaskEnd<'a> {
    pub(super) status: TaskStatus,
    pub(super) message: Option<&'a str>,
    pub(super) outcome: Option<&'a [u8]>,
}

pub(super) async fn end(
    connection: &mut SqliteConnection,
    task: &TaskId,
    epoch: Option<i64>,
    ending: TaskEnd<'_>,
    now: i64,
) -> Result<WriteOutcome, StoreError> {
    debug_assert!(ending.status.is_finished(), "a task ends with an end");
    let update = sqlx::query(
        "UPDATE tasks SET status = ?1, message = ?2, outcome = ?3, bytes = bytes + ?4, revision = revision + 1, updated_at_us = ?5
         WHERE task = ?6 AND (?7 IS NULL OR epoch = ?7) AND status IN ('working', 'input_required') RETURNING number, revision",
    )
    .bind(ending.status.name())
    .bind(ending.message)
    .bind(ending.outcome)
    .bind(i64::try_from(ending.outcome.map_or(0, <[u8]>::len)).unwrap_or(i64::MAX))
    .bind(now)
    .bind(task.as_str())
    .bind(epoch);
    let Some(moved) = moved(update.fetch_optional(&mut *connection).await)? else {
        return refusal(connection, task, epoch).await;
    };
    record_transition(connection, moved, ending.status, epoch, now).await?;
    let close = sqlx::query(
        "UPDATE task_inputs SET closed = 1, request = x'', answer = NULL WHERE task = ? AND closed = 0",
    );
    close.bind(moved.number).execute(connection).await.map_err(map_error)?;
    Ok(WriteOutcome::Done)
}

/// Returns the reason why this epoch wrote nothing.
async fn refusal(
    connection: &mut SqliteConnection,
    task: &TaskId,
    epoch: Option<i64>,
) -> Result<WriteOutcome, StoreError> {
    let select = sqlx::query_scalar("SELECT epoch FROM tasks WHERE task = ?").bind(task.as_str());
    let found: Option<i64> = select.fetch_optional(connection).await.map_err(map_error)?;
    Ok(match (found, epoch) {
        (None, None) => WriteOutcome::NotFound,
        (Some(found), Some(epoch)) if found == epoch => WriteOutcome::AlreadyFinished,
        (Some(_), None) => WriteOutcome::AlreadyFinished,
        (_, Some(_)) => WriteOutcome::Fenced,
    })
}

/// A task's row and its current revision.
#[derive(Clone, Copy)]
struct TaskRowRevision {
    number: i64,
    revision: i64,
}

fn moved(
    row: Result<Option<sqlx::sqlite::SqliteRow>, sqlx::Error>,
) -> Result<Option<TaskRowRevision>, StoreError> {
    let Some(row) = row.map_err(map_error)? else { return Ok(None) };
    Ok(Some(TaskRowRevision {
        number: row.try_get(0).map_err(map_error)?,
        revision: row.try_get(1).map_err(map_error)?,
    }))
}

/// Adds a line to the task's history.
async fn record_transition(
    connection: &mut SqliteConnection,
    moved: TaskRowRevision,
    to: TaskStatus,
    epoch: Option<i64>,
    now: i64,
) -> Result<(), StoreError> {
    let insert = sqlx::query(
        "INSERT INTO task_transitions (task, revision, status, at_us, epoch) VALUES (?, ?, ?, ?, ?)",
    );
    let insert =
        insert.bind(moved.number).bind(moved.revision).bind(to.name()).bind(now).bind(epoch);
    insert.execute(connection).await.map(drop).map_err(map_error)
}

/// Moves an unfinished task to `to`, if it is in `from`.
async fn transition(
    connection: &mut SqliteConnection,
    number: i64,
    [from, to]: [TaskStatus; 2],
    epoch: i64,
    now: i64,
) -> Result<(), StoreError> {
    let update = sqlx::query(
        "UPDATE tasks SET status = ?, revision = revision + 1, updated_at_us = ? WHERE number = ? AND status = ? RETURNING number, revision",
    );
    let update = update.bind(to.name()).bind(now).bind(number).bind(from.name());
    let Some(moved) = moved(update.fetch_optional(&mut *connection).await)? else { return Ok(()) };
    record_transition(connection, moved, to, Some(epoch), now).await
}

/// A request of a task for an input of its client, or the answer to it.
pub(super) struct InputBytes<'a> {
    pub(super) number: i64,
    pub(super) bytes: &'a [u8],
    /// Bytes that all tasks of the tenant may have.
    pub(super) bytes_max: u64,
}

impl InputBytes<'_> {
    /// Returns whether the tasks of the tenant of a task's row would have too many bytes with these.
    async fn are_too_many(
        &self,
        connection: &mut SqliteConnection,
        row: i64,
    ) -> Result<bool, StoreError> {
        let used = sqlx::query_scalar(
            "SELECT coalesce(sum(bytes), 0) FROM task_usage WHERE tenant = (SELECT tenant FROM tasks WHERE number = ?)",
        );
        let used: i64 = used.bind(row).fetch_one(connection).await.map_err(map_error)?;
        let used = u64::try_from(used).unwrap_or(0);
        Ok(used.saturating_add(self.bytes.len() as u64) > self.bytes_max)
    }
}

pub(super) async fn request_input(
    connection: &mut SqliteConnection,
    task: &TaskId,
    epoch: i64,
    input: InputBytes<'_>,
    now: i64,
) -> Result<WriteOutcome, StoreError> {
    let Some(row) = unfinished(connection, task, epoch).await? else {
        return refusal(connection, task, Some(epoch)).await;
    };
    let known = sqlx::query_scalar("SELECT closed FROM task_inputs WHERE task = ? AND number = ?")
        .bind(row)
        .bind(input.number);
    let known: Option<bool> = known.fetch_optional(&mut *connection).await.map_err(map_error)?;
    if let Some(closed) = known {
        return Ok(if closed { WriteOutcome::AlreadyFinished } else { WriteOutcome::Done });
    }
    if input.are_too_many(connection, row).await? {
        return Ok(WriteOutcome::LimitReached(TaskLimit::Bytes));
    }
    let insert = sqlx::query("INSERT INTO task_inputs (task, number, request) VALUES (?, ?, ?)");
    let insert = insert.bind(row).bind(input.number).bind(input.bytes);
    insert.execute(&mut *connection).await.map_err(map_error)?;
    transition(connection, row, [TaskStatus::Working, TaskStatus::InputRequired], epoch, now)
        .await?;
    Ok(WriteOutcome::Done)
}

pub(super) async fn answer(
    connection: &mut SqliteConnection,
    task: &TaskId,
    input: InputBytes<'_>,
) -> Result<WriteOutcome, StoreError> {
    // The end of a task closes its inputs, so an open input needs no check of the status.
    let select = sqlx::query(
        "SELECT task, closed = 0 AND answer IS NULL FROM task_inputs
         WHERE task = (SELECT number FROM tasks WHERE task = ?) AND number = ?",
    );
    let select = select.bind(task.as_str()).bind(input.number);
    let found = select.fetch_optional(&mut *connection).await.map_err(map_error)?;
    let Some(found) = found else { return Ok(WriteOutcome::NotFound) };
    if !found.try_get::<bool, _>(1).map_err(map_error)? {
        return Ok(WriteOutcome::AlreadyFinished);
    }
    let row: i64 = found.try_get(0).map_err(map_error)?;
    if input.are_too_many(connection, row).await? {
        return Ok(WriteOutcome::LimitReached(TaskLimit::Bytes));
    }
    let update = sqlx::query("UPDATE task_inputs SET answer = ? WHERE task = ? AND number = ?");
    let update = update.bind(input.bytes).bind(row).bind(input.number);
    update.execute(connection).await.map_err(map_error)?;
    Ok(WriteOutcome::Done)
}

pub(super) async fn close(
    connection: &mut SqliteConnection,
    task: &TaskId,
    epoch: i64,
    number: i64,
    now: i64,
) -> Result<WriteOutcome, StoreError> {
    let Some(row) = unfinished(connection, task, epoch).await? else {
        return refusal(connection, task, Some(epoch)).await;
    };
    let update = sqlx::query(
        "UPDATE task_inputs SET closed = 1, request = x'', answer = NULL WHERE task = ? AND number = ? AND closed = 0",
    );
    if update
        .bind(row)
        .bind(number)
        .execute(&mut *connection)
        .await
        .map_err(map_error)?
        .rows_affected()
        == 0
    {
        return Ok(WriteOutcome::Done);
    }
    let open =
        sqlx::query("SELECT 1 FROM task_inputs WHERE task = ? AND closed = 0 LIMIT 1").bind(row);
    if open.fetch_optional(&mut *connection).await.map_err(map_error)?.is_none() {
        transition(connection, row, [TaskStatus::InputRequired, TaskStatus::Working], epoch, now)
            .await?;
    }
    Ok(WriteOutcome::Done)
}

/// Returns the row of an unfinished task with this epoch.
async fn unfinished(
    connection: &mut SqliteConnection,
    task: &TaskId,
    epoch: i64,
) -> Result<Option<i64>, StoreError> {
    let select = sqlx::query_scalar(
        "SELECT number FROM tasks WHERE task = ? AND epoch = ? AND status IN ('working', 'input_required')",
    );
    select.bind(task.as_str()).bind(epoch).fetch_optional(connection).await.map_err(map_error)
}
