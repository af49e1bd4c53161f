//! What is noted of a request of this session while it is worked on.

use std::sync::Arc;

use protocol::{envelope::Message, ids::BackendId};

use super::Session;
use crate::{
    metrics::RequestOutcome,
    sessions::request_observer::{self, RequestObserver},
    telemetry::request::{self, RequestTelemetry},
};

impl Session {
    /// The request, from here on known to everything its work calls.
    pub(super) fn begin_observation(&self, message: &Message) -> Arc<RequestTelemetry> {
        let (caller, session, version, transport) =
            (&self.caller, Some(self.digest.as_str()), self.version, self.transport);
        RequestObserver { shared: &self.shared, caller, session, version, transport }.begin(message)
    }

    /// The request goes to this backend.
    pub(super) fn note_backend(&self, backend: &BackendId, tool: Option<&str>) {
        // Looked up for the audit log only.
        let tool =
            tool.filter(|_| request::with_current(RequestTelemetry::is_audited) == Some(true));
        let definition = tool.and_then(|tool| {
            let catalog = self.tenant.catalog();
            catalog
                .definition(backend, tool)
                .or_else(|| catalog.definition(backend, &catalog.tool(tool)?.name))
        });
        let _outside = request::with_current(|request| request.note_backend(backend, definition));
    }

    /// The request that is being worked on is over.
    pub(super) fn end_observation(&self, outcome: RequestOutcome) {
        request_observer::end_request(&self.shared, outcome);
    }

    /// Nothing was begun, and the client is led elsewhere: there it is another request.
    pub(super) fn discard_observation(&self) {
        let _outside = request::with_current(|request| {
            if let Some(tracing) = &request.tracing {
                tracing.forget();
            }
            let _unwritten = request.take_draft();
        });
    }
}
