//! Dynamic client registration (RFC 7591) with one fixed answer: the client that an operator has
//! registered at the issuer. Nothing is stored.

use config::ClientRegistration;
use rules::limits::tokens::{REGISTRATION_URI_BYTES_MAX, REGISTRATION_URIS_MAX};
use serde_json::{Value, json};

/// Reason why a registration is refused (RFC 7591, 3.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationFault {
    #[error(
        "the body is not an object with redirect_uris, a list of 1 to {REGISTRATION_URIS_MAX} texts"
    )]
    Metadata,
    #[error(
        "a redirect URI is not one that this client may use; ask an operator to add it to registration.redirect_uris"
    )]
    RedirectUri,
}

impl RegistrationFault {
    /// Returns the code of the error.
    pub fn code(self) -> &'static str {
        match self {
            Self::Metadata => "invalid_client_metadata",
            Self::RedirectUri => "invalid_redirect_uri",
        }
    }
}

/// Returns the client information for a registration request (RFC 7591, 3.2.1).
pub fn registered_client(
    client: &ClientRegistration,
    request: &[u8],
) -> Result<Value, RegistrationFault> {
    let request: Value =
        serde_json::from_slice(request).map_err(|_| RegistrationFault::Metadata)?;
    let uris = request["redirect_uris"]
        .as_array()
        .filter(|uris| (1..=REGISTRATION_URIS_MAX).contains(&uris.len()))
        .ok_or(RegistrationFault::Metadata)?;
    for uri in uris {
        let uri = uri.as_str().ok_or(RegistrationFault::Metadata)?;
        if uri.len() > REGISTRATION_URI_BYTES_MAX || !client.allows(uri) {
            return Err(RegistrationFault::RedirectUri);
        }
    }
    Ok(json!({
        "client_id": client.client_id,
        "redirect_uris": uris,
        "token_endpoint_auth_method": "none",
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_gets_the_fixed_client_for_permitted_redirect_uris_only() {
        let client = ClientRegistration {
            client_id: "fixed".to_owned(),
            redirect_uris: vec!["http://localhost/cb".to_owned()],
            secret: Some(config::Secret::new("not for clients")),
        };
        let answer = |request: Value| registered_client(&client, request.to_string().as_bytes());
        let known =
            answer(json!({"redirect_uris": ["http://localhost:1234/cb"], "client_name": "x"}));
        let known = known.unwrap();
        assert_eq!(known["client_id"], "fixed");
        assert!(!known.to_string().contains("not for clients"));
        for (request, fault) in [
            (json!({"redirect_uris": ["https://evil.example/cb"]}), RegistrationFault::RedirectUri),
            (
                json!({"redirect_uris": ["http://localhost/cb", "https://evil.example/cb"]}),
                RegistrationFault::RedirectUri,
            ),
            (json!({"redirect_uris": []}), RegistrationFault::Metadata),
            (json!({"redirect_uris": "http://localhost/cb"}), RegistrationFault::Metadata),
            (json!({"redirect_uris": [7]}), RegistrationFault::Metadata),
            (json!([]), RegistrationFault::Metadata),
            (json!({}), RegistrationFault::Metadata),
        ] {
            assert_eq!(answer(request.clone()), Err(fault), "{request}");
        }
    }
}
