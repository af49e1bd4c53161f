//! Login of a browser at an issuer of the configuration: the console begins it, and the issuer sends
//! the browser back to [`callback`].

use axum::{
    Extension,
    extract::{Query, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ConsoleState, login};
use crate::{
    auth::{LoginAnswer, LoginFault, is_console_callback},
    listeners::admin::{
        audit::ClientIp,
        input::{JsonBody, read_as},
        login_cookie::{self, BrowserChannel},
        problem::Problem,
    },
};

/// View that says that a login failed.
const FAILED: &str = "./#/login-failed";
const SIGNED_IN: &str = "./";

#[derive(Serialize)]
struct LoginIssuers {
    /// Names of the issuers at which operators can log in.
    issuers: Vec<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WantedLogin {
    issuer: String,
    /// Address of the callback, as the browser knows it.
    redirect_uri: String,
}

#[derive(Serialize)]
struct LoginAddress {
    url: String,
}

/// Lists the issuers at which operators can log in.
pub(super) async fn issuers(State((control, _)): State<ConsoleState>) -> impl IntoResponse {
    axum::Json(LoginIssuers { issuers: control.broker.operator_login_issuers() })
}

/// Begins a login at an issuer.
pub(super) async fn begin(
    State((control, _)): State<ConsoleState>,
    uri: Uri,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, Problem> {
    let channel = BrowserChannel::of_page(&headers, &login::host(&uri, &headers)?)?;
    let WantedLogin { issuer, redirect_uri } = read_as(&body.required()?)?;
    let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
    if !is_console_callback(&redirect_uri, origin.unwrap_or_default()) {
        return Err(Problem::invalid("redirect_uri", "is not the callback of this console"));
    }
    let begun = control.broker.begin_operator_login(&issuer, &redirect_uri).await;
    let (url, started) = begun.map_err(|fault| refused(&issuer, &fault))?;
    let cookie = channel.begun(&control.broker.shared.durable.seal, &started)?;
    Ok(([(header::SET_COOKIE, cookie)], axum::Json(LoginAddress { url })).into_response())
}

fn refused(issuer: &str, fault: &LoginFault) -> Problem {
    tracing::warn!(issuer, %fault, "an operator's login could not begin");
    match fault {
        LoginFault::UnknownIssuer => Problem::not_found("issuer", issuer),
        _ => Problem::new(StatusCode::BAD_GATEWAY, "issuer-unavailable", fault.to_string()),
    }
}

/// Takes the answer of an issuer. The browser comes from the issuer's page, so the request has no
/// mark of the console. The sealed cookie of the begin takes its place.
pub(super) async fn callback(
    State((control, access)): State<ConsoleState>,
    peer: Option<Extension<ClientIp>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let Ok(host) = login::host(&uri, &headers) else { return redirect(FAILED, []) };
    let seal = &control.broker.shared.durable.seal;
    let Some((channel, started)) = login_cookie::begun(&headers, &host, seal) else {
        return redirect(FAILED, []);
    };
    let forgotten = channel.forget_begun();
    let failed = || redirect(FAILED, [forgotten.clone()]);
    let answer = Query::<LoginAnswer>::try_from_uri(&uri).map(|Query(answer)| answer);
    let Ok(answer) = answer else { return failed() };
    let token = match control.broker.finish_operator_login(&started, &answer).await {
        Ok(token) => token,
        Err(fault) => {
            tracing::warn!(%fault, "an operator's login at an issuer failed");
            return failed();
        }
    };
    let address = peer.map(|Extension(ClientIp(address))| address);
    let Ok(operator) = access.authenticate(&control, Some(Some(&token))).await else {
        tracing::warn!("an issuer signed in a person who is not an operator");
        return failed();
    };
    match channel.login(seal, &token) {
        Ok(cookie) => {
            login::record(&control, &operator, address).await;
            redirect(SIGNED_IN, [forgotten.clone(), Some(cookie)])
        }
        Err(_) => failed(),
    }
}

fn redirect(
    place: &'static str,
    cookies: impl IntoIterator<Item = Option<HeaderValue>>,
) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::from_static(place));
    for cookie in cookies.into_iter().flatten() {
        headers.append(header::SET_COOKIE, cookie);
    }
    response
}
