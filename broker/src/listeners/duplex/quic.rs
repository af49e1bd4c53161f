//! The data plane over QUIC. The control stream carries a session like a TCP connection. Each
//! further stream of a client carries one request, so a lost packet delays only one exchange
//! (docs/transports.md).

use std::{convert::Infallible, net::IpAddr, sync::Arc};

use bytes::Bytes;
use config::Config;
use protocol::{
    envelope::{Kind, Message, RefusedMessage},
    error::{ErrorKind, Refusal},
    json,
};
use rules::{
    client_transport::Transport,
    limits::{
        CLIENT_WRITE_STALL_MAX, OUTBOX_BATCH_BYTES, OUTBOX_BATCH_FRAMES, QUIC_HANDSHAKES_MAX,
        QUIC_REQUEST_STREAMS_MAX, UNFINISHED_REQUESTS_BYTES_MAX,
    },
};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use transport::{
    FrameSource as _,
    frame::{CloseReason, FrameSink, close_gracefully},
    quic::{
        Cancellation, Limits, QuicConnection, QuicListener, QuicSink, QuicSource, RequestStream,
    },
    tls::ServerTls,
};

use super::{
    OpenedConnection, drive_session,
    incoming::IncomingConnection,
    open,
    read_errors::{refusal_of, stateless_unsupported, unfinished_overload},
    reply_stream::{ReplyStream, StartedRequest},
    slow_reader::{SendFailure, SlowReaderScope, log_slow_reader, send},
    stateless::RequestDispatcher,
    stream_requests::StreamRequests,
};
use crate::{
    broker::Broker,
    listeners::{
        connection_limits::ConnectionLimiter,
        tls_acceptor::CertificateCaller,
        trusted_proxies::{ProxiedListener, ProxyProtocol},
    },
    metrics::{Direction, Side},
    sessions::{
        call::CallFuture,
        session::{Session, notifications, questions},
        shared::Shared,
        stream::{Batch, EventStream, StreamCursor, StreamEnd},
        submit,
    },
};

/// Returns the limits of one connection.
pub fn limits(config: &Config) -> Limits {
    Limits {
        message_bytes_max: config.limits.message_bytes,
        request_streams_max: QUIC_REQUEST_STREAMS_MAX,
        // Capacity for at least two requests of the largest size.
        request_bytes_max: UNFINISHED_REQUESTS_BYTES_MAX.max(2 * config.limits.message_bytes),
        idle_timeout: config.timeouts.quic_idle,
        stall_max: CLIENT_WRITE_STALL_MAX,
        handshakes_max: QUIC_HANDSHAKES_MAX,
        ..Limits::default()
    }
}

/// Serves until `stop`, then until the open connections have ended.
pub async fn serve(broker: Arc<Broker>, listener: QuicListener, stop: CancellationToken) {
    let admission = ConnectionLimiter::new(
        &broker.shared.config.limits,
        ProxyProtocol::new(&broker.shared.config, ProxiedListener::Quic),
    );
    let connections = TaskTracker::new();
    loop {
        let incoming = tokio::select! {
            () = stop.cancelled() => break,
            incoming = listener.accept() => incoming,
        };
        let Some(incoming) = incoming else { break };
        let Some(admitted) = admission.admit(incoming.remote().ip(), &broker.shared.metrics) else {
            incoming.refuse();
            continue;
        };
        let peer = incoming.remote();
        let (broker, tls, stop) = (broker.clone(), listener.tls().clone(), stop.clone());
        // Boxed, like the opening of a session.
        let established = Box::pin(incoming.establish(broker.shared.config.timeouts.handshake));
        connections.spawn(async move {
            let _permit = admitted;
            let established = tokio::select! {
                established = established => established,
                () = stop.cancelled() => return,
            };
            match established {
                Ok(established) => connection(broker, established, peer.ip(), tls, stop).await,
                Err(error) => {
                    return tracing::debug!(%peer, %error, "a QUIC connection could not be set up");
                }
            }
            tracing::debug!(%peer, "connection ended");
        });
    }
    listener.stop_accepting();
    connections.close();
    connections.wait().await;
    listener.wait_idle().await;
}

type EstablishedQuic = (QuicConnection, QuicSource, QuicSink);

async fn connection(
    broker: Arc<Broker>,
    (connection, mut source, mut sink): EstablishedQuic,
    address: IpAddr,
    tls: Arc<ServerTls>,
    stop: CancellationToken,
) {
    let shown = connection.client_certificate().map(|certificate| (certificate, &tls));
    let (certified, remote) = CertificateCaller::identified(shown, address);
    let incoming =
        IncomingConnection { transport: Transport::Quic, certified, remote, known: None };
    let requests = StreamRequests::default();
    let shared = broker.shared.clone();
    let opened = open(&broker, &incoming, &mut source, &mut sink, &stop).await;
    let is_open = opened.is_ok();
    if is_open {
        connection.open_window();
    }
    let close_reason = match opened {
        // Boxed, so that a connection with a session needs no memory for it.
        Ok(OpenedConnection::Stateless(first)) => {
            Box::pin(async {
                let dispatcher = RequestDispatcher::new(broker, incoming, stop.clone());
                tokio::select! {
                    biased;
                    close_reason = dispatcher.run(*first, &mut source, &mut sink) => close_reason,
                    () = accept_stateless(&dispatcher, &connection, &requests, &stop) => None,
                }
            })
            .await
        }
        Ok(OpenedConnection::Session(session_connection, mut outbox)) => {
            let stream = outbox.stream.clone();
            tokio::select! {
                biased;
                close_reason = drive_session(&session_connection, &mut outbox, &mut source, &mut sink) => close_reason,
                () = accept_requests(&session_connection.session, &connection, &requests) => None,
                never = session_connection.outlived(incoming.certified) => match never {},
                () = session_connection.expired(&stream) => None,
            }
        }
        Err(close_reason) => Some(close_reason),
    };
    // Answers on request streams arrive before the connection closes, and so do the last ones for a
    // client that still reads.
    requests.running.close();
    let delivered = async {
        requests.running.wait().await;
        if is_open && close_reason == Some(CloseReason::Done) {
            requests.deliver_end(&mut sink).await;
        }
    };
    tokio::select! {
        biased;
        () = delivered => {}
        () = requests.over(&shared, close_reason) => {}
        never = refuse_requests(&connection, &requests.running, close_reason) => match never {},
    }
    match close_reason {
        Some(close_reason) => close_gracefully(&mut source, &mut sink, close_reason).await,
        None => connection.close(CloseReason::SlowReader),
    }
}

/// Refuses the request streams of a connection that is about to close.
async fn refuse_requests(
    connection: &QuicConnection,
    requests: &TaskTracker,
    close_reason: Option<CloseReason>,
) -> Infallible {
    let close_reason = close_reason.unwrap_or(CloseReason::SlowReader);
    while let Some(stream) = connection.accept_request().await {
        requests.spawn(stream.refuse(close_reason));
    }
    std::future::pending().await
}

/// Accepts request streams until the connection closes.
async fn accept_requests(
    session: &Arc<Session>,
    connection: &QuicConnection,
    requests: &StreamRequests,
) {
    while let Some(stream) = connection.accept_request().await {
        let served = serve_request(session.clone(), stream, requests.clone(), requests.waits());
        requests.running.spawn(served);
    }
}

/// Accepts request streams of a client without a session. After `stop` only the open ones finish.
async fn accept_stateless(
    dispatcher: &Arc<RequestDispatcher>,
    connection: &QuicConnection,
    requests: &StreamRequests,
    stop: &CancellationToken,
) {
    while let Some(stream) = connection.accept_request().await {
        if stop.is_cancelled() {
            requests.running.spawn(stream.refuse(CloseReason::GoingAway));
        } else {
            let waits = requests.waits();
            let served = serve_stateless(dispatcher.clone(), stream, requests.clone(), waits);
            requests.running.spawn(served);
        }
    }
}

/// Receives the message of a stream. Returns `None` if the stream was empty, too slow or too large.
async fn receive(
    shared: &Shared,
    mut stream: RequestStream,
) -> Option<(RequestStream, Result<Bytes, RefusedMessage>)> {
    let limit = shared.config.timeouts.request_read;
    let frame = match tokio::time::timeout(limit, stream.receive()).await {
        Ok(Ok(Some(frame))) => Ok(frame),
        Ok(Err(error)) => match refusal_of(&error) {
            Some(refusal) => Err(RefusedMessage::new(refusal, None)),
            None if error.close_reason() == CloseReason::Overloaded => {
                overloaded(shared, stream).await;
                return None;
            }
            None => {
                stream.cancel();
                return None;
            }
        },
        // The bound of the stream has the same limit, and may end a little later.
        Err(_) if stream.source.waits_for_memory() => {
            Err(RefusedMessage::new(unfinished_overload(), None))
        }
        Ok(Ok(None)) | Err(_) => {
            stream.cancel();
            return None;
        }
    };
    Some((stream, frame))
}

/// Serves one stream of a stateless client: one request. A reset of the stream cancels the request.
async fn serve_stateless(
    dispatcher: Arc<RequestDispatcher>,
    mut stream: RequestStream,
    requests: StreamRequests,
    waits: TaskTrackerToken,
) {
    let mut waits = Some(waits);
    if let Some(bound) = dispatcher.message_bound() {
        stream.source.bound_messages(bound);
    }
    let Some((stream, frame)) = receive(dispatcher.shared(), stream).await else { return };
    let decoded = frame.and_then(|frame| dispatcher.decode(frame));
    let (mut sink, mut given_up) = stream.into_response_sink();
    let StartedRequest { mut answering, until } = match decoded {
        Ok(message) if message.kind == Kind::Request => dispatcher.start(message).await,
        Ok(message) => {
            dispatcher.handle_notification(&message);
            return sink.finish();
        }
        Err(rejected) => {
            let answering =
                ReplyStream::Single(dispatcher.refusal(&rejected.refusal, rejected.id.as_ref()));
            StartedRequest { answering, until: None }
        }
    };
    loop {
        let frame = tokio::select! {
            biased;
            frame = answering.next_until(until.clone()) => frame,
            () = given_up.cancelled(&sink) => return,
            () = requests.unanswered.cancelled() => return,
        };
        // Without an answer, the drop of the stream resets it.
        let Some(frame) = frame else { return };
        let is_answer = matches!(answering, ReplyStream::Over);
        if is_answer {
            drop(waits.take());
        }
        if let ReplyStream::Exchange(exchange) = &mut answering {
            // The client may read slowly: the call, its memory and its deadline do not wait for
            // that.
            exchange.detach();
        }
        let behind = answering.stream().cloned();
        if !deliver(dispatcher.shared(), None, &mut sink, &mut vec![frame], behind.as_deref()).await
        {
            return;
        }
        if is_answer {
            sink.finish();
            drop((dispatcher, answering, given_up));
            return requests.deliver_end(&mut sink).await;
        }
    }
}

/// Serves one stream of a session: a request and its messages.
async fn serve_request(
    session: Arc<Session>,
    mut stream: RequestStream,
    requests: StreamRequests,
    waits: TaskTrackerToken,
) {
    let shared = &session.shared;
    let limits = json::Limits::with_bytes_max(session.message_bytes());
    stream.source.bound_messages(session.tenant.message_bound());
    let Some((stream, frame)) = receive(shared, stream).await else { return };
    let decoded = frame.and_then(|frame| {
        session.touch();
        shared.metrics.bytes(Direction::In, Side::Client, frame.len());
        Message::decode(frame, &limits)
    });
    let (mut sink, cancellation) = stream.into_response_sink();
    let started = match decoded {
        Ok(message) => start(&session, message).await,
        Err(rejected) => Err(rejected),
    };
    let answered = match started {
        Ok(Some((request, reader, call))) => {
            tokio::select! {
                biased;
                never = drive_call(call) => match never {},
                answered = answer(&session, request, reader, sink, (cancellation, waits)) => answered,
            }
        }
        Ok(None) => {
            drop(waits);
            Some(sink)
        }
        Err(rejected) => {
            drop(waits);
            questions::handle_malformed_answer(&session, &rejected);
            let frame = session.refusal_frame(&rejected.refusal, rejected.id.as_ref());
            shared.metrics.bytes(Direction::Out, Side::Client, frame.len());
            sink.send_all(&mut vec![frame]).await.is_ok().then_some(sink)
        }
    };
    drop(session);
    if let Some(mut sink) = answered {
        requests.deliver_end(&mut sink).await;
    }
}

type StartedCall = (protocol::ids::RequestId, StreamCursor, Option<CallFuture>);

/// Passes a message to the session. Returns `None` for a message that is not a request, which has
/// no answer.
async fn start(
    session: &Arc<Session>,
    message: Message,
) -> Result<Option<StartedCall>, RefusedMessage> {
    let id = message.id.clone();
    if message.is_stateless() {
        return Err(RefusedMessage::new(stateless_unsupported(), id));
    }
    match message.kind {
        // A dropped notification is counted. This wire has no answer for it.
        Kind::Notification => drop(notifications::handle_notification(session, &message)),
        Kind::Result | Kind::Error => questions::handle_answer(session, &message),
        Kind::Request => {
            let stream = session.open_stream(id.iter().cloned().collect(), 0);
            let unread = || {
                Refusal::new(
                    ErrorKind::Internal,
                    "the broker cannot read the event stream of the request",
                )
            };
            let reader =
                stream.read_from(0).map_err(|_| RefusedMessage::new(unread(), id.clone()))?;
            let call = submit::submit_after_quiesce(session, message, &stream)
                .await
                .map_err(|refusal| RefusedMessage::new(refusal, id.clone()))?;
            return Ok(id.map(|id| (id, reader, call)));
        }
    }
    Ok(None)
}

/// Runs a call and never returns. The caller drops this future, and the call then continues by
/// itself.
async fn drive_call(call: Option<CallFuture>) -> Infallible {
    if let Some(call) = call {
        call.await;
    }
    std::future::pending().await
}

/// Writes the messages of a request until its answer, or until the client cancels it. Returns the
/// sink after the answer. A stream that ends without the answer is reset. Dropping it resets it with
/// the cancellation code.
async fn answer(
    session: &Session,
    request: protocol::ids::RequestId,
    mut reader: StreamCursor,
    mut sink: QuicSink,
    (mut given_up, waits): (Cancellation, TaskTrackerToken),
) -> Option<QuicSink> {
    let (mut frames, mut waits) = (Vec::new(), Some(waits));
    loop {
        let batch = tokio::select! {
            biased;
            batch = reader.next_batch(OUTBOX_BATCH_FRAMES, OUTBOX_BATCH_BYTES, &mut frames) => batch,
            () = given_up.cancelled(&sink) => {
                session.cancel_request(&request);
                return None;
            }
        };
        if reader.stream.is_answered() {
            drop(waits.take());
        }
        if let Batch::End(ended) = batch {
            match ended {
                StreamEnd::Complete if reader.stream.is_answered() => {
                    sink.finish();
                    return Some(sink);
                }
                StreamEnd::Complete if !session.is_leaving() => {} // it was cancelled, on another stream
                StreamEnd::Complete | StreamEnd::Paused => sink.close(CloseReason::GoingAway).await,
                StreamEnd::Displaced => sink.close(CloseReason::Policy).await,
                StreamEnd::Slow | StreamEnd::Lost => {
                    reset_slow_reader(&session.shared, Some(session), &mut sink).await;
                    session.cancel_request(&request);
                }
            }
            return None;
        }
        if !deliver(&session.shared, Some(session), &mut sink, &mut frames, Some(&*reader.stream))
            .await
        {
            session.cancel_request(&request);
            return None;
        }
        reader.mark_sent(None);
    }
}

/// Writes messages while the client reads, and while the stream `behind` is not cut for its memory.
/// Returns `false` if they were not written. A slow reader gets a close code.
async fn deliver(
    shared: &Shared,
    session: Option<&Session>,
    sink: &mut QuicSink,
    frames: &mut Vec<Bytes>,
    behind: Option<&EventStream>,
) -> bool {
    match send(shared, sink, frames, behind).await {
        Ok(()) => true,
        Err(SendFailure::SlowReader) => {
            reset_slow_reader(shared, session, sink).await;
            false
        }
        Err(SendFailure::Write(_)) => false,
    }
}

/// Closes the stream of a client that does not read. The cut may be inside a message, so no message
/// can follow it.
async fn reset_slow_reader(shared: &Shared, session: Option<&Session>, sink: &mut QuicSink) {
    log_slow_reader(shared, session, Transport::Quic, SlowReaderScope::Stream);
    sink.close(CloseReason::SlowReader).await;
}

/// Refuses a stream because the client's incomplete requests exceed their memory limit.
async fn overloaded(shared: &Shared, stream: RequestStream) {
    shared.metrics.rate_limited("quic_request_bytes");
    stream.refuse(CloseReason::Overloaded).await;
}
