//! Sessions that are in the store but not here: taken up where their owner is gone, and given up where they are another's.
//!
//! One attempt at a time for each session; whoever comes meanwhile waits for it. An attempt that took the row is carried to
//! its end whatever becomes of the request that caused it.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use protocol::{
    error::{ErrorKind, Refusal},
    ids::SessionId,
};
use storage::{
    NodeRecord, SessionClaimOutcome, SessionIdentity, SessionKey, SessionRecord,
    SubscriptionRecord, WriteOp, fault_point,
};

use super::{Broker, sessions::END_RETRY_FIRST};
use crate::{
    actors::{
        session::{ClaimedSession, Session, SessionParams, record},
        tenant::Tenant,
    },
    auth::Caller,
    limits::END_RETRY_MAX,
    rules::endpoint::Endpoint,
};

/// Where a session is that was not found here.
#[derive(Debug)]
pub enum AdoptionOutcome {
    /// Here, from now on.
    Local(Arc<Session>),
    /// With a process whose lease runs.
    Remote(NodeRecord),
    /// Nowhere, says the record: it ended, never was, or is somebody else's.
    Absent,
    /// Not to be had here, whatever the record says.
    Unusable,
}

/// Who is at which session.
#[derive(Debug, Default)]
pub(super) struct AdoptionLocks {
    places: Mutex<SessionLocks>,
    /// Rows that may be ours though nobody was told.
    doubtful: Mutex<HashSet<SessionKey>>,
}

#[derive(Debug, Default)]
struct SessionLocks {
    by_key: HashMap<SessionKey, Weak<tokio::sync::Mutex<()>>>,
    /// From this many on it is looked which of them are in use.
    look_at: usize,
}

/// So many places are kept without a look.
const PLACES_MIN: usize = 64;
/// Rows in doubt that are looked after at once; of more than these the rest stays with this process until it ends.
const DOUBTS_MAX: usize = 1_000;

impl AdoptionLocks {
    /// False: somebody looks after it already, or there is no room.
    fn doubts(&self, key: SessionKey) -> bool {
        let mut doubtful = self.doubtful.lock().unwrap_or_else(PoisonError::into_inner);
        doubtful.len() < DOUBTS_MAX && doubtful.insert(key)
    }

    fn no_doubt(&self, key: &SessionKey) {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Whoever holds this place's lock decides where the session goes.
    pub(super) fn place(&self, key: &SessionKey) -> Arc<tokio::sync::Mutex<()>> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = places.by_key.get(key).and_then(Weak::upgrade) {
            return place;
        }
        // When they have doubled, so that each place is looked at a few times at most.
        if places.by_key.len() >= places.look_at {
            places.by_key.retain(|_, place| place.strong_count() > 0);
            places.look_at = (2 * places.by_key.len()).max(PLACES_MIN);
        }
        let place = Arc::default();
        places.by_key.insert(*key, Arc::downgrade(&place));
        place
    }
}

/// A row that is ours.
struct ClaimedRow {
    record: SessionRecord,
    epoch: i64,
    created_at_us: i64,
    subscriptions: Vec<SubscriptionRecord>,
}

impl Broker {
    /// Looks for a session that is not here, and makes it ours if its owner is gone.
    pub async fn adopt(
        self: &Arc<Self>,
        id: &SessionId,
        caller: &Caller,
        endpoint: &Endpoint,
    ) -> Result<AdoptionOutcome, Refusal> {
        if !Session::is_valid_id(id) {
            return Ok(AdoptionOutcome::Unusable);
        }
        let (broker, id, caller, endpoint) =
            (self.clone(), id.clone(), caller.clone(), endpoint.clone());
        // A task of its own: a client that gives up must not leave a row that is ours and a session that is nowhere.
        let adopting =
            self.shared.running.spawn(async move { broker.adopt_once(id, caller, endpoint).await });
        adopting.await.unwrap_or_else(|_| {
            Err(Refusal::new(ErrorKind::Internal, "the session could not be taken up"))
        })
    }

    /// Waits while a session is being taken up: each of its requests may be about a backend that is only just being reached,
    /// and not only the one that caused it.
    pub async fn taken_up(&self, session: &Session) {
        if session.has_unchecked_lists() {
            let place = self.adopting.place(&session.key);
            let _over = place.lock().await;
        }
    }

    async fn adopt_once(
        self: Arc<Self>,
        id: SessionId,
        caller: Caller,
        endpoint: Endpoint,
    ) -> Result<AdoptionOutcome, Refusal> {
        let key = record::session_key(&id);
        let place = self.adopting.place(&key);
        let _only_one = place.lock().await;
        match self.session_here(&id, &caller, &endpoint) {
            Ok(Some(session)) => return Ok(AdoptionOutcome::Local(session)), // somebody was faster
            Ok(None) => {}
            Err(_) => return Ok(AdoptionOutcome::Unusable),
        }
        if self.ending.contains(&key) {
            return Ok(AdoptionOutcome::Unusable);
        }
        if self.draining() {
            return Err(Refusal::new(
                ErrorKind::Draining,
                "the broker is shutting down and takes no sessions",
            ));
        }
        let durable = &self.shared.durable;
        let (seat, node) =
            (record::session_scope(&caller.tenant, &caller.principal, &endpoint), durable.node());
        let idle = self.shared.config.session.idle;
        let claim = durable
            .timed("claim_session", durable.store.claim_session(&key, &seat, &node, idle))
            .await;
        let taken = match claim.inspect_err(|_| self.doubt_later(key, &seat))? {
            SessionClaimOutcome::OwnedElsewhere(owner) => {
                return Ok(AdoptionOutcome::Remote(owner));
            }
            SessionClaimOutcome::NotFound => return Ok(AdoptionOutcome::Absent),
            SessionClaimOutcome::Acquired { record, epoch, created_at_us, subscriptions } => {
                ClaimedRow { record, epoch, created_at_us, subscriptions }
            }
        };
        fault_point::passed("session.claimed");
        let stored = match record::decode(&taken.record, &durable.seal) {
            Ok(stored) => stored,
            Err(error) => {
                self.shared.metrics.session_unreadable();
                tracing::warn!(session = key.digest(), %error, "a stored session is left alone");
                self.let_go(taken).await;
                return Ok(AdoptionOutcome::Unusable);
            }
        };
        let Some(tenant) = self.tenant(&caller.tenant) else {
            self.let_go(taken).await;
            return Ok(AdoptionOutcome::Unusable);
        };
        let claimed = ClaimedSession {
            stored,
            epoch: taken.epoch,
            created_at: jiff::Timestamp::from_microsecond(taken.created_at_us)
                .unwrap_or_else(|_| jiff::Timestamp::now()),
            subscriptions: taken.subscriptions,
            owner: node,
        };
        let caller = Caller { key: taken.record.api_key, ..caller };
        let Some(session) = self.take_up(id, tenant, (caller, endpoint), claimed).await else {
            return Ok(AdoptionOutcome::Unusable);
        };
        if !session.is_owned_by(&self.shared.durable.node()) {
            self.take_out(&session);
            session.abandon("the lease was lost while it was taken up");
            return Err(Refusal::new(
                ErrorKind::SessionElsewhere,
                "the session is moving to another process, try again",
            ));
        }
        Ok(AdoptionOutcome::Local(session))
    }

    /// A claim failed, but the row may be ours since: nobody else could take it, and nobody would ever sweep it.
    fn doubt_later(self: &Arc<Self>, key: SessionKey, seat: &SessionIdentity) {
        if !self.adopting.doubts(key) {
            return; // looked after already, or there are too many
        }
        let (broker, seat) = (self.clone(), seat.clone());
        self.shared.running.spawn(async move {
            let (begun, mut pause) = (Instant::now(), END_RETRY_FIRST);
            while begun.elapsed() < END_RETRY_MAX && !broker.draining() {
                tokio::time::sleep(pause).await;
                pause *= 2;
                if broker.give_back(key, &seat).await.is_ok() {
                    break;
                }
            }
            broker.adopting.no_doubt(&key);
        });
    }

    /// Lets go of a row that is ours without a session here.
    async fn give_back(&self, key: SessionKey, seat: &SessionIdentity) -> Result<(), Refusal> {
        let place = self.adopting.place(&key);
        let _only_one = place.lock().await;
        if self.all_sessions().iter().any(|session| session.key == key) {
            return Ok(()); // its client came again
        }
        let (durable, idle) = (&self.shared.durable, self.shared.config.session.idle);
        let claim = durable
            .timed("claim_session", durable.store.claim_session(&key, seat, &durable.node(), idle))
            .await?;
        if let SessionClaimOutcome::Acquired { record, epoch, created_at_us, subscriptions } = claim
        {
            self.let_go(ClaimedRow { record, epoch, created_at_us, subscriptions }).await;
        }
        Ok(())
    }

    /// Not for this process: whoever can read it and knows its tenant may take it.
    async fn let_go(&self, taken: ClaimedRow) {
        let SessionRecord { key, state, links, .. } = taken.record;
        let release =
            WriteOp::ReleaseSession { key, epoch: taken.epoch, idle: Duration::ZERO, state, links };
        let _stays_ours_until_we_end = self.shared.durable.write(release).await;
    }

    /// Brings a session that is ours to life. `None`: it may live no longer, and is ended.
    async fn take_up(
        self: &Arc<Self>,
        id: SessionId,
        tenant: Arc<Tenant>,
        (caller, endpoint): (Caller, Endpoint),
        claimed: ClaimedSession,
    ) -> Option<Arc<Session>> {
        let revoked = caller.key.as_ref().is_some_and(|key| !self.keyring.is_known(key));
        let transport = claimed.transport();
        let seat = SessionParams { tenant: tenant.clone(), caller, endpoint, transport };
        let session = Session::restore(id, seat, claimed, self.shared.clone());
        if revoked || !tenant.enabled() || !tenant.adopt_session(&session) {
            self.close_session(&session, "its key or its tenant is gone");
            return None;
        }
        self.sessions.insert(session.id.clone(), session.clone());
        self.shared.metrics.session_adopted();
        tracing::info!(session = %session.digest, tenant = %tenant.id, epoch = session.epoch(), "session adopted");
        session.activate();
        // See `Broker::taken_up`.
        self.lists_settled(&tenant, &session.endpoint).await;
        session.compare_lists();
        Some(session)
    }
}
