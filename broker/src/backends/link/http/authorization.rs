//! Requests to a backend that wants access tokens.
//!
//! A backend refuses a token before it works on the request. So the same request goes out again
//! with another token, a few times at most.

use bytes::Bytes;
use http::{Request, StatusCode, header::AUTHORIZATION};
use http_body_util::Full;
use rules::limits::oauth::OAUTH_TRIES_MAX;
use transport::{HttpClient, HttpResponse, ResponseBody, VectoredBody};

use crate::{
    backends::link::failure::Failure,
    oauth::{Challenge, LinkPost, LinkTokens, OauthError, TokenHeader},
};

/// Sends a prepared POST. After a refusal of the token, sends it with another one. `post` makes the
/// POST without a token.
pub(super) async fn send_prepared(
    client: &HttpClient,
    tokens: &LinkTokens,
    LinkPost { header, prepared }: LinkPost,
    frame: VectoredBody,
    post: impl FnOnce(Bytes) -> Request<Full<Bytes>>,
) -> Result<HttpResponse<ResponseBody>, Failure> {
    let response = client.send_prepared(&prepared, frame.clone()).await;
    let response = response.map_err(Failure::of_send)?;
    if ![StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&response.status()) {
        return Ok(response);
    }
    send(client, tokens, post(frame.into_bytes()), Some((header, response))).await
}

/// A request that was sent with a token already, and its response.
type FirstTry = (TokenHeader, HttpResponse<ResponseBody>);

/// Sends a request with a token, unless that is done. After a refusal of the token, sends it with
/// another one.
pub(super) async fn send(
    client: &HttpClient,
    tokens: &LinkTokens,
    request: Request<Full<Bytes>>,
    first: Option<FirstTry>,
) -> Result<HttpResponse<ResponseBody>, Failure> {
    let with = |header: &TokenHeader| {
        let mut request = request.clone();
        request.headers_mut().insert(AUTHORIZATION, header.clone());
        client.send(request)
    };
    let (mut header, mut response) = match first {
        Some(first) => first,
        None => {
            let header = tokens.header().await.map_err(|error| no_token(tokens, error))?;
            let response = with(&header).await.map_err(Failure::of_send)?;
            (header, response)
        }
    };
    let (mut tries, mut is_new) = (1, false);
    loop {
        let challenge = Challenge::of(response.headers());
        let may_change = match response.status() {
            // If the server has issued a token since the first refusal, another one would not help.
            // Another process may have stored one before the backend refused all of them.
            StatusCode::UNAUTHORIZED => tries < OAUTH_TRIES_MAX && !is_new,
            StatusCode::FORBIDDEN => {
                tries < OAUTH_TRIES_MAX && challenge.as_ref().is_some_and(Challenge::wants_scopes)
            }
            _ => false,
        };
        if !may_change {
            return Ok(response);
        }
        let renewed = tokens.renewed(&header, challenge).await;
        match renewed.map_err(|error| no_token(tokens, error))? {
            Some(renewed) => (header, is_new) = (renewed.header, renewed.is_new),
            None => return Ok(response),
        }
        response = with(&header).await.map_err(Failure::of_send)?;
        tries += 1;
    }
}

fn no_token(tokens: &LinkTokens, error: OauthError) -> Failure {
    match (&error, tokens.source.user()) {
        (OauthError::NoCallerToken, _) => Failure::TokenRequired(error.to_string()),
        (OauthError::Unconnected(_), Some(user)) => {
            Failure::Unconnected { reason: error.to_string(), url: user.connect_url() }
        }
        _ => Failure::NoToken(error.to_string()),
    }
}
