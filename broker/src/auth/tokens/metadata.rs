//! Metadata of an issuer (RFC 8414, OpenID Connect Discovery 1.0) that the broker stands in front of.

use config::private_url::{is_loopback, is_private};
use http::Uri;
use serde_json::{Map, Value, json};
use transport::parse_http_url;

/// Reason why the metadata of an issuer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataFault {
    #[error(
        "the metadata has authorization_response_iss_parameter_supported (RFC 9207), so clients would refuse the iss of the issuer's answers; set front: direct"
    )]
    SendsIss,
    #[error("{0} of the issuer's metadata is missing or not a usable URL")]
    Endpoint(&'static str),
}

/// Metadata of an issuer, as far as the broker needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuerMetadata {
    pub(in crate::auth) members: Map<String, Value>,
    /// Endpoint for browsers, which may have a query.
    pub(in crate::auth) authorization_endpoint: String,
    pub(in crate::auth) token_endpoint: Uri,
    /// True if a client may send its secret in the body of a token request.
    pub(in crate::auth) takes_secret_in_body: bool,
}

impl IssuerMetadata {
    /// Reads metadata that names the issuer. `issuer` decides which addresses it may name.
    pub fn new(members: Map<String, Value>, issuer: &str) -> Result<Self, MetadataFault> {
        let metadata = Self::read(members, issuer)?;
        if metadata.sends_issuer() { Err(MetadataFault::SendsIss) } else { Ok(metadata) }
    }

    /// Returns whether the issuer identifies itself in its answers to browsers (RFC 9207).
    fn sends_issuer(&self) -> bool {
        self.members.get("authorization_response_iss_parameter_supported") == Some(&json!(true))
    }

    fn read(members: Map<String, Value>, issuer: &str) -> Result<Self, MetadataFault> {
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

    pub(in crate::auth) fn endpoint(&self, name: &str) -> Option<&Value> {
        self.members.get(name)
    }
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
    fn an_issuer_that_sends_iss_or_has_invalid_endpoints_is_refused() {
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
