//! Spans of requests and of their consequences, and the decision about their export.
//!
//! The spans of a request are collected until its end. They are exported if the trace is sampled or
//! the request failed. A span costs two random numbers and a few attributes. With traces off there
//! are none. No code here waits: spans without capacity in the exporter's queue are dropped and
//! counted.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use config::{RATIO_WHOLE, TraceConfig as Settings};
use http::{HeaderMap, HeaderValue};
use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceFlags,
    trace::{SpanContext, SpanKind, Status, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use parking_lot::{Mutex, MutexGuard};
use protocol::{envelope::Message, ids::BackendId, json, splice::Splice};
use rules::{limits::SPANS_PER_REQUEST_MAX, stored_trace::StoredTrace};
use tokio::sync::mpsc;

use super::{
    context::{TraceContext, TraceParent, new_span, new_trace},
    inbound_context::{BAGGAGE, RequestName, TRACEPARENT, TRACESTATE, with_inbound_headers},
};
use crate::{auth::Caller, metrics::Metrics};

/// Maximum length of a client's text in an attribute. Longer texts are cut.
const ATTRIBUTE_CHARS_MAX: usize = 256;

/// Entry point for spans. Without an endpoint it creates none.
#[derive(Debug, Clone, Default)]
pub struct Tracer(Option<Arc<SpanRecorder>>);

#[derive(Debug)]
pub(super) struct SpanRecorder {
    /// Sampling threshold: a trace is sampled if a random `u64` is below it. `u64::MAX` samples
    /// every trace.
    threshold: u64,
    trusted: Vec<String>,
    queue: mpsc::Sender<Vec<SpanData>>,
    /// Number of spans in the queue.
    pub(super) queued: AtomicUsize,
    queue_max: usize,
    metrics: Arc<Metrics>,
}

/// Returns a recorder, and the receiver of its queue for the exporter.
pub(super) fn recorder(
    settings: &Settings,
    metrics: Arc<Metrics>,
) -> (Arc<SpanRecorder>, mpsc::Receiver<Vec<SpanData>>) {
    let (queue, spans) = mpsc::channel(settings.queue_spans);
    let recorder = SpanRecorder {
        threshold: (u128::from(u64::MAX) * u128::from(settings.ratio) / u128::from(RATIO_WHOLE))
            as u64,
        trusted: settings.trusted.clone(),
        queue,
        queued: AtomicUsize::new(0),
        queue_max: settings.queue_spans,
        metrics,
    };
    (Arc::new(recorder), spans)
}

impl SpanRecorder {
    /// Returns whether a new trace is sampled. The decision is random and does not depend on the
    /// trace's id, which a client may have chosen.
    fn is_sampled(&self) -> bool {
        self.threshold == u64::MAX || rand::random::<u64>() < self.threshold
    }

    fn trusts(&self, caller: &Caller) -> bool {
        self.trusted.iter().any(|entry| match entry.split_once('/') {
            Some((tenant, principal)) => {
                caller.tenant.as_str() == tenant && caller.principal.as_str() == principal
            }
            None => entry == "*" || caller.tenant.as_str() == entry,
        })
    }

    fn export(&self, spans: Vec<SpanData>) {
        let count = spans.len();
        let before = self.queued.fetch_add(count, Ordering::AcqRel);
        if before + count > self.queue_max || self.queue.try_send(spans).is_err() {
            self.queued.fetch_sub(count, Ordering::AcqRel);
            self.metrics.observability.spans("queue_full", count);
        }
    }
}

impl Tracer {
    pub(super) fn to(recorder: Arc<SpanRecorder>) -> Self {
        Self(Some(recorder))
    }

    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Begins the spans of a client's request.
    pub fn start(&self, message: &Message, caller: &Caller) -> Option<Box<RequestTrace>> {
        let recorder = self.0.as_ref()?;
        let in_meta = of_message(message);
        let from_meta = in_meta.is_some();
        let incoming = in_meta.or_else(|| with_inbound_headers(of_headers));
        let sampled = match &incoming {
            Some(incoming) if recorder.trusts(caller) => incoming.parent.sampled,
            _ => recorder.is_sampled(),
        };
        let (parent, state, baggage) = match incoming {
            Some(TraceContext { parent: span_context, state, baggage }) => {
                (Some(span_context), state, baggage)
            }
            None => (None, None, None),
        };
        let trace = parent.map_or_else(new_trace, |parent| parent.trace);
        Some(Box::new(RequestTrace {
            recorder: recorder.clone(),
            span_context: TraceParent { trace, span: new_span(), sampled },
            parent: parent.map(|parent| parent.span),
            parent_is_remote: true,
            state,
            baggage,
            from_meta,
            kind: SpanKind::Server,
            started_at: SystemTime::now(),
            method: message.method.name(),
            target: None,
            attributes: Vec::new(),
            open: Mutex::default(),
        }))
    }

    /// Continues a trace that another request began, perhaps in another process.
    pub fn resume(
        &self,
        carried: &StoredTrace,
        method: &'static str,
        target: Option<String>,
    ) -> Option<Box<RequestTrace>> {
        let recorder = self.0.as_ref()?;
        let span_context = carried.traceparent.as_deref().and_then(TraceParent::parse);
        let trace = span_context.map_or_else(new_trace, |span_context| span_context.trace);
        Some(Box::new(RequestTrace {
            recorder: recorder.clone(),
            span_context: TraceParent {
                trace,
                span: new_span(),
                sampled: span_context.is_some_and(|span_context| span_context.sampled),
            },
            parent: span_context.filter(|_| !carried.is_root).map(|span_context| span_context.span),
            parent_is_remote: true,
            state: carried.tracestate.clone(),
            baggage: carried.baggage.clone(),
            from_meta: carried.from_meta,
            kind: SpanKind::Internal,
            started_at: SystemTime::now(),
            method,
            target,
            attributes: Vec::new(),
            open: Mutex::default(),
        }))
    }
}

/// Spans of one request, or of one running task.
#[derive(Debug)]
pub struct RequestTrace {
    recorder: Arc<SpanRecorder>,
    /// Position of the root span.
    pub span_context: TraceParent,
    parent: Option<SpanId>,
    parent_is_remote: bool,
    state: Option<String>,
    baggage: Option<String>,
    /// True if the client sent its context in `_meta`.
    pub from_meta: bool,
    kind: SpanKind,
    started_at: SystemTime,
    method: &'static str,
    /// Target of the request, under the client's name for it.
    pub target: Option<String>,
    /// Attributes that are known at the start.
    pub attributes: Vec<KeyValue>,
    open: Mutex<SpanBuffer>,
}

#[derive(Debug, Default)]
struct SpanBuffer {
    ended: Vec<SpanData>,
    /// Most recent span of an attempt at a backend.
    latest_attempt: Option<SpanId>,
    /// Decision about the export, made at the end of the request.
    decided: Option<bool>,
}

/// Contents of the root span.
#[derive(Debug)]
pub struct RootSpanSummary {
    pub name: String,
    pub attributes: Vec<KeyValue>,
    /// Reason of a failure, in one word.
    pub error: Option<&'static str>,
}

impl RootSpanSummary {
    /// Names the span by MCP's semantic conventions. A target that leads to no backend is arbitrary
    /// client text and does not become part of the name.
    pub fn of(
        tracing: &RequestTrace,
        request: RequestName,
        backend: Option<&BackendId>,
        error: Option<&'static str>,
    ) -> Self {
        let mut attributes = tracing.attributes.clone();
        attributes.push(KeyValue::new("mcp_broker.request_id", request.to_string()));
        if let Some(backend) = backend {
            attributes.push(KeyValue::new("mcp_broker.backend", backend.to_string()));
        }
        attributes.extend(tracing.target_attributes());
        let target = tracing.target.as_deref().filter(|_| backend.is_some());
        Self { name: tracing.span_name(target), attributes, error }
    }
}

impl RequestTrace {
    fn span_name(&self, target: Option<&str>) -> String {
        match target.filter(|_| matches!(self.method, "tools/call" | "prompts/get")) {
            Some(target) => format!("{} {target}", self.method),
            None => self.method.to_owned(),
        }
    }

    fn target_attributes(&self) -> Vec<KeyValue> {
        let Some(target) = &self.target else { return Vec::new() };
        match self.method {
            "tools/call" => vec![
                KeyValue::new("gen_ai.operation.name", "execute_tool"),
                KeyValue::new("gen_ai.tool.name", target.clone()),
            ],
            "prompts/get" => vec![KeyValue::new("gen_ai.prompt.name", target.clone())],
            _ => vec![KeyValue::new("mcp.resource.uri", target.clone())],
        }
    }

    /// Begins the span of one attempt at the request's backend.
    pub fn start_backend_span(&self, backend: &str, transport: &'static str) -> OpenSpan {
        let mut child = self.child(SpanKind::Client, self.span_name(self.target.as_deref()), None);
        child.attributes.extend([
            KeyValue::new("rpc.system", "jsonrpc"),
            KeyValue::new("mcp.method.name", self.method),
            KeyValue::new("mcp_broker.backend", backend.to_owned()),
            KeyValue::new("mcp_broker.backend_transport", transport),
        ]);
        child.attributes.extend(self.target_attributes());
        self.open().latest_attempt = Some(child.span_context.span);
        child
    }

    fn open(&self) -> MutexGuard<'_, SpanBuffer> {
        self.open.lock()
    }

    /// Returns the context for the continuation of this trace elsewhere. Its parent is the nearest
    /// span that is certain to be exported.
    pub fn to_stored(&self) -> StoredTrace {
        let span =
            if self.span_context.sampled { Some(self.span_context.span) } else { self.parent };
        StoredTrace {
            traceparent: Some(
                TraceParent { span: span.unwrap_or(self.span_context.span), ..self.span_context }
                    .to_string(),
            ),
            tracestate: self.state.clone(),
            baggage: self.baggage.clone(),
            is_root: span.is_none(),
            from_meta: self.from_meta,
        }
    }

    /// Begins a span below this request. `parent` is the causing span, if it is not the root span.
    pub fn child(
        self: &RequestTrace,
        kind: SpanKind,
        name: String,
        parent: Option<SpanId>,
    ) -> OpenSpan {
        OpenSpan {
            span_context: TraceParent { span: new_span(), ..self.span_context },
            parent: parent.unwrap_or(self.span_context.span),
            kind,
            name,
            started_at: SystemTime::now(),
            attributes: Vec::new(),
            error: None,
        }
    }

    pub fn latest_attempt(&self) -> Option<SpanId> {
        self.open().latest_attempt
    }

    /// Ends a span. After the end of the request, the earlier decision about the export applies.
    pub fn end_child(&self, child: OpenSpan) {
        let span = self.span_data(child, false);
        let mut open = self.open();
        match open.decided {
            None if open.ended.len() < SPANS_PER_REQUEST_MAX => open.ended.push(span),
            None => self.recorder.metrics.observability.spans("too_many", 1),
            Some(true) => {
                drop(open);
                self.recorder.export(vec![span]);
            }
            Some(false) => {}
        }
    }

    /// Ends the request's spans. Only the first end counts.
    pub fn end(&self, summary: RootSpanSummary) {
        let keep = self.span_context.sampled || summary.error.is_some();
        let mut open = self.open();
        if open.decided.is_some() {
            return;
        }
        open.decided = Some(keep);
        let mut spans = std::mem::take(&mut open.ended);
        drop(open);
        if !keep {
            return;
        }
        let root = OpenSpan {
            span_context: self.span_context,
            parent: self.parent.unwrap_or(SpanId::INVALID),
            kind: self.kind.clone(),
            name: summary.name,
            started_at: self.started_at,
            attributes: summary.attributes,
            error: summary.error,
        };
        let parent_is_remote = self.parent.is_some() && self.parent_is_remote;
        spans.push(self.span_data(root, parent_is_remote));
        self.recorder.export(spans);
    }

    /// Drops the spans, because the request starts again elsewhere.
    pub fn discard(&self) {
        let mut open = self.open();
        open.decided = Some(false);
        open.ended.clear();
    }

    /// Ends a span now, and returns it in the form for export.
    fn span_data(&self, span: OpenSpan, parent_is_remote: bool) -> SpanData {
        let OpenSpan { span_context, parent, kind, name, started_at, mut attributes, error } = span;
        let state = self
            .state
            .as_deref()
            .and_then(|state| state.parse::<TraceState>().ok())
            .unwrap_or_default();
        // An exported span counts as sampled, for any reason.
        let context = SpanContext::new(
            span_context.trace,
            span_context.span,
            TraceFlags::SAMPLED,
            false,
            state,
        );
        if let Some(error) = error {
            attributes.push(KeyValue::new("error.type", error));
        }
        SpanData {
            span_context: context,
            parent_span_id: parent,
            parent_span_is_remote: parent_is_remote,
            span_kind: kind,
            name: name.into(),
            start_time: started_at,
            end_time: SystemTime::now().max(started_at),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: error.map_or(Status::Unset, Status::error),
            instrumentation_scope: InstrumentationScope::builder("mcp-broker")
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        }
    }

    /// Returns the headers that continue the trace at a backend, below this span.
    pub fn headers(&self, span_context: &TraceParent) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(3);
        let values = [
            (TRACEPARENT, Some(span_context.to_string())),
            (TRACESTATE, self.state.clone()),
            (BAGGAGE, self.baggage.clone()),
        ];
        for (name, value) in values {
            if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
                headers.insert(name, value);
            }
        }
        headers
    }

    /// Puts the context into `_meta`, and replaces the message's own.
    pub fn put_into_meta(
        &self,
        splice: &mut Splice<'_>,
        message: &Message,
        span_context: &TraceParent,
    ) {
        splice.set_meta(message, "traceparent", json::quote(&span_context.to_string()).as_bytes());
        if let Some(state) = &self.state {
            splice.set_meta(message, "tracestate", json::quote(state).as_bytes());
        }
        if let Some(baggage) = &self.baggage {
            splice.set_meta(message, "baggage", json::quote(baggage).as_bytes());
        }
    }
}

/// A span that has not ended.
#[derive(Debug)]
pub struct OpenSpan {
    pub span_context: TraceParent,
    parent: SpanId,
    kind: SpanKind,
    name: String,
    started_at: SystemTime,
    pub attributes: Vec<KeyValue>,
    pub error: Option<&'static str>,
}

/// Returns the trace context in a message's `_meta`.
fn of_message(message: &Message) -> Option<TraceContext> {
    let fields = &message.fields;
    let traceparent = message.text(fields.meta_traceparent)?;
    let (state, baggage) =
        (message.text(fields.meta_tracestate), message.text(fields.meta_baggage));
    TraceContext::read(&traceparent, state.as_deref(), baggage.as_deref())
}

/// Returns the trace context of headers. The values of repeated headers form one list.
fn of_headers(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name| -> Option<String> {
        let values: Vec<&str> =
            headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        (!values.is_empty()).then(|| values.join(","))
    };
    TraceContext::read(&text(TRACEPARENT)?, text(TRACESTATE).as_deref(), text(BAGGAGE).as_deref())
}

/// Cuts a client's text to the length of an attribute.
pub fn truncate_attribute(text: &str) -> String {
    text.chars().take(ATTRIBUTE_CHARS_MAX).collect()
}
