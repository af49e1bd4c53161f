//! Requests the broker answers itself after some waiting: log levels, subscriptions, lists of tasks.
//!
//! They are in flight like any call: counted, limited, with an id of their own, answered exactly once. A cancellation ends
//! the wait, not the work, so nothing is left half done.

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
    limits::PAGE_ENTRIES,
    metrics::Outcome,
    rules::{
        cursor::{self, Scope},
        event_log::EventKind,
        log_level::LogLevel,
    },
};

/// One such request, until it is answered. Dropped without an answer (its task died), it still gets one.
struct Pending {
    session: Arc<Session>,
    stream: Arc<EventStream>,
    id: RequestId,
    method: Method,
    begun: Instant,
    settled: bool,
}

impl Pending {
    /// `None`: the client wants no answer any more.
    fn settle(&mut self, result: Option<Result<Bytes, Refusal>>) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let _settling = self.session.leave(&self.id);
        let outcome = match result {
            Some(Ok(result)) => {
                let _cut = self.stream.push(Instant::now(), EventKind::Answer, handshake::success(&self.id, &result));
                Outcome::Ok
            }
            Some(Err(refusal)) => {
                let frame = self.session.refusal_frame(&refusal, Some(&self.id));
                let _cut = self.stream.push(Instant::now(), EventKind::Answer, frame);
                Outcome::Refused
            }
            None => {
                self.stream.give_up_answer(Instant::now());
                Outcome::Cancelled
            }
        };
        self.session.request_finished(self.method, outcome, self.begun);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.settle(Some(Err(Refusal::new(ErrorKind::Internal, "the request failed inside the broker"))));
    }
}

impl Session {
    /// Answers a request with the outcome of `work`.
    pub(super) fn in_background<F, W>(
        self: &Arc<Self>,
        id: RequestId,
        method: Method,
        stream: &Arc<EventStream>,
        begun: Instant,
        work: W,
    ) -> Result<(), Refusal>
    where
        W: FnOnce(Arc<Self>) -> F,
        F: Future<Output = Result<Bytes, Refusal>> + Send + 'static,
    {
        let cancelled = CancellationToken::new();
        self.begin(id.clone(), InFlight::Local(cancelled.clone()))?;
        let mut pending = Pending { session: self.clone(), stream: stream.clone(), id, method, begun, settled: false };
        let work = work(self.clone());
        self.shared.running.spawn(async move {
            tokio::pin!(work);
            tokio::select! {
                biased;
                () = cancelled.cancelled() => pending.settle(None),
                result = &mut work => return pending.settle(Some(result)),
            }
            let _unheard = work.await;
        });
        Ok(())
    }

    pub(super) async fn set_level(self: Arc<Self>, level: LogLevel) -> Result<Bytes, Refusal> {
        self.store_log_level(level).await?;
        let links: Vec<_> = self.lock().links.values().cloned().collect();
        // Answered when the backends in use know it, so that what follows is filtered by it.
        futures_util::future::join_all(links.iter().map(|link| link.set_level())).await;
        Ok(Bytes::from_static(b"{}"))
    }

    /// One page of the session's tasks; the cursor names the last task of the page before.
    pub(super) async fn list_tasks(self: Arc<Self>, cursor: Option<String>) -> Result<Bytes, Refusal> {
        let scope = Scope { tenant: self.tenant.id.as_str(), endpoint: self.caller.principal.as_str(), list: "tasks" };
        let tasks = self.shared.tasks.of_session(&self);
        let start = match cursor {
            None => 0,
            Some(cursor) => {
                let last = cursor::open(&self.shared.cursor_key, scope, &cursor);
                let place = last.and_then(|last| tasks.iter().position(|task| task.id.as_str() == last));
                place.ok_or_else(|| Refusal::new(ErrorKind::CursorInvalid, "the cursor is not one this list gave out"))? + 1
            }
        };
        let end = tasks.len().min(start + PAGE_ENTRIES);
        let objects = self.shared.tasks.current(&tasks[start..end]).await;
        let mut body = b"{\"tasks\":[".to_vec();
        body.extend_from_slice(&objects.join(&b','));
        body.push(b']');
        if end < tasks.len() {
            let cursor = cursor::seal(&self.shared.cursor_key, scope, tasks[end - 1].id.as_str());
            body.extend_from_slice(format!(",\"nextCursor\":\"{cursor}\"").as_bytes());
        }
        body.push(b'}');
        Ok(body.into())
    }
}
