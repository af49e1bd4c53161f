//! A collector of traces: receives OTLP over HTTP as protobuf, keeps the spans, and can hang or
//! refuse.

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    common::v1::{KeyValue, any_value::Value as Any},
    trace::v1::{Span, span::SpanKind, status::StatusCode as SpanStatus},
};
use parking_lot::Mutex;
use prost::Message;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};

use crate::{abort_on_drop::AbortOnDrop, eventually, http_server::serve};

/// One span as it came.
#[derive(Debug, Clone)]
pub struct CollectedSpan {
    pub trace: String,
    pub id: String,
    /// Id of the parent span; empty for a root.
    pub parent: String,
    pub name: String,
    pub kind: String,
    pub failed: bool,
    pub attributes: serde_json::Map<String, Value>,
    /// Attributes of the process that sent it.
    pub resource: serde_json::Map<String, Value>,
}

impl CollectedSpan {
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    pub fn to_json(&self) -> Value {
        json!({
            "trace": self.trace, "id": self.id, "parent": self.parent, "name": self.name, "kind": self.kind,
            "failed": self.failed, "attributes": self.attributes, "resource": self.resource,
        })
    }
}

/// Answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectorBehavior {
    Accepts,
    Refuses,
    /// Reads and never answers.
    Hangs,
}

#[derive(Debug)]
struct CollectorState {
    spans: Mutex<Vec<CollectedSpan>>,
    mood: watch::Sender<CollectorBehavior>,
}

/// The collector, which stops when it is dropped.
pub struct Collector {
    state: Arc<CollectorState>,
    address: SocketAddr,
    _server: AbortOnDrop,
}

impl Collector {
    pub async fn start() -> Self {
        Self::on(TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port"))
    }

    pub fn on(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("a bound listener has an address");
        let state = Arc::new(CollectorState {
            spans: Mutex::default(),
            mood: watch::Sender::new(CollectorBehavior::Accepts),
        });
        let answering = state.clone();
        let server = AbortOnDrop(tokio::spawn(serve(listener, move |request| {
            answer(answering.clone(), request)
        })));
        Self { state, address, _server: server }
    }

    /// Returns the URL for `telemetry.traces.endpoint`.
    pub fn endpoint(&self) -> String {
        format!("http://{}/v1/traces", self.address)
    }

    pub fn set_behavior(&self, mood: CollectorBehavior) {
        self.state.mood.send_replace(mood);
    }

    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.state.spans.lock().clone()
    }

    /// Returns the spans of one trace, once `wanted` accepts them.
    pub async fn trace(
        &self,
        trace: &str,
        what: &str,
        wanted: impl Fn(&[CollectedSpan]) -> bool,
    ) -> Vec<CollectedSpan> {
        eventually(what, || async {
            let all = self.spans();
            let spans: Vec<CollectedSpan> =
                all.iter().filter(|span| span.trace == trace).cloned().collect();
            if wanted(&spans) { Ok(spans) } else { Err(all) }
        })
        .await
    }
}

async fn answer(
    state: Arc<CollectorState>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let respond = |status: StatusCode, body: Vec<u8>| {
        let response =
            Response::builder().status(status).header("content-type", "application/x-protobuf");
        response.body(Full::new(Bytes::from(body))).expect("a response")
    };
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return Ok(respond(StatusCode::BAD_REQUEST, Vec::new()));
    };
    let mood = *state.mood.borrow();
    match mood {
        CollectorBehavior::Accepts => {}
        CollectorBehavior::Refuses => return Ok(respond(StatusCode::BAD_REQUEST, Vec::new())),
        CollectorBehavior::Hangs => {
            let mut changes = state.mood.subscribe();
            drop(changes.wait_for(|mood| *mood != CollectorBehavior::Hangs).await);
            return Ok(respond(StatusCode::BAD_REQUEST, Vec::new()));
        }
    }
    if head.uri.path() != "/v1/traces"
        || head.headers.get("content-type").is_none_or(|kind| kind != "application/x-protobuf")
    {
        return Ok(respond(StatusCode::UNSUPPORTED_MEDIA_TYPE, Vec::new()));
    }
    let Ok(export) = ExportTraceServiceRequest::decode(body.to_bytes()) else {
        return Ok(respond(StatusCode::BAD_REQUEST, Vec::new()));
    };
    let mut spans = Vec::new();
    for group in &export.resource_spans {
        let resource = group
            .resource
            .as_ref()
            .map(|resource| attributes(&resource.attributes))
            .unwrap_or_default();
        spans.extend(
            group
                .scope_spans
                .iter()
                .flat_map(|scope| &scope.spans)
                .map(|span| seen(span, &resource)),
        );
    }
    state.spans.lock().extend(spans);
    Ok(respond(StatusCode::OK, ExportTraceServiceResponse::default().encode_to_vec()))
}

fn seen(span: &Span, resource: &serde_json::Map<String, Value>) -> CollectedSpan {
    let failed = span.status.as_ref().is_some_and(|status| status.code == SpanStatus::Error as i32);
    CollectedSpan {
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: if span.parent_span_id.iter().all(|byte| *byte == 0) {
            String::new()
        } else {
            hex(&span.parent_span_id)
        },
        name: span.name.clone(),
        kind: SpanKind::try_from(span.kind)
            .map(|kind| kind.as_str_name().trim_start_matches("SPAN_KIND_").to_owned())
            .unwrap_or_default(),
        failed,
        attributes: attributes(&span.attributes),
        resource: resource.clone(),
    }
}

fn attributes(pairs: &[KeyValue]) -> serde_json::Map<String, Value> {
    let read = |pair: &KeyValue| match pair.value.as_ref()?.value.as_ref()? {
        Any::StringValue(text) => Some(json!(text)),
        Any::IntValue(number) => Some(json!(number)),
        Any::BoolValue(flag) => Some(json!(flag)),
        Any::DoubleValue(number) => Some(json!(number)),
        _ => None,
    };
    pairs.iter().map(|pair| (pair.key.clone(), read(pair).unwrap_or(Value::Null))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
