//! Routes of live state on all replicas: sessions, tasks, subscriptions, the replicas themselves,
//! and the drain.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use protocol::{ErrorKind, Refusal, ids::TenantId};
use records::TaskStatus;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    health::Health,
    input::{PathId, QueryParams},
    page::Page,
    problem::Problem,
};
use crate::{
    control::{Author, Control},
    views::{NodeView, SessionView, SubscriptionView, TaskShown, TaskView},
};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct SessionList {
    pub sessions: Vec<SessionView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct TaskList {
    pub tasks: Vec<TaskView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct SubscriptionList {
    pub subscriptions: Vec<SubscriptionView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct NodeList {
    pub nodes: Vec<NodeView>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct OfTenant {
    /// Only this tenant.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Maximum number of entries on a page; absent: all entries.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the page before.
    after: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskFilter {
    /// Only this tenant.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Only tasks with this status.
    status: Option<String>,
    /// Maximum number of entries on a page; absent: all entries.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the page before.
    after: Option<String>,
}

/// Lists the client sessions of all replicas, oldest first.
/// Their ids are digests, because a session id is a secret of its client.
#[utoipa::path(get, path = "/admin/v1/sessions", tag = "sessions", params(OfTenant), responses(
    (status = 200, body = SessionList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn sessions(
    State(control): State<Arc<Control>>,
    QueryParams(of): QueryParams<OfTenant>,
) -> Result<impl IntoResponse, Problem> {
    check_tenant(&control, of.tenant.as_ref())?;
    let page = Page::new(of.limit, of.after)?;
    let place = |view: &SessionView| format!("{}/{}", view.created_at, view.id);
    let (sessions, next) = page.of(control.sessions(of.tenant.as_ref()).await?, place);
    Ok(axum::Json(SessionList { sessions, next }))
}

/// Shows one session.
#[utoipa::path(get, path = "/admin/v1/sessions/{id}", tag = "sessions", params(("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), responses(
    (status = 200, body = SessionView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn session(
    State(control): State<Arc<Control>>,
    PathId(id): PathId,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(control.session(&id).await?))
}

/// Ends a session on any replica.
#[utoipa::path(delete, path = "/admin/v1/sessions/{id}", tag = "sessions", params(("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), responses(
    (status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn end_session(
    State(control): State<Arc<Control>>,
    PathId(id): PathId,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    control.end_session(&id, &author).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists tasks, oldest first.
#[utoipa::path(get, path = "/admin/v1/tasks", tag = "tasks", params(TaskFilter), responses(
    (status = 200, body = TaskList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn tasks(
    State(control): State<Arc<Control>>,
    QueryParams(filter): QueryParams<TaskFilter>,
) -> Result<impl IntoResponse, Problem> {
    check_tenant(&control, filter.tenant.as_ref())?;
    let wrong = |status: &str| {
        let allowed = TaskStatus::ALL.map(TaskStatus::name).join(", ");
        Problem::invalid("status", format!("{status:?} is not a task status; allowed: {allowed}"))
    };
    let status = filter
        .status
        .as_deref()
        .map(|status| TaskStatus::parse(status).ok_or_else(|| wrong(status)))
        .transpose()?;
    let page = Page::new(filter.limit, filter.after)?;
    let mut tasks = control.tasks(filter.tenant.as_ref(), status).await?;
    let place = |view: &TaskView| format!("{}/{}", view.created_at, view.id);
    tasks.sort_by_cached_key(place);
    let (tasks, next) = page.of(tasks, place);
    Ok(axum::Json(TaskList { tasks, next }))
}

/// Shows one task with its history.
#[utoipa::path(get, path = "/admin/v1/tasks/{id}", tag = "tasks", params(("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), responses(
    (status = 200, body = TaskShown), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn task(
    State(control): State<Arc<Control>>,
    PathId(id): PathId,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(control.task(&id).await?))
}

/// Cancels a task.
#[utoipa::path(post, path = "/admin/v1/tasks/{id}/cancel", tag = "tasks", params(("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), responses(
    (status = 200, body = TaskView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn cancel_task(
    State(control): State<Arc<Control>>,
    PathId(id): PathId,
) -> Result<impl IntoResponse, Problem> {
    control.broker.cancel_task(&id).await.map_err(|refusal| task_problem(&id, &refusal))?;
    Ok(axum::Json(control.task(&id).await?.task))
}

fn task_problem(id: &str, refusal: &Refusal) -> Problem {
    let (status, kind) = match refusal.kind {
        ErrorKind::TaskNotFound => return Problem::not_found("task", id),
        ErrorKind::InvalidParams => (StatusCode::CONFLICT, "task-ended"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"),
    };
    Problem::new(status, kind, refusal.to_string())
}

/// Lists the resources with subscribers.
#[utoipa::path(get, path = "/admin/v1/subscriptions", tag = "subscriptions", params(OfTenant), responses(
    (status = 200, body = SubscriptionList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn subscriptions(
    State(control): State<Arc<Control>>,
    QueryParams(of): QueryParams<OfTenant>,
) -> Result<impl IntoResponse, Problem> {
    check_tenant(&control, of.tenant.as_ref())?;
    let page = Page::new(of.limit, of.after)?;
    // A slash is invalid in both names.
    let place = |view: &SubscriptionView| format!("{}/{}/{}", view.tenant, view.backend, view.uri);
    let mut subscriptions = control.subscriptions(of.tenant.as_ref()).await?;
    subscriptions.sort_by_cached_key(place);
    let (subscriptions, next) = page.of(subscriptions, place);
    Ok(axum::Json(SubscriptionList { subscriptions, next }))
}

/// Lists the replicas with a valid lease.
#[utoipa::path(get, path = "/admin/v1/nodes", tag = "nodes", responses(
    (status = 200, body = NodeList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn nodes(
    State(control): State<Arc<Control>>,
) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(NodeList { nodes: control.nodes().await? }))
}

/// Stops taking new work, finishes the work in progress, then ends the process.
#[utoipa::path(post, path = "/admin/v1/drain", tag = "drain", responses(
    (status = 202, body = Health), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn drain(State(control): State<Arc<Control>>) -> impl IntoResponse {
    tracing::info!("drain asked for through the admin API");
    control.broker.drain();
    Health::answer(StatusCode::ACCEPTED, "draining")
}

/// Returns an error for a filter with an unknown tenant, and not an empty list.
fn check_tenant(control: &Control, tenant: Option<&TenantId>) -> Result<(), Problem> {
    match tenant {
        Some(tenant) => {
            control.check_tenant(tenant).map_err(|error| Problem::from(error).field("tenant"))
        }
        None => Ok(()),
    }
}
