//! Routes of toolsets, of prompts that the broker hosts, and of what lists cost.

use std::sync::Arc;

use axum::{Json, extract::State, http::StatusCode, response::IntoResponse};
use protocol::ids::ToolsetId;
use rules::{catalog::HostedPromptDocument, toolsets::ToolsetDocument};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    input::{JsonBody, PromptName, QueryParams, TenantName, ToolsetName, read_as},
    preconditions::shown,
    problem::Problem,
    tenants::{PageParams, stored},
};
use crate::control::{
    Author, CatalogCostView, Control, HostedPromptView, Preconditions, ToolsetView,
};

/// Tools that the report of costs names by default.
const COSTS_SHOWN: usize = 20;
/// Tools that the report of costs names at most.
const COSTS_SHOWN_MAX: usize = 1_000;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct ToolsetList {
    pub toolsets: Vec<ToolsetView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Lists the toolsets of a tenant.
#[utoipa::path(get, operation_id = "list_toolsets", path = "/admin/v1/tenants/{tenant}/toolsets", tag = "catalog", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), PageParams), responses(
    (status = 200, body = ToolsetList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_toolsets(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    QueryParams(page): QueryParams<PageParams>,
) -> Result<impl IntoResponse, Problem> {
    let (toolsets, next) = page.page()?.of(control.toolsets(&tenant)?, |view| view.name.clone());
    Ok(Json(ToolsetList { toolsets, next }))
}

/// Shows one of the toolsets of a tenant.
#[utoipa::path(get, operation_id = "show_toolset", path = "/admin/v1/tenants/{tenant}/toolsets/{toolset}", tag = "catalog", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("toolset" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), responses(
    (status = 200, body = ToolsetView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show_toolset(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    ToolsetName(name): ToolsetName,
) -> Result<impl IntoResponse, Problem> {
    Ok(shown(control.toolset(&tenant, &name)?))
}

/// Creates or replaces a toolset. A published one whose names are ambiguous is refused with 409.
#[utoipa::path(put, operation_id = "put_toolset", path = "/admin/v1/tenants/{tenant}/toolsets/{toolset}", tag = "catalog", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("toolset" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), request_body = ToolsetDocument,
    responses((status = 201, body = ToolsetView), (status = 200, description = "Replaced", body = ToolsetView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put_toolset(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    ToolsetName(name): ToolsetName,
    condition: Preconditions,
    author: Author,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let document = read_as::<ToolsetDocument>(&body.required()?)?;
    Ok(stored(control.put_toolset(tenant, name, document, condition, author).await?))
}

/// Removes a toolset. Its endpoint is gone, and an enforced one holds no caller any more.
#[utoipa::path(delete, operation_id = "remove_toolset", path = "/admin/v1/tenants/{tenant}/toolsets/{toolset}", tag = "catalog", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("toolset" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), responses(
    (status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove_toolset(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    ToolsetName(name): ToolsetName,
    condition: Preconditions,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    control.delete_toolset(tenant, name, condition, author).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct HostedPromptList {
    pub prompts: Vec<HostedPromptView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Lists the prompts that the broker hosts for a tenant.
#[utoipa::path(get, operation_id = "list_prompts", path = "/admin/v1/tenants/{tenant}/prompts", tag = "catalog", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), PageParams), responses(
    (status = 200, body = HostedPromptList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list_prompts(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    QueryParams(page): QueryParams<PageParams>,
) -> Result<impl IntoResponse, Problem> {
    let (prompts, next) =
        page.page()?.of(control.hosted_prompts(&tenant)?, |view| view.name.clone());
    Ok(Json(HostedPromptList { prompts, next }))
}

/// Shows one of the prompts that the broker hosts for a tenant.
#[utoipa::path(get, operation_id = "show_prompt", path = "/admin/v1/tenants/{tenant}/prompts/{prompt}", tag = "catalog", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("prompt" = String, Path, pattern = "^[A-Za-z0-9_-]{1,64}$")), responses(
    (status = 200, body = HostedPromptView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show_prompt(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    PromptName(name): PromptName,
) -> Result<impl IntoResponse, Problem> {
    Ok(shown(control.hosted_prompt(&tenant, &name)?))
}

/// Creates or replaces a prompt. A placeholder of an unknown argument is refused with 422.
#[utoipa::path(put, operation_id = "put_prompt", path = "/admin/v1/tenants/{tenant}/prompts/{prompt}", tag = "catalog", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("prompt" = String, Path, pattern = "^[A-Za-z0-9_-]{1,64}$")), request_body = HostedPromptDocument,
    responses((status = 201, body = HostedPromptView), (status = 200, description = "Replaced", body = HostedPromptView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put_prompt(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    PromptName(name): PromptName,
    condition: Preconditions,
    author: Author,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let document = read_as::<HostedPromptDocument>(&body.required()?)?;
    Ok(stored(control.put_hosted_prompt(tenant, name, document, condition, author).await?))
}

/// Removes a prompt.
#[utoipa::path(delete, operation_id = "remove_prompt", path = "/admin/v1/tenants/{tenant}/prompts/{prompt}", tag = "catalog", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("prompt" = String, Path, pattern = "^[A-Za-z0-9_-]{1,64}$")), responses(
    (status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove_prompt(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    PromptName(name): PromptName,
    condition: Preconditions,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    control.delete_hosted_prompt(tenant, name, condition, author).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CostParams {
    /// A published toolset. Absent: all backends of the tenant.
    toolset: Option<String>,
    /// Number of tools to name, at most 1000. Absent: 20.
    limit: Option<usize>,
}

/// Shows what the tools of a tenant, or of a toolset, cost the context of a model.
#[utoipa::path(get, operation_id = "show_catalog_cost", path = "/admin/v1/tenants/{tenant}/catalog/cost", tag = "catalog", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), CostParams), responses(
    (status = 200, body = CatalogCostView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn cost(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    QueryParams(query): QueryParams<CostParams>,
) -> Result<impl IntoResponse, Problem> {
    let toolset = query.toolset.as_deref().map(ToolsetId::parse).transpose();
    let toolset = toolset.map_err(|error| Problem::invalid("toolset", error.to_string()))?;
    let most = query.limit.unwrap_or(COSTS_SHOWN);
    if most > COSTS_SHOWN_MAX {
        let text = format!("{most} is not a usable limit; allowed: 0 to {COSTS_SHOWN_MAX}");
        return Err(Problem::invalid("limit", text));
    }
    Ok(Json(control.catalog_cost(&tenant, toolset.as_ref(), most)?))
}
