//! Sessions: lists, claims, and their end when nobody owns them. Their owners' writes are in `session_writes`.

use std::time::Duration;

use protocol::ids::TenantId;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::{
    SqliteStore, WriteTransaction,
    error_mapping::explain,
    micros, now_us,
    rows::{
        backend_id, count, get, node_record, select_sessions, session_key, session_name,
        session_record, stored_session, tenant_id,
    },
};
use crate::{
    NodeName, SESSION_KEY_BYTES, SessionClaimOutcome, SessionIdentity, SessionKey, StoreError,
    StoredSession, SubscriptionCount, SubscriptionRecord, fault_point,
};

pub(super) async fn claim(
    store: &SqliteStore,
    key: &SessionKey,
    seat: &SessionIdentity,
    node: &NodeName,
    idle: Duration,
) -> Result<SessionClaimOutcome, StoreError> {
    let now = now_us();
    let mut writing = store.begin().await?;
    let select = sqlx::query(select_sessions!("WHERE s.key = ? AND s.end_asked = 0"))
        .bind(key.as_bytes().as_slice());
    let Some(row) = select.fetch_optional(writing.connection()).await.map_err(explain)? else {
        return Ok(SessionClaimOutcome::NotFound);
    };
    let read = session_record(&row)
        .and_then(|record| Ok((record, node_record(&row, "owner", now)?, standing(&row)?)));
    let Some((record, owner, standing)) = store.report(read, || session_name(&row)) else {
        return Ok(SessionClaimOutcome::NotFound);
    };
    if record.seat != *seat {
        return Ok(SessionClaimOutcome::NotFound);
    }
    if let Some(owner) = owner.filter(|owner| owner.node != *node && !owner.lease_left.is_zero()) {
        return Ok(SessionClaimOutcome::OwnedElsewhere(owner));
    }
    if standing.seen_at_us <= now.saturating_sub(micros(idle)) {
        return Ok(SessionClaimOutcome::NotFound); // expired, and about to be swept
    }
    let epoch = standing.epoch + 1;
    let update =
        sqlx::query("UPDATE sessions SET owner = ?, epoch = ?, seen_at_us = ? WHERE number = ?");
    let update = update.bind(node.as_str()).bind(epoch).bind(now).bind(standing.number);
    update.execute(writing.connection()).await.map_err(explain)?;
    let subscriptions = subscriptions(store, writing.connection(), standing.number).await?;
    commit_claim(writing).await?;
    Ok(SessionClaimOutcome::Acquired {
        record,
        epoch,
        created_at_us: standing.created_at_us,
        subscriptions,
    })
}

struct SessionClaimRow {
    number: i64,
    epoch: i64,
    created_at_us: i64,
    seen_at_us: i64,
}

fn standing(row: &SqliteRow) -> Result<SessionClaimRow, super::rows::UnreadableColumn> {
    let (number, epoch) = (get(row, "number")?, get(row, "epoch")?);
    Ok(SessionClaimRow {
        number,
        epoch,
        created_at_us: get(row, "created_at_us")?,
        seen_at_us: get(row, "seen_at_us")?,
    })
}

/// The one step in which sessions or tasks change hands.
pub(super) async fn commit_claim(writing: WriteTransaction<'_>) -> Result<(), StoreError> {
    fault_point::passed("claim.executed");
    writing.commit().await?;
    fault_point::passed("claim.committed");
    Ok(())
}

async fn subscriptions(
    store: &SqliteStore,
    connection: &mut SqliteConnection,
    number: i64,
) -> Result<Vec<SubscriptionRecord>, StoreError> {
    let select = sqlx::query("SELECT exposed_uri, backend, uri FROM subscriptions WHERE session = ? ORDER BY exposed_uri").bind(number);
    let rows = select.fetch_all(connection).await.map_err(explain)?;
    Ok(store.readable(
        &rows,
        |_| "a subscription".into(),
        |row| {
            Ok(SubscriptionRecord {
                exposed_uri: get(row, "exposed_uri")?,
                backend: backend_id(row)?,
                uri: get(row, "uri")?,
            })
        },
    ))
}

pub(super) async fn reclaim(
    store: &SqliteStore,
    from: &NodeName,
    to: &NodeName,
    keys: &[SessionKey],
) -> Result<Vec<(SessionKey, i64)>, StoreError> {
    let mut writing = store.begin().await?;
    let mut rows = Vec::new();
    for key in keys {
        let update = sqlx::query(
            "UPDATE sessions SET owner = ?, epoch = epoch + 1 WHERE key = ? AND owner = ?",
        );
        let update = update.bind(to.as_str()).bind(key.as_bytes().as_slice()).bind(from.as_str());
        update.execute(writing.connection()).await.map_err(explain)?;
        let select = sqlx::query("SELECT key, epoch FROM sessions WHERE key = ? AND owner = ?");
        let select = select.bind(key.as_bytes().as_slice()).bind(to.as_str());
        rows.extend(select.fetch_optional(writing.connection()).await.map_err(explain)?);
    }
    commit_claim(writing).await?;
    Ok(store
        .readable(&rows, session_name, |row| Ok((session_key(row, "key")?, get(row, "epoch")?))))
}

pub(super) async fn list(
    store: &SqliteStore,
    tenant: Option<&TenantId>,
    after: Option<&SessionKey>,
    limit: u32,
) -> Result<Vec<StoredSession>, StoreError> {
    let mut after_number = 0;
    if let Some(key) = after {
        let select = sqlx::query_scalar("SELECT number FROM sessions WHERE key = ?")
            .bind(key.as_bytes().as_slice());
        let Some(number) = select.fetch_optional(&store.readers).await.map_err(explain)? else {
            return Ok(Vec::new());
        };
        after_number = number;
    }
    let select = match tenant {
        None => sqlx::query(select_sessions!("WHERE s.number > ? ORDER BY s.number LIMIT ?")),
        Some(tenant) => sqlx::query(select_sessions!(
            "WHERE s.tenant = ? AND s.number > ? ORDER BY s.number LIMIT ?"
        ))
        .bind(tenant.as_str()),
    };
    let rows =
        select.bind(after_number).bind(limit).fetch_all(&store.readers).await.map_err(explain)?;
    let now = now_us();
    Ok(store.readable(&rows, session_name, |row| stored_session(row, now)))
}

pub(super) async fn by_digest(
    store: &SqliteStore,
    digest: &str,
) -> Result<Vec<StoredSession>, StoreError> {
    let Some((first, last)) = keys_of_digest(digest) else { return Ok(Vec::new()) };
    let select = sqlx::query(select_sessions!("WHERE s.key BETWEEN ? AND ? ORDER BY s.number"));
    let rows = select
        .bind(first.as_slice())
        .bind(last.as_slice())
        .fetch_all(&store.readers)
        .await
        .map_err(explain)?;
    let now = now_us();
    Ok(store.readable(&rows, session_name, |row| stored_session(row, now)))
}

/// The lowest and the highest key of a digest; `None`: it is not one.
fn keys_of_digest(digest: &str) -> Option<([u8; SESSION_KEY_BYTES], [u8; SESSION_KEY_BYTES])> {
    if digest.len() != 16
        || !digest.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    {
        return None;
    }
    let prefix = u64::from_str_radix(digest, 16).ok()?.to_be_bytes();
    let (mut first, mut last) = ([0; SESSION_KEY_BYTES], [0xff; SESSION_KEY_BYTES]);
    first[..8].copy_from_slice(&prefix);
    last[..8].copy_from_slice(&prefix);
    Some((first, last))
}

/// False: there is no such session.
pub(super) async fn ask_end(
    writing: &mut WriteTransaction<'_>,
    key: &SessionKey,
) -> Result<bool, StoreError> {
    let owned = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM nodes WHERE node = sessions.owner AND lease_until_us > ?) FROM sessions WHERE key = ?",
    );
    let owned = owned.bind(now_us()).bind(key.as_bytes().as_slice());
    let Some(owned) = owned.fetch_optional(writing.connection()).await.map_err(explain)? else {
        return Ok(false);
    };
    let change = if owned {
        "UPDATE sessions SET end_asked = 1 WHERE key = ?"
    } else {
        "DELETE FROM sessions WHERE key = ?"
    };
    sqlx::query(change)
        .bind(key.as_bytes().as_slice())
        .execute(writing.connection())
        .await
        .map_err(explain)?;
    Ok(true)
}

pub(super) async fn sweep(
    store: &SqliteStore,
    idle: Duration,
    limit: u32,
) -> Result<Vec<SessionKey>, StoreError> {
    let now = now_us();
    let mut writing = store.begin().await?;
    let delete = sqlx::query(
        "DELETE FROM sessions WHERE number IN (
             SELECT number FROM (
                 SELECT number, owner FROM sessions INDEXED BY sessions_by_last_word WHERE seen_at_us <= ?
                 UNION ALL SELECT number, owner FROM sessions INDEXED BY sessions_to_end WHERE end_asked = 1) s
             WHERE NOT EXISTS (SELECT 1 FROM nodes WHERE node = s.owner AND lease_until_us > ?) LIMIT ?)
         RETURNING key",
    );
    let delete = delete.bind(now.saturating_sub(micros(idle))).bind(now).bind(limit);
    let rows = delete.fetch_all(writing.connection()).await.map_err(explain)?;
    writing.commit().await?;
    Ok(store.readable(&rows, session_name, |row| session_key(row, "key")))
}

pub(super) async fn subscription_counts(
    store: &SqliteStore,
    tenant: Option<&TenantId>,
) -> Result<Vec<SubscriptionCount>, StoreError> {
    let select = match tenant {
        None => sqlx::query(
            "SELECT s.tenant, u.backend, u.uri, count(DISTINCT u.session) AS sessions FROM subscriptions u JOIN sessions s ON s.number = u.session
             GROUP BY s.tenant, u.backend, u.uri ORDER BY s.tenant, u.backend, u.uri",
        ),
        Some(tenant) => sqlx::query(
            "SELECT s.tenant, u.backend, u.uri, count(DISTINCT u.session) AS sessions FROM sessions s JOIN subscriptions u ON u.session = s.number
             WHERE s.tenant = ? GROUP BY s.tenant, u.backend, u.uri ORDER BY s.tenant, u.backend, u.uri",
        )
        .bind(tenant.as_str()),
    };
    let rows = select.fetch_all(&store.readers).await.map_err(explain)?;
    Ok(store.readable(
        &rows,
        |_| "subscriptions".into(),
        |row| {
            let (tenant, backend) = (tenant_id(row)?, backend_id(row)?);
            Ok(SubscriptionCount {
                tenant,
                backend,
                uri: get(row, "uri")?,
                sessions: count(row, "sessions")?,
            })
        },
    ))
}
