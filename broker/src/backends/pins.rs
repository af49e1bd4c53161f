//! Compares the lists of one backend with its pins, before a client sees them.
//!
//! The catalog refresh hands every list that it read to [`PinKeeper::admit`], and every own list of
//! a link to [`PinKeeper::admit_own`]. Both store what they see first, so that a crash cannot make a
//! changed definition a new one. Invariants:
//!
//! - [`PinKeeper::publish`] alone stores lists that a client sees, and [`PinKeeper::publish_own`]
//!   those of one link. Both mark what is held in them by the pins as known at that moment.
//! - A decision of an operator needs no answer of the backend. It marks the stored lists again.
//! - Without the store, modes that hold objects hold what they have no pin for.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use arc_swap::ArcSwapOption;
use config::spec::PinSettings;
use parking_lot::Mutex;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{BackendId, TenantId},
};
use records::{PinKey, PinKind, PinSighting, StoredPin};
use rules::{
    catalog::{self, BackendLists, CatalogEntry, ListKind},
    limits::pins::{PINS_PER_BACKEND_MAX, PINS_STORED_AT_ONCE, SKIPPED_LOGGED_MAX},
    pins::{
        EntryPin, FindingSeverity, Fingerprint, IgnoredMembers, PinBook, PinDefinition, PinMode,
        PinState, ResultScan,
    },
    routing,
};

use super::{
    link_lists::{LinkLists, OwnListBudget},
    look_alikes::find_look_alikes,
    pin_batches::batches,
};
use crate::{
    context::Context,
    long_work::run_long_work,
    metrics::PinCounts,
    persistence::{StoreError, fault_point},
};

/// The pins of one backend, as this replica has loaded them.
#[derive(Debug)]
pub struct PinKeeper {
    pub mode: PinMode,
    /// What happens to hidden characters in the results of tools.
    pub results: ResultScan,
    pub(super) tenant: TenantId,
    pub(super) backend: BackendId,
    context: Arc<Context>,
    ignored: IgnoredMembers,
    loaded: Mutex<LoadedPins>,
}

/// The stored pins that this replica has loaded, and the sightings that it stored.
#[derive(Debug, Default)]
struct LoadedPins {
    book: PinBook,
    /// Number of loads that started.
    loads: u64,
    /// The load that the book is of. 0: none has ended.
    last_load: u64,
    /// Number of decisions at the last load.
    decisions: i64,
    /// The last sightings that this replica has loaded, or written to the store.
    stored: HashMap<PinKey, StoredSighting>,
    /// Objects that only the own lists of links show.
    own: HashSet<PinKey>,
    /// What the metrics count of this backend.
    counted: PinCounts,
    /// The backend is removed or replaced.
    is_ended: bool,
}

/// A sighting, as the store has it.
#[derive(Debug, PartialEq, Eq)]
struct StoredSighting {
    fingerprint: Option<Fingerprint>,
    findings: String,
}

/// Extent of the definitions that are pinned together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PinScope {
    /// All lists: what is missing is not listed any more.
    Lists,
    /// A list that one link shows.
    Link,
    /// One object that no list shows: the program of the backend, or a user interface.
    Single,
}

impl PinKeeper {
    pub fn new(
        tenant: TenantId,
        backend: BackendId,
        settings: &PinSettings,
        context: Arc<Context>,
    ) -> Self {
        let (mode, ignored) = settings.rules();
        let (results, loaded) = (settings.results(), Mutex::default());
        Self { mode, results, tenant, backend, context, ignored, loaded }
    }

    /// Returns the members that are no part of definitions. `None`: nothing is pinned.
    pub fn ignored(&self) -> Option<&IgnoredMembers> {
        (self.mode != PinMode::Off).then_some(&self.ignored)
    }

    /// Takes over the state of the keeper of the replaced backend.
    pub fn inherit(&self, replaced: &Self) {
        if self.mode == PinMode::Off || replaced.mode == PinMode::Off {
            return;
        }
        let mut loaded = self.loaded.lock();
        loaded.book = replaced.loaded.lock().book.clone();
    }

    /// Returns the number of operators' decisions at the last load.
    pub fn decisions(&self) -> i64 {
        self.loaded.lock().decisions
    }

    /// Ends the part of a removed backend in the metrics.
    pub fn end(&self) {
        let mut loaded = self.loaded.lock();
        loaded.is_ended = true;
        self.count(&mut loaded, PinCounts::default());
    }

    /// Refuses requests to a backend whose definitions are unknown, if its pins hold what is
    /// unknown.
    pub fn admits(&self, is_never_reached: bool) -> Result<(), Refusal> {
        if !self.mode.holds_unknown() || !is_never_reached {
            return Ok(());
        }
        let text = "the backend has pins, and the broker has not read its definitions yet";
        Err(Refusal::new(ErrorKind::BackendUnavailable, text))
    }

    /// Stores lists for clients as the backend's lists. What the pins hold is marked in
    /// them. Returns whether they differ from the earlier ones.
    pub fn publish(&self, published: &ArcSwapOption<BackendLists>, lists: BackendLists) -> bool {
        self.publish_as(&mut self.loaded.lock(), published, lists)
    }

    /// Marks what the pins hold by now in the backend's lists.
    pub fn publish_again(&self, published: &ArcSwapOption<BackendLists>) {
        let mut loaded = self.loaded.lock(); // lists that were just read are not replaced by older ones
        if let Some(lists) = published.load_full() {
            self.publish_as(&mut loaded, published, (*lists).clone());
        }
    }

    fn publish_as(
        &self,
        loaded: &mut LoadedPins,
        published: &ArcSwapOption<BackendLists>,
        mut lists: BackendLists,
    ) -> bool {
        let instructions = pin_of_instructions(&lists);
        lists.mark_held(&loaded.book, self.mode, instructions);
        if self.mode != PinMode::Off && !loaded.is_ended {
            let counts = counts(loaded, &lists, instructions);
            self.count(loaded, counts);
        }
        let is_changed = published.load().as_deref() != Some(&lists);
        if is_changed {
            published.store(Some(Arc::new(lists)));
        }
        is_changed
    }

    /// Pins the lists of the backend as they were read. `others` are the lists of the tenant's other
    /// backends. Returns the lists with the scanner's findings about their entries, and whether the
    /// store took what they show.
    pub async fn admit(
        &self,
        mut lists: BackendLists,
        mut definitions: Vec<PinDefinition>,
        others: impl Fn() -> Vec<(BackendId, Arc<BackendLists>)>,
    ) -> (BackendLists, bool) {
        if self.mode == PinMode::Off {
            return (lists, true);
        }
        run_long_work(|| with_instructions(&mut lists, &mut definitions, &others()));
        let is_stored = self.record(definitions, PinScope::Lists).await;
        (lists, is_stored)
    }

    /// Pins the lists that the backend shows to one principal. [`PinKeeper::mark`] marks what is held
    /// in them.
    pub async fn admit_of_principal(
        &self,
        mut lists: BackendLists,
        mut definitions: Vec<PinDefinition>,
        others: impl Fn() -> Vec<(BackendId, Arc<BackendLists>)>,
    ) -> BackendLists {
        if self.mode != PinMode::Off {
            run_long_work(|| with_instructions(&mut lists, &mut definitions, &others()));
            self.record(definitions, PinScope::Link).await;
        }
        lists
    }

    /// Marks what the pins hold in lists of one principal.
    pub(super) fn mark(&self, lists: &mut BackendLists) {
        let instructions = pin_of_instructions(lists);
        lists.mark_held(&self.loaded.lock().book, self.mode, instructions);
    }

    /// Pins a list that the backend shows to one link. Resources of single sessions are pinned only
    /// where they are held without a pin, because each session may have others.
    pub async fn admit_own(&self, kind: ListKind, definitions: Vec<PinDefinition>) {
        let is_pinned = kind != ListKind::Resources || self.mode.holds_unknown();
        if self.mode != PinMode::Off && is_pinned {
            self.record(definitions, PinScope::Link).await;
        }
    }

    /// Stores a list for the clients of one link, like [`LinkLists::store`].
    pub(super) fn publish_own(
        &self,
        own: &LinkLists,
        (kind, mut entries): (ListKind, Vec<CatalogEntry>),
        shared: &BackendLists,
        budget: &OwnListBudget,
    ) -> Option<bool> {
        let loaded = self.loaded.lock(); // no decision falls between the marks and the lists
        catalog::mark_held(&loaded.book, self.mode, kind, &mut entries);
        own.store(kind, entries, shared, budget)
    }

    /// Marks what the pins hold by now in the own lists of a link. Returns whether something else
    /// is held than before.
    pub(super) fn publish_own_again(&self, own: &LinkLists) -> bool {
        let loaded = self.loaded.lock();
        own.mark(|kind, entries| catalog::mark_held(&loaded.book, self.mode, kind, entries))
    }

    /// Pins a user interface as a client is about to get it. Refuses one that is held.
    pub async fn admit_app(&self, uri: &str, result: &[u8]) -> Result<(), Refusal> {
        if self.mode == PinMode::Off {
            return Ok(());
        }
        let definition = PinDefinition::of_app(uri, result);
        let pin = definition.entry_pin();
        self.record(vec![definition], PinScope::Single).await;
        match self.loaded.lock().book.holds(self.mode, PinKind::App, uri, pin) {
            true => Err(routing::held()),
            false => Ok(()),
        }
    }

    /// Stores the definitions that the store does not have as they are now. Returns false if it did
    /// not take them.
    pub(super) async fn record(&self, definitions: Vec<PinDefinition>, scope: PinScope) -> bool {
        let recorded = self.try_record(definitions, scope).await;
        if let Err(error) = &recorded {
            tracing::warn!(tenant = %self.tenant, backend = %self.backend, %error, "the broker could not store the pins of a backend yet");
        }
        recorded.is_ok()
    }

    async fn try_record(
        &self,
        definitions: Vec<PinDefinition>,
        scope: PinScope,
    ) -> Result<(), StoreError> {
        let is_first = self.loaded.lock().last_load == 0;
        if is_first {
            self.load().await?;
        }
        fault_point::hit("pins.sighted");
        let (seen, gone) = changes(&mut self.loaded.lock(), definitions, scope);
        if seen.is_empty() && gone.is_empty() {
            return Ok(());
        }
        self.log_changes(&seen, is_first);
        let seen: Vec<PinSighting> = seen.into_iter().map(|(sighting, _)| sighting).collect();
        for batch in gone.chunks(PINS_STORED_AT_ONCE) {
            self.store(&[], batch).await?;
        }
        for batch in batches(&seen) {
            self.store(batch, &[]).await?;
        }
        Ok(())
    }

    async fn store(&self, seen: &[PinSighting], gone: &[PinKey]) -> Result<(), StoreError> {
        let (persistence, max) = (&self.context.persistence, PINS_PER_BACKEND_MAX);
        let work = persistence.store.record_sightings(&self.tenant, &self.backend, seen, gone, max);
        let stored = persistence.run("record_sightings", work).await?;
        if stored.len() < seen.len() {
            tracing::warn!(tenant = %self.tenant, backend = %self.backend, max, "a backend has reached its limit of pins: the broker does not pin new objects");
        }
        record_stored(&mut self.loaded.lock(), seen, &stored, gone);
        Ok(())
    }

    /// Loads the pins with the decisions of operators from the store. Returns whether the store has
    /// lost sightings: their objects have to be listed again.
    pub async fn load(&self) -> Result<bool, StoreError> {
        if self.mode == PinMode::Off {
            return Ok(false);
        }
        let (load, changes) = self.loaded.lock().start_load();
        let persistence = &self.context.persistence;
        let pins = persistence.store.pins_of(&self.tenant, &self.backend);
        let pins = persistence.run("list_pins", pins).await?;
        Ok(self.loaded.lock().end_load(load, changes, pins))
    }

    /// Logs what is new at a backend.
    fn log_changes(&self, seen: &[(PinSighting, PinState)], is_first: bool) {
        let (tenant, backend) = (&self.tenant, &self.backend);
        let changed = seen.iter().filter(|(_, state)| *state == PinState::Changed);
        for (one, _) in changed.clone().take(SKIPPED_LOGGED_MAX) {
            let (kind, name, hash) = (one.key.kind.name(), &one.key.name, &one.hash);
            let is_held = self.mode.holds(PinState::Changed, false);
            tracing::warn!(%tenant, %backend, kind, ?name, hash, is_held, "a backend changed a pinned definition");
        }
        let serious = seen.iter().filter(|(one, _)| one.findings.contains("\"serious\""));
        for (one, _) in serious.take(SKIPPED_LOGGED_MAX) {
            let (kind, name, findings) = (one.key.kind.name(), &one.key.name, &one.findings);
            tracing::warn!(%tenant, %backend, kind, ?name, ?findings, "the scanner has serious findings in a definition");
        }
        let (all, changed) = (seen.len(), changed.count());
        if is_first {
            tracing::debug!(%tenant, %backend, all, changed, "the lists of a backend are pinned");
        } else {
            tracing::info!(%tenant, %backend, all, changed, "a backend lists new or changed definitions");
        }
    }

    /// Moves the metrics to these counts.
    fn count(&self, loaded: &mut LoadedPins, now: PinCounts) {
        let before = std::mem::replace(&mut loaded.counted, now);
        self.context.metrics.pins.moved(before, now);
    }
}

impl LoadedPins {
    /// Returns the number of a new load, and of the changes of the book before it.
    fn start_load(&mut self) -> (u64, u64) {
        self.loads += 1;
        (self.loads, self.book.changes())
    }

    fn end_load(&mut self, load: u64, changes: u64, pins: Vec<StoredPin>) -> bool {
        if load < self.last_load {
            return false; // one that started later has ended, and read what this one did or more
        }
        let is_first = std::mem::replace(&mut self.last_load, load) == 0;
        self.book.replace(&pins, changes);
        self.decisions = pins.iter().map(|pin| pin.decisions).sum();
        if is_first {
            let listed = pins.into_iter().filter(|pin| pin.is_listed);
            self.stored = listed.map(stored_sighting).collect();
            return false;
        }
        let before = self.stored.len();
        self.stored.retain(|key, _| self.book.pin(key.kind, &key.name).is_some());
        self.stored.len() < before
    }
}

fn stored_sighting(pin: StoredPin) -> (PinKey, StoredSighting) {
    let fingerprint = Fingerprint::parse(&pin.seen_hash);
    (pin.key, StoredSighting { fingerprint, findings: pin.findings })
}

type PinChanges = (Vec<(PinSighting, PinState)>, Vec<PinKey>);

/// Returns the sightings that the store lacks, with their states here, and the keys that the
/// backend no longer lists.
fn changes(
    loaded: &mut LoadedPins,
    definitions: Vec<PinDefinition>,
    scope: PinScope,
) -> PinChanges {
    let mut listed = HashSet::new();
    let mut seen = Vec::new();
    for definition in definitions {
        let key = PinKey { kind: definition.kind, name: definition.name };
        if !listed.insert(key.clone()) {
            continue; // clients see the first of several entries with one name
        }
        match scope {
            PinScope::Link
                if !loaded.stored.contains_key(&key) && has_capacity(loaded.own.len()) =>
            {
                loaded.own.insert(key.clone());
            }
            PinScope::Lists => drop(loaded.own.remove(&key)),
            PinScope::Link | PinScope::Single => {}
        }
        let findings = serde_json::to_string(&definition.findings).unwrap_or_default();
        let fingerprint = Some(definition.fingerprint);
        let is_stored = loaded.stored.get(&key).is_some_and(|sighting| {
            sighting.fingerprint == fingerprint && sighting.findings == findings
        });
        if !is_stored {
            let state = loaded.book.state(key.kind, &key.name, definition.fingerprint);
            let hash = definition.fingerprint.to_string();
            let sighting = PinSighting { key, hash, definition: definition.text, findings };
            seen.push((sighting, state.unwrap_or(PinState::Pending)));
        }
    }
    let is_gone = |key: &&PinKey| {
        let is_unlisted = matches!(key.kind, PinKind::Command | PinKind::App);
        !is_unlisted && !listed.contains(*key) && !loaded.own.contains(*key)
    };
    let gone = match scope {
        PinScope::Lists => loaded.stored.keys().filter(is_gone).cloned().collect(),
        PinScope::Link | PinScope::Single => Vec::new(),
    };
    (seen, gone)
}

fn record_stored(
    loaded: &mut LoadedPins,
    sightings: &[PinSighting],
    stored: &[StoredPin],
    gone: &[PinKey],
) {
    loaded.book.merge(stored);
    for key in gone {
        loaded.stored.remove(key);
    }
    let pinned: HashSet<&PinKey> = stored.iter().map(|pin| &pin.key).collect();
    for sighting in sightings {
        let key = &sighting.key;
        if !pinned.contains(key) {
            loaded.own.remove(key); // it has no pin that could become gone
            if !loaded.stored.contains_key(key) && !has_capacity(loaded.stored.len()) {
                continue; // backends may list new names without end
            }
        }
        let fingerprint = Fingerprint::parse(&sighting.hash);
        let latest = StoredSighting { fingerprint, findings: sighting.findings.clone() };
        loaded.stored.insert(key.clone(), latest);
    }
}

/// Returns whether a collection of this size may grow. The store has no more pins of a backend.
fn has_capacity(len: usize) -> bool {
    len < PINS_PER_BACKEND_MAX as usize
}

/// Adds the definition of the instructions, and the findings about tools that pass for those of
/// other backends.
fn with_instructions(
    lists: &mut BackendLists,
    definitions: &mut Vec<PinDefinition>,
    others: &[(BackendId, Arc<BackendLists>)],
) {
    find_look_alikes(lists, definitions, others);
    definitions.extend(instructions_of(lists));
}

fn instructions_of(lists: &BackendLists) -> Option<PinDefinition> {
    lists.server.instructions.as_deref().map(PinDefinition::of_instructions)
}

/// Returns the pin of the instructions in these lists. Others may have been read meanwhile.
fn pin_of_instructions(lists: &BackendLists) -> EntryPin {
    instructions_of(lists).as_ref().map(PinDefinition::entry_pin).unwrap_or_default()
}

/// Counts the listed objects of a backend by the state of their pins.
fn counts(loaded: &LoadedPins, lists: &BackendLists, instructions: EntryPin) -> PinCounts {
    let mut counts = PinCounts::default();
    let mut add = |kind, name: &str, pin: EntryPin| {
        if let Some(state) = pin.fingerprint.and_then(|seen| loaded.book.state(kind, name, seen)) {
            counts.states[state as usize] += 1;
        }
    };
    for kind in ListKind::ALL {
        for entry in lists.entries(kind) {
            add(kind.pin_kind(), &entry.key, entry.pin);
        }
    }
    add(PinKind::Instructions, PinKind::Instructions.name(), instructions);
    for sighting in loaded.stored.values() {
        for (count, severity) in counts.findings.iter_mut().zip(FindingSeverity::ALL) {
            *count += i64::try_from(
                sighting.findings.matches(&format!("\"{}\"", severity.name())).count(),
            )
            .unwrap_or(i64::MAX);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        auth::Caller, backends::lists_for_tests::lists_with_tool, broker::Broker,
        persistence::Stores,
    };

    #[tokio::test]
    async fn a_decision_marks_the_instructions_of_the_lists_that_clients_have() {
        let broker = Broker::over(Stores::in_memory().await);
        let (caller, id) = (Caller::anonymous(), BackendId::parse("b").unwrap());
        let transport = json!({"type": "http", "url": "http://127.0.0.1:9/mcp"});
        let spec = json!({"transport": transport, "pins": "hold_changed"});
        broker.put_backend(&caller.tenant, &id, serde_json::from_value(spec).unwrap());
        let backend = broker.tenant(&caller.tenant).unwrap().backend(&id).unwrap();
        let (pins, published) = (&backend.pins, ArcSwapOption::<BackendLists>::empty());
        let read = async |text: &str| {
            let mut lists = lists_with_tool(&id, r#"{"name":"a","inputSchema":{}}"#);
            Arc::make_mut(&mut lists.server).instructions = Some(text.to_owned());
            let (lists, is_stored) = pins.admit(lists, Vec::new(), Vec::new).await;
            assert!(is_stored);
            lists
        };
        let shown = || published.load_full().unwrap().instructions().map(str::to_owned);
        pins.publish(&published, read("Be kind.").await);
        assert_eq!(shown().as_deref(), Some("Be kind."));
        pins.publish(&published, read("Be rude.").await);
        assert_eq!(shown(), None, "they changed");
        // A decision comes while the next lists are stored, and marks the changed ones again.
        let next = read("Be kind.").await;
        pins.publish_again(&published);
        assert_eq!(shown(), None, "clients still have the lists with the changed ones");
        pins.publish(&published, next);
        assert_eq!(shown().as_deref(), Some("Be kind."));
    }

    fn definitions(names: std::ops::Range<usize>) -> Vec<PinDefinition> {
        let named = |at| {
            let (name, ignored) = (format!("tool-{at}"), IgnoredMembers::default());
            let raw = format!(r#"{{"name":"{name}"}}"#);
            PinDefinition::of_entry(PinKind::Tool, &name, raw.as_bytes(), &ignored)
        };
        names.map(named).collect()
    }

    /// Records definitions as a store does that refuses new pins.
    fn record_refused(loaded: &mut LoadedPins, names: std::ops::Range<usize>, scope: PinScope) {
        let (seen, gone) = changes(loaded, definitions(names), scope);
        let seen: Vec<PinSighting> = seen.into_iter().map(|(sighting, _)| sighting).collect();
        record_stored(loaded, &seen, &[], &gone);
    }

    #[test]
    fn sightings_without_a_pin_are_bounded() {
        const MAX: usize = PINS_PER_BACKEND_MAX as usize;
        let mut loaded = LoadedPins::default();
        record_refused(&mut loaded, 0..MAX + 10, PinScope::Link);
        assert_eq!((loaded.stored.len(), loaded.own.len()), (MAX, 0));
        // A backend without new names costs the store nothing.
        let (seen, _) = changes(&mut loaded, definitions(0..MAX), PinScope::Link);
        assert!(seen.is_empty());
        // What the backend does not list any more frees capacity.
        record_refused(&mut loaded, MAX..MAX + 20, PinScope::Lists);
        assert_eq!((loaded.stored.len(), loaded.own.len()), (20, 0));
    }

    #[test]
    fn own_objects_are_bounded_while_the_store_takes_nothing() {
        const MAX: usize = PINS_PER_BACKEND_MAX as usize;
        let mut loaded = LoadedPins::default();
        changes(&mut loaded, definitions(0..MAX + 10), PinScope::Link);
        assert_eq!((loaded.stored.len(), loaded.own.len()), (0, MAX));
    }
}
