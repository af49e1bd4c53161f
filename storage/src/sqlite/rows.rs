//! Converts rows to sessions and tasks. The store skips a row that it cannot read, counts it, and
//! logs its key, but never its content.

use std::{str, time::Duration};

use protocol::ids::{BackendId, EndpointName, KeyId, PrincipalId, TaskId, TenantId};
use records::{
    FullTask, NodeName, NodeRecord, SessionIdentity, SessionKey, SessionRecord, StoredSession,
    StoredTask, TaskRecord, TaskStatus, TaskStep,
};
use sqlx::{Decode, Row, Sqlite, Type, sqlite::SqliteRow};

use super::{SqliteStore, error_mapping::map_error};
use crate::{StoreError, audit_rows::Column};

/// The column that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnreadableColumn(pub(super) &'static str);

/// Reads a column of a row.
pub(super) fn get<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(
    row: &'r SqliteRow,
    column: &'static str,
) -> Result<T, UnreadableColumn> {
    row.try_get(column).map_err(|_| UnreadableColumn(column))
}

impl SqliteStore {
    /// Returns the readable rows. `key` names a row for the log.
    pub(super) fn readable<T>(
        &self,
        rows: &[SqliteRow],
        key: fn(&SqliteRow) -> String,
        read: impl Fn(&SqliteRow) -> Result<T, UnreadableColumn>,
    ) -> Vec<T> {
        rows.iter().filter_map(|row| self.report(read(row), || key(row))).collect()
    }

    pub(super) fn report<T>(
        &self,
        read: Result<T, UnreadableColumn>,
        key: impl FnOnce() -> String,
    ) -> Option<T> {
        read.inspect_err(|UnreadableColumn(column)| {
            self.count_unreadable();
            tracing::error!(
                key = key(),
                column,
                "a row of the database cannot be read and is left out"
            );
        })
        .ok()
    }
}

/// Returns the name of a session for the log.
pub(super) fn session_name(row: &SqliteRow) -> String {
    let key: &[u8] = get(row, "key").unwrap_or_default();
    SessionKey::from_slice(key)
        .map_or_else(|| "a session".into(), |key| format!("session {}", key.digest()))
}

/// Returns the name of a task for the log.
pub(super) fn task_name(row: &SqliteRow) -> String {
    format!("task {}", get::<&str>(row, "task").unwrap_or_default())
}

pub(super) fn session_key(
    row: &SqliteRow,
    column: &'static str,
) -> Result<SessionKey, UnreadableColumn> {
    SessionKey::from_slice(get(row, column)?).ok_or(UnreadableColumn(column))
}

impl<T> Column<T> for SqliteRow
where
    T: for<'r> Decode<'r, Sqlite> + Type<Sqlite>,
{
    fn column(&self, name: &str) -> Result<T, StoreError> {
        self.try_get(name).map_err(map_error)
    }
}

pub(super) fn tenant_id(row: &SqliteRow) -> Result<TenantId, UnreadableColumn> {
    TenantId::parse(get(row, "tenant")?).map_err(|_| UnreadableColumn("tenant"))
}

pub(super) fn backend_id(row: &SqliteRow) -> Result<BackendId, UnreadableColumn> {
    BackendId::parse(get(row, "backend")?).map_err(|_| UnreadableColumn("backend"))
}

pub(super) fn count(row: &SqliteRow, column: &'static str) -> Result<u64, UnreadableColumn> {
    u64::try_from(get::<i64>(row, column)?).map_err(|_| UnreadableColumn(column))
}

/// Reads a node from a row with the columns of `nodes`. `name` is the column with the node's name.
pub(super) fn node_record(
    row: &SqliteRow,
    name: &'static str,
    now_us: i64,
) -> Result<Option<NodeRecord>, UnreadableColumn> {
    let Some(node) = get::<Option<String>>(row, name)? else { return Ok(None) };
    let remaining =
        get::<Option<i64>>(row, "lease_until_us")?.unwrap_or(now_us).saturating_sub(now_us);
    Ok(Some(NodeRecord {
        node: NodeName::new(node),
        address: get(row, "address")?,
        draining: get::<Option<bool>>(row, "draining")?.unwrap_or(false),
        remaining_lease: Duration::from_micros(u64::try_from(remaining).unwrap_or(0)),
    }))
}

/// Selects the columns that [`session_record`] and [`stored_session`] read, by the index if one is
/// given.
macro_rules! select_sessions {
    ($index:literal, $rest:literal) => {
        select_sessions!(@ concat!(" INDEXED BY ", $index), $rest)
    };
    ($rest:literal) => {
        select_sessions!(@ "", $rest)
    };
    (@ $index:expr, $rest:literal) => {
        concat!(
            "SELECT s.number, s.key, s.tenant, s.principal, s.endpoint, s.api_key, s.transport, s.version, s.agreement, s.state, s.links,
                    s.owner, s.epoch, s.end_asked, s.created_at_us, s.seen_at_us, n.address, n.draining, n.lease_until_us,
                    (SELECT count(*) FROM subscriptions WHERE session = s.number) AS subscriptions
             FROM sessions s",
            $index,
            " LEFT JOIN nodes n ON n.node = s.owner ",
            $rest
        )
    };
}
pub(super) use select_sessions;

pub(super) fn session_record(row: &SqliteRow) -> Result<SessionRecord, UnreadableColumn> {
    let endpoint = get::<Option<&str>>(row, "endpoint")?
        .map(EndpointName::parse)
        .transpose()
        .map_err(|_| UnreadableColumn("endpoint"))?;
    Ok(SessionRecord {
        key: session_key(row, "key")?,
        identity: SessionIdentity {
            tenant: tenant_id(row)?,
            principal: PrincipalId::new(get::<String>(row, "principal")?),
            endpoint,
        },
        api_key: get::<Option<String>>(row, "api_key")?.map(KeyId::new),
        transport: get(row, "transport")?,
        version: get(row, "version")?,
        agreement: get(row, "agreement")?,
        state: get(row, "state")?,
        links: get(row, "links")?,
    })
}

pub(super) fn stored_session(
    row: &SqliteRow,
    now_us: i64,
) -> Result<StoredSession, UnreadableColumn> {
    Ok(StoredSession {
        record: session_record(row)?,
        owner: node_record(row, "owner", now_us)?,
        epoch: get(row, "epoch")?,
        created_at_us: get(row, "created_at_us")?,
        seen_at_us: get(row, "seen_at_us")?,
        subscriptions: count(row, "subscriptions")?,
    })
}

/// Selects the columns that [`stored_task`] reads. Leaves out columns with long values.
macro_rules! task_columns {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " task, tenant, principal, session, private, backend, x'' AS request, details, idempotency, ttl_us, status, message,
              step, backend_task, x'' AS link, owner, created_at_us, updated_at_us, epoch, revision ",
            $after
        )
    };
}
pub(super) use task_columns;

/// Selects the columns that [`whole_task`] reads.
macro_rules! whole_task_columns {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " task, tenant, principal, session, private, backend, request, details, idempotency, ttl_us, status, message, step,
              backend_task, link, owner, created_at_us, updated_at_us, epoch, revision, expires_at_us ",
            $after
        )
    };
}
pub(super) use whole_task_columns;

pub(super) fn whole_task(row: &SqliteRow, now_us: i64) -> Result<FullTask, UnreadableColumn> {
    let remaining = get::<Option<i64>>(row, "expires_at_us")?.map(|end| end.saturating_sub(now_us));
    let remaining =
        remaining.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)));
    Ok(FullTask { stored: stored_task(row)?, remaining_ttl: remaining })
}

pub(super) fn stored_task(row: &SqliteRow) -> Result<StoredTask, UnreadableColumn> {
    let ttl = get::<Option<i64>>(row, "ttl_us")?
        .map(u64::try_from)
        .transpose()
        .map_err(|_| UnreadableColumn("ttl_us"))?;
    let record = TaskRecord {
        task: TaskId::new(get::<String>(row, "task")?),
        tenant: tenant_id(row)?,
        principal: PrincipalId::new(get::<String>(row, "principal")?),
        session: session_key(row, "session")?,
        private: get(row, "private")?,
        backend: backend_id(row)?,
        request: get(row, "request")?,
        details: get(row, "details")?,
        idempotency: get(row, "idempotency")?,
        ttl: ttl.map(Duration::from_micros),
    };
    Ok(StoredTask {
        record,
        status: task_status(row)?,
        message: get(row, "message")?,
        step: task_step(row)?,
        owner: get::<Option<String>>(row, "owner")?.map(NodeName::new),
        created_at_us: get(row, "created_at_us")?,
        updated_at_us: get(row, "updated_at_us")?,
        epoch: get(row, "epoch")?,
        revision: get(row, "revision")?,
    })
}

pub(super) fn task_status(row: &SqliteRow) -> Result<TaskStatus, UnreadableColumn> {
    TaskStatus::parse(get(row, "status")?).ok_or(UnreadableColumn("status"))
}

fn task_step(row: &SqliteRow) -> Result<TaskStep, UnreadableColumn> {
    match get(row, "step")? {
        "queued" => Ok(TaskStep::Queued),
        "sent" => Ok(TaskStep::Sent),
        "mirrored" => Ok(TaskStep::Delegated {
            backend_task: get(row, "backend_task")?,
            link: get(row, "link")?,
        }),
        _ => Err(UnreadableColumn("step")),
    }
}

/// Returns the columns that [`task_step`] reads: the step's name, the backend's task and the link.
pub(super) fn step_columns(step: &TaskStep) -> (&'static str, Option<&str>, Option<&[u8]>) {
    match step {
        TaskStep::Queued => ("queued", None, None),
        TaskStep::Sent => ("sent", None, None),
        TaskStep::Delegated { backend_task, link } => ("mirrored", Some(backend_task), Some(link)),
    }
}
