//! Leases. The server does all time arithmetic, by its own clock.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::TaskId;
use records::{LeaseRenewal, NodeName, NodeRecord, SessionKey};
use sqlx::{Row, postgres::PgRow};

use super::{
    PostgresStore, config,
    error_mapping::map_error,
    micros,
    rows::{get, session_key, task_id, task_name},
};
use crate::{NodeStore, StoreError};

/// Time after which lapsed nodes are deleted. Rows that name a lapsed node as owner have no live
/// owner before or after that.
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 60 * 60);

#[async_trait]
impl NodeStore for PostgresStore {
    async fn join(
        &self,
        node: &NodeName,
        address: Option<&str>,
        lease: Duration,
    ) -> Result<(), StoreError> {
        let insert = |_| {
            sqlx::query(
                "WITH old AS (
                     DELETE FROM nodes WHERE node IN (
                         SELECT node FROM nodes WHERE lease_until_us < now_us() - $4 AND node <> $1
                         ORDER BY node FOR UPDATE SKIP LOCKED))
                 INSERT INTO nodes (node, address, draining, lease_until_us) VALUES ($1, $2, FALSE, now_us() + $3)
                 ON CONFLICT (node) DO UPDATE
                 SET address = excluded.address, draining = FALSE, lease_until_us = excluded.lease_until_us",
            )
            .bind(node.as_str())
            .bind(address)
            .bind(micros(lease))
            .bind(micros(REMEMBERED_FOR))
        };
        self.lease_rows(insert).await?;
        Ok(())
    }

    /// Returns everything that a node needs at this interval in one round trip.
    async fn renew_lease(
        &self,
        node: &NodeName,
        lease: Duration,
        draining: bool,
    ) -> Result<LeaseRenewal, StoreError> {
        let update = |_| {
            sqlx::query(
                "WITH held AS (
                     UPDATE nodes SET lease_until_us = now_us() + $2, draining = $3
                     WHERE node = $1 AND lease_until_us > now_us() RETURNING 1)
                 SELECT EXISTS (SELECT 1 FROM held) AS held,
                        (SELECT version FROM config_version) AS config_version,
                        ARRAY(SELECT key FROM sessions WHERE owner = $1 AND end_asked) AS ended",
            )
            .bind(node.as_str())
            .bind(micros(lease))
            .bind(draining)
        };
        let rows = self.lease_rows(update).await?;
        let row = config::only(&rows)?;
        let ended: Vec<Vec<u8>> = get(row, "ended")?;
        let held = get(row, "held")?;
        let ended = if held {
            ended.iter().filter_map(|key| SessionKey::from_slice(key)).collect()
        } else {
            Vec::new()
        };
        Ok(LeaseRenewal {
            renewed: held,
            config_version: get(row, "config_version")?,
            sessions_to_end: ended,
        })
    }

    async fn leave(&self, node: &NodeName) -> Result<(), StoreError> {
        self.lease_rows(|_| sqlx::query("DELETE FROM nodes WHERE node = $1").bind(node.as_str()))
            .await?;
        Ok(())
    }

    async fn live_nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        let select = |_| {
            sqlx::query(
                "WITH present AS MATERIALIZED (SELECT now_us() AS at_us)
                 SELECT node, address, draining, lease_until_us - at_us AS lease_left_us
                 FROM nodes, present WHERE lease_until_us > at_us ORDER BY node",
            )
        };
        let rows = self.rows(select).await?;
        Ok(self.readable(&rows, |row| node_record(row)?.ok_or_else(nameless), |_| "a node".into()))
    }

    async fn reclaim_sessions(
        &self,
        from: &NodeName,
        to: &NodeName,
        keys: &[SessionKey],
    ) -> Result<Vec<(SessionKey, i64)>, StoreError> {
        let named: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes().as_slice()).collect();
        let reclaim = |_| {
            sqlx::query("SELECT key, epoch FROM reclaim_sessions($1, $2, $3)")
                .bind(from.as_str())
                .bind(to.as_str())
                .bind(named.clone())
        };
        let rows = self.rows(reclaim).await?;
        let read = |row: &PgRow| Ok((session_key(row)?, get(row, "epoch")?));
        Ok(self.readable(&rows, read, |_| "a session".into()))
    }

    async fn reclaim_tasks(
        &self,
        from: &NodeName,
        to: &NodeName,
    ) -> Result<Vec<(TaskId, i64)>, StoreError> {
        let reclaim = |_| {
            sqlx::query("SELECT task, epoch FROM reclaim_tasks($1, $2)")
                .bind(from.as_str())
                .bind(to.as_str())
        };
        let rows = self.rows(reclaim).await?;
        Ok(self.readable(&rows, |row| Ok((task_id(row)?, get(row, "epoch")?)), task_name))
    }
}

fn nameless() -> StoreError {
    StoreError::Corrupt { detail: "a node has no name".into() }
}

/// Reads a node from the columns `node`, `address`, `draining` and `lease_left_us`. Returns `None`
/// if the row has no node. A node with a name only has left.
pub(super) fn node_record(row: &PgRow) -> Result<Option<NodeRecord>, StoreError> {
    let Some(node) = row.try_get::<Option<&str>, _>("node").map_err(map_error)? else {
        return Ok(None);
    };
    let remaining_us = get::<Option<i64>>(row, "lease_left_us")?.unwrap_or(0);
    Ok(Some(NodeRecord {
        node: NodeName::new(node),
        address: get(row, "address")?,
        draining: get::<Option<bool>>(row, "draining")?.unwrap_or(false),
        remaining_lease: Duration::from_micros(u64::try_from(remaining_us).unwrap_or(0)),
    }))
}
