//! From the first message of a connection to its session: who the client is, which endpoint it wants, the handshake.
//!
//! A client that has no HTTP header to say so says both in the `_meta` of `initialize`: `dev.mcp-broker/token` and
//! `dev.mcp-broker/backend` ([`super::authenticate`]). A client that can come back is told its session's id in the
//! `_meta` of the answer, one of QUIC that requests may have streams of their own.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message, Rejection},
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    json,
    method::Method,
    splice::Splice,
};
use transport::frame::{CloseReason, FrameSink, FrameSource};

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
    limits::FIRST_MESSAGE_BYTES_MAX,
    listeners::stateless::{StatelessOutcome, admitted, no_sessions, react},
    metrics::{Direction, Side},
    rules::client_transport::Transport,
    sessions::session::Session,
};

const SESSION: &str = "dev.mcp-broker/session";

/// Reads until a session is open and its client knows; otherwise the way to end the connection. The session has its seat
/// before its client is told: a connection that breaks in between leaves none behind. Beside it, how many messages the client
/// was sent so far. A client whose requests stand alone has no session: its first request goes to [`super::stateless`].
pub(super) async fn session(
    broker: &Arc<Broker>,
    guest: &IncomingConnection,
    source: &mut impl FrameSource,
    sink: &mut impl FrameSink,
) -> Result<HandshakeOutcome, CloseReason> {
    let limits = json::Limits {
        bytes_max: broker.shared.config.limits.message_bytes,
        ..json::Limits::default()
    };
    let message_bytes_max = limits.bytes_max;
    source.allow(
        message_bytes_max.min(FIRST_MESSAGE_BYTES_MAX),
        Some(&broker.shared.unauthenticated_messages),
    );
    let mut said = 0;
    loop {
        let frame = match source.next().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return Err(CloseReason::Done),
            Err(error) => {
                if let Some(refusal) = refusal_of(&error) {
                    say(broker, sink, refused(broker, &refusal, None)).await?;
                }
                return Err(error.goodbye());
            }
        };
        broker.shared.metrics.bytes(Direction::In, Side::Client, frame.len());
        let (answer, ended) = match Message::decode(frame, &limits) {
            Ok(message) => match answered(broker, guest, &message).await {
                HandshakeReply::Session(mut seat, frame) => {
                    say(broker, sink, frame).await?;
                    seat.is_known = true;
                    source.allow(message_bytes_max, None);
                    return Ok(HandshakeOutcome::Session(seat, said + 1));
                }
                HandshakeReply::Stateless => {
                    source.allow(message_bytes_max, None);
                    return Ok(HandshakeOutcome::Stateless(Box::new(message)));
                }
                HandshakeReply::Frame(frame) => (frame, None),
                HandshakeReply::Goodbye(frame) => (frame, Some(CloseReason::Policy)),
                HandshakeReply::None => continue,
            },
            // A page in somebody's browser can send any text to a port of this machine, as the body of a request whose head
            // comes first: the connection must be over before the body is looked at.
            Err(Rejection { refusal, id, .. }) => {
                (refused(broker, &refusal, id.as_ref()), Some(CloseReason::Protocol))
            }
        };
        say(broker, sink, answer).await?;
        said += 1;
        if let Some(goodbye) = ended {
            return Err(goodbye);
        }
    }
}

/// How a connection begins.
pub(super) enum HandshakeOutcome {
    /// Its session, and how many messages its client was sent so far.
    Session(SessionConnection, u64),
    /// Its requests stand alone; this is the first.
    Stateless(Box<Message>),
}

/// What comes of a message before there is a session.
enum HandshakeReply {
    Stateless,
    Session(SessionConnection, Bytes),
    Frame(Bytes),
    /// The last one.
    Goodbye(Bytes),
    None,
}

async fn answered(
    broker: &Arc<Broker>,
    guest: &IncomingConnection,
    message: &Message,
) -> HandshakeReply {
    let Some(id) = message.id.as_ref().filter(|_| message.kind == Kind::Request) else {
        return HandshakeReply::None;
    };
    let eras = broker.shared.config.compat.eras;
    let refusal = match message.method {
        // After it a client may still decide for a session.
        Method::ServerDiscover => match answer_discover(broker, guest, message).await {
            Ok(answer) => return HandshakeReply::Frame(with_streams(guest, answer)),
            Err(refusal) if is_of_sign_in(&refusal) => {
                return HandshakeReply::Goodbye(refused(broker, &refusal, Some(id)));
            }
            Err(refusal) => refusal,
        },
        // Strangers get neither more time nor larger messages.
        _ if message.is_modern() && eras.has_modern() => {
            match authenticate(broker, guest, message).await {
                Ok(_) => return HandshakeReply::Stateless,
                Err(refusal) => {
                    return HandshakeReply::Goodbye(refused(broker, &refusal, Some(id)));
                }
            }
        }
        _ if message.is_modern() => stateless_unsupported(),
        Method::Initialize if !eras.has_sessions() => no_sessions(message),
        Method::Initialize => match opened(broker, guest, message).await {
            Ok((seat, result)) => {
                return HandshakeReply::Session(
                    seat,
                    with_streams(guest, handshake::success(id, &result)),
                );
            }
            // Whoever guesses keys has to connect for each of them.
            Err(refusal) if is_of_sign_in(&refusal) => {
                return HandshakeReply::Goodbye(refused(broker, &refusal, Some(id)));
            }
            Err(refusal) => refusal,
        },
        // MCP 2025-11-25, Lifecycle: the one request that may come before.
        Method::Ping => return HandshakeReply::Frame(handshake::success(id, b"{}")),
        _ => Refusal::new(
            ErrorKind::SessionRequired,
            "there is no session yet: open one with initialize",
        ),
    };
    HandshakeReply::Frame(refused(broker, &refusal, Some(id)))
}

async fn opened(
    broker: &Arc<Broker>,
    guest: &IncomingConnection,
    message: &Message,
) -> Result<(SessionConnection, Bytes), Refusal> {
    if let Some(ConnectionParams { caller, until, endpoint, can_come_back, place }) = &guest.known {
        let (session, result) =
            broker.open_session(caller.clone(), endpoint.clone(), guest.transport, message).await?;
        let result = if *can_come_back { with_session_id(&result, &session) } else { result };
        return Ok((
            SessionConnection::new(broker.clone(), session, place.clone(), *until),
            result,
        ));
    }
    let (AuthenticatedCaller { caller, until }, endpoint) =
        authenticate_initialize(broker, guest, message).await?;
    let place = acquire_connection(broker, &caller)?;
    let (session, result) = broker.open_session(caller, endpoint, guest.transport, message).await?;
    Ok((SessionConnection::new(broker.clone(), session, place, until), result))
}

/// Tells a client the id by which it finds its session again.
fn with_session_id(result: &Bytes, session: &Session) -> Bytes {
    let members = result.strip_prefix(b"{").unwrap_or(result);
    [
        format!("{{\"_meta\":{{\"{SESSION}\":{}}},", json::quote(session.id.as_str())).as_bytes(),
        members,
    ]
    .concat()
    .into()
}

/// Tells a client of QUIC that its requests may have streams of their own.
fn with_streams(guest: &IncomingConnection, answer: Bytes) -> Bytes {
    if guest.transport != Transport::Quic {
        return answer;
    }
    match Message::decode(
        answer.clone(),
        &json::Limits { bytes_max: answer.len(), ..json::Limits::default() },
    ) {
        Ok(message) => Splice::new(&answer).set_meta(&message, STREAMS, b"true").finish(),
        Err(_) => answer,
    }
}

fn refused(broker: &Broker, refusal: &Refusal, id: Option<&RequestId>) -> Bytes {
    let request_id = broker.shared.note_refusal(refusal, None, None);
    refusal.to_response(id, &request_id)
}

async fn say(broker: &Broker, sink: &mut impl FrameSink, frame: Bytes) -> Result<(), CloseReason> {
    broker.shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
    sink.send_all(&mut vec![frame]).await.map_err(|_| CloseReason::Done)
}

/// The answer to `server/discover` before it is known how a connection goes on.
async fn answer_discover(
    broker: &Arc<Broker>,
    guest: &IncomingConnection,
    message: &Message,
) -> Result<Bytes, Refusal> {
    let AuthenticatedClient { visitor, .. } = authenticate(broker, guest, message).await?;
    match react(broker, &visitor, admitted(broker, message.clone())?).await? {
        StatelessOutcome::Answer(frame) => Ok(frame),
        _ => Err(Refusal::new(ErrorKind::Internal, "nothing was discovered")),
    }
}
