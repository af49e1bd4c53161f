//! The tasks of a backend that the broker follows over one link: for runs of tasks, and for calls.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use super::connection::requester::Requester;

/// The followed tasks of one link.
#[derive(Debug, Default)]
pub struct FollowedTasks {
    /// Tasks that runs follow, by the backend's own id.
    of_runs: Mutex<HashMap<String, Weak<dyn Requester>>>,
    /// The number of tasks that the link follows for calls.
    of_calls: AtomicUsize,
}

impl FollowedTasks {
    /// Sends the notifications about this task of the backend to `requester` from now on.
    pub fn follow(&self, backend_task: &str, requester: Weak<dyn Requester>) {
        self.of_runs.lock().insert(backend_task.to_owned(), requester);
    }

    /// Ends [`Self::follow`], unless another run follows the task by now.
    pub fn unfollow(&self, backend_task: &str, requester: &Weak<dyn Requester>) {
        let mut tasks = self.of_runs.lock();
        if tasks.get(backend_task).is_some_and(|known| known.ptr_eq(requester)) {
            tasks.remove(backend_task);
        }
    }

    /// Returns the run that follows this task of the backend.
    pub fn requester(&self, backend_task: &str) -> Option<Arc<dyn Requester>> {
        self.of_runs.lock().get(backend_task).and_then(Weak::upgrade)
    }

    /// Counts a task that the link follows for a call, until the returned value is dropped.
    pub(super) fn hold(&self) -> TaskHold<'_> {
        self.of_calls.fetch_add(1, Ordering::Relaxed);
        TaskHold { tasks: self }
    }

    /// Returns whether no task of the backend runs, which the broker polls.
    pub(super) fn is_empty(&self) -> bool {
        self.of_runs.lock().is_empty() && self.of_calls.load(Ordering::Relaxed) == 0
    }
}

/// A task of the backend that the link follows for a call. No request is pending between two polls.
#[derive(Debug)]
pub(super) struct TaskHold<'a> {
    tasks: &'a FollowedTasks,
}

impl Drop for TaskHold<'_> {
    fn drop(&mut self) {
        self.tasks.of_calls.fetch_sub(1, Ordering::Relaxed);
    }
}
