//! What is noted of a client's request while it is worked on: its spans, and what the audit log will hold of it.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use opentelemetry::KeyValue;
use protocol::{envelope::Message, ids::BackendId, method::Method};

use super::Session;
use crate::{
    config::AuditCalls,
    metrics::Outcome,
    telemetry::{
        audit::Draft,
        request::{self, Request, RequestName},
        traces::{Told, cut},
    },
};

impl Session {
    /// The request, from here on known to everything its work calls.
    pub(super) fn observe(&self, message: &Message) -> Arc<Request> {
        let tracing = self.shared.traces.begin(message, &self.caller).map(|mut tracing| {
            tracing.attributes = self.attributes(message);
            tracing.target = target(message).map(|target| cut(&target));
            tracing
        });
        let how = self.shared.config.audit.calls;
        let draft = (how != AuditCalls::Off && Draft::is_about(message.method)).then(|| self.draft(message, how));
        Request::new(request::arrival_name().unwrap_or_else(RequestName::random), tracing, draft)
    }

    fn draft(&self, message: &Message, how: AuditCalls) -> Draft {
        Draft {
            how,
            caller: self.caller.clone(),
            session: self.digest.clone(),
            transport: self.transport,
            method: message.method,
            target: target(message),
            arguments: message.fields.arguments.map(|span| Bytes::copy_from_slice(span.of(&message.frame))),
            backend: None,
            definition: None,
            begun: Instant::now(),
            at: jiff::Timestamp::now(),
        }
    }

    fn attributes(&self, message: &Message) -> Vec<KeyValue> {
        let mut attributes = vec![
            KeyValue::new("rpc.system", "jsonrpc"),
            KeyValue::new("mcp.method.name", message.method.name()),
            KeyValue::new("mcp.session.id", self.digest.clone()),
            KeyValue::new("mcp.protocol.version", self.version.as_str()),
            KeyValue::new("network.transport", network(self.transport)),
            KeyValue::new("mcp_broker.tenant", self.tenant.id.to_string()),
        ];
        if let Some(id) = &message.id {
            attributes.push(KeyValue::new("rpc.jsonrpc.request_id", cut(String::from_utf8_lossy(id.raw()).trim_matches('"'))));
        }
        attributes
    }

    /// The request goes to this backend.
    pub(super) fn note_backend(&self, backend: &BackendId, tool: Option<&str>) {
        let definition = tool.and_then(|tool| {
            let catalog = self.tenant.catalog();
            catalog.definition(backend, tool).or_else(|| catalog.definition(backend, &catalog.tool(tool)?.name))
        });
        let _outside = request::with_current(|request| request.note_backend(backend, definition));
    }

    /// The request that is being worked on is over.
    pub(super) fn observe_end(&self, outcome: Outcome) {
        let _outside = request::with_current(|request| {
            let error = match outcome {
                Outcome::Ok | Outcome::Cancelled => None,
                Outcome::ToolError => Some("tool_error"),
                Outcome::Error => Some("backend_error"),
                Outcome::Refused => Some(request.refused().map_or("refused", |kind| kind.name())),
                Outcome::Timeout => Some("timeout"),
            };
            if let Some(tracing) = &request.tracing {
                tracing.end(Told::of(tracing, request, error));
            }
            if let Some(draft) = request.take_draft() {
                let node = self.shared.durable.node();
                let record = draft.into_record(request, node.as_str(), outcome.label(), error.map(str::to_owned));
                self.shared.durable.audit.add(record);
            }
        });
    }

    /// Nothing was begun, and the client is led elsewhere: there it is another request.
    pub(super) fn observe_nothing(&self) {
        let _outside = request::with_current(|request| {
            if let Some(tracing) = &request.tracing {
                tracing.forget();
            }
            let _unwritten = request.take_draft();
        });
    }
}

/// A URI without its query and without who asks, where secrets may be.
fn without_secrets(uri: &str) -> String {
    let uri = uri.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = uri.split_once("://") else { return uri.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// What the request is about, as the client names it.
fn target(message: &Message) -> Option<String> {
    let fields = &message.fields;
    match message.method {
        Method::ToolsCall | Method::PromptsGet => message.text(fields.name).map(|name| name.into_owned()),
        Method::ResourcesRead | Method::ResourcesSubscribe | Method::ResourcesUnsubscribe => {
            message.text(fields.uri).map(|uri| without_secrets(&uri))
        }
        _ => None,
    }
}

fn network(transport: &str) -> &'static str {
    if transport == "quic" { "quic" } else { "tcp" }
}
