//! A connection with stateless requests (MCP 2026-07-28, Custom Transports). The `_meta` of each
//! request names its caller, its endpoint and its revision. The connection is not a session: it
//! carries answers, and its end cancels the requests that are not answered.

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    envelope::{Kind, Message, RefusedMessage},
    error::{ErrorKind, Refusal},
    ids::{PrincipalId, RequestId, TenantId},
    json,
    method::Method,
};
use rules::{
    client_transport::Transport,
    event_log::{EventKind, LogLimits},
    limits::{HALF_CLOSED_MAX, OUTBOX_BATCH_BYTES, OUTBOX_BATCH_FRAMES, OUTBOX_FRAMES_MAX},
    stateless,
};
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use transport::{
    frame::{CloseReason, FrameSink, FrameSource},
    message_bound::MessageBound,
};

use super::{
    answers_over,
    authenticate::{AuthenticatedClient, authenticate, is_of_sign_in},
    incoming::IncomingConnection,
    read_errors::{close_reason, refusal_of},
    reading_over,
    reply_stream::{ReplyStream, StartedRequest},
    slow_reader::{SendFailure, SlowReaderScope, log_slow_reader, send},
};
use crate::{
    auth,
    broker::Broker,
    listeners::{
        replicas::proxied_request::proxy_to_replica,
        stateless::{StatelessOutcome, dispatch, parse_request, record_refused},
        tls_acceptor::certificate_expired,
    },
    metrics::{Direction, Side},
    sessions::{
        shared::Shared,
        stateless::StatelessClient,
        stream::{Batch, EventStream, StreamCursor},
        tenant::{SharedPermit, Tenant},
    },
};

/// Serves the requests of one connection.
pub(super) struct RequestDispatcher {
    broker: Arc<Broker>,
    incoming: IncomingConnection,
    stop: CancellationToken,
    /// Requests without an answer so far.
    open: Mutex<HashMap<RequestId, CancellationToken>>,
    running: TaskTracker,
    /// Messages for the client, with the limits of a session's connection.
    out: Arc<EventStream>,
    /// Signals that messages were written.
    capacity_freed: Notify,
    /// Connection permits, one for each tenant of the requests.
    permits: Mutex<HashMap<TenantId, SharedPermit>>,
    /// Sender of the last request. Notifications name no sender, so they count against this one's
    /// rates.
    payer: Mutex<Option<(Arc<Tenant>, PrincipalId)>>,
    /// Cancelled when a refused credential or a connection limit ends the connection. A client that
    /// guesses keys must reconnect for each of them.
    expelled: CancellationToken,
}

/// Answers a request when its task panics.
struct AnswerOnPanic<'a> {
    dispatcher: &'a RequestDispatcher,
    id: &'a RequestId,
    cancelled: &'a CancellationToken,
}

impl Drop for AnswerOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && self.dispatcher.deregister_request(self.id, self.cancelled) {
            let refusal = Refusal::new(ErrorKind::Internal, "the request failed inside the broker");
            let answer = self.dispatcher.refusal(&refusal, Some(self.id));
            self.dispatcher.enqueue(EventKind::Answer, answer);
        }
    }
}

impl RequestDispatcher {
    pub(super) fn new(
        broker: Arc<Broker>,
        incoming: IncomingConnection,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let limits = LogLimits {
            events: OUTBOX_FRAMES_MAX,
            bytes: broker.shared.config.limits.outbox_bytes,
        };
        let out = EventStream::outbox(0, limits, None);
        out.attach_budget(&broker.shared.unread_budget, None);
        Arc::new(Self {
            broker,
            incoming,
            stop,
            open: Mutex::default(),
            running: TaskTracker::new(),
            out,
            capacity_freed: Notify::new(),
            permits: Mutex::default(),
            payer: Mutex::default(),
            expelled: CancellationToken::new(),
        })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.broker.shared
    }

    /// Resolves when the connection's certificate or token expires. The credentials of single
    /// requests are checked with each request.
    async fn credential_expired(&self) {
        tokio::select! {
            () = certificate_expired(self.incoming.certified.as_ref()) => {}
            () = auth::credential_expired(self.incoming.known.as_ref().and_then(|known| known.until.clone())) => {}
        }
    }

    /// Exchanges messages until one side ends. Returns the close reason, or `None` if the
    /// connection can no longer carry one.
    pub(super) async fn run(
        self: &Arc<Self>,
        first: Message,
        source: &mut impl FrameSource,
        sink: &mut impl FrameSink,
    ) -> Option<CloseReason> {
        let (life, last) = (CancellationToken::new(), CancellationToken::new());
        let _ends_with_it = life.clone().drop_guard();
        let Ok(mut reader) = self.out.read_from(0) else { return None };
        if let Some(refused) = self.start_request(first, &life) {
            self.enqueue(EventKind::Answer, refused);
        }
        let writing = self.write(&mut reader, sink, &last);
        tokio::pin!(writing);
        let close_reason = tokio::select! {
            biased;
            close_reason = &mut writing => return close_reason,
            close_reason = self.read(source, &life) => close_reason?,
        };
        // A client that closed a WebSocket reads no answer. The end of `life` cancels its requests.
        if close_reason == CloseReason::Done && self.incoming.transport == Transport::WebSocket {
            return Some(close_reason);
        }
        // Running requests are still answered. The writer ends after the last one.
        self.running.close();
        let shared = self.shared();
        let over = async {
            let limit =
                answers_over(&shared.shutdown.grace_over, Some(close_reason), HALF_CLOSED_MAX);
            tokio::pin!(limit);
            let are_answered = tokio::select! {
                biased;
                () = self.running.wait() => true,
                () = &mut limit => false,
            };
            if !are_answered {
                life.cancel();
            }
            last.cancel();
            match close_reason {
                // A drain too leaves the requests their time. It ends only the reading.
                CloseReason::Done => reading_over(shared).await,
                _ if are_answered => limit.await,
                _ => {}
            }
        };
        tokio::select! {
            biased;
            written = &mut writing => written.map(|ended| match ended {
                CloseReason::Done => close_reason,
                slow_reader => slow_reader,
            }),
            () = over => Some(close_reason),
        }
    }

    /// Writes the messages for the client, until none is left after `last`.
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
                self.log_slow_reader();
                return Some(CloseReason::SlowReader);
            }
            match send(self.shared(), sink, &mut frames, Some(&*reader.stream)).await {
                Ok(()) => {}
                Err(SendFailure::SlowReader) => {
                    self.log_slow_reader();
                    return None;
                }
                Err(SendFailure::Write(error)) => {
                    tracing::debug!(%error, "the broker cannot write to the connection");
                    return None;
                }
            }
            reader.mark_sent(None);
            self.capacity_freed.notify_one();
        }
    }

    /// Logs that the client does not read.
    fn log_slow_reader(&self) {
        log_slow_reader(self.shared(), None, self.incoming.transport, SlowReaderScope::Connection);
    }

    fn enqueue(&self, kind: EventKind, frame: Bytes) {
        let _cut = self.out.push(Instant::now(), kind, frame); // the writer sees to what is cut
    }

    /// Waits for capacity in the outbox, so that answers do not accumulate faster than the client
    /// reads.
    async fn wait_for_capacity(&self) {
        while self.out.is_half_full() {
            self.capacity_freed.notified().await; // the writer ends the connection of a client that takes nothing
        }
    }

    /// Reads the client's messages until the end. Returns the close reason, or `None` if the
    /// connection is closed.
    async fn read(
        self: &Arc<Self>,
        source: &mut impl FrameSource,
        life: &CancellationToken,
    ) -> Option<CloseReason> {
        let outlived = self.credential_expired();
        tokio::pin!(outlived);
        loop {
            let next = async {
                self.wait_for_capacity().await;
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
                        self.enqueue(EventKind::Answer, self.refusal(&refusal, None));
                    }
                    return close_reason(&error);
                }
            };
            match self.decode(frame) {
                Ok(message) if message.kind == Kind::Request => {
                    if let Some(refused) = self.start_request(message, life) {
                        self.enqueue(EventKind::Answer, refused);
                    }
                }
                Ok(message) => self.handle_notification(&message),
                Err(RefusedMessage { refusal, id, .. }) => {
                    self.enqueue(EventKind::Answer, self.refusal(&refusal, id.as_ref()))
                }
            }
        }
    }

    pub(super) fn decode(&self, frame: Bytes) -> Result<Message, RefusedMessage> {
        let limits = json::Limits::with_bytes_max(self.shared().config.limits.message_bytes);
        self.shared().metrics.bytes(Direction::In, Side::Client, frame.len());
        Message::decode(frame, &limits)
    }

    /// Starts a request in a task of its own. Returns the refusal, if any.
    fn start_request(
        self: &Arc<Self>,
        message: Message,
        life: &CancellationToken,
    ) -> Option<Bytes> {
        let id = message.id.clone()?;
        let cancelled = life.child_token();
        if let Err(refusal) = self.register_request(&id, &cancelled) {
            return Some(self.refusal(&refusal, Some(&id)));
        }
        let dispatcher = self.clone();
        self.running.spawn(async move {
            let _answered =
                AnswerOnPanic { dispatcher: &dispatcher, id: &id, cancelled: &cancelled };
            let answering = async {
                let StartedRequest { mut answering, until } = dispatcher.start(message).await;
                // Progress and log messages may be dropped for a slow client. Notifications of
                // changes may not.
                let passing = if matches!(answering, ReplyStream::Notifications(_)) {
                    EventKind::Message
                } else {
                    EventKind::Droppable
                };
                while let Some(frame) = answering.next_until(until.clone()).await {
                    // The id is free before the client can see the answer, and may then belong to
                    // another request.
                    if matches!(answering, ReplyStream::Over) {
                        if dispatcher.deregister_request(&id, &cancelled) {
                            dispatcher.enqueue(EventKind::Answer, frame);
                        }
                        return;
                    }
                    dispatcher.enqueue(passing, frame);
                }
                dispatcher.deregister_request(&id, &cancelled);
            };
            tokio::select! {
                biased;
                // The cancellation has already removed it.
                () = cancelled.cancelled() => {}
                () = answering => {}
            }
        });
        None
    }

    fn register_request(
        &self,
        id: &RequestId,
        cancelled: &CancellationToken,
    ) -> Result<(), Refusal> {
        let max = self.shared().config.limits.calls_in_flight_per_session;
        let mut open = self.lock();
        if open.len() >= max {
            drop(open);
            let scope = "calls_in_flight_per_session";
            match &*self.payer.lock() {
                Some((tenant, _)) => tenant.counts.rate_limited(scope),
                None => self.shared().metrics.rate_limited(scope),
            }
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

    /// Frees the id before the answer. Returns `false` if a cancellation did: the request gets no
    /// answer, and the id may belong to another one.
    fn deregister_request(&self, id: &RequestId, cancelled: &CancellationToken) -> bool {
        let mut open = self.lock();
        !cancelled.is_cancelled() && open.remove(id).is_some()
    }

    /// Handles a message that is not a request. In this revision clients send no answers, and only
    /// cancellations as notifications.
    pub(super) fn handle_notification(&self, message: &Message) {
        if message.method == Method::Cancelled && self.cancel_request(message) {
            return; // each request once, which was paid for
        }
        let payer = self.payer.lock().clone().filter(|_| message.kind == Kind::Notification);
        if payer
            .is_none_or(|(tenant, principal)| tenant.take_notification_budget(&principal).is_ok())
        {
            self.shared().metrics.dropped_notification("unknown");
        }
    }

    /// Returns the bounds of messages of the last request's tenant.
    pub(super) fn message_bound(&self) -> Option<MessageBound> {
        self.payer.lock().as_ref().map(|(tenant, _)| tenant.message_bound())
    }

    /// Stores the sender of a request. The unread bytes of the connection count for the first one.
    fn record_payer(&self, client: &StatelessClient) {
        self.out.set_unread_owner(|| (&client.caller).into());
        let mut payer = self.payer.lock();
        let principal = &client.caller.principal;
        let is_known = payer.as_ref().is_some_and(|(tenant, known)| {
            Arc::ptr_eq(tenant, &client.tenant) && known == principal
        });
        if !is_known {
            *payer = Some((client.tenant.clone(), principal.clone()));
        }
    }

    /// Cancels the request that a notification names. Returns `false` if it does not exist.
    fn cancel_request(&self, message: &Message) -> bool {
        let Some(span) = message.fields.request_id else { return false };
        // Under the lock: an answer at the same time then knows whose id it frees.
        let mut open = self.lock();
        let request = open.remove(&RequestId::from_raw(span.slice(&message.frame)));
        request.inspect(CancellationToken::cancel).is_some()
    }

    /// Authenticates and starts a request.
    pub(super) async fn start(&self, message: Message) -> StartedRequest {
        let (id, method, frame) = (message.id.clone(), message.method, message.frame.clone());
        let started = async {
            let AuthenticatedClient { client, until } =
                authenticate(&self.broker, &self.incoming, &message).await?;
            self.count_connection(&client).await?;
            self.record_payer(&client);
            let request = parse_request(&self.broker, message)?;
            self.broker.shared.metrics.stateless_request();
            let answering = match dispatch(&self.broker, &client, request).await? {
                StatelessOutcome::Answer(frame) => ReplyStream::Single(frame),
                StatelessOutcome::Exchange(exchange) => ReplyStream::Exchange(exchange),
                StatelessOutcome::Notifications(listening) => ReplyStream::Notifications(listening),
                StatelessOutcome::OtherReplica(suspension) => match &id {
                    Some(id) => {
                        let (broker, since) = (&self.broker, Instant::now());
                        let proxied =
                            proxy_to_replica(broker, &client, &suspension, method, id, &frame)
                                .await
                                .inspect_err(|refusal| {
                                    record_refused(&client, &frame, since, refusal.kind);
                                })?;
                        ReplyStream::Proxied(Box::new(proxied))
                    }
                    None => ReplyStream::Over,
                },
            };
            Ok(StartedRequest { answering, until })
        };
        started.await.unwrap_or_else(|refusal: Refusal| {
            if is_of_sign_in(&refusal) || refusal.kind == ErrorKind::TooManyConnections {
                self.expelled.cancel();
            }
            StartedRequest {
                answering: ReplyStream::Single(self.refusal(&refusal, id.as_ref())),
                until: None,
            }
        })
    }

    /// Counts the connection for the tenant. A connection with known parameters was counted at its
    /// opening.
    async fn count_connection(&self, client: &StatelessClient) -> Result<(), Refusal> {
        let tenant = &client.tenant;
        if self.incoming.known.is_some() || self.permits.lock().contains_key(&tenant.id) {
            return Ok(());
        }
        let permit = tenant.acquire_connection().await?;
        // A request that came meanwhile may have counted the connection too.
        self.permits.lock().entry(tenant.id.clone()).or_insert(permit);
        Ok(())
    }

    pub(super) fn refusal(&self, refusal: &Refusal, id: Option<&RequestId>) -> Bytes {
        let request_id = self.shared().record_refusal(refusal, None, None);
        stateless::refusal_response(refusal, id, &request_id)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, CancellationToken>> {
        self.open.lock()
    }
}
