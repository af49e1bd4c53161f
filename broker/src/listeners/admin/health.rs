//! Routes for orchestrators and Prometheus: liveness, readiness and metrics.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::{Control, Readiness};

pub(super) const LIVE: &str = "/healthz";
pub(super) const READY: &str = "/readyz";

/// Answer of a probe.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Health {
    /// `ok`, `ready`, `starting`, `draining` or `store_unavailable`.
    pub status: String,
}

impl Health {
    pub(super) fn answer(code: StatusCode, status: &str) -> (StatusCode, Json<Self>) {
        (code, Json(Self { status: status.to_owned() }))
    }
}

/// Liveness: the process runs.
#[utoipa::path(get, operation_id = "show_health", path = "/healthz", tag = "health", security(()), responses((status = 200, body = Health)))]
pub(super) async fn live() -> impl IntoResponse {
    Health::answer(StatusCode::OK, "ok")
}

/// Readiness for new work.
/// Everything is loaded, no drain has begun, and the database is reachable.
#[utoipa::path(get, operation_id = "show_readiness", path = "/readyz", tag = "health", security(()), responses(
    (status = 200, body = Health), (status = 503, description = "Starting, draining or without its database", body = Health)))]
pub(super) async fn ready(State(control): State<Arc<Control>>) -> impl IntoResponse {
    match control.readiness() {
        Readiness::Ready => Health::answer(StatusCode::OK, "ready"),
        Readiness::Starting => Health::answer(StatusCode::SERVICE_UNAVAILABLE, "starting"),
        Readiness::Draining => Health::answer(StatusCode::SERVICE_UNAVAILABLE, "draining"),
        Readiness::StoreUnavailable => {
            Health::answer(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable")
        }
    }
}

/// Metrics as Prometheus text.
#[utoipa::path(get, operation_id = "show_metrics", path = "/metrics", tag = "health", responses((status = 200, body = String, content_type = "text/plain")))]
pub(super) async fn metrics(State(control): State<Arc<Control>>) -> impl IntoResponse {
    // Set here, so that it never differs from `/readyz`.
    control.metrics.observability.accepting(control.readiness() == Readiness::Ready);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], control.metrics.render())
}
