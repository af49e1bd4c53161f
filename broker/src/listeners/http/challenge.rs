//! The challenge of a refused request: `WWW-Authenticate` (RFC 6750, RFC 9728; MCP 2025-11-25 and 2026-07-28, Authorization).

use config::AuthConfig;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode, Uri,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};
use protocol::error::Refusal;
use rules::endpoint::Endpoint;

use super::listed_issuers::ListedIssuers;

/// Path of the metadata of the resource ([`super::resource_metadata`]).
pub(super) const METADATA: &str = "/.well-known/oauth-protected-resource";

/// Scope for refresh tokens. It does not belong to a resource (OpenID Connect Core 1.0, 11).
pub(super) const OFFLINE_ACCESS: &str = "offline_access";

/// Returns the challenge of a `403` for a valid token without a required scope. It names all
/// required scopes.
pub(super) fn insufficient_scope(refusal: &Refusal) -> Option<HeaderValue> {
    let member =
        |name: &str| refusal.data.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
    let scope = match (member("scope"), member("required_scopes")) {
        (Some(scope), _) => scope.as_str()?.to_owned(),
        (None, scopes) => {
            let scopes = scopes?.as_array()?.iter().filter_map(|scope| scope.as_str());
            scopes.collect::<Vec<_>>().join(" ")
        }
    };
    HeaderValue::try_from(format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"")).ok()
}

/// Completes a challenge with the URL of the resource's metadata, the error of a given token, and
/// the required scopes. Without issuers the response is unchanged.
///
/// `uri` is that of the request, and `path` is the path of its resource. `shown` is true if it had
/// a credential.
pub(super) fn complete<B>(
    auth: &AuthConfig,
    uri: &Uri,
    path: &str,
    shown: bool,
    mut response: Response<B>,
) -> Response<B> {
    let Some(listed) = ListedIssuers::new(auth, uri) else { return response };
    let Some(challenge) =
        response.headers().get(WWW_AUTHENTICATE).and_then(|challenge| challenge.to_str().ok())
    else {
        return response;
    };
    let (resource, below) = (listed.resource, below(path).unwrap_or_default());
    let tenant = listed.named.as_ref().map(|tenant| format!("?tenant={tenant}"));
    let metadata =
        format!("resource_metadata=\"{resource}{METADATA}{below}{}\"", tenant.unwrap_or_default());
    let mut text = match challenge.split_once(' ') {
        None => format!("{challenge} {metadata}"),
        Some(_) => format!("{challenge}, {metadata}"),
    };
    if response.status() == StatusCode::UNAUTHORIZED {
        if shown {
            text.push_str(", error=\"invalid_token\"");
        }
        let scopes = scopes(&listed);
        if !scopes.is_empty() {
            text.push_str(&format!(", scope=\"{}\"", scopes.join(" ")));
        }
    }
    if let Ok(value) = HeaderValue::try_from(text) {
        response.headers_mut().insert(WWW_AUTHENTICATE, value);
    }
    response
}

/// Returns whether a response may be a challenge.
pub(super) fn may_be_challenge<B>(response: &Response<B>) -> bool {
    matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

/// Returns whether a request has a credential.
pub(super) fn has_credential(headers: &HeaderMap) -> bool {
    headers.contains_key(AUTHORIZATION)
}

/// Returns the scopes that any of the issuers requires.
pub(super) fn scopes<'a>(listed: &ListedIssuers<'a>) -> Vec<&'a str> {
    let mut scopes: Vec<&str> = Vec::new();
    for scope in listed.issuers.iter().flat_map(|issuer| &issuer.scopes) {
        if !scopes.contains(&scope.as_str()) {
            scopes.push(scope);
        }
    }
    scopes
}

/// Returns the path of the endpoint at `path`, in the form of its resource's name. The backend may
/// not exist.
pub(super) fn below(path: &str) -> Option<String> {
    Endpoint::at("/mcp", path).map(|endpoint| endpoint.path("/mcp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auth_01_only_endpoints_are_resources() {
        for (path, resource) in
            [("/mcp", "/mcp"), ("/mcp/", "/mcp"), ("/mcp/b-1", "/mcp/b-1"), ("/mcp/b/", "/mcp/b")]
        {
            assert_eq!(below(path).as_deref(), Some(resource), "{path}");
        }
        for path in
            ["", "/", "/ws", "/mcpx", "/mcp/B", "/mcp/b/c", "/mcp/b__c", "/mcp/%62", "/mcp//"]
        {
            assert_eq!(below(path), None, "{path}");
        }
    }
}
