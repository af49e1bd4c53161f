//! One registered backend: its links, its lists, its state as operators see it.

mod link_events;
mod link_set;
pub(in crate::backends) mod links;
mod rates;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use config::{
    MessageWire,
    spec::{BackendSpec, CatalogAuth, TransportSpec},
};
use parking_lot::Mutex;
use protocol::{
    error::Refusal,
    ids::{BackendId, TenantId},
    stateless::tool_headers::ParamHeader,
};
use rules::{
    catalog::{BackendLists, CatalogMark, OfferTable},
    limits::{LATENCY_WEIGHT, LIST_ENTRIES_MAX, TOOLS_METERED_MAX},
    shared_rate_limit::{RateLimiterMap, SharedRateLimiter},
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

pub use self::link_set::LinkSet;
use super::{
    admission_state::BackendAdmission,
    link::{Era, EraCache, Link, failure::Failure},
    link_lists::OwnListBudget,
    list_refresh::ListRefresh,
    pins::PinKeeper,
    placeholder::Placeholder,
    policy::Policy,
    principal_lists::PrincipalLists,
    resources::BackendResources,
    roots::BackendRoots,
    tools_read::ToolsRead,
};
use crate::{
    context::Context, oauth::TokenSource, sandbox::ConfinementLevel,
    telemetry::redaction::Redactor, views::BackendStatus,
};

/// Reachability of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendState {
    /// Not reached yet. The current attempt is not over.
    Connecting,
    Ready,
    /// Unreachable now. The broker serves its last good lists.
    Degraded,
    /// Unreachable since it was registered.
    Failed,
}

impl BackendState {
    pub fn name(self) -> &'static str {
        match self {
            BackendState::Connecting => "connecting",
            BackendState::Ready => "ready",
            BackendState::Degraded => "degraded",
            BackendState::Failed => "failed",
        }
    }
}

/// Effective deadlines of one backend.
#[derive(Debug, Clone, Copy)]
pub struct EffectiveTimeouts {
    pub call: Duration,
    pub control: Duration,
    pub initialize: Duration,
}

impl EffectiveTimeouts {
    /// Returns how long a request waits for the first attempt to reach the backend.
    pub fn first_attempt(&self) -> Duration {
        self.initialize.min(self.call)
    }
}

#[derive(Debug)]
pub struct Backend {
    pub tenant: TenantId,
    pub id: BackendId,
    pub spec: BackendSpec,
    /// The mark that the broker sends to it.
    pub mark: CatalogMark,
    pub context: Arc<Context>,
    pub(super) resources: Arc<BackendResources>,
    /// Its last good lists, or what stands for them.
    pub lists: ArcSwapOption<BackendLists>,
    /// The tool that stands for lists which no user has shown yet.
    pub placeholder: Placeholder,
    /// Lists that each principal sees alone.
    pub principal_lists: PrincipalLists,
    /// Bytes of the lists that its tenant's backends show to single links or principals.
    pub(super) own_list_budget: OwnListBudget,
    pub stop: CancellationToken,
    /// The eras of MCP that the backend supports, as far as known.
    pub era: EraCache,
    /// Arguments that its tools want repeated in headers, by tool.
    param_headers: ArcSwap<HashMap<String, Vec<ParamHeader>>>,
    /// Rules for requests, checked before they are sent.
    pub policy: Arc<Policy>,
    /// Pins of its definitions.
    pub pins: PinKeeper,
    /// Roots of its operator.
    pub roots: Arc<BackendRoots>,
    /// What it offers only to clients with some capability.
    pub(super) offers: Mutex<ListProbe>,
    /// Removes the secrets of the settings from messages for operators.
    pub redactor: Redactor,
    /// Source of its access tokens, if it wants any.
    pub tokens: Option<TokenSource>,
    pub(super) list_refresh: ListRefresh,
    /// Puts the reads of tools after refused headers in order, and holds the last one.
    pub(super) last_tools_read: tokio::sync::Mutex<Option<ToolsRead>>,
    /// Set by a request that could not be sent while the backend counts as reachable.
    pub(super) suspicion: Notify,
    state: watch::Sender<BackendState>,
    status: Mutex<Status>,
    pub links: LinkSet<Link>,
    latency_us: AtomicU64,
    meter: Arc<SharedRateLimiter>,
    /// Rates of its tools, by the backend's own names.
    tools: Mutex<RateLimiterMap<String>>,
    /// Admission of calls: breaker, concurrency limit and budget of retries.
    pub(super) admission: BackendAdmission,
}

/// What the probes of a backend found, and when the last one began.
#[derive(Debug, Default)]
pub(super) struct ListProbe {
    pub(super) table: Option<Arc<OfferTable>>,
    pub(super) began: Option<Instant>,
}

#[derive(Debug, Default)]
struct Status {
    last_error: Option<String>,
    /// The unexpected end of a child process since the backend was ready last.
    child_end: Option<String>,
    /// Set when the log has a line about the current outage.
    down_logged: bool,
    /// Consecutive failures of the link that failed last. `next_attempt` is the time of its next
    /// attempt.
    failed_attempts: u32,
    next_attempt: Option<Instant>,
    /// The confinement of its children, known since the first start.
    sandbox: Option<ConfinementLevel>,
}

impl Status {
    /// Returns the last error, with the end of a child process if one ended.
    fn last_error_shown(&self) -> Option<String> {
        match (&self.last_error, &self.child_end) {
            (Some(error), Some(end)) => Some(format!("{error}; {end}")),
            (error, end) => error.as_ref().or(end.as_ref()).cloned(),
        }
    }
}

impl Backend {
    pub fn new(
        tenant: TenantId,
        id: BackendId,
        spec: BackendSpec,
        context: Arc<Context>,
        resources: Arc<BackendResources>,
    ) -> Arc<Self> {
        let meter = SharedRateLimiter::new(format!("backend/{tenant}/{id}"));
        let tools =
            Mutex::new(RateLimiterMap::new(TOOLS_METERED_MAX, format!("tools/{tenant}/{id}")));
        let sources = TokenSource::of(&tenant, &id, &spec, context.oauth.clone());
        let admission = BackendAdmission::new(&tenant, &id, &spec, &context);
        let principal_lists =
            PrincipalLists::new(spec.auth.catalog_auth == CatalogAuth::PerPrincipal);
        let own_list_budget = resources.own_list_budgets.of(&tenant, &context.own_lists_bytes);
        Arc::new(Self {
            meter,
            tools,
            admission,
            pins: PinKeeper::new(tenant.clone(), id.clone(), &spec.pins, context.clone()),
            policy: Policy::of(&tenant, &id, &spec, &context, &resources),
            mark: context.catalog_marks.of_backend(&tenant, &id),
            tenant,
            id,
            roots: BackendRoots::new(&spec.roots),
            offers: Mutex::default(),
            redactor: Redactor::of(&spec),
            tokens: sources,
            spec,
            context,
            resources,
            lists: ArcSwapOption::empty(),
            placeholder: Placeholder::default(),
            principal_lists,
            own_list_budget,
            stop: CancellationToken::new(),
            era: EraCache::default(),
            param_headers: ArcSwap::default(),
            list_refresh: ListRefresh::default(),
            last_tools_read: tokio::sync::Mutex::default(),
            suspicion: Notify::new(),
            state: watch::Sender::new(BackendState::Connecting),
            status: Mutex::default(),
            links: LinkSet::default(),
            latency_us: AtomicU64::new(0),
        })
    }

    /// Returns the largest size of a message of this backend.
    pub fn message_bytes(&self) -> usize {
        let wire = match &self.spec.transport {
            TransportSpec::Http { .. } | TransportSpec::Sse { .. } => MessageWire::Http,
            TransportSpec::Websocket { .. } => MessageWire::WebSocket,
            TransportSpec::Tcp { .. } => MessageWire::Tcp,
            TransportSpec::Quic { .. } => MessageWire::Quic,
            TransportSpec::Stdio { .. } => MessageWire::Stdio,
        };
        self.context
            .config
            .limits
            .message_sizes
            .of(self.spec.limits.message_profile.as_deref(), wire)
    }

    pub fn timeouts(&self) -> EffectiveTimeouts {
        let (own, common) = (&self.spec.timeouts, &self.context.config.timeouts);
        EffectiveTimeouts {
            call: own.call.unwrap_or(common.call),
            control: own.control.unwrap_or(common.control),
            initialize: own.initialize.unwrap_or(common.initialize),
        }
    }

    /// Returns the arguments that a tool wants repeated in headers (MCP 2026-07-28, Streamable
    /// HTTP).
    pub fn param_headers(&self, tool: &str) -> Vec<ParamHeader> {
        self.param_headers.load().get(tool).cloned().unwrap_or_default()
    }

    /// Stores the arguments that tools want repeated in headers. `is_all`: other tools want none.
    pub fn record_param_headers(&self, by_tool: &HashMap<String, Vec<ParamHeader>>, is_all: bool) {
        self.param_headers.rcu(|known| {
            let mut next = match is_all || known.len() > LIST_ENTRIES_MAX {
                true => HashMap::new(),
                false => HashMap::clone(known),
            };
            next.extend(by_tool.clone());
            next
        });
    }

    /// Requests a refresh of the lists.
    pub fn refresh(&self) {
        self.list_refresh.request();
    }

    /// Waits until the lists are read again, or the backend is removed or replaced.
    pub async fn wait_list_refresh(&self, within: Duration) {
        tokio::select! {
            () = self.list_refresh.read_again(within) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Reports a failure in the log and in the status of the backend, and returns the refusal for
    /// the client. The full cause goes only to the log and to operators.
    pub fn report_failure(&self, failure: &Failure) -> Refusal {
        let redacted = self.redactor.redact(failure);
        let leaving = self.stop.is_cancelled() || self.context.draining.is_cancelled();
        // The log already has a line about an outage. Further attempts are not logged.
        let is_usual = failure.needs_user_action();
        if leaving || is_usual || self.state() != BackendState::Ready {
            tracing::debug!(tenant = %self.tenant, backend = %self.id, failure = redacted, "a request to a backend failed");
        } else {
            tracing::warn!(tenant = %self.tenant, backend = %self.id, failure = redacted, "a request to a backend failed");
        }
        // An account that one user did not connect is not a fault of a backend that works.
        let of_user = failure.needs_user_action() && self.state() == BackendState::Ready;
        if !leaving && !of_user {
            self.status.lock().last_error = Some(redacted);
        }
        if matches!(failure, Failure::NotSent(_)) && self.state() == BackendState::Ready {
            self.suspicion.notify_one();
        }
        failure.refusal(&self.id)
    }

    /// Stores the number of failed attempts to open a link and the time of the next one. Both are
    /// reset once a link is open.
    pub fn record_attempts(&self, failed: u32, next: Option<Instant>) {
        let mut status = self.status.lock();
        (status.failed_attempts, status.next_attempt) = (failed, next);
    }

    pub fn record_latency(&self, time: Duration) {
        self.admission.series.request_finished(time);
        let sample = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let before = self.latency_us.load(Ordering::Relaxed);
        let mean = if before == 0 {
            sample
        } else {
            (before * (LATENCY_WEIGHT - 1) + sample) / LATENCY_WEIGHT
        };
        self.latency_us.store(mean, Ordering::Relaxed);
    }

    /// Returns twice the mean latency, or zero while no latency is known.
    pub fn expected_latency(&self) -> Duration {
        Duration::from_micros(self.latency_us.load(Ordering::Relaxed).saturating_mul(2))
    }

    pub fn set_state(&self, state: BackendState) {
        if state == BackendState::Ready {
            let mut status = self.status.lock();
            (status.last_error, status.child_end, status.down_logged) = (None, None, false);
        }
        self.state.send_replace(state);
    }

    /// Marks the backend as unreachable. Logs only the first failure of an outage.
    pub fn set_unreachable(&self, state: BackendState, refusal: &Refusal) {
        let mut status = self.status.lock();
        let was_logged = std::mem::replace(&mut status.down_logged, true);
        let cause = status.last_error.clone().unwrap_or_else(|| refusal.to_string());
        drop(status);
        if !was_logged {
            tracing::warn!(tenant = %self.tenant, backend = %self.id, state = state.name(), cause, "backend cannot be reached");
        }
        self.era.set_settled(true);
        self.set_state(state);
    }

    pub fn state(&self) -> BackendState {
        *self.state.borrow()
    }

    /// Reconnects now. A failed backend, and one whose lists no user has shown, returns to
    /// [`BackendState::Connecting`].
    pub fn reconnect(&self) {
        self.era.forget();
        self.state.send_if_modified(|state| {
            let failed = *state == BackendState::Failed || self.placeholder.is_shown();
            if failed {
                *state = BackendState::Connecting;
            }
            failed
        });
        self.refresh();
    }

    /// Returns whether the backend was never reached, so that its lists are unknown.
    pub fn is_never_reached(&self) -> bool {
        self.lists.load().is_none()
    }

    /// Waits until the first attempt to reach the backend is over. For a client with a session, it
    /// also waits until the lists of the backend's sessions are known.
    pub async fn wait_first_attempt_for(&self, era: Era, within: Duration) {
        if era == Era::Sessions {
            self.era.want_sessions();
        }
        let started_at = Instant::now();
        self.wait_first_attempt(within).await;
        if era == Era::Sessions {
            self.era.settled(within.saturating_sub(started_at.elapsed())).await;
        }
    }

    /// Waits until the first attempt to reach the backend is over, or the backend is removed or
    /// replaced.
    pub async fn wait_first_attempt(&self, within: Duration) {
        let mut state = self.state.subscribe();
        tokio::select! {
            _over = state.wait_for(|state| *state != BackendState::Connecting) => {}
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(within) => {}
        }
    }

    /// Stores the confinement of a child that starts now.
    pub(super) fn record_sandbox(&self, level: ConfinementLevel) {
        self.status.lock().sandbox = Some(level);
    }

    /// Stores the unexpected end of a child process. Operators see `how` unchanged.
    pub(super) fn record_child_end(&self, mut how: String) {
        let mut status = self.status.lock();
        let unreachable = status.sandbox.iter().flat_map(|level| &level.unreachable);
        for why in unreachable {
            how += &format!("; {why}");
        }
        status.child_end = Some(how);
    }

    pub fn view(&self) -> BackendStatus {
        let lists = self.lists.load_full();
        let status = self.status.lock();
        let latency = self.latency_us.load(Ordering::Relaxed);
        let (calls_in_flight, calls_queued, calls_max) = self.call_counts();
        BackendStatus {
            tenant: self.tenant.to_string(),
            backend: self.id.to_string(),
            state: self.state().name().to_owned(),
            protocol_version: lists.as_ref().map(|lists| lists.server.version.as_str().to_owned()),
            server_name: lists.as_ref().map(|lists| lists.server.server_name.clone()),
            server_version: lists.as_ref().map(|lists| lists.server.server_version.clone()),
            tools: lists.as_ref().map_or(0, |lists| lists.tools.len()),
            prompts: lists.as_ref().map_or(0, |lists| lists.prompts.len()),
            resources: lists.as_ref().map_or(0, |lists| lists.resources.len()),
            resource_templates: lists.as_ref().map_or(0, |lists| lists.resource_templates.len()),
            links: self.links.open_connections(),
            last_error: status.last_error_shown(),
            unchecked_tools: self.policy.unused_schemas(),
            latency_ms: (latency > 0).then_some(latency as f64 / 1000.0),
            breaker: Some(self.breaker_status()),
            calls_in_flight,
            calls_queued,
            calls_max,
            failed_attempts: status.failed_attempts,
            next_attempt_in_ms: status.next_attempt.and_then(|next| {
                let remaining = next.saturating_duration_since(Instant::now());
                u64::try_from(remaining.as_millis()).ok().filter(|ms| *ms > 0)
            }),
            sandbox: status.sandbox.as_ref().map(|level| level.name.to_owned()),
            sandbox_missing: status
                .sandbox
                .as_ref()
                .map(|level| level.missing.clone())
                .unwrap_or_default(),
            sandbox_unreachable: status
                .sandbox
                .as_ref()
                .map(|level| level.unreachable.clone())
                .unwrap_or_default(),
        }
    }

    /// Returns whether this is the HTTP backend at `url`.
    pub fn has_url(&self, url: &str) -> bool {
        matches!(&self.spec.transport, TransportSpec::Http { url: own } if own == url)
    }

    pub fn transport(&self) -> &'static str {
        self.spec.transport.kind()
    }
}
