//! Checked configuration of the broker. Only [`ConfigSource`] and [`load_from`] create it, so it
//! is always valid.
//!
//! - `key_table` lists every key.
//! - `raw_config` reads the YAML file and the environment.
//! - [`validation`] converts the result into these types and reports every fault at once.
//! - [`spec`] holds the bodies that the admin API shares: tenants and backends.
//! - `spec_parser` checks those bodies after `body_schema` has read their shape.
//! - [`example`] prints the table for people.

mod backend_auth;
mod backend_auth_check;
mod backend_tls;
mod body_schema;
mod catalog_documents;
mod client_key;
mod commands;
pub mod compat;
mod config_key;
mod config_reader;
mod declared_catalog;
pub mod example;
mod field_error;
pub mod included;
mod introspection;
mod issuer_changes;
mod issuer_front;
mod issuer_operators;
mod issuer_reader;
pub mod issuers;
mod key_table;
mod limits;
pub mod log_filter;
mod login_client;
mod message_sizes;
mod observability;
mod operator_scope;
mod operators;
mod pins;
mod policy;
pub mod private_url;
mod range;
mod raw_config;
mod reload_scope;
mod replica;
mod resilience;
pub mod roots;
pub mod sandbox;
mod secret_files;
pub mod serde_units;
mod settings;
mod source;
pub mod spec;
mod spec_limits;
mod spec_parser;
pub mod stdio;
mod transport_check;
mod transport_spec;
mod trusted_proxies;
pub mod units;
pub mod validation;
mod yaml;

use std::{
    collections::BTreeMap,
    io::Read as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use backend_auth::MASK;
pub use backend_auth_check::is_resource;
pub use body_schema::BodySchema;
pub use compat::{CompatConfig, Eras};
use protocol::ids::{BackendId, TenantId};
use rules::{
    access::PolicyDocument, catalog::HostedPromptDocument, limits::QUIET_LOGGED_EVERY_MIN,
    toolsets::ToolsetDocument,
};
use spec::{BackendSpec, TenantSpec};
use transport::egress::EgressPolicy;

pub use client_key::ClientKey;
pub use field_error::{FieldError, FieldErrors};
pub use included::IncludedFile;
pub use introspection::{IntrospectionConfig, IntrospectionCredential};
pub use issuer_front::{AdaptedFront, ClientRegistration, ResourceParameter};
pub use issuer_operators::OperatorMapping;
pub use issuers::{IssuerConfig, IssuerEntry, TenantMapping, parse_stored_issuer};
pub use key_table::documented_keys;
pub use limits::{Limits, OverloadConfig, RedisOutagePolicy};
pub use login_client::LoginClient;
pub use message_sizes::{MessageSizes, MessageWire};
pub use observability::{AuditConfig, AuditLevel, RATIO_WHOLE, TraceConfig};
pub use operator_scope::parse_operator_scope;
pub use operators::{DECLARED_OPERATORS_MAX, DeclaredOperator, TokenHash};
pub use reload_scope::{is_reloaded, sections_needing_restart};
pub use resilience::{BreakerConfig, RetryConfig};
pub use secret_files::{PREVIOUS_ROOT_FILE, ROOT_FILE};
pub use settings::{ConfigSettings, Exposure, Setting, SettingOrigin};
pub use source::ConfigSource;
pub use stdio::StdioConfig;
pub use transport_spec::StdioLimits;
pub use trusted_proxies::{ForwardedHeader, TrustedProxyConfig};

/// Loads the configuration from YAML text and environment variables.
pub fn load_from(
    text: &str,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, FieldErrors> {
    ConfigSource::of(text, environment).load([])
}

impl Default for Config {
    /// Returns the configuration of an empty file.
    fn default() -> Self {
        load_from("", []).expect("the defaults are valid, which a test checks")
    }
}

fn read_file(path: &Path) -> Result<String, FieldError> {
    let unreadable = |error: std::io::Error| {
        FieldError::new(
            path.display().to_string(),
            format!("cannot be read: {error}"),
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
    pub include: IncludeConfig,
    pub tenants: Vec<(TenantId, TenantSpec)>,
    /// Access policies of declared tenants.
    pub policies: Vec<(TenantId, PolicyDocument)>,
    /// Toolsets and hosted prompts of declared tenants.
    pub toolsets: Vec<(TenantId, String, ToolsetDocument)>,
    pub prompts: Vec<(TenantId, String, HostedPromptDocument)>,
    pub backends: Vec<DeclaredBackend>,
    /// Files that hold secrets or may hold them: the configuration file, and the secret files that
    /// it names.
    pub private_files: Vec<PathBuf>,
    /// The settings as they were read, for operators.
    pub settings: Arc<ConfigSettings>,
}

/// The folder of further files with tenants and backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncludeConfig {
    pub folder: Option<PathBuf>,
    /// How often the broker looks for changes.
    pub interval: Duration,
}

/// A backend entry of the configuration file, or the one of the command `demo`.
#[derive(Debug, Clone)]
pub struct DeclaredBackend {
    pub tenant: TenantId,
    pub backend: BackendId,
    pub spec: BackendSpec,
    /// True for the backend of the command `demo`.
    pub is_bundled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenConfig {
    /// Data plane: Streamable HTTP.
    pub http: SocketAddr,
    pub admin: SocketAddr,
    /// Data plane over TCP: one message per line, one session per connection.
    pub tcp: Option<SocketAddr>,
    /// Data plane over QUIC.
    pub quic: Option<SocketAddr>,
    /// Listener for other replicas, about sessions that this replica owns.
    pub internal: Option<SocketAddr>,
    /// True if another process may listen on the same addresses, to take over when this one drains.
    pub reuse_port: bool,
    pub proxies: TrustedProxyConfig,
}

impl ListenConfig {
    /// Returns the client listeners by their keys.
    pub fn data(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> + use<> {
        let tcp = self.tcp.map(|address| ("listen.tcp", address));
        [("listen.http", self.http)]
            .into_iter()
            .chain(tcp)
            .chain(self.quic.map(|address| ("listen.quic", address)))
    }
}

/// TLS on the listeners for clients and operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// `None`: no listener uses TLS.
    pub certificate: Option<Certificate>,
    pub client_auth: ClientAuth,
    /// True if connections without TLS are closed.
    pub require_https: bool,
    /// Folders with the certificates that stored backends may present.
    pub client_cert_folders: Vec<PathBuf>,
}

/// Certificate of the listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    Files {
        cert: PathBuf,
        key: PathBuf,
    },
    /// Generated at start, for development.
    SelfSigned,
}

/// Rules for client certificates: whether they are required, trusted authorities, and revocations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientAuth {
    None,
    Optional { ca: PathBuf, crl: Option<PathBuf> },
    Required { ca: PathBuf, crl: Option<PathBuf> },
}

#[derive(Debug, Clone)]
pub struct NodeConfig {
    pub id: String,
    /// Address of `listen.internal` for other replicas. `None`: the bound address.
    pub advertise: Option<String>,
    /// Root of every derived key. When absent, it is generated next to an SQLite database.
    pub secret: Option<Secret>,
    /// The root secret that `secret` replaces.
    pub secret_previous: Option<Secret>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageConfig {
    pub database: DatabaseConfig,
    /// File that holds the URL of the database. `None`: the configuration has the URL itself.
    pub url_file: Option<PathBuf>,
    /// May hold a password.
    pub redis_url: Option<Secret>,
    /// File that holds the URL of Redis.
    pub redis_url_file: Option<PathBuf>,
    pub migrate_on_start: bool,
}

/// Database of all state that outlives the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatabaseConfig {
    /// File that only one process uses.
    Sqlite(PathBuf),
    /// URL of a server that replicas share. It may hold a password.
    Postgres(Secret),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthConfig {
    pub required: bool,
    pub admin_token: Option<Secret>,
    /// Operators of the configuration file.
    pub operators: Vec<DeclaredOperator>,
    pub allow_anonymous_public: bool,
    /// Browser origins that are permitted in addition to loopback ones.
    pub allowed_origins: Vec<String>,
    /// Host names that a loopback listener accepts in addition to loopback ones.
    pub allowed_hosts: Vec<String>,
    /// Public URL of the broker, which is the audience of tokens. Always set when there are
    /// issuers.
    pub resource: Option<String>,
    /// Authorization servers whose tokens are accepted.
    pub issuers: Vec<Arc<IssuerConfig>>,
}

impl AuthConfig {
    /// Returns the settings after a reload: those of `next`, except those that only a restart
    /// applies.
    pub fn reloaded(&self, next: &Self) -> Self {
        Self {
            required: self.required,
            admin_token: self.admin_token.clone(),
            allow_anonymous_public: self.allow_anonymous_public,
            ..next.clone()
        }
    }
}

/// Default timeouts of all tenants. A tenant's record may lower or raise its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    pub call: Duration,
    /// Maximum total time of a call.
    pub call_max: Duration,
    /// Timeouts by method. They have precedence over `call` and `control`.
    pub methods: BTreeMap<String, Duration>,
    pub control: Duration,
    pub initialize: Duration,
    /// Time for an entire HTTP request head, and for an entire request body.
    pub request_read: Duration,
    /// Time without any request after which an HTTP connection of a client is closed.
    pub http_idle: Duration,
    pub connect: Duration,
    /// Time from the first byte of a client's connection to its `initialize`, where the connection
    /// is the session.
    pub handshake: Duration,
    /// Interval of pings to the client of a WebSocket.
    pub websocket_ping: Duration,
    /// Time without any data after which a WebSocket is closed.
    pub websocket_idle: Duration,
    /// Time without any data after which a QUIC connection is closed, of a client or a backend.
    pub quic_idle: Duration,
    /// Time for a client to answer sampling, elicitation or roots requests.
    pub client_request: Duration,
    /// Interval of pings to a backend.
    pub ping_interval: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionConfig {
    /// Time for which a replica keeps its sessions and tasks without renewing its lease.
    pub lease: Duration,
    pub idle: Duration,
    /// Time for which a session waits for its client after its WebSocket closed unexpectedly.
    pub resume: Duration,
}

/// Calls that run as tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskConfig {
    pub enabled: bool,
    /// Time to live for a task without one from the client.
    pub ttl: Duration,
    pub ttl_max: Duration,
    pub poll_interval: Duration,
    /// True if long calls become tasks, for clients that accept such an answer.
    pub promote: bool,
    pub promote_after: Duration,
    pub running_per_tenant: usize,
    pub stored_per_tenant: usize,
    pub bytes_per_tenant: usize,
    pub result_bytes: usize,
}

impl TaskConfig {
    /// Returns the time after which a call becomes a task, if promotion is on.
    pub fn promotion_delay(&self) -> Option<Duration> {
        self.promote.then_some(self.promote_after)
    }
}

/// Event streams (SSE), and the log for their resumption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventConfig {
    pub log: EventLogStorage,
    /// Zero with [`EventLogStorage::Off`].
    pub retain: Duration,
    pub stream_events: usize,
    pub stream_bytes: usize,
    pub tenant_bytes: usize,
    pub keepalive: Duration,
    /// `retry` that clients get before a deliberate disconnect.
    pub retry: Duration,
}

impl EventConfig {
    /// Returns how long the log keeps a stream without additions. A stream that exists renews its
    /// entry within a third of this time.
    pub fn log_retention(&self) -> Duration {
        self.retain.max(3 * QUIET_LOGGED_EVERY_MIN)
    }
}

/// Storage of events for resumption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventLogStorage {
    /// The database, which every replica reads.
    Store,
    /// The memory of the process that sent the events.
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
    /// Time for which listeners still accept connections after readiness turned off.
    pub readiness_delay: Duration,
}

/// A value that `Debug` output never shows.
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
    fn a_reload_reports_the_sections_that_need_a_restart() {
        let (running, same) = (Config::default(), Config::default());
        assert_eq!(sections_needing_restart(&running, &same), [""; 0]);
        let text = "limits: {burst: 7}\negress: {allow: [10.0.0.0/8]}\ntelemetry: {log: debug}\ntenants: {a: {}}\ntasks: {ttl: 2h}\nauth: {allowed_origins: ['https://a.example']}";
        assert_eq!(
            sections_needing_restart(&running, &load_from(text, []).unwrap()),
            ["limits", "tasks", "egress"]
        );
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::new("hush")), "Secret(…)");
    }
}
