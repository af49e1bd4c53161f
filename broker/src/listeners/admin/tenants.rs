//! Routes of tenants and their API keys.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use protocol::ids::KeyId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    input::{Id, Json, TenantName, new_key},
    problem::Problem,
};
use crate::{
    config::{checked::parse_tenant_spec, spec::TenantSpec},
    control::{Control, KeyShown, KeyView, Put, TenantView},
};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct TenantList {
    pub tenants: Vec<TenantView>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct KeyList {
    pub keys: Vec<KeyView>,
}

/// What is asked of a new key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyRequest {
    /// What its owner calls it.
    pub name: Option<String>,
    /// Whom it speaks for; several keys may speak for one principal. The key's own id when absent.
    pub principal: Option<String>,
}

/// 201 for what was made, 200 for what was replaced.
pub(super) fn stored<View: Serialize>(put: Put<View>) -> impl IntoResponse {
    (if put.created { StatusCode::CREATED } else { StatusCode::OK }, axum::Json(put.view))
}

/// All tenants.
#[utoipa::path(get, path = "/admin/v1/tenants", tag = "tenants", responses(
    (status = 200, body = TenantList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(control): State<Arc<Control>>) -> impl IntoResponse {
    axum::Json(TenantList { tenants: control.tenants() })
}

/// One tenant.
#[utoipa::path(get, path = "/admin/v1/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path)), responses(
    (status = 200, body = TenantView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(State(control): State<Arc<Control>>, TenantName(tenant): TenantName) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(control.tenant(&tenant)?))
}

/// Makes or replaces a tenant.
#[utoipa::path(put, path = "/admin/v1/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path)), request_body = TenantSpec,
    responses((status = 201, body = TenantView), (status = 200, description = "Replaced", body = TenantView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    body: Json,
) -> Result<impl IntoResponse, Problem> {
    let spec = parse_tenant_spec(&body.required()?).map_err(|faults| Problem::faults(&faults))?;
    Ok(stored(control.put_tenant(tenant, spec).await?))
}

/// Removes a tenant with its keys and backends, and ends its sessions.
#[utoipa::path(delete, path = "/admin/v1/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path)), responses(
    (status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove(State(control): State<Arc<Control>>, TenantName(tenant): TenantName) -> Result<impl IntoResponse, Problem> {
    control.delete_tenant(tenant).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The tenant's API keys, without the keys themselves.
#[utoipa::path(get, path = "/admin/v1/tenants/{tenant}/keys", tag = "keys", params(("tenant" = String, Path)), responses(
    (status = 200, body = KeyList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_keys(State(control): State<Arc<Control>>, TenantName(tenant): TenantName) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(KeyList { keys: control.keys_of(&tenant).await? }))
}

/// Makes an API key. This answer alone shows it.
#[utoipa::path(post, path = "/admin/v1/tenants/{tenant}/keys", tag = "keys", params(("tenant" = String, Path)),
    request_body = Option<KeyRequest>, responses((status = 201, body = KeyShown),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create_key(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    body: Json,
) -> Result<impl IntoResponse, Problem> {
    let shown = control.create_key(tenant, new_key(body.0)?).await?;
    Ok((StatusCode::CREATED, axum::Json(shown)))
}

/// Revokes an API key, at once.
#[utoipa::path(delete, path = "/admin/v1/tenants/{tenant}/keys/{id}", tag = "keys",
    params(("tenant" = String, Path), ("id" = String, Path)), responses((status = 204),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn revoke_key(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    Id(id): Id,
) -> Result<impl IntoResponse, Problem> {
    control.delete_key(tenant, KeyId::new(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}
