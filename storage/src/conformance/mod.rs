//! What every store must do, one async function per behaviour; a macro stamps a list of them over an implementation:
//!
//! ```ignore
//! storage::durable_conformance!(file, (folder, SqliteStore::open(&options).await.unwrap()));
//! ```
//!
//! The second argument is evaluated inside each test and yields a pair: something to keep alive while the test runs, and an
//! empty store. It may `return` where there is no server to try it on. No behaviour waits for time to pass: a lease or a
//! time-to-live of zero is over at once.
//!
//! Where a store needs a server that takes long to start, `on SERVER => OPEN` stamps one test for each subject instead: `OPEN`
//! makes an empty store on that server for each behaviour.

pub mod audit;
pub mod audit_chain;
pub mod config;
pub mod events;
pub mod hot;
mod lists;
pub mod nodes;
pub mod sessions;
pub mod task_inputs;
pub mod task_limits;
pub mod tasks;

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::LocalBoxFuture, stream};
use protocol::ids::{BackendId, KeyId, PrincipalId, TaskId, TenantId};

pub use self::config::fill;
use crate::{
    DurableStore, NodeName, SESSION_KEY_BYTES, SessionIdentity, SessionKey, SessionRecord,
    StoreError, SubscriptionRecord, TaskLimits, TaskRecord, WriteOp, WriteOutcome,
};

/// A store that fails ends the behaviour.
pub type Outcome = Result<(), StoreError>;

/// A lease that outlasts any test.
const LONG: Duration = Duration::from_secs(3_600);

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).expect("a legal name")
}

fn backend(name: &str) -> BackendId {
    BackendId::parse(name).expect("a legal name")
}

fn node(name: &str) -> NodeName {
    NodeName::new(name)
}

/// Session keys that differ in their digest.
fn session(number: u8) -> SessionKey {
    let mut bytes = [number; SESSION_KEY_BYTES];
    bytes[31] = 0xfe;
    SessionKey::new(bytes)
}

fn seat(tenant_name: &str) -> SessionIdentity {
    SessionIdentity {
        tenant: tenant(tenant_name),
        principal: PrincipalId::new("ada"),
        endpoint: None,
    }
}

fn session_record(number: u8) -> SessionRecord {
    SessionRecord {
        key: session(number),
        seat: seat("acme"),
        api_key: Some(KeyId::new("k1")),
        transport: "streamable_http".into(),
        version: "2025-11-25".into(),
        agreement: format!("agreement {number}").into_bytes(),
        state: format!("state {number}").into_bytes(),
        links: format!("links {number}").into_bytes(),
    }
}

fn open(record: SessionRecord, owner: &str) -> WriteOp {
    WriteOp::OpenSession { record: Box::new(record), owner: node(owner) }
}

fn subscription(uri: &str) -> SubscriptionRecord {
    SubscriptionRecord {
        exposed_uri: format!("one+{uri}"),
        backend: backend("one"),
        uri: uri.into(),
    }
}

fn task_id(name: &str) -> TaskId {
    TaskId::new(name)
}

fn task_record(name: &str) -> TaskRecord {
    TaskRecord {
        task: task_id(name),
        tenant: tenant("acme"),
        principal: PrincipalId::new("ada"),
        session: session(1),
        private: false,
        backend: backend("one"),
        request: format!("call of {name}").into_bytes(),
        details: format!("details of {name}").into_bytes(),
        idempotency: None,
        ttl: Some(LONG),
    }
}

const NO_LIMITS: TaskLimits = TaskLimits { running: u64::MAX, stored: u64::MAX, bytes: u64::MAX };

fn create(record: TaskRecord, owner: &str) -> WriteOp {
    WriteOp::CreateTask { record: Box::new(record), owner: node(owner), limits: NO_LIMITS }
}

/// So many behaviours beside each other on one server: each has connections of its own.
const AT_A_TIME: usize = 4;

/// Tells which of them failed.
pub async fn some_at_a_time(behaviours: Vec<(&str, LocalBoxFuture<'_, ()>)>) {
    let tried =
        stream::iter(behaviours).for_each_concurrent(AT_A_TIME, |(name, behaviour)| async move {
            if let Err(panic) = AssertUnwindSafe(behaviour).catch_unwind().await {
                eprintln!("of these, {name} failed");
                resume_unwind(panic);
            }
        });
    tried.await;
}

/// One write, its outcome.
async fn write(store: &dyn DurableStore, write: WriteOp) -> Result<WriteOutcome, StoreError> {
    let outcomes = store.write(std::slice::from_ref(&write)).await?;
    let [outcome] = <[WriteOutcome; 1]>::try_from(outcomes).expect("one outcome for each write");
    Ok(outcome)
}

/// One write that is expected to be carried out.
async fn done(store: &dyn DurableStore, change: WriteOp) -> Outcome {
    let shown = format!("{change:?}");
    let outcome = write(store, change).await?;
    assert!(
        matches!(outcome, WriteOutcome::Done | WriteOutcome::Created { .. }),
        "{outcome:?} for {shown}"
    );
    Ok(())
}
