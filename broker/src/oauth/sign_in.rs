//! The sign-in of a person at the connect page, with an issuer whose tokens the broker accepts
//! (OpenID Connect Core 1.0). `auth` decides which principal the ID token proves.
//!
//! Invariant: the broker stores nothing about a sign-in that waits for its answer. The browser
//! keeps it, sealed. Otherwise an unknown peer could fill the memory with sign-ins that it never
//! finishes.

use std::sync::Arc;

use config::IssuerConfig;
use serde::{Deserialize, Serialize};

use super::{
    code_flow::{CodeFlow, StartedLogin},
    connect::AuthorizationAnswer,
    fetch::OauthError,
    login_servers::LoginServers,
    public_address::PublicAddress,
    registration::CALLBACK_PATH,
    secret_text::random_text,
};
use crate::auth::KeyFetcher;

/// Begins the `state` of a sign-in, and of no other request. No tenant has this name.
const STATE_PREFIX: &str = "~.";

/// Attempts to find a `state` whose place among the pending sign-ins of the browser is free.
const STATE_DRAWS: usize = 64;

/// Sign-ins of people.
#[derive(Debug)]
pub struct SignIns {
    /// Reach the issuers of the configuration file.
    clients: KeyFetcher,
    servers: Arc<LoginServers>,
    address: Arc<PublicAddress>,
}

/// A sign-in that waits for its answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct PendingSignIn {
    #[serde(flatten)]
    login: StartedLogin,
    /// Backend whose page the person wanted. Empty: the page of all of them.
    backend: String,
    /// Time of the begin, by the clock of the store.
    #[serde(default)]
    begun_at_us: i64,
}

impl PendingSignIn {
    /// Returns the `state` of its answer.
    pub fn state(&self) -> &str {
        &self.login.state
    }

    pub fn issuer(&self) -> &str {
        &self.login.issuer
    }

    /// Returns whether the path of a request is that of its redirect URI.
    pub fn is_answered_at(&self, path: &str) -> bool {
        self.login.is_answered_at(path)
    }

    /// Returns the time of the begin, by the clock of the store. A revocation since then refuses the
    /// login: another replica may have stored it without the knowledge of this one.
    pub fn begun_at_us(&self) -> i64 {
        self.begun_at_us
    }
}

/// The claims of an issuer about the person at a browser.
#[derive(Debug)]
pub struct ProvenSignIn {
    pub issuer: String,
    pub nonce: String,
    pub id_token: String,
    /// Backend whose page the person wanted.
    pub backend: String,
}

impl SignIns {
    pub fn new(
        clients: KeyFetcher,
        servers: Arc<LoginServers>,
        address: Arc<PublicAddress>,
    ) -> Self {
        Self { clients, servers, address }
    }

    /// Returns whether an answer belongs to a sign-in.
    pub fn is_about(answer: &AuthorizationAnswer) -> bool {
        answer.state.starts_with(STATE_PREFIX)
    }

    /// Begins a sign-in. Returns the address for the browser, and what its answer belongs to.
    pub async fn start(
        &self,
        issuer: &IssuerConfig,
        backend: String,
        begun_at_us: i64,
        is_free: impl Fn(&str) -> bool,
    ) -> Result<(String, PendingSignIn), OauthError> {
        let flow = self.flow(issuer).await?.announces_pkce()?;
        let base = self.address.base().unwrap_or_default();
        let new_state = || format!("{STATE_PREFIX}{}", random_text());
        let mut state = new_state();
        for _ in 1..STATE_DRAWS {
            if is_free(&state) {
                break;
            }
            state = new_state();
        }
        let (address, login) = flow.start(state, &format!("{base}{CALLBACK_PATH}"), None)?;
        Ok((address, PendingSignIn { login, backend, begun_at_us }))
    }

    /// Ends a sign-in with the answer of the issuer, which must be one of these.
    pub async fn finish(
        &self,
        issuers: &[Arc<IssuerConfig>],
        PendingSignIn { login, backend, .. }: PendingSignIn,
        answer: &AuthorizationAnswer,
    ) -> Result<ProvenSignIn, OauthError> {
        let code = login.code_of(answer)?;
        let gone =
            || OauthError::Refused(format!("{} has no settings for sign-ins now", login.issuer));
        let issuer = issuers.iter().find(|issuer| issuer.issuer == login.issuer);
        let flow = self.flow(issuer.ok_or_else(gone)?).await?;
        let token = flow.finish(&login, code, None).await?;
        let nameless = || OauthError::Refused(format!("{} returned no ID token", login.issuer));
        let id_token = token.id_token.ok_or_else(nameless)?;
        let StartedLogin { issuer, nonce, .. } = login;
        Ok(ProvenSignIn { issuer, nonce, id_token, backend })
    }

    async fn flow<'a>(&self, issuer: &'a IssuerConfig) -> Result<CodeFlow<'a>, OauthError> {
        let nothing =
            || OauthError::Refused(format!("{} has no settings for sign-ins", issuer.issuer));
        let client = issuer.sign_in.as_ref().ok_or_else(nothing)?;
        CodeFlow::at(&self.servers, &self.clients, issuer, client).await
    }
}
