//! The `_meta` of a request of 2026-07-28: revision, capabilities and log level.

use bytes::Bytes;

use crate::capabilities::ClientCapabilities;
use crate::envelope::Message;
use crate::error::{ErrorKind, Refusal};
use crate::json::quote;
use crate::stateless::{
    META_CLIENT_CAPABILITIES, META_CLIENT_INFO, META_LOG_LEVEL, META_PROTOCOL_VERSION,
};
use crate::version::Version;

/// Longest text of a peer that is repeated in an error.
const QUOTED_CHARS_MAX: usize = 64;

/// The `_meta` of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestMeta {
    /// Always 2026-07-28 so far; others are refused.
    pub version: Version,
    /// The client's capabilities, for this request alone. The object as sent is in `raw`.
    pub capabilities: ClientCapabilities,
    /// True if it declares the extension of tasks.
    pub tasks: bool,
    /// `clientInfo` as sent.
    pub client_info: Option<Bytes>,
    /// `logLevel`, not checked.
    pub log_level: Option<String>,
}

impl RequestMeta {
    /// Reads the `_meta` of a request. A client of another revision is refused with
    /// `supported`.
    pub fn read(message: &Message, supported: &[Version]) -> Result<Self, Refusal> {
        let fields = &message.fields;
        if message.bytes(fields.meta).is_none_or(|meta| meta.first() != Some(&b'{')) {
            return Err(missing("_meta", "an object"));
        }
        let version = message
            .text(fields.meta_protocol_version)
            .ok_or_else(|| missing(META_PROTOCOL_VERSION, "a string"))?;
        let known = Version::parse(&version)
            .filter(|version| !version.has_sessions() && supported.contains(version));
        let version = known.ok_or_else(|| unsupported_version(&version, supported))?;
        let capabilities = message
            .bytes(fields.meta_client_capabilities)
            .filter(|text| text.first() == Some(&b'{'));
        let capabilities =
            capabilities.ok_or_else(|| missing(META_CLIENT_CAPABILITIES, "an object"))?;
        let log_level = message.text(fields.meta_log_level).map(|level| level.into_owned());
        if fields.meta_log_level.is_some() && log_level.is_none() {
            return Err(missing(META_LOG_LEVEL, "a string"));
        }
        let capabilities = ClientCapabilities::parse(capabilities)?;
        Ok(Self {
            version,
            tasks: capabilities.extension_tasks,
            capabilities,
            client_info: fields.meta_client_info.map(|info| info.slice(&message.frame)),
            log_level,
        })
    }
}

/// Returns the refusal of a request whose `_meta` lacks a required member, or has it with another
/// type.
fn missing(member: &str, expected: &str) -> Refusal {
    Refusal::new(
        ErrorKind::MetaInvalid,
        format!("every request of 2026-07-28 needs params._meta with {member}, {expected}"),
    )
}

/// Returns the refusal of a revision, with those that are supported.
pub fn unsupported_version(requested: &str, supported: &[Version]) -> Refusal {
    let requested: String = requested.chars().take(QUOTED_CHARS_MAX).collect();
    let names: Vec<&str> = supported.iter().map(|version| version.as_str()).collect();
    Refusal::new(
        ErrorKind::UnsupportedProtocolVersion,
        format!("protocol version {} is not served", quote(&requested)),
    )
    .with("supported", names)
    .with("requested", requested)
}

/// Returns the refusal of a request that declares too little. `required`: the missing capabilities
/// as a JSON object.
pub fn capability_required(required: &str, message: impl Into<String>) -> Refusal {
    let required: serde_json::Value =
        serde_json::from_str(required).unwrap_or_else(|_| serde_json::json!({}));
    Refusal::new(ErrorKind::ClientCapabilityRequired, message)
        .with("requiredCapabilities", required)
}

/// Returns the members of a request's `_meta` as its sender writes them, each with its JSON text.
pub fn meta_members<'a>(
    capabilities: &'a [u8],
    client_info: Option<&'a [u8]>,
    log_level: Option<&str>,
) -> Vec<(&'static str, std::borrow::Cow<'a, [u8]>)> {
    let mut members: Vec<(&'static str, std::borrow::Cow<'a, [u8]>)> = vec![
        (META_PROTOCOL_VERSION, quote(Version::V2026_07_28.as_str()).into_bytes().into()),
        (META_CLIENT_CAPABILITIES, capabilities.into()),
    ];
    members.extend(client_info.map(|info| (META_CLIENT_INFO, info.into())));
    members.extend(log_level.map(|level| (META_LOG_LEVEL, quote(level).into_bytes().into())));
    members
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Limits;

    fn read(meta: &str) -> Result<RequestMeta, Refusal> {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"_meta":{meta}}}}}"#
        );
        let message = Message::decode(Bytes::from(text), &Limits::default()).unwrap();
        RequestMeta::read(&message, &Version::ALL)
    }

    const VERSION: &str = r#""io.modelcontextprotocol/protocolVersion":"2026-07-28""#;

    #[test]
    fn n_meta_01_the_metadata_of_a_request_is_read() {
        let meta = read(&format!(
            r#"{{{VERSION},"io.modelcontextprotocol/clientCapabilities":{{"sampling":{{}},"extensions":{{"io.modelcontextprotocol/tasks":{{}}}}}},
                "io.modelcontextprotocol/clientInfo":{{"name":"c","version":"1"}},"io.modelcontextprotocol/logLevel":"info","traceparent":"x"}}"#
        ));
        let meta = meta.unwrap();
        assert!(meta.capabilities.sampling && !meta.capabilities.roots && meta.tasks);
        assert_eq!(meta.client_info.as_deref(), Some(&br#"{"name":"c","version":"1"}"#[..]));
        assert_eq!((meta.version, meta.log_level.as_deref()), (Version::V2026_07_28, Some("info")));
    }

    #[test]
    fn n_meta_01_missing_metadata_is_named_in_the_error() {
        for (meta, member) in [
            ("{}", "protocolVersion"),
            (r#"{"io.modelcontextprotocol/protocolVersion":7}"#, "protocolVersion"),
            (&format!("{{{VERSION}}}"), "clientCapabilities"),
            (
                &format!(r#"{{{VERSION},"io.modelcontextprotocol/clientCapabilities":[]}}"#),
                "clientCapabilities",
            ),
            (
                &format!(
                    r#"{{{VERSION},"io.modelcontextprotocol/clientCapabilities":{{}},"io.modelcontextprotocol/logLevel":1}}"#
                ),
                "logLevel",
            ),
            ("7", "_meta"),
        ] {
            let refusal = read(meta).unwrap_err();
            assert_eq!(
                (refusal.kind, refusal.kind.code()),
                (ErrorKind::MetaInvalid, -32602),
                "{meta}"
            );
            assert!(refusal.message.contains(member) || member == "_meta", "{refusal}");
        }
        let bare = Message::decode(
            Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#),
            &Limits::default(),
        );
        assert_eq!(
            RequestMeta::read(&bare.unwrap(), &Version::ALL).unwrap_err().kind,
            ErrorKind::MetaInvalid
        );
    }

    #[test]
    fn n_ver_01_other_revisions_are_refused_with_those_that_are_served() {
        for revision in ["2099-01-01", "2025-11-25"] {
            let meta = format!(
                r#"{{"io.modelcontextprotocol/protocolVersion":"{revision}","io.modelcontextprotocol/clientCapabilities":{{}}}}"#
            );
            let refusal = read(&meta).unwrap_err();
            assert_eq!(refusal.kind.code(), -32022);
            let text = refusal.to_error_json("r");
            let text = String::from_utf8_lossy(&text);
            assert!(
                text.contains(r#""supported":["2024-11-05""#)
                    && text.contains(&format!(r#""requested":"{revision}""#)),
                "{text}"
            );
        }
    }

    #[test]
    fn written_metadata_can_be_read() {
        let members =
            meta_members(br#"{"roots":{}}"#, Some(br#"{"name":"b","version":"2"}"#), Some("error"));
        let members: Vec<String> = members
            .iter()
            .map(|(key, value)| format!("{}:{}", quote(key), String::from_utf8_lossy(value)))
            .collect();
        let meta = read(&format!("{{{}}}", members.join(","))).unwrap();
        assert!(meta.capabilities.roots && !meta.tasks);
        assert_eq!(meta.log_level.as_deref(), Some("error"));
    }
}
