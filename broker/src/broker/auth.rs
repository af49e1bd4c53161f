//! Settings of sign-in that are replaced while the broker runs.

use std::sync::Arc;

use arc_swap::Guard;

use super::Broker;
use crate::{
    auth::{AuthSettings, IssuerState, adapted::AdaptedIssuer},
    config::AuthConfig,
};

impl Broker {
    /// Returns the settings of sign-in in force.
    pub fn auth(&self) -> Guard<Arc<AuthConfig>> {
        self.auth.load()
    }

    /// Returns the settings of sign-in, for a listener that follows them.
    pub fn auth_settings(&self) -> AuthSettings {
        self.auth.clone()
    }

    /// Puts settings of sign-in into force. Connections whose token has a removed or changed issuer
    /// end as if the token had expired. Must be called inside the runtime.
    pub fn set_auth(&self, next: AuthConfig) {
        if **self.auth.load() == next {
            return;
        }
        self.tokens.set_issuers(next.resource.as_deref(), &next.issuers);
        self.auth.replace(next);
    }

    /// Returns the issuer whose authorization server for clients has this id.
    pub fn adapted_issuer(&self, id: &str) -> Option<AdaptedIssuer> {
        self.tokens.adapted(id)
    }

    /// Returns the state of an issuer in force.
    pub fn issuer_state(&self, issuer: &str) -> Option<IssuerState> {
        self.tokens.issuer_state(issuer)
    }
}
