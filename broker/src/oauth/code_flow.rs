//! The login of a person at an issuer of the configuration: authorization code with PKCE (RFC 7636)
//! and the identification of the issuer (RFC 9207). It ends with the tokens for the code. The
//! connect page and the console use it. Each keeps its pending logins separately.
//!
//! Invariant: nothing of an answer is used or shown before its issuer is checked.

use std::sync::Arc;

use config::{IssuerConfig, LoginClient};
use serde::{Deserialize, Serialize};

use super::{
    client_keys::signed,
    connect::{AuthorizationAnswer, announce_pkce, authorization_url, browser_endpoint},
    discovery::DiscoveredServer,
    fetch::{OauthError, OauthFetcher},
    login_servers::LoginServers,
    registration::{SENDS_ISSUER, secret_credential},
    secret_text::{digest_of, random_text},
    token_request::{AccessToken, request_token},
};
use crate::auth::{ClientAuthentication, ClientCredential, KeyFetcher};

/// A login that waits for its answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StartedLogin {
    pub issuer: String,
    pub state: String,
    /// The issuer sends the answer there. Another issuer that has another one cannot.
    pub redirect_uri: String,
    pub(super) nonce: String,
    verifier: String,
    /// True if the issuer identifies itself in each answer.
    sends_issuer: bool,
}

/// An issuer, with the broker as its client.
pub(super) struct CodeFlow<'a> {
    client: &'a LoginClient,
    servers: Arc<LoginServers>,
    server: Arc<DiscoveredServer>,
    /// Reaches the endpoint of tokens.
    fetcher: OauthFetcher,
}

impl<'a> CodeFlow<'a> {
    /// Finds the issuer. The broker sends a request to a host that only the metadata names at
    /// addresses that `egress` permits.
    pub(super) async fn at(
        servers: &Arc<LoginServers>,
        clients: &KeyFetcher,
        issuer: &IssuerConfig,
        client: &'a LoginClient,
    ) -> Result<Self, OauthError> {
        let name = &issuer.issuer;
        let server = servers.get(OauthFetcher::new(clients.trusting(), name), name).await?;
        let http = clients.client_for(issuer, &server.token_endpoint).clone();
        let (servers, fetcher) = (servers.clone(), OauthFetcher::new(http, name));
        Ok(Self { client, servers, server, fetcher })
    }

    /// Refuses an issuer that does not announce PKCE.
    pub(super) fn announces_pkce(self) -> Result<Self, OauthError> {
        announce_pkce(&self.server)?;
        Ok(self)
    }

    /// Begins a login. `shared_uri` is the redirect URI of issuers without one of their own. Returns
    /// the address for the browser, and what its answer is checked against.
    pub(super) fn start(
        &self,
        state: String,
        shared_uri: &str,
        audience: Option<&(&'static str, String)>,
    ) -> Result<(String, StartedLogin), OauthError> {
        let login = StartedLogin {
            issuer: self.server.issuer.clone(),
            state,
            redirect_uri: self.client.redirect_uri(shared_uri),
            nonce: random_text(),
            verifier: random_text(),
            sends_issuer: self.server.flag(SENDS_ISSUER),
        };
        if !login.sends_issuer {
            self.servers.warn_of_unnamed(&login.issuer, &login.redirect_uri);
        }
        let (challenge, scopes) = (digest_of(&login.verifier), self.client.scopes.join(" "));
        let mut parameters = vec![
            ("response_type", "code"),
            ("client_id", self.client.client_id.as_str()),
            ("redirect_uri", &login.redirect_uri),
            ("state", &login.state),
            ("nonce", &login.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ];
        if !scopes.is_empty() {
            parameters.push(("scope", &scopes));
        }
        parameters.extend(audience.map(|(name, value)| (*name, value.as_str())));
        let endpoint = browser_endpoint(&self.fetcher, &self.server, "authorization_endpoint")?;
        Ok((authorization_url(&endpoint, &parameters), login))
    }

    /// Ends a login with the code of its answer.
    pub(super) async fn finish(
        &self,
        login: &StartedLogin,
        code: String,
        audience: Option<&(&'static str, String)>,
    ) -> Result<AccessToken, OauthError> {
        let mut form = vec![
            ("grant_type", "authorization_code".to_owned()),
            ("code", code),
            ("redirect_uri", login.redirect_uri.clone()),
            ("code_verifier", login.verifier.clone()),
        ];
        form.extend(audience.cloned());
        let credential = match &self.client.client_secret {
            Some(secret) => secret_credential(secret.clone(), None, &self.server),
            None => ClientCredential::None,
        };
        let client = ClientAuthentication::new(&self.client.client_id, credential);
        let server = &self.server;
        let request = signed(&client, &server.token_endpoint, &server.issuer, form)?;
        request_token(&self.fetcher, request).await
    }

    /// Returns the address at which the browser ends its session at the issuer (OpenID Connect
    /// RP-Initiated Logout 1.0). `None`: the issuer has none that may be used.
    pub(super) fn end(&self, id_token: Option<&str>, back: &str) -> Option<String> {
        let name = "end_session_endpoint";
        let endpoint = browser_endpoint(&self.fetcher, &self.server, name).ok()?;
        let client_id = self.client.client_id.as_str();
        let mut parameters = vec![("client_id", client_id), ("post_logout_redirect_uri", back)];
        parameters.extend(id_token.map(|token| ("id_token_hint", token)));
        Some(authorization_url(&endpoint, &parameters))
    }
}

impl StartedLogin {
    /// Returns whether the path of a request is that of the redirect URI. An answer that comes to
    /// another one may be from another issuer (RFC 9700, section 4.4).
    pub fn is_answered_at(&self, path: &str) -> bool {
        self.redirect_uri.ends_with(path)
    }

    /// Returns the code of the answer to this login.
    pub(super) fn code_of(&self, answer: &AuthorizationAnswer) -> Result<String, OauthError> {
        if answer.state != self.state {
            let text = "the answer belongs to another login";
            return Err(OauthError::Refused(text.to_owned()));
        }
        answer.code_of(&self.issuer, self.sends_issuer)
    }
}
