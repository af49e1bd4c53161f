//! One request's search for the replica that serves it: what is asked in which order, and how long.
//!
//! Called through [`super::SessionLocator`]; whoever searches forwards the request and says what came of it. Invariant: a search
//! ends within twice the lease and a second, and never says that there is not a session because it could not look.

use std::time::Duration;

use protocol::error::{ErrorKind, Refusal};
use tokio::time::{Instant, sleep};

use super::{LookupOutcome, PeerLookupOutcome, SessionOwner, no_session};
use crate::limits::{
    OWNER_RETRY_DOUBLINGS, OWNER_RETRY_JITTER, OWNER_RETRY_MIN, OWNER_SEARCH_EXTRA,
};

/// Where a search looks.
pub(crate) trait LookupSources {
    type Session;

    /// A session that lives here; an error if it is somebody else's.
    fn here(&self) -> Result<Option<Self::Session>, Refusal>;

    /// Where it was when this replica last had to do with it.
    fn known(&self) -> Option<SessionOwner>;

    /// Before a store is asked: takes one request's worth of what the caller may ask for.
    fn charge(&self) -> Result<(), Refusal>;

    /// Gives it back: whoever serves the request takes it.
    fn refund(&self);

    /// Where it was last said to be.
    fn hint(&self) -> impl Future<Output = Option<SessionOwner>> + Send;

    /// Looks at the record, and takes the session over if nobody owns it.
    fn claim(&self) -> impl Future<Output = Result<ClaimOutcome<Self::Session>, Refusal>> + Send;

    /// This replica is going away and takes nothing new.
    fn draining(&self) -> bool;

    /// Others that take what this one does not, best first.
    fn replicas(&self) -> impl Future<Output = Vec<SessionOwner>> + Send;

    fn note(&self, owner: &SessionOwner);

    fn forget(&self, owner: &SessionOwner);
}

/// What the record says.
pub(crate) enum ClaimOutcome<Session> {
    Local(Session),
    /// `owner`: `None` if it cannot be reached from outside.
    Remote {
        owner: Option<SessionOwner>,
        lease_left: Duration,
    },
    Absent,
}

/// Why a replica did not serve a request that it was asked to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForwardFailure {
    /// It cannot be reached.
    Unreachable,
    /// It does not have the session, and may know who has.
    NotOwner(Option<SessionOwner>),
    /// It has lost its lease, so that the session may be another's. It does serve it if asked for all that.
    LeaseLapsed,
}

pub(crate) struct OwnerLookup<P> {
    places: P,
    lease: Duration,
    /// Set when something is in the way for the first time.
    deadline: Option<Instant>,
    hint_asked: bool,
    charged: bool,
    /// A replica that did not have the session named another one. That is followed once, lest two of them name each other.
    told: Option<SessionOwner>,
    told_asked: bool,
    /// Who owned the session until its lease lapsed.
    lapsed: Option<SessionOwner>,
    insists: bool,
    /// Who was asked last.
    in_vain: Option<(SessionOwner, ForwardFailure)>,
    /// For how many times the record was right in vain.
    rounds: u32,
    /// Replicas not asked yet by one that drains.
    untried: Option<Vec<SessionOwner>>,
}

impl<P: LookupSources> OwnerLookup<P> {
    pub(crate) fn new(places: P, lease: Duration) -> Self {
        Self {
            places,
            lease,
            deadline: None,
            hint_asked: false,
            charged: false,
            told: None,
            told_asked: false,
            lapsed: None,
            insists: false,
            in_vain: None,
            rounds: 0,
            untried: None,
        }
    }

    /// Where to send the request next, or why there is nowhere to send it.
    pub(crate) async fn next(&mut self) -> Result<LookupOutcome<P::Session>, Refusal> {
        let found = self.look().await;
        // Only what is not there is paid for: of what is found its owner takes.
        let in_vain =
            found.as_ref().is_err_and(|refusal| refusal.kind == ErrorKind::SessionNotFound);
        if !in_vain && std::mem::take(&mut self.charged) {
            self.places.refund();
        }
        found
    }

    async fn look(&mut self) -> Result<LookupOutcome<P::Session>, Refusal> {
        loop {
            if let Some(session) = self.places.here()? {
                return Ok(LookupOutcome::Local(session));
            }
            if let Some(owner) = self.told.take() {
                return Ok(self.there(owner));
            }
            let is_first = !std::mem::replace(&mut self.hint_asked, true);
            if let Some(owner) = self.places.known().filter(|_| is_first) {
                return Ok(self.there(owner));
            }
            if !self.charged {
                self.places.charge()?;
                self.charged = true;
            }
            // Boxed from here on: few requests come so far, all of them would be moved with room for it.
            if is_first && let Some(owner) = Box::pin(self.places.hint()).await {
                return Ok(self.there(owner));
            }
            if self.places.draining() {
                return Box::pin(self.another_replica()).await.map(LookupOutcome::Remote);
            }
            let claimed = match Box::pin(self.places.claim()).await {
                Ok(claimed) => claimed,
                Err(refusal) => match self.lapsed.take().filter(|_| is_outage(&refusal)) {
                    // Nobody can take it over now: who had it has it.
                    Some(owner) => {
                        self.insists = true;
                        return Ok(self.there(owner));
                    }
                    None => return Err(refusal),
                },
            };
            match claimed {
                ClaimOutcome::Local(session) => return Ok(LookupOutcome::Local(session)),
                ClaimOutcome::Absent => return Err(no_session()),
                ClaimOutcome::Remote { owner, lease_left } => {
                    let in_vain = self.in_vain.take();
                    match (owner, in_vain) {
                        (Some(owner), Some((asked, ForwardFailure::NotOwner(_))))
                            if owner == asked =>
                        {
                            self.wait(Duration::ZERO).await?
                        }
                        (
                            Some(owner),
                            Some((
                                asked,
                                ForwardFailure::Unreachable | ForwardFailure::LeaseLapsed,
                            )),
                        ) if owner == asked => self.wait(lease_left).await?,
                        (Some(owner), _) => return Ok(self.there(owner)),
                        (None, _) => self.wait(lease_left).await?,
                    }
                }
            }
        }
    }

    /// The replica that [`OwnerLookup::next`] named did not serve the request.
    pub(crate) fn missed(&mut self, owner: &SessionOwner, miss: ForwardFailure) {
        self.places.forget(owner);
        self.deadline();
        if let ForwardFailure::NotOwner(Some(told)) = &miss
            && told != owner
            && !std::mem::replace(&mut self.told_asked, true)
        {
            self.told = Some(told.clone());
        }
        if miss == ForwardFailure::LeaseLapsed {
            self.lapsed = Some(owner.clone());
        }
        self.in_vain = Some((owner.clone(), miss));
    }

    /// The owner is to serve the session though its lease has lapsed: nobody else can.
    pub(crate) fn insists(&self) -> bool {
        self.insists
    }

    /// What was found has left meanwhile. False: there is no time to look for it again.
    pub(crate) fn may_go_on(&mut self) -> bool {
        self.untried = None; // they were asked before it left
        Instant::now() < self.deadline()
    }

    fn there(&self, owner: SessionOwner) -> LookupOutcome<P::Session> {
        self.places.note(&owner);
        LookupOutcome::Remote(owner)
    }

    fn deadline(&mut self) -> Instant {
        *self.deadline.get_or_insert_with(|| Instant::now() + 2 * self.lease + OWNER_SEARCH_EXTRA)
    }

    /// Until the owner's lease is over, or a little, as several may wait for the same.
    async fn wait(&mut self, lease_left: Duration) -> Result<(), Refusal> {
        let least = OWNER_RETRY_MIN * 2_u32.pow(self.rounds.min(OWNER_RETRY_DOUBLINGS));
        let pause = lease_left.max(least) + rand::random_range(Duration::ZERO..=OWNER_RETRY_JITTER);
        self.rounds += 1;
        if Instant::now() + pause > self.deadline() {
            let refusal = Refusal::new(
                ErrorKind::SessionElsewhere,
                "the session is on another replica, which can not be reached now",
            );
            return Err(refusal.retry_after(self.lease));
        }
        sleep(pause).await;
        Ok(())
    }

    async fn another_replica(&mut self) -> Result<SessionOwner, Refusal> {
        if self.untried.is_none() {
            self.untried = Some(self.places.replicas().await);
        }
        let next = self.untried.as_mut().and_then(Vec::pop);
        next.ok_or_else(|| Refusal::new(ErrorKind::Draining, "the broker is shutting down"))
    }
}

fn is_outage(refusal: &Refusal) -> bool {
    matches!(refusal.kind, ErrorKind::StoreUnavailable | ErrorKind::StoreBusy)
}

/// The search of a replica that was asked by another one: it looks, but neither forwards nor waits.
pub(crate) async fn inside<P: LookupSources>(
    places: &P,
) -> Result<PeerLookupOutcome<P::Session>, Refusal> {
    if let Some(session) = places.here()? {
        return Ok(PeerLookupOutcome::Here(session));
    }
    if places.draining() {
        return Ok(PeerLookupOutcome::NotLocal(None));
    }
    places.charge()?;
    let claimed = places.claim().await;
    if !matches!(claimed, Ok(ClaimOutcome::Absent)) {
        places.refund();
    }
    match claimed? {
        ClaimOutcome::Local(session) => Ok(PeerLookupOutcome::Here(session)),
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
    /// A busy machine takes its time.
    const SLACK: Duration = Duration::from_secs(1);

    /// Says what it was told to say; the last word of the record is repeated.
    #[derive(Default)]
    struct Script {
        state: Mutex<State>,
    }

    #[derive(Default)]
    struct State {
        hint: Option<SessionOwner>,
        record: VecDeque<Result<Option<Record>, ErrorKind>>,
        replicas: Vec<SessionOwner>,
        draining: bool,
        noted: Vec<SessionOwner>,
        forgotten: Vec<SessionOwner>,
        claims: usize,
        /// What the caller may still ask for.
        budget: Option<usize>,
    }

    #[derive(Clone)]
    enum Record {
        Free,
        Owned(Option<SessionOwner>, Duration),
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

        fn known(&self) -> Option<SessionOwner> {
            None
        }

        fn charge(&self) -> Result<(), Refusal> {
            let mut state = self.lock();
            let Some(left) = &mut state.budget else { return Ok(()) };
            *left = left.checked_sub(1).ok_or_else(|| Refusal::new(ErrorKind::RateLimited, ""))?;
            Ok(())
        }

        fn refund(&self) {
            self.lock().budget.iter_mut().for_each(|left| *left += 1);
        }

        async fn hint(&self) -> Option<SessionOwner> {
            self.lock().hint.clone()
        }

        async fn claim(&self) -> Result<ClaimOutcome<&'static str>, Refusal> {
            let mut state = self.lock();
            state.claims += 1;
            let said = if state.record.len() > 1 {
                state.record.pop_front()
            } else {
                state.record.front().cloned()
            };
            match said {
                Some(Ok(Some(Record::Free))) => Ok(ClaimOutcome::Local("adopted")),
                Some(Ok(Some(Record::Owned(owner, lease_left)))) => {
                    Ok(ClaimOutcome::Remote { owner, lease_left })
                }
                Some(Err(kind)) => Err(Refusal::new(kind, "")),
                Some(Ok(None)) | None => Ok(ClaimOutcome::Absent),
            }
        }

        fn draining(&self) -> bool {
            self.lock().draining
        }

        async fn replicas(&self) -> Vec<SessionOwner> {
            self.lock().replicas.clone()
        }

        fn note(&self, owner: &SessionOwner) {
            self.lock().noted.push(owner.clone());
        }

        fn forget(&self, owner: &SessionOwner) {
            self.lock().forgotten.push(owner.clone());
        }
    }

    fn owner(node: &str) -> SessionOwner {
        SessionOwner { node: node.to_owned(), address: format!("{node}:1") }
    }

    fn owned(node: &str, lease_left: Duration) -> Result<Option<Record>, ErrorKind> {
        Ok(Some(Record::Owned(Some(owner(node)), lease_left)))
    }

    async fn there(search: &mut OwnerLookup<&Script>) -> String {
        match search.next().await {
            Ok(LookupOutcome::Remote(owner)) => owner.node,
            Ok(LookupOutcome::Local(session)) => session.to_owned(),
            Err(refusal) => refusal.kind.name().to_owned(),
        }
    }

    #[tokio::test]
    async fn a_hint_is_believed_once_and_then_the_record() {
        let script = Script::with(|state| {
            state.hint = Some(owner("a"));
            state.record = [owned("b", LEASE)].into();
        });
        let mut search = OwnerLookup::new(&script, LEASE);
        assert_eq!(there(&mut search).await, "a");
        assert_eq!(script.lock().claims, 0);
        search.missed(&owner("a"), ForwardFailure::Unreachable);
        assert_eq!(script.lock().forgotten, [owner("a")]);
        assert_eq!(there(&mut search).await, "b");
        assert_eq!(script.lock().noted.last(), Some(&owner("b")));
    }

    #[tokio::test]
    async fn an_owner_without_a_lease_serves_only_what_nobody_can_take_over() {
        let script = Script::with(|state| {
            state.hint = Some(owner("a"));
            state.record = [Ok(Some(Record::Free))].into();
        });
        let mut search = OwnerLookup::new(&script, LEASE);
        assert_eq!(there(&mut search).await, "a");
        search.missed(&owner("a"), ForwardFailure::LeaseLapsed);
        assert_eq!(there(&mut search).await, "adopted");
        script.lock().record = [Err(ErrorKind::StoreUnavailable)].into();
        let mut search = OwnerLookup::new(&script, LEASE);
        assert_eq!(there(&mut search).await, "a");
        search.missed(&owner("a"), ForwardFailure::LeaseLapsed);
        assert_eq!((there(&mut search).await.as_str(), search.insists()), ("a", true));
        search.missed(&owner("a"), ForwardFailure::Unreachable);
        assert_eq!(there(&mut search).await, "store_unavailable");
    }

    #[tokio::test]
    async fn a_27_only_what_is_not_there_is_paid_for() {
        let script = Script::with(|state| {
            state.budget = Some(2);
            state.record = [owned("a", LEASE)].into();
        });
        for _ in 0..5 {
            assert_eq!(there(&mut OwnerLookup::new(&script, LEASE)).await, "a");
        }
        script.lock().record.clear();
        let claims = script.lock().claims;
        for expected in ["session_not_found", "session_not_found", "rate_limited", "rate_limited"] {
            assert_eq!(there(&mut OwnerLookup::new(&script, LEASE)).await, expected);
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
    async fn who_was_asked_by_another_replica_charges_for_nothing_it_could_not_look_up() {
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
    async fn a_dead_owners_lease_is_waited_for_and_no_longer() {
        let script = Script::with(|state| {
            state.record = [owned("a", LEASE), owned("a", LEASE / 2), Ok(Some(Record::Free))].into()
        });
        let mut search = OwnerLookup::new(&script, LEASE);
        let begun = Instant::now();
        assert_eq!(there(&mut search).await, "a");
        search.missed(&owner("a"), ForwardFailure::Unreachable);
        assert_eq!(there(&mut search).await, "adopted");
        let waited = begun.elapsed();
        assert!(
            waited >= LEASE / 2 && waited <= LEASE / 2 + OWNER_RETRY_JITTER + SLACK,
            "{waited:?}"
        );
    }

    #[tokio::test]
    async fn an_owner_that_lives_but_can_not_be_reached_is_a_refusal_in_bounded_time() {
        let script = Script::with(|state| state.record = [owned("a", LEASE)].into());
        let mut search = OwnerLookup::new(&script, LEASE);
        let begun = Instant::now();
        let mut attempts = 0;
        let refusal = loop {
            match search.next().await {
                Ok(LookupOutcome::Remote(owner)) => {
                    search.missed(&owner, ForwardFailure::Unreachable)
                }
                Ok(LookupOutcome::Local(_)) => panic!("nobody adopts it"),
                Err(refusal) => break refusal,
            }
            attempts += 1;
        };
        assert_eq!(refusal.kind, ErrorKind::SessionElsewhere);
        assert!(refusal.kind.retryable() && refusal.retry_after.is_some());
        assert!(begun.elapsed() <= 2 * LEASE + OWNER_SEARCH_EXTRA + SLACK, "{:?}", begun.elapsed());
        assert!((2..=8).contains(&attempts), "{attempts} attempts");
    }

    #[tokio::test]
    async fn an_owner_nobody_can_reach_from_outside_is_waited_for() {
        let nowhere = Ok(Some(Record::Owned(None, LEASE)));
        let script = Script::with(|state| state.record = [nowhere, Ok(Some(Record::Free))].into());
        assert_eq!(there(&mut OwnerLookup::new(&script, LEASE)).await, "adopted");
    }

    #[tokio::test]
    async fn two_replicas_that_name_each_other_do_not_keep_a_search_going() {
        let script = Script::with(|state| {
            state.hint = Some(owner("a"));
            state.record = [owned("a", LEASE)].into();
        });
        let mut search = OwnerLookup::new(&script, LEASE);
        let begun = Instant::now();
        let (mut asked, mut kind) = (Vec::new(), None);
        while kind.is_none() {
            match search.next().await {
                Ok(LookupOutcome::Remote(there)) => {
                    let other = if there.node == "a" { owner("b") } else { owner("a") };
                    search.missed(&there, ForwardFailure::NotOwner(Some(other)));
                    asked.push(there.node);
                }
                Ok(LookupOutcome::Local(_)) => panic!("nobody adopts it"),
                Err(refusal) => kind = Some(refusal.kind),
            }
        }
        assert_eq!(kind, Some(ErrorKind::SessionElsewhere));
        assert_eq!(asked[..2], ["a", "b"], "one word was followed");
        assert!(asked.len() <= 20, "{} questions", asked.len());
        assert!(begun.elapsed() <= 2 * LEASE + OWNER_SEARCH_EXTRA + SLACK, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn r_09_a_store_that_can_not_be_asked_is_no_missing_session() {
        let script = Script::with(|state| state.record = [Err(ErrorKind::StoreUnavailable)].into());
        assert_eq!(there(&mut OwnerLookup::new(&script, LEASE)).await, "store_unavailable");
        let script = Script::default();
        assert_eq!(there(&mut OwnerLookup::new(&script, LEASE)).await, "session_not_found");
    }

    #[tokio::test]
    async fn who_drains_takes_nothing_over_and_asks_the_others() {
        let script = Script::with(|state| {
            state.draining = true;
            state.replicas = vec![owner("c"), owner("b")];
            state.record = [Ok(Some(Record::Free))].into();
        });
        let mut search = OwnerLookup::new(&script, LEASE);
        assert_eq!(there(&mut search).await, "b");
        search.missed(&owner("b"), ForwardFailure::NotOwner(Some(owner("d"))));
        assert_eq!(there(&mut search).await, "d");
        search.missed(&owner("d"), ForwardFailure::Unreachable);
        assert_eq!(there(&mut search).await, "c");
        search.missed(&owner("c"), ForwardFailure::Unreachable);
        assert_eq!(there(&mut search).await, "draining");
        assert_eq!(script.lock().claims, 0);
    }

    #[tokio::test]
    async fn who_was_asked_by_another_replica_looks_once() {
        let script = Script::with(|state| {
            state.hint = Some(owner("x"));
            state.record = [owned("b", LEASE), Ok(Some(Record::Free))].into();
        });
        assert!(
            matches!(inside(&&script).await, Ok(PeerLookupOutcome::NotLocal(Some(known))) if known == owner("b"))
        );
        assert!(matches!(inside(&&script).await, Ok(PeerLookupOutcome::Here("adopted"))));
        script.lock().draining = true;
        assert!(matches!(inside(&&script).await, Ok(PeerLookupOutcome::NotLocal(None))));
    }
}
