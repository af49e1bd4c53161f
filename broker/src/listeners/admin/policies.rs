//! Routes of access policies.

use std::sync::Arc;

use axum::{Json, extract::State, http::StatusCode, response::IntoResponse};
use rules::access::PolicyDocument;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    audit::moment,
    input::{JsonBody, QueryParams, TenantName, read_as},
    preconditions::shown,
    problem::Problem,
    tenants::stored,
};
use crate::control::{
    Author, Control, PolicyCheck, PolicyCheckView, PolicyReportView, PolicyView, Preconditions,
};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReportParams {
    /// Start time: a time such as 2026-01-31T12:00:00Z, or an age such as 1h. Absent: 1h. The
    /// report goes back 24 hours at most, in steps of five minutes.
    since: Option<String>,
}

/// Shows the access policy of a tenant.
#[utoipa::path(get, operation_id = "show_policy", path = "/admin/v1/tenants/{tenant}/policy", tag = "policies", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")), responses(
    (status = 200, body = PolicyView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
) -> Result<impl IntoResponse, Problem> {
    Ok(shown(control.policy(&tenant)?))
}

/// Creates or replaces the access policy of a tenant.
/// A policy whose own test fails is refused with 409.
#[utoipa::path(put, operation_id = "put_policy", path = "/admin/v1/tenants/{tenant}/policy", tag = "policies", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")), request_body = PolicyDocument,
    responses((status = 201, body = PolicyView), (status = 200, description = "Replaced", body = PolicyView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    condition: Preconditions,
    author: Author,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let document = read_as::<PolicyDocument>(&body.required()?)?;
    Ok(stored(control.put_policy(tenant, document, condition, author).await?))
}

/// Removes the access policy of a tenant. Everything is allowed then.
#[utoipa::path(delete, operation_id = "remove_policy", path = "/admin/v1/tenants/{tenant}/policy", tag = "policies", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")), responses(
    (status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    condition: Preconditions,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    control.delete_policy(tenant, condition, author).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Decides about one use of an object, and explains the decision.
#[utoipa::path(post, operation_id = "check_policy", path = "/admin/v1/tenants/{tenant}/policy/check", tag = "policies", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default")), request_body = PolicyCheck,
    responses((status = 200, body = PolicyCheckView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn check(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let check = read_as::<PolicyCheck>(&body.required()?)?;
    Ok(Json(control.check_policy(&tenant, &check)?))
}

/// Shows what the policy decided at this replica: refusals, and what rules in shadow mode would
/// change.
#[utoipa::path(get, operation_id = "report_policy", path = "/admin/v1/tenants/{tenant}/policy/report", tag = "policies", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ReportParams), responses(
    (status = 200, body = PolicyReportView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn report(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    QueryParams(query): QueryParams<ReportParams>,
) -> Result<impl IntoResponse, Problem> {
    let since = moment("since", query.since.as_deref().unwrap_or("1h"))?;
    Ok(Json(control.policy_report(&tenant, since)?))
}
