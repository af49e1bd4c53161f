//! Routes that show state at one glance: the overview, the status of all backends, the catalog of a
//! tenant, recent activity, and the operator who asks.

use std::{collections::BTreeSet, sync::Arc};

use aws_lc_rs::digest;
use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use protocol::ids::{BackendId, TenantId};
use rules::{catalog::ListKind, operators::Scope};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    input::{QueryParams, TenantName},
    page::{LIMIT_MAX, OfTenant, Page, page_of},
    permissions::{OPERATIONS, SignedIn},
    preconditions,
    problem::Problem,
};
use crate::{
    control::{CatalogFilter, Control, kind_name},
    views::{ActivityEntry, BackendStatus, CatalogItemView, OverviewView},
};

/// Entries of the activity without a `limit`.
const ACTIVITY_USUAL: u32 = 200;

page_of!(StatusList { backends: BackendStatus });
page_of!(CatalogList { items: CatalogItemView });

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ActivityList {
    /// Name of the replica that answers. The entries are its own.
    pub replica: String,
    /// Oldest first.
    pub entries: Vec<ActivityEntry>,
}

/// The operator who asks, and what it may do.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SignedInView {
    pub name: String,
    pub role: String,
    /// Absent: all tenants, and the broker itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenants: Option<Vec<String>>,
    /// Only of a `backend_owner`, as `TENANT/BACKEND`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backends: Option<Vec<String>>,
    /// Permissions, as `x-permission` names them.
    pub permissions: Vec<&'static str>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CatalogParams {
    /// `tool`, `prompt`, `resource` or `template`.
    #[param(pattern = "^(tool|prompt|resource|template)$")]
    kind: Option<String>,
    /// Only entries of this backend.
    #[param(value_type = Option<String>)]
    backend: Option<BackendId>,
    /// Only entries with this name or URI at the backend.
    name: Option<String>,
    /// If true, entries show their definitions. Default false.
    definitions: Option<bool>,
    /// Maximum number of entries on a page; absent: all entries.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next` of the page before.
    after: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ActivityParams {
    /// Only this tenant.
    #[param(value_type = Option<String>)]
    tenant: Option<TenantId>,
    /// Number of the entry after which the list begins.
    after: Option<u64>,
    /// Maximum number of entries; absent: 200.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Returns the operator who asks, with its permissions.
#[utoipa::path(get, operation_id = "show_signed_in_operator", path = "/admin/v1/operator", tag = "operators", responses(
    (status = 200, body = SignedInView), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn signed_in(SignedIn(operator): SignedIn) -> impl IntoResponse {
    let (tenants, backends) = match &operator.scope {
        Scope::Broker => (None, None),
        Scope::Tenants(tenants) => (Some(tenants.iter().map(ToString::to_string).collect()), None),
        Scope::Backends(backends) => {
            let names = backends.iter().map(|(tenant, backend)| format!("{tenant}/{backend}"));
            (None, Some(names.collect()))
        }
    };
    let permitted = OPERATIONS.iter().map(|(.., permission)| *permission);
    let permissions: BTreeSet<&str> = permitted
        .filter(|permission| operator.permits(*permission))
        .map(|permission| permission.name())
        .collect();
    axum::Json(SignedInView {
        name: operator.name.clone(),
        role: operator.role.name().to_owned(),
        tenants,
        backends,
        permissions: permissions.into_iter().collect(),
    })
}

/// Shows the state of the answering replica at one glance, for the tenants and backends that the
/// operator sees.
/// A request with `If-None-Match` gets 304 while nothing has changed.
#[utoipa::path(get, operation_id = "show_overview", path = "/admin/v1/overview", tag = "overview", responses(
    (status = 200, body = OverviewView), (status = 304, description = "Nothing has changed"),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn overview(
    State(control): State<Arc<Control>>,
    SignedIn(operator): SignedIn,
    headers: HeaderMap,
) -> Response {
    let view = control.overview(&operator).await;
    // The uptime always changes, and a page can count it itself.
    let compared = OverviewView { uptime_seconds: 0, ..view.clone() };
    let text = serde_json::to_vec(&compared).unwrap_or_default();
    let hash = URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, &text));
    let text = format!("\"{hash}\"");
    let is_known = preconditions::is_known(&headers, &text);
    let tag = HeaderValue::try_from(text).expect("base64url is visible ASCII");
    if is_known {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, tag)]).into_response();
    }
    ([(header::ETAG, tag)], axum::Json(view)).into_response()
}

/// Lists the status of the backends of all tenants that the operator sees.
#[utoipa::path(get, operation_id = "list_all_backends", path = "/admin/v1/backends", tag = "backends", params(OfTenant), responses(
    (status = 200, body = StatusList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn backends(
    State(control): State<Arc<Control>>,
    signed_in: SignedIn,
    QueryParams(of): QueryParams<OfTenant>,
) -> Result<impl IntoResponse, Problem> {
    let page = of.page(&signed_in, &control)?;
    // A slash is invalid in both names.
    let sort_key = |status: &BackendStatus| format!("{}/{}", status.tenant, status.backend);
    let backends = control.all_backends(of.tenant.as_ref(), &signed_in.0)?;
    Ok(axum::Json(StatusList::from(page.sorted(backends, sort_key))))
}

/// Lists the tools, prompts, resources and templates of a tenant's backends.
#[utoipa::path(get, operation_id = "list_catalog", path = "/admin/v1/tenants/{tenant}/catalog", tag = "catalog", params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), CatalogParams), responses(
    (status = 200, body = CatalogList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn catalog(
    State(control): State<Arc<Control>>,
    TenantName(tenant): TenantName,
    SignedIn(operator): SignedIn,
    QueryParams(query): QueryParams<CatalogParams>,
) -> Result<impl IntoResponse, Problem> {
    let page = Page::new(query.limit, query.after)?;
    let filter = CatalogFilter {
        kind: query.kind.as_deref().map(kind).transpose()?,
        backend: query.backend,
        name: query.name,
        with_definitions: query.definitions.unwrap_or(false),
    };
    // A name may hold any character, so it comes last.
    let sort_key = |item: &CatalogItemView| format!("{}/{}/{}", item.backend, item.kind, item.name);
    let items = control.catalog(&tenant, &operator, &filter)?;
    Ok(axum::Json(CatalogList::from(page.sorted(items, sort_key))))
}

fn kind(name: &str) -> Result<ListKind, Problem> {
    ListKind::ALL.into_iter().find(|kind| kind_name(*kind) == name).ok_or_else(|| {
        let allowed = ListKind::ALL.map(kind_name).join(", ");
        Problem::invalid("kind", format!("{name:?} is not a kind of entry; allowed: {allowed}"))
    })
}

/// Lists recent requests of the answering replica that failed, or that an access policy did not
/// plainly allow.
#[utoipa::path(get, operation_id = "list_activity", path = "/admin/v1/activity", tag = "activity", params(ActivityParams), responses(
    (status = 200, body = ActivityList), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn activity(
    State(control): State<Arc<Control>>,
    signed_in: SignedIn,
    QueryParams(query): QueryParams<ActivityParams>,
) -> Result<impl IntoResponse, Problem> {
    signed_in.check_filter(&control, query.tenant.as_ref())?;
    let limit = query.limit.unwrap_or(ACTIVITY_USUAL);
    if !(1..=LIMIT_MAX).contains(&limit) {
        let detail = format!("{limit} is not a usable limit; allowed: 1 to {LIMIT_MAX}");
        return Err(Problem::invalid("limit", detail));
    }
    let after = query.after.unwrap_or_default();
    let entries = control.activity(&signed_in.0, query.tenant.as_ref(), after, limit as usize);
    Ok(axum::Json(ActivityList { replica: control.replica(), entries }))
}
