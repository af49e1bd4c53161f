//! Ownership of a session: the name under which this process has the row, and its release to
//! another process.

use std::collections::HashSet;

use protocol::ids::RequestId;
use records::NodeName;

/// The owner of a session's row, and what is known of its next owner.
#[derive(Debug)]
pub(in crate::sessions) struct Ownership {
    /// The name of this process when it took the row.
    pub(in crate::sessions) owner: NodeName,
    /// Set when the session left without ending. Its client finds it elsewhere.
    pub(in crate::sessions) moved: bool,
    /// Calls that keep the session here while it is to be released.
    pub(in crate::sessions) quiesce: QuiesceState,
}

impl Ownership {
    pub(in crate::sessions) fn new(owner: NodeName) -> Self {
        Self { owner, moved: false, quiesce: QuiesceState::default() }
    }
}

/// The epoch of a session that had no owner before.
pub(in crate::sessions) const FIRST_EPOCH: i64 = 1;

/// Returns the base of the numbers that an owner gives out and that must not repeat within a
/// session.
fn number_base(epoch: i64) -> u64 {
    u64::try_from(epoch - FIRST_EPOCH).unwrap_or_default() << 32
}

/// Returns the number of an owner's first question. JSON-RPC ids are not used again within a
/// session (MCP 2025-11-25, Requests), also across owners.
pub(in crate::sessions) fn first_question(epoch: i64) -> u64 {
    number_base(epoch) + 1
}

/// Returns the first id of an owner's requests to a resumed backend session. They must not repeat
/// either.
pub(in crate::sessions) fn first_wire_id(epoch: i64) -> u64 {
    number_base(epoch) + 1
}

/// Result of one attempt to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sessions) enum ReleaseAttempt {
    Leaving,
    /// A request takes long.
    Busy,
    /// The session always has some short request in flight. New requests are held back until it has
    /// left.
    Quiescing,
    Gone,
}

/// Calls that keep a session here while it is to be released.
#[derive(Debug, Default)]
pub(in crate::sessions) struct QuiesceState {
    /// Set while new requests are held back.
    pub(in crate::sessions) is_quiescing: bool,
    /// Calls that were in flight at the first attempt, and still are.
    blocking_calls: HashSet<RequestId>,
}

impl QuiesceState {
    /// Notes an attempt that found calls in flight. Long calls may take their time. A client with
    /// one short call after another would never let the session leave. New requests are therefore
    /// held back once all calls of the first attempt are over.
    pub(in crate::sessions) fn record_busy(&mut self, calls: HashSet<RequestId>) -> ReleaseAttempt {
        if self.is_quiescing {
            return ReleaseAttempt::Quiescing;
        }
        if self.blocking_calls.is_empty() {
            self.blocking_calls = calls;
            return ReleaseAttempt::Busy;
        }
        self.blocking_calls.retain(|id| calls.contains(id));
        self.is_quiescing = self.blocking_calls.is_empty();
        if self.is_quiescing { ReleaseAttempt::Quiescing } else { ReleaseAttempt::Busy }
    }

    /// Accepts requests again. The calls in flight now are the ones to wait for.
    pub(in crate::sessions) fn resume_requests(&mut self, calls: HashSet<RequestId>) {
        *self = Self { is_quiescing: false, blocking_calls: calls };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(ids: &[u64]) -> HashSet<RequestId> {
        ids.iter().map(|id| RequestId::from_u64(*id)).collect()
    }

    #[test]
    fn constantly_overlapping_calls_do_not_block_a_session_release() {
        let mut unrest = QuiesceState::default();
        let looks = [[1, 2], [2, 3], [3, 4], [4, 5]].map(|ids| unrest.record_busy(calls(&ids)));
        assert_eq!(
            looks,
            [
                ReleaseAttempt::Busy,
                ReleaseAttempt::Busy,
                ReleaseAttempt::Quiescing,
                ReleaseAttempt::Quiescing
            ]
        );
    }

    #[test]
    fn a_long_call_delays_the_release_until_it_ends() {
        let mut unrest = QuiesceState::default();
        for short in 2..20 {
            assert_eq!(unrest.record_busy(calls(&[1, short])), ReleaseAttempt::Busy);
        }
        assert_eq!(unrest.record_busy(calls(&[20])), ReleaseAttempt::Quiescing);
        unrest.resume_requests(calls(&[20]));
        assert_eq!(
            (unrest.record_busy(calls(&[20, 21])), unrest.record_busy(calls(&[21]))),
            (ReleaseAttempt::Busy, ReleaseAttempt::Quiescing)
        );
    }
}
