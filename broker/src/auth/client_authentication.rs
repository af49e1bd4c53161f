//! Authentication of the broker as a client of an authorization server: `client_secret_basic`,
//! `client_secret_post`, `private_key_jwt`, or a public client.
//!
//! Called for introspection and for token requests. Invariant: no `Debug` shows the credential.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use config::{ClientKey, Secret};
use http::{
    HeaderValue, Method, Request, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::Full;
use serde_json::json;

/// Life of a client assertion, in seconds.
const ASSERTION_SECONDS: u64 = 60;
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// Client at an authorization server, with its credential.
#[derive(Debug, Clone)]
pub struct ClientAuthentication {
    client_id: String,
    credential: ClientCredential,
}

#[derive(Debug, Clone)]
pub enum ClientCredential {
    /// A public client.
    None,
    /// `client_secret_basic`
    Basic(Secret),
    /// `client_secret_post`
    Post(Secret),
    /// `private_key_jwt`: a private key, and its `kid`.
    Key { key: ClientKey, key_id: Option<String> },
}

impl ClientAuthentication {
    pub fn new(client_id: &str, credential: ClientCredential) -> Self {
        Self { client_id: client_id.to_owned(), credential }
    }

    pub fn client_id(&self) -> &str {
        &self.client_id
    }

    /// Returns a POST of the form with the authentication of the client. `issuer` is the audience
    /// of an assertion. Returns `None` if no assertion can be signed.
    pub fn post(
        &self,
        endpoint: &Uri,
        issuer: &str,
        mut form: Vec<(&str, String)>,
    ) -> Option<Request<Full<Bytes>>> {
        let mut header = None;
        match &self.credential {
            ClientCredential::Basic(secret) => {
                header = Some(basic(&self.client_id, secret.expose()));
            }
            ClientCredential::None => form.push(("client_id", self.client_id.clone())),
            ClientCredential::Post(secret) => {
                form.push(("client_id", self.client_id.clone()));
                form.push(("client_secret", secret.expose().to_owned()));
            }
            ClientCredential::Key { key, key_id } => {
                form.push(("client_id", self.client_id.clone()));
                form.push(("client_assertion_type", ASSERTION_TYPE.to_owned()));
                let assertion = self.assertion(issuer, key, key_id.as_deref())?;
                form.push(("client_assertion", assertion));
            }
        }
        let body: Vec<String> =
            form.iter().map(|(name, value)| format!("{name}={}", form_encoded(value))).collect();
        let mut request = Request::new(Full::new(Bytes::from(body.join("&"))));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = endpoint.clone();
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(CONTENT_TYPE, form);
        if let Some(value) = header {
            headers.insert(AUTHORIZATION, value);
        }
        Some(request)
    }

    /// Returns a signed assertion that names the client. `None`: the client has no key.
    pub fn own_assertion(&self, issuer: &str) -> Option<String> {
        match &self.credential {
            ClientCredential::Key { key, key_id } => self.assertion(issuer, key, key_id.as_deref()),
            _ => None,
        }
    }

    /// Returns a signed client assertion (RFC 7523, 2.2 and 3).
    fn assertion(&self, issuer: &str, key: &ClientKey, key_id: Option<&str>) -> Option<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        let mut header = json!({"alg": key.algorithm(), "typ": "JWT"});
        if let Some(id) = key_id {
            header["kid"] = id.into();
        }
        let claims = json!({
            "iss": self.client_id, "sub": self.client_id, "aud": issuer,
            "jti": URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>()),
            "iat": now, "exp": now + ASSERTION_SECONDS,
        });
        let encoded = |part: &serde_json::Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let signed = format!("{}.{}", encoded(&header), encoded(&claims));
        let signature = key.sign(signed.as_bytes())?;
        Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// Returns the credential for HTTP Basic. Id and secret are form-encoded first (RFC 6749, 2.3.1).
fn basic(client_id: &str, secret: &str) -> HeaderValue {
    let pair = format!("{}:{}", form_encoded(client_id), form_encoded(secret));
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair)))
        .expect("base64 is visible ASCII");
    value.set_sensitive(true);
    value
}

/// Encodes a value of a form (`application/x-www-form-urlencoded`).
pub fn form_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' => {
                out.push(char::from(byte));
            }
            b' ' => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_forms_are_encoded() {
        assert_eq!(form_encoded("aZ0-_.* &=%é"), "aZ0-_.*+%26%3D%25%C3%A9");
        let value = basic("a:b", "p w");
        assert_eq!(value.to_str().unwrap(), format!("Basic {}", STANDARD.encode("a%3Ab:p+w")));
        assert!(!format!("{value:?}").contains("Basic"));
    }
}
