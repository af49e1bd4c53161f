//! [`ResultStore`] on SQLite. All times are those of the process's wall clock.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::BackendId;
use records::{KeptResult, ResultKey, ResultLimits};
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::{
    SqliteStore,
    error_mapping::map_error,
    micros, now_us,
    rows::{UnreadableColumn, get},
    with_deadline,
};
use crate::{ResultStore, StoreError};

#[async_trait]
impl ResultStore for SqliteStore {
    async fn put_result(
        &self,
        result: &KeptResult,
        life: Duration,
        limits: ResultLimits,
    ) -> Result<bool, StoreError> {
        with_deadline("storing a result", async {
            let mut writing = self.begin().await?;
            let is_stored = put(writing.connection(), result, life, limits).await?;
            // Without capacity for the new result, the older ones stay.
            if is_stored {
                writing.commit().await?;
            }
            Ok(is_stored)
        })
        .await
    }

    async fn result(&self, key: &ResultKey) -> Result<Option<KeptResult>, StoreError> {
        with_deadline("reading a result", async {
            let rows = sqlx::query(
                "SELECT backend, tool, mime_type, page_bytes, body FROM results
                 WHERE result = ? AND tenant = ? AND principal = ? AND expires_at_us > ?",
            )
            .bind(key.id.as_str())
            .bind(key.tenant.as_str())
            .bind(key.principal.as_str())
            .bind(now_us())
            .fetch_all(&self.readers)
            .await
            .map_err(map_error)?;
            Ok(self.readable(&rows, |_| "a result".to_owned(), |row| stored(row, key)).pop())
        })
        .await
    }

    async fn remove_results(&self, limit: u32) -> Result<u64, StoreError> {
        let done = self.write_one("removing results", || {
            sqlx::query(
                "DELETE FROM results WHERE result IN (SELECT result FROM results WHERE expires_at_us <= ? LIMIT ?)",
            )
            .bind(now_us())
            .bind(limit)
        });
        done.await
    }
}

async fn put(
    connection: &mut SqliteConnection,
    result: &KeptResult,
    life: Duration,
    limits: ResultLimits,
) -> Result<bool, StoreError> {
    let KeptResult { key, backend, tool, mime_type, page_bytes, body } = result;
    let (tenant, principal, now) = (key.tenant.as_str(), key.principal.as_str(), now_us());
    let expired = sqlx::query("DELETE FROM results WHERE tenant = ? AND expires_at_us <= ?");
    expired.bind(tenant).bind(now).execute(&mut *connection).await.map_err(map_error)?;
    let bound = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let size = bound(body.len() as u64);
    let oldest = sqlx::query(
        "DELETE FROM results WHERE result IN (
             SELECT result FROM (
                 SELECT result, sum(length(body)) OVER (ORDER BY created_at_us DESC, result DESC) AS newest_bytes
                 FROM results WHERE tenant = ? AND principal = ?)
             WHERE newest_bytes > ?)",
    )
    .bind(tenant)
    .bind(principal)
    .bind(bound(limits.principal_bytes).saturating_sub(size));
    oldest.execute(&mut *connection).await.map_err(map_error)?;
    let used: i64 =
        sqlx::query_scalar("SELECT coalesce(sum(length(body)), 0) FROM results WHERE tenant = ?")
            .bind(tenant)
            .fetch_one(&mut *connection)
            .await
            .map_err(map_error)?;
    if used.saturating_add(size) > bound(limits.tenant_bytes) {
        return Ok(false);
    }
    let added = sqlx::query(
        "INSERT INTO results (result, tenant, principal, backend, tool, mime_type, page_bytes, body, created_at_us, expires_at_us)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(key.id.as_str())
    .bind(tenant)
    .bind(principal)
    .bind(backend.as_str())
    .bind(tool.as_bytes())
    .bind(mime_type.as_str())
    .bind(*page_bytes)
    .bind(body.as_slice())
    .bind(now)
    .bind(now.saturating_add(micros(life)));
    added.execute(connection).await.map_err(map_error)?;
    Ok(true)
}

fn stored(row: &SqliteRow, key: &ResultKey) -> Result<KeptResult, UnreadableColumn> {
    let tool: Vec<u8> = get(row, "tool")?;
    Ok(KeptResult {
        key: key.clone(),
        backend: BackendId::parse(get(row, "backend")?).map_err(|_| UnreadableColumn("backend"))?,
        tool: String::from_utf8(tool).map_err(|_| UnreadableColumn("tool"))?,
        mime_type: get(row, "mime_type")?,
        page_bytes: get(row, "page_bytes")?,
        body: get(row, "body")?,
    })
}
