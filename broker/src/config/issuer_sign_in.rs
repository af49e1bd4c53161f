//! Sign-in of people at the connect page: `sign_in` of an entry of `auth.issuers`. Read by
//! [`super::issuers`].

use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    Secret, config_key::is_secret, config_reader::read_secret_file, issuers::IssuerReader,
};

const WORD_BYTES_MAX: usize = 512;

/// The broker as a client of an issuer at which people sign in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignInClient {
    pub client_id: String,
    /// `None`: a public client.
    pub client_secret: Option<Secret>,
}

/// `sign_in` as written.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SignInEntry {
    client_id: String,
    client_secret: Option<String>,
    client_secret_file: Option<String>,
}

impl IssuerReader<'_> {
    /// Reads `sign_in`. Returns `None` without it, or after a fault.
    pub(super) fn sign_in(&mut self, entry: Option<SignInEntry>) -> Option<SignInClient> {
        let entry = entry?;
        let is_word = (1..=WORD_BYTES_MAX).contains(&entry.client_id.len())
            && !entry.client_id.chars().any(char::is_control);
        if !is_word {
            let allowed = format!("1 to {WORD_BYTES_MAX} bytes without control characters");
            self.fault("sign_in.client_id", "is not the id of a client", &allowed);
        }
        let one = "client_secret or client_secret_file";
        let client_secret = match (entry.client_secret, entry.client_secret_file) {
            (None, None) => None,
            (Some(_), Some(_)) => {
                self.fault("sign_in.client_secret", "is set twice", one);
                None
            }
            (Some(text), None) if is_secret(&text) => Some(Secret::new(text)),
            (Some(_), None) => {
                let allowed = "1 to 4096 visible ASCII characters without spaces";
                self.fault("sign_in.client_secret", "is not a secret", allowed);
                None
            }
            (None, Some(file)) => match read_secret_file(&file, 1) {
                Ok(secret) => Some(secret),
                Err(wrong) => {
                    self.fault("sign_in.client_secret_file", &wrong, "a file with the secret");
                    None
                }
            },
        };
        Some(SignInClient { client_id: entry.client_id, client_secret })
    }
}
