//! How a call becomes a task: what its backend made of it is offered to whoever waits for the call, who takes it or does not.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::{
    backends::link::{Link, connection::Connection},
    rules::tasks::BackendTask,
};

/// How a call becomes a task.
#[derive(Debug, Default)]
pub struct TaskHandoff {
    offered: Mutex<Option<OfferedTask>>,
    changed: Notify,
    /// Whoever waits for it does not take one just now.
    declined: AtomicBool,
    /// It is one: the task's time counts, not the call's.
    done: AtomicBool,
    /// Its place among the requests that wait for an answer is given back.
    slot_released: AtomicBool,
}

/// The backend made a task of a call.
#[derive(Debug)]
pub struct OfferedTask {
    pub link: Arc<Link>,
    pub connection: Arc<Connection>,
    pub task: BackendTask,
    /// Whether a task of ours follows it from now on.
    pub taken: oneshot::Sender<bool>,
}

impl TaskHandoff {
    /// Offers the backend's task to whoever waits for the call. False: the call has to follow it itself.
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
        if self.declined.load(Ordering::Acquire) {
            drop(self.take());
        }
        self.changed.notify_one();
        answer.await.unwrap_or(false)
    }

    /// Whether what the backend made is of use to whoever waits for the call.
    pub fn set_accepting(&self, accepts: bool) {
        self.declined.store(!accepts, Ordering::Release);
        if !accepts {
            drop(self.take());
        }
    }

    /// Resolves when the backend has made a task. Cancel-safe; for one at a time.
    pub async fn wait_for_offer(&self) {
        while self.offered.lock().is_none() {
            self.changed.notified().await;
        }
    }

    pub fn take(&self) -> Option<OfferedTask> {
        self.offered.lock().take()
    }

    /// The call is a task's from now on.
    pub fn mark_done(&self) {
        self.done.store(true, Ordering::Release);
    }

    /// Whether it is one.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// True for who gives the place of the call back, which happens once.
    pub fn take_slot_release(&self) -> bool {
        !self.slot_released.swap(true, Ordering::AcqRel)
    }
}
