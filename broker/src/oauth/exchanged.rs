//! Tokens for a backend that the broker gets in exchange for another token of the principal:
//!
//! - the caller's access token (RFC 8693, or Entra's on-behalf-of)
//! - an assertion of an identity provider about the principal: ID-JAG, by the extension
//!   `io.modelcontextprotocol/enterprise-managed-authorization`
//!
//! The broker does not store the tokens. It can exchange the other token again while that is valid.
//!
//! Invariants:
//! - Every look-up takes a principal. Only the link of the catalog uses the token of any principal.
//! - A token ends with the token or the grant for which the server exchanged it, at the latest.
//! - One token request for each principal runs at a time.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use config::spec::ExchangeGrant;
use parking_lot::Mutex;
use protocol::ids::{PrincipalId, TenantId};
use rules::limits::oauth::{GRANT_CACHED_MAX, OAUTH_FAILURE_PAUSE};

use super::{
    challenge::Challenge,
    client_keys::RegisteredClient,
    discovery::DiscoveredServer,
    fetch::{ConnectReason, OauthError, OauthFetcher},
    identity::GrantLookup,
    machine::{MachineTokens, RenewedToken, TokenHeader},
    scopes::chosen_scopes,
    server_cache::ServerCache,
    subject_tokens::SubjectTokens,
    token_request::{AccessToken, request_assertion, request_token},
    user_tokens::UserTokens,
};
use crate::{
    auth::{ExchangeableToken, SubjectDigest, now_us},
    metrics::Metrics,
};

const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
const JWT: &str = "urn:ietf:params:oauth:token-type:jwt";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";

/// Source of the tokens of one backend.
#[derive(Debug)]
pub struct ExchangedTokens {
    pub(super) fetcher: OauthFetcher,
    pub(super) server: ServerCache,
    /// The broker at the authorization server of the backend.
    pub(super) client: RegisteredClient,
    /// Scopes that the operator configured.
    pub(super) scopes: Vec<String>,
    pub(super) origin: SubjectOrigin,
    /// Source of the tokens with which lists are fetched, if it is not a principal.
    pub(super) service: Option<Arc<MachineTokens>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) state: Mutex<HashMap<PrincipalId, PrincipalState>>,
}

/// Where the tokens come from that are exchanged.
#[derive(Debug)]
pub(super) enum SubjectOrigin {
    /// Callers bring them.
    Callers {
        tokens: Arc<SubjectTokens>,
        tenant: TenantId,
        grant: ExchangeGrant,
        audience: Option<String>,
        actor: Option<Actor>,
    },
    /// The principal signs in at an identity provider.
    Provider(Arc<UserTokens>),
}

/// Source of the tokens that name the broker as the acting party.
#[derive(Debug)]
pub(super) enum Actor {
    /// Access tokens of the broker.
    Client(Arc<MachineTokens>),
    /// JWTs that the broker signs.
    Signed,
}

/// A token that stands for the principal.
pub(super) struct Subject {
    pub(super) text: String,
    /// `urn:ietf:params:oauth:token-type:…`
    pub(super) kind: &'static str,
    pub(super) expires_at_us: Option<i64>,
    /// The grant that it belongs to. `None` for the token of a caller.
    pub(super) grant: Option<GrantLookup>,
    /// The token of a caller. `None` for what a grant has.
    pub(super) caller: Option<Arc<ExchangeableToken>>,
}

#[derive(Debug, Default)]
pub(super) struct PrincipalState {
    token: Option<HeldToken>,
    /// Scopes of the last token and of the challenges since.
    scopes: Vec<String>,
    /// The token of the caller that had these scopes.
    scopes_of: Option<SubjectDigest>,
    failed: Option<(OauthError, Instant)>,
    /// Puts the requests of the principal in order. It holds no data.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Clone)]
struct HeldToken {
    token: AccessToken,
    /// End of the token that it was made of.
    subject_ends: Option<Instant>,
    /// The grant that it was made of, if there is one.
    grant: Option<GrantLookup>,
    /// The token of a caller that it was made of, if there is one.
    caller: Option<Arc<ExchangeableToken>>,
}

impl HeldToken {
    /// Returns whether backends accept the token, which may be due for a renewal.
    fn is_valid(&self) -> bool {
        let now = Instant::now();
        self.token.ends.is_none_or(|ends| now < ends.expires_at)
            && self.subject_ends.is_none_or(|at| now < at)
    }

    fn is_due(&self) -> bool {
        let now = Instant::now();
        self.token.ends.is_some_and(|ends| now >= ends.renew_at)
            || self.subject_ends.is_some_and(|at| now >= at)
    }
}

impl ExchangedTokens {
    /// Returns the header for a request of the principal, or of the link of the catalog.
    pub(super) async fn header(
        &self,
        principal: Option<&PrincipalId>,
    ) -> Result<TokenHeader, OauthError> {
        if let (None, Some(service)) = (principal, &self.service) {
            return service.header().await;
        }
        let principal = self.resolved(principal).await?;
        if let Some(header) = self.held(&principal) {
            return Ok(header);
        }
        self.subject_arrival(&principal).await;
        let turn = self.turn(&principal);
        // One request renews the token, and the others use it as long as it lives.
        let _turn = match (turn.try_lock(), self.valid(&principal)) {
            (Ok(turn), _) => turn,
            (Err(_), Some(header)) => return Ok(header),
            (Err(_), None) => turn.lock().await,
        };
        self.check_grant(&principal).await?;
        match self.held(&principal) {
            Some(header) => Ok(header),
            None => self.request(&principal, None).await,
        }
    }

    /// Returns the header of a token that backends accept, which may be due for a renewal.
    fn valid(&self, principal: &PrincipalId) -> Option<TokenHeader> {
        let state = self.state.lock();
        let held = state.get(principal)?.token.as_ref()?;
        let is_valid = held.is_valid() && self.is_permitted(principal, held);
        is_valid.then(|| held.token.header.clone())
    }

    /// Returns whether a token can be used without a lookup of its grant. One of a caller's token
    /// can be used only while that is the token of the latest request, and is accepted.
    fn is_permitted(&self, principal: &PrincipalId, held: &HeldToken) -> bool {
        match &self.origin {
            SubjectOrigin::Provider(provider) => {
                held.grant.as_ref().is_none_or(|grant| provider.is_recent(grant))
            }
            SubjectOrigin::Callers { tokens, tenant, .. } => {
                let made_of = held.caller.as_ref();
                made_of.is_some_and(|token| tokens.is_latest(tenant, principal, token))
            }
        }
    }

    /// Drops the token of a principal whose grant has changed or ended. The caller has the turn of
    /// the principal.
    async fn check_grant(&self, principal: &PrincipalId) -> Result<(), OauthError> {
        let Some(provider) = self.provider() else { return Ok(()) };
        let known = self.state.lock().get(principal).and_then(|known| known.token.as_ref()?.grant);
        let Some(old) = known.filter(|grant| !provider.is_recent(grant)) else { return Ok(()) };
        let grant = match provider.looked_up_again(principal, old).await {
            // The token is used until it is due, as long as the database is away.
            Err(away @ OauthError::StoreUnavailable(_)) => {
                Some(provider.assumed_unchanged(old).ok_or(away)?)
            }
            found => found?,
        };
        if let Some(known) = self.state.lock().get_mut(principal) {
            known.token = known.token.take().filter(|_| grant.is_some());
            known.token.iter_mut().for_each(|held| held.grant = grant);
        }
        Ok(())
    }

    /// Returns another header after a refusal.
    pub(super) async fn renewed(
        &self,
        principal: Option<&PrincipalId>,
        refused: &TokenHeader,
        challenge: Option<Challenge>,
    ) -> Result<RenewedToken, OauthError> {
        if let (None, Some(service)) = (principal, &self.service) {
            return service.renewed(refused, challenge).await;
        }
        let principal = self.resolved(principal).await?;
        self.subject_arrival(&principal).await;
        let turn = self.turn(&principal);
        let _turn = turn.lock().await;
        self.check_grant(&principal).await?;
        match self.held(&principal).filter(|held| held != refused) {
            Some(header) => Ok(RenewedToken { header, is_new: false }),
            None => {
                let requested = self.request(&principal, Some(challenge.unwrap_or_default()));
                requested.await.map(RenewedToken::issued)
            }
        }
    }

    /// Returns what manages the sign-ins at the identity provider, if there is one.
    pub(super) fn provider(&self) -> Option<&Arc<UserTokens>> {
        match &self.origin {
            SubjectOrigin::Provider(tokens) => Some(tokens),
            SubjectOrigin::Callers { .. } => None,
        }
    }

    async fn resolved(&self, principal: Option<&PrincipalId>) -> Result<PrincipalId, OauthError> {
        match (principal, &self.origin) {
            (Some(principal), _) => Ok(principal.clone()),
            (None, SubjectOrigin::Callers { tokens, tenant, .. }) => {
                tokens.any_principal(tenant).ok_or(OauthError::NoCallerToken)
            }
            (None, SubjectOrigin::Provider(tokens)) => tokens.first_principal().await,
        }
    }

    /// Waits for the token of a caller. Must be called without the turn of the principal, so that all
    /// its requests wait at the same time.
    async fn subject_arrival(&self, principal: &PrincipalId) {
        if let SubjectOrigin::Callers { tokens, tenant, .. } = &self.origin {
            tokens.arrival(tenant, principal).await;
        }
    }

    pub(super) fn held(&self, principal: &PrincipalId) -> Option<TokenHeader> {
        let state = self.state.lock();
        let held = state.get(principal)?.token.as_ref()?;
        let is_usable = !held.is_due() && self.is_permitted(principal, held);
        is_usable.then(|| held.token.header.clone())
    }

    fn turn(&self, principal: &PrincipalId) -> Arc<tokio::sync::Mutex<()>> {
        let mut state = self.state.lock();
        if state.len() >= GRANT_CACHED_MAX && !state.contains_key(principal) {
            state.retain(|_, known| Arc::strong_count(&known.turn) > 1);
        }
        state.entry(principal.clone()).or_default().turn.clone()
    }

    /// Gets a token. The caller has the turn of the principal. Without a challenge a renewal that
    /// may succeed later keeps a token that is still valid.
    async fn request(
        &self,
        principal: &PrincipalId,
        challenge: Option<Challenge>,
    ) -> Result<TokenHeader, OauthError> {
        let kept = self.valid(principal).filter(|_| challenge.is_none());
        let failed = self.state.lock().get(principal).and_then(|known| known.failed.clone());
        if let Some((error, at)) = failed
            && at.elapsed() < OAUTH_FAILURE_PAUSE
        {
            return kept.ok_or(error);
        }
        let requested = self.requested(principal, challenge).await;
        let outcome = match &requested {
            Ok(_) => "granted",
            Err(error) if error.is_temporary() => "unavailable",
            Err(_) => "refused",
        };
        // No server got a request for a principal that has to sign in first.
        let is_new = matches!(
            requested,
            Err(OauthError::Unconnected(ConnectReason::New) | OauthError::NoCallerToken)
        );
        if !is_new {
            self.metrics.oauth.requested(outcome);
        }
        let mut state = self.state.lock();
        let known = state.entry(principal.clone()).or_default();
        match requested {
            Ok((held, scopes)) => {
                let header = held.token.header.clone();
                known.scopes_of = held.caller.as_ref().map(|caller| caller.digest.clone());
                (known.token, known.scopes, known.failed) = (Some(held), scopes, None);
                Ok(header)
            }
            Err(error) => {
                // A sign-in can come at any time.
                let is_usual =
                    matches!(error, OauthError::Unconnected(_) | OauthError::NoCallerToken);
                known.failed = (!is_usual).then(|| (error.clone(), Instant::now()));
                let may_pass = error.is_temporary()
                    || matches!(error, OauthError::Refused(_) | OauthError::InvalidClient(_));
                if let Some(kept) = kept.filter(|_| may_pass) {
                    return Ok(kept);
                }
                known.token = None;
                Err(error)
            }
        }
    }

    async fn requested(
        &self,
        principal: &PrincipalId,
        challenge: Option<Challenge>,
    ) -> Result<(HeldToken, Vec<String>), OauthError> {
        let subject = match &self.origin {
            SubjectOrigin::Callers { tokens, tenant, .. } => {
                let subject = tokens.of(tenant, principal).await?;
                let subject = subject.ok_or(OauthError::NoCallerToken)?;
                Subject {
                    text: subject.text.expose().to_owned(),
                    kind: ACCESS_TOKEN,
                    expires_at_us: Some(subject.expires_at_us),
                    grant: None,
                    caller: Some(subject),
                }
            }
            SubjectOrigin::Provider(tokens) => tokens.subject(principal).await?,
        };
        let server = self.server.get(&self.fetcher, challenge.clone()).await?;
        check_destination(&subject, &server)?;
        let before = {
            let state = self.state.lock();
            let digest = subject.caller.as_ref().map(|caller| &caller.digest);
            let known = state.get(principal).filter(|known| known.scopes_of.as_ref() == digest);
            known.map(|known| known.scopes.clone()).unwrap_or_default()
        };
        let scopes = chosen_scopes(&self.scopes, &server.scopes, before, challenge.as_ref());
        let form = match &self.origin {
            SubjectOrigin::Callers {
                grant: ExchangeGrant::TokenExchange, audience, actor, ..
            } => {
                let mut form = exchange_form(&subject, &server, audience.as_deref(), &scopes);
                if let Some(actor) = actor {
                    let (token, kind) = self.actor_token(actor, &server.issuer).await?;
                    form.push(("actor_token", token));
                    form.push(("actor_token_type", kind.to_owned()));
                }
                form
            }
            SubjectOrigin::Callers { grant: ExchangeGrant::OnBehalfOf, .. } => {
                on_behalf_of_form(&subject, &scopes)
            }
            SubjectOrigin::Provider(tokens) => {
                let assertion_request = assertion_form(&subject, &server, &scopes);
                let assertion = match self.assertion(tokens, principal, assertion_request).await {
                    Err(OauthError::InvalidGrant(_)) => {
                        return Err(tokens.end_of_subject(principal, &subject.text).await);
                    }
                    assertion => assertion?,
                };
                bearer_form(assertion, &server, &scopes)
            }
        };
        let request = self.client.post(&server.token_endpoint, &server.issuer, form).await?;
        let token = request_token(&self.fetcher, request).await.map_err(refused)?;
        let ends = |at_us: i64| {
            let remaining = u64::try_from(at_us.saturating_sub(now_us())).unwrap_or(0);
            Instant::now().checked_add(Duration::from_micros(remaining))
        };
        let (subject_ends, grant) = (subject.expires_at_us.and_then(ends), subject.grant);
        Ok((HeldToken { token, subject_ends, grant, caller: subject.caller }, scopes))
    }

    /// Returns a token that names the broker, and its type (RFC 8693, 2.1).
    async fn actor_token(
        &self,
        actor: &Actor,
        issuer: &str,
    ) -> Result<(String, &'static str), OauthError> {
        match actor {
            Actor::Client(tokens) => Ok((tokens.text().await?, ACCESS_TOKEN)),
            Actor::Signed => Ok((self.client.assertion(issuer).await?, JWT)),
        }
    }

    /// Gets an assertion for the principal from the identity provider.
    async fn assertion(
        &self,
        provider: &UserTokens,
        principal: &PrincipalId,
        form: Form,
    ) -> Result<String, OauthError> {
        let request = provider.signed_request(principal, form).await?;
        request_assertion(&self.fetcher, request, ID_JAG).await
    }
}

/// Refuses to send the token of a caller to a server that its issuer does not permit, whatever the
/// backend and its settings name.
fn check_destination(subject: &Subject, server: &DiscoveredServer) -> Result<(), OauthError> {
    let Some(caller) = &subject.caller else { return Ok(()) };
    if caller.destinations.contains(&server.issuer) {
        return Ok(());
    }
    Err(OauthError::Refused(format!(
        "the issuer of the caller's token does not permit its exchange at {}: name that in auth.issuers[].exchange.issuers",
        server.issuer
    )))
}

/// Returns the error of a token that the server of the backend does not accept. The principal
/// cannot change that at the connect page.
fn refused(error: OauthError) -> OauthError {
    match error {
        OauthError::InvalidGrant(text) => OauthError::Refused(text),
        error => error,
    }
}

type Form = Vec<(&'static str, String)>;

fn with_scopes(mut form: Form, scopes: &[String]) -> Form {
    if !scopes.is_empty() {
        form.push(("scope", scopes.join(" ")));
    }
    form
}

fn exchange_form(
    subject: &Subject,
    server: &DiscoveredServer,
    audience: Option<&str>,
    scopes: &[String],
) -> Form {
    let mut form = vec![
        ("grant_type", TOKEN_EXCHANGE.to_owned()),
        ("subject_token", subject.text.clone()),
        ("subject_token_type", subject.kind.to_owned()),
        ("requested_token_type", ACCESS_TOKEN.to_owned()),
        ("resource", server.resource.clone()),
    ];
    form.extend(audience.map(|audience| ("audience", audience.to_owned())));
    with_scopes(form, scopes)
}

/// Entra has no `resource`: the scopes name the backend.
fn on_behalf_of_form(subject: &Subject, scopes: &[String]) -> Form {
    let form = vec![
        ("grant_type", JWT_BEARER.to_owned()),
        ("assertion", subject.text.clone()),
        ("requested_token_use", "on_behalf_of".to_owned()),
    ];
    with_scopes(form, scopes)
}

fn assertion_form(subject: &Subject, server: &DiscoveredServer, scopes: &[String]) -> Form {
    let form = vec![
        ("grant_type", TOKEN_EXCHANGE.to_owned()),
        ("requested_token_type", ID_JAG.to_owned()),
        ("audience", server.issuer.clone()),
        ("resource", server.resource.clone()),
        ("subject_token", subject.text.clone()),
        ("subject_token_type", subject.kind.to_owned()),
    ];
    with_scopes(form, scopes)
}

fn bearer_form(assertion: String, server: &DiscoveredServer, scopes: &[String]) -> Form {
    let form = vec![
        ("grant_type", JWT_BEARER.to_owned()),
        ("assertion", assertion),
        ("resource", server.resource.clone()),
    ];
    with_scopes(form, scopes)
}
