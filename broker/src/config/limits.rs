//! The sections `limits` and `overload`: their keys and what is made of them.

use std::time::Duration;

use super::{
    config_key::{COUNT_MAX, ConfigKey, KeyKind, key, optional_key},
    config_reader::{ConfigReader, size, wrong},
    message_sizes::MessageSizes,
};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
const COUNT: KeyKind = KeyKind::Count { min: 1, max: COUNT_MAX };
const RATE: KeyKind = KeyKind::Count { min: 0, max: COUNT_MAX };

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
        "How large messages may be on each wire, by the name of a profile; bodies of tenants (for what their clients send) and of backends (for what these send) may name others. `standard`: `limits.message_bytes` everywhere; `1MB`: 1MiB everywhere; `ws-64k`: 64KiB over WebSocket; or one of `limits.message_profiles`. None lets more through than `limits.message_bytes`.",
    ),
    key(
        "message_profiles",
        KeyKind::MessageProfiles,
        "{}",
        "Further profiles: the largest message by wire, and for the wires that are not named `default`, or else `limits.message_bytes`. HTTP+SSE counts as HTTP.",
    ),
    key("connections", COUNT, "10000", "Open connections of clients, on each listener."),
    key(
        "connections_per_address",
        COUNT,
        "1000",
        "Open connections from one IP address (of IPv6: from one /64), on each listener. Connections of `listen.trusted_proxies` are not counted, unless their PROXY protocol header names the client.",
    ),
    key(
        "connections_per_second_per_address",
        RATE,
        "1000",
        "Sustained new connections from one IP address (of IPv6: from one /64), on each listener; 0 is unlimited. Further ones are closed at once.",
    ),
    key(
        "connection_burst_per_address",
        COUNT,
        "2000",
        "New connections from one IP address above that rate before one is closed.",
    ),
    key(
        "sign_in_failures_per_minute",
        RATE,
        "60",
        "Failed sign-ins of one IP address (of IPv6: of one /64) in a minute, on all listeners of one replica, before further ones are answered with 429; 0 is unlimited. A good credential is always taken. Missing credentials and expired tokens do not count.",
    ),
    key(
        "connections_per_tenant",
        COUNT,
        "10000",
        "Connections that are sessions (TCP, WebSocket, QUIC, HTTP+SSE) and open GET streams of one tenant, on each replica.",
    ),
    key("sessions_per_tenant", COUNT, "10000", "Open sessions of one tenant."),
    key(
        "sessions_per_principal",
        COUNT,
        "1000",
        "Open sessions of one principal, whichever of its keys they were opened with.",
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
        "Requests of one tenant that wait for an answer.",
    ),
    key(
        "calls_in_flight_per_backend",
        COUNT,
        "1000",
        "Calls one backend works on at the same time; further ones wait, in turns of principals and of their sessions. A backend's body may set its own.",
    ),
    key(
        "calls_queued_per_backend",
        COUNT,
        "1000",
        "Calls that wait for one backend; what finds no room is refused.",
    ),
    key(
        "calls_in_flight",
        COUNT,
        "20000",
        "Calls of all tenants that are with backends at the same time; further ones wait, in turns of tenants by their weight.",
    ),
    key(
        "calls_queued",
        COUNT,
        "20000",
        "Calls of all tenants that wait for that; what finds no room is refused.",
    ),
    key(
        "adaptive_concurrency",
        KeyKind::Bool,
        "false",
        "Let fewer calls go to a backend at the same time while it is slower than it can be, and more again when it is not.",
    ),
    key(
        "requests_per_second",
        RATE,
        "0",
        "Sustained requests and notifications of one tenant, over all replicas; 0 is unlimited, here and in the other rates.",
    ),
    key(
        "burst",
        COUNT,
        "100",
        "Requests of one tenant above the sustained rate before it is refused; without effect while the rate is unlimited.",
    ),
    key(
        "requests_per_second_per_principal",
        RATE,
        "0",
        "Sustained requests of one principal, whichever keys and sessions it uses.",
    ),
    key("burst_per_principal", COUNT, "100", "Requests of one principal above that rate."),
    key(
        "requests_per_second_per_backend",
        RATE,
        "0",
        "Sustained requests of one tenant to one of its backends.",
    ),
    key("burst_per_backend", COUNT, "100", "Requests to one backend above that rate."),
    key("requests_per_second_per_tool", RATE, "0", "Sustained calls of one tool by one tenant."),
    key("burst_per_tool", COUNT, "100", "Calls of one tool above that rate."),
    key(
        "without_redis",
        KeyKind::Choice(&["local_share", "unlimited", "refuse"]),
        "local_share",
        "What becomes of the rates while the configured Redis is away. `local_share`: each replica lets its part of them through; `unlimited`: all; `refuse`: nothing that has a rate. Without a configured Redis it is the local share always.",
    ),
    key(
        "outbox_bytes",
        KeyKind::Size { min: KIB, max: 4 * GIB },
        "16MiB",
        "What may wait for one client that does not read, where the connection is the session (TCP, WebSocket); one that lets more pile up is disconnected.",
    ),
    optional_key(
        "outbox_bytes_total",
        KeyKind::Size { min: MIB, max: 1024 * GIB },
        "1GiB",
        "What may wait for all clients of the process together, on whichever wire; over it, the client for which most waits is disconnected. What waits for one client counts in steps of 256KiB. Absent: `1GiB`, or a quarter of the memory at which new requests are refused, where that is less. It has to be less than that memory.",
    ),
];

pub(super) const OVERLOAD: &[ConfigKey] = &[
    optional_key(
        "memory_bytes",
        KeyKind::Size { min: 16 * MIB, max: 1024 * GIB },
        "2GiB",
        "Memory the process may use. Absent: the limit of its cgroup; without one, memory is not looked at.",
    ),
    key(
        "memory_percent",
        KeyKind::Count { min: 10, max: 100 },
        "90",
        "Above this share of it new requests are refused until it is five points below.",
    ),
    key(
        "queue_delay",
        KeyKind::Duration { min: Duration::ZERO, max: Duration::from_secs(60) },
        "1s",
        "New requests are refused while work that is ready has waited for a processor this long, four times in a row; `0s` is never.",
    ),
    key(
        "requests_pending",
        COUNT,
        "50000",
        "Requests of all clients that wait for an answer; further ones are refused.",
    ),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub message_bytes: usize,
    /// The same by wire, for all, and for tenants and backends that have others.
    pub message_sizes: MessageSizes,
    pub connections: usize,
    pub connections_per_address: usize,
    /// 0: no limit, like in every rate below.
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
    /// Of all tenants together.
    pub calls_in_flight: usize,
    pub calls_queued: usize,
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
    /// What may wait for one client that does not read its connection.
    pub outbox_bytes: usize,
    /// The same for all together.
    /// `None`: as the memory allows.
    pub outbox_bytes_total: Option<usize>,
}

/// What becomes of rates while Redis is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisOutagePolicy {
    LocalShare,
    Unlimited,
    Refuse,
}

/// When the broker refuses new requests to go on with those it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverloadConfig {
    /// `None`: what the cgroup allows.
    pub memory_bytes: Option<usize>,
    pub memory_percent: u32,
    /// Zero: not looked at.
    pub queue_delay: Duration,
    pub requests_pending: usize,
}

impl ConfigReader<'_> {
    pub(super) fn limits(&mut self) -> Limits {
        Limits {
            message_bytes: self.size("limits.message_bytes"),
            message_sizes: self.message_sizes(),
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
                _ => Err(wrong(value)),
            }),
            outbox_bytes: self.size("limits.outbox_bytes"),
            outbox_bytes_total: self.optional("limits.outbox_bytes_total", size),
        }
    }

    /// What may wait for clients has to leave something for everything else.
    pub(super) fn memory(&mut self, limits: &Limits, overload: &OverloadConfig) {
        let (Some(total), Some(memory)) = (limits.outbox_bytes_total, overload.memory_bytes) else {
            return;
        };
        let refuses_from = memory / 100 * overload.memory_percent as usize;
        if total >= refuses_from {
            let allowed = format!(
                "less than overload.memory_percent of overload.memory_bytes, which is {refuses_from} bytes"
            );
            self.fault(
                "limits.outbox_bytes_total",
                "does not fit below the memory limit",
                &allowed,
            );
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
