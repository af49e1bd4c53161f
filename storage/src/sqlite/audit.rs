//! [`AuditStore`] on SQLite. Triggers refuse changes of records and early removals.

use std::collections::{BTreeMap, btree_map::Entry};

use async_trait::async_trait;
use records::{
    AUDIT_ID_BYTES, AuditFilter, AuditKind, AuditOrder, AuditRecord, ChainedAuditRecord,
    StoredAuditRecord,
};
use sqlx::{Row, sqlite::SqliteRow};

use super::{SqliteStore, WriteTransaction, audit_chain, error_mapping::map_error, with_deadline};
use crate::{AuditStore, StoreError};

macro_rules! select_records {
    ($after:literal, $order:literal) => {
        concat!(
            "SELECT number, id, at_us, kind, tenant, body FROM audit
             WHERE number ",
            $after,
            " ?1 AND (?2 IS NULL OR tenant = ?2) AND (?3 IS NULL OR kind = ?3)
               AND at_us >= ?4 AND at_us < ?5
             ORDER BY number ",
            $order,
            " LIMIT ?6",
        )
    };
}

#[async_trait]
impl AuditStore for SqliteStore {
    async fn append_audit(&self, records: &[AuditRecord]) -> Result<(), StoreError> {
        with_deadline("adding to the audit log", async {
            let mut writing = self.begin().await?;
            append(&mut writing, records).await?;
            writing.commit().await
        })
        .await
    }

    async fn audit_records(
        &self,
        filter: &AuditFilter,
        after: Option<i64>,
        limit: u32,
    ) -> Result<Vec<StoredAuditRecord>, StoreError> {
        let (statement, start) = match filter.order {
            AuditOrder::OldestFirst => (select_records!(">", "ASC"), i64::MIN),
            AuditOrder::NewestFirst => (select_records!("<", "DESC"), i64::MAX),
        };
        let select = sqlx::query(statement)
            .bind(after.unwrap_or(start))
            .bind(filter.tenant.as_deref())
            .bind(filter.kind.map(AuditKind::name))
            .bind(filter.since_us.unwrap_or(i64::MIN))
            .bind(filter.until_us.unwrap_or(i64::MAX))
            .bind(limit);
        with_deadline("reading the audit log", async {
            select.fetch_all(&self.readers).await.map_err(map_error)?.iter().map(stored).collect()
        })
        .await
    }

    async fn trim_unchained_audit(&self, before_us: i64, limit: u32) -> Result<u64, StoreError> {
        with_deadline("trimming the audit log", async {
            let mut writing = self.begin().await?;
            let release = sqlx::query("UPDATE audit_retention SET before_us = ?1 WHERE before_us < ?1").bind(before_us);
            release.execute(writing.connection()).await.map_err(map_error)?;
            let delete = sqlx::query(
                "DELETE FROM audit WHERE number IN
                 (SELECT number FROM audit INDEXED BY audit_by_time WHERE at_us < ? AND chain_position IS NULL LIMIT ?)",
            );
            let gone = delete.bind(before_us).bind(limit).execute(writing.connection()).await.map_err(map_error)?.rows_affected();
            writing.commit().await?;
            Ok(gone)
        })
        .await
    }
}

/// Adds the missing records to their chains, in the same transaction as the other writes.
pub(super) async fn append(
    writing: &mut WriteTransaction<'_>,
    records: &[AuditRecord],
) -> Result<(), StoreError> {
    let mut heads: BTreeMap<&str, (i64, Vec<u8>)> = BTreeMap::new();
    let mut number = audit_chain::last_number(writing).await?;
    for record in records {
        let name = record.tenant.as_deref().unwrap_or_default();
        let (length, head) = match heads.entry(name) {
            Entry::Occupied(held) => held.into_mut(),
            Entry::Vacant(free) => free.insert(audit_chain::head(writing, name).await?),
        };
        let link = ChainedAuditRecord::of(record, *length + 1, number + 1);
        let hash = link.hash_after(head);
        let insert = sqlx::query(
            "INSERT INTO audit (number, id, at_us, kind, tenant, body, chain_position, chain_hash)
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 WHERE NOT EXISTS (SELECT 1 FROM audit WHERE id = ?2)",
        )
        .bind(link.number)
        .bind(record.id.as_slice())
        .bind(record.at_us)
        .bind(record.kind.name())
        .bind(record.tenant.as_deref())
        .bind(record.body.as_str())
        .bind(link.position)
        .bind(hash.as_slice());
        if insert.execute(writing.connection()).await.map_err(map_error)?.rows_affected() > 0 {
            (*length, *head, number) = (link.position, hash.to_vec(), link.number);
        }
    }
    for (name, (length, head)) in heads {
        audit_chain::put_head(writing, name, length, &head).await?;
    }
    Ok(())
}

fn stored(row: &SqliteRow) -> Result<StoredAuditRecord, StoreError> {
    let corrupt = |what: &str| StoreError::Corrupt {
        detail: format!("an audit record has no readable {what}"),
    };
    let id: Vec<u8> = row.try_get("id").map_err(map_error)?;
    let kind: &str = row.try_get("kind").map_err(map_error)?;
    Ok(StoredAuditRecord {
        number: row.try_get("number").map_err(map_error)?,
        record: AuditRecord {
            id: <[u8; AUDIT_ID_BYTES]>::try_from(id).map_err(|_| corrupt("id"))?,
            at_us: row.try_get("at_us").map_err(map_error)?,
            kind: AuditKind::parse(kind).ok_or_else(|| corrupt("kind"))?,
            tenant: row.try_get("tenant").map_err(map_error)?,
            body: row.try_get("body").map_err(map_error)?,
        },
    })
}
