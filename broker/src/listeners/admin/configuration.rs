//! Routes of the configuration: its generation, and what is in force.

use std::sync::Arc;

use axum::{extract::State, response::IntoResponse};

use super::problem::Problem;
use crate::control::{ConfigurationView, Control, EffectiveConfigurationView};

/// Shows the configuration's generation, and the reason of the last refused reload.
#[utoipa::path(get, operation_id = "show_configuration", path = "/admin/v1/configuration", tag = "configuration", responses(
    (status = 200, body = ConfigurationView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(State(control): State<Arc<Control>>) -> impl IntoResponse {
    axum::Json(control.generation.view())
}

/// Shows the configuration in force at this replica, without secrets.
/// Defaults, the file, its included files and the environment are merged.
#[utoipa::path(get, operation_id = "show_effective_configuration", path = "/admin/v1/configuration/effective", tag = "configuration", responses(
    (status = 200, body = EffectiveConfigurationView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn effective(State(control): State<Arc<Control>>) -> impl IntoResponse {
    axum::Json(control.effective_configuration())
}
