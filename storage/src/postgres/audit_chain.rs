//! [`AuditChainStore`] on PostgreSQL. Functions of the schema extend chains, and lock a chain's
//! row.

use async_trait::async_trait;
use records::{
    AuditChain, AuditChainPage, AuditCheckpoint, AuditRetentionTerms, AuditTruncation,
    UnchainedAudit,
};
use sqlx::postgres::PgRow;

use super::{PostgresStore, config, rows::get};
use crate::{AuditChainStore, StoreError, audit_rows};

#[async_trait]
impl AuditChainStore for PostgresStore {
    async fn audit_chains(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<AuditChain>, StoreError> {
        // The query finds names that only records contain. It jumps from one name to the next along
        // the index.
        let select = |_again| {
            sqlx::query(
                "WITH RECURSIVE named (chain) AS (
                     SELECT (SELECT coalesce(tenant, '') FROM audit
                             WHERE chain_position IS NOT NULL AND ($1::text IS NULL OR coalesce(tenant, '') > $1) ORDER BY 1 LIMIT 1)
                     UNION ALL
                     SELECT (SELECT coalesce(tenant, '') FROM audit
                             WHERE chain_position IS NOT NULL AND coalesce(tenant, '') > named.chain ORDER BY 1 LIMIT 1)
                     FROM named WHERE named.chain IS NOT NULL),
                 known (chain) AS (
                     (SELECT chain FROM named WHERE chain IS NOT NULL LIMIT $2)
                     UNION (SELECT chain FROM audit_chains WHERE $1::text IS NULL OR chain > $1 ORDER BY chain LIMIT $2))
                 SELECT known.chain AS name, audit_chains.* FROM known LEFT JOIN audit_chains ON audit_chains.chain = known.chain
                 ORDER BY known.chain LIMIT $2",
            )
            .bind(after)
            .bind(i64::from(limit))
        };
        self.rows(select).await?.iter().map(audit_rows::chain).collect()
    }

    async fn audit_chain_page(
        &self,
        name: &str,
        after: i64,
        limit: u32,
    ) -> Result<AuditChainPage, StoreError> {
        let select = |_again| {
            sqlx::query(
                "SELECT $1::text AS name, audit_chains.*, links.*
                 FROM (SELECT 1) AS one LEFT JOIN audit_chains ON chain = $1 LEFT JOIN (
                     SELECT number, chain_position, id, at_us, kind, tenant, body, chain_hash FROM audit
                     WHERE coalesce(tenant, '') = $1 AND chain_position > $2 ORDER BY chain_position LIMIT $3) AS links ON TRUE
                 ORDER BY chain_position",
            )
            .bind(name)
            .bind(after)
            .bind(i64::from(limit))
        };
        let rows = self.rows(select).await?;
        let chain = rows.first().map_or_else(|| Ok(AuditChain::empty(name)), audit_rows::chain)?;
        let links = rows
            .iter()
            .filter_map(|row| audit_rows::chained_record(row).transpose())
            .collect::<Result<_, _>>()?;
        Ok(AuditChainPage { chain, records: links })
    }

    async fn unchained_audit(&self) -> Result<UnchainedAudit, StoreError> {
        let select = |_again| {
            sqlx::query(
                "SELECT unchained_until,
                     (SELECT min(number) FROM audit WHERE chain_position IS NULL AND number > unchained_until) AS stray
                 FROM audit_retention",
            )
        };
        let rows = self.rows(select).await?;
        let row = config::only(&rows)?;
        Ok(UnchainedAudit {
            until: get(row, "unchained_until")?,
            first_unchained: get(row, "stray")?,
        })
    }

    async fn audit_chains_to_checkpoint(
        &self,
        by: i64,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<AuditChain>, StoreError> {
        let select = |_again| {
            sqlx::query(
                "SELECT chain AS name, * FROM audit_chains
                 WHERE length > checkpoint_count AND length - checkpoint_count >= $1 AND ($2::text IS NULL OR chain > $2)
                 ORDER BY chain LIMIT $3",
            )
            .bind(by)
            .bind(after)
            .bind(i64::from(limit))
        };
        self.rows(select).await?.iter().map(audit_rows::chain).collect()
    }

    async fn put_audit_checkpoints(
        &self,
        checkpoints: &[(String, AuditCheckpoint)],
    ) -> Result<Vec<String>, StoreError> {
        let names: Vec<&str> = checkpoints.iter().map(|(name, _)| name.as_str()).collect();
        let counts: Vec<i64> = checkpoints.iter().map(|(_, checkpoint)| checkpoint.count).collect();
        let heads: Vec<&[u8]> =
            checkpoints.iter().map(|(_, checkpoint)| checkpoint.head.as_slice()).collect();
        let moments: Vec<i64> =
            checkpoints.iter().map(|(_, checkpoint)| checkpoint.at_us).collect();
        let signatures: Vec<&[u8]> =
            checkpoints.iter().map(|(_, checkpoint)| checkpoint.signature.as_slice()).collect();
        // After a lost answer an identical checkpoint counts as this one.
        let put = |again: bool| {
            sqlx::query("SELECT chain FROM put_audit_checkpoints($1, $2, $3, $4, $5, $6) AS chain")
                .bind(names.clone())
                .bind(counts.clone())
                .bind(heads.clone())
                .bind(moments.clone())
                .bind(signatures.clone())
                .bind(again)
        };
        self.rows(put).await?.iter().map(|row| get(row, "chain")).collect()
    }

    async fn audit_chains_to_truncate(
        &self,
        before_us: i64,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let select = |_again| {
            sqlx::query(
                "SELECT chain FROM audit_chains WHERE length > start_position AND ($2::text IS NULL OR chain > $2) AND (
                     SELECT at_us FROM audit
                     WHERE coalesce(tenant, '') = audit_chains.chain AND chain_position = audit_chains.start_position + 1) < $1
                 ORDER BY chain LIMIT $3",
            )
            .bind(before_us)
            .bind(after)
            .bind(i64::from(limit))
        };
        self.rows(select).await?.iter().map(|row| get(row, "chain")).collect()
    }

    async fn truncate_audit_chain(
        &self,
        name: &str,
        cut: &AuditTruncation,
    ) -> Result<u64, StoreError> {
        let trim = |_again| {
            sqlx::query("SELECT cut_audit_chain($1, $2, $3, $4, $5) AS gone")
                .bind(name)
                .bind(cut.position)
                .bind(cut.hash.as_slice())
                .bind(cut.before_us)
                .bind(cut.signature.as_slice())
        };
        let rows = self.rows(trim).await?;
        Ok(u64::try_from(get::<i64>(config::only(&rows)?, "gone")?).unwrap_or(0))
    }

    async fn audit_terms(&self) -> Result<Option<AuditRetentionTerms>, StoreError> {
        let rows = self
            .rows(|_again| {
                sqlx::query("SELECT version, terms, signature FROM audit_retention_terms")
            })
            .await?;
        let terms = |row: &PgRow| {
            Ok(AuditRetentionTerms {
                version: get(row, "version")?,
                terms: get(row, "terms")?,
                signature: get(row, "signature")?,
            })
        };
        rows.first().map(terms).transpose()
    }
}
