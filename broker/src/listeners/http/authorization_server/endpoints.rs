//! Endpoints of an authorization server of the broker's.

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode, Uri,
    header::{
        AUTHORIZATION, CONTENT_TYPE, LOCATION, REFERRER_POLICY, RETRY_AFTER, WWW_AUTHENTICATE,
    },
};
use http_body_util::{Either, Full};
use protocol::error::Refusal;
use rules::sign_in_failures::{Plane, SignInFailureReason};
use serde_json::{Map, Value};

use super::{OAuthError, body_of, registered, uncached};
use crate::{
    auth::{
        RemotePeer,
        adapted::{
            AdaptedIssuer, IssuerMetadata, TokenAnswer, TokenRequestFault, registered_client,
        },
    },
    broker::Broker,
    listeners::http::{
        inbound_request::RequestBody,
        response::{self, Body},
    },
};

const FORM: &str = "application/x-www-form-urlencoded";
const JSON: &str = "application/json";

/// Sends the browser of a user on to the issuer (RFC 6749, 4.1.1).
pub(super) fn authorize(
    issuer: &AdaptedIssuer,
    metadata: &IssuerMetadata,
    uri: &Uri,
) -> Result<Response<Body>, OAuthError> {
    let query = uri.query().unwrap_or_default();
    let url = issuer.authorization_url(metadata, query).map_err(OAuthError::invalid)?;
    let location = HeaderValue::try_from(url)
        .map_err(|_| OAuthError::invalid("the parameters are not form-encoded"))?;
    let mut response = uncached(response::empty(StatusCode::FOUND));
    let headers = response.headers_mut();
    headers.insert(LOCATION, location);
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(response)
}

/// Forwards a token request, and returns the issuer's answer (RFC 6749, 3.2). A request that the
/// issuer refuses is a failed sign-in. The issuer gets none of an address with too many of them:
/// strangers would use up the requests that may be open at the same time.
pub(super) async fn token<B: RequestBody>(
    broker: &Broker,
    issuer: &AdaptedIssuer,
    metadata: &IssuerMetadata,
    request: Request<B>,
    remote: RemotePeer,
) -> Result<Response<Body>, OAuthError> {
    check_media_type(&request, FORM)?;
    let mut credentials = request.headers().get_all(AUTHORIZATION).iter().cloned();
    let authorization = credentials.next();
    if credentials.next().is_some() {
        return Err(OAuthError::invalid("Authorization must be given only once"));
    }
    let form = body_of(broker, request.into_body()).await?;
    let forwarded =
        issuer.token_request(metadata, &form, authorization).map_err(OAuthError::invalid)?;
    if let Err(refusal) = broker.check_address(remote) {
        return Ok(too_many(&refusal));
    }
    let answer = match issuer.forward(metadata, forwarded).await {
        Ok(answer) => answer,
        Err(TokenRequestFault::Parameters(fault)) => return Err(OAuthError::invalid(fault)),
        Err(fault) => {
            if let TokenRequestFault::Unreachable(reason) = &fault
                && let Some(left_out) = broker.attempt_line()
            {
                tracing::warn!(
                    issuer = issuer.own_issuer(),
                    reason,
                    left_out,
                    "a token request could not be forwarded"
                );
            }
            return Err(OAuthError::unavailable(fault));
        }
    };
    if is_refused(answer.status) {
        let (plane, reason) = (Plane::Data, SignInFailureReason::Login);
        let _still_answered = broker.sign_in_failed(plane, reason, remote.address);
    }
    let status = answer.status;
    answered(answer).inspect_err(|_| {
        if let Some(left_out) = broker.attempt_line() {
            let issuer = issuer.own_issuer();
            tracing::warn!(issuer, %status, left_out, "the answer to a token request is not JSON");
        }
    })
}

/// Returns whether an issuer refused a token request because of what the client showed (RFC 6749,
/// 5.2).
fn is_refused(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

/// Returns the answer to an address with too many failed sign-ins.
fn too_many(refusal: &Refusal) -> Response<Body> {
    let error = OAuthError {
        status: StatusCode::TOO_MANY_REQUESTS,
        code: "temporarily_unavailable",
        description: refusal.message.clone(),
    };
    let mut response = error.into_response();
    let wait = refusal.retry_after.unwrap_or_default();
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
    response
}

/// Returns the issuer's answer, if it is an object in JSON (RFC 6749, 5.1 and 5.2). The page of an
/// issuer would have the origin of the broker.
fn answered(answer: TokenAnswer) -> Result<Response<Body>, OAuthError> {
    let is_object = serde_json::from_slice::<Map<String, Value>>(&answer.body);
    if !answer.content_type.as_ref().is_some_and(is_json) || is_object.is_err() {
        return Err(OAuthError {
            status: StatusCode::BAD_GATEWAY,
            code: "server_error",
            description: "the answer of the issuer is not JSON".to_owned(),
        });
    }
    let mut response = Response::new(Either::Left(Full::new(answer.body)));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    headers.extend(answer.challenge.map(|challenge| (WWW_AUTHENTICATE, challenge)));
    Ok(uncached(response))
}

fn is_json(content_type: &HeaderValue) -> bool {
    let essence = content_type.to_str().unwrap_or_default().split(';').next();
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case(JSON))
}

/// Answers every registration with the one client of the issuer (RFC 7591, 3).
pub(super) async fn register<B: RequestBody>(
    broker: &Broker,
    issuer: &AdaptedIssuer,
    request: Request<B>,
) -> Result<Response<Body>, OAuthError> {
    let client = registered(issuer)?;
    check_media_type(&request, JSON)?;
    let body = body_of(broker, request.into_body()).await?;
    let information = registered_client(client, &body).map_err(|fault| OAuthError {
        status: StatusCode::BAD_REQUEST,
        code: fault.code(),
        description: fault.to_string(),
    })?;
    let text = Bytes::from(information.to_string());
    Ok(uncached(response::json(StatusCode::CREATED, text)))
}

fn check_media_type<B>(request: &Request<B>, wanted: &str) -> Result<(), OAuthError> {
    let given = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = given.unwrap_or_default().split(';').next().unwrap_or_default();
    if essence.trim().eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    Err(OAuthError {
        status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
        code: "invalid_request",
        description: format!("send the request as {wanted}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_object_in_json_is_forwarded_to_the_client() {
        let status = |content_type: Option<&'static str>, body: &'static str| {
            let answer = TokenAnswer {
                status: StatusCode::BAD_REQUEST,
                content_type: content_type.map(HeaderValue::from_static),
                challenge: None,
                body: Bytes::from_static(body.as_bytes()),
            };
            answered(answer).map_err(|error| error.status).map(|response| {
                assert_eq!(response.headers()[CONTENT_TYPE], JSON);
                assert_eq!(response.headers()["x-content-type-options"], "nosniff");
                response.status()
            })
        };
        let error = "{\"error\":\"invalid_grant\"}";
        for json in ["application/json", "application/json; charset=utf-8", "Application/JSON"] {
            assert_eq!(status(Some(json), error), Ok(StatusCode::BAD_REQUEST), "{json}");
        }
        let page = "<script>alert(document.domain)</script>";
        for (content_type, body) in [
            (Some("text/html"), page),
            (Some("application/json"), page),
            (Some("application/json"), "\"text\""),
            (Some("image/svg+xml"), error),
            (None, error),
        ] {
            let refused = Err(StatusCode::BAD_GATEWAY);
            assert_eq!(status(content_type, body), refused, "{content_type:?} {body}");
        }
    }
}
