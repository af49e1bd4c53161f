//! The connection of a person's account at a backend: authorization code with PKCE (RFC 7636), and
//! identification of the issuer (RFC 9207).
//!
//! Invariants:
//! - An authorization request belongs to one principal and one browser, and its answer counts once.
//! - Nothing of an answer is used or shown before its issuer is checked.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use http::Uri;
use protocol::ids::{BackendId, PrincipalId, TenantId};
use records::{GrantKey, GrantState, SecretKey, SecretKind, StoredGrant};
use rules::limits::oauth::{
    CONNECT_REQUEST_LIFE, CONNECT_REQUESTS_MAX, GRANT_LEASE, GRANT_POLL_INTERVAL,
};
use serde::{Deserialize, Serialize};

use super::{
    challenge::Challenge,
    client_keys::signed,
    disconnect::ConnectedAccount,
    discovery::DiscoveredServer,
    fetch::{ConnectReason, OauthError, OauthFetcher},
    machine::TokenHeader,
    refresh::{end_of, with_token},
    registration::SENDS_ISSUER,
    scopes::{with_demanded, within_limit},
    secret_text::{digest_of, random_text},
    token_request::error_code,
    user_tokens::{UserTokens, for_resource},
    vault::{Grant, GrantStatus},
};
use crate::auth::form_encoded;

/// Time in which the database answers whether an account was stored or removed.
pub(super) const STORED_WITHIN: Duration = Duration::from_secs(5);

/// An authorization request that waits for its answer.
#[derive(Clone, Serialize, Deserialize)]
struct StoredLogin {
    /// Digest of its `state`.
    state: String,
    backend: String,
    /// URL of the backend. The token of the answer is for this resource alone.
    url: String,
    principal: String,
    issuer: String,
    verifier: String,
    resource: String,
    scopes: Vec<String>,
    redirect_uri: String,
    /// Client of the request, for which the server issues the code.
    #[serde(default)]
    client_id: String,
    /// Digest of the browser's cookie.
    browser: String,
    /// True if the server identifies itself in each answer.
    sends_issuer: bool,
}

/// Answer of an authorization server, as its redirect carries it.
#[derive(Debug, Default)]
pub struct AuthorizationAnswer {
    pub state: String,
    pub code: Option<String>,
    pub error: Option<String>,
    pub issuer: Option<String>,
}

impl AuthorizationAnswer {
    /// Returns the tenant that began the request.
    pub fn tenant(&self) -> Option<TenantId> {
        TenantId::parse(self.state.split('.').next()?).ok()
    }

    /// Returns the backend of the request, as `state` names it.
    pub fn backend(&self) -> Option<BackendId> {
        BackendId::parse(self.state.split('.').nth(1)?).ok()
    }

    /// Returns the code, if the answer comes from the expected issuer (RFC 9207, 2.4).
    /// `sends_issuer`: the issuer identifies itself in each answer.
    pub(super) fn code_of(&self, expected: &str, sends_issuer: bool) -> Result<String, OauthError> {
        if self.issuer.as_ref().map_or(sends_issuer, |issuer| issuer != expected) {
            let text =
                "the answer comes from another authorization server than the one in the request";
            return Err(OauthError::Refused(text.to_owned()));
        }
        let refused = || match error_code(self.error.as_deref()) {
            "access_denied" => OauthError::Declined,
            code => OauthError::Refused(format!("the authorization server refused: {code}")),
        };
        self.code.clone().filter(|_| self.error.is_none()).ok_or_else(refused)
    }
}

/// Returns the prefix of the ids of elicitations that request the user to connect an account there.
pub fn connect_elicitation(backend: &BackendId) -> String {
    format!("connect:{backend}:")
}

impl UserTokens {
    /// Begins an authorization request. Returns the address for the browser. `None`: the backend now
    /// names another issuer than the one that the page has shown.
    pub async fn start(
        &self,
        principal: &PrincipalId,
        browser: &str,
        shown: Option<&str>,
    ) -> Result<Option<String>, OauthError> {
        let key = self.key(principal);
        let mut settings = self.settings(&key, None)?;
        let server = self.discovered_now().await?;
        settings.choose_redirect_uri(&server);
        if shown.is_some_and(|shown| shown != server.issuer) {
            return Ok(None);
        }
        announce_pkce(&server)?;
        let endpoint = browser_endpoint(&self.fetcher, &server, "authorization_endpoint")?;
        let client = settings.client(&server).await?;
        let wanted = self.vault.grant(&key).await?.map(|open| open.grant.wanted);
        let scopes = self.scopes_for(&server, wanted.unwrap_or_default());
        let redirect_uri = settings.redirect_uri.clone();
        let verifier = random_text();
        let login = StoredLogin {
            state: String::new(),
            url: self.target.url().to_owned(),
            backend: self.backend_id.to_string(),
            principal: principal.as_str().to_owned(),
            issuer: server.issuer.clone(),
            verifier: verifier.clone(),
            resource: server.resource.clone(),
            scopes: scopes.clone(),
            redirect_uri: redirect_uri.clone(),
            client_id: client.client_id().to_owned(),
            browser: digest_of(browser),
            sends_issuer: server.flag(SENDS_ISSUER),
        };
        let state = self.put_login(principal, login).await?;
        let challenge = digest_of(&verifier);
        let mut parameters = vec![
            ("response_type", "code"),
            ("client_id", client.client_id()),
            ("redirect_uri", &redirect_uri),
            ("state", &state),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ];
        if !server.resource.is_empty() {
            parameters.push(("resource", &server.resource));
        }
        let scopes = scopes.join(" ");
        if !scopes.is_empty() {
            parameters.push(("scope", &scopes));
        }
        Ok(Some(authorization_url(&endpoint, &parameters)))
    }

    /// Stores an authorization request and returns its `state`. A principal has a fixed number of
    /// places at a backend, so that no principal can fill the database. If all are taken, the
    /// request replaces another one.
    async fn put_login(
        &self,
        principal: &PrincipalId,
        mut login: StoredLogin,
    ) -> Result<String, OauthError> {
        let state_at =
            |slot: u32| format!("{}.{}.{slot}.{}", self.tenant, self.backend_id, random_text());
        let first = rand::random_range(0..CONNECT_REQUESTS_MAX);
        for slot in (0..CONNECT_REQUESTS_MAX).map(|next| (first + next) % CONNECT_REQUESTS_MAX) {
            let state = state_at(slot);
            login.state = digest_of(&state);
            let place = self.login_vault_key(principal, &state);
            let holder = self.vault.add_secret(&place, login.clone(), CONNECT_REQUEST_LIFE);
            if holder.await?.state == login.state {
                return Ok(state);
            }
        }
        let state = state_at(first);
        login.state = digest_of(&state);
        let place = self.login_vault_key(principal, &state);
        self.vault.put_secret(&place, &login, CONNECT_REQUEST_LIFE).await?;
        Ok(state)
    }

    /// Returns the place of the authorization request with this `state`.
    fn login_vault_key(&self, principal: &PrincipalId, state: &str) -> SecretKey {
        let slot = state.split('.').nth(2).unwrap_or_default();
        let name = digest_of(&format!("{} {} {slot}", self.backend_id, principal.as_str()));
        SecretKey { kind: SecretKind::Login, tenant: self.tenant.clone(), name }
    }

    /// Ends an authorization request with the answer of the server. The principal is connected
    /// when this returns. `principal_claim` returns the claim that names the principals of an issuer.
    pub async fn finish(
        &self,
        login: PendingLogin,
        answer: &AuthorizationAnswer,
        principal_claim: impl FnOnce(&str) -> String + Send,
    ) -> Result<ConnectedAccount, OauthError> {
        let login = login.0;
        let code = answer.code_of(&login.issuer, login.sends_issuer)?;
        let server = self.server_of_login(&login).await?;
        let principal = PrincipalId::new(login.principal.as_str());
        let key = self.key(&principal);
        let settings = self.settings(&key, Some(&login.redirect_uri))?;
        let client = settings.client_of_tokens(&server, &login.client_id).await?;
        let mut form = vec![
            ("grant_type", "authorization_code".to_owned()),
            ("code", code),
            ("redirect_uri", login.redirect_uri.clone()),
            ("code_verifier", login.verifier.clone()),
        ];
        form.extend(for_resource(&login.resource));
        let request = signed(&client, &server.token_endpoint, &server.issuer, form)?;
        let requested = settings.token(&server, &client, request).await;
        let token = requested.inspect_err(|error| self.count_failed(error))?;
        self.metrics.oauth.requested("granted");
        let token = self.target.usable(token);
        let grant = with_token(self.new_grant(&login, client.client_id(), &server), &token);
        let account = ConnectedAccount { key, grant, client, server };
        let ConnectedAccount { key, grant, client, server } = &account;
        if self.target.is_provider() {
            let claim = principal_claim(&server.issuer);
            let client_id = client.client_id();
            if let Err(error) =
                self.check_identity(&token, &server.issuer, client_id, &principal, &claim)
            {
                self.revoke_as(client, server, grant).await;
                return Err(error);
            }
        }
        let status = GrantStatus::connected(end_of(&token));
        if let Err(error) = self.vault.put(key, &login.issuer, grant, status, None).await
            && !self.is_stored(key, grant).await
        {
            // Nothing else knows the tokens.
            self.revoke_as(client, server, grant).await;
            return Err(error);
        }
        self.forget(&principal);
        Ok(account)
    }

    /// Returns the server of the backend. Refuses a login that began at another URL or server,
    /// because the broker sends a code only to the server that the backend names.
    async fn server_of_login(
        &self,
        login: &StoredLogin,
    ) -> Result<Arc<DiscoveredServer>, OauthError> {
        if login.url != self.target.url() {
            let text = "the backend has another URL than at the start of the sign-in";
            return Err(OauthError::Refused(text.to_owned()));
        }
        let server = self.discovered_now().await?;
        if server.issuer != login.issuer {
            let text = "the backend now names another authorization server than at the start of the sign-in";
            return Err(OauthError::Refused(text.to_owned()));
        }
        Ok(server)
    }

    /// Returns the grant of a login, which has no tokens yet.
    fn new_grant(&self, login: &StoredLogin, client_id: &str, server: &DiscoveredServer) -> Grant {
        Grant {
            access_token: String::new(),
            refresh_token: None,
            id_token: None,
            renew_at_us: None,
            scopes: login.scopes.clone(),
            wanted: login.scopes.clone(),
            lacks_scopes: false,
            resource: login.resource.clone(),
            redirect_uri: login.redirect_uri.clone(),
            client_id: client_id.to_owned(),
            url: self.target.url().to_owned(),
            revocation_endpoint: server.text("revocation_endpoint").map(str::to_owned),
        }
    }

    /// Returns whether a grant was stored although its write ended in an error.
    async fn is_stored(&self, key: &GrantKey, grant: &Grant) -> bool {
        let until = Instant::now() + STORED_WITHIN;
        loop {
            match self.vault.grant(key).await {
                Ok(found) => return found.is_some_and(|open| open.grant == *grant),
                Err(_) if Instant::now() < until => tokio::time::sleep(GRANT_POLL_INTERVAL).await,
                Err(_) => return false,
            }
        }
    }

    /// Takes the authorization request of an answer. `None`: it is unknown, has expired, was
    /// answered already, or belongs to another browser, backend, principal or redirect URI. `path` is
    /// that of the answer.
    pub async fn take_login(
        &self,
        state: &str,
        principal: &PrincipalId,
        browser: &str,
        path: &str,
    ) -> Result<Option<PendingLogin>, OauthError> {
        let vault_key = self.login_vault_key(principal, state);
        let known: Option<StoredLogin> = self.vault.secret(&vault_key).await?;
        let base = self.address.base().unwrap_or_default();
        let is_own = |login: &StoredLogin| {
            login.state == digest_of(state)
                && login.redirect_uri.strip_prefix(&base) == Some(path)
                && login.backend == self.backend_id.as_str()
                && login.principal == principal.as_str()
                && login.browser == digest_of(browser)
        };
        if !known.as_ref().is_some_and(is_own) {
            return Ok(None);
        }
        let taken: Option<StoredLogin> = self.vault.take_secret(&vault_key).await?;
        // Another request of the principal may have replaced it meanwhile.
        Ok(taken.filter(is_own).map(PendingLogin))
    }

    /// Returns the state of the principal's connection, if there is one.
    pub async fn connection(
        &self,
        principal: &PrincipalId,
    ) -> Result<Option<StoredGrant>, OauthError> {
        Ok(self.vault.grant(&self.key(principal)).await?.map(|open| open.stored))
    }

    /// Returns what the page shows of the server of the backend: its issuer and scopes.
    pub async fn consent(
        self: &Arc<Self>,
        principal: &PrincipalId,
    ) -> Result<(String, Vec<String>), OauthError> {
        let server = self.discovered_for_page().await?;
        let wanted = self.vault.grant(&self.key(principal)).await?.map(|open| open.grant.wanted);
        let scopes = self.scopes_for(&server, wanted.unwrap_or_default());
        Ok((server.issuer.clone(), scopes))
    }

    /// Returns whether the principal has an account whose tokens can be used.
    pub async fn is_connected(&self, principal: &PrincipalId) -> bool {
        let connection = self.connection(principal).await.ok().flatten();
        connection.is_some_and(|found| found.record.state == GrantState::Connected)
    }

    /// Returns whether the principal is connected, and the backend demanded no further scopes since.
    /// The server may have granted less than was requested.
    pub async fn has_all_scopes(&self, principal: &PrincipalId) -> bool {
        let open = self.vault.grant(&self.key(principal)).await.ok().flatten();
        open.is_some_and(|open| {
            open.stored.record.state == GrantState::Connected && !open.grant.lacks_scopes
        })
    }

    /// Notes the scopes that the backend demands. `None` if the grant has them.
    pub(super) async fn step_up(
        &self,
        principal: &PrincipalId,
        refused: &TokenHeader,
        challenge: &Challenge,
    ) -> Result<Option<TokenHeader>, OauthError> {
        let key = self.key(principal);
        let new = OauthError::Unconnected(ConnectReason::New);
        let open = self.vault.grant(&key).await?.ok_or(new)?;
        if open.stored.record.state != GrantState::Connected || open.grant.url != self.target.url()
        {
            return Err(OauthError::Unconnected(ConnectReason::Ended));
        }
        let held = &open.grant.scopes;
        let known: HashSet<&String> = held.iter().collect();
        if challenge.scopes.iter().all(|scope| known.contains(scope)) {
            // The account may have been connected again at another process.
            let header = self.remember(principal, &open.grant, open.stored.record.expires_at_us)?;
            return Ok((header != *refused).then_some(header));
        }
        let wanted = with_demanded(held, &self.auth.scopes, &challenge.scopes);
        let record = &open.stored.record;
        let grant = Grant { wanted, lacks_scopes: true, ..open.grant.clone() };
        let status = GrantStatus::of(record);
        // The lease keeps this write apart from a renewal, whose new refresh token it would drop.
        // Without the lease only the note is lost, and the next refusal makes it again.
        if self.leaves_to_holder(&open.stored)
            || !self.vault.lease(&key, open.stored.version, GRANT_LEASE).await?
        {
            return Err(OauthError::Unconnected(ConnectReason::Scopes));
        }
        self.vault.put(&key, &record.issuer, &grant, status, Some(open.stored.version)).await?;
        Err(OauthError::Unconnected(ConnectReason::Scopes))
    }

    /// Returns the scopes to request. The first that exist count: those of an earlier connection
    /// and of later demands of the backend, those of the settings, those that the backend names.
    fn scopes_for(&self, server: &DiscoveredServer, wanted: Vec<String>) -> Vec<String> {
        let scopes = match (wanted.is_empty(), self.auth.scopes.is_empty()) {
            (false, _) => wanted,
            (true, false) => self.auth.scopes.clone(),
            (true, true) => server.scopes.clone(),
        };
        let mut scopes: Vec<String> = within_limit(scopes).collect();
        let offline = "offline_access".to_owned();
        if server.texts("scopes_supported").contains(&offline) && !scopes.contains(&offline) {
            scopes.push(offline);
        }
        scopes
    }
}

/// The request that an answer belongs to.
pub struct PendingLogin(StoredLogin);

/// Refuses a server that does not announce PKCE with S256.
pub(super) fn announce_pkce(server: &DiscoveredServer) -> Result<(), OauthError> {
    if server.texts("code_challenge_methods_supported").iter().any(|method| method == "S256") {
        return Ok(());
    }
    Err(OauthError::Refused(format!("{} does not announce PKCE with S256", server.issuer)))
}

/// Returns an endpoint for browsers.
pub(super) fn browser_endpoint(
    fetcher: &OauthFetcher,
    server: &DiscoveredServer,
    name: &str,
) -> Result<String, OauthError> {
    let text = server.text(name).unwrap_or_default();
    let usable: Option<Uri> = fetcher.permitted(text);
    usable.filter(|_| is_plain(text)).map(|_| text.to_owned()).ok_or_else(|| {
        OauthError::Refused(format!("{} names no {name} that the broker may use", server.issuer))
    })
}

/// Returns whether parameters can follow the text of a URL.
fn is_plain(url: &str) -> bool {
    url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
}

/// Returns the address of an authorization request.
pub(super) fn authorization_url(endpoint: &str, parameters: &[(&str, &str)]) -> String {
    let query: Vec<String> =
        parameters.iter().map(|(name, value)| format!("{name}={}", form_encoded(value))).collect();
    let separator = if endpoint.contains('?') { '&' } else { '?' };
    format!("{endpoint}{separator}{}", query.join("&"))
}
