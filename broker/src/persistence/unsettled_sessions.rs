//! Sessions whose storage had an unknown outcome. Their clients were refused, so nothing of them
//! may stay in the store.
//!
//! A commit can wait for a standby, and its row is visible to no statement until then. The end of
//! such a session then finds no row, and no sweep removes the row of a process that lives. The end
//! is therefore repeated.

use std::{collections::HashSet, time::Duration};

use parking_lot::Mutex;
use protocol::error::Refusal;
use records::{SessionKey, WriteOp, WriteOutcome};
use rules::limits::{COMMIT_LOOK_MAX, COMMIT_SETTLES_WITHIN, STORE_RETRY_MAX};
use storage::StoreError;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::Persistence;

#[derive(Debug, Default)]
pub(super) struct UnsettledSessions(Mutex<HashSet<SessionKey>>);

impl UnsettledSessions {
    /// Notes the sessions that a batch opens, if its outcome is unknown. A known outcome settles
    /// them.
    pub(super) fn record(
        &self,
        writes: &[WriteOp],
        outcome: &Result<Vec<WriteOutcome>, StoreError>,
    ) {
        let opened = writes.iter().filter_map(|write| match write {
            WriteOp::OpenSession { record, .. } => Some(record.key),
            _ => None,
        });
        let mut sessions = self.0.lock();
        match outcome {
            Err(StoreError::OutcomeUnknown(_)) => sessions.extend(opened),
            Ok(_) if !sessions.is_empty() => opened.for_each(|session| {
                sessions.remove(&session);
            }),
            _ => {}
        }
    }

    fn contains(&self, session: &SessionKey) -> bool {
        self.0.lock().contains(session)
    }

    /// Returns whether the outcome for this session is unknown, and forgets the session.
    fn take(&self, session: &SessionKey) -> bool {
        self.0.lock().remove(session)
    }
}

impl Persistence {
    /// Returns whether the store may have a new session, or get it later, although its storage
    /// failed.
    pub fn may_have_stored(&self, session: &SessionKey) -> bool {
        self.persister.unsettled().contains(session)
    }

    /// Ends a session again after its end was stored, if its storage had an unknown outcome. Looks
    /// for its row for the idle time of a session. The search ends with the process, because other
    /// replicas then remove the row.
    pub async fn end_if_stored_late(
        &self,
        session: &SessionKey,
        idle: Duration,
        draining: &CancellationToken,
    ) {
        if !self.persister.unsettled().take(session) {
            return;
        }
        let started_at = Instant::now();
        let mut wait = STORE_RETRY_MAX;
        while timeout(wait, draining.cancelled()).await.is_err() {
            match self.end_stored_session(session).await {
                Ok(true) => return,
                Ok(false) if started_at.elapsed() >= idle => return,
                Ok(false) | Err(_) => {}
            }
            if started_at.elapsed() >= COMMIT_SETTLES_WITHIN {
                wait = (wait * 2).min(COMMIT_LOOK_MAX);
            }
        }
    }

    /// Returns whether the store had the session, which it has no longer.
    async fn end_stored_session(&self, session: &SessionKey) -> Result<bool, Refusal> {
        let digest = session.digest();
        let finding = self.store.sessions_by_digest(&digest);
        let rows = self.timed("find_sessions_by_digest", finding).await?;
        let Some(row) = rows.into_iter().find(|row| row.record.key == *session) else {
            return Ok(false);
        };
        let end = WriteOp::EndSession { key: *session, epoch: row.epoch };
        if self.write(end).await? != WriteOutcome::Done {
            return Ok(false);
        }
        self.forget_session(session).await;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use records::{NodeName, SessionIdentity, SessionRecord};
    use storage::{DurableStore as _, SessionStore as _};

    use super::*;
    use crate::persistence::tests::{Meddled, Verdict, persistence_over};

    const IDLE: Duration = Duration::from_secs(60);

    fn open(key: SessionKey) -> WriteOp {
        let identity = SessionIdentity {
            tenant: protocol::ids::TenantId::parse("acme").unwrap(),
            principal: protocol::ids::PrincipalId::new("ada"),
            endpoint: None,
        };
        let record = SessionRecord {
            key,
            identity,
            api_key: None,
            transport: "streamable_http".into(),
            version: "2025-11-25".into(),
            agreement: Vec::new(),
            state: Vec::new(),
            links: Vec::new(),
        };
        WriteOp::OpenSession { record: Box::new(record), owner: NodeName::new("test/0") }
    }

    fn busy() -> StoreError {
        StoreError::Busy { detail: "a test".into() }
    }

    #[tokio::test]
    async fn a_session_that_is_committed_after_its_end_is_ended_again() {
        let store = Meddled::start("a server").await;
        let (persistence, draining) = (persistence_over(&store), CancellationToken::new());
        let key = SessionKey::new([1; 32]);
        store.on_write(|_| Verdict::Fail(StoreError::OutcomeUnknown(Box::new(busy()))));
        persistence.write(open(key)).await.unwrap_err();
        assert!(persistence.may_have_stored(&key));
        store.on_write(|_| Verdict::Pass);
        let end = WriteOp::EndSession { key, epoch: 1 };
        assert_eq!(persistence.write(end).await, Ok(WriteOutcome::Fenced), "there is none so far");
        store.inner.write(&[open(key)]).await.unwrap();
        persistence.end_if_stored_late(&key, IDLE, &draining).await;
        assert_eq!(store.list_sessions(None, None, 10).await.unwrap(), []);
        assert_eq!(store.count("sessions_by_digest"), 1);
        persistence.end_if_stored_late(&key, IDLE, &draining).await;
        assert_eq!(store.count("sessions_by_digest"), 1, "it is settled");
    }

    #[tokio::test]
    async fn a_wait_for_a_commit_ends_with_the_idle_time_and_with_the_process() {
        let store = Meddled::start("a server").await;
        let (persistence, draining) = (persistence_over(&store), CancellationToken::new());
        store.on_write(|_| Verdict::Fail(StoreError::OutcomeUnknown(Box::new(busy()))));
        let keys = [1, 2].map(|number| SessionKey::new([number; 32]));
        for key in keys {
            persistence.write(open(key)).await.unwrap_err();
        }
        persistence.end_if_stored_late(&keys[0], Duration::ZERO, &draining).await;
        assert_eq!(store.count("sessions_by_digest"), 1);
        draining.cancel();
        persistence.end_if_stored_late(&keys[1], IDLE, &draining).await;
        assert_eq!(store.count("sessions_by_digest"), 1);
    }

    #[test]
    fn only_an_unknown_outcome_leaves_a_session_unsettled() {
        let (unsettled, key) = (UnsettledSessions::default(), SessionKey::new([1; 32]));
        let unknown: Result<Vec<WriteOutcome>, StoreError> =
            Err(StoreError::OutcomeUnknown(Box::new(busy())));
        for (outcomes, is_unsettled) in [
            (vec![Err(busy())], false),
            (vec![unknown.clone()], true),
            (vec![unknown.clone(), Err(busy())], true),
            (vec![unknown, Ok(vec![WriteOutcome::Done])], false),
        ] {
            for outcome in &outcomes {
                unsettled.record(&[open(key)], outcome);
            }
            assert_eq!(unsettled.take(&key), is_unsettled, "{outcomes:?}");
        }
    }
}
