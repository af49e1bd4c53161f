//! Which era a backend lives in, found out when a connection to it is opened (MCP 2026-07-28, Versioning).
//!
//! A backend is asked `server/discover` first. Its result, or an error that only 2026-07-28 has, makes it modern; anything
//! else, and silence, makes it legacy: then the session is opened by `initialize`. No single code decides. A modern one is
//! asked to `initialize` too, once, where the clients of the link speak the older form; for the catalog's link, once there is
//! such a client. What was found is remembered for the backend's other connections.

use std::{pin::pin, sync::Arc};

use protocol::{
    envelope::{Kind, Message},
    method::Method,
    stateless::{
        UNSUPPORTED_PROTOCOL_VERSION, downgrade, is_stateless_error, results::DiscoverResult,
    },
    version::Version,
};

use super::{StatelessConnection, is_result, requests};
use crate::{
    backends::link::{
        Link,
        connection::{Connection, Failure, WireSender},
        era::{Era, EraSupport},
    },
    config::spec::ProtocolChoice,
    limits::ERA_SILENCE_MAX,
};

/// What a backend made of `server/discover`.
enum DiscoverVerdict {
    Modern(Box<DiscoverResult>),
    /// It speaks revisions with `initialize`, or may do so.
    Sessions,
    /// It speaks the new form, and none of our revisions.
    Unsupported(String),
}

/// Opens a connection in an era of its backend: that of the link's clients where there is a choice.
pub(in crate::backends::link) async fn agree(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
) -> Result<(), Failure> {
    let memory = &link.backend.era;
    match (link.backend.spec.protocol, memory.known()) {
        (ProtocolChoice::Legacy, _) => connection.initialize(link).await,
        (ProtocolChoice::Modern, _) => match judge(discover(connection, link).await)? {
            DiscoverVerdict::Modern(found) => becomes_modern(connection, link, &found),
            DiscoverVerdict::Sessions => Err(Failure::Protocol(
                "the backend does not speak 2026-07-28, as it is configured to".to_owned(),
            )),
            DiscoverVerdict::Unsupported(why) => Err(Failure::Protocol(why)),
        },
        (ProtocolChoice::Auto, Some(known))
            if known.to(link.client_era()) == Some(Era::Sessions) =>
        {
            match connection.initialize(link).await {
                // It may have been replaced by one that knows no sessions any more.
                Err(Failure::Protocol(why)) => {
                    memory.forget();
                    match judge(discover(connection, link).await) {
                        Ok(DiscoverVerdict::Modern(found)) => {
                            memory.note(EraSupport::Stateless);
                            becomes_modern(connection, link, &found)
                        }
                        _ => Err(Failure::Protocol(why)),
                    }
                }
                agreed => agreed,
            }
        }
        (ProtocolChoice::Auto, _) => find_out(connection, link).await,
    }
}

async fn find_out(connection: &Arc<Connection>, link: &Arc<Link>) -> Result<(), Failure> {
    let mut asked = pin!(discover(connection, link));
    let answer = tokio::select! {
        biased;
        answer = &mut asked => answer,
        () = tokio::time::sleep(ERA_SILENCE_MAX) => return after_silence(connection, link, asked).await,
    };
    match judge(answer)? {
        DiscoverVerdict::Modern(found) => as_its_client_speaks(connection, link, &found).await,
        DiscoverVerdict::Sessions => initialize(connection, link).await,
        DiscoverVerdict::Unsupported(why) => Err(Failure::Protocol(why)),
    }
}

/// The backend speaks 2026-07-28, and perhaps what was before, whatever it names: servers there are that name only the
/// revisions of the form they were asked in. A client that speaks the older form is better served without a translation.
async fn as_its_client_speaks(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    found: &DiscoverResult,
) -> Result<(), Failure> {
    let memory = &link.backend.era;
    if link.client_era() == Era::Stateless || memory.known() == Some(EraSupport::Stateless) {
        return becomes_modern(connection, link, found);
    }
    match tokio::time::timeout(ERA_SILENCE_MAX, connection.initialize(link)).await {
        Ok(Ok(())) => {
            memory.note(EraSupport::Both);
            Ok(())
        }
        Ok(Err(Failure::Protocol(_))) | Err(_) => {
            memory.note(EraSupport::Stateless);
            becomes_modern(connection, link, found)
        }
        Ok(Err(failure)) => {
            if connection.is_closed() {
                memory.died_of_asking(EraSupport::Stateless);
            }
            Err(failure)
        }
    }
}

/// Servers there are that say nothing to what they do not know; others are only slow to start. Both ways are open now, and
/// the first that leads somewhere is taken.
async fn after_silence(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    mut asked: std::pin::Pin<&mut impl Future<Output = Result<Message, Failure>>>,
) -> Result<(), Failure> {
    let mut opened = pin!(initialize(connection, link));
    tokio::select! {
        biased;
        answer = &mut asked => match judge(answer) {
            Ok(DiscoverVerdict::Modern(found)) => match opened.await {
                Err(Failure::Protocol(_)) => becomes_modern(connection, link, &found),
                agreed => agreed,
            },
            _ => opened.await,
        },
        agreed = &mut opened => match agreed {
            // A server of today refuses `initialize`; what it makes of the question is still to come.
            Err(Failure::Protocol(why)) => match judge(asked.await) {
                Ok(DiscoverVerdict::Modern(found)) => becomes_modern(connection, link, &found),
                _ => Err(Failure::Protocol(why)),
            },
            agreed => agreed,
        },
    }
}

async fn discover(connection: &Arc<Connection>, link: &Arc<Link>) -> Result<Message, Failure> {
    let mut answer = requests::probe(connection, link).await;
    // MCP 2026-07-28, Versioning: of those that are named, ours is the one to try again with.
    if answer.as_ref().is_ok_and(names_ours) {
        answer = requests::probe(connection, link).await;
    }
    let closed = connection.is_closed() && matches!(connection.wire(), WireSender::Pipe(_));
    if closed && answer.is_err() && link.backend.spec.protocol == ProtocolChoice::Auto {
        link.backend.era.died_of_asking(EraSupport::Sessions);
    }
    answer
}

async fn initialize(connection: &Arc<Connection>, link: &Arc<Link>) -> Result<(), Failure> {
    connection.initialize(link).await?;
    link.backend.era.note(EraSupport::Sessions);
    Ok(())
}

fn becomes_modern(
    connection: &Arc<Connection>,
    link: &Arc<Link>,
    found: &DiscoverResult,
) -> Result<(), Failure> {
    connection.becomes_modern(
        downgrade::initialize_answer(found, link.backend.id.as_str()),
        StatelessConnection::new(),
    );
    let memory = &link.backend.era;
    if memory.known() != Some(EraSupport::Both) && memory.known() != Some(EraSupport::Stateless) {
        memory.note(EraSupport::AtLeastStateless);
    }
    Ok(())
}

fn judge(answer: Result<Message, Failure>) -> Result<DiscoverVerdict, Failure> {
    let answer = match answer {
        Ok(answer) => answer,
        // Nobody looked at the question.
        Err(failure @ (Failure::NotSent(_) | Failure::Busy(_) | Failure::QueueFull)) => {
            return Err(failure);
        }
        Err(_) => return Ok(DiscoverVerdict::Sessions),
    };
    if answer.kind == Kind::Error {
        return Ok(judge_error(&answer));
    }
    let found = answer
        .bytes(answer.result)
        .filter(|_| is_result(&answer))
        .and_then(|result| DiscoverResult::parse(result).ok());
    Ok(match found {
        Some(found) if found.versions.contains(&Version::V2026_07_28) => {
            DiscoverVerdict::Modern(Box::new(found))
        }
        Some(found) if found.versions.is_empty() => DiscoverVerdict::Unsupported(
            "the backend speaks none of the revisions that the broker speaks".to_owned(),
        ),
        // It says itself which to take, or it is not an answer to this question.
        _ => DiscoverVerdict::Sessions,
    })
}

fn names_ours(answer: &Message) -> bool {
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
                    "the backend speaks only revisions that the broker does not".to_owned(),
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
            DiscoverVerdict::Modern(_) => "modern",
            DiscoverVerdict::Sessions => "legacy",
            DiscoverVerdict::Unsupported(_) => "neither",
        }
    }

    #[test]
    fn nb_era_02_no_single_code_decides_and_a_modern_error_never_leads_to_initialize() {
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
    fn nb_era_01_a_discover_result_says_it() {
        let found = |versions: &str| {
            verdict(&format!(r#""result":{{"supportedVersions":{versions},"capabilities":{{}}}}"#))
        };
        assert_eq!(found(r#"["2025-11-25","2026-07-28"]"#), "modern");
        assert_eq!(found(r#"["2025-11-25"]"#), "legacy");
        assert_eq!(found(r#"["2031-01-01"]"#), "neither");
        assert_eq!(verdict(r#""result":{}"#), "legacy", "an answer to something else");
    }

    #[test]
    fn nb_era_02_what_nobody_looked_at_says_nothing() {
        assert!(judge(Err(Failure::NotSent("x".into()))).is_err());
        assert!(matches!(
            judge(Err(Failure::Protocol("status 400".into()))),
            Ok(DiscoverVerdict::Sessions)
        ));
    }
}
