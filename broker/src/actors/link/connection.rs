//! One open connection of a link: who waits for which answer, and the two ways of asking.
//!
//! Every request towards a backend gets a wire id of ours, which is its progress token too. Answers are matched by that
//! id only, whichever stream they come on; one that nobody waits for is dropped and counted.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    capabilities::ServerCapabilities,
    envelope::{Message, Rejected},
    error::{ErrorKind, Refusal},
    handshake::{self, InitializeAnswer},
    ids::{BackendId, RequestId},
    json::Span,
    method::Method,
    splice::Splice,
    version::Version,
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Link,
    http::{AnswerStream, HttpWire, Request},
};
use crate::{
    actors::{call::Call, session::Session},
    metrics::{Direction, Metrics, Side},
};

/// What was agreed at the handshake.
#[derive(Debug)]
pub struct Negotiated {
    pub version: Version,
    pub capabilities: ServerCapabilities,
    pub server_info: Bytes,
    pub server_name: String,
    pub server_version: String,
    pub instructions: Option<String>,
}

#[derive(Debug)]
pub struct Connection {
    pub opened: Instant,
    negotiated: OnceLock<Negotiated>,
    next_wire_id: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
    /// Requests of the backend that a client works on, by the backend's id.
    asked: Mutex<HashMap<RequestId, (std::sync::Weak<Session>, u64)>>,
    wire: Wire,
    /// No message will come or go any more.
    closed: CancellationToken,
    /// The handshake succeeded and the link counts it.
    counted: AtomicBool,
    /// Everything queued has left, or will not leave any more.
    finished: CancellationToken,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct Waiting {
    answer: oneshot::Sender<Result<Message, Failure>>,
    call: Option<Arc<Call>>,
}

/// How frames leave.
#[derive(Debug)]
pub enum Wire {
    /// Into the writer's queue.
    Pipe(Mutex<Option<mpsc::Sender<Bytes>>>),
    /// A POST each.
    Http(Arc<HttpWire>),
}

/// A client's request, to be sent with these changes.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    pub message: &'a Message,
    pub edits: &'a [(Span, Vec<u8>)],
    pub call: &'a Arc<Call>,
}

/// Why there is no answer. Says whether the backend can have acted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No byte of the request left: it may be tried again.
    #[error("nothing was sent: {0}")]
    NotSent(String),
    /// The backend is there and does not want work now.
    #[error("the backend is busy: {0}")]
    Busy(String),
    /// The queue towards the backend is full.
    #[error("too many messages wait for the backend")]
    QueueFull,
    /// The backend no longer knows our session; it did not look at the request.
    #[error("the backend forgot the session")]
    SessionGone,
    /// The request went out and its answer will not come.
    #[error("the answer is lost: {0}")]
    Lost(String),
    /// The backend did not answer in time.
    #[error("no answer to {} in time", .0.name())]
    TimedOut(Method),
    /// What came back is not MCP.
    #[error("the backend broke the protocol: {0}")]
    Protocol(String),
    #[error("the answer is larger than {max} bytes")]
    TooLarge { max: usize },
}

impl Failure {
    /// In the client's terms: no text of the backend, no internals.
    pub fn refusal(&self, backend: &BackendId) -> Refusal {
        let (kind, text) = match self {
            Failure::NotSent(_) | Failure::SessionGone => (ErrorKind::BackendUnavailable, format!("backend {backend} can not be reached")),
            Failure::Busy(_) => (ErrorKind::BackendUnavailable, format!("backend {backend} takes no work now")),
            Failure::QueueFull => (ErrorKind::Overloaded, format!("too many messages wait for backend {backend}")),
            Failure::Lost(_) => {
                (ErrorKind::OutcomeUnknown, format!("the connection to backend {backend} ended before the answer; it may have acted"))
            }
            Failure::TimedOut(_) => (ErrorKind::Timeout, format!("backend {backend} did not answer in time")),
            Failure::Protocol(_) => (ErrorKind::BackendProtocolError, format!("backend {backend} gave an answer that is not MCP")),
            Failure::TooLarge { max } => (ErrorKind::ResultTooLarge, format!("the answer of backend {backend} is larger than {max} bytes")),
        };
        Refusal::new(kind, text)
    }
}

impl Connection {
    pub fn new(wire: Wire, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            negotiated: OnceLock::new(),
            next_wire_id: AtomicU64::new(1),
            waiting: Mutex::default(),
            asked: Mutex::default(),
            wire,
            closed: CancellationToken::new(),
            counted: AtomicBool::new(false),
            finished: CancellationToken::new(),
            metrics,
        })
    }

    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.negotiated.get()
    }

    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Whether the backend offers what this method needs.
    pub fn permits(&self, method: Method) -> Result<(), Refusal> {
        self.negotiated().map_or(Ok(()), |agreed| agreed.capabilities.permits(method, agreed.version))
    }

    /// Performs the client's half of the handshake (MCP 2025-11-25, Lifecycle).
    pub(super) async fn initialize(self: &Arc<Self>, link: &Arc<Link>) -> Result<(), Failure> {
        let wire_id = self.next_wire_id();
        let id = RequestId::from_u64(wire_id);
        let frame = handshake::initialize_request(&id, Version::LATEST_LEGACY, link.declared.raw(), crate::BROKER_INFO.as_bytes());
        let answer = self.round_trip(link, wire_id, frame, None, true).await?;
        let answer = InitializeAnswer::parse(&answer).map_err(|error| Failure::Protocol(error.to_string()))?;
        if let Wire::Http(http) = &self.wire {
            http.agree_on(answer.version);
        }
        let _set_once = self.negotiated.set(Negotiated {
            version: answer.version,
            capabilities: answer.capabilities,
            server_info: answer.server_info,
            server_name: answer.server_name,
            server_version: answer.server_version,
            instructions: answer.instructions,
        });
        let initialized = handshake::notification(Method::Initialized, None);
        match &self.wire {
            Wire::Pipe(queue) => enqueue(queue, initialized),
            // Waited for: what follows must not overtake it.
            Wire::Http(http) => http.post_one_way(initialized).await,
        }
    }

    /// Sends a client's request and waits for its answer. Cancel-safe: a dropped wait frees its slot.
    pub async fn exchange(self: &Arc<Self>, link: &Arc<Link>, outgoing: Outgoing<'_>) -> Result<Message, Failure> {
        let wire_id = self.next_wire_id();
        let digits = wire_id.to_string().into_bytes();
        let mut splice = Splice::new(&outgoing.message.frame);
        if let Some(span) = outgoing.message.id_span {
            splice.replace(span, digits.clone());
        }
        if let Some(span) = outgoing.message.fields.meta_progress_token {
            splice.replace(span, digits);
        }
        for (span, text) in outgoing.edits {
            splice.replace(*span, text.clone());
        }
        outgoing.call.sent_as(link, self, wire_id);
        let sent_at = Instant::now();
        let answer = self.round_trip(link, wire_id, splice.finish(), Some(outgoing.call), false).await;
        link.backend.answered_in(sent_at.elapsed());
        answer
    }

    /// Asks something of the broker's own, within the time for control methods.
    pub async fn ask(self: &Arc<Self>, link: &Arc<Link>, method: Method, params: Option<&[u8]>) -> Result<Message, Failure> {
        let wire_id = self.next_wire_id();
        let frame = handshake::request(&RequestId::from_u64(wire_id), method, params);
        let limit = link.backend.timeouts().control;
        match tokio::time::timeout(limit, self.round_trip(link, wire_id, frame, None, false)).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::TimedOut(method)),
        }
    }

    async fn round_trip(
        self: &Arc<Self>,
        link: &Arc<Link>,
        wire_id: u64,
        frame: Bytes,
        call: Option<&Arc<Call>>,
        opening: bool,
    ) -> Result<Message, Failure> {
        if self.is_closed() {
            return Err(Failure::NotSent("the connection is closed".to_owned()));
        }
        let (answer, wait) = oneshot::channel();
        self.lock_waiting().insert(wire_id, Waiting { answer, call: call.cloned() });
        let _slot = Slot { connection: self, wire_id };
        self.metrics.bytes(Direction::Out, Side::Backend, frame.len());
        let ended = || Failure::Lost("the connection ended".to_owned());
        let mut stream = match &self.wire {
            Wire::Pipe(queue) => {
                enqueue(queue, frame)?;
                AnswerStream::none()
            }
            Wire::Http(http) => http.post_request(self, link, Request { wire_id, frame, call, opening }).await?,
        };
        tokio::select! {
            biased;
            answer = wait => answer.unwrap_or_else(|_| Err(ended())),
            failure = stream.failed() => Err(failure),
            () = self.closed.cancelled() => Err(ended()),
        }
    }

    /// An answer came in: hands it to whoever waits for it.
    pub fn answered(&self, message: Message) {
        let id = message.id.clone();
        self.resolve(id.as_ref(), Ok(message));
    }

    /// Something came in that is no message. It may still say what it was meant for: a request is told what is wrong with
    /// it, the wait for an answer is over.
    pub fn broken_message(&self, rejected: &Rejected) {
        self.metrics.dropped_notification("noise");
        match &rejected.id {
            Some(id) if rejected.has_method => self.send_later(rejected.refusal.to_response(Some(id), &crate::request_id())),
            Some(id) => self.resolve(Some(id), Err(Failure::Protocol(rejected.refusal.to_string()))),
            None => {}
        }
    }

    /// An answer came in that can not be read, but shows which request it was for.
    pub fn unreadable_answer(&self, wire_id: u64) {
        self.resolve(Some(&RequestId::from_u64(wire_id)), Err(Failure::Protocol("the answer can not be read".to_owned())));
    }

    fn resolve(&self, id: Option<&RequestId>, answer: Result<Message, Failure>) {
        let waiting = id.and_then(RequestId::as_u64).and_then(|wire_id| self.lock_waiting().remove(&wire_id));
        match waiting {
            Some(waiting) => {
                if waiting.answer.send(answer).is_err() {
                    self.metrics.dropped_answer("late");
                }
            }
            None => self.metrics.dropped_answer("unknown_id"),
        }
    }

    /// The call whose progress token (or wire id) this is.
    pub fn call_by_wire_id(&self, wire_id: u64) -> Option<Arc<Call>> {
        self.lock_waiting().get(&wire_id).and_then(|waiting| waiting.call.clone())
    }

    /// The only call in flight here, if it is the only one: what a message without a name belongs to.
    pub fn only_call(&self) -> Option<Arc<Call>> {
        let waiting = self.lock_waiting();
        let mut calls = waiting.values().filter_map(|waiting| waiting.call.as_ref());
        let first = calls.next()?;
        calls.next().is_none().then(|| first.clone())
    }

    /// A call of this session in flight here: the latest.
    pub fn latest_call_of(&self, session: &Arc<Session>) -> Option<Arc<Call>> {
        let waiting = self.lock_waiting();
        let of_session = |waiting: &&Waiting| waiting.call.as_ref().is_some_and(|call| Arc::ptr_eq(&call.session, session));
        waiting.iter().filter(|(_, w)| of_session(w)).max_by_key(|(id, _)| **id).and_then(|(_, w)| w.call.clone())
    }

    /// Remembers which client works on a request of the backend.
    pub fn note_asked(&self, backend_id: RequestId, session: &Arc<Session>, question: u64) {
        lock(&self.asked).insert(backend_id, (Arc::downgrade(session), question));
    }

    pub fn take_asked(&self, backend_id: &RequestId) -> Option<(Arc<Session>, u64)> {
        let (session, question) = lock(&self.asked).remove(backend_id)?;
        Some((session.upgrade()?, question))
    }

    pub fn forget_asked(&self, backend_id: &RequestId) {
        lock(&self.asked).remove(backend_id);
    }

    /// Queues a notification or an answer; what finds no room is lost and logged.
    pub fn send_later(&self, frame: Bytes) {
        self.metrics.bytes(Direction::Out, Side::Backend, frame.len());
        if let Err(failure) = enqueue(self.queue(), frame) {
            self.metrics.dropped_notification("to_backend");
            tracing::debug!(%failure, "a notification or answer did not reach the backend");
        }
    }

    /// Counts the connection as open, or no longer; `true` when that is a change.
    pub fn count(&self, open: bool) -> bool {
        self.counted.swap(open, Ordering::AcqRel) != open
    }

    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Said by the task that writes.
    pub(super) fn finished(&self) {
        self.finished.cancel();
    }

    /// Nothing more goes in or out; whoever waits learns that the outcome is unknown.
    pub fn close_now(&self) {
        self.closed.cancel();
        lock(self.queue()).take();
        self.lock_waiting().clear();
        let asked: Vec<_> = lock(&self.asked).drain().collect(); // the lock must be free: withdrawing comes back here
        for (_, (session, question)) in asked {
            if let Some(session) = session.upgrade() {
                session.withdraw_question(question, "the backend's connection ended");
            }
        }
    }

    /// Closes and waits for the goodbye (a process ended, a session deleted).
    pub async fn close(&self) {
        self.close_now();
        self.finished.cancelled().await;
        if let Wire::Http(http) = &self.wire {
            http.delete_session().await;
        }
    }

    fn queue(&self) -> &Mutex<Option<mpsc::Sender<Bytes>>> {
        match &self.wire {
            Wire::Pipe(queue) => queue,
            Wire::Http(http) => http.one_way(),
        }
    }

    fn next_wire_id(&self) -> u64 {
        self.next_wire_id.fetch_add(1, Ordering::Relaxed)
    }

    fn lock_waiting(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        lock(&self.waiting)
    }
}

/// Frees a wire id when its wait ends, however it ends.
struct Slot<'a> {
    connection: &'a Connection,
    wire_id: u64,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.connection.lock_waiting().remove(&self.wire_id);
    }
}

fn enqueue(queue: &Mutex<Option<mpsc::Sender<Bytes>>>, frame: Bytes) -> Result<(), Failure> {
    let queue = lock(queue);
    let Some(queue) = queue.as_ref() else { return Err(Failure::NotSent("the connection is closed".to_owned())) };
    queue.try_send(frame).map_err(|error| match error {
        mpsc::error::TrySendError::Full(_) => Failure::QueueFull,
        mpsc::error::TrySendError::Closed(_) => Failure::NotSent("the connection is closed".to_owned()),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a wait for the head of a stream may hold up the opening of a link.
pub(super) const STREAM_HEAD_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::{capabilities::ClientCapabilities, ids::TenantId, json};
    use transport::http_client::{HttpClient, HttpClientConfig};

    use super::*;
    use crate::{
        actors::{backend::Backend, shared::Shared},
        config::{Config, spec::BackendSpec},
    };

    fn link() -> Arc<Link> {
        let http = HttpClient::new(HttpClientConfig::default()).unwrap();
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &[1; 32]);
        let shared = Shared::new(Arc::new(Config::default()), Arc::new(Metrics::new(false)), http, key);
        let spec: BackendSpec = serde_json::from_str(r#"{"transport":{"type":"stdio","command":"none"}}"#).unwrap();
        let backend = Backend::new(TenantId::parse("acme").unwrap(), BackendId::parse("b").unwrap(), spec, shared);
        Link::new(backend, None, ClientCapabilities::none())
    }

    fn message(text: String) -> Message {
        Message::decode(Bytes::from(text), &json::Limits::default()).unwrap()
    }

    /// What the backend does with one of the questions, or out of the blue.
    #[derive(Debug, Clone)]
    enum Act {
        Answer(usize),
        AnswerTwice(usize),
        AnswerAsText(usize),
        Stray(u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => any::<usize>().prop_map(Act::Answer),
            1 => any::<usize>().prop_map(Act::AnswerTwice),
            1 => any::<usize>().prop_map(Act::AnswerAsText),
            1 => (1000_u64..).prop_map(Act::Stray),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn rpc_03_12_each_question_gets_its_own_answer_once(questions in 1_usize..40, acts in prop::collection::vec(act(), 0..120)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (queue, mut frames) = mpsc::channel(64);
                let link = link();
                let connection = Connection::new(Wire::Pipe(Mutex::new(Some(queue))), link.backend.shared.metrics.clone());
                let asked: Vec<_> = (0..questions)
                    .map(|n| {
                        let (connection, link) = (connection.clone(), link.clone());
                        let params = format!("{{\"n\":{n}}}");
                        tokio::spawn(async move { connection.ask(&link, Method::Ping, Some(params.as_bytes())).await })
                    })
                    .collect();
                // What was asked, as the backend sees it: the wire id and the question's own number.
                let mut seen = Vec::new();
                while seen.len() < questions {
                    let frame = message(String::from_utf8(frames.recv().await.unwrap().to_vec()).unwrap());
                    let params: serde_json::Value = serde_json::from_slice(frame.bytes(frame.params).unwrap()).unwrap();
                    seen.push((frame.id.unwrap().as_u64().unwrap(), params["n"].as_u64().unwrap()));
                }
                let mut answered = std::collections::HashSet::new();
                for act in acts {
                    let answer = |wire_id: u64, n: u64| message(format!(r#"{{"jsonrpc":"2.0","id":{wire_id},"result":{{"n":{n}}}}}"#));
                    match act {
                        Act::Answer(at) | Act::AnswerTwice(at) => {
                            let (wire_id, n) = seen[at % questions];
                            connection.answered(answer(wire_id, n));
                            if matches!(act, Act::AnswerTwice(_)) {
                                connection.answered(answer(wire_id, 999_999));
                            }
                            answered.insert(n);
                        }
                        Act::AnswerAsText(at) => {
                            let (wire_id, _) = seen[at % questions];
                            connection.answered(message(format!(r#"{{"jsonrpc":"2.0","id":"{wire_id}","result":{{"n":999999}}}}"#)));
                        }
                        Act::Stray(wire_id) => connection.answered(answer(wire_id, 999_999)),
                    }
                }
                connection.close_now();
                for (n, task) in asked.into_iter().enumerate() {
                    match task.await.unwrap() {
                        Ok(answer) => {
                            let result: serde_json::Value = serde_json::from_slice(answer.bytes(answer.result).unwrap()).unwrap();
                            assert_eq!(result["n"].as_u64(), Some(n as u64));
                        }
                        Err(failure) => {
                            assert!(matches!(failure, Failure::Lost(_)) && !answered.contains(&(n as u64)), "{failure}");
                        }
                    }
                }
                assert!(connection.lock_waiting().is_empty(), "no wire id is left behind");
            });
        }
    }
}
