//! [`ResultStore`] on PostgreSQL. The server does all time arithmetic, by its own clock.

use std::time::Duration;

use async_trait::async_trait;
use records::{KeptResult, ResultKey, ResultLimits};
use sqlx::postgres::PgRow;

use super::{
    PostgresStore, micros,
    rows::{self, get, may_exist},
};
use crate::{ResultStore, StoreError};

const PUT: &str = "SELECT put_result($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS is_stored";

/// The time is a subquery, because an index condition takes no function that changes its value. The
/// order makes the planner use the index.
pub(super) const REMOVE: &str = "DELETE FROM results WHERE result IN (
        SELECT result FROM results WHERE expires_at_us <= (SELECT now_us())
        ORDER BY expires_at_us LIMIT $1 FOR UPDATE SKIP LOCKED)
    RETURNING 1";

#[async_trait]
impl ResultStore for PostgresStore {
    async fn put_result(
        &self,
        result: &KeptResult,
        life: Duration,
        limits: ResultLimits,
    ) -> Result<bool, StoreError> {
        let bound = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let KeptResult { key, backend, tool, mime_type, page_bytes, body } = result;
        let put = |_| {
            sqlx::query(PUT)
                .bind(key.id.as_str())
                .bind(key.tenant.as_str())
                .bind(key.principal.as_str())
                .bind(backend.as_str())
                .bind(tool.as_bytes())
                .bind(mime_type.as_str())
                .bind(i64::from(*page_bytes))
                .bind(body.as_slice())
                .bind(micros(life))
                .bind(bound(limits.principal_bytes))
                .bind(bound(limits.tenant_bytes))
        };
        let stored = self.rows_of(&self.write_pool, put).await?;
        Ok(stored.first().map(|row| get(row, "is_stored")).transpose()? == Some(true))
    }

    async fn result(&self, key: &ResultKey) -> Result<Option<KeptResult>, StoreError> {
        if !may_exist(key.id.as_str()) {
            return Ok(None);
        }
        let select = |_| {
            sqlx::query(
                "SELECT backend, tool, mime_type, page_bytes, body FROM results
                 WHERE result = $1 AND tenant = $2 AND principal = $3 AND expires_at_us > now_us()",
            )
            .bind(key.id.as_str())
            .bind(key.tenant.as_str())
            .bind(key.principal.as_str())
        };
        let rows = self.rows(select).await?;
        Ok(self.readable(&rows, |row| stored(row, key), |_| "a result".to_owned()).pop())
    }

    async fn remove_results(&self, limit: u32) -> Result<u64, StoreError> {
        let remove = |_| sqlx::query(REMOVE).bind(i64::from(limit));
        Ok(self.rows_of(&self.write_pool, remove).await?.len() as u64)
    }
}

fn stored(row: &PgRow, key: &ResultKey) -> Result<KeptResult, StoreError> {
    let corrupt = |what: &str| StoreError::Corrupt { detail: format!("a result has no {what}") };
    let tool: Vec<u8> = get(row, "tool")?;
    Ok(KeptResult {
        key: key.clone(),
        backend: rows::backend(get(row, "backend")?)?,
        tool: String::from_utf8(tool).map_err(|_| corrupt("readable tool"))?,
        mime_type: get(row, "mime_type")?,
        page_bytes: u32::try_from(get::<i64>(row, "page_bytes")?)
            .map_err(|_| corrupt("usable page size"))?,
        body: get(row, "body")?,
    })
}
