//! Whole frames over sockets and pipes: newline framing, TCP, WebSocket, QUIC and TLS, child processes, the HTTP client and the
//! egress policy, and requests between replicas.
//!
//! Used by the broker's links and listeners. This crate knows bytes, HTTP and processes; it never looks inside a frame and knows
//! nothing of MCP, and of JSON only that a line break in it is a space. Everything it buffers has a limit that the caller names.

pub mod child_guardian;
pub mod child_launcher;
pub mod child_process;
mod connect;
mod connect_error;
pub mod descriptor_reserve;
pub mod egress;
pub mod frame;
pub mod framing;
mod head_cache;
mod http1_client;
pub mod http1_server;
pub mod http_client;
pub mod lines;
mod linger;
pub mod peer;
mod process_group;
pub mod proxy_protocol;
pub mod quic;
mod read_buffer;
mod response;
pub mod sandbox;
mod send_error;
pub mod stall;
mod stderr_tail;
pub mod tcp;
pub mod tls;
pub mod url;
mod vectored_body;
pub mod websocket;
pub mod write_batching;

pub use child_process::{
    Child, ChildLimits, ChildProcess, ChildSpec, INHERITED_ENV, SpawnError, spawn,
};
pub use connect_error::ConnectError;
pub use egress::{Cidr, CidrError, Denied, DeniedReason, EgressPolicy};
pub use frame::{
    CLOSE_TIMEOUT, CloseReason, FrameSink, FrameSource, ReadError, WriteError, farewell,
};
pub use http_client::{
    BodyError, HttpClient, HttpClientConfig, ResponseBody, TlsSetupError, read_body,
};
pub use http1_client::BodyStreamError;
pub use lines::{LineReader, LineWriter};
pub use peer::{PeerClient, PeerIdentity, PeerIdentityError, PeerServer};
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
