//! What a process does about its tasks from its start on.

use std::sync::Arc;

use super::{Tasks, looks, recovery, strays, wakes};
use crate::actors::shared::Shared;

impl Tasks {
    /// Begins to look for tasks, and to listen. Called once, when tenants and backends are known.
    pub fn begin(shared: &Arc<Shared>) {
        tokio::spawn(wakes::listen(shared.clone()));
        tokio::spawn(looks::keep_looking(shared.clone()));
        tokio::spawn(strays::keep_comparing(shared.clone()));
        tokio::spawn(recovery::look(shared.clone()));
    }
}
