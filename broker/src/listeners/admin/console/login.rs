//! Login and logout of a browser.

use std::net::IpAddr;

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header, uri::Authority},
    response::{IntoResponse, Response},
};
use rules::operators::Operator;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ConsoleState;
use crate::{
    control::{AuditedAction, Author, Control},
    listeners::admin::{
        access::{self, requested_host},
        audit::ClientIp,
        input::{JsonBody, read_as},
        login_cookie::{self, BrowserChannel, ConsoleLogin},
        problem::Problem,
    },
    telemetry::request::RequestName,
};

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Credential {
    /// Token of an operator.
    token: String,
}

/// Signs a browser in with an operator's token.
pub(super) async fn sign_in(
    State((control, access)): State<ConsoleState>,
    peer: Option<Extension<ClientIp>>,
    uri: Uri,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, Problem> {
    let channel = BrowserChannel::of_page(&headers, &host(&uri, &headers)?)?;
    let page = login_cookie::page_of(&headers)?;
    let Credential { token } = read_as(&body.required()?)?;
    let token = token.trim();
    let address = peer.map(|Extension(ClientIp(address))| address);
    let operator = match access.authenticate(&control, Some(Some(token))).await {
        Ok(operator) => operator,
        Err(denied) => return Ok(access::answer(&control, denied, address)),
    };
    let login = ConsoleLogin::new(token, page);
    let cookie = channel.login(&control.broker.shared.persistence.seal, &login)?;
    record(&control, &operator, address).await;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// Records a login in the audit log.
pub(super) async fn record(control: &Control, operator: &Operator, address: Option<IpAddr>) {
    let author = Author::of(AuditedAction {
        who: operator.name.clone(),
        tenant: None,
        action: "sign_in".to_owned(),
        target: Some("console".to_owned()),
        address: address.map(|address| address.to_string()),
        request: RequestName::random(),
    });
    control.record(&author, None).await;
}

/// Where the browser ends its session at the issuer of a login.
#[derive(Serialize)]
struct IssuerLogout {
    url: String,
}

/// Ends the login on every replica, and removes it from the browser. Returns the address at which
/// the issuer of the login ends its own session, if there is one. Without the database the login
/// does not end, but the browser forgets it.
pub(super) async fn sign_out(
    State((control, _)): State<ConsoleState>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let host = host(&uri, &headers)?;
    let channel = BrowserChannel::of_page(&headers, &host)?;
    let seal = &control.broker.shared.persistence.seal;
    let login = login_cookie::login_to_end(&headers, &host, seal)?;
    let mut response = match &login {
        None => StatusCode::NO_CONTENT.into_response(),
        Some(login) => match control.end_login(&login.id, login.remaining_time()).await {
            Err(error) => Problem::from(error).into_response(),
            Ok(None) => StatusCode::NO_CONTENT.into_response(),
            Ok(Some(url)) => axum::Json(IssuerLogout { url }).into_response(),
        },
    };
    if let Some(cookie) = channel.logout() {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

pub(super) fn host(uri: &Uri, headers: &HeaderMap) -> Result<Authority, Problem> {
    requested_host(uri, headers)
        .ok_or_else(|| Problem::invalid("Host", "the Host header is missing or not a host name"))
}
