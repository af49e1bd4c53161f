//! Calls of this process that wait for decisions. One query in an interval looks for the decisions
//! of other replicas. A decision that was made here wakes its calls at once.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use protocol::ids::ApprovalId;
use rules::limits::approvals::{APPROVAL_POLL_BATCH, APPROVAL_POLL_INTERVAL};
use tokio::sync::{Notify, futures::Notified};

use crate::persistence::Persistence;

/// The approvals that are waited for here.
#[derive(Debug, Default)]
pub struct ApprovalWaits(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    approvals: HashMap<ApprovalId, Weak<Notify>>,
    /// Set while a task looks for decisions.
    is_polled: bool,
}

/// One call's wait. While it lives, the approval is looked at.
#[derive(Debug)]
pub(in crate::sessions) struct ApprovalWait(Arc<Notify>);

impl ApprovalWait {
    /// Resolves when the approval may have been decided.
    pub(in crate::sessions) fn decided(&self) -> Notified<'_> {
        self.0.notified()
    }
}

impl ApprovalWaits {
    pub(in crate::sessions) fn wait_for(
        self: &Arc<Self>,
        persistence: &Arc<Persistence>,
        id: &ApprovalId,
    ) -> ApprovalWait {
        let mut waiting = self.0.lock();
        let known = waiting.approvals.get(id).and_then(Weak::upgrade);
        let notify = known.unwrap_or_default();
        waiting.approvals.insert(id.clone(), Arc::downgrade(&notify));
        if !std::mem::replace(&mut waiting.is_polled, true) {
            tokio::spawn(poll(Arc::downgrade(self), Arc::downgrade(persistence)));
        }
        ApprovalWait(notify)
    }

    /// Wakes the calls that wait for an approval, because it is decided.
    pub fn wake(&self, id: &ApprovalId) {
        let known = self.0.lock().approvals.get(id).and_then(Weak::upgrade);
        if let Some(waiting) = known {
            waiting.notify_waiters();
        }
    }

    /// Returns the approvals that calls wait for. Without one, the polling is over.
    fn wanted(&self) -> Vec<ApprovalId> {
        let mut waiting = self.0.lock();
        waiting.approvals.retain(|_, notify| notify.strong_count() > 0);
        waiting.is_polled = !waiting.approvals.is_empty();
        waiting.approvals.keys().cloned().collect()
    }
}

/// Looks for decisions as long as calls wait for some.
async fn poll(waits: Weak<ApprovalWaits>, persistence: Weak<Persistence>) {
    loop {
        tokio::time::sleep(APPROVAL_POLL_INTERVAL).await;
        let (Some(waits), Some(persistence)) = (waits.upgrade(), persistence.upgrade()) else {
            return;
        };
        let wanted = waits.wanted();
        if wanted.is_empty() {
            return;
        }
        for some in wanted.chunks(APPROVAL_POLL_BATCH) {
            let looking = persistence.store.settled_approvals(some);
            // If the store fails, the next round looks again.
            let Ok(settled) = persistence.timed("list_settled_approvals", looking).await else {
                break;
            };
            settled.iter().for_each(|id| waits.wake(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{broker::Broker, persistence::Stores};

    #[tokio::test]
    async fn an_ended_wait_leaves_no_state_and_ends_its_polling() {
        let broker = Broker::over(Stores::in_memory().await);
        let (waits, id) = (&broker.shared.approval_waits, ApprovalId::new("a"));
        let one = waits.wait_for(&broker.shared.persistence, &id);
        let other = waits.wait_for(&broker.shared.persistence, &id);
        assert!(Arc::ptr_eq(&one.0, &other.0));
        // The store has no such approval, which settles it.
        one.decided().await;
        drop((one, other));
        assert_eq!(waits.wanted(), []);
        assert!(!waits.0.lock().is_polled);
    }
}
