//! Routes of revocations of tokens.

use std::sync::Arc;

use axum::{Json, extract::State, http::StatusCode, response::IntoResponse};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    input::{JsonBody, PathId, QueryParams, TenantName, read_as},
    page::Page,
    problem::Problem,
    tenants::PageParams,
};
use crate::control::{Author, Control, NewRevocation, RevocationView};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct RevocationList {
    pub revocations: Vec<RevocationView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Lists the revocations of a tenant.
#[utoipa::path(get, operation_id = "list_revocations", path = "/admin/v1/tenants/{tenant}/revocations", tag = "revocations", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), PageParams), responses(
    (status = 200, body = RevocationList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    QueryParams(page): QueryParams<PageParams>,
) -> Result<impl IntoResponse, Problem> {
    let (revocations, next) = Page::new(page.limit, page.after)?
        .of(control.revocations(&tenant)?, |view| view.id.clone());
    Ok(Json(RevocationList { revocations, next }))
}

/// Revokes the tokens of a principal, or one token.
/// Their sessions, streams and links end at once.
#[utoipa::path(post, operation_id = "revoke_tokens", path = "/admin/v1/tenants/{tenant}/revocations", tag = "revocations", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")), request_body = NewRevocation,
    responses((status = 201, body = RevocationView), (status = 200, description = "Widened", body = RevocationView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    author: Author,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let wanted = read_as::<NewRevocation>(&body.required()?)?;
    let (view, is_new) = control.revoke_tokens(tenant, wanted, author).await?;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(view)))
}

/// Removes a revocation.
/// The tokens that it named are valid again.
#[utoipa::path(delete, operation_id = "remove_revocation", path = "/admin/v1/tenants/{tenant}/revocations/{id}", tag = "revocations",
    params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), responses((status = 204),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    PathId(id): PathId,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    control.delete_revocation(tenant, id, author).await?;
    Ok(StatusCode::NO_CONTENT)
}
