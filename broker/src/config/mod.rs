//! Configuration, checked. What the rest of the broker reads; it can only be built valid, by [`load`].
//!
//! [`raw`] is the shape of the YAML file, [`checked`] turns it into these types and reports every fault at once,
//! [`spec`] holds the bodies shared with the admin API (tenants and backends).

pub mod spec;
pub mod units;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use protocol::ids::{BackendId, TenantId};
use spec::{BackendSpec, TenantSpec};
use transport::egress::EgressPolicy;

/// The whole configuration of one broker process.
#[derive(Debug, Clone)]
pub struct Config {
    pub listen: Listen,
    pub node: Node,
    pub storage: Storage,
    pub auth: Auth,
    pub limits: Limits,
    pub timeouts: Timeouts,
    pub session: Session,
    pub events: Events,
    pub telemetry: Telemetry,
    pub shutdown: Shutdown,
    pub egress: Arc<EgressPolicy>,
    pub tenants: Vec<(TenantId, TenantSpec)>,
    pub backends: Vec<DeclaredBackend>,
}

/// A backend entry of the configuration file.
#[derive(Debug, Clone)]
pub struct DeclaredBackend {
    pub tenant: TenantId,
    pub backend: BackendId,
    pub spec: BackendSpec,
}

#[derive(Debug, Clone)]
pub struct Listen {
    /// Data plane: Streamable HTTP.
    pub http: SocketAddr,
    pub admin: SocketAddr,
}

#[derive(Debug, Clone)]
pub struct Node {
    pub id: String,
    /// Root of every derived key; generated beside the database when absent.
    pub secret: Option<Secret>,
}

#[derive(Debug, Clone)]
pub struct Storage {
    pub sqlite_path: PathBuf,
    pub migrate_on_start: bool,
}

#[derive(Debug, Clone)]
pub struct Auth {
    pub required: bool,
    pub admin_token: Option<Secret>,
    pub allow_anonymous_public: bool,
    /// Origins beside loopback ones that a browser page may have.
    pub allowed_origins: Vec<String>,
    /// Host names beside loopback ones that a loopback listener answers to.
    pub allowed_hosts: Vec<String>,
}

/// Defaults for every tenant; a tenant record may lower or raise its own.
#[derive(Debug, Clone)]
pub struct Limits {
    pub message_bytes: usize,
    pub connections: usize,
    pub connections_per_address: usize,
    pub sessions_per_tenant: usize,
    pub sessions_per_principal: usize,
    pub calls_in_flight_per_session: usize,
    pub calls_in_flight_per_tenant: usize,
    /// 0: no limit.
    pub requests_per_second: u32,
    pub burst: u32,
}

#[derive(Debug, Clone)]
pub struct Timeouts {
    pub call: Duration,
    pub control: Duration,
    pub initialize: Duration,
    /// A whole HTTP request head, and a whole request body.
    pub request_read: Duration,
    pub connect: Duration,
    /// How long a client may take to answer sampling, elicitation or roots.
    pub client_request: Duration,
}

#[derive(Debug, Clone)]
pub struct Session {
    pub idle: Duration,
}

/// Event streams (SSE) and the log they are resumed from.
#[derive(Debug, Clone)]
pub struct Events {
    pub retain: Duration,
    pub stream_events: usize,
    pub stream_bytes: usize,
    pub keepalive: Duration,
    /// `retry` told to clients before a deliberate disconnect.
    pub retry: Duration,
}

#[derive(Debug, Clone)]
pub struct Telemetry {
    pub log: String,
    pub log_format: LogFormat,
    pub tenant_labels: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone)]
pub struct Shutdown {
    pub grace: Duration,
}

/// A value that never shows in `Debug` output.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret(…)")
    }
}
