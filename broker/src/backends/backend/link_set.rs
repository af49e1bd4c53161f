//! The links of one backend by their scope, and what its connections have shown.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use rules::link_sharing::{LinkScope, WireKind};
use tokio_util::sync::CancellationToken;

/// The links of one backend. `L` is a link, whose contents are not used here.
#[derive(Debug)]
pub struct LinkSet<L> {
    by_scope: Mutex<HashMap<LinkScope, Arc<L>>>,
    /// The link that fetches the lists.
    reader: Mutex<Weak<L>>,
    connections: Mutex<SeenConnections>,
}

#[derive(Debug, Default)]
struct SeenConnections {
    open: usize,
    /// The kind of wire, once a connection has shown it.
    wire: Option<WireKind>,
}

impl<L> Default for LinkSet<L> {
    fn default() -> Self {
        Self {
            by_scope: Mutex::default(),
            reader: Mutex::new(Weak::new()),
            connections: Mutex::default(),
        }
    }
}

impl<L> LinkSet<L> {
    pub fn all(&self) -> Vec<Arc<L>> {
        self.by_scope.lock().values().cloned().collect()
    }

    /// Returns the link of this scope. Makes it if there is none that is usable. `None`: the backend
    /// is closed.
    pub(super) fn get_or_make(
        &self,
        scope: LinkScope,
        closed: &CancellationToken,
        is_usable: impl Fn(&L) -> bool,
        make: impl Fn() -> Arc<L>,
    ) -> Option<Arc<L>> {
        let mut links = self.by_scope.lock();
        if closed.is_cancelled() {
            return None; // the close of the backend has closed its links
        }
        let known = links.entry(scope).or_insert_with(&make);
        if !is_usable(known) {
            *known = make();
        }
        Some(known.clone())
    }

    /// Removes a link, unless another one has its scope.
    pub(super) fn remove(&self, scope: &LinkScope, link: &Arc<L>) {
        let mut links = self.by_scope.lock();
        if links.get(scope).is_some_and(|known| Arc::ptr_eq(known, link)) {
            links.remove(scope);
        }
    }

    /// Returns the link that fetches the lists.
    pub fn reader(&self) -> Option<Arc<L>> {
        self.reader.lock().upgrade()
    }

    pub(super) fn set_reader(&self, link: &Arc<L>) {
        *self.reader.lock() = Arc::downgrade(link);
    }

    /// Returns the kind of wire, once a connection has shown it.
    pub(super) fn wire(&self) -> Option<WireKind> {
        self.connections.lock().wire
    }

    pub(super) fn record_wire(&self, wire: WireKind) {
        self.connections.lock().wire = Some(wire);
    }

    pub(super) fn forget_wire(&self) {
        self.connections.lock().wire = None;
    }

    /// Returns the number of open connections.
    pub(super) fn open_connections(&self) -> usize {
        self.connections.lock().open
    }

    pub(super) fn record_opened(&self) {
        self.connections.lock().open += 1;
    }

    pub(super) fn record_ended(&self) {
        let mut connections = self.connections.lock();
        connections.open = connections.open.saturating_sub(1);
    }
}
