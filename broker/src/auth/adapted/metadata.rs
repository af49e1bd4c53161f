//! Metadata of an adapted issuer (RFC 8414, OpenID Connect Discovery 1.0), and the metadata of the
//! broker's authorization server that is made of it.

use http::Uri;
use serde_json::{Map, Value, json};
use transport::parse_http_url;

use super::AdaptedIssuer;
use crate::config::{
    AdaptedFront, ResourceParameter,
    issuers::{is_loopback, is_private},
};

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

/// Reason why the metadata of an issuer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataFault {
    #[error(
        "its metadata has authorization_response_iss_parameter_supported (RFC 9207), and clients would refuse the iss of its answers; set front: direct"
    )]
    SendsIss,
    #[error("{0} of its metadata is missing or not a usable URL")]
    Endpoint(&'static str),
}

/// Metadata of an issuer, as far as the broker needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerMetadata {
    members: Map<String, Value>,
    /// Endpoint for browsers, which may have a query.
    pub(super) authorization_endpoint: String,
    pub(super) token_endpoint: Uri,
    /// True if a client may send its secret in the body of a token request.
    pub(super) takes_secret_in_body: bool,
}

impl IssuerMetadata {
    /// Reads metadata that names the issuer. `issuer` decides which addresses it may name.
    pub fn new(members: Map<String, Value>, issuer: &str) -> Result<Self, MetadataFault> {
        if members.get("authorization_response_iss_parameter_supported") == Some(&json!(true)) {
            return Err(MetadataFault::SendsIss);
        }
        let is_local = parse_http_url(issuer).is_ok_and(|uri| is_loopback(&uri));
        let endpoint = |name: &'static str| {
            let text = members.get(name).and_then(Value::as_str).unwrap_or_default();
            let uri = parse_http_url(text).ok();
            // Only an issuer on this machine may name a loopback URL.
            uri.filter(|uri| is_private(uri) && (is_local || !is_loopback(uri)))
                .filter(|_| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#'))
                .map(|uri| (text.to_owned(), uri))
                .ok_or(MetadataFault::Endpoint(name))
        };
        let (authorization_endpoint, _) = endpoint("authorization_endpoint")?;
        let (_, token_endpoint) = endpoint("token_endpoint")?;
        let methods = members.get("token_endpoint_auth_methods_supported");
        let takes_secret_in_body = methods
            .and_then(Value::as_array)
            .is_some_and(|methods| methods.iter().any(|method| method == "client_secret_post"));
        Ok(Self { members, authorization_endpoint, token_endpoint, takes_secret_in_body })
    }

    fn endpoint(&self, name: &str) -> Option<&Value> {
        self.members.get(name)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn members(changes: Value) -> Map<String, Value> {
        let mut members = json!({
            "issuer": "https://a.example",
            "authorization_endpoint": "https://a.example/authorize?p=x",
            "token_endpoint": "https://b.example/token",
        });
        for (name, value) in changes.as_object().unwrap() {
            members[name] = value.clone();
        }
        members.as_object().unwrap().clone()
    }

    #[test]
    fn an_issuer_that_sends_iss_or_has_odd_endpoints_is_refused() {
        let read = |changes| IssuerMetadata::new(members(changes), "https://a.example");
        assert!(read(json!({})).is_ok_and(|metadata| !metadata.takes_secret_in_body));
        assert!(
            read(json!({"token_endpoint_auth_methods_supported": ["client_secret_post"]}))
                .is_ok_and(|metadata| metadata.takes_secret_in_body)
        );
        assert_eq!(
            read(json!({"authorization_response_iss_parameter_supported": true})).err(),
            Some(MetadataFault::SendsIss)
        );
        assert!(read(json!({"authorization_response_iss_parameter_supported": false})).is_ok());
        for odd in [
            "http://a.example/t",
            "https://127.0.0.1/t",
            "javascript:x",
            "/t",
            "",
            "https://a.example/t#x",
        ] {
            for name in ["token_endpoint", "authorization_endpoint"] {
                assert_eq!(
                    read(json!({name: odd})).err(),
                    Some(MetadataFault::Endpoint(name)),
                    "{odd}"
                );
            }
        }
    }
}
