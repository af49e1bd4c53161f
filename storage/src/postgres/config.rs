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
    error_mapping::{self, RetryAction, retry_action},
    micros,
    pins::{APPROVED_CHARS, texts},
    rows::{self, get},
};
use crate::{ConfigStore, StoreError, fault_point};

/// Builds one statement that makes a change and adds its audit record ($2 to $6), if the change had
/// an effect. `$again` is the condition under which a repeated call after a lost answer counts as
/// done ($1).
macro_rules! changing {
    ($change:literal, $again:literal) => {
        concat!(
            "WITH done AS (",
            $change,
            "), told AS (SELECT append_audit(ARRAY[$2::bytea], ARRAY[$3::bigint], ARRAY[$4::text], ARRAY[$5::text], ARRAY[$6::bytea])
                WHERE $2::bytea IS NOT NULL AND EXISTS (SELECT FROM done))
             SELECT (SELECT count(*) FROM told) >= 0 AND (EXISTS (SELECT FROM done) OR ($1 AND ",
            $again,
            "))"
        )
    };
}

/// Builds a statement for a change that may already be done. After a lost answer it counts as done
/// if its audit record exists, or if it has none.
macro_rules! settling {
    ($change:literal) => {
        changing!($change, "($2::bytea IS NULL OR EXISTS (SELECT FROM audit WHERE id = $2))")
    };
}

impl PostgresStore {
    async fn make(
        &self,
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
                .bind(audit_record.map(|record| record.body.as_bytes()));
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

const fn statement(change: AdminChange<'_>) -> &'static str {
    match change {
        AdminChange::PutTenant(_) => changing!(
            "INSERT INTO tenants (tenant, settings, created_at_us, updated_at_us) VALUES ($7, $8, $9, $10)
             ON CONFLICT (tenant) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us RETURNING 1",
            "TRUE"
        ),
        AdminChange::AddTenant(_) => changing!(
            "INSERT INTO tenants (tenant, settings, created_at_us, updated_at_us) VALUES ($7, $8, $9, $10)
             ON CONFLICT (tenant) DO NOTHING RETURNING 1",
            "FALSE"
        ),
        AdminChange::DeleteTenant(_) => settling!("SELECT 1 WHERE delete_tenant($7)"),
        // After a lost answer, an identical key counts as this one. The equal hash proves that this
        // call made it.
        AdminChange::PutKey(_) => changing!(
            "INSERT INTO api_keys (key_id, tenant, principal, name, hash, attributes, created_at_us) SELECT $7, $8, $9, $10, $11, $12, $13
             WHERE NOT ($1 AND EXISTS (SELECT 1 FROM api_keys WHERE key_id = $7 AND tenant = $8 AND hash = $11)) RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeleteKey(..) => settling!("DELETE FROM api_keys WHERE tenant = $7 AND key_id = $8 RETURNING 1"),
        AdminChange::PutBackend(_) => changing!(
            "INSERT INTO backends (tenant, backend, settings, created_at_us, updated_at_us) VALUES ($7, $8, $9, $10, $11)
             ON CONFLICT (tenant, backend) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeleteBackend(..) => settling!("DELETE FROM backends WHERE tenant = $7 AND backend = $8 RETURNING 1"),
        AdminChange::PutPolicy(_) => changing!(
            "INSERT INTO policies (tenant, document, created_at_us, updated_at_us) VALUES ($7, $8, $9, $10)
             ON CONFLICT (tenant) DO UPDATE SET document = excluded.document, updated_at_us = excluded.updated_at_us RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeletePolicy(_) => settling!("DELETE FROM policies WHERE tenant = $7 RETURNING 1"),
        AdminChange::PutCatalogDocument(_) => changing!(
            "INSERT INTO catalog_documents (tenant, kind, name, document, created_at_us, updated_at_us) VALUES ($7, $8, $9, $10, $11, $12)
             ON CONFLICT (tenant, kind, name) DO UPDATE SET document = excluded.document, updated_at_us = excluded.updated_at_us RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeleteCatalogDocument(..) => {
            settling!("DELETE FROM catalog_documents WHERE tenant = $7 AND kind = $8 AND name = $9 RETURNING 1")
        }
        // As for a key: an equal hash proves that this call made the operator.
        AdminChange::PutOperator(_) => changing!(
            "INSERT INTO operators (operator, name, hash, settings, created_at_us) SELECT $7, $8, $9, $10, $11
             WHERE NOT ($1 AND EXISTS (SELECT 1 FROM operators WHERE operator = $7 AND hash = $9)) RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeleteOperator(_) => settling!("DELETE FROM operators WHERE operator = $7 RETURNING 1"),
        AdminChange::PutRevocation(_) => changing!(
            "INSERT INTO revocations (tenant, kind, subject, issued_before_us, created_at_us) VALUES ($7, $8, $9, $10, $11)
             ON CONFLICT (tenant, kind, subject) DO UPDATE SET issued_before_us = greatest(revocations.issued_before_us, excluded.issued_before_us) RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeleteRevocation(..) => {
            settling!("DELETE FROM revocations WHERE tenant = $7 AND kind = $8 AND subject = $9 RETURNING 1")
        }
        AdminChange::PutTokenIssuer(_) => changing!(
            "INSERT INTO token_issuers (tenant, issuer, settings, created_at_us, updated_at_us) VALUES ($7, $8, $9, $10, $11)
             ON CONFLICT (tenant, issuer) DO UPDATE SET settings = excluded.settings, updated_at_us = excluded.updated_at_us RETURNING 1",
            "TRUE"
        ),
        AdminChange::DeleteTokenIssuer(..) => settling!("DELETE FROM token_issuers WHERE tenant = $7 AND issuer = $8 RETURNING 1"),
        AdminChange::HoldBreaker(..) => {
            settling!("INSERT INTO held_breakers (tenant, backend) VALUES ($7, $8) ON CONFLICT DO NOTHING RETURNING 1")
        }
        AdminChange::ReleaseBreaker(..) => settling!("DELETE FROM held_breakers WHERE tenant = $7 AND backend = $8 RETURNING 1"),
        AdminChange::PutAuditTerms(_) => settling!(
            "INSERT INTO audit_retention_terms (version, terms, signature) VALUES ($7, $8, $9)
             ON CONFLICT (only_row) DO UPDATE SET version = excluded.version, terms = excluded.terms, signature = excluded.signature
             WHERE audit_retention_terms.version = excluded.version - 1 RETURNING 1"
        ),
        AdminChange::EndSession(_) => settling!("SELECT 1 WHERE ask_session_end($7)"),
        AdminChange::ApprovePins(_) => {
            settling!("SELECT 1 WHERE approve_pins($7, $8, $9, $10, $11, $12, $13, $14, $15)")
        }
        AdminChange::BlockPins(_) => settling!("SELECT 1 WHERE block_pins($7, $8, $9, $10, $11, $12)"),
        AdminChange::DecideApproval(_) => settling!(
            "UPDATE approvals SET state = $9, decided_by = $10, decision_reason = $11, decided_at_us = now_us(), changed_at_us = now_us(),
                 expires_at_us = CASE WHEN $9 = 'approved' THEN now_us() + ttl_us ELSE expires_at_us END, window_until_us = now_us() + $12::bigint
             WHERE tenant = $7 AND approval = $8 AND state = 'pending' AND expires_at_us > now_us() RETURNING 1"
        ),
    }
}

#[async_trait]
impl ConfigStore for PostgresStore {
    async fn apply(
        &self,
        change: AdminChange<'_>,
        audit_record: Option<&AuditRecord>,
    ) -> Result<bool, StoreError> {
        fault_point::hit("change.executed");
        if let AdminChange::DeleteTenant(tenant) = change
            && !self.remove_tenant_state(tenant).await?
        {
            return Ok(false);
        }
        let attempts = Attempts::default();
        let made = self.make(change, audit_record, &attempts).await;
        let made = made.map_err(|error| {
            let is_unknown = attempts.may_have_taken_effect(&error);
            match refusal(error, change) {
                known @ (StoreError::Exists { .. } | StoreError::UnknownTenant { .. }) => known,
                error if is_unknown => StoreError::OutcomeUnknown(Box::new(error)),
                error => error,
            }
        })?;
        fault_point::hit("change.committed");
        Ok(made)
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
