//! Threads that validate arguments against schemas, with their queue.
//!
//! Arguments and schemas come from strangers, and their validation never yields. It therefore has
//! threads of its own, with a low priority. One tenant uses at most half of the threads, and a
//! bounded part of the queue. Tenants take turns.
//!
//! Invariants: a request gets its outcome within its time, whatever the threads do. Abandoned work
//! sees that in [`ValidationBudget::cancelled`] and ends by itself.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use protocol::ids::TenantId;
use rules::{
    arguments::ValidationBudget,
    limits::arguments::{
        ARGUMENT_STEPS_MAX, VALIDATION_NICENESS, VALIDATION_THREADS_MAX, VALIDATIONS_QUEUED_MAX,
        VALIDATIONS_QUEUED_PER_TENANT_MAX,
    },
};
use tokio::sync::oneshot;

/// Stack of the validator at the deepest permitted arguments, in a build without optimisation.
const STACK_BYTES: usize = 16 * 1024 * 1024;
const THREADS_MIN: usize = 2;

/// Reasons for which a validation has no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidationFailure {
    /// The time was over before the work.
    TimedOut,
    /// The queue is full.
    QueueFull,
    /// The work failed inside the broker.
    Failed,
}

/// Pool of validation threads. They end when it is dropped.
#[derive(Debug)]
pub struct ValidationPool {
    queue: Arc<JobQueue>,
    started: Mutex<StartedThreads>,
}

#[derive(Debug, Default)]
struct StartedThreads {
    count: usize,
    /// The log has that the system refused a thread.
    is_refusal_logged: bool,
}

#[derive(Debug)]
struct JobQueue {
    state: Mutex<JobQueueState>,
    ready: Condvar,
    threads: usize,
    /// Threads that one tenant may use at the same time.
    share: usize,
}

#[derive(Debug, Default)]
struct JobQueueState {
    tenants: HashMap<TenantId, TenantJobs>,
    /// Tenants with queued jobs, the next one first.
    rotation: VecDeque<TenantId>,
    waiting: usize,
    closed: bool,
}

/// Queued jobs of one tenant, and the number of running ones.
#[derive(Debug, Default)]
struct TenantJobs {
    jobs: VecDeque<ValidationJob>,
    running: usize,
}

struct ValidationJob {
    work: Box<dyn FnOnce() + Send>,
    cancelled: Arc<AtomicBool>,
}

impl fmt::Debug for ValidationJob {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Job").field("given_up", &self.cancelled).finish_non_exhaustive()
    }
}

/// Cancels a job when it is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Default for ValidationPool {
    fn default() -> Self {
        Self::with_threads(thread::available_parallelism().map_or(THREADS_MIN, usize::from))
    }
}

impl Drop for ValidationPool {
    fn drop(&mut self) {
        self.queue.state.lock().closed = true;
        self.queue.ready.notify_all();
    }
}

impl ValidationPool {
    /// Creates a pool with this many threads, within bounds. They start with the first job.
    fn with_threads(threads: usize) -> Self {
        let threads = threads.clamp(THREADS_MIN, VALIDATION_THREADS_MAX);
        let queue = JobQueue {
            state: Mutex::default(),
            ready: Condvar::new(),
            threads,
            share: threads / 2,
        };
        Self { queue: Arc::new(queue), started: Mutex::default() }
    }

    /// Runs `work` on a validation thread. The wait for a thread counts towards `within`.
    pub async fn run<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        within: Duration,
        work: impl FnOnce(&ValidationBudget) -> T + Send + 'static,
    ) -> Result<T, ValidationFailure> {
        let (done, outcome) = oneshot::channel();
        let given_up = Arc::new(AtomicBool::new(false));
        let allowance = ValidationBudget { steps: ARGUMENT_STEPS_MAX, cancelled: given_up.clone() };
        let work = Box::new(move || {
            let _receiver_dropped = done.send(work(&allowance));
        });
        let _waiting = CancelOnDrop(given_up.clone());
        self.queue.add(tenant, ValidationJob { work, cancelled: given_up })?;
        self.start_threads(STACK_BYTES);
        match tokio::time::timeout(within, outcome).await {
            Ok(outcome) => outcome.map_err(|_| ValidationFailure::Failed),
            Err(_) => Err(ValidationFailure::TimedOut),
        }
    }

    /// Starts the threads that do not run. The system may have refused them before, for lack of memory
    /// or at the limit of threads.
    fn start_threads(&self, stack_bytes: usize) {
        let mut started = self.started.lock();
        while started.count < self.queue.threads {
            let queue = self.queue.clone();
            let thread = thread::Builder::new()
                .name(format!("validation-{}", started.count))
                .stack_size(stack_bytes);
            if let Err(error) = thread.spawn(move || queue.run_worker()) {
                if !started.is_refusal_logged {
                    tracing::error!(%error, running = started.count, "a validation thread cannot be started: the next validation tries again");
                }
                started.is_refusal_logged = true;
                return;
            }
            started.count += 1;
        }
    }
}

impl JobQueue {
    fn add(&self, tenant: &TenantId, job: ValidationJob) -> Result<(), ValidationFailure> {
        let mut state = self.state.lock();
        let line = state.tenants.entry(tenant.clone()).or_default();
        // Cancelled jobs take no slot of the queue.
        let before = line.jobs.len();
        if before >= VALIDATIONS_QUEUED_PER_TENANT_MAX {
            line.jobs.retain(|job| !job.cancelled.load(Ordering::Relaxed));
        }
        let (len, is_new) = (line.jobs.len(), line.jobs.is_empty());
        let waiting = state.waiting - (before - len);
        state.waiting = waiting;
        if len >= VALIDATIONS_QUEUED_PER_TENANT_MAX || waiting >= VALIDATIONS_QUEUED_MAX {
            return Err(ValidationFailure::QueueFull);
        }
        let has_turn = state.rotation.contains(tenant);
        if let Some(line) = state.tenants.get_mut(tenant) {
            line.jobs.push_back(job);
        }
        state.waiting += 1;
        if is_new && !has_turn {
            state.rotation.push_back(tenant.clone());
        }
        drop(state);
        self.ready.notify_one();
        Ok(())
    }

    /// Runs jobs on one thread until the queue is closed.
    fn run_worker(&self) {
        if let Err(error) = rustix::process::nice(VALIDATION_NICENESS) {
            tracing::debug!(%error, "the broker could not lower the priority of a validation thread");
        }
        while let Some((tenant, job)) = self.next() {
            if !job.cancelled.load(Ordering::Relaxed)
                && catch_unwind(AssertUnwindSafe(job.work)).is_err()
            {
                tracing::error!(%tenant, "a validation failed inside the broker");
            }
            self.finished(&tenant);
        }
    }

    /// Waits for a job. Returns `None` once the queue is closed.
    fn next(&self) -> Option<(TenantId, ValidationJob)> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(next) = state.next_job(self.share) {
                return Some(next);
            }
            self.ready.wait(&mut state);
        }
    }

    fn finished(&self, tenant: &TenantId) {
        let mut state = self.state.lock();
        if let Some(line) = state.tenants.get_mut(tenant) {
            line.running -= 1;
            if line.running == 0 && line.jobs.is_empty() {
                state.tenants.remove(tenant);
            }
        }
        drop(state);
        // Another thread may wait because this tenant had its share.
        self.ready.notify_one();
    }
}

impl JobQueueState {
    /// Takes the next job of the first tenant that is below its share.
    fn next_job(&mut self, share: usize) -> Option<(TenantId, ValidationJob)> {
        loop {
            let is_below =
                |tenant| self.tenants.get(tenant).is_some_and(|line| line.running < share);
            let at = self.rotation.iter().position(is_below)?;
            let tenant = self.rotation.remove(at)?;
            let line = self.tenants.get_mut(&tenant)?;
            // All jobs of a tenant may have been cancelled since it got its place in the rotation.
            let Some(job) = line.jobs.pop_front() else {
                if line.running == 0 {
                    self.tenants.remove(&tenant);
                }
                continue;
            };
            line.running += 1;
            self.waiting -= 1;
            if !line.jobs.is_empty() {
                self.rotation.push_back(tenant.clone());
            }
            return Some((tenant, job));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, mpsc};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    /// Blocks a thread until it is released or its job is cancelled.
    fn hold(
        validation: &Arc<ValidationPool>,
        name: &'static str,
        within: Duration,
    ) -> (mpsc::Receiver<()>, tokio::task::JoinHandle<Result<(), ValidationFailure>>) {
        let (started, has_started) = mpsc::channel();
        let validation = validation.clone();
        let held = tokio::spawn(async move {
            let work = move |allowance: &ValidationBudget| {
                started.send(()).unwrap();
                while !allowance.cancelled.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            };
            validation.run(&tenant(name), within, work).await
        });
        (has_started, held)
    }

    async fn wait_started(receiver: mpsc::Receiver<()>) {
        tokio::task::spawn_blocking(move || receiver.recv_timeout(LONG)).await.unwrap().unwrap();
    }

    async fn waiting(validation: &ValidationPool, count: usize) {
        while validation.queue.state.lock().waiting != count {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn s02_one_tenant_leaves_threads_to_others() {
        for threads in [2, 4] {
            let validation = Arc::new(ValidationPool::with_threads(threads));
            let mut held = Vec::new();
            for _ in 0..threads / 2 {
                let (has_started, handle) = hold(&validation, "loud", LONG);
                wait_started(has_started).await;
                held.push(handle);
            }
            let (not_started, further) = hold(&validation, "loud", LONG);
            waiting(&validation, 1).await;
            for _ in 0..100 {
                assert_eq!(validation.run(&tenant("quiet"), LONG, |_| 7).await, Ok(7));
            }
            assert!(not_started.try_recv().is_err(), "the loud one has its share already");
            held.pop().unwrap().abort();
            wait_started(not_started).await;
            further.abort();
            held.iter().for_each(tokio::task::JoinHandle::abort);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn s02_the_queue_is_bounded_and_cancelled_jobs_take_no_slot() {
        let validation = Arc::new(ValidationPool::with_threads(2));
        let (has_started, held) = hold(&validation, "a", LONG);
        wait_started(has_started).await;
        let queued: Vec<_> = (0..VALIDATIONS_QUEUED_PER_TENANT_MAX)
            .map(|_| hold(&validation, "a", LONG).1)
            .collect();
        waiting(&validation, VALIDATIONS_QUEUED_PER_TENANT_MAX).await;
        assert_eq!(
            validation.run(&tenant("a"), LONG, |_| ()).await,
            Err(ValidationFailure::QueueFull)
        );
        assert_eq!(validation.run(&tenant("b"), LONG, |_| ()).await, Ok(()));
        for queued in queued {
            queued.abort();
            assert!(queued.await.unwrap_err().is_cancelled());
        }
        let next = {
            let validation = validation.clone();
            tokio::spawn(async move { validation.run(&tenant("a"), LONG, |_| 1).await })
        };
        waiting(&validation, 1).await;
        held.abort();
        assert_eq!(next.await.unwrap(), Ok(1));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn s02_a_late_validation_times_out_and_its_work_is_cancelled() {
        let validation = Arc::new(ValidationPool::with_threads(2));
        let (has_started, held) = hold(&validation, "a", Duration::from_millis(1));
        // The job waits in the queue or on its thread. Both count towards its time.
        assert_eq!(held.await.unwrap(), Err(ValidationFailure::TimedOut));
        drop(has_started);
        assert_eq!(
            validation.run(&tenant("a"), LONG, |_| 1).await,
            Ok(1),
            "the thread is free again"
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn s02_a_panic_in_a_job_does_not_end_its_thread() {
        let validation = ValidationPool::with_threads(2);
        for _ in 0..8 {
            let outcome: Result<(), ValidationFailure> =
                validation.run(&tenant("a"), LONG, |_| panic!("as the test wants it")).await;
            assert_eq!(outcome, Err(ValidationFailure::Failed));
        }
        assert_eq!(validation.run(&tenant("a"), LONG, |_| 1).await, Ok(1));
        let all = Arc::new(Barrier::new(2));
        let (one, other) = (all.clone(), all);
        let (first, second) = (tenant("a"), tenant("b"));
        let (a, b) = tokio::join!(
            validation.run(&first, LONG, move |_| one.wait()),
            validation.run(&second, LONG, move |_| other.wait()),
        );
        assert!(a.is_ok() && b.is_ok(), "both threads are there");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn threads_that_the_system_refused_are_started_by_the_next_job() {
        let validation = ValidationPool::with_threads(2);
        // No address space has room for this stack.
        validation.start_threads(1 << 56);
        assert_eq!(validation.started.lock().count, 0);
        assert_eq!(validation.run(&tenant("a"), LONG, |_| 1).await, Ok(1));
        assert_eq!(validation.started.lock().count, 2);
    }

    #[test]
    fn s02_tenants_take_turns() {
        let mut state = JobQueueState::default();
        for name in ["a", "a", "a", "b"] {
            let line = state.tenants.entry(tenant(name)).or_default();
            if line.jobs.is_empty() {
                state.rotation.push_back(tenant(name));
            }
            line.jobs.push_back(ValidationJob { work: Box::new(|| ()), cancelled: Arc::default() });
            state.waiting += 1;
        }
        let order: Vec<String> = std::iter::from_fn(|| state.next_job(usize::MAX))
            .map(|(tenant, _)| tenant.to_string())
            .collect();
        assert_eq!((order.join(" "), state.waiting), ("a b a a".to_owned(), 0));
    }
}
