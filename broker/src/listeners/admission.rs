//! How many connections a listener takes, in all and from one address.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};

use crate::{config::Limits, metrics::Metrics};

/// Wait after a connection could not be accepted: most often no descriptor is left, and others have to end first.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// The places of one listener.
#[derive(Debug)]
pub(super) struct Admission {
    room: Arc<Semaphore>,
    addresses: Addresses,
}

/// One connection's place. Dropped with it.
#[derive(Debug)]
pub(super) struct Admitted {
    _permit: OwnedSemaphorePermit,
    _place: Place,
}

impl Admission {
    pub(super) fn new(limits: &Limits) -> Self {
        Self { room: Arc::new(Semaphore::new(limits.connections)), addresses: Addresses::new(limits.connections_per_address) }
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
    /// At the limit of all nothing is accepted: newcomers wait in the kernel's queue until somebody leaves. One more of an
    /// address that has its share is closed.
    pub(super) async fn accept(&self, listener: &TcpListener, metrics: &Metrics) -> (TcpStream, SocketAddr, Admitted) {
        loop {
            let Ok(permit) = self.room.clone().acquire_owned().await else { return std::future::pending().await };
            match listener.accept().await {
                Ok((socket, peer)) => match self.addresses.enter(peer.ip()) {
                    Some(place) => return (socket, peer, Admitted { _permit: permit, _place: place }),
                    None => metrics.rate_limited("connections_per_address"),
                },
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
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
