//! Stored state of a session. A change that a client's request makes is stored before its answer.
//! The rest is written behind: the time of the client's last message, sessions at backends, and the
//! announced lists.
//!
//! Every write carries the epoch under which this process owns the row. The store fences a write
//! off if another process owns the row now. The session is then abandoned.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::{error::Refusal, ids::BackendId};
use records::{SessionKey, SubscriptionRecord, WriteOp, WriteOutcome};
use rules::{
    catalog::ListDigests,
    endpoint::Endpoint,
    exposed_names,
    limits::{EVENTS_FLUSH_WAIT, LISTS_RETRY, OWNER_NEWS_WAIT, SEEN_STORED_EVERY_MAX},
    log_level::LogLevel,
    routing::ResourceTarget,
};

use super::{
    Session,
    record::{self, MutableState},
    session_moved,
    state::SessionState,
};
use crate::{backends::link::BackendSession, persistence::fault_point};

/// Interval of the check whether a reclaimed row has got its new epoch.
const OWNER_NEWS_POLL: Duration = Duration::from_millis(10);

/// State in the store, as far as it is known.
#[derive(Debug)]
pub(super) struct PersistedState {
    /// The announced lists as stored, or as they may be stored next.
    pub(super) announced_lists: ListDigests,
}

/// Reason why a write was not stored.
#[derive(Debug)]
pub(super) enum StoreFailure {
    Fenced,
    Refused(Refusal),
}

/// Writes the state of one session to the store.
#[derive(Debug, Clone, Copy)]
pub struct SessionPersister<'s> {
    session: &'s Arc<Session>,
}

impl<'s> SessionPersister<'s> {
    pub fn new(session: &'s Arc<Session>) -> Self {
        Self { session }
    }

    /// Stores a new session.
    pub async fn store_new(self) -> Result<(), Refusal> {
        let storing = self.session.persisted.lock().await;
        let (changing, owner) = {
            let state = self.session.lock();
            (mutable_state(&state, storing.announced_lists), state.ownership.owner.clone())
        };
        let unwritable =
            || Refusal::new(protocol::error::ErrorKind::Internal, "the session cannot be stored");
        let record = Box::new(record::encode(self.session, &changing).ok_or_else(unwritable)?);
        match self.session.shared.persistence.write(WriteOp::OpenSession { record, owner }).await? {
            WriteOutcome::Done => {
                fault_point::hit("session.opened");
                self.publish_location();
                Ok(())
            }
            _ => Err(unwritable()),
        }
    }

    /// Publishes the location of the session to other replicas. The entry lasts until the next sign
    /// of life is stored, or the session is idle.
    pub(super) fn publish_location(self) {
        let session = self.session.clone();
        self.session.shared.running.spawn(async move {
            let (persistence, idle) =
                (&session.shared.persistence, session.shared.config.session.idle);
            if session.is_leaving() {
                return;
            }
            persistence.record_owned(&session.key, idle).await;
            // The session was released meanwhile. An entry with this process would send the next
            // request to the wrong replica.
            if session.is_leaving() {
                persistence.hot.remove_owner_hint(&session.key).await;
            }
        });
    }

    /// Stores a new log level, and then applies it.
    pub async fn store_log_level(self, level: LogLevel) -> Result<(), Refusal> {
        if !self.session.kind.has_client() {
            self.session.lock().log_level = Some(level);
            return Ok(());
        }
        let storing = self.session.persisted.lock().await;
        let state = {
            let state = self.session.lock();
            record::mutable_state_text(&MutableState {
                log_level: Some(level),
                ..mutable_state(&state, storing.announced_lists)
            })
        };
        let (key, idle) = (self.session.key, Duration::ZERO);
        self.written(|epoch| WriteOp::UpdateSession {
            key,
            epoch,
            idle,
            state: Some(state.clone()),
            links: None,
        })
        .await?;
        self.session.lock().log_level = Some(level);
        Ok(())
    }

    /// Stores a subscription as the session has it: with its target, or not at all. Another request
    /// may change it meanwhile, and their writes may change places.
    pub(super) async fn store_subscription(self, exposed_uri: &str) -> Result<(), Refusal> {
        let current = || self.session.lock().subscriptions.get(exposed_uri).cloned();
        // The row of a session from an earlier build may have the earlier form of the URI.
        let earlier = match self.session.endpoint {
            Endpoint::Single(_) => None,
            Endpoint::Aggregated | Endpoint::Toolset(_) => exposed_names::earlier_uri(exposed_uri),
        };
        let write = |target: Option<ResourceTarget>| async move {
            let key = self.session.key;
            if let Some(earlier) = earlier.filter(|_| target.is_none()) {
                self.written(|epoch| subscription_write(key, epoch, earlier, None)).await?;
            }
            self.written(|epoch| subscription_write(key, epoch, exposed_uri, target.as_ref()))
                .await?;
            fault_point::hit("subscription.committed");
            Ok::<(), Refusal>(())
        };
        write_until_current(current, write).await
    }

    async fn written(self, write: impl Fn(i64) -> WriteOp) -> Result<(), Refusal> {
        if !self.session.kind.has_client() {
            return Ok(());
        }
        match self.try_write(write).await {
            Ok(()) => Ok(()),
            Err(StoreFailure::Refused(refusal)) => Err(refusal),
            Err(StoreFailure::Fenced) => {
                self.session.abandon("another process owns it");
                Err(session_moved())
            }
        }
    }

    /// Writes a change that `write` makes for an epoch, because the epoch may change during the
    /// write.
    async fn try_write(self, write: impl Fn(i64) -> WriteOp) -> Result<(), StoreFailure> {
        loop {
            let epoch = self.session.epoch();
            match self.session.shared.persistence.write(write(epoch)).await {
                Ok(WriteOutcome::Fenced | WriteOutcome::NotFound) => {
                    self.wait_for_newer_epoch(epoch).await?
                }
                Ok(_) => return Ok(()),
                Err(refusal) => return Err(StoreFailure::Refused(refusal)),
            }
        }
    }

    /// Waits for a newer epoch after a fenced write. `Ok`: this process took the row back after a
    /// lapse of its lease, and the epoch has changed. The store moves the row before the session
    /// gets the epoch, so the wait lasts only while the process has a new name.
    async fn wait_for_newer_epoch(self, fenced: i64) -> Result<(), StoreFailure> {
        let started_at = Instant::now();
        while self.session.epoch() == fenced {
            if self.session.is_owned_by(&self.session.shared.persistence.node()) {
                // The epoch came between the two reads, or another process fenced the write off.
                return if self.session.epoch() == fenced {
                    Err(StoreFailure::Fenced)
                } else {
                    Ok(())
                };
            }
            if started_at.elapsed() > OWNER_NEWS_WAIT {
                return Err(StoreFailure::Refused(session_moved()));
            }
            tokio::time::sleep(OWNER_NEWS_POLL).await;
        }
        Ok(())
    }

    /// Returns whether something has to be written behind.
    pub fn is_dirty(self, idle_limit: Duration) -> bool {
        if self.session.is_leaving() {
            return false;
        }
        let state = self.session.lock();
        let lists = state.dirty.lists && state.lists.may_write(Instant::now());
        let dirty = state.dirty.state || lists || state.dirty.links;
        drop(state);
        dirty || self.is_sign_of_life_due(idle_limit)
    }

    /// Returns whether a newer sign of life of the client has to be stored. That happens only at
    /// intervals.
    fn is_sign_of_life_due(self, idle_limit: Duration) -> bool {
        let every = millis((idle_limit / 10).min(SEEN_STORED_EVERY_MAX));
        let (now, stored) = (self.session.shared.uptime_ms(), self.session.clock.seen_stored_ms());
        now.saturating_sub(stored) >= every
            && now.saturating_sub(millis(self.session.idle_for())) > stored
    }

    /// Writes behind the parts that are not stored yet. Returns `Err` if the store takes nothing
    /// now.
    pub async fn flush(self) -> Result<(), Refusal> {
        let Ok(mut storing) = self.session.persisted.try_lock() else { return Ok(()) }; // another task stores it at present
        let (dirty, announced, links) = {
            let mut state = self.session.lock();
            let links = state.dirty.links.then(|| self.links_text(state.links.backend_sessions()));
            (std::mem::take(&mut state.dirty), state.lists.announced(), links)
        };
        let lists = dirty.lists && self.events_logged().await;
        if lists {
            storing.announced_lists = announced;
            self.note_announcements();
        } else if dirty.lists {
            // They are stored later, when the log holds the events that announced them.
            let mut state = self.session.lock();
            state.dirty.lists = true;
            state.lists.delay_write(Instant::now() + LISTS_RETRY);
        }
        let state = (dirty.state || lists).then(|| {
            record::mutable_state_text(&mutable_state(
                &self.session.lock(),
                storing.announced_lists,
            ))
        });
        if state.is_none()
            && links.is_none()
            && !self.is_sign_of_life_due(self.session.shared.config.session.idle)
        {
            return Ok(());
        }
        let (key, idle, now) =
            (self.session.key, self.session.idle_for(), self.session.shared.uptime_ms());
        let update = |epoch| WriteOp::UpdateSession {
            key,
            epoch,
            idle,
            state: state.clone(),
            links: links.clone(),
        };
        match self.try_write(update).await {
            Ok(()) => {
                self.session.clock.record_stored(now);
                self.publish_location();
                Ok(())
            }
            Err(StoreFailure::Fenced) => {
                self.session.abandon("another process owns it");
                Ok(())
            }
            Err(StoreFailure::Refused(refusal)) => {
                let again = &mut self.session.lock().dirty;
                (again.state, again.lists, again.links) = (
                    again.state || dirty.state,
                    again.lists || dirty.lists,
                    again.links || dirty.links,
                );
                Err(refusal)
            }
        }
    }

    /// Stores the whole state and releases the row.
    pub(super) async fn store_release(self) -> Result<(), StoreFailure> {
        let mut storing = self.session.persisted.lock().await;
        let (announced, has_news) = {
            let state = self.session.lock();
            (state.lists.announced(), state.dirty.lists)
        };
        if self.events_logged().await {
            storing.announced_lists = announced;
            if has_news {
                self.note_announcements();
            }
        }
        let (state, links) = {
            let state = self.session.lock();
            (
                record::mutable_state_text(&mutable_state(&state, storing.announced_lists)),
                self.links_text(state.links.backend_sessions()),
            )
        };
        let (key, idle) = (self.session.key, self.session.idle_for());
        let release = |epoch| WriteOp::ReleaseSession {
            key,
            epoch,
            idle,
            state: state.clone(),
            links: links.clone(),
        };
        self.try_write(release).await
    }

    /// Waits until the event log holds the events of this session so far. Returns false if that
    /// takes too long.
    async fn events_logged(self) -> bool {
        match &self.session.shared.persistence.event_log {
            Some(log) => tokio::time::timeout(EVENTS_FLUSH_WAIT, log.flushed(self.session.key))
                .await
                .unwrap_or(false),
            None => true,
        }
    }

    /// Notes that the event log has the GET stream of the announcements that are stored now. A later
    /// owner detects by it that the log lost the stream. The stream of a WebSocket is never logged.
    fn note_announcements(self) {
        let mut state = self.session.lock();
        if self.session.shared.persistence.event_log.is_some()
            && state.streams.all_general().iter().any(|stream| !stream.is_outbox())
        {
            state.lists.set_logged();
        }
    }

    fn links_text(self, links: &std::collections::HashMap<BackendId, BackendSession>) -> Vec<u8> {
        record::links_text(&self.session.shared.persistence.seal, &self.session.key, links)
    }
}

/// Returns the write that makes a subscription equal to its state in the session.
fn subscription_write(
    key: SessionKey,
    epoch: i64,
    exposed_uri: &str,
    target: Option<&ResourceTarget>,
) -> WriteOp {
    let exposed_uri = exposed_uri.to_owned();
    match target {
        Some(ResourceTarget { backend, uri, .. }) => {
            let (backend, uri) = (backend.clone(), uri.clone());
            let subscription = SubscriptionRecord { exposed_uri, backend, uri };
            WriteOp::Subscribe { key, epoch, subscription }
        }
        None => WriteOp::Unsubscribe { key, epoch, exposed_uri },
    }
}

/// Writes the state that `current` returns, until it is the state of the last write. Several writers
/// of one state then leave the latest one in the store, in whatever order they write.
async fn write_until_current<S, E, F>(
    current: impl Fn() -> S,
    write: impl Fn(S) -> F,
) -> Result<(), E>
where
    S: Clone + PartialEq,
    F: Future<Output = Result<(), E>>,
{
    loop {
        let written = current();
        write(written.clone()).await?;
        if current() == written {
            return Ok(());
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn mutable_state(state: &SessionState, announced: ListDigests) -> MutableState {
    MutableState {
        log_level: state.log_level,
        announced_lists: announced,
        were_lists_logged: state.lists.were_logged(),
        elicited: state.questions.elicited().cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, convert::Infallible};

    use super::*;

    /// A subscription is removed, and its removal waits for its turn to be written. The client
    /// subscribes again meanwhile, and that is written first.
    #[tokio::test]
    async fn a_late_write_does_not_replace_a_newer_state() {
        let state = RefCell::new(Some("subscribed"));
        let stored = RefCell::new(Vec::new());
        let write = |written| {
            if stored.borrow().is_empty() {
                // The other writer comes first.
                *state.borrow_mut() = Some("subscribed again");
                stored.borrow_mut().push(Some("subscribed again"));
            }
            stored.borrow_mut().push(written);
            async { Ok::<(), Infallible>(()) }
        };
        *state.borrow_mut() = None;
        write_until_current(|| *state.borrow(), write).await.unwrap();
        assert_eq!(
            *stored.borrow(),
            [Some("subscribed again"), None, Some("subscribed again")],
            "the store has what the session has"
        );
    }
}
