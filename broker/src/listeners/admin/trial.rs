//! Trials: an operator uses the data plane as a subject of its choice, over Streamable HTTP.
//!
//! A request takes the whole way of a client's request, and the access policy decides by the chosen
//! subject. A refusal of the data plane becomes a [`Problem`], as all refusals here. Invariant: the
//! caller itself is `operator NAME as SUBJECT`, which is the principal of no
//! user. A trial therefore reaches no session, no task, no link and no account of a user, and every
//! record of it shows the operator's name.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts, Request},
    http::{HeaderMap, HeaderName, StatusCode, Uri, header, request::Parts},
    response::Response,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http_body_util::BodyExt as _;
use protocol::ids::{BackendId, PrincipalId, ToolsetId};
use rules::{access::TestSubject, endpoint::Endpoint, limits::console::TRIAL_SUBJECT_BYTES_MAX};
use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

use super::{
    input::{QueryParams, TenantName, read_as},
    permissions::SignedIn,
    problem::Problem,
};
use crate::{
    auth::{ANONYMOUS, Caller, is_printable},
    control::Control,
    listeners::http::{request, response::Body as DataPlaneBody},
};

/// The subject as base64url of JSON, with the members of `as` in a policy check.
const SUBJECT: HeaderName = HeaderName::from_static("mcp-broker-subject");
/// Headers of a client's request that a trial passes on.
const PASSED: [HeaderName; 9] = [
    header::ACCEPT,
    header::CONTENT_TYPE,
    HeaderName::from_static("mcp-session-id"),
    HeaderName::from_static("mcp-protocol-version"),
    HeaderName::from_static("mcp-method"),
    HeaderName::from_static("mcp-name"),
    HeaderName::from_static("last-event-id"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];
/// Start of the headers that mirror arguments, which a trial passes on too.
const PASSED_PREFIX: &str = "mcp-param-";
const PRINCIPAL_CHARS_MAX: usize = 128;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TrialParams {
    /// Endpoint of one backend. Absent, without `toolset`: that of all backends.
    #[param(value_type = Option<String>)]
    backend: Option<BackendId>,
    /// Endpoint of a published toolset, instead of one backend.
    #[param(value_type = Option<String>)]
    toolset: Option<ToolsetId>,
}

impl TrialParams {
    fn endpoint(self) -> Result<Endpoint, Problem> {
        match (self.backend, self.toolset) {
            (Some(_), Some(_)) => {
                Err(Problem::invalid("toolset", "is given together with backend"))
            }
            (None, Some(toolset)) => Ok(Endpoint::Toolset(toolset)),
            (backend, None) => Ok(backend.map_or(Endpoint::Aggregated, Endpoint::Single)),
        }
    }
}

/// Sends a message to the data plane as a subject that the operator names.
/// `Mcp-Broker-Subject` is the subject as base64url of JSON, with the members of `as` of a policy
/// check. All else is as for a POST to `/mcp`.
#[utoipa::path(post, operation_id = "try_message", path = "/admin/v1/tenants/{tenant}/try", tag = "trials",
    params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), TrialParams, ("Mcp-Broker-Subject" = Option<String>, Header)),
    request_body(content = Object, description = "A message of MCP"), responses(
    (status = 200, description = "The answer of the data plane: a message, or an event stream", content((Object = "application/json"), (String = "text/event-stream"))),
    (status = 202, description = "The data plane accepted a notification or a response"),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn send(trial: Trial) -> Result<Response, Problem> {
    trial.serve().await
}

/// Opens the event stream of a trial's session.
#[utoipa::path(get, operation_id = "listen_to_trial", path = "/admin/v1/tenants/{tenant}/try", tag = "trials",
    params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), TrialParams, ("Mcp-Broker-Subject" = Option<String>, Header)), responses(
    (status = 200, description = "An event stream", body = String, content_type = "text/event-stream"),
    (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn listen(trial: Trial) -> Result<Response, Problem> {
    trial.serve().await
}

/// Ends the session of a trial.
#[utoipa::path(delete, operation_id = "end_trial", path = "/admin/v1/tenants/{tenant}/try", tag = "trials",
    params(("tenant" = String, Path, pattern = "^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", example = "default"), TrialParams, ("Mcp-Broker-Subject" = Option<String>, Header)), responses(
    (status = 204), (status = "default", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn end(trial: Trial) -> Result<Response, Problem> {
    trial.serve().await
}

/// A request of a client, and the caller that the operator makes of the subject.
pub(super) struct Trial {
    control: Arc<Control>,
    caller: Caller,
    head: Parts,
    body: Body,
}

impl FromRequest<Arc<Control>> for Trial {
    type Rejection = Problem;

    async fn from_request(request: Request, control: &Arc<Control>) -> Result<Self, Problem> {
        let (mut head, body) = request.into_parts();
        let TenantName(tenant) = TenantName::from_request_parts(&mut head, control).await?;
        let Ok(SignedIn(operator)) = SignedIn::from_request_parts(&mut head, control).await;
        let QueryParams(query): QueryParams<TrialParams> =
            QueryParams::from_request_parts(&mut head, control).await?;
        control.check_tenant(&tenant)?;
        let subject = subject_of(&head.headers)?;
        let shown = match subject.principal.as_str() {
            "" => ANONYMOUS,
            principal => principal,
        };
        let Some(principal) = operator.trial_principal(shown) else {
            let detail = "the name of an operator who tries tools must not contain ` as `";
            return Err(Problem::invalid("operator", detail));
        };
        let principal = PrincipalId::new(principal);
        let caller = Caller { principal, key: None, ..Caller::of_subject(tenant, subject) };
        let path = query.endpoint()?.path("/mcp");
        head.uri = Uri::try_from(path).expect("a backend's name fits a path");
        let given = std::mem::take(&mut head.headers);
        for (name, value) in &given {
            if PASSED.contains(name) || name.as_str().starts_with(PASSED_PREFIX) {
                head.headers.append(name, value.clone());
            }
        }
        Ok(Self { control: Arc::clone(control), caller, head, body })
    }
}

impl Trial {
    async fn serve(self) -> Result<Response, Problem> {
        let Self { control, caller, head, body } = self;
        let response = request::serve_operator(&control.broker, &caller, &head, body).await;
        match response.status() {
            status if status.is_client_error() || status.is_server_error() => {
                Err(refusal(status, response.into_body()).await)
            }
            _ => Ok(response.map(Body::new)),
        }
    }
}

/// Returns the problem of a refusal of the data plane. Its body is an error of JSON-RPC, and small.
async fn refusal(status: StatusCode, body: DataPlaneBody) -> Problem {
    let text = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let error: Value = serde_json::from_slice(&text).unwrap_or_default();
    let message =
        error["error"]["message"].as_str().unwrap_or("the data plane refuses the message");
    let detail = match error["error"]["data"]["kind"].as_str() {
        Some(kind) => format!("{message} ({kind})"),
        None => message.to_owned(),
    };
    Problem::new(status, "trial-refused", detail)
}

/// Reads the subject. Without one it is the caller without a credential.
fn subject_of(headers: &HeaderMap) -> Result<rules::access::Subject, Problem> {
    let wrong = |detail: &str| Problem::invalid("Mcp-Broker-Subject", detail);
    let Some(text) = headers.get(SUBJECT) else {
        return Ok(TestSubject { principal: Some(ANONYMOUS.to_owned()), ..TestSubject::default() }
            .subject());
    };
    if text.len() > TRIAL_SUBJECT_BYTES_MAX {
        let detail = format!("is longer than {TRIAL_SUBJECT_BYTES_MAX} bytes");
        return Err(
            Problem::new(StatusCode::BAD_REQUEST, "invalid", detail).field("Mcp-Broker-Subject")
        );
    }
    let decoded = URL_SAFE_NO_PAD.decode(text.as_bytes()).ok();
    let value = decoded.and_then(|text| serde_json::from_slice(&text).ok());
    let value = value.ok_or_else(|| wrong("is not JSON in base64url"))?;
    let subject = read_as::<TestSubject>(&value)?;
    let principal = subject.principal.as_deref().unwrap_or_default();
    if principal.chars().count() > PRINCIPAL_CHARS_MAX || !is_printable(principal) {
        return Err(wrong("the principal is too long or has invisible characters"));
    }
    Ok(subject.subject())
}
