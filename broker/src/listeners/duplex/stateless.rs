//! A connection whose requests stand alone (MCP 2026-07-28, Custom Transports): each says in its `_meta` who asks, where and
//! in which revision. The connection is no conversation: it carries answers, and cancels with its end what it was to carry.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message, Rejection},
    error::{ErrorKind, Refusal},
    ids::{PrincipalId, RequestId, TenantId},
    json,
    method::Method,
};
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::frame::{CloseReason, FrameSink, FrameSource, ReadError};

use super::{
    ConnectionParams, IncomingConnection,
    handshake::{self, BACKEND, TOKEN, refusal_of},
    session_io::{SlowReaderScope, is_stalled, tell_cut},
};
use crate::{
    actors::{
        shared::Shared,
        stateless::{
            StatelessClient,
            exchange::{Exchange, ExchangeEvent},
            notification_stream::NotificationStream,
        },
        stream::{Batch, EventStream, StreamCursor},
        tenant::{ConnectionPermit, Tenant},
    },
    auth::{self, AuthenticatedCaller, Caller, CredentialExpiry},
    broker::Broker,
    config::MessageWire,
    limits::{HALF_CLOSED_MAX, OUTBOX_BATCH_BYTES, OUTBOX_BATCH_FRAMES, OUTBOX_FRAMES_MAX},
    listeners::{
        http::{ProxiedRequest, lead},
        stateless::{StatelessOutcome, admitted, react},
    },
    metrics::{Direction, Side},
    rules::{
        endpoint::Endpoint,
        event_log::{EventKind, LogLimits},
        stateless,
    },
};

/// What serves the requests of one connection.
pub(super) struct RequestDispatcher {
    broker: Arc<Broker>,
    guest: IncomingConnection,
    stop: CancellationToken,
    /// Requests that are not answered yet.
    open: Mutex<HashMap<RequestId, CancellationToken>>,
    running: TaskTracker,
    /// What is for the client, as much of it as a session's connection may hold.
    out: Arc<EventStream>,
    /// Something of it was written.
    room: Notify,
    /// Its own among the connections of each tenant that it asks for.
    places: Mutex<HashMap<TenantId, ConnectionPermit>>,
    /// Who sent the last request: notifications do not say on whose behalf they come, and count against the rates of this one.
    payer: Mutex<Option<(Arc<Tenant>, PrincipalId)>>,
    /// Somebody without a key was refused: whoever guesses keys has to connect for each of them.
    expelled: CancellationToken,
}

/// What a request is answered with.
pub(super) enum ReplyStream {
    Single(Bytes),
    Exchange(Box<Exchange>),
    Notifications(Box<NotificationStream>),
    Proxied(Box<ProxiedRequest>),
    Over,
}

/// A request that was begun.
pub(super) struct StartedRequest {
    pub(super) answering: ReplyStream,
    /// Until when it may go on.
    pub(super) until: Option<CredentialExpiry>,
}

impl ReplyStream {
    /// The next message; `None` when there is no more. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let step = match self {
            Self::Over => return None,
            Self::Single(frame) => ExchangeEvent::Answer(frame.clone(), None),
            Self::Exchange(exchange) => exchange.next().await,
            Self::Notifications(listening) => listening.next().await,
            Self::Proxied(led) => match led.next().await {
                Some((frame, true)) => ExchangeEvent::Answer(frame, None),
                Some((frame, false)) => ExchangeEvent::Frame(frame),
                None => ExchangeEvent::Ended,
            },
        };
        match step {
            ExchangeEvent::Frame(frame) => Some(frame),
            ExchangeEvent::Answer(frame, _) => {
                *self = Self::Over;
                Some(frame)
            }
            ExchangeEvent::Ended => {
                let given_up = match self {
                    Self::Exchange(exchange) => Some(exchange.given_up()),
                    _ => None,
                };
                *self = Self::Over;
                given_up
            }
        }
    }

    /// The same. What was begun ends when what was shown for it is good no longer; an answer that waits at another replica comes.
    pub(super) async fn next_until(&mut self, until: Option<CredentialExpiry>) -> Option<Bytes> {
        let Some(until) = until else { return self.next().await };
        if !until.is_past() {
            tokio::select! {
                biased;
                frame = self.next() => return frame,
                () = until.passed() => {}
            }
        }
        match self {
            Self::Exchange(exchange) => {
                let given_up = exchange.given_up();
                *self = Self::Over;
                return Some(given_up);
            }
            Self::Notifications(listening) => listening.end(),
            Self::Single(_) | Self::Proxied(_) | Self::Over => {}
        }
        self.next().await
    }

    /// What the next messages wait in, where there is such a place.
    pub(super) fn stream(&self) -> Option<&Arc<EventStream>> {
        match self {
            Self::Exchange(exchange) => exchange.stream(),
            Self::Notifications(listening) => Some(listening.stream()),
            Self::Single(_) | Self::Proxied(_) | Self::Over => None,
        }
    }
}

/// The answer to `server/discover` before it is known how a connection goes on.
pub(super) async fn discovered(
    broker: &Arc<Broker>,
    guest: &IncomingConnection,
    message: &Message,
) -> Result<Bytes, Refusal> {
    let AuthenticatedClient { visitor, .. } = visit(broker, guest, message).await?;
    match react(broker, &visitor, admitted(broker, message.clone())?).await? {
        StatelessOutcome::Answer(frame) => Ok(frame),
        _ => Err(Refusal::new(ErrorKind::Internal, "nothing was discovered")),
    }
}

/// Who asks, and until when it has shown that it may.
pub(super) struct AuthenticatedClient {
    visitor: StatelessClient,
    until: Option<CredentialExpiry>,
}

/// Who asks, and where: said before the first message, or in this one.
pub(super) async fn visit(
    broker: &Arc<Broker>,
    guest: &IncomingConnection,
    message: &Message,
) -> Result<AuthenticatedClient, Refusal> {
    let fits = |caller: &Caller| match broker
        .message_bytes(caller, MessageWire::of_client(guest.transport))
    {
        max if message.frame.len() > max => Err(Refusal::new(
            ErrorKind::MessageTooLarge,
            format!("a message may have at most {max} bytes"),
        )),
        _ => Ok(()),
    };
    if let Some(ConnectionParams { caller, until, endpoint, .. }) = &guest.known {
        fits(caller)?;
        let visitor = broker.visitor(broker.readmit(caller)?, endpoint.clone(), guest.transport)?;
        return Ok(AuthenticatedClient { visitor, until: *until });
    }
    let meta = message.bytes(message.fields.meta).unwrap_or(b"{}");
    let document = json::Document::parse(
        meta,
        &json::Limits { bytes_max: meta.len(), ..json::Limits::default() },
    );
    let document = document
        .map_err(|_| Refusal::new(ErrorKind::InvalidParams, "params._meta can not be read"))?;
    let text = |key: &str| match document.root().get(key).map(|value| value.as_str()) {
        Some(None) => {
            Err(Refusal::new(ErrorKind::InvalidParams, format!("_meta[\"{key}\"] is not a string")))
        }
        text => Ok(text.flatten()),
    };
    let (token, backend) = (text(TOKEN)?, text(BACKEND)?);
    let AuthenticatedCaller { caller, until } =
        handshake::proven(broker, guest, token.as_deref()).await?;
    fits(&caller)?;
    let endpoint: Endpoint = handshake::endpoint(broker, &caller, backend.as_deref())?;
    Ok(AuthenticatedClient { visitor: broker.visitor(caller, endpoint, guest.transport)?, until })
}

impl RequestDispatcher {
    pub(super) fn new(
        broker: Arc<Broker>,
        guest: IncomingConnection,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let limits = LogLimits {
            events: OUTBOX_FRAMES_MAX,
            bytes: broker.shared.config.limits.outbox_bytes,
        };
        let out = EventStream::outbox(0, limits, None);
        out.attach_budget(&broker.shared.unread_budget);
        Arc::new(Self {
            broker,
            guest,
            stop,
            open: Mutex::default(),
            running: TaskTracker::new(),
            out,
            room: Notify::new(),
            places: Mutex::default(),
            payer: Mutex::default(),
            expelled: CancellationToken::new(),
        })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.broker.shared
    }

    /// Resolves when what was shown for the connection, a certificate or a token, is good no longer: what is shown with each
    /// request is looked at with each.
    async fn outlived(&self) {
        let certificate = async {
            match &self.guest.certified {
                Some(certified) => Box::pin(certified.outlived()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = certificate => {}
            () = auth::outlived(self.guest.known.as_ref().and_then(|known| known.until)) => {}
        }
    }

    /// Speaks until one side has had enough. `None`: the connection is beyond goodbyes.
    pub(super) async fn converse(
        self: &Arc<Self>,
        first: Message,
        source: &mut impl FrameSource,
        sink: &mut impl FrameSink,
    ) -> Option<CloseReason> {
        let (life, last) = (CancellationToken::new(), CancellationToken::new());
        let _ends_with_it = life.clone().drop_guard();
        let Ok(mut reader) = self.out.read_from(0) else { return None };
        if let Some(refused) = self.take(first, &life) {
            self.say(EventKind::Answer, refused);
        }
        let writing = self.write(&mut reader, sink, &last);
        tokio::pin!(writing);
        let goodbye = tokio::select! {
            biased;
            goodbye = &mut writing => return goodbye,
            goodbye = self.read(source, &life) => goodbye?,
        };
        // What is answered still goes out; the writer ends when the last request has.
        self.running.close();
        let finishing = async {
            tokio::select! {
                biased;
                written = &mut writing => return written,
                () = self.running.wait() => last.cancel(),
            }
            writing.await.map(|_| goodbye)
        };
        tokio::time::timeout(HALF_CLOSED_MAX, finishing).await.unwrap_or(Some(goodbye))
    }

    /// Writes what is for the client, until there is nothing more after `last`.
    async fn write(
        &self,
        reader: &mut StreamCursor,
        sink: &mut impl FrameSink,
        last: &CancellationToken,
    ) -> Option<CloseReason> {
        let mut frames = Vec::new();
        loop {
            let batch = match reader.try_next_batch(
                OUTBOX_BATCH_FRAMES,
                OUTBOX_BATCH_BYTES,
                &mut frames,
            ) {
                Some(batch) => batch,
                None => {
                    frames = Vec::new(); // most connections wait most of the time
                    tokio::select! {
                        biased;
                        batch = reader.next_batch(OUTBOX_BATCH_FRAMES, OUTBOX_BATCH_BYTES, &mut frames) => batch,
                        () = last.cancelled() => return Some(CloseReason::Done),
                    }
                }
            };
            if let Batch::End(_) = batch {
                self.cut();
                return Some(CloseReason::SlowReader);
            }
            self.shared().metrics.bytes(
                Direction::Out,
                Side::Client,
                frames.iter().map(Bytes::len).sum(),
            );
            let sent = tokio::select! {
                biased;
                sent = sink.send_all(&mut frames) => sent,
                () = reader.stream.wait_until_cut() => {
                    self.cut();
                    return None; // in the middle of a message, so no word can follow it
                }
            };
            if sent.as_ref().is_err_and(is_stalled) {
                self.cut();
                return None;
            }
            if let Err(error) = sent {
                tracing::debug!(%error, "the connection can not be written to any more");
                return None;
            }
            reader.mark_sent(None);
            self.room.notify_one();
        }
    }

    /// The client does not read.
    fn cut(&self) {
        tell_cut(self.shared(), None, self.guest.transport, SlowReaderScope::Connection);
    }

    fn say(&self, kind: EventKind, frame: Bytes) {
        let _cut = self.out.push(Instant::now(), kind, frame); // the writer sees to what is cut
    }

    /// Nothing is answered faster than it is read.
    async fn wait_for_room(&self) {
        while self.out.is_half_full() {
            self.room.notified().await; // the writer ends the connection of a client that takes nothing
        }
    }

    /// Takes what the client sends until nothing more comes. `None`: the connection is gone.
    async fn read(
        self: &Arc<Self>,
        source: &mut impl FrameSource,
        life: &CancellationToken,
    ) -> Option<CloseReason> {
        let outlived = self.outlived();
        tokio::pin!(outlived);
        loop {
            let next = async {
                self.wait_for_room().await;
                source.next().await
            };
            let frame = tokio::select! {
                biased;
                () = self.expelled.cancelled() => return Some(CloseReason::Policy),
                () = &mut outlived => return Some(CloseReason::Policy),
                frame = next => frame,
                () = self.stop.cancelled() => return Some(CloseReason::GoingAway),
            };
            let frame = match frame {
                Ok(Some(frame)) => frame,
                Ok(None) => return Some(CloseReason::Done),
                Err(error) => {
                    if let Some(refusal) = refusal_of(&error) {
                        self.say(EventKind::Answer, self.refusal(&refusal, None));
                    }
                    return match error {
                        ReadError::Closed { .. } | ReadError::Io(_) => None,
                        fault => Some(fault.goodbye()),
                    };
                }
            };
            match self.decode(frame) {
                Ok(message) if message.kind == Kind::Request => {
                    if let Some(refused) = self.take(message, life) {
                        self.say(EventKind::Answer, refused);
                    }
                }
                Ok(message) => self.hear(&message),
                Err(Rejection { refusal, id, .. }) => {
                    self.say(EventKind::Answer, self.refusal(&refusal, id.as_ref()))
                }
            }
        }
    }

    pub(super) fn decode(&self, frame: Bytes) -> Result<Message, Rejection> {
        let limits = json::Limits {
            bytes_max: self.shared().config.limits.message_bytes,
            ..json::Limits::default()
        };
        self.shared().metrics.bytes(Direction::In, Side::Client, frame.len());
        Message::decode(frame, &limits)
    }

    /// Begins a request in a task of its own. `Some`: it is refused.
    fn take(self: &Arc<Self>, message: Message, life: &CancellationToken) -> Option<Bytes> {
        let id = message.id.clone()?;
        let cancelled = life.child_token();
        if let Err(refusal) = self.enter(&id, &cancelled) {
            return Some(self.refusal(&refusal, Some(&id)));
        }
        let desk = self.clone();
        self.running.spawn(async move {
            let answering = async {
                let StartedRequest { mut answering, until } = desk.begin(message).await;
                // Progress and log messages may be left out where the client does not keep up, changes may not.
                let passing = if matches!(answering, ReplyStream::Notifications(_)) {
                    EventKind::Message
                } else {
                    EventKind::Droppable
                };
                while let Some(frame) = answering.next_until(until).await {
                    // The id is free before the client can know the answer, and may be another request's after that.
                    if matches!(answering, ReplyStream::Over) {
                        desk.leave(&id);
                        return desk.say(EventKind::Answer, frame);
                    }
                    desk.say(passing, frame);
                }
                desk.leave(&id);
            };
            tokio::select! {
                biased;
                // Whoever cancelled it took it out.
                () = cancelled.cancelled() => {}
                () = answering => {}
            }
        });
        None
    }

    fn enter(&self, id: &RequestId, cancelled: &CancellationToken) -> Result<(), Refusal> {
        let max = self.shared().config.limits.calls_in_flight_per_session;
        let mut open = self.lock();
        if open.len() >= max {
            let text = format!("the connection has {max} requests in flight, which is its limit");
            return Err(Refusal::new(ErrorKind::TooManyCalls, text));
        }
        match open.entry(id.clone()) {
            Entry::Occupied(_) => Err(Refusal::new(
                ErrorKind::InvalidRequest,
                "a request with this id is in flight already",
            )),
            Entry::Vacant(free) => {
                free.insert(cancelled.clone());
                Ok(())
            }
        }
    }

    fn leave(&self, id: &RequestId) {
        self.lock().remove(id);
    }

    /// Takes what is no request. Clients answer nothing in this revision, and tell nothing but that a request is given up.
    pub(super) fn hear(&self, message: &Message) {
        if message.method == Method::Cancelled && self.cancelled(message) {
            return; // each request once, which was paid for
        }
        let payer = self
            .payer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
            .filter(|_| message.kind == Kind::Notification);
        if payer
            .is_none_or(|(tenant, principal)| tenant.take_notification_budget(&principal).is_ok())
        {
            self.shared().metrics.dropped_notification("unknown");
        }
    }

    /// Notes who sent a request.
    fn note_payer(&self, visitor: &StatelessClient) {
        let mut payer = self.payer.lock().unwrap_or_else(PoisonError::into_inner);
        let principal = &visitor.caller.principal;
        let is_known = payer.as_ref().is_some_and(|(tenant, known)| {
            Arc::ptr_eq(tenant, &visitor.tenant) && known == principal
        });
        if !is_known {
            *payer = Some((visitor.tenant.clone(), principal.clone()));
        }
    }

    /// `false`: there is no such request.
    fn cancelled(&self, message: &Message) -> bool {
        let Some(span) = message.fields.request_id else { return false };
        let request = self.lock().remove(&RequestId::from_raw(span.slice(&message.frame)));
        request.inspect(CancellationToken::cancel).is_some()
    }

    /// Begins what is asked for.
    pub(super) async fn begin(&self, message: Message) -> StartedRequest {
        let (id, frame) = (message.id.clone(), message.frame.clone());
        let begun = async {
            let AuthenticatedClient { visitor, until } =
                visit(&self.broker, &self.guest, &message).await?;
            self.count_in(&visitor)?;
            self.note_payer(&visitor);
            let request = admitted(&self.broker, message)?;
            let answering = match react(&self.broker, &visitor, request).await? {
                StatelessOutcome::Answer(frame) => ReplyStream::Single(frame),
                StatelessOutcome::Exchange(exchange) => ReplyStream::Exchange(exchange),
                StatelessOutcome::Notifications(listening) => ReplyStream::Notifications(listening),
                StatelessOutcome::OtherReplica(place) => match &id {
                    Some(id) => ReplyStream::Proxied(Box::new(
                        lead(&self.broker, &visitor, &place, id, &frame).await?,
                    )),
                    None => ReplyStream::Over,
                },
            };
            Ok(StartedRequest { answering, until })
        };
        begun.await.unwrap_or_else(|refusal: Refusal| {
            if handshake::is_of_sign_in(&refusal) || refusal.kind == ErrorKind::TooManyConnections {
                self.expelled.cancel();
            }
            StartedRequest {
                answering: ReplyStream::Single(self.refusal(&refusal, id.as_ref())),
                until: None,
            }
        })
    }

    /// The connection is one of the tenant's. Where that is known before the first message it was counted then.
    fn count_in(&self, visitor: &StatelessClient) -> Result<(), Refusal> {
        if self.guest.known.is_some() {
            return Ok(());
        }
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Vacant(free) = places.entry(visitor.tenant.id.clone()) {
            free.insert(visitor.tenant.acquire_connection()?);
        }
        Ok(())
    }

    pub(super) fn refusal(&self, refusal: &Refusal, id: Option<&RequestId>) -> Bytes {
        let request_id = self.shared().note_refusal(refusal, None, None);
        stateless::refusal_response(refusal, id, &request_id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, CancellationToken>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
