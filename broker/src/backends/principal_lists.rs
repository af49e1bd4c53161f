//! Lists that a backend shows to each principal by its own token (`catalog_auth: per_principal`).
//!
//! The broker reads them at their first use, over a connection of their own with the principal's
//! token. It reads them again in three cases: the backend announces a change, the principal
//! connects an account, or the lists are old. They live in memory: another process reads them
//! again.
//!
//! Invariants:
//! - Every look-up takes a principal. Principals share a value only if all of its bytes are equal.
//! - Lists that were read once stay until others are read, or until the lists of
//!   [`PRINCIPAL_LISTS_CACHED_MAX`] other principals were read later. A failure makes no list empty.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::Mutex;
use protocol::{error::Refusal, ids::PrincipalId};
use rules::{
    catalog::{BackendLists, ListKind},
    limits::oauth::{PRINCIPAL_LISTS_CACHED_MAX, PRINCIPAL_LISTS_READ_MAX},
};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    link_lists::{HeldBytes, OwnListBudget, next_number},
    policy::Policy,
};

/// Lists of one backend, by principal.
#[derive(Debug)]
pub struct PrincipalLists {
    /// Whether each principal has lists of its own.
    is_on: bool,
    cached: Mutex<HashMap<PrincipalId, CachedLists>>,
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
    /// Shared by the same lists with other marks.
    held: Arc<HeldBytes>,
}

#[derive(Debug, Default)]
struct CachedLists {
    view: Option<Arc<PrincipalView>>,
    read: Option<PrincipalRead>,
    /// Number of times that the lists became due.
    changes: u64,
    /// Puts the reads of the principal in order. It holds no data.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// A read of a principal's lists that is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrincipalRead {
    pub(super) at: Instant,
    /// Time after which the lists are read again.
    pub(super) good_for: Duration,
    /// Whether they are those that clients with sessions get.
    pub(super) for_sessions: bool,
    pub(super) is_failure: bool,
}

/// Reason why a principal's lists cannot be read.
pub(super) struct ReadFailure {
    pub(super) refusal: Refusal,
    /// Whether the backend is unreachable or unhealthy.
    pub(super) counts_for_breaker: bool,
}

/// Lists of one principal as they were read.
pub struct ReadLists {
    pub(super) lists: Result<BackendLists, ReadFailure>,
    pub(super) read: PrincipalRead,
    /// Number of changes before the read.
    pub(super) changes: u64,
}

impl PrincipalLists {
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            cached: Mutex::default(),
            by_content: Mutex::default(),
            reads: Semaphore::new(PRINCIPAL_LISTS_READ_MAX),
        }
    }

    /// Returns whether each principal has lists of its own.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns the lists of a principal, if they were read.
    pub fn of(&self, principal: &PrincipalId) -> Option<Arc<PrincipalView>> {
        if !self.is_on {
            return None;
        }
        self.cached.lock().get(principal)?.view.clone()
    }

    /// Waits for the permit of a read.
    pub(super) async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        self.reads.acquire().await.ok()
    }

    /// Returns whether the lists of a principal have to be read. `wants_sessions`: clients with
    /// sessions use the backend.
    pub fn is_due(&self, principal: &PrincipalId, wants_sessions: bool) -> bool {
        let cached = self.cached.lock();
        let read = cached.get(principal).and_then(|cached| cached.read);
        read.is_none_or(|read| {
            read.at.elapsed() >= read.good_for || (wants_sessions && !read.for_sessions)
        })
    }

    /// Returns whether the lists of a principal were never read, and no read of them has failed.
    pub fn is_unread(&self, principal: &PrincipalId) -> bool {
        self.cached.lock().get(principal).is_none_or(|cached| cached.read.is_none())
    }

    /// Returns whether a read of the lists of a principal runs.
    pub fn is_reading(&self, principal: &PrincipalId) -> bool {
        self.cached.lock().get(principal).is_some_and(|cached| cached.turn.try_lock().is_err())
    }

    /// Returns whether the lists of a principal are unknown because the last read of them failed.
    pub fn is_failed(&self, principal: &PrincipalId) -> bool {
        let cached = self.cached.lock();
        let cached = cached.get(principal).filter(|cached| cached.view.is_none());
        cached.is_some_and(|cached| cached.read.is_some_and(|read| read.is_failure))
    }

    /// Makes the lists of a principal due.
    pub fn expire_of(&self, principal: &PrincipalId) {
        if let Some(cached) = self.cached.lock().get_mut(principal) {
            cached.expire();
        }
    }

    /// Makes all lists due.
    pub fn expire(&self) {
        self.cached.lock().values_mut().for_each(CachedLists::expire);
    }

    pub(super) fn changes_of(&self, principal: &PrincipalId) -> u64 {
        self.cached.lock().get(principal).map_or(0, |cached| cached.changes)
    }

    pub(super) fn turn(&self, principal: &PrincipalId) -> Arc<tokio::sync::Mutex<()>> {
        let mut cached = self.cached.lock();
        if cached.len() >= PRINCIPAL_LISTS_CACHED_MAX && !cached.contains_key(principal) {
            evict_oldest(&mut cached);
        }
        cached.entry(principal.clone()).or_default().turn.clone()
    }

    /// Notes a read of a principal's lists. Returns whether the principal sees other ones now. `None`
    /// as view: those that are known stay.
    pub(super) fn record(
        &self,
        principal: &PrincipalId,
        read: PrincipalRead,
        changes: u64,
        view: Option<Arc<PrincipalView>>,
    ) -> bool {
        let mut cached = self.cached.lock();
        let cached = cached.entry(principal.clone()).or_default();
        let is_changed = cached.changes != changes;
        let good_for = if is_changed { Duration::ZERO } else { read.good_for };
        cached.read = Some(PrincipalRead { good_for, ..read });
        let Some(view) = view else { return false };
        let before = cached.view.replace(view.clone());
        before.is_none_or(|before| before.number != view.number)
    }

    /// Replaces the view of every principal.
    pub(super) fn replace_views(
        &self,
        with: impl Fn(&PrincipalView) -> Option<Arc<PrincipalView>>,
    ) {
        for cached in self.cached.lock().values_mut() {
            cached.view = cached.view.as_ref().and_then(|view| with(view));
        }
    }

    /// Returns the view of these lists. Equal lists share one. `before` is the view that has the same
    /// lists with other marks. `None`: they do not fit.
    pub(super) fn view_of(
        &self,
        lists: BackendLists,
        before: Option<&PrincipalView>,
        budget: &OwnListBudget,
        policy: impl FnOnce() -> Arc<Policy>,
    ) -> Option<Arc<PrincipalView>> {
        let content = content_of(&lists);
        let mut by_content = self.by_content.lock();
        if let Some(view) = by_content.get(&content).and_then(Weak::upgrade) {
            return Some(view);
        }
        by_content.retain(|_, view| view.strong_count() > 0);
        let held = match before {
            Some(before) => before.held.clone(),
            None => Arc::new(HeldBytes::take(budget, bytes_of(&lists))?),
        };
        let lists = Arc::new(lists);
        let view = PrincipalView { number: next_number(), lists, policy: policy(), held };
        let view = Arc::new(view);
        by_content.insert(content, Arc::downgrade(&view));
        Some(view)
    }
}

/// Removes the lists whose last read is the oldest, unless a read of them runs. Their principal
/// reads them again at its next use.
fn evict_oldest(cached: &mut HashMap<PrincipalId, CachedLists>) {
    let without_read = cached.iter().filter(|(_, lists)| Arc::strong_count(&lists.turn) == 1);
    let oldest = without_read.min_by_key(|(_, lists)| lists.read.map(|read| read.at));
    if let Some(principal) = oldest.map(|(principal, _)| principal.clone()) {
        cached.remove(&principal);
    }
}

impl CachedLists {
    fn expire(&mut self) {
        self.changes += 1;
        if let Some(read) = &mut self.read {
            read.good_for = Duration::ZERO;
        }
    }
}

fn content_of(lists: &BackendLists) -> Vec<u8> {
    let mut content = lists.server.capabilities.raw().to_vec();
    content.extend_from_slice(&lists.server.server_info);
    content.extend(lists.server.version.as_str().bytes());
    content.extend(lists.server.instructions.as_deref().unwrap_or_default().as_bytes());
    content.extend(lists.marks.to_json().as_bytes());
    content.extend([0, u8::from(lists.held.unlisted), u8::from(lists.held.instructions)]);
    for kind in ListKind::ALL {
        content.push(kind as u8);
        for entry in lists.entries(kind) {
            content.extend_from_slice(&entry.definition);
            // The digest of the definition leaves out the `execution` of a tool.
            content.extend_from_slice(digest(&SHA256, &entry.native).as_ref());
            content.push(u8::from(entry.pin.is_held));
        }
    }
    content
}

fn bytes_of(lists: &BackendLists) -> usize {
    let entries = ListKind::ALL.into_iter().flat_map(|kind| lists.entries(kind));
    entries.map(|entry| size_of_val(entry) + entry.native.len()).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use protocol::ids::{BackendId, TenantId};
    use rules::limits::own_lists::OWN_LISTS_BYTES_MAX;

    use super::*;
    use crate::backends::{link_lists::OwnListBudgets, lists_for_tests::lists_with_tool};

    fn read_at(at: Instant) -> PrincipalRead {
        let good_for = Duration::from_secs(300);
        PrincipalRead { at, good_for, for_sessions: true, is_failure: false }
    }

    #[test]
    fn the_oldest_lists_leave_when_another_principal_comes() {
        let lists = PrincipalLists::new(true);
        let principal = |number: usize| PrincipalId::new(format!("p{number}"));
        let start = Instant::now();
        for number in 0..PRINCIPAL_LISTS_CACHED_MAX {
            let _turn = lists.turn(&principal(number));
            let age = Duration::from_millis(number as u64);
            lists.record(&principal(number), read_at(start + age), 0, None);
        }
        let oldest_is_read = lists.turn(&principal(0));
        drop(lists.turn(&principal(PRINCIPAL_LISTS_CACHED_MAX)));
        assert!(!lists.is_unread(&principal(0)), "a read of it runs");
        assert!(lists.is_unread(&principal(1)), "the oldest without a read");
        assert!(!lists.is_unread(&principal(2)), "all others stay");
        drop(oldest_is_read);
        drop(lists.turn(&principal(5)));
        assert!(!lists.is_unread(&principal(0)), "a known principal needs no place");
        assert_eq!(lists.cached.lock().len(), PRINCIPAL_LISTS_CACHED_MAX);
    }

    #[test]
    fn lists_with_other_marks_need_no_further_memory() {
        let backend = BackendId::parse("b").unwrap();
        let known = lists_with_tool(&backend, r#"{"name":"a","inputSchema":{}}"#);
        let mut marked = known.clone();
        marked.tools[0].pin.is_held = true;
        let total = Arc::new(AtomicUsize::new(OWN_LISTS_BYTES_MAX - bytes_of(&known)));
        let budget = OwnListBudgets::default().of(&TenantId::parse("acme").unwrap(), &total);
        let lists = PrincipalLists::new(true);
        let view = |of: BackendLists, before: Option<&PrincipalView>| {
            lists.view_of(of, before, &budget, Policy::open)
        };
        let before = view(known, None).expect("it fits");
        assert!(view(marked.clone(), None).is_none(), "other lists do not fit");
        let after = view(marked, Some(&before)).expect("the same lists");
        assert!(after.number != before.number && after.lists.tools[0].pin.is_held);
        drop((before, after));
        assert!(total.load(Ordering::Relaxed) < OWN_LISTS_BYTES_MAX, "the bytes are free again");
    }

    #[test]
    fn lists_that_differ_in_the_task_support_of_a_tool_are_different() {
        let tool = |support: &str| {
            let execution = format!(r#""execution":{{"taskSupport":"{support}"}}"#);
            let tool = format!(r#"{{"name":"a","inputSchema":{{}},{execution}}}"#);
            lists_with_tool(&BackendId::parse("b").unwrap(), &tool)
        };
        let [optional, required] = ["optional", "required"].map(tool);
        assert_eq!(optional.tools[0].definition, required.tools[0].definition);
        assert_ne!(content_of(&optional), content_of(&required));
        assert_eq!(content_of(&optional), content_of(&tool("optional")));
    }
}
