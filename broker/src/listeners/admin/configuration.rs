//! The route that tells which reading of the configuration file is in force.

use std::sync::Arc;

use axum::{extract::State, response::IntoResponse};

use super::problem::Problem;
use crate::control::{ConfigurationView, Control};

/// Which reading of the configuration file this process runs on, and why the last other one was refused.
#[utoipa::path(get, path = "/admin/v1/configuration", tag = "configuration", responses(
    (status = 200, body = ConfigurationView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(State(control): State<Arc<Control>>) -> impl IntoResponse {
    axum::Json(control.generation.view())
}
