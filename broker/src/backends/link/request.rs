//! A request to a backend, in two forms: as its client sent it, and as the wire sends it.

use std::{sync::Arc, time::Instant};

use http::HeaderMap;
use protocol::{envelope::Message, json::Span};
use transport::VectoredBody;

use super::connection::requester::Requester;

/// A request of a client, with the edits to apply before it is sent.
#[derive(Debug, Clone, Copy)]
pub struct BackendRequest<'a> {
    pub message: &'a Message,
    pub edits: &'a [(Span, Vec<u8>)],
    pub requester: &'a Arc<dyn Requester>,
    pub sent_at: Instant,
}

/// A request in the form in which a wire sends it.
pub(super) struct WireRequest<'a> {
    pub(super) wire_id: u64,
    pub(super) frame: VectoredBody,
    /// The sender of the request. `None` for a request of the broker itself.
    pub(super) requester: Option<&'a Arc<dyn Requester>>,
    /// True for `initialize`. The headers of its response have the session id.
    pub(super) is_initialize: bool,
    /// Headers of a request of 2026-07-28. `None` for a request of a session. On the heap, because
    /// the request is moved several times.
    pub(super) headers: Option<Box<HeaderMap>>,
}

impl<'a> WireRequest<'a> {
    /// Returns a request of the broker itself, for a connection with a session.
    pub(super) fn new(wire_id: u64, frame: VectoredBody) -> Self {
        Self { wire_id, frame, requester: None, is_initialize: false, headers: None }
    }

    /// Returns the request as one of `requester`.
    pub(super) fn for_requester(self, requester: &'a Arc<dyn Requester>) -> Self {
        Self { requester: Some(requester), ..self }
    }
}
