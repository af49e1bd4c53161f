//! Handoff of a call to a task. The call offers the task of its backend to its waiter, which takes
//! it or declines.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use rules::tasks::BackendTask;
use tokio::sync::{Notify, oneshot};

use crate::backends::link::{Link, connection::Connection};

/// State of the handoff of a call to a task.
#[derive(Debug, Default)]
pub struct TaskHandoff {
    offered: Mutex<Option<OfferedTask>>,
    changed: Notify,
    /// Set while a waiter takes a task. Without one the call follows the task itself.
    accepts: AtomicBool,
    /// Set when a task has taken over. The time of the task counts then, not that of the call.
    done: AtomicBool,
    /// Set when the call has given back its permit among the open requests.
    slot_released: AtomicBool,
}

/// A task that the backend made of a call.
#[derive(Debug)]
pub struct OfferedTask {
    pub link: Arc<Link>,
    pub connection: Arc<Connection>,
    pub task: BackendTask,
    /// The waiter sends whether a task of the broker follows the backend's task from now on.
    pub taken: oneshot::Sender<bool>,
}

impl TaskHandoff {
    /// Offers the backend's task to the waiter of the call. Returns false if the call has to follow
    /// the task itself.
    pub async fn offer(
        &self,
        link: &Arc<Link>,
        connection: &Arc<Connection>,
        task: &BackendTask,
    ) -> bool {
        let (taken, answer) = oneshot::channel();
        *self.offered.lock() = Some(OfferedTask {
            link: link.clone(),
            connection: connection.clone(),
            task: task.clone(),
            taken,
        });
        if !self.accepts.load(Ordering::Acquire) {
            drop(self.take());
        }
        self.changed.notify_one();
        answer.await.unwrap_or(false)
    }

    /// Sets whether the waiter takes a task of the backend.
    pub fn set_accepting(&self, accepts: bool) {
        self.accepts.store(accepts, Ordering::Release);
        if !accepts {
            drop(self.take());
        }
    }

    /// Resolves when the backend has made a task. Cancel-safe; one waiter at a time.
    pub async fn wait_for_offer(&self) {
        while self.offered.lock().is_none() {
            self.changed.notified().await;
        }
    }

    pub fn take(&self) -> Option<OfferedTask> {
        self.offered.lock().take()
    }

    /// Marks the call as a task's.
    pub fn mark_done(&self) {
        self.done.store(true, Ordering::Release);
    }

    /// Returns whether a task has taken over the call.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Returns true once: the caller then gives back the call's permit among the open requests.
    pub fn take_slot_release(&self) -> bool {
        !self.slot_released.swap(true, Ordering::AcqRel)
    }
}
