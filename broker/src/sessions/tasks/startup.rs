//! Background workers of the task manager.

use std::sync::Arc;

use super::{TaskManager, orphans, poller, recovery, wakeups};

impl TaskManager {
    /// Starts the workers that listen for, poll, sweep and claim tasks. Called once, when tenants
    /// and backends are known.
    pub fn start_workers(self: &Arc<Self>) {
        tokio::spawn(wakeups::listen(self.clone()));
        tokio::spawn(poller::poll(self.clone()));
        tokio::spawn(orphans::sweep_orphans(self.clone()));
        tokio::spawn(recovery::claim_unowned(self.clone()));
    }
}
