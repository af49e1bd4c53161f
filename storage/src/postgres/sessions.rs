//! Sessions: owners, claims, and lists for operators. `write` contains the writes of their owners.

use std::time::Duration;

use async_trait::async_trait;
use protocol::ids::{KeyId, PrincipalId, TenantId};
use records::{
    NodeName, SessionClaimOutcome, SessionIdentity, SessionKey, SessionListPosition, SessionRecord,
    StoredSession, SubscriptionCount, SubscriptionRecord,
};
use sqlx::{Row, postgres::PgRow};

use super::{
    PostgresStore, micros, nodes,
    rows::{self, count, get, session_key},
};
use crate::{SessionStore, StoreError};

/// Digits of a digest, which has eight bytes.
const DIGEST_DIGITS: usize = 16;

#[async_trait]
impl SessionStore for PostgresStore {
    /// Locks the session, and then its owner's lease in shared mode. A transaction that changes a
    /// lease holds no lock that this call could wait for. So this call need not follow the lock
    /// order of the batches, which is leases first.
    async fn claim_session(
        &self,
        key: &SessionKey,
        identity: &SessionIdentity,
        node: &NodeName,
        idle: Duration,
    ) -> Result<SessionClaimOutcome, StoreError> {
        let claim = |_| {
            sqlx::query("SELECT * FROM claim_session($1, $2, $3, $4, $5, $6)")
                .bind(key.as_bytes().as_slice())
                .bind(identity.tenant.as_str())
                .bind(identity.principal.as_str())
                .bind(identity.endpoint.as_ref().map(|endpoint| endpoint.as_str()))
                .bind(node.as_str())
                .bind(micros(idle))
        };
        let rows = self.rows(claim).await?;
        let Some(row) = rows.first() else { return Ok(SessionClaimOutcome::NotFound) };
        if let Some(owner) = nodes::node_record(row)? {
            return Ok(SessionClaimOutcome::OwnedElsewhere(owner));
        }
        let record = SessionRecord {
            key: *key,
            identity: identity.clone(),
            api_key: get::<Option<&str>>(row, "api_key")?.map(KeyId::new),
            transport: get(row, "transport")?,
            version: get(row, "version")?,
            agreement: get(row, "agreement")?,
            state: get(row, "state")?,
            links: get(row, "links")?,
        };
        let (epoch, created_at_us) = (get(row, "epoch")?, get(row, "created_at_us")?);
        Ok(SessionClaimOutcome::Acquired {
            record,
            epoch,
            created_at_us,
            subscriptions: self.subscriptions(row, key)?,
        })
    }

    async fn list_sessions(
        &self,
        tenant: Option<&TenantId>,
        after: Option<&SessionListPosition>,
        limit: u32,
    ) -> Result<Vec<StoredSession>, StoreError> {
        let select = |_| {
            sqlx::query(LIST_SESSIONS)
                .bind(tenant.map(TenantId::as_str))
                .bind(after.map(|position| position.created_at_us))
                .bind(after.map(|position| position.key.as_bytes().as_slice()))
                .bind(i64::from(limit))
        };
        let rows = self.rows(select).await?;
        Ok(self.readable(&rows, stored_session, named))
    }

    async fn sessions_by_digest(&self, digest: &str) -> Result<Vec<StoredSession>, StoreError> {
        let digits =
            digest.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit));
        if digest.len() != DIGEST_DIGITS || !digits {
            return Ok(Vec::new());
        }
        // Selects every key that begins with these bytes. No key has more than 32 bytes, so none is
        // above the eight bytes followed by 0xff.
        let rows = self.rows(|_| sqlx::query(SESSIONS_BY_DIGEST).bind(digest)).await?;
        Ok(self.readable(&rows, stored_session, named))
    }

    async fn sweep_sessions(
        &self,
        idle: Duration,
        limit: u32,
    ) -> Result<Vec<SessionKey>, StoreError> {
        let sweep = |_| {
            sqlx::query("SELECT key FROM sweep_sessions($1, $2) AS key")
                .bind(micros(idle))
                .bind(i32::try_from(limit).unwrap_or(i32::MAX))
        };
        let rows = self.rows(sweep).await?;
        Ok(self.readable(&rows, session_key, |_| "a session".into()))
    }

    async fn subscription_counts(
        &self,
        tenant: Option<&TenantId>,
    ) -> Result<Vec<SubscriptionCount>, StoreError> {
        let select = |_| {
            sqlx::query(
                "SELECT s.tenant, u.backend, u.uri, count(DISTINCT u.key) AS sessions
                 FROM subscriptions AS u JOIN sessions AS s ON s.key = u.key
                 WHERE $1::text IS NULL OR s.tenant = $1
                 GROUP BY s.tenant, u.backend, u.uri ORDER BY s.tenant, u.backend, u.uri",
            )
            .bind(tenant.map(TenantId::as_str))
        };
        let read = |row: &PgRow| {
            Ok(SubscriptionCount {
                tenant: rows::tenant(row)?,
                backend: rows::backend(get(row, "backend")?)?,
                uri: rows::text(get(row, "uri")?)?,
                sessions: count(row, "sessions")?,
            })
        };
        let rows = self.rows(select).await?;
        Ok(self.readable(&rows, read, |row| {
            format!("subscription of tenant {:?}", row.try_get::<String, _>("tenant"))
        }))
    }
}

impl PostgresStore {
    /// Reads subscriptions from three columns of the same length.
    fn subscriptions(
        &self,
        row: &PgRow,
        key: &SessionKey,
    ) -> Result<Vec<SubscriptionRecord>, StoreError> {
        let exposed: Option<Vec<Vec<u8>>> = get(row, "exposed_uris")?;
        let backends: Option<Vec<String>> = get(row, "backends")?;
        let uris: Option<Vec<Vec<u8>>> = get(row, "uris")?;
        let all = exposed
            .unwrap_or_default()
            .into_iter()
            .zip(backends.unwrap_or_default())
            .zip(uris.unwrap_or_default());
        let read = |exposed, backend: &str, uri| {
            Ok(SubscriptionRecord {
                exposed_uri: rows::text(exposed)?,
                backend: rows::backend(backend)?,
                uri: rows::text(uri)?,
            })
        };
        let name = || format!("a subscription of session {}", key.digest());
        Ok(all
            .filter_map(|((exposed, backend), uri)| self.report(read(exposed, &backend, uri), name))
            .collect())
    }
}

/// Selects the columns that [`stored_session`] reads, of the sessions `s`.
macro_rules! stored_sessions {
    ($which:literal) => {
        concat!(
            "SELECT s.key, s.tenant, s.principal, s.endpoint, s.api_key, s.transport, s.version, s.agreement, s.state, s.links,
                    s.epoch, s.created_at_us, s.seen_at_us, s.owner AS node, n.address, n.draining,
                    greatest(n.lease_until_us - now_us(), 0) AS lease_left_us,
                    (SELECT count(*) FROM subscriptions AS u WHERE u.key = s.key) AS subscriptions
             FROM sessions AS s LEFT JOIN nodes AS n ON n.node = s.owner ",
            $which
        )
    };
}

pub(super) const LIST_SESSIONS: &str = stored_sessions!(
    "WHERE ($1::text IS NULL OR s.tenant = $1)
        AND ($2::bigint IS NULL OR (s.created_at_us, s.key) > ($2, $3::bytea))
     ORDER BY s.created_at_us, s.key LIMIT $4"
);

pub(super) const SESSIONS_BY_DIGEST: &str = stored_sessions!(
    "WHERE s.key BETWEEN decode($1, 'hex') AND decode($1 || repeat('f', 48), 'hex') ORDER BY s.created_at_us, s.key"
);

fn stored_session(row: &PgRow) -> Result<StoredSession, StoreError> {
    let endpoint = get::<Option<&str>>(row, "endpoint")?.map(rows::endpoint).transpose()?;
    Ok(StoredSession {
        record: SessionRecord {
            key: session_key(row)?,
            identity: SessionIdentity {
                tenant: rows::tenant(row)?,
                principal: PrincipalId::new(get::<&str>(row, "principal")?),
                endpoint,
            },
            api_key: get::<Option<&str>>(row, "api_key")?.map(KeyId::new),
            transport: get(row, "transport")?,
            version: get(row, "version")?,
            agreement: get(row, "agreement")?,
            state: get(row, "state")?,
            links: get(row, "links")?,
        },
        owner: nodes::node_record(row)?,
        epoch: get(row, "epoch")?,
        created_at_us: get(row, "created_at_us")?,
        seen_at_us: get(row, "seen_at_us")?,
        subscriptions: count(row, "subscriptions")?,
    })
}

fn named(row: &PgRow) -> String {
    session_key(row).map_or_else(|_| "a session".into(), |key| format!("session {}", key.digest()))
}
