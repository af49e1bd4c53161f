//! Bounds of an incomplete message: its time, and its part of a memory budget.
//!
//! A reader without a permit reads no further, so its peer waits. One reader of a budget may exceed
//! it. Readers that hold parts of all permits thus do not wait for each other for ever.
//!
//! A complete message keeps its part until its owner asks for the next one. A client that does not
//! read its answers makes the owner wait, and the message with it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep_until},
};
use tokio_util::sync::PollSemaphore;

use crate::frame::ReadError;

/// Bytes that one permit covers.
const PERMIT_BYTES: usize = 1024;
/// Bytes of an incomplete message that need no permit.
pub const FREE_BYTES: usize = 8 * 1024;

/// A memory budget for messages of several connections.
#[derive(Debug, Clone)]
pub struct MessageBudget {
    bytes: Arc<Semaphore>,
    /// Has one permit: the right to exceed the budget.
    overdraft: Arc<Semaphore>,
}

impl MessageBudget {
    pub fn new(bytes_max: usize) -> Self {
        let permits = (bytes_max / PERMIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self { bytes: Arc::new(Semaphore::new(permits)), overdraft: Arc::new(Semaphore::new(1)) }
    }
}

#[cfg(test)]
impl MessageBudget {
    /// Returns the bytes that messages hold, in a budget of 1 MiB.
    pub(crate) fn held_bytes(&self) -> usize {
        1024 * 1024 - self.bytes.available_permits() * PERMIT_BYTES
    }
}

/// Too many messages of the connection wait for permits already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitRefused;

/// The part of a budget that one message has. A drop returns it.
#[derive(Debug)]
pub struct MessageMemory {
    budget: MessageBudget,
    held: Option<OwnedSemaphorePermit>,
    overdraft: Option<OwnedSemaphorePermit>,
    waiting: Option<Box<MessageWait>>,
    /// Has a permit for each message of the connection that may wait. Without it, any number may.
    waits: Option<Arc<Semaphore>>,
}

/// The wait for permits of a budget.
#[derive(Debug)]
struct MessageWait {
    bytes: PollSemaphore,
    overdraft: PollSemaphore,
    /// The right to wait, once neither of the two has a permit.
    right: Option<OwnedSemaphorePermit>,
}

impl MessageMemory {
    pub fn new(budget: MessageBudget) -> Self {
        Self { budget, held: None, overdraft: None, waiting: None, waits: None }
    }

    /// Limits how many messages wait at the same time. Each of them takes a permit of `waits`.
    #[must_use]
    pub fn limit_waits(self, waits: Option<Arc<Semaphore>>) -> Self {
        Self { waits, ..self }
    }

    /// Becomes ready when the message may hold this many bytes.
    pub fn poll_hold(
        &mut self,
        context: &mut Context<'_>,
        bytes: usize,
    ) -> Poll<Result<(), WaitRefused>> {
        let missing = self.missing(bytes);
        if missing == 0 || self.overdraft.is_some() {
            return Poll::Ready(Ok(()));
        }
        if self.waiting.is_none() {
            if self.try_add(missing) {
                return Poll::Ready(Ok(()));
            }
            let MessageBudget { bytes, overdraft } = self.budget.clone();
            let [bytes, overdraft] = [bytes, overdraft].map(PollSemaphore::new);
            self.waiting = Some(Box::new(MessageWait { bytes, overdraft, right: None }));
        }
        let Some(wait) = self.waiting.as_deref_mut() else { return Poll::Ready(Ok(())) };
        if let Poll::Ready(permits) = wait.bytes.poll_acquire_many(context, missing) {
            self.waiting = None;
            permits.into_iter().for_each(|permits| self.add(permits));
            return Poll::Ready(Ok(()));
        }
        if let Poll::Ready(permit) = wait.overdraft.poll_acquire(context) {
            // The wait for bytes ends, and returns the permits that it has already.
            self.waiting = None;
            self.overdraft = permit;
            return Poll::Ready(Ok(()));
        }
        if let (Some(waits), None) = (&self.waits, &wait.right) {
            let Ok(right) = waits.clone().try_acquire_owned() else {
                self.waiting = None;
                return Poll::Ready(Err(WaitRefused));
            };
            wait.right = Some(right);
        }
        Poll::Pending
    }

    /// Returns whether the message waits for permits.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Notes that a message of this size is complete. Returns the right to exceed the budget, if
    /// there are permits for the message.
    pub fn complete(&mut self, bytes: usize) {
        if self.overdraft.is_some() && self.try_add(self.missing(bytes)) {
            self.overdraft = None;
        }
    }

    fn release(&mut self) {
        (self.held, self.overdraft, self.waiting) = (None, None, None);
    }

    /// Returns the number of permits that the message needs for this many bytes and does not have.
    fn missing(&self, bytes: usize) -> u32 {
        let wanted = bytes.saturating_sub(FREE_BYTES).div_ceil(PERMIT_BYTES);
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        u32::try_from(wanted.saturating_sub(held)).unwrap_or(u32::MAX)
    }

    fn try_add(&mut self, missing: u32) -> bool {
        let permits = self.budget.bytes.clone().try_acquire_many_owned(missing);
        permits.map(|permits| self.add(permits)).is_ok()
    }

    fn add(&mut self, permits: OwnedSemaphorePermit) {
        match &mut self.held {
            Some(held) => held.merge(permits),
            None => self.held = Some(permits),
        }
    }
}

/// Bounds of the messages of one connection, one after the other.
#[derive(Debug)]
pub struct MessageBound {
    memory: MessageMemory,
    /// Set while the owner has a complete message and did not ask for the next one.
    is_complete: bool,
    time_max: Duration,
    /// Time at which the source began to wait for the rest of the message.
    since: Option<Instant>,
    /// Stays set after its message, because most messages are complete long before it fires.
    timer: Option<Pin<Box<Sleep>>>,
}

impl MessageBound {
    pub fn new(budget: MessageBudget, time_max: Duration) -> Self {
        Self {
            memory: MessageMemory::new(budget),
            is_complete: false,
            time_max,
            since: None,
            timer: None,
        }
    }

    /// Returns whether the message may hold this many bytes. Otherwise the task wakes when it may.
    pub(crate) fn may_hold(&mut self, context: &mut Context<'_>, bytes: usize) -> bool {
        // Messages that follow one another never wait side by side, so none is refused.
        self.memory.poll_hold(context, bytes) == Poll::Ready(Ok(()))
    }

    /// Handles the case that the source waits. Becomes ready when the message takes too long.
    pub(crate) fn poll_wait(
        &mut self,
        context: &mut Context<'_>,
        is_inside: bool,
    ) -> Poll<ReadError> {
        if !is_inside {
            self.end_message();
            // The timer has woken the task for a message that is complete.
            self.timer.take_if(|timer| timer.is_elapsed());
            return Poll::Pending;
        }
        let ends = *self.since.get_or_insert_with(Instant::now) + self.time_max;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(ends)));
        loop {
            // Usually it is still set for an earlier message.
            if timer.deadline() > ends || timer.is_elapsed() {
                timer.as_mut().reset(ends);
            }
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            if Instant::now() >= ends {
                let is_overload = self.memory.is_waiting();
                return Poll::Ready(ReadError::Unfinished { limit: self.time_max, is_overload });
            }
        }
    }

    /// Returns whether the message waits for memory.
    pub(crate) fn is_waiting(&self) -> bool {
        self.memory.is_waiting()
    }

    /// Notes that the message has this size and is complete. Its time ends.
    pub(crate) fn complete_message(&mut self, bytes: usize) {
        self.since = None;
        self.is_complete = true;
        self.memory.complete(bytes);
    }

    /// Returns the memory of a complete message, because its owner asks for the next one.
    pub(crate) fn next_message(&mut self) {
        if std::mem::take(&mut self.is_complete) {
            self.memory.release();
        }
    }

    /// Ends the message, complete or not.
    fn end_message(&mut self) {
        self.since = None;
        self.memory.release();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn hold(memory: &mut MessageMemory, bytes: usize) -> bool {
        memory.poll_hold(&mut Context::from_waker(std::task::Waker::noop()), bytes).is_ready()
    }

    #[tokio::test]
    async fn one_message_may_exceed_the_budget_and_the_others_wait_for_it() {
        let budget = MessageBudget::new(16 * PERMIT_BYTES);
        let [mut first, mut second, mut third] =
            [(); 3].map(|()| MessageMemory::new(budget.clone()));
        assert!(hold(&mut first, FREE_BYTES + 10 * PERMIT_BYTES));
        assert!(hold(&mut second, FREE_BYTES + 6 * PERMIT_BYTES));
        assert!(hold(&mut third, FREE_BYTES), "these bytes are free");
        assert!(hold(&mut first, FREE_BYTES + 50 * PERMIT_BYTES), "it has the overdraft");
        assert!(!hold(&mut second, FREE_BYTES + 7 * PERMIT_BYTES) && second.is_waiting());
        assert!(!hold(&mut third, FREE_BYTES + 20 * PERMIT_BYTES), "more than the whole budget");
        drop(first);
        poll_fn(|context| second.poll_hold(context, FREE_BYTES + 7 * PERMIT_BYTES)).await.unwrap();
        assert!(second.overdraft.is_none() || second.held.is_some());
        second.release();
        poll_fn(|context| third.poll_hold(context, FREE_BYTES + 20 * PERMIT_BYTES)).await.unwrap();
        third.release();
        assert_eq!(
            (budget.bytes.available_permits(), budget.overdraft.available_permits()),
            (16, 1)
        );
    }

    #[test]
    fn a_complete_message_keeps_its_part_and_returns_the_overdraft() {
        let budget = MessageBudget::new(16 * PERMIT_BYTES);
        let mut bound = MessageBound::new(budget.clone(), Duration::MAX);
        let mut other = MessageMemory::new(budget.clone());
        assert!(hold(&mut other, FREE_BYTES + 10 * PERMIT_BYTES));
        let bytes = FREE_BYTES + 12 * PERMIT_BYTES;
        assert!(hold(&mut bound.memory, bytes) && bound.memory.overdraft.is_some());
        bound.next_message();
        assert!(bound.memory.overdraft.is_some(), "the message is incomplete");
        drop(other);
        bound.complete_message(bytes);
        assert!(bound.memory.overdraft.is_none(), "another message may exceed the budget");
        assert_eq!(budget.bytes.available_permits(), 4);
        bound.next_message();
        assert_eq!(budget.bytes.available_permits(), 16);
    }

    #[tokio::test]
    async fn so_many_messages_of_a_connection_wait_and_the_next_one_is_refused() {
        let (budget, waits) = (MessageBudget::new(0), Arc::new(Semaphore::new(1)));
        let [mut first, mut second, mut third, mut other] =
            [(); 4].map(|()| MessageMemory::new(budget.clone()).limit_waits(Some(waits.clone())));
        other = other.limit_waits(None);
        let poll = |memory: &mut MessageMemory| {
            let mut context = Context::from_waker(std::task::Waker::noop());
            memory.poll_hold(&mut context, FREE_BYTES + 1)
        };
        assert_eq!(poll(&mut first), Poll::Ready(Ok(())), "it has the overdraft");
        assert!(poll(&mut second).is_pending() && poll(&mut second).is_pending());
        assert_eq!(poll(&mut third), Poll::Ready(Err(WaitRefused)));
        assert!(!third.is_waiting() && poll(&mut other).is_pending(), "of another connection");
        drop(other);
        drop(first);
        assert_eq!(poll(&mut second), Poll::Ready(Ok(())));
        assert!(poll(&mut third).is_pending(), "the second does not wait any more");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_message_begins_with_the_message() {
        let mut bound = MessageBound::new(MessageBudget::new(0), Duration::from_secs(10));
        let started = Instant::now();
        let wait = |bound: &mut MessageBound, is_inside| {
            bound.poll_wait(&mut Context::from_waker(std::task::Waker::noop()), is_inside)
        };
        assert!(wait(&mut bound, true).is_pending());
        tokio::time::advance(Duration::from_secs(6)).await;
        bound.complete_message(10);
        poll_fn(|context| bound.poll_wait(context, true)).await;
        assert_eq!(started.elapsed(), Duration::from_secs(16), "the timer was set for the first");
        assert!(wait(&mut bound, false).is_pending() && bound.timer.is_none());
    }
}
