//! Whole frames over sockets and pipes: newline framing, TCP, WebSocket, QUIC, TLS and child
//! processes. Also the HTTP client, the egress policy, and requests between replicas.
//!
//! Used by the broker's links and listeners. This crate handles bytes, HTTP and processes. It never
//! parses a frame and does not depend on MCP. Its only rule about JSON is that a line break is a
//! space. The caller sets a limit for everything this crate buffers.

pub mod child_guardian;
pub mod child_launcher;
pub mod child_process;
mod child_starter;
mod connect;
mod connect_error;
mod connection_watch;
pub mod descriptor_limit;
pub mod descriptor_reserve;
pub mod egress;
pub mod frame;
pub mod framing;
mod head_cache;
mod http1_client;
pub mod http1_server;
pub mod http_client;
mod http_client_config;
mod http_client_tls;
mod https_client;
pub mod lines;
mod linger;
pub mod message_bound;
pub mod peer;
mod process_group;
pub mod proxy_protocol;
pub mod quic;
mod read_buffer;
mod read_turns;
mod resolver;
mod response;
pub mod sandbox;
mod send_error;
pub mod socket_options;
pub mod stall;
mod stderr_tail;
mod stream_permits;
pub mod tcp;
pub mod tls;
pub mod url;
mod vectored_body;
mod watched_stream;
pub mod websocket;
pub mod write_batching;

pub use child_process::{
    Child, ChildLimits, ChildProcess, ChildSpec, INHERITED_ENV, SpawnError, spawn,
};
pub use connect_error::ConnectError;
pub use egress::{Cidr, CidrError, Denied, DeniedReason, EgressPolicy};
pub use frame::{
    CLOSE_TIMEOUT, CloseReason, FrameSink, FrameSource, ReadError, WriteError, close_gracefully,
};
pub use http_client::{
    BodyError, HttpClient, HttpClientConfig, ResponseBody, TlsSetupError, read_body,
    read_body_within,
};
pub use http1_client::BodyStreamError;
pub use lines::{LineReader, LineWriter};
pub use peer::{PeerBody, PeerClient, PeerIdentity, PeerIdentityError, PeerServer};
pub use resolver::Resolver;
pub use response::HttpResponse;
pub use send_error::SendError;
pub use stall::StallGuard;
pub use tls::{
    CertificateIdentity, CertificateSource, ClientAuth, ClientCertificate, ClientTls,
    ClientTlsFiles, ListenerKind, ServerTls, TlsError,
};
pub use url::{UrlError, parse_http_url};
pub use vectored_body::VectoredBody;
pub use write_batching::WriteBatching;
