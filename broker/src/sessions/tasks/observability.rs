//! Telemetry of a task's run: its request, its spans, and its end in the audit log.
//!
//! The trace is that of the request that made the task, on whichever process the task runs.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use opentelemetry::KeyValue;
use protocol::{ids::ApprovalId, method::Method};
use records::TaskStatus;
use rules::{endpoint::Endpoint, tasks};

use super::{digest, run::TaskRun};
use crate::{
    auth::Caller,
    config::AuditLevel,
    telemetry::{
        audit::AuditDraft,
        request::{self, RequestName, RequestTelemetry},
        traces::{RootSpanSummary, truncate_attribute},
    },
};

/// Returns the telemetry of the request that made the task.
pub(super) fn request_of(run: &TaskRun) -> Arc<RequestTelemetry> {
    let details = &run.details;
    let name =
        details.request.as_deref().and_then(RequestName::parse).unwrap_or_else(RequestName::random);
    let carried = details.trace.clone().unwrap_or_default();
    let tracing = run
        .shared
        .traces
        .resume(&carried, Method::ToolsCall.name(), Some(truncate_attribute(&details.tool)))
        .map(|mut tracing| {
            tracing.attributes = vec![
                KeyValue::new("mcp.method.name", Method::ToolsCall.name()),
                KeyValue::new("mcp.session.id", run.record.session.digest()),
                KeyValue::new("mcp_broker.tenant", run.tenant.id.to_string()),
                KeyValue::new("mcp_broker.task", digest(&run.id)),
            ];
            tracing
        });
    let how = run.shared.config.audit.calls;
    let draft = (how != AuditLevel::Off).then(|| Box::new(draft(run, how)));
    let request = RequestTelemetry::new(name, tracing, draft, None);
    request.record_backend(
        &run.record.backend,
        run.tenant
            .catalog_of(&run.record.principal)
            .definition(&run.record.backend, &native_name(run)),
    );
    request
}

fn native_name(run: &TaskRun) -> String {
    let call = tasks::decoded(Bytes::copy_from_slice(&run.record.request));
    call.and_then(|call| call.text(call.fields.name).map(|name| name.into_owned()))
        .unwrap_or_default()
}

fn draft(run: &TaskRun, how: AuditLevel) -> AuditDraft {
    let call = tasks::decoded(Bytes::copy_from_slice(&run.record.request));
    AuditDraft {
        how,
        caller: Caller::new(run.tenant.id.clone(), run.record.principal.clone(), None),
        session: Some(run.record.session.digest()),
        transport: "task",
        method: Method::ToolsCall,
        target: Some(run.details.tool.clone()),
        arguments: call.and_then(|call| call.fields.arguments.map(|span| span.slice(&call.frame))),
        backend: None,
        tool: matches!(run.endpoint, Endpoint::Toolset(_)).then(|| native_name(run)),
        definition: None,
        approval: run.details.approval.as_deref().map(ApprovalId::new),
        started_at: Instant::now(),
        at: jiff::Timestamp::now(),
        client: None,
    }
}

/// Records the end of the task, which is stored already.
pub(super) fn record_end(run: &TaskRun, status: TaskStatus) {
    let _outside = request::with_current(|request| {
        let failed = status == TaskStatus::Failed;
        let error = failed.then(|| request.refused().map_or("task_failed", |kind| kind.name()));
        if let Some(tracing) = &request.tracing {
            tracing.end(RootSpanSummary::of(tracing, request.name, request.backend(), error));
        }
        if let Some(draft) = request.take_draft() {
            let node = run.shared.durable.node();
            run.shared.durable.audit.add(draft.into_record(
                request.name,
                request.trace(),
                node.as_str(),
                status.name(),
                error.map(str::to_owned),
            ));
        }
    });
}

/// Ends the span of the run. The task itself may continue in another process.
pub(super) fn end_span(run: &TaskRun) {
    let _outside = request::with_current(|request| {
        if let Some(tracing) = &request.tracing {
            tracing.end(RootSpanSummary::of(tracing, request.name, request.backend(), None));
        }
    });
    tracing::trace!(task = %run.digest(), "the run of a task is over");
}
