//! Finds the authorization server of a backend: protected resource metadata (RFC 9728), then the
//! metadata of the server (RFC 8414, OpenID Connect Discovery 1.0). The order of the URLs is that
//! of MCP 2026-07-28, Authorization Server Discovery.

use config::spec::{BackendSpec, IssuerComparison, TransportSpec};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::Full;
use rules::limits::oauth::{AUTHORIZATION_SERVERS_MAX, OAUTH_URL_BYTES_MAX};
use serde_json::{Map, Value, json};
use transport::parse_http_url;

use super::{
    challenge::Challenge,
    fetch::{OauthError, OauthFetcher},
    scopes::within_limit,
};
use crate::auth::metadata_urls;

/// A request that no server carries out: without a token, it shows the challenge.
const PROBE: &[u8] = br#"{"jsonrpc":"2.0","id":"probe","method":"ping"}"#;

/// The backend whose server is sought.
#[derive(Debug, Clone)]
pub(super) struct ProtectedBackend {
    pub(super) url: String,
    /// Headers that the operator configured.
    headers: HeaderMap,
    /// The only issuer that may be used, if the operator named one.
    issuer: Option<String>,
    resource: Option<String>,
    comparison: IssuerComparison,
    /// True if a backend without metadata may be its own server, as MCP 2025-03-26 has it.
    may_be_own_server: bool,
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
    /// False if the backend has no metadata, and is its own server for want of another.
    pub(super) is_named: bool,
    /// Metadata of the server.
    members: Map<String, Value>,
}

impl DiscoveredServer {
    fn new(
        fetcher: &OauthFetcher,
        members: Map<String, Value>,
        resource: String,
        scopes: Vec<String>,
        is_named: bool,
    ) -> Result<Self, OauthError> {
        // It was compared with the issuer that was sought.
        let issuer = text(&members, "issuer").unwrap_or_default().to_owned();
        let token_endpoint =
            text(&members, "token_endpoint").and_then(|url| fetcher.permitted(url));
        let token_endpoint = token_endpoint.ok_or_else(|| {
            OauthError::Refused(format!("{issuer} names no token_endpoint that the broker may use"))
        })?;
        Ok(Self { resource, issuer, token_endpoint, scopes, is_named, members })
    }

    /// Finds an identity provider, which no backend names. Its tokens are for no resource.
    pub(super) async fn of_issuer(
        fetcher: &OauthFetcher,
        issuer: &str,
        comparison: IssuerComparison,
    ) -> Result<Self, OauthError> {
        let found = server_metadata(fetcher, issuer, comparison).await?;
        let members = found.ok_or_else(|| no_metadata(issuer))?;
        Self::new(fetcher, members, String::new(), Vec::new(), true)
    }

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
    /// Returns the backend of a body, if it is an HTTP backend.
    pub(super) fn of(spec: &BackendSpec) -> Option<Self> {
        let TransportSpec::Http { url } = &spec.transport else { return None };
        let headers = spec.credentials.headers.iter();
        let parsed = |(name, value): (&String, &String)| -> Option<(HeaderName, HeaderValue)> {
            Some((name.parse().ok()?, value.parse().ok()?))
        };
        Some(Self {
            url: url.clone(),
            headers: headers.filter_map(parsed).collect(),
            issuer: spec.auth.issuer.clone(),
            resource: spec.auth.resource.clone(),
            comparison: spec.auth.issuer_compare,
            may_be_own_server: false,
        })
    }

    pub(super) fn or_own_server(self) -> Self {
        Self { may_be_own_server: true, ..self }
    }

    /// Finds the server. `challenge` is the one of a refused request, if there was one. `preferred` is
    /// the issuer to use if the backend names it among others.
    pub(super) async fn discover(
        &self,
        fetcher: &OauthFetcher,
        challenge: Option<Challenge>,
        preferred: Option<&str>,
    ) -> Result<DiscoveredServer, OauthError> {
        let challenge = match challenge {
            Some(challenge) => challenge,
            None => self.probe(fetcher).await.unwrap_or_default(),
        };
        let metadata = self.resource_metadata(fetcher, &challenge).await?;
        let is_named = metadata.is_some() || self.issuer.is_some();
        let (resource, issuer, supported) = match metadata {
            Some(metadata) => {
                let issuer = self.chosen_issuer(&metadata, preferred)?;
                (metadata.resource, issuer, metadata.scopes)
            }
            None => (self.url.trim_end_matches('/').to_owned(), self.unnamed_issuer()?, Vec::new()),
        };
        let found = server_metadata(fetcher, &issuer, self.comparison).await?;
        let is_own = self.issuer.is_none() && self.may_be_own_server && self.origin() == issuer;
        let members = match found {
            Some(members) => members,
            None if is_own => default_metadata(&issuer),
            None => return Err(no_metadata(&issuer)),
        };
        let scopes = if challenge.scopes.is_empty() { supported } else { challenge.scopes };
        let resource = self.resource.clone().unwrap_or(resource);
        DiscoveredServer::new(fetcher, members, resource, scopes, is_named)
    }

    /// Returns the issuer of a backend without metadata. In MCP 2025-03-26 the backend is its own
    /// server.
    fn unnamed_issuer(&self) -> Result<String, OauthError> {
        let own = || self.may_be_own_server.then(|| self.origin().to_owned());
        self.issuer.clone().or_else(own).ok_or_else(|| {
            let text = "the backend has no protected resource metadata (RFC 9728): set auth.issuer";
            OauthError::Refused(text.to_owned())
        })
    }

    fn origin(&self) -> &str {
        split_origin(&self.url).0
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
        let urls = match &challenge.resource_metadata {
            Some(named) => vec![named.clone()],
            None => resource_metadata_urls(&self.url),
        };
        for url in urls {
            let Some(members) = fetcher.document(&url).await? else { continue };
            let metadata = ResourceMetadata::read(&members).ok_or_else(|| {
                OauthError::Refused(format!("{url} is not protected resource metadata"))
            })?;
            if !covers(&metadata.resource, &self.url) {
                let text = format!("{url} is about another resource: {:?}", metadata.resource);
                return Err(OauthError::Refused(text));
            }
            return Ok(Some(metadata));
        }
        Ok(None)
    }

    fn chosen_issuer(
        &self,
        metadata: &ResourceMetadata,
        preferred: Option<&str>,
    ) -> Result<String, OauthError> {
        let named = &metadata.issuers;
        match &self.issuer {
            Some(issuer)
                if named.is_empty()
                    || named.iter().any(|one| is_same(one, issuer, self.comparison)) =>
            {
                Ok(issuer.clone())
            }
            Some(issuer) => Err(OauthError::Refused(format!(
                "the backend names the authorization servers {named:?} and not {issuer}: register there and change auth"
            ))),
            None => known_or_first(named, preferred).ok_or_else(|| {
                let text = "the backend's metadata names no authorization server: set auth.issuer";
                OauthError::Refused(text.to_owned())
            }),
        }
    }
}

/// Returns the preferred issuer if it is among the named ones, else the first of them.
fn known_or_first(named: &[String], preferred: Option<&str>) -> Option<String> {
    let known = named.iter().find(|issuer| preferred == Some(issuer.as_str()));
    known.or_else(|| named.first()).cloned()
}

impl ResourceMetadata {
    fn read(members: &Map<String, Value>) -> Option<Self> {
        let resource = text(members, "resource").filter(|url| url.len() <= OAUTH_URL_BYTES_MAX)?;
        let mut issuers = texts(members, "authorization_servers");
        issuers.retain(|issuer| issuer.len() <= OAUTH_URL_BYTES_MAX);
        issuers.truncate(AUTHORIZATION_SERVERS_MAX);
        let scopes = within_limit(texts(members, "scopes_supported")).collect();
        Some(Self { resource: resource.to_owned(), issuers, scopes })
    }
}

/// Fetches the metadata of a server. It must name this issuer (RFC 8414, 3.3). Returns `None` if
/// there is none at any of its URLs.
async fn server_metadata(
    fetcher: &OauthFetcher,
    issuer: &str,
    comparison: IssuerComparison,
) -> Result<Option<Map<String, Value>>, OauthError> {
    let mut unreachable = None;
    for url in metadata_urls(issuer) {
        match fetcher.document(&url.to_string()).await {
            Ok(Some(members)) => {
                let named = text(&members, "issuer");
                if named.is_some_and(|named| is_same(named, issuer, comparison)) {
                    return Ok(Some(members));
                }
                let text = format!("{url} names another issuer than {issuer}");
                return Err(OauthError::Refused(text));
            }
            Ok(None) => {}
            Err(error @ OauthError::Refused(_)) => return Err(error),
            Err(error) => unreachable = Some(error),
        }
    }
    unreachable.map_or(Ok(None), Err)
}

fn no_metadata(issuer: &str) -> OauthError {
    OauthError::Refused(format!("{issuer:?} has no metadata (RFC 8414)"))
}

/// Returns the endpoints of a server without metadata (MCP 2025-03-26, Fallbacks for Servers
/// without Metadata Discovery). That revision demands PKCE of every client.
fn default_metadata(origin: &str) -> Map<String, Value> {
    let members = [
        ("issuer", json!(origin)),
        ("authorization_endpoint", json!(format!("{origin}/authorize"))),
        ("token_endpoint", json!(format!("{origin}/token"))),
        ("registration_endpoint", json!(format!("{origin}/register"))),
        ("code_challenge_methods_supported", json!(["S256"])),
    ];
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns whether two issuers are the same. By default only an equal text is.
fn is_same(one: &str, other: &str, comparison: IssuerComparison) -> bool {
    // A URL without a path has two slashes.
    let bare = |issuer: &str| {
        let without = issuer.strip_suffix('/').unwrap_or(issuer);
        (without.matches('/').count() == 2).then(|| without.to_owned())
    };
    one == other
        || comparison == IssuerComparison::PathlessSlash
            && bare(one).is_some_and(|one| Some(one) == bare(other))
}

/// Returns the URLs of protected resource metadata: with the path inserted, then at the root.
fn resource_metadata_urls(backend: &str) -> Vec<String> {
    const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";
    let (origin, path) = split_origin(backend);
    let path = path.split('?').next().unwrap_or_default().trim_end_matches('/');
    let mut urls = vec![format!("{origin}{WELL_KNOWN}{path}")];
    if !path.is_empty() {
        urls.push(format!("{origin}{WELL_KNOWN}"));
    }
    urls
}

/// Splits a URL after its authority.
fn split_origin(url: &str) -> (&str, &str) {
    let authority = url.find("://").map_or(0, |at| at + 3);
    url.split_at(url[authority..].find(['/', '?']).map_or(url.len(), |at| authority + at))
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
    fn metadata_is_requested_at_the_path_and_then_at_the_root() {
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
    fn issuers_are_compared_exactly_unless_a_final_slash_is_permitted() {
        use IssuerComparison::{Exact, PathlessSlash};
        let (bare, slash) = ("https://as.example", "https://as.example/");
        assert!(is_same(bare, bare, Exact) && !is_same(bare, slash, Exact));
        assert!(is_same(bare, slash, PathlessSlash) && is_same(slash, bare, PathlessSlash));
        for other in ["https://as.example/t", "https://as.example/t/", "https://evil.example/"] {
            assert!(!is_same(bare, other, PathlessSlash), "{other}");
        }
        assert!(!is_same("https://as.example/t", "https://as.example/t/", PathlessSlash));
    }

    #[test]
    fn a_resource_covers_only_urls_at_or_below_its_path() {
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
