//! Login of a browser at an issuer of the configuration: the console begins it, and the issuer sends
//! the browser back to [`callback`].

use axum::{
    Extension,
    extract::{Query, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use rules::sign_in_failures::{Plane, SignInFailureReason};
use serde::{Deserialize, Serialize};
use transport::parse_http_url;
use utoipa::ToSchema;

use super::{ConsoleState, login};
use crate::{
    auth::RemotePeer,
    listeners::admin::{
        audit::ClientIp,
        input::{JsonBody, read_as},
        login_cookie::{self, BrowserChannel, ConsoleLogin},
        problem::Problem,
    },
    oauth::{AuthorizationAnswer, CONSOLE_CALLBACK},
};

/// Addresses to which the callback leads a browser, relative to its own.
struct Destinations {
    /// View that reports that a login failed.
    failed: &'static str,
    signed_in: &'static str,
}

/// Of the callback that issuers share.
const FROM_SHARED: Destinations = Destinations { failed: "./#/login-failed", signed_in: "./" };
/// Of a callback that an issuer has for itself.
const FROM_OWN: Destinations = Destinations { failed: "../#/login-failed", signed_in: "../" };

#[derive(Serialize)]
struct LoginIssuers {
    /// Names of the issuers at which operators can log in.
    issuers: Vec<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WantedLogin {
    issuer: String,
    /// Address of the callback, as the browser requests it.
    redirect_uri: String,
}

#[derive(Serialize)]
struct LoginAddress {
    url: String,
}

/// Answer of an issuer, as its redirect carries it.
#[derive(Debug, Default, Deserialize)]
struct LoginAnswer {
    #[serde(default)]
    state: String,
    code: Option<String>,
    error: Option<String>,
    iss: Option<String>,
}

impl From<LoginAnswer> for AuthorizationAnswer {
    fn from(LoginAnswer { state, code, error, iss }: LoginAnswer) -> Self {
        Self { state, code, error, issuer: iss }
    }
}

/// Lists the issuers at which operators can log in.
pub(super) async fn issuers(State((control, _)): State<ConsoleState>) -> impl IntoResponse {
    axum::Json(LoginIssuers { issuers: control.broker.operator_logins().issuers() })
}

/// Begins a login at an issuer.
pub(super) async fn start(
    State((control, _)): State<ConsoleState>,
    uri: Uri,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, Problem> {
    let channel = BrowserChannel::of_page(&headers, &login::host(&uri, &headers)?)?;
    let page = login_cookie::page_of(&headers)?;
    let WantedLogin { issuer, redirect_uri } = read_as(&body.required()?)?;
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    if !is_console_callback(&redirect_uri, origin.unwrap_or_default()) {
        return Err(Problem::invalid("redirect_uri", "is not the callback of this console"));
    }
    let busy = || {
        let detail = "too many logins at issuers wait at the moment: try again in a few seconds";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "issuer-unavailable", detail)
    };
    let logins = control.broker.operator_logins();
    let unknown = || Problem::not_found("issuer", &issuer);
    if !logins.issuers().contains(&issuer) {
        return Err(unknown());
    }
    let _permit = control.broker.login_permit(&issuer).ok_or_else(busy)?;
    let login = logins.start(&issuer, &redirect_uri).await.ok_or_else(unknown)?;
    let (url, started) = login.map_err(|fault| {
        if let Some(left_out) = control.broker.attempt_line() {
            tracing::warn!(issuer, %fault, left_out, "an operator's login could not begin");
        }
        Problem::new(StatusCode::BAD_GATEWAY, "issuer-unavailable", fault.to_string())
    })?;
    let cookie = channel.pending_login(&control.broker.shared.persistence.seal, &started, &page)?;
    Ok(([(header::SET_COOKIE, cookie)], axum::Json(LoginAddress { url })).into_response())
}

/// Takes the answer of an issuer. The browser comes from the issuer's page, so the request has no
/// mark of the console. The sealed cookie of the begin replaces it.
pub(super) async fn callback(
    State((control, access)): State<ConsoleState>,
    peer: Option<Extension<ClientIp>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let is_shared = uri.path() == CONSOLE_CALLBACK;
    let Destinations { failed, signed_in } = if is_shared { FROM_SHARED } else { FROM_OWN };
    let Ok(host) = login::host(&uri, &headers) else { return redirect(failed, []) };
    let seal = &control.broker.shared.persistence.seal;
    let Some((channel, started, page)) = login_cookie::pending(&headers, &host, seal) else {
        return redirect(failed, []);
    };
    let answer = Query::<LoginAnswer>::try_from_uri(&uri)
        .map(|Query(answer)| AuthorizationAnswer::from(answer));
    // Another login, or a page that imitates an answer, does not end the pending one.
    let is_about = |answer: &AuthorizationAnswer| {
        answer.state == started.state && started.is_answered_at(uri.path())
    };
    let Some(answer) = answer.ok().filter(is_about) else { return redirect(failed, []) };
    let forgotten = channel.forget_pending();
    let failed = || redirect(failed, [forgotten.clone()]);
    let address = peer.map(|Extension(ClientIp(address))| address);
    // The issuer gets no request for an address with too many failed sign-ins.
    if control.broker.check_address(RemotePeer { address, ..RemotePeer::default() }).is_err() {
        return failed();
    }
    let Some(permit) = control.broker.login_permit(&started.issuer) else { return failed() };
    let finished = match control.broker.operator_logins().finish(&started, &answer).await {
        Ok(finished) => finished,
        Err(fault) => {
            tracing::warn!(%fault, "an operator's login at an issuer failed");
            let reason = SignInFailureReason::Login;
            control.broker.sign_in_failed(Plane::Admin, reason, address);
            return failed();
        }
    };
    drop(permit);
    let Ok(operator) = access.authenticate(&control, Some(Some(&finished.token))).await else {
        tracing::warn!("an issuer signed in a person who is not an operator");
        return failed();
    };
    let console = ConsoleLogin::new(&finished.token, page);
    match channel.login(seal, &console) {
        Ok(cookie) => {
            control.record_issuer_login(&console.id, &finished.at_issuer).await;
            login::record(&control, &operator, address).await;
            redirect(signed_in, [forgotten.clone(), Some(cookie)])
        }
        Err(_) => failed(),
    }
}

fn redirect(
    location: &'static str,
    cookies: impl IntoIterator<Item = Option<HeaderValue>>,
) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::from_static(location));
    for cookie in cookies.into_iter().flatten() {
        headers.append(header::SET_COOKIE, cookie);
    }
    response
}

/// Returns whether a redirect URI is the callback of the console at this origin.
fn is_console_callback(redirect_uri: &str, origin: &str) -> bool {
    let path = redirect_uri.strip_prefix(origin).filter(|path| path.starts_with('/'));
    path.is_some_and(|path| path.ends_with(CONSOLE_CALLBACK) && !path.contains(['?', '#']))
        && parse_http_url(redirect_uri).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_callback_url_of_the_console_is_accepted() {
        let origin = "https://ops.example";
        for (uri, is_one) in [
            ("https://ops.example/console/callback", true),
            ("https://ops.example/below/console/callback", true),
            ("https://ops.example.evil/console/callback", false),
            ("https://evil.example/console/callback", false),
            ("https://ops.example/console/callback?x=1", false),
            ("https://ops.example/console/callback#x", false),
            ("https://ops.example/callback", false),
        ] {
            assert_eq!(is_console_callback(uri, origin), is_one, "{uri}");
        }
    }
}
