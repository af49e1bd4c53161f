//! Table of configuration keys: name, kind, range, default and purpose. It includes the tables of
//! the files that read their own sections. The reader ([`super::raw_config`],
//! [`super::validation`]), `config-example` and `docs/configuration.md` ([`super::example`]) all
//! use it.
//!
//! Invariant: keys that are planned but not supported yet are in
//! [`super::config_key::KeyTable::unavailable`]. The reader reports them and never ignores them.

use std::time::Duration;

use super::{
    compat::COMPAT,
    config_key::{
        CALL_MAX, COUNT, ConfigKey, DAY, DEADLINE, HOUR, KIB, KeyDefault, KeyKind, KeySection,
        KeyTable, MIB, MS, SECOND, key, optional_key,
    },
    included,
    limits::{LIMITS, OVERLOAD},
    observability,
    replica::{NODE, TASKS},
    resilience, stdio, trusted_proxies,
};

pub(super) static TABLE: KeyTable = KeyTable {
    sections: SECTIONS,
    unavailable: &["errors"],
    aliases: &[
        ("node.secret", "node.secret_file"),
        ("node.secret_previous", "node.secret_previous_file"),
        ("storage.url", "storage.url_file"),
        ("storage.redis_url", "storage.redis_url_file"),
        ("auth.admin_token", "auth.admin_token_file"),
        ("session.idle", "timeouts.idle_session"),
    ],
};

/// Sections that hold single values. `tenants` and `backends` are maps of bodies, see
/// [`super::spec_parser`].
const SECTIONS: &[KeySection] = &[
    KeySection {
        name: "listen",
        doc: "Addresses that the broker listens on. Port 0 selects a free port; the `ready` line shows it.",
        keys: LISTEN,
    },
    KeySection {
        name: "tls",
        doc: "TLS 1.2 and 1.3 on `listen.http`, `listen.admin` and `listen.tcp`; TLS 1.3 on `listen.quic`. With a certificate, the first three accept connections with and without TLS by default. The broker applies changed files within `include.interval`, and at SIGHUP; open connections continue.",
        keys: TLS,
    },
    KeySection { name: "node", doc: "Identity of this process.", keys: NODE },
    KeySection {
        name: "storage",
        doc: "Durable state: tenants, keys, backends, sessions, tasks and event streams.",
        keys: STORAGE,
    },
    KeySection { name: "auth", doc: "Authentication of clients and operators.", keys: AUTH },
    KeySection {
        name: "limits",
        doc: "Limits, and the defaults for tenants without limits of their own.",
        keys: LIMITS,
    },
    KeySection {
        name: "overload",
        doc: "When the broker refuses new requests (`overloaded`), so that accepted ones can finish. Health endpoints and the admin API always answer.",
        keys: OVERLOAD,
    },
    KeySection { name: "timeouts", doc: "Deadlines.", keys: TIMEOUTS },
    KeySection {
        name: "breaker",
        doc: "Circuit breaker of each backend. These are failures: a connection that fails or ends, a late answer, an answer that is not MCP, and an HTTP status of 500 or above. An error that the backend returns is not a failure. While the breaker is open, the broker refuses calls (`backend_unavailable`), until a probe succeeds. The body of a backend can set each of these keys.",
        keys: resilience::BREAKER,
    },
    KeySection {
        name: "retries",
        doc: "Calls that the broker sends again after a failure. It repeats a call of which it sent nothing. It also repeats a call that is safe to repeat: the tool has `readOnlyHint` or `idempotentHint`, or the method only reads. It does not repeat a call after 429, or after 503 with `Retry-After`.",
        keys: resilience::RETRIES,
    },
    KeySection { name: "session", doc: "Sessions of clients.", keys: SESSION },
    KeySection {
        name: "tasks",
        doc: "Calls that run as tasks: at the request of a client (2025-11-25), or by decision of the broker for clients that declare the extension of tasks (2026-07-28).",
        keys: TASKS,
    },
    KeySection {
        name: "events",
        doc: "Event streams (SSE), and the log that clients resume them from.",
        keys: EVENTS,
    },
    KeySection { name: "compat", doc: "Revisions and extensions of MCP.", keys: COMPAT },
    KeySection {
        name: "telemetry",
        doc: "Logs, metrics and traces.",
        keys: observability::TELEMETRY,
    },
    KeySection {
        name: "audit",
        doc: "The audit log in the database: actions of operators and, if configured, requests of clients.",
        keys: observability::AUDIT,
    },
    KeySection {
        name: "egress",
        doc: "Addresses of backends that the broker reaches over the network. Public addresses are allowed; private, link-local and metadata ranges are refused. Loopback is allowed only while the listeners of clients are loopback addresses and `auth.required` is false.",
        keys: EGRESS,
    },
    KeySection {
        name: "stdio",
        doc: "Backends that are child processes. `transport.limits` of a backend overrides these keys.",
        keys: stdio::KEYS,
    },
    KeySection {
        name: "include",
        doc: "A folder of further files, each with `tenants` and `backends` as in this file. The broker follows changes of the folder without a signal.",
        keys: included::KEYS,
    },
    KeySection {
        name: "shutdown",
        doc: "Stopping on SIGTERM, SIGINT or `mcp-broker drain`.",
        keys: SHUTDOWN,
    },
];

const LISTEN: &[ConfigKey] = &[
    key(
        "http",
        KeyKind::Address,
        "127.0.0.1:8080",
        "Data plane: Streamable HTTP at `/mcp` and `/mcp/{backend}`.",
    ),
    key("admin", KeyKind::Address, "127.0.0.1:9090", "Admin API, health, readiness and metrics."),
    optional_key(
        "tcp",
        KeyKind::Address,
        "127.0.0.1:8081",
        "Data plane over TCP: one message per line, one session per connection. Absent: no listener.",
    ),
    optional_key(
        "quic",
        KeyKind::Address,
        "127.0.0.1:8082",
        "Data plane over QUIC, which needs a certificate (`tls`): one session per connection. A client can open a stream for each request. Absent: no listener.",
    ),
    optional_key(
        "internal",
        KeyKind::Address,
        "10.0.0.5:7400",
        "Address for other replicas, which forward requests of sessions that this replica owns. The broker accepts only replicas with the same `node.secret`. Absent: no listener.",
    ),
    key(
        "reuse_port",
        KeyKind::Bool,
        "false",
        "Shares `http`, `admin` and `tcp` with another process of the same user that also sets this key (SO_REUSEPORT), such as the next version. A draining process then accepts no new connections. No connection is lost.",
    ),
    trusted_proxies::TRUSTED,
    trusted_proxies::ADMIN_TRUSTED,
    trusted_proxies::FORWARDED_HEADER,
    trusted_proxies::PROTOCOL_HTTP,
    trusted_proxies::PROTOCOL_ADMIN,
    trusted_proxies::PROTOCOL_TCP,
];

const TLS: &[ConfigKey] = &[
    optional_key(
        "cert_file",
        KeyKind::Path,
        "/etc/mcp-broker/tls.crt",
        "PEM file with the certificate of the listeners and the chain to its authority.",
    ),
    optional_key(
        "key_file",
        KeyKind::Path,
        "/etc/mcp-broker/tls.key",
        "PEM file with the private key of the certificate.",
    ),
    key(
        "self_signed",
        KeyKind::Bool,
        "false",
        "Creates a certificate for `localhost` and the addresses of the listeners at each start. For development: clients cannot verify it.",
    ),
    optional_key(
        "client_ca_file",
        KeyKind::Path,
        "/etc/mcp-broker/clients.pem",
        "PEM file with the authorities of client certificates.",
    ),
    optional_key(
        "client_crl_file",
        KeyKind::Path,
        "/etc/mcp-broker/revoked.pem",
        "PEM file with one revocation list of each of those authorities. The broker then refuses certificates of an authority without a list. A list stays valid when the next one is late.",
    ),
    key(
        "client_auth",
        KeyKind::Choice(&["none", "optional", "required"]),
        "none",
        "Whether the listeners of clients request a certificate. A certificate names tenant and principal. `required` closes connections without one.",
    ),
    key(
        "require_https",
        KeyKind::Bool,
        "false",
        "Closes connections without TLS, of clients and of operators.",
    ),
    key(
        "client_cert_folders",
        KeyKind::Folders,
        "[]",
        "Folders with certificates and keys for backends of the admin API (`tls.client_cert` and `tls.client_key` of a backend). A backend of this file can use any path.",
    ),
];

const STORAGE: &[ConfigKey] = &[
    key(
        "url",
        KeyKind::StorageUrl,
        "sqlite:./data/mcp-broker.db",
        "URL of the database. SQLite serves one process; a relative path starts at the working directory, and the broker creates missing folders. PostgreSQL serves several replicas, which share `node.secret`; `?sslmode=verify-full&sslrootcert=FILE` in its URL verifies the server.",
    ),
    optional_key(
        "url_file",
        KeyKind::SecretFile { bytes_min: 1 },
        "/etc/mcp-broker/database-url",
        "File to read `storage.url` from. New connections use the login that the file has by then, without a restart.",
    ),
    optional_key(
        "redis_url",
        KeyKind::RedisUrl,
        "redis://127.0.0.1:6379",
        "Redis, in addition to PostgreSQL. It holds event streams, notifies replicas of changes at once and shares request rates between them. Data that must not be lost is never in Redis alone. The URL can hold a password (`redis://:PASSWORD@HOST`). `rediss` in place of `redis` uses TLS with the authorities of the system (`SSL_CERT_FILE`). `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB` names sentinels and the service that they watch; the login before the hosts is for its servers, and `?sentinel_username=USER&sentinel_password=PASSWORD` is for the sentinels. `redis+cluster://HOST:PORT,HOST:PORT` names some nodes of a Redis Cluster.",
    ),
    optional_key(
        "redis_url_file",
        KeyKind::SecretFile { bytes_min: 1 },
        "/etc/mcp-broker/redis-url",
        "File to read `storage.redis_url` from. If Redis refuses the login, the broker uses the login that the file has by then, without a restart.",
    ),
    key(
        "migrate_on_start",
        KeyKind::Bool,
        "true",
        "Updates the schema at start. When false, `mcp-broker migrate` must run before the start.",
    ),
];

const AUTH: &[ConfigKey] = &[
    key(
        "required",
        KeyKind::Bool,
        "false",
        "Requires an API key, a token or a certificate from each client. When false, clients without one belong to tenant `default`.",
    ),
    optional_key(
        "admin_token",
        KeyKind::Secret { bytes_min: 16 },
        "\"a-long-random-text\"",
        "Bearer token of the admin API. Absent: on a loopback address, the admin API is open to every local user. On any other address, the broker starts only with `auth.allow_anonymous_public`, and accepts only tokens of operators.",
    ),
    optional_key(
        "admin_token_file",
        KeyKind::SecretFile { bytes_min: 16 },
        "/etc/mcp-broker/admin-token",
        "File to read `auth.admin_token` from.",
    ),
    key(
        "operators",
        KeyKind::Operators,
        "[]",
        "Operators of the admin API in addition to those that the admin API stores. `name` is the name in the audit log. `role` is `viewer`, `operator`, `tenant_admin`, `auditor`, `admin`, `backend_owner` or `scraper`. `tenants` limits the operator to these tenants; absent: all tenants. `backends` are those of a `backend_owner`, as `TENANT/BACKEND`. `token_file` is a file with the token, of at least 16 bytes, and `token` is the token itself. SIGHUP applies a new value.",
    ),
    key(
        "allow_anonymous_public",
        KeyKind::Bool,
        "false",
        "Allows listeners of clients that are not loopback while `auth.required` is false. Every client that can connect to such a port can use it. Also allows a `listen.admin` that is not loopback without `auth.admin_token`. That listener accepts only tokens of operators.",
    ),
    key(
        "allowed_origins",
        KeyKind::Origins,
        "[]",
        "Origins of browser pages that can call the listeners of clients, in addition to loopback origins. The admin listener accepts none of them. SIGHUP applies a new value.",
    ),
    key(
        "allowed_hosts",
        KeyKind::Hosts,
        "[]",
        "Host names that a loopback listener accepts, in addition to loopback names. SIGHUP applies a new value.",
    ),
    optional_key(
        "resource",
        KeyKind::HttpUrl,
        "https://mcp.example.com",
        "Public URL of the broker, without a path. Tokens of `auth.issuers` are for this URL, and clients request tokens for it. Required with `auth.issuers`. SIGHUP applies a new value.",
    ),
    key(
        "issuers",
        KeyKind::Issuers,
        "[]",
        "Authorization servers whose access tokens the broker accepts in addition to API keys. `issuer` must equal the claim `iss` exactly. `jwks_url` is the address of its keys; absent: the address in its metadata. `keys_max_age` is how long the broker uses keys that it cannot fetch again (`24h`, from `10s` to `720h`). `audiences` are the accepted audiences; absent: `auth.resource` and every endpoint below it. `algorithms` are the accepted signature algorithms; absent: all except those with a shared secret. `require_typ: at+jwt` refuses tokens that are not marked as access tokens. `tenant` names the tenant, or `tenant_claim` names the claim that holds it. `tenants` lists the tenants that the claim can name; absent: every tenant. `principal_claim` is the claim that names the principal (`sub`). `scopes` are the scopes that each token needs. `claims.groups` is the claim with the groups that access rules look at; dots lead into objects, such as `realm_access.roles`. `exchange: true` lets the broker exchange the tokens at this issuer for tokens of backends (`auth.type: token_exchange`). `exchange: {issuers: [...]}` names other authorization servers, which then receive the tokens. The broker stores these tokens, sealed. `sign_in` lets people sign in at the connect page: `client_id` of the broker there, `client_secret` or `client_secret_file`, and `callback`, the last part of a redirect URI for this issuer alone. `introspection` accepts opaque tokens, which the broker sends to the issuer for a check (RFC 7662): `endpoint`, `client_id`, `auth` (`basic`, `post` or `private_key_jwt`), `client_secret`, `client_secret_file` or `client_key_file` with `client_key_id`, and `ttl` (`60s`, from `1s` to `1h`), the time for which an answer is used. One issuer can have it. `check: introspect` asks about JWTs too; `signature` is the default. `preset` and `front` are for providers that do not support MCP. `admin` makes principals of the issuer operators of the admin API. SIGHUP applies a new value.",
    ),
];

const TIMEOUTS: &[ConfigKey] = &[
    key(
        "call",
        DEADLINE,
        "30s",
        "Wait for a backend's answer to tools/call, resources/read, prompts/get and other calls. Progress and questions to the client renew it, up to `timeouts.call_max`.",
    ),
    key(
        "call_max",
        CALL_MAX,
        "1h",
        "Longest duration of a call, including all renewals of its deadline.",
    ),
    key(
        "methods",
        KeyKind::Deadlines,
        "{}",
        "Deadlines by method, which override `call` and `control`. Deadlines of a tenant override these, and deadlines of a backend override both. A backend can also set deadlines by tool.",
    ),
    key(
        "control",
        DEADLINE,
        "5s",
        "Wait for a backend's answer to lists, ping and other small requests.",
    ),
    key("initialize", DEADLINE, "30s", "Duration of the whole handshake with a backend."),
    key(
        "request_read",
        DEADLINE,
        "30s",
        "Wait for a whole HTTP request head, for a whole body, and for a whole message over TCP and WebSocket.",
    ),
    key(
        "http_idle",
        KeyKind::Duration { min: Duration::from_millis(100), max: DAY },
        "2m",
        "The broker closes an HTTP connection of a client that has no request for this long. Set it longer than a proxy or balancer keeps unused connections to the broker.",
    ),
    key("connect", DEADLINE, "5s", "Wait for a connection to a backend, including TLS."),
    key(
        "handshake",
        DEADLINE,
        "10s",
        "Longest TLS handshake of a client. On TCP, WebSocket, QUIC and HTTP+SSE also: longest wait from then to the answer to `initialize`.",
    ),
    key(
        "websocket_ping",
        KeyKind::Duration { min: Duration::from_millis(100), max: HOUR },
        "30s",
        "Interval between two pings to a WebSocket client, at most half of `timeouts.websocket_idle`.",
    ),
    key(
        "websocket_idle",
        KeyKind::Duration { min: Duration::from_millis(100), max: HOUR },
        "5m",
        "The broker disconnects a WebSocket client that sends nothing for this long, not even a pong.",
    ),
    key(
        "quic_idle",
        KeyKind::Duration { min: SECOND, max: HOUR },
        "5m",
        "A QUIC connection of a client or a backend ends when the peer sends nothing for this long, not even a keep-alive.",
    ),
    key(
        "client_request",
        DEADLINE,
        "5m",
        "Wait for a client's answer to sampling, elicitation or roots.",
    ),
    key(
        "ping_interval",
        KeyKind::Duration { min: Duration::from_millis(100), max: HOUR },
        "30s",
        "Interval between two pings to a backend. The broker reconnects to a backend that leaves a ping unanswered for `timeouts.control`.",
    ),
    optional_key(
        "idle_session",
        IDLE,
        "30m",
        "Another name for `session.idle`. Set only one of the two.",
    ),
];

const IDLE: KeyKind =
    KeyKind::Duration { min: Duration::from_millis(100), max: DAY.saturating_mul(30) };

const SESSION: &[ConfigKey] = &[
    key(
        "lease",
        KeyKind::Duration { min: Duration::from_millis(200), max: Duration::from_secs(60) },
        "2s",
        "Time after which other replicas take over the sessions and tasks of a replica that does not renew its lease. No effect on SQLite.",
    ),
    key(
        "resume",
        KeyKind::Duration { min: Duration::ZERO, max: HOUR },
        "2m",
        "How long a session waits for its client after its WebSocket connection broke.",
    ),
    key(
        "idle",
        IDLE,
        "30m",
        "A session ends after this time without requests, calls in flight and open streams.",
    ),
];

const EVENTS: &[ConfigKey] = &[
    key(
        "log",
        KeyKind::Choice(&["store", "memory", "off"]),
        "store",
        "Where the broker keeps events for Last-Event-ID. `store`: in Redis or the database; every replica can resume a stream, also after a restart. `memory`: in the process that sent them. `off`: nowhere.",
    ),
    key(
        "retain",
        KeyKind::Duration { min: Duration::ZERO, max: DAY },
        "5m",
        "How long the broker keeps an event for Last-Event-ID.",
    ),
    key("stream_events", COUNT, "1000", "Events kept per stream."),
    key(
        "stream_bytes",
        KeyKind::Size { min: KIB, max: 1024 * MIB },
        "8MiB",
        "Bytes kept per stream. The broker keeps the newest event even if it alone is larger.",
    ),
    key(
        "tenant_bytes",
        KeyKind::Size { min: MIB, max: 1024 * 1024 * MIB },
        "1GiB",
        "Bytes of events that a replica logs for one tenant within the time that the log keeps them (`events.retain`, at least 30 seconds).",
    ),
    key(
        "keepalive",
        KeyKind::Duration { min: Duration::from_millis(10), max: HOUR },
        "15s",
        "The broker sends a comment on a stream that is silent for this time.",
    ),
    key(
        "retry",
        KeyKind::Duration { min: MS, max: HOUR },
        "1s",
        "Wait before a client reconnects to a stream that the broker ended; the broker sends it as `retry`.",
    ),
];

const EGRESS: &[ConfigKey] = &[
    key("allow", KeyKind::Networks, "[]", "Networks that are allowed in addition to public ones."),
    key(
        "deny",
        KeyKind::Networks,
        "[]",
        "Networks that are refused, even if `egress.allow` contains them.",
    ),
];

const SHUTDOWN: &[ConfigKey] = &[
    key(
        "grace",
        KeyKind::Duration { min: Duration::ZERO, max: HOUR },
        "25s",
        "How long calls in flight can take to finish. A second signal ends the process at once.",
    ),
    key(
        "readiness_delay",
        KeyKind::Duration { min: Duration::ZERO, max: HOUR },
        "0s",
        "Least time that the broker still accepts connections after readiness turns false. Behind a load balancer, set it longer than the balancer needs to detect the change. It runs at the same time as `shutdown.grace`.",
    ),
];

/// Returns path, default, permitted values and meaning of every key of some sections, for
/// docs/limits.md.
pub fn documented_keys(sections: &[&str]) -> Vec<[String; 4]> {
    let row = |section: &KeySection, key: &ConfigKey| {
        let default = match key.default {
            KeyDefault::Value(value) => format!("`{value}`"),
            KeyDefault::None { .. } => "none".to_owned(),
        };
        [format!("{}.{}", section.name, key.name), default, key.kind.allowed(), key.doc.to_owned()]
    };
    let wanted = SECTIONS.iter().filter(|section| sections.contains(&section.name));
    wanted.flat_map(|section| section.keys.iter().map(move |key| row(section, key))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_table_is_consistent() {
        let mut paths = std::collections::BTreeSet::new();
        for section in SECTIONS {
            assert!(section.doc.ends_with('.') && !section.keys.is_empty(), "{}", section.name);
            for key in section.keys {
                let path = format!("{}.{}", section.name, key.name);
                assert!(key.doc.ends_with('.'), "{path}: a sentence ends with a full stop");
                assert!(!TABLE.unavailable(&path), "{path} is both served and refused");
                assert!(paths.insert(path));
            }
        }
        for (one, other) in TABLE.aliases {
            assert!(TABLE.find(one).is_some() && TABLE.find(other).is_some(), "{one}, {other}");
        }
    }

    #[test]
    fn whole_sections_are_unavailable_with_all_their_keys() {
        assert!(TABLE.unavailable("errors") && TABLE.unavailable("errors.anything"));
        assert!(!TABLE.unavailable("listen.http") && !TABLE.unavailable("errorsome"));
    }
}
