//! Resumption of a session at a backend that an earlier owner of the client's session began. The
//! handshake is skipped and the session id is kept.
//!
//! The handshake result is that of the catalog's connection, if the revision is the same. A backend
//! that forgot the session refuses the first request, which the broker then sends over a new
//! session.

use std::sync::{Arc, atomic::Ordering};

use http::HeaderValue;
use protocol::handshake::InitializeResult;

use super::http_wire::HttpWire;
use crate::{
    backends::{
        backend::Backend,
        link::{BackendSession, Era, Failure, Link, Resumption, connection::Connection},
    },
    oauth::TokenSource,
};

/// Resumes the session. Returns `true` if the connection counts as initialised. The session stays
/// with the link until the connection is open, for the next attempt if this one is cancelled.
pub(super) async fn resume(
    link: &Arc<Link>,
    url: &str,
    wire: &HttpWire,
    connection: &Connection,
) -> Result<bool, Failure> {
    let Some(Resumption { session, first_wire_id }) = link.resumption.lock().clone() else {
        return Ok(false);
    };
    let agreed = match compare_handshake(&link.backend, &session, url).await {
        HandshakeMatch::Same(agreed) => agreed,
        HandshakeMatch::Unknown => {
            return Err(Failure::NotSent(
                "the broker has to read the lists of the backend before it resumes a session"
                    .to_owned(),
            ));
        }
        HandshakeMatch::Other => {
            link.take_resumption();
            if !link.handed_off.load(Ordering::Relaxed) {
                link.backend.context.running.spawn(Link::end_unused(link.backend.clone(), session));
            }
            return Ok(false);
        }
    };
    if !wire.adopt_session(&session) {
        link.take_resumption();
        return Ok(false);
    }
    connection.resume(agreed, first_wire_id);
    tracing::debug!(tenant = %link.backend.tenant, backend = %link.backend.id, "the broker resumed its session at the backend");
    Ok(true)
}

/// What is known about the handshake of a session that may be resumed.
enum HandshakeMatch {
    /// The backend still answers this.
    Same(Arc<InitializeResult>),
    /// The backend was replaced, or it answers differently now.
    Other,
    /// The catalog could not be read yet.
    Unknown,
}

async fn compare_handshake(
    backend: &Backend,
    session: &BackendSession,
    url: &str,
) -> HandshakeMatch {
    // The lists of such a backend are read by the links of its users.
    let has_catalog = !backend.tokens.as_ref().is_some_and(TokenSource::is_per_principal);
    if session.url != url || !has_catalog {
        return HandshakeMatch::Other;
    }
    backend.wait_first_attempt_for(Era::Sessions, backend.timeouts().initialize).await;
    match backend.lists.load_full() {
        Some(lists) if lists.server.version == session.version => {
            HandshakeMatch::Same(lists.server.clone())
        }
        Some(_) => HandshakeMatch::Other,
        None => HandshakeMatch::Unknown,
    }
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
