//! Results of 2026-07-28: each has a type, and some have a time for which they may be kept.

use bytes::Bytes;

use crate::capabilities::{ListKind, ServerCapabilities};
use crate::envelope::{Kind, Message};
use crate::ids::RequestId;
use crate::json::{Document, Limits, Span, Tape, TapeValue, ValueKind, quote, quote_into};
use crate::method::Method;
use crate::splice::Splice;
use crate::stateless::{EXTENSION_TASKS, META_SERVER_INFO, META_SUBSCRIPTION_ID};
use crate::version::Version;

/// Type of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultType {
    /// The answer itself. Servers of earlier revisions omit the type and mean this one.
    Complete,
    /// The server needs something of the client first.
    InputRequired,
    /// The call continues as a task (extension).
    Task,
    /// An unknown type: the result is invalid.
    Unknown,
}

impl ResultType {
    /// Returns the type of an answer that is a result.
    pub fn of(answer: &Message) -> Self {
        match (answer.fields.result_type, answer.text(answer.fields.result_type).as_deref()) {
            (None, _) | (_, Some("complete")) => Self::Complete,
            (_, Some("input_required")) => Self::InputRequired,
            (_, Some("task")) => Self::Task,
            _ => Self::Unknown,
        }
    }

    /// Returns the name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::InputRequired => "input_required",
            Self::Task => "task",
            Self::Unknown => "unknown",
        }
    }
}

/// Readers who may share a kept result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheScope {
    /// Only requests with the same authorization.
    Private,
    /// Every reader.
    Public,
}

impl CacheScope {
    /// Returns the name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Public => "public",
        }
    }
}

/// Time for which a result may be kept, and readers who may share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheHint {
    /// `ttlMs`; 0 means not at all.
    pub ttl_ms: u64,
    /// `cacheScope`
    pub scope: CacheScope,
}

impl CacheHint {
    /// Hint of a result without one: not kept and not shared.
    pub const NONE: Self = Self { ttl_ms: 0, scope: CacheScope::Private };

    /// Reads the hint of a result object. Malformed members count as absent.
    pub fn read(result: &[u8]) -> Self {
        let limits = Limits::with_bytes_max(result.len());
        Tape::parse(result, &limits).map_or(Self::NONE, |tape| Self::of(tape.root()))
    }

    fn of(root: TapeValue<'_>) -> Self {
        let public =
            root.get("cacheScope").and_then(|value| value.as_str()).as_deref() == Some("public");
        Self {
            ttl_ms: root.get("ttlMs").and_then(|value| value.as_u64()).unwrap_or(0),
            scope: if public { CacheScope::Public } else { CacheScope::Private },
        }
    }

    fn members(self) -> String {
        format!("\"ttlMs\":{},\"cacheScope\":\"{}\"", self.ttl_ms, self.scope.name())
    }
}

/// Returns a complete result response around a result object of the broker's own. The object must
/// have none of the members added here, `_meta` included. `members`: the object without its braces.
pub fn complete_response(
    id: &RequestId,
    members: &[u8],
    cache: Option<CacheHint>,
    server_info: &[u8],
) -> Bytes {
    let mut out = Vec::with_capacity(members.len() + server_info.len() + 192);
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id.raw());
    out.extend_from_slice(b",\"result\":{\"resultType\":\"complete\"");
    if let Some(cache) = cache {
        out.push(b',');
        out.extend_from_slice(cache.members().as_bytes());
    }
    if !members.is_empty() {
        out.push(b',');
        out.extend_from_slice(members);
    }
    out.push(b',');
    out.extend_from_slice(server_meta(server_info, None).as_bytes());
    out.extend_from_slice(b"}}");
    out.into()
}

/// Returns the end of a stream of notifications, which carries nothing else (MCP 2026-07-28,
/// Subscriptions).
pub fn listen_ended(id: &RequestId, server_info: &[u8]) -> Bytes {
    let meta = server_meta(server_info, Some(id));
    let id = String::from_utf8_lossy(id.raw()).into_owned();
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"resultType\":\"complete\",{meta}}}}}")
        .into()
}

fn server_meta(server_info: &[u8], subscription: Option<&RequestId>) -> String {
    let subscription =
        subscription.map_or(String::new(), |id| format!(",\"{META_SUBSCRIPTION_ID}\":{id}"));
    format!(
        "\"_meta\":{{\"{META_SERVER_INFO}\":{}{subscription}}}",
        String::from_utf8_lossy(server_info)
    )
}

/// Adds to a result of an earlier revision the members that this one requires. `splice` edits the
/// frame of `answer`, which is a result. If the server set these members, they were meant for
/// another reader and are replaced.
pub fn upgrade_result<'a>(
    splice: &mut Splice<'a>,
    answer: &Message,
    cache: Option<CacheHint>,
    server_info: &[u8],
) {
    let Some(result) = answer.result.filter(|_| answer.kind == Kind::Result) else { return };
    let fields = &answer.fields;
    let has_no_members = [fields.result_type, fields.ttl_ms, fields.cache_scope, fields.meta]
        .iter()
        .all(Option::is_none);
    if has_no_members {
        // Nearly all servers of earlier revisions answer without these members: all are inserted at
        // one place.
        let hint = cache.map_or(String::new(), |cache| format!(",{}", cache.members()));
        let is_empty =
            answer.frame[result.start as usize + 1..].trim_ascii_start().first() == Some(&b'}');
        let comma: &[u8] = if is_empty { b"" } else { b"," };
        let (before, key): (&[u8], &[u8]) = (b",\"_meta\":{\"", META_SERVER_INFO.as_bytes());
        let text = [
            b"\"resultType\":\"complete\"",
            hint.as_bytes(),
            before,
            key,
            b"\":",
            server_info,
            b"}",
            comma,
        ]
        .concat();
        splice.insert(result.start + 1, text);
        return;
    }
    splice.set_member(result, answer.fields.result_type, "resultType", b"\"complete\"");
    if let Some(cache) = cache {
        splice.set_member(
            result,
            answer.fields.ttl_ms,
            "ttlMs",
            cache.ttl_ms.to_string().as_bytes(),
        );
        splice.set_member(
            result,
            answer.fields.cache_scope,
            "cacheScope",
            quote(cache.scope.name()).as_bytes(),
        );
    }
    splice.set_meta(answer, META_SERVER_INFO, server_info);
}

/// A server's answer to `server/discover`.
#[derive(Debug, Clone, PartialEq)]
pub struct DiscoverResult {
    /// The revisions that the server and the broker support, oldest first.
    pub versions: Vec<Version>,
    /// Capabilities of the server.
    pub capabilities: ServerCapabilities,
    /// The ids of its extensions.
    pub extensions: Vec<String>,
    /// Instructions for the users of the server.
    pub instructions: Option<String>,
    /// `serverInfo` as sent.
    pub server_info: Option<Bytes>,
    /// Time for which this may be kept.
    pub cache: CacheHint,
}

impl DiscoverResult {
    /// Reads the result object.
    pub fn parse(result: &[u8]) -> Result<Self, &'static str> {
        let limits = Limits::with_bytes_max(result.len());
        let tape = Tape::parse(result, &limits).map_err(|_| "the result is not valid JSON")?;
        let root = tape.root();
        let versions =
            root.get("supportedVersions").filter(|value| value.kind() == ValueKind::Array);
        let versions = versions.ok_or("the result has no array supportedVersions")?;
        let mut versions: Vec<Version> =
            versions.elements().filter_map(|one| Version::parse(&one.as_str()?)).collect();
        versions.sort_unstable();
        versions.dedup();
        let capabilities =
            root.get("capabilities").filter(|value| value.kind() == ValueKind::Object);
        let capabilities = capabilities.ok_or("the result has no object capabilities")?;
        let extensions = capabilities
            .get("extensions")
            .into_iter()
            .flat_map(|all| all.members())
            .map(|one| one.key.into_owned());
        Ok(Self {
            versions,
            extensions: extensions.collect(),
            capabilities: ServerCapabilities::of(capabilities),
            instructions: root
                .get("instructions")
                .and_then(|value| value.as_str())
                .map(|text| text.into_owned()),
            server_info: root
                .path(&["_meta", META_SERVER_INFO])
                .map(|value| Bytes::copy_from_slice(value.raw())),
            cache: CacheHint::of(root),
        })
    }
}

/// Returns the members of a discover result for [`complete_response`]: all except type, cache hint
/// and `_meta`.
pub fn discover_members(
    versions: &[Version],
    capabilities: &[u8],
    instructions: Option<&str>,
) -> Vec<u8> {
    let versions: Vec<String> = versions.iter().map(|version| quote(version.as_str())).collect();
    let mut out =
        format!("\"supportedVersions\":[{}],\"capabilities\":", versions.join(",")).into_bytes();
    out.extend_from_slice(capabilities);
    if let Some(instructions) = instructions {
        out.extend_from_slice(b",\"instructions\":");
        quote_into(&mut out, instructions);
    }
    out
}

/// Converts the capabilities of a server of an earlier revision to this one. Its tasks are removed:
/// they are an extension now, which is declared if `tasks` is set. Other extensions pass.
pub fn upgrade_server_capabilities(legacy: &ServerCapabilities, tasks: bool) -> Bytes {
    let text = Bytes::copy_from_slice(legacy.raw());
    let kept = Splice::new(&text).retain_members(whole(&text), |key| key != "tasks").finish();
    let limits = Limits::with_bytes_max(kept.len());
    let Ok(tape) = Tape::parse(&kept, &limits) else { return kept };
    let declared = tape.root().get("extensions");
    let mut splice = Splice::new(&kept);
    match (declared.filter(|declared| declared.kind() == ValueKind::Object), tasks) {
        (Some(all), true) => {
            let known = all.get(EXTENSION_TASKS).map(|value| value.span());
            splice.set_member(all.span(), known, EXTENSION_TASKS, b"{}");
        }
        (Some(all), false) => {
            splice.remove_member(all.span(), EXTENSION_TASKS);
        }
        (None, true) => {
            let all = format!("{{{}:{{}}}}", quote(EXTENSION_TASKS));
            let existing = declared.map(|value| value.span());
            splice.set_member(whole(&kept), existing, "extensions", all.as_bytes());
        }
        (None, false) => {}
    }
    splice.finish()
}

fn whole(text: &Bytes) -> Span {
    Span { start: 0, end: u32::try_from(text.len()).unwrap_or(u32::MAX) }
}

/// Filter of the notifications that a client wants, or that a server agrees to send (MCP
/// 2026-07-28, Subscriptions).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubscriptionFilter {
    /// `toolsListChanged`
    pub tools: bool,
    /// `promptsListChanged`
    pub prompts: bool,
    /// `resourcesListChanged`
    pub resources: bool,
    /// `resourceSubscriptions`. An absent list and an empty one differ on the wire only; both mean
    /// none.
    pub uris: Vec<String>,
    /// `taskIds`, of the extension of tasks.
    pub tasks: Vec<String>,
}

impl SubscriptionFilter {
    /// Reads the object `notifications`. Unknown members are left out, and the acknowledgement
    /// shows it.
    pub fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let limits = Limits::with_bytes_max(text.len());
        let document = Document::parse(text, &limits).map_err(|_| "it is not valid JSON")?;
        let root = document.root();
        if root.kind() != ValueKind::Object {
            return Err("it must be an object");
        }
        let flag = |name: &str| match root.get(name) {
            None => Ok(false),
            Some(value) => {
                value.as_bool().ok_or("a member that requests a list must be true or false")
            }
        };
        let strings = |name: &str| match root.get(name) {
            None => Ok(Vec::new()),
            Some(value) if value.kind() == ValueKind::Array => {
                let all = value.elements().map(|one| one.as_str().map(|text| text.into_owned()));
                all.collect::<Option<Vec<String>>>().ok_or("URIs and task ids must be strings")
            }
            Some(_) => Err("URIs and task ids must be in an array"),
        };
        Ok(Self {
            tools: flag("toolsListChanged")?,
            prompts: flag("promptsListChanged")?,
            resources: flag("resourcesListChanged")?,
            uris: strings("resourceSubscriptions")?,
            tasks: strings("taskIds")?,
        })
    }

    /// Returns whether the filter includes changes of this list.
    pub const fn has(&self, list: ListKind) -> bool {
        match list {
            ListKind::Tools => self.tools,
            ListKind::Prompts => self.prompts,
            ListKind::Resources => self.resources,
        }
    }

    /// Returns the object, with only the members that are set.
    pub fn to_json(&self) -> String {
        let mut members = Vec::new();
        for (name, set) in [
            ("toolsListChanged", self.tools),
            ("promptsListChanged", self.prompts),
            ("resourcesListChanged", self.resources),
        ] {
            if set {
                members.push(format!("\"{name}\":true"));
            }
        }
        for (name, list) in [("resourceSubscriptions", &self.uris), ("taskIds", &self.tasks)] {
            if !list.is_empty() {
                let list: Vec<String> = list.iter().map(|text| quote(text)).collect();
                members.push(format!("\"{name}\":[{}]", list.join(",")));
            }
        }
        format!("{{{}}}", members.join(","))
    }
}

/// Returns a notification on the stream that the request with this id opened. `members`: its params
/// without `_meta`.
pub fn subscription_notification(method: Method, id: &RequestId, members: &str) -> Bytes {
    let comma = if members.is_empty() { "" } else { "," };
    let params = format!("{{{members}{comma}\"_meta\":{{\"{META_SUBSCRIPTION_ID}\":{id}}}}}");
    crate::handshake::notification(method, Some(params.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        Message::decode(Bytes::from(text.to_owned()), &Limits::default()).unwrap()
    }

    #[test]
    fn n_res_01_the_type_of_a_result_is_read() {
        for (result, expected) in [
            ("{}", ResultType::Complete),
            (r#"{"resultType":"complete"}"#, ResultType::Complete),
            (r#"{"resultType":"input_required"}"#, ResultType::InputRequired),
            (r#"{"resultType":"task"}"#, ResultType::Task),
            (r#"{"resultType":"later"}"#, ResultType::Unknown),
            (r#"{"resultType":7}"#, ResultType::Unknown),
        ] {
            assert_eq!(
                ResultType::of(&message(&format!(
                    r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#
                ))),
                expected,
                "{result}"
            );
        }
    }

    #[test]
    fn an_earlier_result_gets_the_members_required_by_this_revision() {
        let hint = CacheHint { ttl_ms: 5, scope: CacheScope::Private };
        for (result, expected) in [
            (
                "{}",
                r#"{"resultType":"complete","ttlMs":5,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"b"}}}"#,
            ),
            (
                r#"{"a":1,"resultType":"odd","_meta":{"x":1}}"#,
                r#"{"ttlMs":5,"cacheScope":"private","a":1,"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"b"},"x":1}}"#,
            ),
        ] {
            let answer = message(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#));
            let mut splice = Splice::new(&answer.frame);
            upgrade_result(&mut splice, &answer, Some(hint), br#"{"name":"b"}"#);
            let text = splice.finish();
            assert_eq!(
                String::from_utf8_lossy(&text),
                format!(r#"{{"jsonrpc":"2.0","id":1,"result":{expected}}}"#)
            );
        }
    }

    #[test]
    fn n_disc_01_a_discover_result_is_read_as_it_was_written() {
        let capabilities =
            br#"{"tools":{"listChanged":true},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
        let members = discover_members(&Version::ALL, capabilities, Some("do \"this\""));
        let hint = CacheHint { ttl_ms: 60_000, scope: CacheScope::Public };
        let info = br#"{"name":"n","version":"1"}"#;
        let frame = complete_response(&RequestId::from_u64(1), &members, Some(hint), info);
        let answer = message(std::str::from_utf8(&frame).unwrap());
        let read = DiscoverResult::parse(answer.bytes(answer.result).unwrap()).unwrap();
        assert_eq!((read.versions.as_slice(), read.cache), (&Version::ALL[..], hint));
        assert!(read.capabilities.tools_list_changed && !read.capabilities.prompts);
        assert_eq!(
            (read.extensions.as_slice(), read.instructions.as_deref()),
            (&[EXTENSION_TASKS.to_owned()][..], Some("do \"this\""))
        );
        assert_eq!(read.server_info.as_deref(), Some(&info[..]));
    }

    #[test]
    fn legacy_task_capabilities_become_an_extension() {
        let legacy = ServerCapabilities::parse(
            br#"{"tools":{},"tasks":{"list":{}},"experimental":{"x":{}}}"#,
        )
        .unwrap();
        assert_eq!(
            upgrade_server_capabilities(&legacy, false),
            r#"{"tools":{},"experimental":{"x":{}}}"#
        );
        let with = upgrade_server_capabilities(&legacy, true);
        assert_eq!(
            with,
            r#"{"extensions":{"io.modelcontextprotocol/tasks":{}},"tools":{},"experimental":{"x":{}}}"#
        );
    }

    #[test]
    fn filters_are_read_and_written() {
        let text =
            r#"{"toolsListChanged":true,"resourceSubscriptions":["file:///a"],"taskIds":["t"]}"#;
        let filter = SubscriptionFilter::parse(text.as_bytes()).unwrap();
        assert!(filter.has(ListKind::Tools) && !filter.has(ListKind::Prompts));
        assert_eq!(filter.to_json(), text);
        assert_eq!(SubscriptionFilter::parse(b"{}").unwrap().to_json(), "{}");
        for bad in [
            "[]",
            r#"{"toolsListChanged":1}"#,
            r#"{"resourceSubscriptions":"a"}"#,
            r#"{"resourceSubscriptions":[1]}"#,
        ] {
            assert!(SubscriptionFilter::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn n_sub_02_the_type_of_a_subscription_id_is_kept() {
        for id in ["7", "\"7\""] {
            let id = RequestId::from_raw(Bytes::from(id.to_owned()));
            let frame = subscription_notification(Method::ToolsListChanged, &id, "");
            let expected = format!(
                r#""params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}}}"#
            );
            assert!(String::from_utf8_lossy(&frame).contains(&expected));
            assert!(
                String::from_utf8_lossy(&listen_ended(&id, b"{}"))
                    .contains(&format!("subscriptionId\":{id}"))
            );
        }
    }
}
