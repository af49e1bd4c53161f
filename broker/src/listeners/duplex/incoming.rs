//! A connection before its first message: its transport, its certificate, and what its client has said on another way.

use std::sync::Arc;

use crate::{
    auth::{Caller, CredentialExpiry, RemotePeer},
    listeners::tls_acceptor::CertificateCaller,
    rules::{client_transport::Transport, endpoint::Endpoint},
    sessions::tenant::ConnectionPermit,
};

/// A connection, and who is at its other end as far as the transport says.
#[derive(Debug)]
pub(in crate::listeners) struct IncomingConnection {
    pub(in crate::listeners) transport: Transport,
    /// The caller that its certificate names.
    pub(in crate::listeners) certified: Option<CertificateCaller>,
    pub(in crate::listeners) remote: RemotePeer,
    /// What the client has said before the first message.
    pub(in crate::listeners) known: Option<ConnectionParams>,
}

/// What a client has said before the first message.
#[derive(Debug)]
pub(in crate::listeners) struct ConnectionParams {
    pub(in crate::listeners) caller: Caller,
    /// When the credential expires.
    pub(in crate::listeners) until: Option<CredentialExpiry>,
    pub(in crate::listeners) endpoint: Endpoint,
    /// True when it can resume its session on another connection, by the session id.
    pub(in crate::listeners) can_come_back: bool,
    /// The connection's permit among those of its tenant.
    pub(in crate::listeners) place: Arc<ConnectionPermit>,
}
