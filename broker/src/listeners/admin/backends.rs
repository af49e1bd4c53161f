//! Routes of backends.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use config::{
    sandbox::SandboxRules,
    spec::{BackendSpec, TransportSpec},
    validation::parse_backend_spec,
};
use rules::operators::{Operator, Role};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    input::{BackendName, JsonBody, QueryParams, TenantName, read_as},
    page::Page,
    permissions::SignedIn,
    preconditions::shown,
    problem::Problem,
    tenants::stored,
};
use crate::{
    control::{Author, BackendView, Control, FirstAttempt, Preconditions},
    metrics::BACKEND_STATES,
};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct BackendList {
    pub backends: Vec<BackendView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only backends in this state, such as `failed`.
    #[param(pattern = "^(connecting|ready|degraded|failed|disabled)$")]
    state: Option<String>,
    /// Maximum number of entries on a page; absent: all entries.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the page before.
    after: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PutParams {
    /// If true, the answer waits until the backend is connected or has failed. Default true.
    wait: Option<bool>,
}

/// Lists the tenant's backends.
#[utoipa::path(get, operation_id = "list_backends", path = "/admin/v1/tenants/{tenant}/backends", tag = "backends", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ListParams), responses(
    (status = 200, body = BackendList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    SignedIn(operator): SignedIn,
    QueryParams(query): QueryParams<ListParams>,
) -> Result<impl IntoResponse, Problem> {
    let page = Page::new(query.limit, query.after)?;
    let mut backends = control.backends(&tenant)?;
    backends.retain(|view| operator.covers_backend(tenant.as_str(), &view.status.backend));
    if let Some(state) = &query.state {
        check_state(state)?;
        backends.retain(|backend| backend.status.state == *state);
    }
    let (backends, next) = page.of(backends, |view| view.status.backend.clone());
    Ok(axum::Json(BackendList { backends, next }))
}

/// Shows the status and settings of one backend.
#[utoipa::path(get, operation_id = "show_backend", path = "/admin/v1/tenants/{tenant}/backends/{backend}", tag = "backends",
    params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("backend" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), responses((status = 200, body = BackendView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
) -> Result<impl IntoResponse, Problem> {
    control.check_tenant(&tenant)?;
    Ok(shown(control.backend(&tenant, &backend)?))
}

/// Registers or replaces a backend.
/// Answers after the first handshake. `state` and `last_error` show a failure.
#[utoipa::path(put, operation_id = "put_backend", path = "/admin/v1/tenants/{tenant}/backends/{backend}", tag = "backends",
    params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("backend" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"), PutParams), request_body = BackendSpec,
    responses((status = 201, body = BackendView), (status = 200, description = "Replaced", body = BackendView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
    QueryParams(params): QueryParams<PutParams>,
    SignedIn(operator): SignedIn,
    (condition, author): (Preconditions, Author),
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let spec = parse_backend_spec(&body.required()?).map_err(|faults| Problem::faults(&faults))?;
    check_program(&control, &operator, &spec)?;
    let first_attempt = match params.wait {
        Some(false) => FirstAttempt::InBackground,
        Some(true) | None => FirstAttempt::Awaited,
    };
    Ok(stored(control.put_backend(tenant, backend, spec, first_attempt, condition, author).await?))
}

/// Checks whether the operator can start this program on the broker's host. An operator who is not
/// the broker's own admin can start listed commands only, in the sandbox as it is.
fn check_program(
    control: &Control,
    operator: &Operator,
    spec: &BackendSpec,
) -> Result<(), Problem> {
    let is_host_admin = operator.role == Role::Admin && operator.is_broker_wide();
    if is_host_admin || !matches!(spec.transport, TransportSpec::Stdio { .. }) {
        return Ok(());
    }
    let refused = |field: &str, detail: &str| {
        Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail).field(field))
    };
    if control.config.stdio.commands.is_none() {
        return refused(
            "transport.type",
            "only an admin of the whole broker may register a stdio backend while stdio.commands is not set",
        );
    }
    if spec.sandbox != SandboxRules::default() {
        return refused("sandbox", "only an admin of the whole broker may set the sandbox");
    }
    Ok(())
}

fn check_state(state: &str) -> Result<(), Problem> {
    if BACKEND_STATES.contains(&state) {
        return Ok(());
    }
    let allowed = BACKEND_STATES.join(", ");
    Err(Problem::invalid(
        "state",
        format!("{state:?} is not a state of a backend; allowed: {allowed}"),
    ))
}

/// Removes a backend and closes its links.
#[utoipa::path(delete, operation_id = "remove_backend", path = "/admin/v1/tenants/{tenant}/backends/{backend}", tag = "backends",
    params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("backend" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), responses((status = 204),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
    condition: Preconditions,
    author: Author,
) -> Result<impl IntoResponse, Problem> {
    control.check_tenant(&tenant)?;
    control.delete_backend(tenant, backend, condition, author).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Reconnects or refreshes the lists now, and returns the result.
#[utoipa::path(post, operation_id = "probe_backend", path = "/admin/v1/tenants/{tenant}/backends/{backend}/probe", tag = "backends",
    params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("backend" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), responses((status = 200, body = BackendView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn probe(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
) -> Result<impl IntoResponse, Problem> {
    control.check_tenant(&tenant)?;
    Ok(axum::Json(control.probe_backend(&tenant, &backend).await?))
}

/// Requested state of a breaker.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BreakerWanted {
    /// `open`: no replica sends calls until it is closed again; `closed`: calls are sent, and the
    /// breakers open by their rules.
    state: TargetState,
}

#[derive(Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum TargetState {
    Open,
    Closed,
}

/// Holds the circuit breaker open on every replica, or releases it.
/// It stays open until a request releases it. A release also closes the breaker of the replica that
/// answers.
#[utoipa::path(post, operation_id = "set_breaker", path = "/admin/v1/tenants/{tenant}/backends/{backend}/breaker", tag = "backends",
    params(("tenant" = String, Path), ("backend" = String, Path)), request_body = BreakerWanted,
    responses((status = 200, body = BackendView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn breaker(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
    author: Author,
    body: JsonBody,
) -> Result<impl IntoResponse, Problem> {
    let wanted: BreakerWanted = read_as(&body.required()?)?;
    control.check_tenant(&tenant)?;
    Ok(axum::Json(
        control.set_breaker(tenant, backend, wanted.state == TargetState::Open, author).await?,
    ))
}
