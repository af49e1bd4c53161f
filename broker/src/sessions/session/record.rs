//! Encoding of a session for the store.
//!
//! A record has three texts: the agreement of the handshake, the mutable state, and the sessions at
//! backends. The last one is sealed, because it holds secrets of backends. Each text carries the
//! number of its format. A text of an unknown format is refused.

use std::collections::{BTreeMap, HashMap};

use protocol::{
    capabilities::{ClientCapabilities, ServerCapabilities},
    ids::{BackendId, SessionId},
    version::Version,
};
use records::{SESSION_KEY_BYTES, SessionIdentity, SessionKey, SessionRecord};
use rules::{
    catalog::{ListDigests, ListKind},
    client_transport::Transport,
    endpoint::Endpoint,
    log_level::LogLevel,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Agreement, Session};
use crate::{auth::SealKey, backends::link::BackendSession};

/// The format that is written, and the only one that is read.
const FORMAT: u32 = 1;

/// The part of a session that changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MutableState {
    pub(super) log_level: Option<LogLevel>,
    /// The lists as they were last announced to the client.
    pub(super) announced_lists: ListDigests,
    /// Set once the event log had a GET stream with announcements.
    pub(super) were_lists_logged: bool,
    pub(super) elicited: Vec<String>,
}

/// A decoded session.
#[derive(Debug)]
pub struct PersistedSession {
    pub(super) agreement: Agreement,
    pub(super) transport: Transport,
    pub(super) mutable: MutableState,
    pub(super) backend_sessions: HashMap<BackendId, BackendSession>,
}

/// Reason why this build cannot use a stored session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionRecordError {
    #[error("the session was stored in format {0}, but this build reads format {FORMAT}")]
    Format(u32),
    #[error("the broker cannot read the {0} of the session")]
    Part(&'static str),
}

#[derive(Serialize, Deserialize)]
struct FormatHeader {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct AgreementText {
    format: u32,
    version: String,
    client: Box<RawValue>,
    client_name: String,
    client_version: String,
    advertised: Box<RawValue>,
}

#[derive(Serialize, Deserialize)]
struct MutableStateText {
    format: u32,
    log_level: Option<String>,
    lists: BTreeMap<String, String>,
    /// Absent in records of earlier builds.
    #[serde(default)]
    lists_logged: bool,
    elicited: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct LinksText {
    format: u32,
    links: BTreeMap<BackendId, LinkText>,
}

#[derive(Serialize, Deserialize)]
struct LinkText {
    url: String,
    session: String,
    version: String,
}

/// Returns the key that the session with this id is stored under.
pub fn session_key(id: &SessionId) -> SessionKey {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, id.as_str().as_bytes());
    let mut key = [0; SESSION_KEY_BYTES];
    key.copy_from_slice(hash.as_ref());
    SessionKey::new(key)
}

/// Returns the identity that the store compares.
pub fn session_scope(
    tenant: &protocol::ids::TenantId,
    principal: &protocol::ids::PrincipalId,
    endpoint: &Endpoint,
) -> SessionIdentity {
    let endpoint = endpoint.stored_name();
    SessionIdentity { tenant: tenant.clone(), principal: principal.clone(), endpoint }
}

/// Encodes a new session.
pub(super) fn encode(session: &Session, changing: &MutableState) -> Option<SessionRecord> {
    Some(SessionRecord {
        key: session.key,
        identity: session_scope(&session.tenant.id, &session.caller.principal, &session.endpoint),
        api_key: session.caller.key.clone(),
        transport: session.transport.name().to_owned(),
        version: session.agreement.version.as_str().to_owned(),
        agreement: agreement_text(&session.agreement)?,
        state: mutable_state_text(changing),
        links: links_text(&session.shared.persistence.seal, &session.key, &HashMap::new()),
    })
}

fn agreement_text(agreement: &Agreement) -> Option<Vec<u8>> {
    let raw = |text: &[u8]| RawValue::from_string(String::from_utf8(text.to_vec()).ok()?).ok();
    let text = AgreementText {
        format: FORMAT,
        version: agreement.version.as_str().to_owned(),
        client: raw(agreement.client.raw())?,
        client_name: agreement.client_name.clone(),
        client_version: agreement.client_version.clone(),
        advertised: raw(agreement.advertised.raw())?,
    };
    serde_json::to_vec(&text).ok()
}

pub(super) fn mutable_state_text(changing: &MutableState) -> Vec<u8> {
    let lists = ListKind::ALL
        .iter()
        .zip(changing.announced_lists)
        .map(|(kind, digest)| (kind.member().to_owned(), format!("{digest:032x}")));
    let log_level = changing.log_level.map(|level| level.name().to_owned());
    let text = MutableStateText {
        format: FORMAT,
        log_level,
        lists: lists.collect(),
        lists_logged: changing.were_lists_logged,
        elicited: changing.elicited.clone(),
    };
    serde_json::to_vec(&text).expect("texts and lists of texts can always be written")
}

/// Encodes the sessions at backends, sealed for this session's row alone.
pub(super) fn links_text(
    seal: &SealKey,
    key: &SessionKey,
    links: &HashMap<BackendId, BackendSession>,
) -> Vec<u8> {
    let link = |link: &BackendSession| LinkText {
        url: link.url.clone(),
        session: link.id.clone(),
        version: link.version.as_str().to_owned(),
    };
    let text = LinksText {
        format: FORMAT,
        links: links.iter().map(|(backend, one)| (backend.clone(), link(one))).collect(),
    };
    let text = serde_json::to_vec(&text).expect("texts and maps of texts can always be written");
    seal.seal(&seal_context(key), &text).unwrap_or_default() // nothing is resumed then; the backends start new sessions
}

fn seal_context(key: &SessionKey) -> String {
    format!("session/{}", hex(key.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes a record.
pub fn decode(
    record: &SessionRecord,
    seal: &SealKey,
) -> Result<PersistedSession, SessionRecordError> {
    let part = |part| move || SessionRecordError::Part(part);
    let transport = Transport::parse(&record.transport).ok_or_else(part("transport"))?;
    Ok(PersistedSession {
        agreement: read_agreement(&record.agreement)?,
        transport,
        mutable: read_mutable_state(&record.state)?,
        // Without them the backends start new sessions, which clients do not notice.
        backend_sessions: read_links(seal, &record.key, &record.links).unwrap_or_default(),
    })
}

/// Returns the name and version of the client of a stored session.
pub fn client_info(record: &SessionRecord) -> Option<(String, String)> {
    read_agreement(&record.agreement)
        .ok()
        .map(|agreement| (agreement.client_name, agreement.client_version))
}

/// Parses a text if its format is known.
fn read_format<'a, T: Deserialize<'a>>(
    text: &'a [u8],
    what: &'static str,
) -> Result<T, SessionRecordError> {
    let FormatHeader { format } =
        serde_json::from_slice(text).map_err(|_| SessionRecordError::Part(what))?;
    if format != FORMAT {
        return Err(SessionRecordError::Format(format));
    }
    serde_json::from_slice(text).map_err(|_| SessionRecordError::Part(what))
}

fn read_agreement(text: &[u8]) -> Result<Agreement, SessionRecordError> {
    let part = |part| move || SessionRecordError::Part(part);
    let text: AgreementText = read_format(text, "agreement")?;
    Ok(Agreement {
        version: Version::parse(&text.version).ok_or_else(part("version"))?,
        client: ClientCapabilities::parse(text.client.get().as_bytes())
            .map_err(|_| SessionRecordError::Part("client"))?,
        client_name: text.client_name,
        client_version: text.client_version,
        advertised: ServerCapabilities::parse(text.advertised.get().as_bytes())
            .map_err(|_| SessionRecordError::Part("offer"))?,
    })
}

fn read_mutable_state(text: &[u8]) -> Result<MutableState, SessionRecordError> {
    let text: MutableStateText = read_format(text, "state")?;
    let announced_lists = ListKind::ALL.map(|kind| {
        // A list that was never announced counts as changed.
        text.lists
            .get(kind.member())
            .and_then(|digest| u128::from_str_radix(digest, 16).ok())
            .unwrap_or_default()
    });
    let log_level = text.log_level.as_deref().and_then(LogLevel::parse);
    Ok(MutableState {
        log_level,
        announced_lists,
        were_lists_logged: text.lists_logged,
        elicited: text.elicited,
    })
}

fn read_links(
    seal: &SealKey,
    key: &SessionKey,
    sealed: &[u8],
) -> Option<HashMap<BackendId, BackendSession>> {
    let text = seal.open(&seal_context(key), sealed).ok()?;
    let text: LinksText = read_format(&text, "links").ok()?;
    let known = |(backend, link): (BackendId, LinkText)| {
        let version = Version::parse(&link.version)?;
        Some((backend, BackendSession { url: link.url, id: link.session, version }))
    };
    Some(text.links.into_iter().filter_map(known).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Keys;

    fn changing() -> MutableState {
        let elicited = ["one", "two"].map(str::to_owned).into();
        MutableState {
            log_level: Some(LogLevel::Warning),
            announced_lists: [0, 1, u128::MAX, 1 << 90],
            were_lists_logged: true,
            elicited,
        }
    }

    #[test]
    fn the_mutable_state_is_read_as_it_was_written() {
        assert_eq!(read_mutable_state(&mutable_state_text(&changing())), Ok(changing()));
        assert_eq!(
            read_mutable_state(&mutable_state_text(&MutableState::default())),
            Ok(MutableState::default())
        );
    }

    #[test]
    fn a_mutable_state_of_an_earlier_build_is_read() {
        let text = br#"{"format":1,"log_level":null,"lists":{},"elicited":[]}"#;
        assert_eq!(read_mutable_state(text), Ok(MutableState::default()));
    }

    #[test]
    fn an_agreement_is_read_with_the_unchanged_client_capabilities() {
        let text = br#"{"format":1,"version":"2025-06-18","client":{"roots":{"listChanged":true},"x":[1, 2]},
            "client_name":"a","client_version":"1","advertised":{"tools":{"listChanged":true}}}"#;
        let agreement = read_agreement(text).unwrap();
        assert_eq!(
            (agreement.version, agreement.client_name.as_str()),
            (Version::V2025_06_18, "a")
        );
        assert_eq!(agreement.client.raw(), br#"{"roots":{"listChanged":true},"x":[1, 2]}"#);
        assert!(agreement.client.roots_list_changed && agreement.advertised.tools_list_changed);
    }

    #[test]
    fn an_unknown_record_format_is_refused() {
        assert_eq!(
            read_agreement(br#"{"format":2,"version":7}"#).unwrap_err(),
            SessionRecordError::Format(2)
        );
        assert_eq!(
            read_mutable_state(br#"{"format":0}"#).unwrap_err(),
            SessionRecordError::Format(0)
        );
        assert_eq!(read_mutable_state(b"nonsense").unwrap_err(), SessionRecordError::Part("state"));
        assert_eq!(
            read_agreement(br#"{"format":1,"version":"2025-06-18"}"#).unwrap_err(),
            SessionRecordError::Part("agreement")
        );
    }

    #[test]
    fn backend_sessions_are_sealed_for_their_session() {
        let seal = Keys::from_root(b"root").seal;
        let (key, other) =
            (session_key(&SessionId::new("one")), session_key(&SessionId::new("two")));
        let link = BackendSession {
            url: "http://b/mcp".to_owned(),
            id: "the-secret".to_owned(),
            version: Version::V2025_11_25,
        };
        let links = HashMap::from([(BackendId::parse("b").unwrap(), link)]);
        let sealed = links_text(&seal, &key, &links);
        assert!(memchr::memmem::find(&sealed, b"the-secret").is_none());
        assert_eq!(read_links(&seal, &key, &sealed), Some(links.clone()));
        assert_eq!(read_links(&seal, &other, &sealed), None, "not even moved to another row");
        assert!(!format!("{links:?}").contains("secret"));
    }

    #[test]
    fn the_digest_of_a_key_names_the_session() {
        let key = session_key(&SessionId::new("abc"));
        assert_eq!(key.digest(), "ba7816bf8f01cfea");
    }
}
