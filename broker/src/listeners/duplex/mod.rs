//! The data plane over duplex connections: one connection carries the messages of a session in both
//! directions.
//!
//! [`serve`] runs such a connection on every wire: it opens a session ([`handshake`]), exchanges
//! messages ([`session_io`]), and closes the connection with a reason. It is generic over the two
//! frame traits. Each wire has a file that accepts its connections.

mod authenticate;
mod handshake;
mod incoming;
pub mod quic;
mod read_errors;
mod reply_stream;
mod session_connection;
mod session_io;
mod slow_reader;
mod stateless;
mod stream_requests;
pub mod tcp;

use std::{pin::Pin, sync::Arc, time::Duration};

use rules::limits::{HALF_CLOSED_MAX, LAST_FRAMES_WAIT};
use tokio::{sync::Notify, task::coop::unconstrained};
use tokio_util::sync::CancellationToken;
use transport::frame::{CloseReason, FrameSink, FrameSource, close_gracefully};

pub(super) use self::{
    authenticate::acquire_connection,
    incoming::{ConnectionParams, IncomingConnection},
    read_errors::unfinished_overload,
    session_connection::SessionConnection,
};
use self::{handshake::HandshakeOutcome, session_io::ReadOutcome};
use crate::{
    auth::CredentialExpiry,
    broker::Broker,
    listeners::tls_acceptor::CertificateCaller,
    sessions::{session::outbox, shared::Shared, stream::StreamCursor},
};

/// Serves one connection until it closes.
///
/// The two halves are borrowed and rare work is boxed: a waiting connection keeps the memory of
/// everything that its future may hold.
pub(super) async fn serve(
    broker: Arc<Broker>,
    incoming: IncomingConnection,
    source: &mut impl FrameSource,
    sink: &mut impl FrameSink,
    stop: CancellationToken,
) {
    let close_reason = match open(&broker, &incoming, source, sink, &stop).await {
        Ok(OpenedConnection::Session(session_connection, outbox)) => {
            let certified = incoming.certified;
            return run_session(session_connection, outbox, source, sink, certified).await;
        }
        Ok(OpenedConnection::Stateless(first)) => {
            let dispatcher = stateless::RequestDispatcher::new(broker, incoming, stop);
            Box::pin(dispatcher.run(*first, source, sink)).await
        }
        Err(close_reason) => Some(close_reason),
    };
    if let Some(close_reason) = close_reason {
        Box::pin(close_gracefully(source, sink, close_reason)).await;
    }
}

/// Outcome of the opening of a connection.
enum OpenedConnection {
    /// A session, and the stream of messages to its client.
    Session(SessionConnection, StreamCursor),
    /// First request of a stateless client.
    Stateless(Box<protocol::envelope::Message>),
}

/// Opens a session within its time limit. Returns it with the stream of messages to its client.
async fn open(
    broker: &Arc<Broker>,
    incoming: &IncomingConnection,
    source: &mut impl FrameSource,
    sink: &mut impl FrameSink,
    stop: &CancellationToken,
) -> Result<OpenedConnection, CloseReason> {
    let limit = broker.shared.config.timeouts.handshake;
    let outcome = tokio::select! {
        biased;
        // Boxed: an idle connection would otherwise keep the memory of its opening for its whole
        // life.
        opened = Box::pin(handshake::open_session(broker, incoming, source, sink)) => opened?,
        () = stop.cancelled() => return Err(CloseReason::GoingAway),
        () = tokio::time::sleep(limit) => {
            tracing::debug!(transport = incoming.transport.name(), "the client opened no session in time");
            return Err(CloseReason::Policy);
        }
    };
    match outcome {
        HandshakeOutcome::Stateless(first) => Ok(OpenedConnection::Stateless(first)),
        HandshakeOutcome::Session(session_connection, sent_count) => {
            let outbox = outbox::open(&session_connection.session, Some(sent_count))
                .ok_or(CloseReason::GoingAway)?;
            Ok(OpenedConnection::Session(session_connection, outbox))
        }
    }
}

/// Exchanges messages until one side ends, and closes the connection with a reason.
pub(super) async fn run_session(
    session_connection: SessionConnection,
    mut outbox: StreamCursor,
    source: &mut impl FrameSource,
    sink: &mut impl FrameSink,
    certified: Option<CertificateCaller>,
) {
    let stream = outbox.stream.clone();
    let close_reason = tokio::select! {
        biased;
        close_reason = drive_session(&session_connection, &mut outbox, source, sink) => close_reason,
        never = session_connection.outlived(certified) => match never {},
        () = session_connection.expired(&stream) => None,
    };
    if let Some(close_reason) = close_reason {
        let close_reason =
            if session_connection.until.as_ref().is_some_and(CredentialExpiry::is_ended) {
                CloseReason::Policy
            } else {
                close_reason
            };
        drop((outbox, session_connection));
        Box::pin(close_gracefully(source, sink, close_reason)).await;
    }
}

/// Returns the close reason, or `None` if the connection can no longer carry one.
async fn drive_session(
    session_connection: &SessionConnection,
    outbox: &mut StreamCursor,
    source: &mut impl FrameSource,
    sink: &mut impl FrameSink,
) -> Option<CloseReason> {
    let (session, stream, capacity_freed) =
        (&session_connection.session, outbox.stream.clone(), Notify::new());
    session_connection.record_reader(outbox);
    let calls = session_io::InFlightCalls::default();
    let writing = async {
        tokio::select! {
            biased;
            never = calls.drive(&stream) => match never {},
            // Unconstrained: the budget that the calls used in this turn must not delay their
            // answers.
            close_reason = unconstrained(session_io::write(session, outbox, sink, &capacity_freed)) => close_reason,
        }
    };
    tokio::pin!(writing);
    // One wake-up of the task starts the requests that it reads, and writes the answers that are
    // then ready.
    let outcome = tokio::select! {
        biased;
        // Unconstrained too: the reader yields by itself, and must not use the budget of the calls.
        outcome = unconstrained(session_io::read(session, &stream, source, &capacity_freed, &calls)) => outcome,
        close_reason = &mut writing => return close_reason,
    };
    let close_reason = match outcome {
        ReadOutcome::Disconnected => return None,
        // The client may resume on another connection.
        ReadOutcome::Fault(close_reason) if !session.transport.ends_with_connection() => {
            return Some(close_reason);
        }
        ReadOutcome::Fault(close_reason) => close_reason,
        // On a wire without half-closed connections, the client has ended the session.
        ReadOutcome::HalfClosed if !session.transport.ends_with_connection() => {
            session_connection.close_session("its client ended it");
            return Some(CloseReason::Done);
        }
        ReadOutcome::HalfClosed => {
            return Box::pin(finish_half_closed(session_connection, &capacity_freed, writing))
                .await;
        }
    };
    session_connection.close_session("its client ended it");
    with_timeout(LAST_FRAMES_WAIT, writing).await.map(|_over| close_reason)
}

/// Answers a client that closed its sending half, and ends its session. Returns the close reason, or
/// `None` if the connection can no longer carry one.
async fn finish_half_closed(
    session_connection: &SessionConnection,
    capacity_freed: &Notify,
    mut writing: Pin<&mut impl Future<Output = Option<CloseReason>>>,
) -> Option<CloseReason> {
    let session = &session_connection.session;
    tokio::select! {
        biased;
        close_reason = &mut writing => return close_reason,
        () = session_io::wait_idle(session, capacity_freed) => {}
        () = tokio::time::sleep(HALF_CLOSED_MAX) => {}
    }
    session_connection.close_session("its client ended it");
    tokio::select! {
        biased;
        written = writing => written.map(|_over| CloseReason::Done),
        () = reading_over(&session.shared) => None,
    }
}

/// Resolves when a client that closed its sending half has had the time to read its last answers. A
/// slow client gets all the time it needs while it reads something: a stalled write ends by itself.
async fn reading_over(shared: &Shared) {
    let drained = async {
        shared.shutdown.draining.cancelled().await;
        tokio::time::sleep(LAST_FRAMES_WAIT).await;
    };
    let _drained = tokio::time::timeout(shared.config.session.idle, drained).await;
}

/// Resolves when the last answers of a connection have had their time. In a drain it begins with the
/// end of the grace period: until then, another replica may run a request.
async fn answers_over(
    grace_over: &CancellationToken,
    close_reason: Option<CloseReason>,
    limit: Duration,
) {
    if close_reason == Some(CloseReason::GoingAway) {
        grace_over.cancelled().await;
    }
    tokio::time::sleep(limit).await;
}

/// Returns `None` after the limit, or if `work` returns `None`.
async fn with_timeout<T>(limit: Duration, work: impl Future<Output = Option<T>>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok().flatten()
}
