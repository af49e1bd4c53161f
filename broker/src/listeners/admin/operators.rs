//! Routes of named operators.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    input::{JsonBody, PathId, read_as},
    problem::Problem,
};
use crate::control::{Author, Control, NewOperator, OperatorShown, OperatorView};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct OperatorList {
    pub operators: Vec<OperatorView>,
}

/// Lists the operators by name, without their tokens.
#[utoipa::path(get, operation_id = "list_operators", path = "/admin/v1/operators", tag = "operators", responses(
    (status = 200, body = OperatorList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(control): State<Arc<Control>>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(OperatorList { operators: control.operators().await? }))
}

/// Creates an operator.
/// Only this answer contains the token.
#[utoipa::path(post, operation_id = "create_operator", path = "/admin/v1/operators", tag = "operators", request_body = NewOperator,
    responses((status = 201, body = OperatorShown),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create(
    State(control): State<Arc<Control>>,
    author: Author,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let wanted = read_as::<NewOperator>(&body.required()?)?;
    let shown = control.create_operator(wanted, author).await?;
    Ok((StatusCode::CREATED, axum::Json(shown)))
}

/// Revokes an operator at once.
#[utoipa::path(delete, operation_id = "revoke_operator", path = "/admin/v1/operators/{id}", tag = "operators", params(("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), responses(
    (status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn revoke(
    State(control): State<Arc<Control>>,
    PathId(id): PathId,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    control.delete_operator(id, author).await?;
    Ok(StatusCode::NO_CONTENT)
}
