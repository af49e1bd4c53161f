//! Fetches the metadata (RFC 8414, OpenID Connect Discovery 1.0) and the key set of an
//! authorization server. The broker's HTTP client sends the requests and follows no redirect.
//!
//! The broker connects to any address of a host of the configuration file. It connects to a host from
//! the metadata, or of an issuer that the admin API stored, only at addresses that `egress` permits
//! for backends.

use bytes::Bytes;
use config::{
    IssuerConfig,
    private_url::{is_loopback, is_private},
};
use http::{Request, StatusCode, Uri, header::ACCEPT};
use http_body_util::Full;
use protocol::json::{Limits, Tape};
use rules::limits::tokens::KEY_SET_BYTES_MAX;
use serde_json::{Map, Value};
use transport::{HttpClient, parse_http_url};

use super::{
    jwt::has_one_reading,
    key_set::KeySet,
    metadata::{IssuerMetadata, MetadataFault},
};

/// Client of the fetches. Clones share connections.
#[derive(Debug, Clone)]
pub struct KeyFetcher {
    /// Connects to every address, for issuers of the configuration file.
    unrestricted: HttpClient,
    /// Connects only to the addresses that `egress` permits for backends.
    egress_checked: HttpClient,
}

/// Reason why a fetch returned no keys.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("{0} cannot be fetched: {1}")]
    Send(Uri, String),
    #[error("{0} answers with status {1}")]
    Status(Uri, StatusCode),
    #[error("{0} is not a JSON Web Key Set")]
    NoKeys(Uri),
    #[error("no metadata document names this issuer and a key URL that the broker may fetch")]
    NoMetadata,
    #[error("the fetch timed out")]
    Late,
}

impl KeyFetcher {
    pub fn new(trusting: HttpClient, wary: HttpClient) -> Self {
        Self { unrestricted: trusting, egress_checked: wary }
    }

    /// Returns the client for addresses that the operator configured.
    pub fn trusting(&self) -> HttpClient {
        self.unrestricted.clone()
    }

    pub(super) async fn key_set(&self, issuer: &IssuerConfig) -> Result<KeySet, FetchError> {
        let url = match &issuer.jwks_url {
            Some(url) => url.clone(),
            None => self.discover(issuer, |text| named_keys(text, issuer)).await?,
        };
        let client = match issuer.jwks_url {
            Some(_) => self.client_of(issuer),
            None => self.client_for(issuer, &url),
        };
        let text = get(client, &url).await?;
        KeySet::parse(&text).ok_or(FetchError::NoKeys(url))
    }

    /// Returns the metadata of an adapted issuer, or the reason why it cannot be used.
    pub(super) async fn metadata(
        &self,
        issuer: &IssuerConfig,
    ) -> Result<Result<IssuerMetadata, MetadataFault>, FetchError> {
        let members = self.members(issuer).await?;
        Ok(IssuerMetadata::new(members, &issuer.issuer))
    }

    /// Returns the members of the issuer's metadata.
    pub(super) async fn members(
        &self,
        issuer: &IssuerConfig,
    ) -> Result<Map<String, Value>, FetchError> {
        self.discover(issuer, |text| named_metadata(text, issuer)).await
    }

    /// Reads a part of the issuer's metadata, wherever that is.
    async fn discover<T>(
        &self,
        issuer: &IssuerConfig,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<T, FetchError> {
        let mut unreachable = None;
        for url in metadata_urls(&issuer.issuer) {
            match get(self.client_of(issuer), &url).await {
                Ok(text) => {
                    if let Some(found) = read(&text) {
                        return Ok(found);
                    }
                }
                Err(error @ FetchError::Send(..)) => unreachable = Some(error),
                Err(_) => {}
            }
        }
        Err(unreachable.unwrap_or(FetchError::NoMetadata))
    }

    /// Returns the client for the host of the issuer.
    fn client_of(&self, issuer: &IssuerConfig) -> &HttpClient {
        if issuer.is_stored { &self.egress_checked } else { &self.unrestricted }
    }

    /// Returns the client for a URL that the metadata of the issuer names.
    pub fn client_for(&self, issuer: &IssuerConfig, url: &Uri) -> &HttpClient {
        let is_there = parse_http_url(&issuer.issuer)
            .is_ok_and(|own| own.authority() == url.authority() && own.scheme() == url.scheme());
        if is_there { self.client_of(issuer) } else { &self.egress_checked }
    }
}

/// Returns the possible URLs of an issuer's metadata (RFC 8414, 3.1 and 5; MCP 2025-11-25,
/// Authorization Server Metadata Discovery).
pub fn metadata_urls(issuer: &str) -> Vec<Uri> {
    let whole = issuer.trim_end_matches('/');
    let Some(authority) = whole.find("://").map(|at| at + 3) else { return Vec::new() };
    let (origin, path) =
        whole[authority..].find('/').map_or((whole, ""), |at| whole.split_at(authority + at));
    let mut urls = vec![
        format!("{origin}/.well-known/oauth-authorization-server{path}"),
        format!("{origin}/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        urls.push(format!("{whole}/.well-known/openid-configuration"));
    }
    urls.iter().filter_map(|url| parse_http_url(url).ok()).collect()
}

/// Returns metadata that names this issuer (RFC 8414, 3.3).
fn named_metadata(text: &[u8], issuer: &IssuerConfig) -> Option<Map<String, Value>> {
    Tape::parse(text, &Limits::default()).ok().filter(|_| has_one_reading(text))?;
    let members: Map<String, Value> = serde_json::from_slice(text).ok()?;
    (members.get("issuer")?.as_str()? == issuer.issuer).then_some(members)
}

/// Returns the `jwks_uri` of metadata that names this issuer.
fn named_keys(text: &[u8], issuer: &IssuerConfig) -> Option<Uri> {
    let members = named_metadata(text, issuer)?;
    let member = |name| members.get(name)?.as_str();
    let keys = parse_http_url(member("jwks_uri")?).ok()?;
    // Only an issuer on this machine may name a loopback URL.
    let is_local = parse_http_url(&issuer.issuer).is_ok_and(|uri| is_loopback(&uri));
    (is_private(&keys) && (is_local || !is_loopback(&keys))).then_some(keys)
}

async fn get(client: &HttpClient, url: &Uri) -> Result<Bytes, FetchError> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = url.clone();
    request.headers_mut().insert(ACCEPT, http::HeaderValue::from_static("application/json"));
    let response = client
        .send(request)
        .await
        .map_err(|error| FetchError::Send(url.clone(), error.to_string()))?;
    if response.status() != StatusCode::OK {
        return Err(FetchError::Status(url.clone(), response.status()));
    }
    let body = response.into_body().read_whole(KEY_SET_BYTES_MAX).await;
    body.map_err(|error| FetchError::Send(url.clone(), error.to_string()))
}

#[cfg(test)]
mod tests {
    use config::TenantMapping;
    use protocol::ids::TenantId;
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_is_requested_at_the_urls_of_each_specification() {
        let of = |issuer: &str| {
            metadata_urls(issuer).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        for issuer in ["https://a.example", "https://a.example/"] {
            let wanted = [
                "https://a.example/.well-known/oauth-authorization-server",
                "https://a.example/.well-known/openid-configuration",
            ];
            assert_eq!(of(issuer), wanted);
        }
        assert_eq!(
            of("https://a.example:8/t/1"),
            [
                "https://a.example:8/.well-known/oauth-authorization-server/t/1",
                "https://a.example:8/.well-known/openid-configuration/t/1",
                "https://a.example:8/t/1/.well-known/openid-configuration",
            ]
        );
    }

    #[test]
    fn a_07_metadata_of_another_issuer_and_invalid_key_urls_are_refused() {
        let issuer = |name: &str| IssuerConfig {
            groups_claim: None,
            introspection: None,
            issuer: name.to_owned(),
            jwks_url: None,
            keys_max_age: rules::limits::tokens::KEY_SET_AGE_MAX,
            audiences: Vec::new(),
            algorithms: Vec::new(),
            requires_access_token_type: false,
            tenant: TenantMapping::Fixed(TenantId::parse("acme").unwrap()),
            principal_claim: "sub".to_owned(),
            scopes: Vec::new(),
            front: None,
            operators: None,
            exchange: Vec::new(),
            sign_in: None,
            is_stored: false,
        };
        let found = |issuer: &IssuerConfig, document: Value| {
            named_keys(document.to_string().as_bytes(), issuer).map(|uri| uri.to_string())
        };
        let public = issuer("https://a.example");
        let keys = "https://keys.example/k";
        assert_eq!(
            found(&public, json!({"issuer": "https://a.example", "jwks_uri": keys})).as_deref(),
            Some(keys)
        );
        for document in [
            json!({"issuer": "https://a.example/", "jwks_uri": keys}),
            json!({"issuer": "https://evil.example", "jwks_uri": keys}),
            json!({"jwks_uri": keys}),
            json!({"issuer": "https://a.example"}),
            json!({"issuer": "https://a.example", "jwks_uri": "http://keys.example/k"}),
            json!({"issuer": "https://a.example", "jwks_uri": "http://127.0.0.1/k"}),
            json!({"issuer": "https://a.example", "jwks_uri": "https://localhost/k"}),
            json!({"issuer": "https://a.example", "jwks_uri": "https://localhost./k"}),
            json!({"issuer": "https://a.example", "jwks_uri": "https://[::ffff:127.0.0.1]/k"}),
            json!({"issuer": "https://a.example", "jwks_uri": "file:///etc/passwd"}),
            json!([]),
        ] {
            assert_eq!(found(&public, document.clone()), None, "{document}");
        }
        let local = json!({"issuer": "http://127.0.0.1:1", "jwks_uri": "http://127.0.0.1:2/k"});
        assert!(found(&issuer("http://127.0.0.1:1"), local).is_some());
    }
}
