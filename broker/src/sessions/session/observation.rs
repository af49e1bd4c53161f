//! Telemetry of the requests of a session.

use std::{sync::Arc, time::Instant};

use protocol::{envelope::Message, ids::BackendId};
use rules::endpoint::Endpoint;

use super::Session;
use crate::{
    metrics::RequestOutcome,
    sessions::request_observer::{self, RequestObserver},
    telemetry::request::{self, RequestTelemetry},
};

/// Begins the telemetry of a request. Everything that the request's work calls can reach it.
pub(in crate::sessions) fn start(
    session: &Session,
    message: &Message,
    started_at: Instant,
) -> Arc<RequestTelemetry> {
    RequestObserver {
        context: &session.shared,
        caller: &session.caller,
        session: Some(session.digest.as_str()),
        version: session.agreement.version,
        transport: session.transport,
    }
    .start(message, started_at)
}

/// Notes the backend that the request goes to.
pub(in crate::sessions) fn record_backend(
    session: &Session,
    backend: &BackendId,
    tool: Option<&str>,
) {
    // The definition is looked up for the audit log only. It is the one that the session is shown.
    let tool = tool.filter(|_| request::with_current(RequestTelemetry::is_audited) == Some(true));
    let definition = tool.and_then(|tool| {
        let catalog = session.catalog();
        let catalog = &catalog.full;
        catalog
            .definition(backend, tool)
            .or_else(|| catalog.definition(backend, &catalog.tool(tool)?.name))
    });
    let own = tool.filter(|_| matches!(session.endpoint, Endpoint::Toolset(_)));
    let _outside = request::with_current(|request| {
        request.record_backend(backend, definition);
        if let Some(own) = own {
            request.record_tool(own);
        }
    });
}

/// Ends the telemetry of the current request.
pub(super) fn end(session: &Session, outcome: RequestOutcome) {
    request_observer::end_request(&session.shared, &session.caller, outcome);
}

/// Discards the telemetry of the current request. The session has moved, and the request is
/// repeated elsewhere.
pub(in crate::sessions) fn discard() {
    let _outside = request::with_current(|request| {
        if let Some(tracing) = &request.tracing {
            tracing.discard();
        }
        let _unwritten = request.take_draft();
    });
}
