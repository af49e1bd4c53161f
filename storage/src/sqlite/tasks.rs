//! Tasks: lists, claims, expiry. What is written about one task is in `task_writes`.

use protocol::ids::{TaskId, TenantId};
use sqlx::sqlite::SqliteRow;

use super::{
    SqliteStore,
    error_mapping::explain,
    now_us,
    rows::{
        count, get, stored_task, task_columns, task_name, task_status, whole_task,
        whole_task_columns,
    },
    sessions::commit_claim,
};
use crate::{
    FullTask, InputCounts, NodeName, StoreError, StoredTask, StoredTaskSnapshot, TaskAudience,
    TaskInput, TaskListPosition, TaskStatus, TaskTransition,
};

impl SqliteStore {
    fn readable_tasks(&self, rows: &[SqliteRow]) -> Vec<StoredTask> {
        self.readable(rows, task_name, stored_task)
    }
}

pub(super) async fn task(
    store: &SqliteStore,
    task: &TaskId,
) -> Result<Option<StoredTask>, StoreError> {
    let select =
        sqlx::query(task_columns!("SELECT", "FROM tasks WHERE task = ?")).bind(task.as_str());
    let rows = select.fetch_all(&store.readers).await.map_err(explain)?;
    Ok(store.readable_tasks(&rows).pop())
}

pub(super) async fn look_at(
    store: &SqliteStore,
    tasks: &[TaskId],
) -> Result<Vec<StoredTaskSnapshot>, StoreError> {
    let select = sqlx::query(task_columns!(
        "SELECT
             (SELECT max(number) FROM task_inputs AS i WHERE i.task = tasks.number AND closed = 0) AS newest,
             (SELECT count(*) FROM task_inputs AS i WHERE i.task = tasks.number AND closed = 0) AS asked,
             (SELECT count(answer) FROM task_inputs AS i WHERE i.task = tasks.number AND closed = 0) AS answered,",
        "FROM tasks WHERE task IN (SELECT value FROM json_each(?))"
    ));
    let rows = select.bind(names(tasks)).fetch_all(&store.readers).await.map_err(explain)?;
    Ok(store.readable(&rows, task_name, |row| {
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
}

/// For `json_each`.
fn names(tasks: &[TaskId]) -> String {
    serde_json::to_string(&tasks.iter().map(TaskId::as_str).collect::<Vec<_>>())
        .unwrap_or_else(|_| "[]".into())
}

pub(super) async fn whole(
    store: &SqliteStore,
    task: &TaskId,
) -> Result<Option<FullTask>, StoreError> {
    let select =
        sqlx::query(whole_task_columns!("SELECT", "FROM tasks WHERE task = ?")).bind(task.as_str());
    let rows = select.fetch_all(&store.readers).await.map_err(explain)?;
    let now = now_us();
    Ok(store.readable(&rows, task_name, |row| whole_task(row, now)).pop())
}

pub(super) async fn outcome(
    store: &SqliteStore,
    task: &TaskId,
) -> Result<Option<Vec<u8>>, StoreError> {
    let select = sqlx::query_scalar("SELECT outcome FROM tasks WHERE task = ?").bind(task.as_str());
    let outcome: Option<Option<Vec<u8>>> =
        select.fetch_optional(&store.readers).await.map_err(explain)?;
    Ok(outcome.flatten())
}

/// Where a list begins.
fn start(after: Option<&TaskListPosition>) -> (i64, &str) {
    after.map_or((i64::MIN, ""), |place| (place.created_at_us, place.task.as_str()))
}

pub(super) async fn list_for(
    store: &SqliteStore,
    audience: &TaskAudience,
    after: Option<&TaskListPosition>,
    limit: u32,
) -> Result<Vec<StoredTask>, StoreError> {
    let (after_us, after_task) = start(after);
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
    .bind(limit);
    let rows = select.fetch_all(&store.readers).await.map_err(explain)?;
    Ok(store.readable_tasks(&rows))
}

pub(super) async fn list(
    store: &SqliteStore,
    tenant: Option<&TenantId>,
    status: Option<TaskStatus>,
    after: Option<&TaskListPosition>,
    limit: u32,
) -> Result<Vec<StoredTask>, StoreError> {
    let (after_us, after_task) = start(after);
    let select = sqlx::query(task_columns!(
        "SELECT",
        "FROM tasks INDEXED BY tasks_by_creation WHERE (created_at_us, task) > (?1, ?2) AND (?3 IS NULL OR tenant = ?3) AND (?4 IS NULL OR status = ?4)
         ORDER BY created_at_us, task LIMIT ?5"
    ))
    .bind(after_us)
    .bind(after_task)
    .bind(tenant.map(TenantId::as_str))
    .bind(status.map(TaskStatus::name))
    .bind(limit);
    let rows = select.fetch_all(&store.readers).await.map_err(explain)?;
    Ok(store.readable_tasks(&rows))
}

/// A transaction that does not end well leaves nothing behind, and a process that ends takes its name with it: no answer of
/// this is lost that would have to be given once more.
pub(super) async fn claim(
    store: &SqliteStore,
    node: &NodeName,
    limit: u32,
    except: &[TaskId],
) -> Result<Vec<FullTask>, StoreError> {
    let now = now_us();
    let except = names(except);
    // Most of the time there is nothing, and looking keeps nobody from writing.
    let look = sqlx::query(
        "SELECT 1 FROM tasks t INDEXED BY tasks_unfinished WHERE t.status IN ('working', 'input_required') AND t.owner IS NOT ?
         AND NOT EXISTS (SELECT 1 FROM nodes WHERE node = t.owner AND lease_until_us > ?)
         AND t.task NOT IN (SELECT value FROM json_each(?)) LIMIT 1",
    );
    let look = look.bind(node.as_str()).bind(now).bind(&except);
    if look.fetch_optional(&store.readers).await.map_err(explain)?.is_none() {
        return Ok(Vec::new());
    }
    let mut writing = store.begin().await?;
    let update = sqlx::query(whole_task_columns!(
        "UPDATE tasks SET owner = ?1, epoch = epoch + 1 WHERE number IN (
             SELECT t.number FROM tasks t INDEXED BY tasks_unfinished WHERE t.status IN ('working', 'input_required') AND t.owner IS NOT ?1
             AND NOT EXISTS (SELECT 1 FROM nodes WHERE node = t.owner AND lease_until_us > ?2)
             AND t.task NOT IN (SELECT value FROM json_each(?4)) ORDER BY t.number LIMIT ?3)
         RETURNING",
        ""
    ));
    let update = update.bind(node.as_str()).bind(now).bind(limit).bind(&except);
    let rows = update.fetch_all(writing.connection()).await.map_err(explain)?;
    commit_claim(writing).await?;
    let mut claimed = store.readable(&rows, task_name, |row| whole_task(row, now));
    let place = |task: &FullTask| (task.stored.created_at_us, task.stored.record.task.clone());
    claimed.sort_by_key(place);
    Ok(claimed)
}

pub(super) async fn reclaim(
    store: &SqliteStore,
    from: &NodeName,
    to: &NodeName,
) -> Result<Vec<(TaskId, i64)>, StoreError> {
    let mut writing = store.begin().await?;
    let update = sqlx::query(
        "UPDATE tasks SET owner = ?, epoch = epoch + 1 WHERE owner = ? AND status IN ('working', 'input_required')",
    );
    update
        .bind(to.as_str())
        .bind(from.as_str())
        .execute(writing.connection())
        .await
        .map_err(explain)?;
    let select = sqlx::query(
        "SELECT task, epoch FROM tasks WHERE owner = ? AND status IN ('working', 'input_required')",
    );
    let rows = select.bind(to.as_str()).fetch_all(writing.connection()).await.map_err(explain)?;
    commit_claim(writing).await?;
    Ok(store.readable(&rows, task_name, |row| {
        Ok((TaskId::new(get::<String>(row, "task")?), get(row, "epoch")?))
    }))
}

pub(super) async fn of(store: &SqliteStore, nodes: &[NodeName]) -> Result<Vec<TaskId>, StoreError> {
    let nodes = serde_json::to_string(&nodes.iter().map(NodeName::as_str).collect::<Vec<_>>())
        .unwrap_or_else(|_| "[]".into());
    let select = sqlx::query(
        "SELECT task FROM tasks INDEXED BY tasks_unfinished
         WHERE status IN ('working', 'input_required') AND owner IN (SELECT value FROM json_each(?))",
    );
    let rows = select.bind(nodes).fetch_all(&store.readers).await.map_err(explain)?;
    Ok(store.readable(&rows, task_name, |row| Ok(TaskId::new(get::<String>(row, "task")?))))
}

pub(super) async fn inputs(
    store: &SqliteStore,
    task: &TaskId,
) -> Result<Vec<TaskInput>, StoreError> {
    let select = sqlx::query(
        "SELECT i.number, i.request, i.answer, t.task FROM task_inputs i JOIN tasks t ON t.number = i.task
         WHERE t.task = ? AND i.closed = 0 ORDER BY i.number",
    );
    let rows = select.bind(task.as_str()).fetch_all(&store.readers).await.map_err(explain)?;
    Ok(store.readable(&rows, task_name, |row| {
        Ok(TaskInput {
            number: get(row, "number")?,
            request: get(row, "request")?,
            answer: get(row, "answer")?,
        })
    }))
}

pub(super) async fn transitions(
    store: &SqliteStore,
    task: &TaskId,
) -> Result<Vec<TaskTransition>, StoreError> {
    let select = sqlx::query(
        "SELECT h.revision, h.status, h.at_us, h.epoch, t.task FROM task_transitions h JOIN tasks t ON t.number = h.task
         WHERE t.task = ? ORDER BY h.revision",
    );
    let rows = select.bind(task.as_str()).fetch_all(&store.readers).await.map_err(explain)?;
    Ok(store.readable(&rows, task_name, |row| {
        Ok(TaskTransition {
            revision: get(row, "revision")?,
            to: task_status(row)?,
            at_us: get(row, "at_us")?,
            epoch: get(row, "epoch")?,
        })
    }))
}

pub(super) async fn expire(store: &SqliteStore, limit: u32) -> Result<Vec<TaskId>, StoreError> {
    let mut writing = store.begin().await?;
    let delete = sqlx::query(
        "DELETE FROM tasks WHERE number IN (SELECT number FROM tasks INDEXED BY tasks_by_expiry WHERE expires_at_us <= ? ORDER BY expires_at_us LIMIT ?)
         RETURNING task",
    );
    let rows =
        delete.bind(now_us()).bind(limit).fetch_all(writing.connection()).await.map_err(explain)?;
    writing.commit().await?;
    Ok(store.readable(&rows, task_name, |row| Ok(TaskId::new(get::<String>(row, "task")?))))
}

pub(super) async fn counts(store: &SqliteStore) -> Result<Vec<(TaskStatus, u64)>, StoreError> {
    let select = sqlx::query("SELECT status, sum(tasks) AS tasks FROM task_usage GROUP BY status");
    let rows = select.fetch_all(&store.readers).await.map_err(explain)?;
    let counted = store.readable(
        &rows,
        |_| "task usage".into(),
        |row| Ok((task_status(row)?, count(row, "tasks")?)),
    );
    let of = |status| {
        counted.iter().find(|(counted, _)| *counted == status).map_or(0, |(_, tasks)| *tasks)
    };
    Ok(TaskStatus::ALL.into_iter().map(|status| (status, of(status))).collect())
}
