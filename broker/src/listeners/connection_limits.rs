//! How many connections a listener takes, in all and from one address, and how many new ones of one address in a second.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use transport::descriptor_reserve;

use super::{
    handoff_listener::HandoffListener,
    trusted_proxies::{ClientAddress, ProxyProtocol},
};
use crate::{
    config::Limits,
    limits::ADDRESSES_METERED_MAX,
    metrics::Metrics,
    rules::{
        client_network::client_network,
        local_rate_limit::{KeyedRateLimiter, per_second},
    },
};

/// Wait while no connection can be accepted: no descriptor is left, and others have to end first.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The places of one listener.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    room: Arc<Semaphore>,
    addresses: AddressCounts,
    newcomers: ConnectionRateLimiter,
    proxies: ProxyProtocol,
    /// The connection accepted last has a descriptor of the reserve.
    scarce: AtomicBool,
    told_of_reserve: Once,
}

/// One connection's place. Dropped with it.
#[derive(Debug)]
pub(super) struct ListenerPermit {
    _permit: OwnedSemaphorePermit,
    /// Among those of its address. `None`: a trusted proxy has it, whose connections are of many clients.
    place: Option<AddressSlot>,
}

impl ConnectionLimiter {
    pub(super) fn new(limits: &Limits, proxies: ProxyProtocol) -> Self {
        Self {
            proxies,
            room: Arc::new(Semaphore::new(limits.connections)),
            addresses: AddressCounts::new(limits.connections_per_address),
            newcomers: ConnectionRateLimiter::new(limits),
            scarce: AtomicBool::new(false),
            told_of_reserve: Once::new(),
        }
    }

    /// A place for a connection that is there already; `None` when there is none for it.
    pub(super) fn admit(&self, address: IpAddr, metrics: &Metrics) -> Option<ListenerPermit> {
        let Ok(permit) = self.room.clone().try_acquire_owned() else {
            metrics.rate_limited("connections");
            return None;
        };
        let place = self.let_in(address, metrics)?;
        Some(ListenerPermit { _permit: permit, place: Some(place) })
    }

    /// Whose connection it is that was accepted, which takes the client's place where a trusted proxy names it. `None`: it does not
    /// come in.
    pub(super) async fn identify(
        &self,
        socket: &mut TcpStream,
        peer: SocketAddr,
        admitted: &mut ListenerPermit,
        metrics: &Metrics,
    ) -> Option<ClientAddress> {
        let client = self.proxies.client(socket, peer).await.ok()?;
        if admitted.place.is_none() && !self.proxies.proxies().trusts(client.address()) {
            admitted.place = Some(self.let_in(client.address(), metrics)?);
        }
        Some(client)
    }

    /// As far as its address goes.
    fn let_in(&self, address: IpAddr, metrics: &Metrics) -> Option<AddressSlot> {
        let address = client_network(address);
        if !self.newcomers.take(address) {
            metrics.rate_limited("connections_per_second_per_address");
            return None;
        }
        let place = self.addresses.enter(address);
        if place.is_none() {
            metrics.rate_limited("connections_per_address");
        }
        place
    }

    /// The next connection that is taken. Cancel-safe.
    ///
    /// At the limit of all nothing is accepted: newcomers wait in the kernel's queue until somebody leaves. So they do while
    /// only the reserve of file descriptors is left. One more of an address that has its share, or comes too often, is closed.
    pub(super) async fn accept(
        &self,
        listener: &HandoffListener,
        metrics: &Metrics,
    ) -> (TcpStream, SocketAddr, ListenerPermit) {
        loop {
            let Ok(permit) = self.room.clone().acquire_owned().await else {
                return std::future::pending().await;
            };
            self.descriptor_left(metrics).await;
            match listener.accept().await {
                Ok((socket, peer)) => {
                    let place = match self.proxies.proxies().trusts(peer.ip()) {
                        true => None,
                        false => match self.let_in(peer.ip(), metrics) {
                            None => continue,
                            place => place,
                        },
                    };
                    // It stays; the reserve has room for it.
                    if descriptor_reserve::is_of_reserve(&socket) {
                        self.scarce.store(true, Ordering::Relaxed);
                    }
                    return (socket, peer, ListenerPermit { _permit: permit, place });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    /// Waits until a further connection would not be of the reserve.
    async fn descriptor_left(&self, metrics: &Metrics) {
        if !self.scarce.load(Ordering::Relaxed) {
            return;
        }
        if !descriptor_reserve::is_left() {
            metrics.rate_limited("descriptors");
            // Once: under a flood it happens again with every connection that ends.
            self.told_of_reserve.call_once(|| {
                tracing::warn!("only the reserve of file descriptors is left: no connection is accepted until others end");
            });
        }
        while !descriptor_reserve::is_left() {
            tokio::time::sleep(ACCEPT_RETRY).await;
        }
        self.scarce.store(false, Ordering::Relaxed);
    }
}

/// New connections per second, by client address.
#[derive(Debug)]
struct ConnectionRateLimiter {
    /// `None`: there is no limit.
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

/// Connections per client address.
#[derive(Debug, Clone)]
struct AddressCounts {
    max: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl AddressCounts {
    fn new(max: usize) -> Self {
        Self { max, open: Arc::default() }
    }

    fn enter(&self, address: IpAddr) -> Option<AddressSlot> {
        let mut open = self.open.lock();
        let count = open.entry(address).or_insert(0);
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(AddressSlot { addresses: self.clone(), address })
    }
}

/// One connection's place; leaving gives it back.
#[derive(Debug)]
struct AddressSlot {
    addresses: AddressCounts,
    address: IpAddr,
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut open = self.addresses.open.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(text: &str) -> Limits {
        crate::config::load_from(&format!("limits: {text}"), []).unwrap().limits
    }

    #[tokio::test]
    async fn an_address_has_a_rate_of_its_own_and_an_ipv6_network_is_one() {
        let metrics = Metrics::new(false);
        let limits =
            limits("{connections_per_second_per_address: 1, connection_burst_per_address: 2}");
        let admission =
            ConnectionLimiter::new(&limits, ProxyProtocol::off(&crate::config::Config::default()));
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
}
