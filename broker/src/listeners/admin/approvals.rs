//! Routes of approvals: calls that wait for the decision of a person.

use std::{sync::Arc, time::Duration};

use axum::{Json, extract::State, response::IntoResponse};
use config::{serde_units::optional_duration, units::DurationText};
use protocol::ids::ApprovalId;
use records::{ApprovalListPosition, ApprovalState};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    input::{JsonBody, PathId, QueryParams, TenantName, read_as},
    page::LIMIT_MAX,
    permissions::SignedIn,
    problem::Problem,
};
use crate::control::{ApprovalView, Author, Control, NewDecision};

/// Entries of a page without a limit.
const LIMIT_DEFAULT: u32 = 100;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct ApprovalList {
    pub approvals: Vec<ApprovalView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ApprovalFilter {
    /// Only approvals in this state: `pending`, `approved`, `denied`, `expired` or `used`.
    state: Option<String>,
    /// Maximum number of entries on a page; absent: 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the page before.
    after: Option<String>,
}

/// What an operator decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum DecisionName {
    Approve,
    Deny,
}

/// A decision about a call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DecisionRequest {
    decision: DecisionName,
    /// Text for other operators. The caller sees it if the call is denied.
    #[serde(default)]
    reason: Option<String>,
    /// Time for which calls of this tool by this principal need no other approval, such as `10m`.
    /// Only for an approval.
    #[serde(default, rename = "for", with = "optional_duration")]
    #[schema(value_type = DurationText)]
    window: Option<Duration>,
}

/// Lists the calls of a tenant that wait, or waited, for the approval of a person. The newest comes first.
#[utoipa::path(get, operation_id = "list_approvals", path = "/admin/v1/tenants/{tenant}/approvals", tag = "approvals", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ApprovalFilter), responses(
    (status = 200, body = ApprovalList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    SignedIn(operator): SignedIn,
    QueryParams(filter): QueryParams<ApprovalFilter>,
) -> Result<impl IntoResponse, Problem> {
    let limit = filter.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        let detail = format!("{limit} is not a usable limit; allowed: 1 to {LIMIT_MAX}");
        return Err(Problem::invalid("limit", detail));
    }
    let state = filter.state.as_deref().map(read_state).transpose()?;
    let after = filter.after.as_deref().map(read_position).transpose()?;
    let (approvals, next) =
        control.approvals(&operator, &tenant, state, after.as_ref(), limit).await?;
    let next = next.map(|position| format!("{}/{}", position.created_at_us, position.id));
    Ok(Json(ApprovalList { approvals, next }))
}

/// Shows one approval.
#[utoipa::path(get, operation_id = "show_approval", path = "/admin/v1/tenants/{tenant}/approvals/{id}", tag = "approvals", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), responses(
    (status = 200, body = ApprovalView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    PathId(id): PathId,
    SignedIn(operator): SignedIn,
) -> Result<impl IntoResponse, Problem> {
    Ok(Json(control.approval(&operator, &tenant, &ApprovalId::new(id)).await?))
}

/// Approves or denies a call that waits.
/// The first decision counts; a second one is 409.
#[utoipa::path(post, operation_id = "decide_approval", path = "/admin/v1/tenants/{tenant}/approvals/{id}", tag = "approvals", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), request_body = DecisionRequest, responses(
    (status = 200, body = ApprovalView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn decide(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    PathId(id): PathId,
    SignedIn(operator): SignedIn,
    author: Author,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let wanted = read_as::<DecisionRequest>(&body.required()?)?;
    let decision = NewDecision {
        approves: wanted.decision == DecisionName::Approve,
        reason: wanted.reason,
        window: wanted.window,
    };
    let id = ApprovalId::new(id);
    Ok(Json(control.decide_approval(&operator, &tenant, &id, decision, &author).await?))
}

fn read_state(name: &str) -> Result<ApprovalState, Problem> {
    ApprovalState::parse(name).ok_or_else(|| {
        let allowed = ApprovalState::ALL.map(ApprovalState::name).join(", ");
        Problem::invalid("state", format!("is not a state; allowed: {allowed}"))
    })
}

fn read_position(text: &str) -> Result<ApprovalListPosition, Problem> {
    let position = text.split_once('/').and_then(|(created_at_us, id)| {
        let created_at_us = created_at_us.parse().ok()?;
        Some(ApprovalListPosition { created_at_us, id: ApprovalId::new(id) })
    });
    position
        .ok_or_else(|| Problem::invalid("after", "is not the `next` value of a page".to_owned()))
}
