//! A request after the checks of its head, for POST, GET and DELETE. [`RequestSource`]
//! distinguishes clients from replicas that forward a client's request.

use std::{error::Error, sync::Arc};

use bytes::Bytes;
use http::request::Parts as HeadParts;
use protocol::{envelope::RefusedMessage, error::Refusal};
use rules::endpoint::Endpoint;

use super::{connection_cache::ConnectionCache, request_guard::RequestGuard};
use crate::{
    auth::{Caller, CredentialExpiry, RemotePeer},
    broker::Broker,
    sessions::tenant::Tenant,
};

/// Sender of a request.
#[derive(Clone, Copy)]
pub(in crate::listeners) enum RequestSource<'a> {
    /// A client with its address. It passes the guard, shows a credential, and may be served by
    /// another replica.
    Client(&'a RequestGuard, RemotePeer),
    /// An operator who tries a tool, as a caller that the admin plane has made up. Everything after
    /// sign-in is as for a client.
    Operator(&'a Caller),
    /// Another replica, for a client that it names. That replica itself looks up a session that is
    /// not here.
    Replica,
}

/// Body of a request from any server.
pub(in crate::listeners) trait RequestBody:
    hyper::body::Body<Data = Bytes, Error: Error + 'static> + Send + Unpin
{
}

impl<B: hyper::body::Body<Data = Bytes, Error: Error + 'static> + Send + Unpin> RequestBody for B {}

/// Head of a request, with the cache of its connection.
pub(in crate::listeners) type CachedHead<'a> = (&'a HeadParts, &'a ConnectionCache);

/// A request after the checks of its head, except those of its media types.
pub(in crate::listeners) struct InboundRequest<'a> {
    pub(in crate::listeners) broker: &'a Arc<Broker>,
    pub(in crate::listeners) source: RequestSource<'a>,
    pub(in crate::listeners) caller: Caller,
    /// Tenant of the caller.
    pub(in crate::listeners) tenant: Arc<Tenant>,
    pub(in crate::listeners) endpoint: Endpoint,
    pub(in crate::listeners) head: &'a HeadParts,
    pub(in crate::listeners) cache: &'a ConnectionCache,
    /// End of the caller's credential, if it has one.
    pub(in crate::listeners) until: Option<CredentialExpiry>,
}

/// Refuses a message whose id is unknown.
pub(in crate::listeners) fn refuse_without_id(refusal: Refusal) -> RefusedMessage {
    RefusedMessage::new(refusal, None)
}
