//! Logins and logouts of operators at an issuer, for the console (`auth.issuers[].admin.login`).
//!
//! Invariant: the result of a login is a token, which is verified like any other before its holder is
//! an operator.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    code_flow::{CodeFlow, StartedLogin},
    connect::AuthorizationAnswer,
    fetch::OauthError,
    login_servers::{CONSOLE_CALLBACK, LoginServers},
    secret_text::random_text,
};
use crate::auth::{KeyFetcher, OperatorLoginIssuer};

/// Logins of operators at the issuers of the configuration.
pub struct OperatorLogins {
    issuers: Vec<OperatorLoginIssuer>,
    clients: KeyFetcher,
    servers: Arc<LoginServers>,
}

/// A login that succeeded at its issuer.
#[derive(Debug)]
pub struct FinishedLogin {
    /// A token, which is not verified yet.
    pub token: String,
    pub at_issuer: IssuerLogin,
}

/// What ends a login at its issuer later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuerLogin {
    issuer: String,
    /// Absent: the issuer gave none, and prompts the user to confirm the sign-out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id_token: Option<String>,
    /// Address of the console, to which the browser comes back.
    console: String,
}

impl OperatorLogins {
    pub fn new(
        issuers: Vec<OperatorLoginIssuer>,
        clients: KeyFetcher,
        servers: Arc<LoginServers>,
    ) -> Self {
        Self { issuers, clients, servers }
    }

    /// Returns the names of the issuers.
    pub fn issuers(&self) -> Vec<String> {
        self.issuers.iter().map(|issuer| issuer.config.issuer.clone()).collect()
    }

    /// Begins a login. `callback` is the address of [`CONSOLE_CALLBACK`]. Returns the address for the
    /// browser, and what its answer is checked against. `None`: no issuer of this name has
    /// `admin.login`.
    pub async fn start(
        &self,
        issuer: &str,
        callback: &str,
    ) -> Option<Result<(String, StartedLogin), OauthError>> {
        let issuer = self.issuer(issuer)?;
        let flow = self.flow(issuer).await;
        let started =
            flow.and_then(|flow| flow.start(random_text(), callback, issuer.audience.as_ref()));
        Some(started)
    }

    /// Ends a login with the answer of the issuer.
    pub async fn finish(
        &self,
        login: &StartedLogin,
        answer: &AuthorizationAnswer,
    ) -> Result<FinishedLogin, OauthError> {
        let code = login.code_of(answer)?;
        let gone = || {
            OauthError::Refused(format!("{} has no settings for console logins now", login.issuer))
        };
        let issuer = self.issuer(&login.issuer).ok_or_else(gone)?;
        let given = self.flow(issuer).await?.finish(login, code, issuer.audience.as_ref()).await?;
        let below = login.redirect_uri.split_once(CONSOLE_CALLBACK).map_or("", |(base, _)| base);
        let console = format!("{below}/console/");
        let at_issuer =
            IssuerLogin { issuer: login.issuer.clone(), id_token: given.id_token, console };
        Ok(FinishedLogin { token: given.text, at_issuer })
    }

    /// Returns the address at which the browser ends its session at the issuer of a login. `None`:
    /// the issuer has none, or does not answer.
    pub async fn logout_address(&self, login: &IssuerLogin) -> Option<String> {
        let flow = self.flow(self.issuer(&login.issuer)?).await.ok()?;
        flow.end(login.id_token.as_deref(), &login.console)
    }

    fn issuer(&self, name: &str) -> Option<&OperatorLoginIssuer> {
        self.issuers.iter().find(|issuer| issuer.config.issuer == name)
    }

    async fn flow<'a>(&self, issuer: &'a OperatorLoginIssuer) -> Result<CodeFlow<'a>, OauthError> {
        CodeFlow::at(&self.servers, &self.clients, &issuer.config, &issuer.client).await
    }
}
