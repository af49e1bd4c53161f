//! The request that is being worked on, known to everything its work calls: what it is named in the log and in
//! `error.data.requestId`, its spans, and what the audit log will hold of it.
//!
//! It travels as a task-local, so that no function on the way has to hand it on. A task that goes on with a request's work is
//! begun through [`carried`]. Set by [`Session::handle_request`](crate::sessions::session::Session::handle_request) and by tasks that run.

use std::{
    cell::RefCell,
    sync::{Arc, OnceLock},
};

use http::HeaderMap;
use opentelemetry::TraceId;
use parking_lot::{Mutex, MutexGuard};
use protocol::{error::ErrorKind, ids::BackendId};

pub use super::inbound_context::{
    RequestName, arrival_client, arrival_name, arriving, header_context,
};
use super::{audit::AuditDraft, traces::RequestTrace};
use crate::rules::catalog::DefinitionDigest;

/// One request of a client, or one task that runs.
#[derive(Debug)]
pub struct RequestTelemetry {
    pub name: RequestName,
    /// `None` where traces are off.
    pub tracing: Option<RequestTrace>,
    /// `None` where calls are not audited.
    draft: Mutex<Option<AuditDraft>>,
    /// Who works on it.
    backend: OnceLock<BackendId>,
    /// Why it was refused, if it was.
    refused: OnceLock<ErrorKind>,
}

impl RequestTelemetry {
    pub fn new(
        name: RequestName,
        tracing: Option<RequestTrace>,
        draft: Option<AuditDraft>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            tracing,
            draft: Mutex::new(draft),
            backend: OnceLock::new(),
            refused: OnceLock::new(),
        })
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

    /// The backend that is asked, and what the catalog knows of the tool.
    pub fn note_backend(&self, backend: &BackendId, definition: Option<DefinitionDigest>) {
        if let Some(draft) = &mut *self.draft() {
            draft.backend = Some(backend.clone());
            draft.definition = definition;
        }
        let _first = self.backend.set(backend.clone());
    }

    /// The audit log will hold something of it.
    pub fn is_audited(&self) -> bool {
        self.draft().is_some()
    }

    pub fn take_draft(&self) -> Option<AuditDraft> {
        self.draft().take()
    }

    fn draft(&self) -> MutexGuard<'_, Option<AuditDraft>> {
        self.draft.lock()
    }
}

tokio::task_local! {
    static CURRENT: Arc<RequestTelemetry>;
    /// What a request to an HTTP backend tells in its headers.
    static OUTGOING: RefCell<HeaderMap>;
}

/// The request that is being worked on here.
pub fn current() -> Option<Arc<RequestTelemetry>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Looks at the current request without counting a reference.
pub fn with_current<R>(look: impl FnOnce(&RequestTelemetry) -> R) -> Option<R> {
    CURRENT.try_with(|request| look(request)).ok()
}

/// Its name, or that of what came in.
pub fn current_name() -> Option<RequestName> {
    with_current(|request| request.name).or_else(arrival_name)
}

/// Works on a request, here and now.
pub fn within<R>(request: Arc<RequestTelemetry>, work: impl FnOnce() -> R) -> R {
    CURRENT.sync_scope(request, work)
}

/// Works on a request.
pub async fn scope<F: Future>(request: Arc<RequestTelemetry>, work: F) -> F::Output {
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
        let request = RequestTelemetry::new(RequestName(7), None, None);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(current_name(), None);
        let carried = within(request, || carried(async { current_name() }));
        assert_eq!(runtime.block_on(carried), Some(RequestName(7)));
        assert_eq!(RequestName::parse(&RequestName(0xabc).to_string()), Some(RequestName(0xabc)));
    }

    #[test]
    fn the_first_reason_of_a_refusal_counts() {
        let request = RequestTelemetry::new(RequestName(7), None, None);
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
            let request = RequestTelemetry::new(RequestName::random(), None, None);
            std::hint::black_box(within(request, || {
                current().is_some() && current_name().is_some()
            }));
        }
        let each = begun.elapsed() / ROUNDS;
        println!("{each:?} for a request");
        assert!(each < Duration::from_micros(20), "{each:?}");
    }
}
