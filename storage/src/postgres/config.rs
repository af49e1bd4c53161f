//! [`ConfigStore`] on PostgreSQL: tenants, API keys and backends.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use protocol::ids::{BackendId, KeyId, PrincipalId, TenantId};
use records::{
    AdminChange, AuditRecord, BackendRecord, CatalogDocumentKind, CatalogDocumentRecord, KeyRecord,
    OperatorRecord, PolicyRecord, RevocationRecord, RevokedSubject, TenantRecord,
    TokenIssuerRecord,
};
use sqlx::{Row as _, postgres::PgRow};

use super::{
    PostgresStore, StatementError,
    config_statements::statement,
    error_mapping::{self, RetryAction, retry_action},
    micros,
    pins::{APPROVED_CHARS, texts},
    rows::{self, get},
};
use crate::{ConfigStore, StoreError, fault_point};

impl PostgresStore {
    async fn make(
        &self,
        version: Option<i64>,
        change: AdminChange<'_>,
        audit_record: Option<&AuditRecord>,
        attempts: &Attempts,
    ) -> Result<bool, StatementError> {
        let query = |again| {
            attempts.record(again);
            let values = sqlx::query(statement(change))
                .bind(again)
                .bind(audit_record.map(|record| record.id.as_slice()))
                .bind(audit_record.map(|record| record.at_us))
                .bind(audit_record.map(|record| record.kind.name()))
                .bind(audit_record.and_then(|record| record.tenant.as_deref()))
                .bind(audit_record.map(|record| record.body.as_bytes()))
                .bind(version);
            match change {
                AdminChange::PutTenant(record) | AdminChange::AddTenant(record) => values
                    .bind(record.tenant.as_str())
                    .bind(record.settings.as_str())
                    .bind(record.created_at_us)
                    .bind(record.updated_at_us),
                AdminChange::DeleteTenant(tenant) => values.bind(tenant.as_str()),
                AdminChange::PutKey(record) => values
                    .bind(record.key.as_str())
                    .bind(record.tenant.as_str())
                    .bind(record.principal.as_str())
                    .bind(record.name.as_str())
                    .bind(record.hash.as_slice())
                    .bind(record.attributes.as_str())
                    .bind(record.created_at_us),
                AdminChange::PutPolicy(record) => values
                    .bind(record.tenant.as_str())
                    .bind(record.document.as_str())
                    .bind(record.created_at_us)
                    .bind(record.updated_at_us),
                AdminChange::DeletePolicy(tenant) => values.bind(tenant.as_str()),
                AdminChange::PutCatalogDocument(record) => values
                    .bind(record.tenant.as_str())
                    .bind(record.kind.name())
                    .bind(record.name.as_str())
                    .bind(record.document.as_str())
                    .bind(record.created_at_us)
                    .bind(record.updated_at_us),
                AdminChange::DeleteCatalogDocument(tenant, kind, name) => {
                    values.bind(tenant.as_str()).bind(kind.name()).bind(name)
                }
                AdminChange::PutOperator(record) => values
                    .bind(record.operator.as_str())
                    .bind(record.name.as_str())
                    .bind(record.hash.as_slice())
                    .bind(record.settings.as_str())
                    .bind(record.created_at_us),
                AdminChange::DeleteOperator(operator) => values.bind(operator),
                AdminChange::PutRevocation(record) => {
                    let (kind, subject) = record.subject.parts();
                    values
                        .bind(record.tenant.as_str())
                        .bind(kind)
                        .bind(subject)
                        .bind(record.issued_before_us)
                        .bind(record.created_at_us)
                }
                AdminChange::DeleteRevocation(tenant, subject) => {
                    let (kind, subject) = subject.parts();
                    values.bind(tenant.as_str()).bind(kind).bind(subject)
                }
                AdminChange::PutTokenIssuer(record) => values
                    .bind(record.tenant.as_str())
                    .bind(record.issuer.as_str())
                    .bind(record.settings.as_slice())
                    .bind(record.created_at_us)
                    .bind(record.updated_at_us),
                AdminChange::DeleteTokenIssuer(tenant, issuer) => {
                    values.bind(tenant.as_str()).bind(issuer)
                }
                AdminChange::DeleteKey(tenant, key) => {
                    values.bind(tenant.as_str()).bind(key.as_str())
                }
                AdminChange::PutBackend(record) => values
                    .bind(record.tenant.as_str())
                    .bind(record.backend.as_str())
                    .bind(record.settings.as_slice())
                    .bind(record.created_at_us)
                    .bind(record.updated_at_us),
                AdminChange::DeleteBackend(tenant, backend)
                | AdminChange::HoldBreaker(tenant, backend)
                | AdminChange::ReleaseBreaker(tenant, backend) => {
                    values.bind(tenant.as_str()).bind(backend.as_str())
                }
                AdminChange::PutAuditTerms(terms) => values
                    .bind(terms.version)
                    .bind(terms.terms.as_str())
                    .bind(terms.signature.as_slice()),
                AdminChange::EndSession(key) => values.bind(key.as_bytes().as_slice()),
                AdminChange::ApprovePins(approval) => values
                    .bind(approval.tenant.as_str())
                    .bind(approval.backend.as_str())
                    .bind(texts(&approval.items, |(key, _)| key.kind.name()))
                    .bind(texts(&approval.items, |(key, _)| &key.name))
                    .bind(texts(&approval.items, |(_, hash)| hash))
                    .bind(approval.by.as_str())
                    .bind(approval.at_us)
                    .bind(approval.forgets_gone)
                    .bind(APPROVED_CHARS),
                AdminChange::BlockPins(block) => values
                    .bind(block.tenant.as_str())
                    .bind(block.backend.as_str())
                    .bind(texts(&block.keys, |key| key.kind.name()))
                    .bind(texts(&block.keys, |key| &key.name))
                    .bind(block.by.as_str())
                    .bind(block.at_us),
                AdminChange::DecideApproval(decision) => values
                    .bind(decision.tenant.as_str())
                    .bind(decision.id.as_str())
                    .bind(decision.state().name())
                    .bind(decision.by.as_str())
                    .bind(decision.reason.as_deref())
                    .bind(decision.window.map(micros)),
            }
        };
        let rows = self.rows(query).await?;
        rows.first().map_or(Ok(false), |row| row.try_get(0).map_err(StatementError::Failed))
    }
}

/// The attempts at a change so far.
#[derive(Default)]
struct Attempts {
    is_sent: AtomicBool,
    /// An earlier attempt may have taken effect.
    is_repeated: AtomicBool,
}

impl Attempts {
    fn record(&self, again: bool) {
        self.is_sent.store(true, Ordering::Release);
        self.is_repeated.fetch_or(again, Ordering::AcqRel);
    }

    /// Returns whether the change may have been made although it ended with this error.
    fn may_have_taken_effect(&self, error: &StatementError) -> bool {
        // The server itself reports that a failed statement had no effect, unless its connection is
        // lost.
        let is_final = matches!(error, StatementError::Failed(error) if retry_action(error) != RetryAction::Reconnect);
        self.is_repeated.load(Ordering::Acquire)
            || (self.is_sent.load(Ordering::Acquire) && !is_final)
    }
}

#[async_trait]
impl ConfigStore for PostgresStore {
    async fn apply_at(
        &self,
        version: Option<i64>,
        change: AdminChange<'_>,
        audit_record: Option<&AuditRecord>,
    ) -> Result<bool, StoreError> {
        fault_point::hit("change.executed");
        if let AdminChange::DeleteTenant(tenant) = change {
            if version.is_some() && version != Some(self.config_version().await?) {
                return Err(StoreError::Outdated);
            }
            if !self.remove_tenant_state(tenant).await? {
                return Ok(false);
            }
        }
        let attempts = Attempts::default();
        let made = match self.make(version, change, audit_record, &attempts).await {
            Err(StatementError::Failed(error)) if error_mapping::is_change_made(&error) => true,
            made => made.map_err(|error| {
                let is_unknown = attempts.may_have_taken_effect(&error);
                match refusal(error, change) {
                    // Without a record, a repeated attempt cannot tell its own change from others.
                    StoreError::Outdated if is_unknown && audit_record.is_none() => {
                        StoreError::OutcomeUnknown(Box::new(StoreError::Outdated))
                    }
                    known if known.is_answer() => known,
                    error if is_unknown => StoreError::OutcomeUnknown(Box::new(error)),
                    error => error,
                }
            })?,
        };
        fault_point::hit("change.committed");
        Ok(made)
    }

    async fn clear_tenant(&self, tenant: &TenantId) -> Result<(), StoreError> {
        self.remove_tenant_state(tenant).await.map(drop)
    }

    async fn tenants(&self) -> Result<Vec<TenantRecord>, StoreError> {
        let found = self.rows(|_| sqlx::query("SELECT tenant, settings, created_at_us, updated_at_us FROM tenants ORDER BY tenant"));
        found.await?.iter().map(tenant_record).collect()
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        let found = self.rows(|_| sqlx::query("SELECT key_id, tenant, principal, name, hash, attributes, created_at_us FROM api_keys ORDER BY key_id"));
        found.await?.iter().map(key_record).collect()
    }

    async fn keys_of(&self, tenant: &TenantId) -> Result<Vec<KeyRecord>, StoreError> {
        let select = |_| {
            sqlx::query("SELECT key_id, tenant, principal, name, hash, attributes, created_at_us FROM api_keys WHERE tenant = $1 ORDER BY key_id")
                .bind(tenant.as_str())
        };
        self.rows(select).await?.iter().map(key_record).collect()
    }

    async fn backends(&self) -> Result<Vec<BackendRecord>, StoreError> {
        let select = "SELECT tenant, backend, settings, created_at_us, updated_at_us FROM backends ORDER BY tenant, backend";
        self.rows(|_| sqlx::query(select)).await?.iter().map(backend_record).collect()
    }

    async fn policies(&self) -> Result<Vec<PolicyRecord>, StoreError> {
        let select =
            "SELECT tenant, document, created_at_us, updated_at_us FROM policies ORDER BY tenant";
        self.rows(|_| sqlx::query(select)).await?.iter().map(policy_record).collect()
    }

    async fn catalog_documents(&self) -> Result<Vec<CatalogDocumentRecord>, StoreError> {
        let select = "SELECT tenant, kind, name, document, created_at_us, updated_at_us FROM catalog_documents ORDER BY tenant, kind, name";
        let rows = self.rows(|_| sqlx::query(select)).await?;
        rows.iter().filter_map(|row| catalog_document(row).transpose()).collect()
    }

    async fn operators(&self) -> Result<Vec<OperatorRecord>, StoreError> {
        let select =
            "SELECT operator, name, hash, settings, created_at_us FROM operators ORDER BY name";
        self.rows(|_| sqlx::query(select)).await?.iter().map(operator_record).collect()
    }

    async fn revocations(&self) -> Result<Vec<RevocationRecord>, StoreError> {
        let select = "SELECT tenant, kind, subject, issued_before_us, created_at_us, stored_at_us FROM revocations ORDER BY tenant, kind, subject";
        let rows = self.rows(|_| sqlx::query(select)).await?;
        Ok(self.readable(&rows, revocation_record, |row| {
            format!("revocation of tenant {:?}", row.try_get::<String, _>("tenant"))
        }))
    }

    async fn token_issuers(&self) -> Result<Vec<TokenIssuerRecord>, StoreError> {
        let select = "SELECT tenant, issuer, settings, created_at_us, updated_at_us FROM token_issuers ORDER BY tenant, issuer";
        self.rows(|_| sqlx::query(select)).await?.iter().map(token_issuer_record).collect()
    }

    async fn held_breakers(&self) -> Result<Vec<(TenantId, BackendId)>, StoreError> {
        let rows = self
            .rows(|_| {
                sqlx::query("SELECT tenant, backend FROM held_breakers ORDER BY tenant, backend")
            })
            .await?;
        rows.iter()
            .map(|row| Ok((rows::tenant(row)?, rows::backend(get(row, "backend")?)?)))
            .collect()
    }

    async fn config_version(&self) -> Result<i64, StoreError> {
        let rows = self.rows(|_| sqlx::query("SELECT version FROM config_version")).await?;
        get(only(&rows)?, "version")
    }

    async fn close(&self) {
        tokio::join!(self.pool.close(), self.write_pool.close(), self.lease_pool.close());
    }
}

/// Returns the row of a statement that always returns one.
pub(super) fn only(rows: &[PgRow]) -> Result<&PgRow, StoreError> {
    rows.first().ok_or_else(|| StoreError::Corrupt {
        detail: "a statement returned no row, although it must return one".into(),
    })
}

/// Maps the error of a write. A write below a tenant that does not exist violates the foreign key.
fn refusal(error: StatementError, change: AdminChange<'_>) -> StoreError {
    match (error, change, change.required_tenant()) {
        (StatementError::Failed(error), AdminChange::PutKey(record), _)
            if error_mapping::is_duplicate(&error) =>
        {
            StoreError::Exists { what: format!("key {}", record.key) }
        }
        (StatementError::Failed(error), AdminChange::PutOperator(record), _)
            if error_mapping::is_duplicate(&error) =>
        {
            StoreError::Exists { what: format!("operator {}", record.name) }
        }
        (StatementError::Failed(error), _, Some(tenant)) if error_mapping::is_orphan(&error) => {
            StoreError::UnknownTenant { tenant: tenant.clone() }
        }
        (other, ..) => other.into(),
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

fn policy_record(row: &PgRow) -> Result<PolicyRecord, StoreError> {
    Ok(PolicyRecord {
        tenant: rows::tenant(row)?,
        document: get(row, "document")?,
        created_at_us: get(row, "created_at_us")?,
        updated_at_us: get(row, "updated_at_us")?,
    })
}

fn catalog_document(row: &PgRow) -> Result<Option<CatalogDocumentRecord>, StoreError> {
    let Some(kind) = CatalogDocumentKind::parse(get(row, "kind")?) else { return Ok(None) };
    Ok(Some(CatalogDocumentRecord {
        tenant: rows::tenant(row)?,
        kind,
        name: get(row, "name")?,
        document: get(row, "document")?,
        created_at_us: get(row, "created_at_us")?,
        updated_at_us: get(row, "updated_at_us")?,
    }))
}

fn operator_record(row: &PgRow) -> Result<OperatorRecord, StoreError> {
    Ok(OperatorRecord {
        operator: get(row, "operator")?,
        name: get(row, "name")?,
        hash: get(row, "hash")?,
        settings: get(row, "settings")?,
        created_at_us: get(row, "created_at_us")?,
    })
}

fn revocation_record(row: &PgRow) -> Result<RevocationRecord, StoreError> {
    let (kind, subject) = (get::<&str>(row, "kind")?, get::<&str>(row, "subject")?);
    Ok(RevocationRecord {
        tenant: rows::tenant(row)?,
        subject: RevokedSubject::of_parts(kind, subject).ok_or_else(|| StoreError::Corrupt {
            detail: format!("a revocation has the unknown kind {kind:?}"),
        })?,
        issued_before_us: get(row, "issued_before_us")?,
        created_at_us: get(row, "created_at_us")?,
        stored_at_us: get(row, "stored_at_us")?,
    })
}

fn token_issuer_record(row: &PgRow) -> Result<TokenIssuerRecord, StoreError> {
    Ok(TokenIssuerRecord {
        tenant: rows::tenant(row)?,
        issuer: get(row, "issuer")?,
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
        attributes: get(row, "attributes")?,
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
