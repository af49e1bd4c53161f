//! [`GrantStore`] on SQLite.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::{BackendId, PrincipalId, TenantId};
use records::{GrantError, GrantKey, GrantRecord, GrantState, SecretKey, StoredGrant, WeakGrants};
use sqlx::{Row, sqlite::SqliteRow};

use super::{
    SqliteStore,
    error_mapping::map_error,
    micros, now_us,
    rows::{UnreadableColumn, get},
    with_deadline,
};
use crate::{GrantStore, StoreError, fault_point};

const COLUMNS: &str = "tenant, backend, principal, issuer, sealed, state, expires_at_us, version, lease_until_us, last_error";

impl SqliteStore {
    async fn grants(
        &self,
        rest: &'static str,
        values: &[&str],
    ) -> Result<Vec<StoredGrant>, StoreError> {
        with_deadline("reading grants", async {
            let statement = format!("SELECT {COLUMNS} FROM upstream_grants {rest}");
            let query = sqlx::query(sqlx::AssertSqlSafe(statement));
            let query = values.iter().fold(query, |query, value| query.bind((*value).to_owned()));
            let rows = query.fetch_all(&self.readers).await.map_err(map_error)?;
            Ok(self.readable(&rows, |_| "a grant".to_owned(), stored))
        })
        .await
    }
}

#[async_trait]
impl GrantStore for SqliteStore {
    async fn grant(&self, key: &GrantKey) -> Result<Option<StoredGrant>, StoreError> {
        let values = [key.tenant.as_str(), key.backend.as_str(), key.principal.as_str()];
        let found =
            self.grants("WHERE tenant = ? AND backend = ? AND principal = ?", &values).await?;
        Ok(found.into_iter().next())
    }

    async fn put_grant(
        &self,
        record: &GrantRecord,
        expected: Option<i64>,
    ) -> Result<Option<i64>, StoreError> {
        // The first version is the time, so that a late write over a removed grant does not match.
        const UPSERT: &str = "INSERT INTO upstream_grants (tenant, backend, principal, issuer, sealed, state, expires_at_us, version, created_at_us, last_error)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9)
             ON CONFLICT (tenant, backend, principal) DO UPDATE SET issuer = excluded.issuer, sealed = excluded.sealed,
                 state = excluded.state, expires_at_us = excluded.expires_at_us, version = version + 1, lease_until_us = 0, last_error = excluded.last_error
             RETURNING version";
        const UPDATE: &str = "UPDATE upstream_grants SET issuer = ?4, sealed = ?5, state = ?6, expires_at_us = ?7, version = version + 1, lease_until_us = 0, last_error = ?9
             WHERE tenant = ?1 AND backend = ?2 AND principal = ?3 AND version = ?8 RETURNING version";
        let statement = if expected.is_some() { UPDATE } else { UPSERT };
        with_deadline("writing a grant", async {
            let mut writing = self.begin().await?;
            fault_point::hit("grant.begun");
            let written = sqlx::query_scalar(statement)
                .bind(record.key.tenant.as_str())
                .bind(record.key.backend.as_str())
                .bind(record.key.principal.as_str())
                .bind(record.issuer.as_str())
                .bind(record.sealed.as_slice())
                .bind(record.state.name())
                .bind(record.expires_at_us)
                .bind(expected.unwrap_or_else(now_us))
                .bind(record.last_error.map(GrantError::name));
            let version = written.fetch_optional(writing.connection()).await.map_err(map_error)?;
            writing.commit().await?;
            Ok(version)
        })
        .await
    }

    async fn lease_grant(
        &self,
        key: &GrantKey,
        version: i64,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let done = self.write_one("leasing a grant", || {
            let now = now_us();
            sqlx::query(
                "UPDATE upstream_grants SET lease_until_us = ? WHERE tenant = ? AND backend = ? AND principal = ? AND version = ? AND NOT lease_until_us BETWEEN ? AND ?",
            )
            .bind(now.saturating_add(micros(lease)))
            .bind(key.tenant.as_str())
            .bind(key.backend.as_str())
            .bind(key.principal.as_str())
            .bind(version)
            .bind(now.saturating_add(1))
            .bind(now.saturating_add(micros(lease.saturating_mul(2))))
        });
        Ok(done.await? > 0)
    }

    async fn record_grant_error(
        &self,
        key: &GrantKey,
        version: i64,
        error: GrantError,
        lease_ends_in: Option<Duration>,
    ) -> Result<(), StoreError> {
        let done = self.write_one("noting the error of a grant", || {
            sqlx::query(
                "UPDATE upstream_grants
                 SET last_error = ?, lease_until_us = min(lease_until_us, coalesce(?, lease_until_us))
                 WHERE tenant = ? AND backend = ? AND principal = ? AND version = ?",
            )
            .bind(error.name())
            .bind(lease_ends_in.map(|time| now_us().saturating_add(micros(time))))
            .bind(key.tenant.as_str())
            .bind(key.backend.as_str())
            .bind(key.principal.as_str())
            .bind(version)
        });
        done.await.map(drop)
    }

    async fn remove_grant(&self, key: &GrantKey) -> Result<Option<StoredGrant>, StoreError> {
        with_deadline("removing a grant", async {
            let statement = format!(
                "DELETE FROM upstream_grants WHERE tenant = ? AND backend = ? AND principal = ? RETURNING {COLUMNS}"
            );
            let mut writing = self.begin().await?;
            let removed = sqlx::query(sqlx::AssertSqlSafe(statement))
                .bind(key.tenant.as_str())
                .bind(key.backend.as_str())
                .bind(key.principal.as_str());
            let removed = removed.fetch_all(writing.connection()).await.map_err(map_error)?;
            writing.commit().await?;
            Ok(self.readable(&removed, |_| "a grant".to_owned(), stored).pop())
        })
        .await
    }

    async fn grants_of(&self, tenant: &TenantId) -> Result<Vec<StoredGrant>, StoreError> {
        self.grants("WHERE tenant = ? ORDER BY backend, principal", &[tenant.as_str()]).await
    }

    async fn oldest_grants(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        skip: u32,
        limit: u32,
    ) -> Result<Vec<StoredGrant>, StoreError> {
        with_deadline("reading grants", async {
            let statement = format!(
                "SELECT {COLUMNS} FROM upstream_grants WHERE tenant = ? AND backend = ? AND state = 'connected' ORDER BY created_at_us, principal LIMIT ? OFFSET ?"
            );
            let query = sqlx::query(sqlx::AssertSqlSafe(statement))
                .bind(tenant.as_str())
                .bind(backend.as_str())
                .bind(limit)
                .bind(skip);
            let rows = query.fetch_all(&self.readers).await.map_err(map_error)?;
            Ok(self.readable(&rows, |_| "a grant".to_owned(), stored))
        })
        .await
    }

    async fn grant_counts(&self) -> Result<Vec<(GrantState, u64)>, StoreError> {
        with_deadline("counting grants", async {
            let rows = sqlx::query("SELECT state, count(*) FROM upstream_grants GROUP BY state")
                .fetch_all(&self.readers)
                .await
                .map_err(map_error)?;
            let read = |row: &SqliteRow| -> Option<(GrantState, u64)> {
                let state = GrantState::parse(row.try_get(0).ok()?)?;
                Some((state, u64::try_from(row.try_get::<i64, _>(1).ok()?).ok()?))
            };
            Ok(rows.iter().filter_map(read).collect())
        })
        .await
    }

    async fn weak_grants(&self) -> Result<Vec<(TenantId, WeakGrants)>, StoreError> {
        with_deadline("counting weak grants", async {
            let rows = sqlx::query(
                "SELECT tenant, sum(state = 'reconnect'), sum(state = 'connected') FROM upstream_grants
                 WHERE state = 'reconnect' OR (state = 'connected' AND expires_at_us <= ?) GROUP BY tenant",
            )
            .bind(now_us())
            .fetch_all(&self.readers)
            .await
            .map_err(map_error)?;
            let read = |row: &SqliteRow| -> Option<(TenantId, WeakGrants)> {
                let count = |at: usize| u64::try_from(row.try_get::<i64, _>(at).ok()?).ok();
                let weak = WeakGrants { reconnect: count(1)?, ended: count(2)? };
                Some((TenantId::parse(row.try_get(0).ok()?).ok()?, weak))
            };
            Ok(rows.iter().filter_map(read).collect())
        })
        .await
    }

    async fn put_secret(
        &self,
        key: &SecretKey,
        sealed: &[u8],
        life: Duration,
    ) -> Result<(), StoreError> {
        with_deadline("writing a secret", async {
            let now = now_us();
            let mut writing = self.begin().await?;
            let expired = sqlx::query(
                "DELETE FROM upstream_secrets INDEXED BY upstream_secrets_by_end WHERE expires_at_us <= ?",
            )
            .bind(now);
            expired.execute(writing.connection()).await.map_err(map_error)?;
            let written = sqlx::query(
                "INSERT INTO upstream_secrets (kind, tenant, name, sealed, expires_at_us) VALUES (?, ?, ?, ?, ?)
                 ON CONFLICT (kind, tenant, name) DO UPDATE SET sealed = excluded.sealed, expires_at_us = excluded.expires_at_us",
            )
            .bind(key.kind.name())
            .bind(key.tenant.as_str())
            .bind(key.name.as_str())
            .bind(sealed)
            .bind(now.saturating_add(micros(life)));
            written.execute(writing.connection()).await.map_err(map_error)?;
            writing.commit().await
        })
        .await
    }

    async fn add_secret(
        &self,
        key: &SecretKey,
        sealed: &[u8],
        life: Duration,
    ) -> Result<(), StoreError> {
        let done = self.write_one("adding a secret", || {
            let now = now_us();
            sqlx::query(
                "INSERT INTO upstream_secrets (kind, tenant, name, sealed, expires_at_us) VALUES (?, ?, ?, ?, ?)
                 ON CONFLICT (kind, tenant, name) DO UPDATE SET sealed = excluded.sealed, expires_at_us = excluded.expires_at_us
                 WHERE upstream_secrets.expires_at_us <= ?",
            )
            .bind(key.kind.name())
            .bind(key.tenant.as_str())
            .bind(key.name.as_str())
            .bind(sealed)
            .bind(now.saturating_add(micros(life)))
            .bind(now)
        });
        done.await.map(drop)
    }

    async fn secret(&self, key: &SecretKey) -> Result<Option<Vec<u8>>, StoreError> {
        with_deadline("reading a secret", async {
            sqlx::query_scalar(
                "SELECT sealed FROM upstream_secrets WHERE kind = ? AND tenant = ? AND name = ? AND expires_at_us > ?",
            )
            .bind(key.kind.name())
            .bind(key.tenant.as_str())
            .bind(key.name.as_str())
            .bind(now_us())
            .fetch_optional(&self.readers)
            .await
            .map_err(map_error)
        })
        .await
    }

    async fn take_secret(&self, key: &SecretKey) -> Result<Option<Vec<u8>>, StoreError> {
        with_deadline("taking a secret", async {
            let mut writing = self.begin().await?;
            let taken = sqlx::query_scalar(
                "DELETE FROM upstream_secrets WHERE kind = ? AND tenant = ? AND name = ? AND expires_at_us > ? RETURNING sealed",
            )
            .bind(key.kind.name())
            .bind(key.tenant.as_str())
            .bind(key.name.as_str())
            .bind(now_us())
            .fetch_optional(writing.connection())
            .await
            .map_err(map_error)?;
            writing.commit().await?;
            Ok(taken)
        })
        .await
    }

    async fn clock_us(&self) -> Result<i64, StoreError> {
        Ok(now_us())
    }

    async fn remove_secret(&self, key: &SecretKey, sealed: &[u8]) -> Result<(), StoreError> {
        let done = self.write_one("removing a secret", || {
            sqlx::query(
                "DELETE FROM upstream_secrets WHERE kind = ? AND tenant = ? AND name = ? AND sealed = ?",
            )
            .bind(key.kind.name())
            .bind(key.tenant.as_str())
            .bind(key.name.as_str())
            .bind(sealed)
        });
        done.await.map(drop)
    }
}

fn stored(row: &SqliteRow) -> Result<StoredGrant, UnreadableColumn> {
    let lease_until: i64 = get(row, "lease_until_us")?;
    let remaining = lease_until.saturating_sub(now_us());
    Ok(StoredGrant {
        record: GrantRecord {
            key: GrantKey {
                tenant: TenantId::parse(get(row, "tenant")?)
                    .map_err(|_| UnreadableColumn("tenant"))?,
                backend: BackendId::parse(get(row, "backend")?)
                    .map_err(|_| UnreadableColumn("backend"))?,
                principal: PrincipalId::new(get::<&str>(row, "principal")?),
            },
            issuer: get(row, "issuer")?,
            sealed: get(row, "sealed")?,
            state: GrantState::parse(get(row, "state")?).ok_or(UnreadableColumn("state"))?,
            expires_at_us: get(row, "expires_at_us")?,
            last_error: get::<Option<&str>>(row, "last_error")?.and_then(GrantError::parse),
        },
        version: get(row, "version")?,
        remaining_lease: Duration::from_micros(u64::try_from(remaining).unwrap_or(0)),
        is_lease_open: lease_until > 0,
    })
}
