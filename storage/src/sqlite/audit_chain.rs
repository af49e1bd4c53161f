//! [`AuditChainStore`] on SQLite: one writer at a time extends the chains.

use async_trait::async_trait;
use records::{
    AUDIT_GENESIS, AuditChain, AuditChainPage, AuditCheckpoint, AuditRetentionTerms,
    AuditTruncation, UnchainedAudit,
};
use sqlx::{Row, sqlite::SqliteRow};

use super::{SqliteStore, WriteTransaction, error_mapping::map_error, with_deadline};
use crate::{AuditChainStore, StoreError, audit_rows};

const READING: &str = "reading the chains of the audit log";

#[async_trait]
impl AuditChainStore for SqliteStore {
    async fn audit_chains(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<AuditChain>, StoreError> {
        // The query finds names that only records contain. It jumps from one name to the next along
        // the index.
        let select = sqlx::query(
            "WITH RECURSIVE named (chain) AS (
                 SELECT min(coalesce(tenant, '')) FROM audit INDEXED BY audit_by_chain
                 WHERE chain_position IS NOT NULL AND (?1 IS NULL OR coalesce(tenant, '') > ?1)
                 UNION ALL
                 SELECT (SELECT min(coalesce(tenant, '')) FROM audit INDEXED BY audit_by_chain
                         WHERE chain_position IS NOT NULL AND coalesce(tenant, '') > named.chain)
                 FROM named WHERE named.chain IS NOT NULL LIMIT ?2),
             known (chain) AS (
                 SELECT chain FROM named WHERE chain IS NOT NULL
                 UNION SELECT * FROM (SELECT chain FROM audit_chains WHERE ?1 IS NULL OR chain > ?1 ORDER BY chain LIMIT ?2))
             SELECT known.chain AS name, audit_chains.* FROM known LEFT JOIN audit_chains USING (chain) ORDER BY known.chain LIMIT ?2",
        );
        let select = select.bind(after).bind(limit);
        with_deadline(READING, async {
            select
                .fetch_all(&self.readers)
                .await
                .map_err(map_error)?
                .iter()
                .map(audit_rows::chain)
                .collect()
        })
        .await
    }

    async fn audit_chain_page(
        &self,
        name: &str,
        after: i64,
        limit: u32,
    ) -> Result<AuditChainPage, StoreError> {
        let select = sqlx::query(
            "SELECT ?1 AS name, audit_chains.*, links.*
             FROM (SELECT 1) LEFT JOIN audit_chains ON chain = ?1 LEFT JOIN (
                 SELECT number, chain_position, id, at_us, kind, tenant, body, chain_hash FROM audit INDEXED BY audit_by_chain
                 WHERE coalesce(tenant, '') = ?1 AND chain_position > ?2 ORDER BY chain_position LIMIT ?3) AS links
             ORDER BY chain_position",
        );
        let select = select.bind(name).bind(after).bind(limit);
        with_deadline(READING, async {
            let rows = select.fetch_all(&self.readers).await.map_err(map_error)?;
            let chain =
                rows.first().map_or_else(|| Ok(AuditChain::empty(name)), audit_rows::chain)?;
            let links = rows
                .iter()
                .filter_map(|row| audit_rows::chained_record(row).transpose())
                .collect::<Result<_, _>>()?;
            Ok(AuditChainPage { chain, records: links })
        })
        .await
    }

    async fn unchained_audit(&self) -> Result<UnchainedAudit, StoreError> {
        let select = sqlx::query(
            "SELECT unchained_until, (SELECT min(number) FROM audit INDEXED BY audit_outside_chains
                 WHERE chain_position IS NULL AND number > unchained_until) AS stray FROM audit_retention",
        );
        with_deadline(READING, async {
            let row = select.fetch_one(&self.readers).await.map_err(map_error)?;
            Ok(UnchainedAudit {
                until: get(&row, "unchained_until")?,
                first_unchained: get(&row, "stray")?,
            })
        })
        .await
    }

    async fn audit_chains_to_checkpoint(
        &self,
        by: i64,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<AuditChain>, StoreError> {
        let select = sqlx::query(
            "SELECT chain AS name, * FROM audit_chains INDEXED BY audit_chains_ahead
             WHERE length > checkpoint_count AND length - checkpoint_count >= ?1 AND (?2 IS NULL OR chain > ?2) ORDER BY chain LIMIT ?3",
        );
        let select = select.bind(by).bind(after).bind(limit);
        with_deadline(READING, async {
            select
                .fetch_all(&self.readers)
                .await
                .map_err(map_error)?
                .iter()
                .map(audit_rows::chain)
                .collect()
        })
        .await
    }

    async fn put_audit_checkpoints(
        &self,
        checkpoints: &[(String, AuditCheckpoint)],
    ) -> Result<Vec<String>, StoreError> {
        with_deadline("storing checkpoints of the audit log", async {
            let (mut writing, mut taken) = (self.begin().await?, Vec::new());
            for (name, checkpoint) in checkpoints {
                let update = sqlx::query(
                    "UPDATE audit_chains SET checkpoint_count = ?2, checkpoint_head = ?3, checkpoint_at_us = ?4, checkpoint_signature = ?5
                     WHERE chain = ?1 AND checkpoint_count < ?2",
                )
                .bind(name.as_str())
                .bind(checkpoint.count)
                .bind(checkpoint.head.as_slice())
                .bind(checkpoint.at_us)
                .bind(checkpoint.signature.as_slice());
                if update.execute(writing.connection()).await.map_err(map_error)?.rows_affected() > 0 {
                    taken.push(name.clone());
                }
            }
            writing.commit().await?;
            Ok(taken)
        })
        .await
    }

    async fn audit_chains_to_truncate(
        &self,
        before_us: i64,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let select = sqlx::query(
            "SELECT chain FROM audit_chains WHERE length > start_position AND (?2 IS NULL OR chain > ?2) AND (
                 SELECT at_us FROM audit INDEXED BY audit_by_chain
                 WHERE coalesce(tenant, '') = audit_chains.chain AND chain_position = audit_chains.start_position + 1) < ?1
             ORDER BY chain LIMIT ?3",
        );
        let select = select.bind(before_us).bind(after).bind(limit);
        with_deadline(READING, async {
            select
                .fetch_all(&self.readers)
                .await
                .map_err(map_error)?
                .iter()
                .map(|row| get(row, "chain"))
                .collect()
        })
        .await
    }

    async fn truncate_audit_chain(
        &self,
        name: &str,
        cut: &AuditTruncation,
    ) -> Result<u64, StoreError> {
        with_deadline("trimming the audit log", async {
            let mut writing = self.begin().await?;
            let begin = sqlx::query(
                "UPDATE audit_chains SET start_position = ?2, start_hash = ?3, start_before_us = ?4, start_signature = ?5
                 WHERE chain = ?1 AND start_position < ?2 AND EXISTS (
                     SELECT 1 FROM audit WHERE coalesce(tenant, '') = ?1 AND chain_position = ?2 AND chain_hash = ?3)",
            )
            .bind(name)
            .bind(cut.position)
            .bind(cut.hash.as_slice())
            .bind(cut.before_us)
            .bind(cut.signature.as_slice());
            if begin.execute(writing.connection()).await.map_err(map_error)?.rows_affected() == 0 {
                return Ok(0);
            }
            let release = sqlx::query("UPDATE audit_retention SET before_us = ?1 WHERE before_us < ?1").bind(cut.before_us);
            release.execute(writing.connection()).await.map_err(map_error)?;
            let delete = sqlx::query("DELETE FROM audit WHERE coalesce(tenant, '') = ? AND chain_position <= ?");
            let gone = delete.bind(name).bind(cut.position).execute(writing.connection()).await.map_err(map_error)?.rows_affected();
            writing.commit().await?;
            Ok(gone)
        })
        .await
    }

    async fn audit_terms(&self) -> Result<Option<AuditRetentionTerms>, StoreError> {
        let select = sqlx::query("SELECT version, terms, signature FROM audit_retention_terms");
        with_deadline("reading how long the audit log is kept", async {
            let row = select.fetch_optional(&self.readers).await.map_err(map_error)?;
            let terms = |row: &SqliteRow| {
                Ok(AuditRetentionTerms {
                    version: get(row, "version")?,
                    terms: get(row, "terms")?,
                    signature: get(row, "signature")?,
                })
            };
            row.as_ref().map(terms).transpose()
        })
        .await
    }
}

/// Returns the number of the record that was added last, in any chain.
pub(super) async fn last_number(writing: &mut WriteTransaction<'_>) -> Result<i64, StoreError> {
    let select = sqlx::query_scalar(
        "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'audit'), 0)",
    );
    select.fetch_one(writing.connection()).await.map_err(map_error)
}

/// Returns the length and the last hash of a chain.
pub(super) async fn head(
    writing: &mut WriteTransaction<'_>,
    name: &str,
) -> Result<(i64, Vec<u8>), StoreError> {
    let select = sqlx::query("SELECT length, head FROM audit_chains WHERE chain = ?").bind(name);
    match select.fetch_optional(writing.connection()).await.map_err(map_error)? {
        Some(row) => Ok((get(&row, "length")?, get(&row, "head")?)),
        None => Ok((0, AUDIT_GENESIS.to_vec())),
    }
}

pub(super) async fn put_head(
    writing: &mut WriteTransaction<'_>,
    name: &str,
    length: i64,
    head: &[u8],
) -> Result<(), StoreError> {
    let update = sqlx::query("UPDATE audit_chains SET length = ?, head = ? WHERE chain = ?")
        .bind(length)
        .bind(head)
        .bind(name);
    if update.execute(writing.connection()).await.map_err(map_error)?.rows_affected() > 0 {
        return Ok(());
    }
    let put = sqlx::query(
        "INSERT INTO audit_chains (chain, length, head, start_hash) VALUES (?, ?, ?, ?)",
    );
    let put = put.bind(name).bind(length).bind(head).bind(AUDIT_GENESIS.as_slice());
    put.execute(writing.connection()).await.map_err(map_error).map(drop)
}

fn get<'r, T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>>(
    row: &'r SqliteRow,
    column: &str,
) -> Result<T, StoreError> {
    row.try_get(column).map_err(map_error)
}
