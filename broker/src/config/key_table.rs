//! The table of configuration keys: name, kind, range, default and what it is for, with the tables of the files that read
//! their own sections. The reader ([`super::raw_config`], [`super::validation`]), `config-example` and `docs/configuration.md`
//! ([`super::example`]) all follow it.
//!
//! Invariant: a key that a future build will know and this one does not is listed in [`super::config_key::KeyTable::unavailable`], so that it is
//! answered and never ignored.

use std::time::Duration;

use super::{
    compat::COMPAT,
    config_key::{
        CALL_MAX, COUNT, ConfigKey, DAY, DEADLINE, HOUR, KIB, KeyKind, KeySection, KeyTable, MIB,
        MS, SECOND, key, optional_key,
    },
    limits::{LIMITS, OVERLOAD},
    observability,
    replica::TASKS,
    resilience, stdio, trusted_proxies,
};

pub(super) static TABLE: KeyTable = KeyTable {
    sections: SECTIONS,
    unavailable: &["errors"],
    twins: &[
        ("node.secret", "node.secret_file"),
        ("storage.url", "storage.url_file"),
        ("storage.redis_url", "storage.redis_url_file"),
        ("auth.admin_token", "auth.admin_token_file"),
        ("session.idle", "timeouts.idle_session"),
    ],
};

/// The sections that hold single values. `tenants` and `backends` are maps of bodies, see [`super::spec_parser`].
const SECTIONS: &[KeySection] = &[
    KeySection {
        name: "listen",
        doc: "Where the broker listens. Port 0 takes a free one; the `ready` line tells which.",
        keys: LISTEN,
    },
    KeySection {
        name: "tls",
        doc: "TLS 1.2 and 1.3 on `listen.http`, `listen.admin` and `listen.tcp`, TLS 1.3 on `listen.quic`. With a certificate the first three take connections with and without TLS, unless told otherwise. SIGHUP reads the files anew; connections there are go on.",
        keys: TLS,
    },
    KeySection { name: "node", doc: "This process.", keys: NODE },
    KeySection {
        name: "storage",
        doc: "Where everything that outlives the process is kept: tenants, keys, backends, sessions, tasks and event streams.",
        keys: STORAGE,
    },
    KeySection { name: "auth", doc: "Who may come in.", keys: AUTH },
    KeySection {
        name: "limits",
        doc: "Limits, and defaults for tenants that set none of their own.",
        keys: LIMITS,
    },
    KeySection {
        name: "overload",
        doc: "When new requests are refused (`overloaded`), so that those there are go on. Health and the admin API always answer.",
        keys: OVERLOAD,
    },
    KeySection { name: "timeouts", doc: "Deadlines.", keys: TIMEOUTS },
    KeySection {
        name: "breaker",
        doc: "When a backend that fails is left alone. Failures are connections that do not come about or end, answers that do not come in time or are not MCP, and HTTP statuses of 500 and above; not errors that the backend answers with. Calls are refused then (`backend_unavailable`), until a probe finds the backend well. A backend's own body may set each of these.",
        keys: resilience::BREAKER,
    },
    KeySection {
        name: "retries",
        doc: "Calls that failed and are sent again: those the backend did not look at, and those that do no harm twice (the tool says `readOnlyHint` or `idempotentHint`, or the method only reads).",
        keys: resilience::RETRIES,
    },
    KeySection { name: "session", doc: "Sessions of clients.", keys: SESSION },
    KeySection {
        name: "tasks",
        doc: "Calls that are carried out as tasks: because clients ask for it (2025-11-25), or as the broker finds it better for clients that declare the extension of tasks (2026-07-28).",
        keys: TASKS,
    },
    KeySection {
        name: "events",
        doc: "Event streams (SSE), and the log they are resumed from.",
        keys: EVENTS,
    },
    KeySection { name: "compat", doc: "Revisions of MCP that clients may speak.", keys: COMPAT },
    KeySection {
        name: "telemetry",
        doc: "Logs, metrics and traces.",
        keys: observability::TELEMETRY,
    },
    KeySection {
        name: "audit",
        doc: "The audit log: who did what, in the database.",
        keys: observability::AUDIT,
    },
    KeySection {
        name: "egress",
        doc: "Where backends that are reached over the network may live. Public addresses are allowed; private, link-local and metadata ranges are refused. Loopback is allowed only while the listeners of clients are loopback addresses and `auth.required` is false.",
        keys: EGRESS,
    },
    KeySection {
        name: "stdio",
        doc: "Backends that are child processes. What a backend says in `transport.limits` goes before what stands here.",
        keys: stdio::KEYS,
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
        "Data plane over plain TCP: a message per line, a session per connection. Absent: none.",
    ),
    optional_key(
        "quic",
        KeyKind::Address,
        "127.0.0.1:8082",
        "Data plane over QUIC, which needs a certificate (`tls`): a session per connection, a stream per request where a client likes. Absent: none.",
    ),
    optional_key(
        "internal",
        KeyKind::Address,
        "10.0.0.5:7400",
        "Other replicas, which pass on requests of sessions that live here. Only those with the same `node.secret` get in. Absent: none.",
    ),
    key(
        "reuse_port",
        KeyKind::Bool,
        "false",
        "Share `http`, `admin` and `tcp` with another process of the same user that does so too, such as the next version of this one (SO_REUSEPORT). One that drains takes no new connections then, and loses none.",
    ),
    trusted_proxies::TRUSTED,
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
        "Certificate of the listeners and what leads to its authority, PEM.",
    ),
    optional_key("key_file", KeyKind::Path, "/etc/mcp-broker/tls.key", "Its private key, PEM."),
    key(
        "self_signed",
        KeyKind::Bool,
        "false",
        "Make a certificate for `localhost` and the addresses of the listeners at each start. For development: nobody can verify it.",
    ),
    optional_key(
        "client_ca_file",
        KeyKind::Path,
        "/etc/mcp-broker/clients.pem",
        "Authorities of clients' certificates, PEM.",
    ),
    optional_key(
        "client_crl_file",
        KeyKind::Path,
        "/etc/mcp-broker/revoked.pem",
        "Revocation lists of those authorities, PEM, one of each: with this file certificates of an authority without a list are refused, and a list stays good when its next one is late. Read anew with the certificates.",
    ),
    key(
        "client_auth",
        KeyKind::Choice(&["none", "optional", "required"]),
        "none",
        "Whether clients show a certificate, on the listeners of clients. It names tenant and principal. `required` closes connections without one.",
    ),
    key(
        "require_https",
        KeyKind::Bool,
        "false",
        "Close connections without TLS, of clients and of operators.",
    ),
    key(
        "client_cert_folders",
        KeyKind::Folders,
        "[]",
        "Folders with certificates and keys that backends made through the admin API may present (`tls.client_cert` and `tls.client_key` of a backend). Those of this file may name any.",
    ),
];

const NODE: &[ConfigKey] = &[
    optional_key(
        "id",
        KeyKind::NodeId,
        "broker-1",
        "Name of this process in logs. Absent: the host name and four random characters.",
    ),
    optional_key(
        "advertise",
        KeyKind::HostPort,
        "broker-1.internal:7400",
        "Where other replicas reach `listen.internal`. Absent: the address it is bound to, which must then be one and not all of the machine's.",
    ),
    optional_key(
        "secret",
        KeyKind::Secret { bytes_min: 16 },
        "\"at-least-16-characters\"",
        "Root of the keys that seal credentials and hash API keys, and by which replicas know each other: all that share a database have the same. Absent: created once, in `secret.key` beside an SQLite database. Changing it invalidates every API key and stored credential.",
    ),
    optional_key(
        "secret_file",
        KeyKind::SecretFile { bytes_min: 16 },
        "/etc/mcp-broker/secret",
        "File to read `node.secret` from.",
    ),
];

const STORAGE: &[ConfigKey] = &[
    key(
        "url",
        KeyKind::StorageUrl,
        "sqlite:./data/mcp-broker.db",
        "Database. SQLite serves one process; a relative path starts at the working directory, and missing folders are created. PostgreSQL serves several replicas, which share `node.secret`; `?sslmode=verify-full&sslrootcert=FILE` in its URL verifies the server.",
    ),
    optional_key(
        "url_file",
        KeyKind::SecretFile { bytes_min: 1 },
        "/etc/mcp-broker/database-url",
        "File to read `storage.url` from.",
    ),
    optional_key(
        "redis_url",
        KeyKind::RedisUrl,
        "redis://127.0.0.1:6379",
        "Redis, beside PostgreSQL: keeps event streams, tells replicas of changes at once, and has request rates hold over all of them. It is never the only place of anything that must not be lost. A password stands in the URL (`redis://:PASSWORD@HOST`); `rediss://` is TLS, verified by the authorities of the system (`SSL_CERT_FILE`).",
    ),
    optional_key(
        "redis_url_file",
        KeyKind::SecretFile { bytes_min: 1 },
        "/etc/mcp-broker/redis-url",
        "File to read `storage.redis_url` from.",
    ),
    key(
        "migrate_on_start",
        KeyKind::Bool,
        "true",
        "Bring the schema up to date at start. When false, `mcp-broker migrate` must have been run.",
    ),
];

const AUTH: &[ConfigKey] = &[
    key(
        "required",
        KeyKind::Bool,
        "false",
        "Clients must show an API key, a token or a certificate. When false, clients without one are tenant `default`.",
    ),
    optional_key(
        "admin_token",
        KeyKind::Secret { bytes_min: 16 },
        "\"a-long-random-text\"",
        "Bearer token of the admin API. Absent: the admin API is open, which is accepted on loopback only.",
    ),
    optional_key(
        "admin_token_file",
        KeyKind::SecretFile { bytes_min: 16 },
        "/etc/mcp-broker/admin-token",
        "File to read `auth.admin_token` from.",
    ),
    key(
        "allow_anonymous_public",
        KeyKind::Bool,
        "false",
        "Start although a listener of clients is not loopback and `auth.required` is false, or `listen.admin` is not loopback and has no token. Everybody who reaches the port then has full use of it.",
    ),
    key(
        "allowed_origins",
        KeyKind::Origins,
        "[]",
        "Origins of browser pages that may call the listeners of clients, beside loopback ones. The admin listener takes none of them.",
    ),
    key(
        "allowed_hosts",
        KeyKind::Hosts,
        "[]",
        "Host names a loopback listener answers to, beside loopback ones.",
    ),
    optional_key(
        "resource",
        KeyKind::HttpUrl,
        "https://mcp.example.com",
        "The broker's public URL, without a path: what tokens of `auth.issuers` are for, and what clients are told to ask for. Needed with issuers.",
    ),
    key(
        "issuers",
        KeyKind::Issuers,
        "[]",
        "Authorization servers whose access tokens (JWT) are taken beside API keys. `issuer` is what stands in `iss`, to the letter. `jwks_url` is where its keys are; absent: where its metadata says. `keys_max_age` is how long they are believed while they cannot be fetched again (`24h`, from `10s` to `720h`). `audiences` are whom tokens may be for; absent: `auth.resource` and every endpoint below it. `algorithms` are what tokens may be signed with; absent: all but those with a shared secret. `require_typ: at+jwt` refuses tokens that do not say that they are access tokens. `tenant` names the tenant, or `tenant_claim` the claim that does; `tenants` lists the tenants that the claim may name, absent: every tenant. `principal_claim` is the claim that says who it is (`sub`). `scopes` are what each token must be good for.",
    ),
];

const TIMEOUTS: &[ConfigKey] = &[
    key(
        "call",
        DEADLINE,
        "30s",
        "Answer of a backend to tools/call, resources/read, prompts/get and other calls; progress and questions to the client renew it, up to `timeouts.call_max`.",
    ),
    key("call_max", CALL_MAX, "1h", "End of every call, however often its deadline was renewed."),
    key(
        "methods",
        KeyKind::Deadlines,
        "{}",
        "Deadlines by method, which come before `call` and `control`. A tenant's come before these, and a backend's before both; a backend's may be by tool too.",
    ),
    key("control", DEADLINE, "5s", "Answer of a backend to lists, ping and other small requests."),
    key("initialize", DEADLINE, "30s", "The whole handshake with a backend."),
    key(
        "request_read",
        DEADLINE,
        "30s",
        "Arrival of a whole HTTP request head, and of a whole body.",
    ),
    key("connect", DEADLINE, "5s", "Connection to a backend, TLS included."),
    key(
        "handshake",
        DEADLINE,
        "10s",
        "From the opening of a client's connection to the end of its TLS handshake, and of a TCP or WebSocket connection to the answer to its `initialize`.",
    ),
    key(
        "websocket_ping",
        KeyKind::Duration { min: Duration::from_millis(100), max: HOUR },
        "30s",
        "Time between two pings of a client that came by WebSocket.",
    ),
    key(
        "websocket_idle",
        KeyKind::Duration { min: Duration::from_millis(100), max: HOUR },
        "5m",
        "A client that came by WebSocket and of which nothing is heard for this long, not even a pong, is disconnected.",
    ),
    key(
        "quic_idle",
        KeyKind::Duration { min: SECOND, max: HOUR },
        "5m",
        "A QUIC connection, of a client or a backend, of which nothing is heard for this long, not even a keep-alive, ends.",
    ),
    key("client_request", DEADLINE, "5m", "Answer of a client to sampling, elicitation or roots."),
    key(
        "ping_interval",
        KeyKind::Duration { min: Duration::from_millis(100), max: HOUR },
        "30s",
        "Time between two pings of a backend; one that leaves a ping unanswered for `timeouts.control` is connected to anew.",
    ),
    optional_key(
        "idle_session",
        IDLE,
        "30m",
        "Another name for `session.idle`; give one of the two.",
    ),
];

const IDLE: KeyKind =
    KeyKind::Duration { min: Duration::from_millis(100), max: DAY.saturating_mul(30) };

const SESSION: &[ConfigKey] = &[
    key(
        "lease",
        KeyKind::Duration { min: Duration::from_millis(200), max: Duration::from_secs(60) },
        "2s",
        "How long a replica that is not heard of keeps its sessions and tasks before others take them over. Without effect on SQLite.",
    ),
    key(
        "resume",
        KeyKind::Duration { min: Duration::ZERO, max: HOUR },
        "2m",
        "How long a session whose WebSocket broke off waits for its client to come back.",
    ),
    key(
        "idle",
        IDLE,
        "30m",
        "A session without requests, calls in flight and open streams ends after this time.",
    ),
];

const EVENTS: &[ConfigKey] = &[
    key(
        "log",
        KeyKind::Choice(&["store", "memory", "off"]),
        "store",
        "Where events are kept for Last-Event-ID. `store`: in Redis or the database, so that every replica can resume a stream, after a restart too; `memory`: with the process that sent them; `off`: nowhere.",
    ),
    key(
        "retain",
        KeyKind::Duration { min: Duration::ZERO, max: DAY },
        "5m",
        "How long an event can be asked for again with Last-Event-ID.",
    ),
    key("stream_events", COUNT, "1000", "Events kept per stream."),
    key(
        "stream_bytes",
        KeyKind::Size { min: KIB, max: 1024 * MIB },
        "8MiB",
        "Bytes kept per stream; the newest event is kept even when it alone is larger.",
    ),
    key(
        "keepalive",
        KeyKind::Duration { min: Duration::from_millis(10), max: HOUR },
        "15s",
        "A comment is sent on a stream that was silent for this time.",
    ),
    key(
        "retry",
        KeyKind::Duration { min: MS, max: HOUR },
        "1s",
        "Wait that clients are told to keep before they reconnect to a stream the broker ended.",
    ),
];

const EGRESS: &[ConfigKey] = &[
    key("allow", KeyKind::Networks, "[]", "Networks that are allowed beside public ones."),
    key(
        "deny",
        KeyKind::Networks,
        "[]",
        "Networks that are refused, whatever `egress.allow` says.",
    ),
];

const SHUTDOWN: &[ConfigKey] = &[
    key(
        "grace",
        KeyKind::Duration { min: Duration::ZERO, max: HOUR },
        "25s",
        "How long calls in flight may take to finish. A second signal ends at once.",
    ),
    key(
        "readiness_delay",
        KeyKind::Duration { min: Duration::ZERO, max: HOUR },
        "0s",
        "How long connections are taken, at least, after readiness went off. Behind a balancer: longer than it takes to notice. Counts into no other time.",
    ),
];

/// Path, default, what is allowed and meaning of every key of some sections, for the page of limits.
#[cfg(test)]
pub(crate) fn documented(sections: &[&str]) -> Vec<[String; 4]> {
    use super::config_key::KeyDefault;
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
    fn the_table_is_sound() {
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
        for (one, other) in TABLE.twins {
            assert!(TABLE.find(one).is_some() && TABLE.find(other).is_some(), "{one}, {other}");
        }
    }

    #[test]
    fn whole_sections_are_unavailable_with_all_their_keys() {
        assert!(TABLE.unavailable("errors") && TABLE.unavailable("errors.anything"));
        assert!(!TABLE.unavailable("listen.http") && !TABLE.unavailable("errorsome"));
    }
}
