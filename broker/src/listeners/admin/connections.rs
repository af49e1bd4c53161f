//! Routes of connections: accounts that principals connected at backends.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use config::BodySchema;
use protocol::ids::BackendId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    input::{BackendName, JsonBody, PrincipalName, QueryParams, TenantName},
    problem::Problem,
    tenants::PageParams,
};
use crate::control::{ConnectLinkView, ConnectionTestView, ConnectionView, Control};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct ConnectionList {
    pub connections: Vec<ConnectionView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Person and backend of a one-time address.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConnectLinkRequest {
    /// Principal as sessions show it.
    principal: String,
    /// Name of the backend.
    #[schema(pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")]
    backend: String,
}

/// Lists the accounts that principals of the tenant connected at backends.
#[utoipa::path(get, operation_id = "list_connections", path = "/admin/v1/tenants/{tenant}/connections", tag = "connections", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), PageParams), responses(
    (status = 200, body = ConnectionList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    QueryParams(page): QueryParams<PageParams>,
) -> Result<impl IntoResponse, Problem> {
    let sort_key = |view: &ConnectionView| format!("{} {}", view.backend, view.principal);
    let page = page.page()?;
    let mut connections = control.connections(&tenant).await?;
    connections.sort_by_key(sort_key);
    let (connections, next) = page.of(connections, sort_key);
    Ok(axum::Json(ConnectionList { connections, next }))
}

/// Makes a one-time address at which a principal signs in and connects an account.
#[utoipa::path(post, operation_id = "create_connect_link", path = "/admin/v1/tenants/{tenant}/connections", tag = "connections", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")), request_body = ConnectLinkRequest, responses(
    (status = 201, body = ConnectLinkView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn link(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let wanted = BodySchema::<ConnectLinkRequest>::new().read(&body.required()?);
    let wanted = wanted.map_err(crate::control::ControlError::Faults)?;
    let backend = BackendId::parse(&wanted.backend)
        .map_err(|error| Problem::invalid("backend", error.to_string()))?;
    let made = control.connect_link(&tenant, &wanted.principal, &backend).await?;
    Ok((StatusCode::CREATED, axum::Json(made)))
}

/// Tests whether the backend accepts the principal's account, with a connection that ends at once.
#[utoipa::path(post, operation_id = "test_connection", path = "/admin/v1/tenants/{tenant}/connections/{principal}/{backend}/test", tag = "connections", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("principal" = String, Path), ("backend" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), responses(
    (status = 200, body = ConnectionTestView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn test(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    PrincipalName(principal): PrincipalName,
    BackendName(backend): BackendName,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(control.test_connection(&tenant, &principal, &backend).await?))
}

/// Ends a connection. The broker revokes its tokens at the authorization server if that is possible.
#[utoipa::path(delete, operation_id = "end_connection", path = "/admin/v1/tenants/{tenant}/connections/{principal}/{backend}", tag = "connections", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("principal" = String, Path), ("backend" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), responses(
    (status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    PrincipalName(principal): PrincipalName,
    BackendName(backend): BackendName,
) -> Result<impl IntoResponse, Problem> {
    control.end_connection(&tenant, &principal, &backend).await?;
    Ok(StatusCode::NO_CONTENT)
}
