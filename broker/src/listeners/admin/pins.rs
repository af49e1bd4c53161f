//! Routes of pins: what backends list, and what operators approved of it.

use std::sync::Arc;

use axum::{
    Json,
    extract::{FromRequest, FromRequestParts, Request, State},
    http::request::Parts,
    response::IntoResponse,
};
use protocol::ids::{BackendId, TenantId};
use records::{PinKey, PinKind};
use rules::pins::PinMode;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use utoipa::ToSchema;

use super::{
    input::{BackendName, JsonBody, QueryParams, TenantName, path_parameter, read_as},
    problem::Problem,
    tenants::PageParams,
};
use crate::control::{Author, Control, PinApprovalRequest, PinBlockRequest, PinDiffView, PinView};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct PinList {
    /// What the broker does with objects that no operator approved.
    pub mode: PinMode,
    pub pins: Vec<PinView>,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// `{kind}` and `{name}` of the path.
pub(super) struct PinName(PinKey);

impl<S: Send + Sync> FromRequestParts<S> for PinName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let kind = path_parameter(parts, state, "kind").await?;
        let name = path_parameter(parts, state, "name").await?;
        let kind = PinKind::parse(&kind).ok_or_else(|| {
            let allowed = PinKind::ALL.map(PinKind::name).join(", ");
            Problem::invalid("kind", format!("is not a kind of pins; allowed: {allowed}"))
        })?;
        Ok(Self(PinKey { kind, name }))
    }
}

/// What an operator decides about the pins of a backend.
pub(super) struct PinDecision<Wanted> {
    control: Arc<Control>,
    tenant: TenantId,
    backend: BackendId,
    author: Author,
    wanted: Wanted,
    /// That of the backend.
    mode: PinMode,
}

impl<Wanted: DeserializeOwned + ToSchema + Send> FromRequest<Arc<Control>> for PinDecision<Wanted> {
    type Rejection = Problem;

    async fn from_request(request: Request, control: &Arc<Control>) -> Result<Self, Problem> {
        let (mut head, body) = request.into_parts();
        let TenantName(tenant) = TenantName::from_request_parts(&mut head, control).await?;
        let BackendName(backend) = BackendName::from_request_parts(&mut head, control).await?;
        let Ok(author) = Author::from_request_parts(&mut head, control).await;
        let body = JsonBody::from_request(Request::from_parts(head, body), control).await?;
        let wanted = read_as(&body.required()?)?;
        let (mode, _) = control.pins(&tenant, &backend).await?;
        Ok(Self { control: Arc::clone(control), tenant, backend, author, wanted, mode })
    }
}

/// Lists the pins of a backend: its definitions and what operators decided about them.
#[utoipa::path(get, operation_id = "list_pins", path = "/admin/v1/tenants/{tenant}/backends/{backend}/pins", tag = "pins", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("backend" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"), PageParams), responses(
    (status = 200, body = PinList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
    QueryParams(page): QueryParams<PageParams>,
) -> Result<impl IntoResponse, Problem> {
    let page = page.page()?;
    let (mode, mut pins) = control.pins(&tenant, &backend).await?;
    let sort_key = |pin: &PinView| format!("{} {}", pin.kind, pin.name);
    pins.sort_by_key(sort_key);
    let (pins, next) = page.of(pins, sort_key);
    Ok(Json(PinList { mode, pins, next }))
}

/// Shows what is new in one object since an operator accepted it.
#[utoipa::path(get, operation_id = "diff_pin", path = "/admin/v1/tenants/{tenant}/backends/{backend}/pins/{kind}/{name}/diff", tag = "pins", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("backend" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"), ("kind" = String, Path, example = "tool"), ("name" = String, Path, description = "The backend's own name or URI, percent-encoded")), responses(
    (status = 200, body = PinDiffView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn diff(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    BackendName(backend): BackendName,
    PinName(key): PinName,
) -> Result<impl IntoResponse, Problem> {
    Ok(Json(control.pin_diff(&tenant, &backend, key).await?))
}

/// Approves definitions on every replica: all of the named ones, or none.
/// A definition that is not the one seen last is refused with 409.
#[utoipa::path(post, operation_id = "approve_pins", path = "/admin/v1/tenants/{tenant}/backends/{backend}/pins/approve", tag = "pins", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("backend" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), request_body = PinApprovalRequest,
    responses((status = 200, body = PinList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn approve(
    PinDecision { control, tenant, backend, author, wanted, mode }: PinDecision<PinApprovalRequest>,
) -> Result<impl IntoResponse, Problem> {
    let pins = control.approve_pins(tenant, backend, wanted, author).await?;
    Ok(Json(PinList { mode, pins, next: None }))
}

/// Blocks objects on every replica, whatever their definitions: all of the named ones, or none.
#[utoipa::path(post, operation_id = "block_pins", path = "/admin/v1/tenants/{tenant}/backends/{backend}/pins/block", tag = "pins", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), ("backend" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")), request_body = PinBlockRequest,
    responses((status = 200, body = PinList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn block(
    PinDecision { control, tenant, backend, author, wanted, mode }: PinDecision<PinBlockRequest>,
) -> Result<impl IntoResponse, Problem> {
    let pins = control.block_pins(tenant, backend, wanted, author).await?;
    Ok(Json(PinList { mode, pins, next: None }))
}
