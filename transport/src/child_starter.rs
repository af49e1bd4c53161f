//! The thread that starts all child processes.
//!
//! The kernel kills a child when the thread that started it ends, because the launcher wants the
//! child to end with the broker. Threads of a runtime can end earlier. This one ends with the
//! process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::{io, thread};

use parking_lot::Mutex;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;

type StartJob = Box<dyn FnOnce() + Send>;

static STARTER: ChildStarter = ChildStarter::new();

/// The queue of the thread, once the thread runs.
struct ChildStarter {
    queue: Mutex<Option<mpsc::Sender<StartJob>>>,
}

impl ChildStarter {
    const fn new() -> Self {
        Self { queue: Mutex::new(None) }
    }

    /// Returns the queue. Starts the thread if it does not run: the system may have refused it
    /// before, for lack of memory or at the limit of processes.
    fn queue(&self, thread: thread::Builder) -> io::Result<mpsc::Sender<StartJob>> {
        let mut queue = self.queue.lock();
        if let Some(queue) = &*queue {
            return Ok(queue.clone());
        }
        let (jobs, waiting) = mpsc::channel::<StartJob>();
        thread.spawn(move || {
            while let Ok(job) = waiting.recv() {
                // A panic would end the thread, and all children with it.
                let _panicked = catch_unwind(AssertUnwindSafe(job));
            }
        })?;
        *queue = Some(jobs.clone());
        Ok(jobs)
    }
}

/// Starts a process on the thread of all children. Must be called inside a tokio runtime.
pub(crate) fn start(mut command: Command) -> io::Result<Child> {
    let jobs = STARTER.queue(thread::Builder::new().name("child-starter".to_owned()))?;
    let (result, started) = mpsc::sync_channel(1);
    let runtime = Handle::current();
    let job = move || {
        let _runtime = runtime.enter();
        let _awaited = result.send(command.spawn());
    };
    let ended = || io::Error::other("the thread that starts child processes has ended");
    jobs.send(Box::new(job)).map_err(|_| ended())?;
    started.recv().map_err(|_| ended())?
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The child demands its death with the thread that started it, as the launcher does.
    #[tokio::test]
    async fn a_child_outlives_the_thread_that_asked_for_it() {
        let handle = Handle::current();
        let asking = thread::spawn(move || {
            let _runtime = handle.enter();
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "sleep", "60"]).kill_on_drop(true);
            start(command).unwrap()
        });
        let mut child = asking.join().unwrap();
        let end = tokio::time::timeout(Duration::from_millis(500), child.wait());
        assert!(end.await.is_err(), "the child ended with the thread");
        child.kill().await.unwrap();
    }

    #[test]
    fn a_thread_that_the_system_refused_is_started_by_the_next_call() {
        let starter = ChildStarter::new();
        // No address space has room for this stack.
        assert!(starter.queue(thread::Builder::new().stack_size(1 << 56)).is_err());
        let jobs = starter.queue(thread::Builder::new()).unwrap();
        let (done, is_done) = mpsc::channel();
        jobs.send(Box::new(move || done.send(()).unwrap())).unwrap();
        is_done.recv().unwrap();
    }
}
