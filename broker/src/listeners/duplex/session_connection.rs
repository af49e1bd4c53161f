//! A session with its connection. A drop of the connection ends the session, or starts the time in
//! which its client may resume it.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rules::limits::LAST_FRAMES_WAIT;

use crate::{
    auth::{self, Caller, CredentialExpiry},
    broker::Broker,
    listeners::tls_acceptor::CertificateCaller,
    sessions::{
        session::{Session, outbox},
        stream::{EventStream, StreamCursor},
        tenant::SharedPermit,
    },
};

/// A session with its connection.
pub(in crate::listeners) struct SessionConnection {
    broker: Arc<Broker>,
    pub(super) session: Arc<Session>,
    /// Set when the client has received the answer to `initialize`.
    pub(super) is_known: bool,
    /// True if the client showed an API key for the connection, which has precedence over its
    /// certificate.
    shows_key: bool,
    _permit: Arc<SharedPermit>,
    /// Expiry time of the credential that the client showed for the connection.
    pub(super) until: Option<CredentialExpiry>,
    /// Number of the connection's reader among those of the session. 0: it has none yet.
    reader: AtomicU64,
}

/// A session that can be resumed waits for its client. Any other session ends here at the latest.
impl Drop for SessionConnection {
    fn drop(&mut self) {
        if !self.is_known {
            return self.close_session("its client never received the session");
        }
        if self.session.transport.ends_with_connection() {
            return self.close_session("its connection ended");
        }
        if self.session.is_leaving() {
            return;
        }
        let (broker, session) = (Arc::downgrade(&self.broker), self.session.clone());
        let window = session.shared.config.session.resume;
        // A later connection has its own time, also if it displaced this one.
        let connections = match self.reader.load(Ordering::Relaxed) {
            0 => outbox::connection_count(&session),
            reader => reader,
        };
        tokio::spawn(async move {
            tokio::time::sleep(window).await;
            let alone =
                !session.is_leaving() && outbox::is_disconnected_since(&session, connections);
            if let Some(broker) = broker.upgrade().filter(|_| alone) {
                broker.close_abandoned(&session);
            }
        });
    }
}

impl SessionConnection {
    pub(super) fn new(
        broker: Arc<Broker>,
        session: Arc<Session>,
        permit: Arc<SharedPermit>,
        until: Option<CredentialExpiry>,
    ) -> Self {
        let shows_key = session.caller.key.is_some();
        let reader = AtomicU64::new(0);
        Self { broker, session, is_known: false, shows_key, _permit: permit, until, reader }
    }

    /// Notes the reader of the connection.
    pub(super) fn record_reader(&self, outbox: &StreamCursor) {
        self.reader.store(outbox.generation(), Ordering::Relaxed);
    }

    /// Attaches a resumed session to a new connection of a caller. The connection may end before it
    /// reads from `outbox`, such as in its upgrade to a WebSocket.
    pub(in crate::listeners) fn again(
        broker: Arc<Broker>,
        (session, outbox): (Arc<Session>, &StreamCursor),
        caller: &Caller,
        permit: Arc<SharedPermit>,
        until: Option<CredentialExpiry>,
    ) -> Self {
        let mut session_connection = Self::new(broker, session, permit, until);
        session_connection.record_reader(outbox);
        session_connection.is_known = true;
        session_connection.shows_key = caller.key.is_some();
        session_connection
    }

    /// Ends the session when its certificate is no longer valid. The client gets a close reason as
    /// after any other end.
    pub(super) async fn outlived(&self, certified: Option<CertificateCaller>) -> Infallible {
        let is_shown = |certified: &CertificateCaller| {
            let (of, caller) = (&self.session.caller, certified.caller());
            !self.shows_key && (&caller.tenant, &caller.principal) == (&of.tenant, &of.principal)
        };
        if let Some(certified) = certified.filter(is_shown) {
            // Boxed: few connections have a certificate.
            Box::pin(certified.expired()).await;
            self.close_session("the certificate of its connection is not valid any more");
        }
        std::future::pending().await
    }

    /// Ends the connection when its token expires or is revoked. A session that its client can resume with
    /// another token continues. Resolves if the connection does not end in time.
    pub(super) async fn expired(&self, outbox: &EventStream) {
        auth::credential_expired(self.until.clone()).await;
        tracing::debug!(session = %self.session.digest, "the token of a connection has expired, or was revoked");
        if self.session.transport.ends_with_connection() {
            self.close_session("the token it was opened with has expired, or was revoked");
        } else {
            outbox.pause();
        }
        tokio::time::sleep(LAST_FRAMES_WAIT).await;
    }

    pub(super) fn close_session(&self, reason: &str) {
        if !self.session.is_leaving() {
            self.broker.close_session(&self.session, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::{envelope::Message, json};
    use rules::{client_transport::Transport, endpoint::Endpoint};

    use super::*;
    use crate::{listeners::duplex::acquire_connection, persistence::Stores};

    const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;

    #[tokio::test]
    async fn a_connection_that_hangs_in_its_upgrade_does_not_shorten_the_time_of_a_later_one() {
        let broker = Broker::over(Stores::in_memory().await);
        let caller = Caller::anonymous();
        let request = Message::decode(Bytes::from(INITIALIZE), &json::Limits::default()).unwrap();
        let (transport, endpoint) = (Transport::WebSocket, Endpoint::Aggregated);
        let opened = broker.open_session(caller.clone(), endpoint, transport, &request).await;
        let (session, _) = opened.unwrap();
        let permit = acquire_connection(&broker, &caller).await.unwrap();
        let resumed = || {
            let outbox = outbox::resume(&session, None).unwrap();
            let (session, permit) = ((session.clone(), &outbox), permit.clone());
            let again = SessionConnection::again(broker.clone(), session, &caller, permit, None);
            (again, outbox)
        };
        let (hangs, later) = (resumed(), resumed());
        let window = session.shared.config.session.resume;
        let pass = async |time| {
            tokio::task::yield_now().await; // timers of new tasks begin
            tokio::time::advance(time).await;
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::pause();
        drop(hangs);
        pass(window * 3 / 4).await;
        drop(later);
        pass(window / 2).await;
        assert!(!session.is_leaving(), "the client of the later connection may come back");
        pass(window).await;
        assert!(session.is_leaving());
    }
}
