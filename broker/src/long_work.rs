//! Long work of the processor, such as for a catalog of thousands of tools.

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::block_in_place,
};

/// Runs long work, and lets another thread take over the tasks of this one.
pub(crate) fn run_long_work<R>(work: impl FnOnce() -> R) -> R {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_work_leaves_its_thread_to_other_tasks() {
        let (sender, receiver) = mpsc::channel();
        let work = tokio::spawn(async move {
            tokio::spawn(async move { sender.send(()) });
            run_long_work(|| receiver.recv_timeout(Duration::from_secs(60)))
        });
        assert!(work.await.unwrap().is_ok(), "the other task ran meanwhile");
    }
}
