//! The broker as a client of an issuer at which people sign in: `sign_in` and `admin.login` of an
//! entry of `auth.issuers`. Read by [`super::issuers`].

use protocol::ids::TenantId;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    Secret,
    config_key::is_secret,
    config_reader::read_secret_file,
    field_error::{NAME_ALLOWED, join},
    issuer_reader::{IDENTIFIER_BYTES_MAX, IssuerReader},
};

/// The broker as a client of an issuer at which people sign in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginClient {
    pub client_id: String,
    /// `None`: a public client.
    pub client_secret: Option<Secret>,
    /// Scopes to ask for.
    pub scopes: Vec<String>,
    /// Last part of the redirect URI. `None`: other issuers have the same redirect URI.
    pub callback: Option<String>,
}

impl LoginClient {
    /// Returns the redirect URI at the issuer. `shared` is that of all issuers without one of their
    /// own.
    pub fn redirect_uri(&self, shared: &str) -> String {
        match &self.callback {
            None => shared.to_owned(),
            Some(own) => format!("{shared}/{own}"),
        }
    }
}

/// `sign_in` as written.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SignInEntry {
    client_id: String,
    client_secret: Option<String>,
    client_secret_file: Option<String>,
    /// Last part of a redirect URI of this issuer alone.
    callback: Option<String>,
}

/// `admin.login` as written.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OperatorLoginEntry {
    client_id: String,
    /// Absent, with `client_secret_file`: a public client.
    client_secret: Option<String>,
    client_secret_file: Option<String>,
    /// Scopes that the console asks for.
    scopes: Option<Vec<String>>,
    /// Last part of a redirect URI of this issuer alone.
    callback: Option<String>,
}

impl IssuerReader<'_> {
    /// Reads `sign_in`. Returns `None` without it, or after a fault.
    pub(super) fn sign_in(&mut self, entry: Option<SignInEntry>) -> Option<LoginClient> {
        // An ID token is what the connect page needs.
        self.login_client("sign_in", entry?, vec!["openid".to_owned()])
    }

    /// Reads `admin.login`. Returns `None` after a fault.
    pub(super) fn operator_login(&mut self, entry: OperatorLoginEntry) -> Option<LoginClient> {
        let scopes = self.identifiers("admin.login.scopes", entry.scopes, |identifier| {
            identifier.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(&byte))
        });
        let OperatorLoginEntry { client_id, client_secret, client_secret_file, callback, .. } =
            entry;
        let client = SignInEntry { client_id, client_secret, client_secret_file, callback };
        self.login_client("admin.login", client, scopes)
    }

    fn login_client(
        &mut self,
        path: &str,
        entry: SignInEntry,
        scopes: Vec<String>,
    ) -> Option<LoginClient> {
        let is_id = (1..=IDENTIFIER_BYTES_MAX).contains(&entry.client_id.len())
            && !entry.client_id.chars().any(char::is_control);
        if !is_id {
            let allowed = format!("1 to {IDENTIFIER_BYTES_MAX} bytes without control characters");
            self.fault(&join(path, "client_id"), "is not the id of a client", &allowed);
        }
        // The rule for names of tenants: it needs no encoding in a path.
        if entry.callback.as_deref().is_some_and(|name| TenantId::parse(name).is_err()) {
            self.fault(&join(path, "callback"), "is not a name", NAME_ALLOWED);
        }
        let one = "client_secret or client_secret_file, or none for a public client";
        let read = match (entry.client_secret, entry.client_secret_file) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => {
                Err(("client_secret", "is set together with client_secret_file".to_owned(), one))
            }
            (Some(text), None) if is_secret(&text) => Ok(Some(Secret::new(text))),
            (Some(_), None) => {
                let allowed = "1 to 4096 visible ASCII characters without spaces";
                Err(("client_secret", "is not a secret".to_owned(), allowed))
            }
            (None, Some(file)) => read_secret_file(&file, 1)
                .map(Some)
                .map_err(|wrong| ("client_secret_file", wrong, "a file with the secret")),
        };
        let read = read.map_err(|(name, wrong, allowed)| {
            self.fault(&join(path, name), &wrong, allowed);
        });
        let (client_id, callback) = (entry.client_id, entry.callback);
        Some(LoginClient { client_id, client_secret: read.ok()?, scopes, callback })
    }
}

#[cfg(test)]
mod tests {
    use crate::load_from;

    #[test]
    fn an_issuer_can_have_a_redirect_uri_of_its_own() {
        let redirect_uri = |callback: &str| {
            let issuer = format!(
                "{{issuer: 'https://a.example', tenant: acme, sign_in: {{client_id: c{callback}}}}}"
            );
            let text = format!("auth: {{resource: 'https://mcp.example', issuers: [{issuer}]}}");
            let config = load_from(&text, []).map_err(|faults| faults.to_string())?;
            let client = config.auth.issuers[0].sign_in.clone().unwrap();
            Ok::<_, String>(client.redirect_uri("https://mcp.example/oauth/callback"))
        };
        let shared = "https://mcp.example/oauth/callback".to_owned();
        assert_eq!(redirect_uri(""), Ok(shared.clone()));
        assert_eq!(redirect_uri(", callback: okta-2"), Ok(format!("{shared}/okta-2")));
        for wrong in ["''", "-a", "a/b", "Okta", "'%61'"] {
            let fault = redirect_uri(&format!(", callback: {wrong}")).unwrap_err();
            assert!(fault.contains("sign_in.callback: is not a name"), "{wrong}: {fault}");
        }
    }
}
