//! Meaning of the wire: JSON-RPC envelopes, MCP methods, versions, capabilities and errors.
//!
//! The broker's rules, sessions and links build on this crate. It has no sockets, no clock and no
//! randomness: bytes come in, decisions and bytes go out. Messages are never turned into trees.
//! Their parts are byte spans of the sender's text, so that everything the broker does not own
//! passes through unchanged.

pub mod capabilities;
pub mod characters;
pub mod downlevel;
pub mod envelope;
pub mod error;
pub mod form;
pub mod handshake;
pub mod ids;
pub mod json;
pub mod method;
pub mod phase;
pub mod splice;
pub mod sse;
pub mod stateless;
pub mod uri;
pub mod version;

pub use capabilities::{ClientCapabilities, ServerCapabilities};
pub use envelope::{Body, Fields, Kind, Message, RefusedMessage, decode_body};
pub use error::{ErrorKind, Refusal};
pub use ids::{
    BackendId, InvalidName, KeyId, PrincipalId, RequestId, SessionId, TaskId, TenantId, WireId,
};
pub use json::{Limits, Span};
pub use method::{Direction, MessageKind, Method, MethodInfo, Route};
pub use phase::{LinkPhase, SessionPhase};
pub use splice::Splice;
pub use version::{Batches, Version};
