//! Converts messages of a server of 2026-07-28 for clients of earlier revisions, and the
//! capabilities of such a client for the server. Links to stateless backends use it.
//!
//! Members that are not named here pass as they were written.

use bytes::Bytes;

use crate::capabilities::ServerCapabilities;
use crate::envelope::{Kind, Message};
use crate::handshake::{self, InitializeResult};
use crate::ids::RequestId;
use crate::json::{Document, Limits, Tape, TapeValue, ValueKind, quote};
use crate::method::Method;
use crate::splice::Splice;
use crate::stateless::inputs::InputRequest;
use crate::stateless::results::{DiscoverResult, upgrade_server_capabilities};
use crate::stateless::{EXTENSION_TASKS, META_SUBSCRIPTION_ID, is_cacheable};
use crate::version::Version;

/// Returns limits for texts that were decoded before, with their deepest nesting.
fn limits(text: &[u8]) -> Limits {
    Limits::with_bytes_max(text.len())
}

/// Converts a client's capabilities to this revision. Tasks are an extension, which the broker
/// always declares. A client no longer announces changes of its roots.
pub fn upgrade_client_capabilities(legacy: &[u8]) -> Bytes {
    let mut all: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(legacy).unwrap_or_default();
    all.remove("tasks");
    if let Some(serde_json::Value::Object(roots)) = all.get_mut("roots") {
        roots.remove("listChanged");
    }
    let extensions = all.entry("extensions").or_insert_with(|| serde_json::json!({}));
    if let serde_json::Value::Object(extensions) = extensions {
        extensions.insert(EXTENSION_TASKS.to_owned(), serde_json::json!({}));
    }
    serde_json::Value::Object(all).to_string().into()
}

/// Converts the answer to `server/discover` to an answer to `initialize`. The extension of tasks
/// has another form in earlier revisions and is removed. `name`: name of a server that gives none.
pub fn initialize_result_from(discovered: &DiscoverResult, name: &str) -> InitializeResult {
    let kept = upgrade_server_capabilities(&discovered.capabilities, false);
    let unnamed = || Bytes::from(format!("{{\"name\":{},\"version\":\"\"}}", quote(name)));
    let server_info = discovered
        .server_info
        .clone()
        .filter(|info| text_member(info, "name").is_some())
        .unwrap_or_else(unnamed);
    InitializeResult {
        version: Version::V2026_07_28,
        capabilities: ServerCapabilities::parse(&kept)
            .unwrap_or_else(|_| ServerCapabilities::none()),
        server_name: text_member(&server_info, "name").unwrap_or_default(),
        server_version: text_member(&server_info, "version").unwrap_or_default(),
        server_info,
        instructions: discovered.instructions.clone(),
    }
}

fn text_member(object: &[u8], key: &str) -> Option<String> {
    let document = Document::parse(object, &limits(object)).ok()?;
    Some(document.root().get(key)?.as_str()?.into_owned())
}

/// Returns the error's code.
pub fn error_code(answer: &Message) -> Option<i64> {
    std::str::from_utf8(answer.bytes(answer.fields.error_code)?).ok()?.parse().ok()
}

/// Returns the revisions that a server supports, read from its refusal of another one.
pub fn supported_versions(refusal: &Message) -> Vec<Version> {
    let Some(data) = refusal.bytes(refusal.fields.error_data) else { return Vec::new() };
    let Ok(document) = Document::parse(data, &limits(data)) else { return Vec::new() };
    let supported = document.root().get("supported");
    supported
        .into_iter()
        .flat_map(|all| all.elements())
        .filter_map(|one| Version::parse(&one.as_str()?))
        .collect()
}

/// Returns a complete answer without the members that only this revision has.
pub fn downgrade_answer(answer: &Message, method: Method) -> Bytes {
    match answer.kind {
        Kind::Error => error(answer, method),
        _ => result(answer, method, TargetEra::Sessions),
    }
}

/// Returns the answer for a client of this revision, whose content is kept as far as a session can
/// carry it.
pub fn stateless_answer(answer: &Message, method: Method) -> Bytes {
    match answer.kind {
        Kind::Error => error(answer, method),
        _ => result(answer, method, TargetEra::Stateless),
    }
}

/// Era of the client that gets an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetEra {
    Sessions,
    Stateless,
}

/// Converts the code for a missing resource, which differs in earlier revisions.
fn error(answer: &Message, method: Method) -> Bytes {
    let names_uri = || {
        answer
            .bytes(answer.fields.error_data)
            .is_some_and(|data| text_member(data, "uri").is_some())
    };
    match answer.fields.error_code {
        Some(code)
            if method == Method::ResourcesRead
                && error_code(answer) == Some(-32602)
                && names_uri() =>
        {
            Splice::new(&answer.frame).replace(code, b"-32002".as_slice()).finish()
        }
        _ => answer.frame.clone(),
    }
}

fn result(answer: &Message, method: Method, reader: TargetEra) -> Bytes {
    let Some(span) = answer.result else { return answer.frame.clone() };
    let text = span.of(&answer.frame);
    let mut splice = Splice::new(&answer.frame);
    if method == Method::ToolsCall
        && reader == TargetEra::Sessions
        && let Some(converted) = structured_as_text(text)
    {
        return splice.replace(span, converted).finish();
    }
    let fields = &answer.fields;
    let hinted = is_cacheable(method) && (fields.ttl_ms.is_some() || fields.cache_scope.is_some());
    if fields.result_type.is_none() && !hinted {
        return answer.frame.clone();
    }
    splice.retain_members(span, |key| is_kept(key, method)).finish()
}

fn is_kept(key: &str, method: Method) -> bool {
    match key {
        "resultType" => false,
        "ttlMs" | "cacheScope" => !is_cacheable(method),
        _ => true,
    }
}

/// Converts structured content that is not an object to text: earlier revisions have objects only.
fn structured_as_text(result: &[u8]) -> Option<Vec<u8>> {
    memchr::memmem::find(result, b"structuredContent")?;
    let tape = Tape::parse(result, &limits(result)).ok()?;
    let root = tape.root();
    let structured =
        root.get("structuredContent").filter(|value| value.kind() != ValueKind::Object)?;
    let shown = String::from_utf8_lossy(structured.raw()).into_owned();
    let content: Vec<TapeValue<'_>> =
        root.get("content").into_iter().flat_map(|content| content.elements()).collect();
    let has_text = content.iter().any(|block| {
        block.get("text").and_then(|text| text.as_str()).is_some_and(|text| text == shown)
    });
    let mut blocks: Vec<String> =
        content.iter().map(|block| String::from_utf8_lossy(block.raw()).into_owned()).collect();
    if !has_text {
        blocks.push(format!("{{\"type\":\"text\",\"text\":{}}}", quote(&shown)));
    }
    let mut members = vec![format!("\"content\":[{}]", blocks.join(","))];
    let others = root.members().filter(|member| {
        is_kept(&member.key, Method::ToolsCall)
            && !matches!(member.key.as_ref(), "content" | "structuredContent")
    });
    members.extend(others.map(|member| {
        format!("{}:{}", quote(&member.key), String::from_utf8_lossy(member.value.raw()))
    }));
    Some(format!("{{{}}}", members.join(",")).into_bytes())
}

/// Removes output schemas of `tools/list` that earlier revisions do not have. `None`: there are
/// none.
pub fn downgrade_tools_result(result: &[u8]) -> Option<Vec<u8>> {
    memchr::memmem::find(result, b"outputSchema")?;
    let tape = Tape::parse(result, &limits(result)).ok()?;
    let promises_other = |tool: &TapeValue<'_>| {
        let schema = tool.get("outputSchema");
        schema.is_some_and(|schema| {
            schema.get("type").and_then(|kind| kind.as_str()).as_deref() != Some("object")
        })
    };
    let tools: Vec<TapeValue<'_>> =
        tape.root().get("tools")?.elements().filter(promises_other).collect();
    if tools.is_empty() {
        return None;
    }
    let text = Bytes::copy_from_slice(result);
    let mut splice = Splice::new(&text);
    for tool in tools {
        splice.retain_members(tool.span(), |key| key != "outputSchema");
    }
    Some(splice.finish().to_vec())
}

/// Converts an input request of a server to a request of earlier revisions. `elicitation`: the id
/// for one that opens a URL, which this revision does not have.
pub fn request_from_input(id: &RequestId, request: &InputRequest, elicitation: &str) -> Bytes {
    let params = request.params.as_deref().map(|params| {
        let is_url = request.method == Method::ElicitationCreate
            && text_member(params, "mode").as_deref() == Some("url");
        let given = text_member(params, "elicitationId").is_some();
        let rest = params.trim_ascii().strip_prefix(b"{").filter(|_| is_url && !given);
        match rest {
            Some(rest) => {
                [format!("{{\"elicitationId\":{},", quote(elicitation)).as_bytes(), rest].concat()
            }
            None => params.to_vec(),
        }
    });
    handshake::request(id, request.method, params.as_deref())
}

/// Returns the id of the stream of notifications that a message came on.
pub fn subscription_id(message: &Message) -> Option<RequestId> {
    let meta = message.bytes(message.fields.meta)?;
    let document = Document::parse(meta, &limits(meta)).ok()?;
    let id = document.root().get(META_SUBSCRIPTION_ID)?;
    matches!(id.kind(), ValueKind::String | ValueKind::Number)
        .then(|| RequestId::from_raw(Bytes::copy_from_slice(id.raw())))
}

/// Returns a notification without the id of the stream it came on.
pub fn without_subscription_id(message: &Message) -> Bytes {
    match message.fields.meta {
        Some(meta) => {
            Splice::new(&message.frame).remove_member(meta, META_SUBSCRIPTION_ID).finish()
        }
        None => message.frame.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        Message::decode(Bytes::from(text.to_owned()), &Limits::default()).unwrap()
    }

    fn shown(result: &str, method: Method) -> String {
        let frame = downgrade_answer(
            &message(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)),
            method,
        );
        let text = String::from_utf8(frame.to_vec()).unwrap();
        text.strip_prefix(r#"{"jsonrpc":"2.0","id":1,"result":"#)
            .unwrap()
            .strip_suffix('}')
            .unwrap()
            .to_owned()
    }

    #[test]
    fn results_lose_members_unknown_to_earlier_revisions() {
        let read =
            r#"{"resultType":"complete","contents":[],"ttlMs":5,"cacheScope":"private","x":1}"#;
        assert_eq!(shown(read, Method::ResourcesRead), r#"{"contents":[],"x":1}"#);
        assert_eq!(
            shown(r#"{"resultType":"complete","content":[],"ttlMs":5}"#, Method::ToolsCall),
            r#"{"content":[],"ttlMs":5}"#
        );
        assert_eq!(
            shown(r#"{ "content": [] }"#, Method::ToolsCall),
            r#"{ "content": [] }"#,
            "untouched"
        );
    }

    #[test]
    fn structured_content_that_is_not_an_object_becomes_text() {
        let translated = shown(
            r#"{"resultType":"complete","content":[],"structuredContent":[1,2],"isError":false}"#,
            Method::ToolsCall,
        );
        assert_eq!(translated, r#"{"content":[{"type":"text","text":"[1,2]"}],"isError":false}"#);
        let twice = shown(
            r#"{"content":[{"type":"text","text":"7"}],"structuredContent":7}"#,
            Method::ToolsCall,
        );
        assert_eq!(twice, r#"{"content":[{"type":"text","text":"7"}]}"#);
        let object = r#"{"content":[],"structuredContent":{"a":1}}"#;
        assert_eq!(shown(object, Method::ToolsCall), object);
    }

    #[test]
    fn nb_res_01_a_missing_resource_has_its_old_code() {
        let error = |code: &str, data: &str, method| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"m","data":{data}}}}}"#
            );
            error_code(&message(
                std::str::from_utf8(&downgrade_answer(&message(&text), method)).unwrap(),
            ))
        };
        assert_eq!(error("-32602", r#"{"uri":"a:b"}"#, Method::ResourcesRead), Some(-32002));
        assert_eq!(
            error("-32602", "{}", Method::ResourcesRead),
            Some(-32602),
            "another parameter is meant"
        );
        assert_eq!(error("-32602", r#"{"uri":"a:b"}"#, Method::ToolsCall), Some(-32602));
        assert_eq!(error("-32002", r#"{"uri":"a:b"}"#, Method::ResourcesRead), Some(-32002));
    }

    #[test]
    fn client_capabilities_are_translated_to_the_new_revision() {
        let translated = upgrade_client_capabilities(
            br#"{"roots":{"listChanged":true},"sampling":{},"tasks":{"list":{}},"x":{}}"#,
        );
        let translated: serde_json::Value = serde_json::from_slice(&translated).unwrap();
        let expected = serde_json::json!({"roots": {}, "sampling": {}, "x": {}, "extensions": {EXTENSION_TASKS: {}}});
        assert_eq!(translated, expected);
    }

    #[test]
    fn input_requests_become_separate_requests() {
        let url = InputRequest {
            key: "k".into(),
            method: Method::ElicitationCreate,
            params: Some(Bytes::from_static(
                br#"{"mode":"url","url":"https://a.example","message":"m"}"#,
            )),
        };
        let id = RequestId::from_raw(Bytes::from_static(b"\"input-1\""));
        let request = message(std::str::from_utf8(&request_from_input(&id, &url, "e1")).unwrap());
        assert_eq!(request.text(request.fields.elicitation_id).as_deref(), Some("e1"));
        let roots = InputRequest { key: "r".into(), method: Method::RootsList, params: None };
        assert_eq!(
            request_from_input(&id, &roots, "e2"),
            br#"{"jsonrpc":"2.0","id":"input-1","method":"roots/list"}"#.as_slice()
        );
    }

    #[test]
    fn nb_sub_02_the_subscription_id_is_read_and_removed() {
        let text = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b","_meta":{"io.modelcontextprotocol/subscriptionId":7}}}"#;
        let notification = message(text);
        assert_eq!(subscription_id(&notification).and_then(|id| id.as_u64()), Some(7));
        let passed = message(std::str::from_utf8(&without_subscription_id(&notification)).unwrap());
        assert_eq!(
            (subscription_id(&passed), passed.text(passed.fields.uri).as_deref()),
            (None, Some("a:b"))
        );
    }

    #[test]
    fn output_schemas_that_are_not_objects_are_removed() {
        let tools = br#"{"tools":[{"name":"a","outputSchema":{"type":"array"}},{"name":"b","outputSchema":{"type":"object"}}]}"#;
        let kept = downgrade_tools_result(tools).unwrap();
        assert_eq!(
            kept,
            br#"{"tools":[{"name":"a"},{"name":"b","outputSchema":{"type":"object"}}]}"#
        );
        assert_eq!(downgrade_tools_result(&kept), None);
    }
}
