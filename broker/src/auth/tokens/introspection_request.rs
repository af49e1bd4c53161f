//! The request to an introspection endpoint and its answer (RFC 7662, 2), and the broker's
//! authentication there.
//!
//! Invariant: neither an error nor the log shows the token or the credential.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use http_body_util::Full;
use rules::limits::tokens::INTROSPECTION_BYTES_MAX;
use serde_json::json;
use transport::HttpClient;

use super::jwt::Claims;
use crate::config::{ClientKey, IntrospectionConfig, IntrospectionCredential, Secret};

/// Life of a client assertion, in seconds.
const ASSERTION_SECONDS: u64 = 60;
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// Client of one introspection endpoint.
#[derive(Debug)]
pub(super) struct IntrospectionClient {
    http: HttpClient,
    endpoint: Uri,
    /// Audience of client assertions.
    issuer: String,
    client_id: String,
    credential: ClientCredential,
}

#[derive(Debug)]
enum ClientCredential {
    /// Value of the header `Authorization`.
    Header(HeaderValue),
    /// `client_id` and `client_secret` of the form.
    Secret(Secret),
    Key {
        key: ClientKey,
        key_id: Option<String>,
    },
}

/// Reason why a server did not say whether a token is active.
#[derive(Debug)]
pub(super) enum IntrospectionFailure {
    /// The server cannot be used now, whatever the token.
    Server(String),
    /// The answer cannot be used. The next token may get another one.
    Answer(String),
    /// The server does not take this text for a token.
    Token(String),
}

impl IntrospectionFailure {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Server(text) | Self::Answer(text) | Self::Token(text) => text,
        }
    }
}

impl IntrospectionClient {
    pub(super) fn new(http: HttpClient, issuer: &str, config: &IntrospectionConfig) -> Self {
        let credential = match &config.credential {
            IntrospectionCredential::Basic(secret) => {
                ClientCredential::Header(basic(&config.client_id, secret.expose()))
            }
            IntrospectionCredential::Post(secret) => ClientCredential::Secret(secret.clone()),
            IntrospectionCredential::PrivateKeyJwt { key, key_id } => {
                ClientCredential::Key { key: key.clone(), key_id: key_id.clone() }
            }
        };
        Self {
            http,
            endpoint: config.endpoint.clone(),
            issuer: issuer.to_owned(),
            client_id: config.client_id.clone(),
            credential,
        }
    }

    /// Returns what the server says about an active token, or `None` for an inactive one.
    pub(super) async fn ask(&self, token: &str) -> Result<Option<Arc<[u8]>>, IntrospectionFailure> {
        use IntrospectionFailure::{Answer, Server, Token};
        let first = self.http.send(self.request(token).map_err(Server)?).await;
        let response = match first {
            Ok(response) => response,
            // The server may have closed the connection meanwhile. A question does no harm twice.
            Err(_) => {
                let again = self.http.send(self.request(token).map_err(Server)?).await;
                again.map_err(|error| Server(error.to_string()))?
            }
        };
        match response.status() {
            StatusCode::OK => {}
            StatusCode::BAD_REQUEST => return Err(Token("it answers 400".to_owned())),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let status = response.status();
                return Err(Server(format!("it answers {status}: check introspection.client_id")));
            }
            status @ (StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT) => return Err(Server(format!("it answers {status}"))),
            status => return Err(Answer(format!("it answers {status}"))),
        }
        let body = response.into_body().read_whole(INTROSPECTION_BYTES_MAX).await;
        let body = body.map_err(|error| Answer(error.to_string()))?;
        let unreadable = || Answer("its answer is not one of RFC 7662".to_owned());
        let claims = Claims::parse(&body).map_err(|_| unreadable())?;
        match claims.flag("active") {
            Some(true) => Ok(Some(body.as_ref().into())),
            Some(false) => Ok(None),
            None => Err(unreadable()),
        }
    }

    fn request(&self, token: &str) -> Result<Request<Full<Bytes>>, String> {
        let mut form = vec![("token", token.to_owned())];
        form.push(("token_type_hint", "access_token".to_owned()));
        let mut header = None;
        match &self.credential {
            ClientCredential::Header(value) => header = Some(value.clone()),
            ClientCredential::Secret(secret) => {
                form.push(("client_id", self.client_id.clone()));
                form.push(("client_secret", secret.expose().to_owned()));
            }
            ClientCredential::Key { key, key_id } => {
                form.push(("client_id", self.client_id.clone()));
                form.push(("client_assertion_type", ASSERTION_TYPE.to_owned()));
                let assertion = self.assertion(key, key_id.as_deref());
                form.push(("client_assertion", assertion.ok_or("no assertion can be signed")?));
            }
        }
        let body: Vec<String> =
            form.iter().map(|(name, value)| format!("{name}={}", form_encoded(value))).collect();
        let mut request = Request::new(Full::new(Bytes::from(body.join("&"))));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.endpoint.clone();
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(CONTENT_TYPE, form);
        if let Some(value) = header {
            headers.insert(AUTHORIZATION, value);
        }
        Ok(request)
    }

    /// Returns a signed client assertion (RFC 7523, 2.2 and 3).
    fn assertion(&self, key: &ClientKey, key_id: Option<&str>) -> Option<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        let mut header = json!({"alg": key.algorithm(), "typ": "JWT"});
        if let Some(id) = key_id {
            header["kid"] = id.into();
        }
        let claims = json!({
            "iss": self.client_id, "sub": self.client_id, "aud": self.issuer,
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
fn form_encoded(text: &str) -> String {
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
