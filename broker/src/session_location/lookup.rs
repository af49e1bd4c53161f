//! One request's search for the replica that serves it: the order of its sources, and its time
//! limit.
//!
//! Listeners use it through [`crate::broker::session_lookup::ReplicaLookup`]. The caller forwards the
//! request and reports the result. Invariant: a search ends within twice the lease and a second. It never reports a missing
//! session because a source was away.

use std::time::Duration;

use protocol::error::{ErrorKind, Refusal};
use rules::limits::{
    OWNER_RETRY_DOUBLINGS, OWNER_RETRY_JITTER, OWNER_RETRY_MIN, OWNER_SEARCH_EXTRA,
};
use tokio::time::{Instant, sleep};

use super::{LookupOutcome, PeerLookupOutcome, PeerReplica, no_session};

/// Sources of a search.
pub(crate) trait LookupSources {
    type Session;

    /// Returns the session if it is on this replica. Returns an error if it belongs to another
    /// caller.
    fn here(&self) -> Result<Option<Self::Session>, Refusal>;

    /// Returns the owner as this replica last knew it.
    fn known(&self) -> Option<PeerReplica>;

    /// Takes one request from the caller's rate, before a store is queried.
    fn charge(&self) -> Result<(), Refusal>;

    /// Gives the request back, because the replica that serves it takes it.
    fn refund(&self);

    /// Returns the owner that was last published.
    fn hint(&self) -> impl Future<Output = Option<PeerReplica>> + Send;

    /// Reads the record, and takes the session over if it has no owner.
    fn claim(&self) -> impl Future<Output = Result<ClaimOutcome<Self::Session>, Refusal>> + Send;

    /// Returns whether this replica drains and takes nothing new.
    fn draining(&self) -> bool;

    /// Returns the other replicas that do not drain, in random order.
    fn replicas(&self) -> impl Future<Output = Vec<PeerReplica>> + Send;

    fn record(&self, owner: &PeerReplica);

    fn forget(&self, owner: &PeerReplica);
}

/// Answer of the record.
pub(crate) enum ClaimOutcome<Session> {
    Local(Session),
    /// `owner` is `None` if it has no address for other replicas.
    Remote {
        owner: Option<PeerReplica>,
        remaining_lease: Duration,
    },
    Absent,
}

/// Reason why a replica did not serve a forwarded request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardFailure {
    /// The replica cannot be reached.
    Unreachable,
    /// The replica does not have the session, and may know the owner.
    NotOwner(Option<PeerReplica>),
    /// The replica has lost its lease, so the session may have another owner. It serves the request
    /// if the sender insists.
    LeaseLapsed,
}

pub(crate) struct OwnerLookup<P> {
    sources: P,
    lease: Duration,
    /// End of the search, set at its first failure.
    deadline: Option<Instant>,
    cached_owner_tried: bool,
    charged: bool,
    /// The owner that another replica named. It is followed once, because two replicas may name
    /// each other.
    named: Option<PeerReplica>,
    named_tried: bool,
    /// The owner of the session until its lease lapsed.
    lapsed: Option<PeerReplica>,
    owner_must_serve: bool,
    /// The replica that failed last, and its failure.
    last_failure: Option<(PeerReplica, ForwardFailure)>,
    /// Number of waits so far.
    rounds: u32,
    /// Replicas that a draining one has not tried yet.
    untried: Option<Vec<PeerReplica>>,
}

impl<P: LookupSources> OwnerLookup<P> {
    pub(crate) fn new(sources: P, lease: Duration) -> Self {
        Self {
            sources,
            lease,
            deadline: None,
            cached_owner_tried: false,
            charged: false,
            named: None,
            named_tried: false,
            lapsed: None,
            owner_must_serve: false,
            last_failure: None,
            rounds: 0,
            untried: None,
        }
    }

    /// Returns the next replica for the request, or the refusal of it.
    pub(crate) async fn next(&mut self) -> Result<LookupOutcome<P::Session>, Refusal> {
        let found = self.search().await;
        // Only a missing session costs the caller its rate. Otherwise the session's owner charges
        // the request.
        let is_missing =
            found.as_ref().is_err_and(|refusal| refusal.kind == ErrorKind::SessionNotFound);
        if !is_missing && std::mem::take(&mut self.charged) {
            self.sources.refund();
        }
        found
    }

    async fn search(&mut self) -> Result<LookupOutcome<P::Session>, Refusal> {
        loop {
            if let Some(session) = self.sources.here()? {
                return Ok(LookupOutcome::Local(session));
            }
            if let Some(owner) = self.named.take() {
                return Ok(self.remote(owner));
            }
            let is_first = !std::mem::replace(&mut self.cached_owner_tried, true);
            if let Some(owner) = self.sources.known().filter(|_| is_first) {
                return Ok(self.remote(owner));
            }
            if !self.charged {
                self.sources.charge()?;
                self.charged = true;
            }
            // The futures are boxed from here on. Few requests come this far, and all would be
            // moved with capacity for them.
            if is_first && let Some(owner) = Box::pin(self.sources.hint()).await {
                return Ok(self.remote(owner));
            }
            if self.sources.draining() {
                return Box::pin(self.another_replica()).await.map(LookupOutcome::Remote);
            }
            let claimed = match Box::pin(self.sources.claim()).await {
                Ok(claimed) => claimed,
                Err(refusal) => match self.lapsed.take().filter(|_| is_outage(&refusal)) {
                    // No replica can take the session over now, so the former owner still has it.
                    Some(owner) => {
                        self.owner_must_serve = true;
                        return Ok(self.remote(owner));
                    }
                    None => return Err(refusal),
                },
            };
            match claimed {
                ClaimOutcome::Local(session) => return Ok(LookupOutcome::Local(session)),
                ClaimOutcome::Absent => return Err(no_session()),
                ClaimOutcome::Remote { owner, remaining_lease } => {
                    let last_failure = self.last_failure.take();
                    match (owner, last_failure) {
                        (Some(owner), Some((tried, ForwardFailure::NotOwner(_))))
                            if owner == tried =>
                        {
                            self.wait(Duration::ZERO).await?
                        }
                        (
                            Some(owner),
                            Some((
                                tried,
                                ForwardFailure::Unreachable | ForwardFailure::LeaseLapsed,
                            )),
                        ) if owner == tried => self.wait(remaining_lease).await?,
                        (Some(owner), _) => return Ok(self.remote(owner)),
                        (None, _) => self.wait(remaining_lease).await?,
                    }
                }
            }
        }
    }

    /// Notes that the replica of [`OwnerLookup::next`] did not serve the request.
    pub(crate) fn record_failure(&mut self, owner: &PeerReplica, miss: ForwardFailure) {
        self.sources.forget(owner);
        self.deadline();
        if let ForwardFailure::NotOwner(Some(named)) = &miss
            && named != owner
            && !std::mem::replace(&mut self.named_tried, true)
        {
            self.named = Some(named.clone());
        }
        if miss == ForwardFailure::LeaseLapsed {
            self.lapsed = Some(owner.clone());
        }
        self.last_failure = Some((owner.clone(), miss));
    }

    /// Returns whether the owner must serve the session although its lease has lapsed, because no
    /// other replica can.
    pub(crate) fn owner_must_serve(&self) -> bool {
        self.owner_must_serve
    }

    /// Starts the search again for a session that has left meanwhile. Returns false if the time is
    /// over.
    pub(crate) fn may_retry(&mut self) -> bool {
        self.untried = None; // they were tried before it left
        Instant::now() < self.deadline()
    }

    fn remote(&self, owner: PeerReplica) -> LookupOutcome<P::Session> {
        self.sources.record(&owner);
        LookupOutcome::Remote(owner)
    }

    fn deadline(&mut self) -> Instant {
        *self.deadline.get_or_insert_with(|| Instant::now() + 2 * self.lease + OWNER_SEARCH_EXTRA)
    }

    /// Waits for the rest of the owner's lease, and at least for a growing pause. Jitter spreads
    /// searches that wait for the same owner. Returns a refusal if the search would take too long.
    async fn wait(&mut self, remaining_lease: Duration) -> Result<(), Refusal> {
        let least = OWNER_RETRY_MIN * 2_u32.pow(self.rounds.min(OWNER_RETRY_DOUBLINGS));
        let pause =
            remaining_lease.max(least) + rand::random_range(Duration::ZERO..=OWNER_RETRY_JITTER);
        self.rounds += 1;
        if Instant::now() + pause > self.deadline() {
            let refusal = Refusal::new(
                ErrorKind::SessionElsewhere,
                "the session is on another replica, which cannot be reached now",
            );
            return Err(refusal.retry_after(self.lease));
        }
        sleep(pause).await;
        Ok(())
    }

    async fn another_replica(&mut self) -> Result<PeerReplica, Refusal> {
        if self.untried.is_none() {
            self.untried = Some(self.sources.replicas().await);
        }
        let next = self.untried.as_mut().and_then(Vec::pop);
        next.ok_or_else(|| Refusal::new(ErrorKind::Draining, "the broker is shutting down"))
    }
}

fn is_outage(refusal: &Refusal) -> bool {
    matches!(refusal.kind, ErrorKind::StoreUnavailable | ErrorKind::StoreBusy)
}

/// Searches for another replica's request. This search neither forwards nor waits.
pub(crate) async fn inside<P: LookupSources>(
    sources: &P,
) -> Result<PeerLookupOutcome<P::Session>, Refusal> {
    if let Some(session) = sources.here()? {
        return Ok(PeerLookupOutcome::Local(session));
    }
    if sources.draining() {
        return Ok(PeerLookupOutcome::NotLocal(None));
    }
    sources.charge()?;
    let claimed = sources.claim().await;
    if !matches!(claimed, Ok(ClaimOutcome::Absent)) {
        sources.refund();
    }
    match claimed? {
        ClaimOutcome::Local(session) => Ok(PeerLookupOutcome::Local(session)),
        ClaimOutcome::Remote { owner, .. } => Ok(PeerLookupOutcome::NotLocal(owner)),
        ClaimOutcome::Absent => Err(no_session()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use parking_lot::{Mutex, MutexGuard};

    use super::*;

    const LEASE: Duration = Duration::from_millis(200);
    /// Extra time for a busy machine.
    const SLACK: Duration = Duration::from_secs(1);

    /// Sources that return preset answers. The last answer of the record is repeated.
    #[derive(Default)]
    struct Script {
        state: Mutex<State>,
    }

    #[derive(Default)]
    struct State {
        hint: Option<PeerReplica>,
        record: VecDeque<Result<Option<Record>, ErrorKind>>,
        replicas: Vec<PeerReplica>,
        draining: bool,
        recorded: Vec<PeerReplica>,
        forgotten: Vec<PeerReplica>,
        claims: usize,
        /// Requests that the caller may still make.
        budget: Option<usize>,
    }

    #[derive(Clone)]
    enum Record {
        Free,
        Owned(Option<PeerReplica>, Duration),
    }

    impl Script {
        fn with(change: impl FnOnce(&mut State)) -> Self {
            let script = Self::default();
            change(&mut script.lock());
            script
        }

        fn lock(&self) -> MutexGuard<'_, State> {
            self.state.lock()
        }
    }

    impl LookupSources for &Script {
        type Session = &'static str;

        fn here(&self) -> Result<Option<&'static str>, Refusal> {
            Ok(None)
        }

        fn known(&self) -> Option<PeerReplica> {
            None
        }

        fn charge(&self) -> Result<(), Refusal> {
            let mut state = self.lock();
            let Some(remaining) = &mut state.budget else { return Ok(()) };
            *remaining =
                remaining.checked_sub(1).ok_or_else(|| Refusal::new(ErrorKind::RateLimited, ""))?;
            Ok(())
        }

        fn refund(&self) {
            self.lock().budget.iter_mut().for_each(|remaining| *remaining += 1);
        }

        async fn hint(&self) -> Option<PeerReplica> {
            self.lock().hint.clone()
        }

        async fn claim(&self) -> Result<ClaimOutcome<&'static str>, Refusal> {
            let mut state = self.lock();
            state.claims += 1;
            let outcome = if state.record.len() > 1 {
                state.record.pop_front()
            } else {
                state.record.front().cloned()
            };
            match outcome {
                Some(Ok(Some(Record::Free))) => Ok(ClaimOutcome::Local("adopted")),
                Some(Ok(Some(Record::Owned(owner, remaining_lease)))) => {
                    Ok(ClaimOutcome::Remote { owner, remaining_lease })
                }
                Some(Err(kind)) => Err(Refusal::new(kind, "")),
                Some(Ok(None)) | None => Ok(ClaimOutcome::Absent),
            }
        }

        fn draining(&self) -> bool {
            self.lock().draining
        }

        async fn replicas(&self) -> Vec<PeerReplica> {
            self.lock().replicas.clone()
        }

        fn record(&self, owner: &PeerReplica) {
            self.lock().recorded.push(owner.clone());
        }

        fn forget(&self, owner: &PeerReplica) {
            self.lock().forgotten.push(owner.clone());
        }
    }

    fn owner(node: &str) -> PeerReplica {
        PeerReplica { node: node.to_owned(), address: format!("{node}:1") }
    }

    fn owned(node: &str, remaining_lease: Duration) -> Result<Option<Record>, ErrorKind> {
        Ok(Some(Record::Owned(Some(owner(node)), remaining_lease)))
    }

    async fn remote(search: &mut OwnerLookup<&Script>) -> String {
        match search.next().await {
            Ok(LookupOutcome::Remote(owner)) => owner.node,
            Ok(LookupOutcome::Local(session)) => session.to_owned(),
            Err(refusal) => refusal.kind.name().to_owned(),
        }
    }

    #[tokio::test]
    async fn a_hint_is_used_once_and_then_the_record() {
        let script = Script::with(|state| {
            state.hint = Some(owner("a"));
            state.record = [owned("b", LEASE)].into();
        });
        let mut search = OwnerLookup::new(&script, LEASE);
        assert_eq!(remote(&mut search).await, "a");
        assert_eq!(script.lock().claims, 0);
        search.record_failure(&owner("a"), ForwardFailure::Unreachable);
        assert_eq!(script.lock().forgotten, [owner("a")]);
        assert_eq!(remote(&mut search).await, "b");
        assert_eq!(script.lock().recorded.last(), Some(&owner("b")));
    }

    #[tokio::test]
    async fn an_owner_without_a_lease_serves_only_if_takeover_is_impossible() {
        let script = Script::with(|state| {
            state.hint = Some(owner("a"));
            state.record = [Ok(Some(Record::Free))].into();
        });
        let mut search = OwnerLookup::new(&script, LEASE);
        assert_eq!(remote(&mut search).await, "a");
        search.record_failure(&owner("a"), ForwardFailure::LeaseLapsed);
        assert_eq!(remote(&mut search).await, "adopted");
        script.lock().record = [Err(ErrorKind::StoreUnavailable)].into();
        let mut search = OwnerLookup::new(&script, LEASE);
        assert_eq!(remote(&mut search).await, "a");
        search.record_failure(&owner("a"), ForwardFailure::LeaseLapsed);
        assert_eq!((remote(&mut search).await.as_str(), search.owner_must_serve()), ("a", true));
        search.record_failure(&owner("a"), ForwardFailure::Unreachable);
        assert_eq!(remote(&mut search).await, "store_unavailable");
    }

    #[tokio::test]
    async fn a_27_only_lookups_of_absent_sessions_are_charged() {
        let script = Script::with(|state| {
            state.budget = Some(2);
            state.record = [owned("a", LEASE)].into();
        });
        for _ in 0..5 {
            assert_eq!(remote(&mut OwnerLookup::new(&script, LEASE)).await, "a");
        }
        script.lock().record.clear();
        let claims = script.lock().claims;
        for expected in ["session_not_found", "session_not_found", "rate_limited", "rate_limited"] {
            assert_eq!(remote(&mut OwnerLookup::new(&script, LEASE)).await, expected);
        }
        assert_eq!(
            script.lock().claims,
            claims + 2,
            "who is over its rate costs the record nothing"
        );
        assert!(
            inside(&&script).await.is_err_and(|refusal| refusal.kind == ErrorKind::RateLimited)
        );
    }

    #[tokio::test]
    async fn a_failed_peer_lookup_is_not_charged() {
        let script = Script::with(|state| {
            state.budget = Some(1);
            state.record = [Err(ErrorKind::StoreUnavailable)].into();
        });
        for _ in 0..3 {
            assert!(
                inside(&&script)
                    .await
                    .is_err_and(|refusal| refusal.kind == ErrorKind::StoreUnavailable)
            );
        }
        script.lock().record.clear();
        assert!(
            inside(&&script).await.is_err_and(|refusal| refusal.kind == ErrorKind::SessionNotFound)
        );
        assert_eq!(script.lock().budget, Some(0), "what is not there is paid for");
    }

    #[tokio::test]
    async fn a_lookup_waits_for_the_lease_of_a_dead_owner_and_not_longer() {
        let script = Script::with(|state| {
            state.record = [owned("a", LEASE), owned("a", LEASE / 2), Ok(Some(Record::Free))].into()
        });
        let mut search = OwnerLookup::new(&script, LEASE);
        let started = Instant::now();
        assert_eq!(remote(&mut search).await, "a");
        search.record_failure(&owner("a"), ForwardFailure::Unreachable);
        assert_eq!(remote(&mut search).await, "adopted");
        let waited = started.elapsed();
        assert!(
            waited >= LEASE / 2 && waited <= LEASE / 2 + OWNER_RETRY_JITTER + SLACK,
            "{waited:?}"
        );
    }

    #[tokio::test]
    async fn an_unreachable_live_owner_leads_to_a_refusal_in_bounded_time() {
        let script = Script::with(|state| state.record = [owned("a", LEASE)].into());
        let mut search = OwnerLookup::new(&script, LEASE);
        let started = Instant::now();
        let mut attempts = 0;
        let refusal = loop {
            match search.next().await {
                Ok(LookupOutcome::Remote(owner)) => {
                    search.record_failure(&owner, ForwardFailure::Unreachable)
                }
                Ok(LookupOutcome::Local(_)) => panic!("no replica adopts it"),
                Err(refusal) => break refusal,
            }
            attempts += 1;
        };
        assert_eq!(refusal.kind, ErrorKind::SessionElsewhere);
        assert!(refusal.kind.retryable() && refusal.retry_after.is_some());
        assert!(
            started.elapsed() <= 2 * LEASE + OWNER_SEARCH_EXTRA + SLACK,
            "{:?}",
            started.elapsed()
        );
        assert!((2..=8).contains(&attempts), "{attempts} attempts");
    }

    #[tokio::test]
    async fn a_lookup_waits_for_an_owner_without_an_address() {
        let nowhere = Ok(Some(Record::Owned(None, LEASE)));
        let script = Script::with(|state| state.record = [nowhere, Ok(Some(Record::Free))].into());
        assert_eq!(remote(&mut OwnerLookup::new(&script, LEASE)).await, "adopted");
    }

    #[tokio::test]
    async fn two_replicas_that_redirect_to_each_other_do_not_prolong_a_lookup() {
        let script = Script::with(|state| {
            state.hint = Some(owner("a"));
            state.record = [owned("a", LEASE)].into();
        });
        let mut search = OwnerLookup::new(&script, LEASE);
        let started = Instant::now();
        let (mut requested, mut kind) = (Vec::new(), None);
        while kind.is_none() {
            match search.next().await {
                Ok(LookupOutcome::Remote(there)) => {
                    let other = if there.node == "a" { owner("b") } else { owner("a") };
                    search.record_failure(&there, ForwardFailure::NotOwner(Some(other)));
                    requested.push(there.node);
                }
                Ok(LookupOutcome::Local(_)) => panic!("no replica adopts it"),
                Err(refusal) => kind = Some(refusal.kind),
            }
        }
        assert_eq!(kind, Some(ErrorKind::SessionElsewhere));
        assert_eq!(requested[..2], ["a", "b"], "one word was followed");
        assert!(requested.len() <= 20, "{} questions", requested.len());
        assert!(
            started.elapsed() <= 2 * LEASE + OWNER_SEARCH_EXTRA + SLACK,
            "{:?}",
            started.elapsed()
        );
    }

    #[tokio::test]
    async fn r_09_an_unavailable_store_is_not_reported_as_a_missing_session() {
        let script = Script::with(|state| state.record = [Err(ErrorKind::StoreUnavailable)].into());
        assert_eq!(remote(&mut OwnerLookup::new(&script, LEASE)).await, "store_unavailable");
        let script = Script::default();
        assert_eq!(remote(&mut OwnerLookup::new(&script, LEASE)).await, "session_not_found");
    }

    #[tokio::test]
    async fn a_draining_replica_adopts_no_session_and_forwards_to_others() {
        let script = Script::with(|state| {
            state.draining = true;
            state.replicas = vec![owner("c"), owner("b")];
            state.record = [Ok(Some(Record::Free))].into();
        });
        let mut search = OwnerLookup::new(&script, LEASE);
        assert_eq!(remote(&mut search).await, "b");
        search.record_failure(&owner("b"), ForwardFailure::NotOwner(Some(owner("d"))));
        assert_eq!(remote(&mut search).await, "d");
        search.record_failure(&owner("d"), ForwardFailure::Unreachable);
        assert_eq!(remote(&mut search).await, "c");
        search.record_failure(&owner("c"), ForwardFailure::Unreachable);
        assert_eq!(remote(&mut search).await, "draining");
        assert_eq!(script.lock().claims, 0);
    }

    #[tokio::test]
    async fn a_peer_lookup_reads_the_record_once() {
        let script = Script::with(|state| {
            state.hint = Some(owner("x"));
            state.record = [owned("b", LEASE), Ok(Some(Record::Free))].into();
        });
        assert!(
            matches!(inside(&&script).await, Ok(PeerLookupOutcome::NotLocal(Some(known))) if known == owner("b"))
        );
        assert!(matches!(inside(&&script).await, Ok(PeerLookupOutcome::Local("adopted"))));
        script.lock().draining = true;
        assert!(matches!(inside(&&script).await, Ok(PeerLookupOutcome::NotLocal(None))));
    }
}
