//! What every actor of one process may use: configuration, metrics, the HTTP client, the tasks, the clock's origin.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lc_rs::hmac;
use protocol::{
    error::{ErrorKind, Refusal},
    ids::PrincipalId,
};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::http_client::HttpClient;

use super::{
    call::{Call, DeadlineList},
    stateless::StatelessState,
    stream::UnreadBudget,
    tasks::TaskManager,
};
use crate::{
    admission::{
        concurrency_limit::{ConcurrencyLimiter, TenantShare},
        overload::{self, OverloadManager},
        rate_limiter::RateLimiter,
    },
    backends::{
        children::Children, link::TlsClients, schema_cache::SchemaCache,
        validation_pool::ValidationPool,
    },
    config::{self, Config},
    limits::LONG_FIRST_MESSAGES_MAX,
    metrics::Metrics,
    persistence::Persistence,
    rules::event_log::LogLimits,
    sandbox::Confinement,
    telemetry::{request, traces::Tracer},
};

#[derive(Debug)]
pub struct Shared {
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
    pub http: HttpClient,
    /// Whom links trust, and what they present.
    pub tls_clients: TlsClients,
    /// What outlives the process.
    pub durable: Arc<Persistence>,
    pub tasks: TaskManager,
    /// Room for calls that are with backends, shared by tenants by their weight.
    pub call_limiter: Arc<ConcurrencyLimiter<TenantShare, PrincipalId>>,
    /// What is held for clients whose requests stand alone.
    pub modern: StatelessState,
    pub traces: Tracer,
    /// Signs list cursors.
    pub cursor_key: hmac::Key,
    /// Every task that must be over before the process may end.
    pub running: TaskTracker,
    /// Asked for a drain: no new sessions, no new calls.
    pub draining: CancellationToken,
    /// Child processes, counted.
    pub children: Children,
    /// How they are confined.
    pub confinement: Arc<Confinement>,
    /// For the long messages of clients that nobody knows yet.
    pub unauthenticated_messages: Arc<Semaphore>,
    /// Requests per second.
    pub rates: Arc<RateLimiter>,
    pub overload: Arc<OverloadManager>,
    /// What waits for clients.
    pub unread_budget: Arc<UnreadBudget>,
    /// Holds arguments to schemas.
    pub validation_pool: ValidationPool,
    /// Compiled schemas of tools.
    pub schema_cache: SchemaCache,
    /// Calls in flight, to be told when their time is up.
    pub deadlines: Arc<DeadlineList<Call>>,
    started: Instant,
}

impl Shared {
    pub fn new(
        config: Arc<Config>,
        metrics: Arc<Metrics>,
        http: HttpClient,
        cursor_key: hmac::Key,
        durable: Arc<Persistence>,
        traces: Tracer,
    ) -> Arc<Self> {
        let (started, redis) = (Instant::now(), config.storage.redis_url.is_some());
        let room = ConcurrencyLimiter::new(
            config.limits.calls_in_flight,
            config.limits.calls_queued,
            metrics.queue_depth("calls"),
        );
        Arc::new(Self {
            rates: Arc::new(RateLimiter::new(
                redis,
                config.limits.without_redis,
                started,
                metrics.clone(),
            )),
            overload: OverloadManager::new(&config.overload, metrics.clone()),
            unread_budget: UnreadBudget::new(
                overload::outbox_bytes_total(&config),
                metrics.clone(),
            ),
            call_limiter: room,
            confinement: Confinement::new(&config),
            config,
            durable,
            tls_clients: TlsClients::default(),
            tasks: TaskManager::default(),
            modern: StatelessState::default(),
            traces,
            metrics,
            http,
            cursor_key,
            running: TaskTracker::new(),
            draining: CancellationToken::new(),
            children: Children::default(),
            unauthenticated_messages: Arc::new(Semaphore::new(LONG_FIRST_MESSAGES_MAX)),
            validation_pool: ValidationPool::default(),
            schema_cache: SchemaCache::default(),
            deadlines: Arc::default(),
            started,
        })
    }

    /// Time since the process started: a clock that fits an atomic.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The same at another moment.
    pub fn uptime_at(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.started)
    }

    pub fn uptime_ms(&self) -> u64 {
        u64::try_from(self.uptime().as_millis()).unwrap_or(u64::MAX)
    }

    /// Notes a refusal on its way to a client: it is counted, and in the log under the id returned. A failure of the broker's
    /// own needs somebody's attention, any other is between the client and its backend.
    pub fn note_refusal(
        &self,
        refusal: &Refusal,
        session: Option<&str>,
        tenant: Option<&str>,
    ) -> String {
        self.metrics.error(refusal.kind.code());
        request::with_current(|request| request.refuse(refusal.kind));
        // Within a request its line of the log has the id anyway.
        let own = request::current_name().is_none().then(crate::request_id);
        let (kind, shown) = (refusal.kind.name(), own.as_deref().map(tracing::field::display));
        match refusal.kind {
            ErrorKind::Internal => {
                tracing::error!(session, tenant, request_id = shown, kind, %refusal, "the broker failed")
            }
            _ => tracing::debug!(session, tenant, request_id = shown, kind, %refusal, "refused"),
        }
        own.unwrap_or_else(crate::request_id)
    }

    /// What the operator says about tasks.
    pub fn task_settings(&self) -> &config::TaskConfig {
        &self.config.tasks
    }

    /// Bounds of each event stream.
    pub fn stream_limits(&self) -> LogLimits {
        LogLimits {
            events: self.config.events.stream_events,
            bytes: self.config.events.stream_bytes,
        }
    }
}
