//! Refusals of the admin plane: `application/problem+json` (RFC 9457), with the field at fault, if
//! any.

use axum::{
    http::{HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use config::FieldError;
use rules::access::PolicyFault;
use serde::Serialize;
use storage::StoreError;
use utoipa::ToSchema;

use crate::control::ControlError;

/// Reason why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// Stable name of a kind of problem: `urn:mcp-broker:problem:…`.
    #[serde(rename = "type")]
    pub kind: String,
    pub title: &'static str,
    pub status: u16,
    pub detail: String,
    /// The first field at fault: a path into the body, a path parameter, a query parameter or a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// All fields at fault, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FieldFault>,
}

/// One field at fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldFault {
    pub field: String,
    pub detail: String,
}

impl Problem {
    pub fn new(status: StatusCode, kind: &str, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Refused");
        let kind = format!("urn:mcp-broker:problem:{kind}");
        Self {
            kind,
            title,
            status: status.as_u16(),
            detail: detail.into(),
            field: None,
            faults: Vec::new(),
        }
    }

    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Returns the problem of an invalid value.
    pub fn invalid(field: &str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", detail).field(field)
    }

    pub fn not_found(what: &str, name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", format!("{what} {name} does not exist"))
    }

    /// Returns the problem of a body with invalid fields. `faults` is not empty.
    pub(super) fn faults(faults: &[FieldError]) -> Self {
        let listed: Vec<FieldFault> = faults.iter().map(field_fault).collect();
        let detail = listed
            .iter()
            .map(|fault| format!("{} {}", named(&fault.field), fault.detail))
            .collect::<Vec<_>>()
            .join("; ");
        let mut problem = Self::new(StatusCode::BAD_REQUEST, "invalid", detail);
        problem.field =
            listed.first().map(|fault| fault.field.clone()).filter(|field| !field.is_empty());
        problem.faults = if listed.len() > 1 { listed } else { Vec::new() };
        problem
    }
}

impl Problem {
    /// Returns the problem of a document: 409 if it only conflicts with what is there, or fails its
    /// own tests, else 422.
    fn document(faults: &[PolicyFault], conflict: &'static str, invalid: &'static str) -> Self {
        let fields: Vec<FieldError> =
            faults.iter().map(|fault| FieldError::new(&fault.path, &fault.problem, "")).collect();
        let problem = Self::faults(&fields);
        let (status, kind) = if faults.iter().all(|fault| fault.is_failed_test) {
            (StatusCode::CONFLICT, conflict)
        } else {
            (StatusCode::UNPROCESSABLE_ENTITY, invalid)
        };
        let named = Self::new(status, kind, problem.detail);
        Self { field: problem.field, faults: problem.faults, ..named }
    }
}

fn field_fault(fault: &FieldError) -> FieldFault {
    let allowed = if fault.allowed.is_empty() {
        String::new()
    } else {
        format!("; allowed: {}", fault.allowed)
    };
    FieldFault { field: fault.path.clone(), detail: format!("{}{allowed}", fault.problem) }
}

fn named(field: &str) -> &str {
    if field.is_empty() { "the body" } else { field }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Self {
        let detail = error.to_string();
        let (status, kind) = match &error {
            ControlError::Invalid(fault) => return Self::faults(std::slice::from_ref(fault)),
            ControlError::Reserved(fault) => {
                return Self::new(StatusCode::UNPROCESSABLE_ENTITY, "reserved", detail)
                    .field(fault.path.clone());
            }
            ControlError::Policy(faults) => {
                return Self::document(faults, "policy-test-failed", "invalid-policy");
            }
            ControlError::Toolset(faults) => {
                return Self::document(faults, "ambiguous-names", "invalid-document");
            }
            ControlError::Faults(faults) => return Self::faults(faults),
            ControlError::IssuerTaken { .. } => {
                return Self::new(StatusCode::CONFLICT, "issuer-taken", detail).field("issuer");
            }
            ControlError::NoResource => (StatusCode::CONFLICT, "no-resource"),
            ControlError::ManyNodes { .. } => (StatusCode::CONFLICT, "ambiguous-node"),
            ControlError::NoLog => (StatusCode::CONFLICT, "no-log"),
            ControlError::NotFound { .. }
            | ControlError::NoAccounts { .. }
            | ControlError::Store(StoreError::UnknownTenant { .. }) => {
                (StatusCode::NOT_FOUND, "not-found")
            }
            ControlError::Declared { .. } | ControlError::Bundled { .. } => {
                (StatusCode::CONFLICT, "declared")
            }
            ControlError::Changed { .. } => {
                (StatusCode::PRECONDITION_FAILED, "precondition-failed")
            }
            ControlError::NamedByOperators { .. } => (StatusCode::CONFLICT, "named-by-operator"),
            ControlError::PinMoved { .. } => (StatusCode::CONFLICT, "pin-moved"),
            ControlError::Decided { .. } => (StatusCode::CONFLICT, "decided"),
            ControlError::NotApprover(_) => (StatusCode::FORBIDDEN, "forbidden"),
            ControlError::DefaultTenant => (StatusCode::CONFLICT, "default-tenant"),
            ControlError::TooMany { .. } => (StatusCode::CONFLICT, "too-many"),
            ControlError::TooManyTasks { .. } => (StatusCode::CONFLICT, "too-many-tasks"),
            ControlError::Store(StoreError::Exists { .. }) => (StatusCode::CONFLICT, "exists"),
            ControlError::Store(StoreError::Full) => {
                (StatusCode::INSUFFICIENT_STORAGE, "store-full")
            }
            ControlError::Store(
                StoreError::Unavailable { .. }
                | StoreError::Busy { .. }
                | StoreError::Outdated
                | StoreError::OutcomeUnknown(_),
            ) => (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"),
            ControlError::Store(_) | ControlError::NoRandomness | ControlError::Internal => {
                (StatusCode::INTERNAL_SERVER_ERROR, "internal")
            }
        };
        if status.is_server_error() {
            tracing::error!(%error, "an admin request failed");
        }
        Self::new(status, kind, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response =
            (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
        match status {
            StatusCode::UNAUTHORIZED => {
                response.headers_mut().insert(
                    header::WWW_AUTHENTICATE,
                    HeaderValue::from_static("Bearer realm=\"mcp-broker admin\""),
                );
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

pub(super) async fn no_such_route(uri: Uri) -> Problem {
    let detail = format!(
        "the path {} does not exist; GET /admin/v1/openapi.json lists all paths",
        uri.path()
    );
    Problem::new(StatusCode::NOT_FOUND, "no-such-route", detail)
}

/// Returns the problem of an unsupported method. The router adds the `Allow` header.
pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let detail = format!(
        "{} does not support {method}; the Allow header lists the supported methods",
        uri.path()
    );
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail)
}
