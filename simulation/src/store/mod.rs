//! The shared database of the simulated replicas: the SQLite engine in memory, which any number of
//! replicas use as they use PostgreSQL. Leases, epochs and atomic batches are the engine's own.
//!
//! Each operation is carried out at once, while the virtual time stands still. Before and after it
//! the weather may delay it or let it fail. A replica that is killed meanwhile loses the answer
//! only.

mod subjects;

use std::{
    collections::BTreeMap,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use parking_lot::Mutex;
use records::{FullTask, NodeName};
use storage::{SqliteStore, StoreError};
use tokio::runtime::{Handle, Runtime};

use crate::{
    trace,
    weather::{Weather, pause},
};

/// The engine, with the runtime that its own tasks run in.
pub(crate) struct Engine {
    store: SqliteStore,
    /// On another thread, in real time. The simulated thread waits for it.
    runtime: Runtime,
}

impl Engine {
    pub(crate) fn start() -> Arc<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime of one thread");
        let opened = wait_for(runtime.handle(), SqliteStore::in_memory());
        Arc::new(Self { store: opened.expect("a database in memory"), runtime })
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread, whatever else could run.
fn wait_for<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let _inside = runtime.enter();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Meaning of a lost answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationKind {
    /// Its caller may repeat it, and looks first where it matters.
    Any,
    /// A write, whose outcome is then unknown.
    Write,
}

/// Access of one replica to the database.
pub(crate) struct SimulatedStore {
    engine: Arc<Engine>,
    weather: Weather,
    /// Claimed tasks whose claimant has no answer yet. The next claim returns them.
    unanswered: Arc<Mutex<BTreeMap<String, Vec<FullTask>>>>,
}

impl SimulatedStore {
    pub(crate) fn new(engine: &Arc<Engine>, weather: &Weather) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(engine),
            weather: weather.clone(),
            unanswered: Arc::default(),
        })
    }

    async fn execute<T>(
        &self,
        what: &'static str,
        kind: OperationKind,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let away = || StoreError::Unavailable { detail: "the simulated database is away".into() };
        let fate = self.weather.operation();
        pause(fate.before).await;
        if fate.fails_before || self.weather.is_store_away() {
            trace::record(what, 0);
            return Err(away());
        }
        let result = wait_for(self.engine.runtime.handle(), work);
        trace::record(what, 1 + u64::from(result.is_ok()));
        pause(fate.after).await;
        let is_lost = fate.fails_after || self.weather.is_store_away();
        match (result, kind) {
            (Ok(_), OperationKind::Write) if is_lost => {
                Err(StoreError::OutcomeUnknown(Box::new(away())))
            }
            (Ok(_), OperationKind::Any) if is_lost => Err(away()),
            (result, _) => result,
        }
    }

    /// Claims tasks. Those of a claim whose answer was lost come with the next one.
    async fn claim(
        &self,
        node: &NodeName,
        claim: impl Future<Output = Result<Vec<FullTask>, StoreError>>,
    ) -> Result<Vec<FullTask>, StoreError> {
        let recorded = async {
            let claimed = claim.await?;
            let mut unanswered = self.unanswered.lock();
            unanswered.entry(node.as_str().to_owned()).or_default().extend(claimed);
            Ok(())
        };
        self.execute("claim_tasks", OperationKind::Any, recorded).await?;
        Ok(self.unanswered.lock().remove(node.as_str()).unwrap_or_default())
    }
}
