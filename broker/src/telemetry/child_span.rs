//! Spans of what a request causes: an attempt to have it answered by a backend, and questions of the backend to the client.
//!
//! Each holds the request it belongs to, ends once, and carries the context that whoever is asked goes on with. With traces off
//! there are none.

use std::sync::Arc;

use http::HeaderMap;
use opentelemetry::{KeyValue, trace::SpanKind};
use protocol::{
    envelope::{Kind, Message},
    json,
    method::Method,
    splice::Splice,
};

use super::{
    context::{BAGGAGE_BYTES_MAX, TraceParent, cut_baggage},
    request::{self, RequestTelemetry},
    traces::OpenSpan,
};
use crate::rules::tasks::is_tool_error;

/// Ends as abandoned when it is dropped before its end.
#[derive(Debug)]
pub struct ChildSpan {
    request: Arc<RequestTelemetry>,
    span: Option<OpenSpan>,
}

impl ChildSpan {
    /// One attempt of the current request with its backend. The context goes into `splice`, where the wire has no headers
    /// (`in_meta`) or the client sent it there. Without a span nothing of it is touched, but for baggage that is longer than
    /// anybody has to pass on.
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
        let span = tracing.to_backend(backend, transport);
        if in_meta || tracing.from_meta {
            tracing.put_into_meta(splice, message, &span.place);
        } else {
            cut_long_baggage(message, splice);
        }
        Some(Self { request: request.clone(), span: Some(span) })
    }

    /// A backend's question to the client of this request. Its parent is what the backend names, where that is in this trace.
    pub fn question(request: Option<&Arc<RequestTelemetry>>, message: &Message) -> Option<Self> {
        let request = request?;
        let tracing = request.tracing.as_ref()?;
        let named = message
            .text(message.fields.meta_traceparent)
            .and_then(|text| TraceParent::parse(&text));
        let parent = named
            .filter(|place| place.trace == tracing.place.trace)
            .map(|place| place.span)
            .or_else(|| tracing.latest_attempt());
        let mut span = tracing.child(SpanKind::Client, message.method.name().to_owned(), parent);
        span.attributes.extend([
            KeyValue::new("rpc.system", "jsonrpc"),
            KeyValue::new("mcp.method.name", message.method.name()),
        ]);
        Some(Self { request: request.clone(), span: Some(span) })
    }

    /// The headers by which whoever is asked goes on with the trace.
    pub fn headers(&self) -> HeaderMap {
        match (&self.request.tracing, &self.span) {
            (Some(tracing), Some(span)) => tracing.headers(&span.place),
            _ => HeaderMap::new(),
        }
    }

    /// The same in `_meta` of the message that asks.
    pub fn put_into_meta(&self, splice: &mut Splice<'_>, message: &Message) {
        if let (Some(tracing), Some(span)) = (&self.request.tracing, &self.span) {
            tracing.put_into_meta(splice, message, &span.place);
        }
    }

    /// Here is the answer.
    pub fn answered(mut self, answer: &Message, method: Method) {
        self.end(match answer.kind {
            Kind::Error => Some("jsonrpc_error"),
            _ if method == Method::ToolsCall && is_tool_error(answer) => Some("tool_error"),
            _ => None,
        });
    }

    /// There will be none.
    pub fn failed(mut self, why: &'static str) {
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
    let kept = message.text(Some(span)).and_then(|text| cut_baggage(&text)).unwrap_or_default();
    splice.replace(span, json::quote(&kept).into_bytes());
}
