//! Availability of a store, as its callers find out.
//!
//! Every operation of a store goes [`Availability::through`] here, except those of the lease. The
//! lease has a connection of its own and does not wait for a probe ([`Availability::run_unguarded`]). Once
//! a store is away, further operations are refused at once. One operation at a time probes the
//! store. A failing operation is logged when it begins to fail and when it works again, however
//! often it is tried meanwhile.
//!
//! Invariant: a store that answered any operation after a call had started is not away because that
//! call failed.

use std::{collections::HashMap, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use rules::limits::STORE_PROBE_EVERY;
use storage::StoreError;
use tokio::time::Instant;

/// Outages that begin within this time of one in the log are not logged, unless they last. A
/// database that permits only reads is away for each write and back for each read.
const OUTAGE_LOG_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Availability {
    store: &'static str,
    state: Mutex<AvailabilityState>,
}

#[derive(Debug, Default)]
struct AvailabilityState {
    outage: Option<Outage>,
    /// Begin of the last outage in the log.
    logged_at: Option<Instant>,
    /// Time of the store's last answer, which may be an error.
    answered_at: Option<Instant>,
    /// Operations that fail although the store is there, with the time of the first failure.
    failing: HashMap<&'static str, Instant>,
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    probe_at: Instant,
    probing: bool,
    refused: u64,
    is_logged: bool,
}

/// The one operation that probes whether an outage is over.
struct OutageProbe<'a>(&'a Availability);

impl Availability {
    pub(super) fn new(store: &'static str) -> Self {
        Self { store, state: Mutex::default() }
    }

    /// Runs an operation, unless the store is known to be away.
    pub(super) async fn through<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let _probe = self.admit()?;
        self.run_unguarded(operation, work).await
    }

    /// Runs an operation, even if the store is known to be away. The result counts for all
    /// operations.
    pub(super) async fn run_unguarded<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let started_at = Instant::now();
        let result = work.await;
        self.record(operation, started_at, result.as_ref().err());
        result
    }

    fn admit(&self) -> Result<Option<OutageProbe<'_>>, StoreError> {
        let mut state = self.lock();
        let Some(outage) = &mut state.outage else { return Ok(None) };
        if !outage.probing && Instant::now() >= outage.probe_at {
            outage.probing = true;
            return Ok(Some(OutageProbe(self)));
        }
        outage.refused += 1;
        Err(StoreError::Unavailable { detail: "it did not answer a moment ago".into() })
    }

    /// Notes the result of an operation.
    pub(super) fn record(
        &self,
        operation: &'static str,
        started_at: Instant,
        error: Option<&StoreError>,
    ) {
        match error.map(StoreError::cause) {
            None => self.answered(Some(operation)),
            Some(error) if error.is_answer() => self.answered(Some(operation)),
            Some(error @ StoreError::Unavailable { .. }) => {
                self.unavailable(operation, started_at, error)
            }
            Some(
                error @ (StoreError::Busy { .. } | StoreError::Full | StoreError::Refused { .. }),
            ) => {
                self.answered(None);
                self.fails(operation, error);
            }
            Some(error) => {
                self.answered(None);
                tracing::warn!(operation, store = self.store, %error, "the store failed");
            }
        }
    }

    fn unavailable(&self, operation: &'static str, started_at: Instant, error: &StoreError) {
        let now = Instant::now();
        let mut state = self.lock();
        let starts = state.outage.is_none();
        if starts && state.answered_at.is_some_and(|at| at > started_at) {
            drop(state);
            return self.fails(operation, error);
        }
        let may_log = state.logged_at.is_none_or(|at| now - at >= OUTAGE_LOG_INTERVAL);
        let outage = state.outage.get_or_insert(Outage {
            since: now,
            probe_at: now + STORE_PROBE_EVERY,
            probing: false,
            refused: 0,
            is_logged: false,
        });
        outage.refused += 1;
        if may_log && !outage.is_logged {
            outage.is_logged = true;
            state.logged_at = Some(now);
            drop(state);
            tracing::warn!(operation, store = self.store, %error, "the store is unavailable");
        }
    }

    fn fails(&self, operation: &'static str, error: &StoreError) {
        if self.lock().failing.insert(operation, Instant::now()).is_none() {
            tracing::warn!(operation, store = self.store, %error, "the store failed; the log omits further failures of this kind until it works");
        }
    }

    fn answered(&self, succeeded: Option<&'static str>) {
        let now = Instant::now();
        let mut state = self.lock();
        state.answered_at = Some(now);
        let outage = state.outage.take();
        let failed_at = succeeded.and_then(|operation| state.failing.remove(operation));
        drop(state);
        let seconds = |since: Instant| Duration::as_secs_f32(&(now - since));
        if let Some(outage) = outage.filter(|outage| outage.is_logged) {
            tracing::info!(
                store = self.store,
                away_s = seconds(outage.since),
                refused = outage.refused,
                "the store is available again"
            );
        }
        if let Some((operation, at)) = succeeded.zip(failed_at) {
            tracing::info!(
                operation,
                store = self.store,
                failed_s = seconds(at),
                "the store works again"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, AvailabilityState> {
        self.state.lock()
    }
}

impl Drop for OutageProbe<'_> {
    /// Ends the probe, which failed or was given up.
    fn drop(&mut self) {
        if let Some(outage) = &mut self.0.lock().outage {
            (outage.probing, outage.probe_at) = (false, Instant::now() + STORE_PROBE_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use testkit::eventually;

    use super::*;

    fn away() -> Result<(), StoreError> {
        Err(StoreError::Unavailable { detail: "gone".into() })
    }

    async fn was_run(availability: &Availability, answer: Result<(), StoreError>) -> bool {
        let mut has_run = false;
        let work = async {
            has_run = true;
            answer
        };
        let _outcome = availability.through("test", work).await;
        has_run
    }

    #[tokio::test]
    async fn an_unavailable_store_is_tried_by_one_caller_at_a_time() {
        let availability = Availability::new("test");
        assert!(was_run(&availability, away()).await);
        assert!(!was_run(&availability, Ok(())).await, "it was away a moment ago");
        let probe = eventually("a caller to try", || ready(availability.admit())).await;
        assert!(probe.is_some());
        assert!(!was_run(&availability, Ok(())).await, "one is at it");
        drop(probe);
        assert!(!was_run(&availability, Ok(())).await, "and was there just now");
        eventually("the next to try", || async {
            if was_run(&availability, Ok(())).await { Ok(()) } else { Err(()) }
        })
        .await;
        assert!(
            was_run(&availability, Ok(())).await && was_run(&availability, Ok(())).await,
            "it is back"
        );
    }

    #[tokio::test]
    async fn a_store_that_answers_one_caller_is_available() {
        let availability = Availability::new("test");
        let started = Instant::now();
        eventually("the clock", || ready(if Instant::now() > started { Ok(()) } else { Err(()) }))
            .await;
        availability.record("quick", started, None);
        availability.record("slow", started, away().as_ref().err());
        assert!(was_run(&availability, Err(StoreError::Busy { detail: "locked".into() })).await);
        assert!(was_run(&availability, Ok(())).await, "busy is not away");
    }

    #[tokio::test(start_paused = true)]
    async fn outages_that_follow_one_another_are_logged_once_a_minute() {
        let availability = Availability::new("test");
        let is_logged = || availability.lock().outage.as_ref().map(|outage| outage.is_logged);
        let away_for = |seconds| {
            availability.record("write", Instant::now(), away().as_ref().err());
            tokio::time::advance(Duration::from_secs(seconds))
        };
        away_for(1).await;
        assert_eq!(is_logged(), Some(true));
        availability.record("read", Instant::now(), None);
        assert_eq!(is_logged(), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        away_for(OUTAGE_LOG_INTERVAL.as_secs()).await;
        assert_eq!(is_logged(), Some(false), "a read worked a moment ago");
        away_for(1).await;
        assert_eq!(is_logged(), Some(true), "this one lasts");
    }

    #[tokio::test]
    async fn a_refused_statement_is_not_an_outage_and_the_lease_is_not_delayed() {
        let availability = Availability::new("test");
        assert!(
            was_run(&availability, Err(StoreError::Refused { detail: "permission denied".into() }))
                .await
        );
        assert!(was_run(&availability, away()).await, "it is there");
        assert!(!was_run(&availability, Ok(())).await, "it is not any more");
        availability.run_unguarded("renew", ready(Ok(()))).await.unwrap();
        assert!(was_run(&availability, Ok(())).await, "and it is back, as the lease found out");
    }
}
