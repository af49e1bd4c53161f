//! Login and logout of a browser.

use std::net::IpAddr;

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header, uri::Authority},
    response::{IntoResponse, Response},
};
use rules::operators::Operator;
use serde::Deserialize;
use utoipa::ToSchema;

use super::ConsoleState;
use crate::{
    control::{AuditedAction, Author, Control},
    listeners::admin::{
        access::{self, requested_host},
        audit::ClientIp,
        input::{JsonBody, read_as},
        login_cookie::BrowserChannel,
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
    let Credential { token } = read_as(&body.required()?)?;
    let token = token.trim();
    let address = peer.map(|Extension(ClientIp(address))| address);
    let operator = match access.authenticate(&control, Some(Some(token))).await {
        Ok(operator) => operator,
        Err(denied) => return Ok(access::answer(&control, denied, address)),
    };
    let cookie = channel.login(&control.broker.shared.durable.seal, token)?;
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

/// Removes the login from the browser.
pub(super) async fn sign_out(uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    let channel = BrowserChannel::of_page(&headers, &host(&uri, &headers)?)?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some(cookie) = channel.logout() {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

pub(super) fn host(uri: &Uri, headers: &HeaderMap) -> Result<Authority, Problem> {
    requested_host(uri, headers)
        .ok_or_else(|| Problem::invalid("Host", "the Host header is missing or not a host name"))
}
