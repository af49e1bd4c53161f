//! A request to a backend: as its client gives it, and as it goes out on the wire.

use std::{sync::Arc, time::Instant};

use http::HeaderMap;
use protocol::{envelope::Message, json::Span};
use transport::VectoredBody;

use crate::backends::requester::Requester;

/// A request of a client, with the edits to apply before it is sent.
#[derive(Debug, Clone, Copy)]
pub struct BackendRequest<'a> {
    pub message: &'a Message,
    pub edits: &'a [(Span, Vec<u8>)],
    pub requester: &'a Arc<dyn Requester>,
    pub sent_at: Instant,
}

/// One request with its purpose.
pub(super) struct WireRequest<'a> {
    pub(super) wire_id: u64,
    pub(super) frame: VectoredBody,
    pub(super) requester: Option<&'a Arc<dyn Requester>>,
    /// True for `initialize`, whose response carries the session id.
    pub(super) opening: bool,
    /// Headers of a request of 2026-07-28. `None` for a request of a session. On the heap, because
    /// the request is moved several times.
    pub(super) headers: Option<Box<HeaderMap>>,
}
