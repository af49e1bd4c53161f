//! Routes of tenants and their API keys.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use protocol::ids::KeyId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    input::{JsonBody, PathId, QueryParams, TenantName, read_as},
    page::Page,
    preconditions::shown,
    problem::Problem,
};
use crate::{
    config::{spec::TenantSpec, validation::parse_tenant_spec},
    control::{Author, Control, KeyShown, KeyView, NewKey, Preconditions, PutOutcome, TenantView},
};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct TenantList {
    pub tenants: Vec<TenantView>,
    /// What to send as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct KeyList {
    pub keys: Vec<KeyView>,
    /// What to send as `after` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Of a list that has no other parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct PageParams {
    /// Entries of one page; all of them where it is absent.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// The `next` of the page before.
    after: Option<String>,
}

/// What is asked of a new key.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyRequest {
    /// What its owner calls it.
    pub name: Option<String>,
    /// Whom it speaks for; several keys may speak for one principal. The key's own id when absent.
    pub principal: Option<String>,
}

/// 201 for what was made, 200 for what was replaced.
pub(super) fn stored<View: Serialize>(put: PutOutcome<View>) -> impl IntoResponse {
    (if put.created { StatusCode::CREATED } else { StatusCode::OK }, shown(put.shown))
}

/// All tenants.
#[utoipa::path(get, path = "/admin/v1/tenants", tag = "tenants", params(PageParams), responses(
    (status = 200, body = TenantList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(control): State<Arc<Control>>,
    QueryParams(page): QueryParams<PageParams>,
) -> Result<impl IntoResponse, Problem> {
    let (tenants, next) =
        Page::new(page.limit, page.after)?.of(control.tenants(), |view| view.tenant.clone());
    Ok(axum::Json(TenantList { tenants, next }))
}

/// One tenant.
#[utoipa::path(get, path = "/admin/v1/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")), responses(
    (status = 200, body = TenantView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
) -> Result<impl IntoResponse, Problem> {
    Ok(shown(control.tenant(&tenant)?))
}

/// Makes or replaces a tenant.
#[utoipa::path(put, path = "/admin/v1/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")), request_body = TenantSpec,
    responses((status = 201, body = TenantView), (status = 200, description = "Replaced", body = TenantView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    condition: Preconditions,
    author: Author,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let spec = parse_tenant_spec(&body.required()?).map_err(|faults| Problem::faults(&faults))?;
    Ok(stored(control.put_tenant(tenant, spec, condition, author).await?))
}

/// Removes a tenant with its keys and backends, and ends its sessions.
#[utoipa::path(delete, path = "/admin/v1/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")), responses(
    (status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    condition: Preconditions,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    control.delete_tenant(tenant, condition, author).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The tenant's API keys, without the keys themselves.
#[utoipa::path(get, path = "/admin/v1/tenants/{tenant}/keys", tag = "keys", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), PageParams), responses(
    (status = 200, body = KeyList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_keys(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    QueryParams(page): QueryParams<PageParams>,
) -> Result<impl IntoResponse, Problem> {
    let (keys, next) = Page::new(page.limit, page.after)?
        .of(control.keys_of(&tenant).await?, |view| view.id.clone());
    Ok(axum::Json(KeyList { keys, next }))
}

/// Makes an API key. This answer alone shows it.
#[utoipa::path(post, path = "/admin/v1/tenants/{tenant}/keys", tag = "keys", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")),
    request_body = Option<KeyRequest>, responses((status = 201, body = KeyShown),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create_key(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    author: Author,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let wanted = match body.0 {
        Some(body) => read_as::<KeyRequest>(&body)?,
        None => KeyRequest::default(),
    };
    let key = NewKey { name: wanted.name, principal: wanted.principal };
    let shown = control.create_key(tenant, key, author).await?;
    Ok((StatusCode::CREATED, axum::Json(shown)))
}

/// Revokes an API key, at once.
#[utoipa::path(delete, path = "/admin/v1/tenants/{tenant}/keys/{id}", tag = "keys",
    params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), responses((status = 204),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn revoke_key(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    PathId(id): PathId,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    control.delete_key(tenant, KeyId::new(id), author).await?;
    Ok(StatusCode::NO_CONTENT)
}
