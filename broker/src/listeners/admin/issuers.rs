//! Routes of the issuers of a tenant.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use config::IssuerEntry;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    input::{IssuerName, JsonBody, QueryParams, TenantName},
    preconditions::shown,
    problem::Problem,
    tenants::{PageParams, stored},
};
use crate::control::{Author, Control, IssuerView, Preconditions};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct IssuerList {
    pub issuers: Vec<IssuerView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Lists the issuers whose tokens are of this tenant alone.
#[utoipa::path(get, operation_id = "list_issuers", path = "/admin/v1/tenants/{tenant}/issuers", tag = "issuers", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), PageParams), responses(
    (status = 200, body = IssuerList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    QueryParams(page): QueryParams<PageParams>,
) -> Result<impl IntoResponse, Problem> {
    let sort_key = |view: &IssuerView| view.name.clone().unwrap_or_else(|| view.issuer.clone());
    let mut issuers = control.issuers(&tenant)?;
    issuers.sort_by_key(sort_key);
    let (issuers, next) = page.page()?.of(issuers, sort_key);
    Ok(axum::Json(IssuerList { issuers, next }))
}

/// Shows one issuer.
#[utoipa::path(get, operation_id = "show_issuer", path = "/admin/v1/tenants/{tenant}/issuers/{issuer}", tag = "issuers", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("issuer" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), responses(
    (status = 200, body = IssuerView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    IssuerName(issuer): IssuerName,
) -> Result<impl IntoResponse, Problem> {
    Ok(shown(control.issuer(&tenant, &issuer)?))
}

/// Creates or replaces an issuer under a name.
/// It is in force on every replica within a second. `tenant`, `tenant_claim`, `tenants`, `check`,
/// `introspection` and `registration.secret_file` are refused: they are for the configuration file.
#[utoipa::path(put, operation_id = "put_issuer", path = "/admin/v1/tenants/{tenant}/issuers/{issuer}", tag = "issuers", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("issuer" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), request_body = IssuerEntry,
    responses((status = 201, body = IssuerView), (status = 200, description = "Replaced", body = IssuerView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    IssuerName(issuer): IssuerName,
    condition: Preconditions,
    author: Author,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    Ok(stored(control.put_issuer(tenant, issuer, body.required()?, condition, author).await?))
}

/// Removes an issuer. Its tokens are refused at once.
#[utoipa::path(delete, operation_id = "remove_issuer", path = "/admin/v1/tenants/{tenant}/issuers/{issuer}", tag = "issuers", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("issuer" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), responses(
    (status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    IssuerName(issuer): IssuerName,
    condition: Preconditions,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    control.delete_issuer(tenant, issuer, condition, author).await?;
    Ok(StatusCode::NO_CONTENT)
}
