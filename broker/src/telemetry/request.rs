//! The request that is being worked on, known to everything its work calls: what it is named in the log and in
//! `error.data.requestId`, its spans, and what the audit log will hold of it.
//!
//! It travels as a task-local, so that no function on the way has to hand it on. A task that goes on with a request's work is
//! begun through [`carried`]. Set by [`Session::submit`](crate::actors::session::Session::submit) and by tasks that run.

use std::{
    cell::RefCell,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use http::HeaderMap;
use protocol::{error::ErrorKind, ids::BackendId};

use super::{
    audit::Draft,
    context::TraceId,
    traces::{BAGGAGE, TRACEPARENT, TRACESTATE, Tracing},
};

/// Names a request in the log, in errors and in the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestName(pub u64);

impl RequestName {
    pub fn random() -> Self {
        Self(rand::random())
    }

    pub fn parse(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().map(Self)
    }
}

impl fmt::Display for RequestName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// One request of a client, or one task that runs.
#[derive(Debug)]
pub struct Request {
    pub name: RequestName,
    /// `None` where traces are off.
    pub tracing: Option<Tracing>,
    /// `None` where calls are not audited.
    pub(super) draft: Mutex<Option<Draft>>,
    /// Who works on it.
    pub(super) backend: OnceLock<BackendId>,
    /// Why it was refused, if it was.
    refused: OnceLock<ErrorKind>,
}

impl Request {
    pub fn new(name: RequestName, tracing: Option<Tracing>, draft: Option<Draft>) -> Arc<Self> {
        Arc::new(Self { name, tracing, draft: Mutex::new(draft), backend: OnceLock::new(), refused: OnceLock::new() })
    }

    pub fn trace(&self) -> Option<TraceId> {
        self.tracing.as_ref().map(|tracing| tracing.place.trace)
    }

    /// The first reason counts: what comes after it follows from it.
    pub fn refuse(&self, kind: ErrorKind) {
        let _first = self.refused.set(kind);
    }

    pub fn refused(&self) -> Option<ErrorKind> {
        self.refused.get().copied()
    }

    pub fn backend(&self) -> Option<&BackendId> {
        self.backend.get()
    }

    /// The audit log will hold something of it.
    pub fn is_audited(&self) -> bool {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub fn take_draft(&self) -> Option<Draft> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What came in on a wire: the name of the requests in it, and the context its headers bring.
#[derive(Debug, Clone)]
struct Arrival {
    name: RequestName,
    /// `traceparent`, `tracestate`, `baggage`; kept as they are, and only where traces are on.
    /// Boxed: nearly always there are none, and it is moved about with each turn of whoever works on it.
    headers: Option<Box<HeaderMap>>,
}

tokio::task_local! {
    static CURRENT: Arc<Request>;
    static ARRIVAL: Arrival;
    /// What a request to an HTTP backend tells in its headers.
    static OUTGOING: RefCell<HeaderMap>;
}

/// The request that is being worked on here.
pub fn current() -> Option<Arc<Request>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Looks at the current request without counting a reference.
pub fn with_current<R>(look: impl FnOnce(&Request) -> R) -> Option<R> {
    CURRENT.try_with(|request| look(request)).ok()
}

/// Its name, or that of what came in.
pub fn current_name() -> Option<RequestName> {
    with_current(|request| request.name).or_else(arrival_name)
}

pub fn arrival_name() -> Option<RequestName> {
    ARRIVAL.try_with(|arrival| arrival.name).ok()
}

pub(super) fn with_arrival_headers<R>(read: impl FnOnce(&HeaderMap) -> Option<R>) -> Option<R> {
    ARRIVAL.try_with(|arrival| arrival.headers.as_deref().and_then(read)).ok().flatten()
}

/// Works on a request, here and now.
pub fn within<R>(request: Arc<Request>, work: impl FnOnce() -> R) -> R {
    CURRENT.sync_scope(request, work)
}

/// Works on a request.
pub async fn scope<F: Future>(request: Arc<Request>, work: F) -> F::Output {
    CURRENT.scope(request, work).await
}

/// Goes on with the current request's work, on a task of its own.
pub fn carried<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let request = current();
    async move {
        match request {
            Some(request) => CURRENT.scope(request, work).await,
            None => work.await,
        }
    }
}

/// Of a request's headers those that carry context. `None` without a `traceparent`, or where nobody wants to know it.
pub fn header_context(headers: &HeaderMap, traced: bool) -> Option<HeaderMap> {
    if !traced || !headers.contains_key(TRACEPARENT) {
        return None;
    }
    let mut kept = HeaderMap::with_capacity(3);
    for name in [TRACEPARENT, TRACESTATE, BAGGAGE] {
        for value in headers.get_all(&name) {
            kept.append(name.clone(), value.clone());
        }
    }
    Some(kept)
}

/// Serves what came in, with the context its headers brought.
pub async fn arriving<F: Future>(headers: Option<HeaderMap>, work: F) -> F::Output {
    ARRIVAL.scope(Arrival { name: RequestName::random(), headers: headers.map(Box::new) }, work).await
}

/// Sends a request whose context goes in headers, where the wire has such.
pub async fn sending<F: Future>(headers: HeaderMap, work: F) -> F::Output {
    OUTGOING.scope(RefCell::new(headers), work).await
}

/// Whether [`propagate`] has something to tell.
pub fn propagates() -> bool {
    OUTGOING.try_with(|_| ()).is_ok()
}

/// Puts the context of what is being sent into the headers of its request.
pub fn propagate(headers: &mut HeaderMap) {
    let _nothing_to_tell = OUTGOING.try_with(|outgoing| {
        for (name, value) in outgoing.borrow().iter() {
            headers.insert(name, value.clone());
        }
    });
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_is_begun_for_a_request_belongs_to_it() {
        let request = Request::new(RequestName(7), None, None);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(current_name(), None);
        let carried = within(request, || carried(async { current_name() }));
        assert_eq!(runtime.block_on(carried), Some(RequestName(7)));
        assert_eq!(RequestName::parse(&RequestName(0xabc).to_string()), Some(RequestName(0xabc)));
    }

    #[test]
    fn the_first_reason_of_a_refusal_counts() {
        let request = Request::new(RequestName(7), None, None);
        request.refuse(ErrorKind::Timeout);
        request.refuse(ErrorKind::Internal);
        assert_eq!(request.refused(), Some(ErrorKind::Timeout));
    }

    /// With traces and audit off. In a release build it is about a twentieth of the bound.
    #[test]
    fn a_request_that_nobody_watches_costs_next_to_nothing() {
        const ROUNDS: u32 = 100_000;
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            let request = Request::new(RequestName::random(), None, None);
            std::hint::black_box(within(request, || current().is_some() && current_name().is_some()));
        }
        let each = begun.elapsed() / ROUNDS;
        println!("{each:?} for a request");
        assert!(each < Duration::from_micros(20), "{each:?}");
    }
}
