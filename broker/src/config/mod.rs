//! Configuration, checked. What the rest of the broker reads; it can only be built valid, by [`load`].
//!
//! `keys` is the table of every key; `raw` reads the YAML file and the environment, [`validation`] turns that into these
//! types and reports every fault at once, [`spec`] holds the bodies shared with the admin API (tenants and backends) and
//! `spec_parser` checks them, after `body_schema` read their shape; [`example`] prints the table for people.

mod backend_tls;
mod body_schema;
mod commands;
pub mod compat;
mod config_key;
mod config_reader;
pub mod example;
mod field_error;
pub mod issuers;
mod key_table;
mod limits;
pub mod log_filter;
mod message_sizes;
mod observability;
mod policy;
mod range;
mod raw_config;
mod replica;
mod resilience;
pub mod sandbox;
pub mod spec;
mod spec_limits;
mod spec_parser;
pub mod stdio;
mod trusted_proxies;
pub mod units;
pub mod validation;

use std::{
    collections::BTreeMap,
    io::Read as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use body_schema::BodySchema;
pub use compat::{CompatConfig, Eras};
use protocol::ids::{BackendId, TenantId};
use spec::{BackendSpec, TenantSpec};
use transport::egress::EgressPolicy;

pub use field_error::{FieldError, FieldErrors};
pub use issuers::{IssuerConfig, TenantMapping};
#[cfg(test)]
pub(crate) use key_table::documented;
pub use limits::{Limits, OverloadConfig, RedisOutagePolicy};
pub use message_sizes::{MessageSizes, MessageWire};
pub use observability::{AuditConfig, AuditLevel, RATIO_WHOLE, TraceConfig};
pub use resilience::{BreakerConfig, RetryConfig};
pub use stdio::{StdioConfig, StdioLimits};
pub use trusted_proxies::{ForwardedHeader, TrustedProxyConfig};

/// Reads the file, if there is one, and the environment of this process.
pub fn load(file: Option<&Path>) -> Result<Config, FieldErrors> {
    let text = file.map(read_file).transpose().map_err(|fault| FieldErrors(vec![fault]))?;
    // A variable that is not Unicode cannot be one of ours: their names and values are.
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    });
    let mut config = load_from(text.as_deref().unwrap_or_default(), environment)?;
    config.private_files.extend(file.map(Path::to_owned));
    Ok(config)
}

/// The same from what is given: YAML text and environment variables.
pub fn load_from(
    text: &str,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, FieldErrors> {
    let mut faults = Vec::new();
    let raw = raw_config::RawConfig::read(&key_table::TABLE, text, environment, &mut faults);
    validation::check(&raw, faults)
}

/// The sections that differ and are followed by a restart only; a reload follows `tenants`, `backends` and `telemetry.log`.
pub fn needs_restart(running: &Config, next: &Config) -> Vec<&'static str> {
    // A name drawn by lot differs at every reading; the secret does not.
    let telemetry =
        TelemetryConfig { log: running.telemetry.log.clone(), ..next.telemetry.clone() };
    let differs = [
        ("listen", running.listen != next.listen),
        ("tls", running.tls != next.tls),
        (
            "node",
            (&running.node.secret, &running.node.advertise)
                != (&next.node.secret, &next.node.advertise),
        ),
        ("storage", running.storage != next.storage),
        ("auth", running.auth != next.auth),
        ("limits", running.limits != next.limits),
        ("overload", running.overload != next.overload),
        ("timeouts", running.timeouts != next.timeouts),
        ("breaker", running.breaker != next.breaker),
        ("retries", running.retries != next.retries),
        ("session", running.session != next.session),
        ("tasks", running.tasks != next.tasks),
        ("events", running.events != next.events),
        ("compat", running.compat != next.compat),
        ("telemetry", running.telemetry != telemetry),
        ("audit", running.audit != next.audit),
        ("egress", running.egress != next.egress),
        ("stdio", running.stdio != next.stdio),
        ("shutdown", running.shutdown != next.shutdown),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(section, _)| section).collect()
}

impl Default for Config {
    /// What an empty file means.
    fn default() -> Self {
        load_from("", []).expect("the defaults are valid, which a test checks")
    }
}

fn read_file(path: &Path) -> Result<String, FieldError> {
    let unreadable = |error: std::io::Error| {
        FieldError::new(
            path.display().to_string(),
            format!("can not be read: {error}"),
            "a readable YAML file",
        )
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let read =
        file.take(raw_config::FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if read as u64 > raw_config::FILE_BYTES_MAX {
        return Err(FieldError::new(
            path.display().to_string(),
            "is larger than a configuration can be",
            units::format_size(raw_config::FILE_BYTES_MAX as usize),
        ));
    }
    Ok(text)
}

/// The whole configuration of one broker process.
#[derive(Debug, Clone)]
pub struct Config {
    pub listen: ListenConfig,
    pub tls: TlsConfig,
    pub node: NodeConfig,
    pub storage: StorageConfig,
    pub auth: AuthConfig,
    pub limits: Limits,
    pub overload: OverloadConfig,
    pub timeouts: Timeouts,
    pub breaker: BreakerConfig,
    pub retries: RetryConfig,
    pub session: SessionConfig,
    pub tasks: TaskConfig,
    pub events: EventConfig,
    pub compat: CompatConfig,
    pub telemetry: TelemetryConfig,
    pub audit: AuditConfig,
    pub shutdown: ShutdownConfig,
    pub egress: Arc<EgressPolicy>,
    pub stdio: StdioConfig,
    pub tenants: Vec<(TenantId, TenantSpec)>,
    pub backends: Vec<DeclaredBackend>,
    /// The file of the configuration, and those that it reads secrets from.
    pub private_files: Vec<PathBuf>,
}

/// A backend entry of the configuration file.
#[derive(Debug, Clone)]
pub struct DeclaredBackend {
    pub tenant: TenantId,
    pub backend: BackendId,
    pub spec: BackendSpec,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenConfig {
    /// Data plane: Streamable HTTP.
    pub http: SocketAddr,
    pub admin: SocketAddr,
    /// Data plane: a message per line, a session per connection.
    pub tcp: Option<SocketAddr>,
    /// Data plane over QUIC.
    pub quic: Option<SocketAddr>,
    /// Other replicas, about sessions that live here.
    pub internal: Option<SocketAddr>,
    /// Another process may listen at the same addresses, and takes over when this one drains.
    pub reuse_port: bool,
    pub proxies: TrustedProxyConfig,
}

impl ListenConfig {
    /// The listeners of clients, by their keys.
    pub fn data(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> + use<> {
        let tcp = self.tcp.map(|address| ("listen.tcp", address));
        [("listen.http", self.http)]
            .into_iter()
            .chain(tcp)
            .chain(self.quic.map(|address| ("listen.quic", address)))
    }
}

/// TLS on the listeners of clients and operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// Absent: no listener speaks TLS.
    pub certificate: Option<Certificate>,
    pub client_auth: ClientAuth,
    /// Connections without TLS are closed.
    pub require_https: bool,
    /// Where the certificates are that stored backends may present.
    pub client_cert_folders: Vec<PathBuf>,
}

/// What the listeners present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    Files {
        cert: PathBuf,
        key: PathBuf,
    },
    /// Made at start, for development.
    SelfSigned,
}

/// Whether clients present a certificate, which authorities are believed, and what those have revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAuth {
    None,
    Optional { ca: PathBuf, crl: Option<PathBuf> },
    Required { ca: PathBuf, crl: Option<PathBuf> },
}

#[derive(Debug, Clone)]
pub struct NodeConfig {
    pub id: String,
    /// Where other replicas reach `listen.internal`, where that is not the address it is bound to.
    pub advertise: Option<String>,
    /// Root of every derived key; generated beside an SQLite database when absent.
    pub secret: Option<Secret>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageConfig {
    pub database: DatabaseConfig,
    /// May hold a password.
    pub redis_url: Option<Secret>,
    pub migrate_on_start: bool,
}

/// The record of everything that outlives the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseConfig {
    /// A file that one process uses.
    Sqlite(PathBuf),
    /// The URL of a server that replicas share; it may hold a password.
    Postgres(Secret),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthConfig {
    pub required: bool,
    pub admin_token: Option<Secret>,
    pub allow_anonymous_public: bool,
    /// Origins beside loopback ones that a browser page may have.
    pub allowed_origins: Vec<String>,
    /// Host names beside loopback ones that a loopback listener answers to.
    pub allowed_hosts: Vec<String>,
    /// The broker's public URL, which tokens are for. There is one where there are issuers.
    pub resource: Option<String>,
    /// Authorization servers whose tokens are taken.
    pub issuers: Vec<IssuerConfig>,
}

/// Defaults for every tenant; a tenant record may lower or raise its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    pub call: Duration,
    /// End of every call.
    pub call_max: Duration,
    /// By method; before `call` and `control`.
    pub methods: BTreeMap<String, Duration>,
    pub control: Duration,
    pub initialize: Duration,
    /// A whole HTTP request head, and a whole request body.
    pub request_read: Duration,
    pub connect: Duration,
    /// From the first byte of a client's connection to its `initialize`, where the connection is the session.
    pub handshake: Duration,
    /// How often the client of a WebSocket is asked whether it is there.
    pub websocket_ping: Duration,
    /// How long nothing at all may be heard of it.
    pub websocket_idle: Duration,
    /// The same of a QUIC connection, of a client or a backend.
    pub quic_idle: Duration,
    /// How long a client may take to answer sampling, elicitation or roots.
    pub client_request: Duration,
    /// How often a backend is asked whether it still answers.
    pub ping_interval: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionConfig {
    /// How long a replica that is not heard of keeps what it owns.
    pub lease: Duration,
    pub idle: Duration,
    /// How long a session waits for its client whose WebSocket broke off.
    pub resume: Duration,
}

/// Calls that are carried out as tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskConfig {
    pub enabled: bool,
    /// When the client names none.
    pub ttl: Duration,
    pub ttl_max: Duration,
    pub poll_interval: Duration,
    /// Long calls become tasks of clients that take such an answer.
    pub promote: bool,
    pub promote_after: Duration,
    pub running_per_tenant: usize,
    pub stored_per_tenant: usize,
    pub bytes_per_tenant: usize,
    pub result_bytes: usize,
}

impl TaskConfig {
    /// How long a call may take before it becomes a task, if it ever does by itself.
    pub fn promotes_after(&self) -> Option<Duration> {
        self.promote.then_some(self.promote_after)
    }
}

/// Event streams (SSE) and the log they are resumed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventConfig {
    pub log: EventLogStorage,
    /// Zero when [`EventLogStorage::Off`].
    pub retain: Duration,
    pub stream_events: usize,
    pub stream_bytes: usize,
    pub keepalive: Duration,
    /// `retry` told to clients before a deliberate disconnect.
    pub retry: Duration,
}

/// Where events are kept to be asked for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventLogStorage {
    /// Where every replica finds them.
    Store,
    /// With the process that sent them.
    Memory,
    Off,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryConfig {
    pub log: String,
    pub log_format: LogFormat,
    pub tenant_labels: bool,
    pub traces: TraceConfig,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownConfig {
    pub grace: Duration,
    /// How long connections are still taken after readiness went off.
    pub readiness_delay: Duration,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_tells_what_only_a_restart_follows() {
        let (running, same) = (Config::default(), Config::default());
        assert_eq!(needs_restart(&running, &same), [""; 0]);
        let text = "limits: {burst: 7}\negress: {allow: [10.0.0.0/8]}\ntelemetry: {log: debug}\ntenants: {a: {}}\ntasks: {ttl: 2h}";
        assert_eq!(
            needs_restart(&running, &load_from(text, []).unwrap()),
            ["limits", "tasks", "egress"]
        );
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::new("hush")), "Secret(…)");
    }
}
