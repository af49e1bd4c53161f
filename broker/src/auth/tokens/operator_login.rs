//! Logins of operators at an issuer (`auth.issuers[].admin.login`): authorization code with PKCE
//! (RFC 7636), and the identification of the issuer (RFC 9207). The console's routes call it.
//!
//! Invariants:
//! - An answer counts only for the login that the same browser began.
//! - The result is a token, which is verified like any other before its holder is an operator.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use http::{
    HeaderValue, Request, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::Full;
use rules::limits::tokens::{AUTHORIZATION_ANSWER_BYTES_MAX, AUTHORIZATION_FORWARD_MAX};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::timeout;
use transport::parse_http_url;

use super::{TokenVerifier, issuer::TokenIssuer, metadata::IssuerMetadata};
use crate::{
    auth::form_encoded,
    config::{OperatorLoginClient, OperatorMapping},
};

/// Largest error code of an issuer that the log shows.
const ERROR_CODE_CHARS_MAX: usize = 64;

/// A login at an issuer, until the browser comes back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StartedLogin {
    issuer: String,
    state: String,
    verifier: String,
    redirect_uri: String,
    /// True if the issuer identifies itself in each answer.
    sends_issuer: bool,
}

/// Answer of an issuer, as its redirect carries it.
#[derive(Debug, Default, Deserialize)]
pub struct LoginAnswer {
    state: Option<String>,
    code: Option<String>,
    error: Option<String>,
    iss: Option<String>,
}

/// Reason why a login failed.
#[derive(Debug, thiserror::Error)]
pub enum LoginFault {
    #[error("no issuer of this name has admin.login")]
    UnknownIssuer,
    #[error("the metadata of the issuer cannot be used: {0}")]
    Metadata(String),
    #[error("the answer belongs to another login")]
    Foreign,
    #[error("the issuer refuses: {0}")]
    Refused(String),
    #[error("the issuer cannot be reached: {0}")]
    Unreachable(String),
}

impl TokenVerifier {
    /// Returns the issuers at which operators can log in, by their names.
    pub fn login_issuers(&self) -> Vec<String> {
        let issuers = self.issuers.load();
        let mut names: Vec<String> = issuers
            .values()
            .filter(|issuer| login_of(issuer).is_some())
            .map(|issuer| issuer.config().issuer.clone())
            .collect();
        names.sort_unstable();
        names
    }

    /// Begins a login. Returns the address for the browser, and what its answer is checked against.
    pub async fn begin_login(
        &self,
        issuer: &str,
        redirect_uri: &str,
    ) -> Result<(String, StartedLogin), LoginFault> {
        let issuer = self.login_issuer(issuer)?;
        let (mapping, client) = login_of(&issuer).ok_or(LoginFault::UnknownIssuer)?;
        let metadata = self.login_metadata(&issuer).await?;
        let started = StartedLogin {
            issuer: issuer.config().issuer.clone(),
            state: random_text(),
            verifier: random_text(),
            redirect_uri: redirect_uri.to_owned(),
            sends_issuer: metadata.sends_issuer(),
        };
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, started.verifier.as_bytes()));
        let audience = mapping.audience(issuer.resource());
        let scopes = client.scopes.join(" ");
        let mut parameters = vec![
            ("response_type", "code"),
            ("client_id", &client.client_id),
            ("redirect_uri", redirect_uri),
            ("state", &started.state),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("resource", &audience),
        ];
        if !scopes.is_empty() {
            parameters.push(("scope", &scopes));
        }
        let endpoint = &metadata.authorization_endpoint;
        let separator = if endpoint.contains('?') { '&' } else { '?' };
        Ok((format!("{endpoint}{separator}{}", form(&parameters)), started))
    }

    /// Ends a login with the answer of the issuer. Returns a token, which is not verified yet.
    pub async fn finish_login(
        &self,
        started: &StartedLogin,
        answer: &LoginAnswer,
    ) -> Result<String, LoginFault> {
        let is_ours = answer.state.as_deref() == Some(started.state.as_str())
            && answer.iss.as_ref().map_or(!started.sends_issuer, |iss| *iss == started.issuer);
        if !is_ours {
            return Err(LoginFault::Foreign);
        }
        let issuer = self.login_issuer(&started.issuer)?;
        let (mapping, client) = login_of(&issuer).ok_or(LoginFault::UnknownIssuer)?;
        let refused = || LoginFault::Refused(code_of(answer.error.as_deref()));
        let code = answer.code.as_deref().filter(|_| answer.error.is_none()).ok_or_else(refused)?;
        let metadata = self.login_metadata(&issuer).await?;
        let audience = mapping.audience(issuer.resource());
        let mut parameters = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &started.redirect_uri),
            ("code_verifier", &started.verifier),
            ("resource", &audience),
        ];
        let mut request = Request::post(metadata.token_endpoint.clone())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(ACCEPT, "application/json");
        match &client.client_secret {
            // RFC 6749, 2.3.1: both parts are encoded as in forms.
            Some(secret) => {
                let id = form_encoded(&client.client_id);
                let pair = format!("{id}:{}", form_encoded(secret.expose()));
                let value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(pair)));
                let mut value = value.map_err(|_| LoginFault::UnknownIssuer)?;
                value.set_sensitive(true);
                request = request.header(AUTHORIZATION, value);
            }
            None => parameters.push(("client_id", &client.client_id)),
        }
        let request = request
            .body(Full::new(Bytes::from(form(&parameters))))
            .map_err(|error| LoginFault::Unreachable(error.to_string()))?;
        self.token_of(&issuer, &metadata.token_endpoint, request).await
    }

    async fn token_of(
        &self,
        issuer: &TokenIssuer,
        endpoint: &Uri,
        request: Request<Full<Bytes>>,
    ) -> Result<String, LoginFault> {
        let unreachable = |error: String| LoginFault::Unreachable(error);
        let client = self.fetcher.client_for(issuer.config(), endpoint);
        let exchange = async {
            let answer =
                client.send(request).await.map_err(|error| unreachable(error.to_string()))?;
            let status = answer.status();
            let body = answer.into_body().read_whole(AUTHORIZATION_ANSWER_BYTES_MAX).await;
            let body = body.map_err(|error| unreachable(error.to_string()))?;
            Ok((status, body))
        };
        let late = || Err(unreachable("it does not answer in time".to_owned()));
        let (status, body) =
            timeout(AUTHORIZATION_FORWARD_MAX, exchange).await.unwrap_or_else(|_| late())?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        match answer["access_token"].as_str().filter(|_| status == StatusCode::OK) {
            Some(token) => Ok(token.to_owned()),
            None => Err(LoginFault::Refused(code_of(answer["error"].as_str()))),
        }
    }

    fn login_issuer(&self, name: &str) -> Result<Arc<TokenIssuer>, LoginFault> {
        self.issuers.load().get(name).cloned().ok_or(LoginFault::UnknownIssuer)
    }

    async fn login_metadata(&self, issuer: &TokenIssuer) -> Result<IssuerMetadata, LoginFault> {
        let members = self.fetcher.members(issuer.config());
        let members = timeout(AUTHORIZATION_FORWARD_MAX, members).await;
        let members = members
            .map_err(|_| LoginFault::Unreachable("it does not answer in time".to_owned()))?
            .map_err(|error| LoginFault::Metadata(error.to_string()))?;
        IssuerMetadata::read(members, &issuer.config().issuer)
            .map_err(|fault| LoginFault::Metadata(fault.to_string()))
    }
}

fn login_of(issuer: &TokenIssuer) -> Option<(&OperatorMapping, &OperatorLoginClient)> {
    let mapping = issuer.config().operators.as_ref()?;
    Some((mapping, mapping.login.as_ref()?))
}

fn random_text() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

fn form(parameters: &[(&str, &str)]) -> String {
    let pairs = parameters.iter().map(|(name, value)| format!("{name}={}", form_encoded(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Returns an error code if it has the form of one. Other text of an issuer is not shown.
fn code_of(error: Option<&str>) -> String {
    let is_code = |code: &&str| {
        (1..=ERROR_CODE_CHARS_MAX).contains(&code.len())
            && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    error.filter(is_code).unwrap_or("without an error code").to_owned()
}

/// Returns whether a redirect URI is the callback of the console at this origin.
pub fn is_console_callback(redirect_uri: &str, origin: &str) -> bool {
    let path = redirect_uri.strip_prefix(origin).filter(|path| path.starts_with('/'));
    path.is_some_and(|path| path.ends_with("/console/callback") && !path.contains(['?', '#']))
        && parse_http_url(redirect_uri).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_consoles_own_callback_is_one() {
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

    #[test]
    fn an_error_is_shown_only_in_the_form_of_a_code() {
        assert_eq!(code_of(Some("access_denied")), "access_denied");
        for hostile in ["", "<b>", "a b", &"x".repeat(65)] {
            assert_eq!(code_of(Some(hostile)), "without an error code");
        }
    }
}
