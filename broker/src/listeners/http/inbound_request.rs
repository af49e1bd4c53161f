//! A request past the checks of its head, as POST, GET and DELETE get it. [`RequestSource`] is the difference between a client and
//! another replica that asks for one of its clients.

use std::{error::Error, sync::Arc};

use bytes::Bytes;
use http::request::Parts as HeadParts;
use protocol::{envelope::Rejection, error::Refusal};

use super::{connection_cache::ConnectionCache, request_guard::RequestGuard};
use crate::{
    auth::{Caller, RemotePeer},
    broker::Broker,
    rules::endpoint::Endpoint,
};

/// Who sent a request.
#[derive(Clone, Copy)]
pub(in crate::listeners) enum RequestSource<'a> {
    /// A client, at its address: it passes the guard, shows a credential, and may be served by another replica.
    Client(&'a RequestGuard, RemotePeer),
    /// Another replica, for a client that it names. It looks itself for a session that is not here.
    Replica,
}

/// The body of a request, however it is read.
pub(in crate::listeners) trait RequestBody:
    hyper::body::Body<Data = Bytes, Error: Error + 'static> + Send + Unpin
{
}

impl<B: hyper::body::Body<Data = Bytes, Error: Error + 'static> + Send + Unpin> RequestBody for B {}

/// A head, and the cache of its connection.
pub(in crate::listeners) type CachedHead<'a> = (&'a HeadParts, &'a ConnectionCache);

/// A request past the checks of its head, but for its media types.
pub(in crate::listeners) struct InboundRequest<'a> {
    pub(in crate::listeners) broker: &'a Arc<Broker>,
    pub(in crate::listeners) source: RequestSource<'a>,
    pub(in crate::listeners) caller: Caller,
    pub(in crate::listeners) endpoint: Endpoint,
    pub(in crate::listeners) head: &'a HeadParts,
    pub(in crate::listeners) cache: &'a ConnectionCache,
}

/// Rejects a message whose id is not known.
pub(in crate::listeners) fn reject_without_id(refusal: Refusal) -> Rejection {
    Rejection::new(refusal, None)
}
