//! Pins: what operators approved of the objects that a backend lists, and what that means for the
//! object as it is now.
//!
//! The state of a pin is computed from what is stored about it and from the definition that this
//! replica sees. No transition is stored, so a second sighting cannot leave `changed` or `pending`.
//! Invariant: an object is listed and called only if [`PinMode::holds`] is false for it.

mod book;
mod definition;
mod diff;
mod lock_file;
mod pointer;
mod result_scan;
mod scanner;
#[cfg(test)]
mod tests;
mod visible;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub(crate) use self::definition::without_execution;
pub use self::{
    book::{EntryPin, PinBook},
    definition::{Fingerprint, IgnoredMembers, PinDefinition},
    diff::{DefinitionChange, diff},
    lock_file::{LockDifference, LockFile, LockFileError, LockedBackend},
    result_scan::{ResultScan, ScannedResult},
    scanner::{CHARACTER_RULES, Finding, FindingSeverity, Neighbours, findings_of_command},
    visible::visible,
};

/// What the broker does with objects that no operator approved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PinMode {
    /// Nothing is pinned, and nothing is held.
    Off,
    /// Objects are pinned. Only blocked ones are held.
    #[default]
    Observe,
    /// Objects whose definition changed are held, and new ones with a serious finding.
    HoldChanged,
    /// Everything that no operator approved is held.
    HoldAll,
}

/// State of a pinned object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PinState {
    /// An operator approved this definition.
    Trusted,
    /// No operator approved any definition, and it is still the first one.
    Pending,
    /// It is another definition than the approved ones, or than the first one.
    Changed,
    /// An operator blocked the object, whatever its definition.
    Blocked,
    /// The backend does not list the object any more.
    Gone,
}

impl PinState {
    pub const ALL: [Self; 5] =
        [Self::Trusted, Self::Pending, Self::Changed, Self::Blocked, Self::Gone];

    pub fn name(self) -> &'static str {
        match self {
            Self::Trusted => "trusted",
            Self::Pending => "pending",
            Self::Changed => "changed",
            Self::Blocked => "blocked",
            Self::Gone => "gone",
        }
    }
}

/// What is stored about one object. Only operators change it, after the first sighting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The first definition that any replica saw.
    pub first: Fingerprint,
    /// Definitions that operators approved.
    pub approved: Vec<Fingerprint>,
    pub is_blocked: bool,
    /// Number of decisions of operators. A pin with more decisions is newer.
    pub decisions: i64,
}

impl Pin {
    /// Returns the state of the object with the definition that is seen now. `None`: it is not
    /// listed.
    pub fn state(&self, seen: Option<Fingerprint>) -> PinState {
        match seen {
            _ if self.is_blocked => PinState::Blocked,
            None => PinState::Gone,
            Some(seen) if self.approved.contains(&seen) => PinState::Trusted,
            Some(seen) if self.approved.is_empty() && seen == self.first => PinState::Pending,
            Some(_) => PinState::Changed,
        }
    }

    /// Returns the pin of a stored row. `None`: a newer build computed its hashes in another way.
    pub fn of_stored(row: &records::StoredPin) -> Option<Self> {
        let approved = row.approved.iter().map(|hash| Fingerprint::parse(hash));
        Some(Self {
            first: Fingerprint::parse(&row.first_hash)?,
            approved: approved.collect::<Option<_>>()?,
            is_blocked: row.is_blocked,
            decisions: row.decisions,
        })
    }
}

impl PinMode {
    /// Returns whether an object in this state is kept from clients.
    pub fn holds(self, state: PinState, has_serious_finding: bool) -> bool {
        match (self, state) {
            (Self::Off, _) | (_, PinState::Trusted) => false,
            (_, PinState::Blocked) | (Self::HoldAll, _) => true,
            (Self::Observe, _) => false,
            (Self::HoldChanged, PinState::Changed) => true,
            (Self::HoldChanged, PinState::Pending | PinState::Gone) => has_serious_finding,
        }
    }

    /// Returns whether objects without a stored pin are held, and names that no list shows.
    pub fn holds_unknown(self) -> bool {
        matches!(self, Self::HoldChanged | Self::HoldAll)
    }
}
