//! What a request brings: names in the path, parameters in the query, JSON in the body. Each is checked here, and a refusal
//! names the field, so a handler starts with values it can rely on.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts, Query, RawPathParams, Request},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use protocol::ids::{BackendId, TenantId};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::problem::Problem;
use crate::{config::FieldError, control::NewKey};

/// A backend's settings with a long argument list are a few kilobytes.
const BODY_BYTES_MAX: usize = 1024 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
const ID_BYTES_MAX: usize = 128;

/// `{tenant}` of the path.
pub(super) struct TenantName(pub(super) TenantId);
/// `{backend}` of the path.
pub(super) struct BackendName(pub(super) BackendId);
/// `{id}` of the path: of a key, a session or a task.
pub(super) struct PathId(pub(super) String);
/// The query, without a parameter that nobody reads.
pub(super) struct QueryParams<T>(pub(super) T);
/// A JSON body; `None` when there is no body at all.
pub(super) struct JsonBody(pub(super) Option<Value>);

impl<S: Send + Sync> FromRequestParts<S> for TenantName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let name = path_parameter(parts, state, "tenant").await?;
        TenantId::parse(&name)
            .map(Self)
            .map_err(|error| Problem::invalid("tenant", error.to_string()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for BackendName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let name = path_parameter(parts, state, "backend").await?;
        BackendId::parse(&name)
            .map(Self)
            .map_err(|error| Problem::invalid("backend", error.to_string()))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let id = path_parameter(parts, state, "id").await?;
        let fits = id.len() <= ID_BYTES_MAX && id.bytes().all(|byte| byte.is_ascii_graphic());
        if fits {
            Ok(Self(id))
        } else {
            Err(Problem::invalid(
                "id",
                format!("an id has at most {ID_BYTES_MAX} visible ASCII characters"),
            ))
        }
    }
}

async fn path_parameter<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
    name: &str,
) -> Result<String, Problem> {
    let parameters = RawPathParams::from_request_parts(parts, state).await;
    let parameters = parameters.map_err(|_| {
        Problem::invalid(name, "the path is not UTF-8 once its percent-encoding is undone")
    })?;
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
            // serde puts the name of an unknown parameter in backticks, and a known one before a colon.
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
        let value = serde_json::from_slice(&bytes);
        value.map(|value| Self(Some(value))).map_err(|error| {
            Problem::new(
                StatusCode::BAD_REQUEST,
                "not-json",
                format!("the body is not JSON: {error}"),
            )
            .field("body")
        })
    }
}

impl JsonBody {
    pub(super) fn required(self) -> Result<Value, Problem> {
        self.0.ok_or_else(|| {
            Problem::new(StatusCode::BAD_REQUEST, "invalid", "a JSON body is needed").field("body")
        })
    }
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
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
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

/// `{"state": "open"}` or `{"state": "closed"}`. True is open.
pub(super) fn breaker_wanted(body: &Value) -> Result<bool, Problem> {
    const ALLOWED: &str = "{\"state\": \"open\"} or {\"state\": \"closed\"}";
    let fault = |path: &str, wrong: String| FieldError {
        path: path.into(),
        wrong,
        allowed: ALLOWED.into(),
    };
    let Some(members) = body.as_object() else {
        return Err(Problem::faults(&[fault("", "is not an object".into())]));
    };
    if let Some(unknown) = members.keys().find(|name| *name != "state") {
        return Err(Problem::faults(&[fault(unknown, "is not known".into())]));
    }
    match members.get("state").map(Value::as_str) {
        Some(Some("open")) => Ok(true),
        Some(Some("closed")) => Ok(false),
        Some(_) => {
            Err(Problem::faults(&[fault("state", "is no state a breaker can be told".into())]))
        }
        None => Err(Problem::faults(&[fault("state", "is missing".into())])),
    }
}

/// `{"name": …, "principal": …}`, both optional.
pub(super) fn new_key(body: Option<Value>) -> Result<NewKey, Problem> {
    let fault = |path: &str, wrong: &str, allowed: &str| FieldError {
        path: path.into(),
        wrong: wrong.into(),
        allowed: allowed.into(),
    };
    let members = match body {
        None => return Ok(NewKey::default()),
        Some(Value::Object(members)) => members,
        Some(_) => {
            return Err(Problem::faults(&[fault(
                "",
                "is not an object",
                "{\"name\": …, \"principal\": …}",
            )]));
        }
    };
    let (mut wanted, mut faults) = (NewKey::default(), Vec::new());
    for (name, value) in members {
        let slot = match name.as_str() {
            "name" => &mut wanted.name,
            "principal" => &mut wanted.principal,
            other => {
                faults.push(fault(other, "is not known", "name, principal"));
                continue;
            }
        };
        match value {
            Value::String(text) => *slot = Some(text),
            _ => faults.push(fault(&name, "is not a text", "a text")),
        }
    }
    if faults.is_empty() { Ok(wanted) } else { Err(Problem::faults(&faults)) }
}
