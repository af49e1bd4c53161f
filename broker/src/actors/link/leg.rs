//! The span of one attempt to have a request answered by a backend, and the context the backend gets with it.
//!
//! A wire with headers carries the context there, and in `_meta` too where the client sent it there; any other wire in `_meta`.
//! With traces off nothing of it is touched, but for baggage that is longer than anybody has to pass on.

use std::sync::Arc;

use http::HeaderMap;
use protocol::{
    envelope::{Kind, Message},
    json,
    method::Method,
    splice::Splice,
};

use super::failure::Failure;
use crate::{
    rules::tasks::is_tool_error,
    telemetry::{
        context::{BAGGAGE_BYTES_MAX, cut_baggage},
        request::{self, Request},
        traces::{Child, Tracing},
    },
};

/// Ends as abandoned when it is dropped before its end.
pub(super) struct Leg {
    request: Arc<Request>,
    span: Option<Child>,
}

impl Leg {
    pub(super) fn begin(message: &Message, backend: &str, transport: &'static str, in_meta: bool, splice: &mut Splice<'_>) -> Option<Self> {
        let request = request::current().filter(|request| request.tracing.is_some());
        let Some(request) = request else {
            cut_long_baggage(message, splice);
            return None;
        };
        let tracing = request.tracing.as_ref()?;
        let span = tracing.to_backend(backend, transport);
        if in_meta || tracing.from_meta {
            tracing.put_into_meta(splice, message, &span.place);
        } else {
            cut_long_baggage(message, splice);
        }
        Some(Self { request, span: Some(span) })
    }

    pub(super) fn headers(&self) -> HeaderMap {
        match (&self.request.tracing, &self.span) {
            (Some(tracing), Some(span)) => tracing.headers(&span.place),
            _ => HeaderMap::new(),
        }
    }

    pub(super) fn end(mut self, answer: &Result<Message, Failure>, method: Method) {
        let error = match answer {
            Ok(answer) if answer.kind == Kind::Error => Some("backend_error"),
            Ok(answer) if method == Method::ToolsCall && is_tool_error(answer) => Some("tool_error"),
            Ok(_) => None,
            Err(failure) => Some(failure.name()),
        };
        self.end_with(error);
    }

    fn end_with(&mut self, error: Option<&'static str>) {
        let tracing: Option<&Tracing> = self.request.tracing.as_ref();
        if let (Some(tracing), Some(mut span)) = (tracing, self.span.take()) {
            span.error = error;
            tracing.end_child(span);
        }
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.end_with(Some("abandoned"));
    }
}

fn cut_long_baggage(message: &Message, splice: &mut Splice<'_>) {
    let Some(span) = message.fields.meta_baggage.filter(|span| (span.end - span.start) as usize > BAGGAGE_BYTES_MAX) else { return };
    let kept = message.text(Some(span)).and_then(|text| cut_baggage(&text)).unwrap_or_default();
    splice.replace(span, json::quote(&kept).into_bytes());
}
