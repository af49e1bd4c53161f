//! The handshake of revisions with sessions in both roles, and the writers of whole messages.
//!
//! Front: the broker reads `initialize` and answers it. Back: the broker sends `initialize` to a
//! backend and reads the answer. Member texts are kept as sent, so that client and server
//! information pass on unchanged.

use bytes::Bytes;

use crate::capabilities::{ClientCapabilities, ServerCapabilities};
use crate::envelope::{Kind, Message};
use crate::error::{ErrorKind, Refusal};
use crate::ids::RequestId;
use crate::json::{Document, JsonError, Limits, Tape, TapeValue, Value, ValueKind, quote};
use crate::method::Method;
use crate::version::Version;

/// Params of a client's `initialize`.
#[derive(Debug, Clone, PartialEq)]
pub struct InitializeParams {
    /// The requested revision, which need not exist.
    pub requested_version: String,
    /// Capabilities that the client declared.
    pub capabilities: ClientCapabilities,
    /// The `clientInfo` object as sent.
    pub client_info: Bytes,
    /// `clientInfo.name`
    pub client_name: String,
    /// `clientInfo.version`
    pub client_version: String,
}

impl InitializeParams {
    /// Reads an `initialize` request; refuses with the member that is missing or wrong.
    pub fn parse(message: &Message) -> Result<Self, Refusal> {
        let params = message.params.ok_or_else(|| bad_member("params", "an object"))?;
        let text = params.of(&message.frame);
        let document = Document::parse(text, &inner_limits(text))
            .map_err(|error| Refusal::new(ErrorKind::ParseError, error.to_string()))?;
        let root = document.root();
        let requested = string_member(root, &["protocolVersion"])?;
        let capabilities = object_member(root, "capabilities")?;
        let info = object_member(root, "clientInfo")?;
        Ok(Self {
            requested_version: requested,
            capabilities: ClientCapabilities::parse(capabilities.raw())?,
            client_name: string_member(root, &["clientInfo", "name"])?,
            client_version: string_member(root, &["clientInfo", "version"])?,
            client_info: Bytes::copy_from_slice(info.raw()),
        })
    }
}

fn bad_member(member: &str, expected: &str) -> Refusal {
    let message = format!("initialize needs `{member}` to be {expected}");
    Refusal::new(ErrorKind::InvalidParams, message).with("member", member)
}

fn string_member(root: Value<'_>, path: &[&str]) -> Result<String, Refusal> {
    let text = root.path(path).and_then(|value| value.as_str());
    text.map(String::from).ok_or_else(|| bad_member(&path.join("."), "a string"))
}

fn object_member<'a>(root: Value<'a>, key: &str) -> Result<Value<'a>, Refusal> {
    root.get(key)
        .filter(|value| value.kind() == ValueKind::Object)
        .ok_or_else(|| bad_member(key, "an object"))
}

// The text was validated with its message; only its own size bounds it now.
fn inner_limits(text: &[u8]) -> Limits {
    Limits::with_bytes_max(text.len())
}

/// Returns the result of `initialize`.
pub fn initialize_result(
    version: Version,
    capabilities_json: &[u8],
    server_info_json: &[u8],
    instructions: Option<&str>,
) -> Bytes {
    let version = quote(version.as_str());
    let instructions =
        instructions.map_or(String::new(), |text| format!(",\"instructions\":{}", quote(text)));
    join(&[
        b"{\"protocolVersion\":",
        version.as_bytes(),
        b",\"capabilities\":",
        capabilities_json,
        b",\"serverInfo\":",
        server_info_json,
        instructions.as_bytes(),
        b"}",
    ])
}

/// Returns a whole result response.
pub fn success(id: &RequestId, result: &[u8]) -> Bytes {
    join(&[b"{\"jsonrpc\":\"2.0\",\"id\":", id.raw(), b",\"result\":", result, b"}"])
}

/// Returns a whole request.
pub fn request(id: &RequestId, method: Method, params: Option<&[u8]>) -> Bytes {
    call(Some(id), method, params)
}

/// Returns a whole notification.
pub fn notification(method: Method, params: Option<&[u8]>) -> Bytes {
    call(None, method, params)
}

fn call(id: Option<&RequestId>, method: Method, params: Option<&[u8]>) -> Bytes {
    let (id_key, id): (&[u8], &[u8]) = id.map_or((b"", b""), |id| (b"\"id\":", id.raw()));
    let comma: &[u8] = if id.is_empty() { b"" } else { b"," };
    let (params_key, params): (&[u8], &[u8]) =
        params.map_or((b"", b""), |params| (b",\"params\":", params));
    let method = quote(method.name());
    join(&[
        b"{\"jsonrpc\":\"2.0\",",
        id_key,
        id,
        comma,
        b"\"method\":",
        method.as_bytes(),
        params_key,
        params,
        b"}",
    ])
}

fn join(parts: &[&[u8]]) -> Bytes {
    parts.concat().into()
}

/// Returns the `initialize` the broker sends to a backend. `meta` is its `_meta` object.
pub fn initialize_request(
    id: &RequestId,
    offer: Version,
    capabilities: &[u8],
    client_info: &[u8],
    meta: &[u8],
) -> Bytes {
    let version = quote(offer.as_str());
    let params = join(&[
        b"{\"protocolVersion\":",
        version.as_bytes(),
        b",\"capabilities\":",
        capabilities,
        b",\"clientInfo\":",
        client_info,
        b",\"_meta\":",
        meta,
        b"}",
    ]);
    request(id, Method::Initialize, Some(&params))
}

/// Reason why a backend's answer to `initialize` opens no link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The backend refused.
    #[error("backend refused initialize with error {code}")]
    Refused {
        /// Its `error.code`.
        code: i64,
    },
    /// The message is not an answer.
    #[error("backend sent a message that is not a response to initialize")]
    NotAResponse,
    /// The answer lacks something.
    #[error("backend's answer to initialize needs `{member}` to be {expected}")]
    BadMember {
        /// Name of the member.
        member: &'static str,
        /// The type or value it must have.
        expected: &'static str,
    },
    /// The backend supports only revisions that the broker does not support.
    #[error("backend answered with {}, which is not supported", named(.0.as_deref()))]
    UnsupportedVersion(Option<String>),
    /// The answer cannot be read.
    #[error("backend's answer to initialize cannot be read: {0}")]
    Unreadable(#[source] JsonError),
}

/// Returns whether a text has the form of a revision. Other text of a backend may repeat a secret
/// that the broker sent, and is not shown.
fn is_revision(text: &str) -> bool {
    let is_digit_or_dash = |byte: u8| byte.is_ascii_digit() || byte == b'-';
    text.len() == "2025-11-25".len() && text.bytes().all(is_digit_or_dash)
}

fn named(revision: Option<&str>) -> String {
    match revision {
        Some(revision) => format!("protocol version {revision:?}"),
        None => "a text that is not a protocol version".to_owned(),
    }
}

/// Result of a backend's answer to `initialize`.
#[derive(Debug, Clone, PartialEq)]
pub struct InitializeResult {
    /// The revision agreed on.
    pub version: Version,
    /// Capabilities that the backend declared.
    pub capabilities: ServerCapabilities,
    /// The `serverInfo` object as sent.
    pub server_info: Bytes,
    /// `serverInfo.name`
    pub server_name: String,
    /// `serverInfo.version`
    pub server_version: String,
    /// `instructions`, when there are any.
    pub instructions: Option<String>,
}

impl InitializeResult {
    /// Reads the answer.
    pub fn parse(message: &Message) -> Result<Self, HandshakeError> {
        if message.kind == Kind::Error {
            let code = message
                .bytes(message.fields.error_code)
                .and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
            return Err(HandshakeError::Refused { code: code.unwrap_or_default() });
        }
        let text = message.bytes(message.result).ok_or(HandshakeError::NotAResponse)?;
        let tape = Tape::parse(text, &inner_limits(text)).map_err(HandshakeError::Unreadable)?;
        let root = tape.root();
        let version = answer_string(root, &["protocolVersion"], "protocolVersion")?;
        let version = match Version::parse(&version).filter(|version| version.has_sessions()) {
            Some(version) => version,
            None => {
                return Err(HandshakeError::UnsupportedVersion(
                    is_revision(&version).then_some(version),
                ));
            }
        };
        let capabilities = answer_object(root, "capabilities")?;
        let info = answer_object(root, "serverInfo")?;
        Ok(Self {
            version,
            capabilities: ServerCapabilities::of(capabilities),
            server_name: answer_string(root, &["serverInfo", "name"], "serverInfo.name")?,
            // Required by the schema, but servers without one exist and nothing depends on it.
            server_version: answer_string(root, &["serverInfo", "version"], "serverInfo.version")
                .unwrap_or_default(),
            server_info: Bytes::copy_from_slice(info.raw()),
            instructions: root
                .get("instructions")
                .and_then(|value| value.as_str())
                .map(String::from),
        })
    }
}

fn answer_string(
    root: TapeValue<'_>,
    path: &[&str],
    member: &'static str,
) -> Result<String, HandshakeError> {
    let text = root.path(path).and_then(|value| value.as_str());
    text.map(String::from).ok_or(HandshakeError::BadMember { member, expected: "a string" })
}

fn answer_object<'a>(
    root: TapeValue<'a>,
    member: &'static str,
) -> Result<TapeValue<'a>, HandshakeError> {
    let value = root.get(member).filter(|value| value.kind() == ValueKind::Object);
    value.ok_or(HandshakeError::BadMember { member, expected: "an object" })
}
