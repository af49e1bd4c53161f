//! Authentication of a client's request, by its bearer token or by the certificate of its
//! connection.
//!
//! The check of a credential does not wait. Only a token with an unknown signing key waits for the
//! issuer's keys.

use http::{HeaderMap, Uri, header::AUTHORIZATION, request::Parts as HeadParts};
use protocol::error::{ErrorKind, Refusal};

use super::connection_cache::ValidatedHead;
use crate::{
    auth::{
        AuthError, AuthenticatedCaller, CertificateThumbprint, PresentedCertificate, RemotePeer,
    },
    broker::Broker,
    listeners::tls_acceptor::CertificateCaller,
};

/// Authenticates a client by its key or token, or by the certificate of its connection.
pub(super) async fn authenticate(
    broker: &Broker,
    head: &HeadParts,
    remote: RemotePeer,
) -> Result<AuthenticatedCaller, Refusal> {
    match authenticate_now(broker, head) {
        Ok(proven) => Ok(proven),
        Err(denied) => retry_authentication(broker, head, denied, remote).await,
    }
}

/// Like [`authenticate_now`], for a head whose credential may be the same as that of the request
/// before.
pub(super) fn authenticate_cached(
    broker: &Broker,
    head: &HeadParts,
    validated_head: &ValidatedHead,
) -> Result<AuthenticatedCaller, AuthError> {
    let edition = broker.keyring_version();
    if let Some(proven) = validated_head.caller(edition) {
        let tenant = validated_head.tenant(broker, &proven.caller.tenant);
        return broker.admit_to(tenant.as_deref(), proven);
    }
    let proven = authenticate_now(broker, head)?;
    validated_head.cache_caller(edition, &proven);
    Ok(proven)
}

/// Authenticates without waiting for an issuer's keys.
fn authenticate_now(broker: &Broker, head: &HeadParts) -> Result<AuthenticatedCaller, AuthError> {
    let bearer = bearer_token(&head.headers, &head.uri)?;
    broker.authenticate_connection(bearer, presented(head))
}

pub(super) async fn retry_authentication(
    broker: &Broker,
    head: &HeadParts,
    denied: AuthError,
    remote: RemotePeer,
) -> Result<AuthenticatedCaller, Refusal> {
    let bearer = bearer_token(&head.headers, &head.uri).unwrap_or_default();
    broker.retry_authentication(denied, bearer, presented(head), remote).await
}

fn presented(head: &HeadParts) -> PresentedCertificate<'_> {
    PresentedCertificate {
        caller: head.extensions.get::<CertificateCaller>().map(CertificateCaller::caller),
        thumbprint: head.extensions.get::<CertificateThumbprint>().copied(),
    }
}

/// Returns the bearer token, if any. Refuses a token in the query string (MCP 2025-11-25,
/// Authorization).
fn bearer_token<'a>(headers: &'a HeaderMap, uri: &Uri) -> Result<Option<&'a str>, Refusal> {
    if uri
        .query()
        .is_some_and(|query| query.split('&').any(|pair| pair.starts_with("access_token=")))
    {
        return Err(Refusal::new(
            ErrorKind::InvalidRequest,
            "a token must not be in the query string, use the Authorization header",
        ));
    }
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let wrong =
        || Refusal::new(ErrorKind::Unauthorized, "the Authorization header must be: Bearer <key>");
    if given.next().is_some() {
        return Err(wrong());
    }
    let (scheme, token) = value.to_str().map_err(|_| wrong())?.split_once(' ').ok_or_else(wrong)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(Some(token.trim())) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn auth_05_a_token_in_the_query_is_refused() {
        assert!(bearer_token(&HeaderMap::new(), &"/mcp?access_token=x".parse().unwrap()).is_err());
        assert_eq!(
            bearer_token(&headers(&[("authorization", "bearer abc")]), &"/mcp".parse().unwrap())
                .unwrap(),
            Some("abc")
        );
        assert!(
            bearer_token(&headers(&[("authorization", "Basic abc")]), &"/mcp".parse().unwrap())
                .is_err()
        );
        assert!(
            bearer_token(
                &headers(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]),
                &"/mcp".parse().unwrap()
            )
            .is_err()
        );
    }
}
