//! Requests to a backend that wants access tokens.
//!
//! A backend refuses a token before it works on the request. So the same request goes out again
//! with another token, a few times at most.

use bytes::Bytes;
use http::{Request, StatusCode, header::AUTHORIZATION};
use http_body_util::Full;
use rules::limits::oauth::OAUTH_TRIES_MAX;
use transport::{HttpClient, HttpResponse, ResponseBody};

use crate::{
    backends::link::failure::Failure,
    oauth::{Challenge, LinkTokens, OauthError},
};

/// Sends a request with a token. After a refusal of the token, sends it with another one.
pub(super) async fn send(
    client: &HttpClient,
    tokens: &LinkTokens,
    request: Request<Full<Bytes>>,
) -> Result<HttpResponse<ResponseBody>, Failure> {
    let mut header = tokens.header().await.map_err(|error| no_token(tokens, error))?;
    let mut tries = 0;
    loop {
        let mut request = request.clone();
        request.headers_mut().insert(AUTHORIZATION, header.clone());
        let response = client.send(request).await.map_err(Failure::of_send)?;
        tries += 1;
        let challenge = Challenge::of(response.headers());
        let may_change = match response.status() {
            // A second token that is refused shows that another one would not help.
            StatusCode::UNAUTHORIZED => tries == 1,
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
            Some(other) => header = other,
            None => return Ok(response),
        }
    }
}

fn no_token(tokens: &LinkTokens, error: OauthError) -> Failure {
    match (&error, tokens.source.user()) {
        (OauthError::Unconnected(_), Some(user)) => {
            Failure::Unconnected { reason: error.to_string(), url: user.connect_url() }
        }
        _ => Failure::NoToken(error.to_string()),
    }
}
