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
    input::{PathId, QueryParams, ReplicaName},
    page::{OfTenant, Page, page_of},
    permissions::SignedIn,
    problem::Problem,
};
use crate::{
    control::{Author, Control, ListPart, creation_key},
    listeners::replicas::drain_request,
    session_location::PeerReplica,
    views::{NodeView, SessionView, SubscriptionView, TaskShown, TaskView},
};

page_of!(SessionList { sessions: SessionView });
page_of!(TaskList { tasks: TaskView });
page_of!(SubscriptionList { subscriptions: SubscriptionView });

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct NodeList {
    pub nodes: Vec<NodeView>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SessionFilter {
    /// Only this tenant.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Maximum number of entries on a page; absent: 20000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the page before.
    after: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TaskFilter {
    /// Only this tenant.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Only tasks with this status.
    status: Option<String>,
    /// Maximum number of entries on a page; absent: 20000.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the page before.
    after: Option<String>,
}

/// Lists the client sessions of all replicas, oldest first.
/// Their ids are digests, because a session id is a secret of its client.
#[utoipa::path(get, operation_id = "list_sessions", path = "/admin/v1/sessions", tag = "sessions", params(SessionFilter), responses(
    (status = 200, body = SessionList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn sessions(
    State(control): State<Arc<Control>>,
    signed_in: SignedIn,
    QueryParams(filter): QueryParams<SessionFilter>,
) -> Result<impl IntoResponse, Problem> {
    signed_in.check_filter(&control, filter.tenant.as_ref())?;
    let page = Page::new(filter.limit, filter.after)?;
    let range = page.range(control.list_max);
    let sort_key = |view: &SessionView| creation_key(&view.created_at, &view.id);
    let mut sessions = ListPart::default();
    for tenant in signed_in.listed_tenants(filter.tenant.as_ref()) {
        sessions.add(control.sessions(tenant.as_ref(), range).await?);
    }
    sessions.entries = signed_in.seen_of(sessions.entries, |view| &view.tenant);
    Ok(axum::Json(SessionList::from(page.of_part(range, sessions, sort_key))))
}

/// Shows one session.
#[utoipa::path(get, operation_id = "show_session", path = "/admin/v1/sessions/{id}", tag = "sessions", params(("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), responses(
    (status = 200, body = SessionView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn session(
    State(control): State<Arc<Control>>,
    signed_in: SignedIn,
    PathId(id): PathId,
) -> Result<impl IntoResponse, Problem> {
    let view = control.session(&id).await?;
    Ok(axum::Json(signed_in.seen(view, |view| &view.tenant, "session", &id)?))
}

/// Ends a session on any replica.
#[utoipa::path(delete, path = "/admin/v1/sessions/{id}", tag = "sessions", params(("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), responses(
    (status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn end_session(
    State(control): State<Arc<Control>>,
    signed_in: SignedIn,
    PathId(id): PathId,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    if !signed_in.0.is_broker_wide() {
        signed_in.seen(control.session(&id).await?, |view| &view.tenant, "session", &id)?;
    }
    control.end_session(&id, &author).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists tasks, oldest first.
#[utoipa::path(get, operation_id = "list_tasks", path = "/admin/v1/tasks", tag = "tasks", params(TaskFilter), responses(
    (status = 200, body = TaskList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn tasks(
    State(control): State<Arc<Control>>,
    signed_in: SignedIn,
    QueryParams(filter): QueryParams<TaskFilter>,
) -> Result<impl IntoResponse, Problem> {
    signed_in.check_filter(&control, filter.tenant.as_ref())?;
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
    let range = page.range(control.list_max);
    let mut tasks = ListPart::default();
    for tenant in signed_in.listed_tenants(filter.tenant.as_ref()) {
        tasks.add(control.tasks(tenant.as_ref(), status, range).await?);
    }
    tasks.entries = signed_in.seen_of(tasks.entries, |view| &view.tenant);
    let sort_key = |view: &TaskView| creation_key(&view.created_at, &view.id);
    Ok(axum::Json(TaskList::from(page.of_part(range, tasks, sort_key))))
}

/// Shows one task with its history.
#[utoipa::path(get, operation_id = "show_task", path = "/admin/v1/tasks/{id}", tag = "tasks", params(("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), responses(
    (status = 200, body = TaskShown), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn task(
    State(control): State<Arc<Control>>,
    signed_in: SignedIn,
    PathId(id): PathId,
) -> Result<impl IntoResponse, Problem> {
    let shown = control.task(&id, &signed_in.listed_tenants(None)).await?;
    Ok(axum::Json(signed_in.seen(shown, |shown| &shown.task.tenant, "task", &id)?))
}

/// Cancels a task.
#[utoipa::path(post, path = "/admin/v1/tasks/{id}/cancel", tag = "tasks", params(("id" = String, Path, pattern = "^[!-~]+$", max_length = 128)), responses(
    (status = 200, body = TaskView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn cancel_task(
    State(control): State<Arc<Control>>,
    signed_in: SignedIn,
    PathId(id): PathId,
) -> Result<impl IntoResponse, Problem> {
    let tenants = signed_in.listed_tenants(None);
    let found = control.find_task(&id, &tenants).await?;
    let task =
        signed_in.seen(found, |found| found.record.tenant.as_str(), "task", &id)?.record.task;
    let cancelled = control.broker.cancel_task(task.as_str()).await;
    cancelled.map_err(|refusal| task_problem(&id, &refusal))?;
    Ok(axum::Json(control.task(task.as_str(), &tenants).await?.task))
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
#[utoipa::path(get, operation_id = "list_subscriptions", path = "/admin/v1/subscriptions", tag = "subscriptions", params(OfTenant), responses(
    (status = 200, body = SubscriptionList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn subscriptions(
    State(control): State<Arc<Control>>,
    signed_in: SignedIn,
    QueryParams(of): QueryParams<OfTenant>,
) -> Result<impl IntoResponse, Problem> {
    let page = of.page(&signed_in, &control)?;
    // A slash is invalid in both names.
    let sort_key =
        |view: &SubscriptionView| format!("{}/{}/{}", view.tenant, view.backend, view.uri);
    let subscriptions = control.subscriptions(of.tenant.as_ref()).await?;
    let seen = signed_in.seen_of(subscriptions, |view| &view.tenant);
    Ok(axum::Json(SubscriptionList::from(page.sorted(seen, sort_key))))
}

/// Lists the replicas with a valid lease.
#[utoipa::path(get, operation_id = "list_nodes", path = "/admin/v1/nodes", tag = "nodes", responses(
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

/// Drains the named replica.
/// Any replica answers, and sends the request to the named one.
#[utoipa::path(post, operation_id = "drain_node", path = "/admin/v1/nodes/{node}/drain", tag = "drain", params(("node" = String, Path, description = "Name of the replica, or its `node.id`", pattern = "^[!-~]+$", max_length = 128)), responses(
    (status = 202, body = Health), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn drain_node(
    State(control): State<Arc<Control>>,
    ReplicaName(name): ReplicaName,
) -> Result<impl IntoResponse, Problem> {
    let NodeView { node, address, is_this, .. } = control.find_node(&name).await?;
    if is_this {
        return Ok(drain(State(control)).await.into_response());
    }
    let unreachable = |reason: String| {
        let detail = format!("replica {node} does not drain: {reason}");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "node-unreachable", detail)
    };
    let address = address.ok_or_else(|| unreachable("it has no listen.internal".to_owned()))?;
    let replica = PeerReplica { node: node.clone(), address };
    drain_request::send(&control.broker, &replica)
        .await
        .map_err(|error| unreachable(error.to_string()))?;
    tracing::info!(node, "the admin API sent a drain to another replica");
    Ok(Health::answer(StatusCode::ACCEPTED, "draining").into_response())
}
