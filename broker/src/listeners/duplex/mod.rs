//! The data plane over connections that are sessions: a client's messages come in, and everything for it goes out, on one
//! connection.
//!
//! [`serve`] is the life of such a connection, whatever wire it has: a session is opened ([`handshake`]), spoken with
//! ([`session_io`]), and ended with a goodbye. Generic over the two frame traits; each wire has a file that accepts.

mod handshake;
pub mod quic;
mod session_io;
mod stateless;
pub mod tcp;

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio::task::coop::unconstrained;
use tokio_util::sync::CancellationToken;
use transport::frame::{CloseReason, FrameSink, FrameSource, farewell};

pub(super) use self::handshake::place;
use self::{handshake::HandshakeOutcome, session_io::ReadOutcome};
use crate::{
    actors::{
        session::Session,
        stream::{EventStream, StreamCursor},
        tenant::ConnectionPermit,
    },
    auth::{self, Caller, CredentialExpiry, RemotePeer},
    broker::Broker,
    limits::{HALF_CLOSED_MAX, LAST_FRAMES_WAIT},
    listeners::tls_acceptor::CertificateCaller,
    rules::endpoint::Endpoint,
};

/// Who is at the other end, as far as the wire says.
#[derive(Debug)]
pub(super) struct IncomingConnection {
    pub(super) transport: &'static str,
    /// For whom its certificate speaks.
    pub(super) certified: Option<CertificateCaller>,
    pub(super) remote: RemotePeer,
    /// Said before the first message.
    pub(super) known: Option<ConnectionParams>,
}

/// What a client has said before the first message.
#[derive(Debug)]
pub(super) struct ConnectionParams {
    pub(super) caller: Caller,
    /// Until when that is so.
    pub(super) until: Option<CredentialExpiry>,
    pub(super) endpoint: Endpoint,
    /// On another connection, by its session's id.
    pub(super) can_come_back: bool,
    /// The connection's, among those of its tenant.
    pub(super) place: Arc<ConnectionPermit>,
}

/// Serves one connection to its end.
pub(super) async fn serve<Source, Sink>(
    broker: Arc<Broker>,
    guest: IncomingConnection,
    mut source: Source,
    mut sink: Sink,
    stop: CancellationToken,
) where
    Source: FrameSource,
    Sink: FrameSink,
{
    match opened(&broker, &guest, &mut source, &mut sink, &stop).await {
        Ok(OpenedConnection::Session(seat, outbox)) => {
            let certified = guest.certified;
            converse(seat, outbox, source, sink, certified).await;
        }
        Ok(OpenedConnection::Stateless(first)) => {
            let desk = stateless::RequestDispatcher::new(broker, guest, stop);
            if let Some(goodbye) = desk.converse(*first, &mut source, &mut sink).await {
                farewell(&mut source, &mut sink, goodbye).await;
            }
        }
        Err(goodbye) => farewell(&mut source, &mut sink, goodbye).await,
    }
}

/// How a connection goes on.
enum OpenedConnection {
    /// With a session and its client's stream.
    Session(SessionConnection, StreamCursor),
    /// Without one: this is its first request.
    Stateless(Box<protocol::envelope::Message>),
}

/// A session within the time for it, and its client's stream.
async fn opened(
    broker: &Arc<Broker>,
    guest: &IncomingConnection,
    source: &mut impl FrameSource,
    sink: &mut impl FrameSink,
    stop: &CancellationToken,
) -> Result<OpenedConnection, CloseReason> {
    let limit = broker.shared.config.timeouts.handshake;
    let begun = tokio::select! {
        biased;
        // Boxed: an idle connection would otherwise keep room for its opening for as long as it lives.
        opened = Box::pin(handshake::session(broker, guest, source, sink)) => opened?,
        () = stop.cancelled() => return Err(CloseReason::GoingAway),
        () = tokio::time::sleep(limit) => {
            tracing::debug!(transport = guest.transport, "no session was opened in time");
            return Err(CloseReason::Policy);
        }
    };
    match begun {
        HandshakeOutcome::Modern(first) => Ok(OpenedConnection::Stateless(first)),
        HandshakeOutcome::Session(seat, said) => {
            let outbox = seat.session.open_outbox(Some(said)).ok_or(CloseReason::GoingAway)?;
            Ok(OpenedConnection::Session(seat, outbox))
        }
    }
}

/// Speaks until one side has had enough, and says goodbye.
pub(super) async fn converse(
    seat: SessionConnection,
    mut outbox: StreamCursor,
    mut source: impl FrameSource,
    mut sink: impl FrameSink,
    certified: Option<CertificateCaller>,
) {
    let stream = outbox.stream.clone();
    let spoken = tokio::select! {
        biased;
        goodbye = speak(&seat, &mut outbox, &mut source, &mut sink) => goodbye,
        never = seat.outlived(certified) => match never {},
        () = seat.expired(&stream) => None,
    };
    if let Some(goodbye) = spoken {
        let goodbye = if seat.until.is_some_and(CredentialExpiry::is_past) {
            CloseReason::Policy
        } else {
            goodbye
        };
        drop((outbox, seat));
        farewell(&mut source, &mut sink, goodbye).await;
    }
}

/// `None`: the connection is beyond goodbyes.
async fn speak(
    seat: &SessionConnection,
    outbox: &mut StreamCursor,
    source: &mut impl FrameSource,
    sink: &mut impl FrameSink,
) -> Option<CloseReason> {
    let (session, stream, room) =
        (&seat.session, outbox.stream.clone(), tokio::sync::Notify::new());
    let calls = session_io::InFlightCalls::default();
    let writing = async {
        tokio::select! {
            biased;
            never = calls.carried_out(&stream) => match never {},
            // What the calls did in this turn is not held against what they are to be answered with.
            goodbye = unconstrained(session_io::write(session, outbox, sink, &room)) => goodbye,
        }
    };
    tokio::pin!(writing);
    // What is read is begun, and what is answered by then written, with the same waking.
    let silence = tokio::select! {
        biased;
        // Nor is what was read, which ends by itself after a while, against the calls.
        silence = unconstrained(session_io::read(session, &stream, source, &room, &calls)) => silence,
        goodbye = &mut writing => return goodbye,
    };
    let goodbye = match silence {
        ReadOutcome::Disconnected => return None,
        // The client may come back, on another connection.
        ReadOutcome::Fault(goodbye) if !session.ends_with_connection() => return Some(goodbye),
        ReadOutcome::Fault(goodbye) => goodbye,
        // On a wire without half-closed connections that was the client's goodbye.
        ReadOutcome::HalfClosed if !session.ends_with_connection() => {
            seat.leave("its client ended it");
            return Some(CloseReason::Done);
        }
        // A client that closed its sending half still wants its answers.
        ReadOutcome::HalfClosed => {
            tokio::select! {
                biased;
                goodbye = &mut writing => return goodbye,
                () = session_io::at_rest(session, &room) => {}
                () = tokio::time::sleep(HALF_CLOSED_MAX) => {}
            }
            seat.leave("its client ended it");
            // As slow as it is, as long as it takes something: a write that gets nowhere ends by itself, and so does a drain.
            let drained = async {
                session.shared.draining.cancelled().await;
                tokio::time::sleep(LAST_FRAMES_WAIT).await;
            };
            return tokio::select! {
                biased;
                written = in_time(session.shared.config.session.idle, writing) => written.map(|_over| CloseReason::Done),
                () = drained => None,
            };
        }
    };
    seat.leave("its client ended it");
    in_time(LAST_FRAMES_WAIT, writing).await.map(|_over| goodbye)
}

/// `None` when it takes too long, or when it says so itself.
async fn in_time<T>(limit: Duration, work: impl Future<Output = Option<T>>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok().flatten()
}

/// A session and the connection it lives on.
pub(super) struct SessionConnection {
    broker: Arc<Broker>,
    session: Arc<Session>,
    /// Its client was told that there is one.
    is_known: bool,
    _place: Arc<ConnectionPermit>,
    /// Until when it is its client's by what was shown for the connection.
    until: Option<CredentialExpiry>,
}

impl SessionConnection {
    fn new(
        broker: Arc<Broker>,
        session: Arc<Session>,
        place: Arc<ConnectionPermit>,
        until: Option<CredentialExpiry>,
    ) -> Self {
        Self { broker, session, is_known: false, _place: place, until }
    }

    /// Of a client that goes on with its session.
    pub(super) fn again(
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
    async fn outlived(&self, certified: Option<CertificateCaller>) -> Infallible {
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
    async fn expired(&self, outbox: &EventStream) {
        auth::outlived(self.until).await;
        tracing::debug!(session = %self.session.digest, "the token of a connection has expired");
        if self.session.ends_with_connection() {
            self.leave("the token it was opened with has expired");
        } else {
            outbox.pause();
        }
        tokio::time::sleep(LAST_FRAMES_WAIT).await;
    }

    fn leave(&self, why: &str) {
        if !self.session.is_leaving() {
            self.broker.close_session(&self.session, why);
        }
    }
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
