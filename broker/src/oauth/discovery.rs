//! Finds the authorization server of a backend: protected resource metadata (RFC 9728), then the
//! metadata of the server (RFC 8414, OpenID Connect Discovery 1.0). The order of the places is that
//! of MCP 2026-07-28, Authorization Server Discovery.

use http::{
    HeaderMap, HeaderValue, Method, Request, StatusCode, Uri,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::Full;
use serde_json::{Map, Value};
use transport::parse_http_url;

use super::{
    challenge::Challenge,
    fetch::{OauthError, OauthFetcher},
};
use crate::auth::metadata_urls;

/// A request that no server carries out: without a token, it shows the challenge.
const PROBE: &[u8] = br#"{"jsonrpc":"2.0","id":"probe","method":"ping"}"#;

/// The backend whose server is sought.
#[derive(Debug, Clone)]
pub(super) struct ProtectedBackend {
    pub(super) url: String,
    /// Headers that the operator configured.
    pub(super) headers: HeaderMap,
    /// The only issuer that may be used, if the operator named one.
    pub(super) issuer: Option<String>,
    pub(super) resource: Option<String>,
}

/// What discovery found.
#[derive(Debug, Clone)]
pub(super) struct DiscoveredServer {
    /// Value of `resource`, as the backend writes it.
    pub(super) resource: String,
    pub(super) issuer: String,
    pub(super) token_endpoint: Uri,
    /// Scopes of the challenge, or else of the backend's metadata.
    pub(super) scopes: Vec<String>,
    /// Metadata of the server.
    members: Map<String, Value>,
}

impl DiscoveredServer {
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        text(&self.members, name)
    }

    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        texts(&self.members, name)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.members.get(name) == Some(&Value::Bool(true))
    }
}

/// Protected resource metadata, as far as the broker needs it.
struct ResourceMetadata {
    resource: String,
    issuers: Vec<String>,
    scopes: Vec<String>,
}

impl ProtectedBackend {
    /// Finds the server. `challenge` is the one of a refused request, if there was one.
    pub(super) async fn discover(
        &self,
        fetcher: &OauthFetcher,
        challenge: Option<Challenge>,
    ) -> Result<DiscoveredServer, OauthError> {
        let challenge = match challenge {
            Some(challenge) => challenge,
            None => self.probe(fetcher).await.unwrap_or_default(),
        };
        let metadata = self.resource_metadata(fetcher, &challenge).await?;
        let (resource, issuer, supported) = match metadata {
            Some(metadata) => {
                let issuer = self.chosen_issuer(&metadata)?;
                (metadata.resource, issuer, metadata.scopes)
            }
            None => {
                let issuer = self.issuer.clone().ok_or_else(|| {
                    let text = "the backend has no protected resource metadata (RFC 9728): set auth.issuer";
                    OauthError::Refused(text.to_owned())
                })?;
                (self.url.trim_end_matches('/').to_owned(), issuer, Vec::new())
            }
        };
        let members = server_metadata(fetcher, &issuer).await?;
        let token_endpoint = text(&members, "token_endpoint")
            .and_then(|url| fetcher.permitted(url))
            .ok_or_else(|| {
                OauthError::Refused(format!(
                    "{issuer} names no token_endpoint that the broker may use"
                ))
            })?;
        Ok(DiscoveredServer {
            resource: self.resource.clone().unwrap_or(resource),
            issuer,
            token_endpoint,
            scopes: if challenge.scopes.is_empty() { supported } else { challenge.scopes },
            members,
        })
    }

    /// Sends a request without a token. Returns the challenge of the refusal.
    async fn probe(&self, fetcher: &OauthFetcher) -> Option<Challenge> {
        let mut request = Request::new(Full::from(PROBE));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = parse_http_url(&self.url).ok()?;
        *request.headers_mut() = self.headers.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let accepted = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(ACCEPT, accepted);
        let response = fetcher.head(request).await?;
        (response.status() == StatusCode::UNAUTHORIZED)
            .then(|| Challenge::of(response.headers()))
            .flatten()
    }

    async fn resource_metadata(
        &self,
        fetcher: &OauthFetcher,
        challenge: &Challenge,
    ) -> Result<Option<ResourceMetadata>, OauthError> {
        let places = match &challenge.resource_metadata {
            Some(named) => vec![named.clone()],
            None => resource_metadata_urls(&self.url),
        };
        for place in places {
            let Some(members) = fetcher.document(&place).await? else { continue };
            let metadata = ResourceMetadata::read(&members).ok_or_else(|| {
                OauthError::Refused(format!("{place} is not protected resource metadata"))
            })?;
            if !covers(&metadata.resource, &self.url) {
                let text = format!("{place} is about another resource: {:?}", metadata.resource);
                return Err(OauthError::Refused(text));
            }
            return Ok(Some(metadata));
        }
        Ok(None)
    }

    fn chosen_issuer(&self, metadata: &ResourceMetadata) -> Result<String, OauthError> {
        let named = &metadata.issuers;
        match &self.issuer {
            Some(issuer) if named.is_empty() || named.contains(issuer) => Ok(issuer.clone()),
            Some(issuer) => Err(OauthError::Refused(format!(
                "the backend names the authorization servers {named:?} and not {issuer}: register there and change auth"
            ))),
            None => named.first().cloned().ok_or_else(|| {
                let text = "the backend's metadata names no authorization server: set auth.issuer";
                OauthError::Refused(text.to_owned())
            }),
        }
    }
}

impl ResourceMetadata {
    fn read(members: &Map<String, Value>) -> Option<Self> {
        Some(Self {
            resource: text(members, "resource")?.to_owned(),
            issuers: texts(members, "authorization_servers"),
            scopes: texts(members, "scopes_supported"),
        })
    }
}

/// Fetches the metadata of a server. It must name exactly this issuer (RFC 8414, 3.3).
async fn server_metadata(
    fetcher: &OauthFetcher,
    issuer: &str,
) -> Result<Map<String, Value>, OauthError> {
    let mut unreachable = None;
    for place in metadata_urls(issuer) {
        match fetcher.document(&place.to_string()).await {
            Ok(Some(members)) if text(&members, "issuer") == Some(issuer) => return Ok(members),
            Ok(Some(_)) => {
                let text = format!("{place} names another issuer than {issuer}");
                return Err(OauthError::Refused(text));
            }
            Ok(None) => {}
            Err(error @ OauthError::Refused(_)) => return Err(error),
            Err(error) => unreachable = Some(error),
        }
    }
    Err(unreachable
        .unwrap_or_else(|| OauthError::Refused(format!("{issuer:?} has no metadata (RFC 8414)"))))
}

/// Returns the places of protected resource metadata: with the path inserted, then at the root.
fn resource_metadata_urls(backend: &str) -> Vec<String> {
    const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
    let Some(authority) = backend.find("://").map(|at| at + 3) else { return Vec::new() };
    let end = backend[authority..].find(['/', '?']).map_or(backend.len(), |at| authority + at);
    let (origin, path) = backend.split_at(end);
    let path = path.split('?').next().unwrap_or_default().trim_end_matches('/');
    let mut places = vec![format!("{origin}{WELL_KNOWN}{path}")];
    if !path.is_empty() {
        places.push(format!("{origin}{WELL_KNOWN}"));
    }
    places
}

/// Returns whether the resource is the backend, or a part of its server that the backend is in.
fn covers(resource: &str, backend: &str) -> bool {
    let (Ok(resource), Ok(backend)) = (parse_http_url(resource), parse_http_url(backend)) else {
        return false;
    };
    let path = |uri: &Uri| format!("{}/", uri.path().trim_end_matches('/'));
    let default_port = |uri: &Uri| if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let port = |uri: &Uri| uri.port_u16().unwrap_or_else(|| default_port(uri));
    let host = |uri: &Uri| uri.host().unwrap_or_default().to_ascii_lowercase();
    resource.scheme() == backend.scheme()
        && host(&resource) == host(&backend)
        && port(&resource) == port(&backend)
        && path(&backend).starts_with(&path(&resource))
}

fn text<'m>(members: &'m Map<String, Value>, name: &str) -> Option<&'m str> {
    members.get(name)?.as_str()
}

fn texts(members: &Map<String, Value>, name: &str) -> Vec<String> {
    let list = members.get(name).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|entry| entry.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_sought_at_the_path_and_then_at_the_root() {
        assert_eq!(
            resource_metadata_urls("https://a.example/x/mcp?y=/z"),
            [
                "https://a.example/.well-known/oauth-protected-resource/x/mcp",
                "https://a.example/.well-known/oauth-protected-resource",
            ]
        );
        for root in ["https://a.example", "https://a.example/", "https://a.example?q"] {
            assert_eq!(
                resource_metadata_urls(root),
                ["https://a.example/.well-known/oauth-protected-resource"]
            );
        }
    }

    #[test]
    fn a_resource_covers_only_what_is_below_it() {
        for (resource, backend, wanted) in [
            ("https://a.example/mcp", "https://a.example/mcp", true),
            ("https://a.example", "https://a.example/mcp", true),
            ("https://A.example:443/", "https://a.example/mcp", true),
            ("https://a.example/mcp/", "https://a.example/mcp", true),
            ("https://a.example/m", "https://a.example/mcp", false),
            ("https://a.example/mcp/x", "https://a.example/mcp", false),
            ("http://a.example/mcp", "https://a.example/mcp", false),
            ("https://evil.example/mcp", "https://a.example/mcp", false),
            ("https://a.example:444/mcp", "https://a.example/mcp", false),
            ("urn:x", "https://a.example/mcp", false),
        ] {
            assert_eq!(covers(resource, backend), wanted, "{resource} {backend}");
        }
    }
}
