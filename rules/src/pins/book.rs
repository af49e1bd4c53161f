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
    pins: FastMap<PinKind, HashMap<String, KnownPin>>,
    changes: u64,
}

/// A pin, and the number of the change that brought it.
#[derive(Debug, Clone)]
struct KnownPin {
    pin: Pin,
    change: u64,
}

impl PinBook {
    /// Returns the number of changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Adds rows of the store. A pin with more decisions is newer than one with fewer.
    pub fn merge<'a>(&mut self, rows: impl IntoIterator<Item = &'a StoredPin>) {
        self.changes += 1;
        for row in rows {
            let Some(pin) = Pin::of_stored(row) else { continue };
            let read = KnownPin { pin, change: self.changes };
            let known = self.pins.entry(row.key.kind).or_default();
            match known.get_mut(&row.key.name) {
                Some(known) if known.pin.decisions > read.pin.decisions => {}
                Some(known) => *known = read,
                None => drop(known.insert(row.key.name.clone(), read)),
            }
        }
    }

    /// Replaces the pins by all rows of the backend, as a read found them. `changes` is the number
    /// of changes before the read. What came later stays, because the read may have missed it.
    pub fn replace<'a>(&mut self, rows: impl IntoIterator<Item = &'a StoredPin>, changes: u64) {
        self.changes += 1;
        let mut before = std::mem::take(&mut self.pins);
        for row in rows {
            let known = before.get_mut(&row.key.kind).and_then(|pins| pins.remove(&row.key.name));
            let read = Pin::of_stored(row).map(|pin| KnownPin { pin, change: self.changes });
            let newest = match (known, read) {
                (Some(known), Some(read)) => {
                    let is_later = known.change > changes;
                    if is_later && known.pin.decisions >= read.pin.decisions { known } else { read }
                }
                // `None` as read: a newer build wrote the row.
                (Some(pin), None) | (None, Some(pin)) => pin,
                (None, None) => continue,
            };
            self.pins.entry(row.key.kind).or_default().insert(row.key.name.clone(), newest);
        }
        for (kind, pins) in before {
            let later = pins.into_iter().filter(|(_, known)| known.change > changes);
            self.pins.entry(kind).or_default().extend(later);
        }
    }

    pub fn pin(&self, kind: PinKind, name: &str) -> Option<&Pin> {
        self.pins.get(&kind)?.get(name).map(|known| &known.pin)
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
