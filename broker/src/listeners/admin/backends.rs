//! Routes of backends.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::IntoResponse};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    input::{BackendName, Json, Params, TenantName, breaker_wanted},
    problem::Problem,
    tenants::stored,
};
use crate::{
    config::{checked::parse_backend_spec, spec::BackendSpec},
    control::{BackendView, Control},
};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct BackendList {
    pub backends: Vec<BackendView>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct PutParams {
    /// Whether to answer only once the backend is connected or has failed to. Default true.
    wait: Option<bool>,
}

/// The tenant's backends.
#[utoipa::path(get, path = "/admin/v1/tenants/{tenant}/backends", tag = "backends", params(("tenant" = String, Path)), responses(
    (status = 200, body = BackendList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(State(control): State<Arc<Control>>, TenantName(tenant): TenantName) -> Result<impl IntoResponse, Problem> {
    Ok(axum::Json(BackendList { backends: control.backends(&tenant)? }))
}

/// One backend: how it does and how it was registered.
#[utoipa::path(get, path = "/admin/v1/tenants/{tenant}/backends/{backend}", tag = "backends",
    params(("tenant" = String, Path), ("backend" = String, Path)), responses((status = 200, body = BackendView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
) -> Result<impl IntoResponse, Problem> {
    control.tenant(&tenant)?;
    Ok(axum::Json(control.backend(&tenant, &backend)?))
}

/// Registers or replaces a backend. Answers after the first handshake; `state` and `last_error` tell when it failed.
#[utoipa::path(put, path = "/admin/v1/tenants/{tenant}/backends/{backend}", tag = "backends",
    params(("tenant" = String, Path), ("backend" = String, Path), PutParams), request_body = BackendSpec,
    responses((status = 201, body = BackendView), (status = 200, description = "Replaced", body = BackendView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
    Params(params): Params<PutParams>,
    body: Json,
) -> Result<impl IntoResponse, Problem> {
    let spec = parse_backend_spec(&body.required()?).map_err(|faults| Problem::faults(&faults))?;
    Ok(stored(control.put_backend(tenant, backend, spec, params.wait.unwrap_or(true)).await?))
}

/// Removes a backend and closes its links.
#[utoipa::path(delete, path = "/admin/v1/tenants/{tenant}/backends/{backend}", tag = "backends",
    params(("tenant" = String, Path), ("backend" = String, Path)), responses((status = 204),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
) -> Result<impl IntoResponse, Problem> {
    control.tenant(&tenant)?;
    control.delete_backend(tenant, backend).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Connects anew or refreshes the lists now, and tells how it went.
#[utoipa::path(post, path = "/admin/v1/tenants/{tenant}/backends/{backend}/probe", tag = "backends",
    params(("tenant" = String, Path), ("backend" = String, Path)), responses((status = 200, body = BackendView),
        (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn probe(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
) -> Result<impl IntoResponse, Problem> {
    control.tenant(&tenant)?;
    Ok(axum::Json(control.probe_backend(&tenant, &backend).await?))
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct BreakerWanted {
    /// `open`: no calls until it is closed again; `closed`: calls go, and the breaker opens by its rules.
    #[schema(example = "closed")]
    pub state: String,
}

/// Opens or closes the circuit breaker, on the replica that is asked, until it is told otherwise, started anew, or the backend is replaced.
#[utoipa::path(post, path = "/admin/v1/tenants/{tenant}/backends/{backend}/breaker", tag = "backends",
    params(("tenant" = String, Path), ("backend" = String, Path)), request_body = BreakerWanted,
    responses((status = 200, body = BackendView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn breaker(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
    body: Json,
) -> Result<impl IntoResponse, Problem> {
    let open = breaker_wanted(&body.required()?)?;
    control.tenant(&tenant)?;
    Ok(axum::Json(control.set_breaker(&tenant, &backend, open)?))
}
