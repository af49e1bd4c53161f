//! Test kit that drives the real binary from outside: a broker process, raw clients, scriptable
//! backends.
//!
//! The product links nothing of it. Every wait has a deadline ([`DEADLINE`]) and waits for a state,
//! never for a time to pass; every socket is on 127.0.0.1. Event streams and JSON are handled by
//! code of its own instead of `protocol`, so that a fault there cannot hide itself.

pub mod abort_on_drop;
pub mod admin;
pub mod authority;
pub mod authorization;
pub mod backend;
pub mod balancer;
pub mod broker;
pub mod chaos;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod collector;
pub mod deadline;
pub mod duplex;
pub mod events;
pub mod history;
pub mod http;
mod http_server;
pub mod http_sse_backend;
pub mod judge;
pub mod ledger;
pub mod pipe_backend;
pub mod programs;
pub mod proxy;
pub mod quic;
pub mod quic_streams;
pub mod replica;
pub mod servers;
pub mod signing_key;
pub mod soak;
pub mod stateless_backend;
pub mod stateless_request;
pub mod stdio;
pub mod tls_terminator;
pub mod topology;
pub mod udp_proxy;

pub use admin::AdminClient;
pub use authority::Authority;
pub use authorization::{AuthorizationServer, IssuerBehavior, TokenRequest};
pub use backend::{BackendCall, FakeBackend, GateAnswer, RecordedRequest, Reply};
pub use balancer::Balancer;
pub use broker::{BrokerBuilder, TestBroker};
pub use client::{AttemptOutcome, Call, ReceivedMessage, TestClient};
pub use clock::FakeClock;
pub use cluster::{ClusterBuilder, Store, TestCluster};
pub use collector::{CollectedSpan, Collector, CollectorBehavior};
pub use deadline::{DEADLINE, Gate, eventually, eventually_within, within};
pub use duplex::DuplexClient;
pub use events::{Event, EventReader};
pub use history::{History, Observation, Outcome};
pub use http::{HttpVersion, RawResponse};
pub use http_sse_backend::HttpSseBackend;
pub use judge::{Judge, JudgeGuard};
pub use ledger::{Effect, Ledger};
pub use pipe_backend::PipeBackend;
pub use proxy::{Direction, FaultProxy};
pub use quic::QuicPeer;
pub use replica::Replica;
pub use servers::{PostgresServer, RedisServer};
pub use signing_key::SigningKey;
pub use stateless_backend::{StatelessBackend, StatelessCall, StatelessReply};
pub use stateless_request::{STATELESS, request_headers, request_meta};
pub use stdio::StdioScript;
pub use tls_terminator::TlsTerminator;
pub use topology::Topology;
pub use udp_proxy::{PacketFaults, UdpProxy};
