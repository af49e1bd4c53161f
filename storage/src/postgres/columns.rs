//! Layout of a batch of writes for the functions `write_sessions` and `write_tasks` of the schema.
//! Sessions and tasks are separate, each as columns of one length. NULL stands for a column that a
//! kind of write does not have.

use records::{TaskStep, WriteOp};
use sqlx::{
    postgres::{PgArguments, Postgres},
    query::Query,
};

use super::{micros, tasks};

/// A batch, with sessions and tasks separate, each as columns of the same length.
pub(super) struct Columns<'b> {
    pub(super) length: usize,
    sessions: SessionColumns<'b>,
    tasks: TaskColumns<'b>,
}

/// Declares a struct of columns and a method to add a row. Columns that a row does not name are
/// NULL.
macro_rules! columns {
    ($columns:ident, $row:ident, { $($column:ident, $field:ident: $kind:ty;)* }) => {
        #[derive(Default)]
        struct $columns<'b> {
            /// Position of each row in the batch.
            positions: Vec<i64>,
            kinds: Vec<i16>,
            $($column: Vec<Option<$kind>>,)*
        }

        #[derive(Default)]
        struct $row<'b> {
            $($field: Option<$kind>,)*
        }

        impl<'b> $columns<'b> {
            fn is_empty(&self) -> bool {
                self.kinds.is_empty()
            }

            fn add(&mut self, position: i64, kind: i16, row: $row<'b>) {
                self.positions.push(position);
                self.kinds.push(kind);
                $(self.$column.push(row.$field);)*
            }

            /// Binds the positions, the kinds, the other columns in their order, and `again`.
            fn bind<'q>(&'q self, query: Query<'q, Postgres, PgArguments>, again: bool) -> Query<'q, Postgres, PgArguments> {
                query.bind(&self.positions[..]).bind(&self.kinds[..])$(.bind(&self.$column[..]))*.bind(again)
            }
        }
    };
}

columns!(SessionColumns, SessionRow, {
    keys, key: &'b [u8];
    epochs, epoch: i64;
    idles_us, idle_us: i64;
    owners, owner: &'b str;
    tenants, tenant: &'b str;
    principals, principal: &'b str;
    endpoints, endpoint: &'b str;
    api_keys, api_key: &'b str;
    transports, transport: &'b str;
    versions, version: &'b str;
    agreements, agreement: &'b [u8];
    states, state: &'b [u8];
    links, link: &'b [u8];
    exposed_uris, exposed_uri: &'b [u8];
    backends, backend: &'b str;
    uris, uri: &'b [u8];
});

columns!(TaskColumns, TaskRow, {
    ids, id: &'b str;
    epochs, epoch: i64;
    numbers, number: i64;
    owners, owner: &'b str;
    tenants, tenant: &'b str;
    principals, principal: &'b str;
    sessions, session: &'b [u8];
    privates, private: bool;
    backends, backend: &'b str;
    requests, request: &'b [u8];
    details, detail: &'b [u8];
    idempotencies, idempotency: &'b [u8];
    ttls_us, ttl_us: i64;
    limits_running, limit_running: i64;
    limits_stored, limit_stored: i64;
    limits_bytes, limit_bytes: i64;
    steps, step: i16;
    backend_tasks, backend_task: &'b [u8];
    links, link: &'b [u8];
    statuses, status: &'b str;
    messages, message: &'b [u8];
    outcomes, outcome: &'b [u8];
});

const WRITE_SESSIONS: &str = "SELECT place, outcome FROM write_sessions($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)";

const WRITE_TASKS: &str = "SELECT place, outcome, at_us, known FROM write_tasks(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)";

const WRITE_BOTH: &str = "SELECT place, outcome, NULL::bigint AS at_us, NULL::text AS known
    FROM write_sessions($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
    UNION ALL SELECT place, outcome, at_us, known FROM write_tasks(
        $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44)";

impl Columns<'_> {
    /// Returns the one statement that carries out the batch.
    pub(super) fn statement(&self) -> &'static str {
        match (self.sessions.is_empty(), self.tasks.is_empty()) {
            (_, true) => WRITE_SESSIONS,
            (true, false) => WRITE_TASKS,
            (false, false) => WRITE_BOTH,
        }
    }

    pub(super) fn query(&self, again: bool) -> Query<'_, Postgres, PgArguments> {
        let query = sqlx::query(self.statement());
        match (self.sessions.is_empty(), self.tasks.is_empty()) {
            (_, true) => self.sessions.bind(query, again),
            (true, false) => self.tasks.bind(query, again),
            (false, false) => self.tasks.bind(self.sessions.bind(query, again), again),
        }
    }
}

impl<'b> Columns<'b> {
    pub(super) fn of(batch: &'b [WriteOp]) -> Self {
        let mut columns = Self {
            length: batch.len(),
            sessions: SessionColumns::default(),
            tasks: TaskColumns::default(),
        };
        for (position, write) in (0..).zip(batch) {
            if let Some((kind, row)) = session_row(write) {
                columns.sessions.add(position, kind, row);
            } else if let Some((kind, row)) = task_row(write) {
                columns.tasks.add(position, kind, row);
            }
        }
        columns
    }
}

/// Returns the kind, as the schema's function numbers it, and the columns. Returns `None` if the
/// write is not about a session.
fn session_row(write: &WriteOp) -> Option<(i16, SessionRow<'_>)> {
    let row = match write {
        WriteOp::OpenSession { record, owner } => SessionRow {
            key: Some(record.key.as_bytes()),
            owner: Some(owner.as_str()),
            tenant: Some(record.identity.tenant.as_str()),
            principal: Some(record.identity.principal.as_str()),
            endpoint: record.identity.endpoint.as_ref().map(|endpoint| endpoint.as_str()),
            api_key: record.api_key.as_ref().map(|key| key.as_str()),
            transport: Some(&record.transport),
            version: Some(&record.version),
            agreement: Some(&record.agreement),
            state: Some(&record.state),
            link: Some(&record.links),
            ..SessionRow::default()
        },
        WriteOp::UpdateSession { key, epoch, idle, state, links } => SessionRow {
            key: Some(key.as_bytes()),
            epoch: Some(*epoch),
            idle_us: Some(micros(*idle)),
            state: state.as_deref(),
            link: links.as_deref(),
            ..SessionRow::default()
        },
        WriteOp::ReleaseSession { key, epoch, idle, state, links } => SessionRow {
            key: Some(key.as_bytes()),
            epoch: Some(*epoch),
            idle_us: Some(micros(*idle)),
            state: Some(state),
            link: Some(links),
            ..SessionRow::default()
        },
        WriteOp::EndSession { key, epoch } => {
            SessionRow { key: Some(key.as_bytes()), epoch: Some(*epoch), ..SessionRow::default() }
        }
        WriteOp::Subscribe { key, epoch, subscription } => SessionRow {
            key: Some(key.as_bytes()),
            epoch: Some(*epoch),
            exposed_uri: Some(subscription.exposed_uri.as_bytes()),
            backend: Some(subscription.backend.as_str()),
            uri: Some(subscription.uri.as_bytes()),
            ..SessionRow::default()
        },
        WriteOp::Unsubscribe { key, epoch, exposed_uri } => SessionRow {
            key: Some(key.as_bytes()),
            epoch: Some(*epoch),
            exposed_uri: Some(exposed_uri.as_bytes()),
            ..SessionRow::default()
        },
        _ => return None,
    };
    Some((kind(write), row))
}

fn task_row(write: &WriteOp) -> Option<(i16, TaskRow<'_>)> {
    let none = TaskRow::default();
    let row = match write {
        WriteOp::CreateTask { record, owner, limits } => TaskRow {
            id: Some(record.task.as_str()),
            owner: Some(owner.as_str()),
            tenant: Some(record.tenant.as_str()),
            principal: Some(record.principal.as_str()),
            session: Some(record.session.as_bytes()),
            private: Some(record.private),
            backend: Some(record.backend.as_str()),
            request: Some(&record.request),
            detail: Some(&record.details),
            idempotency: record.idempotency.as_deref(),
            ttl_us: record.ttl.map(micros),
            limit_running: Some(at_most(limits.running)),
            limit_stored: Some(at_most(limits.stored)),
            limit_bytes: Some(at_most(limits.bytes)),
            ..none
        },
        WriteOp::AdvanceTask { task, epoch, step } => {
            let (step, backend_task, link) = match step {
                TaskStep::Queued => (tasks::QUEUED, None, None),
                TaskStep::Sent => (tasks::SENT, None, None),
                TaskStep::Delegated { backend_task, link } => {
                    (tasks::MIRRORED, Some(backend_task.as_bytes()), Some(link.as_slice()))
                }
            };
            TaskRow {
                id: Some(task.as_str()),
                epoch: Some(*epoch),
                step: Some(step),
                backend_task,
                link,
                ..none
            }
        }
        WriteOp::EndTask { task, epoch, status, message, outcome } => TaskRow {
            id: Some(task.as_str()),
            epoch: *epoch,
            status: Some(status.name()),
            message: message.as_ref().map(|message| message.as_bytes()),
            outcome: outcome.as_deref(),
            ..none
        },
        WriteOp::ReleaseTask { task, epoch } => {
            TaskRow { id: Some(task.as_str()), epoch: Some(*epoch), ..none }
        }
        WriteOp::RequestInput { task, epoch, number, request, bytes_max } => TaskRow {
            id: Some(task.as_str()),
            epoch: Some(*epoch),
            number: Some(*number),
            request: Some(request),
            limit_bytes: Some(at_most(*bytes_max)),
            ..none
        },
        WriteOp::AnswerInput { task, number, answer, bytes_max } => TaskRow {
            id: Some(task.as_str()),
            number: Some(*number),
            outcome: Some(answer),
            limit_bytes: Some(at_most(*bytes_max)),
            ..none
        },
        WriteOp::CloseInput { task, epoch, number } => {
            TaskRow { id: Some(task.as_str()), epoch: Some(*epoch), number: Some(*number), ..none }
        }
        _ => return None,
    };
    Some((kind(write), row))
}

/// Returns the number of the kind in the schema's functions. Sessions and tasks count separately.
fn kind(write: &WriteOp) -> i16 {
    match write {
        WriteOp::OpenSession { .. } | WriteOp::CreateTask { .. } => 0,
        WriteOp::UpdateSession { .. } | WriteOp::AdvanceTask { .. } => 1,
        WriteOp::ReleaseSession { .. } | WriteOp::EndTask { .. } => 2,
        WriteOp::EndSession { .. } | WriteOp::ReleaseTask { .. } => 3,
        WriteOp::Subscribe { .. } | WriteOp::RequestInput { .. } => 4,
        WriteOp::Unsubscribe { .. } | WriteOp::AnswerInput { .. } => 5,
        WriteOp::CloseInput { .. } => 6,
    }
}

fn at_most(limit: u64) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
