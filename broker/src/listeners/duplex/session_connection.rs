//! A session and the connection it lives on. Dropping the connection ends the session, or begins the time in which its client may
//! resume it.

use std::{convert::Infallible, sync::Arc};

use crate::{
    auth::{self, CredentialExpiry},
    broker::Broker,
    limits::LAST_FRAMES_WAIT,
    listeners::tls_acceptor::CertificateCaller,
    sessions::{session::Session, stream::EventStream, tenant::ConnectionPermit},
};

/// A session and the connection it lives on.
pub(in crate::listeners) struct SessionConnection {
    broker: Arc<Broker>,
    pub(super) session: Arc<Session>,
    /// Its client was told that there is one.
    pub(super) is_known: bool,
    _place: Arc<ConnectionPermit>,
    /// Until when it is its client's by what was shown for the connection.
    pub(super) until: Option<CredentialExpiry>,
}

/// A session that can be resumed waits for its client; any other ends here at the latest.
impl Drop for SessionConnection {
    fn drop(&mut self) {
        if !self.is_known {
            return self.leave("its client never got it");
        }
        if self.session.ends_with_connection() {
            return self.leave("its connection ended");
        }
        if self.session.is_leaving() {
            return;
        }
        let (broker, session) = (Arc::downgrade(&self.broker), self.session.clone());
        let (window, connections) =
            (session.shared.config.session.resume, session.connection_count());
        tokio::spawn(async move {
            tokio::time::sleep(window).await;
            let alone = !session.is_leaving() && session.is_disconnected_since(connections);
            if let Some(broker) = broker.upgrade().filter(|_| alone) {
                broker.close_session(&session, "its client did not come back");
            }
        });
    }
}

impl SessionConnection {
    pub(super) fn new(
        broker: Arc<Broker>,
        session: Arc<Session>,
        place: Arc<ConnectionPermit>,
        until: Option<CredentialExpiry>,
    ) -> Self {
        Self { broker, session, is_known: false, _place: place, until }
    }

    /// Of a client that goes on with its session.
    pub(in crate::listeners) fn again(
        broker: Arc<Broker>,
        session: Arc<Session>,
        place: Arc<ConnectionPermit>,
        until: Option<CredentialExpiry>,
    ) -> Self {
        let mut seat = Self::new(broker, session, place, until);
        seat.is_known = true;
        seat
    }

    /// Ends the session when the certificate it was opened with is good no longer; the client is told goodbye as for any other end.
    pub(super) async fn outlived(&self, certified: Option<CertificateCaller>) -> Infallible {
        // A key that was shown comes before a certificate.
        if let Some(certified) =
            certified.filter(|certified| *certified.caller() == self.session.caller)
        {
            // Boxed: next to nobody has one.
            Box::pin(certified.outlived()).await;
            self.leave("the certificate it was opened with is good no longer");
        }
        std::future::pending().await
    }

    /// Asks for the end of the connection when the token that was shown for it is good no longer. A session that its client can come
    /// back to, with another token, stays. Resolves when that was not done in time.
    pub(super) async fn expired(&self, outbox: &EventStream) {
        auth::outlived(self.until).await;
        tracing::debug!(session = %self.session.digest, "the token of a connection has expired");
        if self.session.ends_with_connection() {
            self.leave("the token it was opened with has expired");
        } else {
            outbox.pause();
        }
        tokio::time::sleep(LAST_FRAMES_WAIT).await;
    }

    pub(super) fn leave(&self, why: &str) {
        if !self.session.is_leaving() {
            self.broker.close_session(&self.session, why);
        }
    }
}
