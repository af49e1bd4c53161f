//! One registered backend: its links, its lists, its state as operators see it.

mod health;
mod link_events;
mod link_set;
pub(in crate::backends) mod links;
mod rates;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use config::{
    MessageWire,
    spec::{BackendSpec, CatalogAuth, TransportSpec},
};
use parking_lot::Mutex;
use protocol::{
    error::Refusal,
    ids::{BackendId, PrincipalId, TenantId},
};
use rules::{
    catalog::{BackendLists, CatalogMark, OfferTable},
    limits::{TOOLS_METERED_MAX, own_lists::LINK_LISTS_READ_MAX},
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::{
    health::{BackendHealth, BackendState},
    link_set::LinkSet,
};
use super::{
    admission_state::BackendAdmission,
    early_ping::EarlyPing,
    link::{Era, EraCache, Link, failure::Failure},
    link_lists::OwnListBudget,
    list_refresh::ListRefresh,
    param_headers::ParamHeaders,
    pins::PinKeeper,
    placeholder::Placeholder,
    policy::Policy,
    principal_lists::PrincipalLists,
    resources::BackendResources,
    roots::BackendRoots,
    tools_read::ToolsRead,
};
use crate::{
    admission::nested_rates::NestedRates, context::Context, oauth::TokenSource,
    telemetry::redaction::Redactor, views::BackendStatus,
};

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
    /// Permits for reads of the own lists of its links.
    pub(super) own_list_reads: Semaphore,
    pub stop: CancellationToken,
    /// The eras of MCP that the backend supports, as far as known.
    pub era: EraCache,
    /// Arguments that its tools want repeated in headers.
    pub(super) param_headers: ParamHeaders,
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
    pub(super) early_ping: EarlyPing,
    pub health: BackendHealth,
    pub links: LinkSet<Link>,
    /// Its rate, and the rates of its tools by the backend's own names.
    rates: NestedRates<String>,
    /// Admission of calls: breaker, concurrency limit and budget of retries.
    pub(super) admission: BackendAdmission,
}

/// What the probes of a backend found, and when the last one began.
#[derive(Debug, Default)]
pub(super) struct ListProbe {
    pub(super) table: Option<Arc<OfferTable>>,
    pub(super) began: Option<Instant>,
}

impl Backend {
    pub fn new(
        tenant: TenantId,
        id: BackendId,
        spec: BackendSpec,
        context: Arc<Context>,
        resources: Arc<BackendResources>,
    ) -> Arc<Self> {
        let rates = NestedRates::new(
            format!("backend/{tenant}/{id}"),
            TOOLS_METERED_MAX,
            format!("tools/{tenant}/{id}"),
        );
        let sources = TokenSource::of(&tenant, &id, &spec, context.oauth.clone());
        let admission = BackendAdmission::new(&tenant, &id, &spec, &context);
        let principal_lists =
            PrincipalLists::new(spec.auth.catalog_auth == CatalogAuth::PerPrincipal);
        let own_list_budget = resources.own_list_budgets.of(&tenant, &context.own_lists_bytes);
        Arc::new(Self {
            rates,
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
            own_list_reads: Semaphore::new(LINK_LISTS_READ_MAX),
            stop: CancellationToken::new(),
            era: EraCache::default(),
            param_headers: ParamHeaders::default(),
            list_refresh: ListRefresh::default(),
            last_tools_read: tokio::sync::Mutex::default(),
            early_ping: EarlyPing::default(),
            health: BackendHealth::default(),
            links: LinkSet::default(),
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
        let leaving = self.stop.is_cancelled() || self.context.shutdown.is_draining();
        // The log already has a line about an outage. Further attempts are not logged.
        let is_usual = failure.needs_user_action();
        if leaving || is_usual || self.health.state() != BackendState::Ready {
            tracing::debug!(tenant = %self.tenant, backend = %self.id, failure = redacted, "a request to a backend failed");
        } else {
            tracing::warn!(tenant = %self.tenant, backend = %self.id, failure = redacted, "a request to a backend failed");
        }
        // An account that one user did not connect is not a fault of a backend that works.
        let of_user = failure.needs_user_action() && self.health.state() == BackendState::Ready;
        if !leaving && !of_user {
            self.health.record_error(redacted);
        }
        self.early_ping.record_failure(failure, self.health.state() == BackendState::Ready);
        failure.refusal(&self.id)
    }

    pub fn record_latency(&self, time: Duration) {
        self.admission.series.request_finished(time);
        self.health.record_latency(time);
    }

    /// Marks the backend as unreachable. Logs only the first failure of an outage.
    pub fn set_unreachable(&self, state: BackendState, refusal: &Refusal) {
        if let Some(cause) = self.health.record_outage(refusal) {
            tracing::warn!(tenant = %self.tenant, backend = %self.id, state = state.name(), cause, "backend cannot be reached");
        }
        self.era.set_settled(true);
        self.health.set_state(state);
    }

    /// Reconnects now. A failed backend, and one whose lists no user has shown, returns to
    /// [`BackendState::Connecting`].
    pub fn reconnect(&self) {
        self.era.forget();
        if self.placeholder.is_shown() {
            self.health.set_state(BackendState::Connecting);
        } else {
            self.health.retry_failed();
        }
        self.refresh();
    }

    /// Returns the lists as a principal sees them.
    pub fn lists_of(&self, principal: &PrincipalId) -> Option<Arc<BackendLists>> {
        match self.principal_lists.of(principal) {
            Some(view) => Some(view.lists.clone()),
            None => self.lists.load_full(),
        }
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
        tokio::select! {
            () = self.health.first_attempt_over() => {}
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(within) => {}
        }
    }

    pub fn view(&self) -> BackendStatus {
        let (lists, health) = (self.lists.load_full(), self.health.details());
        let (calls_in_flight, calls_queued, calls_max) = self.call_counts();
        BackendStatus {
            tenant: self.tenant.to_string(),
            backend: self.id.to_string(),
            state: self.health.state().name().to_owned(),
            protocol_version: lists.as_ref().map(|lists| lists.server.version.as_str().to_owned()),
            server_name: lists.as_ref().map(|lists| lists.server.server_name.clone()),
            server_version: lists.as_ref().map(|lists| lists.server.server_version.clone()),
            tools: lists.as_ref().map_or(0, |lists| lists.tools.len()),
            prompts: lists.as_ref().map_or(0, |lists| lists.prompts.len()),
            resources: lists.as_ref().map_or(0, |lists| lists.resources.len()),
            resource_templates: lists.as_ref().map_or(0, |lists| lists.resource_templates.len()),
            links: self.links.open_connections(),
            last_error: health.last_error_shown(),
            unchecked_tools: self.policy.unused_schemas(),
            latency_ms: self.health.latency_ms(),
            breaker: Some(self.breaker_status()),
            calls_in_flight,
            calls_queued,
            calls_max,
            failed_attempts: health.failed_attempts,
            next_attempt_in_ms: health.next_attempt.and_then(|next| {
                let remaining = next.saturating_duration_since(Instant::now());
                u64::try_from(remaining.as_millis()).ok().filter(|ms| *ms > 0)
            }),
            sandbox: health.sandbox.as_ref().map(|level| level.name.to_owned()),
            sandbox_missing: health
                .sandbox
                .as_ref()
                .map(|level| level.missing.clone())
                .unwrap_or_default(),
            sandbox_unreachable: health
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
