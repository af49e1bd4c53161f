//! The request to an introspection endpoint and its answer (RFC 7662, 2).
//!
//! Invariant: neither an error nor the log shows the token or the credential.

use std::sync::Arc;

use bytes::Bytes;
use config::{IntrospectionConfig, IntrospectionCredential};
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use rules::limits::tokens::INTROSPECTION_BYTES_MAX;
use transport::HttpClient;

use super::jwt::Claims;
use crate::auth::{ClientAuthentication, ClientCredential};

/// Client of one introspection endpoint.
#[derive(Debug)]
pub(super) struct IntrospectionClient {
    http: HttpClient,
    endpoint: Uri,
    /// Audience of client assertions.
    issuer: String,
    client: ClientAuthentication,
}

/// Reason why a server did not report whether a token is active.
#[derive(Debug)]
pub(super) enum IntrospectionFailure {
    /// The server cannot be used now, whatever the token.
    Server(String),
    /// The answer cannot be used. The next token may get another one.
    Answer(String),
    /// The server does not take this text for a token.
    Token(String),
}

impl IntrospectionFailure {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Server(text) | Self::Answer(text) | Self::Token(text) => text,
        }
    }
}

impl IntrospectionClient {
    pub(super) fn new(http: HttpClient, issuer: &str, config: &IntrospectionConfig) -> Self {
        let credential = match &config.credential {
            IntrospectionCredential::Basic(secret) => ClientCredential::Basic(secret.clone()),
            IntrospectionCredential::Post(secret) => ClientCredential::Post(secret.clone()),
            IntrospectionCredential::PrivateKeyJwt { key, key_id } => {
                ClientCredential::Key { key: key.clone(), key_id: key_id.clone() }
            }
        };
        Self {
            http,
            endpoint: config.endpoint.clone(),
            issuer: issuer.to_owned(),
            client: ClientAuthentication::new(&config.client_id, credential),
        }
    }

    /// Returns the server's answer about an active token, or `None` for an inactive one.
    pub(super) async fn send(
        &self,
        token: &str,
    ) -> Result<Option<Arc<[u8]>>, IntrospectionFailure> {
        use IntrospectionFailure::{Answer, Server, Token};
        let first = self.http.send(self.request(token).map_err(Server)?).await;
        let response = match first {
            Ok(response) => response,
            // The server may have closed the connection meanwhile. A question does no harm twice.
            Err(_) => {
                let again = self.http.send(self.request(token).map_err(Server)?).await;
                again.map_err(|error| Server(error.to_string()))?
            }
        };
        match response.status() {
            StatusCode::OK => {}
            StatusCode::BAD_REQUEST => {
                return Err(Token("the introspection endpoint answered 400".to_owned()));
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let status = response.status();
                return Err(Server(format!(
                    "the introspection endpoint answered {status}: check introspection.client_id"
                )));
            }
            status @ (StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT) => {
                return Err(Server(format!("the introspection endpoint answered {status}")));
            }
            status => return Err(Answer(format!("the introspection endpoint answered {status}"))),
        }
        let body = response.into_body().read_whole(INTROSPECTION_BYTES_MAX).await;
        let body = body.map_err(|error| Answer(error.to_string()))?;
        let unreadable = || Answer("the introspection answer does not follow RFC 7662".to_owned());
        let claims = Claims::parse(&body).map_err(|_| unreadable())?;
        match claims.flag("active") {
            Some(true) => Ok(Some(body.as_ref().into())),
            Some(false) => Ok(None),
            None => Err(unreadable()),
        }
    }

    fn request(&self, token: &str) -> Result<Request<Full<Bytes>>, String> {
        let form =
            vec![("token", token.to_owned()), ("token_type_hint", "access_token".to_owned())];
        let request = self.client.post(&self.endpoint, &self.issuer, form);
        request.ok_or_else(|| "the broker cannot sign a client assertion".to_owned())
    }
}
