//! This process as one replica among several: it joins, renews its lease and leaves.
//!
//! A process owns its sessions and tasks while its lease runs, by the database's clock. It renews
//! the lease three times in its length. If an outage of the database lasts longer, the process
//! rejoins under a new name. It then reclaims the records that no other process has taken, and
//! drops the rest. An outage alone therefore costs no session.
//!
//! Invariant: [`Lease::is_held`] errs on one side only. It counts from before the request of a
//! renewal, so the database holds the lease at least as long. A broker on SQLite is alone and holds
//! its lease for good.
//!
//! The clock of this process stands still while its machine is suspended. Until the first renewal
//! afterwards, [`Lease::is_held`] may then be wrong. The epochs of the rows still fence its writes.

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

use protocol::ids::TaskId;
use records::{LeaseRenewal, NodeName, SessionKey, TaskClaimScope};
use rules::limits::{PAST_NAMES_MAX, RECLAIM_BATCH, RENEWAL_RETRY_MAX};
use storage::{NodeStore, StoreError, fault_point};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::Persistence;
use crate::metrics::Metrics;

/// A lease that no process outlives.
const FOR_GOOD: Duration = Duration::from_secs(100 * 365 * 86_400);
/// The value of [`Lease`] that stands for [`FOR_GOOD`].
const NEVER_ENDS: u64 = u64::MAX;
/// Leases after an outage of the database, or after the first lease of this process, until every
/// owner should have reclaimed its records.
const SETTLES_AFTER_LEASES: u32 = 2;

/// State of this process's lease, by its own clock.
#[derive(Debug)]
pub struct Lease {
    origin: Instant,
    /// End of the lease, in milliseconds after `origin`.
    until: AtomicU64,
    /// End of the settling time, in milliseconds after `origin`. Until then owners with lapsed
    /// leases may reclaim.
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
    /// Returns whether no other process can own this one's records now.
    pub fn is_held(&self) -> bool {
        self.lost_for().is_zero()
    }

    /// Returns for how long the ownership has been uncertain.
    pub fn lost_for(&self) -> Duration {
        match self.until.load(Ordering::Acquire) {
            NEVER_ENDS => Duration::ZERO,
            // One millisecond is added, because the last one of the lease does not count.
            until => (self.origin.elapsed() + Duration::from_millis(1))
                .saturating_sub(Duration::from_millis(until)),
        }
    }

    /// Returns the tasks that this process may claim. Soon after an outage other replicas may not
    /// have reclaimed their records yet, so this one claims only released tasks. The first lease may
    /// come soon after an outage, too: a process that started meanwhile cannot tell.
    pub fn claim_scope(&self, lease: Duration) -> Option<TaskClaimScope> {
        let now = self.millis(Instant::now());
        let is_settled = now >= self.unsettled_until.load(Ordering::Acquire);
        (self.remaining(now) >= lease / 2).then_some(match is_settled {
            true => TaskClaimScope::Unowned,
            false => TaskClaimScope::Released,
        })
    }

    fn remaining(&self, now: u64) -> Duration {
        Duration::from_millis(self.until.load(Ordering::Acquire).saturating_sub(now))
    }

    /// Extends the lease after a renewal that was requested at `requested_at`.
    pub(super) fn extend(&self, requested_at: Instant, lease: Duration) {
        // Renewals were missed, or this lease is the first.
        if self.remaining(self.millis(Instant::now())) < lease / 3 {
            self.unsettled_until.store(
                self.millis(Instant::now() + SETTLES_AFTER_LEASES * lease),
                Ordering::Release,
            );
        }
        self.until.store(self.millis(requested_at + lease), Ordering::Release);
    }

    fn millis(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.origin).as_millis())
            .unwrap_or(NEVER_ENDS - 1)
    }

    pub(super) fn extend_for_good(&self) {
        self.until.store(NEVER_ENDS, Ordering::Release);
    }
}

/// Sessions and tasks by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnedRecords {
    pub sessions: HashSet<SessionKey>,
    pub tasks: HashSet<TaskId>,
}

/// Records that this process owns again after a lapse, with their epochs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReclaimedRecords {
    pub sessions: Vec<(SessionKey, i64)>,
    pub tasks: Vec<(TaskId, i64)>,
}

/// Effects of the lease on the rest of the process. No method may wait.
pub trait LeaseObserver: Send + Sync {
    /// Returns the records that this process takes to be its own.
    fn owned(&self) -> OwnedRecords;

    /// Keeps these records, under these epochs.
    fn reclaimed(&self, reclaimed: ReclaimedRecords);

    /// Drops these records, because they have another owner or are gone.
    fn lost(&self, lost: OwnedRecords);

    /// Ends these sessions, because another replica or an operator requested it.
    fn end_sessions(&self, sessions: Vec<SessionKey>);

    /// Notes the version of tenants, keys and backends in the database.
    fn config_version(&self, version: i64);
}

/// Settings of this process as a node.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// `node.id`: the first half of every name of this process.
    pub id: String,
    pub lease: Duration,
    /// Address for other replicas.
    pub address: Option<String>,
}

impl NodeSettings {
    /// Returns a name that no process had before.
    pub fn fresh_name(id: &str) -> NodeName {
        NodeName::new(format!("{id}/{:08x}", rand::random::<u32>()))
    }
}

/// This process among the nodes.
pub struct Node {
    settings: NodeSettings,
    persistence: Arc<Persistence>,
    nodes: Arc<dyn NodeStore>,
    metrics: Arc<Metrics>,
    /// True if no other process uses the store. The lease then needs no renewal.
    alone: bool,
    draining: AtomicBool,
    /// Notified when the lease must be renewed at once.
    renew_now: Notify,
    has_left: CancellationToken,
    /// Locked during a renewal, so that a process that has left does not join again.
    renewing: tokio::sync::Mutex<()>,
}

impl Node {
    /// Joins under the name in `persistence`. From now on this process owns what it commits.
    pub async fn join(
        settings: NodeSettings,
        persistence: Arc<Persistence>,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Self>, StoreError> {
        let nodes = persistence.store.clone();
        let alone = !persistence.is_shared();
        Self::new(nodes, alone, settings, persistence, metrics).enter_first().await
    }

    fn new(
        nodes: Arc<dyn NodeStore>,
        alone: bool,
        settings: NodeSettings,
        persistence: Arc<Persistence>,
        metrics: Arc<Metrics>,
    ) -> Self {
        persistence.record_address(settings.address.clone());
        let (draining, renew_now, has_left) =
            (AtomicBool::new(false), Notify::new(), CancellationToken::new());
        Self {
            settings,
            persistence,
            nodes,
            metrics,
            alone,
            draining,
            renew_now,
            has_left,
            renewing: tokio::sync::Mutex::default(),
        }
    }

    async fn enter_first(self) -> Result<Arc<Self>, StoreError> {
        let requested_at = Instant::now();
        self.enter(&self.persistence.node()).await?;
        self.extend(requested_at);
        fault_point::hit("node.joined");
        Ok(Arc::new(self))
    }

    /// Renews the lease until [`Node::leave`]. Returns at once on an exclusive store, whose lease
    /// needs no renewal.
    pub async fn keep(self: Arc<Self>, replica: Weak<dyn LeaseObserver>) {
        if self.alone {
            return;
        }
        let (interval, mut past) = (self.settings.lease / 3, FormerNames::default());
        let mut next = Instant::now() + interval;
        loop {
            // Both are cancel-safe. A notification during a renewal is kept.
            tokio::select! { biased;
                () = self.has_left.cancelled() => return,
                () = self.renew_now.notified() => {}
                () = sleep_until(next) => {}
            }
            let Some(replica) = replica.upgrade() else { return };
            let _renewing = self.renewing.lock().await;
            if self.has_left.is_cancelled() {
                return;
            }
            // The interval runs between requests, so that a slow answer costs nothing of the lease.
            let requested_at = Instant::now();
            next = match self.renew(&*replica, &mut past).await {
                true => requested_at + interval,
                false => Instant::now() + interval.min(RENEWAL_RETRY_MAX),
            };
        }
    }

    /// Marks this process as draining, which the next renewal publishes. It claims nothing new from
    /// now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.renew_now.notify_one();
    }

    /// Leaves, because the process ends. Other processes may claim its records at once.
    pub async fn leave(&self) {
        self.has_left.cancel();
        // A renewal in progress may be changing the name. The process then leaves under the new
        // one.
        let _over = tokio::time::timeout(self.settings.lease, self.renewing.lock()).await;
        let node = self.persistence.node();
        if self.persistence.run_for_lease("leave", self.nodes.leave(&node)).await.is_ok() {
            fault_point::hit("node.left");
            tracing::info!(%node, "the replica released its lease");
        }
    }

    /// Renews the lease once. Returns whether the process holds a lease afterwards.
    async fn renew(&self, replica: &dyn LeaseObserver, past: &mut FormerNames) -> bool {
        let (requested_at, node) = (Instant::now(), self.persistence.node());
        let draining = self.draining.load(Ordering::Acquire);
        let renewal = if past.is_empty() {
            self.persistence
                .run_for_lease(
                    "renew",
                    self.nodes.renew_lease(&node, self.settings.lease, draining),
                )
                .await
        } else {
            Ok(LeaseRenewal::default()) // an earlier attempt to continue under a new name was interrupted
        };
        let outcome = match renewal {
            Ok(renewal) if renewal.renewed => {
                self.extend(requested_at);
                fault_point::hit("node.renewed");
                if !renewal.sessions_to_end.is_empty() {
                    replica.end_sessions(renewal.sessions_to_end);
                }
                replica.config_version(renewal.config_version);
                "held"
            }
            Ok(_) if self.has_left.is_cancelled() => return true,
            Ok(_) => match self.rejoin(replica, past).await {
                Ok(()) => "lost",
                Err(_) => "failed",
            },
            Err(_) => "failed",
        };
        self.metrics.lease_renewal(outcome);
        outcome != "failed"
    }

    /// Rejoins under a new name and reclaims the records that no other process took. After an error
    /// the next attempt settles `past`.
    async fn rejoin(
        &self,
        replica: &dyn LeaseObserver,
        past: &mut FormerNames,
    ) -> Result<(), StoreError> {
        let (requested_at, to) = (Instant::now(), NodeSettings::fresh_name(&self.settings.id));
        self.enter(&to).await?;
        // The order matters: records that are opened from here on have the new name and need no
        // reclaim.
        let owned = replica.owned();
        past.add(self.persistence.rename(to.clone()), owned);
        let reclaimed = self.reclaim(&to, requested_at, past).await?;
        let lost = std::mem::take(past).without(&reclaimed);
        tracing::warn!(
            node = %to,
            sessions = reclaimed.sessions.len(),
            tasks = reclaimed.tasks.len(),
            lost_sessions = lost.sessions.len(),
            lost_tasks = lost.tasks.len(),
            "the lease had expired: the replica continues under a new name"
        );
        fault_point::hit("node.rejoined");
        replica.reclaimed(reclaimed);
        replica.lost(lost);
        Ok(())
    }

    /// Moves the records of former names to `to`, and extends the lease that was requested at
    /// `requested_at`. Removes each name that has no records left, so that a later attempt need not
    /// begin again.
    async fn reclaim(
        &self,
        to: &NodeName,
        mut requested_at: Instant,
        past: &mut FormerNames,
    ) -> Result<ReclaimedRecords, StoreError> {
        let mut reclaimed = ReclaimedRecords::default();
        // Only the sessions of this process are reclaimed. No process would end a row without a
        // session.
        let sessions: Vec<SessionKey> = past.owned.sessions.iter().copied().collect();
        while let Some(from) = past.names.first() {
            // Each answer names all records of the batch that the new name has by then.
            for batch in sessions.chunks(RECLAIM_BATCH) {
                let reclaiming = self.nodes.reclaim_sessions(from, to, batch);
                reclaimed
                    .sessions
                    .extend(self.persistence.run_for_lease("reclaim_sessions", reclaiming).await?);
                // Many batches may take longer than a lease.
                if requested_at.elapsed() >= self.settings.lease / 3 {
                    requested_at = self.renew_reclaiming(to).await?;
                }
            }
            let reclaiming = self.nodes.reclaim_tasks(from, to);
            reclaimed
                .tasks
                .extend(self.persistence.run_for_lease("reclaim_tasks", reclaiming).await?);
            past.names.remove(0);
        }
        reclaimed.sessions.sort_unstable();
        reclaimed.sessions.dedup();
        reclaimed.tasks.sort_unstable();
        reclaimed.tasks.dedup();
        self.extend(requested_at);
        Ok(reclaimed)
    }

    /// Renews the lease before all records are reclaimed. Returns the time of the request.
    async fn renew_reclaiming(&self, node: &NodeName) -> Result<Instant, StoreError> {
        let (requested_at, lease) = (Instant::now(), self.settings.lease);
        let draining = self.draining.load(Ordering::Acquire);
        let renewing = self.nodes.renew_lease(node, lease, draining);
        // The next renewal names the sessions to end again.
        match self.persistence.run_for_lease("renew", renewing).await?.renewed {
            true => Ok(requested_at),
            false => Err(StoreError::Busy { detail: "the lease ended during a reclaim".into() }),
        }
    }

    async fn enter(&self, node: &NodeName) -> Result<(), StoreError> {
        let lease = if self.alone { FOR_GOOD } else { self.settings.lease };
        self.persistence
            .run_for_lease("join", self.nodes.join(node, self.settings.address.as_deref(), lease))
            .await
    }

    fn extend(&self, requested_at: Instant) {
        if self.alone {
            self.persistence.lease.extend_for_good();
        } else {
            self.persistence.lease.extend(requested_at, self.settings.lease);
        }
    }
}

/// Former names whose records are not settled, and the records that seemed to belong to them.
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
        // The first name has most of the records: reclaims begin with it.
        if self.names.len() >= PAST_NAMES_MAX {
            self.names.remove(1);
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
