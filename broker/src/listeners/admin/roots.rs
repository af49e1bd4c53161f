//! Routes of the roots that operators give a backend.

use std::sync::Arc;

use axum::{Json, extract::State, http::StatusCode, response::IntoResponse};
use config::{
    roots::root_faults,
    spec::{ConfiguredRoot, RootRules},
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    input::{BackendName, JsonBody, QueryParams, TenantName, read_as},
    problem::Problem,
};
use crate::control::{Author, Control};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RootParams {
    /// URI of the root.
    #[param(example = "file:///srv/projects")]
    uri: String,
}

/// Adds a root, or gives a known one another name.
/// Open connections to the backend get `notifications/roots/list_changed`.
#[utoipa::path(post, operation_id = "add_root", path = "/admin/v1/tenants/{tenant}/backends/{backend}/roots", tag = "backends",
    params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("backend" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), request_body = ConfiguredRoot,
    responses((status = 201, body = RootRules), (status = 200, description = "Renamed", body = RootRules),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn add(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
    author: Author,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let root = read_as::<ConfiguredRoot>(&body.required()?)?;
    let faults = root_faults(&root, "");
    if !faults.is_empty() {
        return Err(Problem::faults(&faults));
    }
    control.check_tenant(&tenant)?;
    let (roots, is_new) = control.add_root(tenant, backend, root, author).await?;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(roots)))
}

/// Removes a root.
/// Open connections to the backend get `notifications/roots/list_changed`.
#[utoipa::path(delete, operation_id = "remove_root", path = "/admin/v1/tenants/{tenant}/backends/{backend}/roots", tag = "backends",
    params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("backend" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"), RootParams), responses((status = 204),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
    QueryParams(root): QueryParams<RootParams>,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    control.check_tenant(&tenant)?;
    control.remove_root(tenant, backend, root.uri, author).await?;
    Ok(StatusCode::NO_CONTENT)
}
