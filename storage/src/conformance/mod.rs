//! Behaviours of every store, one async function each. A macro defines the tests of an
//! implementation from a list of them:
//!
//! ```ignore
//! storage::durable_conformance!(file, (folder, SqliteStore::open(&options).await.unwrap()));
//! ```
//!
//! Each test evaluates the second argument. It yields a pair: a value to keep alive during the
//! test, and an empty store. It may `return` if no server is available. No behaviour waits for time
//! to pass: a lease or a time-to-live of zero expires at once.
//!
//! If a store needs a server with a long start, `on SERVER => OPEN` defines one test for each
//! subject instead. `OPEN` creates an empty store on that server for each behaviour. With
//! `in turn on SERVER => OPEN` the behaviours of a subject do not run at the same time.

pub mod approvals;
pub mod audit;
pub mod audit_chain;
pub mod catalog_documents;
pub mod config;
pub mod credentials;
pub mod events;
pub mod grants;
pub mod hot;
mod lists;
pub mod nodes;
pub mod pins;
pub mod restores;
pub mod results;
pub mod seals;
pub mod sessions;
pub mod task_inputs;
pub mod task_limits;
pub mod tasks;
pub mod tenants;

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::LocalBoxFuture, stream};
use protocol::ids::{BackendId, EndpointName, KeyId, PrincipalId, TaskId, TenantId};
use records::{
    NodeName, SESSION_KEY_BYTES, SessionIdentity, SessionKey, SessionRecord, SubscriptionRecord,
    TaskLimits, TaskRecord, WriteOp, WriteOutcome,
};

pub use self::config::fill;
use crate::{DurableStore, StoreError};

/// Result of a behaviour. An error of the store ends it.
pub type Outcome = Result<(), StoreError>;

/// A lease that outlasts any test.
const LONG: Duration = Duration::from_secs(3_600);

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).expect("a legal name")
}

fn endpoint(name: &str) -> EndpointName {
    EndpointName::parse(name).expect("a legal name")
}

fn backend(name: &str) -> BackendId {
    BackendId::parse(name).expect("a legal name")
}

fn node(name: &str) -> NodeName {
    NodeName::new(name)
}

/// Returns a session key. Different numbers give different digests.
fn session(number: u8) -> SessionKey {
    let mut bytes = [number; SESSION_KEY_BYTES];
    bytes[31] = 0xfe;
    SessionKey::new(bytes)
}

fn identity(tenant_name: &str) -> SessionIdentity {
    SessionIdentity {
        tenant: tenant(tenant_name),
        principal: PrincipalId::new("ada"),
        endpoint: None,
    }
}

fn session_record(number: u8) -> SessionRecord {
    SessionRecord {
        key: session(number),
        identity: identity("acme"),
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

/// Behaviours that run at the same time on one server. Each has its own connections.
const AT_A_TIME: usize = 4;

/// Runs behaviours concurrently and prints the names of those that failed.
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

/// Makes one write and returns its outcome.
async fn write(store: &dyn DurableStore, write: WriteOp) -> Result<WriteOutcome, StoreError> {
    let outcomes = store.write(std::slice::from_ref(&write)).await?;
    let [outcome] = <[WriteOutcome; 1]>::try_from(outcomes).expect("one outcome for each write");
    Ok(outcome)
}

/// Makes one write that must succeed.
async fn done(store: &dyn DurableStore, change: WriteOp) -> Outcome {
    let shown = format!("{change:?}");
    let outcome = write(store, change).await?;
    assert!(
        matches!(outcome, WriteOutcome::Done | WriteOutcome::Created { .. }),
        "{outcome:?} for {shown}"
    );
    Ok(())
}
