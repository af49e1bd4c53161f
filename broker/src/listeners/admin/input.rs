//! Extractors of request inputs: names in the path, parameters in the query, JSON in the body. Each
//! input is checked here, and a refusal names the field, so handlers get valid values only.

use std::{hash::RandomState, time::Duration};

use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts, Query, RawPathParams, Request},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use config::BodySchema;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use protocol::{
    ids::{BackendId, TenantId, ToolsetId},
    json,
};
use rules::catalog::parse_prompt_name;
use serde::de::DeserializeOwned;
use serde_json::Value;
use transport::framing::ChunksTooLong;
use utoipa::ToSchema;

use super::problem::Problem;

/// Enough for a backend's settings with a long argument list, which have a few kilobytes.
pub(super) const BODY_BYTES_MAX: usize = 1024 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
const ID_BYTES_MAX: usize = 128;
/// Longest name of a member in a refusal.
const MEMBER_CHARS_MAX: usize = 200;

/// Defines extractors of names in the path, which a parser checks.
macro_rules! path_names {
    ($($(#[$about:meta])* $name:ident($of:ty) = $parameter:literal, $parse:expr;)+) => {$(
        $(#[$about])*
        pub(super) struct $name(pub(super) $of);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
                let name = path_parameter(parts, state, $parameter).await?;
                let parsed = $parse(&name);
                parsed.map(Self).map_err(|error| Problem::invalid($parameter, error.to_string()))
            }
        }
    )+};
}

path_names! {
    /// `{tenant}` of the path.
    TenantName(TenantId) = "tenant", TenantId::parse;
    /// `{backend}` of the path.
    BackendName(BackendId) = "backend", BackendId::parse;
    /// `{issuer}` of the path: the name of a stored issuer.
    IssuerName(BackendId) = "issuer", BackendId::parse;
    /// `{toolset}` of the path.
    ToolsetName(ToolsetId) = "toolset", ToolsetId::parse;
    /// `{prompt}` of the path: the name of a hosted prompt.
    PromptName(String) = "prompt", parse_prompt_name;
}

/// `{principal}` of the path.
pub(super) struct PrincipalName(pub(super) String);
/// `{node}` of the path: the name of a replica, or its `node.id`.
pub(super) struct ReplicaName(pub(super) String);
/// `{id}` of the path: of a key, a session or a task.
pub(super) struct PathId(pub(super) String);
/// Query parameters. An unknown parameter is refused.
pub(super) struct QueryParams<T>(pub(super) T);
/// JSON body without duplicate members. `None` without a body.
pub(super) struct JsonBody(pub(super) Option<Value>);

impl<S: Send + Sync> FromRequestParts<S> for PrincipalName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        path_parameter(parts, state, "principal").await.map(Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let id = path_parameter(parts, state, "id").await?;
        check_id("id", &id).map(|()| Self(id))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ReplicaName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let name = path_parameter(parts, state, "node").await?;
        check_id("node", &name).map(|()| Self(name))
    }
}

fn check_id(parameter: &str, id: &str) -> Result<(), Problem> {
    if id.len() <= ID_BYTES_MAX && id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let detail = format!("an id has at most {ID_BYTES_MAX} visible ASCII characters");
    Err(Problem::invalid(parameter, detail))
}

pub(super) async fn path_parameter<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
    name: &str,
) -> Result<String, Problem> {
    let parameters = RawPathParams::from_request_parts(parts, state).await;
    let parameters = parameters
        .map_err(|_| Problem::invalid(name, "the percent-decoded path is not valid UTF-8"))?;
    let found = parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
    found.ok_or_else(|| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            format!("this route has no {name}"),
        )
    })
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Query::try_from_uri(&parts.uri).map(|Query(params)| Self(params)).map_err(|rejection| {
            let text = rejection.body_text();
            let reason =
                text.split_once("query string: ").map_or(text.as_str(), |(_, reason)| reason);
            // serde encloses the name of an unknown parameter in backticks, and writes a known one
            // before a colon.
            let unknown =
                reason.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
            let field = unknown
                .or_else(|| reason.split_once(": ").map(|(field, _)| field))
                .unwrap_or("query");
            Problem::invalid(field, format!("the query is not accepted: {reason}"))
        })
    }
}

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read(&parts.headers, body).await?;
        if bytes.is_empty() {
            return Ok(Self(None));
        }
        check_media_type(&parts.headers)?;
        let value = serde_json::from_slice(&bytes).map_err(not_json)?;
        refuse_duplicates(&bytes, &value)?;
        Ok(Self(Some(value)))
    }
}

impl JsonBody {
    pub(super) fn required(self) -> Result<Value, Problem> {
        self.0.ok_or_else(|| {
            Problem::new(StatusCode::BAD_REQUEST, "invalid", "a JSON body is needed").field("body")
        })
    }
}

fn not_json(error: impl std::fmt::Display) -> Problem {
    let detail = format!("the body is not JSON: {error}");
    Problem::new(StatusCode::BAD_REQUEST, "not-json", detail).field("body")
}

/// Refuses a body with a duplicate member in an object. Readers differ in which of the two they use,
/// so an operator may have approved another document than the one that the broker stores.
fn refuse_duplicates(body: &[u8], value: &Value) -> Result<(), Problem> {
    let limits = json::Limits::with_bytes_max(body.len());
    match json::duplicate_member(body, &limits, &RandomState::new(), MEMBER_CHARS_MAX) {
        Ok(None) => Ok(()),
        Ok(Some(pointer)) => {
            let field = field_at(&pointer, value);
            Err(Problem::invalid(&field, format!("{field} is in its object twice")))
        }
        Err(error) => Err(not_json(error)),
    }
}

/// Returns the path of a member, such as `tools[1].name`, from its JSON pointer.
fn field_at(pointer: &str, body: &Value) -> String {
    let (mut path, mut holder) = (String::new(), Some(body));
    for segment in pointer.trim_start_matches('/').split('/') {
        match holder {
            Some(Value::Array(_)) => path = format!("{path}[{segment}]"),
            _ if path.is_empty() => segment.clone_into(&mut path),
            _ => path = format!("{path}.{segment}"),
        }
        holder = holder.and_then(|holder| holder.pointer(&format!("/{segment}")));
    }
    path
}

fn too_large() -> Problem {
    let detail = format!("the body is larger than {BODY_BYTES_MAX} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail).field("body")
}

async fn read(headers: &HeaderMap, body: Body) -> Result<bytes::Bytes, Problem> {
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > BODY_BYTES_MAX as u64) {
        return Err(too_large());
    }
    let collected =
        tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error))
            if error.is::<LengthLimitError>() || ChunksTooLong::caused(error.as_ref()) =>
        {
            Err(too_large())
        }
        Ok(Err(_)) => {
            Err(Problem::new(StatusCode::BAD_REQUEST, "cut-off", "the body ended early")
                .field("body"))
        }
        Err(_) => {
            let detail =
                format!("the body did not arrive within {} seconds", BODY_TIMEOUT.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail).field("body"))
        }
    }
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let given =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if given
        .split(';')
        .next()
        .is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
    {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "media-type",
        "send the body as application/json",
    )
    .field("Content-Type"))
}

/// Reads a body by the schema of its type.
pub(super) fn read_as<T: DeserializeOwned + ToSchema>(body: &Value) -> Result<T, Problem> {
    BodySchema::new().read(body).map_err(|faults| Problem::faults(&faults))
}
