//! The requests of a connection that wait for an answer, and the findings about other answers.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::findings::FindingKind;

/// Number of abandoned requests that are remembered, so that their late answers do not count as
/// duplicates.
const GIVEN_UP_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    waiting: HashMap<u64, oneshot::Sender<Bytes>>,
    given_up: HashSet<u64>,
    /// One more than the largest number sent. Numbers are not sent in order.
    sent_below: u64,
    answered: AnsweredIds,
    ended: bool,
}

/// Numbers with an answer: all below a bound, and some above it.
#[derive(Debug, Default)]
struct AnsweredIds {
    below: u64,
    above: HashSet<u64>,
}

impl AnsweredIds {
    fn insert(&mut self, id: u64) {
        self.above.insert(id);
        while self.above.remove(&self.below) {
            self.below += 1;
        }
    }

    fn contains(&self, id: u64) -> bool {
        id < self.below || self.above.contains(&id)
    }
}

impl PendingRequests {
    /// Registers a request. Returns the receiver of its answer, or `None` once the connection has
    /// ended.
    pub(super) fn expect(&mut self, id: u64) -> Option<oneshot::Receiver<Bytes>> {
        if self.ended {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.insert(id, sender);
        self.sent_below = self.sent_below.max(id + 1);
        Some(receiver)
    }

    pub(super) fn give_up(&mut self, id: u64) {
        self.answered.insert(id);
        if self.waiting.remove(&id).is_some() && self.given_up.len() < GIVEN_UP_MAX {
            self.given_up.insert(id);
        }
    }

    /// Passes an answer to its request. Returns the kind of finding if no request waits for it.
    pub(super) fn settle(&mut self, id: u64, answer: Bytes) -> Result<(), FindingKind> {
        if let Some(sender) = self.waiting.remove(&id) {
            self.answered.insert(id);
            // The waiting caller may have given up at this very moment.
            let _late = sender.send(answer);
            return Ok(());
        }
        if self.given_up.remove(&id) {
            return Err(FindingKind::Late);
        }
        Err(if self.answered.contains(id) && id < self.sent_below {
            FindingKind::Duplicate
        } else {
            FindingKind::Unsolicited
        })
    }

    /// Fails all waiting requests, because the connection has ended.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.waiting.clear();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unexpected_answer_is_classified() {
        let mut ledger = PendingRequests::default();
        let mut due: Vec<_> = (0..4).map(|id| ledger.expect(id).unwrap()).collect();
        assert_eq!(ledger.settle(2, Bytes::from_static(b"two")), Ok(()));
        assert_eq!(due[2].try_recv().unwrap(), "two");
        assert_eq!(ledger.settle(2, Bytes::new()), Err(FindingKind::Duplicate));
        assert_eq!(ledger.settle(99, Bytes::new()), Err(FindingKind::Unsolicited));
        ledger.give_up(3);
        assert_eq!(ledger.settle(3, Bytes::new()), Err(FindingKind::Late));
        assert_eq!(ledger.settle(3, Bytes::new()), Err(FindingKind::Duplicate));
        ledger.end();
        assert!(due[0].try_recv().is_err() && ledger.expect(5).is_none());
    }

    #[test]
    fn answered_requests_use_no_memory() {
        let mut ledger = PendingRequests::default();
        for id in (0..1000).rev() {
            let _answer = ledger.expect(id);
            ledger.settle(id, Bytes::new()).unwrap();
        }
        assert_eq!((ledger.answered.below, ledger.answered.above.len()), (1000, 0));
    }
}
