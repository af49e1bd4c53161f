//! What may be lost at any time: who owns a session, as a hint, words to other replicas that something changed, and what
//! was taken of budgets.
//!
//! Whoever relies on a word also looks by itself from time to time; whoever relies on a hint finds out when it is wrong.

mod budget;
mod memory;
mod recency_cache;
mod redis;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::ids::TaskId;
use tokio::sync::broadcast;

pub use self::{
    budget::{BudgetGrant, BudgetRequest},
    memory::MemoryHotStore,
    redis::{RedisOptions, RedisStore},
};
use crate::SessionKey;

/// Words waiting for one listener; a slower one misses the oldest and is told so.
pub const WAKEUPS_BUFFERED_MAX: usize = 4_096;

/// Something changed. Never more than a reason to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wakeup {
    /// Tenants, keys or backends.
    Config,
    /// A task's status, or an input of it. `session`: the one that made it.
    Task { task: TaskId, session: SessionKey },
    /// A notification of a running task for the client that made it, such as progress. At most [`TASK_NOTIFICATION_BYTES_MAX`].
    TaskNotification { session: SessionKey, frame: Bytes },
    /// A session was asked to end.
    SessionEnd(SessionKey),
}

/// A longer notification is not passed on.
pub const TASK_NOTIFICATION_BYTES_MAX: usize = 64 * 1024;

impl Wakeup {
    fn is_too_long(&self) -> bool {
        matches!(self, Self::TaskNotification { frame, .. } if frame.len() > TASK_NOTIFICATION_BYTES_MAX)
    }
}

/// Where a session is said to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerHint {
    pub node: String,
    pub address: String,
}

/// Hints and words. None of it fails: what cannot be done is counted, and as good as lost.
#[async_trait]
pub trait HotStore: Send + Sync {
    /// `memory` or `redis`: a metric's label.
    fn engine(&self) -> &'static str;

    async fn owner(&self, session: &SessionKey) -> Option<OwnerHint>;

    async fn note_owner(&self, session: &SessionKey, owner: &OwnerHint, ttl: Duration);

    async fn forget_owner(&self, session: &SessionKey);

    /// Tells every replica, this one included. Never waits.
    fn wake(&self, wake: Wakeup);

    /// What is told from now on.
    fn wakes(&self) -> broadcast::Receiver<Wakeup>;

    /// Takes of budgets that replicas share, an answer for each ask in the same order. `None`: they cannot be asked now, and
    /// it may be that all or none of it was taken.
    async fn take_from_budgets(&self, asks: &[BudgetRequest]) -> Option<Vec<BudgetGrant>>;

    /// Whether words reach other replicas now.
    fn is_connected(&self) -> bool;

    /// Lets go of connections.
    async fn close(&self);
}
