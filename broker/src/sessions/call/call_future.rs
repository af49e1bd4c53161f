//! The future of a call. Sessions make it; listeners and exchanges poll it.
//!
//! Invariants: a call runs to its end even if its future is dropped, and a panic inside ends only
//! the call.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::runtime::Handle;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use super::Call;
use crate::telemetry::request::{self, RequestTelemetry};

/// A call in progress. Its holder polls it, so that a call whose client waits on its own connection
/// costs no task and no wakeup of another task. A call that is dropped before its end continues as
/// a task of the runtime (MCP 2025-11-25, Transports: a client that hangs up cancels nothing).
pub struct CallFuture {
    call: Option<Arc<Call>>,
    /// The request that the work belongs to, for its telemetry.
    request: Option<Arc<RequestTelemetry>>,
    /// The work, or `None` once it is over. It is on the heap so that a move of the call does not
    /// move it.
    work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    running: TaskTracker,
    /// A drain waits for this token.
    _running: TaskTrackerToken,
}

impl CallFuture {
    /// Wraps work for the current request.
    pub(in crate::sessions) fn new(
        work: Pin<Box<dyn Future<Output = ()> + Send>>,
        running: &TaskTracker,
    ) -> Self {
        Self {
            call: None,
            request: request::current(),
            work: Some(work),
            running: running.clone(),
            _running: running.token(),
        }
    }

    /// Adds the call that the work belongs to.
    pub(in crate::sessions) fn with_call(mut self, call: Arc<Call>) -> Self {
        self.call = Some(call);
        self
    }

    pub(in crate::sessions) fn call(&self) -> Option<&Arc<Call>> {
        self.call.as_ref()
    }
}

impl fmt::Debug for CallFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallFuture").field("is_over", &self.work.is_none()).finish_non_exhaustive()
    }
}

impl Future for CallFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { work, request, .. } = &mut *self;
        let Some(work) = work else { return Poll::Ready(()) };
        // A panic ends the call, which still gets an answer. It does not end the connection that
        // polls the call.
        let polled = catch_unwind(AssertUnwindSafe(|| match request {
            Some(request) => request::enter(request.clone(), || work.as_mut().poll(context)),
            None => work.as_mut().poll(context),
        }));
        if matches!(polled, Ok(Poll::Pending)) {
            return Poll::Pending;
        }
        self.work = None;
        Poll::Ready(())
    }
}

impl Drop for CallFuture {
    fn drop(&mut self) {
        // Without a runtime the process is ending.
        if let (Some(work), Ok(runtime)) = (self.work.take(), Handle::try_current()) {
            match self.request.take() {
                Some(request) => self.running.spawn_on(request::scope(request, work), &runtime),
                None => self.running.spawn_on(work, &runtime),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::oneshot;

    use super::*;
    use crate::telemetry::request::RequestName;

    #[tokio::test]
    async fn a_call_keeps_its_request_name_when_it_moves_to_a_task() {
        let running = TaskTracker::new();
        let observed = RequestTelemetry::new(RequestName(7), None, None, None);
        let (start, started) = oneshot::channel::<()>();
        let (sender, receiver) = oneshot::channel();
        let work = async move {
            let before = request::current_name();
            let _ = started.await;
            let _ = sender.send([before, request::current_name()]);
        };
        let mut call = request::enter(observed, || CallFuture::new(Box::pin(work), &running));
        assert!(
            poll_fn(|context| Poll::Ready(Pin::new(&mut call).poll(context).is_pending())).await
        );
        assert_eq!(request::current_name(), None);
        drop(call);
        start.send(()).unwrap();
        assert_eq!(receiver.await.unwrap(), [Some(RequestName(7)); 2]);
    }

    #[tokio::test]
    async fn a_dropped_call_continues_and_a_panicked_call_ends() {
        let running = TaskTracker::new();
        let (start, started) = oneshot::channel::<()>();
        let (sender, receiver) = oneshot::channel();
        let work = async move {
            let _ = started.await;
            let _ = sender.send(());
        };
        let mut call = CallFuture::new(Box::pin(work), &running);
        assert!(
            poll_fn(|context| Poll::Ready(Pin::new(&mut call).poll(context).is_pending())).await
        );
        drop(call);
        start.send(()).unwrap();
        receiver.await.unwrap();
        CallFuture::new(Box::pin(async { panic!("inside a call") }), &running).await;
        running.close();
        running.wait().await;
    }
}
