//! How many connections a listener takes, in all and from one address.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, Once, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use transport::descriptors;

use crate::{config::Limits, metrics::Metrics};

/// Wait while no connection can be accepted: no descriptor is left, and others have to end first.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The places of one listener.
#[derive(Debug)]
pub(super) struct Admission {
    room: Arc<Semaphore>,
    addresses: Addresses,
    /// The connection accepted last has a descriptor of the reserve.
    scarce: AtomicBool,
    told_of_reserve: Once,
}

/// One connection's place. Dropped with it.
#[derive(Debug)]
pub(super) struct Admitted {
    _permit: OwnedSemaphorePermit,
    _place: Place,
}

impl Admission {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            room: Arc::new(Semaphore::new(limits.connections)),
            addresses: Addresses::new(limits.connections_per_address),
            scarce: AtomicBool::new(false),
            told_of_reserve: Once::new(),
        }
    }

    /// A place for a connection that is there already; `None` when there is none for it.
    pub(super) fn admit(&self, address: IpAddr, metrics: &Metrics) -> Option<Admitted> {
        let Ok(permit) = self.room.clone().try_acquire_owned() else {
            metrics.rate_limited("connections");
            return None;
        };
        let Some(place) = self.addresses.enter(address) else {
            metrics.rate_limited("connections_per_address");
            return None;
        };
        Some(Admitted { _permit: permit, _place: place })
    }

    /// The next connection that is taken. Cancel-safe.
    ///
    /// At the limit of all nothing is accepted: newcomers wait in the kernel's queue until somebody leaves. So they do while
    /// only the reserve of file descriptors is left. One more of an address that has its share is closed.
    pub(super) async fn accept(&self, listener: &TcpListener, metrics: &Metrics) -> (TcpStream, SocketAddr, Admitted) {
        loop {
            let Ok(permit) = self.room.clone().acquire_owned().await else { return std::future::pending().await };
            self.descriptor_left(metrics).await;
            match listener.accept().await {
                Ok((socket, peer)) => match self.addresses.enter(peer.ip()) {
                    Some(place) => {
                        // It stays; the reserve has room for it.
                        if descriptors::is_of_reserve(&socket) {
                            self.scarce.store(true, Ordering::Relaxed);
                        }
                        return (socket, peer, Admitted { _permit: permit, _place: place });
                    }
                    None => metrics.rate_limited("connections_per_address"),
                },
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
        if !descriptors::is_left() {
            metrics.rate_limited("descriptors");
            // Once: under a flood it happens again with every connection that ends.
            self.told_of_reserve.call_once(|| {
                tracing::warn!("only the reserve of file descriptors is left: no connection is accepted until others end");
            });
        }
        while !descriptors::is_left() {
            tokio::time::sleep(ACCEPT_RETRY).await;
        }
        self.scarce.store(false, Ordering::Relaxed);
    }
}

/// Connections per client address.
#[derive(Debug, Clone)]
struct Addresses {
    max: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Addresses {
    fn new(max: usize) -> Self {
        Self { max, open: Arc::default() }
    }

    fn enter(&self, address: IpAddr) -> Option<Place> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_insert(0);
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Place { addresses: self.clone(), address })
    }
}

/// One connection's place; leaving gives it back.
#[derive(Debug)]
struct Place {
    addresses: Addresses,
    address: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.addresses.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}
