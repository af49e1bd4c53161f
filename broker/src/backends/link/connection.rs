//! One open connection of a link: its state, its pending requests and its end. The files of
//! `connection/` send requests over it, and define its requesters.
//!
//! Every request to a backend gets a wire id of the broker, which is its progress token too. An
//! answer is matched by that id only, whichever stream it arrives on. An answer without a waiting
//! request is dropped and counted.

mod control_request;
mod exchange;
mod initialize;
pub mod pending;
pub mod requester;
mod send;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use protocol::{
    envelope::{Message, RefusedMessage},
    error::Refusal,
    handshake::InitializeResult,
    ids::RequestId,
    method::Method,
};
use tokio_util::sync::CancellationToken;

use super::{
    backend_session::BackendSession, failure::Failure, malformed_answer, queue::FrameQueue,
    request_streams::RequestStreams, stateless::state::StatelessConnection, wire::WireSender,
};
use crate::metrics::Metrics;

pub(super) use self::initialize::is_catalog_loop;
use self::pending::PendingRequests;

/// Characters of the fault of a connection.
const FAULT_LETTERS_MAX: usize = 300;

#[derive(Debug)]
pub struct Connection {
    pub opened: Instant,
    /// The result of the handshake.
    negotiated: OnceLock<Arc<InitializeResult>>,
    /// State of a connection to a backend of 2026-07-28.
    stateless: OnceLock<Arc<StatelessConnection>>,
    next_wire_id: AtomicU64,
    pending: PendingRequests,
    wire: WireSender,
    /// Streams of single requests, which only QUIC has.
    streams: OnceLock<RequestStreams>,
    /// Cancelled when no further message can come or leave.
    closed: CancellationToken,
    /// The fault that ended it, if known. It may hold text of the backend, so only operators see
    /// it.
    fault: OnceLock<String>,
    /// The size limit that a message exceeded, if that ended the connection.
    overlong: OnceLock<usize>,
    /// Set when the connection is closed because the backend forgot the session.
    forgotten: AtomicBool,
    /// Set while the backend counts the connection as open.
    counted_open: AtomicBool,
    /// Set when the metrics have the loss of its calls.
    loss_counted: AtomicBool,
    /// Cancelled when every queued frame was written or dropped.
    flushed: CancellationToken,
    metrics: Arc<Metrics>,
}

impl Connection {
    pub fn new(wire: WireSender, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            opened: Instant::now(),
            negotiated: OnceLock::new(),
            stateless: OnceLock::new(),
            next_wire_id: AtomicU64::new(1),
            pending: PendingRequests::default(),
            wire,
            streams: OnceLock::new(),
            closed: CancellationToken::new(),
            fault: OnceLock::new(),
            overlong: OnceLock::new(),
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

    /// Sets the streams of single requests, which the handshake may enable.
    pub(super) fn set_streams(&self, streams: RequestStreams) {
        let _set_once = self.streams.set(streams);
    }

    /// Notes the first answer of the backend, which enables or disables request streams.
    pub(super) fn record_first_answer(&self, answer: &Message) {
        if let Some(streams) = self.streams.get() {
            streams.agree(answer);
        }
    }

    /// Returns an error if the backend does not offer what this method needs.
    pub fn permits(&self, method: Method) -> Result<(), Refusal> {
        self.negotiated()
            .map_or(Ok(()), |agreed| agreed.capabilities.permits(method, agreed.version))
    }

    /// Returns the state for 2026-07-28, if the backend supports it.
    pub fn stateless(&self) -> Option<&Arc<StatelessConnection>> {
        self.stateless.get()
    }

    /// Resumes a session that an earlier connection negotiated, perhaps in another process.
    pub(super) fn resume(&self, agreed: Arc<InitializeResult>, first_wire_id: u64) {
        if let WireSender::Http(http) = &self.wire {
            http.agree_on(agreed.version);
        }
        let _set_once = self.negotiated.set(agreed);
        self.next_wire_id.fetch_max(first_wire_id, Ordering::Relaxed);
    }

    /// Returns the session at the backend, which another process can resume.
    pub(super) fn backend_session(&self, url: &str) -> Option<BackendSession> {
        let (WireSender::Http(http), Some(agreed)) = (&self.wire, self.negotiated()) else {
            return None;
        };
        Some(BackendSession {
            url: url.to_owned(),
            id: http.session_id()?,
            version: agreed.version,
        })
    }

    /// Marks the connection as one of 2026-07-28. `found` holds the capabilities of the backend.
    pub(super) fn set_stateless(&self, found: InitializeResult, stateless: StatelessConnection) {
        let _set_once = self.negotiated.set(Arc::new(found));
        let _set_once = self.stateless.set(Arc::new(stateless));
    }

    /// Returns the failure of a request that starts after the end of the connection.
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

    /// Stores the fault of the connection before it is closed. The first fault counts. Control
    /// characters are removed, because the text may come from the backend and reach a terminal.
    pub(super) fn record_fault(&self, fault: impl std::fmt::Display) {
        let text = fault.to_string();
        let readable = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
        let _first_counts = self.fault.set(readable.take(FAULT_LETTERS_MAX).collect());
    }

    /// Stores that a message over this limit ends the connection. The rest of it cannot be skipped.
    pub(super) fn record_overlong(&self, max: usize) {
        let _first_counts = self.overlong.set(max);
    }

    /// Returns the failure of a request whose answer did not come before the end of the connection.
    pub(super) fn loss(&self) -> Failure {
        match self.overlong.get() {
            Some(max) => Failure::Overlong { max: *max },
            None => Failure::Lost(self.end("the connection ended")),
        }
    }

    /// Delivers an answer to the request that waits for it.
    pub fn deliver_answer(&self, message: Message) {
        let id = message.id.clone();
        self.resolve(id.as_ref(), Ok(message));
    }

    /// Handles input that is not a message. If it names an id, the broker answers a request with
    /// the error, and ends the wait for an answer.
    pub fn broken_message(&self, rejected: &RefusedMessage, text: &[u8]) {
        self.metrics.dropped_notification("noise");
        match (&rejected.answers, &rejected.id) {
            (Some(id), _) => {
                self.resolve(Some(id), Err(Failure::Protocol(rejected.refusal.to_string())))
            }
            (None, Some(id)) => {
                self.send_later(rejected.refusal.to_response(Some(id), &crate::request_id()))
            }
            // JSON-RPC 2.0, 5: the error has no id then.
            (None, None) if rejected.has_unreadable_id => {
                self.send_later(rejected.refusal.to_response(None, &crate::request_id()))
            }
            (None, None) => {
                if let Some(id) = malformed_answer::answer_id(text) {
                    self.resolve(
                        Some(&id),
                        Err(Failure::Protocol(
                            "the backend's answer is not a valid message".to_owned(),
                        )),
                    );
                }
            }
        }
    }

    fn resolve(&self, id: Option<&RequestId>, answer: Result<Message, Failure>) {
        let wire_id = id.and_then(RequestId::as_wire_id);
        if wire_id.is_some_and(|wire_id| self.pending.resolve(wire_id, answer)) {
            return;
        }
        // An id below the counter belongs to a call that is over, of this process or of an earlier
        // owner.
        let is_late = wire_id.is_some_and(|wire_id| (1..self.requests_sent()).contains(&wire_id));
        self.metrics.dropped_answer(if is_late { "late" } else { "unknown_id" });
    }

    /// Returns the open requests by wire id, and the backend's requests that clients work on.
    pub fn pending(&self) -> &PendingRequests {
        &self.pending
    }

    /// Queues a notification or an answer. A frame that does not fit is dropped and logged.
    pub fn send_later(&self, frame: Bytes) {
        match self.stateless() {
            Some(stateless) => stateless.take_reply(frame),
            None => self.push_frame(self.pending.with_roots(frame)),
        }
    }

    /// Queues the notification that the client's roots changed, unless one is queued already.
    /// 2026-07-28 has no such notification.
    pub fn roots_changed(&self, frame: Bytes) {
        if self.stateless().is_none() {
            self.queue().push_coalesced_or_drop(frame, &self.metrics);
        }
    }

    pub(super) fn push_frame(&self, frame: Bytes) {
        self.queue().push_or_drop(frame, &self.metrics);
    }

    /// Returns the next wire id. It grows by one with each request.
    pub fn requests_sent(&self) -> u64 {
        self.next_wire_id.load(Ordering::Relaxed)
    }

    /// Returns whether a request of either side waits for its answer. An open stream of notifications
    /// has none until it ends, so it does not count.
    pub fn has_pending(&self) -> bool {
        match self.stateless() {
            Some(stateless) => !self.pending.is_empty_except(&stateless.listening.open_streams()),
            None => !self.pending.is_empty(),
        }
    }

    /// Counts the connection as open or closed. Returns `true` if that is a change.
    pub fn count(&self, open: bool) -> bool {
        self.counted_open.swap(open, Ordering::AcqRel) != open
    }

    /// Counts the loss of its calls. Returns `true` the first time.
    pub fn count_loss(&self) -> bool {
        !self.loss_counted.swap(true, Ordering::AcqRel)
    }

    pub fn is_closed(&self) -> bool {
        self.pending.has_ended()
    }

    /// Returns whether requests can be written. A connection whose writing failed may still receive
    /// its last answers.
    pub(super) fn takes_requests(&self) -> bool {
        !self.is_closed()
            && match &self.wire {
                WireSender::Pipe(queue) => !queue.is_closed(),
                WireSender::Http(_) => true,
            }
    }

    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Marks all frames as written. Called by the task that writes.
    pub(super) fn mark_flushed(&self) {
        self.flushed.cancel();
    }

    /// Waits until all frames are written, after the connection was closed.
    pub(super) async fn flushed(&self) {
        self.flushed.cancelled().await;
    }

    /// Closes the connection because the backend forgot the session, or because its era must be
    /// negotiated again. The next connection opens without a back-off.
    pub(in crate::backends) fn close_forgotten(&self) {
        self.forgotten.store(true, Ordering::Release);
        self.close_now();
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::Acquire)
    }

    /// Closes the connection at once. The outcome of its open requests is unknown.
    pub fn close_now(&self) {
        self.pending.end();
        self.closed.cancel();
        self.queue().close();
        self.pending.fail_all();
    }

    /// Closes the connection and waits for an orderly end: the process has ended, or the session is
    /// deleted.
    pub async fn close(&self) {
        self.close_keeping_session().await;
        if let WireSender::Http(http) = &self.wire
            && !self.is_forgotten()
        {
            http.delete_session().await;
        }
    }

    /// Closes the connection but keeps the session at the backend.
    pub async fn close_keeping_session(&self) {
        self.close_now();
        self.flushed().await;
    }

    pub(super) fn queue(&self) -> &FrameQueue {
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
    use config::{Config, spec::BackendSpec};
    use proptest::prelude::*;
    use protocol::{
        capabilities::ClientCapabilities,
        ids::{BackendId, TenantId},
        json,
    };
    use records::NodeName;
    use rules::{catalog::MarkKey, link_sharing::LinkScope};
    use transport::http_client::{HttpClient, HttpClientConfig};

    use super::*;
    use crate::{
        auth::Keys,
        backends::{
            backend::Backend,
            link::{Era, Link, LinkParams},
        },
        context::Context,
        persistence::{Persistence, Stores},
        telemetry::traces::Tracer,
    };

    async fn link() -> Arc<Link> {
        let http = HttpClient::new(HttpClientConfig::default()).unwrap();
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &[1; 32]);
        let (metrics, keys) = (Arc::new(Metrics::new(false)), Keys::from_root(b"root"));
        let persistence = Persistence::new(
            Stores::in_memory().await,
            NodeName::new("node"),
            keys.seal,
            metrics.clone(),
        );
        let context = Context::new(
            Arc::new(Config::default()),
            metrics,
            http,
            key.clone(),
            MarkKey::new(key),
            persistence,
            Tracer::default(),
        );
        let spec: BackendSpec =
            serde_json::from_str(r#"{"transport":{"type":"stdio","command":"none"}}"#).unwrap();
        let backend = Backend::new(
            TenantId::parse("acme").unwrap(),
            BackendId::parse("b").unwrap(),
            spec,
            context,
            Arc::default(),
        );
        let params = LinkParams {
            scope: LinkScope::Catalog,
            principal: None,
            declared: ClientCapabilities::none(),
            client_era: Era::Sessions,
        };
        Link::new(backend, params)
    }

    fn message(text: String) -> Message {
        Message::decode(Bytes::from(text), &json::Limits::default()).unwrap()
    }

    /// An action of the backend: an answer to one of the requests, or an unsolicited message.
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
    async fn rpc_12_an_answer_to_an_ended_request_is_late_and_others_are_unknown() {
        let metrics = Arc::new(Metrics::new(false));
        let (queue, _frames) = FrameQueue::for_tests(4, metrics.queue_depth("pipe"));
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
            ["0".to_owned(), (wire_id + 1).to_string(), format!("\"0{wire_id}\""), "-1".to_owned()]
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
        fn rpc_03_12_each_request_gets_its_own_answer_once(questions in 1_usize..40, acts in prop::collection::vec(act(), 0..120)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let link = link().await;
                let metrics = link.backend.context.metrics.clone();
                let (queue, mut frames) = FrameQueue::for_tests(64, metrics.queue_depth("pipe"));
                let connection = Connection::new(WireSender::Pipe(queue), metrics);
                let started: Vec<_> = (0..questions)
                    .map(|n| {
                        let (connection, link) = (connection.clone(), link.clone());
                        let params = format!("{{\"n\":{n}}}");
                        tokio::spawn(async move { connection.control_request(&link, Method::Ping, Some(params.as_bytes())).await })
                    })
                    .collect();
                // The requests as the backend sees them: the wire id and the number of the request.
                let mut seen = Vec::new();
                while seen.len() < questions {
                    let frame = message(String::from_utf8(frames.recv().await.unwrap().into_frame().to_vec()).unwrap());
                    let params: serde_json::Value = serde_json::from_slice(frame.bytes(frame.params).unwrap()).unwrap();
                    seen.push((frame.id.as_ref().unwrap().as_u64().unwrap(), params["n"].as_u64().unwrap()));
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
                            let (wire_id, n) = seen[at % questions];
                            connection.deliver_answer(message(format!(r#"{{"jsonrpc":"2.0","id":"{wire_id}","result":{{"n":{n}}}}}"#)));
                            connection.deliver_answer(message(format!(r#"{{"jsonrpc":"2.0","id":"0{wire_id}","result":{{"n":999999}}}}"#)));
                            answered.insert(n);
                        }
                        Act::Stray(wire_id) => connection.deliver_answer(answer(wire_id, 999_999)),
                    }
                }
                connection.close_now();
                for (n, task) in started.into_iter().enumerate() {
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
