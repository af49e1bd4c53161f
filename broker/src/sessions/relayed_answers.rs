//! Answers of other replicas on their way to clients that may not read them.
//!
//! Two replicas share few connections, and all streams of a connection share its window. Unread bytes
//! of slow clients use this window. A round adds up these bytes while there are many answers. If they
//! are too many, the broker cuts the largest answers of the tenant with the most of them.
//!
//! Invariant: without a cut, few answers cannot hold more bytes than the limit, so they need no round.

use std::{
    collections::HashMap,
    fmt::Debug,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use protocol::ids::TenantId;
use rules::limits::RELAYED_CHECK_INTERVAL;
use transport::peer::STREAM_WINDOW_BYTES;

use crate::{admission::outbox_budget::UnreadOwner, metrics::Metrics};

/// A response of another replica that the broker relays to its client.
pub trait RelayedAnswer: Debug + Send + Sync {
    /// Returns the bytes that came from the other replica and that the client has not taken.
    fn unread_bytes(&self) -> usize;

    /// Drops the rest of the answer. It breaks off at the client.
    fn cut(&self);
}

/// All relayed answers of the process.
#[derive(Debug)]
pub struct RelayedAnswers {
    bytes_max: usize,
    metrics: Arc<Metrics>,
    state: Mutex<RelayState>,
}

#[derive(Debug, Default)]
struct RelayState {
    next: u64,
    answers: HashMap<u64, (UnreadOwner, Weak<dyn RelayedAnswer>)>,
    /// True while a task makes rounds.
    is_watched: bool,
}

/// An entry of a relayed answer. A drop removes it.
#[derive(Debug)]
pub struct RelayedAnswerGuard {
    all: Arc<RelayedAnswers>,
    number: u64,
}

impl Drop for RelayedAnswerGuard {
    fn drop(&mut self) {
        self.all.state.lock().answers.remove(&self.number);
    }
}

impl RelayedAnswers {
    pub fn new(bytes_max: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { bytes_max, metrics, state: Mutex::default() })
    }

    /// Watches an answer for this client. Must be called inside the runtime.
    pub fn watch(
        self: &Arc<Self>,
        owner: UnreadOwner,
        answer: Weak<dyn RelayedAnswer>,
    ) -> RelayedAnswerGuard {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.answers.insert(number, (owner, answer));
        if !state.is_watched && self.are_many(&state) {
            state.is_watched = true;
            tokio::spawn(make_rounds(Arc::downgrade(self)));
        }
        drop(state);
        RelayedAnswerGuard { all: self.clone(), number }
    }

    /// Returns whether the answers can hold more than the limit.
    fn are_many(&self, state: &RelayState) -> bool {
        state.answers.len() > self.bytes_max / STREAM_WINDOW_BYTES as usize
    }

    /// Cuts answers until the others hold at most `bytes_max` unread bytes. Returns the number of cut
    /// answers.
    pub fn cut_beyond(&self, bytes_max: usize) -> usize {
        let known: Vec<_> = self.state.lock().answers.values().cloned().collect();
        let held = known.into_iter().filter_map(|(owner, answer)| {
            let answer = answer.upgrade()?;
            Some((owner, answer.unread_bytes(), answer))
        });
        let largest = largest_beyond(held.collect(), bytes_max);
        for answer in &largest {
            answer.cut();
            self.metrics.dropped_notification("slow_client");
        }
        largest.len()
    }

    /// Makes one round. Returns false if the answers are few, so that no further round is needed.
    fn make_round(&self) -> bool {
        let mut state = self.state.lock();
        state.is_watched = self.are_many(&state);
        if !state.is_watched {
            return false;
        }
        drop(state);
        let cut = self.cut_beyond(self.bytes_max);
        if cut > 0 {
            tracing::warn!(
                cut,
                "answers of other replicas exceed their limit of unread bytes: the broker disconnects clients of the tenant with the most waiting bytes"
            );
        }
        true
    }
}

async fn make_rounds(all: Weak<RelayedAnswers>) {
    loop {
        tokio::time::sleep(RELAYED_CHECK_INTERVAL).await;
        if !all.upgrade().is_some_and(|all| all.make_round()) {
            return;
        }
    }
}

/// The answers of one principal.
struct OwnerPart<T> {
    bytes: usize,
    /// Sorted by size.
    answers: Vec<(usize, T)>,
}

/// Returns the answers to cut so that the others have at most `bytes_max`: each time the largest one
/// of the largest principal of the largest tenant. An answer without unread bytes is never among them.
fn largest_beyond<T>(mut held: Vec<(UnreadOwner, usize, T)>, bytes_max: usize) -> Vec<T> {
    let mut total: usize = held.iter().map(|(_, bytes, _)| bytes).sum();
    let mut largest = Vec::new();
    if total <= bytes_max {
        return largest;
    }
    held.sort_by_key(|(_, bytes, _)| *bytes);
    let mut tenants: HashMap<Option<TenantId>, usize> = HashMap::new();
    let mut owners: HashMap<UnreadOwner, OwnerPart<T>> = HashMap::new();
    for (owner, bytes, answer) in held {
        *tenants.entry(owner.tenant().cloned()).or_default() += bytes;
        let part =
            owners.entry(owner).or_insert_with(|| OwnerPart { bytes: 0, answers: Vec::new() });
        part.bytes += bytes;
        part.answers.push((bytes, answer));
    }
    while total > bytes_max {
        let Some((tenant, of_tenant)) = tenants.iter_mut().max_by_key(|(_, bytes)| **bytes) else {
            break;
        };
        let of_owners = owners.iter_mut().filter(|(owner, _)| owner.tenant() == tenant.as_ref());
        let Some((_, part)) = of_owners.max_by_key(|(_, part)| part.bytes) else { break };
        let Some((bytes, answer)) = part.answers.pop() else { break };
        part.bytes -= bytes;
        *of_tenant -= bytes;
        total -= bytes;
        largest.push(answer);
    }
    largest
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use protocol::ids::PrincipalId;

    use super::*;

    const WINDOW: usize = STREAM_WINDOW_BYTES as usize;

    fn owner(tenant: &str, principal: &str) -> UnreadOwner {
        UnreadOwner::new(TenantId::parse(tenant).unwrap(), PrincipalId::new(principal))
    }

    /// An answer with this number of unread bytes.
    #[derive(Debug)]
    struct Held(AtomicUsize);

    impl Held {
        fn new(bytes: usize) -> Arc<Self> {
            Arc::new(Self(AtomicUsize::new(bytes)))
        }
    }

    impl RelayedAnswer for Held {
        fn unread_bytes(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        fn cut(&self) {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_largest_answers_of_the_largest_tenant_are_cut() {
        let held = || {
            vec![
                (owner("a", "many"), 3, "small"),
                (owner("a", "many"), 4, "middle"),
                (owner("a", "single"), 5, "single"),
                (owner("b", "one"), 9, "other tenant"),
                (owner("a", "many"), 0, "read"),
            ]
        };
        assert!(largest_beyond(held(), 21).is_empty());
        assert_eq!(largest_beyond(held(), 20), ["middle"]);
        assert_eq!(largest_beyond(held(), 16), ["middle", "other tenant"]);
        let mut all = largest_beyond(held(), 0);
        all.sort_unstable();
        assert_eq!(all, ["middle", "other tenant", "single", "small"]);
    }

    #[tokio::test(start_paused = true)]
    async fn f_19_a_round_cuts_slow_readers_of_relayed_answers() {
        let all = RelayedAnswers::new(2 * WINDOW, Arc::new(Metrics::new(false)));
        let answers = [WINDOW, WINDOW, WINDOW - 1, 0].map(Held::new);
        let watch = |answer: &Arc<Held>, tenant: &str| {
            let handle: Weak<Held> = Arc::downgrade(answer);
            all.watch(owner(tenant, "one"), handle)
        };
        let is_watched = || all.state.lock().is_watched;
        let mut entries: Vec<_> = answers[..2].iter().map(|answer| watch(answer, "a")).collect();
        assert!(!is_watched(), "two answers cannot exceed the limit");
        entries.extend(answers[2..].iter().map(|answer| watch(answer, "b")));
        assert!(is_watched());
        tokio::time::sleep(RELAYED_CHECK_INTERVAL * 2).await;
        let left = answers.each_ref().map(|answer| answer.unread_bytes());
        assert_eq!(left.iter().sum::<usize>(), 2 * WINDOW - 1);
        assert_eq!(left[2], WINDOW - 1, "tenant `a` has the most");
        drop(entries);
        tokio::time::sleep(RELAYED_CHECK_INTERVAL * 2).await;
        assert!(!is_watched());
        assert!(all.state.lock().answers.is_empty());
    }
}
