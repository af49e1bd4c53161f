//! People sign in at the connect page with an issuer of callers, as OpenID Connect Core 1.0 has it.
//! What the ID token proves is judged by `auth`.
//!
//! Invariant: a request belongs to one browser, and its answer counts once.

use std::sync::Arc;

use protocol::ids::TenantId;
use records::{SecretKey, SecretKind};
use rules::limits::oauth::CONNECT_REQUEST_LIFE;
use serde::{Deserialize, Serialize};

use super::{
    code_flow::{CodeFlow, StartedLogin},
    connect::AuthorizationAnswer,
    fetch::OauthError,
    public_address::PublicAddress,
    registration::CALLBACK_PATH,
    secret_text::{digest_of, random_text},
    vault::Vault,
};
use crate::{auth::KeyFetcher, config::IssuerConfig, persistence::Persistence};

/// Begins the `state` of a sign-in, and of no other request. No tenant has this name.
const STATE_PREFIX: &str = "~.";

/// Sign-ins of people.
#[derive(Debug)]
pub struct SignIns {
    vault: Vault,
    /// Reach the issuers of the configuration file.
    clients: KeyFetcher,
    address: Arc<PublicAddress>,
}

/// A sign-in that waits for its answer.
#[derive(Serialize, Deserialize)]
struct StoredSignIn {
    #[serde(flatten)]
    login: StartedLogin,
    /// Digest of the browser's cookie.
    browser: String,
    /// Backend whose page the person wanted.
    backend: String,
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
        durable: Arc<Persistence>,
        clients: KeyFetcher,
        address: Arc<PublicAddress>,
    ) -> Self {
        Self { vault: Vault(durable), clients, address }
    }

    /// Returns whether an answer belongs to a sign-in.
    pub fn is_about(answer: &AuthorizationAnswer) -> bool {
        answer.state.starts_with(STATE_PREFIX)
    }

    /// Begins a sign-in. Returns the address for the browser.
    pub async fn start(
        &self,
        issuer: &IssuerConfig,
        browser: &str,
        backend: &str,
    ) -> Result<String, OauthError> {
        let flow = self.flow(issuer).await?.announces_pkce()?;
        let base = self.address.base().unwrap_or_default();
        let state = format!("{STATE_PREFIX}{}", random_text());
        let (address, login) = flow.start(state, format!("{base}{CALLBACK_PATH}"), None)?;
        let vault_key = vault_key(&login.state);
        let (browser, backend) = (digest_of(browser), backend.to_owned());
        let sign_in = StoredSignIn { login, browser, backend };
        self.vault.put_secret(&vault_key, &sign_in, CONNECT_REQUEST_LIFE).await?;
        Ok(address)
    }

    /// Ends a sign-in with the answer of the issuer. `None`: the answer belongs to no sign-in of this
    /// browser, or its issuer is none of these any more.
    pub async fn finish(
        &self,
        issuers: &[Arc<IssuerConfig>],
        answer: &AuthorizationAnswer,
        browser: &str,
    ) -> Result<Option<ProvenSignIn>, OauthError> {
        let vault_key = vault_key(&answer.state);
        let known: Option<StoredSignIn> = self.vault.secret(&vault_key).await?;
        if known.is_none_or(|known| known.browser != digest_of(browser)) {
            return Ok(None);
        }
        let taken: Option<StoredSignIn> = self.vault.take_secret(&vault_key).await?;
        let Some(StoredSignIn { login, backend, .. }) = taken else { return Ok(None) };
        let issuer = issuers.iter().find(|issuer| issuer.issuer == login.issuer);
        let Some(issuer) = issuer else { return Ok(None) };
        let code = login.code_of(answer)?;
        let token = self.flow(issuer).await?.finish(&login, code, None).await?;
        let nameless = || OauthError::Refused(format!("{} gives no ID token", login.issuer));
        let id_token = token.id_token.ok_or_else(nameless)?;
        let StartedLogin { issuer, nonce, .. } = login;
        Ok(Some(ProvenSignIn { issuer, nonce, id_token, backend }))
    }

    async fn flow<'a>(&self, issuer: &'a IssuerConfig) -> Result<CodeFlow<'a>, OauthError> {
        let nothing = || OauthError::Refused(format!("{} has no sign-in", issuer.issuer));
        let client = issuer.sign_in.as_ref().ok_or_else(nothing)?;
        CodeFlow::at(&self.clients, issuer, client).await
    }
}

fn vault_key(state: &str) -> SecretKey {
    let tenant = TenantId::default_tenant();
    SecretKey { kind: SecretKind::SignIn, tenant, name: digest_of(state) }
}
