//! Connection limits of a listener: in total, per address, and new ones per address and second.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use config::Limits;
use parking_lot::Mutex;
use rules::{
    client_network::client_network,
    limits::ADDRESSES_METERED_MAX,
    local_rate_limit::{KeyedRateLimiter, per_second},
};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use transport::descriptor_reserve;

use super::{
    address_counts::{AddressCounts, AddressSlot},
    handoff_listener::HandoffListener,
    trusted_proxies::{ClientAddress, ProxyProtocol},
};
use crate::metrics::Metrics;

/// Pause while no connection can be accepted because no descriptor is left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Interval between log messages of one kind.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Limits of one listener.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    permits: Arc<Semaphore>,
    addresses: AddressCounts,
    connection_rates: ConnectionRateLimiter,
    proxies: ProxyProtocol,
    /// Set when the last accepted connection uses a descriptor of the reserve.
    on_reserve: AtomicBool,
    /// Messages about descriptors.
    reserve_log: LogPace,
    /// Messages about connections that the system refused.
    refusal_log: LogPace,
}

/// Time of the last log message of one kind.
#[derive(Debug, Default)]
pub(super) struct LogPace(Mutex<Option<Instant>>);

impl LogPace {
    /// Returns whether a message is due, and counts it as logged.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let mut logged_at = self.0.lock();
        let is_due = logged_at.is_none_or(|at| now - at >= LOG_INTERVAL);
        if is_due {
            *logged_at = Some(now);
        }
        is_due
    }
}

/// Permit of one connection, released on drop.
#[derive(Debug)]
pub(super) struct ListenerPermit {
    _permit: OwnedSemaphorePermit,
    /// Slot among the connections of its address. `None` for a trusted proxy, whose connections
    /// belong to many clients.
    address_slot: Option<AddressSlot>,
}

impl ConnectionLimiter {
    pub(super) fn new(limits: &Limits, proxies: ProxyProtocol) -> Self {
        Self {
            proxies,
            permits: Arc::new(Semaphore::new(limits.connections)),
            addresses: AddressCounts::new(limits.connections_per_address),
            connection_rates: ConnectionRateLimiter::new(limits),
            on_reserve: AtomicBool::new(false),
            reserve_log: LogPace::default(),
            refusal_log: LogPace::default(),
        }
    }

    /// Returns a permit for an established connection, or `None` at a limit.
    pub(super) fn admit(&self, address: IpAddr, metrics: &Metrics) -> Option<ListenerPermit> {
        let Ok(permit) = self.permits.clone().try_acquire_owned() else {
            metrics.rate_limited("connections");
            return None;
        };
        let address_slot = self.admit_address(address, metrics)?;
        Some(ListenerPermit { _permit: permit, address_slot: Some(address_slot) })
    }

    /// Returns the client of an accepted connection. The connection takes a slot of the client's
    /// address if a trusted proxy names it. Returns `None` if the connection is refused.
    pub(super) async fn identify(
        &self,
        socket: &mut TcpStream,
        peer: SocketAddr,
        admitted: &mut ListenerPermit,
        metrics: &Metrics,
    ) -> Option<ClientAddress> {
        let client = self.proxies.client(socket, peer).await.ok()?;
        if admitted.address_slot.is_none() && !self.proxies.proxies().trusts(client.address()) {
            admitted.address_slot = Some(self.admit_address(client.address(), metrics)?);
        }
        Some(client)
    }

    /// Takes a slot of the address, or returns `None` at one of its limits.
    fn admit_address(&self, address: IpAddr, metrics: &Metrics) -> Option<AddressSlot> {
        let address = client_network(address);
        if !self.connection_rates.take(address) {
            metrics.rate_limited("connections_per_second_per_address");
            return None;
        }
        let address_slot = self.addresses.acquire(address);
        if address_slot.is_none() {
            metrics.rate_limited("connections_per_address");
        }
        address_slot
    }

    /// Accepts the next admitted connection. Cancel-safe.
    ///
    /// At the total limit nothing is accepted: new connections wait in the kernel's queue until
    /// another one ends. The same applies while too few file descriptors are free. A
    /// connection over a limit of its address is closed.
    pub(super) async fn accept(
        &self,
        listener: &HandoffListener,
        metrics: &Metrics,
    ) -> (TcpStream, SocketAddr, ListenerPermit) {
        loop {
            let Ok(permit) = self.permits.clone().acquire_owned().await else {
                return std::future::pending().await;
            };
            self.wait_for_descriptor(metrics).await;
            match listener.accept().await {
                Ok((socket, peer)) => {
                    let address_slot = match self.proxies.proxies().trusts(peer.ip()) {
                        true => None,
                        false => match self.admit_address(peer.ip(), metrics) {
                            None => continue,
                            address_slot => address_slot,
                        },
                    };
                    // The connection stays, because the reserve has capacity for it.
                    if descriptor_reserve::is_reserved(&socket) {
                        self.on_reserve.store(true, Ordering::Relaxed);
                    }
                    return (socket, peer, ListenerPermit { _permit: permit, address_slot });
                }
                Err(error) => {
                    // A system without descriptors refuses each attempt.
                    if self.refusal_log.is_due(Instant::now()) {
                        tracing::warn!(%error, "a connection could not be accepted; the log omits further refusals for a minute");
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    /// Logs that no connection is accepted. A flood causes it again with every connection that ends,
    /// so the log has it once in each interval.
    fn log_reserve_use(&self) {
        if self.reserve_log.is_due(Instant::now()) {
            tracing::warn!(
                "too few file descriptors are free: the broker accepts no connection until other connections end"
            );
        }
    }

    /// Waits until the next connection would not use the reserve.
    async fn wait_for_descriptor(&self, metrics: &Metrics) {
        if !self.on_reserve.load(Ordering::Relaxed) {
            return;
        }
        if !descriptor_reserve::is_available() {
            metrics.rate_limited("descriptors");
            self.log_reserve_use();
        }
        while !descriptor_reserve::is_available() {
            tokio::time::sleep(ACCEPT_RETRY).await;
        }
        self.on_reserve.store(false, Ordering::Relaxed);
    }
}

/// Limits new connections per second, by client address.
#[derive(Debug)]
struct ConnectionRateLimiter {
    /// `None`: no limit.
    rates: Option<Mutex<KeyedRateLimiter<IpAddr>>>,
    started: Instant,
}

impl ConnectionRateLimiter {
    fn new(limits: &Limits) -> Self {
        let quota = per_second(
            limits.connections_per_second_per_address,
            limits.connection_burst_per_address,
        );
        let rates =
            quota.map(|quota| Mutex::new(KeyedRateLimiter::new(quota, ADDRESSES_METERED_MAX)));
        Self { rates, started: Instant::now() }
    }

    fn take(&self, address: IpAddr) -> bool {
        let Some(rates) = &self.rates else { return true };
        rates.lock().check(&address, self.started.elapsed()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::trusted_proxies::ProxiedListener, *};

    fn limits(text: &str) -> Limits {
        config::load_from(&format!("limits: {text}"), []).unwrap().limits
    }

    #[tokio::test]
    async fn each_address_has_its_own_rate_and_an_ipv6_network_counts_as_one() {
        let metrics = Metrics::new(false);
        let limits =
            limits("{connections_per_second_per_address: 1, connection_burst_per_address: 2}");
        let config = config::Config::default();
        let proxies = ProxyProtocol::new(&config, ProxiedListener::Http);
        let admission = ConnectionLimiter::new(&limits, proxies);
        let admitted =
            |address: &str| admission.admit(address.parse().unwrap(), &metrics).is_some();
        assert_eq!(
            ["10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2"].map(admitted),
            [true, true, false, true]
        );
        assert_eq!(
            ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"].map(admitted),
            [true, true, false, true]
        );
        assert!(!admitted("::ffff:10.0.0.1"), "the same in other words");
        assert!(
            metrics.render().contains(
                r#"mcp_rate_limited_total{scope="connections_per_second_per_address"} 3"#
            )
        );
    }

    #[test]
    fn without_a_rate_nothing_is_counted() {
        let newcomers = ConnectionRateLimiter::new(&limits(
            "{connections_per_second_per_address: 0, connection_burst_per_address: 1}",
        ));
        assert!((0..100).all(|_| newcomers.take(IpAddr::from([10, 0, 0, 1]))));
    }

    #[test]
    fn a_message_is_logged_once_in_each_interval() {
        let (log, first) = (LogPace::default(), Instant::now());
        let logged = [0, 1, 59, 60, 61].map(|after| log.is_due(first + Duration::from_secs(after)));
        assert_eq!(logged, [true, false, false, true, false]);
    }
}
