//! What of a session is on disk, and when. What its client is told is done is stored first; the rest (when it was last
//! heard of, its sessions at backends, what it was told of its lists) is written behind.
//!
//! Every write carries the epoch the row is ours under. One that changes nothing because of it says that the session is
//! another's now, whoever learns it first abandons it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use protocol::{error::Refusal, ids::BackendId, phase::SessionPhase};

use super::{
    Session,
    record::{self, BackendSession, MutableState},
    session_moved,
};
use crate::{
    limits::{EVENTS_FLUSH_WAIT, LISTS_RETRY, OWNER_NEWS_WAIT, SEEN_STORED_EVERY_MAX},
    persistence::{SubscriptionRecord, WriteOp, WriteOutcome, fault_point},
    rules::{catalog::ListDigests, log_level::LogLevel, routing::ResourceTarget},
};

/// How often it is looked whether the news of a row taken back has come.
const OWNER_NEWS_POLL: Duration = Duration::from_millis(10);

/// What is not stored yet.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct DirtyFlags {
    pub(super) state: bool,
    /// What the client was told of its lists. Stored only once the events that told it are.
    pub(super) lists: bool,
    pub(super) links: bool,
}

/// What is known of the stored state.
#[derive(Debug)]
pub(super) struct PersistedState {
    /// As stored, or what may be stored of it.
    pub(super) announced_lists: ListDigests,
}

/// Why something is not stored.
#[derive(Debug)]
pub(super) enum StoreFailure {
    Fenced,
    Refused(Refusal),
}

impl Session {
    /// Stores a new session.
    pub async fn store_new(self: &Arc<Self>) -> Result<(), Refusal> {
        let storing = self.persisted.lock().await;
        let (changing, owner) = {
            let state = self.lock();
            (self.mutable_state(&state, storing.announced_lists), state.owner.clone())
        };
        let unwritable =
            || Refusal::new(protocol::error::ErrorKind::Internal, "the session can not be stored");
        let record = Box::new(record::encode(self, &changing).ok_or_else(unwritable)?);
        match self.shared.durable.write(WriteOp::OpenSession { record, owner }).await? {
            WriteOutcome::Done => {
                fault_point::passed("session.opened");
                self.publish_location();
                Ok(())
            }
            _ => Err(unwritable()),
        }
    }

    /// Tells other replicas where the session is. It lasts until the next sign of life is stored, or the session is idle.
    pub(super) fn publish_location(self: &Arc<Self>) {
        let session = self.clone();
        self.shared.running.spawn(async move {
            let (durable, idle) = (&session.shared.durable, session.shared.config.session.idle);
            if session.is_leaving() {
                return;
            }
            durable.note_owned(&session.key, idle).await;
            // Given away meanwhile: a word about us would send its next request here in vain.
            if session.is_leaving() {
                durable.hot.forget_owner(&session.key).await;
            }
        });
    }

    /// Stores a new log level, which holds from then on.
    pub async fn store_log_level(self: &Arc<Self>, level: LogLevel) -> Result<(), Refusal> {
        if !self.has_client {
            self.lock().log_level = Some(level);
            return Ok(());
        }
        let storing = self.persisted.lock().await;
        let state = {
            let state = self.lock();
            record::mutable_state_text(&MutableState {
                log_level: Some(level),
                ..self.mutable_state(&state, storing.announced_lists)
            })
        };
        let (key, idle) = (self.key, Duration::ZERO);
        self.written(|epoch| WriteOp::UpdateSession {
            key,
            epoch,
            idle,
            state: Some(state.clone()),
            links: None,
        })
        .await?;
        self.lock().log_level = Some(level);
        Ok(())
    }

    pub(super) async fn store_subscription(
        self: &Arc<Self>,
        target: &ResourceTarget,
    ) -> Result<(), Refusal> {
        let subscription = SubscriptionRecord {
            exposed_uri: target.exposed_uri.clone(),
            backend: target.backend.clone(),
            uri: target.uri.clone(),
        };
        self.written(|epoch| WriteOp::Subscribe {
            key: self.key,
            epoch,
            subscription: subscription.clone(),
        })
        .await?;
        // An unsubscribe may have overtaken this; what holds is what the session has.
        if !self.lock().subscriptions.contains_key(&target.exposed_uri) {
            return self.delete_subscription(&target.exposed_uri).await;
        }
        fault_point::passed("subscription.committed");
        Ok(())
    }

    pub(super) async fn delete_subscription(
        self: &Arc<Self>,
        exposed_uri: &str,
    ) -> Result<(), Refusal> {
        self.written(|epoch| WriteOp::Unsubscribe {
            key: self.key,
            epoch,
            exposed_uri: exposed_uri.to_owned(),
        })
        .await?;
        fault_point::passed("subscription.committed");
        Ok(())
    }

    async fn written(self: &Arc<Self>, write: impl Fn(i64) -> WriteOp) -> Result<(), Refusal> {
        if !self.has_client {
            return Ok(());
        }
        match self.try_write(write).await {
            Ok(()) => Ok(()),
            Err(StoreFailure::Refused(refusal)) => Err(refusal),
            Err(StoreFailure::Fenced) => {
                self.abandon("another process owns it");
                Err(session_moved())
            }
        }
    }

    /// `write` makes the change under an epoch: ours may change while it is on its way.
    async fn try_write(&self, write: impl Fn(i64) -> WriteOp) -> Result<(), StoreFailure> {
        loop {
            let epoch = self.epoch();
            match self.shared.durable.write(write(epoch)).await {
                Ok(WriteOutcome::Fenced | WriteOutcome::NotFound) => {
                    self.wait_for_newer_epoch(epoch).await?
                }
                Ok(_) => return Ok(()),
                Err(refusal) => return Err(StoreFailure::Refused(refusal)),
            }
        }
    }

    /// A write was fenced off. `Ok`: by ourselves, who took the row back under a newer epoch after a lapse of the lease. The
    /// row is moved before anybody here is told, so the news may be on its way for as long as our name is a new one.
    async fn wait_for_newer_epoch(&self, fenced: i64) -> Result<(), StoreFailure> {
        let begun = Instant::now();
        while self.epoch() == fenced {
            if self.is_owned_by(&self.shared.durable.node()) {
                // Told between the two looks, or fenced off by another.
                return if self.epoch() == fenced { Err(StoreFailure::Fenced) } else { Ok(()) };
            }
            if begun.elapsed() > OWNER_NEWS_WAIT {
                return Err(StoreFailure::Refused(session_moved()));
            }
            tokio::time::sleep(OWNER_NEWS_POLL).await;
        }
        Ok(())
    }

    /// Notes the session a link has at its backend, or that it has none.
    pub fn note_backend_session(&self, backend: &BackendId, session: Option<BackendSession>) {
        let mut state = self.lock();
        if state.phase == SessionPhase::Closed {
            return;
        }
        let before = match &session {
            Some(session) => state.backend_sessions.insert(backend.clone(), session.clone()),
            None => state.backend_sessions.remove(backend),
        };
        state.dirty.links |= before != session;
    }

    /// Whether something waits to be written behind.
    pub fn is_dirty(&self, idle_limit: Duration) -> bool {
        if self.is_leaving() {
            return false;
        }
        let state = self.lock();
        let lists =
            state.dirty.lists && state.lists_retry_at.is_none_or(|moment| moment <= Instant::now());
        let dirty = state.dirty.state || lists || state.dirty.links;
        drop(state);
        dirty || self.is_sign_of_life_due(idle_limit)
    }

    /// The client was heard of since that was last stored, and that is a while ago.
    fn is_sign_of_life_due(&self, idle_limit: Duration) -> bool {
        let every = millis((idle_limit / 10).min(SEEN_STORED_EVERY_MAX));
        let (now, stored) = (self.shared.uptime_ms(), self.seen_stored_ms.load(Ordering::Relaxed));
        now.saturating_sub(stored) >= every && now.saturating_sub(millis(self.idle_for())) > stored
    }

    /// Writes behind what is not stored yet. `Err`: the store takes nothing now.
    pub async fn flush(self: &Arc<Self>) -> Result<(), Refusal> {
        let Ok(mut storing) = self.persisted.try_lock() else { return Ok(()) }; // somebody stores it just now
        let (dirty, told, links) = {
            let mut state = self.lock();
            let links = state.dirty.links.then(|| self.links_text(&state.backend_sessions));
            (std::mem::take(&mut state.dirty), state.announced_lists, links)
        };
        let lists = dirty.lists && self.events_logged().await;
        if lists {
            storing.announced_lists = told;
        } else if dirty.lists {
            // Later, when the log has what told it.
            let mut state = self.lock();
            (state.dirty.lists, state.lists_retry_at) = (true, Some(Instant::now() + LISTS_RETRY));
        }
        let state = (dirty.state || lists).then(|| {
            record::mutable_state_text(&self.mutable_state(&self.lock(), storing.announced_lists))
        });
        if state.is_none()
            && links.is_none()
            && !self.is_sign_of_life_due(self.shared.config.session.idle)
        {
            return Ok(());
        }
        let (key, idle, now) = (self.key, self.idle_for(), self.shared.uptime_ms());
        let update = |epoch| WriteOp::UpdateSession {
            key,
            epoch,
            idle,
            state: state.clone(),
            links: links.clone(),
        };
        match self.try_write(update).await {
            Ok(()) => {
                self.seen_stored_ms.store(now, Ordering::Relaxed);
                self.publish_location();
                Ok(())
            }
            Err(StoreFailure::Fenced) => {
                self.abandon("another process owns it");
                Ok(())
            }
            Err(StoreFailure::Refused(refusal)) => {
                let again = &mut self.lock().dirty;
                (again.state, again.lists, again.links) = (
                    again.state || dirty.state,
                    again.lists || dirty.lists,
                    again.links || dirty.links,
                );
                Err(refusal)
            }
        }
    }

    /// Stores everything, and that the row is nobody's.
    pub(super) async fn store_release(self: &Arc<Self>) -> Result<(), StoreFailure> {
        let mut storing = self.persisted.lock().await;
        let told = self.lock().announced_lists;
        if self.events_logged().await {
            storing.announced_lists = told;
        }
        let (state, links) = {
            let state = self.lock();
            (
                record::mutable_state_text(&self.mutable_state(&state, storing.announced_lists)),
                self.links_text(&state.backend_sessions),
            )
        };
        let (key, idle) = (self.key, self.idle_for());
        let release = |epoch| WriteOp::ReleaseSession {
            key,
            epoch,
            idle,
            state: state.clone(),
            links: links.clone(),
        };
        self.try_write(release).await
    }

    /// Waits until the event log has what this session was told so far.
    async fn events_logged(&self) -> bool {
        match &self.shared.durable.event_log {
            Some(log) => tokio::time::timeout(EVENTS_FLUSH_WAIT, log.flushed(self.key))
                .await
                .unwrap_or(false),
            None => true,
        }
    }

    fn mutable_state(&self, state: &super::SessionState, told: ListDigests) -> MutableState {
        MutableState {
            log_level: state.log_level,
            announced_lists: told,
            elicited: state.elicited.clone(),
        }
    }

    fn links_text(&self, links: &std::collections::HashMap<BackendId, BackendSession>) -> Vec<u8> {
        record::links_text(&self.shared.durable.seal, &self.key, links)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
