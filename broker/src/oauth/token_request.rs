//! Token requests and their answers (RFC 6749, 5).

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::Full;
use rules::limits::oauth::OAUTH_TOKEN_BYTES_MAX;
use serde_json::{Map, Value};

use super::{
    fetch::{OauthError, OauthFetcher, object},
    scopes::named_scopes,
};

/// Longest text of an error that an operator sees.
const ERROR_CODE_BYTES_MAX: usize = 64;

/// Codes by which servers refuse a refresh token or a code: that of RFC 6749, 5.2, then those of
/// GitHub and of Supabase.
const INVALID_GRANT: [&str; 5] = [
    "invalid_grant",
    "bad_refresh_token",
    "bad_verification_code",
    "refresh_token_not_found",
    "refresh_token_already_used",
];
/// Codes by which servers refuse a client: that of RFC 6749, 5.2, then that of GitHub.
const INVALID_CLIENT: [&str; 2] = ["invalid_client", "incorrect_client_credentials"];

/// An access token with the other members of its answer.
#[derive(Clone)]
pub(super) struct AccessToken {
    /// Value of `Authorization`, which `Debug` does not show.
    pub(super) header: HeaderValue,
    /// The end of its life, with the time from which a new one is sought. `None`: until a backend
    /// refuses it.
    pub(super) ends: Option<TokenEnd>,
    pub(super) text: String,
    pub(super) refresh_token: Option<String>,
    pub(super) id_token: Option<String>,
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
    let began = Instant::now();
    let answer = GrantedAnswer::of(fetcher, request).await?;
    let is_bearer = |kind: &str| kind.eq_ignore_ascii_case("bearer");
    if !answer.text("token_type").is_some_and(is_bearer) {
        return Err(answer.unusable("token_type"));
    }
    let text = answer.token("access_token").ok_or_else(|| answer.unusable("access_token"))?;
    let header = HeaderValue::from_str(&format!("Bearer {text}")).ok();
    let mut header = header.ok_or_else(|| answer.unusable("access_token"))?;
    header.set_sensitive(true);
    let life = answer.members.get("expires_in").and_then(seconds);
    let ends = life.and_then(|life| {
        Some(TokenEnd {
            renew_at: began.checked_add(life.mul_f64(0.8))?,
            expires_at: began.checked_add(life)?,
        })
    });
    let scopes = answer.text("scope").map(named_scopes);
    Ok(AccessToken {
        header,
        ends,
        refresh_token: answer.token("refresh_token"),
        id_token: answer.token("id_token"),
        scopes,
        life,
        text,
    })
}

/// Requests an assertion of a type by token exchange (RFC 8693, 2.2.1). An assertion is not an access
/// token, though it comes in the same member.
pub(super) async fn request_assertion(
    fetcher: &OauthFetcher,
    request: Request<Full<Bytes>>,
    issued_type: &str,
) -> Result<String, OauthError> {
    let answer = GrantedAnswer::of(fetcher, request).await?;
    if answer.text("issued_token_type") != Some(issued_type) {
        return Err(answer.unusable("issued_token_type"));
    }
    answer.token("access_token").ok_or_else(|| answer.unusable("access_token"))
}

/// The answer of a token endpoint to a request that it granted.
struct GrantedAnswer {
    url: Uri,
    members: Map<String, Value>,
}

impl GrantedAnswer {
    async fn of(fetcher: &OauthFetcher, request: Request<Full<Bytes>>) -> Result<Self, OauthError> {
        let url = request.uri().clone();
        let (status, body) = fetcher.send(request).await?;
        let members = object(&body).unwrap_or_default();
        let error =
            ["error", "error_code"].into_iter().find_map(|name| members.get(name)?.as_str());
        // Some servers grant with 201, such as Supabase. GitHub sends its errors with 200.
        if status.is_success() && (error.is_none() || members.contains_key("access_token")) {
            return Ok(Self { url, members });
        }
        let code = error_code(error);
        let text = format!("{url} answers {status}: {code}");
        let is_temporary = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        Err(match code {
            code if INVALID_GRANT.contains(&code) => OauthError::InvalidGrant(text),
            code if INVALID_CLIENT.contains(&code) => OauthError::InvalidClient(text),
            _ if is_temporary || status.is_redirection() => OauthError::Unavailable(text),
            _ => OauthError::Refused(text),
        })
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.members.get(name)?.as_str()
    }

    /// Returns a member that has the form of a token.
    fn token(&self, name: &str) -> Option<String> {
        let is_token = |token: &&str| {
            (1..=OAUTH_TOKEN_BYTES_MAX).contains(&token.len())
                && token.bytes().all(|byte| byte.is_ascii_graphic())
        };
        self.text(name).filter(is_token).map(str::to_owned)
    }

    fn unusable(&self, what: &str) -> OauthError {
        OauthError::Refused(format!("the answer of {} has no usable {what}", self.url))
    }
}

/// Returns a life in seconds. Some servers write it as text, or with a fraction.
fn seconds(value: &Value) -> Option<Duration> {
    let seconds: Option<f64> = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    let seconds = seconds.filter(|seconds| seconds.is_finite())?;
    Duration::try_from_secs_f64(seconds.min(f64::from(u32::MAX))).ok()
}

/// Returns the error code of an answer if it has the form of one. Other text of a server is not
/// shown.
pub(super) fn error_code(text: Option<&str>) -> &str {
    let is_code = |code: &&str| {
        (1..=ERROR_CODE_BYTES_MAX).contains(&code.len())
            && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    text.filter(is_code).unwrap_or("without an error code")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_life_may_be_a_text_or_have_a_fraction() {
        let longest = Duration::from_secs(u64::from(u32::MAX));
        for (value, life) in [
            (json!(3_600), Some(Duration::from_secs(3_600))),
            (json!("3600"), Some(Duration::from_secs(3_600))),
            (json!(3_599.5), Some(Duration::from_millis(3_599_500))),
            (json!(1e300), Some(longest)),
            (json!(u64::MAX), Some(longest)),
            (json!(-1), None),
            (json!("NaN"), None),
            (json!("inf"), None),
            (json!("soon"), None),
            (json!(null), None),
        ] {
            assert_eq!(seconds(&value), life, "{value}");
        }
    }

    #[test]
    fn an_error_is_shown_only_if_it_has_the_form_of_a_code() {
        assert_eq!(error_code(Some("access_denied")), "access_denied");
        for hostile in ["", "<b>", "a b", &"x".repeat(ERROR_CODE_BYTES_MAX + 1)] {
            assert_eq!(error_code(Some(hostile)), "without an error code");
        }
    }
}
