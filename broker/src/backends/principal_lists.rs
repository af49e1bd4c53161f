//! Lists that a backend shows to each principal by its own token (`catalog_auth: per_principal`).
//!
//! They are read at their first use, over a connection of their own with the principal's token, and
//! again when the backend announces a change, when the principal connects an account, and when they
//! are old. They live in memory: another process reads them again.
//!
//! Invariants:
//! - Every look-up takes a principal. Principals share a value only if all of its bytes are equal.
//! - Lists that were read once stay until others are read. A failure makes no list empty.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use protocol::{
    capabilities::ClientCapabilities,
    error::{ErrorKind, Refusal},
    ids::{BackendId, PrincipalId},
};
use rules::{
    catalog::{BackendLists, ListKind},
    limits::{
        REFRESH_INTERVAL_MIN,
        oauth::{
            GRANT_CACHED_MAX, PRINCIPAL_LISTS_AGE_MAX, PRINCIPAL_LISTS_READ_MAX,
            PRINCIPAL_LISTS_RETRY,
        },
    },
    link_sharing::LinkScope,
};
use tokio::sync::Semaphore;

use super::{
    backend::{Backend, BackendState, links::CATALOG_CAPABILITIES},
    catalog_refresh::{self, FetchedLists},
    link::{Era, Link},
    link_lists::{HeldBytes, next_number},
    policy::Policy,
};
use crate::config::spec::CatalogAuth;

/// Lists of one backend, by principal.
#[derive(Debug)]
pub struct PrincipalLists {
    known: Mutex<HashMap<PrincipalId, KnownLists>>,
    /// Lists by their content.
    by_content: Mutex<HashMap<Vec<u8>, Weak<PrincipalView>>>,
    /// Permits for reads.
    reads: Semaphore,
}

/// The lists as a principal sees them. Their bytes count as long as they exist.
#[derive(Debug)]
pub struct PrincipalView {
    /// A number that no other value of this process has.
    pub number: u64,
    pub lists: Arc<BackendLists>,
    /// Rules for requests, with the schemas of these lists.
    pub policy: Arc<Policy>,
    _held: HeldBytes,
}

#[derive(Debug, Default)]
struct KnownLists {
    view: Option<Arc<PrincipalView>>,
    read: Option<ReadOutcome>,
    /// Number of times that the lists became due.
    changes: u64,
    /// Puts the reads of the principal in order. It holds no data.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Clone, Copy)]
struct ReadOutcome {
    at: Instant,
    /// Time after which the lists are read again.
    good_for: Duration,
    /// Whether they are those that clients with sessions get.
    for_sessions: bool,
    is_failure: bool,
}

/// Lists of one principal as they were read.
pub struct ReadLists {
    lists: Result<BackendLists, ReadFailure>,
    outcome: ReadOutcome,
    /// Number of changes before the read.
    changes: u64,
}

/// Reason why a principal's lists cannot be read.
struct ReadFailure {
    refusal: Refusal,
    /// Whether the backend is unreachable or unhealthy.
    is_the_backends: bool,
}

impl Default for PrincipalLists {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            by_content: Mutex::default(),
            reads: Semaphore::new(PRINCIPAL_LISTS_READ_MAX),
        }
    }
}

impl PrincipalLists {
    /// Returns the lists of a principal, if they were read.
    pub fn of(&self, principal: &PrincipalId) -> Option<Arc<PrincipalView>> {
        self.known.lock().get(principal)?.view.clone()
    }

    /// Returns whether the lists of a principal have to be read. `wants_sessions`: clients with
    /// sessions use the backend.
    pub fn is_due(&self, principal: &PrincipalId, wants_sessions: bool) -> bool {
        let known = self.known.lock();
        let read = known.get(principal).and_then(|known| known.read);
        read.is_none_or(|read| {
            read.at.elapsed() >= read.good_for || (wants_sessions && !read.for_sessions)
        })
    }

    /// Returns whether the lists of a principal were never read, and no read of them has failed.
    pub fn is_unread(&self, principal: &PrincipalId) -> bool {
        self.known.lock().get(principal).is_none_or(|known| known.read.is_none())
    }

    /// Returns whether a read of the lists of a principal runs.
    pub fn is_reading(&self, principal: &PrincipalId) -> bool {
        self.known.lock().get(principal).is_some_and(|known| known.turn.try_lock().is_err())
    }

    /// Returns whether the lists of a principal are unknown because the last read of them failed.
    pub fn is_failed(&self, principal: &PrincipalId) -> bool {
        let known = self.known.lock();
        let known = known.get(principal).filter(|known| known.view.is_none());
        known.is_some_and(|known| known.read.is_some_and(|read| read.is_failure))
    }

    /// Makes the lists of a principal due.
    pub fn expire_of(&self, principal: &PrincipalId) {
        if let Some(known) = self.known.lock().get_mut(principal) {
            known.expire();
        }
    }

    /// Makes all lists due.
    pub fn expire(&self) {
        self.known.lock().values_mut().for_each(KnownLists::expire);
    }

    fn changes_of(&self, principal: &PrincipalId) -> u64 {
        self.known.lock().get(principal).map_or(0, |known| known.changes)
    }

    fn turn(&self, principal: &PrincipalId) -> Arc<tokio::sync::Mutex<()>> {
        let mut known = self.known.lock();
        if known.len() >= GRANT_CACHED_MAX && !known.contains_key(principal) {
            known.retain(|_, known| Arc::strong_count(&known.turn) > 1);
        }
        known.entry(principal.clone()).or_default().turn.clone()
    }
}

impl KnownLists {
    fn expire(&mut self) {
        self.changes += 1;
        if let Some(read) = &mut self.read {
            read.good_for = Duration::ZERO;
        }
    }
}

impl Backend {
    /// Returns whether each principal has lists of its own here.
    pub fn has_principal_lists(&self) -> bool {
        self.spec.auth.catalog_auth == CatalogAuth::PerPrincipal
    }

    /// Returns the lists as a principal sees them.
    pub fn lists_of(&self, principal: &PrincipalId) -> Option<Arc<BackendLists>> {
        match self.principal_view(principal) {
            Some(view) => Some(view.lists.clone()),
            None => self.lists.load_full(),
        }
    }

    /// Returns what a principal alone sees, if it was read.
    pub fn principal_view(&self, principal: &PrincipalId) -> Option<Arc<PrincipalView>> {
        self.has_principal_lists().then(|| self.principal_lists.of(principal)).flatten()
    }

    /// Returns whether the lists of a principal have to be read.
    pub fn wants_lists_of(&self, principal: &PrincipalId) -> bool {
        self.has_principal_lists() && self.principal_lists.is_due(principal, self.wants_sessions())
    }

    fn wants_sessions(&self) -> bool {
        self.era.sessions_wanted() && self.era.may_know_sessions(self.spec.protocol)
    }

    /// Reads the lists of a principal as long as they are due, and hands them to `store`, which must
    /// call [`Backend::store_lists_of`]. One read of a principal runs at a time. `others` returns the
    /// lists of the tenant's other backends.
    pub async fn read_lists_of(
        self: &Arc<Self>,
        principal: &PrincipalId,
        others: impl Fn() -> Vec<(BackendId, Arc<BackendLists>)>,
        store: impl Fn(ReadLists),
    ) {
        let turn = self.principal_lists.turn(principal);
        let _turn = turn.lock().await;
        while self.wants_lists_of(principal) && !self.stop.is_cancelled() {
            let read = tokio::select! {
                read = self.read_due(principal, &others) => read,
                () = self.stop.cancelled() => return,
            };
            let changes = read.changes;
            store(read);
            if self.principal_lists.changes_of(principal) == changes {
                return;
            }
            // Changes come in bursts.
            tokio::time::sleep(REFRESH_INTERVAL_MIN).await;
        }
    }

    async fn read_due(
        self: &Arc<Self>,
        principal: &PrincipalId,
        others: impl Fn() -> Vec<(BackendId, Arc<BackendLists>)>,
    ) -> ReadLists {
        let _permit = self.principal_lists.reads.acquire().await;
        let changes = self.principal_lists.changes_of(principal);
        let (at, for_sessions) = (Instant::now(), self.wants_sessions());
        let (lists, good_for) = match read_once(self, principal).await {
            Ok(FetchedLists { lists, definitions, ttl }) => {
                let lists = self.pins.admit_of_principal(lists, definitions, others).await;
                let kept_for = ttl.unwrap_or(PRINCIPAL_LISTS_AGE_MAX);
                (Ok(lists), kept_for.clamp(PRINCIPAL_LISTS_RETRY, PRINCIPAL_LISTS_AGE_MAX))
            }
            Err(failure) => (Err(failure), PRINCIPAL_LISTS_RETRY),
        };
        let is_failure = matches!(&lists, Err(failure) if !failure.is_of_user());
        let outcome = ReadOutcome { at, good_for, for_sessions, is_failure };
        ReadLists { lists, outcome, changes }
    }

    /// Stores the lists of a principal. Returns whether it sees other ones now.
    pub fn store_lists_of(&self, principal: &PrincipalId, read: ReadLists) -> bool {
        let view = match read.lists {
            Ok(lists) => {
                self.set_state(BackendState::Ready);
                self.view_of(lists)
            }
            Err(failure) => {
                if failure.is_the_backends {
                    self.set_unreachable(BackendState::Degraded, &failure.refusal);
                }
                None
            }
        };
        let mut known = self.principal_lists.known.lock();
        let known = known.entry(principal.clone()).or_default();
        known.read = Some(read.outcome);
        if let Some(outcome) = known.read.as_mut().filter(|_| known.changes != read.changes) {
            outcome.good_for = Duration::ZERO;
        }
        let Some(view) = view else { return false };
        let before = known.view.replace(view.clone());
        before.is_none_or(|before| before.number != view.number)
    }

    /// Marks what the pins hold by now in the lists of all principals.
    pub fn remark_principal_lists(&self) {
        for known in self.principal_lists.known.lock().values_mut() {
            if let Some(view) = &known.view {
                known.view = self.view_of((*view.lists).clone());
            }
        }
    }

    /// Returns the view of these lists. Equal lists share one. `None`: they find no room.
    fn view_of(&self, mut lists: BackendLists) -> Option<Arc<PrincipalView>> {
        self.pins.mark(&mut lists);
        let content = content_of(&lists);
        let mut by_content = self.principal_lists.by_content.lock();
        if let Some(view) = by_content.get(&content).and_then(Weak::upgrade) {
            return Some(view);
        }
        by_content.retain(|_, view| view.strong_count() > 0);
        let Some(held) = HeldBytes::take(&self.shared.own_lists_bytes, bytes_of(&lists)) else {
            tracing::warn!(backend = %self.id, "the lists of a principal find no room, it sees none of them");
            return None;
        };
        let view = Arc::new(PrincipalView {
            number: next_number(),
            lists: Arc::new(lists),
            policy: Policy::of(&self.tenant, &self.id, &self.spec, &self.shared, &self.resources),
            _held: held,
        });
        by_content.insert(content, Arc::downgrade(&view));
        Some(view)
    }
}

impl Backend {
    /// Opens and closes a connection with the token of the principal. The error is for operators.
    pub async fn test_as(self: &Arc<Self>, principal: &PrincipalId) -> Result<(), String> {
        let link = reader_of(self, principal);
        let connection = link.open_probe().await;
        let connection = connection.map_err(|failure| self.redactor.redact(&failure))?;
        link.shut();
        connection.close().await;
        Ok(())
    }
}

/// Returns a new link that reads the lists once, with the token of the principal.
fn reader_of(backend: &Arc<Backend>, principal: &PrincipalId) -> Arc<Link> {
    let declared = ClientCapabilities::parse(CATALOG_CAPABILITIES)
        .unwrap_or_else(|_| ClientCapabilities::none());
    let place = (LinkScope::Probe, Some(principal.clone()));
    Link::new(backend.clone(), place, declared, Era::Sessions)
}

impl ReadFailure {
    /// Returns whether the principal lacks an account or a token.
    fn is_of_user(&self) -> bool {
        [ErrorKind::ConnectionRequired, ErrorKind::TokenRequired].contains(&self.refusal.kind)
    }
}

/// Reads the lists with the token of the principal.
async fn read_once(
    backend: &Arc<Backend>,
    principal: &PrincipalId,
) -> Result<FetchedLists, ReadFailure> {
    let link = reader_of(backend, principal);
    let connection = link.open_probe().await.map_err(|failure| ReadFailure {
        is_the_backends: failure.is_the_backends(),
        refusal: backend.refusal(&failure),
    })?;
    let lists = catalog_refresh::fetch(&link, &connection).await;
    link.shut(); // what ends now ends in order
    connection.close().await;
    lists.map_err(|refusal| {
        let failure = ReadFailure { refusal, is_the_backends: false };
        ReadFailure { is_the_backends: !failure.is_of_user(), ..failure }
    })
}

fn content_of(lists: &BackendLists) -> Vec<u8> {
    let mut content = lists.server.capabilities.raw().to_vec();
    content.extend(lists.server.instructions.as_deref().unwrap_or_default().as_bytes());
    content.extend([0, u8::from(lists.held.unlisted), u8::from(lists.held.instructions)]);
    for kind in ListKind::ALL {
        content.push(kind as u8);
        for entry in lists.entries(kind) {
            content.extend_from_slice(&entry.definition);
            content.push(u8::from(entry.pin.is_held));
        }
    }
    content
}

fn bytes_of(lists: &BackendLists) -> usize {
    let entries = ListKind::ALL.into_iter().flat_map(|kind| lists.entries(kind));
    entries.map(|entry| size_of_val(entry) + entry.native.len()).sum()
}
