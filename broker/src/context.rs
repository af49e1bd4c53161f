//! Resources of the whole process: configuration, metrics, stores, limits, the clock's origin.
//!
//! The context is below backends and sessions, which share more ([`BackendResources`], [`Shared`]).
//!
//! [`BackendResources`]: crate::backends::resources::BackendResources
//! [`Shared`]: crate::sessions::shared::Shared

use std::{
    sync::Arc,
    sync::atomic::AtomicUsize,
    time::{Duration, Instant},
};

use aws_lc_rs::hmac;
use config::Config;
use protocol::error::{ErrorKind, Refusal};
use rules::{byte_window::ByteWindow, catalog::MarkKey, event_log::LogLimits};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::http_client::HttpClient;

use crate::{
    admission::limiters::Limiters,
    metrics::Metrics,
    oauth::{ClientKeys, OauthResources, PublicAddress, SubjectTokens},
    persistence::Persistence,
    sandbox::Confinement,
    telemetry::{activity::ActivityLog, free_refusals::FreeRefusals, request, traces::Tracer},
};

#[derive(Debug)]
pub struct Context {
    pub config: Arc<Config>,
    pub metrics: Arc<Metrics>,
    pub http: HttpClient,
    /// State that outlives the process.
    pub persistence: Arc<Persistence>,
    pub limiters: Limiters,
    pub traces: Tracer,
    /// Recent refusals and errors, for operators.
    pub activity: ActivityLog,
    /// Rates of the records of refusals that cost their sender nothing.
    pub free_refusals: FreeRefusals,
    /// Signs list cursors.
    pub cursor_key: hmac::Key,
    /// Derives the marks of catalogs and backends.
    pub catalog_marks: MarkKey,
    /// Every task that must be over before the process may end.
    pub running: TaskTracker,
    pub shutdown: ShutdownStages,
    /// Requests that other replicas run for clients of this one.
    pub forwarded: TaskTracker,
    /// Confinement of child processes.
    pub confinement: Arc<Confinement>,
    /// Bytes of the lists that backends show to single links.
    pub own_lists_bytes: Arc<AtomicUsize>,
    /// What the sources of tokens for backends share.
    pub oauth: OauthResources,
    started: Instant,
}

/// The stages of the end of the process, each reached once.
#[derive(Debug, Default)]
pub struct ShutdownStages {
    /// Cancelled when a drain starts: no new sessions, no new calls.
    pub draining: CancellationToken,
    /// Cancelled when the listeners close: streams without a request end.
    pub closing: CancellationToken,
    /// Cancelled at the end of a drain's grace period: requests that other replicas still run are
    /// answered without their outcome.
    pub grace_over: CancellationToken,
}

impl ShutdownStages {
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}

impl Context {
    pub fn new(
        config: Arc<Config>,
        metrics: Arc<Metrics>,
        http: HttpClient,
        cursor_key: hmac::Key,
        catalog_marks: MarkKey,
        persistence: Arc<Persistence>,
        traces: Tracer,
    ) -> Arc<Self> {
        let started = Instant::now();
        Arc::new(Self {
            limiters: Limiters::new(&config, &metrics, started),
            confinement: Confinement::new(&config),
            oauth: OauthResources {
                http: http.clone(),
                persistence: persistence.clone(),
                metrics: metrics.clone(),
                address: Arc::new(PublicAddress::of(config.auth.resource.as_deref())),
                client_keys: Arc::new(ClientKeys::new(persistence.clone())),
                subjects: Arc::new(SubjectTokens::new(persistence.clone())),
                renewals: TaskTracker::new(),
            },
            config,
            persistence,
            traces,
            metrics,
            http,
            cursor_key,
            catalog_marks,
            running: TaskTracker::new(),
            shutdown: ShutdownStages::default(),
            forwarded: TaskTracker::new(),
            activity: ActivityLog::default(),
            free_refusals: FreeRefusals::default(),
            own_lists_bytes: Arc::default(),
            started,
        })
    }

    /// Returns the time since the process started, which fits an atomic.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns the time from the start of the process to `at`.
    pub fn uptime_at(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.started)
    }

    pub fn uptime_ms(&self) -> u64 {
        u64::try_from(self.uptime().as_millis()).unwrap_or(u64::MAX)
    }

    /// Notes a refusal to a client: counts it and logs it under the returned id. An internal
    /// failure is logged as an error. Any other refusal concerns the client and its backend.
    pub fn record_refusal(
        &self,
        refusal: &Refusal,
        session: Option<&str>,
        tenant: Option<&str>,
    ) -> String {
        self.metrics.error(refusal.kind.code());
        request::with_current(|request| request.refuse(refusal.kind));
        // The log lines of a request have its id already.
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

    /// Returns the operator's settings for tasks.
    pub fn task_settings(&self) -> &config::TaskConfig {
        &self.config.tasks
    }

    /// Returns the limits of each event stream.
    pub fn stream_limits(&self) -> LogLimits {
        LogLimits {
            events: self.config.events.stream_events,
            bytes: self.config.events.stream_bytes,
        }
    }

    /// Returns an empty window of the bytes that the event log takes from a tenant.
    pub fn logged_events_window(&self) -> ByteWindow {
        let events = &self.config.events;
        ByteWindow::new(events.tenant_bytes, events.log_retention(), Instant::now())
    }
}
