//! Exports spans to a collector: OTLP over HTTP, in batches, by one task.
//!
//! Its queue is bounded, and no request waits for it. A batch that the collector does not accept in
//! time is dropped and counted. The start and the end of such an outage are logged.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use config::TraceConfig as Settings;
use http::{Request, Response};
use http_body_util::Full;
use opentelemetry::KeyValue;
use opentelemetry_http::HttpError;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanExporter as _},
};
use rules::limits::{
    ERROR_BODY_BYTES_MAX, SPAN_BATCH_MAX, SPAN_BATCH_WAIT, SPAN_EXPORT_WAIT, SPAN_FLUSH_WAIT,
};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use transport::http_client::{self, HttpClient};

use super::traces::{SpanRecorder, Tracer, recorder};
use crate::metrics::Metrics;

/// Handle of the exporter's task, to stop it.
#[derive(Debug)]
pub struct ExporterHandle {
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<()>>,
}

/// Starts the export if an endpoint is configured. Must be called inside the runtime.
pub fn start(
    settings: &Settings,
    node: &str,
    http: HttpClient,
    metrics: Arc<Metrics>,
) -> (Tracer, ExporterHandle) {
    let stop = CancellationToken::new();
    let Some(endpoint) = &settings.endpoint else {
        return (Tracer::default(), ExporterHandle { stop, task: None });
    };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(OtlpHttpClient(http))
        .with_endpoint(endpoint)
        .with_timeout(SPAN_EXPORT_WAIT);
    let mut exporter = match exporter.build() {
        Ok(exporter) => exporter,
        Err(error) => {
            tracing::error!(%error, "traces are off: the exporter does not accept its configuration");
            return (Tracer::default(), ExporterHandle { stop, task: None });
        }
    };
    let about = [
        KeyValue::new("service.name", "mcp-broker"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", node.to_owned()),
    ];
    exporter.set_resource(&Resource::builder_empty().with_attributes(about).build());
    let (recorder, spans) = recorder(settings, metrics.clone());
    let task = tokio::spawn(
        ExportTask {
            exporter,
            spans,
            recorder: recorder.clone(),
            metrics,
            failing: false,
            stop: stop.clone(),
        }
        .run(),
    );
    (Tracer::to(recorder), ExporterHandle { stop, task: Some(task) })
}

impl ExporterHandle {
    /// Exports the rest of the queue, within a short time limit, and stops.
    pub async fn end(&mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take()
            && timeout(SPAN_FLUSH_WAIT, task).await.is_err()
        {
            tracing::warn!("the newest spans did not reach the collector in time");
        }
    }
}

struct ExportTask {
    exporter: SpanExporter,
    spans: mpsc::Receiver<Vec<SpanData>>,
    recorder: Arc<SpanRecorder>,
    metrics: Arc<Metrics>,
    failing: bool,
    stop: CancellationToken,
}

impl ExportTask {
    async fn run(mut self) {
        loop {
            let first = tokio::select! {
                biased;
                first = self.spans.recv() => first,
                () = self.stop.cancelled() => None,
            };
            let Some(mut batch) = first else { return };
            let wait = if self.stop.is_cancelled() { Duration::ZERO } else { SPAN_BATCH_WAIT };
            let due = Instant::now() + wait;
            while batch.len() < SPAN_BATCH_MAX {
                tokio::select! {
                    biased;
                    more = timeout_at(due, self.spans.recv()) => match more {
                        Ok(Some(more)) => batch.extend(more),
                        Ok(None) | Err(_) => break,
                    },
                    () = self.stop.cancelled(), if wait > Duration::ZERO => break,
                }
            }
            self.send(batch).await;
        }
    }

    async fn send(&mut self, batch: Vec<SpanData>) {
        let count = batch.len();
        let sent = timeout(SPAN_EXPORT_WAIT, self.exporter.export(batch)).await;
        self.recorder.queued.fetch_sub(count, Ordering::AcqRel);
        let failure = match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {SPAN_EXPORT_WAIT:?}")),
        };
        self.metrics
            .observability
            .spans(if failure.is_none() { "exported" } else { "refused" }, count);
        match (failure, std::mem::take(&mut self.failing)) {
            (None, true) => tracing::info!("the collector accepts spans again"),
            (None, false) => {}
            (Some(error), was_failing) => {
                self.failing = true;
                if !was_failing {
                    tracing::warn!(%error, "the collector does not accept spans: the broker drops them");
                }
            }
        }
    }
}

/// Adapter from the broker's own HTTP client to the exporter.
struct OtlpHttpClient(HttpClient);

impl fmt::Debug for OtlpHttpClient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("OverHttp")
    }
}

#[async_trait]
impl opentelemetry_http::HttpClient for OtlpHttpClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let response = self.0.send(Request::from_parts(head, Full::new(body))).await?;
        let (head, body) = response.into_parts();
        Ok(Response::from_parts(head, http_client::read_body(body, ERROR_BODY_BYTES_MAX).await?))
    }
}
