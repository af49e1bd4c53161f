//! [`GrantStore`] on PostgreSQL. The server does all time arithmetic, by its own clock.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::{BackendId, PrincipalId, TenantId};
use records::{GrantError, GrantKey, GrantRecord, GrantState, SecretKey, StoredGrant, WeakGrants};
use sqlx::postgres::PgRow;

use super::{
    PostgresStore, micros,
    rows::{self, count, get},
};
use crate::{GrantStore, StoreError};

macro_rules! columns {
    () => {
        "tenant, backend, principal, issuer, sealed, state, expires_at_us, version, lease_until_us - now_us() AS lease_left_us, lease_until_us > 0 AS is_lease_open, last_error"
    };
}

macro_rules! grants {
    ($rest:literal) => {
        concat!("SELECT ", columns!(), " FROM upstream_grants ", $rest)
    };
}

/// Stores a secret, and removes up to 200 expired ones. That is more than it adds, so their number
/// does not grow. The time is a subquery, because an index condition takes no function that changes
/// its value.
pub(super) const PUT_SECRET: &str = "WITH expired AS (
        DELETE FROM upstream_secrets WHERE (kind, tenant, name) IN (
            SELECT kind, tenant, name FROM upstream_secrets
            WHERE expires_at_us <= (SELECT now_us()) AND NOT (kind = $1 AND tenant = $2 AND name = $3)
            ORDER BY expires_at_us LIMIT 200 FOR UPDATE SKIP LOCKED))
    INSERT INTO upstream_secrets (kind, tenant, name, sealed, expires_at_us)
    VALUES ($1, $2, $3, $4, now_us() + $5)
    ON CONFLICT (kind, tenant, name) DO UPDATE SET sealed = excluded.sealed, expires_at_us = excluded.expires_at_us";

impl PostgresStore {
    fn stored_grants(&self, rows: &[PgRow]) -> Vec<StoredGrant> {
        self.readable(rows, stored, |_| "a grant".to_owned())
    }
}

#[async_trait]
impl GrantStore for PostgresStore {
    async fn grant(&self, key: &GrantKey) -> Result<Option<StoredGrant>, StoreError> {
        let select = |_| {
            sqlx::query(grants!("WHERE tenant = $1 AND backend = $2 AND principal = $3"))
                .bind(key.tenant.as_str())
                .bind(key.backend.as_str())
                .bind(key.principal.as_str())
        };
        Ok(self.stored_grants(&self.rows(select).await?).pop())
    }

    async fn put_grant(
        &self,
        record: &GrantRecord,
        expected: Option<i64>,
    ) -> Result<Option<i64>, StoreError> {
        // The first version is the time, so that a late write over a removed grant does not match.
        const UPSERT: &str = "INSERT INTO upstream_grants AS known (tenant, backend, principal, issuer, sealed, state, expires_at_us, version, created_at_us, last_error)
             SELECT $1, $2, $3, $4, $5, $6, $7, now_us(), now_us(), $9 WHERE $8::bigint IS NULL
             ON CONFLICT (tenant, backend, principal) DO UPDATE SET issuer = excluded.issuer, sealed = excluded.sealed,
                 state = excluded.state, expires_at_us = excluded.expires_at_us, version = known.version + 1, lease_until_us = 0, last_error = excluded.last_error
             RETURNING version";
        // A repeated call after a lost answer finds its own bytes, which no other write has.
        const UPDATE: &str =
            "UPDATE upstream_grants SET issuer = $4, sealed = $5, state = $6, expires_at_us = $7,
                 version = $8::bigint + 1, lease_until_us = 0, last_error = $9
             WHERE tenant = $1 AND backend = $2 AND principal = $3
                 AND (version = $8::bigint OR (version = $8::bigint + 1 AND sealed = $5))
             RETURNING version";
        let put = |_| {
            sqlx::query(if expected.is_some() { UPDATE } else { UPSERT })
                .bind(record.key.tenant.as_str())
                .bind(record.key.backend.as_str())
                .bind(record.key.principal.as_str())
                .bind(record.issuer.as_str())
                .bind(record.sealed.as_slice())
                .bind(record.state.name())
                .bind(record.expires_at_us)
                .bind(expected)
                .bind(record.last_error.map(GrantError::name))
        };
        let written = self.rows_of(&self.write_pool, put).await?;
        written.first().map(|row| get(row, "version")).transpose()
    }

    async fn lease_grant(
        &self,
        key: &GrantKey,
        version: i64,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let take = |_| {
            sqlx::query(
                "UPDATE upstream_grants SET lease_until_us = now_us() + $5
                 WHERE tenant = $1 AND backend = $2 AND principal = $3 AND version = $4
                     AND (lease_until_us <= now_us() OR lease_until_us > now_us() + 2 * $5)
                 RETURNING version",
            )
            .bind(key.tenant.as_str())
            .bind(key.backend.as_str())
            .bind(key.principal.as_str())
            .bind(version)
            .bind(micros(lease))
        };
        Ok(!self.rows_of(&self.write_pool, take).await?.is_empty())
    }

    async fn record_grant_error(
        &self,
        key: &GrantKey,
        version: i64,
        error: GrantError,
        lease_ends_in: Option<Duration>,
    ) -> Result<(), StoreError> {
        let update = |_| {
            sqlx::query(
                "UPDATE upstream_grants
                 SET last_error = $1, lease_until_us = LEAST(lease_until_us, COALESCE(now_us() + $6, lease_until_us))
                 WHERE tenant = $2 AND backend = $3 AND principal = $4 AND version = $5",
            )
            .bind(error.name())
            .bind(key.tenant.as_str())
            .bind(key.backend.as_str())
            .bind(key.principal.as_str())
            .bind(version)
            .bind(lease_ends_in.map(micros))
        };
        self.rows_of(&self.write_pool, update).await?;
        Ok(())
    }

    async fn remove_grant(&self, key: &GrantKey) -> Result<Option<StoredGrant>, StoreError> {
        let remove = |_| {
            sqlx::query(concat!(
                "DELETE FROM upstream_grants WHERE tenant = $1 AND backend = $2 AND principal = $3 RETURNING ",
                columns!()
            ))
            .bind(key.tenant.as_str())
            .bind(key.backend.as_str())
            .bind(key.principal.as_str())
        };
        Ok(self.stored_grants(&self.rows_of(&self.write_pool, remove).await?).pop())
    }

    async fn grants_of(&self, tenant: &TenantId) -> Result<Vec<StoredGrant>, StoreError> {
        let select = |_| {
            sqlx::query(grants!("WHERE tenant = $1 ORDER BY backend, principal"))
                .bind(tenant.as_str())
        };
        Ok(self.stored_grants(&self.rows(select).await?))
    }

    async fn oldest_grants(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        skip: u32,
        limit: u32,
    ) -> Result<Vec<StoredGrant>, StoreError> {
        let select = |_| {
            sqlx::query(grants!(
                "WHERE tenant = $1 AND backend = $2 AND state = 'connected' ORDER BY created_at_us, principal LIMIT $3 OFFSET $4"
            ))
            .bind(tenant.as_str())
            .bind(backend.as_str())
            .bind(i64::from(limit))
            .bind(i64::from(skip))
        };
        Ok(self.stored_grants(&self.rows(select).await?))
    }

    async fn grant_counts(&self) -> Result<Vec<(GrantState, u64)>, StoreError> {
        let select =
            |_| sqlx::query("SELECT state, count(*) AS grants FROM upstream_grants GROUP BY state");
        let rows = self.rows(select).await?;
        let read = |row: &PgRow| {
            Some((GrantState::parse(get(row, "state").ok()?)?, count(row, "grants").ok()?))
        };
        Ok(rows.iter().filter_map(read).collect())
    }

    async fn weak_grants(&self) -> Result<Vec<(TenantId, WeakGrants)>, StoreError> {
        let select = |_| {
            sqlx::query(
                "SELECT tenant, count(*) FILTER (WHERE state = 'reconnect') AS reconnect, count(*) FILTER (WHERE state = 'connected') AS ended
                 FROM upstream_grants WHERE state = 'reconnect' OR (state = 'connected' AND expires_at_us <= now_us()) GROUP BY tenant",
            )
        };
        let read = |row: &PgRow| {
            let weak =
                WeakGrants { reconnect: count(row, "reconnect")?, ended: count(row, "ended")? };
            Ok((rows::tenant(row)?, weak))
        };
        self.rows(select).await?.iter().map(read).collect()
    }

    async fn put_secret(
        &self,
        key: &SecretKey,
        sealed: &[u8],
        life: Duration,
    ) -> Result<(), StoreError> {
        let put = |_| {
            sqlx::query(PUT_SECRET)
                .bind(key.kind.name())
                .bind(key.tenant.as_str())
                .bind(key.name.as_str())
                .bind(sealed)
                .bind(micros(life))
        };
        self.rows_of(&self.write_pool, put).await?;
        Ok(())
    }

    async fn add_secret(
        &self,
        key: &SecretKey,
        sealed: &[u8],
        life: Duration,
    ) -> Result<(), StoreError> {
        let add = |_| {
            sqlx::query(
                "INSERT INTO upstream_secrets (kind, tenant, name, sealed, expires_at_us)
                 VALUES ($1, $2, $3, $4, now_us() + $5)
                 ON CONFLICT (kind, tenant, name) DO UPDATE SET sealed = excluded.sealed, expires_at_us = excluded.expires_at_us
                 WHERE upstream_secrets.expires_at_us <= now_us()",
            )
            .bind(key.kind.name())
            .bind(key.tenant.as_str())
            .bind(key.name.as_str())
            .bind(sealed)
            .bind(micros(life))
        };
        self.rows_of(&self.write_pool, add).await?;
        Ok(())
    }

    async fn secret(&self, key: &SecretKey) -> Result<Option<Vec<u8>>, StoreError> {
        let select = |_| {
            sqlx::query(
                "SELECT sealed FROM upstream_secrets WHERE kind = $1 AND tenant = $2 AND name = $3 AND expires_at_us > now_us()",
            )
            .bind(key.kind.name())
            .bind(key.tenant.as_str())
            .bind(key.name.as_str())
        };
        self.rows(select).await?.first().map(|row| get(row, "sealed")).transpose()
    }

    async fn take_secret(&self, key: &SecretKey) -> Result<Option<Vec<u8>>, StoreError> {
        let take = |_| {
            sqlx::query(
                "DELETE FROM upstream_secrets WHERE kind = $1 AND tenant = $2 AND name = $3 AND expires_at_us > now_us() RETURNING sealed",
            )
            .bind(key.kind.name())
            .bind(key.tenant.as_str())
            .bind(key.name.as_str())
        };
        let taken = self.rows_of(&self.write_pool, take).await?;
        taken.first().map(|row| get(row, "sealed")).transpose()
    }

    async fn clock_us(&self) -> Result<i64, StoreError> {
        let select = |_| sqlx::query("SELECT now_us() AS clock_us");
        self.rows(select).await?.first().map_or(Ok(0), |row| get(row, "clock_us"))
    }

    async fn remove_secret(&self, key: &SecretKey, sealed: &[u8]) -> Result<(), StoreError> {
        let remove = |_| {
            sqlx::query(
                "DELETE FROM upstream_secrets WHERE kind = $1 AND tenant = $2 AND name = $3 AND sealed = $4",
            )
            .bind(key.kind.name())
            .bind(key.tenant.as_str())
            .bind(key.name.as_str())
            .bind(sealed)
        };
        self.rows_of(&self.write_pool, remove).await?;
        Ok(())
    }
}

fn stored(row: &PgRow) -> Result<StoredGrant, StoreError> {
    let state: &str = get(row, "state")?;
    Ok(StoredGrant {
        record: GrantRecord {
            key: GrantKey {
                tenant: rows::tenant(row)?,
                backend: rows::backend(get(row, "backend")?)?,
                principal: PrincipalId::new(get::<&str>(row, "principal")?),
            },
            issuer: get(row, "issuer")?,
            sealed: get(row, "sealed")?,
            state: GrantState::parse(state).ok_or_else(|| StoreError::Corrupt {
                detail: format!("a grant has the unknown state {state:?}"),
            })?,
            expires_at_us: get(row, "expires_at_us")?,
            last_error: get::<Option<&str>>(row, "last_error")?.and_then(GrantError::parse),
        },
        version: get(row, "version")?,
        remaining_lease: Duration::from_micros(
            u64::try_from(get::<i64>(row, "lease_left_us")?).unwrap_or(0),
        ),
        is_lease_open: get(row, "is_lease_open")?,
    })
}
