//! Telemetry of a task's run: its request, its spans, and its end in the audit log.
//!
//! The trace is that of the request that created the task, on whichever process the task runs.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use config::AuditLevel;
use opentelemetry::KeyValue;
use protocol::{
    ids::{ApprovalId, TaskId},
    method::Method,
};
use records::{TaskRecord, TaskStatus};
use rules::{
    endpoint::Endpoint,
    tasks::{self, TaskDetails},
};

use super::{TaskManager, digest, run::TaskRun};
use crate::{
    auth::Caller,
    sessions::{shared::Shared, tenant::Tenant},
    telemetry::{
        audit::AuditDraft,
        request::{self, RequestName, RequestTelemetry},
        traces::{RootSpanSummary, truncate_attribute},
    },
};

/// Returns the telemetry of the request that created the task of a run.
pub(super) fn request_of_run(run: &TaskRun) -> Arc<RequestTelemetry> {
    let request = || request_of(&run.shared, Some(&run.tenant), &run.record, &run.details);
    run.request.get_or_init(request).clone()
}

/// Returns the telemetry of the request that created a task. `tenant` is `None` if this process does
/// not have it.
pub(super) fn request_of(
    shared: &Shared,
    tenant: Option<&Tenant>,
    record: &TaskRecord,
    details: &TaskDetails,
) -> Arc<RequestTelemetry> {
    let name =
        details.request.as_deref().and_then(RequestName::parse).unwrap_or_else(RequestName::random);
    let stored_trace = details.trace.clone().unwrap_or_default();
    let tracing = shared
        .traces
        .resume(&stored_trace, Method::ToolsCall.name(), Some(truncate_attribute(&details.tool)))
        .map(|mut tracing| {
            tracing.attributes = vec![
                KeyValue::new("mcp.method.name", Method::ToolsCall.name()),
                KeyValue::new("mcp.session.id", record.session.digest()),
                KeyValue::new("mcp_broker.tenant", record.tenant.to_string()),
                KeyValue::new("mcp_broker.task", digest(&record.task)),
            ];
            tracing
        });
    let how = shared.config.audit.calls;
    let draft = (how != AuditLevel::Off).then(|| Box::new(draft(record, details, how)));
    let request = RequestTelemetry::new(name, tracing, draft, None);
    let definition = tenant.and_then(|tenant| {
        tenant.catalog_of(&record.principal).definition(&record.backend, &native_name(record))
    });
    request.record_backend(&record.backend, definition);
    request
}

fn native_name(record: &TaskRecord) -> String {
    let call = tasks::decoded(Bytes::copy_from_slice(&record.request));
    call.and_then(|call| call.text(call.fields.name).map(|name| name.into_owned()))
        .unwrap_or_default()
}

fn draft(record: &TaskRecord, details: &TaskDetails, how: AuditLevel) -> AuditDraft {
    let call = tasks::decoded(Bytes::copy_from_slice(&record.request));
    AuditDraft {
        how,
        caller: Caller::new(record.tenant.clone(), record.principal.clone(), None),
        session: Some(record.session.digest()),
        transport: "task",
        method: Method::ToolsCall,
        target: Some(details.tool.clone()),
        arguments: call.and_then(|call| call.fields.arguments.map(|span| span.slice(&call.frame))),
        backend: None,
        tool: matches!(details.endpoint(), Endpoint::Toolset(_)).then(|| native_name(record)),
        definition: None,
        approval: details.approval.as_deref().map(ApprovalId::new),
        started_at: Instant::now(),
        at: jiff::Timestamp::now(),
        client: None,
        count: None,
    }
}

/// Records the end of a task, which is stored already.
pub(super) fn record_end(shared: &Shared, request: &RequestTelemetry, status: TaskStatus) {
    let failed = status == TaskStatus::Failed;
    let error = failed.then(|| request.refused().map_or("task_failed", |kind| kind.name()));
    if let Some(tracing) = &request.tracing {
        tracing.end(RootSpanSummary::of(tracing, request.name, request.backend(), error));
    }
    audit_end(shared, request, status, error);
}

/// Adds the end of a task to the audit log, unless it is there already.
fn audit_end(
    shared: &Shared,
    request: &RequestTelemetry,
    status: TaskStatus,
    error: Option<&'static str>,
) {
    if let Some(draft) = request.take_draft() {
        shared.persistence.audit.add(draft.into_record(
            request.name,
            request.trace(),
            shared.persistence.node().as_str(),
            status.name(),
            error.map(str::to_owned),
        ));
    }
}

impl TaskManager {
    /// Adds the end of a task that was cancelled to the audit log. The cancellation is stored
    /// already. The spans of a run end with the run.
    pub(super) fn audit_cancellation(self: &Arc<Self>, task: &TaskId) {
        if self.shared.config.audit.calls == AuditLevel::Off {
            return;
        }
        if let Some(run) = self.run(task) {
            return audit_end(&self.shared, &request_of_run(&run), TaskStatus::Cancelled, None);
        }
        // The task runs elsewhere or not at all, and its call is in the store alone.
        let (tasks, task) = (self.clone(), task.clone());
        self.shared.running.spawn(async move {
            let persistence = &tasks.shared.persistence;
            let found = persistence.timed("get_full_task", persistence.store.full_task(&task)).await;
            let record = found.ok().flatten().map(|found| found.stored.record);
            let details = record.as_ref().and_then(|record| TaskDetails::decode(&record.details));
            let Some((record, details)) = record.zip(details) else {
                tracing::warn!(task = digest(&task), "the cancellation of a task is not in the audit log, because the task cannot be read");
                return;
            };
            let tenant = tasks.tenant(&record.tenant);
            let request = request_of(&tasks.shared, tenant.as_deref(), &record, &details);
            audit_end(&tasks.shared, &request, TaskStatus::Cancelled, None);
        });
    }
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
