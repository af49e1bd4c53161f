//! This process as one replica among several: it joins, renews its lease and leaves.
//!
//! What a process owns (sessions, tasks) is its own while its lease runs, by the database's clock. The lease is renewed
//! three times in its length. When the database was out of reach for longer, the process goes on under a new name and takes
//! back what nobody took meanwhile; the rest it forgets. So an outage of the database costs no session by itself.
//!
//! Invariant: [`Lease::is_held`] errs on one side only. It counts from before a renewal was asked for, so the database holds
//! the lease at least as long. A broker on SQLite is alone and holds its lease for good.

#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use protocol::ids::TaskId;
use storage::{DurableStore, LeaseRenewal, NodeName, SessionKey, StoreError, fault_point};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::Persistence;
use crate::{
    limits::{PAST_NAMES_MAX, RENEWAL_RETRY_MAX},
    metrics::Metrics,
};

/// A lease that no process outlives.
const FOR_GOOD: Duration = Duration::from_secs(100 * 365 * 86_400);
/// The value of [`Lease`] that stands for [`FOR_GOOD`].
const NEVER_ENDS: u64 = u64::MAX;
/// How many leases after an outage of the database everybody should have taken back what is theirs.
const SETTLES_AFTER_LEASES: u32 = 2;

/// What this process knows of its own lease, by its own clock.
#[derive(Debug)]
pub struct Lease {
    origin: Instant,
    /// In milliseconds after `origin`.
    until: AtomicU64,
    /// The same. Until then owners whose leases lapsed are given time to come back.
    unsettled_until: AtomicU64,
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
            until: AtomicU64::new(0),
            unsettled_until: AtomicU64::new(0),
        }
    }
}

impl Lease {
    /// Nobody else can own what is ours now.
    pub fn is_held(&self) -> bool {
        self.lost_for().is_zero()
    }

    /// How long it is not certain any more.
    pub fn lost_for(&self) -> Duration {
        match self.until.load(Ordering::Acquire) {
            NEVER_ENDS => Duration::ZERO,
            // A millisecond more than none: the last one of the lease is not ours.
            until => (self.origin.elapsed() + Duration::from_millis(1))
                .saturating_sub(Duration::from_millis(until)),
        }
    }

    /// It was renewed just now, and nothing says that the database was out of reach of everybody a moment ago. Then others
    /// may not have found the time to take back what they own, and it is not yet to be taken from them.
    pub fn is_settled(&self, lease: Duration) -> bool {
        let now = self.millis(Instant::now());
        self.left(now) >= lease / 2 && now >= self.unsettled_until.load(Ordering::Acquire)
    }

    fn left(&self, now: u64) -> Duration {
        Duration::from_millis(self.until.load(Ordering::Acquire).saturating_sub(now))
    }

    /// After a renewal that was asked for at this moment.
    fn extend(&self, asked: Instant, lease: Duration) {
        // Renewals were missed.
        if self.left(self.millis(Instant::now())) < lease / 3
            && self.until.load(Ordering::Acquire) != 0
        {
            self.unsettled_until.store(
                self.millis(Instant::now() + SETTLES_AFTER_LEASES * lease),
                Ordering::Release,
            );
        }
        self.until.store(self.millis(asked + lease), Ordering::Release);
    }

    fn millis(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.origin).as_millis())
            .unwrap_or(NEVER_ENDS - 1)
    }

    fn extend_for_good(&self) {
        self.until.store(NEVER_ENDS, Ordering::Release);
    }
}

/// Sessions and tasks by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnedRecords {
    pub sessions: HashSet<SessionKey>,
    pub tasks: HashSet<TaskId>,
}

/// What is ours again after a lapse, with its epochs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReclaimedRecords {
    pub sessions: Vec<(SessionKey, i64)>,
    pub tasks: Vec<(TaskId, i64)>,
}

/// What a lease means to the rest of the process. None of it may wait.
pub trait LeaseObserver: Send + Sync {
    /// What this process takes to be its own.
    fn owned(&self) -> OwnedRecords;

    /// It is, under these epochs from now on.
    fn reclaimed(&self, reclaimed: ReclaimedRecords);

    /// These have another owner by now, or are gone.
    fn lost(&self, lost: OwnedRecords);

    /// Somebody asked these sessions of ours to end.
    fn asked_to_end(&self, sessions: Vec<SessionKey>);

    /// The version of tenants, keys and backends in the database.
    fn config_version(&self, version: i64);
}

/// The part of the database that knows nodes.
#[async_trait]
trait NodeRegistry: Send + Sync {
    async fn join(
        &self,
        node: &NodeName,
        address: Option<&str>,
        lease: Duration,
    ) -> Result<(), StoreError>;
    async fn renew(
        &self,
        node: &NodeName,
        lease: Duration,
        draining: bool,
    ) -> Result<LeaseRenewal, StoreError>;
    async fn leave(&self, node: &NodeName) -> Result<(), StoreError>;
    async fn reclaim_sessions(
        &self,
        from: &NodeName,
        to: &NodeName,
        keys: &[SessionKey],
    ) -> Result<Vec<(SessionKey, i64)>, StoreError>;
    async fn reclaim_tasks(
        &self,
        from: &NodeName,
        to: &NodeName,
    ) -> Result<Vec<(TaskId, i64)>, StoreError>;
}

struct StoreNodeRegistry(Arc<dyn DurableStore>);

#[async_trait]
impl NodeRegistry for StoreNodeRegistry {
    async fn join(
        &self,
        node: &NodeName,
        address: Option<&str>,
        lease: Duration,
    ) -> Result<(), StoreError> {
        self.0.join(node, address, lease).await
    }
    async fn renew(
        &self,
        node: &NodeName,
        lease: Duration,
        draining: bool,
    ) -> Result<LeaseRenewal, StoreError> {
        self.0.renew(node, lease, draining).await
    }
    async fn leave(&self, node: &NodeName) -> Result<(), StoreError> {
        self.0.leave(node).await
    }
    async fn reclaim_sessions(
        &self,
        from: &NodeName,
        to: &NodeName,
        keys: &[SessionKey],
    ) -> Result<Vec<(SessionKey, i64)>, StoreError> {
        self.0.reclaim_sessions(from, to, keys).await
    }
    async fn reclaim_tasks(
        &self,
        from: &NodeName,
        to: &NodeName,
    ) -> Result<Vec<(TaskId, i64)>, StoreError> {
        self.0.reclaim_tasks(from, to).await
    }
}

/// How this process takes part.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// `node.id`: the first half of every name it gives itself.
    pub id: String,
    pub lease: Duration,
    /// Where other replicas reach it.
    pub address: Option<String>,
}

impl NodeSettings {
    /// A name nobody had before.
    pub fn fresh_name(id: &str) -> NodeName {
        NodeName::new(format!("{id}/{:08x}", rand::random::<u32>()))
    }
}

/// This process among the nodes.
pub struct Node {
    settings: NodeSettings,
    durable: Arc<Persistence>,
    nodes: Box<dyn NodeRegistry>,
    metrics: Arc<Metrics>,
    /// Nobody else uses the store: the lease needs no renewal.
    alone: bool,
    draining: AtomicBool,
    /// A reason to renew right now.
    hurry: Notify,
    left: CancellationToken,
    /// Held during a renewal: what has left must not join again.
    renewing: tokio::sync::Mutex<()>,
}

impl Node {
    /// Joins under the name `persistence` has. From now on what this process commits is its own.
    pub async fn join(
        settings: NodeSettings,
        durable: Arc<Persistence>,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Self>, StoreError> {
        let nodes = Box::new(StoreNodeRegistry(durable.store.clone()));
        let alone = !durable.is_shared();
        Self::new(nodes, alone, settings, durable, metrics).enter_first().await
    }

    fn new(
        nodes: Box<dyn NodeRegistry>,
        alone: bool,
        settings: NodeSettings,
        durable: Arc<Persistence>,
        metrics: Arc<Metrics>,
    ) -> Self {
        durable.note_address(settings.address.clone());
        let (draining, hurry, left) =
            (AtomicBool::new(false), Notify::new(), CancellationToken::new());
        Self {
            settings,
            durable,
            nodes,
            metrics,
            alone,
            draining,
            hurry,
            left,
            renewing: tokio::sync::Mutex::default(),
        }
    }

    async fn enter_first(self) -> Result<Arc<Self>, StoreError> {
        let asked = Instant::now();
        self.enter(&self.durable.node()).await?;
        self.extend(asked);
        fault_point::passed("node.joined");
        Ok(Arc::new(self))
    }

    /// Keeps the lease until [`Node::leave`]. Ends at once on a store of our own, whose lease needs no renewal.
    pub async fn keep(self: Arc<Self>, replica: Weak<dyn LeaseObserver>) {
        if self.alone {
            return;
        }
        let (interval, mut past) = (self.settings.lease / 3, FormerNames::default());
        let mut next = Instant::now() + interval;
        loop {
            // Both are cancel-safe; a hurry that comes during a renewal is kept.
            tokio::select! { biased;
                () = self.left.cancelled() => return,
                () = self.hurry.notified() => {}
                () = sleep_until(next) => {}
            }
            let Some(replica) = replica.upgrade() else { return };
            let _renewing = self.renewing.lock().await;
            if self.left.is_cancelled() {
                return;
            }
            // From one question to the next, so that a slow answer costs nothing of the lease.
            let asked = Instant::now();
            next = match self.renew(&*replica, &mut past).await {
                true => asked + interval,
                false => Instant::now() + interval.min(RENEWAL_RETRY_MAX),
            };
        }
    }

    /// Takes nothing new from now on, and tells the others.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.hurry.notify_one();
    }

    /// The process ends: what it still owns is anybody's at once.
    pub async fn leave(&self) {
        self.left.cancel();
        // A renewal under way may be going on under a new name, which is the one to leave then.
        let _over = tokio::time::timeout(self.settings.lease, self.renewing.lock()).await;
        let node = self.durable.node();
        if self.durable.ask_for_lease("leave", self.nodes.leave(&node)).await.is_ok() {
            fault_point::passed("node.left");
            tracing::info!(%node, "left the other replicas");
        }
    }

    /// One renewal; false when there is no lease after it.
    async fn renew(&self, replica: &dyn LeaseObserver, past: &mut FormerNames) -> bool {
        let (asked, node) = (Instant::now(), self.durable.node());
        let draining = self.draining.load(Ordering::Acquire);
        let renewal = if past.is_empty() {
            self.durable
                .ask_for_lease("renew", self.nodes.renew(&node, self.settings.lease, draining))
                .await
        } else {
            Ok(LeaseRenewal::default()) // an earlier attempt to go on under a new name got stuck half way
        };
        let outcome = match renewal {
            Ok(renewal) if renewal.held => {
                self.extend(asked);
                fault_point::passed("node.renewed");
                if !renewal.ended.is_empty() {
                    replica.asked_to_end(renewal.ended);
                }
                replica.config_version(renewal.config_version);
                "held"
            }
            Ok(_) if self.left.is_cancelled() => return true,
            Ok(_) => {
                self.metrics.lease_renewal("lost");
                match self.rejoin(replica, past).await {
                    Ok(()) => return true,
                    Err(_) => "failed",
                }
            }
            Err(_) => "failed",
        };
        self.metrics.lease_renewal(outcome);
        outcome == "held"
    }

    /// Goes on under a new name and takes back what nobody took. An error leaves `past` to be settled by the next attempt.
    async fn rejoin(
        &self,
        replica: &dyn LeaseObserver,
        past: &mut FormerNames,
    ) -> Result<(), StoreError> {
        let (asked, to) = (Instant::now(), NodeSettings::fresh_name(&self.settings.id));
        self.enter(&to).await?;
        // In this order: what is opened from here on has the new name and is not looked for under an old one.
        let owned = replica.owned();
        past.add(self.durable.rename(to.clone()), owned);
        let mut reclaimed = ReclaimedRecords::default();
        // Only what is here: a row that is ours without a session here would be nobody's to end.
        let sessions: Vec<SessionKey> = past.owned.sessions.iter().copied().collect();
        for from in &past.names {
            // Each tells all that the new name has by then.
            reclaimed.sessions.extend(
                self.durable
                    .ask_for_lease(
                        "reclaim_sessions",
                        self.nodes.reclaim_sessions(from, &to, &sessions),
                    )
                    .await?,
            );
            reclaimed.tasks.extend(
                self.durable
                    .ask_for_lease("reclaim_tasks", self.nodes.reclaim_tasks(from, &to))
                    .await?,
            );
        }
        reclaimed.sessions.sort_unstable();
        reclaimed.sessions.dedup();
        reclaimed.tasks.sort_unstable();
        reclaimed.tasks.dedup();
        self.extend(asked);
        let lost = std::mem::take(past).without(&reclaimed);
        tracing::warn!(
            node = %to,
            sessions = reclaimed.sessions.len(),
            tasks = reclaimed.tasks.len(),
            lost_sessions = lost.sessions.len(),
            lost_tasks = lost.tasks.len(),
            "the lease had lapsed: going on under a new name"
        );
        fault_point::passed("node.rejoined");
        replica.reclaimed(reclaimed);
        replica.lost(lost);
        Ok(())
    }

    async fn enter(&self, node: &NodeName) -> Result<(), StoreError> {
        let lease = if self.alone { FOR_GOOD } else { self.settings.lease };
        self.durable
            .ask_for_lease("join", self.nodes.join(node, self.settings.address.as_deref(), lease))
            .await
    }

    fn extend(&self, asked: Instant) {
        if self.alone {
            self.durable.lease.extend_for_good();
        } else {
            self.durable.lease.extend(asked, self.settings.lease);
        }
    }
}

/// Names of before whose belongings are not settled, and what was taken to belong to them.
#[derive(Debug, Default)]
struct FormerNames {
    names: Vec<NodeName>,
    owned: OwnedRecords,
}

impl FormerNames {
    fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn add(&mut self, name: NodeName, owned: OwnedRecords) {
        if self.names.len() >= PAST_NAMES_MAX {
            self.names.remove(0);
        }
        self.names.push(name);
        self.owned.sessions.extend(owned.sessions);
        self.owned.tasks.extend(owned.tasks);
    }

    fn without(self, reclaimed: &ReclaimedRecords) -> OwnedRecords {
        let mut lost = self.owned;
        reclaimed.sessions.iter().for_each(|(session, _)| {
            lost.sessions.remove(session);
        });
        reclaimed.tasks.iter().for_each(|(task, _)| {
            lost.tasks.remove(task);
        });
        lost
    }
}
