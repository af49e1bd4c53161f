//! Compares the addresses of pooled connections with the current addresses of their names.
//!
//! Used by the pools of `http_client`. A pool uses a connection for as long as one request follows
//! another, and HTTP/2 sends all requests to a server over a single one. A name that gets other
//! addresses would have no effect on them. So a task looks up the names of a pool's connections,
//! and retires those that no longer lead to their name. A request costs one atomic load for this.
//! Invariants:
//! - Only answers of the name servers retire a connection, so an outage of them retires none.
//! - An address that one of the last [`MISSES_MAX`] lookups returned is current. Some names return
//!   one of several addresses at a time.
//! - A connection to an address that its URL contains causes no lookup.
//! - Each connection has its own time of the next lookup, so a pool does not replace all of them
//!   together.
//! - A reload that changes the client certificate retires the connections that presented the old
//!   one. A server checks a certificate in the handshake only.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{resolver::Resolver, tls::ClientIdentity};

/// Lookups in a row without the address of a connection that retire the connection.
const MISSES_MAX: u32 = 15;
/// Pauses of the task in the interval between two checks of a connection. One pause is the time
/// between two lookups without the address.
const PAUSES_PER_INTERVAL: u32 = 45;

/// Watch over the connections of one pool. Clones share it.
#[derive(Clone)]
pub(crate) struct ConnectionWatch(Arc<WatchInner>);

struct WatchInner {
    resolver: Resolver,
    /// Certificate that the connections present.
    identity: Option<Arc<ClientIdentity>>,
    /// Maximum time between two checks of a connection. Each takes a random part of it, from two
    /// thirds on.
    interval: Duration,
    /// Number of retired connections that the pool may still use.
    retired: Arc<AtomicUsize>,
    connections: Mutex<WatchedConnections>,
}

#[derive(Default)]
struct WatchedConnections {
    checks: Vec<ConnectionCheck>,
    /// True while a task checks them.
    is_watched: bool,
}

/// The next check of a connection.
struct ConnectionCheck {
    connection: Weak<WatchedConnection>,
    due_at: Instant,
    /// Lookups in a row that did not return the address.
    misses: u32,
}

/// A connection of the pool. It is watched until the drop of this value.
#[derive(Debug)]
pub(crate) struct WatchedConnection {
    /// Name of the server. `None` if the URL contains the address.
    host: Option<Box<str>>,
    address: IpAddr,
    /// Version of the client certificate before the handshake.
    identity_version: u64,
    /// True if the connection must get no new request, and its pool may still use it.
    is_retired: AtomicBool,
    retired: Arc<AtomicUsize>,
}

/// Results of lookups by name. `None`: no answer.
type FoundAddresses = HashMap<Box<str>, Option<Vec<SocketAddr>>>;

impl fmt::Debug for ConnectionWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionWatch").finish_non_exhaustive()
    }
}

impl ConnectionWatch {
    pub(crate) fn new(
        resolver: Resolver,
        interval: Duration,
        identity: Option<Arc<ClientIdentity>>,
    ) -> Self {
        Self(Arc::new(WatchInner {
            resolver,
            identity,
            interval,
            retired: Arc::default(),
            connections: Mutex::default(),
        }))
    }

    pub(crate) fn resolver(&self) -> &Resolver {
        &self.0.resolver
    }

    /// Watches a connection to the host. Must be called before the TLS handshake and inside the
    /// runtime. Returns `None` if nothing can retire the connection.
    pub(crate) fn add(&self, host: &str, socket: &TcpStream) -> Option<Arc<WatchedConnection>> {
        let address = socket.peer_addr().ok()?.ip();
        self.add_address(host, address)
    }

    fn add_address(&self, host: &str, address: IpAddr) -> Option<Arc<WatchedConnection>> {
        let has_name = host.parse::<IpAddr>().is_err();
        if !has_name && self.0.identity.is_none() {
            return None;
        }
        let connection = Arc::new(WatchedConnection {
            host: has_name.then(|| host.into()),
            address,
            identity_version: self.identity_version(),
            is_retired: AtomicBool::new(false),
            retired: Arc::clone(&self.0.retired),
        });
        let check = ConnectionCheck {
            connection: Arc::downgrade(&connection),
            due_at: self.next_check_at(),
            misses: 0,
        };
        let mut connections = self.0.connections.lock();
        connections.checks.push(check);
        if !std::mem::replace(&mut connections.is_watched, true) {
            tokio::spawn(run(Arc::downgrade(&self.0), self.pause()));
        }
        Some(connection)
    }

    /// Returns whether the pool may still use a retired connection.
    pub(crate) fn has_retired(&self) -> bool {
        self.0.retired.load(Ordering::Relaxed) > 0
    }

    fn identity_version(&self) -> u64 {
        self.0.identity.as_ref().map_or(0, |identity| identity.version())
    }

    fn pause(&self) -> Duration {
        self.0.interval / PAUSES_PER_INTERVAL
    }

    fn next_check_at(&self) -> Instant {
        let mut random = [0; 4];
        aws_lc_rs::rand::fill(&mut random).expect("the system's random generator works");
        let share = f64::from(u32::from_ne_bytes(random)) / f64::from(u32::MAX);
        Instant::now() + self.0.interval.mul_f64((2.0 + share) / 3.0)
    }

    /// Retires the connections with an old client certificate. Returns the names to look up now, or
    /// `None` if no connection is left.
    fn names_due(&self, now: Instant) -> Option<HashSet<Box<str>>> {
        let version = self.identity_version();
        let mut connections = self.0.connections.lock();
        let mut names = HashSet::new();
        connections.checks.retain(|check| {
            let Some(connection) = check.connection.upgrade() else { return false };
            if connection.identity_version != version {
                connection.retire();
                return false;
            }
            if let Some(host) = connection.host.as_ref().filter(|_| check.due_at <= now) {
                names.insert(host.clone());
            }
            true
        });
        if connections.checks.is_empty() {
            *connections = WatchedConnections::default(); // also frees the memory
            return None;
        }
        Some(names)
    }

    /// Retires the connections that lead to no address of their name. `due_before` is the time for
    /// which the names were looked up.
    fn apply(&self, found: &FoundAddresses, due_before: Instant) {
        let retry_at = Instant::now() + self.pause();
        self.0.connections.lock().checks.retain_mut(|check| {
            let Some(connection) = check.connection.upgrade() else { return false };
            let host = connection.host.as_ref().filter(|_| check.due_at <= due_before);
            let Some(addresses) = host.and_then(|host| found.get(host)) else { return true };
            let is_current = |addresses: &Vec<SocketAddr>| {
                addresses.iter().any(|address| address.ip() == connection.address)
            };
            if addresses.as_ref().is_none_or(is_current) {
                (check.misses, check.due_at) = (0, self.next_check_at());
                return true;
            }
            (check.misses, check.due_at) = (check.misses + 1, retry_at);
            let is_moved = check.misses >= MISSES_MAX;
            if is_moved {
                tracing::debug!(
                    host = connection.host.as_deref(),
                    address = %connection.address,
                    "a connection gets no new request: its name has other addresses"
                );
                connection.retire();
            }
            !is_moved
        });
    }
}

/// Checks the connections until none is left.
async fn run(watch: Weak<WatchInner>, pause: Duration) {
    loop {
        sleep(pause).await;
        let Some(watch) = watch.upgrade().map(ConnectionWatch) else { return };
        let now = Instant::now();
        let Some(names) = watch.names_due(now) else { return };
        let lookups = names.into_iter().map(|host| look_up(watch.resolver().clone(), host));
        let found: FoundAddresses = join_all(lookups).await.into_iter().collect();
        watch.apply(&found, now);
    }
}

/// Returns the name and its addresses, or `None` without an answer.
async fn look_up(resolver: Resolver, host: Box<str>) -> (Box<str>, Option<Vec<SocketAddr>>) {
    let found = resolver.addresses(&host, 0).await;
    (host, found.ok().filter(|addresses| !addresses.is_empty()))
}

impl WatchedConnection {
    fn retire(&self) {
        self.retired.fetch_add(1, Ordering::Relaxed);
        self.is_retired.store(true, Ordering::Relaxed);
    }

    /// Returns whether the connection must get no new request.
    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
    }

    /// Returns true once for a retired connection. The caller has to remove it from the pool.
    pub(crate) fn take_retired(&self) -> bool {
        let was_retired = self.is_retired.swap(false, Ordering::Relaxed);
        if was_retired {
            self.retired.fetch_sub(1, Ordering::Relaxed);
        }
        was_retired
    }
}

impl Drop for WatchedConnection {
    fn drop(&mut self) {
        self.take_retired();
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(45 * 60);
    const HOST: &str = "backend.test";

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// A watch whose rounds the test runs itself, with connections to the addresses.
    fn watched(addresses: &[u8]) -> (ConnectionWatch, Vec<Arc<WatchedConnection>>) {
        let resolver = Resolver::new(|_| Err(io::Error::other("the test gives the answers")));
        let watch = ConnectionWatch::new(resolver, INTERVAL, None);
        let connections =
            addresses.iter().filter_map(|last| watch.add_address(HOST, address(*last))).collect();
        (watch, connections)
    }

    /// Runs a round in which all connections are due. `None`: the name servers do not answer.
    fn run_round(watch: &ConnectionWatch, found: Option<&[u8]>) {
        let now = Instant::now() + 2 * INTERVAL;
        let names = watch.names_due(now).unwrap();
        assert_eq!(names, HashSet::from([HOST.into()]), "one lookup for all connections");
        let found = found.map(|found| {
            found.iter().map(|last| SocketAddr::new(address(*last), 0)).collect::<Vec<_>>()
        });
        watch.apply(&HashMap::from([(HOST.into(), found)]), now);
    }

    #[tokio::test]
    async fn only_enough_answers_without_the_address_retire_a_connection() {
        let (watch, connections) = watched(&[1, 2]);
        for _ in 1..MISSES_MAX {
            run_round(&watch, Some(&[2, 3]));
        }
        run_round(&watch, None);
        for _ in 1..MISSES_MAX {
            run_round(&watch, Some(&[2, 3]));
        }
        assert!(!watch.has_retired(), "the address was absent less often since the outage");
        run_round(&watch, Some(&[2, 3]));
        let retired: Vec<_> =
            connections.iter().map(|connection| connection.is_retired()).collect();
        assert_eq!(retired, [true, false]);
        assert!(connections[0].take_retired() && !connections[0].take_retired());
        assert!(!watch.has_retired(), "the pool does not use it any more");
    }

    #[tokio::test]
    async fn a_name_with_one_address_at_a_time_retires_no_connection() {
        let (watch, _connections) = watched(&[1, 2, 3]);
        for round in 0..100 {
            run_round(&watch, Some(&[1 + round % 3]));
        }
        assert!(!watch.has_retired());
    }

    #[tokio::test]
    async fn a_connection_without_a_name_needs_no_lookup() {
        let (watch, named) = watched(&[1]);
        assert!(
            ["192.0.2.1", "2001:db8::1"]
                .iter()
                .all(|host| watch.add_address(host, address(1)).is_none())
        );
        drop(named);
        assert_eq!(watch.names_due(Instant::now() + 2 * INTERVAL), None, "none is left");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_opened_together_have_different_times_of_the_next_lookup() {
        let (watch, _connections) = watched(&[1; 100]);
        let now = Instant::now();
        let watched = watch.0.connections.lock();
        let times: HashSet<_> = watched.checks.iter().map(|check| check.due_at - now).collect();
        assert!(times.iter().all(|time| (INTERVAL / 2..=INTERVAL).contains(time)), "{times:?}");
        assert!(times.len() > 50, "{times:?}");
    }

    #[tokio::test]
    async fn a_closed_retired_connection_does_not_count() {
        let (watch, connections) = watched(&[1]);
        (0..MISSES_MAX).for_each(|_| run_round(&watch, Some(&[2])));
        assert!(watch.has_retired());
        drop(connections);
        assert!(!watch.has_retired());
    }
}
