//! Unread messages of a stream: their move to another stream, and their part of the budget of all
//! clients.

use std::{
    fmt::Debug,
    ops::AddAssign,
    sync::{Arc, OnceLock, Weak, atomic::Ordering},
    time::Instant,
};

use rules::{
    event_log::{Event, EventKind, Topic},
    limits::OUTBOX_STEP_BYTES,
};

use super::{EventStream, StreamState, wakers::unlock_and_wake};
use crate::{
    admission::outbox_budget::{HolderId, OutboxBudget, UnreadOwner},
    metrics::Metrics,
};

/// What holds bytes that a client has not read.
pub trait UnreadHolder: Debug + Send + Sync {
    /// Disconnects the client and gives its bytes back to the budget. Returns whether it was not
    /// cut before.
    fn cut(&self) -> bool;

    /// Returns the number of the stream, for the log.
    fn stream_number(&self) -> Option<u64>;
}

/// The budget of unread bytes of all clients of the process.
#[derive(Debug)]
pub struct UnreadBudget {
    waiting: OutboxBudget<Weak<dyn UnreadHolder>>,
    metrics: Arc<Metrics>,
}

impl UnreadBudget {
    pub fn new(bytes_max: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { waiting: OutboxBudget::new(bytes_max), metrics })
    }

    pub fn new_holder(&self) -> HolderId {
        self.waiting.new_holder()
    }

    /// Updates the steps of a holder with `bytes` unread bytes that held `held` steps. Returns its
    /// new number of steps.
    pub fn recount(
        &self,
        holder: HolderId,
        held: usize,
        bytes: usize,
        handle: impl FnOnce() -> (UnreadOwner, Weak<dyn UnreadHolder>),
    ) -> usize {
        let steps = self.waiting.recount(holder, held, bytes, handle);
        if steps != held {
            self.metrics.limits.outbox_bytes(held * OUTBOX_STEP_BYTES, steps * OUTBOX_STEP_BYTES);
        }
        steps
    }

    /// Cuts holders until the budget suffices, each time the largest one of the tenant with the most
    /// unread bytes. None may be locked.
    pub fn enforce(&self) {
        while let Some(largest) = self.waiting.to_be_cut().and_then(|holder| holder.upgrade()) {
            if !largest.cut() {
                continue; // another sender has found it too
            }
            tracing::warn!(
                stream = largest.stream_number(),
                "limits.outbox_bytes_total is exceeded: the broker disconnects a client of the tenant with the most waiting bytes"
            );
            self.metrics.rate_limited("outbox_bytes_total");
        }
    }
}

/// A stream's account in the budget.
#[derive(Debug)]
pub(super) struct UnreadAccount {
    budget: Arc<UnreadBudget>,
    holder: HolderId,
    /// Unset while the caller is unknown.
    owner: OnceLock<UnreadOwner>,
    stream: Weak<EventStream>,
}

impl UnreadAccount {
    fn recount(&self, held: usize, bytes: usize) -> usize {
        let source = || {
            (
                self.owner.get().cloned().unwrap_or_default(),
                self.stream.clone() as Weak<dyn UnreadHolder>,
            )
        };
        self.budget.recount(self.holder, held, bytes, source)
    }
}

/// Waiting messages that a stream does not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Number of messages that found no capacity.
    pub count: usize,
    /// True if the client must know that messages are missing.
    pub is_gap: bool,
}

impl AddAssign for LeftOut {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.is_gap |= other.is_gap;
    }
}

impl EventStream {
    /// Returns whether waiting messages are lost since the last call, and the client must know.
    pub fn take_lost_unread(&self) -> bool {
        self.lock().log.take_lost_unread()
    }

    /// Returns whether messages wait for a connection, or are lost, and the client must know if it
    /// cannot get them.
    pub fn is_missed(&self) -> bool {
        let mut state = self.lock();
        state.log.take_lost_unread() || state.log.has_unread()
    }

    /// Takes the messages that no connection has read, for another stream.
    pub fn take_unread(&self) -> Vec<Event> {
        let mut state = self.lock();
        let unread = state.log.take_unread();
        if let (Some(last), Some(sink)) = (unread.last(), &mut state.sink) {
            sink.trim(self.number, last.sequence); // the log cannot take back its end, so all of it goes
        }
        self.update_unread(&mut state);
        unread
    }

    /// Takes over messages that another stream could not deliver, as far as there is capacity.
    /// Returns those that found none.
    pub fn adopt(&self, now: Instant, events: Vec<Event>) -> LeftOut {
        let mut state = self.lock();
        let mut left_out = LeftOut::default();
        for event in events {
            let may_exceed = event.topic.as_ref().is_some_and(Topic::may_exceed);
            if may_exceed || state.log.has_capacity_for(event.frame.len()) {
                let _fits = state.add(self.number, now, event.kind, event.topic, event.frame);
            } else {
                left_out += LeftOut { count: 1, is_gap: event.kind != EventKind::Droppable };
            }
        }
        self.update_unread(&mut state);
        unlock_and_wake(state);
        left_out
    }

    /// Counts the stream's unread bytes from now on. `owner` is `None` if the caller is unknown.
    pub fn attach_budget(self: &Arc<Self>, all: &Arc<UnreadBudget>, owner: Option<UnreadOwner>) {
        let counted = UnreadAccount {
            budget: all.clone(),
            holder: all.new_holder(),
            owner: owner.map(OnceLock::from).unwrap_or_default(),
            stream: Arc::downgrade(self),
        };
        let mut state = self.lock();
        if self.unread_account.set(counted).is_ok() {
            self.update_unread(&mut state);
        }
    }

    /// Sets the owner of the stream, unless it has one.
    pub fn set_unread_owner(&self, owner: impl FnOnce() -> UnreadOwner) {
        if let Some(counted) = self.unread_account.get() {
            counted.owner.get_or_init(owner);
        }
    }

    /// Updates the account with the present number of unread bytes.
    pub(super) fn update_unread(&self, state: &mut StreamState) {
        self.update_retained(state);
        let Some(counted) = self.unread_account.get() else { return };
        let unread = if state.log.was_cut() { 0 } else { state.log.unread_bytes() };
        let steps = counted.recount(state.counted.unread_steps, unread);
        let before = std::mem::replace(&mut state.counted.unread_steps, steps);
        if steps != before {
            self.grown.store(true, Ordering::Relaxed);
        }
    }

    /// Enforces the budget after an addition, which may cut this or another stream. No stream may
    /// be locked.
    pub(super) fn enforce_budget(&self) {
        if self.grown.swap(false, Ordering::Relaxed)
            && let Some(counted) = self.unread_account.get()
        {
            counted.budget.enforce();
        }
    }
}

impl UnreadHolder for EventStream {
    fn cut(&self) -> bool {
        let mut state = self.lock();
        let is_first = !state.log.was_cut();
        state.log.cut();
        self.update_unread(&mut state);
        unlock_and_wake(state);
        is_first
    }

    fn stream_number(&self) -> Option<u64> {
        Some(self.number)
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.release_retained();
        let steps = self.lock().counted.unread_steps;
        if let Some(counted) = self.unread_account.get() {
            counted.recount(steps, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::ids::{PrincipalId, TenantId};
    use rules::event_log::LogLimits;

    use super::*;
    use crate::auth::Caller;

    const STEP: usize = OUTBOX_STEP_BYTES;

    fn stream(all: &Arc<UnreadBudget>) -> Arc<EventStream> {
        stream_of(all, None)
    }

    fn stream_of(all: &Arc<UnreadBudget>, owner: Option<UnreadOwner>) -> Arc<EventStream> {
        let limits = LogLimits { events: 1_000, bytes: 100 * STEP };
        let stream = EventStream::outbox(1, limits, Some(0));
        stream.attach_budget(all, owner);
        stream
    }

    fn push(stream: &EventStream, bytes: usize) -> bool {
        stream.push(Instant::now(), EventKind::Answer, Bytes::from(vec![b' '; bytes])).is_ok()
    }

    #[test]
    fn r16_only_the_client_with_the_most_unread_bytes_is_cut() {
        let metrics = Arc::new(Metrics::new(false));
        let all = UnreadBudget::new(4 * STEP, metrics.clone());
        let [small, large, last] = [stream(&all), stream(&all), stream(&all)];
        assert!(push(&small, STEP + 1) && push(&large, 2 * STEP) && push(&last, STEP));
        assert_eq!(all.waiting.bytes(), 4 * STEP);
        assert!(push(&last, STEP / 2) && push(&last, STEP / 2));
        assert!(!push(&large, 1) || !push(&last, 1), "one of the two that hold most");
        assert!(push(&small, 1));
        assert!(all.waiting.bytes() <= 4 * STEP);
        assert!(
            metrics.render().contains(r#"mcp_rate_limited_total{scope="outbox_bytes_total"} 1"#)
        );
    }

    #[test]
    fn r16_many_small_clients_of_one_tenant_do_not_displace_the_large_one_of_another() {
        let all = UnreadBudget::new(8 * STEP, Arc::new(Metrics::new(false)));
        let owner = |tenant: &str| {
            let tenant = TenantId::parse(tenant).unwrap();
            UnreadOwner::from(&Caller::new(tenant, PrincipalId::new("one"), None))
        };
        let small: Vec<_> = (0..8).map(|_| stream_of(&all, Some(owner("a")))).collect();
        assert!(small.iter().all(|one| push(one, STEP)));
        // Its tenant is known later, like that of a connection of 2026-07-28.
        let large = stream_of(&all, None);
        large.set_unread_owner(|| owner("b"));
        assert!(
            push(&large, 3 * STEP) && push(&large, 1),
            "the largest client, but not of the largest tenant"
        );
        assert_eq!(small.iter().filter(|one| !push(one, 1)).count(), 3);
        assert_eq!(all.waiting.bytes(), 8 * STEP);
    }

    #[test]
    fn read_and_dropped_messages_free_the_budget() {
        let all = UnreadBudget::new(4 * STEP, Arc::new(Metrics::new(false)));
        let shown = || {
            all.metrics
                .render()
                .lines()
                .find_map(|line| line.strip_prefix("mcp_outbox_bytes ")?.parse().ok())
        };
        let (read, dropped) = (stream(&all), stream(&all));
        let mut reader = read.read_from(0).unwrap();
        assert!(push(&read, 2 * STEP) && push(&dropped, 2 * STEP));
        assert!(reader.try_next_batch(10, STEP, &mut Vec::new()).is_some());
        assert_eq!((all.waiting.bytes(), shown()), (2 * STEP, Some(2 * STEP)));
        drop(dropped);
        assert_eq!((all.waiting.bytes(), shown()), (0, Some(0)));
    }
}
