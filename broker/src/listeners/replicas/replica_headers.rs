//! Headers between replicas: the caller of a request, and the owner of a session that is not here.
//!
//! Invariant: these headers are read only from a peer that has authenticated as a replica. Those of
//! a client are never read and never forwarded.

use std::{net::IpAddr, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, ORIGIN,
        PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
};
use protocol::{
    error::{ErrorKind, Refusal},
    ids::{KeyId, PrincipalId, TenantId},
};
use rules::access::SubjectAttributes;

use crate::{
    auth::{AuthError, Caller, ForwardedClaims, SubjectDigest},
    broker::Broker,
    listeners::http::response::{self, Body},
    session_location::{ForwardFailure, PeerReplica},
};

/// Prefix of all these headers.
const PREFIX: &str = "x-mcp-broker-";
const CALLER_TENANT: HeaderName = HeaderName::from_static("x-mcp-broker-caller-tenant");
/// In base64url: a principal's name may contain characters that a header may not.
const CALLER_PRINCIPAL: HeaderName = HeaderName::from_static("x-mcp-broker-caller-principal");
const CALLER_KEY: HeaderName = HeaderName::from_static("x-mcp-broker-caller-key");
/// Attributes that access rules look at.
const CALLER_ATTRIBUTES: HeaderName = HeaderName::from_static("x-mcp-broker-caller-attributes");
/// Principal that access rules look at, where it is not the caller's: an operator tries a tool.
const CALLER_SUBJECT: HeaderName = HeaderName::from_static("x-mcp-broker-caller-subject");
/// Its API key, in the same case.
const CALLER_SUBJECT_KEY: HeaderName = HeaderName::from_static("x-mcp-broker-caller-subject-key");
/// Digest of its token, if that can be exchanged. The token itself is in the database, sealed.
const CALLER_TOKEN: HeaderName = HeaderName::from_static("x-mcp-broker-caller-token");
/// Claims of its token by which a revocation names it.
const CALLER_CLAIMS: HeaderName = HeaderName::from_static("x-mcp-broker-caller-claims");
/// Address of the client, which the audit log records.
const CLIENT_ADDRESS: HeaderName = HeaderName::from_static("x-mcp-broker-client-address");
const OWNER: HeaderName = HeaderName::from_static("x-mcp-broker-owner");
const OWNER_NODE: HeaderName = HeaderName::from_static("x-mcp-broker-owner-node");
/// `held` if the sending replica has a valid lease, and so reaches the database.
const LEASE: HeaderName = HeaderName::from_static("x-mcp-broker-lease");
const HELD: HeaderValue = HeaderValue::from_static("held");
const LAPSED: HeaderValue = HeaderValue::from_static("lapsed");
const OWNER_ADDRESS: HeaderName = HeaderName::from_static("x-mcp-broker-owner-address");

/// Returns the headers of a client's request for another replica. Removes headers of the connection
/// and the client's credentials, and adds the caller.
pub(in crate::listeners) fn request_headers(headers: &HeaderMap, caller: &Caller) -> HeaderMap {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let mut outgoing = HeaderMap::with_capacity(headers.len() + 3);
    for (name, value) in headers.iter().filter(|(name, _)| passes(name) && !named.contains(name)) {
        outgoing.append(name, value.clone());
    }
    let encoded = |text: &str| {
        HeaderValue::from_str(&URL_SAFE_NO_PAD.encode(text)).expect("base64url is visible ASCII")
    };
    let tenant =
        HeaderValue::from_str(caller.tenant.as_str()).expect("a tenant's name is visible ASCII");
    outgoing.insert(CALLER_TENANT, tenant);
    outgoing.insert(CALLER_PRINCIPAL, encoded(caller.principal.as_str()));
    let attributes = serde_json::to_string(&SubjectAttributes::of_subject(&caller.subject))
        .expect("attributes are lists of texts");
    outgoing.insert(CALLER_ATTRIBUTES, encoded(&attributes));
    if let Some(key) = &caller.key {
        outgoing.insert(CALLER_KEY, encoded(key.as_str()));
    }
    if let Some(digest) = &caller.subject_token {
        outgoing.insert(CALLER_TOKEN, encoded(digest));
    }
    if let Some(token) = &caller.token {
        let claims = serde_json::to_string(&token.claims_to_forward());
        outgoing.insert(CALLER_CLAIMS, encoded(&claims.expect("claims are a text and a number")));
    }
    if caller.subject.principal != caller.principal {
        outgoing.insert(CALLER_SUBJECT, encoded(caller.subject.principal.as_str()));
        if let Some(key) = &caller.subject.key {
            outgoing.insert(CALLER_SUBJECT_KEY, encoded(key.as_str()));
        }
    }
    outgoing
}

/// Adds the address of the client that sent the request, if its wire has one.
pub(super) fn add_client_address(headers: &mut HeaderMap, client: Option<IpAddr>) {
    let address = client.and_then(|client| HeaderValue::try_from(client.to_string()).ok());
    if let Some(address) = address {
        headers.insert(CLIENT_ADDRESS, address);
    }
}

/// Returns the address of the client for which another replica sends a request. A replica of an
/// earlier build sends none.
pub(in crate::listeners) fn client_address(headers: &HeaderMap) -> Option<IpAddr> {
    text(headers, &CLIENT_ADDRESS)?.parse().ok()
}

/// Sets whether a replica that has lost its lease shall leave the session to this one.
pub(in crate::listeners) fn set_lease_header(headers: &mut HeaderMap, held: bool) {
    if held {
        headers.insert(LEASE, HELD);
    } else {
        headers.remove(LEASE);
    }
}

/// Returns whether the sending replica could take the session over.
pub(super) fn holds_lease(headers: &HeaderMap) -> bool {
    headers.get(LEASE) == Some(&HELD)
}

fn passes(name: &HeaderName) -> bool {
    let of_connection =
        [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, EXPECT, HOST, CONTENT_LENGTH];
    let of_client = [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, ORIGIN];
    !of_connection.contains(name)
        && !of_client.contains(name)
        && !name.as_str().starts_with(PREFIX)
        && !matches!(name.as_str(), "keep-alive" | "proxy-connection")
}

/// Returns the caller for whom the other replica sends the request.
fn read_caller(headers: &HeaderMap) -> Result<Caller, Refusal> {
    let unknown =
        || Refusal::new(ErrorKind::Unauthorized, "the forwarded request does not name its caller");
    let tenant = text(headers, &CALLER_TENANT)
        .and_then(|tenant| TenantId::parse(tenant).ok())
        .ok_or_else(unknown)?;
    let principal =
        decoded(headers, &CALLER_PRINCIPAL).map(PrincipalId::new).ok_or_else(unknown)?;
    let key = match headers.contains_key(CALLER_KEY) {
        true => Some(decoded(headers, &CALLER_KEY).map(KeyId::new).ok_or_else(unknown)?),
        false => None,
    };
    // A replica of an earlier build sends none: they are unknown then.
    let attributes: SubjectAttributes = decoded(headers, &CALLER_ATTRIBUTES)
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let subject_token = decoded(headers, &CALLER_TOKEN).map(SubjectDigest::from);
    let caller = match decoded(headers, &CALLER_SUBJECT).map(PrincipalId::new) {
        None => Caller::of_subject(tenant, attributes.subject(principal, key)),
        Some(subject) => {
            let subject_key = decoded(headers, &CALLER_SUBJECT_KEY).map(KeyId::new);
            let subject = attributes.subject(subject, subject_key);
            Caller { principal, key, ..Caller::of_subject(tenant, subject) }
        }
    };
    Ok(Caller { subject_token, ..caller })
}

/// Returns the claims of the caller's token. A replica of an earlier build sends none.
fn read_claims(headers: &HeaderMap) -> Option<ForwardedClaims> {
    serde_json::from_str(&decoded(headers, &CALLER_CLAIMS)?).ok()
}

/// Returns the answer to a request whose session is not here.
pub(in crate::listeners) fn not_here_response(owner: Option<&PeerReplica>) -> Response<Body> {
    let mut response = response::empty(StatusCode::MISDIRECTED_REQUEST);
    let headers = response.headers_mut();
    headers.insert(OWNER, HeaderValue::from_static("elsewhere"));
    if let Some(owner) = owner
        && let (Ok(node), Ok(address)) =
            (HeaderValue::from_str(&owner.node), HeaderValue::from_str(&owner.address))
    {
        headers.insert(OWNER_NODE, node);
        headers.insert(OWNER_ADDRESS, address);
    }
    response
}

/// Returns the answer of a replica without a lease to a replica with one.
pub(super) fn lease_lapsed_response() -> Response<Body> {
    let mut response = response::empty(StatusCode::MISDIRECTED_REQUEST);
    response.headers_mut().insert(OWNER, LAPSED);
    response
}

/// Returns `Some` if the answer means that the session is not there. It may name the owner.
pub(in crate::listeners) fn read_miss<B>(response: &Response<B>) -> Option<ForwardFailure> {
    let headers = response.headers();
    if response.status() != StatusCode::MISDIRECTED_REQUEST {
        return None;
    }
    if headers.get(OWNER)? == LAPSED {
        return Some(ForwardFailure::LeaseLapsed);
    }
    let owner = text(headers, &OWNER_NODE).zip(text(headers, &OWNER_ADDRESS));
    Some(ForwardFailure::NotOwner(
        owner.map(|(node, address)| PeerReplica {
            node: node.to_owned(),
            address: address.to_owned(),
        }),
    ))
}

/// Removes headers of the replicas from an answer for the client.
pub(in crate::listeners) fn strip_response_headers(headers: &mut HeaderMap) {
    let own: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(PREFIX)).cloned().collect();
    own.iter().for_each(|name| drop(headers.remove(name)));
    // The body's size already contains the length.
    headers.remove(CONTENT_LENGTH);
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn decoded(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    String::from_utf8(URL_SAFE_NO_PAD.decode(text(headers, name)?).ok()?).ok()
}

/// Returns the client for which another replica sends a request, if its tenant is served.
pub(in crate::listeners) fn forwarded_caller(
    broker: &Broker,
    headers: &HeaderMap,
) -> Result<Caller, AuthError> {
    let mut caller = read_caller(headers)?;
    if let Some(claims) = read_claims(headers) {
        caller.token = Some(Arc::new(broker.forwarded_token(&caller, claims)));
    }
    broker.admit_authenticated(caller.into()).map(|proven| proven.caller)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::VerifiedToken;

    fn alice(key: Option<&str>) -> Caller {
        Caller::new(
            TenantId::parse("acme").unwrap(),
            PrincipalId::new("Älice\n\"x\""),
            key.map(KeyId::new),
        )
    }

    #[test]
    fn a_caller_is_forwarded_unchanged_with_any_name() {
        for caller_sent in [alice(None), alice(Some("k1"))] {
            assert_eq!(
                read_caller(&request_headers(&HeaderMap::new(), &caller_sent)).unwrap(),
                caller_sent
            );
        }
    }

    #[test]
    fn the_digest_of_a_token_is_forwarded_with_its_caller() {
        let digest = Some(SubjectDigest::from("digest-of-a-token"));
        let sent = Caller { subject_token: digest.clone(), ..alice(None) };
        let read = read_caller(&request_headers(&HeaderMap::new(), &sent)).unwrap();
        assert_eq!(read.subject_token, digest);
    }

    #[test]
    fn the_claims_of_a_token_are_forwarded_with_its_caller() {
        let claims: ForwardedClaims =
            serde_json::from_str(r#"{"id":"Ü","issued_at_us":5}"#).unwrap();
        let Caller { tenant, principal, .. } = alice(None);
        let token = VerifiedToken::forwarded(tenant, principal, claims, &Arc::default());
        let sent = Caller { token: Some(Arc::new(token)), ..alice(None) };
        let read = read_claims(&request_headers(&HeaderMap::new(), &sent)).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), r#"{"id":"Ü","issued_at_us":5}"#);
        assert!(read_claims(&request_headers(&HeaderMap::new(), &alice(None))).is_none());
    }

    #[test]
    fn the_address_of_a_client_is_forwarded_and_a_client_cannot_choose_it() {
        let mut chosen = HeaderMap::new();
        add_client_address(&mut chosen, Some(IpAddr::from([192, 0, 2, 1])));
        let mut sent = request_headers(&chosen, &alice(None));
        assert_eq!(client_address(&sent), None, "no wire has told it");
        for address in [IpAddr::from([192, 0, 2, 7]), "2001:db8::7".parse().unwrap()] {
            add_client_address(&mut sent, Some(address));
            assert_eq!(client_address(&sent), Some(address));
        }
    }

    #[test]
    fn the_subject_of_a_trial_is_forwarded_separately_from_its_caller() {
        let subject = alice(Some("k1"));
        let sent = Caller {
            principal: PrincipalId::new("operator ann as alice"),
            key: None,
            ..subject.clone()
        };
        let read = read_caller(&request_headers(&HeaderMap::new(), &sent)).unwrap();
        assert_eq!(read, sent);
        assert_eq!(read.subject, subject.subject);
    }

    #[test]
    fn a_09_identity_headers_of_a_client_are_not_forwarded() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-mcp-broker-caller-tenant", "victim"),
            ("x-mcp-broker-caller-key", "a2V5"),
            ("x-mcp-broker-owner", "elsewhere"),
            ("x-mcp-broker-anything", "x"),
            ("authorization", "Bearer secret"),
            ("cookie", "a=b"),
            ("origin", "http://localhost"),
            ("host", "localhost"),
            ("connection", "x-hop, close"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("content-length", "5"),
            ("mcp-session-id", "s"),
            ("accept", "application/json"),
            ("accept", "text/event-stream"),
            ("traceparent", "00-1-2-00"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let sent = request_headers(&headers, &alice(None));
        let mut names: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "accept",
                "mcp-session-id",
                "traceparent",
                "x-mcp-broker-caller-attributes",
                "x-mcp-broker-caller-principal",
                "x-mcp-broker-caller-tenant"
            ]
        );
        assert_eq!(sent.get_all("accept").iter().count(), 2);
        assert_eq!(read_caller(&sent).unwrap(), alice(None), "the client's own words are gone");
    }

    #[test]
    fn a_request_without_a_caller_is_unauthorized() {
        assert_eq!(read_caller(&HeaderMap::new()).unwrap_err().kind, ErrorKind::Unauthorized);
        let mut headers = request_headers(&HeaderMap::new(), &alice(Some("k")));
        headers.insert(CALLER_KEY, HeaderValue::from_static("%"));
        assert!(read_caller(&headers).is_err());
    }

    #[test]
    fn an_owner_is_read_as_it_was_sent() {
        let owner = PeerReplica { node: "a/1".to_owned(), address: "10.0.0.1:8082".to_owned() };
        assert_eq!(
            read_miss(&not_here_response(Some(&owner))),
            Some(ForwardFailure::NotOwner(Some(owner)))
        );
        assert_eq!(read_miss(&not_here_response(None)), Some(ForwardFailure::NotOwner(None)));
        assert_eq!(read_miss(&lease_lapsed_response()), Some(ForwardFailure::LeaseLapsed));
        assert_eq!(read_miss(&response::empty(StatusCode::MISDIRECTED_REQUEST)), None);
        assert_eq!(read_miss(&response::empty(StatusCode::OK)), None);
    }
}
