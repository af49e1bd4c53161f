//! Routes of what happens right now: sessions, tasks, subscriptions, and the drain.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use protocol::{ErrorKind, Refusal, ids::TenantId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    health::Health,
    input::{Id, Params},
    problem::Problem,
};
use crate::{
    control::Control,
    durable::TaskStatus,
    views::{SessionView, SubscriptionView, TaskView},
};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct SessionList {
    pub sessions: Vec<SessionView>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct TaskList {
    pub tasks: Vec<TaskView>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct SubscriptionList {
    pub subscriptions: Vec<SubscriptionView>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct OfTenant {
    /// Only this tenant's.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantId>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskFilter {
    /// Only this tenant's.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Only those in this status.
    status: Option<String>,
}

/// Client sessions. Their ids are digests: a session id is a secret of its client.
#[utoipa::path(get, path = "/admin/v1/sessions", tag = "sessions", params(OfTenant), responses(
    (status = 200, body = SessionList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn sessions(State(control): State<Arc<Control>>, Params(of): Params<OfTenant>) -> Result<impl IntoResponse, Problem> {
    check_tenant(&control, of.tenant.as_ref())?;
    Ok(axum::Json(SessionList { sessions: control.broker.sessions(of.tenant.as_ref()) }))
}

/// One session.
#[utoipa::path(get, path = "/admin/v1/sessions/{id}", tag = "sessions", params(("id" = String, Path)), responses(
    (status = 200, body = SessionView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn session(State(control): State<Arc<Control>>, Id(id): Id) -> Result<impl IntoResponse, Problem> {
    control.broker.session(&id).map(axum::Json).ok_or_else(|| Problem::not_found("session", &id))
}

/// Ends a session.
#[utoipa::path(delete, path = "/admin/v1/sessions/{id}", tag = "sessions", params(("id" = String, Path)), responses(
    (status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn end_session(State(control): State<Arc<Control>>, Id(id): Id) -> Result<impl IntoResponse, Problem> {
    if control.broker.end_session(&id) { Ok(StatusCode::NO_CONTENT) } else { Err(Problem::not_found("session", &id)) }
}

/// Tasks known to the broker.
#[utoipa::path(get, path = "/admin/v1/tasks", tag = "tasks", params(TaskFilter), responses(
    (status = 200, body = TaskList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn tasks(State(control): State<Arc<Control>>, Params(filter): Params<TaskFilter>) -> Result<impl IntoResponse, Problem> {
    check_tenant(&control, filter.tenant.as_ref())?;
    let wrong = |status: &str| {
        let allowed: Vec<&str> = TaskStatus::ALL.map(TaskStatus::name).to_vec();
        Problem::invalid("status", format!("{status:?} is no task status; allowed: {}", allowed.join(", ")))
    };
    let status = filter.status.as_deref().map(|status| TaskStatus::parse(status).ok_or_else(|| wrong(status))).transpose()?;
    let tasks = control.broker.tasks(filter.tenant.as_ref(), status).await.map_err(|refusal| task_problem("", &refusal))?;
    Ok(axum::Json(TaskList { tasks }))
}

/// One task.
#[utoipa::path(get, path = "/admin/v1/tasks/{id}", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, body = TaskView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn task(State(control): State<Arc<Control>>, Id(id): Id) -> Result<impl IntoResponse, Problem> {
    let task = control.broker.task(&id).await.map_err(|refusal| task_problem(&id, &refusal))?;
    task.map(axum::Json).ok_or_else(|| Problem::not_found("task", &id))
}

/// Cancels a task.
#[utoipa::path(post, path = "/admin/v1/tasks/{id}/cancel", tag = "tasks", params(("id" = String, Path)), responses(
    (status = 200, body = TaskView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn cancel_task(State(control): State<Arc<Control>>, Id(id): Id) -> Result<impl IntoResponse, Problem> {
    control.broker.cancel_task(&id).await.map(axum::Json).map_err(|refusal| task_problem(&id, &refusal))
}

fn task_problem(id: &str, refusal: &Refusal) -> Problem {
    let (status, kind) = match refusal.kind {
        ErrorKind::TaskNotFound => return Problem::not_found("task", id),
        ErrorKind::InvalidParams | ErrorKind::InvalidRequest => (StatusCode::CONFLICT, "task-ended"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"),
    };
    Problem::new(status, kind, refusal.to_string())
}

/// Resources somebody listens to.
#[utoipa::path(get, path = "/admin/v1/subscriptions", tag = "subscriptions", params(OfTenant), responses(
    (status = 200, body = SubscriptionList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn subscriptions(State(control): State<Arc<Control>>, Params(of): Params<OfTenant>) -> Result<impl IntoResponse, Problem> {
    check_tenant(&control, of.tenant.as_ref())?;
    Ok(axum::Json(SubscriptionList { subscriptions: control.broker.subscriptions(of.tenant.as_ref()) }))
}

/// Stops taking new work, lets what is under way finish, then ends the process.
#[utoipa::path(post, path = "/admin/v1/drain", tag = "drain", responses(
    (status = 202, body = Health), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn drain(State(control): State<Arc<Control>>) -> impl IntoResponse {
    tracing::info!("drain asked for through the admin API");
    control.broker.drain();
    Health::answer(StatusCode::ACCEPTED, "draining")
}

/// A filter for a tenant that is not there is a mistake, not an empty list.
fn check_tenant(control: &Control, tenant: Option<&TenantId>) -> Result<(), Problem> {
    match tenant {
        Some(tenant) => control.tenant(tenant).map(drop).map_err(|error| Problem::from(error).field("tenant")),
        None => Ok(()),
    }
}
