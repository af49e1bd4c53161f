//! Counts the requests in flight to each server with TLS, and spreads them over connections.
//!
//! Used by `https_client`. The HTTP library opens one HTTP/2 connection to a server for all
//! requests, and a request waits without limit once the server permits no further stream. Event
//! streams can last for days, so a few hundred of them would stop every other request. So the
//! requests to a server fill one pool of the library after the other, and each pool has its own
//! connection. Invariants:
//! - A pool has at most [`REQUESTS_PER_POOL_MAX`] requests to a server, unless all pools have as
//!   many.
//! - A request occupies its place until the end or the drop of its response.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

/// Requests in flight to one server through one pool. Servers should permit at least 100 streams
/// (RFC 9113, 6.5.2).
const REQUESTS_PER_POOL_MAX: usize = 64;
/// Pools of a client.
const POOLS_MAX: usize = 1_000;
/// Servers without a request whose entry stays.
const UNUSED_SERVERS_MAX: usize = 256;

/// Requests to a server in each pool. The operator names the servers, so no client can choose names
/// with colliding hashes.
type RequestCounts = HashMap<Arc<str>, Vec<usize>, foldhash::fast::RandomState>;

/// Requests in flight of one client. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamPermits(Arc<Mutex<RequestCounts>>);

/// The place of one request in a pool.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    permits: StreamPermits,
    server: Arc<str>,
    pool: usize,
}

impl StreamPermits {
    /// Takes a place for a request to a server (host and port).
    pub(crate) fn take(&self, server: &str) -> StreamPermit {
        let mut counts = self.0.lock();
        let server = match counts.get_key_value(server) {
            Some((server, _)) => Arc::clone(server),
            None => server.into(),
        };
        let pools = counts.entry(Arc::clone(&server)).or_default();
        let has_place = |count: &usize| *count < REQUESTS_PER_POOL_MAX;
        let pool = match pools.iter().position(has_place) {
            Some(pool) => pool,
            None if pools.len() < POOLS_MAX => {
                pools.push(0);
                pools.len() - 1
            }
            None => (0..POOLS_MAX).min_by_key(|pool| pools[*pool]).unwrap_or_default(),
        };
        pools[pool] += 1;
        drop(counts);
        StreamPermit { permits: self.clone(), server, pool }
    }
}

impl StreamPermit {
    /// Returns the number of the pool, below [`POOLS_MAX`].
    pub(crate) fn pool(&self) -> usize {
        self.pool
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut counts = self.permits.0.lock();
        let Some(pools) = counts.get_mut(&self.server) else { return };
        pools[self.pool] -= 1;
        let is_unused = pools.iter().all(|count| *count == 0);
        if is_unused && counts.len() > UNUSED_SERVERS_MAX {
            counts.remove(&self.server);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "backend.test:443";

    #[test]
    fn requests_fill_one_pool_after_the_other_and_free_their_places() {
        let permits = StreamPermits::default();
        let mut first: Vec<_> = (0..REQUESTS_PER_POOL_MAX).map(|_| permits.take(SERVER)).collect();
        assert!(first.iter().all(|permit| permit.pool() == 0));
        let second = permits.take(SERVER);
        assert_eq!(second.pool(), 1);
        assert_eq!(permits.take("other.test:443").pool(), 0, "each server has its own count");
        drop(first.pop());
        assert_eq!(permits.take(SERVER).pool(), 0, "a place is free");
    }

    #[test]
    fn requests_beyond_all_places_are_spread_evenly() {
        let permits = StreamPermits::default();
        let places = REQUESTS_PER_POOL_MAX * POOLS_MAX;
        let _full: Vec<_> = (0..places).map(|_| permits.take(SERVER)).collect();
        let further: Vec<_> = (0..POOLS_MAX).map(|_| permits.take(SERVER)).collect();
        let pools: Vec<_> = further.iter().map(StreamPermit::pool).collect();
        assert_eq!(pools, (0..POOLS_MAX).collect::<Vec<_>>());
    }

    #[test]
    fn entries_of_servers_without_requests_are_bounded() {
        let permits = StreamPermits::default();
        for number in 0..2 * UNUSED_SERVERS_MAX {
            drop(permits.take(&format!("{number}.test:443")));
        }
        assert!(permits.0.lock().len() <= UNUSED_SERVERS_MAX);
    }
}
