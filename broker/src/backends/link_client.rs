//! Who uses a link: a session, as far as a link knows it.

use std::{
    borrow::Cow,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use protocol::ids::BackendId;

use super::{inbound::Inbound, link::BackendSession};
use crate::rules::event_log::Topic;

/// A client behind a link, which hears what belongs to no request.
pub trait LinkClient: Inbound {
    /// Sends a notification about `topic`, unless the same waits already.
    fn deliver(&self, topic: Topic, frame: Bytes);

    /// A resource of this backend as the client names it. Borrowed where it has the same name there.
    fn exposed_uri<'u>(&self, backend: &BackendId, uri: &'u str) -> Cow<'u, str>;

    /// The backend is to be used over another link: what the client listens to there is subscribed to again.
    fn resubscribe(self: Arc<Self>, backend: BackendId);

    /// Notes the session its link has at the backend, or that it has none.
    fn note_backend_session(&self, backend: &BackendId, session: Option<BackendSession>);
}

/// True when both are one client.
pub(super) fn is_same(one: &Weak<dyn LinkClient>, other: &Arc<impl LinkClient + 'static>) -> bool {
    std::ptr::addr_eq(one.as_ptr(), Arc::as_ptr(other))
}
