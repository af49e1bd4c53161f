//! People sign in at the connect page with an issuer of callers: authorization code with PKCE, as
//! OpenID Connect Core 1.0 has it. What the ID token proves is judged by `auth`.
//!
//! Invariant: a request belongs to one browser, and its answer counts once.

use std::sync::Arc;

use protocol::ids::TenantId;
use records::{SecretKey, SecretKind};
use rules::limits::oauth::CONNECT_REQUEST_LIFE;
use serde::{Deserialize, Serialize};
use transport::HttpClient;

use super::{
    client_keys::signed,
    connect::{
        AuthorizationAnswer, authorization_endpoint, authorization_url, digest_of, random_text,
    },
    discovery::DiscoveredServer,
    fetch::{OauthError, OauthFetcher},
    public_address::PublicAddress,
    registration::{CALLBACK_PATH, secret_credential},
    token_request::request_token,
    vault::Vault,
};
use crate::{
    auth::{ClientAuthentication, ClientCredential, DEFAULT_TENANT},
    config::{IssuerConfig, SignInClient, spec::IssuerComparison},
    persistence::Persistence,
};

/// Begins the `state` of a sign-in, and of no other request. No tenant has this name.
const STATE_PREFIX: &str = "~.";

/// Sign-ins of people.
#[derive(Debug)]
pub struct SignIns {
    vault: Vault,
    http: HttpClient,
    address: Arc<PublicAddress>,
}

/// A sign-in that waits for its answer.
#[derive(Serialize, Deserialize)]
struct StoredSignIn {
    issuer: String,
    verifier: String,
    nonce: String,
    redirect_uri: String,
    /// Digest of the browser's cookie.
    browser: String,
    sends_issuer: bool,
    /// Backend whose page the person wanted.
    backend: String,
}

/// What an issuer says of the person at a browser.
#[derive(Debug)]
pub struct ProvenSignIn {
    pub issuer: String,
    pub nonce: String,
    pub id_token: String,
    /// Backend whose page the person wanted.
    pub backend: String,
}

impl SignIns {
    /// `http` reaches the issuers of the configuration file.
    pub fn new(durable: Arc<Persistence>, http: HttpClient, address: Arc<PublicAddress>) -> Self {
        Self { vault: Vault(durable), http, address }
    }

    /// Returns whether an answer belongs to a sign-in.
    pub fn is_about(answer: &AuthorizationAnswer) -> bool {
        answer.state.starts_with(STATE_PREFIX)
    }

    /// Begins a sign-in. Returns the address for the browser.
    pub async fn begin(
        &self,
        issuer: &IssuerConfig,
        browser: &str,
        backend: &str,
    ) -> Result<String, OauthError> {
        let client_id = client_of(issuer)?.client_id.as_str();
        let (fetcher, server) = self.server(&issuer.issuer).await?;
        let endpoint = authorization_endpoint(&fetcher, &server)?;
        let base = self.address.base().unwrap_or_default();
        let (state, nonce) = (format!("{STATE_PREFIX}{}", random_text()), random_text());
        let sign_in = StoredSignIn {
            issuer: server.issuer.clone(),
            verifier: random_text(),
            nonce: nonce.clone(),
            redirect_uri: format!("{base}{CALLBACK_PATH}"),
            browser: digest_of(browser),
            sends_issuer: server.flag("authorization_response_iss_parameter_supported"),
            backend: backend.to_owned(),
        };
        self.vault.put_secret(&place(&state), &sign_in, CONNECT_REQUEST_LIFE).await?;
        let challenge = digest_of(&sign_in.verifier);
        Ok(authorization_url(
            &endpoint,
            &[
                ("response_type", "code"),
                ("client_id", client_id),
                ("redirect_uri", &sign_in.redirect_uri),
                ("scope", "openid"),
                ("state", &state),
                ("nonce", &nonce),
                ("code_challenge", &challenge),
                ("code_challenge_method", "S256"),
            ],
        ))
    }

    /// Ends a sign-in with the answer of the issuer. `None`: the answer belongs to no sign-in of this
    /// browser, or its issuer is none of these any more.
    pub async fn finish(
        &self,
        issuers: &[Arc<IssuerConfig>],
        answer: &AuthorizationAnswer,
        browser: &str,
    ) -> Result<Option<ProvenSignIn>, OauthError> {
        let place = place(&answer.state);
        let known: Option<StoredSignIn> = self.vault.secret(&place).await?;
        if known.is_none_or(|known| known.browser != digest_of(browser)) {
            return Ok(None);
        }
        let taken: Option<StoredSignIn> = self.vault.take_secret(&place).await?;
        let Some(sign_in) = taken else { return Ok(None) };
        let issuer = issuers.iter().find(|issuer| issuer.issuer == sign_in.issuer);
        let Some(issuer) = issuer else { return Ok(None) };
        let code = answer.code_of(&sign_in.issuer, sign_in.sends_issuer)?;
        let (fetcher, server) = self.server(&issuer.issuer).await?;
        let client = authentication(client_of(issuer)?, &server);
        let form = vec![
            ("grant_type", "authorization_code".to_owned()),
            ("code", code),
            ("redirect_uri", sign_in.redirect_uri),
            ("code_verifier", sign_in.verifier),
        ];
        let request = signed(&client, &server.token_endpoint, &server.issuer, form)?;
        let token = request_token(&fetcher, request).await?;
        let nameless = || OauthError::Refused(format!("{} gives no ID token", sign_in.issuer));
        let id_token = token.id_token.ok_or_else(nameless)?;
        let StoredSignIn { issuer, nonce, backend, .. } = sign_in;
        Ok(Some(ProvenSignIn { issuer, nonce, id_token, backend }))
    }

    async fn server(&self, issuer: &str) -> Result<(OauthFetcher, DiscoveredServer), OauthError> {
        let fetcher = OauthFetcher::new(self.http.clone(), issuer);
        let server = DiscoveredServer::of_issuer(&fetcher, issuer, IssuerComparison::Exact).await?;
        Ok((fetcher, server))
    }
}

fn client_of(issuer: &IssuerConfig) -> Result<&SignInClient, OauthError> {
    let nothing = || OauthError::Refused(format!("{} has no sign-in", issuer.issuer));
    issuer.sign_in.as_ref().ok_or_else(nothing)
}

fn authentication(client: &SignInClient, server: &DiscoveredServer) -> ClientAuthentication {
    let credential = match &client.client_secret {
        Some(secret) => secret_credential(secret.clone(), None, server),
        None => ClientCredential::None,
    };
    ClientAuthentication::new(&client.client_id, credential)
}

fn place(state: &str) -> SecretKey {
    let tenant = TenantId::parse(DEFAULT_TENANT).expect("the constant is a legal name");
    SecretKey { kind: SecretKind::SignIn, tenant, name: digest_of(state) }
}
