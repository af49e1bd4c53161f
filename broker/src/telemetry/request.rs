//! Telemetry of the current request, available to all code that handles it: its name in the log and
//! in `error.data.requestId`, its spans, and its audit record.
//!
//! It is a task-local, so that no function must pass it on. A new task for the same request is
//! started through [`in_current_request`]. [`submit`](crate::sessions::submit) and running tasks set it.

use std::{
    cell::RefCell,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use http::HeaderMap;
use opentelemetry::TraceId;
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    error::ErrorKind,
    ids::{ApprovalId, BackendId},
};
use rules::catalog::DefinitionDigest;

pub use super::inbound_context::{
    RequestName, header_context, in_inbound_context, inbound_client, inbound_request_name,
    with_inbound_context,
};
use super::{activity::RequestSummary, audit::AuditDraft, traces::RequestTrace};

/// Telemetry of one request of a client, or of one running task.
#[derive(Debug)]
pub struct RequestTelemetry {
    pub name: RequestName,
    /// `None` if traces are off. On the heap, as `draft` is: few requests have them.
    pub tracing: Option<Box<RequestTrace>>,
    /// `None` if the request is not audited.
    draft: Mutex<Option<Box<AuditDraft>>>,
    /// The request of a client. `None` for the run of a task.
    pub summary: Option<RequestSummary>,
    /// Backend that handles the request.
    backend: OnceLock<BackendId>,
    /// Reason of a refusal.
    refused: OnceLock<ErrorKind>,
    /// True once the rates of the caller counted the request.
    is_charged: AtomicBool,
    /// Verdict of the access policy, and the rule that decided.
    decision: OnceLock<(&'static str, Option<String>)>,
}

impl RequestTelemetry {
    pub fn new(
        name: RequestName,
        tracing: Option<Box<RequestTrace>>,
        draft: Option<Box<AuditDraft>>,
        summary: Option<RequestSummary>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            tracing,
            draft: Mutex::new(draft),
            summary,
            backend: OnceLock::new(),
            refused: OnceLock::new(),
            is_charged: AtomicBool::new(false),
            decision: OnceLock::new(),
        })
    }

    pub fn trace(&self) -> Option<TraceId> {
        self.tracing.as_ref().map(|tracing| tracing.span_context.trace)
    }

    /// Stores the reason of a refusal. The first reason counts, because later ones follow from it.
    pub fn refuse(&self, kind: ErrorKind) {
        let _first = self.refused.set(kind);
    }

    pub fn refused(&self) -> Option<ErrorKind> {
        self.refused.get().copied()
    }

    /// Notes that the rates of the caller counted the request.
    pub fn record_charge(&self) {
        self.is_charged.store(true, Ordering::Relaxed);
    }

    /// Returns whether the request was refused and its sender can repeat it at no cost: no rate
    /// counted it, or one refused it.
    pub fn is_refused_for_free(&self) -> bool {
        match self.refused() {
            Some(ErrorKind::RateLimited) => true,
            Some(_) => !self.is_charged.load(Ordering::Relaxed),
            None => false,
        }
    }

    /// Stores the decision of the access policy. The first one counts.
    pub fn record_decision(&self, verdict: &'static str, rule: Option<String>) {
        let _first = self.decision.set((verdict, rule));
    }

    pub fn decision(&self) -> Option<&(&'static str, Option<String>)> {
        self.decision.get()
    }

    /// Returns whether the request's spans are exported in any case.
    pub fn is_sampled(&self) -> bool {
        self.tracing.as_ref().is_some_and(|tracing| tracing.span_context.sampled)
    }

    pub fn backend(&self) -> Option<&BackendId> {
        self.backend.get()
    }

    /// Stores the backend that handles the request, and the catalog's digest of the tool.
    pub fn record_backend(&self, backend: &BackendId, definition: Option<DefinitionDigest>) {
        if let Some(draft) = &mut *self.draft() {
            draft.backend = Some(backend.clone());
            draft.definition = definition;
        }
        let _first = self.backend.set(backend.clone());
    }

    /// Stores the backend's name of the called tool, where the client's does not identify it.
    pub fn record_tool(&self, tool: &str) {
        if let Some(draft) = &mut *self.draft() {
            draft.tool = Some(tool.to_owned());
        }
    }

    /// Stores the approval by which the request passes, or that it waits for.
    pub fn record_approval(&self, approval: &ApprovalId) {
        if let Some(draft) = &mut *self.draft() {
            draft.approval = Some(approval.clone());
        }
    }

    /// Returns whether the audit log will record the request.
    pub fn is_audited(&self) -> bool {
        self.draft().is_some()
    }

    pub fn take_draft(&self) -> Option<Box<AuditDraft>> {
        self.draft().take()
    }

    fn draft(&self) -> MutexGuard<'_, Option<Box<AuditDraft>>> {
        self.draft.lock()
    }
}

tokio::task_local! {
    static CURRENT: Arc<RequestTelemetry>;
    /// Headers for a request to an HTTP backend.
    static OUTGOING: RefCell<HeaderMap>;
}

/// Returns the current request.
pub fn current() -> Option<Arc<RequestTelemetry>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Passes the current request to `look`, without a new reference.
pub fn with_current<R>(look: impl FnOnce(&RequestTelemetry) -> R) -> Option<R> {
    CURRENT.try_with(|request| look(request)).ok()
}

/// Returns the name of the current request, or of the received message.
pub fn current_name() -> Option<RequestName> {
    with_current(|request| request.name).or_else(inbound_request_name)
}

/// Runs synchronous work for a request.
pub fn enter<R>(request: Arc<RequestTelemetry>, work: impl FnOnce() -> R) -> R {
    CURRENT.sync_scope(request, work)
}

/// Runs asynchronous work for a request.
pub fn scope<F: Future>(
    request: Arc<RequestTelemetry>,
    work: F,
) -> impl Future<Output = F::Output> {
    CURRENT.scope(request, work)
}

/// Wraps work for the current request that runs in a task of its own.
pub fn in_current_request<F: Future>(work: F) -> impl Future<Output = F::Output> {
    let request = current();
    async move {
        match request {
            Some(request) => CURRENT.scope(request, work).await,
            None => work.await,
        }
    }
}

/// Sends a request whose trace context goes into headers, if the wire has them.
pub async fn with_outgoing_headers<F: Future>(headers: HeaderMap, work: F) -> F::Output {
    OUTGOING.scope(RefCell::new(headers), work).await
}

/// Returns whether [`inject_headers`] has headers to add.
pub fn has_outgoing_headers() -> bool {
    OUTGOING.try_with(|_| ()).is_ok()
}

/// Adds the trace context of the current message to the headers of its HTTP request.
pub fn inject_headers(headers: &mut HeaderMap) {
    let _without_trace_context = OUTGOING.try_with(|outgoing| {
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
    fn work_started_for_a_request_belongs_to_it() {
        let request = RequestTelemetry::new(RequestName(7), None, None, None);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(current_name(), None);
        let carried = enter(request, || in_current_request(async { current_name() }));
        assert_eq!(runtime.block_on(carried), Some(RequestName(7)));
        assert_eq!(RequestName::parse(&RequestName(0xabc).to_string()), Some(RequestName(0xabc)));
    }

    #[test]
    fn the_first_reason_of_a_refusal_counts() {
        let request = RequestTelemetry::new(RequestName(7), None, None, None);
        request.refuse(ErrorKind::Timeout);
        request.refuse(ErrorKind::Internal);
        assert_eq!(request.refused(), Some(ErrorKind::Timeout));
    }

    /// With traces and audit off. In a release build the time is about a twentieth of the bound.
    #[test]
    fn a_request_without_traces_and_audit_has_almost_no_overhead() {
        const ROUNDS: u32 = 100_000;
        let started = Instant::now();
        for _ in 0..ROUNDS {
            let request = RequestTelemetry::new(RequestName::random(), None, None, None);
            std::hint::black_box(enter(request, || {
                current().is_some() && current_name().is_some()
            }));
        }
        let each = started.elapsed() / ROUNDS;
        println!("{each:?} for a request");
        assert!(each < Duration::from_micros(20), "{each:?}");
    }
}
