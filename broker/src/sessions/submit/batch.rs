//! The calls of one `execute_batch`, each submitted like a request of the client.
//!
//! A call of a batch passes everything that a call of its own passes: rates, the access policy,
//! schemas, approvals, limits, deadlines and the audit log. It has a stream of its own, which the
//! batch reads. Questions and log messages go on to the stream of the batch; the answer becomes a
//! part of the result.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use protocol::{
    envelope::Message,
    error::{ErrorKind, Refusal},
    ids::RequestId,
    json,
    method::Method,
};
use rules::{
    batch::{self, Batch, BatchCall, BatchEnd},
    event_log::EventKind,
    limits::toolsets::BATCH_PARALLEL_MAX,
};
use tokio_util::sync::CancellationToken;

use super::submit_after_quiesce;
use crate::{
    sessions::{
        session::{
            CancelScope, RequestContext, Session,
            local_requests::{Reply, spawn_cancellable_request},
        },
        stream::{EventStream, StreamItem},
    },
    telemetry::request,
};

/// Starts a batch, whose result is the answer to the request.
pub(super) fn start(
    session: &Arc<Session>,
    request: RequestContext<'_>,
    batch: Batch,
    message: &Message,
) -> Result<(), Refusal> {
    let trace = message.fields.meta_traceparent.map(|span| span.slice(&message.frame));
    let over = CancellationToken::new();
    let (stream, ends) = (request.stream.clone(), over.child_token());
    let method = request.method;
    spawn_cancellable_request(session, request, CancelScope::Wait, over, move |session| {
        request::in_inbound_context(async move {
            let run =
                BatchRun { session, stream, over: ends, has_failed: AtomicBool::new(false), trace };
            let result = run.run(&batch).await;
            Ok(Reply::Result(
                run.session.client_dialect().result(method, &result).map_or(result, Bytes::from),
            ))
        })
    })
}

/// A batch in progress.
struct BatchRun {
    session: Arc<Session>,
    /// The stream of the batch itself.
    stream: Arc<EventStream>,
    /// Ends the batch and its calls: its client cancelled it, or its time is over.
    over: CancellationToken,
    has_failed: AtomicBool,
    /// The trace context of the batch, which its calls continue.
    trace: Option<Bytes>,
}

impl BatchRun {
    async fn run(&self, batch: &Batch) -> Bytes {
        let at_once = if batch.is_parallel { BATCH_PARALLEL_MAX } else { 1 };
        let calls = stream::iter(0..batch.calls.len());
        let calls = calls.map(|at| self.end(&batch.calls[at], batch.stops_on_error));
        let mut ends = pin!(calls.buffered(at_once).collect::<Vec<_>>());
        let time = self.session.tenant.deadline(None, Method::ToolsCall, None).total;
        let ends = match tokio::time::timeout(time, &mut ends).await {
            Ok(ends) => ends,
            Err(_) => {
                self.over.cancel();
                ends.await
            }
        };
        batch::result(batch, &ends)
    }

    async fn end(&self, call: &BatchCall, stops: bool) -> BatchEnd {
        if self.over.is_cancelled() || (stops && self.has_failed.load(Ordering::Relaxed)) {
            return BatchEnd::NotRun;
        }
        // The client cannot guess the id, so no request of its own stands in the way.
        let id =
            RequestId::from_raw(json::quote(&format!("{:032x}", rand::random::<u128>())).into());
        let answer = match self.answer(call, &id).await {
            Ok(answer) => answer,
            Err(refusal) => self.session.refusal_frame(&refusal, Some(&id)),
        };
        let end = BatchEnd::of_answer(answer);
        if end.is_failure() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        end
    }

    /// Submits a call and waits for its answer.
    async fn answer(&self, call: &BatchCall, id: &RequestId) -> Result<Bytes, Refusal> {
        let message = call.request(id, self.trace.as_deref())?;
        let limits = self.session.shared.stream_limits();
        let stream = EventStream::for_answers(0, limits, vec![id.clone()], 0);
        let unreadable = |_| {
            Refusal::new(ErrorKind::Internal, "the broker cannot read the event stream of the call")
        };
        let mut reader = stream.read_from(0).map_err(unreadable)?;
        stream.set_log_level(self.stream.log_level());
        let mut work = submit_after_quiesce(&self.session, message, &stream).await?;
        loop {
            let next = async {
                match &mut work {
                    Some(call) => reader.next_while_driving(call).await,
                    None => reader.next().await,
                }
            };
            let item = tokio::select! {
                biased;
                item = next => item,
                () = self.over.cancelled() => {
                    self.session.cancel_request(id);
                    let text = "the batch ended before the call had an answer, and the backend may have acted";
                    return Err(Refusal::new(ErrorKind::Timeout, text));
                }
            };
            match item {
                StreamItem::Event(event) if event.kind == EventKind::Answer => {
                    return Ok(event.frame);
                }
                StreamItem::Event(event) => self.pass_on(event.kind, event.frame),
                StreamItem::Ended(_) => {
                    let text = "the broker gave up the call: the backend may or may not have carried it out";
                    return Err(Refusal::new(ErrorKind::OutcomeUnknown, text));
                }
            }
        }
    }

    /// Sends the client the messages of a backend about a call before its answer.
    fn pass_on(&self, kind: EventKind, frame: Bytes) {
        match self.stream.is_unreachable() {
            true => self.session.deliver(kind, frame),
            false => self.session.push_to(&self.stream, kind, frame),
        }
    }
}
