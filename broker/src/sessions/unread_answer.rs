//! A large answer on its way to a client that may not read it. Its bytes count in the budget of
//! unread bytes until the client has taken all of them, because they are one piece of memory.
//!
//! The HTTP listener counts its answers with it. A session whose connection carries all its messages
//! counts them in its outbox instead. An answer of less than one step of the budget does not count.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use rules::limits::OUTBOX_STEP_BYTES;
use tokio_util::sync::CancellationToken;

use super::stream::{UnreadBudget, UnreadHolder};
use crate::{
    admission::outbox_budget::{HolderId, UnreadOwner},
    auth::Caller,
};

/// An answer that counts until it is dropped.
#[derive(Debug)]
pub struct UnreadAnswer {
    budget: Arc<UnreadBudget>,
    holder: HolderId,
    steps: Mutex<usize>,
    cut: CancellationToken,
    /// The part that is not on its way, if the answer is sent in pieces. A cut drops it.
    rest: Mutex<Bytes>,
}

impl From<&Caller> for UnreadOwner {
    fn from(caller: &Caller) -> Self {
        Self::new(caller.tenant.clone(), caller.principal.clone())
    }
}

impl UnreadAnswer {
    /// Counts an answer of this size, and cuts clients of the tenant with the most unread bytes while
    /// all of them are too many. Returns `None` for an answer that does not count.
    pub fn count(
        budget: &Arc<UnreadBudget>,
        bytes: usize,
        owner: impl FnOnce() -> UnreadOwner,
    ) -> Option<Arc<Self>> {
        if bytes < OUTBOX_STEP_BYTES {
            return None;
        }
        let answer = Arc::new(Self {
            budget: budget.clone(),
            holder: budget.new_holder(),
            steps: Mutex::new(0),
            cut: CancellationToken::new(),
            rest: Mutex::default(),
        });
        answer.recount(bytes, owner);
        budget.enforce();
        Some(answer)
    }

    /// Resolves when the budget cuts the answer.
    pub async fn was_cut(&self) {
        self.cut.cancelled().await;
    }

    pub fn is_cut(&self) -> bool {
        self.cut.is_cancelled()
    }

    /// Keeps the bytes of the answer, which [`UnreadAnswer::take_piece`] returns.
    pub fn hold(&self, bytes: Bytes) {
        let mut rest = self.rest.lock();
        if !self.is_cut() {
            *rest = bytes;
        }
    }

    /// Returns the number of bytes that are left.
    pub fn left(&self) -> usize {
        self.rest.lock().len()
    }

    /// Takes a piece as a copy, so that a library that holds it does not hold the whole answer.
    pub fn take_piece(&self, bytes_max: usize) -> Bytes {
        let mut rest = self.rest.lock();
        let length = rest.len().min(bytes_max);
        Bytes::copy_from_slice(&rest.split_to(length))
    }

    fn recount(self: &Arc<Self>, bytes: usize, owner: impl FnOnce() -> UnreadOwner) {
        let handle: Weak<Self> = Arc::downgrade(self);
        let mut steps = self.steps.lock();
        *steps = self.budget.recount(self.holder, *steps, bytes, || (owner(), handle));
    }

    fn release(&self) {
        let mut steps = self.steps.lock();
        let nothing = || (UnreadOwner::default(), Weak::<Self>::new() as _);
        *steps = self.budget.recount(self.holder, *steps, 0, nothing);
    }
}

impl UnreadHolder for UnreadAnswer {
    fn cut(&self) -> bool {
        self.release();
        let is_first = !self.cut.is_cancelled();
        self.cut.cancel();
        *self.rest.lock() = Bytes::new();
        is_first
    }

    fn stream_number(&self) -> Option<u64> {
        None
    }
}

impl Drop for UnreadAnswer {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    const STEP: usize = OUTBOX_STEP_BYTES;

    fn count(budget: &Arc<UnreadBudget>, bytes: usize) -> Option<Arc<UnreadAnswer>> {
        UnreadAnswer::count(budget, bytes, UnreadOwner::default)
    }

    #[test]
    fn a_cut_answer_is_not_in_memory_any_more() {
        let budget = UnreadBudget::new(4 * STEP, Arc::new(Metrics::new(false)));
        let bytes = Bytes::from(vec![7; 3 * STEP]);
        let large = count(&budget, bytes.len()).unwrap();
        large.hold(bytes.clone());
        assert_eq!((large.take_piece(STEP).len(), large.left()), (STEP, 2 * STEP));
        let _other = count(&budget, 2 * STEP).unwrap();
        assert!(large.is_cut() && large.left() == 0 && bytes.is_unique());
    }

    #[test]
    fn r16_the_largest_of_the_unread_answers_is_cut() {
        let metrics = Arc::new(Metrics::new(false));
        let budget = UnreadBudget::new(4 * STEP, metrics.clone());
        let shown = || {
            let text = metrics.render();
            let value = text.lines().find_map(|line| line.strip_prefix("mcp_outbox_bytes "));
            value.and_then(|value| value.parse::<usize>().ok())
        };
        assert!(count(&budget, STEP - 1).is_none());
        let small = count(&budget, STEP).unwrap();
        let large = count(&budget, 3 * STEP).unwrap();
        assert_eq!((small.is_cut(), large.is_cut(), shown()), (false, false, Some(4 * STEP)));
        let last = count(&budget, STEP).unwrap();
        assert_eq!((small.is_cut(), large.is_cut(), last.is_cut()), (false, true, false));
        assert_eq!(shown(), Some(2 * STEP));
        drop((small, large, last));
        assert_eq!(shown(), Some(0));
        assert!(
            metrics.render().contains(r#"mcp_rate_limited_total{scope="outbox_bytes_total"} 1"#)
        );
    }
}
