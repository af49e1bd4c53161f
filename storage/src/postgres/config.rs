//! [`ConfigStore`]: tenants, API keys and backends.

use async_trait::async_trait;
use protocol::ids::{BackendId, KeyId, PrincipalId, TenantId};
use sqlx::postgres::PgRow;

use super::{
    PostgresStore, StatementError, fault,
    rows::{self, get},
};
use crate::{BackendRecord, ConfigStore, KeyRecord, StoreError, TenantRecord};

#[async_trait]
impl ConfigStore for PostgresStore {
    async fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError> {
        let found = self.rows(|_| sqlx::query("SELECT tenant, settings, created_at_us, updated_at_us FROM tenants ORDER BY tenant"));
        found.await?.iter().map(tenant_record).collect()
    }

    async fn put_tenant(&self, record: &TenantRecord) -> Result<(), StoreError> {
        let upsert = |_| {
            sqlx::query(
                "INSERT INTO tenants (tenant, settings, created_at_us, updated_at_us) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (tenant) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us",
            )
            .bind(record.tenant.as_str())
            .bind(record.settings.as_str())
            .bind(record.created_at_us)
            .bind(record.updated_at_us)
        };
        self.rows(upsert).await?;
        Ok(())
    }

    async fn add_tenant(&self, record: &TenantRecord) -> Result<bool, StoreError> {
        let insert = |_again| {
            sqlx::query(
                "INSERT INTO tenants (tenant, settings, created_at_us, updated_at_us) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (tenant) DO NOTHING RETURNING 1",
            )
            .bind(record.tenant.as_str())
            .bind(record.settings.as_str())
            .bind(record.created_at_us)
            .bind(record.updated_at_us)
        };
        Ok(!self.rows(insert).await?.is_empty())
    }

    async fn delete_tenant(&self, tenant: &TenantId) -> Result<bool, StoreError> {
        // After a lost answer, gone counts as removed.
        self.is_true(|again| sqlx::query("SELECT delete_tenant($1) OR $2").bind(tenant.as_str()).bind(again)).await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        let found = self.rows(|_| sqlx::query("SELECT key_id, tenant, principal, name, hash, created_at_us FROM api_keys ORDER BY key_id"));
        found.await?.iter().map(key_record).collect()
    }

    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRecord>, StoreError> {
        let select = |_| {
            sqlx::query("SELECT key_id, tenant, principal, name, hash, created_at_us FROM api_keys WHERE tenant = $1 ORDER BY key_id")
                .bind(tenant.as_str())
        };
        self.rows(select).await?.iter().map(key_record).collect()
    }

    async fn put_key(&self, record: &KeyRecord) -> Result<(), StoreError> {
        // After a lost answer, the very same key counts as this one. Its hash tells: nobody else can have made it.
        let insert = |again| {
            sqlx::query(
                "INSERT INTO api_keys (key_id, tenant, principal, name, hash, created_at_us)
                 SELECT $1, $2, $3, $4, $5, $6
                 WHERE NOT ($7 AND EXISTS (SELECT 1 FROM api_keys WHERE key_id = $1 AND tenant = $2 AND hash = $5))",
            )
            .bind(record.key.as_str())
            .bind(record.tenant.as_str())
            .bind(record.principal.as_str())
            .bind(record.name.as_str())
            .bind(record.hash.as_slice())
            .bind(record.created_at_us)
            .bind(again)
        };
        match self.rows(insert).await {
            Ok(_) => Ok(()),
            Err(StatementError::Failed(error)) if fault::is_duplicate(&error) => {
                Err(StoreError::Exists { what: format!("key {}", record.key) })
            }
            Err(error) => Err(under_tenant(error, &record.tenant)),
        }
    }

    async fn delete_key(&self, tenant: &TenantId, key: &KeyId) -> Result<bool, StoreError> {
        let delete = |again| {
            sqlx::query(
                "WITH gone AS (DELETE FROM api_keys WHERE tenant = $1 AND key_id = $2 RETURNING 1)
                 SELECT EXISTS (SELECT 1 FROM gone) OR $3",
            )
            .bind(tenant.as_str())
            .bind(key.as_str())
            .bind(again)
        };
        self.is_true(delete).await
    }

    async fn backends(&self) -> Result<Vec<BackendRecord>, StoreError> {
        let select = "SELECT tenant, backend, settings, created_at_us, updated_at_us FROM backends ORDER BY tenant, backend";
        self.rows(|_| sqlx::query(select)).await?.iter().map(backend_record).collect()
    }

    async fn put_backend(&self, record: &BackendRecord) -> Result<(), StoreError> {
        let upsert = |_| {
            sqlx::query(
                "INSERT INTO backends (tenant, backend, settings, created_at_us, updated_at_us) VALUES ($1, $2, $3, $4, $5)
                 ON CONFLICT (tenant, backend) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us",
            )
            .bind(record.tenant.as_str())
            .bind(record.backend.as_str())
            .bind(record.settings.as_slice())
            .bind(record.created_at_us)
            .bind(record.updated_at_us)
        };
        self.rows(upsert).await.map(drop).map_err(|error| under_tenant(error, &record.tenant))
    }

    async fn delete_backend(&self, tenant: &TenantId, backend: &BackendId) -> Result<bool, StoreError> {
        let delete = |again| {
            sqlx::query(
                "WITH gone AS (DELETE FROM backends WHERE tenant = $1 AND backend = $2 RETURNING 1)
                 SELECT EXISTS (SELECT 1 FROM gone) OR $3",
            )
            .bind(tenant.as_str())
            .bind(backend.as_str())
            .bind(again)
        };
        self.is_true(delete).await
    }

    async fn config_version(&self) -> Result<i64, StoreError> {
        let rows = self.rows(|_| sqlx::query("SELECT version FROM config_version")).await?;
        get(only(&rows)?, "version")
    }

    async fn close(&self) {
        tokio::join!(self.pool.close(), self.write_pool.close(), self.lease_pool.close());
    }
}

impl PostgresStore {
    /// Of a statement that returns one boolean.
    pub(super) async fn is_true<'q>(
        &self,
        query: impl Fn(bool) -> sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments> + Send + Sync,
    ) -> Result<bool, StoreError> {
        use sqlx::Row as _;
        let rows = self.rows(query).await?;
        only(&rows)?.try_get(0).map_err(fault::explain)
    }
}

/// The row of a statement that always returns one.
pub(super) fn only(rows: &[PgRow]) -> Result<&PgRow, StoreError> {
    rows.first().ok_or_else(|| StoreError::Corrupt { detail: "a row that is always there is missing".into() })
}

/// A write below a tenant that is not there breaks the foreign key.
fn under_tenant(error: StatementError, tenant: &TenantId) -> StoreError {
    match error {
        StatementError::Failed(error) if fault::is_orphan(&error) => StoreError::UnknownTenant { tenant: tenant.clone() },
        other => other.into(),
    }
}

fn tenant_record(row: &PgRow) -> Result<TenantRecord, StoreError> {
    Ok(TenantRecord {
        tenant: rows::tenant(row)?,
        settings: get(row, "settings")?,
        created_at_us: get(row, "created_at_us")?,
        updated_at_us: get(row, "updated_at_us")?,
    })
}

fn key_record(row: &PgRow) -> Result<KeyRecord, StoreError> {
    Ok(KeyRecord {
        key: KeyId::new(get::<&str>(row, "key_id")?),
        tenant: rows::tenant(row)?,
        principal: PrincipalId::new(get::<&str>(row, "principal")?),
        name: get(row, "name")?,
        hash: get(row, "hash")?,
        created_at_us: get(row, "created_at_us")?,
    })
}

fn backend_record(row: &PgRow) -> Result<BackendRecord, StoreError> {
    Ok(BackendRecord {
        tenant: rows::tenant(row)?,
        backend: rows::backend(get(row, "backend")?)?,
        settings: get(row, "settings")?,
        created_at_us: get(row, "created_at_us")?,
        updated_at_us: get(row, "updated_at_us")?,
    })
}
