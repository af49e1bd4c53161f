//! Requests the broker answers itself after some waiting: log levels, subscriptions, and everything about tasks.
//!
//! They are in flight like any call: counted, limited, with an id of their own, answered exactly once. What a cancellation
//! ends is said with each; a change that was begun is never left half done.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    method::Method,
};
use tokio_util::sync::CancellationToken;

use super::{Session, requests::InFlight};
use crate::{
    actors::stream::EventStream,
    metrics::RequestOutcome,
    rules::{event_log::EventKind, log_level::LogLevel},
    telemetry::request,
};

/// What such a request is answered with.
pub(in crate::actors) enum Reply {
    /// The result.
    Result(Bytes),
    /// The whole response, which may be an error.
    Frame(Bytes),
    /// The result, and what is to be done once it is on its way.
    ResultThen(Bytes, Box<dyn FnOnce() + Send>),
}

/// What the client's cancellation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::actors) enum CancelScope {
    /// The wait for the answer; the work is finished unseen.
    Wait,
    /// The work with it: all it does is wait.
    Work,
    /// Nothing: the request makes something that is cancelled in another way.
    Nothing,
}

/// One such request, until it is answered. Dropped without an answer (its task died), it still gets one.
struct LocalRequest {
    session: Arc<Session>,
    stream: Arc<EventStream>,
    id: RequestId,
    method: Method,
    started_at: Instant,
    settled: bool,
}

impl LocalRequest {
    /// `None`: the client wants no answer any more.
    fn settle(&mut self, result: Option<Result<Reply, Refusal>>) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let _settling = self.session.close_request(&self.id);
        let (outcome, frame, then) = match result {
            Some(Ok(Reply::Result(result))) => {
                (RequestOutcome::Ok, Some(handshake::success(&self.id, &result)), None)
            }
            Some(Ok(Reply::ResultThen(result, then))) => {
                (RequestOutcome::Ok, Some(handshake::success(&self.id, &result)), Some(then))
            }
            Some(Ok(Reply::Frame(frame))) => (RequestOutcome::Ok, Some(frame), None),
            Some(Err(refusal)) => (
                RequestOutcome::Refused,
                Some(self.session.refusal_frame(&refusal, Some(&self.id))),
                None,
            ),
            None => (RequestOutcome::Cancelled, None, None),
        };
        match frame {
            Some(frame) => {
                let _cut = self.stream.push(Instant::now(), EventKind::Answer, frame);
            }
            None => self.stream.abandon_answer(Instant::now()),
        }
        self.session.request_finished(self.method, outcome, self.started_at.elapsed());
        if let Some(then) = then {
            then();
        }
    }

    /// The session leaves, and the wait goes on with its next owner. A client that can come back to the stream is sent there
    /// without an answer, any other one is asked to repeat its request.
    fn hand_off(mut self) {
        if !self.session.retain_for_next_owner(&self.stream) {
            let text = "the session moves to another process, where the task is waited for as well: ask again";
            return self.settle(Some(Err(Refusal::new(ErrorKind::SessionElsewhere, text))));
        }
        self.settled = true;
        let _settling = self.session.close_request(&self.id);
        self.session.request_finished(
            self.method,
            RequestOutcome::Cancelled,
            self.started_at.elapsed(),
        );
    }
}

impl Drop for LocalRequest {
    fn drop(&mut self) {
        self.settle(Some(Err(Refusal::new(
            ErrorKind::Internal,
            "the request failed inside the broker",
        ))));
    }
}

impl Session {
    /// Answers a request with the outcome of `work`.
    pub(super) fn spawn_local_request<F, W>(
        self: &Arc<Self>,
        request: RequestContext<'_>,
        cancellation: CancelScope,
        work: W,
    ) -> Result<(), Refusal>
    where
        W: FnOnce(Arc<Self>) -> F,
        F: Future<Output = Result<Reply, Refusal>> + Send + 'static,
    {
        let RequestContext { id, method, stream, started_at: begun } = request;
        let (cancelled, moved) = (CancellationToken::new(), CancellationToken::new());
        let in_flight = match cancellation {
            CancelScope::Nothing => InFlight::Uncancellable,
            CancelScope::Wait => InFlight::Local(cancelled.clone()),
            CancelScope::Work => {
                InFlight::Transferable { cancelled: cancelled.clone(), moved: moved.clone() }
            }
        };
        self.open_request(id.clone(), in_flight)?;
        let mut pending = LocalRequest {
            session: self.clone(),
            stream: stream.clone(),
            id,
            method,
            started_at: begun,
            settled: false,
        };
        let mut work = Box::pin(work(self.clone()));
        self.shared.running.spawn(request::carried(async move {
            let was_cancelled = tokio::select! {
                biased;
                () = cancelled.cancelled() => true,
                () = moved.cancelled() => false,
                result = &mut work => return pending.settle(Some(result)),
            };
            if !was_cancelled {
                drop(work); // takes back what it shows to the client, on the stream that is left
                return pending.hand_off();
            }
            pending.settle(None);
            if cancellation == CancelScope::Wait {
                let _unheard = work.await;
            }
        }));
        Ok(())
    }

    /// Sees to it that log messages of this level come, too. Who wants which of them is for those to say who are told.
    pub async fn ensure_log_level(self: &Arc<Self>, level: LogLevel) {
        if self.log_level().is_none_or(|known| known > level) {
            let _told_as_far_as_possible = self.clone().set_level(level).await;
        }
    }

    pub(super) async fn set_level(self: Arc<Self>, level: LogLevel) -> Result<Reply, Refusal> {
        self.store_log_level(level).await?;
        let links: Vec<_> = self.lock().links.values().cloned().collect();
        // Answered when the backends in use know it, so that what follows is filtered by it.
        futures_util::future::join_all(links.iter().map(|link| link.set_level())).await;
        Ok(Reply::Result(Bytes::from_static(b"{}")))
    }
}

/// A request to be answered later.
pub(super) struct RequestContext<'a> {
    pub(super) id: RequestId,
    pub(super) method: Method,
    pub(super) stream: &'a Arc<EventStream>,
    pub(super) started_at: Instant,
}
