//! Tasks (MCP 2025-11-25, Tasks). The broker hosts them for every backend.
//!
//! The store holds the record of a task, and any replica answers for it. One process owns the task
//! and carries it out ([`runner`]). This module holds the state of that process: which tasks run,
//! which requests wait for them, and which sessions are here. All of it may be lost, because the
//! store finds a task again.

mod approval;
mod backend_task;
mod cancellation;
mod creation;
mod creator;
mod handlers;
mod handoff;
mod host;
mod inputs;
mod notification_limiter;
mod notifications;
mod observability;
mod orphans;
mod outcome;
mod poller;
mod promotion;
mod recovery;
mod reply_route;
mod requester;
mod retry;
pub mod run;
mod runner;
mod send_call;
mod startup;
mod wakeups;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};
use records::TaskStatus;
use rules::limits::{TASK_DEFER_FIRST, TASK_DEFER_MAX, TASK_RUNS_MAX, TASKS_DEFERRED_MAX};

pub use crate::telemetry::audit::task_digest as digest;
use crate::{
    backends::link::{
        Link,
        connection::{
            Connection,
            requester::{Requester, SentRequest},
        },
    },
    telemetry::audit::TASK_DIGEST_BYTES,
};
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{TaskId, TenantId},
};
use tokio::sync::Notify;

use self::run::{StopReason, TaskRun};
pub(super) use self::{
    handlers::{is_listed, list_tasks, load_visible, named_task, task_state},
    promotion::{PendingCall, UnannouncedTask},
};
use super::{session::Session, shared::Shared, stream::EventStream, tenant::Tenant};

/// Finds a tenant by its id.
pub type FindTenant = Box<dyn Fn(&TenantId) -> Option<Arc<Tenant>> + Send + Sync>;

/// Tasks that this process runs or waits for.
pub struct TaskManager {
    pub(super) shared: Arc<Shared>,
    inner: Mutex<TaskTable>,
    tenants: OnceLock<FindTenant>,
    /// Tasks that this process cannot carry out.
    deferred: Mutex<HashMap<TaskId, Deferral>>,
    /// Tasks that are being recovered.
    recovering: Mutex<HashSet<TaskId>>,
}

#[derive(Default)]
struct TaskTable {
    running: HashMap<TaskId, RunEntry>,
    /// Requests that wait for a task to change.
    waiting: HashMap<TaskId, Vec<Weak<TaskWaiter>>>,
    /// The status last sent to the session that created a task. An absent entry means `working`.
    notified_status: HashMap<TaskId, TaskStatus>,
}

/// Leaves a task to other processes for a time.
#[derive(Debug, Clone, Copy)]
struct Deferral {
    until: Instant,
    /// Length of this deferral. The next one lasts twice as long.
    lasts: Duration,
}

/// A run and the entries that route a backend's messages to it.
struct RunEntry {
    run: Arc<TaskRun>,
    tokens: Vec<(Weak<Connection>, u64)>,
    backend_tasks: Vec<(Weak<Link>, String)>,
}

/// A request that waits for a task.
#[derive(Debug)]
pub(super) struct TaskWaiter {
    pub(super) changed: Notify,
    session: Weak<Session>,
    /// Stream of a request that waits for the outcome itself.
    stream: Option<Arc<EventStream>>,
}

/// Notices changes of some tasks until it is dropped.
#[derive(Debug)]
pub(super) struct TaskWatch {
    manager: Arc<TaskManager>,
    tasks: Vec<TaskId>,
    one: Arc<TaskWaiter>,
}

impl TaskWatch {
    pub(super) fn new(manager: &Arc<TaskManager>, tasks: &[TaskId]) -> Self {
        let one =
            Arc::new(TaskWaiter { changed: Notify::new(), session: Weak::new(), stream: None });
        let mut inner = manager.lock();
        for task in tasks {
            inner.waiting.entry(task.clone()).or_default().push(Arc::downgrade(&one));
        }
        drop(inner);
        Self { manager: manager.clone(), tasks: tasks.to_vec(), one }
    }

    /// Resolves when one of the tasks may have changed. Cancel-safe.
    pub(super) async fn changed(&self) {
        self.one.changed.notified().await;
    }

    /// Stops watching all tasks but those that `is_kept` accepts.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&TaskId) -> bool) {
        let (kept, gone) = std::mem::take(&mut self.tasks).into_iter().partition(is_kept);
        self.tasks = kept;
        let gone: Vec<TaskId> = gone;
        gone.iter().for_each(|task| self.manager.remove_waiter(task, &self.one));
    }
}

impl Drop for TaskWatch {
    fn drop(&mut self) {
        self.retain(|_| false);
    }
}

/// Keeps a request among the waiters until it is dropped.
struct Wait<'a> {
    tasks: &'a TaskManager,
    task: TaskId,
    one: Arc<TaskWaiter>,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.tasks.remove_waiter(&self.task, &self.one);
    }
}

impl std::fmt::Debug for TaskManager {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Tasks({} running)", self.running())
    }
}

impl TaskManager {
    pub fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            shared,
            inner: Mutex::default(),
            tenants: OnceLock::new(),
            deferred: Mutex::default(),
            recovering: Mutex::default(),
        })
    }

    /// Sets the lookup of tenants. No task runs before that.
    pub fn set_tenant_lookup(&self, find: FindTenant) {
        let _set_once = self.tenants.set(find);
    }

    fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.tenants.get().and_then(|find| find(id))
    }

    /// Leaves a task to other processes. Returns whether it was not deferred before.
    fn defer(&self, task: &TaskId) -> bool {
        let mut deferred = self.deferred.lock();
        let before = deferred.get(task).map(|before| before.lasts);
        if before.is_some() || deferred.len() < TASKS_DEFERRED_MAX {
            let lasts = before.map_or(TASK_DEFER_FIRST, |before| (before * 2).min(TASK_DEFER_MAX));
            deferred.insert(task.clone(), Deferral { until: Instant::now() + lasts, lasts });
        }
        before.is_none()
    }

    /// Returns the deferred tasks, or `None` if they are too many to exclude from a claim.
    fn deferred(&self) -> Option<Vec<TaskId>> {
        let (mut deferred, now) = (self.deferred.lock(), Instant::now());
        // An entry stays for a while after its end, so that the next deferral lasts longer.
        deferred.retain(|_, one| one.until + TASK_DEFER_MAX > now);
        let has_capacity = deferred.len() < TASKS_DEFERRED_MAX;
        has_capacity.then(|| {
            deferred
                .iter()
                .filter(|(_, one)| one.until > now)
                .map(|(task, _)| task.clone())
                .collect()
        })
    }

    // Runs of this process.

    /// Returns the number of tasks that run here.
    pub fn running(&self) -> usize {
        self.lock().running.len()
    }

    /// Refuses one more run if this process is at its limit.
    fn check_capacity(&self) -> Result<(), Refusal> {
        if self.running() < TASK_RUNS_MAX {
            return Ok(());
        }
        Err(Refusal::new(
            ErrorKind::Overloaded,
            format!("this replica runs {TASK_RUNS_MAX} tasks, which is its limit"),
        ))
    }

    /// Returns the tasks that this process takes to be its own.
    pub fn owned(&self) -> HashSet<TaskId> {
        self.lock().running.keys().cloned().collect()
    }

    /// Stops the runs of tasks that have another owner now.
    pub fn stop_lost<'a>(&self, tasks: impl IntoIterator<Item = &'a TaskId>) {
        let lost: Vec<_> = tasks.into_iter().filter_map(|task| self.run(task)).collect();
        lost.iter().for_each(|run| run.stop(StopReason::Lost));
    }

    pub(super) fn run(&self, task: &TaskId) -> Option<Arc<TaskRun>> {
        self.lock().running.get(task).map(|running| running.run.clone())
    }

    fn all_runs(&self) -> Vec<Arc<TaskRun>> {
        self.lock().running.values().map(|running| running.run.clone()).collect()
    }

    /// Adds a run. Returns false if the task already runs here.
    fn register(&self, run: &Arc<TaskRun>) -> bool {
        let mut inner = self.lock();
        if inner.running.contains_key(&run.id) {
            return false;
        }
        let running = RunEntry { run: run.clone(), tokens: Vec::new(), backend_tasks: Vec::new() };
        inner.running.insert(run.id.clone(), running);
        true
    }

    fn unregister(&self, run: &TaskRun) {
        let mut inner = self.lock();
        let Some(running) = inner.running.remove(&run.id) else { return };
        drop(inner);
        for (connection, wire_id) in running.tokens {
            if let Some(connection) = connection.upgrade() {
                connection.pending().release_token(wire_id);
            }
        }
        let this: Weak<dyn Requester> = run.this.clone();
        for (link, backend_task) in running.backend_tasks {
            if let Some(link) = link.upgrade() {
                link.tasks.unfollow(&backend_task, &this);
            }
        }
    }

    // Routes from a backend's messages to a task.

    /// Notes that the call of a task is being sent. Its wire id is its progress token until the
    /// task is over.
    fn record_token(&self, run: &TaskRun, sent: &SentRequest) {
        let mut inner = self.lock();
        let Some(running) = inner.running.get_mut(&run.id) else { return };
        running.tokens.push((Arc::downgrade(&sent.connection), sent.wire_id));
        sent.connection.pending().keep_token(sent.wire_id, run.this.clone());
    }

    fn record_backend_task(&self, run: &TaskRun, link: &Arc<Link>, backend_task: &str) {
        let mut inner = self.lock();
        let Some(running) = inner.running.get_mut(&run.id) else { return };
        running.backend_tasks.push((Arc::downgrade(link), backend_task.to_owned()));
        link.tasks.follow(backend_task, run.this.clone());
    }

    // Requests that wait.

    /// Registers a request of this session as a waiter until the returned value is dropped.
    fn wait_for(
        &self,
        task: &TaskId,
        session: Weak<Session>,
        stream: &Arc<EventStream>,
    ) -> Wait<'_> {
        let one =
            Arc::new(TaskWaiter { changed: Notify::new(), session, stream: Some(stream.clone()) });
        self.lock().waiting.entry(task.clone()).or_default().push(Arc::downgrade(&one));
        Wait { tasks: self, task: task.clone(), one }
    }

    fn remove_waiter(&self, task: &TaskId, one: &Arc<TaskWaiter>) {
        let mut inner = self.lock();
        if let Some(all) = inner.waiting.get_mut(task) {
            all.retain(|other| other.as_ptr() != Arc::as_ptr(one));
            if all.is_empty() {
                inner.waiting.remove(task);
            }
        }
    }

    fn waiters(&self, task: &TaskId) -> Vec<Arc<TaskWaiter>> {
        self.lock().waiting.get(task).into_iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// Returns the stream on which this session waits for the outcome of a task.
    fn result_stream(&self, task: &TaskId, session: &Arc<Session>) -> Option<Arc<EventStream>> {
        let waiting = self.waiters(task);
        let own = waiting.iter().rev().filter(|one| one.session.as_ptr() == Arc::as_ptr(session));
        own.filter_map(|one| one.stream.clone()).find(|stream| !stream.is_unreachable())
    }

    /// Returns the sessions that wait for a task here, and the one that created it, if that is here.
    pub(crate) fn listeners(&self, run: &TaskRun) -> Vec<Arc<Session>> {
        let waiting = self.waiters(&run.id);
        waiting.iter().filter_map(|one| one.session.upgrade()).chain(run.creator()).collect()
    }

    /// Wakes the waiters and the run of a task that may have changed.
    fn wake(&self, task: &TaskId) {
        self.wake_waiters(task);
        if let Some(run) = self.run(task) {
            run.changed.notify_waiters();
        }
    }

    fn wake_waiters(&self, task: &TaskId) {
        self.waiters(task).iter().for_each(|one| one.changed.notify_one());
    }

    /// Wakes all waiters and runs, because a notification may have been lost.
    fn wake_all(&self) {
        let waiting: Vec<_> =
            self.lock().waiting.values().flatten().filter_map(Weak::upgrade).collect();
        waiting.iter().for_each(|one| one.changed.notify_one());
        self.all_runs().iter().for_each(|run| run.changed.notify_waiters());
    }

    fn lock(&self) -> MutexGuard<'_, TaskTable> {
        self.inner.lock()
    }
}

/// Returns whether a text has the form of a task's [`digest`].
pub fn is_digest(name: &str) -> bool {
    name.len() == 2 * TASK_DIGEST_BYTES
        && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use rules::event_log::LogLimits;

    use super::*;
    use crate::{broker::Broker, persistence::Stores};

    #[tokio::test]
    async fn an_ended_waiter_is_removed() {
        let broker = Broker::over(Stores::in_memory().await);
        let (tasks, task) = (&broker.tasks, TaskId::new("t"));
        let stream = EventStream::general(1, LogLimits { events: 1, bytes: 1 });
        let (one, other) = (
            tasks.wait_for(&task, Weak::new(), &stream),
            tasks.wait_for(&task, Weak::new(), &stream),
        );
        drop(one);
        assert_eq!(tasks.waiters(&task).len(), 1);
        drop(other);
        assert!(tasks.lock().waiting.is_empty());
    }
}
