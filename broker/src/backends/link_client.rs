//! The user of a link, as the link knows it. Sessions implement the trait.

use std::{
    borrow::Cow,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use protocol::ids::BackendId;

use super::{inbound::Inbound, link::BackendSession};
use crate::rules::event_log::Topic;

/// Receives through a link what belongs to no request.
pub trait LinkClient: Inbound {
    /// Sends a notification about `topic` to the client, unless the same waits already.
    fn deliver(&self, topic: Topic, frame: Bytes);

    /// Returns the client's name of a resource of this backend. It is borrowed where both names are the same.
    fn exposed_uri<'u>(&self, backend: &BackendId, uri: &'u str) -> Cow<'u, str>;

    /// Subscribes again to what the client listens to at the backend, over another link.
    fn resubscribe(self: Arc<Self>, backend: BackendId);

    /// Notes the session that the link has at the backend.
    fn note_backend_session(&self, backend: &BackendId, session: Option<BackendSession>);
}

/// True when both are one client.
pub(super) fn is_same(one: &Weak<dyn LinkClient>, other: &Arc<impl LinkClient + 'static>) -> bool {
    std::ptr::addr_eq(one.as_ptr(), Arc::as_ptr(other))
}
