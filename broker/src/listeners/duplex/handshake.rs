//! Handshake of a connection: authenticates the client, selects the endpoint, and opens the
//! session.
//!
//! Without HTTP headers, a client sends its token and its endpoint in the `_meta` of `initialize`:
//! `dev.mcp-broker/token` and `dev.mcp-broker/backend` ([`super::authenticate`]). A client that can
//! resume gets its session id in the `_meta` of the answer. A QUIC client gets a member that
//! permits a stream for each request.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message, RefusedMessage},
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    json,
    method::Method,
    splice::Splice,
};
use rules::{client_transport::Transport, limits::FIRST_MESSAGE_BYTES_MAX};
use transport::{
    frame::{CloseReason, FrameSink, FrameSource},
    message_bound::MessageBound,
};

use super::{
    authenticate::{
        AuthenticatedClient, acquire_connection, authenticate, authenticate_initialize,
        is_of_sign_in,
    },
    incoming::{ConnectionParams, IncomingConnection},
    read_errors::{refusal_of, stateless_unsupported},
    session_connection::SessionConnection,
};
use crate::{
    auth::AuthenticatedCaller,
    backends::link::request_streams::STREAMS,
    broker::Broker,
    listeners::stateless::{StatelessOutcome, dispatch, parse_request, sessions_unsupported},
    metrics::{Direction, Side},
    sessions::session::Session,
};

const SESSION: &str = "dev.mcp-broker/session";

/// Reads until a session is open and its client has the answer. Returns the close reason otherwise.
///
/// The session has its [`SessionConnection`] before the answer is sent, so a connection that breaks
/// in between leaves no session behind. A stateless client has no session: its first request is
/// passed to [`super::stateless`].
pub(super) async fn open_session(
    broker: &Arc<Broker>,
    incoming: &IncomingConnection,
    source: &mut impl FrameSource,
    sink: &mut impl FrameSink,
) -> Result<HandshakeOutcome, CloseReason> {
    let limits = json::Limits::with_bytes_max(broker.shared.config.limits.message_bytes);
    let message_bytes_max = limits.bytes_max;
    source.set_message_limit(
        message_bytes_max.min(FIRST_MESSAGE_BYTES_MAX),
        Some(&broker.shared.limiters.unauthenticated_messages),
    );
    let mut sent_count = 0;
    loop {
        let frame = match source.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return Err(CloseReason::Done),
            Err(error) => {
                if let Some(refusal) = refusal_of(&error) {
                    send_frame(broker, sink, refused(broker, &refusal, None)).await?;
                }
                return Err(error.close_reason());
            }
        };
        broker.shared.metrics.bytes(Direction::In, Side::Client, frame.len());
        let (answer, ended) = match Message::decode(frame, &limits) {
            Ok(message) => match reply_to(broker, incoming, &message).await {
                HandshakeReply::Session(mut session_connection, frame) => {
                    send_frame(broker, sink, frame).await?;
                    session_connection.is_known = true;
                    source.set_message_limit(message_bytes_max, None);
                    return Ok(HandshakeOutcome::Session(session_connection, sent_count + 1));
                }
                HandshakeReply::Stateless(bound) => {
                    source.set_message_limit(message_bytes_max, None);
                    source.bound_messages(bound);
                    return Ok(HandshakeOutcome::Stateless(Box::new(message)));
                }
                HandshakeReply::Frame(frame) => (frame, None),
                HandshakeReply::FinalFrame(frame) => (frame, Some(CloseReason::Policy)),
                HandshakeReply::None => continue,
            },
            // A web page in a browser can send any text to a local port, as a body after an HTTP
            // head. The connection must end before that body is read.
            Err(RefusedMessage { refusal, id, .. }) => {
                (refused(broker, &refusal, id.as_ref()), Some(CloseReason::Protocol))
            }
        };
        send_frame(broker, sink, answer).await?;
        sent_count += 1;
        if let Some(close_reason) = ended {
            return Err(close_reason);
        }
    }
}

/// Outcome of the handshake.
pub(super) enum HandshakeOutcome {
    /// The session, and the number of messages sent to its client so far.
    Session(SessionConnection, u64),
    /// First request of a stateless client.
    Stateless(Box<Message>),
}

/// Reply to a message before a session is open.
enum HandshakeReply {
    /// The bounds of messages of the client's tenant.
    Stateless(MessageBound),
    Session(SessionConnection, Bytes),
    Frame(Bytes),
    /// Last frame of the connection.
    FinalFrame(Bytes),
    None,
}

async fn reply_to(
    broker: &Arc<Broker>,
    incoming: &IncomingConnection,
    message: &Message,
) -> HandshakeReply {
    let Some(id) = message.id.as_ref().filter(|_| message.kind == Kind::Request) else {
        return HandshakeReply::None;
    };
    let eras = broker.shared.config.compat.eras;
    let refusal = match message.method {
        // The client may still open a session afterwards.
        Method::ServerDiscover => match answer_discover(broker, incoming, message).await {
            Ok(answer) => return HandshakeReply::Frame(with_streams(incoming, answer)),
            Err(refusal) if is_of_sign_in(&refusal) => {
                return HandshakeReply::FinalFrame(refused(broker, &refusal, Some(id)));
            }
            Err(refusal) => refusal,
        },
        // Unauthenticated clients get neither more time nor larger messages.
        _ if message.is_stateless() && eras.has_stateless() => {
            match authenticate(broker, incoming, message).await {
                Ok(known) => {
                    return HandshakeReply::Stateless(known.client.tenant.message_bound());
                }
                Err(refusal) => {
                    return HandshakeReply::FinalFrame(refused(broker, &refusal, Some(id)));
                }
            }
        }
        _ if message.is_stateless() => stateless_unsupported(),
        Method::Initialize if !eras.has_sessions() => sessions_unsupported(message),
        Method::Initialize => match initialize(broker, incoming, message).await {
            Ok((session_connection, result)) => {
                return HandshakeReply::Session(
                    session_connection,
                    with_streams(incoming, handshake::success(id, &result)),
                );
            }
            // A client that guesses keys must reconnect for each of them.
            Err(refusal) if is_of_sign_in(&refusal) => {
                return HandshakeReply::FinalFrame(refused(broker, &refusal, Some(id)));
            }
            Err(refusal) => refusal,
        },
        // MCP 2025-11-25, Lifecycle: the only request that may come before `initialize`.
        Method::Ping => return HandshakeReply::Frame(handshake::success(id, b"{}")),
        _ => Refusal::new(
            ErrorKind::SessionRequired,
            "the connection has no session yet: open one with initialize",
        ),
    };
    HandshakeReply::Frame(refused(broker, &refusal, Some(id)))
}

async fn initialize(
    broker: &Arc<Broker>,
    incoming: &IncomingConnection,
    message: &Message,
) -> Result<(SessionConnection, Bytes), Refusal> {
    if let Some(ConnectionParams { caller, until, endpoint, can_come_back, permit }) =
        &incoming.known
    {
        let (session, result) = broker
            .open_session(caller.clone(), endpoint.clone(), incoming.transport, message)
            .await?;
        let result = if *can_come_back { with_session_id(&result, &session) } else { result };
        return Ok((
            SessionConnection::new(broker.clone(), session, permit.clone(), until.clone()),
            result,
        ));
    }
    let (AuthenticatedCaller { caller, until, .. }, endpoint) =
        authenticate_initialize(broker, incoming, message).await?;
    let permit = acquire_connection(broker, &caller).await?;
    let (session, result) =
        broker.open_session(caller, endpoint, incoming.transport, message).await?;
    Ok((SessionConnection::new(broker.clone(), session, permit, until), result))
}

/// Adds the session id to the result, by which the client can resume its session.
fn with_session_id(result: &Bytes, session: &Session) -> Bytes {
    let members = result.strip_prefix(b"{").unwrap_or(result);
    [
        format!("{{\"_meta\":{{\"{SESSION}\":{}}},", json::quote(session.id.as_str())).as_bytes(),
        members,
    ]
    .concat()
    .into()
}

/// Adds a member to a QUIC client's answer that permits a stream for each request.
fn with_streams(incoming: &IncomingConnection, answer: Bytes) -> Bytes {
    if incoming.transport != Transport::Quic {
        return answer;
    }
    match Message::decode(answer.clone(), &json::Limits::with_bytes_max(answer.len())) {
        Ok(message) => Splice::new(&answer).set_meta(&message, STREAMS, b"true").finish(),
        Err(_) => answer,
    }
}

fn refused(broker: &Broker, refusal: &Refusal, id: Option<&RequestId>) -> Bytes {
    let request_id = broker.shared.record_refusal(refusal, None, None);
    refusal.to_response(id, &request_id)
}

async fn send_frame(
    broker: &Broker,
    sink: &mut impl FrameSink,
    frame: Bytes,
) -> Result<(), CloseReason> {
    broker.shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
    sink.send_all(&mut vec![frame]).await.map_err(|_| CloseReason::Done)
}

/// Answers `server/discover`, before the client has chosen sessions or stateless requests.
async fn answer_discover(
    broker: &Arc<Broker>,
    incoming: &IncomingConnection,
    message: &Message,
) -> Result<Bytes, Refusal> {
    let AuthenticatedClient { client, .. } = authenticate(broker, incoming, message).await?;
    let request = parse_request(broker, message.clone())?;
    broker.shared.metrics.stateless_request();
    match dispatch(broker, &client, request).await? {
        StatelessOutcome::Answer(frame) => Ok(frame),
        _ => Err(Refusal::new(ErrorKind::Internal, "the broker has no answer to server/discover")),
    }
}
