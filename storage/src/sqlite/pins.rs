//! [`PinStore`] on SQLite, and the changes of pins by operators.

use async_trait::async_trait;
use protocol::ids::{BackendId, TenantId};
use records::{
    PIN_APPROVED_MAX, PIN_HASH_CHARS, PinApproval, PinBlock, PinDefinitions, PinKey, PinKind,
    PinSighting, StoredPin, approved_hashes,
};
use sqlx::{Row, sqlite::SqliteRow};

use super::{
    SqliteStore, WriteTransaction,
    error_mapping::map_error,
    now_us,
    rows::{UnreadableColumn, backend_id, get, tenant_id},
    with_deadline,
};
use crate::{PinStore, StoreError, fault_point};

macro_rules! select_pins {
    ($rest:literal) => {
        concat!(
            "SELECT kind, name, first_hash, seen_hash, is_listed, approved, is_blocked, decisions, findings, decided_by, decided_at_us,
                    first_seen_at_us, seen_at_us FROM catalog_pins ",
            $rest
        )
    };
}

/// Columns of a pin, as [`stored_pin`] reads them.
macro_rules! returning_pin {
    ($change:literal) => {
        concat!(
            $change,
            " RETURNING kind, name, first_hash, seen_hash, is_listed, approved, is_blocked, decisions, findings, decided_by, decided_at_us,
                first_seen_at_us, seen_at_us"
        )
    };
}

/// Stores one sighting. Adds a new pin only if it `may_add` one. Returns the row as it is now, and
/// whether it is new.
async fn put_sighting(
    writing: &mut WriteTransaction<'_>,
    tenant: &TenantId,
    backend: &BackendId,
    sighting: &PinSighting,
    may_add: bool,
) -> Result<Option<(SqliteRow, bool)>, StoreError> {
    const UPDATE: &str = returning_pin!(
        "UPDATE catalog_pins SET seen_hash = ?5, is_listed = 1, seen_definition = ?6, findings = ?7, seen_at_us = ?8
         WHERE tenant = ?1 AND backend = ?2 AND kind = ?3 AND name = ?4"
    );
    const INSERT: &str = returning_pin!(
        "INSERT INTO catalog_pins (tenant, backend, kind, name, first_hash, seen_hash, is_listed, accepted_definition, seen_definition, findings,
                                   first_seen_at_us, seen_at_us)
         VALUES (?1, ?2, ?3, ?4, ?5, ?5, 1, ?6, ?6, ?7, ?8, ?8)"
    );
    let statements = [(UPDATE, false), (INSERT, true)].into_iter();
    for (statement, is_new) in statements.filter(|(_, is_new)| may_add || !is_new) {
        let put = sqlx::query(statement)
            .bind(tenant.as_str())
            .bind(backend.as_str())
            .bind(sighting.key.kind.name())
            .bind(sighting.key.name.as_str())
            .bind(sighting.hash.as_str())
            .bind(sighting.definition.as_str())
            .bind(sighting.findings.as_str())
            .bind(now_us());
        if let Some(row) = put.fetch_optional(writing.connection()).await.map_err(map_error)? {
            return Ok(Some((row, is_new)));
        }
    }
    Ok(None)
}

#[async_trait]
impl PinStore for SqliteStore {
    async fn record_sightings(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        seen: &[PinSighting],
        gone: &[PinKey],
        pins_max: u32,
    ) -> Result<Vec<StoredPin>, StoreError> {
        with_deadline("recording what a backend lists", async {
            let mut writing = self.begin().await?;
            fault_point::hit("pins.begun");
            for key in gone {
                sqlx::query(
                    "UPDATE catalog_pins SET is_listed = 0 WHERE tenant = ? AND backend = ? AND kind = ? AND name = ?",
                )
                .bind(tenant.as_str())
                .bind(backend.as_str())
                .bind(key.kind.name())
                .bind(key.name.as_str())
                .execute(writing.connection())
                .await
                .map_err(map_error)?;
            }
            let mut count: u32 = sqlx::query_scalar(
                "SELECT count(*) FROM catalog_pins WHERE tenant = ? AND backend = ?",
            )
            .bind(tenant.as_str())
            .bind(backend.as_str())
            .fetch_one(writing.connection())
            .await
            .map_err(map_error)?;
            let mut stored = Vec::with_capacity(seen.len());
            for sighting in seen {
                let may_add = count < pins_max;
                let put = put_sighting(&mut writing, tenant, backend, sighting, may_add).await?;
                if let Some((row, is_new)) = put {
                    count = count.saturating_add(u32::from(is_new));
                    stored.push(row);
                }
            }
            writing.commit().await?;
            fault_point::hit("pins.committed");
            Ok(self.readable(&stored, pin_name, stored_pin))
        })
        .await
    }

    async fn pins_of(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
    ) -> Result<Vec<StoredPin>, StoreError> {
        with_deadline("reading pins", async {
            let rows =
                sqlx::query(select_pins!("WHERE tenant = ? AND backend = ? ORDER BY kind, name"))
                    .bind(tenant.as_str())
                    .bind(backend.as_str())
                    .fetch_all(&self.readers)
                    .await
                    .map_err(map_error)?;
            Ok(self.readable(&rows, pin_name, stored_pin))
        })
        .await
    }

    async fn pin_definitions(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        key: &PinKey,
    ) -> Result<Option<PinDefinitions>, StoreError> {
        with_deadline("reading a pin", async {
            let row = sqlx::query(
                "SELECT accepted_definition, seen_definition FROM catalog_pins WHERE tenant = ? AND backend = ? AND kind = ? AND name = ?",
            )
            .bind(tenant.as_str())
            .bind(backend.as_str())
            .bind(key.kind.name())
            .bind(key.name.as_str())
            .fetch_optional(&self.readers)
            .await
            .map_err(map_error)?;
            let read = |row: &SqliteRow| {
                Ok(PinDefinitions {
                    accepted: row.try_get("accepted_definition").map_err(map_error)?,
                    seen: row.try_get("seen_definition").map_err(map_error)?,
                })
            };
            row.as_ref().map(read).transpose()
        })
        .await
    }

    async fn pin_decisions(&self) -> Result<Vec<(TenantId, BackendId, i64)>, StoreError> {
        with_deadline("counting decisions about pins", async {
            let rows = sqlx::query(
                "SELECT tenant, backend, sum(decisions) AS decisions FROM catalog_pins WHERE decisions > 0 GROUP BY tenant, backend",
            )
            .fetch_all(&self.readers)
            .await
            .map_err(map_error)?;
            let read = |row: &SqliteRow| Ok((tenant_id(row)?, backend_id(row)?, get(row, "decisions")?));
            Ok(self.readable(&rows, |_| "decisions about pins".to_owned(), read))
        })
        .await
    }
}

/// Carries out an approval. Returns false, and leaves the transaction to be rolled back, if a hash
/// is not the one that was seen last.
pub(super) async fn approve(
    writing: &mut WriteTransaction<'_>,
    approval: &PinApproval,
) -> Result<bool, StoreError> {
    for (key, hash) in &approval.items {
        let approved = sqlx::query(
            "UPDATE catalog_pins SET approved = substr(?1 || ' ' || replace(approved, ?1 || ' ', ''), 1, ?2), is_blocked = 0,
                 decisions = decisions + 1, decided_by = ?3, decided_at_us = ?4, accepted_definition = seen_definition
             WHERE tenant = ?5 AND backend = ?6 AND kind = ?7 AND name = ?8 AND seen_hash = ?1",
        )
        .bind(hash.as_str())
        .bind(approved_chars())
        .bind(approval.by.as_str())
        .bind(approval.at_us)
        .bind(approval.tenant.as_str())
        .bind(approval.backend.as_str())
        .bind(key.kind.name())
        .bind(key.name.as_str());
        let approved = approved.execute(writing.connection()).await.map_err(map_error)?;
        if approved.rows_affected() == 0 {
            return Ok(false);
        }
    }
    if approval.forgets_gone {
        sqlx::query("DELETE FROM catalog_pins WHERE tenant = ? AND backend = ? AND is_listed = 0 AND decisions = 0")
            .bind(approval.tenant.as_str())
            .bind(approval.backend.as_str())
            .execute(writing.connection())
            .await
            .map_err(map_error)?;
    }
    Ok(true)
}

/// Carries out a block. Returns false, and leaves the transaction to be rolled back, if an object
/// was never seen.
pub(super) async fn block(
    writing: &mut WriteTransaction<'_>,
    block: &PinBlock,
) -> Result<bool, StoreError> {
    for key in &block.keys {
        let blocked = sqlx::query(
            "UPDATE catalog_pins SET is_blocked = 1, decisions = decisions + 1, decided_by = ?, decided_at_us = ?
             WHERE tenant = ? AND backend = ? AND kind = ? AND name = ?",
        )
        .bind(block.by.as_str())
        .bind(block.at_us)
        .bind(block.tenant.as_str())
        .bind(block.backend.as_str())
        .bind(key.kind.name())
        .bind(key.name.as_str());
        let blocked = blocked.execute(writing.connection()).await.map_err(map_error)?;
        if blocked.rows_affected() == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the length of the text with the most approved hashes.
fn approved_chars() -> i64 {
    i64::try_from(PIN_APPROVED_MAX * (PIN_HASH_CHARS + 1)).unwrap_or(i64::MAX)
}

fn pin_name(row: &SqliteRow) -> String {
    format!("the pin {:?}", get::<&str>(row, "name").unwrap_or_default())
}

fn stored_pin(row: &SqliteRow) -> Result<StoredPin, UnreadableColumn> {
    Ok(StoredPin {
        key: PinKey {
            kind: PinKind::parse(get(row, "kind")?).ok_or(UnreadableColumn("kind"))?,
            name: get(row, "name")?,
        },
        first_hash: get(row, "first_hash")?,
        seen_hash: get(row, "seen_hash")?,
        is_listed: get(row, "is_listed")?,
        approved: approved_hashes(get(row, "approved")?),
        is_blocked: get(row, "is_blocked")?,
        decisions: get(row, "decisions")?,
        findings: get(row, "findings")?,
        decided_by: get(row, "decided_by")?,
        decided_at_us: get(row, "decided_at_us")?,
        first_seen_at_us: get(row, "first_seen_at_us")?,
        seen_at_us: get(row, "seen_at_us")?,
    })
}
