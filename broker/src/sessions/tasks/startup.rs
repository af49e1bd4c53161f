//! What a process does about its tasks from its start on.

use std::sync::Arc;

use super::{TaskManager, orphans, poller, recovery, wakeups};
use crate::sessions::shared::Shared;

impl TaskManager {
    /// Begins to look for tasks, and to listen. Called once, when tenants and backends are known.
    pub fn start_workers(shared: &Arc<Shared>) {
        tokio::spawn(wakeups::listen(shared.clone()));
        tokio::spawn(poller::poll(shared.clone()));
        tokio::spawn(orphans::sweep_orphans(shared.clone()));
        tokio::spawn(recovery::claim_unowned(shared.clone()));
    }
}
