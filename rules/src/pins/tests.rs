//! The states of pins over sightings, decisions of operators, crashes and replicas.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use protocol::ids::BackendId;
use records::{PinKey, PinKind, StoredPin};

use super::*;
use crate::catalog::{ListKind, TaskHost, mark_held, read_page};

const REPLICAS: usize = 2;
const NAMES: usize = 2;
const DEFINITIONS: u8 = 4;

fn hash(number: u8) -> Fingerprint {
    Fingerprint::parse(&format!("v1:{number:064x}")).unwrap()
}

fn name(number: usize) -> String {
    format!("tool{number}")
}

#[derive(Debug, Clone)]
enum Event {
    /// The backend shows another definition, or does not list the object any more.
    Change {
        replica: usize,
        name: usize,
        to: Option<u8>,
    },
    /// A replica reads the list. `stored`: it does not die before the sighting is stored.
    Read {
        replica: usize,
        stored: bool,
    },
    /// An operator decides about the definition that the admin API shows.
    Approve {
        name: usize,
        moved: bool,
    },
    Block {
        name: usize,
    },
    /// A replica hears of the decisions.
    Sync {
        replica: usize,
    },
    Crash {
        replica: usize,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let (replica, object) = (0..REPLICAS, 0..NAMES);
    prop_oneof![
        4 => (replica.clone(), object.clone(), prop::option::weighted(0.8, 0..DEFINITIONS))
            .prop_map(|(replica, name, to)| Event::Change { replica, name, to }),
        6 => (replica.clone(), prop::bool::weighted(0.8))
            .prop_map(|(replica, stored)| Event::Read { replica, stored }),
        2 => (object.clone(), prop::bool::weighted(0.2))
            .prop_map(|(name, moved)| Event::Approve { name, moved }),
        1 => object.prop_map(|name| Event::Block { name }),
        3 => replica.clone().prop_map(|replica| Event::Sync { replica }),
        1 => replica.prop_map(|replica| Event::Crash { replica }),
    ]
}

/// One replica: what its backend shows, what it knows and what its clients can use.
#[derive(Default)]
struct Replica {
    shown: BTreeMap<usize, u8>,
    book: PinBook,
    /// Objects that the catalog lists, with the definition.
    listed: BTreeMap<usize, u8>,
}

#[derive(Default)]
struct World {
    rows: BTreeMap<usize, StoredPin>,
    replicas: Vec<Replica>,
    /// Every definition that an operator ever approved.
    ever_approved: BTreeSet<(usize, u8)>,
    /// The first definition of each object that any replica stored.
    firsts: BTreeMap<usize, u8>,
}

impl World {
    fn new() -> Self {
        Self { replicas: (0..REPLICAS).map(|_| Replica::default()).collect(), ..Self::default() }
    }

    /// Stores a sighting as every store does: the first one stays.
    fn store(&mut self, name_number: usize, seen: u8) {
        self.firsts.entry(name_number).or_insert(seen);
        let row = self.rows.entry(name_number).or_insert_with(|| StoredPin {
            key: PinKey { kind: PinKind::Tool, name: name(name_number) },
            first_hash: hash(seen).to_string(),
            seen_hash: String::new(),
            is_listed: true,
            approved: Vec::new(),
            is_blocked: false,
            decisions: 0,
            findings: "[]".to_owned(),
            decided_by: None,
            decided_at_us: None,
            first_seen_at_us: 0,
            seen_at_us: 0,
        });
        (row.seen_hash, row.is_listed) = (hash(seen).to_string(), true);
    }

    fn publish(&mut self, replica: usize, mode: PinMode) {
        let replica = &mut self.replicas[replica];
        let is_open = |(at, seen): &(&usize, &u8)| {
            let pin = EntryPin { fingerprint: Some(hash(**seen)), ..EntryPin::default() };
            !replica.book.holds(mode, PinKind::Tool, &name(**at), pin)
        };
        replica.listed =
            replica.shown.iter().filter(is_open).map(|(at, seen)| (*at, *seen)).collect();
    }

    fn apply(&mut self, event: &Event, mode: PinMode) {
        match *event {
            Event::Change { replica, name, to } => match to {
                // The lists of this replica stay until it reads them.
                Some(to) => drop(self.replicas[replica].shown.insert(name, to)),
                None => drop(self.replicas[replica].shown.remove(&name)),
            },
            Event::Read { replica, stored } => {
                let shown = self.replicas[replica].shown.clone();
                if !stored {
                    self.replicas[replica] = Replica { shown, ..Replica::default() };
                    return;
                }
                shown.iter().for_each(|(name, seen)| self.store(*name, *seen));
                let merged: Vec<StoredPin> =
                    shown.keys().filter_map(|name| self.rows.get(name).cloned()).collect();
                self.replicas[replica].book.merge(&merged);
                self.publish(replica, mode);
            }
            Event::Approve { name, moved } => {
                let Some(row) = self.rows.get_mut(&name) else { return };
                let looked_at =
                    if moved { hash(DEFINITIONS).to_string() } else { row.seen_hash.clone() };
                if looked_at != row.seen_hash {
                    return; // refused
                }
                row.approved.insert(0, looked_at.clone());
                (row.is_blocked, row.decisions) = (false, row.decisions + 1);
                let number = (0..DEFINITIONS).find(|number| hash(*number).to_string() == looked_at);
                self.ever_approved.insert((name, number.expect("a definition that was seen")));
            }
            Event::Block { name } => {
                let Some(row) = self.rows.get_mut(&name) else { return };
                (row.is_blocked, row.decisions) = (true, row.decisions + 1);
            }
            Event::Sync { replica } => {
                let changes = self.replicas[replica].book.changes();
                self.replicas[replica].book.replace(self.rows.values(), changes);
                self.publish(replica, mode);
            }
            Event::Crash { replica } => {
                let shown = self.replicas[replica].shown.clone();
                self.replicas[replica] = Replica { shown, ..Replica::default() };
            }
        }
    }

    fn states(&self) -> BTreeMap<usize, (String, PinState)> {
        let state = |row: &StoredPin| {
            let seen = row.is_listed.then(|| Fingerprint::parse(&row.seen_hash).unwrap());
            Pin::of_stored(row).unwrap().state(seen)
        };
        self.rows.iter().map(|(at, row)| (*at, (row.seen_hash.clone(), state(row)))).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// No definition that no operator approved is ever listed or called while it is held, on any
    /// replica, after any crash.
    #[test]
    fn an_unapproved_definition_is_never_listed_while_it_is_held(
        events in prop::collection::vec(event(), 1..60),
        mode in prop_oneof![Just(PinMode::HoldAll), Just(PinMode::HoldChanged)],
    ) {
        let mut world = World::new();
        for event in &events {
            world.apply(event, mode);
            for replica in &world.replicas {
                for (name, seen) in &replica.listed {
                    let is_approved = world.ever_approved.contains(&(*name, *seen));
                    let is_first = mode == PinMode::HoldChanged && world.firsts.get(name) == Some(seen);
                    prop_assert!(is_approved || is_first, "{name} {seen} after {event:?}");
                }
            }
        }
    }

    /// Once a replica has heard of every decision, it lists exactly what they permit.
    #[test]
    fn replicas_that_received_every_decision_agree_with_the_store(
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut world = World::new();
        events.iter().for_each(|event| world.apply(event, PinMode::HoldAll));
        for replica in 0..REPLICAS {
            world.apply(&Event::Read { replica, stored: true }, PinMode::HoldAll);
            world.apply(&Event::Sync { replica }, PinMode::HoldAll);
            let seen = &world.replicas[replica];
            for (name, definition) in &seen.shown {
                let row = &world.rows[name];
                let may = !row.is_blocked && row.approved.contains(&hash(*definition).to_string());
                prop_assert_eq!(seen.listed.get(name), may.then_some(definition));
            }
        }
    }

    /// Only a decision of an operator changes the state of an unchanged definition, and a return to
    /// an approved one is trusted again.
    #[test]
    fn only_operators_change_the_state_of_a_definition(
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut world = World::new();
        for event in &events {
            let before = world.states();
            world.apply(event, PinMode::HoldAll);
            let is_decision = matches!(event, Event::Approve { .. } | Event::Block { .. });
            for (name, (seen, state)) in world.states() {
                if let Some((seen_before, state_before)) = before.get(&name)
                    && !is_decision
                    && *seen_before == seen
                {
                    prop_assert_eq!(*state_before, state, "{} after {:?}", name, event);
                }
                let row = &world.rows[&name];
                if row.approved.contains(&row.seen_hash) && !row.is_blocked {
                    prop_assert_eq!(state, PinState::Trusted);
                }
            }
        }
    }
}

fn pin(approved: &[u8], is_blocked: bool) -> Pin {
    Pin {
        first: hash(0),
        approved: approved.iter().copied().map(hash).collect(),
        is_blocked,
        decisions: 0,
    }
}

#[test]
fn the_state_of_a_pin_follows_from_stored_and_seen_hashes() {
    assert_eq!(pin(&[], false).state(Some(hash(0))), PinState::Pending);
    assert_eq!(pin(&[], false).state(Some(hash(1))), PinState::Changed);
    assert_eq!(pin(&[1], false).state(Some(hash(1))), PinState::Trusted);
    assert_eq!(
        pin(&[1], false).state(Some(hash(0))),
        PinState::Changed,
        "the first one was not approved"
    );
    assert_eq!(pin(&[1, 2], false).state(Some(hash(2))), PinState::Trusted);
    assert_eq!(pin(&[1], true).state(Some(hash(1))), PinState::Blocked);
    assert_eq!(pin(&[1], false).state(None), PinState::Gone);
}

#[test]
fn each_pin_mode_holds_its_documented_states() {
    use PinState::*;
    for (mode, held) in [
        (PinMode::Off, &[][..]),
        (PinMode::Observe, &[Blocked]),
        (PinMode::HoldChanged, &[Blocked, Changed]),
        (PinMode::HoldAll, &[Blocked, Changed, Pending, Gone]),
    ] {
        for state in PinState::ALL {
            assert_eq!(mode.holds(state, false), held.contains(&state), "{mode:?} {state:?}");
        }
    }
    assert!(PinMode::HoldChanged.holds(Pending, true), "a new object with a serious finding");
    assert!(!PinMode::Observe.holds(Pending, true) && !PinMode::HoldAll.holds(Trusted, true));
}

#[test]
fn an_object_without_a_stored_pin_is_held_in_holding_modes() {
    let book = PinBook::default();
    let seen = EntryPin { fingerprint: Some(hash(1)), ..EntryPin::default() };
    for (mode, held) in [
        (PinMode::Off, false),
        (PinMode::Observe, false),
        (PinMode::HoldChanged, true),
        (PinMode::HoldAll, true),
    ] {
        assert_eq!(book.holds(mode, PinKind::Tool, "a", seen), held, "{mode:?}");
    }
}

/// A replica can read rows in another order than that in which operators decided.
#[test]
fn a_pin_row_with_fewer_decisions_is_ignored() {
    let mut world = World::new();
    world.store(0, 1);
    let older = world.rows[&0].clone();
    let newer = StoredPin { is_blocked: true, decisions: 1, ..older.clone() };
    for rows in [[&older, &newer], [&newer, &older]] {
        let mut book = PinBook::default();
        book.merge(rows);
        assert!(book.pin(PinKind::Tool, &name(0)).unwrap().is_blocked, "{rows:?}");
    }
}

/// A backend that is removed and registered again has other rows under the same names.
#[test]
fn a_read_of_all_rows_removes_pins_without_a_row() {
    let mut world = World::new();
    [0, 1, 2].iter().for_each(|number| world.store(*number, 1));
    let mut book = PinBook::default();
    let rows = world.rows.values().cloned();
    let rows: Vec<_> =
        rows.map(|row| StoredPin { is_blocked: true, decisions: 9, ..row }).collect();
    book.merge(&rows[..2]);
    let changes = book.changes();
    book.merge(&rows[2..]);
    let again = StoredPin { decisions: 0, is_blocked: false, ..rows[1].clone() };
    let blocked = |book: &PinBook| -> Vec<Option<bool>> {
        let pins = [0, 1, 2].map(|number| book.pin(PinKind::Tool, &name(number)).cloned());
        pins.into_iter().map(|pin| pin.map(|pin| pin.is_blocked)).collect()
    };
    book.replace([&again], changes);
    assert_eq!(blocked(&book), [None, Some(false), Some(true)], "the last came after the read");
    let older = StoredPin { decisions: 8, is_blocked: false, ..rows[2].clone() };
    book.replace([&older], changes);
    assert_eq!(blocked(&book)[2], Some(true), "it is newer than the read");
    let unknown = StoredPin { first_hash: "v9:".to_owned(), ..rows[2].clone() };
    book.replace([&unknown], book.changes());
    assert_eq!(blocked(&book), [None, None, Some(true)], "a newer build wrote the row");
    book.replace([], book.changes());
    assert_eq!(blocked(&book), [None, None, None]);
}

#[test]
fn a_twin_of_a_held_object_is_held_too() {
    let mut world = World::new();
    for (number, seen) in [(0, 1), (1, 1)] {
        world.store(number, seen);
        let row = world.rows.get_mut(&number).unwrap();
        (row.approved, row.decisions) = (vec![hash(seen).to_string()], 1);
    }
    let mut book = PinBook::default();
    book.merge(world.rows.values());
    let tool =
        |number| format!(r#"{{"name":"{}","inputSchema":{{"type":"object"}}}}"#, name(number));
    let page = format!(r#"{{"tools":[{},{},{}]}}"#, tool(0), tool(0), tool(1));
    let backend = BackendId::parse("b").unwrap();
    let page = read_page(ListKind::Tools, &backend, TaskHost::Backend, page.as_bytes()).unwrap();
    let mut entries = page.entries;
    // The second entry has the name of the first, and a definition that no operator approved.
    for (entry, seen) in entries.iter_mut().zip([1, 2, 1]) {
        entry.pin.fingerprint = Some(hash(seen));
    }
    mark_held(&book, PinMode::HoldChanged, ListKind::Tools, &mut entries);
    let held: Vec<bool> = entries.iter().map(|entry| entry.pin.is_held).collect();
    assert_eq!(held, [true, true, false]);
}
