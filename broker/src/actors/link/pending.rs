//! What is open on a connection, in both directions: our requests by wire id, the backend's questions by its id.
//!
//! Kept by [`Connection`]. A wire id is known here from before its frame leaves until its wait ends, however it ends.
//!
//! [`Connection`]: super::connection::Connection

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use protocol::{
    envelope::Message,
    ids::{RequestId, TaskId},
    method::Method,
};
use tokio::sync::oneshot;

use super::failure::Failure;
use crate::actors::{call::Call, session::Session, sync::lock};

#[derive(Debug, Default)]
pub(super) struct Pending {
    waiting: Mutex<HashMap<u64, Waiting>>,
    /// Requests of the backend that a client works on, by the backend's id.
    asked: Mutex<HashMap<RequestId, (Weak<Session>, u64)>>,
}

#[derive(Debug)]
struct Waiting {
    answer: oneshot::Sender<Result<Message, Failure>>,
    call: Option<Arc<Call>>,
}

/// What became of an answer that came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    Taken,
    /// Whoever asked has just given up.
    Late,
    /// Nobody asked this.
    UnknownId,
}

/// The wait for one answer. Frees its wire id when it ends.
pub(super) struct Slot<'a> {
    pending: &'a Pending,
    wire_id: u64,
    answer: oneshot::Receiver<Result<Message, Failure>>,
}

impl Pending {
    /// Waits for the answer to this wire id from now on.
    pub(super) fn expect(&self, wire_id: u64, call: Option<&Arc<Call>>) -> Slot<'_> {
        let (tell, answer) = oneshot::channel();
        self.lock_waiting().insert(wire_id, Waiting { answer: tell, call: call.cloned() });
        Slot { pending: self, wire_id, answer }
    }

    /// An answer, or its failure, for whoever waits for this id.
    pub(super) fn resolve(&self, id: Option<&RequestId>, answer: Result<Message, Failure>) -> Delivery {
        let waiting = id.and_then(RequestId::as_u64).and_then(|wire_id| self.lock_waiting().remove(&wire_id));
        let Some(waiting) = waiting else { return Delivery::UnknownId };
        if waiting.answer.send(answer).is_ok() { Delivery::Taken } else { Delivery::Late }
    }

    pub(super) fn call_by_wire_id(&self, wire_id: u64) -> Option<Arc<Call>> {
        self.lock_waiting().get(&wire_id).and_then(|waiting| waiting.call.clone())
    }

    pub(super) fn only_call(&self) -> Option<Arc<Call>> {
        let waiting = self.lock_waiting();
        let mut calls = waiting.values().filter_map(|waiting| waiting.call.as_ref());
        let first = calls.next()?;
        calls.next().is_none().then(|| first.clone())
    }

    pub(super) fn latest_call_of(&self, session: &Arc<Session>) -> Option<Arc<Call>> {
        let waiting = self.lock_waiting();
        let of_session = |waiting: &&Waiting| waiting.call.as_ref().is_some_and(|call| Arc::ptr_eq(&call.session, session));
        waiting.iter().filter(|(_, w)| of_session(w)).max_by_key(|(id, _)| **id).and_then(|(_, w)| w.call.clone())
    }

    /// The call that waits for the outcome of this task.
    pub(super) fn result_call_of(&self, task: &TaskId) -> Option<Arc<Call>> {
        let waits = |call: &&Arc<Call>| call.method == Method::TasksResult && call.task.as_ref() == Some(task);
        self.lock_waiting().values().filter_map(|waiting| waiting.call.as_ref()).find(waits).cloned()
    }

    pub(super) fn note_asked(&self, backend_id: RequestId, session: &Arc<Session>, question: u64) {
        lock(&self.asked).insert(backend_id, (Arc::downgrade(session), question));
    }

    pub(super) fn take_asked(&self, backend_id: &RequestId) -> Option<(Arc<Session>, u64)> {
        let (session, question) = lock(&self.asked).remove(backend_id)?;
        Some((session.upgrade()?, question))
    }

    pub(super) fn forget_asked(&self, backend_id: &RequestId) {
        lock(&self.asked).remove(backend_id);
    }

    /// Nobody can answer the backend any more.
    pub(super) fn withdraw_questions(&self) {
        let asked: Vec<_> = lock(&self.asked).drain().collect(); // the lock must be free: withdrawing comes back here
        for (_, (session, question)) in asked {
            if let Some(session) = session.upgrade() {
                session.withdraw_question(question, "the backend's connection ended");
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock_waiting().is_empty()
    }

    fn lock_waiting(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        lock(&self.waiting)
    }
}

impl Slot<'_> {
    /// The answer. Never resolves without one; dropping the wait is how to give up.
    pub(super) async fn answered(&mut self) -> Result<Message, Failure> {
        match (&mut self.answer).await {
            Ok(answer) => answer,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.pending.lock_waiting().remove(&self.wire_id);
    }
}
