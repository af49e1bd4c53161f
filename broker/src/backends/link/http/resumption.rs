//! Resumption of a session at a backend that an earlier owner of the client's session began. The
//! handshake is skipped and the session id is kept.
//!
//! The handshake result is that of the catalog's connection, if the revision is the same. A backend
//! that forgot the session refuses the first request, which the broker then sends over a new
//! session.

use std::sync::Arc;

use http::HeaderValue;
use protocol::handshake::InitializeResult;
use rules::limits::FIRST_CATALOG_WAIT;

use super::http_wire::HttpWire;
use crate::{
    backends::{
        backend::Backend,
        link::{BackendSession, Era, Link, connection::Connection},
    },
    oauth::TokenSource,
};

/// Resumes the session. Returns `true` if the connection counts as initialised.
pub(super) async fn resume(
    link: &Arc<Link>,
    url: &str,
    wire: &HttpWire,
    connection: &Connection,
) -> bool {
    let Some(resumption) = link.resumption.lock().take() else { return false };
    let session = resumption.session;
    if session.url != url {
        return false; // the backend was replaced meanwhile
    }
    let Some(agreed) = agreement(&link.backend, &session).await else { return false };
    if !wire.adopt_session(&session) {
        return false;
    }
    connection.resume(agreed, resumption.first_wire_id);
    tracing::debug!(tenant = %link.backend.tenant, backend = %link.backend.id, "the broker resumed its session at the backend");
    true
}

async fn agreement(backend: &Backend, session: &BackendSession) -> Option<Arc<InitializeResult>> {
    backend.wait_first_attempt_for(Era::Sessions, FIRST_CATALOG_WAIT).await;
    let server = backend.lists.load_full()?.server.clone();
    (server.version == session.version).then_some(server)
}

impl Link {
    /// Ends a session at a backend that no link has used.
    pub async fn end_unused(backend: Arc<Backend>, session: BackendSession) {
        // Whose session it was is unknown here, so no token may go with its end.
        if backend.tokens.as_ref().is_some_and(TokenSource::is_per_principal) {
            return;
        }
        let wire = HttpWire::to(&backend, None, &session.url);
        let Ok((wire, _nothing_to_send)) = wire.await else { return };
        if backend.has_url(&session.url) && wire.adopt_session(&session) {
            wire.agree_on(session.version);
            wire.delete_session().await;
        }
    }
}

impl HttpWire {
    fn adopt_session(&self, session: &BackendSession) -> bool {
        let Ok(mut id) = HeaderValue::from_str(&session.id) else { return false };
        id.set_sensitive(true);
        self.session.set(id).is_ok()
    }
}
