//! State that may be lost at any time. It has hints about the owner of a session, wakeups to other
//! replicas, the use of budgets, and the permits that replicas hold.
//!
//! A receiver of wakeups also polls from time to time. A user of a hint detects a wrong one.

mod budget;
mod memory;
mod permits;
mod recency_cache;
mod redis;
mod verdict;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::ids::TaskId;
use records::SessionKey;
use tokio::sync::broadcast;

pub use self::{
    budget::{BudgetGrant, BudgetRequest},
    memory::MemoryHotStore,
    permits::{PermitsAnswer, PermitsGrant, PermitsLifetime, PermitsRequest},
    redis::{RedisOptions, RedisStore},
    verdict::{BackendVerdict, VerdictState},
};

/// Wakeups buffered for one receiver. A slower receiver misses the oldest and gets an error.
pub const WAKEUPS_BUFFERED_MAX: usize = 4_096;

/// Notice of a change. It only gives the receiver a reason to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wakeup {
    /// Tenants, keys or backends changed.
    Config,
    /// The status of a task or one of its inputs changed. `session` is the session that created the
    /// task.
    Task { task: TaskId, session: SessionKey },
    /// A notification of a running task for the client that created it, such as progress. It has at
    /// most [`TASK_NOTIFICATION_BYTES_MAX`] bytes.
    TaskNotification { session: SessionKey, frame: Bytes },
    /// The end of a session was requested.
    SessionEnd(SessionKey),
    /// The breaker of a backend has a new state on one replica.
    Verdict(BackendVerdict),
}

/// Largest notification that is passed on.
pub const TASK_NOTIFICATION_BYTES_MAX: usize = 64 * 1024;

impl Wakeup {
    fn is_too_long(&self) -> bool {
        match self {
            Self::TaskNotification { frame, .. } => frame.len() > TASK_NOTIFICATION_BYTES_MAX,
            Self::Verdict(verdict) => verdict.is_too_long(),
            _ => false,
        }
    }
}

/// Probable location of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerHint {
    pub node: String,
    pub address: String,
}

/// Hints, wakeups, budgets and permits. No call fails: an operation that is not possible is counted
/// and lost.
#[async_trait]
pub trait HotStore: Send + Sync {
    /// Returns `memory` or `redis`, which is a metric label.
    fn engine(&self) -> &'static str;

    async fn owner_hint(&self, session: &SessionKey) -> Option<OwnerHint>;

    async fn put_owner_hint(&self, session: &SessionKey, owner: &OwnerHint, ttl: Duration);

    async fn remove_owner_hint(&self, session: &SessionKey);

    /// Sends a wakeup to every replica, this one included. Never waits.
    fn publish(&self, wake: Wakeup);

    /// Returns a receiver of all wakeups from now on.
    fn subscribe(&self) -> broadcast::Receiver<Wakeup>;

    /// Takes from budgets that replicas share. Returns one answer for each request, in the same
    /// order. Returns `None` if the budgets are not reachable. All or none of the amounts may then
    /// have been taken.
    async fn take_from_budgets(&self, requests: &[BudgetRequest]) -> Option<Vec<BudgetGrant>>;

    /// Settles reports of permits that replicas share, and renews the lease of this replica's
    /// permits. Returns `None` if they are not reachable. All or none of the reports may then have
    /// arrived.
    async fn settle_permits(
        &self,
        lifetime: PermitsLifetime,
        requests: &[PermitsRequest],
    ) -> Option<PermitsAnswer>;

    /// Returns whether wakeups reach other replicas now.
    fn is_connected(&self) -> bool;

    /// Closes the connections.
    async fn close(&self);
}
