//! Telemetry of a client's request from its beginning to its end: its spans and its audit record.
//! Requests of sessions and stateless requests share it.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use config::AuditLevel;
use opentelemetry::KeyValue;
use protocol::{
    envelope::Message,
    ids::TaskId,
    json::{self, Span},
    method::Method,
    version::Version,
};
use rules::client_transport::Transport;

use crate::{
    auth::Caller,
    context::Context,
    metrics::RequestOutcome,
    telemetry::{
        activity::{RequestSummary, RequestTarget},
        audit::{AuditDraft, task_digest},
        request::{self, RequestName, RequestTelemetry},
        traces::{RootSpanSummary, truncate_attribute},
    },
};

/// The sender of a request, and its session, revision and transport.
pub struct RequestObserver<'a> {
    pub context: &'a Context,
    pub caller: &'a Caller,
    /// Digest of the session's id. `None` for a stateless request.
    pub session: Option<&'a str>,
    pub version: Version,
    pub transport: Transport,
}

impl RequestObserver<'_> {
    /// Begins the telemetry of a request that came at `started_at`. Everything that its work calls
    /// can reach it.
    pub fn start(&self, message: &Message, started_at: Instant) -> Arc<RequestTelemetry> {
        let tracing = self.context.traces.start(message, self.caller).map(|mut tracing| {
            tracing.attributes = self.attributes(message);
            tracing.target = target_text(message).map(|target| truncate_attribute(&target));
            tracing
        });
        let how = self.context.config.audit.calls;
        let draft = (how != AuditLevel::Off && AuditDraft::is_audited(message.method))
            .then(|| Box::new(self.draft(message, how, started_at)));
        RequestTelemetry::new(
            request::inbound_request_name().unwrap_or_else(RequestName::random),
            tracing,
            draft,
            Some(RequestSummary {
                transport: self.transport.name(),
                method: message.method,
                target: target(message).or_else(|| task(message)),
                started_at,
            }),
        )
    }

    fn draft(&self, message: &Message, how: AuditLevel, started_at: Instant) -> AuditDraft {
        AuditDraft {
            how,
            caller: self.caller.clone(),
            session: self.session.map(str::to_owned),
            transport: self.transport.name(),
            method: message.method,
            target: target(message).or_else(|| task(message)).and_then(|target| target.text()),
            arguments: message
                .fields
                .arguments
                .map(|span| Bytes::copy_from_slice(span.of(&message.frame))),
            backend: None,
            tool: None,
            definition: None,
            approval: None,
            started_at,
            at: jiff::Timestamp::now(),
            client: request::inbound_client(),
            count: None,
        }
    }

    fn attributes(&self, message: &Message) -> Vec<KeyValue> {
        let mut attributes = vec![
            KeyValue::new("rpc.system", "jsonrpc"),
            KeyValue::new("mcp.method.name", message.method.name()),
            KeyValue::new("mcp.protocol.version", self.version.as_str()),
            KeyValue::new("network.transport", self.transport.network()),
            KeyValue::new("mcp_broker.tenant", self.caller.tenant.to_string()),
        ];
        attributes.extend(
            self.session.map(|session| KeyValue::new("mcp.session.id", session.to_owned())),
        );
        if let Some(id) = &message.id {
            attributes.push(KeyValue::new(
                "rpc.jsonrpc.request_id",
                truncate_attribute(String::from_utf8_lossy(id.raw()).trim_matches('"')),
            ));
        }
        attributes
    }
}

/// Ends the telemetry of the current request of a caller.
pub fn end_request(context: &Context, caller: &Caller, outcome: RequestOutcome) {
    let _outside = request::with_current(|request| {
        let error = match outcome {
            RequestOutcome::Ok | RequestOutcome::Cancelled => None,
            RequestOutcome::ToolError => Some("tool_error"),
            RequestOutcome::Error => Some("backend_error"),
            RequestOutcome::Refused => {
                Some(request.refused().map_or("refused", |kind| kind.name()))
            }
            RequestOutcome::Timeout => Some("timeout"),
        };
        let is_free = outcome == RequestOutcome::Refused && request.is_refused_for_free();
        let left_out =
            if is_free { context.free_refusals.admit(caller, context.uptime()) } else { Some(0) };
        let is_exported = left_out.is_some() || request.is_sampled();
        match &request.tracing {
            Some(tracing) if !is_exported => tracing.discard(),
            Some(tracing) => {
                let mut summary =
                    RootSpanSummary::of(tracing, request.name, request.backend(), error);
                if let Some((verdict, rule)) = request.decision() {
                    summary.attributes.push(KeyValue::new("mcp.policy.verdict", *verdict));
                    let rule =
                        rule.as_ref().map(|rule| KeyValue::new("mcp.policy.rule", rule.clone()));
                    summary.attributes.extend(rule);
                }
                tracing.end(summary);
            }
            None => {}
        }
        let Some(left_out) = left_out else {
            if request.is_audited() {
                context.metrics.observability.audit("left_out", 1);
            }
            return;
        };
        context.activity.record(request, caller, outcome, error);
        if let Some(mut draft) = request.take_draft() {
            draft.count = (left_out > 0).then_some(left_out + 1);
            let node = context.persistence.node();
            let record = draft.into_record(
                request.name,
                request.trace(),
                node.as_str(),
                outcome.label(),
                error.map(str::to_owned),
            );
            context.persistence.audit.add(record);
        }
    });
}

/// Returns the target of the request, as the client names it.
fn target(message: &Message) -> Option<RequestTarget> {
    let fields = &message.fields;
    let raw = |span: Span| span.slice(&message.frame);
    let name = |span: Option<Span>| span.map(raw).map(RequestTarget::Name);
    let uri = |span: Option<Span>| span.map(raw).map(RequestTarget::Uri);
    match message.method {
        Method::ToolsCall | Method::PromptsGet => name(fields.name),
        Method::ResourcesRead | Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {
            uri(fields.uri)
        }
        Method::CompletionComplete => {
            uri(fields.reference_uri).or_else(|| name(fields.reference_name))
        }
        _ => None,
    }
}

/// Returns the task that a request is about, as the log and operators name it.
fn task(message: &Message) -> Option<RequestTarget> {
    let names_task = matches!(
        message.method,
        Method::TasksGet | Method::TasksResult | Method::TasksCancel | Method::TasksUpdate
    );
    let id = message.text(message.fields.task_id.filter(|_| names_task))?;
    Some(RequestTarget::Name(json::quote(&task_digest(&TaskId::new(&*id))).into()))
}

fn target_text(message: &Message) -> Option<String> {
    target(message)?.text()
}

#[cfg(test)]
mod tests {
    use protocol::error::ErrorKind;
    use records::AuditFilter;
    use rules::limits::AUDIT_FREE_REFUSALS_PER_MINUTE;

    use super::*;
    use crate::{broker::Broker, persistence::Stores};

    /// Ends a refused call of the anonymous caller.
    fn refuse(context: &Context, kind: ErrorKind, is_charged: bool) {
        let frame = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b__x"}}"#;
        let limits = json::Limits::default();
        let message = Message::decode(Bytes::from_static(frame), &limits).unwrap();
        let (caller, started_at) = (Caller::anonymous(), Instant::now());
        let observer = RequestObserver {
            context,
            caller: &caller,
            session: None,
            version: Version::V2026_07_28,
            transport: Transport::Http,
        };
        let draft = Some(Box::new(observer.draft(&message, AuditLevel::Metadata, started_at)));
        let request = RequestTelemetry::new(RequestName::random(), None, draft, None);
        request.refuse(kind);
        if is_charged {
            request.record_charge();
        }
        request::enter(request, || end_request(context, &caller, RequestOutcome::Refused));
    }

    /// Otherwise a caller over its rate could fill the queue, which drops the records of others then.
    #[tokio::test]
    async fn refusals_that_cost_nothing_have_a_limited_number_of_records() {
        const MANY: usize = 10 * AUDIT_FREE_REFUSALS_PER_MINUTE as usize;
        let stores = Stores::in_memory().await;
        let store = stores.durable.clone();
        let broker = Broker::over(stores);
        let context = &broker.shared;
        let recorded = async || {
            context.persistence.audit.flush().await;
            store.audit_records(&AuditFilter::default(), None, 10_000).await.unwrap().len()
        };
        let before = recorded().await;
        (0..MANY).for_each(|_| refuse(context, ErrorKind::InvalidParams, true));
        assert_eq!(recorded().await - before, MANY, "a rate counted these");
        for kind in [ErrorKind::RateLimited, ErrorKind::Overloaded] {
            let before = recorded().await;
            (0..MANY).for_each(|_| refuse(context, kind, kind == ErrorKind::RateLimited));
            let added = recorded().await - before;
            assert!(added < MANY / 2, "{added} records of {MANY} requests");
        }
        let none_left_out = r#"mcp_audit_records_total{outcome="left_out"} 0"#;
        assert!(!context.metrics.render().contains(none_left_out));
    }
}
