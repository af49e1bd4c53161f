//! What stands between calls and one backend: its breaker, the room it has, and its budget of retries. Asked before a call
//! goes, told how it went.
//!
//! Invariant: what our own side refused, and what a backend answered, is no failure of that backend; the end of one
//! connection is one failure, however many calls went down with it.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::PrincipalId,
};
use tokio::sync::{Notify, watch};

use super::{
    backend::Backend,
    gate::{Crowded, Gate, Place, Standing},
    link::connection::{Connection, Failure, Wire},
    shared::Shared,
    sync::lock,
    tenant::Tenant,
};
use crate::{
    config::{Config, spec::BackendSpec},
    durable::SessionKey,
    limits::{PROBE_ANSWER_MAX, SILENCE_SUSPECTED, SUSPICION_INTERVAL},
    metrics::{Metrics, Retry},
    rules::{
        breaker::{Breaker, Reason, Rest, Settings, State},
        concurrency::Adaptive,
        retries,
    },
    views::BreakerStatus,
};

/// Of one backend.
#[derive(Debug)]
pub struct Guard {
    breaker: Breaker,
    /// The breaker has opened, is to be probed sooner, or somebody suspects that the backend is not there.
    look: Notify,
    suspected: AtomicBool,
    /// From when on it may be suspected again, on the clock of the process.
    trusted_until_ms: AtomicU64,
    /// Probes so far.
    probes: watch::Sender<u64>,
    room: Arc<Gate<PrincipalId, SessionKey>>,
    adaptive: Option<Mutex<Adaptive>>,
    retries: Option<retries::Budget>,
    /// The state that metrics and log know of.
    told: Mutex<State>,
    label: String,
    metrics: Arc<Metrics>,
}

/// Room for one call: at its backend, and in the broker.
#[derive(Debug)]
pub struct Room {
    _there: Place<PrincipalId, SessionKey>,
    _here: Place<Standing, PrincipalId>,
}

/// Why a backend is to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Its breaker is open, and half open now.
    Probe,
    /// Clients gave up waiting for it.
    Suspicion,
}

/// For whom a call is.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    pub tenant: &'a Tenant,
    pub principal: &'a PrincipalId,
    pub session: &'a SessionKey,
}

impl Guard {
    pub(super) fn new(id: &protocol::ids::BackendId, spec: &BackendSpec, shared: &Shared) -> Self {
        let config = &shared.config;
        let (own, common) = (&spec.limits, &config.limits);
        let max = own.calls_in_flight.unwrap_or(common.calls_in_flight_per_backend);
        let queued = own.calls_queued.unwrap_or(common.calls_queued_per_backend);
        let adapts = own.adaptive_concurrency.unwrap_or(common.adaptive_concurrency);
        let metrics = shared.metrics.clone();
        let label = metrics.protection.label(id);
        metrics.protection.breaker_moved(&label, None, Some(State::Closed));
        if adapts {
            metrics.protection.calls_max(&label, max);
        }
        Self {
            breaker: Breaker::new(settings(spec, config)),
            look: Notify::new(),
            suspected: AtomicBool::new(false),
            trusted_until_ms: AtomicU64::new(0),
            probes: watch::Sender::new(0),
            room: Gate::new(max, queued, metrics.queue_depth("backend_calls")),
            adaptive: adapts.then(|| Mutex::new(Adaptive::new(max))),
            retries: config.retries.enabled.then(|| retries::Budget::new(config.retries.budget.get())),
            told: Mutex::new(State::Closed),
            label,
            metrics,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let told = *lock(&self.told);
        self.metrics.protection.breaker_moved(&self.label, Some(told), None);
    }
}

fn settings(spec: &BackendSpec, config: &Config) -> Settings {
    let (own, common) = (&spec.breaker, &config.breaker);
    Settings {
        enabled: own.enabled.unwrap_or(common.enabled),
        failures: own.failures.unwrap_or(common.failures),
        error_ratio: own.error_ratio.unwrap_or(common.error_ratio).get(),
        requests: own.requests.unwrap_or(common.requests),
        window: own.window.unwrap_or(common.window),
        probe_after: own.probe_after.unwrap_or(common.probe_after),
        probe_max: own.probe_max.unwrap_or(common.probe_max),
    }
}

impl Backend {
    /// Whether calls go to it now. One load of one atomic while all is well.
    pub fn admits(&self) -> Result<(), Refusal> {
        self.guard.breaker.admits(|| self.shared.uptime()).map_err(|rest| self.at_rest(rest))
    }

    fn at_rest(&self, rest: Rest) -> Refusal {
        let why = match rest.reason {
            Reason::Failures => "has failed several times in a row and is left alone until a probe finds it well",
            Reason::Ratio => "fails too often and is left alone until a probe finds it well",
            Reason::Operator => "is left alone because an operator wants it so",
        };
        let refusal = Refusal::new(ErrorKind::BackendUnavailable, format!("backend {} {why}", self.id)).with("breaker", rest.reason.name());
        match rest.retry_after {
            Some(after) => refusal.retry_after(after),
            None => refusal,
        }
    }

    /// Waits for room for one call, which is of no use after `due`.
    pub async fn room_for(&self, caller: Caller<'_>, due: Instant) -> Result<Room, Refusal> {
        let Caller { tenant, principal, .. } = caller;
        // First at the backend: whoever waits for one that is slow keeps nobody else out.
        let there = match self.guard.room.at_once(principal, 1) {
            Some(there) => match self.shared.room.at_once(&tenant.standing, tenant.weight()) {
                Some(here) => return Ok(Room { _there: there, _here: here }),
                None => Some(there),
            },
            None => None,
        };
        // Boxed, as it is rare: every call would have room for the wait.
        Box::pin(self.room_in_time(there, caller, due)).await
    }

    /// The same, where there is no room yet; at the backend there may be.
    async fn room_in_time(&self, there: Option<Place<PrincipalId, SessionKey>>, caller: Caller<'_>, due: Instant) -> Result<Room, Refusal> {
        let left = || due.saturating_duration_since(Instant::now());
        // What begins too late for an answer takes the place of what does not.
        let needed = self.usual_time().min(left() / 2);
        let Caller { tenant, principal, session } = caller;
        let there = match there {
            Some(there) => there,
            None => {
                let there = self.guard.room.enter(principal, 1, session, left().saturating_sub(needed)).await;
                there.map_err(|crowded| self.crowded(crowded))?
            }
        };
        let here = self.shared.room.enter(&tenant.standing, tenant.weight(), principal, left().saturating_sub(needed)).await;
        let here = here.map_err(|crowded| {
            self.shared.metrics.protection.crowded_out("broker");
            too_busy("the broker".to_owned(), crowded)
        })?;
        if left() < needed {
            return Err(self.crowded(Crowded::TooLate { wait: needed }));
        }
        Ok(Room { _there: there, _here: here })
    }

    fn crowded(&self, crowded: Crowded) -> Refusal {
        if crowded == Crowded::SentAway
            && let Err(at_rest) = self.admits()
        {
            return at_rest;
        }
        self.shared.metrics.protection.crowded_out("backend");
        too_busy(format!("backend {}", self.id), crowded)
    }

    /// An answer to a request that went out, or that there is none.
    pub fn judge(&self, connection: &Connection, answer: &Result<Message, Failure>, took: Duration, over_at: Instant) {
        match answer {
            Ok(_) => self.guard.breaker.succeeded(self.shared.uptime_at(over_at)),
            Err(failure) if !failure.is_the_backends() => {}
            // The calls of a connection that ends fail together.
            Err(Failure::Lost(_)) if matches!(connection.wire(), Wire::Pipe(_)) && !connection.count_loss() => {}
            Err(_) => self.failed(took),
        }
    }

    /// How long a call of those that take room took. Of tasks nothing is learnt: they take none, and last as long as they do.
    pub fn took(&self, answer: &Result<Message, Failure>, took: Duration) {
        if answer.as_ref().err().is_none_or(Failure::is_the_backends) {
            self.adapt(took, answer.is_err());
        }
    }

    /// A call got no answer in the time that was left for it when it was sent.
    pub fn timed_out(&self, after: Duration) {
        self.failed(after);
        self.adapt(after, true);
    }

    /// A client gave up a call that was with the backend for so long and of which nothing was heard. That alone says nothing of
    /// the backend; where nobody else heard of it either, the broker asks it.
    pub fn given_up(&self, after: Duration) {
        let now = self.shared.uptime();
        let trusted_until = Duration::from_millis(self.guard.trusted_until_ms.load(Ordering::Relaxed));
        let is_suspect = after >= SILENCE_SUSPECTED && now >= trusted_until && self.guard.breaker.is_enabled();
        if is_suspect && !self.heard_since(now.saturating_sub(after)) {
            self.guard.suspected.store(true, Ordering::Relaxed);
            self.guard.look.notify_one();
        }
    }

    /// Whether anybody got an answer of it since.
    pub(super) fn heard_since(&self, since: Duration) -> bool {
        self.guard.breaker.last_success() > since
    }

    pub(super) fn suspicion_settled(&self) {
        let until = self.shared.uptime() + SUSPICION_INTERVAL;
        self.guard.trusted_until_ms.store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.guard.suspected.store(false, Ordering::Relaxed);
    }

    /// A connection to it did not come about, or it gave a call no answer for so long.
    pub fn failed(&self, after: Duration) {
        let now = self.shared.uptime();
        let is_leaving = self.stop.is_cancelled() || self.shared.draining.is_cancelled();
        if !is_leaving && self.guard.breaker.failed(now, now.saturating_sub(after), rand::random()) {
            self.breaker_moved();
            self.guard.look.notify_one();
            self.guard.room.send_away();
        }
    }

    fn adapt(&self, took: Duration, failed: bool) {
        let Some(adaptive) = &self.guard.adaptive else { return };
        let limit = lock(adaptive).observe(self.shared.uptime(), took, failed, self.guard.room.inside());
        if let Some(limit) = limit {
            self.guard.room.set_limit(limit);
            self.guard.metrics.protection.calls_max(&self.guard.label, limit);
        }
    }

    /// A call begins, which earns a share of a retry.
    pub fn earn_retry(&self) {
        if let Some(budget) = &self.guard.retries {
            budget.earn();
        }
    }

    /// Whether a call that may be sent again is.
    pub fn spend_retry(&self) -> bool {
        let Some(budget) = &self.guard.retries else { return false };
        let spent = budget.spend();
        self.guard.metrics.protection.retry(if spent { Retry::Sent } else { Retry::OverBudget });
        spent
    }

    /// An operator's word: `open` until told otherwise, or closed, from where on it goes by the rules.
    pub fn set_breaker(self: &Arc<Self>, open: bool) {
        let changed = if open { self.guard.breaker.hold_open() } else { self.guard.breaker.close(self.shared.uptime()) };
        if changed {
            tracing::info!(tenant = %self.tenant, backend = %self.id, open, "an operator has set the breaker");
            self.breaker_moved();
        }
        if open {
            self.guard.room.send_away();
        } else {
            self.is_well_again();
        }
    }

    /// Resolves when there is a reason to look at the backend.
    pub(super) async fn look_due(&self) -> Due {
        loop {
            match self.guard.breaker.probe_at() {
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep(at.saturating_sub(self.shared.uptime())) => {}
                        () = self.guard.look.notified() => {}
                    }
                    if self.guard.breaker.begin_probe(self.shared.uptime()) {
                        self.breaker_moved();
                        return Due::Probe;
                    }
                }
                None if self.guard.suspected.load(Ordering::Relaxed) && self.admits().is_ok() => return Due::Suspicion,
                None => self.guard.look.notified().await,
            }
        }
    }

    /// An open breaker is probed now; resolves when it is known what came of that.
    pub async fn probe_breaker(&self) {
        let mut probes = self.guard.probes.subscribe();
        if self.guard.breaker.probe_now(self.shared.uptime()) {
            self.guard.look.notify_one();
        } else if self.guard.breaker.state() != State::HalfOpen {
            return;
        }
        let _in_time = tokio::time::timeout(self.timeouts().initialize + PROBE_ANSWER_MAX, probes.changed()).await;
    }

    /// What came of the probe.
    pub(super) fn probed(self: &Arc<Self>, well: bool) {
        let to = self.guard.breaker.probed(well, self.shared.uptime(), rand::random());
        self.breaker_moved();
        self.guard.probes.send_modify(|count| *count += 1);
        self.suspicion_settled();
        if to == Some(State::Closed) {
            self.is_well_again();
        }
    }

    /// Nothing waits any longer than it must: neither the lists, nor links that were told to.
    fn is_well_again(self: &Arc<Self>) {
        for link in self.links() {
            self.shared.running.spawn(async move { link.forgive().await });
        }
        self.refresh();
    }

    /// Tells metrics and log of a new state.
    fn breaker_moved(&self) {
        let mut told = lock(&self.guard.told);
        let state = self.guard.breaker.state();
        let before = std::mem::replace(&mut *told, state);
        if before == state {
            return;
        }
        self.guard.metrics.protection.breaker_moved(&self.guard.label, Some(before), Some(state));
        drop(told);
        let (tenant, backend) = (&self.tenant, &self.id);
        match (before, state) {
            (State::Closed, _) => {
                let why = self.guard.breaker.resting(self.shared.uptime()).map(|rest| rest.reason.name());
                tracing::warn!(%tenant, %backend, why, "breaker open: the backend gets no calls until a probe finds it well");
            }
            (_, State::Closed) => tracing::info!(%tenant, %backend, "breaker closed: the backend is well again"),
            _ => tracing::debug!(%tenant, %backend, state = state.name(), "breaker"),
        }
    }

    pub fn breaker_status(&self) -> BreakerStatus {
        let rest = self.guard.breaker.resting(self.shared.uptime());
        BreakerStatus {
            state: self.guard.breaker.state().name().to_owned(),
            reason: rest.map(|rest| rest.reason.name().to_owned()),
            failures_in_a_row: self.guard.breaker.streak(),
            next_probe_ms: rest.and_then(|rest| rest.retry_after).map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// Calls that are with the backend, that wait for it, and how many it gets at the same time.
    pub fn crowd(&self) -> (usize, usize, usize) {
        (self.guard.room.inside(), self.guard.room.waiting(), self.guard.room.limit())
    }
}

fn too_busy(who: String, crowded: Crowded) -> Refusal {
    let (text, wait) = match crowded {
        Crowded::Full { wait } => (format!("too many calls wait for {who}"), wait),
        Crowded::TooLate { wait } => (format!("too many calls wait for {who}: this one could not begin in its time"), wait),
        Crowded::SentAway => (format!("{who} takes no calls now"), Duration::ZERO),
    };
    Refusal::new(ErrorKind::Overloaded, text).retry_after(wait.clamp(RETRY_MIN, RETRY_MAX))
}

/// What a client is told to wait, whatever is foreseen.
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_secs(30);
