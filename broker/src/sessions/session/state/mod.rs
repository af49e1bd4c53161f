//! The state of a session behind its one lock, composed of parts by subject.
//!
//! Each part is plain data with its own methods. No part refers to its session, takes its lock, or
//! waits. A method of the session takes the lock once and works on one part or several.

mod in_flight;
mod links;
mod list_announcements;
mod ownership;
mod questions;
mod streams;
mod subscription_set;

use std::collections::HashSet;

use protocol::{
    error::{ErrorKind, Refusal},
    ids::{KeyId, RequestId},
    phase::SessionPhase,
};
use records::NodeName;
use rules::{catalog::ListDigests, log_level::LogLevel, maps::FastMap};

pub(in crate::sessions) use self::{
    in_flight::InFlight,
    links::SessionLinks,
    list_announcements::ListAnnouncements,
    ownership::{FIRST_EPOCH, ReleaseAttempt, first_wire_id},
    questions::{Destination, Question},
    streams::{SessionStreams, first_sequence, is_general},
    subscription_set::SubscriptionSet,
};
use self::{
    ownership::{Ownership, first_question},
    questions::Questions,
};

/// Everything of a session that changes under its lock.
#[derive(Debug)]
pub(in crate::sessions) struct SessionState {
    pub(in crate::sessions) phase: SessionPhase,
    pub(in crate::sessions) in_flight: FastMap<RequestId, InFlight>,
    pub(in crate::sessions) streams: SessionStreams,
    pub(in crate::sessions) links: SessionLinks,
    pub(in crate::sessions) subscriptions: SubscriptionSet,
    pub(in crate::sessions) questions: Questions,
    pub(in crate::sessions) lists: ListAnnouncements,
    pub(in crate::sessions) ownership: Ownership,
    pub(in crate::sessions) log_level: Option<LogLevel>,
    /// Keys of the principal that continued the session, without the one that opened it.
    pub(in crate::sessions) further_keys: Vec<KeyId>,
    /// Parts of the state that still have to be stored.
    pub(in crate::sessions) dirty: DirtyFlags,
}

/// Parts of the state that still have to be stored.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::sessions) struct DirtyFlags {
    pub(in crate::sessions) state: bool,
    /// The announced lists. They are stored only after the events that announced them.
    pub(in crate::sessions) lists: bool,
    pub(in crate::sessions) links: bool,
}

impl SessionState {
    pub(in crate::sessions) fn new(
        phase: SessionPhase,
        epoch: i64,
        owner: NodeName,
        streams: SessionStreams,
        announced: ListDigests,
    ) -> Self {
        Self {
            phase,
            in_flight: FastMap::default(),
            streams,
            links: SessionLinks::default(),
            subscriptions: SubscriptionSet::default(),
            questions: Questions::numbered_from(first_question(epoch)),
            lists: ListAnnouncements::new(announced),
            ownership: Ownership::new(owner),
            log_level: None,
            further_keys: Vec::new(),
            dirty: DirtyFlags::default(),
        }
    }

    /// Refuses requests to a session that has left or is about to leave.
    pub(in crate::sessions) fn check_accepting(&self) -> Result<(), Refusal> {
        if self.ownership.quiesce.is_quiescing {
            Err(session_moved())
        } else {
            self.check_present()
        }
    }

    /// Refuses new work in a session that has left.
    pub(in crate::sessions) fn check_present(&self) -> Result<(), Refusal> {
        match self.phase {
            _ if self.ownership.moved => Err(session_moved()),
            SessionPhase::Closing | SessionPhase::Closed => Err(session_ended()),
            _ => Ok(()),
        }
    }

    /// Returns the requests in flight that only this process can serve.
    pub(in crate::sessions) fn calls(&self) -> HashSet<RequestId> {
        self.in_flight
            .iter()
            .filter(|(_, request)| !request.is_transferable())
            .map(|(id, _)| id.clone())
            .collect()
    }
}

pub(in crate::sessions) fn session_ended() -> Refusal {
    Refusal::new(ErrorKind::SessionNotFound, "the session has ended")
}

/// Returns the refusal of a request to a session that is moving. The listener sends such a request
/// to the next owner, if there is time.
pub fn session_moved() -> Refusal {
    Refusal::new(ErrorKind::SessionElsewhere, "the session is moving to another process, try again")
}
