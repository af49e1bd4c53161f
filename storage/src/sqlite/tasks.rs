//! Tasks: lists, claims, expiry. `task_writes` contains the writes to one task.

use async_trait::async_trait;
use protocol::ids::{PrincipalId, TaskId, TenantId};
use records::{
    FullTask, InputCounts, NodeName, StoredTask, StoredTaskSnapshot, TaskAudience, TaskClaimScope,
    TaskInput, TaskListPosition, TaskStatus, TaskTransition,
};
use sqlx::sqlite::SqliteRow;

use super::{
    SqliteStore,
    error_mapping::map_error,
    now_us,
    rows::{
        count, get, stored_task, task_columns, task_name, task_status, whole_task,
        whole_task_columns,
    },
    with_deadline,
};
use crate::{StoreError, TaskStore, task_page::TaskPage};

impl SqliteStore {
    fn readable_tasks(&self, rows: &[SqliteRow]) -> Vec<StoredTask> {
        self.readable(rows, task_name, stored_task)
    }
}

fn position(row: &SqliteRow) -> Option<TaskListPosition> {
    let task = TaskId::new(get::<String>(row, "task").ok()?);
    Some(TaskListPosition { created_at_us: get(row, "created_at_us").ok()?, task })
}

#[async_trait]
impl TaskStore for SqliteStore {
    async fn task(&self, task: &TaskId) -> Result<Option<StoredTask>, StoreError> {
        with_deadline("reading a task", async {
            let select = sqlx::query(task_columns!("SELECT", "FROM tasks WHERE task = ?"))
                .bind(task.as_str());
            let rows = select.fetch_all(&self.readers).await.map_err(map_error)?;
            Ok(self.readable_tasks(&rows).pop())
        })
        .await
    }

    async fn task_snapshots(
        &self,
        tasks: &[TaskId],
    ) -> Result<Vec<StoredTaskSnapshot>, StoreError> {
        with_deadline("looking at tasks", async {
            let select = sqlx::query(task_columns!(
                "SELECT
                     (SELECT max(number) FROM task_inputs AS i WHERE i.task = tasks.number AND closed = 0) AS newest,
                     (SELECT count(*) FROM task_inputs AS i WHERE i.task = tasks.number AND closed = 0) AS asked,
                     (SELECT count(answer) FROM task_inputs AS i WHERE i.task = tasks.number AND closed = 0) AS answered,",
                "FROM tasks WHERE task IN (SELECT value FROM json_each(?))"
            ));
            let rows = select.bind(names(tasks)).fetch_all(&self.readers).await.map_err(map_error)?;
            Ok(self.readable(&rows, task_name, |row| {
                let newest = get::<Option<i64>>(row, "newest")?.unwrap_or_default();
                Ok(StoredTaskSnapshot {
                    stored: stored_task(row)?,
                    inputs: InputCounts {
                        newest,
                        open: count(row, "asked")?,
                        answered: count(row, "answered")?,
                    },
                })
            }))
        })
        .await
    }

    async fn full_task(&self, task: &TaskId) -> Result<Option<FullTask>, StoreError> {
        with_deadline("reading a task", async {
            let select = sqlx::query(whole_task_columns!("SELECT", "FROM tasks WHERE task = ?"))
                .bind(task.as_str());
            let rows = select.fetch_all(&self.readers).await.map_err(map_error)?;
            let now = now_us();
            Ok(self.readable(&rows, task_name, |row| whole_task(row, now)).pop())
        })
        .await
    }

    async fn task_of_key(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        key: &[u8],
    ) -> Result<Option<TaskId>, StoreError> {
        with_deadline("reading a task by its key", async {
            let select = sqlx::query_scalar(
                "SELECT task FROM tasks WHERE tenant = ? AND principal = ? AND idempotency = ?",
            );
            let select = select.bind(tenant.as_str()).bind(principal.as_str()).bind(key);
            let task: Option<String> =
                select.fetch_optional(&self.readers).await.map_err(map_error)?;
            Ok(task.map(TaskId::new))
        })
        .await
    }

    async fn task_outcome(&self, task: &TaskId) -> Result<Option<Vec<u8>>, StoreError> {
        with_deadline("reading an outcome", async {
            let select =
                sqlx::query_scalar("SELECT outcome FROM tasks WHERE task = ?").bind(task.as_str());
            let outcome: Option<Option<Vec<u8>>> =
                select.fetch_optional(&self.readers).await.map_err(map_error)?;
            Ok(outcome.flatten())
        })
        .await
    }

    async fn tasks_visible_to(
        &self,
        audience: &TaskAudience,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError> {
        with_deadline("listing tasks", async {
            let mut page = TaskPage::new(after, limit);
            while let Some((after, missing)) = page.missing() {
                let (after_us, after_task) = start(after.as_ref());
                let select = sqlx::query(task_columns!(
                    "SELECT",
                    "FROM tasks INDEXED BY tasks_by_audience WHERE tenant = ? AND principal = ? AND (created_at_us, task) > (?, ?) AND (private = 0 OR session = ?)
                     ORDER BY created_at_us, task LIMIT ?"
                ))
                .bind(audience.tenant.as_str())
                .bind(audience.principal.as_str())
                .bind(after_us)
                .bind(after_task)
                .bind(audience.session.as_bytes().as_slice())
                .bind(missing);
                let rows = select.fetch_all(&self.readers).await.map_err(map_error)?;
                let last = rows.last().and_then(position);
                page.add(rows.len(), last, self.readable_tasks(&rows));
            }
            Ok(page.into_tasks())
        })
        .await
    }

    async fn list_tasks(
        &self,
        tenant: Option<&TenantId>,
        status: Option<TaskStatus>,
        after: Option<&TaskListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredTask>, StoreError> {
        with_deadline("listing tasks", async {
            let mut page = TaskPage::new(after, limit);
            while let Some((after, missing)) = page.missing() {
                let (after_us, after_task) = start(after.as_ref());
                let select = sqlx::query(task_columns!(
                    "SELECT",
                    "FROM tasks INDEXED BY tasks_by_creation WHERE (created_at_us, task) > (?1, ?2) AND (?3 IS NULL OR tenant = ?3) AND (?4 IS NULL OR status = ?4)
                     ORDER BY created_at_us, task LIMIT ?5"
                ))
                .bind(after_us)
                .bind(after_task)
                .bind(tenant.map(TenantId::as_str))
                .bind(status.map(TaskStatus::name))
                .bind(missing);
                let rows = select.fetch_all(&self.readers).await.map_err(map_error)?;
                let last = rows.last().and_then(position);
                page.add(rows.len(), last, self.readable_tasks(&rows));
            }
            Ok(page.into_tasks())
        })
        .await
    }

    /// The deadline ends before the commit. A call that fails before then is rolled back. An
    /// abandoned commit could still take effect, and then no call would return its tasks. So the
    /// commit is awaited without a limit.
    async fn claim_tasks(
        &self,
        node: &NodeName,
        scope: TaskClaimScope,
        limit: u32,
        except: &[TaskId],
    ) -> Result<Vec<FullTask>, StoreError> {
        let now = now_us();
        let (except, only_released) = (names(except), scope == TaskClaimScope::Released);
        let executed = with_deadline("claiming tasks", async {
            // Usually no task is free, and this query does not block other writers.
            let look = sqlx::query(
                "SELECT 1 FROM tasks t INDEXED BY tasks_unfinished WHERE t.status IN ('working', 'input_required') AND t.owner IS NOT ?
                 AND NOT EXISTS (SELECT 1 FROM nodes WHERE node = t.owner AND lease_until_us > ?)
                 AND t.task NOT IN (SELECT value FROM json_each(?)) AND (t.owner IS NULL OR NOT ?) LIMIT 1",
            );
            let look = look.bind(node.as_str()).bind(now).bind(&except).bind(only_released);
            if look.fetch_optional(&self.readers).await.map_err(map_error)?.is_none() {
                return Ok(None);
            }
            let mut writing = self.begin().await?;
            let update = sqlx::query(whole_task_columns!(
                "UPDATE tasks SET owner = ?1, epoch = epoch + 1 WHERE number IN (
                     SELECT t.number FROM tasks t INDEXED BY tasks_unfinished WHERE t.status IN ('working', 'input_required') AND t.owner IS NOT ?1
                     AND NOT EXISTS (SELECT 1 FROM nodes WHERE node = t.owner AND lease_until_us > ?2)
                     AND t.task NOT IN (SELECT value FROM json_each(?4)) AND (t.owner IS NULL OR NOT ?5) ORDER BY t.number LIMIT ?3)
                 RETURNING",
                ""
            ));
            let update = update.bind(node.as_str()).bind(now).bind(limit);
            let update = update.bind(&except).bind(only_released);
            let rows = update.fetch_all(writing.connection()).await.map_err(map_error)?;
            Ok(Some((writing, rows)))
        });
        let Some((writing, rows)) = executed.await? else { return Ok(Vec::new()) };
        writing.commit_claim().await?;
        let mut claimed = self.readable(&rows, task_name, |row| whole_task(row, now));
        let order = |task: &FullTask| (task.stored.created_at_us, task.stored.record.task.clone());
        claimed.sort_by_key(order);
        Ok(claimed)
    }

    async fn unfinished_tasks_of(&self, nodes: &[NodeName]) -> Result<Vec<TaskId>, StoreError> {
        with_deadline("listing tasks of a node", async {
            let nodes = serde_json::to_string(&nodes.iter().map(NodeName::as_str).collect::<Vec<_>>())
                .unwrap_or_else(|_| "[]".into());
            let select = sqlx::query(
                "SELECT task FROM tasks INDEXED BY tasks_unfinished
                 WHERE status IN ('working', 'input_required') AND owner IN (SELECT value FROM json_each(?))",
            );
            let rows = select.bind(nodes).fetch_all(&self.readers).await.map_err(map_error)?;
            Ok(self.readable(&rows, task_name, |row| Ok(TaskId::new(get::<String>(row, "task")?))))
        })
        .await
    }

    async fn open_task_inputs(&self, task: &TaskId) -> Result<Vec<TaskInput>, StoreError> {
        with_deadline("reading a task's inputs", async {
            let select = sqlx::query(
                "SELECT i.number, i.request, i.answer, t.task FROM task_inputs i JOIN tasks t ON t.number = i.task
                 WHERE t.task = ? AND i.closed = 0 ORDER BY i.number",
            );
            let rows = select.bind(task.as_str()).fetch_all(&self.readers).await.map_err(map_error)?;
            Ok(self.readable(&rows, task_name, |row| {
                Ok(TaskInput {
                    number: get(row, "number")?,
                    request: get(row, "request")?,
                    answer: get(row, "answer")?,
                })
            }))
        })
        .await
    }

    async fn task_transitions(&self, task: &TaskId) -> Result<Vec<TaskTransition>, StoreError> {
        with_deadline("reading a task's history", async {
            let select = sqlx::query(
                "SELECT h.revision, h.status, h.at_us, h.epoch, t.task FROM task_transitions h JOIN tasks t ON t.number = h.task
                 WHERE t.task = ? ORDER BY h.revision",
            );
            let rows = select.bind(task.as_str()).fetch_all(&self.readers).await.map_err(map_error)?;
            Ok(self.readable(&rows, task_name, |row| {
                Ok(TaskTransition {
                    revision: get(row, "revision")?,
                    to: task_status(row)?,
                    at_us: get(row, "at_us")?,
                    epoch: get(row, "epoch")?,
                })
            }))
        })
        .await
    }

    async fn expire_tasks(&self, limit: u32) -> Result<Vec<TaskId>, StoreError> {
        with_deadline("deleting tasks", async {
            let mut writing = self.begin().await?;
            let delete = sqlx::query(
                "DELETE FROM tasks WHERE number IN (SELECT number FROM tasks INDEXED BY tasks_by_expiry WHERE expires_at_us <= ? ORDER BY expires_at_us LIMIT ?)
                 RETURNING task",
            );
            let rows =
                delete.bind(now_us()).bind(limit).fetch_all(writing.connection()).await.map_err(map_error)?;
            writing.commit().await?;
            Ok(self.readable(&rows, task_name, |row| Ok(TaskId::new(get::<String>(row, "task")?))))
        })
        .await
    }

    async fn task_counts(&self) -> Result<Vec<(TaskStatus, u64)>, StoreError> {
        with_deadline("counting tasks", async {
            let select =
                sqlx::query("SELECT status, sum(tasks) AS tasks FROM task_usage GROUP BY status");
            let rows = select.fetch_all(&self.readers).await.map_err(map_error)?;
            let counted = self.readable(
                &rows,
                |_| "task usage".into(),
                |row| Ok((task_status(row)?, count(row, "tasks")?)),
            );
            let of = |status| {
                counted
                    .iter()
                    .find(|(counted, _)| *counted == status)
                    .map_or(0, |(_, tasks)| *tasks)
            };
            Ok(TaskStatus::ALL.into_iter().map(|status| (status, of(status))).collect())
        })
        .await
    }
}

/// Encodes the ids for `json_each`.
fn names(tasks: &[TaskId]) -> String {
    serde_json::to_string(&tasks.iter().map(TaskId::as_str).collect::<Vec<_>>())
        .unwrap_or_else(|_| "[]".into())
}

/// Returns the first position of a list.
fn start(after: Option<&TaskListPosition>) -> (i64, &str) {
    after.map_or((i64::MIN, ""), |position| (position.created_at_us, position.task.as_str()))
}
