//! [`AuditStore`] on PostgreSQL. Triggers refuse changes of records and early removals.

use async_trait::async_trait;
use records::{AUDIT_ID_BYTES, AuditFilter, AuditKind, AuditOrder, AuditRecord, StoredAuditRecord};
use sqlx::postgres::PgRow;

use super::{
    PostgresStore, config,
    rows::{get, text},
};
use crate::{AuditStore, StoreError};

macro_rules! select_records {
    ($after:literal, $order:literal) => {
        concat!(
            "SELECT number, id, at_us, kind, tenant, body FROM audit
             WHERE number ",
            $after,
            " $1 AND ($2::text IS NULL OR tenant = $2) AND ($3::text IS NULL OR kind = $3)
               AND at_us >= $4 AND at_us < $5
             ORDER BY number ",
            $order,
            " LIMIT $6",
        )
    };
}

#[async_trait]
impl AuditStore for PostgresStore {
    async fn append_audit(&self, records: &[AuditRecord]) -> Result<(), StoreError> {
        let ids: Vec<&[u8]> = records.iter().map(|record| record.id.as_slice()).collect();
        let moments: Vec<i64> = records.iter().map(|record| record.at_us).collect();
        let kinds: Vec<&str> = records.iter().map(|record| record.kind.name()).collect();
        let tenants: Vec<Option<&str>> =
            records.iter().map(|record| record.tenant.as_deref()).collect();
        let bodies: Vec<&[u8]> = records.iter().map(|record| record.body.as_bytes()).collect();
        // The id makes it harmless to send a record again whose commit is in doubt.
        let insert = |_again| {
            sqlx::query("SELECT append_audit($1::bytea[], $2::bigint[], $3::text[], $4::text[], $5::bytea[])")
                .bind(ids.clone())
                .bind(moments.clone())
                .bind(kinds.clone())
                .bind(tenants.clone())
                .bind(bodies.clone())
        };
        self.rows(insert).await?;
        Ok(())
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
        let select = |_again| {
            sqlx::query(statement)
                .bind(after.unwrap_or(start))
                .bind(filter.tenant.as_deref())
                .bind(filter.kind.map(AuditKind::name))
                .bind(filter.since_us.unwrap_or(i64::MIN))
                .bind(filter.until_us.unwrap_or(i64::MAX))
                .bind(i64::from(limit))
        };
        self.rows(select).await?.iter().map(stored).collect()
    }

    async fn trim_unchained_audit(&self, before_us: i64, limit: u32) -> Result<u64, StoreError> {
        let trim = |_again| {
            sqlx::query("SELECT trim_audit($1, $2) AS gone").bind(before_us).bind(i64::from(limit))
        };
        let rows = self.rows(trim).await?;
        Ok(u64::try_from(get::<i64>(config::only(&rows)?, "gone")?).unwrap_or(0))
    }
}

fn stored(row: &PgRow) -> Result<StoredAuditRecord, StoreError> {
    let corrupt = |what: &str| StoreError::Corrupt {
        detail: format!("an audit record has no readable {what}"),
    };
    let id: Vec<u8> = get(row, "id")?;
    Ok(StoredAuditRecord {
        number: get(row, "number")?,
        record: AuditRecord {
            id: <[u8; AUDIT_ID_BYTES]>::try_from(id).map_err(|_| corrupt("id"))?,
            at_us: get(row, "at_us")?,
            kind: AuditKind::parse(get(row, "kind")?).ok_or_else(|| corrupt("kind"))?,
            tenant: get(row, "tenant")?,
            body: text(get(row, "body")?)?,
        },
    })
}
