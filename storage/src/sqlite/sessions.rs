//! Sessions: lists, claims, and the removal of sessions without an owner. `session_writes` contains
//! the writes of owners.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::TenantId;
use records::{
    NodeName, SESSION_KEY_BYTES, SessionClaimOutcome, SessionIdentity, SessionKey,
    SessionListPosition, StoredSession, SubscriptionCount, SubscriptionRecord,
};
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::{
    SqliteStore, WriteTransaction,
    error_mapping::map_error,
    micros, now_us,
    rows::{
        backend_id, count, get, node_record, select_sessions, session_key, session_name,
        session_record, stored_session, tenant_id,
    },
    with_deadline,
};
use crate::{SessionStore, StoreError};

#[async_trait]
impl SessionStore for SqliteStore {
    async fn claim_session(
        &self,
        key: &SessionKey,
        identity: &SessionIdentity,
        node: &NodeName,
        idle: Duration,
    ) -> Result<SessionClaimOutcome, StoreError> {
        with_deadline("claiming a session", async {
            let now = now_us();
            let mut writing = self.begin().await?;
            let select = sqlx::query(select_sessions!("WHERE s.key = ? AND s.end_asked = 0"))
                .bind(key.as_bytes().as_slice());
            let Some(row) = select.fetch_optional(writing.connection()).await.map_err(map_error)?
            else {
                return Ok(SessionClaimOutcome::NotFound);
            };
            let read = session_record(&row)
                .and_then(|record| Ok((record, node_record(&row, "owner", now)?, standing(&row)?)));
            let Some((record, owner, standing)) = self.report(read, || session_name(&row)) else {
                return Ok(SessionClaimOutcome::NotFound);
            };
            if record.identity != *identity {
                return Ok(SessionClaimOutcome::NotFound);
            }
            if let Some(owner) =
                owner.filter(|owner| owner.node != *node && !owner.remaining_lease.is_zero())
            {
                return Ok(SessionClaimOutcome::OwnedElsewhere(owner));
            }
            if standing.seen_at_us <= now.saturating_sub(micros(idle)) {
                return Ok(SessionClaimOutcome::NotFound); // expired, and about to be swept
            }
            let epoch = standing.epoch + 1;
            let update = sqlx::query(
                "UPDATE sessions SET owner = ?, epoch = ?, seen_at_us = ? WHERE number = ?",
            );
            let update = update.bind(node.as_str()).bind(epoch).bind(now).bind(standing.number);
            update.execute(writing.connection()).await.map_err(map_error)?;
            let subscriptions = subscriptions(self, writing.connection(), standing.number).await?;
            writing.commit_claim().await?;
            Ok(SessionClaimOutcome::Acquired {
                record,
                epoch,
                created_at_us: standing.created_at_us,
                subscriptions,
            })
        })
        .await
    }

    async fn list_sessions(
        &self,
        tenant: Option<&TenantId>,
        after: Option<&SessionListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredSession>, StoreError> {
        with_deadline("listing sessions", async {
            let select = match tenant {
                None => sqlx::query(select_sessions!(
                    "sessions_by_creation",
                    "WHERE (s.created_at_us, s.key) > (?, ?) ORDER BY s.created_at_us, s.key LIMIT ?"
                )),
                Some(tenant) => sqlx::query(select_sessions!(
                    "sessions_by_tenant",
                    "WHERE s.tenant = ? AND (s.created_at_us, s.key) > (?, ?) ORDER BY s.created_at_us, s.key LIMIT ?"
                ))
                .bind(tenant.as_str()),
            };
            let (after_us, after_key) = after.map_or((i64::MIN, [].as_slice()), |position| {
                (position.created_at_us, position.key.as_bytes().as_slice())
            });
            let rows = select
                .bind(after_us)
                .bind(after_key)
                .bind(limit)
                .fetch_all(&self.readers)
                .await
                .map_err(map_error)?;
            let now = now_us();
            Ok(self.readable(&rows, session_name, |row| stored_session(row, now)))
        })
        .await
    }

    async fn sessions_by_digest(&self, digest: &str) -> Result<Vec<StoredSession>, StoreError> {
        with_deadline("finding a session", async {
            let Some((first, last)) = keys_of_digest(digest) else { return Ok(Vec::new()) };
            let select =
                sqlx::query(select_sessions!("WHERE s.key BETWEEN ? AND ? ORDER BY s.number"));
            let rows = select
                .bind(first.as_slice())
                .bind(last.as_slice())
                .fetch_all(&self.readers)
                .await
                .map_err(map_error)?;
            let now = now_us();
            Ok(self.readable(&rows, session_name, |row| stored_session(row, now)))
        })
        .await
    }

    async fn sweep_sessions(
        &self,
        idle: Duration,
        limit: u32,
    ) -> Result<Vec<SessionKey>, StoreError> {
        with_deadline("sweeping sessions", async {
            let now = now_us();
            let mut writing = self.begin().await?;
            let delete = sqlx::query(
                "DELETE FROM sessions WHERE number IN (
                     SELECT number FROM (
                         SELECT number, owner FROM sessions INDEXED BY sessions_by_last_word WHERE seen_at_us <= ?
                         UNION ALL SELECT number, owner FROM sessions INDEXED BY sessions_to_end WHERE end_asked = 1) s
                     WHERE NOT EXISTS (SELECT 1 FROM nodes WHERE node = s.owner AND lease_until_us > ?) LIMIT ?)
                 RETURNING key",
            );
            let delete = delete.bind(now.saturating_sub(micros(idle))).bind(now).bind(limit);
            let rows = delete.fetch_all(writing.connection()).await.map_err(map_error)?;
            writing.commit().await?;
            Ok(self.readable(&rows, session_name, |row| session_key(row, "key")))
        })
        .await
    }

    async fn subscription_counts(
        &self,
        tenant: Option<&TenantId>,
    ) -> Result<Vec<SubscriptionCount>, StoreError> {
        with_deadline("counting subscriptions", async {
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
            let rows = select.fetch_all(&self.readers).await.map_err(map_error)?;
            Ok(self.readable(
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
        })
        .await
    }
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

async fn subscriptions(
    store: &SqliteStore,
    connection: &mut SqliteConnection,
    number: i64,
) -> Result<Vec<SubscriptionRecord>, StoreError> {
    let select = sqlx::query("SELECT exposed_uri, backend, uri FROM subscriptions WHERE session = ? ORDER BY exposed_uri").bind(number);
    let rows = select.fetch_all(connection).await.map_err(map_error)?;
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

/// Returns the lowest and the highest key of a digest, or `None` if the text is not a digest.
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

/// Requests the end of a session. Returns false if the session does not exist.
pub(super) async fn request_end(
    writing: &mut WriteTransaction<'_>,
    key: &SessionKey,
) -> Result<bool, StoreError> {
    let owned = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM nodes WHERE node = sessions.owner AND lease_until_us > ?) FROM sessions WHERE key = ?",
    );
    let owned = owned.bind(now_us()).bind(key.as_bytes().as_slice());
    let Some(owned) = owned.fetch_optional(writing.connection()).await.map_err(map_error)? else {
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
        .map_err(map_error)?;
    Ok(true)
}
