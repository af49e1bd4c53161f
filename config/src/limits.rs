//! The sections `limits` and `overload`: their keys and their checked values.

use std::time::Duration;

use rules::limits::toolsets::BATCH_CALLS_MAX;

use super::{
    config_key::{COUNT, COUNT_MAX, ConfigKey, KeyKind, key, optional_key},
    config_reader::{ConfigReader, size},
    field_error::invalid_value,
    message_sizes::MessageSizes,
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
/// Range of rates. 0 is unlimited.
pub(super) const RATE: KeyKind = KeyKind::Count { min: 0, max: COUNT_MAX };

pub(super) const LIMITS: &[ConfigKey] = &[
    key(
        "message_bytes",
        KeyKind::Size { min: KIB, max: 256 * MIB },
        "16MiB",
        "Largest JSON-RPC message, from a client or a backend.",
    ),
    key(
        "message_profile",
        KeyKind::MessageProfile,
        "standard",
        "Profile of the largest message on each wire. A tenant can name another profile for messages of its clients, and a backend for its own messages. `standard`: `limits.message_bytes` on every wire; `1MB`: 1MiB on every wire; `ws-64k`: 64KiB over WebSocket; or a name of `limits.message_profiles`. No profile allows more than `limits.message_bytes`.",
    ),
    key(
        "message_profiles",
        KeyKind::MessageProfiles,
        "{}",
        "Further profiles: the largest message by wire. A wire without an entry takes `default`, or else `limits.message_bytes`. HTTP+SSE counts as HTTP.",
    ),
    key("connections", COUNT, "10000", "Open connections of clients, on each listener."),
    key(
        "connections_per_address",
        COUNT,
        "1000",
        "Open connections from one IP address (IPv6: one /64), on each listener. Connections of `listen.trusted_proxies` do not count, unless their PROXY protocol header names the client.",
    ),
    key(
        "connections_per_second_per_address",
        RATE,
        "1000",
        "Sustained new connections per second from one IP address (IPv6: one /64), on each listener. The broker closes further ones at once. 0 is unlimited.",
    ),
    key(
        "connection_burst_per_address",
        COUNT,
        "2000",
        "New connections from one IP address above that rate before the broker closes one.",
    ),
    key(
        "sign_in_failures_per_minute",
        RATE,
        "60",
        "Failed sign-ins per minute of one IP address (IPv6: one /64), on all listeners of one replica. The broker answers further ones with 429. 0 is unlimited. The broker always accepts a valid credential. Missing credentials and expired tokens do not count.",
    ),
    key(
        "connections_per_tenant",
        COUNT,
        "10000",
        "Connections that are sessions (TCP, WebSocket, QUIC, HTTP+SSE) and open GET streams of one tenant, over all replicas.",
    ),
    key("sessions_per_tenant", COUNT, "10000", "Open sessions of one tenant, over all replicas."),
    key(
        "sessions_per_principal",
        COUNT,
        "1000",
        "Open sessions of one principal, with all its keys together, over all replicas.",
    ),
    key(
        "calls_in_flight_per_session",
        COUNT,
        "1000",
        "Requests of one session that wait for an answer.",
    ),
    key(
        "calls_in_flight_per_tenant",
        COUNT,
        "10000",
        "Requests of one tenant that wait for an answer, over all replicas.",
    ),
    key(
        "calls_in_flight_per_backend",
        COUNT,
        "1000",
        "Calls that one backend processes at the same time. Further calls wait, in turns of principals and of their sessions. The body of a backend can set its own limit.",
    ),
    key(
        "calls_queued_per_backend",
        COUNT,
        "1000",
        "Calls that wait for one backend. The broker refuses further calls.",
    ),
    key(
        "calls_in_flight",
        COUNT,
        "20000",
        "Calls of all tenants that backends process at the same time. Further calls wait, in turns of tenants by their weight.",
    ),
    key(
        "calls_queued",
        COUNT,
        "20000",
        "Calls of all tenants that wait for `limits.calls_in_flight`. The broker refuses further calls.",
    ),
    key(
        "batch_calls",
        KeyKind::Count { min: 0, max: BATCH_CALLS_MAX },
        "0",
        "Calls of one `execute_batch`, a tool of the broker that calls several tools. Each of them counts as a separate call, and so does the batch. 0: no endpoint lists the tool.",
    ),
    key(
        "adaptive_concurrency",
        KeyKind::Bool,
        "false",
        "Sends fewer concurrent calls to a backend while it answers more slowly than its best time, and more again when it recovers.",
    ),
    key(
        "requests_per_second",
        RATE,
        "0",
        "Sustained requests and notifications per second of one tenant, over all replicas. 0 is unlimited, here and in the other rates.",
    ),
    key(
        "burst",
        COUNT,
        "100",
        "Requests of one tenant above the sustained rate before the broker refuses one. No effect while the rate is unlimited.",
    ),
    key(
        "requests_per_second_per_principal",
        RATE,
        "0",
        "Sustained requests per second of one principal, with all its keys and sessions together.",
    ),
    key("burst_per_principal", COUNT, "100", "Requests of one principal above that rate."),
    key(
        "requests_per_second_per_backend",
        RATE,
        "0",
        "Sustained requests per second of one tenant to one of its backends.",
    ),
    key("burst_per_backend", COUNT, "100", "Requests to one backend above that rate."),
    key(
        "requests_per_second_per_tool",
        RATE,
        "0",
        "Sustained calls per second of one tool by one tenant.",
    ),
    key("burst_per_tool", COUNT, "100", "Calls of one tool above that rate."),
    key(
        "without_redis",
        KeyKind::Choice(&["local_share", "unlimited", "refuse"]),
        "local_share",
        "Rates, sessions, calls and connections of tenants while the configured Redis is unavailable. `local_share`: each replica admits its share; `unlimited`: each replica admits every request, and the whole limit of sessions, calls and connections; `refuse`: each replica refuses every request that has a rate, and sessions, calls and connections beyond those that it reserved. If no Redis is configured, the local share always applies.",
    ),
    key(
        "outbox_bytes",
        KeyKind::Size { min: KIB, max: 4 * GIB },
        "16MiB",
        "Bytes that wait for one client that does not read, if the connection is the session (TCP, WebSocket). Beyond it, the broker closes the connection.",
    ),
    optional_key(
        "outbox_bytes_total",
        KeyKind::Size { min: MIB, max: 1024 * GIB },
        "1GiB",
        "Bytes that wait for all clients of the process together, on every wire. Beyond it, the broker disconnects the client with the most waiting bytes of the tenant and principal with the most. The bytes of one client count in steps of 256KiB. Absent: `1GiB`, or a quarter of the memory at which the broker refuses new requests, if that is less. The value must be less than that memory.",
    ),
];

pub(super) const OVERLOAD: &[ConfigKey] = &[
    optional_key(
        "memory_bytes",
        KeyKind::Size { min: 16 * MIB, max: 1024 * GIB },
        "2GiB",
        "Memory that the process can use. Absent: the limit of its cgroup. Without such a limit, the broker does not check memory.",
    ),
    key(
        "memory_percent",
        KeyKind::Count { min: 10, max: 100 },
        "90",
        "Percentage of that memory above which the broker refuses new requests, until the use is five points below it.",
    ),
    key(
        "queue_delay",
        KeyKind::Duration { min: Duration::ZERO, max: Duration::from_secs(60) },
        "1s",
        "Time that ready work waits for a processor. The broker refuses new requests after four such waits in a row. `0s` disables the check.",
    ),
    key(
        "requests_pending",
        COUNT,
        "50000",
        "Requests of all clients that wait for an answer. The broker refuses further ones.",
    ),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub message_bytes: usize,
    /// Message sizes by wire: the default, and those of tenants and backends with a profile of
    /// their own.
    pub message_sizes: MessageSizes,
    pub connections: usize,
    pub connections_per_address: usize,
    /// 0: no limit, as in every rate below.
    pub connections_per_second_per_address: u32,
    pub sign_in_failures_per_minute: u32,
    pub connection_burst_per_address: u32,
    pub connections_per_tenant: usize,
    pub sessions_per_tenant: usize,
    pub sessions_per_principal: usize,
    pub calls_in_flight_per_session: usize,
    pub calls_in_flight_per_tenant: usize,
    pub calls_in_flight_per_backend: usize,
    pub calls_queued_per_backend: usize,
    /// Calls of all tenants together.
    pub calls_in_flight: usize,
    pub calls_queued: usize,
    /// Calls of one `execute_batch`. 0: no endpoint lists the tool.
    pub batch_calls: usize,
    pub adaptive_concurrency: bool,
    pub requests_per_second: u32,
    pub burst: u32,
    pub requests_per_second_per_principal: u32,
    pub burst_per_principal: u32,
    pub requests_per_second_per_backend: u32,
    pub burst_per_backend: u32,
    pub requests_per_second_per_tool: u32,
    pub burst_per_tool: u32,
    pub without_redis: RedisOutagePolicy,
    /// Bytes that may wait for one client that does not read its connection.
    pub outbox_bytes: usize,
    /// Bytes that may wait for all clients together. `None`: the limit depends on the memory.
    pub outbox_bytes_total: Option<usize>,
}

/// Decision about rates and permits while Redis is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisOutagePolicy {
    LocalShare,
    Unlimited,
    Refuse,
}

/// Thresholds at which the broker refuses new requests to protect the running ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverloadConfig {
    /// `None`: the limit of the cgroup.
    pub memory_bytes: Option<usize>,
    pub memory_percent: u32,
    /// Zero: not checked.
    pub queue_delay: Duration,
    pub requests_pending: usize,
}

impl ConfigReader<'_> {
    pub(super) fn limits(&mut self) -> Limits {
        let message_bytes = self.size("limits.message_bytes");
        Limits {
            message_bytes,
            message_sizes: self.message_sizes(message_bytes),
            connections: self.count("limits.connections") as usize,
            connections_per_address: self.count("limits.connections_per_address") as usize,
            connections_per_second_per_address: self
                .count("limits.connections_per_second_per_address"),
            sign_in_failures_per_minute: self.count("limits.sign_in_failures_per_minute"),
            connection_burst_per_address: self.count("limits.connection_burst_per_address"),
            connections_per_tenant: self.count("limits.connections_per_tenant") as usize,
            sessions_per_tenant: self.count("limits.sessions_per_tenant") as usize,
            sessions_per_principal: self.count("limits.sessions_per_principal") as usize,
            calls_in_flight_per_session: self.count("limits.calls_in_flight_per_session") as usize,
            calls_in_flight_per_tenant: self.count("limits.calls_in_flight_per_tenant") as usize,
            calls_in_flight_per_backend: self.count("limits.calls_in_flight_per_backend") as usize,
            calls_queued_per_backend: self.count("limits.calls_queued_per_backend") as usize,
            calls_in_flight: self.count("limits.calls_in_flight") as usize,
            calls_queued: self.count("limits.calls_queued") as usize,
            batch_calls: self.count("limits.batch_calls") as usize,
            adaptive_concurrency: self.bool("limits.adaptive_concurrency"),
            requests_per_second: self.count("limits.requests_per_second"),
            burst: self.count("limits.burst"),
            requests_per_second_per_principal: self
                .count("limits.requests_per_second_per_principal"),
            burst_per_principal: self.count("limits.burst_per_principal"),
            requests_per_second_per_backend: self.count("limits.requests_per_second_per_backend"),
            burst_per_backend: self.count("limits.burst_per_backend"),
            requests_per_second_per_tool: self.count("limits.requests_per_second_per_tool"),
            burst_per_tool: self.count("limits.burst_per_tool"),
            without_redis: self.value("limits.without_redis", |value, _| match value.as_str() {
                Some("local_share") => Ok(RedisOutagePolicy::LocalShare),
                Some("unlimited") => Ok(RedisOutagePolicy::Unlimited),
                Some("refuse") => Ok(RedisOutagePolicy::Refuse),
                _ => Err(invalid_value(value)),
            }),
            outbox_bytes: self.size("limits.outbox_bytes"),
            outbox_bytes_total: self.optional("limits.outbox_bytes_total", size),
        }
    }

    /// Checks that the bytes that wait for clients leave memory for everything else.
    pub(super) fn memory(&mut self, limits: &Limits, overload: &OverloadConfig) {
        let (Some(total), Some(memory)) = (limits.outbox_bytes_total, overload.memory_bytes) else {
            return;
        };
        let refuses_from = memory / 100 * overload.memory_percent as usize;
        if total >= refuses_from {
            let allowed = format!(
                "less than overload.memory_percent of overload.memory_bytes, which is {refuses_from} bytes"
            );
            self.report("limits.outbox_bytes_total", "is too large for the memory limit", &allowed);
        }
    }

    pub(super) fn overload(&mut self) -> OverloadConfig {
        OverloadConfig {
            memory_bytes: self.optional("overload.memory_bytes", size),
            memory_percent: self.count("overload.memory_percent"),
            queue_delay: self.duration("overload.queue_delay"),
            requests_pending: self.count("overload.requests_pending") as usize,
        }
    }
}
