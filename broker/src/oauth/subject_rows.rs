//! Rows of the database with the tokens of callers: their names, and the writes of this process.
//!
//! Invariants:
//! - A principal has [`SUBJECT_ROWS_PER_PRINCIPAL`] rows at most, however many tokens it brings. A
//!   token takes one of a few rows, and replaces another token only if all of these have one.
//! - Few writes of a tenant run at the same time. A token that was not written is written at a
//!   later request with it.

use std::{array, collections::HashMap, hash::Hash, sync::Arc, time::Duration};

use parking_lot::Mutex;
use protocol::ids::{PrincipalId, TenantId};
use records::{SecretKey, SecretKind};
use rules::limits::oauth::{
    GRANT_CACHED_MAX, SUBJECT_ROWS_PER_PRINCIPAL, SUBJECT_WRITES_PER_TENANT_MAX,
};
use tokio::time::Instant;

use super::secret_text::digest_of;
use crate::auth::SubjectDigest;

/// Rows of which a token takes one.
const ROWS_PER_TOKEN: usize = 4;
/// Time without writes of a token after one that failed.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);

/// Tokens that this process has written or writes now.
#[derive(Debug, Default)]
pub(super) struct SubjectRows {
    state: Mutex<RowState>,
}

#[derive(Debug, Default)]
struct RowState {
    tokens: HashMap<TokenName, TokenWrite>,
    /// Number of writes that run.
    writes: HashMap<TenantId, usize>,
}

type TokenName = (TenantId, PrincipalId, SubjectDigest);

/// The latest write of a token.
#[derive(Debug, Clone, Copy)]
enum TokenWrite {
    Runs,
    /// A request from this time on writes the token again.
    Ended(Instant),
}

/// A write of one token. Its end gives its place to another write.
#[derive(Debug)]
pub(super) struct RowWrite {
    rows: Arc<SubjectRows>,
    name: TokenName,
    /// Rows of which the token takes one, the best one first.
    pub(super) choices: [SecretKey; ROWS_PER_TOKEN],
}

impl TokenWrite {
    /// Returns whether the token needs no other write now.
    fn is_enough(&self) -> bool {
        match self {
            Self::Runs => true,
            Self::Ended(until) => Instant::now() < *until,
        }
    }
}

impl SubjectRows {
    /// Returns whether a token needs no write now: a row has it, or a write of it runs or failed a
    /// short time ago.
    pub(super) fn has(
        &self,
        tenant: &TenantId,
        principal: &PrincipalId,
        digest: &SubjectDigest,
    ) -> bool {
        let name = (tenant.clone(), principal.clone(), digest.clone());
        self.state.lock().tokens.get(&name).is_some_and(TokenWrite::is_enough)
    }

    /// Returns the write of a token. `None`: the token needs none now, or too many writes of its
    /// tenant run.
    pub(super) fn write(
        self: &Arc<Self>,
        tenant: &TenantId,
        principal: &PrincipalId,
        digest: &SubjectDigest,
    ) -> Option<RowWrite> {
        let name = (tenant.clone(), principal.clone(), digest.clone());
        let mut state = self.state.lock();
        if state.tokens.get(&name).is_some_and(TokenWrite::is_enough) {
            return None;
        }
        let writes = state.writes.entry(tenant.clone()).or_default();
        if *writes >= SUBJECT_WRITES_PER_TENANT_MAX {
            return None;
        }
        *writes += 1;
        // A lost entry only causes another write.
        let (is_own, is_live) = (|(of, ..): &TokenName| of == tenant, TokenWrite::is_enough);
        make_room(&mut state.tokens, GRANT_CACHED_MAX, is_own, is_live);
        state.tokens.insert(name.clone(), TokenWrite::Runs);
        let choices = rows_of(tenant, principal, digest);
        Some(RowWrite { rows: self.clone(), name, choices })
    }

    /// Forgets the tokens of a removed tenant, whose rows are gone.
    pub(super) fn forget_tenant(&self, tenant: &TenantId) {
        self.state.lock().tokens.retain(|(of, ..), _| of != tenant);
    }
}

impl RowWrite {
    /// Notes that a row has the token, which needs no other write for some time. A token that it
    /// has replaced needs one.
    pub(super) fn done(self, needs_no_other_for: Duration, replaced: Option<SubjectDigest>) {
        let mut state = self.rows.state.lock();
        let (tenant, principal, _) = &self.name;
        if let Some(replaced) = replaced {
            state.tokens.remove(&(tenant.clone(), principal.clone(), replaced));
        }
        let ended = TokenWrite::Ended(Instant::now() + needs_no_other_for);
        state.tokens.insert(self.name.clone(), ended);
    }
}

impl Drop for RowWrite {
    fn drop(&mut self) {
        let mut state = self.rows.state.lock();
        let (tenant, ..) = &self.name;
        if let Some(writes) = state.writes.get_mut(tenant) {
            *writes -= 1;
            if *writes == 0 {
                state.writes.remove(tenant);
            }
        }
        if let Some(write) = state.tokens.get_mut(&self.name)
            && matches!(write, TokenWrite::Runs)
        {
            *write = TokenWrite::Ended(Instant::now() + FAILURE_PAUSE); // it has failed
        }
    }
}

/// Returns the rows of which a token takes one, the best one first.
pub(super) fn rows_of(
    tenant: &TenantId,
    principal: &PrincipalId,
    digest: &SubjectDigest,
) -> [SecretKey; ROWS_PER_TOKEN] {
    let add = |sum: usize, byte: u8| sum.wrapping_mul(31).wrapping_add(usize::from(byte));
    let sum = digest.bytes().fold(0, add);
    let step = (sum / SUBJECT_ROWS_PER_PRINCIPAL) | 1; // odd, so that the rows differ
    array::from_fn(|choice| {
        let row = sum.wrapping_add(step.wrapping_mul(choice)) % SUBJECT_ROWS_PER_PRINCIPAL;
        let name = digest_of(&format!("{row}\0{}", principal.as_str()));
        SecretKey { kind: SecretKind::Subject, tenant: tenant.clone(), name }
    })
}

/// Makes room for an entry of a tenant in a full map: removes the entries that are not live any
/// more, then a sixteenth of all, those of the tenant before those of others.
pub(super) fn make_room<K: Clone + Eq + Hash, V>(
    entries: &mut HashMap<K, V>,
    capacity: usize,
    is_own: impl Fn(&K) -> bool,
    is_live: impl Fn(&V) -> bool,
) {
    if entries.len() < capacity {
        return;
    }
    entries.retain(|_, value| is_live(value));
    let room = (capacity / 16).max(1);
    let excess = (entries.len() + room).saturating_sub(capacity);
    let (own, others): (Vec<&K>, Vec<&K>) = entries.keys().partition(|key| is_own(key));
    let removed: Vec<K> = own.into_iter().chain(others).take(excess).cloned().collect();
    for key in &removed {
        entries.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    #[test]
    fn the_tokens_of_a_principal_have_few_rows() {
        let (acme, ann, bob) = (tenant("acme"), PrincipalId::new("ann"), PrincipalId::new("bob"));
        let names = |of: &PrincipalId, number: u32| {
            rows_of(&acme, of, &digest_of(&number.to_string()).as_str().into()).map(|row| row.name)
        };
        let rows: HashSet<String> = (0..5_000).flat_map(|number| names(&ann, number)).collect();
        assert_eq!(rows.len(), SUBJECT_ROWS_PER_PRINCIPAL);
        for number in 0..5_000 {
            assert_eq!(HashSet::from(names(&ann, number)).len(), ROWS_PER_TOKEN, "{number}");
            assert!(names(&bob, number).iter().all(|name| !rows.contains(name)), "of ann alone");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_written_once_and_again_after_a_failure_or_another_token() {
        const DAY: Duration = Duration::from_secs(24 * 3_600);
        let (rows, acme, ann) =
            (Arc::new(SubjectRows::default()), tenant("acme"), PrincipalId::new("ann"));
        let digest = |text: &str| -> SubjectDigest { text.into() };
        let write = |text: &str| rows.write(&acme, &ann, &digest(text));
        let first = write("a").expect("the first write");
        assert!(write("a").is_none(), "it runs");
        drop(first);
        assert!(write("a").is_none(), "it failed a moment ago");
        tokio::time::advance(FAILURE_PAUSE).await;
        assert!(!rows.has(&acme, &ann, &digest("a")));
        write("a").expect("it had failed").done(DAY, None);
        assert!(write("a").is_none() && rows.has(&acme, &ann, &digest("a")), "a row has it");
        write("b").expect("another token").done(DAY, Some(digest("a")));
        write("a").expect("the other one has replaced it").done(DAY, None);
        tokio::time::advance(DAY).await;
        assert!(write("a").is_some(), "its row ends before the token does");
    }

    #[test]
    fn the_writes_of_a_tenant_are_bounded_and_leave_others_alone() {
        let (rows, ann) = (Arc::new(SubjectRows::default()), PrincipalId::new("ann"));
        let write = |of: &str, number: usize| {
            rows.write(&tenant(of), &ann, &format!("{number}").as_str().into())
        };
        let mut running: Vec<RowWrite> = (0..1_000).filter_map(|at| write("acme", at)).collect();
        assert_eq!(running.len(), SUBJECT_WRITES_PER_TENANT_MAX);
        assert!(write("zoo", 1).is_some());
        running.pop();
        assert!(write("acme", 2_000).is_some());
    }
}
