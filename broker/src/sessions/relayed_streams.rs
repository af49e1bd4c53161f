//! Streams from other replicas whose readers may be slow: answers on their way to clients, and both
//! directions of tunnels. A session reads nothing while its client leaves the answers unread.
//!
//! Two replicas share few connections, and all streams of a connection share its window. Unread bytes
//! of slow clients use this window. A round merges and adds up these bytes while there are many
//! streams. If they are too many, the broker cuts the largest streams of the tenant with the most of
//! them.
//!
//! Invariant: without a cut, few streams cannot hold more memory than the limit, so they need no round.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt::Debug,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use protocol::ids::TenantId;
use rules::limits::RELAYED_CHECK_INTERVAL;
use transport::peer::STREAM_MEMORY_BYTES_MAX;

use crate::{admission::outbox_budget::UnreadOwner, metrics::Metrics};

/// A stream from another replica that a client may slow down.
pub trait RelayedStream: Debug + Send + Sync {
    /// Merges the bytes that came from the other replica and that were not taken. Returns their
    /// number.
    fn merge_unread(&self) -> usize;

    /// Returns the number of pieces that the reader has taken, while the next one or the end waits
    /// for it.
    fn waiting_position(&self) -> Option<usize>;

    /// Drops the rest of the stream. It breaks off at its reader.
    fn cut(&self);
}

/// All relayed streams of the process.
#[derive(Debug)]
pub struct RelayedStreams {
    bytes_max: usize,
    metrics: Arc<Metrics>,
    state: Mutex<RelayState>,
}

#[derive(Debug, Default)]
struct RelayState {
    next: u64,
    streams: HashMap<u64, (UnreadOwner, Weak<dyn RelayedStream>)>,
    /// True while a task makes rounds.
    is_watched: bool,
}

/// An entry of a relayed stream. A drop removes it.
#[derive(Debug)]
pub struct RelayedStreamGuard {
    all: Arc<RelayedStreams>,
    number: u64,
}

impl Drop for RelayedStreamGuard {
    fn drop(&mut self) {
        self.all.state.lock().streams.remove(&self.number);
    }
}

impl RelayedStreams {
    pub fn new(bytes_max: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { bytes_max, metrics, state: Mutex::default() })
    }

    /// Watches a stream of this client. Must be called inside the runtime.
    pub fn watch(
        self: &Arc<Self>,
        owner: UnreadOwner,
        stream: Weak<dyn RelayedStream>,
    ) -> RelayedStreamGuard {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.streams.insert(number, (owner, stream));
        if !state.is_watched && self.are_many(&state) {
            state.is_watched = true;
            tokio::spawn(make_rounds(Arc::downgrade(self)));
        }
        drop(state);
        RelayedStreamGuard { all: self.clone(), number }
    }

    /// Returns whether the streams can hold more than the limit.
    fn are_many(&self, state: &RelayState) -> bool {
        state.streams.len() > self.bytes_max / STREAM_MEMORY_BYTES_MAX
    }

    /// Cuts streams until the others hold at most `bytes_max` unread bytes. Returns the number of cut
    /// streams.
    pub fn cut_beyond(&self, bytes_max: usize) -> usize {
        let known: Vec<_> = self.state.lock().streams.values().cloned().collect();
        let held = known.into_iter().filter_map(|(owner, stream)| {
            let stream = stream.upgrade()?;
            Some((owner, stream.merge_unread(), stream))
        });
        let largest = largest_beyond(held.collect(), bytes_max);
        for stream in &largest {
            stream.cut();
            self.metrics.dropped_notification("slow_client");
        }
        largest.len()
    }

    /// Cuts each stream whose reader takes nothing within this time of what waits for it. Never
    /// resolves. A drop is safe at any time.
    pub async fn cut_resting(&self, time: Duration) -> Infallible {
        loop {
            let waited = self.waiting().into_iter().map(|(number, position, _)| (number, position));
            let waited: HashMap<u64, usize> = waited.collect();
            tokio::time::sleep(time).await;
            for (number, position, stream) in self.waiting() {
                if waited.get(&number) == Some(&position) {
                    stream.cut();
                    self.metrics.dropped_notification("slow_client");
                }
            }
        }
    }

    /// Returns the streams that have something for their readers, with their positions.
    fn waiting(&self) -> Vec<(u64, usize, Arc<dyn RelayedStream>)> {
        let state = self.state.lock();
        let known = state.streams.iter().map(|(number, (_, stream))| (*number, stream.clone()));
        let known: Vec<_> = known.collect();
        drop(state);
        let waiting = known.into_iter().filter_map(|(number, stream)| {
            let stream = stream.upgrade()?;
            Some((number, stream.waiting_position()?, stream))
        });
        waiting.collect()
    }

    /// Makes one round. Returns false if the streams are few, so that no further round is needed.
    fn make_round(&self) -> bool {
        let mut state = self.state.lock();
        state.is_watched = self.are_many(&state);
        if !state.is_watched {
            return false;
        }
        drop(state);
        let cut = self.cut_beyond(self.bytes_max);
        if cut > 0 {
            tracing::warn!(
                cut,
                "streams from other replicas exceed their limit of unread bytes: the broker disconnects clients of the tenant with the most waiting bytes"
            );
        }
        true
    }
}

async fn make_rounds(all: Weak<RelayedStreams>) {
    loop {
        tokio::time::sleep(RELAYED_CHECK_INTERVAL).await;
        if !all.upgrade().is_some_and(|all| all.make_round()) {
            return;
        }
    }
}

/// The streams of one principal.
struct OwnerPart<T> {
    bytes: usize,
    /// Sorted by size.
    streams: Vec<(usize, T)>,
}

/// Returns the streams to cut so that the others have at most `bytes_max`: each time the largest one
/// of the largest principal of the largest tenant. A stream without unread bytes is never among them.
fn largest_beyond<T>(mut held: Vec<(UnreadOwner, usize, T)>, bytes_max: usize) -> Vec<T> {
    let mut total: usize = held.iter().map(|(_, bytes, _)| bytes).sum();
    let mut largest = Vec::new();
    if total <= bytes_max {
        return largest;
    }
    held.sort_by_key(|(_, bytes, _)| *bytes);
    let mut tenants: HashMap<Option<TenantId>, usize> = HashMap::new();
    let mut owners: HashMap<UnreadOwner, OwnerPart<T>> = HashMap::new();
    for (owner, bytes, stream) in held {
        *tenants.entry(owner.tenant().cloned()).or_default() += bytes;
        let part =
            owners.entry(owner).or_insert_with(|| OwnerPart { bytes: 0, streams: Vec::new() });
        part.bytes += bytes;
        part.streams.push((bytes, stream));
    }
    while total > bytes_max {
        let Some((tenant, of_tenant)) = tenants.iter_mut().max_by_key(|(_, bytes)| **bytes) else {
            break;
        };
        let of_owners = owners.iter_mut().filter(|(owner, _)| owner.tenant() == tenant.as_ref());
        let Some((_, part)) = of_owners.max_by_key(|(_, part)| part.bytes) else { break };
        let Some((bytes, stream)) = part.streams.pop() else { break };
        part.bytes -= bytes;
        *of_tenant -= bytes;
        total -= bytes;
        largest.push(stream);
    }
    largest
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use protocol::ids::PrincipalId;

    use super::*;

    /// Bytes that one stream can hold.
    const MEMORY: usize = STREAM_MEMORY_BYTES_MAX;

    fn owner(tenant: &str, principal: &str) -> UnreadOwner {
        UnreadOwner::new(TenantId::parse(tenant).unwrap(), PrincipalId::new(principal))
    }

    /// A stream with these numbers of unread bytes and of taken pieces.
    #[derive(Debug)]
    struct Held(AtomicUsize, AtomicUsize);

    impl Held {
        fn new(bytes: usize) -> Arc<Self> {
            Arc::new(Self(AtomicUsize::new(bytes), AtomicUsize::new(0)))
        }
    }

    impl RelayedStream for Held {
        fn merge_unread(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        fn waiting_position(&self) -> Option<usize> {
            (self.merge_unread() > 0).then(|| self.1.load(Ordering::Relaxed))
        }

        fn cut(&self) {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    fn watch(all: &Arc<RelayedStreams>, stream: &Arc<Held>, tenant: &str) -> RelayedStreamGuard {
        let handle: Weak<Held> = Arc::downgrade(stream);
        all.watch(owner(tenant, "one"), handle)
    }

    #[test]
    fn the_largest_streams_of_the_largest_tenant_are_cut() {
        let held = || {
            vec![
                (owner("a", "many"), 3, "small"),
                (owner("a", "many"), 4, "middle"),
                (owner("a", "single"), 5, "single"),
                (owner("b", "one"), 9, "other tenant"),
                (owner("a", "many"), 0, "read"),
            ]
        };
        assert!(largest_beyond(held(), 21).is_empty());
        assert_eq!(largest_beyond(held(), 20), ["middle"]);
        assert_eq!(largest_beyond(held(), 16), ["middle", "other tenant"]);
        let mut all = largest_beyond(held(), 0);
        all.sort_unstable();
        assert_eq!(all, ["middle", "other tenant", "single", "small"]);
    }

    #[tokio::test(start_paused = true)]
    async fn f_19_a_round_cuts_slow_readers_of_relayed_answers() {
        let all = RelayedStreams::new(2 * MEMORY, Arc::new(Metrics::new(false)));
        let streams = [MEMORY, MEMORY, MEMORY - 1, 0].map(Held::new);
        let watch = |stream: &Arc<Held>, tenant: &str| watch(&all, stream, tenant);
        let is_watched = || all.state.lock().is_watched;
        let mut entries: Vec<_> = streams[..2].iter().map(|stream| watch(stream, "a")).collect();
        assert!(!is_watched(), "two streams cannot exceed the limit");
        entries.extend(streams[2..].iter().map(|stream| watch(stream, "b")));
        assert!(is_watched());
        tokio::time::sleep(RELAYED_CHECK_INTERVAL * 2).await;
        let left = streams.each_ref().map(|stream| stream.merge_unread());
        assert_eq!(left.iter().sum::<usize>(), 2 * MEMORY - 1);
        assert_eq!(left[2], MEMORY - 1, "tenant `a` has the most");
        drop(entries);
        tokio::time::sleep(RELAYED_CHECK_INTERVAL * 2).await;
        assert!(!is_watched());
        assert!(all.state.lock().streams.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_stream_whose_reader_takes_nothing_is_cut_in_time() {
        let all = RelayedStreams::new(usize::MAX, Arc::new(Metrics::new(false)));
        let [resting, slow, late] = [5, 6, 0].map(Held::new);
        let _entries = [&resting, &slow, &late].map(|stream| watch(&all, stream, "a"));
        let time = Duration::from_secs(4);
        let reading = async {
            tokio::time::sleep(time / 2).await;
            slow.1.fetch_add(1, Ordering::Relaxed);
            late.0.fetch_add(7, Ordering::Relaxed);
            tokio::time::sleep(time).await;
        };
        tokio::select! {
            never = all.cut_resting(time) => match never {},
            () = reading => {}
        }
        let left = [resting, slow, late].map(|stream| stream.merge_unread());
        assert_eq!(left, [0, 6, 7]);
    }
}
