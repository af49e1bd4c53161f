//! The permission that each operation of the admin API requires, and the middleware that checks it.
//!
//! The middleware runs after sign-in and before any route, so a refusal does not depend on the
//! request's body. Invariants:
//! - An operation that [`OPERATIONS`] lacks is refused. A test compares the table with the OpenAPI
//!   document.
//! - A tenant or backend outside an operator's scope answers like one that does not exist.

use std::{convert::Infallible, sync::Arc};

use axum::{
    extract::{FromRequestParts, MatchedPath, RawPathParams, Request},
    http::{Method, StatusCode, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use protocol::ids::TenantId;
use rules::operators::{Operator, Permission, Scope};

use super::{health, problem::Problem};
use crate::control::Control;

/// Method, path and permission of every operation. The health probes need no sign-in.
#[rustfmt::skip]
pub(super) const OPERATIONS: &[(Method, &str, Permission)] = &[
    (Method::GET, "/admin/v1/tenants", Permission::TenantsRead),
    (Method::GET, "/admin/v1/tenants/{tenant}", Permission::TenantsRead),
    (Method::PUT, "/admin/v1/tenants/{tenant}", Permission::TenantsWrite),
    (Method::DELETE, "/admin/v1/tenants/{tenant}", Permission::TenantsWrite),
    (Method::GET, "/admin/v1/tenants/{tenant}/keys", Permission::KeysRead),
    (Method::POST, "/admin/v1/tenants/{tenant}/keys", Permission::KeysWrite),
    (Method::DELETE, "/admin/v1/tenants/{tenant}/keys/{id}", Permission::KeysWrite),
    (Method::GET, "/admin/v1/tenants/{tenant}/revocations", Permission::RevocationsRead),
    (Method::POST, "/admin/v1/tenants/{tenant}/revocations", Permission::RevocationsWrite),
    (Method::DELETE, "/admin/v1/tenants/{tenant}/revocations/{id}", Permission::RevocationsWrite),
    (Method::GET, "/admin/v1/tenants/{tenant}/backends", Permission::BackendsRead),
    (Method::GET, "/admin/v1/tenants/{tenant}/backends/{backend}", Permission::BackendsRead),
    (Method::PUT, "/admin/v1/tenants/{tenant}/backends/{backend}", Permission::BackendsWrite),
    (Method::DELETE, "/admin/v1/tenants/{tenant}/backends/{backend}", Permission::BackendsWrite),
    (Method::POST, "/admin/v1/tenants/{tenant}/backends/{backend}/probe", Permission::BackendsOperate),
    (Method::POST, "/admin/v1/tenants/{tenant}/backends/{backend}/breaker", Permission::BackendsOperate),
    (Method::GET, "/admin/v1/tenants/{tenant}/backends/{backend}/pins", Permission::BackendsRead),
    (Method::GET, "/admin/v1/tenants/{tenant}/backends/{backend}/pins/{kind}/{name}/diff", Permission::BackendsRead),
    (Method::POST, "/admin/v1/tenants/{tenant}/backends/{backend}/pins/approve", Permission::BackendsOperate),
    (Method::POST, "/admin/v1/tenants/{tenant}/backends/{backend}/pins/block", Permission::BackendsOperate),
    (Method::POST, "/admin/v1/tenants/{tenant}/backends/{backend}/roots", Permission::BackendsWrite),
    (Method::DELETE, "/admin/v1/tenants/{tenant}/backends/{backend}/roots", Permission::BackendsWrite),
    (Method::GET, "/admin/v1/tenants/{tenant}/policy", Permission::PoliciesRead),
    (Method::PUT, "/admin/v1/tenants/{tenant}/policy", Permission::PoliciesWrite),
    (Method::DELETE, "/admin/v1/tenants/{tenant}/policy", Permission::PoliciesWrite),
    (Method::POST, "/admin/v1/tenants/{tenant}/policy/check", Permission::PoliciesRead),
    (Method::GET, "/admin/v1/tenants/{tenant}/policy/report", Permission::PoliciesRead),
    (Method::GET, "/admin/v1/tenants/{tenant}/toolsets", Permission::CatalogRead),
    (Method::GET, "/admin/v1/tenants/{tenant}/toolsets/{toolset}", Permission::CatalogRead),
    (Method::PUT, "/admin/v1/tenants/{tenant}/toolsets/{toolset}", Permission::CatalogWrite),
    (Method::DELETE, "/admin/v1/tenants/{tenant}/toolsets/{toolset}", Permission::CatalogWrite),
    (Method::GET, "/admin/v1/tenants/{tenant}/prompts", Permission::CatalogRead),
    (Method::GET, "/admin/v1/tenants/{tenant}/prompts/{prompt}", Permission::CatalogRead),
    (Method::PUT, "/admin/v1/tenants/{tenant}/prompts/{prompt}", Permission::CatalogWrite),
    (Method::DELETE, "/admin/v1/tenants/{tenant}/prompts/{prompt}", Permission::CatalogWrite),
    (Method::GET, "/admin/v1/tenants/{tenant}/catalog/cost", Permission::CatalogRead),
    (Method::GET, "/admin/v1/tenants/{tenant}/approvals", Permission::ApprovalsRead),
    (Method::GET, "/admin/v1/tenants/{tenant}/approvals/{id}", Permission::ApprovalsRead),
    (Method::POST, "/admin/v1/tenants/{tenant}/approvals/{id}", Permission::ApprovalsDecide),
    (Method::GET, "/admin/v1/tenants/{tenant}/connections", Permission::KeysRead),
    (Method::POST, "/admin/v1/tenants/{tenant}/connections", Permission::KeysWrite),
    (Method::DELETE, "/admin/v1/tenants/{tenant}/connections/{principal}/{backend}", Permission::KeysWrite),
    (Method::POST, "/admin/v1/tenants/{tenant}/connections/{principal}/{backend}/test", Permission::KeysWrite),
    (Method::GET, "/admin/v1/tenants/{tenant}/issuers", Permission::IssuersRead),
    (Method::GET, "/admin/v1/tenants/{tenant}/issuers/{issuer}", Permission::IssuersRead),
    (Method::PUT, "/admin/v1/tenants/{tenant}/issuers/{issuer}", Permission::IssuersWrite),
    (Method::DELETE, "/admin/v1/tenants/{tenant}/issuers/{issuer}", Permission::IssuersWrite),
    (Method::GET, "/admin/v1/tenants/{tenant}/catalog", Permission::BackendsRead),
    (Method::POST, "/admin/v1/tenants/{tenant}/try", Permission::ToolsTry),
    (Method::GET, "/admin/v1/tenants/{tenant}/try", Permission::ToolsTry),
    (Method::DELETE, "/admin/v1/tenants/{tenant}/try", Permission::ToolsTry),
    (Method::GET, "/admin/v1/overview", Permission::BackendsRead),
    (Method::GET, "/admin/v1/backends", Permission::BackendsRead),
    (Method::GET, "/admin/v1/activity", Permission::ActivityRead),
    (Method::GET, "/admin/v1/operator", Permission::OpenapiRead),
    (Method::GET, "/admin/v1/sessions", Permission::SessionsRead),
    (Method::GET, "/admin/v1/sessions/{id}", Permission::SessionsRead),
    (Method::DELETE, "/admin/v1/sessions/{id}", Permission::SessionsEnd),
    (Method::GET, "/admin/v1/tasks", Permission::TasksRead),
    (Method::GET, "/admin/v1/tasks/{id}", Permission::TasksRead),
    (Method::POST, "/admin/v1/tasks/{id}/cancel", Permission::TasksCancel),
    (Method::GET, "/admin/v1/subscriptions", Permission::SubscriptionsRead),
    (Method::GET, "/admin/v1/nodes", Permission::NodesRead),
    (Method::GET, "/admin/v1/configuration", Permission::ConfigurationRead),
    (Method::GET, "/admin/v1/configuration/effective", Permission::ConfigurationRead),
    (Method::GET, "/admin/v1/log", Permission::ConfigurationRead),
    (Method::PUT, "/admin/v1/log", Permission::LogWrite),
    (Method::DELETE, "/admin/v1/log", Permission::LogWrite),
    (Method::POST, "/admin/v1/drain", Permission::BrokerDrain),
    (Method::POST, "/admin/v1/nodes/{node}/drain", Permission::BrokerDrain),
    (Method::GET, "/admin/v1/audit", Permission::AuditRead),
    (Method::GET, "/admin/v1/audit/export", Permission::AuditRead),
    (Method::GET, "/admin/v1/audit/chains", Permission::AuditRead),
    (Method::GET, "/admin/v1/audit/verify", Permission::AuditRead),
    (Method::GET, "/admin/v1/operators", Permission::OperatorsRead),
    (Method::POST, "/admin/v1/operators", Permission::OperatorsWrite),
    (Method::DELETE, "/admin/v1/operators/{id}", Permission::OperatorsWrite),
    (Method::GET, "/admin/v1/openapi.json", Permission::OpenapiRead),
    (Method::GET, "/metrics", Permission::MetricsRead),
];

/// Returns the permission of an operation. The broker answers HEAD like GET.
pub(super) fn required(method: &Method, path: &str) -> Option<Permission> {
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    OPERATIONS
        .iter()
        .find(|(known, route, _)| known == method && *route == path)
        .map(|(.., permission)| *permission)
}

/// Not a legal name: its audit log is empty, like that of every unknown tenant.
const UNKNOWN_TENANT: &str = "-";

/// The operator of a request. [`super::access`] stores it after sign-in.
pub(super) struct SignedIn(pub(super) Arc<Operator>);

impl<S: Send + Sync> FromRequestParts<S> for SignedIn {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let operator = parts.extensions.get::<Arc<Operator>>().cloned();
        // Only the health probes come here without sign-in.
        Ok(Self(operator.unwrap_or_else(|| Arc::new(Operator::powerless()))))
    }
}

impl SignedIn {
    /// Checks the tenant of a filter. Returns the answer to an unknown tenant if the operator does
    /// not see it.
    pub(super) fn check_filter(
        &self,
        control: &Control,
        tenant: Option<&TenantId>,
    ) -> Result<(), Problem> {
        let Some(tenant) = tenant else { return Ok(()) };
        if !self.0.covers_tenant(tenant.as_str()) {
            return Err(Problem::not_found("tenant", tenant.as_str()).field("tenant"));
        }
        control.check_tenant(tenant).map_err(|error| Problem::from(error).field("tenant"))
    }

    /// Returns the tenants of a list: the wanted one, or each that the operator sees. `None`: all.
    pub(super) fn listed_tenants(&self, wanted: Option<&TenantId>) -> Vec<Option<TenantId>> {
        match (wanted, self.0.tenants()) {
            (Some(wanted), _) => vec![Some(wanted.clone())],
            (None, Some(seen)) => seen.into_iter().map(Some).collect(),
            (None, None) => vec![None],
        }
    }

    /// Returns the entries whose tenant the operator sees.
    pub(super) fn seen_of<View>(
        &self,
        mut views: Vec<View>,
        tenant: impl Fn(&View) -> &str,
    ) -> Vec<View> {
        views.retain(|view| self.0.covers_tenant(tenant(view)));
        views
    }

    /// Returns an entry if the operator sees its tenant. Otherwise returns the answer to an unknown
    /// entry.
    pub(super) fn seen<View>(
        &self,
        view: View,
        tenant: impl Fn(&View) -> &str,
        what: &str,
        id: &str,
    ) -> Result<View, Problem> {
        match self.0.covers_tenant(tenant(&view)) {
            true => Ok(view),
            false => Err(Problem::not_found(what, id)),
        }
    }

    /// Returns the tenant of the audit records that the operator reads. An operator of several
    /// tenants names one.
    pub(super) fn audited_tenant(
        &self,
        requested: Option<String>,
    ) -> Result<Option<String>, Problem> {
        let tenants = match &self.0.scope {
            Scope::Broker => return Ok(requested),
            Scope::Tenants(tenants) => tenants.as_slice(),
            Scope::Backends(_) => &[],
        };
        match (requested, tenants) {
            (Some(requested), _) if self.0.covers_tenant(&requested) => Ok(Some(requested)),
            (Some(_), _) => Ok(Some(UNKNOWN_TENANT.to_owned())),
            (None, [tenant]) => Ok(Some(tenant.to_string())),
            (None, tenants) => {
                let names: Vec<&str> = tenants.iter().map(TenantId::as_str).collect();
                let detail = format!("is missing; allowed: {}", names.join(", "));
                Err(Problem::invalid("tenant", detail))
            }
        }
    }
}

/// Middleware around every route, inside of sign-in and of the audit record.
pub(super) async fn authorize(
    SignedIn(operator): SignedIn,
    route: Option<MatchedPath>,
    names: Result<RawPathParams, axum::extract::rejection::RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let path = route.as_ref().map_or("", MatchedPath::as_str);
    if path.is_empty() || path == health::LIVE || path == health::READY {
        return next.run(request).await; // fallbacks, and probes for everyone
    }
    let Some(permission) = required(request.method(), path) else {
        return match OPERATIONS.iter().any(|(_, route, _)| *route == path) {
            true => next.run(request).await, // the router refuses the method
            false => forbidden("this operation has no permission", &operator).into_response(),
        };
    };
    if !operator.permits(permission) {
        return forbidden(&lacking(&operator, permission), &operator).into_response();
    }
    let names = names.as_ref().map(|names| names.iter().collect()).unwrap_or_default();
    if let Err(problem) = check_names(&operator, names) {
        return problem.into_response();
    }
    next.run(request).await
}

/// Returns why an operator lacks a permission: for its role, or for its tenants.
fn lacking(operator: &Operator, permission: Permission) -> String {
    let Operator { name, role, scope, .. } = operator;
    if !role.permits(permission) {
        let needed = permission.name();
        return format!("operator {name} has the role {role}, and this operation needs {needed}");
    }
    format!("operator {name} is limited to {scope}, and this operation is about the whole broker")
}

fn forbidden(detail: &str, operator: &Operator) -> Problem {
    tracing::debug!(operator = operator.name, detail, "an admin request is refused");
    Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
}

/// Checks tenant and backend of the path.
fn check_names(operator: &Operator, names: Vec<(&str, &str)>) -> Result<(), Problem> {
    let named = |wanted| names.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
    let Some(tenant) = named("tenant") else { return Ok(()) };
    if !operator.covers_tenant(tenant) {
        return Err(Problem::not_found("tenant", tenant));
    }
    match named("backend") {
        Some(backend) if !operator.covers_backend(tenant, backend) => {
            Err(Problem::not_found("backend", backend))
        }
        _ => Ok(()),
    }
}
