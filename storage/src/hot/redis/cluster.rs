//! Commands over Redis Cluster. A request goes to the master of its key's slot. Redirections are
//! followed. While a master is away, requests for its slots fail, until another node takes over.
//!
//! Each node has its own connection and its own back-off, so that a dead node slows down no request
//! to another one.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::{Mutex, MutexGuard};
use redis::{Client, Cmd, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::timeout;

use super::{
    address::{ClusterAddress, at},
    server::{CALL_MAX, Opener, RedisConnectionError, Request, Server},
    slots::{NodeAddress, SlotMap, redirected, slot},
};

/// Time limit of one node, so that a dead one leaves time for another.
const NODE_MAX: Duration = Duration::from_millis(600);
/// Time limit of one node that is asked for the slots.
const SLOTS_MAX: Duration = Duration::from_millis(250);
/// Interval at which the slots are asked for at most.
const REFRESH_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Nodes that one request tries at most.
const TRIES_MAX: usize = 5;
/// Pause before the second try of a request whose slot is being moved.
const MOVING_PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Cluster {
    template: ConnectionInfo,
    /// The nodes of the URL.
    seeds: Vec<NodeAddress>,
    state: Mutex<ClusterState>,
    /// The master that gets requests without a key.
    preferred: AtomicUsize,
    /// The node that gets the next subscription.
    subscribed: AtomicUsize,
}

struct ClusterState {
    map: Arc<SlotMap>,
    /// Slots that moved since the map was read.
    moved: HashMap<u16, NodeAddress>,
    servers: HashMap<NodeAddress, Arc<Server>>,
    /// The question for the slots that is under way.
    refreshing: Option<Shared<BoxFuture<'static, ()>>>,
    refreshed: Option<Instant>,
    /// Why the last question got no answer.
    refusal: Option<RedisConnectionError>,
    closed: bool,
}

impl Cluster {
    pub(super) fn new(address: ClusterAddress) -> Arc<Self> {
        let state = ClusterState {
            map: Arc::default(),
            moved: HashMap::new(),
            servers: HashMap::new(),
            refreshing: None,
            refreshed: None,
            refusal: None,
            closed: false,
        };
        Arc::new(Self {
            template: address.template,
            seeds: address.nodes,
            state: Mutex::new(state),
            preferred: AtomicUsize::new(0),
            // Replicas spread their subscriptions over the nodes.
            subscribed: AtomicUsize::new(rand::random_range(0..1_024)),
        })
    }

    /// Sends a request to the master of the key's slot, or to any master.
    pub(super) async fn execute(
        self: &Arc<Self>,
        key: Option<&str>,
        request: &Request<'_>,
    ) -> Result<Value, RedisConnectionError> {
        match timeout(CALL_MAX, self.follow(key.map(slot), request)).await {
            Ok(answer) => answer,
            Err(_) => Err(RedisConnectionError::TimedOut),
        }
    }

    async fn follow(
        self: &Arc<Self>,
        slot: Option<u16>,
        request: &Request<'_>,
    ) -> Result<Value, RedisConnectionError> {
        use RedisConnectionError::Redis;
        use ServerErrorKind::{Ask, Moved, TryAgain};
        let mut asking = None;
        let mut tries = 1;
        loop {
            let (node, answer) = match asking.take() {
                Some(node) => {
                    let answer = self.server(&node)?.execute_asking(request, NODE_MAX).await;
                    (node, answer)
                }
                None => {
                    let node = self.node_for(slot).await?;
                    let answer = self.server(&node)?.execute(request, NODE_MAX).await;
                    (node, answer)
                }
            };
            let Err(error) = answer else { return answer };
            let is_last = tries == TRIES_MAX;
            tries += 1;
            let kind = match &error {
                Redis(error) => match error.kind() {
                    ErrorKind::Server(kind) => Some(kind),
                    _ => None,
                },
                _ => None,
            };
            match (&error, kind) {
                _ if is_last => return Err(error),
                (Redis(error), Some(Moved)) => self.learn(slot, error, &node).await,
                (Redis(error), Some(Ask)) => {
                    asking = error.redirect_node().and_then(|(to, _)| redirected(to, &node));
                }
                (_, Some(TryAgain)) => tokio::time::sleep(MOVING_PAUSE).await,
                _ if is_away(&error) => {
                    self.refresh().await;
                    if slot.is_none() {
                        self.preferred.fetch_add(1, Ordering::Relaxed);
                    }
                    // Nothing else serves the slot so far.
                    if self.node_for(slot).await? == node {
                        return Err(error);
                    }
                }
                _ => return Err(error),
            }
        }
    }

    /// Returns how to connect to a node for messages. A further call returns another node.
    pub(super) async fn client_for_messages(self: &Arc<Self>) -> Result<Client, RedisError> {
        self.refresh().await;
        let turn = self.subscribed.fetch_add(1, Ordering::Relaxed);
        let map = self.lock().map.clone();
        let nodes = if map.nodes().is_empty() { &self.seeds } else { map.nodes() };
        let (host, port) = &nodes[turn % nodes.len()];
        Client::open(at(&self.template, host, *port))
    }

    /// Returns whether the cluster no longer has the node of this client.
    pub(super) async fn has_lost(self: &Arc<Self>, client: &Client) -> bool {
        self.refresh().await;
        let map = self.lock().map.clone();
        let address = client.get_connection_info().addr();
        !map.nodes().iter().any(|(host, port)| at(&self.template, host, *port).addr() == address)
    }

    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for (_, server) in state.servers.drain() {
            server.close();
        }
    }

    async fn node_for(
        self: &Arc<Self>,
        slot: Option<u16>,
    ) -> Result<NodeAddress, RedisConnectionError> {
        if let Some(node) = self.known_node_for(slot) {
            return Ok(node);
        }
        self.refresh().await;
        self.known_node_for(slot).ok_or_else(|| {
            let unknown = (ErrorKind::Io, "no node of the cluster is known to serve the key");
            let refusal = self.lock().refusal.clone();
            refusal.unwrap_or_else(|| RedisConnectionError::Unreachable(unknown.into()))
        })
    }

    fn known_node_for(&self, slot: Option<u16>) -> Option<NodeAddress> {
        let state = self.lock();
        let node = match slot {
            Some(slot) => state.moved.get(&slot).or_else(|| state.map.master(slot)),
            None => {
                let masters = state.map.masters();
                let turn = self.preferred.load(Ordering::Relaxed);
                turn.checked_rem(masters.len()).map(|index| &masters[index])
            }
        };
        node.cloned()
    }

    /// Remembers where a slot is now.
    async fn learn(
        self: &Arc<Self>,
        slot: Option<u16>,
        moved: &RedisError,
        responder: &NodeAddress,
    ) {
        self.refresh().await;
        let to = moved.redirect_node().and_then(|(to, _)| redirected(to, responder));
        if let (Some(slot), Some(to)) = (slot, to) {
            self.lock().moved.insert(slot, to);
        }
    }

    fn server(&self, node: &NodeAddress) -> Result<Arc<Server>, RedisConnectionError> {
        let mut state = self.lock();
        if state.closed {
            return Err(RedisConnectionError::Closed);
        }
        if let Some(server) = state.servers.get(node) {
            return Ok(server.clone());
        }
        let client = Client::open(at(&self.template, &node.0, node.1));
        let client = client.map_err(RedisConnectionError::Unreachable)?;
        let server = Arc::new(Server::new(Opener::Node(client)));
        state.servers.insert(node.clone(), server.clone());
        Ok(server)
    }

    /// Requests the slots, unless that was done a moment ago. All callers wait for the same answer.
    async fn refresh(self: &Arc<Self>) {
        let refreshing = {
            let mut state = self.lock();
            match &state.refreshing {
                Some(refreshing) => refreshing.clone(),
                None => {
                    let is_fresh = |at: Instant| at.elapsed() < REFRESH_INTERVAL_MIN;
                    if state.closed || state.refreshed.is_some_and(is_fresh) {
                        return;
                    }
                    // The task ends by itself, whatever becomes of those who wait for it.
                    let cluster = self.clone();
                    let task = tokio::spawn(async move { cluster.ask_for_slots().await });
                    let refreshing = task.map(|_| ()).boxed().shared();
                    state.refreshing = Some(refreshing.clone());
                    refreshing
                }
            }
        };
        refreshing.await;
    }

    async fn ask_for_slots(&self) {
        let answer = self.answered_slots().await;
        let mut state = self.lock();
        state.refreshing = None;
        state.refreshed = Some(Instant::now());
        let map = match answer {
            Ok(map) => map,
            Err(refusal) => {
                state.refusal = refusal;
                return;
            }
        };
        state.servers.retain(|node, server| {
            let is_kept = map.nodes().contains(node) || self.seeds.contains(node);
            if !is_kept {
                server.close();
            }
            is_kept
        });
        state.moved.clear();
        state.map = Arc::new(map);
    }

    /// Requests the slots from one node after the other. Returns the last refusal if none answers.
    async fn answered_slots(&self) -> Result<SlotMap, Option<RedisConnectionError>> {
        let map = self.lock().map.clone();
        let mut nodes = map.nodes().to_vec();
        let turn = rand::random_range(0..nodes.len().max(1));
        nodes.rotate_left(turn);
        nodes.extend(self.seeds.iter().filter(|seed| !map.nodes().contains(seed)).cloned());
        let mut command = Cmd::new();
        command.arg("CLUSTER").arg("SLOTS");
        let mut refusal = None;
        for node in nodes {
            let Ok(server) = self.server(&node) else { continue };
            let request = Request::Command(&command);
            // A connection that takes longer to open stays, for the next question.
            match timeout(SLOTS_MAX, server.execute(&request, CALL_MAX)).await {
                Ok(Ok(answer)) => {
                    if let Some(map) = SlotMap::read(&answer, &node) {
                        return Ok(map);
                    }
                }
                Ok(Err(RedisConnectionError::BackingOff)) => {}
                Ok(Err(error)) => refusal = Some(error),
                Err(_) => refusal = Some(RedisConnectionError::TimedOut),
            }
        }
        Err(refusal.or_else(|| self.lock().refusal.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock()
    }
}

/// Returns whether another node may serve the slot soon.
fn is_away(error: &RedisConnectionError) -> bool {
    use RedisConnectionError::{BackingOff, Closed, Redis, TimedOut, Unreachable};
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly};
    match error {
        BackingOff | TimedOut | Unreachable(_) => true,
        Redis(error) => {
            error.is_io_error()
                || matches!(
                    error.kind(),
                    ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly)
                )
        }
        Closed => false,
    }
}
