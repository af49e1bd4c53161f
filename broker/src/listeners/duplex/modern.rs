//! A connection whose requests stand alone (MCP 2026-07-28, Custom Transports): each says in its `_meta` who asks, where and
//! in which revision. The connection is no conversation: it carries answers, and cancels with its end what it was to carry.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message, Rejected},
    error::{ErrorKind, Refusal},
    ids::RequestId,
    json,
    method::Method,
};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::frame::{FrameSink, FrameSource, Goodbye, ReadError};

use super::{
    Guest, Known,
    opening::{self, BACKEND, TOKEN, refusal_of},
};
use crate::{
    actors::{
        modern::{
            StateError, Visitor,
            exchange::{Exchange, Step},
            listening::Listening,
        },
        shared::Shared,
    },
    broker::Broker,
    limits::{HALF_CLOSED_MAX, MODERN_OUTBOX_FRAMES_MAX, OUTBOX_BATCH_FRAMES},
    listeners::modern::{Reaction, admitted, react},
    metrics::{Direction, Side},
    rules::{catalog::Endpoint, modern},
};

/// What serves the requests of one connection.
pub(super) struct Desk {
    broker: Arc<Broker>,
    guest: Guest,
    stop: CancellationToken,
    /// Requests that are not answered yet.
    open: Mutex<HashMap<RequestId, CancellationToken>>,
    running: TaskTracker,
    /// Somebody without a key was refused: whoever guesses keys has to connect for each of them.
    expelled: CancellationToken,
}

/// What a request is answered with.
pub(super) enum Answering {
    Whole(Bytes),
    Exchange(Box<Exchange>),
    Listening(Box<Listening>),
    Over,
}

impl Answering {
    /// The next message; `None` when there is no more. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        let step = match self {
            Self::Over => return None,
            Self::Whole(frame) => Step::Answer(frame.clone(), None),
            Self::Exchange(exchange) => exchange.next().await,
            Self::Listening(listening) => listening.next().await,
        };
        match step {
            Step::Frame(frame) => Some(frame),
            Step::Answer(frame, _) => {
                *self = Self::Over;
                Some(frame)
            }
            Step::Over => {
                let given_up = match self {
                    Self::Exchange(exchange) => Some(exchange.given_up()),
                    _ => None,
                };
                *self = Self::Over;
                given_up
            }
        }
    }
}

/// The answer to `server/discover` before it is known how a connection goes on.
pub(super) async fn discovered(broker: &Arc<Broker>, guest: &Guest, message: &Message) -> Result<Bytes, Refusal> {
    let visitor = visitor(broker, guest, message)?;
    match react(broker, &visitor, admitted(broker, message.clone())?).await? {
        Reaction::Answer(frame) => Ok(frame),
        _ => Err(Refusal::new(ErrorKind::Internal, "nothing was discovered")),
    }
}

/// Who asks, and where: said before the first message, or in this one.
pub(super) fn visitor(broker: &Arc<Broker>, guest: &Guest, message: &Message) -> Result<Visitor, Refusal> {
    if let Some(Known { caller, endpoint, .. }) = &guest.known {
        return broker.visitor(broker.readmit(caller)?, endpoint.clone(), guest.transport);
    }
    let meta = message.bytes(message.fields.meta).unwrap_or(b"{}");
    let document = json::Document::parse(meta, &json::Limits { bytes_max: meta.len(), ..json::Limits::default() });
    let document = document.map_err(|_| Refusal::new(ErrorKind::InvalidParams, "params._meta can not be read"))?;
    let text = |key: &str| match document.root().get(key).map(|value| value.as_str()) {
        Some(None) => Err(Refusal::new(ErrorKind::InvalidParams, format!("_meta[\"{key}\"] is not a string"))),
        text => Ok(text.flatten()),
    };
    let caller = broker.authenticate_on(text(TOKEN)?.as_deref(), guest.certified.as_ref())?;
    let endpoint: Endpoint = opening::endpoint(broker, &caller, text(BACKEND)?.as_deref())?;
    broker.visitor(caller, endpoint, guest.transport)
}

impl Desk {
    pub(super) fn new(broker: Arc<Broker>, guest: Guest, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self { broker, guest, stop, open: Mutex::default(), running: TaskTracker::new(), expelled: CancellationToken::new() })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.broker.shared
    }

    /// Speaks until one side has had enough. `None`: the connection is beyond goodbyes.
    pub(super) async fn converse(
        self: &Arc<Self>,
        first: Message,
        source: &mut impl FrameSource,
        sink: &mut impl FrameSink,
    ) -> Option<Goodbye> {
        let (out, mut frames) = mpsc::channel(MODERN_OUTBOX_FRAMES_MAX);
        let life = CancellationToken::new();
        let _ends_with_it = life.clone().drop_guard();
        self.take(first, &out, &life);
        let writing = async {
            let mut batch = Vec::new();
            loop {
                if frames.recv_many(&mut batch, OUTBOX_BATCH_FRAMES).await == 0 {
                    return Some(Goodbye::Done);
                }
                self.shared().metrics.bytes(Direction::Out, Side::Client, batch.iter().map(Bytes::len).sum());
                if let Err(error) = sink.send_all(&mut batch).await {
                    tracing::debug!(%error, "the connection can not be written to any more");
                    return None;
                }
            }
        };
        tokio::pin!(writing);
        let goodbye = tokio::select! {
            biased;
            goodbye = &mut writing => return goodbye,
            goodbye = self.read(source, out, &life) => goodbye?,
        };
        // What is answered still goes out; the writer ends when the last request has.
        let last = async {
            let written = writing.await;
            written.map(|_| goodbye)
        };
        tokio::time::timeout(HALF_CLOSED_MAX, last).await.unwrap_or(Some(goodbye))
    }

    /// Takes what the client sends until nothing more comes. `None`: the connection is gone.
    async fn read(self: &Arc<Self>, source: &mut impl FrameSource, out: mpsc::Sender<Bytes>, life: &CancellationToken) -> Option<Goodbye> {
        loop {
            let frame = tokio::select! {
                biased;
                () = self.expelled.cancelled() => return Some(Goodbye::Policy),
                frame = source.next() => frame,
                () = self.stop.cancelled() => return Some(Goodbye::GoingAway),
            };
            let frame = match frame {
                Ok(Some(frame)) => frame,
                Ok(None) => return Some(Goodbye::Done),
                Err(error) => {
                    if let Some(refusal) = refusal_of(&error) {
                        let _gone = out.send(self.refusal(&refusal, None)).await;
                    }
                    return match error {
                        ReadError::Closed { .. } | ReadError::Io(_) => None,
                        fault => Some(fault.goodbye()),
                    };
                }
            };
            match self.decode(frame) {
                Ok(message) if message.kind == Kind::Request => {
                    let refused = self.take(message, &out, life);
                    if let Some(frame) = refused {
                        let _gone = out.send(frame).await;
                    }
                }
                Ok(message) if message.method == Method::Cancelled => self.cancelled(&message),
                // Clients answer nothing in this revision, and tell nothing else.
                Ok(_) => self.shared().metrics.dropped_notification("unknown"),
                Err(Rejected { refusal, id, .. }) => {
                    let _gone = out.send(self.refusal(&refusal, id.as_ref())).await;
                }
            }
        }
    }

    pub(super) fn decode(&self, frame: Bytes) -> Result<Message, Rejected> {
        let limits = json::Limits { bytes_max: self.shared().config.limits.message_bytes, ..json::Limits::default() };
        self.shared().metrics.bytes(Direction::In, Side::Client, frame.len());
        Message::decode(frame, &limits)
    }

    /// Begins a request in a task of its own. `Some`: it is refused.
    fn take(self: &Arc<Self>, message: Message, out: &mpsc::Sender<Bytes>, life: &CancellationToken) -> Option<Bytes> {
        let id = message.id.clone()?;
        let cancelled = life.child_token();
        if let Err(refusal) = self.enter(&id, &cancelled) {
            return Some(self.refusal(&refusal, Some(&id)));
        }
        let (desk, out) = (self.clone(), out.clone());
        self.running.spawn(async move {
            let answering = async {
                let mut answering = desk.begin(message).await;
                while let Some(frame) = answering.next().await {
                    // Until there is room for its answer a request counts: a client that does not read has so many at most.
                    let Ok(room) = out.reserve().await else { return };
                    // The id is free before the client can know the answer, and may be another request's after that.
                    if matches!(answering, Answering::Over) {
                        desk.leave(&id);
                        return room.send(frame);
                    }
                    room.send(frame);
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
            Entry::Occupied(_) => Err(Refusal::new(ErrorKind::InvalidRequest, "a request with this id is in flight already")),
            Entry::Vacant(free) => {
                free.insert(cancelled.clone());
                Ok(())
            }
        }
    }

    fn leave(&self, id: &RequestId) {
        self.lock().remove(id);
    }

    fn cancelled(&self, message: &Message) {
        let Some(span) = message.fields.request_id else { return };
        let request = self.lock().remove(&RequestId::from_raw(span.slice(&message.frame)));
        if let Some(request) = request {
            request.cancel();
        }
    }

    /// Begins what is asked for.
    pub(super) async fn begin(&self, message: Message) -> Answering {
        let id = message.id.clone();
        let begun = async {
            let visitor = visitor(&self.broker, &self.guest, &message)?;
            let request = admitted(&self.broker, message)?;
            react(&self.broker, &visitor, request).await
        };
        match begun.await {
            Ok(Reaction::Answer(frame)) => Answering::Whole(frame),
            Ok(Reaction::Exchange(exchange)) => Answering::Exchange(exchange),
            Ok(Reaction::Listening(listening)) => Answering::Listening(listening),
            // Requests are led to other replicas over HTTP only: here they end with the process they began in.
            Ok(Reaction::Elsewhere(_)) => Answering::Whole(self.refusal(&StateError::Expired.refusal(), id.as_ref())),
            Err(refusal) => {
                if refusal.kind == ErrorKind::Unauthorized {
                    self.expelled.cancel();
                }
                Answering::Whole(self.refusal(&refusal, id.as_ref()))
            }
        }
    }

    pub(super) fn refusal(&self, refusal: &Refusal, id: Option<&RequestId>) -> Bytes {
        let request_id = self.shared().note_refusal(refusal, None, None);
        modern::refusal_response(refusal, id, &request_id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, CancellationToken>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
