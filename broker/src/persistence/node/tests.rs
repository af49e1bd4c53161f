//! Tests of the lease against a fake database of nodes.

use std::collections::HashMap;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use records::NodeRecord;
use tokio::time::sleep;

use super::*;
use crate::{auth::Keys, persistence::Stores};

/// Lease that a busy machine renews in time.
const LEASE: Duration = Duration::from_secs(3);
const WITHIN: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Database {
    leases: HashMap<NodeName, Instant>,
    owners: HashMap<SessionKey, (NodeName, i64)>,
    draining: HashSet<NodeName>,
    renewals: usize,
    ended: Vec<SessionKey>,
    config_version: i64,
    down: bool,
    /// Number of next reclaims that are carried out, but whose answers are lost.
    deaf_reclaims: usize,
    /// Time that each reclaim of sessions takes.
    reclaim_time: Duration,
}

#[derive(Clone, Default)]
struct FakeNodes(Arc<Mutex<Database>>);

impl FakeNodes {
    fn lock(&self) -> MutexGuard<'_, Database> {
        self.0.lock()
    }

    fn up(&self) -> Result<MutexGuard<'_, Database>, StoreError> {
        let database = self.lock();
        if database.down {
            Err(StoreError::Unavailable { detail: "the test says so".into() })
        } else {
            Ok(database)
        }
    }

    fn own(&self, sessions: &[SessionKey], node: &NodeName) {
        let mut database = self.lock();
        database.owners.extend(sessions.iter().map(|session| (*session, (node.clone(), 1))));
    }
}

#[async_trait]
impl NodeStore for FakeNodes {
    async fn join(
        &self,
        node: &NodeName,
        _: Option<&str>,
        lease: Duration,
    ) -> Result<(), StoreError> {
        assert!(
            self.up()?.leases.insert(node.clone(), Instant::now() + lease).is_none(),
            "a name comes once"
        );
        Ok(())
    }
    async fn renew_lease(
        &self,
        node: &NodeName,
        lease: Duration,
        draining: bool,
    ) -> Result<LeaseRenewal, StoreError> {
        let mut database = self.up()?;
        database.renewals += 1;
        if draining {
            database.draining.insert(node.clone());
        }
        let held = database.leases.get(node).is_some_and(|until| *until > Instant::now());
        if held {
            database.leases.insert(node.clone(), Instant::now() + lease);
        }
        Ok(LeaseRenewal {
            renewed: held,
            config_version: database.config_version,
            sessions_to_end: std::mem::take(&mut database.ended),
        })
    }
    async fn leave(&self, node: &NodeName) -> Result<(), StoreError> {
        self.up()?.leases.remove(node);
        Ok(())
    }
    async fn live_nodes(&self) -> Result<Vec<NodeRecord>, StoreError> {
        unreachable!("a node does not list the others")
    }
    async fn reclaim_sessions(
        &self,
        from: &NodeName,
        to: &NodeName,
        keys: &[SessionKey],
    ) -> Result<Vec<(SessionKey, i64)>, StoreError> {
        if keys.len() > RECLAIM_BATCH {
            return Err(StoreError::Unavailable { detail: "the statement takes too long".into() });
        }
        let reclaim_time = self.up()?.reclaim_time;
        sleep(reclaim_time).await;
        let mut database = self.up()?;
        assert!(database.leases[to] > Instant::now(), "another node could claim the rows");
        let mut moved = Vec::new();
        for (session, (owner, epoch)) in &mut database.owners {
            if owner == from && keys.contains(session) {
                (*owner, *epoch) = (to.clone(), *epoch + 1);
                moved.push((*session, *epoch));
            }
        }
        if database.deaf_reclaims > 0 {
            database.deaf_reclaims -= 1;
            return Err(StoreError::Unavailable { detail: "the answer was lost".into() });
        }
        Ok(moved)
    }
    async fn reclaim_tasks(
        &self,
        _: &NodeName,
        _: &NodeName,
    ) -> Result<Vec<(TaskId, i64)>, StoreError> {
        self.up().map(|_| Vec::new())
    }
}

/// Calls that a replica got.
#[derive(Default)]
struct ObservedCalls {
    owned: HashSet<SessionKey>,
    reclaimed: HashMap<SessionKey, i64>,
    lost: HashSet<SessionKey>,
    ended: Vec<SessionKey>,
    config_version: i64,
}

#[derive(Default)]
struct FakeReplica(Mutex<ObservedCalls>);

impl LeaseObserver for FakeReplica {
    fn owned(&self) -> OwnedRecords {
        OwnedRecords { sessions: self.0.lock().owned.clone(), ..OwnedRecords::default() }
    }
    fn reclaimed(&self, reclaimed: ReclaimedRecords) {
        self.0.lock().reclaimed.extend(reclaimed.sessions);
    }
    fn lost(&self, lost: OwnedRecords) {
        self.0.lock().lost.extend(lost.sessions);
    }
    fn end_sessions(&self, sessions: Vec<SessionKey>) {
        self.0.lock().ended.extend(sessions);
    }
    fn config_version(&self, version: i64) {
        self.0.lock().config_version = version;
    }
}

struct Rig {
    nodes: FakeNodes,
    replica: Arc<FakeReplica>,
    node: Arc<Node>,
    persistence: Arc<Persistence>,
}

impl Rig {
    async fn joined() -> Self {
        let metrics = Arc::new(Metrics::new(false));
        let stores = Stores::in_memory().await;
        let persistence = Persistence::new(
            stores,
            NodeName::new("test/0"),
            Keys::from_root(b"root").seal,
            metrics.clone(),
        );
        let (nodes, replica) = (FakeNodes::default(), Arc::new(FakeReplica::default()));
        let settings = NodeSettings { id: "test".into(), lease: LEASE, address: None };
        let node =
            Node::new(Arc::new(nodes.clone()), false, settings, persistence.clone(), metrics)
                .enter_first()
                .await
                .unwrap();
        let observer: Arc<dyn LeaseObserver> = replica.clone();
        tokio::spawn(node.clone().keep(Arc::downgrade(&observer)));
        Self { nodes, replica, node, persistence }
    }

    /// Gives the replica these sessions.
    fn with_sessions(self, sessions: &[SessionKey]) -> Self {
        self.nodes.own(sessions, &self.persistence.node());
        self.observed().owned.extend(sessions);
        self
    }

    fn observed(&self) -> MutexGuard<'_, ObservedCalls> {
        self.replica.0.lock()
    }

    fn down(&self, down: bool) {
        self.nodes.lock().down = down;
    }

    /// Waits for a state.
    async fn until(&self, what: &str, reached: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + WITHIN;
        while !reached(self) {
            assert!(Instant::now() < deadline, "{what}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_the_lease_is_lost(&self) {
        self.until("the lease runs out", |rig| !rig.persistence.lease.is_held()).await;
    }

    async fn until_renewed(&self, times: usize) {
        let before = self.nodes.lock().renewals;
        self.until("it is held", |rig| rig.nodes.lock().renewals >= before + times).await;
    }
}

fn session(number: u8) -> SessionKey {
    SessionKey::new([number; 32])
}

#[tokio::test]
async fn a_lease_is_renewed_long_before_it_ends() {
    let rig = Rig::joined().await.with_sessions(&[session(1)]);
    let started = Instant::now();
    rig.until_renewed(4).await;
    assert!(started.elapsed() > LEASE && rig.persistence.lease.is_held());
    assert_eq!(rig.persistence.node(), NodeName::new("test/0"));
    assert!(rig.observed().reclaimed.is_empty() && rig.observed().lost.is_empty());
}

#[tokio::test]
async fn an_outage_shorter_than_the_lease_changes_nothing() {
    let rig = Rig::joined().await.with_sessions(&[session(1)]);
    rig.down(true);
    sleep(LEASE / 2).await;
    rig.down(false);
    rig.until_renewed(2).await;
    assert!(rig.persistence.lease.is_held());
    assert_eq!(rig.persistence.node(), NodeName::new("test/0"));
    assert!(rig.observed().reclaimed.is_empty() && rig.observed().lost.is_empty());
}

#[tokio::test]
async fn after_a_long_outage_unclaimed_sessions_are_reclaimed_under_a_new_name() {
    let rig = Rig::joined().await.with_sessions(&[session(1), session(2), session(3)]);
    rig.down(true);
    rig.until_the_lease_is_lost().await;
    rig.until("its loss is told", |rig| {
        rig.persistence.lease.lost_for() > Duration::from_millis(300)
    })
    .await;
    rig.nodes.own(&[session(2)], &NodeName::new("other/0"));
    rig.nodes.lock().owners.remove(&session(3));
    rig.down(false);
    rig.until("what is lost is told", |rig| !rig.observed().lost.is_empty()).await;
    assert!(rig.persistence.lease.is_held());
    let name = rig.persistence.node();
    assert!(name != NodeName::new("test/0") && name.as_str().starts_with("test/"), "{name}");
    assert_eq!(rig.nodes.lock().owners[&session(1)], (name, 2));
    assert_eq!(rig.observed().reclaimed, HashMap::from([(session(1), 2)]));
    assert_eq!(rig.observed().lost, HashSet::from([session(2), session(3)]));
}

#[tokio::test]
async fn a_reclaim_with_a_lost_answer_loses_no_session() {
    let rig = Rig::joined().await.with_sessions(&[session(1), session(2)]);
    rig.down(true);
    rig.until_the_lease_is_lost().await;
    rig.nodes.lock().deaf_reclaims = 3;
    rig.down(false);
    rig.until("the sessions are taken back", |rig| rig.observed().reclaimed.len() == 2).await;
    assert!(rig.persistence.lease.is_held() && rig.observed().lost.is_empty());
    let name = rig.persistence.node();
    assert!(rig.nodes.lock().owners.values().all(|(owner, epoch)| *owner == name && *epoch >= 3));
    // The renewals whose reclaims failed count as failed only.
    let line = r#"mcp_node_lease_renewals_total{outcome="lost"} 1"#;
    let is_counted = |rig: &Rig| rig.node.metrics.render().lines().any(|one| one == line);
    rig.until("one renewal is counted as lost", is_counted).await;
}

#[tokio::test]
async fn many_sessions_are_reclaimed_in_batches_with_a_valid_lease() {
    let sessions: Vec<SessionKey> = (0..u16::try_from(2 * RECLAIM_BATCH + 1).unwrap())
        .map(|number| {
            let mut key = [0; 32];
            key[..2].copy_from_slice(&number.to_be_bytes());
            SessionKey::new(key)
        })
        .collect();
    let rig = Rig::joined().await.with_sessions(&sessions);
    rig.down(true);
    rig.until_the_lease_is_lost().await;
    rig.nodes.lock().reclaim_time = LEASE * 2 / 5;
    rig.down(false);
    rig.until("all are reclaimed", |rig| rig.observed().reclaimed.len() == sessions.len()).await;
    assert!(rig.persistence.lease.is_held() && rig.observed().lost.is_empty());
    assert_eq!(rig.nodes.lock().leases.len(), 2, "at the first attempt");
}

#[test]
fn the_former_name_with_most_records_is_never_forgotten() {
    let mut past = FormerNames::default();
    let name = |number: usize| NodeName::new(format!("test/{number}"));
    for number in 0..=PAST_NAMES_MAX {
        past.add(name(number), OwnedRecords::default());
    }
    assert_eq!(past.names.len(), PAST_NAMES_MAX);
    assert_eq!(
        (past.names.first(), past.names.last()),
        (Some(&name(0)), Some(&name(PAST_NAMES_MAX)))
    );
}

#[tokio::test]
async fn a_renewal_returns_the_config_version_and_ended_sessions() {
    let rig = Rig::joined().await.with_sessions(&[session(1)]);
    {
        let mut database = rig.nodes.lock();
        (database.config_version, database.ended) = (7, vec![session(1)]);
    }
    rig.until("the news came", |rig| rig.observed().config_version == 7).await;
    assert_eq!(rig.observed().ended, [session(1)]);
}

#[tokio::test]
async fn a_drain_is_stored_at_once_and_a_leaving_node_is_removed() {
    let rig = Rig::joined().await;
    let started = Instant::now();
    rig.node.drain();
    rig.until("the drain is known", |rig| {
        rig.nodes.lock().draining.contains(&NodeName::new("test/0"))
    })
    .await;
    assert!(started.elapsed() < LEASE / 3, "not with the next renewal");
    rig.node.leave().await;
    assert!(rig.nodes.lock().leases.is_empty());
    sleep(LEASE / 2).await;
    assert!(rig.nodes.lock().leases.is_empty(), "it does not come back");
}

#[test]
fn a_lease_expires_and_a_permanent_one_does_not() {
    let lease = Lease::default();
    assert!(!lease.is_held());
    lease.extend(Instant::now(), LEASE);
    assert!(lease.is_held());
    lease.extend(Instant::now(), Duration::ZERO);
    assert!(!lease.is_held() && lease.lost_for() < LEASE);
    lease.extend_for_good();
    assert!(lease.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_process_claims_only_released_tasks_soon_after_it_joined() {
    let lease = Lease::default();
    assert_eq!(lease.claim_scope(LEASE), None);
    for _ in 0..2 * SETTLES_AFTER_LEASES {
        lease.extend(Instant::now(), LEASE);
        assert_eq!(lease.claim_scope(LEASE), Some(TaskClaimScope::Released));
        tokio::time::advance(LEASE / 2).await;
    }
    lease.extend(Instant::now(), LEASE);
    assert_eq!(lease.claim_scope(LEASE), Some(TaskClaimScope::Unowned));
    tokio::time::advance(LEASE).await;
    assert_eq!(lease.claim_scope(LEASE), None);
    lease.extend(Instant::now(), LEASE);
    assert_eq!(lease.claim_scope(LEASE), Some(TaskClaimScope::Released));
}
