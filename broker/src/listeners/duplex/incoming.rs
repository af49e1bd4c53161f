//! A connection before its first message: its transport, its certificate, and the parameters from
//! an HTTP request.

use std::sync::Arc;

use rules::{client_transport::Transport, endpoint::Endpoint};

use crate::{
    auth::{Caller, CredentialExpiry, RemotePeer},
    listeners::tls_acceptor::CertificateCaller,
    sessions::tenant::SharedPermit,
};

/// A new connection, with its peer as far as the transport identifies it.
#[derive(Debug)]
pub(in crate::listeners) struct IncomingConnection {
    pub(in crate::listeners) transport: Transport,
    /// Caller that its certificate names.
    pub(in crate::listeners) certified: Option<CertificateCaller>,
    pub(in crate::listeners) remote: RemotePeer,
    /// Parameters that the client has sent before the first message.
    pub(in crate::listeners) known: Option<ConnectionParams>,
}

/// Parameters that a client has sent before the first message.
#[derive(Debug)]
pub(in crate::listeners) struct ConnectionParams {
    pub(in crate::listeners) caller: Caller,
    /// Expiry time of the credential.
    pub(in crate::listeners) until: Option<CredentialExpiry>,
    pub(in crate::listeners) endpoint: Endpoint,
    /// True if the client can resume its session on another connection, by the session id.
    pub(in crate::listeners) can_come_back: bool,
    /// Permit among the connections of its tenant.
    pub(in crate::listeners) permit: Arc<SharedPermit>,
}
