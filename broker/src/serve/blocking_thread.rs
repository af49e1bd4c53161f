//! Keeps a thread for blocking work: the resolution of names, files, the start of children.
//!
//! tokio ends such a thread after ten idle seconds and starts another one for the next work. If the
//! system refuses that thread, at a limit of processes for example, and no other one exists, tokio
//! panics in the caller. The panic would end a writer of the store, the renewal of the lease, or the
//! process. If a thread exists, the work waits for it instead.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use tokio::task::spawn_blocking;

use crate::ticks::ticks;

/// Shorter than the time after which tokio ends an idle thread.
const USE_INTERVAL: Duration = Duration::from_secs(3);

/// Uses a thread again and again, so that it is never idle for long.
pub(super) async fn keep_alive() {
    let mut ticks = ticks(USE_INTERVAL);
    loop {
        ticks.tick().await;
        use_thread().await;
    }
}

/// Starts a thread if none exists. The panic hook logs a refusal of the system.
async fn use_thread() {
    if let Ok(used) = catch_unwind(AssertUnwindSafe(|| spawn_blocking(|| ()))) {
        let _runtime_stops = used.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_thread_does_not_end_its_task() {
        // No address space has room for this stack.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .thread_stack_size(1 << 56)
            .build()
            .unwrap();
        runtime.block_on(use_thread());
    }
}
