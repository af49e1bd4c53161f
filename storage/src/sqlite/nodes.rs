//! Leases. One process at a time has the file, so of all nodes but its own it is certain that they are gone; what is
//! left of leases serves a process that stopped for a while and goes on under a new name.

use std::time::Duration;

use sqlx::sqlite::SqlitePool;

use super::{
    SqliteStore,
    error_mapping::explain,
    micros, now_us,
    rows::{get, node_record},
};
use crate::{LeaseRenewal, NodeName, NodeRecord, SessionKey, StoreError, fault_point};

/// A lapsed node is remembered for this long, for those who list sessions.
const LAPSED_KEPT_US: i64 = 3_600_000_000;

/// Forgets every node. The caller holds the lock on the file.
pub(super) async fn void(writer: &SqlitePool) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM nodes").execute(writer).await.map(drop).map_err(explain)
}

pub(super) async fn join(
    store: &SqliteStore,
    node: &NodeName,
    address: Option<&str>,
    lease: Duration,
) -> Result<(), StoreError> {
    let now = now_us();
    let mut writing = store.begin_log().await?;
    let forget = sqlx::query("DELETE FROM nodes WHERE lease_until_us < ?")
        .bind(now.saturating_sub(LAPSED_KEPT_US));
    forget.execute(writing.connection()).await.map_err(explain)?;
    sqlx::query(
        "INSERT INTO nodes (node, address, draining, lease_until_us) VALUES (?, ?, 0, ?)
         ON CONFLICT (node) DO UPDATE SET address = excluded.address, draining = 0, lease_until_us = excluded.lease_until_us",
    )
    .bind(node.as_str())
    .bind(address)
    .bind(now.saturating_add(micros(lease)))
    .execute(writing.connection())
    .await
    .map_err(explain)?;
    writing.commit().await?;
    fault_point::passed("join.committed");
    Ok(())
}

pub(super) async fn renew(
    store: &SqliteStore,
    node: &NodeName,
    lease: Duration,
    draining: bool,
) -> Result<LeaseRenewal, StoreError> {
    let now = now_us();
    let mut writing = store.begin_log().await?;
    let extended = sqlx::query(
        "UPDATE nodes SET lease_until_us = ?, draining = ? WHERE node = ? AND lease_until_us > ?",
    )
    .bind(now.saturating_add(micros(lease)))
    .bind(draining)
    .bind(node.as_str())
    .bind(now);
    let held = extended.execute(writing.connection()).await.map_err(explain)?.rows_affected() > 0;
    let version = sqlx::query_scalar("SELECT version FROM config_version");
    let config_version = version.fetch_one(writing.connection()).await.map_err(explain)?;
    let mut ended = Vec::new();
    if held {
        let asked =
            sqlx::query_scalar("SELECT key FROM sessions WHERE end_asked = 1 AND owner = ?")
                .bind(node.as_str());
        let keys: Vec<Vec<u8>> = asked.fetch_all(writing.connection()).await.map_err(explain)?;
        ended.extend(keys.iter().filter_map(|key| SessionKey::from_slice(key)));
    }
    writing.commit().await?;
    Ok(LeaseRenewal { held, config_version, ended })
}

pub(super) async fn leave(store: &SqliteStore, node: &NodeName) -> Result<(), StoreError> {
    let mut writing = store.begin_log().await?;
    let delete = sqlx::query("DELETE FROM nodes WHERE node = ?").bind(node.as_str());
    delete.execute(writing.connection()).await.map_err(explain)?;
    writing.commit().await
}

pub(super) async fn nodes(store: &SqliteStore) -> Result<Vec<NodeRecord>, StoreError> {
    let now = now_us();
    let select = sqlx::query("SELECT node, address, draining, lease_until_us FROM nodes WHERE lease_until_us > ? ORDER BY node").bind(now);
    let rows = select.fetch_all(&store.readers).await.map_err(explain)?;
    let nodes = store.readable(
        &rows,
        |row| format!("node {}", get::<&str>(row, "node").unwrap_or_default()),
        |row| node_record(row, "node", now),
    );
    Ok(nodes.into_iter().flatten().collect())
}
