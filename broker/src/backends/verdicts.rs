//! Verdicts of replicas about backends: each change of a breaker is sent to the other replicas.
//!
//! A verdict opens no breaker. A replica whose breaker is closed becomes suspicious: it sends one
//! call at a time, and the others wait. The [`super::prober`] sends a ping over the replica's own
//! connection. An answer ends the suspicion. Without one the breaker opens, and the waiting calls
//! are refused. So the broken network of one replica does not shut the others out, and a dead
//! backend gets one probe. A breaker that an operator holds open stays so.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use parking_lot::Mutex;
use protocol::ids::{BackendId, TenantId};
use rules::{
    breaker::{CircuitState, OpenReason},
    limits::replicas::VERDICT_KEPT,
};

use crate::{
    persistence::{BackendVerdict, Persistence, VerdictState, Wakeup},
    views::VerdictView,
};

/// The verdicts of other replicas about one backend.
#[derive(Debug, Default)]
pub(super) struct ReplicaVerdicts {
    /// Set while the verdict of another replica waits for a probe.
    suspicious: AtomicBool,
    last: Mutex<Option<LastVerdict>>,
}

#[derive(Debug)]
struct LastVerdict {
    replica: String,
    state: CircuitState,
    /// By the clock of this process: that of the other one may differ.
    received: Instant,
}

impl ReplicaVerdicts {
    /// Notes the verdict of another replica. Returns the state of its breaker.
    pub(super) fn record(&self, verdict: &BackendVerdict) -> CircuitState {
        let state = match verdict.state {
            VerdictState::Closed => CircuitState::Closed,
            VerdictState::HalfOpen => CircuitState::HalfOpen,
            VerdictState::Open => CircuitState::Open,
        };
        let replica = verdict.node.clone();
        *self.last.lock() = Some(LastVerdict { replica, state, received: Instant::now() });
        state
    }

    pub(super) fn is_suspicious(&self) -> bool {
        self.suspicious.load(Ordering::Acquire)
    }

    /// Returns whether the backend was suspected before.
    pub(super) fn set_suspicious(&self, suspicious: bool) -> bool {
        self.suspicious.swap(suspicious, Ordering::AcqRel)
    }

    /// Returns the last verdict of another replica, unless it is old.
    pub(super) fn last(&self) -> Option<VerdictView> {
        let last = self.last.lock();
        let last = last.as_ref().filter(|last| last.received.elapsed() < VERDICT_KEPT)?;
        Some(VerdictView {
            replica: last.replica.clone(),
            state: last.state.name().to_owned(),
            age_ms: u64::try_from(last.received.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }
}

/// Sends a new state of a breaker to the other replicas.
pub(super) fn send(
    persistence: &Persistence,
    tenant: &TenantId,
    backend: &BackendId,
    state: CircuitState,
    reason: Option<OpenReason>,
) {
    // An operator's choice reaches them through the store. A confirmed verdict is known.
    let is_own = !matches!(reason, Some(OpenReason::Operator | OpenReason::Verdict));
    if !persistence.is_shared() || !is_own {
        return;
    }
    let state = match state {
        CircuitState::Closed => VerdictState::Closed,
        CircuitState::HalfOpen => VerdictState::HalfOpen,
        CircuitState::Open => VerdictState::Open,
    };
    persistence.hot.publish(Wakeup::Verdict(BackendVerdict {
        tenant: tenant.clone(),
        backend: backend.clone(),
        node: persistence.node().to_string(),
        state,
    }));
}
