//! One open connection of a link: the two ways of asking, and its end.
//!
//! Every request towards a backend gets a wire id of ours, which is its progress token too. Answers are matched by that
//! id only, whichever stream they come on; one that nobody waits for is dropped and counted.

mod initialize;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    envelope::{Message, Rejection},
    error::Refusal,
    handshake::{self, InitializeResult},
    ids::RequestId,
    json::Span,
    method::Method,
    splice::Splice,
};
use tokio_util::sync::CancellationToken;

use super::{
    Link,
    http::{PostOutcome, WireRequest},
    malformed_answer,
    pending::{AnswerSlot, PendingRequests},
    queue::FrameQueue,
    request_streams::{self, RequestStreams},
    stateless::{self, StatelessConnection, exchange},
};
pub use super::{failure::Failure, wire::WireSender};
use crate::{
    backends::asker::{Asker, SentRequest},
    metrics::{Direction, Metrics, Side},
    persistence::fault_point,
    telemetry::{child_span::ChildSpan, request},
};

/// How long requests in flight may wait for their own word after the backend said to one of them that it forgot the
/// session. It says the same to the others, and what it did not look at can be sent again.
const FORGOTTEN_GRACE: Duration = Duration::from_secs(1);
/// Of what was wrong with a connection.
const FAULT_LETTERS_MAX: usize = 300;

#[derive(Debug)]
pub struct Connection {
    pub opened: Instant,
    /// What was agreed at the handshake.
    negotiated: OnceLock<Arc<InitializeResult>>,
    /// What there is of it where the backend speaks 2026-07-28.
    modern: OnceLock<Arc<StatelessConnection>>,
    next_wire_id: AtomicU64,
    pending: PendingRequests,
    wire: WireSender,
    /// The ways of requests beside it, which only QUIC has.
    streams: OnceLock<RequestStreams>,
    /// No message will come or go any more.
    closed: CancellationToken,
    /// What was wrong with it, where that is known: for operators, as it may be the backend's own words.
    fault: OnceLock<String>,
    /// It was closed because the backend forgot the session.
    forgotten: AtomicBool,
    /// The handshake succeeded and the link counts it.
    counted_open: AtomicBool,
    /// That calls were lost with it has been counted.
    loss_counted: AtomicBool,
    /// Everything queued has left, or will not leave any more.
    flushed: CancellationToken,
    metrics: Arc<Metrics>,
}

/// A client's request, to be sent with these changes.
#[derive(Debug, Clone, Copy)]
pub struct BackendRequest<'a> {
    pub message: &'a Message,
    pub edits: &'a [(Span, Vec<u8>)],
    pub asker: &'a Arc<dyn Asker>,
    pub sent_at: Instant,
}

impl Connection {
    pub fn new(wire: WireSender, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            negotiated: OnceLock::new(),
            modern: OnceLock::new(),
            next_wire_id: AtomicU64::new(1),
            pending: PendingRequests::default(),
            wire,
            streams: OnceLock::new(),
            closed: CancellationToken::new(),
            fault: OnceLock::new(),
            forgotten: AtomicBool::new(false),
            counted_open: AtomicBool::new(false),
            loss_counted: AtomicBool::new(false),
            flushed: CancellationToken::new(),
            metrics,
        })
    }

    pub fn negotiated(&self) -> Option<&Arc<InitializeResult>> {
        self.negotiated.get()
    }

    pub fn wire(&self) -> &WireSender {
        &self.wire
    }

    /// Requests may have streams of their own, once that is agreed on.
    pub(super) fn set_streams(&self, streams: RequestStreams) {
        let _set_once = self.streams.set(streams);
    }

    /// The backend has answered the question that begins the connection.
    pub(super) fn note_first_answer(&self, answer: &Message) {
        if let Some(streams) = self.streams.get() {
            streams.agree(answer);
        }
    }

    /// Whether the backend offers what this method needs.
    pub fn permits(&self, method: Method) -> Result<(), Refusal> {
        self.negotiated()
            .map_or(Ok(()), |agreed| agreed.capabilities.permits(method, agreed.version))
    }

    /// What there is beside requests where the backend speaks 2026-07-28.
    pub fn modern(&self) -> Option<&Arc<StatelessConnection>> {
        self.modern.get()
    }

    /// The backend speaks 2026-07-28, and this is what it can do.
    pub(super) fn becomes_modern(&self, found: InitializeResult, modern: StatelessConnection) {
        let _set_once = self.negotiated.set(Arc::new(found));
        let _set_once = self.modern.set(Arc::new(modern));
    }

    /// Sends a client's request and waits for its answer. Cancel-safe: a dropped wait frees its slot.
    pub async fn exchange(
        self: &Arc<Self>,
        link: &Arc<Link>,
        outgoing: BackendRequest<'_>,
    ) -> Result<Message, Failure> {
        if self.modern().is_some() {
            // On the heap: it is much larger than what other connections need.
            return Box::pin(exchange::exchange(self, link, outgoing)).await;
        }
        let wire_id = self.next_wire_id();
        // In a block of its own, so that nothing of it is kept while the answer is waited for.
        let (frame, span) = {
            let mut buffer = itoa::Buffer::new();
            let digits = buffer.format(wire_id).as_bytes();
            let mut splice = Splice::new(&outgoing.message.frame);
            if let Some(span) = outgoing.message.id_span {
                splice.replace(span, digits);
            }
            if let Some(span) = outgoing.message.fields.meta_progress_token {
                splice.replace(span, digits);
            }
            for (span, text) in outgoing.edits {
                splice.replace(*span, &text[..]);
            }
            let in_meta = matches!(self.wire, WireSender::Pipe(_));
            let span = ChildSpan::attempt(
                outgoing.message,
                link.backend.id.as_str(),
                link.backend.transport(),
                in_meta,
                &mut splice,
            );
            (self.wire.finished(splice), span)
        };
        outgoing.asker.sent_as(
            SentRequest { link: link.clone(), connection: self.clone(), wire_id },
            outgoing.sent_at,
        );
        let request = WireRequest {
            wire_id,
            frame,
            asker: Some(outgoing.asker),
            opening: false,
            headers: None,
        };
        let answer = match &span {
            // Boxed: every call would have room for a second one.
            Some(span) => {
                Box::pin(request::sending(span.headers(), self.send_and_wait(link, request))).await
            }
            None => self.send_and_wait(link, request).await,
        };
        if let Some(span) = span {
            match &answer {
                Ok(answer) => span.answered(answer, outgoing.message.method),
                Err(failure) => span.failed(failure.name()),
            }
        }
        answer
    }

    /// Asks something of the broker's own on behalf of somebody to whom the backend may have questions meanwhile. Takes as
    /// long as the backend does.
    pub async fn ask_for(
        self: &Arc<Self>,
        link: &Arc<Link>,
        method: Method,
        params: &[u8],
        asker: &Arc<dyn Asker>,
    ) -> Result<Message, Failure> {
        if self.modern().is_some() {
            return Box::pin(stateless::ask_for(self, link, method, params, asker)).await;
        }
        let wire_id = self.next_wire_id();
        let frame = handshake::request(&RequestId::from_u64(wire_id), method, Some(params)).into();
        self.send_and_wait(
            link,
            WireRequest { wire_id, frame, asker: Some(asker), opening: false, headers: None },
        )
        .await
    }

    /// Asks something of the broker's own, within the time for control methods.
    pub async fn ask(
        self: &Arc<Self>,
        link: &Arc<Link>,
        method: Method,
        params: Option<&[u8]>,
    ) -> Result<Message, Failure> {
        let limit = link.backend.timeouts().control;
        if self.modern().is_some() {
            let asked = Box::pin(stateless::ask(self, link, method, params));
            return tokio::time::timeout(limit, asked)
                .await
                .unwrap_or(Err(Failure::TimedOut(method)));
        }
        let wire_id = self.next_wire_id();
        let frame = handshake::request(&RequestId::from_u64(wire_id), method, params).into();
        let request = WireRequest { wire_id, frame, asker: None, opening: false, headers: None };
        tokio::time::timeout(limit, self.send_and_wait(link, request))
            .await
            .unwrap_or(Err(Failure::TimedOut(method)))
    }

    /// Sends a request and waits for its answer, for as long as there can be one.
    pub(super) async fn send_and_wait(
        self: &Arc<Self>,
        link: &Arc<Link>,
        request: WireRequest<'_>,
    ) -> Result<Message, Failure> {
        if self.is_closed() {
            return Err(self.why_closed());
        }
        let slot = self.pending.expect(request.wire_id, request.asker);
        self.metrics.bytes(Direction::Out, Side::Backend, request.frame.len());
        let answer = tokio::select! {
            biased;
            answer = slot.answered() => answer,
            answer = self.send_request(link, request) => answer,
            // It may have come just before the end.
            () = self.closed_without_answer(&slot) => slot.take().unwrap_or_else(|| Err(Failure::Lost(self.end("the connection ended")))),
        };
        match &answer {
            Err(Failure::SessionGone) => self.close_forgotten(),
            Ok(_) => self.streams.get().into_iter().for_each(RequestStreams::note_ready),
            Err(_) => {}
        }
        answer
    }

    /// Sends a request and keeps its way back open. Resolves when the answer came on it, unless that goes by its id, or cannot
    /// come any more.
    async fn send_request(
        self: &Arc<Self>,
        link: &Arc<Link>,
        request: WireRequest<'_>,
    ) -> Result<Message, Failure> {
        let of_task = request.asker.is_some_and(|asker| asker.is_task());
        if let Some(stream) = self.streams.get().and_then(RequestStreams::try_open) {
            return Err(Box::pin(request_streams::exchange(stream, link, self, request)).await);
        }
        match &self.wire {
            WireSender::Pipe(queue) => match queue.push(request.frame.into_bytes()) {
                Ok(()) => std::future::pending().await,
                Err(Failure::NotSent(_)) if self.is_closed() => Err(self.why_closed()),
                Err(failure) => Err(failure),
            },
            WireSender::Http(http) => {
                let brought = http.post_request(self, link, request).await?;
                if of_task {
                    fault_point::passed("task.request.written");
                }
                match brought {
                    PostOutcome::Answer(answer) => Ok(answer),
                    PostOutcome::Stream(mut stream) => Err(stream.failed().await),
                }
            }
        }
    }

    /// Resolves when no answer will come any more.
    async fn closed_without_answer(&self, slot: &AnswerSlot<'_>) {
        slot.connection_ended().await;
        if self.is_forgotten() {
            tokio::time::sleep(FORGOTTEN_GRACE).await;
        }
    }

    /// What a request learns that comes after the end.
    fn why_closed(&self) -> Failure {
        if self.is_forgotten() {
            Failure::SessionGone
        } else {
            Failure::NotSent(self.end("the connection is closed"))
        }
    }

    fn end(&self, what: &str) -> String {
        self.fault.get().map_or_else(|| what.to_owned(), |fault| format!("{what}: {fault}"))
    }

    /// Said before it is closed; the first word counts. It may come from the backend, and ends on operators' terminals.
    pub(super) fn note_fault(&self, fault: impl std::fmt::Display) {
        let text = fault.to_string();
        let readable = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
        let _first_counts = self.fault.set(readable.take(FAULT_LETTERS_MAX).collect());
    }

    /// An answer came in: hands it to whoever waits for it.
    pub fn deliver_answer(&self, message: Message) {
        let id = message.id.clone();
        self.resolve(id.as_ref(), Ok(message));
    }

    /// Something came in that is not a message. It may still say what it was meant for: a request is told what is wrong with
    /// it, the wait for an answer is over.
    pub fn broken_message(&self, rejected: &Rejection, text: &[u8]) {
        self.metrics.dropped_notification("noise");
        match &rejected.id {
            Some(id) if rejected.has_method => {
                self.send_later(rejected.refusal.to_response(Some(id), &crate::request_id()))
            }
            Some(id) => {
                self.resolve(Some(id), Err(Failure::Protocol(rejected.refusal.to_string())))
            }
            None => {
                if let Some(id) = malformed_answer::answer_id(text) {
                    self.resolve(
                        Some(&id),
                        Err(Failure::Protocol("the answer can not be read".to_owned())),
                    );
                }
            }
        }
    }

    fn resolve(&self, id: Option<&RequestId>, answer: Result<Message, Failure>) {
        let wire_id = id.and_then(RequestId::as_u64);
        if wire_id.is_some_and(|wire_id| self.pending.resolve(wire_id, answer)) {
            return;
        }
        // An id that was given out, in this process or before the session came here, is one of a call that is over.
        let is_late = wire_id.is_some_and(|wire_id| (1..self.requests_sent()).contains(&wire_id));
        self.metrics.dropped_answer(if is_late { "late" } else { "unknown_id" });
    }

    /// What is open on it: who waits for which wire id, and which requests of the backend a client works on.
    pub fn pending(&self) -> &PendingRequests {
        &self.pending
    }

    /// Queues a notification or an answer; what finds no room is lost and logged.
    pub fn send_later(&self, frame: Bytes) {
        match self.modern() {
            Some(modern) => modern.take_reply(frame),
            None => self.push_frame(frame),
        }
    }

    /// Queues the word that the client's roots changed, unless the same waits already. In 2026-07-28 there is no such word.
    pub fn roots_changed(&self, frame: Bytes) {
        if self.modern().is_none() {
            self.queue().push_coalesced_or_drop(frame, &self.metrics);
        }
    }

    pub(super) fn push_frame(&self, frame: Bytes) {
        self.queue().push_or_drop(frame, &self.metrics);
    }

    /// Requests sent so far, or a number that is larger by the same for each.
    pub fn requests_sent(&self) -> u64 {
        self.next_wire_id.load(Ordering::Relaxed)
    }

    /// Somebody waits for an answer, of the backend or for it.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Counts the connection as open, or no longer; `true` when that is a change.
    pub fn count(&self, open: bool) -> bool {
        self.counted_open.swap(open, Ordering::AcqRel) != open
    }

    /// Counts that calls were lost with it; `true` the first time.
    pub fn count_loss(&self) -> bool {
        !self.loss_counted.swap(true, Ordering::AcqRel)
    }

    pub fn is_closed(&self) -> bool {
        self.pending.has_ended()
    }

    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Said by the task that writes.
    pub(super) fn mark_flushed(&self) {
        self.flushed.cancel();
    }

    /// The backend no longer knows the session, or another era is to be agreed on: whoever learns it first ends the connection
    /// for everybody, and the next is opened without a pause.
    pub(in crate::backends) fn close_forgotten(&self) {
        self.forgotten.store(true, Ordering::Release);
        self.close_now();
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::Acquire)
    }

    /// Nothing more goes in or out; whoever waits learns that the outcome is unknown.
    pub fn close_now(&self) {
        self.pending.end();
        self.closed.cancel();
        self.queue().close();
        self.pending.fail_all();
    }

    /// Closes and waits for the goodbye (a process ended, a session deleted).
    pub async fn close(&self) {
        self.close_keeping_session().await;
        if let WireSender::Http(http) = &self.wire
            && !self.is_forgotten()
        {
            http.delete_session().await;
        }
    }

    /// Closes without a goodbye: the session at the backend goes on.
    pub async fn close_keeping_session(&self) {
        self.close_now();
        self.flushed.cancelled().await;
    }

    /// Lets the backend tell when its lists change, where that has to be asked for.
    pub(super) fn watch_lists(self: &Arc<Self>, link: &Arc<Link>) {
        if let Some(modern) = self.modern() {
            modern.watch_lists(self, link);
        }
    }

    fn queue(&self) -> &FrameQueue {
        match &self.wire {
            WireSender::Pipe(queue) => queue,
            WireSender::Http(http) => http.one_way(),
        }
    }

    pub(super) fn next_wire_id(&self) -> u64 {
        self.next_wire_id.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use crate::persistence::NodeName;
    use proptest::prelude::*;
    use protocol::{
        capabilities::ClientCapabilities,
        ids::{BackendId, TenantId},
        json,
    };
    use transport::http_client::{HttpClient, HttpClientConfig};

    use super::*;
    use crate::{
        auth::Keys,
        backends::{backend::Backend, link::Era},
        config::{Config, spec::BackendSpec},
        context::Context,
        persistence::{Persistence, Stores},
        rules::link_sharing::LinkScope,
        telemetry::traces::Tracer,
    };

    async fn link() -> Arc<Link> {
        let http = HttpClient::new(HttpClientConfig::default()).unwrap();
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &[1; 32]);
        let (metrics, keys) = (Arc::new(Metrics::new(false)), Keys::from_root(b"root"));
        let durable = Persistence::new(
            Stores::in_memory().await,
            NodeName::new("node"),
            keys.seal,
            metrics.clone(),
        );
        let shared = Context::new(
            Arc::new(Config::default()),
            metrics,
            http,
            key,
            durable,
            Tracer::default(),
        );
        let spec: BackendSpec =
            serde_json::from_str(r#"{"transport":{"type":"stdio","command":"none"}}"#).unwrap();
        let backend = Backend::new(
            TenantId::parse("acme").unwrap(),
            BackendId::parse("b").unwrap(),
            spec,
            shared,
            Arc::default(),
        );
        Link::new(backend, LinkScope::Catalog, ClientCapabilities::none(), Era::Sessions)
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

    #[tokio::test]
    async fn rpc_12_an_answer_to_what_is_over_is_late_and_one_to_what_was_never_asked_is_unknown() {
        let metrics = Arc::new(Metrics::new(false));
        let (queue, _frames) = FrameQueue::new(4, metrics.queue_depth("pipe"));
        let connection = Connection::new(WireSender::Pipe(queue), metrics.clone());
        let dropped = || {
            let text = metrics.render();
            let count = |reason| {
                let name = format!("mcp_dropped_answers_total{{reason=\"{reason}\"}} ");
                text.lines()
                    .find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok())
                    .unwrap_or_default()
            };
            (count("late"), count("unknown_id"))
        };
        let answered = |id: &str| {
            connection
                .deliver_answer(message(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)))
        };
        let wire_id = connection.next_wire_id();
        drop(connection.pending.expect(wire_id, None));
        answered(&wire_id.to_string());
        assert_eq!(dropped(), (1, 0));
        for unknown in
            ["0".to_owned(), (wire_id + 1).to_string(), format!("\"{wire_id}\""), "-1".to_owned()]
        {
            answered(&unknown);
        }
        assert_eq!(dropped(), (1, 4));
        let agreed = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"b","version":"1"}}}"#;
        connection
            .resume(Arc::new(InitializeResult::parse(&message(agreed.to_owned())).unwrap()), 100);
        answered("99");
        answered("100");
        assert_eq!(dropped(), (2, 5), "what an earlier process asked is over");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn rpc_03_12_each_question_gets_its_own_answer_once(questions in 1_usize..40, acts in prop::collection::vec(act(), 0..120)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let link = link().await;
                let metrics = link.backend.shared.metrics.clone();
                let (queue, mut frames) = FrameQueue::new(64, metrics.queue_depth("pipe"));
                let connection = Connection::new(WireSender::Pipe(queue), metrics);
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
                    let frame = message(String::from_utf8(frames.recv().await.unwrap().into_frame().to_vec()).unwrap());
                    let params: serde_json::Value = serde_json::from_slice(frame.bytes(frame.params).unwrap()).unwrap();
                    seen.push((frame.id.unwrap().as_u64().unwrap(), params["n"].as_u64().unwrap()));
                }
                let mut answered = std::collections::HashSet::new();
                for act in acts {
                    let answer = |wire_id: u64, n: u64| message(format!(r#"{{"jsonrpc":"2.0","id":{wire_id},"result":{{"n":{n}}}}}"#));
                    match act {
                        Act::Answer(at) | Act::AnswerTwice(at) => {
                            let (wire_id, n) = seen[at % questions];
                            connection.deliver_answer(answer(wire_id, n));
                            if matches!(act, Act::AnswerTwice(_)) {
                                connection.deliver_answer(answer(wire_id, 999_999));
                            }
                            answered.insert(n);
                        }
                        Act::AnswerAsText(at) => {
                            let (wire_id, _) = seen[at % questions];
                            connection.deliver_answer(message(format!(r#"{{"jsonrpc":"2.0","id":"{wire_id}","result":{{"n":999999}}}}"#)));
                        }
                        Act::Stray(wire_id) => connection.deliver_answer(answer(wire_id, 999_999)),
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
                assert!(connection.pending.is_empty(), "no wire id is left behind");
            });
        }
    }
}
