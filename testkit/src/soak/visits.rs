//! The clients of a long run: one visit after the other on each wire, a few that stay, and one that
//! does not read.

use std::{
    any::Any,
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Interval, MissedTickBehavior},
};

use super::{peer::Peer, slow_reader};
use crate::{Authority, TestCluster};

/// A counter of the demo backend, which `increment` changes.
const COUNTER: &str = "s+demo://counter";
/// Tools of both backends.
const TOOLS: usize = 8;
/// Kinds of operations that every client carries out, also one that stays.
const PLAIN: u64 = 5;
/// Kinds of operations of a visit.
const KINDS: u64 = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Http,
    Stateless,
    WebSocket,
    Tcp,
    Quic,
    HttpSse,
}

impl Wire {
    const ALL: [Self; 6] =
        [Self::Http, Self::Stateless, Self::WebSocket, Self::Tcp, Self::Quic, Self::HttpSse];

    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Stateless => "stateless",
            Self::WebSocket => "websocket",
            Self::Tcp => "tcp",
            Self::Quic => "quic",
            Self::HttpSse => "http+sse",
        }
    }
}

/// Addresses of a replica.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addresses {
    pub(super) http: SocketAddr,
    pub(super) tcp: SocketAddr,
    pub(super) quic: SocketAddr,
}

/// Where clients connect, and with which keys.
pub(super) struct Site {
    pub(super) front: SocketAddr,
    pub(super) replicas: Vec<Addresses>,
    pub(super) authority: Arc<Authority>,
    keys: [String; 2],
}

impl Site {
    pub(super) fn new(cluster: &TestCluster, authority: Arc<Authority>, keys: [String; 2]) -> Self {
        let replicas = cluster.replicas().iter().map(|replica| Addresses {
            http: replica.http_address(),
            tcp: replica.tcp_address().expect("it listens on TCP"),
            quic: replica.quic_address().expect("it listens on QUIC"),
        });
        let front = cluster.balancer().address();
        Self { front, replicas: replicas.collect(), authority, keys }
    }

    /// Returns the replica and the key of a visit.
    pub(super) fn choose(&self, number: u64) -> (usize, &str) {
        let number = number as usize;
        (number % self.replicas.len(), &self.keys[number / 2 % self.keys.len()])
    }
}

/// Observations of the clients.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) answered: BTreeMap<&'static str, u64>,
    pub(super) visits: u64,
    pub(super) wrong: Vec<String>,
}

/// State that all clients share.
pub(super) struct LoadState {
    pub(super) site: Site,
    pace: tokio::sync::Mutex<Interval>,
    over: AtomicBool,
    visits: AtomicU64,
    outcome: Mutex<Outcome>,
}

impl LoadState {
    /// Waits for the turn of an operation; returns false once the load is over.
    async fn turn(&self) -> bool {
        self.pace.lock().await.tick().await;
        !self.is_over()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(super) fn next_visit(&self) -> u64 {
        self.visits.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn count(&self, what: &'static str) {
        *self.outcome.lock().answered.entry(what).or_default() += 1;
    }

    /// Carries out a visit. A panic in it is a wrong answer.
    pub(super) async fn attempt(
        &self,
        what: &str,
        visit: impl Future<Output = ()> + Send + 'static,
    ) {
        if let Err(error) = tokio::spawn(visit).await {
            let why =
                if error.is_panic() { text_of_panic(&*error.into_panic()) } else { String::new() };
            self.outcome.lock().wrong.push(format!("{what}: {why}"));
        }
    }
}

fn text_of_panic(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// The running clients.
pub(super) struct Load {
    state: Arc<LoadState>,
    workers: JoinSet<()>,
}

impl Load {
    /// Starts as many clients on each wire, one that stays on each, and one that does not read.
    pub(super) fn start(site: Site, clients: usize, rate: f64) -> Self {
        let mut pace = tokio::time::interval(Duration::from_secs_f64(1.0 / rate));
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let state = Arc::new(LoadState {
            site,
            pace: tokio::sync::Mutex::new(pace),
            over: AtomicBool::new(false),
            visits: AtomicU64::new(0),
            outcome: Mutex::default(),
        });
        let mut workers = JoinSet::new();
        for wire in Wire::ALL {
            workers.spawn(stay(state.clone(), wire));
            for _ in 0..clients {
                workers.spawn(connect_and_disconnect(state.clone(), wire));
            }
        }
        workers.spawn(slow_reader::ignore_answers(state.clone()));
        Self { state, workers }
    }

    /// Lets all clients leave; returns their observations.
    pub(super) async fn finish(self) -> Outcome {
        self.state.over.store(true, Ordering::Relaxed);
        self.workers.join_all().await;
        let mut outcome = std::mem::take(&mut *self.state.outcome.lock());
        outcome.visits = self.state.visits.load(Ordering::Relaxed);
        outcome
    }
}

async fn connect_and_disconnect(state: Arc<LoadState>, wire: Wire) {
    while state.turn().await {
        let number = state.next_visit();
        let visit = visit(state.clone(), wire, number, 4 + number % 9, KINDS);
        state.attempt(&format!("{} visit {number}", wire.name()), visit).await;
    }
}

async fn stay(state: Arc<LoadState>, wire: Wire) {
    while state.turn().await {
        let number = state.next_visit();
        let visit = visit(state.clone(), wire, number, u64::MAX, PLAIN);
        state.attempt(&format!("{} resident {number}", wire.name()), visit).await;
    }
}

/// Opens a session, uses it for so many operations of the first `kinds` kinds, and leaves.
async fn visit(state: Arc<LoadState>, wire: Wire, number: u64, steps: u64, kinds: u64) {
    let (replica, key) = state.site.choose(number);
    let peer = Peer::open(&state.site, wire, replica, key).await;
    for step in 0..steps {
        if !state.turn().await {
            break;
        }
        operation(&peer, (number + step) % kinds, &format!("{}-{number}-{step}", wire.name()))
            .await;
        state.count(wire.name());
    }
    peer.disconnect(number).await;
}

/// Carries out one operation of this kind and checks its answer. `text` is in no other answer.
async fn operation(peer: &Peer, kind: u64, text: &str) {
    match kind {
        0 => assert_eq!(peer.call("b__echo", json!({"message": text})).await, text),
        1 => assert_eq!(peer.call("s__echo", json!({"message": text})).await, text),
        2 => {
            let listed = peer.result("tools/list", json!({})).await;
            assert_eq!(listed["tools"].as_array().map(Vec::len), Some(TOOLS), "{listed}");
        }
        3 => {
            let uri = format!("s+demo://greeting/{text}");
            let read = peer.result("resources/read", json!({"uri": uri})).await;
            assert_eq!(read["contents"][0]["text"], format!("Hello, {text}!"), "{read}");
        }
        4 => {
            let refused = peer.request("tools/call", json!({"name": text, "arguments": {}})).await;
            assert_eq!(refused["error"]["data"]["kind"], "tool_not_found", "{refused}");
        }
        5 => assert_eq!(peer.steps("s__countdown", 5, text).await, "lift-off"),
        6 => assert_eq!(peer.call("b__ask", json!({"message": text})).await, text),
        7 => {
            let id = peer.task("b__echo", json!({"message": text}), text).await;
            // The results of other tasks are never collected.
            if text.len().is_multiple_of(2) {
                assert_eq!(peer.task_text(&id).await, text);
            }
        }
        _ => {
            let increment = async {
                let result: Value = peer
                    .result("tools/call", json!({"name": "s__increment", "arguments": {}}))
                    .await;
                assert!(result["structuredContent"]["count"].is_u64(), "{result}");
            };
            peer.subscription(COUNTER, increment).await;
        }
    }
}
