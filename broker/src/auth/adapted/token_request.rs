//! Token requests that the broker forwards to the issuer (RFC 6749, 3.2). It changes the form as
//! the front requires, and returns the issuer's answer unchanged.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{
    HeaderValue, Request, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::Full;
use rules::limits::tokens::{AUTHORIZATION_ANSWER_BYTES_MAX, AUTHORIZATION_FORWARD_MAX};
use tokio::time::timeout;

use super::{
    AdaptedIssuer, IssuerMetadata, ParameterFault,
    parameters::{Parameters, encoded},
};

/// Grants in which a user has signed in. Only they get the secret: with `client_credentials`
/// everyone could get tokens of the client itself.
const GRANTS_WITH_SECRET: [&str; 2] = ["authorization_code", "refresh_token"];
/// Parameters by which a client shows a credential of its own.
const OWN_CREDENTIALS: [&str; 3] = ["client_secret", "client_assertion", "client_assertion_type"];

/// Reason why the issuer's answer cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum TokenRequestFault {
    #[error(transparent)]
    Parameters(#[from] ParameterFault),
    #[error("the issuer cannot be reached")]
    Unreachable(String),
    #[error("the issuer did not answer in time")]
    Late,
    #[error("the broker has too many open token requests to issuers")]
    Busy,
    #[error("the issuer redirects the token request")]
    Redirects,
}

/// A token request for the issuer.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenRequest {
    form: String,
    authorization: Option<HeaderValue>,
}

/// The issuer's answer.
#[derive(Debug)]
pub struct TokenAnswer {
    pub status: StatusCode,
    pub content_type: Option<HeaderValue>,
    pub challenge: Option<HeaderValue>,
    pub body: Bytes,
}

impl AdaptedIssuer {
    /// Returns the request in the form for the issuer. `authorization` is the client's own header.
    pub fn token_request(
        &self,
        metadata: &IssuerMetadata,
        form: &[u8],
        authorization: Option<HeaderValue>,
    ) -> Result<TokenRequest, ParameterFault> {
        let form = std::str::from_utf8(form).map_err(|_| ParameterFault::Encoding)?;
        let mut parameters = Parameters::parse(form)?;
        self.check_redirect_uri(&parameters)?;
        self.adapt(&mut parameters);
        let mut authorization = authorization;
        let client = self.front().registration.as_ref();
        let secret = client.and_then(|client| Some((client, client.secret.as_ref()?)));
        if let Some((client, secret)) = secret {
            let is_its_own = parameters.get("client_id") == Some(client.client_id.as_str());
            let has_user =
                parameters.get("grant_type").is_some_and(|kind| GRANTS_WITH_SECRET.contains(&kind));
            let shows_nothing = authorization.is_none()
                && OWN_CREDENTIALS.iter().all(|name| parameters.get(name).is_none());
            if is_its_own && has_user && shows_nothing {
                if metadata.takes_secret_in_body {
                    parameters.set("client_secret", secret.expose());
                } else {
                    // RFC 6749, 2.3.1: both parts are encoded as in forms.
                    let pair =
                        format!("{}:{}", encoded(&client.client_id), encoded(secret.expose()));
                    let value = format!("Basic {}", STANDARD.encode(pair));
                    let mut value =
                        HeaderValue::try_from(value).map_err(|_| ParameterFault::Encoding)?;
                    value.set_sensitive(true);
                    authorization = Some(value);
                    parameters.remove("client_id");
                }
            }
        }
        Ok(TokenRequest { form: parameters.encoded(), authorization })
    }

    /// Sends a request to the issuer and returns its answer. Follows no redirect.
    pub async fn forward(
        &self,
        metadata: &IssuerMetadata,
        request: TokenRequest,
    ) -> Result<TokenAnswer, TokenRequestFault> {
        // An issuer that does not answer leaves permits to others.
        let busy = |_| TokenRequestFault::Busy;
        let _of_issuer = self.issuer.forwards.try_acquire().map_err(busy)?;
        let _of_all = self.forwards.try_acquire().map_err(busy)?;
        let TokenRequest { form, authorization } = request;
        let mut forwarded = Request::post(metadata.token_endpoint.clone())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(ACCEPT, "application/json")
            .body(Full::new(Bytes::from(form)))
            .map_err(|error| TokenRequestFault::Unreachable(error.to_string()))?;
        if let Some(authorization) = authorization {
            forwarded.headers_mut().insert(AUTHORIZATION, authorization);
        }
        let client = self.fetcher.client_for(self.issuer.config(), &metadata.token_endpoint);
        let exchange = async {
            let unreachable = |error: String| TokenRequestFault::Unreachable(error);
            let answer =
                client.send(forwarded).await.map_err(|error| unreachable(error.to_string()))?;
            let status = answer.status();
            if status.is_redirection() || status.is_informational() {
                return Err(TokenRequestFault::Redirects);
            }
            let header = |name: &str| answer.headers().get(name).cloned();
            let (content_type, challenge) = (header("content-type"), header("www-authenticate"));
            let body = answer.into_body().read_whole(AUTHORIZATION_ANSWER_BYTES_MAX).await;
            let body = body.map_err(|error| unreachable(error.to_string()))?;
            Ok(TokenAnswer { status, content_type, challenge, body })
        };
        timeout(AUTHORIZATION_FORWARD_MAX, exchange).await.unwrap_or(Err(TokenRequestFault::Late))
    }
}
