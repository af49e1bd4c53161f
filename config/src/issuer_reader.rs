//! Reader of one entry of `auth.issuers`. The files of its sections extend it.

use http::Uri;
use transport::parse_http_url;

use super::{
    field_error::{FieldError, join},
    private_url::is_private,
};

pub(super) const URL_ALLOWED: &str = "an https URL, or an http one of this machine";
/// Longest name of a claim, audience or scope, in bytes.
pub(super) const IDENTIFIER_BYTES_MAX: usize = 512;
/// Largest number of audiences or scopes.
const IDENTIFIERS_MAX: usize = 64;

/// Reader of one entry of the list.
pub(super) struct IssuerReader<'f> {
    pub(super) path: String,
    pub(super) faults: &'f mut Vec<FieldError>,
    /// True for a request of the admin API.
    pub(super) is_stored: bool,
}

impl IssuerReader<'_> {
    pub(super) fn fault(&mut self, name: &str, wrong: &str, allowed: &str) {
        self.faults.push(FieldError::new(join(&self.path, name), wrong, allowed));
    }

    pub(super) fn url(&mut self, name: &str, url: &str) -> Option<Uri> {
        match parse_http_url(url) {
            Ok(uri) if is_private(&uri) => return Some(uri),
            Ok(_) => self.fault(name, "does not use TLS", URL_ALLOWED),
            Err(error) => self.fault(name, &format!("is not a usable URL: {error}"), URL_ALLOWED),
        }
        None
    }

    pub(super) fn identifiers(
        &mut self,
        name: &'static str,
        identifiers: Option<Vec<String>>,
        fits: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let identifiers = identifiers.unwrap_or_default();
        if identifiers.len() > IDENTIFIERS_MAX
            || identifiers.iter().any(|identifier| {
                identifier.is_empty()
                    || identifier.len() > IDENTIFIER_BYTES_MAX
                    || !fits(identifier)
            })
        {
            self.fault(
                name,
                "has too many entries or an entry that is not valid",
                &format!("at most {IDENTIFIERS_MAX} texts, none of them empty"),
            );
        }
        identifiers
    }
}

/// Returns whether the word is a scope token (RFC 6749, 3.3).
pub(super) fn is_scope(identifier: &str) -> bool {
    identifier.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
}
