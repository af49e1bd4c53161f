//! For orchestrators and Prometheus: does the process live, should it get traffic, how does it do.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Control;

pub(super) const LIVE: &str = "/healthz";
pub(super) const READY: &str = "/readyz";

/// A probe's answer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct Health {
    /// `ok`, `ready`, `starting` or `draining`.
    pub status: String,
}

impl Health {
    pub(super) fn answer(code: StatusCode, status: &str) -> (StatusCode, Json<Self>) {
        (code, Json(Self { status: status.to_owned() }))
    }
}

/// The process lives.
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses((status = 200, body = Health)))]
pub(super) async fn live() -> impl IntoResponse {
    Health::answer(StatusCode::OK, "ok")
}

/// New work is welcome: everything is loaded and no drain has begun.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses(
    (status = 200, body = Health), (status = 503, description = "Starting or draining", body = Health)))]
pub(super) async fn ready(State(control): State<Arc<Control>>) -> impl IntoResponse {
    if control.is_ready() {
        Health::answer(StatusCode::OK, "ready")
    } else if control.broker.draining() {
        Health::answer(StatusCode::SERVICE_UNAVAILABLE, "draining")
    } else {
        Health::answer(StatusCode::SERVICE_UNAVAILABLE, "starting")
    }
}

/// Metrics as Prometheus text.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, body = String, content_type = "text/plain")))]
pub(super) async fn metrics(State(control): State<Arc<Control>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], control.metrics.render())
}
