//! Routes of the log filter of the replica that answers.

use std::sync::Arc;

use axum::{Json, extract::State, response::IntoResponse};

use super::{
    input::{JsonBody, read_as},
    problem::Problem,
};
use crate::control::{Author, Control, LogFilterView, NewLogFilter};

/// Shows the log filter of this replica.
#[utoipa::path(get, operation_id = "show_log_filter", path = "/admin/v1/log", tag = "log", responses(
    (status = 200, body = LogFilterView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(control): State<Arc<Control>>,
) -> Result<impl IntoResponse, Problem> {
    Ok(Json(control.log_filter()?))
}

/// Sets the log filter of this replica for a time.
/// It ends earlier if a reload changes `telemetry.log`.
#[utoipa::path(put, operation_id = "put_log_filter", path = "/admin/v1/log", tag = "log", request_body = NewLogFilter, responses(
    (status = 200, body = LogFilterView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(control): State<Arc<Control>>,
    author: Author,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let wanted = read_as::<NewLogFilter>(&body.required()?)?;
    Ok(Json(control.set_log_filter(wanted, &author)?))
}

/// Returns to the log filter of the configuration.
#[utoipa::path(delete, operation_id = "reset_log_filter", path = "/admin/v1/log", tag = "log", responses(
    (status = 200, body = LogFilterView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn reset(
    State(control): State<Arc<Control>>,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    Ok(Json(control.reset_log_filter(&author)?))
}
