//! State that outlives the process, as the rest of the broker uses it: one value with the stores behind it.
//!
//! What must be on disk before it is acknowledged goes through [`Persistence::write`], which shares transactions between
//! whoever writes at the same time. Reads go to the store directly, within its own deadline, through [`Persistence::timed`].
//! Nothing here is on the path of a plain call of a session that lives here.

mod audit;
mod availability;
mod events;
pub mod node;
mod persister;
mod sweeper;
#[cfg(test)]
pub mod tests;

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use protocol::error::{ErrorKind, Refusal};
pub use storage::StoreError;
use storage::{DurableStore, EventStore, HotStore};
// What backends and sessions name of the stores; they reach them through this module only.
pub use storage::{
    AuditFilter, AuditKind, AuditRecord, FullTask, InputCounts, LogEntry, LoggedEvent, NodeName,
    OwnerHint, SESSION_KEY_BYTES, SessionIdentity, SessionKey, SessionRecord, StoredStream,
    StoredTask, StoredTaskSnapshot, StreamRecord, SubscriptionRecord, TaskAudience, TaskInput,
    TaskLimit, TaskLimits, TaskListPosition, TaskRecord, TaskStatus, TaskStep, Wakeup, WriteOp,
    WriteOutcome, fault_point,
    hot::{BudgetGrant, BudgetRequest, TASK_NOTIFICATION_BYTES_MAX},
};

use self::{audit::AuditWriter, availability::Availability, node::Lease, persister::Persister};
pub use self::{events::EventWriter, sweeper::sweep};
use crate::{auth::SealKey, limits::PAST_NAMES_MAX, metrics::Metrics};

/// The stores of one process.
pub struct Stores {
    pub durable: Arc<dyn DurableStore>,
    /// `None`: streams are resumed from memory only.
    pub events: Option<Arc<dyn EventStore>>,
    pub hot: Arc<dyn HotStore>,
}

#[cfg(test)]
impl Stores {
    /// Stores that end with the process.
    pub async fn in_memory() -> Self {
        let store =
            storage::SqliteStore::in_memory().await.expect("a database in memory needs nothing");
        Self {
            durable: Arc::new(store),
            events: None,
            hot: Arc::new(storage::hot::MemoryHotStore::new()),
        }
    }
}

/// The stores and this process's name among those that share them.
pub struct Persistence {
    pub store: Arc<dyn DurableStore>,
    pub events: Option<Arc<dyn EventStore>>,
    /// Where event streams are logged, if anywhere.
    pub event_log: Option<EventWriter>,
    pub hot: Arc<dyn HotStore>,
    /// Seals what is a secret of a backend.
    pub seal: SealKey,
    pub lease: Lease,
    /// Where other replicas reach this one, once that is known.
    address: OnceLock<Option<String>>,
    /// Changes when the lease was lost.
    node: ArcSwap<NodeName>,
    /// What it was before.
    former: Mutex<Vec<NodeName>>,
    persister: Persister,
    /// Who did what.
    pub audit: AuditWriter,
    availability: Arc<Availability>,
    /// Of the event log; the same where that is in the database.
    events_availability: Arc<Availability>,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Persistence {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Durable({}, {})", self.store.engine(), self.node.load())
    }
}

impl Persistence {
    /// Must be called inside the runtime.
    pub fn new(stores: Stores, node: NodeName, seal: SealKey, metrics: Arc<Metrics>) -> Arc<Self> {
        let availability = Arc::new(Availability::new(stores.durable.engine()));
        let events_availability = match &stores.events {
            Some(events) if events.engine() != stores.durable.engine() => {
                Arc::new(Availability::new(events.engine()))
            }
            _ => availability.clone(),
        };
        let persister =
            Persister::start(stores.durable.clone(), availability.clone(), metrics.clone());
        let audit =
            AuditWriter::start(stores.durable.clone(), availability.clone(), metrics.clone());
        let event_log = stores
            .events
            .clone()
            .map(|events| EventWriter::start(events, events_availability.clone(), metrics.clone()));
        Arc::new(Self {
            store: stores.durable,
            event_log,
            events: stores.events,
            hot: stores.hot,
            seal,
            lease: Lease::default(),
            address: OnceLock::new(),
            node: ArcSwap::from_pointee(node),
            former: Mutex::default(),
            persister,
            audit,
            availability,
            events_availability,
            metrics,
        })
    }

    /// Whether other processes may use the same stores.
    pub fn is_shared(&self) -> bool {
        !self.store.is_exclusive()
    }

    /// The name this process owns things under now. Whoever commits something in this name compares it again afterwards:
    /// when it has changed, what was committed may have been missed by the reclaiming and counts as not owned.
    pub fn node(&self) -> NodeName {
        NodeName::clone(&self.node.load())
    }

    fn note_address(&self, address: Option<String>) {
        let _joins_once = self.address.set(address);
    }

    /// Where other replicas reach this one.
    pub fn address(&self) -> Option<&str> {
        self.address.get()?.as_deref()
    }

    /// Tells the others that a session is here, for when the database cannot.
    pub async fn note_owned(&self, session: &SessionKey, ttl: Duration) {
        if let Some(address) = self.address().filter(|_| self.is_shared()) {
            let hint =
                OwnerHint { node: self.node().as_str().to_owned(), address: address.to_owned() };
            self.hot.note_owner(session, &hint, ttl).await;
        }
    }

    /// A session is over and out of the store: forgets what else is kept of it.
    pub async fn forget_session(&self, session: &SessionKey) {
        self.hot.forget_owner(session).await;
        if let Some(log) = &self.event_log {
            log.forget(*session);
        }
    }

    /// Goes on under another name; returns the one before.
    pub(crate) fn rename(&self, node: NodeName) -> NodeName {
        let before = NodeName::clone(&self.node.swap(Arc::new(node)));
        let mut former = self.former.lock();
        if former.len() >= PAST_NAMES_MAX {
            former.remove(0);
        }
        former.push(before.clone());
        before
    }

    /// Whether this process is, or was, called so: what has that owner is taken by nobody else so far.
    pub fn is_ours(&self, node: &NodeName) -> bool {
        self.node() == *node || self.former.lock().contains(node)
    }

    /// Every name this process has, or had.
    pub fn names(&self) -> Vec<NodeName> {
        let former = self.former.lock().clone();
        former.into_iter().chain([self.node()]).collect()
    }

    /// Carries out a change. `Ok`: it is on disk. An `Err` of a change that may have been carried out all the same is
    /// possible (the database went away at the wrong moment); whoever cannot live with that looks.
    pub async fn write(&self, write: WriteOp) -> Result<WriteOutcome, Refusal> {
        self.commit(write).await.map_err(|error| refusal(&error))
    }

    /// The same in the store's own terms, which tell what was not done from what nobody knows.
    pub async fn commit(&self, write: WriteOp) -> Result<WriteOutcome, StoreError> {
        self.persister.write(write).await
    }

    /// Asks the store something, and counts and times it as `operation`.
    pub async fn timed<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Refusal> {
        self.ask(operation, work).await.map_err(|error| refusal(&error))
    }

    /// The same in the store's own terms. After an error of a change, the change may have been carried out.
    pub async fn ask<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.ask_of(self.store.engine(), operation, work).await
    }

    /// The same for the lease, which does not wait for others to find out whether the store is back.
    async fn ask_for_lease<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let begun = Instant::now();
        let result = self.availability.beside(operation, work).await;
        self.metrics.store(operation, self.store.engine(), begun.elapsed(), result.is_err());
        result
    }

    /// The same of any of the stores.
    pub async fn ask_of<T>(
        &self,
        engine: &'static str,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let begun = Instant::now();
        let availability = if engine == self.store.engine() {
            &self.availability
        } else {
            &self.events_availability
        };
        let result = availability.through(operation, work).await;
        self.metrics.store(operation, engine, begun.elapsed(), result.is_err());
        result
    }

    /// Lets go of the stores. Called last, when nobody is served any more.
    pub async fn close(&self) {
        self.audit.flush().await;
        self.hot.close().await;
        self.store.close().await;
    }

    /// The logged streams of a session, without their events.
    pub async fn logged_streams(&self, session: &SessionKey) -> Result<Vec<StreamRecord>, Refusal> {
        match &self.events {
            Some(events) => self.timed_events("list_streams", events.streams(session)).await,
            None => Ok(Vec::new()),
        }
    }

    /// Whether event streams are logged elsewhere than all else: that may be away while all else is served.
    pub fn logs_apart(&self) -> bool {
        self.events.as_ref().is_some_and(|events| events.engine() != self.store.engine())
    }

    /// A logged stream with its events after `position`.
    pub async fn logged_stream(
        &self,
        session: &SessionKey,
        number: u64,
        position: u64,
    ) -> Result<Option<StoredStream>, Refusal> {
        match &self.events {
            Some(events) => {
                self.timed_events("read_events", events.stream(session, number, position)).await
            }
            None => Ok(None),
        }
    }

    async fn timed_events<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Refusal> {
        let engine = self.events.as_ref().map_or("", |events| events.engine());
        self.ask_of(engine, operation, work).await.map_err(|error| refusal(&error))
    }
}

/// A store's failure in a client's terms.
pub fn refusal(error: &StoreError) -> Refusal {
    match error.cause() {
        StoreError::Busy { .. } => {
            Refusal::new(ErrorKind::StoreBusy, "the database is too busy, try again")
        }
        StoreError::Full => Refusal::new(ErrorKind::StoreFull, "the database's disk is full"),
        StoreError::Unavailable { .. } | StoreError::InUse { .. } => Refusal::new(
            ErrorKind::StoreUnavailable,
            "the database can not be reached now, try again",
        ),
        StoreError::Refused { .. } => Refusal::new(
            ErrorKind::Internal,
            "the database refuses what it was asked, as the broker's log says",
        ),
        _ => Refusal::new(ErrorKind::Internal, "what is stored can not be used"),
    }
}
