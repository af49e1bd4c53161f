//! Tokens for a backend that the broker gets as a client of its own (client credentials). All links
//! of the backend share them.
//!
//! Invariants:
//! - At most one token request per backend runs at a time in a process.
//! - The credential goes to the issuer of the settings, or else to the first one that was used.

use std::{sync::Arc, time::Instant};

use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use rules::limits::oauth::{OAUTH_FAILURE_PAUSE, OAUTH_METADATA_AGE_MAX};
use transport::HttpClient;

use super::{
    challenge::Challenge,
    discovery::{DiscoveredServer, ProtectedBackend},
    fetch::{OauthError, OauthFetcher},
    token_request::{AccessToken, request_token},
};
use crate::{
    auth::{ClientAuthentication, ClientCredential},
    config::{
        ClientKey, Secret,
        spec::{BackendAuth, BackendAuthKind, BackendSpec, ClientAuthMethod, TransportSpec},
    },
    metrics::Metrics,
};

/// Value of `Authorization` for a backend.
pub type TokenHeader = HeaderValue;

/// Source of the tokens of one backend.
#[derive(Debug)]
pub struct MachineTokens {
    fetcher: OauthFetcher,
    backend: ProtectedBackend,
    client: ClientAuthentication,
    /// Scopes that the operator configured.
    scopes: Vec<String>,
    state: Mutex<TokenState>,
    /// Puts token requests in order. It holds no data.
    requesting: tokio::sync::Mutex<()>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct TokenState {
    token: Option<AccessToken>,
    server: Option<(Arc<DiscoveredServer>, Instant)>,
    /// The issuer that got the credential.
    bound_to: Option<String>,
    /// Scopes of the last token and of the challenges since.
    scopes: Vec<String>,
    failed: Option<(OauthError, Instant)>,
}

impl MachineTokens {
    /// Creates the source for a backend of type `oauth_client`. `http` applies the egress policy.
    pub fn of(spec: &BackendSpec, http: &HttpClient, metrics: Arc<Metrics>) -> Option<Arc<Self>> {
        let (BackendAuthKind::OauthClient, TransportSpec::Http { url }) =
            (spec.auth.kind, &spec.transport)
        else {
            return None;
        };
        Some(Arc::new(Self {
            fetcher: OauthFetcher::new(http.clone(), url),
            backend: ProtectedBackend {
                url: url.clone(),
                headers: configured_headers(spec),
                issuer: spec.auth.issuer.clone(),
                resource: spec.auth.resource.clone(),
            },
            client: client_of(&spec.auth)?,
            scopes: spec.auth.scopes.clone(),
            state: Mutex::default(),
            requesting: tokio::sync::Mutex::default(),
            metrics,
        }))
    }

    /// Returns the header for the next request to the backend.
    pub async fn header(&self) -> Result<TokenHeader, OauthError> {
        let now = Instant::now();
        let held = self.state.lock().token.clone();
        let (still_good, is_due) = match &held {
            None => (None, true),
            Some(token) => match token.ends {
                None => (Some(token.header.clone()), false),
                Some(ends) => {
                    ((now < ends.expires_at).then(|| token.header.clone()), now >= ends.renew_at)
                }
            },
        };
        match still_good {
            Some(header) if !is_due => Ok(header),
            // One request renews the token, and the others use it as long as it lives.
            Some(header) => match self.requesting.try_lock() {
                Err(_) => Ok(header),
                Ok(_turn) => Ok(self.request(None).await.unwrap_or(header)),
            },
            None => {
                let _turn = self.requesting.lock().await;
                self.unless_changed(held.as_ref().map(|token| &token.header), None).await
            }
        }
    }

    /// Returns another header after the backend refused `refused`. The backend's servers are sought
    /// again.
    pub async fn renewed(
        &self,
        refused: &TokenHeader,
        challenge: Option<Challenge>,
    ) -> Result<TokenHeader, OauthError> {
        let _turn = self.requesting.lock().await;
        self.unless_changed(Some(refused), Some(challenge.unwrap_or_default())).await
    }

    async fn unless_changed(
        &self,
        refused: Option<&TokenHeader>,
        challenge: Option<Challenge>,
    ) -> Result<TokenHeader, OauthError> {
        let (current, failed) = {
            let state = self.state.lock();
            let current = state.token.as_ref().map(|token| token.header.clone());
            (current, state.failed.clone())
        };
        if let Some(current) = current
            && refused != Some(&current)
        {
            return Ok(current);
        }
        match failed {
            Some((error, at)) if at.elapsed() < OAUTH_FAILURE_PAUSE => Err(error),
            _ => self.request(challenge).await,
        }
    }

    /// Gets a token. The caller has the turn.
    async fn request(&self, challenge: Option<Challenge>) -> Result<TokenHeader, OauthError> {
        let requested = self.requested(challenge).await;
        let mut state = self.state.lock();
        match requested {
            Ok(token) => {
                self.metrics.oauth.requested("granted");
                let header = token.header.clone();
                (state.token, state.failed) = (Some(token), None);
                Ok(header)
            }
            Err(error) => {
                let outcome = match error {
                    OauthError::Unavailable(_) => "unavailable",
                    _ => "refused",
                };
                self.metrics.oauth.requested(outcome);
                state.failed = Some((error.clone(), Instant::now()));
                Err(error)
            }
        }
    }

    async fn requested(&self, challenge: Option<Challenge>) -> Result<AccessToken, OauthError> {
        let server = self.server(challenge.clone()).await?;
        let scopes = self.chosen_scopes(&server, challenge.as_ref());
        let mut form = vec![
            ("grant_type", "client_credentials".to_owned()),
            ("resource", server.resource.clone()),
        ];
        if !scopes.is_empty() {
            form.push(("scope", scopes.join(" ")));
        }
        let request = self.client.post(&server.token_endpoint, &server.issuer, form);
        let request = request.ok_or_else(|| {
            OauthError::Unavailable("no client assertion can be signed".to_owned())
        })?;
        let token = request_token(&self.fetcher, request).await?;
        self.state.lock().scopes = scopes;
        Ok(token)
    }

    /// Returns the server, sought again after a challenge or when its metadata is old.
    async fn server(
        &self,
        challenge: Option<Challenge>,
    ) -> Result<Arc<DiscoveredServer>, OauthError> {
        let known = self.state.lock().server.clone();
        if let (Some((server, found)), None) = (known, &challenge)
            && found.elapsed() < OAUTH_METADATA_AGE_MAX
        {
            return Ok(server);
        }
        let challenge = challenge.filter(|challenge| *challenge != Challenge::default());
        let found = Arc::new(self.backend.discover(&self.fetcher, challenge).await?);
        let mut state = self.state.lock();
        match &state.bound_to {
            Some(bound) if *bound != found.issuer => {
                return Err(OauthError::Refused(format!(
                    "the backend names the authorization server {} now, but the credential belongs to {bound}: change auth",
                    found.issuer
                )));
            }
            _ => state.bound_to = Some(found.issuer.clone()),
        }
        state.server = Some((found.clone(), Instant::now()));
        Ok(found)
    }

    /// Returns the scopes to ask for: those of the settings or of discovery, with those that the
    /// last token had when a challenge asks for more.
    fn chosen_scopes(
        &self,
        server: &DiscoveredServer,
        challenge: Option<&Challenge>,
    ) -> Vec<String> {
        let configured = if self.scopes.is_empty() { &server.scopes } else { &self.scopes };
        let wanted = challenge.filter(|challenge| challenge.wants_scopes());
        let held = self.state.lock().scopes.clone();
        let mut scopes: Vec<String> = match wanted {
            Some(challenge) => held.into_iter().chain(challenge.scopes.clone()).collect(),
            None if held.is_empty() => configured.clone(),
            None => held,
        };
        let mut seen = std::collections::HashSet::new();
        scopes.retain(|scope| seen.insert(scope.clone()));
        scopes
    }
}

pub(super) fn configured_headers(spec: &BackendSpec) -> HeaderMap {
    let headers = spec.credentials.headers.iter();
    headers.filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?))).collect()
}

fn client_of(auth: &BackendAuth) -> Option<ClientAuthentication> {
    let credential = match (&auth.client_secret, &auth.client_key) {
        (Some(secret), _) => match auth.token_endpoint_auth_method {
            Some(ClientAuthMethod::ClientSecretPost) => {
                ClientCredential::Post(Secret::new(secret.as_str()))
            }
            _ => ClientCredential::Basic(Secret::new(secret.as_str())),
        },
        (None, Some(pem)) => ClientCredential::Key {
            key: ClientKey::from_pem(pem)?,
            key_id: auth.client_key_id.clone(),
        },
        (None, None) => return None,
    };
    Some(ClientAuthentication::new(auth.client_id.as_ref()?, credential))
}
