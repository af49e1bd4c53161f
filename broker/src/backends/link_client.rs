//! The interface of a link's user. Sessions implement the trait.

use std::{
    borrow::Cow,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use protocol::ids::BackendId;
use rules::event_log::Topic;

use super::link::{backend_session::BackendSession, connection::requester::Inbound};

/// Receives messages of a link that belong to no request.
pub trait LinkClient: Inbound {
    /// Sends a notification about `topic` to the client, unless an equal one is queued already.
    fn deliver(&self, topic: Topic, frame: Bytes);

    /// Returns the client's URI of a resource of this backend. It is borrowed if both URIs are
    /// equal.
    fn exposed_uri<'u>(&self, backend: &BackendId, uri: &'u str) -> Cow<'u, str>;

    /// Subscribes again to the client's resources of the backend, over another link.
    fn resubscribe(self: Arc<Self>, backend: BackendId);

    /// Handles a change of the own lists of a link.
    fn on_own_lists_changed(&self);

    /// Reads the lists of the client's principal again, at the backends where they are due.
    fn on_principal_lists_due(&self);

    /// Records the session that the link has at the backend.
    fn record_backend_session(&self, backend: &BackendId, session: Option<BackendSession>);
}

/// Returns whether both are one client.
pub(super) fn is_same(one: &Weak<dyn LinkClient>, other: &Arc<impl LinkClient + 'static>) -> bool {
    std::ptr::addr_eq(one.as_ptr(), Arc::as_ptr(other))
}
