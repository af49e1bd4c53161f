//! A client's request on its way to one backend and back: exactly one answer, whatever happens.
//!
//! Each call is one task. It ends in [`Call::settle`], and only there: with the backend's answer, a refusal, a timeout, or
//! (after the client's cancellation) with nothing.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message},
    error::{ErrorKind, Refusal},
    handshake,
    ids::{BackendId, RequestId},
    json::Span,
    method::Method,
    splice::Splice,
};
use tokio_util::sync::CancellationToken;

use super::{
    asker::{Asker, Carried},
    link::connection::{Failure, Outgoing},
    session::Session,
    stream::EventStream,
    sync::lock,
};
use crate::{
    limits::CALL_TOTAL_MAX,
    metrics::Outcome,
    rules::{completion, event_log::EventKind, exposure, tasks::is_tool_error},
    telemetry::request::{self, Request},
};

/// One request in flight.
#[derive(Debug)]
pub struct Call {
    pub client_id: RequestId,
    pub method: Method,
    pub session: Arc<Session>,
    /// The way back to the client.
    pub stream: Arc<EventStream>,
    pub backend: BackendId,
    /// The client's progress token, as sent.
    pub progress_token: Option<Bytes>,
    last_progress: Mutex<Option<f64>>,
    cancelled: CancellationToken,
    cancel_reason: Mutex<Option<Bytes>>,
    started: Instant,
    /// Milliseconds after `started` at which something last happened.
    touched_ms: AtomicU64,
    /// Questions of the backend the client has not answered yet; the clock stands still for them.
    pub open_questions: AtomicUsize,
    settled: AtomicBool,
    /// The backend knows that nobody waits any more.
    told: AtomicBool,
    sent: Mutex<Option<Carried>>,
    /// As the log, its trace and the audit log know it.
    pub observed: Option<Arc<Request>>,
}

/// A call whose task dies is still answered.
struct SettleOnPanic<'a>(&'a Arc<Call>);

impl Drop for SettleOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.settle(Ending::Refused(Refusal::new(ErrorKind::Internal, "the call failed inside the broker")));
        }
    }
}

/// How a call ended.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per call, moved twice; a box would cost an allocation")]
pub enum Ending {
    Answered(Message),
    Refused(Refusal),
    Cancelled,
    TimedOut,
}

impl Call {
    pub fn new(
        message: &Message,
        client_id: RequestId,
        session: &Arc<Session>,
        stream: &Arc<EventStream>,
        backend: BackendId,
    ) -> Arc<Self> {
        Arc::new(Self {
            client_id,
            method: message.method,
            session: session.clone(),
            stream: stream.clone(),
            backend,
            progress_token: message.fields.meta_progress_token.map(|span| span.slice(&message.frame)),
            last_progress: Mutex::new(None),
            cancelled: CancellationToken::new(),
            cancel_reason: Mutex::new(None),
            started: Instant::now(),
            touched_ms: AtomicU64::new(0),
            open_questions: AtomicUsize::new(0),
            settled: AtomicBool::new(false),
            told: AtomicBool::new(false),
            sent: Mutex::new(None),
            observed: request::current(),
        })
    }

    /// Carries the call to its end. The session has it in its table already.
    pub async fn run(self: Arc<Self>, message: Message, edits: Vec<(Span, Vec<u8>)>) {
        let _answered = SettleOnPanic(&self);
        let ending = tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Ending::Cancelled,
            ending = self.relay(&message, &edits) => ending,
            () = self.expired() => Ending::TimedOut,
        };
        self.settle(ending);
    }

    /// The client (or the end of its session) wants no answer any more.
    pub fn cancel(&self, reason: Option<Bytes>) {
        *lock(&self.cancel_reason) = reason;
        self.cancelled.cancel();
        // At once, so that it is on its way before a session's end closes the link. What is only being sent now is told of
        // when the call settles.
        if !self.settled.load(Ordering::Acquire) {
            self.tell_backend();
        }
    }

    /// Something of this call moved: its clock starts again.
    pub fn touch(&self) {
        self.touched_ms.store(self.elapsed_ms(), Ordering::Relaxed);
    }

    /// Notes which connection and wire id carry the call, so that a cancellation finds it.
    pub fn sent_as(&self, carried: Carried) {
        *lock(&self.sent) = Some(carried);
    }

    /// Whether progress of this value may go to the client (MCP: it increases with each notification).
    pub fn progress_advances(&self, value: f64) -> bool {
        let mut last = lock(&self.last_progress);
        if last.is_some_and(|last| value <= last) {
            return false;
        }
        *last = Some(value);
        true
    }

    async fn relay(self: &Arc<Self>, message: &Message, edits: &[(Span, Vec<u8>)]) -> Ending {
        let asker = Asker::Call(self.clone());
        // A backend that forgot its session did not process the call, so it is sent once more over a new one.
        for attempt in 0..2 {
            let link = match self.session.link_to(&self.backend) {
                Ok(link) => link,
                Err(refusal) => return Ending::Refused(refusal),
            };
            let connection = match link.connection().await {
                Ok(connection) => connection,
                Err(refusal) => return Ending::Refused(refusal),
            };
            if let Err(refusal) = connection.permits(self.method) {
                return Ending::Refused(refusal);
            }
            match connection.exchange(&link, Outgoing { message, edits, asker: &asker }).await {
                Ok(answer) => return Ending::Answered(answer),
                Err(Failure::SessionGone) if attempt == 0 => {} // the connection has ended itself, the link opens another
                Err(failure) => return Ending::Refused(link.backend.refusal(&failure)),
            }
        }
        Ending::Refused(Failure::SessionGone.refusal(&self.backend))
    }

    /// Resolves when the call's time is up: `timeouts.call` after the last sign of life, never beyond the total.
    async fn expired(&self) {
        let timeouts = self.session.timeouts_for(&self.backend);
        let quiet = if self.method.info().control { timeouts.control } else { timeouts.call };
        loop {
            if self.open_questions.load(Ordering::Relaxed) > 0 {
                self.touch();
            }
            let touched = Duration::from_millis(self.touched_ms.load(Ordering::Relaxed));
            let due = (touched + quiet).min(CALL_TOTAL_MAX);
            if self.started.elapsed() >= due {
                return;
            }
            tokio::time::sleep_until((self.started + due).into()).await;
        }
    }

    /// The one end of every call.
    fn settle(self: &Arc<Self>, ending: Ending) {
        if self.settled.swap(true, Ordering::AcqRel) {
            return;
        }
        let now = Instant::now();
        let outcome = outcome(self.method, &ending);
        if matches!(ending, Ending::Cancelled | Ending::TimedOut) {
            self.tell_backend();
        }
        let _settling = self.session.leave(&self.client_id);
        match self.answer(ending) {
            Some(frame) => {
                let _cut = self.stream.push(now, EventKind::Answer, frame);
            }
            None => self.stream.give_up_answer(now),
        }
        self.session.request_finished(self.method, outcome, self.started);
    }

    fn answer(self: &Arc<Self>, ending: Ending) -> Option<Bytes> {
        match ending {
            Ending::Answered(answer) => Some(self.for_client(&answer)),
            Ending::Refused(refusal) => Some(self.session.refusal_frame(&refusal, Some(&self.client_id))),
            Ending::TimedOut => {
                let refusal = Refusal::new(ErrorKind::Timeout, format!("backend {} did not answer in time", self.backend));
                Some(self.session.refusal_frame(&refusal, Some(&self.client_id)))
            }
            Ending::Cancelled => None,
        }
    }

    /// The backend's answer with everything it names put back into the client's terms.
    fn for_client(self: &Arc<Self>, answer: &Message) -> Bytes {
        let mut splice = Splice::new(&answer.frame);
        if let Some(span) = answer.id_span {
            splice.replace(span, self.client_id.raw().to_vec());
        }
        exposure::expose_answer(answer, &self.backend, &self.session.endpoint, &mut splice);
        if answer.bytes(answer.fields.error_code) == Some(b"-32042") {
            self.session.note_elicitations_required(answer);
        }
        if self.method == Method::CompletionComplete {
            completion::limit_values(answer, &mut splice);
        }
        splice.finish()
    }

    /// Tells the backend that nobody waits any more (MCP 2025-11-25, Cancellation).
    fn tell_backend(&self) {
        let Some(Carried { connection, wire_id, .. }) = lock(&self.sent).clone() else { return };
        if self.told.swap(true, Ordering::AcqRel) {
            return;
        }
        let reason = lock(&self.cancel_reason).take().map(|reason| format!(",\"reason\":{}", String::from_utf8_lossy(&reason)));
        let params = format!("{{\"requestId\":{wire_id}{}}}", reason.unwrap_or_default());
        connection.send_later(handshake::notification(Method::Cancelled, Some(params.as_bytes())));
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

fn outcome(method: Method, ending: &Ending) -> Outcome {
    match ending {
        Ending::Answered(answer) if answer.kind == Kind::Error => Outcome::Error,
        Ending::Answered(answer) if method == Method::ToolsCall && is_tool_error(answer) => Outcome::ToolError,
        Ending::Answered(_) => Outcome::Ok,
        Ending::Refused(_) => Outcome::Refused,
        Ending::Cancelled => Outcome::Cancelled,
        Ending::TimedOut => Outcome::Timeout,
    }
}
