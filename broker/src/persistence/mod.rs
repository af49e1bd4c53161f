//! State that outlives the process: one value with the stores behind it.
//!
//! A change that must be on disk before it is acknowledged goes through [`Persistence::write`],
//! which shares transactions between concurrent writes. Reads go to the store directly, within its
//! own deadline, through [`Persistence::timed`]. A plain call of a session on this replica uses
//! none of this.

mod audit;
mod availability;
mod events;
pub mod node;
mod persister;
mod store_retry;
mod sweeper;
#[cfg(test)]
pub mod tests;
mod unsettled_sessions;

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use protocol::error::{ErrorKind, Refusal};
use records::{NodeName, SessionKey, StoredStream, StreamRecord, WriteOp, WriteOutcome};
pub use storage::StoreError;
use storage::{DurableStore, EventStore, HotStore};
// Types of the stores that backends and sessions use. They reach the stores through this module
// only.
use rules::limits::PAST_NAMES_MAX;
pub use storage::{
    OwnerHint, Wakeup, fault_point,
    hot::{
        BackendVerdict, BudgetGrant, BudgetRequest, PermitsLifetime, PermitsRequest,
        TASK_NOTIFICATION_BYTES_MAX, VerdictState,
    },
};

use self::{audit::AuditWriter, availability::Availability, node::Lease, persister::Persister};
pub use self::{events::EventWriter, store_retry::StoreRetry, sweeper::sweep};
use crate::{auth::SealKey, metrics::Metrics};

/// The stores of one process.
pub struct Stores {
    pub durable: Arc<dyn DurableStore>,
    /// `None`: streams are resumed from memory only.
    pub events: Option<Arc<dyn EventStore>>,
    pub hot: Arc<dyn HotStore>,
}

#[cfg(test)]
impl Stores {
    /// Opens stores that end with the process.
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

/// The stores, and the name of this process among those that share them.
pub struct Persistence {
    pub store: Arc<dyn DurableStore>,
    pub events: Option<Arc<dyn EventStore>>,
    /// The writer of the event log, if there is one.
    pub event_log: Option<EventWriter>,
    pub hot: Arc<dyn HotStore>,
    /// Seals the secrets of backends.
    pub seal: SealKey,
    pub lease: Lease,
    /// Address for other replicas, once it is known.
    address: OnceLock<Option<String>>,
    /// Name of this process. It changes when the lease was lost.
    node: ArcSwap<NodeName>,
    /// Its former names.
    former: Mutex<Vec<NodeName>>,
    persister: Persister,
    /// The audit log.
    pub audit: AuditWriter,
    availability: Arc<Availability>,
    /// Availability of the event log. It is `availability` if the log is in the database.
    events_availability: Arc<Availability>,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Persistence {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Durable({}, {})", self.store.engine(), self.node.load())
    }
}

impl Persistence {
    /// Starts the writers. Must be called inside the runtime.
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

    /// Returns whether other processes may use the same stores.
    pub fn is_shared(&self) -> bool {
        !self.store.is_exclusive()
    }

    /// Returns the name under which this process owns records now. After a commit in this name the
    /// caller compares it again. If it has changed, the reclaim may have missed the commit, which
    /// then counts as not owned.
    pub fn node(&self) -> NodeName {
        NodeName::clone(&self.node.load())
    }

    fn record_address(&self, address: Option<String>) {
        let _joins_once = self.address.set(address);
    }

    /// Returns the address of this process for other replicas.
    pub fn address(&self) -> Option<&str> {
        self.address.get()?.as_deref()
    }

    /// Publishes that a session is here, for times when the database is away.
    pub async fn record_owned(&self, session: &SessionKey, ttl: Duration) {
        if let Some(address) = self.address().filter(|_| self.is_shared()) {
            let hint =
                OwnerHint { node: self.node().as_str().to_owned(), address: address.to_owned() };
            self.hot.put_owner_hint(session, &hint, ttl).await;
        }
    }

    /// Forgets the rest of a session that is out of the store.
    pub async fn forget_session(&self, session: &SessionKey) {
        self.hot.remove_owner_hint(session).await;
        if let Some(log) = &self.event_log {
            log.forget(*session);
        }
    }

    /// Forgets the state of this process about the log of a session that another process has.
    pub fn release_log(&self, session: &SessionKey) {
        if let Some(log) = &self.event_log {
            log.forget_losses(session);
        }
    }

    /// Changes the name of this process. Returns the former one.
    pub(crate) fn rename(&self, node: NodeName) -> NodeName {
        let before = NodeName::clone(&self.node.swap(Arc::new(node)));
        let mut former = self.former.lock();
        if former.len() >= PAST_NAMES_MAX {
            former.remove(0);
        }
        former.push(before.clone());
        before
    }

    /// Returns whether this process has, or had, this name. No other process owns its records so
    /// far.
    pub fn is_own_name(&self, node: &NodeName) -> bool {
        self.node() == *node || self.former.lock().contains(node)
    }

    /// Returns every name that this process has, or had.
    pub fn names(&self) -> Vec<NodeName> {
        let former = self.former.lock().clone();
        former.into_iter().chain([self.node()]).collect()
    }

    /// Writes a change. `Ok`: it is on disk. After an `Err` the change may still have been stored,
    /// if the database went away at that moment. A caller that needs certainty reads the record.
    pub async fn write(&self, write: WriteOp) -> Result<WriteOutcome, Refusal> {
        self.commit(write).await.map_err(|error| refusal(&error))
    }

    /// Writes a change as [`Persistence::write`] does. The store's own error separates a failed
    /// change from one with an unknown outcome.
    pub async fn commit(&self, write: WriteOp) -> Result<WriteOutcome, StoreError> {
        self.persister.write(write).await
    }

    /// Reads from the store, and counts and times it as `operation`.
    pub async fn timed<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Refusal> {
        self.run(operation, work).await.map_err(|error| refusal(&error))
    }

    /// Runs an operation, with the store's own error. After an error a change may still have been
    /// stored.
    pub async fn run<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.run_on(self.store.engine(), operation, work).await
    }

    /// Runs an operation of the lease. It does not wait for another operation to probe the store.
    async fn run_for_lease<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let started_at = Instant::now();
        let result = self.availability.run_unguarded(operation, work).await;
        self.metrics.store(operation, self.store.engine(), started_at.elapsed(), failed(&result));
        result
    }

    /// Runs an operation of any of the stores.
    pub async fn run_on<T>(
        &self,
        engine: &'static str,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let started_at = Instant::now();
        let availability = if engine == self.store.engine() {
            &self.availability
        } else {
            &self.events_availability
        };
        let result = availability.through(operation, work).await;
        self.metrics.store(operation, engine, started_at.elapsed(), failed(&result));
        result
    }

    /// Closes the stores. Called last, when no client is served any more.
    pub async fn close(&self) {
        self.audit.flush().await;
        self.hot.close().await;
        self.store.close().await;
    }

    /// Returns the logged streams of a session, without their events.
    pub async fn logged_streams(&self, session: &SessionKey) -> Result<Vec<StreamRecord>, Refusal> {
        match &self.events {
            Some(events) => self.timed_events("list_streams", events.streams(session)).await,
            None => Ok(Vec::new()),
        }
    }

    /// Returns whether event streams are logged in a store of their own. That store may be away
    /// while the others work.
    pub fn logs_apart(&self) -> bool {
        self.events.as_ref().is_some_and(|events| events.engine() != self.store.engine())
    }

    /// Returns a logged stream with its events after `position`.
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
        self.run_on(engine, operation, work).await.map_err(|error| refusal(&error))
    }
}

/// Returns whether an operation of a store failed. An answer about an entry is not a failure.
fn failed<T>(result: &Result<T, StoreError>) -> bool {
    result.as_ref().is_err_and(|error| !error.is_answer())
}

/// Returns the refusal for a store's failure.
pub fn refusal(error: &StoreError) -> Refusal {
    match error.cause() {
        StoreError::Busy { .. } => {
            Refusal::new(ErrorKind::StoreBusy, "the database is too busy, try again")
        }
        StoreError::Full => Refusal::new(ErrorKind::StoreFull, "the database's disk is full"),
        StoreError::Unavailable { .. } | StoreError::InUse { .. } => Refusal::new(
            ErrorKind::StoreUnavailable,
            "the database cannot be reached now, try again",
        ),
        StoreError::Refused { .. } => Refusal::new(
            ErrorKind::Internal,
            "the database refused the request, see the broker's log",
        ),
        _ => Refusal::new(ErrorKind::Internal, "the broker cannot use the stored data"),
    }
}
