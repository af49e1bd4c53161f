//! Principals that sign in at an identity provider, which vouches for them at other authorization
//! servers (ID-JAG).

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use protocol::ids::PrincipalId;
use records::GrantState;
use rules::limits::oauth::GRANT_LOOK_INTERVAL;

use super::{
    client_keys::signed,
    exchanged::Subject,
    fetch::{ConnectReason, OauthError},
    id_token::IdToken,
    token_request::AccessToken,
    user_tokens::UserTokens,
};

const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";
const REFRESH_TOKEN: &str = "urn:ietf:params:oauth:token-type:refresh_token";

/// The grant of a sign-in, as it was looked up last.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrantLookup {
    version: i64,
    at: Instant,
    /// Those that this process knew of.
    account_changes: u64,
}

impl UserTokens {
    /// Checks that a sign-in at an identity provider is that of the principal. `claim` names the
    /// principals of this issuer.
    pub(super) fn check_identity(
        &self,
        token: &AccessToken,
        issuer: &str,
        client_id: &str,
        principal: &PrincipalId,
        claim: &str,
    ) -> Result<(), OauthError> {
        let refused = |text: String| Err(OauthError::Refused(text));
        let read = token.id_token.as_ref().and_then(|text| IdToken::of(text, issuer, client_id));
        let Some(identity) = read else {
            return refused(format!("{issuer} returned no usable ID token"));
        };
        // A principal of this issuer can only sign in as itself.
        let own = principal.as_str().strip_prefix(issuer).and_then(|name| name.strip_prefix(' '));
        match own {
            Some(own) if identity.text(claim) != Some(own) => {
                refused(format!("another user of {issuer} has signed in"))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a grant needs no further lookup yet.
    pub(super) fn is_recent(&self, lookup: &GrantLookup) -> bool {
        lookup.at.elapsed() < GRANT_LOOK_INTERVAL
            && lookup.account_changes == self.account_changes()
    }

    /// Returns the look-up that stands for one which the database did not answer. `None`: this
    /// process knows of a change.
    pub(super) fn assumed_unchanged(&self, lookup: GrantLookup) -> Option<GrantLookup> {
        let is_unchanged = lookup.account_changes == self.account_changes();
        is_unchanged.then(|| GrantLookup { at: Instant::now(), ..lookup })
    }

    /// Looks the grant of a principal up again. `None`: it has changed or ended.
    pub(super) async fn looked_up_again(
        &self,
        principal: &PrincipalId,
        lookup: GrantLookup,
    ) -> Result<Option<GrantLookup>, OauthError> {
        let (at, account_changes) = (Instant::now(), self.account_changes());
        let found = self.vault.grant(&self.key(principal)).await?;
        let is_same = found.is_some_and(|open| open.stored.version == lookup.version);
        Ok(is_same.then_some(GrantLookup { at, account_changes, ..lookup }))
    }

    /// Returns what stands for the principal at the provider: its ID token, or the refresh token
    /// when that has expired.
    pub(super) async fn subject(
        self: &Arc<Self>,
        principal: &PrincipalId,
    ) -> Result<Subject, OauthError> {
        // Before the grant is read, so that no later change is missed.
        let (at, account_changes) = (Instant::now(), self.account_changes());
        // Renews what is due.
        self.header(Some(principal)).await?;
        let new = OauthError::Unconnected(ConnectReason::New);
        let open = self.vault.grant(&self.key(principal)).await?.ok_or(new)?;
        if open.stored.record.state != GrantState::Connected {
            return Err(OauthError::Unconnected(ConnectReason::Ended));
        }
        let grant = Some(GrantLookup { version: open.stored.version, at, account_changes });
        let (client, server) = self.client(principal).await?;
        let id_token = open.grant.id_token.clone().and_then(|text| {
            let read = IdToken::of(&text, &server.issuer, client.client_id())?;
            Some(Subject {
                text,
                kind: ID_TOKEN,
                expires_at_us: Some(read.expires_at_us),
                grant,
                caller: None,
            })
        });
        let refresh_token = || {
            let text = open.grant.refresh_token.clone()?;
            Some(Subject { text, kind: REFRESH_TOKEN, expires_at_us: None, grant, caller: None })
        };
        match id_token.or_else(refresh_token) {
            Some(subject) => Ok(subject),
            None => {
                self.ended(&self.key(principal), &open).await?;
                Err(changed())
            }
        }
    }

    /// Ends a sign-in that the provider does not accept any more, unless it has changed.
    pub(super) async fn end_of_subject(&self, principal: &PrincipalId, used: &str) -> OauthError {
        let key = self.key(principal);
        match self.vault.grant(&key).await {
            Ok(Some(open)) => {
                let held = [&open.grant.id_token, &open.grant.refresh_token];
                if held.into_iter().flatten().any(|text| text == used) {
                    return self.ended(&key, &open).await.err().unwrap_or_else(changed);
                }
                changed()
            }
            Ok(None) => OauthError::Unconnected(ConnectReason::New),
            Err(error) => error,
        }
    }

    /// Prepares a request to the token endpoint of the provider.
    pub(super) async fn signed_request(
        &self,
        principal: &PrincipalId,
        form: Vec<(&'static str, String)>,
    ) -> Result<Request<Full<Bytes>>, OauthError> {
        let (client, server) = self.client(principal).await?;
        signed(&client, &server.token_endpoint, &server.issuer, form)
    }
}

fn changed() -> OauthError {
    OauthError::Unavailable("the sign-in has changed meanwhile".to_owned())
}
