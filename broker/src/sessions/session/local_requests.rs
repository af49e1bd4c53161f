//! Requests that the broker answers itself after some wait: log levels, subscriptions, and requests
//! about tasks.
//!
//! They are in flight like any call: they are counted and limited, have an id of their own, and get
//! exactly one answer. Each names the scope of its cancellation. A change that has started is
//! always completed.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use protocol::{
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    method::Method,
};
use rules::{event_log::EventKind, log_level::LogLevel};
use tokio_util::sync::CancellationToken;

use super::{Session, persisted_state::SessionPersister, state::InFlight};
use crate::{metrics::RequestOutcome, sessions::stream::EventStream, telemetry::request};

/// Answer to a local request.
pub enum Reply {
    /// The result.
    Result(Bytes),
    /// The whole response, which may be an error, and how it counts.
    Frame(Bytes, RequestOutcome),
    /// The result, and work to do once the result is on its way.
    ResultThen(Bytes, Box<dyn FnOnce() + Send>),
}

/// Part of a request that the client's cancellation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sessions) enum CancelScope {
    /// Only the wait for the answer. The work is completed without one.
    Wait,
    /// The wait and the work, because the work only waits.
    Work,
    /// No part: the request makes something that has a cancellation of its own.
    Nothing,
}

/// A local request until its answer. If it is dropped without one (its task panicked), it gets an
/// error.
struct LocalRequest {
    session: Arc<Session>,
    stream: Arc<EventStream>,
    id: RequestId,
    method: Method,
    started_at: Instant,
    settled: bool,
}

impl LocalRequest {
    /// Counts the request in as in flight.
    fn open(
        session: &Arc<Session>,
        request: RequestContext<'_>,
        in_flight: InFlight,
    ) -> Result<Self, Refusal> {
        let RequestContext { id, method, stream, started_at } = request;
        session.open_request(id.clone(), in_flight)?;
        let (session, stream) = (session.clone(), stream.clone());
        Ok(Self { session, stream, id, method, started_at, settled: false })
    }

    /// Counts the request out and decides it again. What `decide` starts answers. An error is the
    /// answer.
    fn decide_again(mut self, decide: impl FnOnce() -> Result<(), Refusal>) {
        let _settling = self.session.close_request(&self.id);
        let decided = decide();
        // Not before: a panic in `decide` leaves the answer to the drop.
        self.settled = true;
        let Err(refusal) = decided else { return };
        let frame = self.session.refusal_frame(&refusal, Some(&self.id));
        let _cut = self.stream.push(Instant::now(), EventKind::Answer, frame);
        let took = self.started_at.elapsed();
        self.session.request_finished(self.method, RequestOutcome::Refused, took);
    }

    /// Settles the request. `None` if the client does not want an answer any more.
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
            Some(Ok(Reply::Frame(frame, outcome))) => (outcome, Some(frame), None),
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
            None => self.stream.abandon_answer(&self.id, Instant::now()),
        }
        self.session.request_finished(self.method, outcome, self.started_at.elapsed());
        if let Some(then) = then {
            then();
        }
    }

    /// Hands the request off to the session's next owner. A client that can resume the stream gets
    /// no answer here. Any other client gets an error that makes it repeat the request.
    fn hand_off(mut self) {
        if !self.session.retain_for_next_owner(&self.stream) {
            let text = "the session is moving to another process: send the request again to wait for the task";
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

/// Answers a request with the outcome of `work`.
pub(in crate::sessions) fn spawn_local_request<F, W>(
    session: &Arc<Session>,
    request: RequestContext<'_>,
    cancellation: CancelScope,
    work: W,
) -> Result<(), Refusal>
where
    W: FnOnce(Arc<Session>) -> F,
    F: Future<Output = Result<Reply, Refusal>> + Send + 'static,
{
    spawn_cancellable_request(session, request, cancellation, CancellationToken::new(), work)
}

/// Answers a request with the outcome of `work`, which learns of a cancellation by the token.
pub(in crate::sessions) fn spawn_cancellable_request<F, W>(
    session: &Arc<Session>,
    request: RequestContext<'_>,
    cancellation: CancelScope,
    cancelled: CancellationToken,
    work: W,
) -> Result<(), Refusal>
where
    W: FnOnce(Arc<Session>) -> F,
    F: Future<Output = Result<Reply, Refusal>> + Send + 'static,
{
    let (moved, stream) = (CancellationToken::new(), request.stream.clone());
    let in_flight = match cancellation {
        CancelScope::Nothing => InFlight::Uncancellable { stream },
        CancelScope::Wait => InFlight::Local { cancelled: cancelled.clone(), stream },
        CancelScope::Work => {
            InFlight::Transferable { cancelled: cancelled.clone(), moved: moved.clone(), stream }
        }
    };
    let mut pending = LocalRequest::open(session, request, in_flight)?;
    let mut work = Box::pin(work(session.clone()));
    session.shared.running.spawn(request::in_current_request(async move {
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

/// Keeps a request in flight until `wait` is over, and then decides it again.
pub(in crate::sessions) fn decide_after(
    session: &Arc<Session>,
    request: RequestContext<'_>,
    wait: impl Future<Output = ()> + Send + 'static,
    decide: impl FnOnce() -> Result<(), Refusal> + Send + 'static,
) -> Result<(), Refusal> {
    let cancelled = CancellationToken::new();
    let in_flight =
        InFlight::Local { cancelled: cancelled.clone(), stream: request.stream.clone() };
    let mut pending = LocalRequest::open(session, request, in_flight)?;
    session.shared.running.spawn(request::in_current_request(async move {
        tokio::select! {
            biased;
            () = cancelled.cancelled() => pending.settle(None),
            () = wait => pending.decide_again(decide),
        }
    }));
    Ok(())
}

/// Raises the log level so that backends also send messages of this level. Each recipient filters
/// them itself.
pub(in crate::sessions) async fn ensure_log_level(session: &Arc<Session>, level: LogLevel) {
    if session.log_level().is_none_or(|known| known > level) {
        let _sent_where_possible = set_level(session.clone(), level).await;
    }
}

pub(in crate::sessions) async fn set_level(
    session: Arc<Session>,
    level: LogLevel,
) -> Result<Reply, Refusal> {
    SessionPersister::new(&session).store_log_level(level).await?;
    let links: Vec<_> = session.lock().links.all().cloned().collect();
    // The answer comes once the backends in use have the level, so that later messages are filtered
    // by it.
    futures_util::future::join_all(links.iter().map(|link| link.set_level())).await;
    Ok(Reply::Result(Bytes::from_static(b"{}")))
}

/// A request that gets its answer later.
pub(in crate::sessions) struct RequestContext<'a> {
    pub(in crate::sessions) id: RequestId,
    pub(in crate::sessions) method: Method,
    pub(in crate::sessions) stream: &'a Arc<EventStream>,
    pub(in crate::sessions) started_at: Instant,
}
