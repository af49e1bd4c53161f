//! Open requests of a connection, in both directions: the broker's requests by wire id, the
//! backend's requests by its id.
//!
//! [`Connection`] owns the table. A wire id is in it from before its frame is sent until its wait
//! ends.
//!
//! [`Connection`]: super::Connection

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

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    envelope::{Kind, Message},
    ids::RequestId,
    json,
};

use super::requester::{Inbound, Requester};
use crate::backends::{link::failure::Failure, roots::BackendRoots};

#[derive(Debug, Default)]
pub struct PendingRequests {
    waiting: Mutex<HashMap<u64, PendingRequest, BuildHasherDefault<WireIdHasher>>>,
    /// Requests of the backend that a client works on, by the backend's id.
    questions: Mutex<HashMap<RequestId, QuestionOwner>>,
    /// Requests of the backend for roots whose answer gets those of the operator too.
    merged_roots: Mutex<HashMap<RequestId, Arc<BackendRoots>>>,
    /// Tasks that keep the progress token of the request that created them, by its wire id.
    tasks: Mutex<HashMap<u64, Weak<dyn Requester>>>,
    /// Set when the connection has ended.
    has_ended: AtomicBool,
}

/// Hasher of wire ids. They come from the broker's own counter, so no peer can choose ids that
/// collide. It only has to spread them over the table.
#[derive(Debug, Default)]
struct WireIdHasher(u64);

impl Hasher for WireIdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio: the hashes of neighbours are far apart, in the upper
        // bits too.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(32)
    }
}

#[derive(Debug)]
struct PendingRequest {
    answer: Arc<AnswerCell>,
    requester: Option<Arc<dyn Requester>>,
}

/// The answer to one request, with one waker for the answer and for the end of the connection. With
/// a separate waker for the end, each request would enter and leave a list of waiters.
#[derive(Debug, Default)]
struct AnswerCell {
    answer: Mutex<Option<Result<Message, Failure>>>,
    waiter: AtomicWaker,
}

/// The receiver of a backend's request that waits for its answer.
#[derive(Debug, Clone)]
pub struct QuestionOwner {
    /// The session, or the run of a task, that got the question.
    pub inbound: Weak<dyn Inbound>,
    /// The number under which it has the question.
    pub number: u64,
}

impl QuestionOwner {
    /// Withdraws the request, because its answer is not needed any more.
    pub fn withdraw(&self, why: &str) {
        if let Some(inbound) = self.inbound.upgrade() {
            inbound.withdraw(self.number, why);
        }
    }
}

/// The wait for one answer. It frees its wire id when it ends.
pub(in crate::backends::link) struct AnswerSlot<'a> {
    pending: &'a PendingRequests,
    wire_id: u64,
    answer: Arc<AnswerCell>,
}

impl PendingRequests {
    /// Registers a wait for the answer to this wire id.
    pub(in crate::backends::link) fn expect(
        &self,
        wire_id: u64,
        requester: Option<&Arc<dyn Requester>>,
    ) -> AnswerSlot<'_> {
        let answer = Arc::<AnswerCell>::default();
        self.lock_waiting().insert(
            wire_id,
            PendingRequest { answer: answer.clone(), requester: requester.cloned() },
        );
        AnswerSlot { pending: self, wire_id, answer }
    }

    /// Delivers an answer or a failure to the wait for this id. Returns `false` if no wait has this
    /// id, or no longer.
    pub(super) fn resolve(&self, wire_id: u64, answer: Result<Message, Failure>) -> bool {
        let waiting = self.lock_waiting().remove(&wire_id);
        // The wait holds the other reference.
        let Some(waiting) = waiting.filter(|waiting| Arc::strong_count(&waiting.answer) > 1) else {
            return false;
        };
        *waiting.answer.answer.lock() = Some(answer);
        waiting.answer.waiter.wake();
        true
    }

    /// Returns the requester whose request has this progress token or wire id.
    pub fn requester_by_wire_id(&self, wire_id: u64) -> Option<Arc<dyn Requester>> {
        self.lock_waiting().get(&wire_id).and_then(|waiting| waiting.requester.clone())
    }

    /// Returns the requester of a message without an id, if only one requester waits on this
    /// connection.
    pub fn only_requester(&self) -> Option<Arc<dyn Requester>> {
        let waiting = self.lock_waiting();
        let mut requesters = waiting.values().filter_map(|waiting| waiting.requester.as_ref());
        let first = requesters.next()?;
        requesters.next().is_none().then(|| first.clone())
    }

    /// Returns the likely requester of a message without an id: the latest call, or else the
    /// latest task. The caller checks that all waits are for one client. A call has a stream on
    /// which its client gets the message.
    pub fn likely_requester(&self) -> Option<Arc<dyn Requester>> {
        let waiting = self.lock_waiting();
        let requesters = waiting
            .iter()
            .filter_map(|(wire_id, waiting)| Some((waiting.requester.as_ref()?, *wire_id)));
        requesters
            .max_by_key(|(requester, wire_id)| (!requester.is_task(), *wire_id))
            .map(|(requester, _)| requester.clone())
    }

    /// Returns the task that keeps this progress token. Its request is over.
    pub fn task_by_token(&self, wire_id: u64) -> Option<Arc<dyn Requester>> {
        self.tasks.lock().get(&wire_id).and_then(Weak::upgrade)
    }

    /// Sends progress under this wire id to the task until the token is released.
    pub fn keep_token(&self, wire_id: u64, task: Weak<dyn Requester>) {
        self.tasks.lock().insert(wire_id, task);
    }

    pub fn release_token(&self, wire_id: u64) {
        self.tasks.lock().remove(&wire_id);
    }

    /// Stores the owner of a request of the backend.
    pub fn record_question(&self, backend_id: RequestId, owner: QuestionOwner) {
        self.questions.lock().insert(backend_id, owner);
    }

    pub fn take_question(&self, backend_id: &RequestId) -> Option<QuestionOwner> {
        self.take_merged_roots(backend_id);
        self.questions.lock().remove(backend_id)
    }

    /// Adds the roots of the operator to the answer that a client gives to this request.
    pub fn merge_roots(&self, backend_id: RequestId, roots: Arc<BackendRoots>) {
        self.merged_roots.lock().insert(backend_id, roots);
    }

    /// Ends [`Self::merge_roots`].
    pub fn take_merged_roots(&self, backend_id: &RequestId) -> Option<Arc<BackendRoots>> {
        self.merged_roots.lock().remove(backend_id)
    }

    /// Returns an answer with the roots of the operator, if it is an answer to such a request.
    pub(super) fn with_roots(&self, frame: Bytes) -> Bytes {
        if self.merged_roots.lock().is_empty() {
            return frame; // as nearly always
        }
        let limits = json::Limits::with_bytes_max(frame.len());
        let Ok(message) = Message::decode(frame.clone(), &limits) else { return frame };
        let is_answer = matches!(message.kind, Kind::Result | Kind::Error);
        let Some(id) = message.id.as_ref().filter(|_| is_answer) else { return frame };
        self.take_merged_roots(id).map_or(frame, |roots| roots.complete(id, &message))
    }

    pub fn forget_question(&self, backend_id: &RequestId) {
        self.questions.lock().remove(backend_id);
    }

    /// Marks the connection as ended, so that no wait begins any more.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Wakes all waits, because no answer can come any more. Withdraws the backend's requests.
    pub(super) fn fail_all(&self) {
        // Woken without the lock, because each wait takes it next.
        let waiting: Vec<_> =
            self.lock_waiting().values().map(|waiting| waiting.answer.clone()).collect();
        waiting.iter().for_each(|awaited| awaited.waiter.wake());
        let questions: Vec<_> = self.questions.lock().drain().collect(); // the lock must be free: withdrawing comes back here
        questions
            .iter()
            .for_each(|(_, question)| question.withdraw("the backend's connection ended"));
    }

    /// Returns whether no request of either side waits for an answer.
    pub(super) fn is_empty(&self) -> bool {
        self.lock_waiting().is_empty() && self.questions.lock().is_empty()
    }

    /// Returns whether no request of either side waits for an answer, except for these of the broker.
    pub(super) fn is_empty_except(&self, wire_ids: &[u64]) -> bool {
        self.lock_waiting().keys().all(|wire_id| wire_ids.contains(wire_id))
            && self.questions.lock().is_empty()
    }

    fn lock_waiting(
        &self,
    ) -> MutexGuard<'_, HashMap<u64, PendingRequest, BuildHasherDefault<WireIdHasher>>> {
        self.waiting.lock()
    }
}

impl AnswerSlot<'_> {
    /// Waits for the answer. Does not resolve if none comes: the caller drops the wait.
    pub(super) async fn answered(&self) -> Result<Message, Failure> {
        self.until(|| self.take()).await
    }

    /// Takes the answer, if it has come.
    pub(super) fn take(&self) -> Option<Result<Message, Failure>> {
        self.answer.answer.lock().take()
    }

    /// Waits for the end of the connection.
    pub(super) async fn connection_ended(&self) {
        self.until(|| self.pending.has_ended().then_some(())).await;
    }

    /// Calls `look` after each possible change, until it returns a value. Both kinds of wait must
    /// run in one task, because they share a waker.
    async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| {
            self.answer.waiter.register(context.waker());
            // After the registration, so that no change is missed in between.
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
