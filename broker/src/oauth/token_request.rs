//! Token requests and their answers (RFC 6749, 5).

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use rules::limits::oauth::OAUTH_TOKEN_BYTES_MAX;
use serde_json::Value;

use super::fetch::{OauthError, OauthFetcher, object};

/// Longest text of an error that an operator sees.
const ERROR_CODE_BYTES_MAX: usize = 64;

/// An access token with what its answer said about it.
#[derive(Clone)]
pub(super) struct AccessToken {
    /// Value of `Authorization`, which `Debug` does not show.
    pub(super) header: HeaderValue,
    /// The end of its life, with the time from which a new one is sought. `None`: until a backend
    /// refuses it.
    pub(super) ends: Option<TokenEnd>,
    pub(super) text: String,
    pub(super) refresh_token: Option<String>,
    /// Scopes that the answer names.
    pub(super) scopes: Option<Vec<String>>,
    pub(super) life: Option<Duration>,
}

impl std::fmt::Debug for AccessToken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "AccessToken {{ ends: {:?} }}", self.ends)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct TokenEnd {
    pub(super) renew_at: Instant,
    pub(super) expires_at: Instant,
}

/// Sends a token request and reads the answer.
pub(super) async fn request_token(
    fetcher: &OauthFetcher,
    request: Request<Full<Bytes>>,
) -> Result<AccessToken, OauthError> {
    let place = request.uri().clone();
    let began = Instant::now();
    let (status, body) = fetcher.send(request).await?;
    let answer = object(&body);
    let member = |name| answer.as_ref().and_then(|answer| answer.get(name));
    if status != StatusCode::OK {
        let code = error_code(member("error"));
        let text = format!("{place} answers {status}: {code}");
        if code == "invalid_grant" {
            return Err(OauthError::InvalidGrant(text));
        }
        let is_final = status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS;
        return Err(if is_final {
            OauthError::Refused(text)
        } else {
            OauthError::Unavailable(text)
        });
    }
    let unusable =
        |what| OauthError::Refused(format!("the answer of {place} has no usable {what}"));
    let is_bearer =
        |value: &Value| value.as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("bearer"));
    if !member("token_type").is_some_and(is_bearer) {
        return Err(unusable("token_type"));
    }
    let token = member("access_token").and_then(Value::as_str).unwrap_or_default();
    let is_token = |token: &&str| {
        (1..=OAUTH_TOKEN_BYTES_MAX).contains(&token.len())
            && token.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let header = Some(token)
        .filter(is_token)
        .and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok());
    let mut header = header.ok_or_else(|| unusable("access_token"))?;
    header.set_sensitive(true);
    let life = member("expires_in").and_then(seconds);
    let ends = life.and_then(|life| {
        Some(TokenEnd {
            renew_at: began.checked_add(life.mul_f64(0.8))?,
            expires_at: began.checked_add(life)?,
        })
    });
    let refresh_token = member("refresh_token").and_then(Value::as_str);
    let refresh_token = refresh_token.filter(is_token).map(str::to_owned);
    let scopes = member("scope").and_then(Value::as_str);
    let scopes = scopes.map(|scopes| scopes.split_ascii_whitespace().map(str::to_owned).collect());
    Ok(AccessToken { header, ends, text: token.to_owned(), refresh_token, scopes, life })
}

/// Returns a life in seconds. Some servers write it as text.
fn seconds(value: &Value) -> Option<Duration> {
    let seconds = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
    Some(Duration::from_secs(seconds.min(u64::from(u32::MAX))))
}

/// Returns the error code of an answer if it has the form of one. Other text of a server is not
/// shown.
fn error_code(value: Option<&Value>) -> &str {
    let is_code = |code: &&str| {
        (1..=ERROR_CODE_BYTES_MAX).contains(&code.len())
            && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    value.and_then(Value::as_str).filter(is_code).unwrap_or("without an error code")
}
