//! [`ApprovalStore`] on SQLite. All times are those of the process's wall clock.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::{ApprovalId, BackendId, PrincipalId, TenantId};
use records::{
    ApprovalBinding, ApprovalDecision, ApprovalFilter, ApprovalLimit, ApprovalLimits,
    ApprovalListPosition, ApprovalOpening, ApprovalRecord, ApprovalState, StoredApproval,
};
use sqlx::{
    Row, Sqlite,
    query::Query,
    sqlite::{SqliteArguments, SqliteConnection, SqliteRow},
};

use super::{
    SqliteStore,
    error_mapping::map_error,
    micros, now_us,
    rows::{UnreadableColumn, get},
    with_deadline,
};
use crate::{ApprovalStore, StoreError};

const COLUMNS: &str = "SELECT approval, tenant, principal, backend, tool, definition, arguments_hash, arguments, terms, ttl_us, state, decided_by, decision_reason, decided_at_us, used_by, window_until_us, created_at_us, expires_at_us FROM approvals";

/// Returns the statement of a decision.
pub(super) fn decide(decision: &ApprovalDecision) -> Query<'_, Sqlite, SqliteArguments> {
    let now = now_us();
    sqlx::query(
        "UPDATE approvals SET state = ?1, decided_by = ?2, decision_reason = ?3, decided_at_us = ?4, changed_at_us = ?4,
             expires_at_us = CASE WHEN ?1 = 'approved' THEN ?4 + ttl_us ELSE expires_at_us END, window_until_us = ?5
         WHERE approval = ?6 AND tenant = ?7 AND state = 'pending' AND expires_at_us > ?4",
    )
    .bind(decision.state().name())
    .bind(decision.by.as_str())
    .bind(decision.reason.as_deref())
    .bind(now)
    .bind(decision.window.map(|window| now.saturating_add(micros(window))))
    .bind(decision.id.as_str())
    .bind(decision.tenant.as_str())
}

#[async_trait]
impl ApprovalStore for SqliteStore {
    async fn open_approval(
        &self,
        record: &ApprovalRecord,
        limits: ApprovalLimits,
    ) -> Result<ApprovalOpening, StoreError> {
        let opened = with_deadline("opening an approval", async {
            let mut writing = self.begin().await?;
            let opened = open(writing.connection(), record, limits).await?;
            writing.commit().await?;
            Ok(opened)
        })
        .await?;
        let id = match opened {
            Opened::Approval(id) => id,
            Opened::Window(id) => return Ok(ApprovalOpening::Window(id)),
            Opened::Limit(limit) => return Ok(ApprovalOpening::LimitReached(limit)),
        };
        let found = self.approval(&id).await?;
        found
            .map(|found| ApprovalOpening::Open(Box::new(found)))
            .ok_or_else(|| StoreError::Corrupt { detail: "an approval cannot be read".to_owned() })
    }

    async fn approval(&self, id: &ApprovalId) -> Result<Option<StoredApproval>, StoreError> {
        with_deadline("reading an approval", async {
            let query = sqlx::query(sqlx::AssertSqlSafe(format!("{COLUMNS} WHERE approval = ?")));
            let rows = query.bind(id.as_str()).fetch_all(&self.readers).await.map_err(map_error)?;
            Ok(self.readable(&rows, name, stored).pop())
        })
        .await
    }

    async fn use_approval(&self, id: &ApprovalId, user: &str) -> Result<bool, StoreError> {
        let done = self.write_one("using an approval", || {
            sqlx::query(
                "UPDATE approvals SET state = 'used', used_by = ?1, changed_at_us = ?2
                 WHERE approval = ?3 AND ((state = 'approved' AND expires_at_us > ?2) OR (state = 'used' AND used_by = ?1))",
            )
            .bind(user)
            .bind(now_us())
            .bind(id.as_str())
        });
        Ok(done.await? > 0)
    }

    async fn void_approval(&self, id: &ApprovalId) -> Result<bool, StoreError> {
        let done = self.write_one("ending an approval", || {
            sqlx::query(
                "UPDATE approvals SET state = 'expired', used_by = 'no call: the tool changed', changed_at_us = ?1 WHERE approval = ?2 AND state = 'approved'",
            )
            .bind(now_us())
            .bind(id.as_str())
        });
        Ok(done.await? > 0)
    }

    async fn settled_approvals(&self, ids: &[ApprovalId]) -> Result<Vec<ApprovalId>, StoreError> {
        with_deadline("looking at approvals", async {
            let ids: Vec<&str> = ids.iter().map(ApprovalId::as_str).collect();
            // A removed approval is settled too.
            let settled: Vec<String> = sqlx::query_scalar(
                "SELECT value FROM json_each(?1) WHERE NOT EXISTS (SELECT 1 FROM approvals WHERE approval = value AND state = 'pending' AND expires_at_us > ?2)",
            )
            .bind(json_list(&ids))
            .bind(now_us())
            .fetch_all(&self.readers)
            .await
            .map_err(map_error)?;
            Ok(settled.into_iter().map(ApprovalId::new).collect())
        })
        .await
    }

    async fn approvals_of(
        &self,
        tenant: &TenantId,
        filter: &ApprovalFilter,
        after: Option<&ApprovalListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredApproval>, StoreError> {
        with_deadline("listing approvals", async {
            let backends = filter.backends.as_ref().map(|all| {
                json_list(&all.iter().map(BackendId::as_str).collect::<Vec<_>>())
            });
            let statement = format!(
                "{COLUMNS} INDEXED BY approvals_by_time WHERE tenant = ?1 AND (created_at_us, approval) < (?2, ?3)
                     AND (?7 IS NULL OR backend IN (SELECT value FROM json_each(?7)))
                     AND (?4 IS NULL OR ?4 = CASE WHEN state IN ('pending', 'approved') AND expires_at_us <= ?5 THEN 'expired' ELSE state END)
                 ORDER BY created_at_us DESC, approval DESC LIMIT ?6",
            );
            let rows = sqlx::query(sqlx::AssertSqlSafe(statement))
                .bind(tenant.as_str())
                .bind(after.map_or(i64::MAX, |after| after.created_at_us))
                .bind(after.map_or("", |after| after.id.as_str()))
                .bind(filter.state.map(ApprovalState::name))
                .bind(now_us())
                .bind(limit)
                .bind(backends)
                .fetch_all(&self.readers)
                .await
                .map_err(map_error)?;
            Ok(self.readable(&rows, name, stored))
        })
        .await
    }

    async fn pending_approvals(&self) -> Result<Vec<(TenantId, u64)>, StoreError> {
        with_deadline("counting pending approvals", async {
            let rows = sqlx::query(
                "SELECT tenant, count(*) FROM approvals WHERE state = 'pending' AND expires_at_us > ? GROUP BY tenant",
            )
            .bind(now_us())
            .fetch_all(&self.readers)
            .await
            .map_err(map_error)?;
            let read = |row: &SqliteRow| -> Option<(TenantId, u64)> {
                let tenant = TenantId::parse(row.try_get(0).ok()?).ok()?;
                Some((tenant, u64::try_from(row.try_get::<i64, _>(1).ok()?).ok()?))
            };
            Ok(rows.iter().filter_map(read).collect())
        })
        .await
    }

    async fn approval_counts(&self) -> Result<Vec<(ApprovalState, u64)>, StoreError> {
        with_deadline("counting approvals", async {
            let rows = sqlx::query("SELECT state, count(*) FROM approvals GROUP BY state")
                .fetch_all(&self.readers)
                .await
                .map_err(map_error)?;
            let read = |row: &SqliteRow| -> Option<(ApprovalState, u64)> {
                let state = ApprovalState::parse(row.try_get(0).ok()?)?;
                Some((state, u64::try_from(row.try_get::<i64, _>(1).ok()?).ok()?))
            };
            Ok(rows.iter().filter_map(read).collect())
        })
        .await
    }

    async fn expire_approvals(&self, limit: u32) -> Result<u64, StoreError> {
        let done = self.write_one("expiring approvals", || {
            sqlx::query(
                "UPDATE approvals SET state = 'expired', arguments = x'', changed_at_us = ?1 WHERE approval IN (
                     SELECT approval FROM approvals INDEXED BY approvals_by_state
                     WHERE state IN ('pending', 'approved') AND expires_at_us <= ?1 LIMIT ?2)",
            )
            .bind(now_us())
            .bind(limit)
        });
        done.await
    }

    async fn remove_approvals(
        &self,
        age: Duration,
        expired_age: Duration,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let done = self.write_one("removing approvals", || {
            let now = now_us();
            // Each half is a range of the index.
            sqlx::query(
                "DELETE FROM approvals WHERE approval IN (
                     SELECT approval FROM approvals INDEXED BY approvals_by_state
                     WHERE state IN ('denied', 'used') AND changed_at_us <= ?1 AND coalesce(window_until_us, 0) <= ?3
                     UNION ALL
                     SELECT approval FROM approvals INDEXED BY approvals_by_state
                     WHERE state = 'expired' AND changed_at_us <= ?2 AND coalesce(window_until_us, 0) <= ?3
                     LIMIT ?4)",
            )
            .bind(now.saturating_sub(micros(age)))
            .bind(now.saturating_sub(micros(expired_age)))
            .bind(now)
            .bind(limit)
        });
        done.await
    }
}

/// Outcome of [`open`].
enum Opened {
    Approval(ApprovalId),
    Window(ApprovalId),
    Limit(ApprovalLimit),
}

/// Opens or joins an approval within the caller's transaction.
async fn open(
    connection: &mut SqliteConnection,
    record: &ApprovalRecord,
    limits: ApprovalLimits,
) -> Result<Opened, StoreError> {
    let (now, key) = (now_us(), record.key());
    let window: Option<String> = sqlx::query_scalar(
        "SELECT approval FROM approvals WHERE window_key = ? AND window_until_us > ? ORDER BY window_until_us DESC LIMIT 1",
    )
    .bind(record.window_key().as_slice())
    .bind(now)
    .fetch_optional(&mut *connection)
    .await
    .map_err(map_error)?;
    if let Some(window) = window {
        return Ok(Opened::Window(ApprovalId::new(window)));
    }
    sqlx::query(
        "UPDATE approvals SET state = 'expired', arguments = x'', changed_at_us = ?1 WHERE binding = ?2 AND state IN ('pending', 'approved') AND expires_at_us <= ?1",
    )
    .bind(now)
    .bind(key.as_slice())
    .execute(&mut *connection)
    .await
    .map_err(map_error)?;
    let open: Option<String> = sqlx::query_scalar(
        "SELECT approval FROM approvals WHERE binding = ? AND state IN ('pending', 'approved')",
    )
    .bind(key.as_slice())
    .fetch_optional(&mut *connection)
    .await
    .map_err(map_error)?;
    if let Some(open) = open {
        return Ok(Opened::Approval(ApprovalId::new(open)));
    }
    let binding = &record.binding;
    for (limit, principal, max) in [
        (ApprovalLimit::Principal, Some(binding.principal.as_str()), limits.per_principal),
        (ApprovalLimit::Tenant, None, limits.per_tenant),
    ] {
        let pending: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM approvals WHERE tenant = ?1 AND state = 'pending' AND expires_at_us > ?2 AND (?3 IS NULL OR principal = ?3)",
        )
        .bind(binding.tenant.as_str())
        .bind(now)
        .bind(principal)
        .fetch_one(&mut *connection)
        .await
        .map_err(map_error)?;
        if u64::try_from(pending).unwrap_or(0) >= max {
            return Ok(Opened::Limit(limit));
        }
    }
    sqlx::query(
        "INSERT INTO approvals (approval, tenant, principal, backend, tool, definition, arguments_hash, arguments, binding, window_key, terms, ttl_us, state, created_at_us, expires_at_us, changed_at_us)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, 'pending', ?13, ?13 + ?12, ?13)",
    )
    .bind(record.id.as_str())
    .bind(binding.tenant.as_str())
    .bind(binding.principal.as_str())
    .bind(binding.backend.as_str())
    .bind(binding.tool.as_str())
    .bind(binding.definition_column())
    .bind(binding.arguments_hash.as_slice())
    .bind(record.arguments.as_slice())
    .bind(key.as_slice())
    .bind(record.window_key().as_slice())
    .bind(record.terms.as_str())
    .bind(micros(record.ttl))
    .bind(now)
    .execute(&mut *connection)
    .await
    .map_err(map_error)?;
    Ok(Opened::Approval(record.id.clone()))
}

fn json_list(ids: &[&str]) -> String {
    let quoted: Vec<String> = ids.iter().map(|id| protocol::json::quote(id)).collect();
    format!("[{}]", quoted.join(","))
}

fn name(row: &SqliteRow) -> String {
    format!("approval {}", get::<&str>(row, "approval").unwrap_or("without an id"))
}

fn stored(row: &SqliteRow) -> Result<StoredApproval, UnreadableColumn> {
    let expires_at_us: i64 = get(row, "expires_at_us")?;
    let remaining =
        Duration::from_micros(u64::try_from(expires_at_us.saturating_sub(now_us())).unwrap_or(0));
    let state = ApprovalState::parse(get(row, "state")?).ok_or(UnreadableColumn("state"))?;
    let is_open = matches!(state, ApprovalState::Pending | ApprovalState::Approved);
    let ttl: i64 = get(row, "ttl_us")?;
    let (definition, pin) = ApprovalBinding::read_definition(get(row, "definition")?)
        .ok_or(UnreadableColumn("definition"))?;
    Ok(StoredApproval {
        record: ApprovalRecord {
            id: ApprovalId::new(get::<&str>(row, "approval")?),
            binding: ApprovalBinding {
                tenant: TenantId::parse(get(row, "tenant")?)
                    .map_err(|_| UnreadableColumn("tenant"))?,
                principal: PrincipalId::new(get::<&str>(row, "principal")?),
                backend: BackendId::parse(get(row, "backend")?)
                    .map_err(|_| UnreadableColumn("backend"))?,
                tool: get(row, "tool")?,
                definition,
                pin,
                arguments_hash: digest(row, "arguments_hash")?,
            },
            arguments: get(row, "arguments")?,
            terms: get(row, "terms")?,
            ttl: Duration::from_micros(u64::try_from(ttl).unwrap_or(0)),
        },
        state: if is_open && remaining.is_zero() { ApprovalState::Expired } else { state },
        decided_by: get(row, "decided_by")?,
        decision_reason: get(row, "decision_reason")?,
        decided_at_us: get(row, "decided_at_us")?,
        is_void: state == ApprovalState::Expired && get::<Option<&str>>(row, "used_by")?.is_some(),
        window_until_us: get(row, "window_until_us")?,
        created_at_us: get(row, "created_at_us")?,
        expires_at_us,
        remaining_time: remaining,
    })
}

fn digest(row: &SqliteRow, column: &'static str) -> Result<[u8; 32], UnreadableColumn> {
    get::<&[u8]>(row, column)?.try_into().map_err(|_| UnreadableColumn(column))
}
