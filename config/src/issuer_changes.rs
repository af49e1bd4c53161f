//! What a change of an issuer's settings leaves in force: its keys, and its tokens. Used when a
//! reload or the admin API replaces an issuer.

use super::IssuerConfig;

impl IssuerConfig {
    /// Returns whether the keys of both are at the same place, and are fetched by the same rules.
    pub fn has_keys_of(&self, other: &Self) -> bool {
        self.issuer == other.issuer
            && self.jwks_url == other.jwks_url
            && self.is_stored == other.is_stored
    }

    /// Returns whether both are equal, apart from credentials of the broker at the issuer. No such
    /// credential decides about a token.
    pub fn differs_in_credentials_only(&self, other: &Self) -> bool {
        self.with_credentials_of(other) == *other
    }

    fn with_credentials_of(&self, other: &Self) -> Self {
        let mut changed = self.clone();
        if let (Some(ours), Some(theirs)) = (&mut changed.introspection, &other.introspection) {
            ours.credential.clone_from(&theirs.credential);
        }
        if let (Some(ours), Some(theirs)) = (&mut changed.sign_in, &other.sign_in) {
            ours.client_secret.clone_from(&theirs.client_secret);
        }
        if let (Some(ours), Some(theirs)) = (&mut changed.operators, &other.operators)
            && let (Some(ours), Some(theirs)) = (&mut ours.login, &theirs.login)
        {
            ours.client_secret.clone_from(&theirs.client_secret);
        }
        if let (Some(ours), Some(theirs)) = (&mut changed.front, &other.front)
            && let (Some(ours), Some(theirs)) = (&mut ours.registration, &theirs.registration)
        {
            ours.secret.clone_from(&theirs.secret);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const WITH_SECRETS: &str = "auth: {resource: 'https://mcp.example.com', issuers: [{
        issuer: 'https://login.example.com', tenant: acme, claims: {groups: groups},
        introspection: {endpoint: 'https://login.example.com/i', client_id: b, client_secret: first-secret-of-introspection},
        sign_in: {client_id: b, client_secret: first-secret-of-people},
        admin: {claim: groups, map: [{value: ops, role: viewer}], login: {client_id: console, client_secret: first-secret-of-operators}},
        front: adapted,
        registration: {client_id: all, redirect_uris: ['http://localhost/cb'], secret: first-secret-of-clients}}]}";

    fn issuer(text: &str) -> Arc<IssuerConfig> {
        crate::load_from(text, []).unwrap().auth.issuers.remove(0)
    }

    #[test]
    fn a_change_of_credentials_alone_is_told_from_other_changes() {
        let before = issuer(WITH_SECRETS);
        assert!(before.differs_in_credentials_only(&before));
        for holder in ["introspection", "people", "operators", "clients"] {
            let secret = |turn: &str| format!("{turn}-secret-of-{holder}");
            let after = issuer(&WITH_SECRETS.replace(&secret("first"), &secret("second")));
            assert_ne!(before, after, "{holder}");
            assert!(before.differs_in_credentials_only(&after), "{holder}");
        }
        for (old, new) in [
            ("tenant: acme", "tenant: other"),
            ("groups: groups", "groups: roles"),
            ("value: ops", "value: root"),
            ("endpoint: 'https://login.example.com/i'", "endpoint: 'https://login.example.com/o'"),
            ("client_id: console", "client_id: page"),
            ("redirect_uris: ['http://localhost/cb']", "redirect_uris: ['http://localhost/cd']"),
        ] {
            let after = issuer(&WITH_SECRETS.replace(old, new));
            assert!(!before.differs_in_credentials_only(&after), "{new}");
            assert!(before.has_keys_of(&after), "{new}");
        }
        let elsewhere = "tenant: acme, jwks_url: 'https://login.example.com/k'";
        let elsewhere = issuer(&WITH_SECRETS.replace("tenant: acme", elsewhere));
        assert!(!before.has_keys_of(&elsewhere));
    }
}
