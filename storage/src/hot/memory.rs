//! Hints and words within one process, where there is nobody else to tell.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;

use super::{HotStore, OwnerHint, WAKES_HELD_MAX, Wake};
use crate::SessionKey;

/// [`HotStore`] of a broker that is alone.
#[derive(Debug)]
pub struct MemoryHot {
    wakes: broadcast::Sender<Wake>,
}

impl MemoryHot {
    pub fn new() -> Self {
        Self { wakes: broadcast::Sender::new(WAKES_HELD_MAX) }
    }
}

impl Default for MemoryHot {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl HotStore for MemoryHot {
    fn engine(&self) -> &'static str {
        "memory"
    }

    async fn owner(&self, _session: &SessionKey) -> Option<OwnerHint> {
        None
    }

    async fn note_owner(&self, _session: &SessionKey, _owner: &OwnerHint, _ttl: Duration) {}

    async fn forget_owner(&self, _session: &SessionKey) {}

    fn wake(&self, wake: Wake) {
        let _nobody_listens = self.wakes.send(wake);
    }

    fn wakes(&self) -> broadcast::Receiver<Wake> {
        self.wakes.subscribe()
    }

    fn is_connected(&self) -> bool {
        true
    }

    async fn close(&self) {}
}
