//! The thread that starts all child processes.
//!
//! The kernel kills a child when the thread that started it ends, because the launcher wants the
//! child to end with the broker. Threads of a runtime can end earlier. This one ends with the
//! process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, mpsc};
use std::{io, thread};

use tokio::process::{Child, Command};
use tokio::runtime::Handle;

type StartJob = Box<dyn FnOnce() + Send>;

static JOBS: LazyLock<io::Result<mpsc::Sender<StartJob>>> = LazyLock::new(|| {
    let (jobs, waiting) = mpsc::channel::<StartJob>();
    let run = move || {
        while let Ok(job) = waiting.recv() {
            // A panic would end the thread, and all children with it.
            let _panicked = catch_unwind(AssertUnwindSafe(job));
        }
    };
    thread::Builder::new().name("child-starter".to_owned()).spawn(run)?;
    Ok(jobs)
});

/// Starts a process on the thread of all children. Must be called inside a tokio runtime.
pub(crate) fn start(mut command: Command) -> io::Result<Child> {
    let jobs = JOBS.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
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
}
