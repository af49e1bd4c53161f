//! The broker as a client of an issuer at which people sign in: `sign_in` and `admin.login` of an
//! entry of `auth.issuers`. Read by [`super::issuers`].

use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    Secret,
    config_key::is_secret,
    config_reader::read_secret_file,
    field_error::join,
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
}

/// `sign_in` as written.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SignInEntry {
    client_id: String,
    client_secret: Option<String>,
    client_secret_file: Option<String>,
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
        let OperatorLoginEntry { client_id, client_secret, client_secret_file, .. } = entry;
        let client = SignInEntry { client_id, client_secret, client_secret_file };
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
        Some(LoginClient { client_id: entry.client_id, client_secret: read.ok()?, scopes })
    }
}
