//! What is open on a connection, in both directions: our requests by wire id, the backend's questions by its id.
//!
//! Kept by [`Connection`]. A wire id is known here from before its frame leaves until its wait ends, however it ends.
//!
//! [`Connection`]: super::connection::Connection

use std::{
    collections::HashMap,
    future::poll_fn,
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use protocol::{envelope::Message, ids::RequestId};

use super::failure::Failure;
use crate::backends::{asker::Asker, inbound::Inbound};

#[derive(Debug, Default)]
pub struct PendingRequests {
    waiting: Mutex<HashMap<u64, PendingRequest, BuildHasherDefault<WireIdHasher>>>,
    /// Requests of the backend that a client works on, by the backend's id.
    questions: Mutex<HashMap<RequestId, QuestionOwner>>,
    /// Tasks that keep the progress token of the request that made them, by its wire id.
    tasks: Mutex<HashMap<u64, Weak<dyn Asker>>>,
    /// The connection has ended.
    has_ended: AtomicBool,
}

/// Wire ids are numbers we count up, so that nobody chooses those that meet in one place of the table; they need no more than to
/// be spread over it.
#[derive(Debug, Default)]
struct WireIdHasher(u64);

impl Hasher for WireIdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio: neighbours land far from each other, in the upper bits too.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(32)
    }
}

#[derive(Debug)]
struct PendingRequest {
    answer: Arc<AnswerCell>,
    asker: Option<Arc<dyn Asker>>,
}

/// What one waits for: the answer, or the end of the connection. Together, as nearly always neither is there yet: waiting for
/// the end by itself would put every request on a list, and take it off again.
#[derive(Debug, Default)]
struct AnswerCell {
    answer: Mutex<Option<Result<Message, Failure>>>,
    waiter: AtomicWaker,
}

/// Where a request of the backend waits for its answer: with a client, or in the record of a task.
#[derive(Debug, Clone)]
pub struct QuestionOwner {
    pub who: Weak<dyn Inbound>,
    pub number: u64,
}

impl QuestionOwner {
    /// Nobody needs the answer any more.
    pub fn withdraw(&self, why: &str) {
        if let Some(who) = self.who.upgrade() {
            who.withdraw(self.number, why);
        }
    }
}

/// The wait for one answer. Frees its wire id when it ends.
pub(super) struct AnswerSlot<'a> {
    pending: &'a PendingRequests,
    wire_id: u64,
    answer: Arc<AnswerCell>,
}

impl PendingRequests {
    /// Waits for the answer to this wire id from now on.
    pub(super) fn expect(&self, wire_id: u64, asker: Option<&Arc<dyn Asker>>) -> AnswerSlot<'_> {
        let answer = Arc::<AnswerCell>::default();
        self.lock_waiting()
            .insert(wire_id, PendingRequest { answer: answer.clone(), asker: asker.cloned() });
        AnswerSlot { pending: self, wire_id, answer }
    }

    /// An answer, or its failure, for whoever waits for this id; `false` when that is nobody, or nobody any more.
    pub(super) fn resolve(&self, wire_id: u64, answer: Result<Message, Failure>) -> bool {
        let waiting = self.lock_waiting().remove(&wire_id);
        // Whoever waits has the other one.
        let Some(waiting) = waiting.filter(|waiting| Arc::strong_count(&waiting.answer) > 1) else {
            return false;
        };
        *waiting.answer.answer.lock() = Some(answer);
        waiting.answer.waiter.wake();
        true
    }

    /// Whose progress token (or wire id) this is.
    pub fn asker_by_wire_id(&self, wire_id: u64) -> Option<Arc<dyn Asker>> {
        self.lock_waiting().get(&wire_id).and_then(|waiting| waiting.asker.clone())
    }

    /// The only one who waits for an answer here: whom a message without a name is for.
    pub fn only_asker(&self) -> Option<Arc<dyn Asker>> {
        let waiting = self.lock_waiting();
        let mut askers = waiting.values().filter_map(|waiting| waiting.asker.as_ref());
        let first = askers.next()?;
        askers.next().is_none().then(|| first.clone())
    }

    /// Whom a message without a name is for where all who wait here ask for the same client: the latest call, or else the latest
    /// task. A call has a stream on which its client is sure to see what comes.
    pub fn likely_asker(&self) -> Option<Arc<dyn Asker>> {
        let waiting = self.lock_waiting();
        let askers = waiting
            .iter()
            .filter_map(|(wire_id, waiting)| Some((waiting.asker.as_ref()?, *wire_id)));
        askers
            .max_by_key(|(asker, wire_id)| (!asker.is_task(), *wire_id))
            .map(|(asker, _)| asker.clone())
    }

    /// The task that keeps this progress token, of a request that is over.
    pub fn task_by_token(&self, wire_id: u64) -> Option<Arc<dyn Asker>> {
        self.tasks.lock().get(&wire_id).and_then(Weak::upgrade)
    }

    /// Until the token is released, progress under this wire id goes to the task.
    pub fn keep_token(&self, wire_id: u64, task: Weak<dyn Asker>) {
        self.tasks.lock().insert(wire_id, task);
    }

    pub fn release_token(&self, wire_id: u64) {
        self.tasks.lock().remove(&wire_id);
    }

    /// Remembers who works on a request of the backend.
    pub fn note_question(&self, backend_id: RequestId, asked: QuestionOwner) {
        self.questions.lock().insert(backend_id, asked);
    }

    pub fn take_question(&self, backend_id: &RequestId) -> Option<QuestionOwner> {
        self.questions.lock().remove(backend_id)
    }

    pub fn forget_question(&self, backend_id: &RequestId) {
        self.questions.lock().remove(backend_id);
    }

    /// The connection ends: who asks from now on need not.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Tells everybody of the end: no answer will come any more, and nobody can answer the backend.
    pub(super) fn fail_all(&self) {
        // Woken without the lock, which each of them takes next.
        let waiting: Vec<_> =
            self.lock_waiting().values().map(|waiting| waiting.answer.clone()).collect();
        waiting.iter().for_each(|awaited| awaited.waiter.wake());
        let asked: Vec<_> = self.questions.lock().drain().collect(); // the lock must be free: withdrawing comes back here
        asked.iter().for_each(|(_, asked)| asked.withdraw("the backend's connection ended"));
    }

    /// Nobody waits for an answer, on either side.
    pub(super) fn is_empty(&self) -> bool {
        self.lock_waiting().is_empty() && self.questions.lock().is_empty()
    }

    fn lock_waiting(
        &self,
    ) -> MutexGuard<'_, HashMap<u64, PendingRequest, BuildHasherDefault<WireIdHasher>>> {
        self.waiting.lock()
    }
}

impl AnswerSlot<'_> {
    /// The answer. Never resolves without one; dropping the wait is how to give up.
    pub(super) async fn answered(&self) -> Result<Message, Failure> {
        self.until(|| self.take()).await
    }

    /// The answer, if it is there.
    pub(super) fn take(&self) -> Option<Result<Message, Failure>> {
        self.answer.answer.lock().take()
    }

    /// Resolves at the end of the connection.
    pub(super) async fn connection_ended(&self) {
        self.until(|| self.pending.has_ended().then_some(())).await;
    }

    /// Looks whenever something may have changed. What waits for one thing and for the other has to be one task.
    async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| {
            self.answer.waiter.register(context.waker());
            // Behind that, so that nothing changes in between.
            look().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Drop for AnswerSlot<'_> {
    fn drop(&mut self) {
        self.pending.lock_waiting().remove(&self.wire_id);
    }
}
