//! [`ConfigStore`] on SQLite. Triggers increase its version with every change.

use async_trait::async_trait;
use protocol::ids::{BackendId, KeyId, PrincipalId, TenantId};
use records::{
    AdminChange, AuditRecord, BackendRecord, CatalogDocumentKind, CatalogDocumentRecord, KeyRecord,
    OperatorRecord, PolicyRecord, RevocationRecord, RevokedSubject, TenantRecord,
    TokenIssuerRecord,
};
use sqlx::{Row, Sqlite, query::Query, sqlite::SqliteArguments, sqlite::SqliteRow};

use super::{
    SqliteStore, WriteTransaction, approvals, audit,
    error_mapping::{is_duplicate, is_orphan, map_error},
    pins,
    rows::{self, UnreadableColumn, get},
    sessions, with_deadline,
};
use crate::{ConfigStore, StoreError, fault_point};

/// Sessions or tasks of a tenant that are removed in one transaction, so that other writers get
/// their turn in between.
const REMOVED_AT_ONCE: u32 = 500;

impl SqliteStore {
    async fn all<T>(
        &self,
        rows: Query<'_, Sqlite, SqliteArguments>,
        record: fn(&SqliteRow) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        with_deadline("reading the configuration", async {
            rows.fetch_all(&self.readers).await.map_err(map_error)?.iter().map(record).collect()
        })
        .await
    }

    /// Removes the sessions and tasks of a tenant in steps that fit the deadline of one call. The
    /// removal of the tenant deletes the rest.
    async fn remove_tenant_state(&self, tenant: &TenantId) -> Result<(), StoreError> {
        for statement in [
            "DELETE FROM sessions WHERE number IN (SELECT number FROM sessions WHERE tenant = ? LIMIT ?)",
            "DELETE FROM tasks WHERE number IN (SELECT number FROM tasks WHERE tenant = ? LIMIT ?)",
        ] {
            let step = || async {
                let mut writing = self.begin().await?;
                let delete = sqlx::query(statement).bind(tenant.as_str()).bind(REMOVED_AT_ONCE);
                let removed =
                    delete.execute(writing.connection()).await.map_err(map_error)?.rows_affected();
                writing.commit().await?;
                Ok(removed)
            };
            // The tenant is still in use and can get new rows, but far fewer at a time.
            while with_deadline("removing what a tenant made", step()).await?
                >= u64::from(REMOVED_AT_ONCE)
            {}
        }
        Ok(())
    }
}

/// Carries out a change. Returns whether it had an effect.
async fn execute(
    writing: &mut WriteTransaction<'_>,
    change: AdminChange<'_>,
) -> Result<bool, StoreError> {
    match change {
        AdminChange::EndSession(key) => return sessions::request_end(writing, key).await,
        AdminChange::ApprovePins(approval) => return pins::approve(writing, approval).await,
        AdminChange::BlockPins(block) => return pins::block(writing, block).await,
        AdminChange::DeleteTenant(tenant) => {
            for statement in
                ["DELETE FROM sessions WHERE tenant = ?", "DELETE FROM tasks WHERE tenant = ?"]
            {
                sqlx::query(statement)
                    .bind(tenant.as_str())
                    .execute(writing.connection())
                    .await
                    .map_err(map_error)?;
            }
        }
        _ => {}
    }
    let Some(statement) = statement(change) else { return Ok(false) };
    let changed =
        statement.execute(writing.connection()).await.map_err(|error| refusal(error, change))?;
    Ok(changed.rows_affected() > 0)
}

/// Returns the statement for a change, or `None` if the change takes more than one.
fn statement(change: AdminChange<'_>) -> Option<Query<'_, Sqlite, SqliteArguments>> {
    Some(match change {
        AdminChange::PutTenant(record) => tenant_values(
            "INSERT INTO tenants (tenant, settings, created_at_us, updated_at_us) VALUES (?, ?, ?, ?)
             ON CONFLICT (tenant) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us",
            record,
        ),
        AdminChange::AddTenant(record) => tenant_values(
            "INSERT INTO tenants (tenant, settings, created_at_us, updated_at_us) VALUES (?, ?, ?, ?) ON CONFLICT (tenant) DO NOTHING",
            record,
        ),
        AdminChange::DeleteTenant(tenant) => sqlx::query("DELETE FROM tenants WHERE tenant = ?").bind(tenant.as_str()),
        AdminChange::PutKey(record) => {
            sqlx::query("INSERT INTO api_keys (key_id, tenant, principal, name, hash, attributes, created_at_us) VALUES (?, ?, ?, ?, ?, ?, ?)")
                .bind(record.key.as_str())
                .bind(record.tenant.as_str())
                .bind(record.principal.as_str())
                .bind(record.name.as_str())
                .bind(record.hash.as_slice())
                .bind(record.attributes.as_str())
                .bind(record.created_at_us)
        }
        AdminChange::DeleteKey(tenant, key) => {
            sqlx::query("DELETE FROM api_keys WHERE tenant = ? AND key_id = ?").bind(tenant.as_str()).bind(key.as_str())
        }
        AdminChange::PutBackend(record) => sqlx::query(
            "INSERT INTO backends (tenant, backend, settings, created_at_us, updated_at_us) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (tenant, backend) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us",
        )
        .bind(record.tenant.as_str())
        .bind(record.backend.as_str())
        .bind(record.settings.as_slice())
        .bind(record.created_at_us)
        .bind(record.updated_at_us),
        AdminChange::DeleteBackend(tenant, backend) => {
            sqlx::query("DELETE FROM backends WHERE tenant = ? AND backend = ?").bind(tenant.as_str()).bind(backend.as_str())
        }
        AdminChange::PutPolicy(record) => sqlx::query(
            "INSERT INTO policies (tenant, document, created_at_us, updated_at_us) VALUES (?, ?, ?, ?)
             ON CONFLICT (tenant) DO UPDATE SET document = excluded.document, updated_at_us = excluded.updated_at_us",
        )
        .bind(record.tenant.as_str())
        .bind(record.document.as_str())
        .bind(record.created_at_us)
        .bind(record.updated_at_us),
        AdminChange::DeletePolicy(tenant) => sqlx::query("DELETE FROM policies WHERE tenant = ?").bind(tenant.as_str()),
        AdminChange::PutCatalogDocument(record) => sqlx::query(
            "INSERT INTO catalog_documents (tenant, kind, name, document, created_at_us, updated_at_us) VALUES (?, ?, ?, ?, ?, ?)
             ON CONFLICT (tenant, kind, name) DO UPDATE SET document = excluded.document, updated_at_us = excluded.updated_at_us",
        )
        .bind(record.tenant.as_str())
        .bind(record.kind.name())
        .bind(record.name.as_str())
        .bind(record.document.as_str())
        .bind(record.created_at_us)
        .bind(record.updated_at_us),
        AdminChange::DeleteCatalogDocument(tenant, kind, name) => {
            let delete = sqlx::query("DELETE FROM catalog_documents WHERE tenant = ? AND kind = ? AND name = ?");
            delete.bind(tenant.as_str()).bind(kind.name()).bind(name)
        }
        AdminChange::PutOperator(record) => {
            sqlx::query("INSERT INTO operators (operator, name, hash, settings, created_at_us) VALUES (?, ?, ?, ?, ?)")
                .bind(record.operator.as_str())
                .bind(record.name.as_str())
                .bind(record.hash.as_slice())
                .bind(record.settings.as_str())
                .bind(record.created_at_us)
        }
        AdminChange::DeleteOperator(operator) => sqlx::query("DELETE FROM operators WHERE operator = ?").bind(operator),
        AdminChange::PutRevocation(record) => {
            let (kind, subject) = record.subject.parts();
            sqlx::query(
                "INSERT INTO revocations (tenant, kind, subject, issued_before_us, created_at_us) VALUES (?, ?, ?, ?, ?)
                 ON CONFLICT (tenant, kind, subject) DO UPDATE SET issued_before_us = max(issued_before_us, excluded.issued_before_us)",
            )
            .bind(record.tenant.as_str())
            .bind(kind)
            .bind(subject)
            .bind(record.issued_before_us)
            .bind(record.created_at_us)
        }
        AdminChange::DeleteRevocation(tenant, subject) => {
            let (kind, subject) = subject.parts();
            let delete = sqlx::query("DELETE FROM revocations WHERE tenant = ? AND kind = ? AND subject = ?");
            delete.bind(tenant.as_str()).bind(kind).bind(subject)
        }
        AdminChange::PutTokenIssuer(record) => sqlx::query(
            "INSERT INTO token_issuers (tenant, issuer, settings, created_at_us, updated_at_us) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (tenant, issuer) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us",
        )
        .bind(record.tenant.as_str())
        .bind(record.issuer.as_str())
        .bind(record.settings.as_slice())
        .bind(record.created_at_us)
        .bind(record.updated_at_us),
        AdminChange::DeleteTokenIssuer(tenant, issuer) => {
            sqlx::query("DELETE FROM token_issuers WHERE tenant = ? AND issuer = ?").bind(tenant.as_str()).bind(issuer)
        }
        AdminChange::HoldBreaker(tenant, backend) => {
            let insert = sqlx::query("INSERT INTO held_breakers (tenant, backend) VALUES (?, ?) ON CONFLICT DO NOTHING");
            insert.bind(tenant.as_str()).bind(backend.as_str())
        }
        AdminChange::ReleaseBreaker(tenant, backend) => {
            sqlx::query("DELETE FROM held_breakers WHERE tenant = ? AND backend = ?").bind(tenant.as_str()).bind(backend.as_str())
        }
        AdminChange::PutAuditTerms(terms) => sqlx::query(
            "INSERT INTO audit_retention_terms (only_row, version, terms, signature) VALUES (1, ?, ?, ?)
             ON CONFLICT (only_row) DO UPDATE SET version = excluded.version, terms = excluded.terms, signature = excluded.signature
             WHERE version = excluded.version - 1",
        )
        .bind(terms.version)
        .bind(terms.terms.as_str())
        .bind(terms.signature.as_slice()),
        AdminChange::DecideApproval(decision) => approvals::decide(decision),
        AdminChange::EndSession(_) | AdminChange::ApprovePins(_) | AdminChange::BlockPins(_) => {
            return None;
        }
    })
}

/// Returns the version of the configuration, as this transaction sees it.
async fn version_of(writing: &mut WriteTransaction<'_>) -> Result<i64, StoreError> {
    let version = sqlx::query_scalar("SELECT version FROM config_version");
    version.fetch_one(writing.connection()).await.map_err(map_error)
}

fn tenant_values<'q>(
    sql: &'static str,
    record: &'q TenantRecord,
) -> Query<'q, Sqlite, SqliteArguments> {
    let values = sqlx::query(sql).bind(record.tenant.as_str()).bind(record.settings.as_str());
    values.bind(record.created_at_us).bind(record.updated_at_us)
}

/// Maps the error of a write. A write below a tenant that does not exist violates the foreign key.
fn refusal(error: sqlx::Error, change: AdminChange<'_>) -> StoreError {
    match (change, change.required_tenant()) {
        (AdminChange::PutKey(record), _) if is_duplicate(&error) => {
            StoreError::Exists { what: format!("key {}", record.key) }
        }
        (AdminChange::PutOperator(record), _) if is_duplicate(&error) => {
            StoreError::Exists { what: format!("operator {}", record.name) }
        }
        (_, Some(tenant)) if is_orphan(&error) => {
            StoreError::UnknownTenant { tenant: tenant.clone() }
        }
        _ => map_error(error),
    }
}

#[async_trait]
impl ConfigStore for SqliteStore {
    /// The deadline ends before the commit. A call that fails before then is rolled back. An
    /// abandoned commit could still take effect after its caller was told of an error. So the
    /// commit is awaited without a limit.
    async fn apply_at(
        &self,
        version: Option<i64>,
        change: AdminChange<'_>,
        audit_record: Option<&AuditRecord>,
    ) -> Result<bool, StoreError> {
        if let AdminChange::DeleteTenant(tenant) = change {
            if version.is_some() && version != Some(self.config_version().await?) {
                return Err(StoreError::Outdated);
            }
            let exists =
                sqlx::query("SELECT 1 FROM tenants WHERE tenant = ?").bind(tenant.as_str());
            if self.all(exists, |_| Ok(())).await?.is_empty() {
                return Ok(false);
            }
            self.remove_tenant_state(tenant).await?;
        }
        let executed = with_deadline("changing the configuration", async {
            let mut writing = self.begin().await?;
            if version.is_some() && version != Some(version_of(&mut writing).await?) {
                return Err(StoreError::Outdated);
            }
            if !execute(&mut writing, change).await? {
                return Ok(None);
            }
            fault_point::hit("change.executed");
            if let Some(record) = audit_record {
                audit::append(&mut writing, std::slice::from_ref(record)).await?;
            }
            fault_point::hit("change.told");
            Ok(Some(writing))
        });
        let Some(writing) = executed.await? else { return Ok(false) };
        writing.commit_change().await?;
        fault_point::hit("change.committed");
        Ok(true)
    }

    async fn clear_tenant(&self, tenant: &TenantId) -> Result<(), StoreError> {
        self.remove_tenant_state(tenant).await
    }

    async fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT tenant, settings, created_at_us, updated_at_us FROM tenants ORDER BY tenant",
        );
        self.all(rows, tenant_record).await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT key_id, tenant, principal, name, hash, attributes, created_at_us FROM api_keys ORDER BY key_id",
        );
        self.all(rows, key_record).await
    }

    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRecord>, StoreError> {
        let rows =
            sqlx::query("SELECT key_id, tenant, principal, name, hash, attributes, created_at_us FROM api_keys WHERE tenant = ? ORDER BY key_id")
                .bind(tenant.as_str());
        self.all(rows, key_record).await
    }

    async fn backends(&self) -> Result<Vec<BackendRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT tenant, backend, settings, created_at_us, updated_at_us FROM backends ORDER BY tenant, backend",
        );
        self.all(rows, backend_record).await
    }

    async fn policies(&self) -> Result<Vec<PolicyRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT tenant, document, created_at_us, updated_at_us FROM policies ORDER BY tenant",
        );
        self.all(rows, policy_record).await
    }

    async fn catalog_documents(&self) -> Result<Vec<CatalogDocumentRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT tenant, kind, name, document, created_at_us, updated_at_us FROM catalog_documents ORDER BY tenant, kind, name",
        );
        Ok(self.all(rows, catalog_document).await?.into_iter().flatten().collect())
    }

    async fn operators(&self) -> Result<Vec<OperatorRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT operator, name, hash, settings, created_at_us FROM operators ORDER BY name",
        );
        self.all(rows, operator_record).await
    }

    async fn revocations(&self) -> Result<Vec<RevocationRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT tenant, kind, subject, issued_before_us, created_at_us FROM revocations ORDER BY tenant, kind, subject",
        );
        let rows = with_deadline("reading the configuration", async {
            rows.fetch_all(&self.readers).await.map_err(map_error)
        });
        let name = |row: &SqliteRow| {
            format!("revocation of tenant {}", get::<&str>(row, "tenant").unwrap_or_default())
        };
        Ok(self.readable(&rows.await?, name, revocation_record))
    }

    async fn token_issuers(&self) -> Result<Vec<TokenIssuerRecord>, StoreError> {
        let rows = sqlx::query(
            "SELECT tenant, issuer, settings, created_at_us, updated_at_us FROM token_issuers ORDER BY tenant, issuer",
        );
        self.all(rows, token_issuer_record).await
    }

    async fn held_breakers(&self) -> Result<Vec<(TenantId, BackendId)>, StoreError> {
        let rows =
            sqlx::query("SELECT tenant, backend FROM held_breakers ORDER BY tenant, backend");
        self.all(rows, |row| Ok((tenant_id(row)?, backend_id(row)?))).await
    }

    async fn config_version(&self) -> Result<i64, StoreError> {
        let version = sqlx::query_scalar("SELECT version FROM config_version");
        with_deadline("reading the configuration", async {
            version.fetch_one(&self.readers).await.map_err(map_error)
        })
        .await
    }

    async fn close(&self) {
        self.readers.close().await;
        self.log.close().await;
        // The writer is last: SQLite folds the WAL into the main file when the final connection
        // closes.
        self.writer.close().await;
        // The lock is released now, not when the last task drops the store: the next broker may be
        // waiting for the file.
        drop(self.lock.lock().take());
    }
}

fn tenant_record(row: &SqliteRow) -> Result<TenantRecord, StoreError> {
    Ok(TenantRecord {
        tenant: tenant_id(row)?,
        settings: row.try_get("settings").map_err(map_error)?,
        created_at_us: row.try_get("created_at_us").map_err(map_error)?,
        updated_at_us: row.try_get("updated_at_us").map_err(map_error)?,
    })
}

fn policy_record(row: &SqliteRow) -> Result<PolicyRecord, StoreError> {
    Ok(PolicyRecord {
        tenant: tenant_id(row)?,
        document: row.try_get("document").map_err(map_error)?,
        created_at_us: row.try_get("created_at_us").map_err(map_error)?,
        updated_at_us: row.try_get("updated_at_us").map_err(map_error)?,
    })
}

fn catalog_document(row: &SqliteRow) -> Result<Option<CatalogDocumentRecord>, StoreError> {
    let Some(kind) = CatalogDocumentKind::parse(&text(row, "kind")?) else { return Ok(None) };
    Ok(Some(CatalogDocumentRecord {
        tenant: tenant_id(row)?,
        kind,
        name: text(row, "name")?,
        document: text(row, "document")?,
        created_at_us: row.try_get("created_at_us").map_err(map_error)?,
        updated_at_us: row.try_get("updated_at_us").map_err(map_error)?,
    }))
}

fn operator_record(row: &SqliteRow) -> Result<OperatorRecord, StoreError> {
    Ok(OperatorRecord {
        operator: text(row, "operator")?,
        name: text(row, "name")?,
        hash: row.try_get("hash").map_err(map_error)?,
        settings: text(row, "settings")?,
        created_at_us: row.try_get("created_at_us").map_err(map_error)?,
    })
}

fn revocation_record(row: &SqliteRow) -> Result<RevocationRecord, UnreadableColumn> {
    let (issued_before_us, created_at_us) =
        (get(row, "issued_before_us")?, get(row, "created_at_us")?);
    Ok(RevocationRecord {
        tenant: rows::tenant_id(row)?,
        subject: RevokedSubject::of_parts(get(row, "kind")?, get(row, "subject")?)
            .ok_or(UnreadableColumn("kind"))?,
        issued_before_us,
        created_at_us,
        // The store has the only clock here, and a wider revocation has a later time.
        stored_at_us: i64::max(issued_before_us, created_at_us),
    })
}

fn token_issuer_record(row: &SqliteRow) -> Result<TokenIssuerRecord, StoreError> {
    Ok(TokenIssuerRecord {
        tenant: tenant_id(row)?,
        issuer: text(row, "issuer")?,
        settings: row.try_get("settings").map_err(map_error)?,
        created_at_us: row.try_get("created_at_us").map_err(map_error)?,
        updated_at_us: row.try_get("updated_at_us").map_err(map_error)?,
    })
}

fn key_record(row: &SqliteRow) -> Result<KeyRecord, StoreError> {
    Ok(KeyRecord {
        key: KeyId::new(text(row, "key_id")?),
        tenant: tenant_id(row)?,
        principal: PrincipalId::new(text(row, "principal")?),
        name: row.try_get("name").map_err(map_error)?,
        hash: row.try_get("hash").map_err(map_error)?,
        attributes: row.try_get("attributes").map_err(map_error)?,
        created_at_us: row.try_get("created_at_us").map_err(map_error)?,
    })
}

fn backend_record(row: &SqliteRow) -> Result<BackendRecord, StoreError> {
    Ok(BackendRecord {
        tenant: tenant_id(row)?,
        backend: backend_id(row)?,
        settings: row.try_get("settings").map_err(map_error)?,
        created_at_us: row.try_get("created_at_us").map_err(map_error)?,
        updated_at_us: row.try_get("updated_at_us").map_err(map_error)?,
    })
}

fn tenant_id(row: &SqliteRow) -> Result<TenantId, StoreError> {
    let tenant = text(row, "tenant")?;
    TenantId::parse(&tenant).map_err(|_| StoreError::Corrupt {
        detail: format!("a tenant has the invalid name {tenant:?}"),
    })
}

fn backend_id(row: &SqliteRow) -> Result<BackendId, StoreError> {
    let backend = text(row, "backend")?;
    BackendId::parse(&backend).map_err(|_| StoreError::Corrupt {
        detail: format!("a backend has the invalid name {backend:?}"),
    })
}

fn text(row: &SqliteRow, column: &str) -> Result<String, StoreError> {
    row.try_get(column).map_err(map_error)
}
