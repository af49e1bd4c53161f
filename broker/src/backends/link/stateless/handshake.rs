//! Negotiation of the era with a backend when a connection opens (MCP 2026-07-28, Versioning).
//!
//! The broker sends `server/discover` first. A result, or an error that only 2026-07-28 has, makes
//! the backend stateless. After any other outcome, or silence, the broker opens a session by
//! `initialize`. No single code decides.
//!
//! If the clients of the link use sessions, the broker sends `initialize` to a stateless backend
//! too, once. For the catalog's link, it does so after the first such client has arrived. Some
//! servers keep the era of a connection's first request, except over HTTP. If such a backend
//! refuses `initialize` after `server/discover`, the broker opens another connection that begins
//! with `initialize`. The result is cached for the other connections to the backend.

use std::{pin::pin, sync::Arc};

use config::spec::ProtocolChoice;
use protocol::{
    envelope::{Kind, Message},
    method::Method,
    stateless::{
        UNSUPPORTED_PROTOCOL_VERSION, downgrade, is_stateless_error, results::DiscoverResult,
    },
    version::Version,
};
use rules::limits::ERA_SILENCE_MAX;

use super::{
    requests::{self, is_result},
    state::StatelessConnection,
};
use crate::backends::link::{
    Link,
    connection::{Connection, is_catalog_loop},
    era::{Era, EraSupport},
    failure::Failure,
    wire::WireSender,
};

/// The meaning of an answer to `server/discover`.
enum DiscoverVerdict {
    Stateless(Box<DiscoverResult>),
    /// The backend supports revisions with `initialize`, or may do so.
    Sessions,
    /// The backend supports the stateless form, but no revision of the broker.
    Unsupported(String),
}

/// The end of an `initialize` after which the connection can continue.
enum InitializeOutcome {
    /// The connection has a session.
    Agreed,
    /// The backend refused, or did not answer in time. The text states which.
    Refused(String),
}

/// Negotiates the era of a connection. If the backend supports both, it is the era of the link's
/// clients.
pub(in crate::backends::link) async fn agree(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
) -> Result<(), Failure> {
    // The lists of a principal may be the first that are read.
    if link.is_probe() && link.principal.is_none() {
        return connection.initialize(link).await; // the backend has a session already
    }
    let era_cache = &link.backend.era;
    match (link.backend.spec.protocol, era_cache.known()) {
        (ProtocolChoice::Legacy, _) => connection.initialize(link).await,
        (ProtocolChoice::Modern, _) => match judge(discover(connection, link).await)? {
            DiscoverVerdict::Stateless(found) => set_stateless(connection, link, &found),
            DiscoverVerdict::Sessions => Err(Failure::Protocol(
                "the backend does not support MCP 2026-07-28, which its configuration requires"
                    .to_owned(),
            )),
            DiscoverVerdict::Unsupported(why) => Err(Failure::Protocol(why)),
        },
        (ProtocolChoice::Auto, Some(known))
            if known.to(link.client_era()) == Some(Era::Sessions) =>
        {
            match connection.initialize(link).await {
                // The backend may have been replaced by one without sessions.
                Err(Failure::Protocol(why)) => {
                    era_cache.forget();
                    match judge(discover(connection, link).await) {
                        Ok(DiscoverVerdict::Stateless(found)) => {
                            era_cache.record(EraSupport::Stateless);
                            set_stateless(connection, link, &found)
                        }
                        _ => Err(Failure::Protocol(why)),
                    }
                }
                agreed => agreed,
            }
        }
        (ProtocolChoice::Auto, _)
            if link.client_era() == Era::Sessions && era_cache.initialize_first() =>
        {
            initialize_or_discover(connection, link).await
        }
        (ProtocolChoice::Auto, _) => discover_or_initialize(connection, link).await,
    }
}

/// Opens a session with a backend that answered `server/discover` on an earlier connection. Sends
/// stateless requests if the backend has no sessions.
async fn initialize_or_discover(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
) -> Result<(), Failure> {
    let InitializeOutcome::Refused(_) = try_initialize(connection, link).await? else {
        return Ok(());
    };
    let era_cache = &link.backend.era;
    era_cache.record(EraSupport::Stateless);
    match judge(discover(connection, link).await)? {
        DiscoverVerdict::Stateless(found) => set_stateless(connection, link, &found),
        // This connection may be kept for sessions. The next one begins with the probe.
        DiscoverVerdict::Sessions => {
            era_cache.record_end_by_probe(EraSupport::Stateless);
            Err(Failure::Protocol("the backend refused both eras on one connection".into()))
        }
        DiscoverVerdict::Unsupported(why) => Err(Failure::Protocol(why)),
    }
}

/// Sends `initialize` to a backend that supports 2026-07-28 and may have sessions too.
async fn try_initialize(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
) -> Result<InitializeOutcome, Failure> {
    let era_cache = &link.backend.era;
    match tokio::time::timeout(ERA_SILENCE_MAX, connection.initialize(link)).await {
        Ok(Ok(())) => {
            era_cache.record(EraSupport::Both);
            Ok(InitializeOutcome::Agreed)
        }
        Ok(Err(Failure::Protocol(why))) => Ok(InitializeOutcome::Refused(why)),
        Err(_) => Ok(InitializeOutcome::Refused(
            "no answer to initialize after server/discover".to_owned(),
        )),
        Ok(Err(failure)) => {
            if connection.is_closed() {
                era_cache.record_end_by_probe(EraSupport::Stateless);
            }
            Err(failure)
        }
    }
}

async fn discover_or_initialize(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
) -> Result<(), Failure> {
    let mut discovery = pin!(discover(connection, link));
    let answer = tokio::select! {
        biased;
        answer = &mut discovery => answer,
        () = tokio::time::sleep(ERA_SILENCE_MAX) => return after_silence(connection, link, discovery).await,
    };
    match judge(answer)? {
        DiscoverVerdict::Stateless(found) => open_in_client_era(connection, link, &found).await,
        DiscoverVerdict::Sessions => initialize(connection, link).await,
        DiscoverVerdict::Unsupported(why) => Err(Failure::Protocol(why)),
    }
}

/// Continues with a backend that supports 2026-07-28. Some servers name only the revisions of the
/// form of the question, so they may support sessions too. A client with a session is better served
/// without a translation.
async fn open_in_client_era(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    found: &DiscoverResult,
) -> Result<(), Failure> {
    let era_cache = &link.backend.era;
    if link.client_era() == Era::Stateless || era_cache.known() == Some(EraSupport::Stateless) {
        return set_stateless(connection, link, found);
    }
    match try_initialize(connection, link).await? {
        InitializeOutcome::Agreed => Ok(()),
        InitializeOutcome::Refused(why) if is_connection_bound(connection) => {
            era_cache.retry_with_initialize();
            Err(Failure::Protocol(why))
        }
        InitializeOutcome::Refused(_) => {
            era_cache.record(EraSupport::Stateless);
            set_stateless(connection, link, found)
        }
    }
}

/// Returns whether a connection to the backend can have an era of its own. Over HTTP each request
/// stands alone.
fn is_connection_bound(connection: &Connection) -> bool {
    matches!(connection.wire(), WireSender::Pipe(_))
}

/// Tries both eras after a silence, and takes the first that succeeds. Some servers ignore unknown
/// requests, others only start slowly.
async fn after_silence(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    mut discovery: std::pin::Pin<&mut impl Future<Output = Result<Message, Failure>>>,
) -> Result<(), Failure> {
    let mut opened = pin!(initialize(connection, link));
    tokio::select! {
        biased;
        answer = &mut discovery => match judge(answer) {
            Ok(DiscoverVerdict::Stateless(found)) => match opened.await {
                Err(Failure::Protocol(_)) => set_stateless(connection, link, &found),
                agreed => agreed,
            },
            _ => opened.await,
        },
        agreed = &mut opened => match agreed {
            // A stateless server refuses `initialize`. Its answer to `server/discover` is still to
            // come.
            Err(Failure::Protocol(why)) => match judge(discovery.await) {
                Ok(DiscoverVerdict::Stateless(found)) => set_stateless(connection, link, &found),
                _ => Err(Failure::Protocol(why)),
            },
            agreed => agreed,
        },
    }
}

async fn discover(connection: &Arc<Connection>, link: &Arc<Link>) -> Result<Message, Failure> {
    let mut answer = requests::probe(connection, link).await;
    // MCP 2026-07-28, Versioning: the broker retries with its own revision if the answer names it.
    if answer.as_ref().is_ok_and(names_own_version) {
        answer = requests::probe(connection, link).await;
    }
    let closed = connection.is_closed() && is_connection_bound(connection);
    if closed && answer.is_err() && link.backend.spec.protocol == ProtocolChoice::Auto {
        link.backend.era.record_end_by_probe(EraSupport::Sessions);
    }
    answer
}

/// Asks the backend for its era over an open connection. An answer that is not MCP comes from a
/// backend without 2026-07-28. `None`: the backend did not answer in time.
pub(in crate::backends::link) async fn probe_era(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
) -> Option<Era> {
    let limit = link.backend.timeouts().control;
    match tokio::time::timeout(limit, requests::probe(connection, link)).await {
        Ok(Ok(answer)) => match judge(Ok(answer)) {
            Ok(DiscoverVerdict::Stateless(_)) => Some(Era::Stateless),
            _ => Some(Era::Sessions),
        },
        Ok(Err(Failure::Protocol(_))) => Some(Era::Sessions),
        Ok(Err(_)) | Err(_) => None,
    }
}

async fn initialize(connection: &Arc<Connection>, link: &Arc<Link>) -> Result<(), Failure> {
    connection.initialize(link).await?;
    link.backend.era.record(EraSupport::Sessions);
    Ok(())
}

fn set_stateless(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    found: &DiscoverResult,
) -> Result<(), Failure> {
    let era_cache = &link.backend.era;
    // The backend answered `initialize` and failed later in the handshake. The connection has the
    // revision and the session id of that answer, so the next attempt uses another connection.
    if connection.negotiated().is_some() {
        era_cache.record_end_by_probe(EraSupport::Stateless);
        return Err(Failure::Protocol(
            "the backend answered initialize but did not complete the handshake".to_owned(),
        ));
    }
    connection.set_stateless(
        downgrade::initialize_result_from(found, link.backend.id.as_str()),
        StatelessConnection::new(),
    );
    if era_cache.known() != Some(EraSupport::Both)
        && era_cache.known() != Some(EraSupport::Stateless)
    {
        era_cache.record(EraSupport::AtLeastStateless);
    }
    Ok(())
}

fn judge(answer: Result<Message, Failure>) -> Result<DiscoverVerdict, Failure> {
    let answer = match answer {
        Ok(answer) => answer,
        // The backend did not process the request.
        Err(failure @ (Failure::NotSent(_) | Failure::Busy { .. } | Failure::QueueFull)) => {
            return Err(failure);
        }
        Err(_) => return Ok(DiscoverVerdict::Sessions),
    };
    if is_catalog_loop(&answer) {
        return Err(Failure::CatalogLoop);
    }
    if answer.kind == Kind::Error {
        return Ok(judge_error(&answer));
    }
    let found = answer
        .bytes(answer.result)
        .filter(|_| is_result(&answer))
        .and_then(|result| DiscoverResult::parse(result).ok());
    Ok(match found {
        Some(found) if found.versions.contains(&Version::V2026_07_28) => {
            DiscoverVerdict::Stateless(Box::new(found))
        }
        Some(found) if found.versions.is_empty() => DiscoverVerdict::Unsupported(
            "the backend and the broker share no protocol revision".to_owned(),
        ),
        // The answer names the revisions to use, or does not belong to this request.
        _ => DiscoverVerdict::Sessions,
    })
}

fn names_own_version(answer: &Message) -> bool {
    downgrade::error_code(answer) == Some(UNSUPPORTED_PROTOCOL_VERSION)
        && downgrade::supported_versions(answer).contains(&Version::V2026_07_28)
}

fn judge_error(answer: &Message) -> DiscoverVerdict {
    match downgrade::error_code(answer) {
        // MCP 2026-07-28, Versioning: the client chooses from those that are named.
        Some(UNSUPPORTED_PROTOCOL_VERSION) => {
            match downgrade::supported_versions(answer).iter().any(|version| version.has_sessions())
            {
                true => DiscoverVerdict::Sessions,
                false => DiscoverVerdict::Unsupported(
                    "the backend supports only protocol revisions that the broker does not support"
                        .to_owned(),
                ),
            }
        }
        Some(code) if is_stateless_error(code) => DiscoverVerdict::Unsupported(format!(
            "the backend refused {} with error {code}",
            Method::ServerDiscover.name()
        )),
        _ => DiscoverVerdict::Sessions,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::json;

    use super::*;

    fn verdict(body: &str) -> &'static str {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,{body}}}"#);
        let answer = Message::decode(Bytes::from(text), &json::Limits::default()).unwrap();
        match judge(Ok(answer)).unwrap() {
            DiscoverVerdict::Stateless(_) => "stateless",
            DiscoverVerdict::Sessions => "legacy",
            DiscoverVerdict::Unsupported(_) => "neither",
        }
    }

    #[test]
    fn nb_era_02_only_a_modern_error_rules_out_initialize() {
        let error = |code: i64, data: &str| {
            verdict(&format!(r#""error":{{"code":{code},"message":"m","data":{data}}}"#))
        };
        for code in [-32601, -32602, -32600, -32000, -32002, -32603, 7] {
            assert_eq!(error(code, "{}"), "legacy", "{code}");
        }
        for code in [-32020, -32021, -32022] {
            assert_eq!(error(code, "{}"), "neither", "{code}");
        }
        assert_eq!(error(-32022, r#"{"supported":["2030-01-01"]}"#), "neither");
        assert_eq!(
            error(-32022, r#"{"supported":["2025-11-25"]}"#),
            "legacy",
            "chosen from what it names"
        );
    }

    #[test]
    fn nb_era_01_a_discover_result_selects_the_era() {
        let found = |versions: &str| {
            verdict(&format!(r#""result":{{"supportedVersions":{versions},"capabilities":{{}}}}"#))
        };
        assert_eq!(found(r#"["2025-11-25","2026-07-28"]"#), "stateless");
        assert_eq!(found(r#"["2025-11-25"]"#), "legacy");
        assert_eq!(found(r#"["2031-01-01"]"#), "neither");
        assert_eq!(verdict(r#""result":{}"#), "legacy", "an answer to something else");
    }

    #[test]
    fn nb_era_02_a_discover_request_that_was_not_sent_selects_no_era() {
        assert!(judge(Err(Failure::NotSent("x".into()))).is_err());
        assert!(matches!(
            judge(Err(Failure::Protocol("status 400".into()))),
            Ok(DiscoverVerdict::Sessions)
        ));
    }
}
