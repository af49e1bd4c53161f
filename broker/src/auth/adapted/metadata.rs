//! The metadata of the broker's authorization server, which is made of the issuer's (RFC 8414, 2).

use config::{AdaptedFront, ResourceParameter};
use serde_json::{Map, Value, json};

use super::{AdaptedIssuer, IssuerMetadata};

/// Members that a client gets as the issuer wrote them. Other members could name a way around the
/// broker's endpoints, or make a statement about the issuer's own identifier.
const COPIED: [&str; 25] = [
    "jwks_uri",
    "scopes_supported",
    "response_types_supported",
    "response_modes_supported",
    "grant_types_supported",
    "token_endpoint_auth_methods_supported",
    "token_endpoint_auth_signing_alg_values_supported",
    "code_challenge_methods_supported",
    "revocation_endpoint",
    "revocation_endpoint_auth_methods_supported",
    "introspection_endpoint",
    "introspection_endpoint_auth_methods_supported",
    "userinfo_endpoint",
    "end_session_endpoint",
    "subject_types_supported",
    "id_token_signing_alg_values_supported",
    "claims_supported",
    "claim_types_supported",
    "acr_values_supported",
    "display_values_supported",
    "ui_locales_supported",
    "service_documentation",
    "op_policy_uri",
    "op_tos_uri",
    "client_id_metadata_document_supported",
];

impl AdaptedIssuer {
    /// Returns the metadata of the broker's authorization server (RFC 8414, 2).
    pub fn document(&self, metadata: &IssuerMetadata) -> Value {
        let (own, front) = (self.own_issuer(), self.front());
        let mut document = Map::new();
        document.insert("issuer".to_owned(), json!(own));
        for (name, is_own) in
            [("authorize", alters_authorization(front)), ("token", alters_token_request(front))]
        {
            let member = match name {
                "token" => "token_endpoint",
                _ => "authorization_endpoint",
            };
            let endpoint = match is_own {
                true => Some(json!(format!("{own}/{name}"))),
                false => metadata.endpoint(member).cloned(),
            };
            document.extend(endpoint.map(|endpoint| (member.to_owned(), endpoint)));
        }
        for name in COPIED {
            let value = metadata.members.get(name).cloned();
            document.extend(value.map(|value| (name.to_owned(), value)));
        }
        match &front.registration {
            Some(_) => {
                document
                    .insert("registration_endpoint".to_owned(), json!(format!("{own}/register")));
                // Clients are public: the broker alone has the secret.
                document
                    .insert("token_endpoint_auth_methods_supported".to_owned(), json!(["none"]));
            }
            None => {
                let endpoint = metadata.endpoint("registration_endpoint").cloned();
                document.extend(
                    endpoint.map(|endpoint| ("registration_endpoint".to_owned(), endpoint)),
                );
            }
        }
        document.extend(front.metadata_set.clone());
        Value::Object(document)
    }
}

/// Returns whether an authorization request reaches the issuer in another form.
fn alters_authorization(front: &AdaptedFront) -> bool {
    front.resource != ResourceParameter::Pass
        || front.drops_prompt
        || !front.scopes_append.is_empty()
        || front.scope_prefix.is_some()
}

/// Returns whether a token request reaches the issuer in another form.
fn alters_token_request(front: &AdaptedFront) -> bool {
    front.resource != ResourceParameter::Pass
        || front.scope_prefix.is_some()
        || front.registration.as_ref().is_some_and(|client| client.secret.is_some())
}
