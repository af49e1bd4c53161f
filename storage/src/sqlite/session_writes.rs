//! Writes of owners to their sessions. Each statement contains the epoch. If it finds no row, the
//! write was fenced off.

use std::time::Duration;

use records::{NodeName, SessionKey, SessionRecord, SubscriptionRecord, WriteOutcome};
use sqlx::sqlite::SqliteConnection;

use super::{error_mapping::map_error, micros};
use crate::StoreError;

/// A session and the epoch under which its owner holds it.
pub(super) struct OwnedSession<'a> {
    pub(super) key: &'a SessionKey,
    pub(super) epoch: i64,
}

pub(super) async fn open(
    connection: &mut SqliteConnection,
    record: &SessionRecord,
    owner: &NodeName,
    now: i64,
) -> Result<WriteOutcome, StoreError> {
    let insert = sqlx::query(
        "INSERT INTO sessions (key, tenant, principal, endpoint, api_key, transport, version, owner, epoch, created_at_us, seen_at_us,
                               agreement, state, links)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
    )
    .bind(record.key.as_bytes().as_slice())
    .bind(record.identity.tenant.as_str())
    .bind(record.identity.principal.as_str())
    .bind(record.identity.endpoint.as_ref().map(|endpoint| endpoint.as_str()))
    .bind(record.api_key.as_ref().map(|key| key.as_str()))
    .bind(record.transport.as_str())
    .bind(record.version.as_str())
    .bind(owner.as_str())
    .bind(now)
    .bind(now)
    .bind(record.agreement.as_slice())
    .bind(record.state.as_slice())
    .bind(record.links.as_slice());
    if insert.execute(&mut *connection).await.map_err(map_error)?.rows_affected() > 0 {
        return Ok(WriteOutcome::Done);
    }
    let same = sqlx::query("SELECT 1 FROM sessions WHERE key = ? AND owner = ? AND epoch = 1");
    let same = same
        .bind(record.key.as_bytes().as_slice())
        .bind(owner.as_str())
        .fetch_optional(connection)
        .await
        .map_err(map_error)?;
    Ok(if same.is_some() { WriteOutcome::Done } else { WriteOutcome::Fenced })
}

pub(super) async fn update(
    connection: &mut SqliteConnection,
    session: OwnedSession<'_>,
    seen_at_us: i64,
    state: Option<&[u8]>,
    links: Option<&[u8]>,
) -> Result<WriteOutcome, StoreError> {
    let update = sqlx::query(
        "UPDATE sessions SET seen_at_us = ?, state = coalesce(?, state), links = coalesce(?, links) WHERE key = ? AND epoch = ?",
    );
    let update = update
        .bind(seen_at_us)
        .bind(state)
        .bind(links)
        .bind(session.key.as_bytes().as_slice())
        .bind(session.epoch);
    Ok(unless_fenced(update.execute(connection).await.map_err(map_error)?.rows_affected()))
}

pub(super) async fn release(
    connection: &mut SqliteConnection,
    session: OwnedSession<'_>,
    seen_at_us: i64,
    state: &[u8],
    links: &[u8],
) -> Result<WriteOutcome, StoreError> {
    let update = sqlx::query(
        "UPDATE sessions SET owner = NULL, epoch = epoch + 1, seen_at_us = ?, state = ?, links = ? WHERE key = ? AND epoch = ?",
    );
    let update = update
        .bind(seen_at_us)
        .bind(state)
        .bind(links)
        .bind(session.key.as_bytes().as_slice())
        .bind(session.epoch);
    Ok(unless_fenced(update.execute(connection).await.map_err(map_error)?.rows_affected()))
}

/// Removes a session with its subscriptions and streams.
pub(super) async fn end(
    connection: &mut SqliteConnection,
    session: OwnedSession<'_>,
) -> Result<WriteOutcome, StoreError> {
    let delete = sqlx::query("DELETE FROM sessions WHERE key = ? AND epoch = ?");
    let delete = delete.bind(session.key.as_bytes().as_slice()).bind(session.epoch);
    Ok(unless_fenced(delete.execute(connection).await.map_err(map_error)?.rows_affected()))
}

pub(super) async fn subscribe(
    connection: &mut SqliteConnection,
    session: OwnedSession<'_>,
    subscription: &SubscriptionRecord,
) -> Result<WriteOutcome, StoreError> {
    let upsert = sqlx::query(
        "INSERT INTO subscriptions (session, exposed_uri, backend, uri) SELECT number, ?, ?, ? FROM sessions WHERE key = ? AND epoch = ?
         ON CONFLICT (session, exposed_uri) DO UPDATE SET backend = excluded.backend, uri = excluded.uri",
    )
    .bind(subscription.exposed_uri.as_str())
    .bind(subscription.backend.as_str())
    .bind(subscription.uri.as_str())
    .bind(session.key.as_bytes().as_slice())
    .bind(session.epoch);
    Ok(unless_fenced(upsert.execute(connection).await.map_err(map_error)?.rows_affected()))
}

pub(super) async fn unsubscribe(
    connection: &mut SqliteConnection,
    session: OwnedSession<'_>,
    exposed_uri: &str,
) -> Result<WriteOutcome, StoreError> {
    let select = sqlx::query_scalar("SELECT number FROM sessions WHERE key = ? AND epoch = ?");
    let select = select.bind(session.key.as_bytes().as_slice()).bind(session.epoch);
    let number: Option<i64> = select.fetch_optional(&mut *connection).await.map_err(map_error)?;
    let Some(number) = number else { return Ok(WriteOutcome::Fenced) };
    let delete = sqlx::query("DELETE FROM subscriptions WHERE session = ? AND exposed_uri = ?")
        .bind(number)
        .bind(exposed_uri);
    delete.execute(connection).await.map_err(map_error)?;
    Ok(WriteOutcome::Done)
}

/// Returns the time at which a client was last heard from, if it has been idle for this long.
pub(super) fn seen(now: i64, idle: Duration) -> i64 {
    now.saturating_sub(micros(idle))
}

fn unless_fenced(rows: u64) -> WriteOutcome {
    if rows > 0 { WriteOutcome::Done } else { WriteOutcome::Fenced }
}
