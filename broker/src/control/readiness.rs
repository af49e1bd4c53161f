//! Readiness of this process for new work, for probes and for operators.

use std::sync::atomic::Ordering;

use rules::limits::LEASE_LOST_READY;

use super::Control;

/// Readiness for new work, or the reason against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    Starting,
    Draining,
    /// The database has been unreachable for so long that this process may have lost its leases.
    StoreUnavailable,
}

impl Control {
    /// Returns whether the broker accepts new work: it is loaded, does not drain, and owns the
    /// state that it commits.
    pub fn readiness(&self) -> Readiness {
        if self.broker.draining() {
            Readiness::Draining
        } else if !self.loaded.load(Ordering::Acquire) {
            Readiness::Starting
        } else if self.persistence().lease.lost_for() >= LEASE_LOST_READY {
            Readiness::StoreUnavailable
        } else {
            Readiness::Ready
        }
    }
}
