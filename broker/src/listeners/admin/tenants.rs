//! Routes of tenants and their API keys.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use config::{
    serde_units::optional_duration, spec::TenantSpec, units::DurationText,
    validation::parse_tenant_spec,
};
use protocol::ids::KeyId;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    input::{JsonBody, PathId, QueryParams, TenantName, read_as},
    page::Page,
    permissions::SignedIn,
    preconditions::shown,
    problem::Problem,
};
use crate::control::{
    Author, Control, KeyAttributes, KeyShown, KeyView, NewKey, Preconditions, PutOutcome,
    TenantView,
};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct TenantList {
    pub tenants: Vec<TenantView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct KeyList {
    pub keys: Vec<KeyView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Parameters of a list without filters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageParams {
    /// Maximum number of entries on a page; absent: all entries.
    #[param(minimum = 1, maximum = 1000)]
    pub(super) limit: Option<u32>,
    /// `next` of the page before.
    pub(super) after: Option<String>,
}

impl PageParams {
    pub(super) fn page(self) -> Result<Page, Problem> {
        Page::new(self.limit, self.after)
    }
}

/// Settings of a new key.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyRequest {
    /// Name of the key, chosen by its owner.
    pub name: Option<String>,
    /// Principal of the key. Several keys may have the same principal. Absent: the key's own id.
    pub principal: Option<String>,
    /// Groups that access rules look at.
    #[serde(default)]
    pub groups: Option<Vec<String>>,
    /// Scopes that access rules look at.
    #[serde(default)]
    pub scopes: Option<Vec<String>>,
    /// Labels for operators.
    #[serde(default)]
    pub labels: Option<BTreeMap<String, String>>,
    /// Time until the key expires, such as `30d`: `1s` to 3650 days. Absent: never.
    #[serde(default, with = "optional_duration")]
    #[schema(value_type = DurationText)]
    pub expires_in: Option<Duration>,
}

/// Returns status 201 for a new entry, and 200 for a replaced one.
pub(super) fn stored<View: Serialize>(put: PutOutcome<View>) -> impl IntoResponse {
    (if put.created { StatusCode::CREATED } else { StatusCode::OK }, shown(put.entry))
}

/// Lists all tenants.
#[utoipa::path(get, operation_id = "list_tenants", path = "/admin/v1/tenants", tag = "tenants", params(PageParams), responses(
    (status = 200, body = TenantList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(control): State<Arc<Control>>,
    SignedIn(operator): SignedIn,
    QueryParams(page): QueryParams<PageParams>,
) -> Result<impl IntoResponse, Problem> {
    let mut tenants = control.tenants();
    tenants.retain(|view| operator.covers_tenant(&view.tenant));
    let (tenants, next) = page.page()?.of(tenants, |view| view.tenant.clone());
    Ok(axum::Json(TenantList { tenants, next }))
}

/// Shows one tenant.
#[utoipa::path(get, operation_id = "show_tenant", path = "/admin/v1/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")), responses(
    (status = 200, body = TenantView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
) -> Result<impl IntoResponse, Problem> {
    Ok(shown(control.tenant(&tenant)?))
}

/// Creates or replaces a tenant.
#[utoipa::path(put, operation_id = "put_tenant", path = "/admin/v1/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")), request_body = TenantSpec,
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
#[utoipa::path(delete, operation_id = "remove_tenant", path = "/admin/v1/tenants/{tenant}", tag = "tenants", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")), responses(
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

/// Lists the tenant's API keys, without the keys themselves.
#[utoipa::path(get, path = "/admin/v1/tenants/{tenant}/keys", tag = "keys", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), PageParams), responses(
    (status = 200, body = KeyList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_keys(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    QueryParams(page): QueryParams<PageParams>,
) -> Result<impl IntoResponse, Problem> {
    let (keys, next) = page.page()?.of(control.keys_of(&tenant).await?, |view| view.id.clone());
    Ok(axum::Json(KeyList { keys, next }))
}

/// Creates an API key.
/// Only this answer contains it.
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
    let attributes = KeyAttributes {
        groups: wanted.groups.unwrap_or_default(),
        scopes: wanted.scopes.unwrap_or_default(),
        labels: wanted.labels.unwrap_or_default(),
        expires_at_us: None,
    };
    let KeyRequest { name, principal, expires_in, .. } = wanted;
    let key = NewKey { name, principal, attributes, expires_in };
    let shown = control.create_key(tenant, key, author).await?;
    Ok((StatusCode::CREATED, axum::Json(shown)))
}

/// Revokes an API key at once.
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
