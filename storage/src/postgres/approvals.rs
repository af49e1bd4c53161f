//! [`ApprovalStore`] on PostgreSQL. The server does all time arithmetic, by its own clock.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::{ApprovalId, BackendId, PrincipalId, TenantId};
use records::{
    ApprovalBinding, ApprovalFilter, ApprovalLimit, ApprovalLimits, ApprovalListPosition,
    ApprovalOpening, ApprovalRecord, ApprovalState, StoredApproval,
};
use sqlx::postgres::PgRow;

use super::{
    PostgresStore, micros,
    rows::{self, count, get},
};
use crate::{ApprovalStore, StoreError};

macro_rules! approvals {
    ($rest:literal) => {
        concat!(
            "SELECT approval, tenant, principal, backend, tool, definition, arguments_hash, arguments, terms, ttl_us, state, decided_by,
                 decision_reason, decided_at_us, used_by, window_until_us, created_at_us, expires_at_us, expires_at_us - now_us() AS left_us
             FROM approvals ",
            $rest
        )
    };
}

/// Removes final approvals, at the end of their open windows. Each state is a range of the index
/// `approvals_by_state`. The time is a subquery, because an index condition takes no function that
/// changes its value.
pub(super) const REMOVE: &str = "DELETE FROM approvals WHERE approval IN (
        SELECT due.approval
        FROM (VALUES ('denied', $1::bigint), ('used', $1::bigint), ('expired', $2::bigint)) AS final (state, age)
        CROSS JOIN LATERAL (
            SELECT approval FROM approvals
            WHERE approvals.state = final.state AND changed_at_us <= (SELECT now_us()) - final.age
                AND coalesce(window_until_us, 0) <= (SELECT now_us())
            ORDER BY changed_at_us LIMIT $3 FOR UPDATE SKIP LOCKED) AS due
        LIMIT $3)
    RETURNING 1";

impl PostgresStore {
    fn stored_approvals(&self, rows: &[PgRow]) -> Vec<StoredApproval> {
        self.readable(rows, stored, |row| {
            format!("approval {}", get::<&str>(row, "approval").unwrap_or("without an id"))
        })
    }
}

#[async_trait]
impl ApprovalStore for PostgresStore {
    async fn open_approval(
        &self,
        record: &ApprovalRecord,
        limits: ApprovalLimits,
    ) -> Result<ApprovalOpening, StoreError> {
        let binding = &record.binding;
        let (key, window_key) = (record.key(), record.window_key());
        let open = |_| {
            sqlx::query(
                "SELECT outcome, opened FROM open_approval($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
            )
            .bind(record.id.as_str())
            .bind(binding.tenant.as_str())
            .bind(binding.principal.as_str())
            .bind(binding.backend.as_str())
            .bind(binding.tool.as_bytes())
            .bind(binding.definition_column())
            .bind(binding.arguments_hash.as_slice())
            .bind(record.arguments.as_slice())
            .bind(key.to_vec())
            .bind(window_key.to_vec())
            .bind(record.terms.as_str())
            .bind(micros(record.ttl))
            .bind(i64::try_from(limits.per_principal).unwrap_or(i64::MAX))
            .bind(i64::try_from(limits.per_tenant).unwrap_or(i64::MAX))
        };
        let rows = self.rows_of(&self.write_pool, open).await?;
        let unreadable = || StoreError::Corrupt { detail: "an approval cannot be read".to_owned() };
        let row = rows.first().ok_or_else(unreadable)?;
        let opened: Option<&str> = get(row, "opened")?;
        match (get::<&str>(row, "outcome")?, opened) {
            ("window", Some(id)) => Ok(ApprovalOpening::Window(ApprovalId::new(id))),
            ("principal", _) => Ok(ApprovalOpening::LimitReached(ApprovalLimit::Principal)),
            ("tenant", _) => Ok(ApprovalOpening::LimitReached(ApprovalLimit::Tenant)),
            (_, Some(id)) => {
                let found = self.approval(&ApprovalId::new(id)).await?;
                found.map(|found| ApprovalOpening::Open(Box::new(found))).ok_or_else(unreadable)
            }
            (_, None) => Err(unreadable()),
        }
    }

    async fn approval(&self, id: &ApprovalId) -> Result<Option<StoredApproval>, StoreError> {
        let select = |_| sqlx::query(approvals!("WHERE approval = $1")).bind(id.as_str());
        Ok(self.stored_approvals(&self.rows(select).await?).pop())
    }

    async fn use_approval(&self, id: &ApprovalId, user: &str) -> Result<bool, StoreError> {
        let take = |_| {
            sqlx::query(
                "UPDATE approvals SET state = 'used', used_by = $2, changed_at_us = now_us()
                 WHERE approval = $1 AND ((state = 'approved' AND expires_at_us > now_us()) OR (state = 'used' AND used_by = $2))
                 RETURNING 1",
            )
            .bind(id.as_str())
            .bind(user)
        };
        Ok(!self.rows_of(&self.write_pool, take).await?.is_empty())
    }

    async fn void_approval(&self, id: &ApprovalId) -> Result<bool, StoreError> {
        let end = |_| {
            sqlx::query(
                "UPDATE approvals SET state = 'expired', used_by = 'no call: the tool changed', changed_at_us = now_us()
                 WHERE approval = $1 AND state = 'approved' RETURNING 1",
            )
            .bind(id.as_str())
        };
        Ok(!self.rows_of(&self.write_pool, end).await?.is_empty())
    }

    async fn settled_approvals(&self, ids: &[ApprovalId]) -> Result<Vec<ApprovalId>, StoreError> {
        let ids: Vec<String> = ids.iter().map(|id| id.as_str().to_owned()).collect();
        // A removed approval is settled too.
        let select = |_| {
            sqlx::query(
                "SELECT asked.approval FROM unnest($1::text[]) AS asked (approval) WHERE NOT EXISTS (
                     SELECT FROM approvals WHERE approvals.approval = asked.approval AND state = 'pending' AND expires_at_us > now_us())",
            )
            .bind(ids.clone())
        };
        let rows = self.rows(select).await?;
        rows.iter().map(|row| Ok(ApprovalId::new(get::<&str>(row, "approval")?))).collect()
    }

    async fn approvals_of(
        &self,
        tenant: &TenantId,
        filter: &ApprovalFilter,
        after: Option<&ApprovalListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredApproval>, StoreError> {
        let name = |backend: &BackendId| backend.as_str().to_owned();
        let backends: Option<Vec<String>> =
            filter.backends.as_ref().map(|all| all.iter().map(name).collect());
        let select = |_| {
            sqlx::query(approvals!(
                "WHERE tenant = $1 AND (created_at_us, approval) < ($2, $3)
                     AND ($6::text[] IS NULL OR backend = ANY ($6))
                     AND ($4::text IS NULL OR $4 = CASE WHEN state IN ('pending', 'approved') AND expires_at_us <= now_us() THEN 'expired' ELSE state END)
                 ORDER BY created_at_us DESC, approval DESC LIMIT $5"
            ))
            .bind(tenant.as_str())
            .bind(after.map_or(i64::MAX, |after| after.created_at_us))
            .bind(after.map_or("", |after| after.id.as_str()))
            .bind(filter.state.map(ApprovalState::name))
            .bind(i64::from(limit))
            .bind(backends.clone())
        };
        Ok(self.stored_approvals(&self.rows(select).await?))
    }

    async fn pending_approvals(&self) -> Result<Vec<(TenantId, u64)>, StoreError> {
        let select = |_| {
            sqlx::query(
                "SELECT tenant, count(*) AS approvals FROM approvals
                 WHERE state = 'pending' AND expires_at_us > now_us() GROUP BY tenant",
            )
        };
        let rows = self.rows(select).await?;
        rows.iter().map(|row| Ok((rows::tenant(row)?, count(row, "approvals")?))).collect()
    }

    async fn approval_counts(&self) -> Result<Vec<(ApprovalState, u64)>, StoreError> {
        let select =
            |_| sqlx::query("SELECT state, count(*) AS approvals FROM approvals GROUP BY state");
        let rows = self.rows(select).await?;
        let read = |row: &PgRow| {
            let state = ApprovalState::parse(get(row, "state").ok()?)?;
            Some((state, count(row, "approvals").ok()?))
        };
        Ok(rows.iter().filter_map(read).collect())
    }

    async fn expire_approvals(&self, limit: u32) -> Result<u64, StoreError> {
        let expire = |_| {
            sqlx::query(
                "UPDATE approvals SET state = 'expired', arguments = '', changed_at_us = now_us() WHERE approval IN (
                     SELECT approval FROM approvals WHERE state IN ('pending', 'approved') AND expires_at_us <= now_us()
                     ORDER BY approval LIMIT $1 FOR UPDATE SKIP LOCKED)
                 RETURNING 1",
            )
            .bind(i64::from(limit))
        };
        Ok(self.rows_of(&self.write_pool, expire).await?.len() as u64)
    }

    async fn remove_approvals(
        &self,
        age: Duration,
        expired_age: Duration,
        limit: u32,
    ) -> Result<u64, StoreError> {
        let remove = |_| {
            sqlx::query(REMOVE).bind(micros(age)).bind(micros(expired_age)).bind(i64::from(limit))
        };
        Ok(self.rows_of(&self.write_pool, remove).await?.len() as u64)
    }
}

fn stored(row: &PgRow) -> Result<StoredApproval, StoreError> {
    let state: &str = get(row, "state")?;
    let state = ApprovalState::parse(state).ok_or_else(|| StoreError::Corrupt {
        detail: format!("an approval has the unknown state {state:?}"),
    })?;
    let is_open = matches!(state, ApprovalState::Pending | ApprovalState::Approved);
    let remaining = Duration::from_micros(u64::try_from(get::<i64>(row, "left_us")?).unwrap_or(0));
    let ttl = u64::try_from(get::<i64>(row, "ttl_us")?).unwrap_or(0);
    let (definition, pin) =
        ApprovalBinding::read_definition(get(row, "definition")?).ok_or_else(|| {
            StoreError::Corrupt {
                detail: "the definition of an approval cannot be read".to_owned(),
            }
        })?;
    Ok(StoredApproval {
        record: ApprovalRecord {
            id: ApprovalId::new(get::<&str>(row, "approval")?),
            binding: ApprovalBinding {
                tenant: rows::tenant(row)?,
                principal: PrincipalId::new(get::<&str>(row, "principal")?),
                backend: rows::backend(get(row, "backend")?)?,
                tool: rows::text(get(row, "tool")?)?,
                definition,
                pin,
                arguments_hash: digest(row, "arguments_hash")?,
            },
            arguments: get(row, "arguments")?,
            terms: get(row, "terms")?,
            ttl: Duration::from_micros(ttl),
        },
        state: if is_open && remaining.is_zero() { ApprovalState::Expired } else { state },
        decided_by: get(row, "decided_by")?,
        decision_reason: get(row, "decision_reason")?,
        decided_at_us: get(row, "decided_at_us")?,
        is_void: state == ApprovalState::Expired && get::<Option<&str>>(row, "used_by")?.is_some(),
        window_until_us: get(row, "window_until_us")?,
        created_at_us: get(row, "created_at_us")?,
        expires_at_us: get(row, "expires_at_us")?,
        remaining_time: remaining,
    })
}

fn digest(row: &PgRow, column: &str) -> Result<[u8; 32], StoreError> {
    get::<&[u8]>(row, column)?.try_into().map_err(|_| StoreError::Corrupt {
        detail: format!("the {column} of an approval is not 32 bytes long"),
    })
}
