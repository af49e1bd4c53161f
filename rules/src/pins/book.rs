//! The pins of one backend, as a replica has loaded them.

use std::collections::HashMap;

use records::{PinKind, StoredPin};

use super::{Fingerprint, Pin, PinMode, PinState};
use crate::maps::FastMap;

/// The state of the pin of one object as it is seen now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntryPin {
    /// Hash of the definition. `None`: the object is not pinned.
    pub fingerprint: Option<Fingerprint>,
    /// The scanner found something serious in the definition.
    pub has_serious_finding: bool,
    /// The broker itself made the object, so it has no pin and is never held.
    pub is_own: bool,
    /// The object is kept from clients.
    pub is_held: bool,
}

/// The pins of one backend.
#[derive(Debug, Clone, Default)]
pub struct PinBook {
    pins: FastMap<PinKind, HashMap<String, Pin>>,
}

impl PinBook {
    /// Adds rows of the store. A pin with more decisions is newer than one with fewer.
    pub fn merge<'a>(&mut self, rows: impl IntoIterator<Item = &'a StoredPin>) {
        for row in rows {
            let Some(pin) = Pin::of_stored(row) else { continue };
            let known = self.pins.entry(row.key.kind).or_default();
            match known.get_mut(&row.key.name) {
                Some(known) if known.decisions > pin.decisions => {}
                Some(known) => *known = pin,
                None => drop(known.insert(row.key.name.clone(), pin)),
            }
        }
    }

    pub fn pin(&self, kind: PinKind, name: &str) -> Option<&Pin> {
        self.pins.get(&kind)?.get(name)
    }

    /// Returns the state of an object that the backend lists. `None`: it has no pin.
    pub fn state(&self, kind: PinKind, name: &str, seen: Fingerprint) -> Option<PinState> {
        self.pin(kind, name).map(|pin| pin.state(Some(seen)))
    }

    /// Returns whether an object is kept from clients.
    pub fn holds(&self, mode: PinMode, kind: PinKind, name: &str, seen: EntryPin) -> bool {
        if mode == PinMode::Off || seen.is_own {
            return false;
        }
        match seen.fingerprint.and_then(|hash| self.state(kind, name, hash)) {
            Some(state) => mode.holds(state, seen.has_serious_finding),
            None => {
                let is_blocked = self.pin(kind, name).is_some_and(|pin| pin.is_blocked);
                mode.holds_unknown() || is_blocked
            }
        }
    }
}
