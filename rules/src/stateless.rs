//! Translation of requests of 2026-07-28 for a session, and of answers back (MCP 2026-07-28).
//!
//! A backend of an earlier revision never sees that its client is stateless. Data for the next hop
//! is removed from a request. An answer gets the members that the client's revision requires.

use std::collections::BTreeMap;

use aws_lc_rs::digest;
use bytes::Bytes;
use protocol::{
    envelope::{Kind, Message, OWN_META, check_body},
    error::{ErrorKind, Refusal},
    handshake,
    ids::RequestId,
    json::{self, Document, Tape, ValueKind},
    method::Method,
    splice::Splice,
    stateless::{
        HOP_META, MISSING_CLIENT_CAPABILITY,
        inputs::{INPUTS_MAX, InputRequest},
        is_stateless_error,
        results::{self, CacheHint},
        tool_headers,
    },
};

use super::{catalog::ListKind, tasks::RELATED_TASK};

/// Members of a request that refer to an earlier attempt.
const RETRY_MEMBERS: [&str; 3] = ["inputResponses", "requestState", "task"];

/// Returns the request in the form for a session, with another id.
pub fn to_session_request(message: &Message, id: &RequestId) -> Result<Message, Refusal> {
    let fields = &message.fields;
    let goes_on =
        fields.input_responses.is_some() || fields.request_state.is_some() || fields.task.is_some();
    let mut splice = Splice::new(&message.frame);
    if let Some(span) = message.id_span {
        splice.replace(span, id.raw());
    }
    if let Some(meta) = fields.meta {
        if !fields.meta_has_more {
            splice.replace(meta, &b"{}"[..]);
        } else {
            splice.retain_members(meta, |key| !HOP_META.contains(&key));
        }
    }
    if goes_on {
        let request = decoded(splice.finish())?;
        let params = request
            .params
            .ok_or_else(|| Refusal::new(ErrorKind::InvalidParams, "params is missing"))?;
        return decoded(
            Splice::new(&request.frame)
                .retain_members(params, |key| !RETRY_MEMBERS.contains(&key))
                .finish(),
        );
    }
    let mut request = message.clone();
    request.id = Some(id.clone());
    request.fields.clear_hop_meta();
    splice.finish_message(request).or_else(decoded)
}

fn decoded(frame: Bytes) -> Result<Message, Refusal> {
    let limits = json::Limits::with_bytes_max(frame.len());
    Message::decode(frame, &limits).map_err(|rejected| rejected.refusal)
}

/// Returns a digest of a request without its id, its `_meta` and its `RETRY_MEMBERS`.
pub fn request_digest(message: &Message) -> [u8; 32] {
    let params: Option<serde_json::Value> =
        message.bytes(message.params).and_then(|params| serde_json::from_slice(params).ok());
    let members: BTreeMap<String, serde_json::Value> = match params {
        Some(serde_json::Value::Object(members)) => members
            .into_iter()
            .filter(|(key, _)| key != "_meta" && !RETRY_MEMBERS.contains(&key.as_str()))
            .collect(),
        _ => BTreeMap::new(),
    };
    let text = serde_json::json!([message.method.name(), members]).to_string();
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
    out
}

/// An answer of a session in the form for the client.
#[derive(Debug)]
pub struct StatelessResponse {
    pub frame: Bytes,
    /// `error.code` for the client.
    pub code: Option<i64>,
}

/// Translates an answer for the client, with the client's id.
pub fn to_client_response(
    message: &Message,
    id: &RequestId,
    cache: Option<CacheHint>,
    server_info: &[u8],
) -> StatelessResponse {
    let mut splice = Splice::new(&message.frame);
    if let Some(span) = message.id_span {
        splice.replace(span, id.raw());
    }
    let mut code = None;
    if message.kind == Kind::Error {
        let received_code = error_code(message);
        let sent_code = stateless_code(received_code, message);
        if sent_code != received_code
            && let Some(span) = message.fields.error_code
        {
            splice.replace(span, sent_code.to_string().into_bytes());
        }
        code = Some(sent_code);
    } else {
        results::upgrade_result(&mut splice, message, cache, server_info);
    }
    StatelessResponse { frame: splice.finish(), code }
}

/// Returns the `error.code` of an error.
pub fn error_code(message: &Message) -> i64 {
    let text =
        message.bytes(message.fields.error_code).and_then(|text| std::str::from_utf8(text).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(-32603)
}

/// Translates a code of an earlier revision, or of a backend's own, into this revision (MCP
/// 2026-07-28, Basic: Error Codes). Codes from -32020 on have a meaning for every client. A backend
/// behind the broker can only send the one for a missing capability.
fn stateless_code(code: i64, error: &Message) -> i64 {
    match code {
        MISSING_CLIENT_CAPABILITY if names_capabilities(error) => code,
        -32002 => ErrorKind::InvalidParams.code(),
        -32042 => ErrorKind::Internal.code(),
        -32099..=-32020 => ErrorKind::Internal.code(),
        other => other,
    }
}

fn names_capabilities(error: &Message) -> bool {
    let Some(data) = error.bytes(error.fields.error_data) else { return false };
    let Ok(document) = Document::parse(data, &json::Limits::with_bytes_max(data.len())) else {
        return false;
    };
    document
        .root()
        .get("requiredCapabilities")
        .is_some_and(|required| required.kind() == ValueKind::Object)
}

/// Returns the HTTP status of an error answer with this code.
pub fn http_status(code: i64) -> u16 {
    match code {
        -32601 => 404,
        code if is_stateless_error(code) => 400,
        _ => 200,
    }
}

/// Returns the HTTP status of a refusal by the broker.
pub fn refusal_status(refusal: &Refusal) -> u16 {
    match http_status(refusal.kind.code()) {
        200 => refusal.kind.http_status(),
        status => status,
    }
}

/// Returns a refusal with the codes of this revision.
pub fn refusal_response(refusal: &Refusal, id: Option<&RequestId>, request_id: &str) -> Bytes {
    let frame = refusal.to_response(id, request_id);
    if refusal.kind != ErrorKind::ResourceNotFound {
        return frame;
    }
    let Ok(message) = decoded(frame.clone()) else { return frame };
    let Some(span) = message.fields.error_code else { return frame };
    Splice::new(&frame)
        .replace(span, ErrorKind::InvalidParams.code().to_string().into_bytes())
        .finish()
}

/// Translates a backend's question into an input request. Also returns the session's number of the
/// question, which the key contains.
pub fn input_request(question: &Message) -> Option<(u64, InputRequest)> {
    let number = question.id.as_ref()?.as_u64()?;
    let key = match question.method {
        Method::ElicitationCreate => format!("elicitation-{number}"),
        Method::SamplingCreateMessage => format!("sampling-{number}"),
        Method::RootsList => format!("roots-{number}"),
        _ => return None,
    };
    let params = question.params.map(|params| without_hop_members(params.of(&question.frame)));
    Some((number, InputRequest { key, method: question.method, params }))
}

/// Returns the URLs that an error requires the client to open (MCP 2025-11-25, Elicitation:
/// -32042). Empty if one of them is invalid: then the error is an ordinary one.
pub fn elicitations_required(error: &Message) -> Vec<InputRequest> {
    let Some(data) = error.bytes(error.fields.error_data) else { return Vec::new() };
    let Ok(document) = Document::parse(data, &json::Limits::with_bytes_max(data.len())) else {
        return Vec::new();
    };
    let Some(list) =
        document.root().get("elicitations").filter(|list| list.kind() == ValueKind::Array)
    else {
        return Vec::new();
    };
    if list.elements().any(|one| !opens_a_url(&one)) || list.elements().count() > INPUTS_MAX {
        return Vec::new();
    }
    let requests = list.elements().enumerate().map(|(at, one)| InputRequest {
        key: format!("elicitation-{}", at + 1),
        method: Method::ElicitationCreate,
        params: Some(without_hop_members(one.raw())),
    });
    requests.collect()
}

fn opens_a_url(request: &json::Value<'_>) -> bool {
    if check_body(request.raw(), &json::Limits::with_bytes_max(request.raw().len())).is_err() {
        return false; // its client could open another URL
    }
    let is_text =
        |key: &str| request.get(key).is_some_and(|value| value.kind() == ValueKind::String);
    let mode = request.get("mode").and_then(|mode| mode.as_str());
    request.kind() == ValueKind::Object
        && mode.as_deref() == Some("url")
        && ["url", "message", "elicitationId"].into_iter().all(is_text)
}

/// Returns the params of a question without members that have a meaning only in sessions, or only
/// between a backend and the broker.
fn without_hop_members(params: &[u8]) -> Bytes {
    let params = retained(params, |key| !matches!(key, "elicitationId" | "task"));
    let limits = json::Limits::with_bytes_max(params.len());
    let span = Document::parse(&params, &limits)
        .ok()
        .and_then(|document| document.root().get("_meta").map(|meta| meta.span()));
    let Some(span) = span else { return params };
    let meta = retained(span.of(&params), |key| {
        !matches!(key, "progressToken" | RELATED_TASK) && !key.starts_with(OWN_META)
    });
    match &meta[..] {
        [b'{', b'}'] => retained(&params, |key| key != "_meta"),
        _ => Splice::new(&params).replace(span, meta.to_vec()).finish(),
    }
}

fn retained(object: &[u8], is_kept: impl Fn(&str) -> bool) -> Bytes {
    let text = Bytes::copy_from_slice(object);
    let span = json::Span { start: 0, end: u32::try_from(text.len()).unwrap_or(u32::MAX) };
    Splice::new(&text).retain_members(span, is_kept).finish()
}

/// Returns whether this can be the answer to an input request of this method.
pub fn is_valid_answer(method: Method, answer: &[u8]) -> bool {
    let limits = json::Limits::with_bytes_max(answer.len());
    let Ok(document) = Document::parse(answer, &limits) else { return false };
    let root = document.root();
    let is = |key: &str, kind: ValueKind| root.get(key).is_some_and(|value| value.kind() == kind);
    match method {
        Method::ElicitationCreate => {
            match root.get("action").and_then(|action| action.as_str()).as_deref() {
                Some("accept") => {
                    root.get("content").is_none_or(|content| content.kind() == ValueKind::Object)
                }
                Some("decline" | "cancel") => true,
                _ => false,
            }
        }
        Method::SamplingCreateMessage => {
            is("role", ValueKind::String) && root.get("content").is_some()
        }
        Method::RootsList => is("roots", ValueKind::Array),
        _ => false,
    }
}

/// Returns a page of a list in the form of this revision. Tools lose their task support, and those
/// with invalid header annotations are left out.
pub fn list_result(
    kind: ListKind,
    page: &Bytes,
    cache: CacheHint,
    server_info: &[u8],
) -> Option<Bytes> {
    let listed = decoded(handshake::success(&RequestId::from_u64(0), &offered(kind, page))).ok()?;
    let mut splice = Splice::new(&listed.frame);
    results::upgrade_result(&mut splice, &listed, Some(cache), server_info);
    let complete = decoded(splice.finish()).ok()?;
    Some(complete.result?.slice(&complete.frame))
}

fn offered(kind: ListKind, page: &Bytes) -> Bytes {
    let limits = json::Limits::with_bytes_max(page.len());
    let Some(tape) = Tape::parse(page, &limits).ok().filter(|_| kind == ListKind::Tools) else {
        return page.clone();
    };
    let Some(tools) = tape.root().get(kind.member()) else { return page.clone() };
    let kept: Vec<Bytes> = tools
        .elements()
        .filter(|tool| {
            tool.get("inputSchema")
                .is_none_or(|schema| tool_headers::param_headers(schema.raw()).is_ok())
        })
        .map(|tool| match tool.get("execution") {
            Some(_) => retained(tool.raw(), |key| key != "execution"),
            None => Bytes::copy_from_slice(tool.raw()),
        })
        .collect();
    Splice::new(page).replace(tools.span(), [&b"["[..], &kept.join(&b','), b"]"].concat()).finish()
}

#[cfg(test)]
mod tests {
    use protocol::capabilities::ClientCapabilities;

    use super::*;
    use crate::limits::{LIST_ENTRY_VALUES_MAX, PAGE_ENTRIES};

    fn message(text: &str) -> Message {
        decoded(Bytes::from(text.to_owned())).unwrap()
    }

    #[test]
    fn a_forwarded_request_has_no_metadata_for_the_broker() {
        let text = r#"{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"t","arguments":{"a":1},"inputResponses":{"k":{}},
            "requestState":"s","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},
            "io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/logLevel":"info","traceparent":"00-1-2-01","progressToken":7}}}"#;
        let request = to_session_request(&message(text), &RequestId::from_u64(9)).unwrap();
        let sent: serde_json::Value = serde_json::from_slice(&request.frame).unwrap();
        let meta = serde_json::json!({"traceparent": "00-1-2-01", "progressToken": 7});
        assert_eq!(
            sent["params"],
            serde_json::json!({"name": "t", "arguments": {"a": 1}, "_meta": meta})
        );
        assert_eq!(sent["id"], 9);
    }

    #[test]
    fn a_retry_is_the_same_request() {
        let request = |params: &str| {
            message(&format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#
            ))
        };
        let first =
            request_digest(&request(r#"{"name":"t","arguments":{"a":1,"b":2},"_meta":{"x":1}}"#));
        let retry = request(
            r#"{"requestState":"s","inputResponses":{},"arguments":{"b":2,"a":1},"name":"t","_meta":{}}"#,
        );
        assert_eq!(request_digest(&retry), first);
        assert_ne!(request_digest(&request(r#"{"name":"t","arguments":{"a":1,"b":3}}"#)), first);
        assert_ne!(request_digest(&request(r#"{"name":"u","arguments":{"a":1,"b":2}}"#)), first);
    }

    #[test]
    fn n_err_01_br_04_error_codes_of_earlier_revisions_are_translated() {
        for (backend_code, client_code) in [
            (-32002, -32602),
            (-32042, -32603),
            (-32020, -32603),
            (-32022, -32603),
            (-32021, -32603),
            (-32099, -32603),
            (-32601, -32601),
            (-32000, -32000),
            (1, 1),
            (-32700, -32700),
        ] {
            let frame = Bytes::from(format!(
                r#"{{"jsonrpc":"2.0","id":9,"error":{{"code":{backend_code},"message":"m","data":{{"uri":"x:1"}}}}}}"#
            ));
            let answer = to_client_response(
                &decoded(frame).unwrap(),
                &RequestId::from_raw(Bytes::from_static(b"\"a\"")),
                None,
                b"{}",
            );
            let expected = format!(
                r#"{{"jsonrpc":"2.0","id":"a","error":{{"code":{client_code},"message":"m","data":{{"uri":"x:1"}}}}}}"#
            );
            assert_eq!(
                (String::from_utf8_lossy(&answer.frame).into_owned(), answer.code),
                (expected, Some(client_code))
            );
        }
    }

    #[test]
    fn n_mrtr_02_questions_keep_the_meta_of_their_backend() {
        let question = message(
            r#"{"jsonrpc":"2.0","id":4,"method":"elicitation/create","params":{"message":"m","_meta":{"progressToken":4,"io.modelcontextprotocol/related-task":{"taskId":"t"},"dev.mcp-broker/token":"x","example.org/own":[1.0]}}}"#,
        );
        let (_, request) = input_request(&question).unwrap();
        assert_eq!(request.params.unwrap(), r#"{"message":"m","_meta":{"example.org/own":[1.0]}}"#);
        let error = message(
            r#"{"jsonrpc":"2.0","id":4,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://x","message":"m","_meta":{"a":1,"progressToken":4}}]}}}"#,
        );
        assert_eq!(
            elicitations_required(&error)[0].params.as_deref(),
            Some(&br#"{"mode":"url","url":"https://x","message":"m","_meta":{"a":1}}"#[..])
        );
    }

    #[test]
    fn n_mrtr_02_questions_lose_members_of_sessions() {
        let question = message(
            r#"{"jsonrpc":"2.0","id":4,"method":"elicitation/create","params":{"mode":"url","elicitationId":"e","url":"https://x","message":"m","task":{},"_meta":{"progressToken":4}}}"#,
        );
        let (number, request) = input_request(&question).unwrap();
        assert_eq!((number, request.key.as_str()), (4, "elicitation-4"));
        assert_eq!(request.params.unwrap(), r#"{"mode":"url","url":"https://x","message":"m"}"#);
        let error = message(
            r#"{"jsonrpc":"2.0","id":4,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://x","message":"m"}]}}}"#,
        );
        assert_eq!(
            elicitations_required(&error)[0].params.as_deref(),
            Some(&br#"{"mode":"url","url":"https://x","message":"m"}"#[..])
        );
        let fine = r#"{"mode":"url","elicitationId":"e","url":"https://x","message":"m"}"#;
        let two_urls = r#"{"mode":"url","elicitationId":"e","url":"https://x","Url":"https://y","message":"m"}"#;
        let no_url = r#"{"mode":"url","elicitationId":"e","url":7,"message":"m"}"#;
        for junk in ["7", "{}", r#"{"mode":"form","message":"m"}"#, no_url, two_urls, "[]"] {
            for list in [format!("[{junk}]"), format!("[{fine},{junk}]"), junk.to_owned()] {
                let text = format!(
                    r#"{{"jsonrpc":"2.0","id":4,"error":{{"code":-32042,"message":"m","data":{{"elicitations":{list}}}}}}}"#
                );
                assert_eq!(elicitations_required(&message(&text)), [], "{list}");
            }
        }
    }

    #[test]
    fn n_mrtr_04_answers_must_have_the_form_of_their_question() {
        use Method::{ElicitationCreate, RootsList, SamplingCreateMessage};
        for (method, answer, fine) in [
            (ElicitationCreate, r#"{"action":"accept","content":{"a":1}}"#, true),
            (ElicitationCreate, r#"{"action":"decline"}"#, true),
            (ElicitationCreate, r#"{"action":"accept","content":[]}"#, false),
            (ElicitationCreate, r#"{"action":"maybe"}"#, false),
            (ElicitationCreate, "{}", false),
            (
                SamplingCreateMessage,
                r#"{"role":"assistant","content":{"type":"text","text":"x"},"model":"m"}"#,
                true,
            ),
            (SamplingCreateMessage, r#"{"role":"assistant"}"#, false),
            (RootsList, r#"{"roots":[]}"#, true),
            (RootsList, r#"{"roots":{}}"#, false),
        ] {
            assert_eq!(is_valid_answer(method, answer.as_bytes()), fine, "{answer}");
        }
    }

    #[test]
    fn n_task_06_n_hdr_03_tools_are_listed_in_the_form_of_this_revision() {
        let page = Bytes::from_static(
            br#"{"tools":[{"name":"a","execution":{"taskSupport":"optional"},"inputSchema":{}},{"name":"b","inputSchema":{"properties":{"p":{"type":"number","x-mcp-header":"P"}}}},{"name":"c","inputSchema":{"type":"object"}}],"nextCursor":"n"}"#,
        );
        let hint = CacheHint { ttl_ms: 5, scope: results::CacheScope::Private };
        let expected = r#"{"resultType":"complete","ttlMs":5,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{}},"tools":[{"name":"a","inputSchema":{}},{"name":"c","inputSchema":{"type":"object"}}],"nextCursor":"n"}"#;
        let listed = |kind, page: &Bytes| {
            let result: serde_json::Value =
                serde_json::from_slice(&list_result(kind, page, hint, b"{}").unwrap()).unwrap();
            result
        };
        assert_eq!(
            listed(ListKind::Tools, &page),
            serde_json::from_str::<serde_json::Value>(expected).unwrap()
        );
        let stale = Bytes::from_static(br#"{"prompts":[],"_meta":{"dev.mcp-broker/stale":["b"]}}"#);
        let meta = serde_json::json!({"dev.mcp-broker/stale": ["b"], "io.modelcontextprotocol/serverInfo": {}});
        assert_eq!(listed(ListKind::Prompts, &stale)["_meta"], meta);
    }

    #[test]
    fn a_page_of_the_largest_entries_is_listed() {
        let examples = vec!["0"; LIST_ENTRY_VALUES_MAX - 4].join(",");
        let entry = format!(r#"{{"name":"a","inputSchema":{{}},"examples":[{examples}]}}"#);
        let entries = vec![entry.as_str(); PAGE_ENTRIES].join(",");
        let page = Bytes::from(format!(r#"{{"tools":[{entries}],"nextCursor":"n"}}"#));
        let listed = list_result(ListKind::Tools, &page, CacheHint::NONE, b"{}").unwrap();
        assert!(listed.len() > page.len(), "it has every entry");
    }

    #[test]
    fn links_are_shared_by_answerable_questions() {
        let parse = |text: &str| ClientCapabilities::parse(text.as_bytes()).unwrap().downgraded();
        let one = parse(
            r#"{"sampling":{"tools":{}},"roots":{"listChanged":true},"experimental":{"x":{}}}"#,
        );
        let other = parse(r#"{ "roots": {}, "sampling": {"tools": {}} }"#);
        assert_eq!((one.fingerprint(), one.roots_list_changed), (other.fingerprint(), false));
        assert_eq!(parse("{}").raw(), b"{}");
        assert!(
            parse(r#"{"elicitation":{}}"#).elicitation_form
                && !parse(r#"{"elicitation":{"url":{}}}"#).elicitation_form
        );
    }
}
