//! Delivered events of a stream, and their part of the budget of all streams. Unread events of a
//! stream whose client left count too, unless the budget of unread bytes counts them.
//!
//! A client may request delivered events again, so they stay for some time. All of them together
//! have a limit. Beyond it, the tenant with the most loses those of its oldest stream, as if they
//! had expired. Events that a connected reader is about to get again are the last ones it loses:
//! the limit holds for clients that read slowly too.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use rules::limits::OUTBOX_STEP_BYTES;

use super::{EventStream, StreamState};

/// The budget of delivered events of all tenants.
#[derive(Debug)]
pub struct RetainedBudget {
    bytes_max: usize,
    bytes: AtomicUsize,
    tenants: Mutex<Vec<Weak<TenantRetained>>>,
}

/// The delivered events of one tenant's streams.
#[derive(Debug)]
pub struct TenantRetained {
    all: Arc<RetainedBudget>,
    bytes: AtomicUsize,
    holders: Mutex<RetainedHolders>,
}

/// Streams that hold delivered events, in the order in which they lose them.
#[derive(Debug, Default)]
struct RetainedHolders {
    added: u64,
    in_order: BTreeMap<HolderKey, Weak<EventStream>>,
}

/// Position of a stream among its tenant's holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct HolderKey {
    /// Set for a stream whose reader needed its delivered events when it was the oldest one.
    is_read_again: bool,
    added: u64,
}

/// A stream's account in the budget.
#[derive(Debug)]
pub(super) struct RetainedAccount {
    tenant: Arc<TenantRetained>,
    stream: Weak<EventStream>,
}

/// Delivered bytes of a stream, as counted in the budget.
#[derive(Debug, Default)]
pub(super) struct RetainedShare {
    bytes: usize,
    holder: Option<HolderKey>,
}

impl RetainedBudget {
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { bytes_max, bytes: AtomicUsize::new(0), tenants: Mutex::default() })
    }

    /// Adds a tenant.
    pub fn new_tenant(self: &Arc<Self>) -> Arc<TenantRetained> {
        let tenant = Arc::new(TenantRetained {
            all: self.clone(),
            bytes: AtomicUsize::new(0),
            holders: Mutex::default(),
        });
        let mut tenants = self.tenants.lock();
        tenants.retain(|tenant| tenant.strong_count() > 0);
        tenants.push(Arc::downgrade(&tenant));
        tenant
    }

    /// Drops events until the budget suffices. No stream may be locked.
    fn enforce(&self) {
        while self.bytes.load(Ordering::Relaxed) > self.bytes_max {
            let first = self.largest_tenant().and_then(|tenant| tenant.take_first());
            let Some((stream, is_read_again)) = first else {
                return; // another thread drops the events now
            };
            stream.drop_delivered(is_read_again);
        }
    }

    fn largest_tenant(&self) -> Option<Arc<TenantRetained>> {
        let tenants = self.tenants.lock();
        tenants
            .iter()
            .filter_map(Weak::upgrade)
            .max_by_key(|tenant| tenant.bytes.load(Ordering::Relaxed))
    }
}

impl TenantRetained {
    /// Updates the account of a stream that holds `bytes` delivered bytes now.
    fn recount(&self, part: &mut RetainedShare, bytes: usize, stream: &Weak<EventStream>) {
        let before = std::mem::replace(&mut part.bytes, bytes);
        if bytes >= before {
            self.bytes.fetch_add(bytes - before, Ordering::Relaxed);
            self.all.bytes.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - bytes, Ordering::Relaxed);
            self.all.bytes.fetch_sub(before - bytes, Ordering::Relaxed);
        }
        match part.holder {
            None if bytes > 0 => self.place_holder(part, false, stream),
            Some(key) if bytes == 0 => {
                self.holders.lock().in_order.remove(&key);
                part.holder = None;
            }
            _ => {}
        }
    }

    /// Places a stream after the others of its kind.
    fn place_holder(
        &self,
        part: &mut RetainedShare,
        is_read_again: bool,
        stream: &Weak<EventStream>,
    ) {
        let mut holders = self.holders.lock();
        if let Some(before) = part.holder {
            holders.in_order.remove(&before);
        }
        holders.added += 1;
        let key = HolderKey { is_read_again, added: holders.added };
        holders.in_order.insert(key, stream.clone());
        part.holder = Some(key);
    }

    /// Removes the stream that loses its events first. Returns whether its reader needs them.
    fn take_first(&self) -> Option<(Arc<EventStream>, bool)> {
        let mut holders = self.holders.lock();
        while let Some((key, stream)) = holders.in_order.pop_first() {
            // A stream that is being dropped updates its account by itself.
            if let Some(stream) = stream.upgrade() {
                return Some((stream, key.is_read_again));
            }
        }
        None
    }
}

impl EventStream {
    /// Counts the stream's delivered events from now on.
    pub fn attach_retained(self: &Arc<Self>, tenant: &Arc<TenantRetained>) {
        let account = RetainedAccount { tenant: tenant.clone(), stream: Arc::downgrade(self) };
        let mut state = self.lock();
        if self.retained_account.set(account).is_ok() {
            self.update_retained(&mut state);
        }
    }

    /// Updates the account with the present number of delivered bytes.
    pub(super) fn update_retained(&self, state: &mut StreamState) {
        let Some(account) = self.retained_account.get() else { return };
        let bytes = state.log.delivered_bytes() + state.small_unread_bytes();
        if bytes != state.counted.retained.bytes {
            account.tenant.recount(&mut state.counted.retained, bytes, &account.stream);
        }
    }

    /// Enforces the budget after a delivery. No stream may be locked.
    pub(super) fn enforce_retained(&self) {
        if let Some(account) = self.retained_account.get() {
            account.tenant.all.enforce();
        }
    }

    /// Returns the stream's part to the budget.
    pub(super) fn release_retained(&self) {
        let Some(account) = self.retained_account.get() else { return };
        account.tenant.recount(&mut self.lock().counted.retained, 0, &account.stream);
    }

    /// Drops the delivered events of a stream that was taken from the holders. A client that
    /// requests them again learns of the loss. Those after the position of a connected reader stay,
    /// and undelivered ones, unless `is_read_again` is set and there are no others.
    fn drop_delivered(&self, is_read_again: bool) {
        let Some(RetainedAccount { tenant, stream }) = self.retained_account.get() else { return };
        let mut guard = self.lock();
        let state = &mut *guard;
        let before = state.log.delivered_bytes();
        state.log.discard_through(state.reader.expirable_through());
        if is_read_again && state.log.delivered_bytes() == before {
            state.log.discard_through(u64::MAX);
        }
        if is_read_again && state.small_unread_bytes() > 0 {
            state.log.cut();
        }
        state.log_trimmed(self.number);
        let bytes = state.log.delivered_bytes() + state.small_unread_bytes();
        if bytes > 0 {
            tenant.place_holder(&mut state.counted.retained, true, stream);
        }
        tenant.recount(&mut state.counted.retained, bytes, stream);
    }
}

impl StreamState {
    /// Returns the unread bytes of a stream that its client may resume, and that the budget of unread
    /// bytes does not count.
    fn small_unread_bytes(&self) -> usize {
        let is_left = self.resumable && self.log.is_finite() && !self.reader.is_connected();
        let unread = self.log.unread_bytes();
        if is_left && !self.log.was_cut() && unread < OUTBOX_STEP_BYTES { unread } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use rules::event_log::{EventKind, LogLimits, PositionGone};

    use super::*;
    use crate::sessions::stream::{StreamEnd, StreamItem};

    /// Returns a stream whose client has received an answer of this size.
    async fn delivered(tenant: &Arc<TenantRetained>, bytes: usize) -> Arc<EventStream> {
        let limits = LogLimits { events: 10, bytes: 1_000 };
        let stream = EventStream::for_answers(2, limits, Vec::new(), 1);
        stream.attach_retained(tenant);
        stream.push(Instant::now(), EventKind::Answer, Bytes::from(vec![b' '; bytes])).unwrap();
        let mut reader = stream.read_from(0).unwrap();
        assert!(matches!(reader.next().await, StreamItem::Event(_)));
        stream
    }

    #[tokio::test]
    async fn the_tenant_with_the_most_delivered_bytes_loses_its_oldest() {
        let all = RetainedBudget::new(10_000);
        let [small, large] = [(); 2].map(|()| all.new_tenant());
        let kept = delivered(&small, 3_000).await;
        let lost = delivered(&large, 4_000).await;
        let later = delivered(&large, 3_000).await;
        assert_eq!(all.bytes.load(Ordering::Relaxed), 10_000);
        let last = delivered(&small, 2_000).await;
        assert_eq!(all.bytes.load(Ordering::Relaxed), 8_000);
        assert_eq!(lost.read_from(0).err(), Some(PositionGone), "as an expired event");
        assert!(lost.read_from(1).is_ok(), "a client that has everything lost nothing");
        for stream in [&kept, &later, &last] {
            assert!(stream.read_from(0).is_ok());
        }
    }

    #[tokio::test]
    async fn a_reader_that_gets_events_again_loses_them_last() {
        let all = RetainedBudget::new(10_000);
        let tenant = all.new_tenant();
        let oldest = EventStream::general(3, LogLimits { events: 10, bytes: 10_000 });
        oldest.attach_retained(&tenant);
        let mut earlier = oldest.read_from(0).unwrap();
        for _ in 0..4 {
            let frame = Bytes::from(vec![b' '; 2_000]);
            oldest.push(Instant::now(), EventKind::Message, frame).unwrap();
            assert!(matches!(earlier.next().await, StreamItem::Event(_)));
        }
        let mut resumed = oldest.read_from(0).unwrap();
        let later = delivered(&tenant, 1_000).await;
        let mut kept = Vec::new();
        let mut add = async |bytes| {
            let other = all.new_tenant();
            kept.push((delivered(&other, bytes).await, other));
            all.bytes.load(Ordering::Relaxed)
        };
        for sequence in 1..=2 {
            let item = resumed.next().await;
            assert!(matches!(item, StreamItem::Event(event) if event.sequence == sequence));
            if sequence == 1 {
                assert_eq!(add(1_500).await, 8_500, "the event that the reader has");
                assert!(later.read_from(0).is_ok());
            }
        }
        assert_eq!(add(1_800).await, 9_300);
        assert!(later.read_from(0).is_err(), "no reader needs it");
        assert_eq!(add(1_000).await, 8_300, "the next event that the reader has");
        assert_eq!(add(1_900).await, 6_200, "there is nothing else");
        assert!(matches!(resumed.next().await, StreamItem::Ended(StreamEnd::Lost)));
        assert!(tenant.holders.lock().in_order.is_empty());
    }

    #[tokio::test]
    async fn expired_and_dropped_streams_return_their_bytes() {
        let all = RetainedBudget::new(10_000);
        let tenant = all.new_tenant();
        let (expired, dropped) = (delivered(&tenant, 500).await, delivered(&tenant, 700).await);
        expired.expire(Instant::now() + Duration::from_secs(9), Duration::from_secs(1));
        assert_eq!(all.bytes.load(Ordering::Relaxed), 700);
        drop(dropped);
        assert_eq!(
            (all.bytes.load(Ordering::Relaxed), tenant.bytes.load(Ordering::Relaxed)),
            (0, 0)
        );
        assert!(tenant.holders.lock().in_order.is_empty());
    }

    #[tokio::test]
    async fn unread_events_of_a_client_that_left_are_counted() {
        let all = RetainedBudget::new(10_000);
        let tenant = all.new_tenant();
        let left = async || {
            let limits = LogLimits { events: 10, bytes: 100_000 };
            let stream = EventStream::for_answers(2, limits, Vec::new(), 1);
            stream.attach_retained(&tenant);
            stream.mark_resumable();
            let reader = stream.read_from(0).unwrap();
            let answer = Bytes::from(vec![b' '; 6_000]);
            stream.push(Instant::now(), EventKind::Answer, answer).unwrap();
            drop(reader);
            stream
        };
        let first = left().await;
        assert_eq!(all.bytes.load(Ordering::Relaxed), 6_000);
        let mut again = first.read_from(0).unwrap();
        assert_eq!(all.bytes.load(Ordering::Relaxed), 0, "its client is back");
        assert!(matches!(again.next().await, StreamItem::Event(_)));
        drop((again, first));
        let (oldest, newest) = (left().await, left().await);
        assert_eq!(all.bytes.load(Ordering::Relaxed), 6_000);
        assert_eq!(oldest.read_from(0).err(), Some(PositionGone), "as an expired event");
        let mut kept = newest.read_from(0).unwrap();
        assert!(matches!(kept.next().await, StreamItem::Event(_)));
    }

    #[tokio::test]
    async fn unread_events_are_not_counted() {
        let all = RetainedBudget::new(10);
        let tenant = all.new_tenant();
        let stream = EventStream::general(3, LogLimits { events: 10, bytes: 1_000 });
        stream.attach_retained(&tenant);
        stream.push(Instant::now(), EventKind::Message, Bytes::from_static(b"unread")).unwrap();
        assert_eq!(all.bytes.load(Ordering::Relaxed), 0);
    }
}
