//! Tasks: owners, claims and reads. `write` contains their changes.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use protocol::ids::{PrincipalId, TaskId, TenantId};
use records::{
    FullTask, InputCounts, NodeName, SessionKey, StoredTask, StoredTaskSnapshot, TaskAudience,
    TaskClaimScope, TaskInput, TaskListPosition, TaskRecord, TaskStatus, TaskStep, TaskTransition,
};
use sqlx::{Row, postgres::PgRow};

use super::{
    PostgresStore, StatementError,
    rows::{self, count, get, may_exist, task_id, task_name},
};
use crate::{StoreError, TaskStore, task_page::TaskPage};

/// Progress of a task, as stored.
pub(super) const QUEUED: i16 = 0;
pub(super) const SENT: i16 = 1;
pub(super) const MIRRORED: i16 = 2;

/// Selects the columns that [`stored_task`] reads. Leaves out columns with long values.
macro_rules! stored_tasks {
    ($from:literal) => {
        stored_tasks!("", $from)
    };
    ($more:literal, $from:literal) => {
        concat!(
            "SELECT task, tenant, principal, session, private, backend, ''::bytea AS request, details, idempotency, ttl_us,
                    status, message, step, backend_task, ''::bytea AS link, owner, epoch, revision, created_at_us, updated_at_us",
            $more,
            " FROM ",
            $from
        )
    };
}

/// Selects the columns that [`whole_task`] reads: all except the outcome.
macro_rules! whole_tasks {
    ($from:literal) => {
        whole_tasks!("", $from)
    };
    ($more:literal, $from:literal) => {
        concat!(
            "SELECT task, tenant, principal, session, private, backend, request, details, idempotency, ttl_us, status, message,
                    step, backend_task, link, owner, epoch, revision, created_at_us, updated_at_us,
                    expires_at_us - now_us() AS left_us",
            $more,
            " FROM ",
            $from
        )
    };
}

/// Only a task that waits has inputs that are not closed.
pub(super) const LOOKS: &str = stored_tasks!(
    ", newest, coalesce(asked, 0) AS asked, coalesce(answered, 0) AS answered",
    "tasks LEFT JOIN LATERAL (
         SELECT max(number) AS newest, count(*) AS asked, count(answer) AS answered
         FROM task_inputs AS i WHERE i.task = tasks.task AND NOT i.closed
     ) AS inputs ON status = 'input_required'
     WHERE task = ANY ($1)"
);

pub(super) const TASKS_FOR: &str = stored_tasks!(
    "tasks WHERE tenant = $1 AND principal = $2 AND (NOT private OR session = $3)
        AND ($4::bigint IS NULL OR (created_at_us, task) > ($4, $5)) ORDER BY created_at_us, task LIMIT $6"
);

pub(super) const TASKS: &str = stored_tasks!(
    "tasks WHERE ($1::text IS NULL OR tenant = $1) AND ($2::text IS NULL OR status = $2)
        AND ($3::bigint IS NULL OR (created_at_us, task) > ($3, $4)) ORDER BY created_at_us, task LIMIT $5"
);

/// The digest is that of the index.
pub(super) const TASK_OF_KEY: &str = "SELECT task FROM tasks WHERE tenant = $1 AND principal = $2 AND sha256(idempotency) = sha256($3) AND idempotency = $3";

const CLAIM_RELEASED: &str = whole_tasks!(
    ", claim",
    "claim_released_tasks($1, $2, $3, $4, $5) ORDER BY created_at_us, task"
);

const CLAIM_UNOWNED: &str =
    whole_tasks!(", claim", "claim_tasks($1, $2, $3, $4, $5) ORDER BY created_at_us, task");

/// Counts tasks without reading the finished ones.
pub(super) const TASK_COUNTS: &str = "
    SELECT status, count(*) AS tasks FROM tasks WHERE status IN ('working', 'input_required') GROUP BY status
    UNION ALL
    SELECT ended.status, ended.tasks FROM
        (SELECT coalesce(sum(greatest(stored - running - failed - cancelled, 0)), 0)::bigint AS completed,
                coalesce(sum(greatest(failed, 0)), 0)::bigint AS failed,
                coalesce(sum(greatest(cancelled, 0)), 0)::bigint AS cancelled FROM task_usage) AS u,
        LATERAL (VALUES ('completed', completed), ('failed', failed), ('cancelled', cancelled)) AS ended (status, tasks)";

#[async_trait]
impl TaskStore for PostgresStore {
    async fn task(&self, task: &TaskId) -> Result<Option<StoredTask>, StoreError> {
        if !may_exist(task.as_str()) {
            return Ok(None);
        }
        let rows = self
            .rows(|_| sqlx::query(stored_tasks!("tasks WHERE task = $1")).bind(task.as_str()))
            .await?;
        Ok(self.read_tasks(&rows).pop())
    }

    async fn task_snapshots(
        &self,
        tasks: &[TaskId],
    ) -> Result<Vec<StoredTaskSnapshot>, StoreError> {
        let tasks = tasks.iter().map(TaskId::as_str);
        let tasks: Vec<&str> = tasks.filter(|task| may_exist(task)).collect();
        let rows = self.rows(|_| sqlx::query(LOOKS).bind(tasks.clone())).await?;
        let read = |row: &PgRow| {
            let newest = get::<Option<i64>>(row, "newest")?.unwrap_or_default();
            Ok(StoredTaskSnapshot {
                stored: stored_task(row)?,
                inputs: InputCounts {
                    newest,
                    open: count(row, "asked")?,
                    answered: count(row, "answered")?,
                },
            })
        };
        Ok(self.readable(&rows, read, task_name))
    }

    async fn full_task(&self, task: &TaskId) -> Result<Option<FullTask>, StoreError> {
        if !may_exist(task.as_str()) {
            return Ok(None);
        }
        let rows = self
            .rows(|_| sqlx::query(whole_tasks!("tasks WHERE task = $1")).bind(task.as_str()))
            .await?;
        Ok(self.readable(&rows, whole_task, task_name).pop())
    }

    async fn task_of_key(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        key: &[u8],
    ) -> Result<Option<TaskId>, StoreError> {
        let select =
            |_| sqlx::query(TASK_OF_KEY).bind(tenant.as_str()).bind(principal.as_str()).bind(key);
        let rows = self.rows(select).await?;
        let task: Option<String> = rows.first().map_or(Ok(None), |row| get(row, "task"))?;
        Ok(task.map(TaskId::new))
    }

    async fn task_outcome(&self, task: &TaskId) -> Result<Option<Vec<u8>>, StoreError> {
        if !may_exist(task.as_str()) {
            return Ok(None);
        }
        let rows = self
            .rows(|_| sqlx::query("SELECT outcome FROM tasks WHERE task = $1").bind(task.as_str()))
            .await?;
        rows.first().map_or(Ok(None), |row| get(row, "outcome"))
    }

    async fn tasks_visible_to(
        &self,
        audience: &TaskAudience,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError> {
        let mut page = TaskPage::new(after, limit);
        while let Some((after, missing)) = page.missing() {
            let select = |_| {
                sqlx::query(TASKS_FOR)
                    .bind(audience.tenant.as_str())
                    .bind(audience.principal.as_str())
                    .bind(audience.session.as_bytes().as_slice())
                    .bind(after.as_ref().map(|position| position.created_at_us))
                    .bind(after.as_ref().map(|position| position.task.as_str()))
                    .bind(i64::from(missing))
            };
            let rows = self.rows(select).await?;
            page.add(rows.len(), rows.last().and_then(position), self.read_tasks(&rows));
        }
        Ok(page.into_tasks())
    }

    async fn list_tasks(
        &self,
        tenant: Option<&TenantId>,
        status: Option<TaskStatus>,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError> {
        let mut page = TaskPage::new(after, limit);
        while let Some((after, missing)) = page.missing() {
            let select = |_| {
                sqlx::query(TASKS)
                    .bind(tenant.map(TenantId::as_str))
                    .bind(status.map(TaskStatus::name))
                    .bind(after.as_ref().map(|position| position.created_at_us))
                    .bind(after.as_ref().map(|position| position.task.as_str()))
                    .bind(i64::from(missing))
            };
            let rows = self.rows(select).await?;
            page.add(rows.len(), rows.last().and_then(position), self.read_tasks(&rows));
        }
        Ok(page.into_tasks())
    }

    /// A call whose answer was lost has made this node the owner of tasks that it does not know. No
    /// other node claims them while the node's lease is valid. The commit of that call may come
    /// late, and a later call does not wait for its locks. So each call has a token, and for a
    /// while each later call passes the tokens of the unanswered ones.
    async fn claim_tasks(
        &self,
        node: &NodeName,
        scope: TaskClaimScope,
        limit: u32,
        except: &[TaskId],
    ) -> Result<Vec<FullTask>, StoreError> {
        let _one_at_a_time = self.claiming.lock().await;
        let token: i64 = rand::random();
        let unanswered = self.in_doubt().record_claim(token);
        let except: Vec<&str> = except.iter().map(TaskId::as_str).collect();
        let was_repeated = AtomicBool::new(false);
        let claim = |again: bool| {
            was_repeated.fetch_or(again, Ordering::AcqRel);
            let own = again.then_some(token);
            sqlx::query(match scope {
                TaskClaimScope::Released => CLAIM_RELEASED,
                TaskClaimScope::Unowned => CLAIM_UNOWNED,
            })
            .bind(node.as_str())
            .bind(i32::try_from(limit).unwrap_or(i32::MAX))
            .bind(token)
            .bind(unanswered.iter().copied().chain(own).collect::<Vec<i64>>())
            .bind(except.clone())
        };
        let answer = self.rows(claim).await;
        let is_settled = match &answer {
            Ok(_) => !was_repeated.load(Ordering::Acquire),
            Err(error) => {
                matches!(error, StatementError::NotConnected(_))
                    && !was_repeated.load(Ordering::Acquire)
            }
        };
        // All tasks of one claim appear at once.
        let claims = answer
            .iter()
            .flatten()
            .filter_map(|row| row.try_get::<Option<i64>, _>("claim").ok().flatten());
        let settled: Vec<i64> = claims.chain(is_settled.then_some(token)).collect();
        self.in_doubt().claims.retain(|(token, _)| !settled.contains(token));
        Ok(self.readable(&answer?, whole_task, task_name))
    }

    async fn unfinished_tasks_of(&self, nodes: &[NodeName]) -> Result<Vec<TaskId>, StoreError> {
        let nodes: Vec<&str> = nodes.iter().map(NodeName::as_str).collect();
        let select = "SELECT task FROM tasks WHERE owner = ANY ($1) AND status IN ('working', 'input_required')";
        let rows = self.rows(|_| sqlx::query(select).bind(nodes.clone())).await?;
        Ok(self.readable(&rows, task_id, task_name))
    }

    async fn open_task_inputs(&self, task: &TaskId) -> Result<Vec<TaskInput>, StoreError> {
        let select = |_| {
            sqlx::query("SELECT number, request, answer FROM task_inputs WHERE task = $1 AND NOT closed ORDER BY number")
                .bind(task.as_str())
        };
        let read = |row: &PgRow| {
            Ok(TaskInput {
                number: get(row, "number")?,
                request: get(row, "request")?,
                answer: get(row, "answer")?,
            })
        };
        let rows = self.rows(select).await?;
        Ok(self.readable(&rows, read, |_| format!("an input of task {task}")))
    }

    async fn task_transitions(&self, task: &TaskId) -> Result<Vec<TaskTransition>, StoreError> {
        let select = |_| {
            sqlx::query("SELECT revision, status, at_us, epoch FROM task_transitions WHERE task = $1 ORDER BY revision").bind(task.as_str())
        };
        let read = |row: &PgRow| {
            Ok(TaskTransition {
                revision: get(row, "revision")?,
                to: status(row)?,
                at_us: get(row, "at_us")?,
                epoch: get(row, "epoch")?,
            })
        };
        let rows = self.rows(select).await?;
        Ok(self.readable(&rows, read, |_| format!("a transition of task {task}")))
    }

    async fn expire_tasks(&self, limit: u32) -> Result<Vec<TaskId>, StoreError> {
        let expire = |_| {
            sqlx::query("SELECT task FROM expire_tasks($1) AS task")
                .bind(i32::try_from(limit).unwrap_or(i32::MAX))
        };
        let rows = self.rows(expire).await?;
        Ok(self.readable(&rows, task_id, task_name))
    }

    async fn task_counts(&self) -> Result<Vec<(TaskStatus, u64)>, StoreError> {
        let rows = self.rows(|_| sqlx::query(TASK_COUNTS)).await?;
        let found = self.readable(
            &rows,
            |row| Ok((status(row)?, count(row, "tasks")?)),
            |_| "tasks of a status".into(),
        );
        let of = |wanted| {
            found.iter().find(|(status, _)| *status == wanted).map_or(0, |(_, tasks)| *tasks)
        };
        Ok(TaskStatus::ALL.map(|status| (status, of(status))).to_vec())
    }
}

impl PostgresStore {
    fn read_tasks(&self, rows: &[PgRow]) -> Vec<StoredTask> {
        self.readable(rows, stored_task, task_name)
    }
}

fn position(row: &PgRow) -> Option<TaskListPosition> {
    let task = TaskId::new(get::<String>(row, "task").ok()?);
    Some(TaskListPosition { created_at_us: get(row, "created_at_us").ok()?, task })
}

fn status(row: &PgRow) -> Result<TaskStatus, StoreError> {
    let name: &str = get(row, "status")?;
    TaskStatus::parse(name).ok_or_else(|| StoreError::Corrupt {
        detail: format!("a task has the unknown status {name:?}"),
    })
}

fn step(row: &PgRow) -> Result<TaskStep, StoreError> {
    match get::<i16>(row, "step")? {
        QUEUED => Ok(TaskStep::Queued),
        SENT => Ok(TaskStep::Sent),
        MIRRORED => Ok(TaskStep::Delegated {
            backend_task: rows::text(get(row, "backend_task")?)?,
            link: get(row, "link")?,
        }),
        other => {
            Err(StoreError::Corrupt { detail: format!("a task has the unknown step {other}") })
        }
    }
}

fn stored_task(row: &PgRow) -> Result<StoredTask, StoreError> {
    let session = SessionKey::from_slice(get(row, "session")?);
    let ttl_us: Option<i64> = get(row, "ttl_us")?;
    Ok(StoredTask {
        record: TaskRecord {
            task: task_id(row)?,
            tenant: rows::tenant(row)?,
            principal: PrincipalId::new(get::<&str>(row, "principal")?),
            session: session.ok_or_else(|| StoreError::Corrupt {
                detail: "a task's session key is not 32 bytes long".into(),
            })?,
            private: get(row, "private")?,
            backend: rows::backend(get(row, "backend")?)?,
            request: get(row, "request")?,
            details: get(row, "details")?,
            idempotency: get(row, "idempotency")?,
            ttl: ttl_us.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))),
        },
        status: status(row)?,
        message: get::<Option<Vec<u8>>>(row, "message")?.map(rows::text).transpose()?,
        step: step(row)?,
        owner: get::<Option<&str>>(row, "owner")?.map(NodeName::new),
        created_at_us: get(row, "created_at_us")?,
        updated_at_us: get(row, "updated_at_us")?,
        epoch: get(row, "epoch")?,
        revision: get(row, "revision")?,
    })
}

fn whole_task(row: &PgRow) -> Result<FullTask, StoreError> {
    let remaining: Option<i64> = get(row, "left_us")?;
    let remaining =
        remaining.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)));
    Ok(FullTask { stored: stored_task(row)?, remaining_ttl: remaining })
}
