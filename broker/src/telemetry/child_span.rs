//! Spans below a request: its attempts at a backend, and questions of the backend to the client.
//!
//! Each span refers to its request, ends once, and passes its context on to the peer. With traces
//! off there are none.

use std::sync::Arc;

use http::HeaderMap;
use opentelemetry::{KeyValue, trace::SpanKind};
use protocol::{
    envelope::{Kind, Message},
    json,
    method::Method,
    splice::Splice,
};
use rules::tool_error::is_tool_error;

use super::{
    context::{BAGGAGE_BYTES_MAX, TraceParent, truncate_baggage},
    request::{self, RequestTelemetry},
    traces::OpenSpan,
};

/// A span below a request. Ends as abandoned when it is dropped before its end.
#[derive(Debug)]
pub struct ChildSpan {
    request: Arc<RequestTelemetry>,
    span: Option<OpenSpan>,
}

impl ChildSpan {
    /// Begins the span of one attempt of the current request at its backend. The context goes into
    /// `splice` if the wire has no headers (`in_meta`), or if the client sent it there. Without a
    /// span, only baggage beyond the limit of the specification is changed.
    pub fn attempt(
        message: &Message,
        backend: &str,
        transport: &'static str,
        in_meta: bool,
        splice: &mut Splice<'_>,
    ) -> Option<Self> {
        let request = request::current().filter(|request| request.tracing.is_some());
        let Some((request, tracing)) =
            request.as_ref().and_then(|request| Some((request, request.tracing.as_ref()?)))
        else {
            cut_long_baggage(message, splice);
            return None;
        };
        let span = tracing.start_backend_span(backend, transport);
        if in_meta || tracing.from_meta {
            tracing.put_into_meta(splice, message, &span.span_context);
        } else {
            cut_long_baggage(message, splice);
        }
        Some(Self { request: request.clone(), span: Some(span) })
    }

    /// Begins the span of a backend's question to the client of this request. Its parent is the
    /// span that the backend names, if that is in the same trace.
    pub fn question(request: Option<&Arc<RequestTelemetry>>, message: &Message) -> Option<Self> {
        let request = request?;
        let tracing = request.tracing.as_ref()?;
        let named = message
            .text(message.fields.meta_traceparent)
            .and_then(|text| TraceParent::parse(&text));
        let parent = named
            .filter(|span_context| span_context.trace == tracing.span_context.trace)
            .map(|span_context| span_context.span)
            .or_else(|| tracing.latest_attempt());
        let mut span = tracing.child(SpanKind::Client, message.method.name().to_owned(), parent);
        span.attributes.extend([
            KeyValue::new("rpc.system", "jsonrpc"),
            KeyValue::new("mcp.method.name", message.method.name()),
        ]);
        Some(Self { request: request.clone(), span: Some(span) })
    }

    /// Returns the headers that pass the trace on to the peer.
    pub fn headers(&self) -> HeaderMap {
        match (&self.request.tracing, &self.span) {
            (Some(tracing), Some(span)) => tracing.headers(&span.span_context),
            _ => HeaderMap::new(),
        }
    }

    /// Puts the context into the `_meta` of the message to the peer.
    pub fn put_into_meta(&self, splice: &mut Splice<'_>, message: &Message) {
        if let (Some(tracing), Some(span)) = (&self.request.tracing, &self.span) {
            tracing.put_into_meta(splice, message, &span.span_context);
        }
    }

    /// Ends the span with an answer.
    pub fn finish(mut self, answer: &Message, method: Method) {
        self.end(match answer.kind {
            Kind::Error => Some("jsonrpc_error"),
            _ if method == Method::ToolsCall && is_tool_error(answer) => Some("tool_error"),
            _ => None,
        });
    }

    /// Ends the span without an answer.
    pub fn fail(mut self, why: &'static str) {
        self.end(Some(why));
    }

    fn end(&mut self, error: Option<&'static str>) {
        if let (Some(tracing), Some(mut span)) = (&self.request.tracing, self.span.take()) {
            span.error = error;
            tracing.end_child(span);
        }
    }
}

impl Drop for ChildSpan {
    fn drop(&mut self) {
        self.end(Some("abandoned"));
    }
}

fn cut_long_baggage(message: &Message, splice: &mut Splice<'_>) {
    let Some(span) = message
        .fields
        .meta_baggage
        .filter(|span| (span.end - span.start) as usize > BAGGAGE_BYTES_MAX)
    else {
        return;
    };
    let kept =
        message.text(Some(span)).and_then(|text| truncate_baggage(&text)).unwrap_or_default();
    splice.replace(span, json::quote(&kept).into_bytes());
}
