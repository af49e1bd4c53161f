//! [`PinStore`] on PostgreSQL. The database's functions carry out decisions of operators.

use async_trait::async_trait;
use protocol::ids::{BackendId, TenantId};
use records::{
    PIN_APPROVED_MAX, PIN_HASH_CHARS, PinDefinitions, PinKey, PinKind, PinSighting, StoredPin,
    approved_hashes,
};
use sqlx::postgres::PgRow;

use super::{
    PostgresStore,
    rows::{self, get},
};
use crate::{PinStore, StoreError, fault_point};

/// Length of the text with the most approved hashes.
pub(super) const APPROVED_CHARS: i32 = (PIN_APPROVED_MAX * (PIN_HASH_CHARS + 1)) as i32;

/// Columns of a pin, as [`stored_pin`] reads them.
macro_rules! pin_columns {
    () => {
        "kind, name, first_hash, seen_hash, is_listed, approved, is_blocked, decisions, findings, decided_by, decided_at_us,
         first_seen_at_us, seen_at_us"
    };
}

/// Rows are locked in the order of their keys, so that replicas that record the same do not block
/// each other.
const RECORD: &str = concat!(
    "WITH given AS (
         SELECT * FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[]) AS given (kind, name, hash, definition, findings)
     ), gone AS (
         UPDATE catalog_pins pin SET is_listed = FALSE FROM unnest($8::text[], $9::text[]) AS lost (kind, name)
         WHERE pin.tenant = $1 AND pin.backend = $2 AND pin.kind = lost.kind AND pin.name = lost.name AND pin.is_listed
     ), placed AS (
         SELECT given.*, known.kind IS NULL AS is_new,
                row_number() OVER (PARTITION BY known.kind IS NULL ORDER BY given.kind, given.name) AS place
         FROM given LEFT JOIN catalog_pins known
             ON known.tenant = $1 AND known.backend = $2 AND known.kind = given.kind AND known.name = given.name
     )
     INSERT INTO catalog_pins (tenant, backend, kind, name, first_hash, seen_hash, is_listed, accepted_definition, seen_definition, findings,
                               first_seen_at_us, seen_at_us)
     SELECT $1, $2, kind, name, hash, hash, TRUE, definition, definition, findings, now_us(), now_us() FROM placed
     WHERE NOT is_new OR place <= $10 - (SELECT count(*) FROM catalog_pins WHERE tenant = $1 AND backend = $2)
     ORDER BY kind, name
     ON CONFLICT (tenant, backend, kind, name) DO UPDATE SET seen_hash = excluded.seen_hash, is_listed = TRUE,
         seen_definition = excluded.seen_definition, findings = excluded.findings, seen_at_us = excluded.seen_at_us
     RETURNING ",
    pin_columns!()
);

pub(super) fn texts<'a, T>(items: &'a [T], text: impl Fn(&'a T) -> &'a str) -> Vec<String> {
    items.iter().map(|item| text(item).to_owned()).collect()
}

#[async_trait]
impl PinStore for PostgresStore {
    async fn record_sightings(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        seen: &[PinSighting],
        gone: &[PinKey],
        pins_max: u32,
    ) -> Result<Vec<StoredPin>, StoreError> {
        fault_point::hit("pins.begun");
        let record = |_| {
            sqlx::query(RECORD)
                .bind(tenant.as_str())
                .bind(backend.as_str())
                .bind(texts(seen, |one| one.key.kind.name()))
                .bind(texts(seen, |one| &one.key.name))
                .bind(texts(seen, |one| &one.hash))
                .bind(texts(seen, |one| &one.definition))
                .bind(texts(seen, |one| &one.findings))
                .bind(texts(gone, |one| one.kind.name()))
                .bind(texts(gone, |one| &one.name))
                .bind(i64::from(pins_max))
        };
        let rows = self.rows_of(&self.write_pool, record).await?;
        fault_point::hit("pins.committed");
        Ok(self.readable(&rows, stored_pin, pin_name))
    }

    async fn pins_of(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
    ) -> Result<Vec<StoredPin>, StoreError> {
        let select = |_| {
            sqlx::query(concat!(
                "SELECT ",
                pin_columns!(),
                " FROM catalog_pins WHERE tenant = $1 AND backend = $2 ORDER BY kind, name"
            ))
            .bind(tenant.as_str())
            .bind(backend.as_str())
        };
        Ok(self.readable(&self.rows(select).await?, stored_pin, pin_name))
    }

    async fn pin_definitions(
        &self,
        tenant: &TenantId,
        backend: &BackendId,
        key: &PinKey,
    ) -> Result<Option<PinDefinitions>, StoreError> {
        let select = |_| {
            sqlx::query(
                "SELECT accepted_definition, seen_definition FROM catalog_pins
                 WHERE tenant = $1 AND backend = $2 AND kind = $3 AND name = $4",
            )
            .bind(tenant.as_str())
            .bind(backend.as_str())
            .bind(key.kind.name())
            .bind(key.name.as_str())
        };
        let read = |row: &PgRow| {
            Ok(PinDefinitions {
                accepted: get(row, "accepted_definition")?,
                seen: get(row, "seen_definition")?,
            })
        };
        self.rows(select).await?.first().map(read).transpose()
    }

    async fn pin_decisions(&self) -> Result<Vec<(TenantId, BackendId, i64)>, StoreError> {
        let select = |_| {
            sqlx::query(
                "SELECT tenant, backend, sum(decisions)::bigint AS decisions FROM catalog_pins
                 WHERE decisions > 0 GROUP BY tenant, backend",
            )
        };
        let read = |row: &PgRow| {
            Ok((rows::tenant(row)?, rows::backend(get(row, "backend")?)?, get(row, "decisions")?))
        };
        let rows = self.rows(select).await?;
        Ok(self.readable(&rows, read, |_| "decisions about pins".to_owned()))
    }
}

fn pin_name(row: &PgRow) -> String {
    format!("the pin {:?}", get::<&str>(row, "name").unwrap_or_default())
}

fn stored_pin(row: &PgRow) -> Result<StoredPin, StoreError> {
    let kind: &str = get(row, "kind")?;
    Ok(StoredPin {
        key: PinKey {
            kind: PinKind::parse(kind).ok_or_else(|| StoreError::Corrupt {
                detail: format!("a pin has the unknown kind {kind:?}"),
            })?,
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
