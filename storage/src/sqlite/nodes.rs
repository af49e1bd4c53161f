//! Leases. One process at a time has the file, so every other node is certainly gone. The leases
//! serve a process that was suspended for a while and continues under a new name.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::TaskId;
use records::{LeaseRenewal, NodeName, NodeRecord, SessionKey};
use sqlx::sqlite::SqlitePool;

use super::{
    SqliteStore,
    error_mapping::map_error,
    micros, now_us,
    rows::{get, node_record, session_key, session_name, task_name},
    with_deadline,
};
use crate::{NodeStore, StoreError, fault_point};

/// Time that a lapsed node is kept, for lists of sessions.
const LAPSED_KEPT_US: i64 = 3_600_000_000;

/// Deletes every node. The caller holds the lock on the file.
pub(super) async fn void_leases(writer: &SqlitePool) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM nodes").execute(writer).await.map(drop).map_err(map_error)
}

#[async_trait]
impl NodeStore for SqliteStore {
    async fn join(
        &self,
        node: &NodeName,
        address: Option<&str>,
        lease: Duration,
    ) -> Result<(), StoreError> {
        with_deadline("joining", async {
            let now = now_us();
            let mut writing = self.begin_log().await?;
            let forget = sqlx::query("DELETE FROM nodes WHERE lease_until_us < ?")
                .bind(now.saturating_sub(LAPSED_KEPT_US));
            forget.execute(writing.connection()).await.map_err(map_error)?;
            sqlx::query(
                "INSERT INTO nodes (node, address, draining, lease_until_us) VALUES (?, ?, 0, ?)
                 ON CONFLICT (node) DO UPDATE SET address = excluded.address, draining = 0, lease_until_us = excluded.lease_until_us",
            )
            .bind(node.as_str())
            .bind(address)
            .bind(now.saturating_add(micros(lease)))
            .execute(writing.connection())
            .await
            .map_err(map_error)?;
            writing.commit().await?;
            fault_point::hit("join.committed");
            Ok(())
        })
        .await
    }

    async fn renew_lease(
        &self,
        node: &NodeName,
        lease: Duration,
        draining: bool,
    ) -> Result<LeaseRenewal, StoreError> {
        with_deadline("renewing the lease", async {
            let now = now_us();
            let mut writing = self.begin_log().await?;
            let extended = sqlx::query(
                "UPDATE nodes SET lease_until_us = ?, draining = ? WHERE node = ? AND lease_until_us > ?",
            )
            .bind(now.saturating_add(micros(lease)))
            .bind(draining)
            .bind(node.as_str())
            .bind(now);
            let held = extended.execute(writing.connection()).await.map_err(map_error)?.rows_affected() > 0;
            let version = sqlx::query_scalar("SELECT version FROM config_version");
            let config_version = version.fetch_one(writing.connection()).await.map_err(map_error)?;
            let mut ended = Vec::new();
            if held {
                let to_end =
                    sqlx::query_scalar("SELECT key FROM sessions WHERE end_asked = 1 AND owner = ?")
                        .bind(node.as_str());
                let keys: Vec<Vec<u8>> = to_end.fetch_all(writing.connection()).await.map_err(map_error)?;
                ended.extend(keys.iter().filter_map(|key| SessionKey::from_slice(key)));
            }
            writing.commit().await?;
            Ok(LeaseRenewal { renewed: held, config_version, sessions_to_end: ended })
        })
        .await
    }

    async fn leave(&self, node: &NodeName) -> Result<(), StoreError> {
        with_deadline("leaving", async {
            let mut writing = self.begin_log().await?;
            let delete = sqlx::query("DELETE FROM nodes WHERE node = ?").bind(node.as_str());
            delete.execute(writing.connection()).await.map_err(map_error)?;
            writing.commit().await
        })
        .await
    }

    async fn live_nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        with_deadline("listing nodes", async {
            let now = now_us();
            let select = sqlx::query("SELECT node, address, draining, lease_until_us FROM nodes WHERE lease_until_us > ? ORDER BY node").bind(now);
            let rows = select.fetch_all(&self.readers).await.map_err(map_error)?;
            let nodes = self.readable(
                &rows,
                |row| format!("node {}", get::<&str>(row, "node").unwrap_or_default()),
                |row| node_record(row, "node", now),
            );
            Ok(nodes.into_iter().flatten().collect())
        })
        .await
    }

    async fn reclaim_sessions(
        &self,
        from: &NodeName,
        to: &NodeName,
        keys: &[SessionKey],
    ) -> Result<Vec<(SessionKey, i64)>, StoreError> {
        with_deadline("reclaiming sessions", async {
            let mut writing = self.begin().await?;
            let mut rows = Vec::new();
            for key in keys {
                let update = sqlx::query(
                    "UPDATE sessions SET owner = ?, epoch = epoch + 1 WHERE key = ? AND owner = ?",
                );
                let update =
                    update.bind(to.as_str()).bind(key.as_bytes().as_slice()).bind(from.as_str());
                update.execute(writing.connection()).await.map_err(map_error)?;
                let select =
                    sqlx::query("SELECT key, epoch FROM sessions WHERE key = ? AND owner = ?");
                let select = select.bind(key.as_bytes().as_slice()).bind(to.as_str());
                rows.extend(select.fetch_optional(writing.connection()).await.map_err(map_error)?);
            }
            writing.commit_claim().await?;
            Ok(self.readable(&rows, session_name, |row| {
                Ok((session_key(row, "key")?, get(row, "epoch")?))
            }))
        })
        .await
    }

    async fn reclaim_tasks(
        &self,
        from: &NodeName,
        to: &NodeName,
    ) -> Result<Vec<(TaskId, i64)>, StoreError> {
        with_deadline("reclaiming tasks", async {
            let mut writing = self.begin().await?;
            let update = sqlx::query(
                "UPDATE tasks SET owner = ?, epoch = epoch + 1 WHERE owner = ? AND status IN ('working', 'input_required')",
            );
            update
                .bind(to.as_str())
                .bind(from.as_str())
                .execute(writing.connection())
                .await
                .map_err(map_error)?;
            let select = sqlx::query(
                "SELECT task, epoch FROM tasks WHERE owner = ? AND status IN ('working', 'input_required')",
            );
            let rows = select.bind(to.as_str()).fetch_all(writing.connection()).await.map_err(map_error)?;
            writing.commit_claim().await?;
            Ok(self.readable(&rows, task_name, |row| {
                Ok((TaskId::new(get::<String>(row, "task")?), get(row, "epoch")?))
            }))
        })
        .await
    }
}
