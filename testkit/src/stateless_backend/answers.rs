//! Answers of a stateless backend. Checks that MCP 2026-07-28 requires of each request come first,
//! then handlers, then the built-in answers.

use std::sync::Arc;

use http::HeaderMap;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    CLIENT_CAPABILITIES, ListenStream, PROTOCOL_VERSION, ResponsePart, SUBSCRIPTION_ID,
    StatelessBackend, StatelessCall, StatelessReply, StatelessShared, StatelessState, VERSION,
};
use crate::stateless_request::request_headers;

impl StatelessBackend {
    /// Accepts requests with any headers.
    pub fn lenient(&self) -> &Self {
        self.shared.lock().strict = false;
        self
    }

    /// Makes it answer `initialize` and refuse `notifications/initialized`.
    pub fn breaks_off_sessions(&self) -> &Self {
        self.shared.lock().breaks_off_sessions = true;
        self
    }

    /// Gives a method its built-in answer again.
    pub fn built_in(&self, method: &str) -> &Self {
        self.shared.lock().handlers.remove(method);
        self
    }
}

/// Answers one request. `headers`: those of a request over HTTP.
pub(super) async fn answer(
    shared: Arc<StatelessShared>,
    message: Value,
    headers: Option<HeaderMap>,
    out: mpsc::Sender<ResponsePart>,
    cancelled: CancellationToken,
) {
    let id = message["id"].clone();
    let call = StatelessCall {
        message,
        headers: headers.clone().unwrap_or_default(),
        out: out.clone(),
        cancelled,
    };
    let refusal = refused(&shared.lock(), &call, headers.as_ref());
    let reply = match refusal {
        Some(refusal) => Some(refusal),
        None if call.message["method"] == "subscriptions/listen" => listen(&shared, &call).await,
        None => Some(handled(&shared, &call).await),
    };
    let (status, body) = match reply {
        None | Some(StatelessReply::End) => return,
        Some(StatelessReply::Hang) => {
            call.client_disconnected().await;
            return given_up(&shared, &id);
        }
        Some(StatelessReply::Refused(status)) => {
            let _gone = out.send(ResponsePart::Answer(status, "refused".to_owned())).await;
            return;
        }
        Some(StatelessReply::Error(status, error)) => {
            (status, response(&id, "error", &error.to_string()))
        }
        Some(StatelessReply::ErrorWithoutId(status, error)) => {
            (status, response(&Value::Null, "error", &error.to_string()))
        }
        Some(StatelessReply::ErrorText(status, error)) => (status, response(&id, "error", &error)),
        Some(StatelessReply::Exactly(result)) => {
            (200, response(&id, "result", &result.to_string()))
        }
        Some(StatelessReply::ResultText(result)) => (200, response(&id, "result", &result)),
        Some(StatelessReply::Result(mut result)) => {
            if result.get("resultType").is_none() && !shared.lock().legacy {
                result["resultType"] = json!("complete");
            }
            (200, response(&id, "result", &result.to_string()))
        }
    };
    shared.judge.record_peer_message(None, body.as_bytes());
    if out.send(ResponsePart::Answer(status, body)).await.is_err() || call.cancelled.is_cancelled()
    {
        given_up(&shared, &id);
    }
}

fn response(id: &Value, member: &str, text: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"{member}":{text}}}"#)
}

fn given_up(shared: &StatelessShared, id: &Value) {
    shared.lock().given_up.push(id.clone());
    shared.touch();
}

async fn handled(shared: &Arc<StatelessShared>, call: &StatelessCall) -> StatelessReply {
    let handler = {
        let state = shared.lock();
        let method = call.message["method"].as_str().unwrap_or_default();
        let tool = call.params()["name"]
            .as_str()
            .filter(|_| method == "tools/call")
            .and_then(|name| state.tools.get(name));
        state.handlers.get(method).or(tool).cloned()
    };
    match handler {
        Some(handler) => handler(call.clone()).await,
        None => built_in(&shared.lock(), call),
    }
}

/// Returns the refusal of a request without what the revision requires (MCP 2026-07-28, Basic
/// Protocol and Streamable HTTP).
fn refused(
    state: &StatelessState,
    call: &StatelessCall,
    headers: Option<&HeaderMap>,
) -> Option<StatelessReply> {
    let version = call.meta(PROTOCOL_VERSION).as_str();
    let unsupported = |supported: &str| {
        let data = json!({"supported": [supported], "requested": version.unwrap_or("")});
        Some(StatelessReply::Error(
            400,
            json!({"code": -32022, "message": "unsupported version", "data": data}),
        ))
    };
    if state.legacy {
        return version.and_then(|_| unsupported("2025-11-25"));
    }
    if call.message["method"] == "initialize" {
        return match state.breaks_off_sessions {
            true => Some(StatelessReply::Exactly(json!({
                "protocolVersion": "2025-11-25", "capabilities": {},
                "serverInfo": {"name": "stateless", "version": "1"}
            }))),
            false => unsupported(VERSION),
        };
    }
    match version {
        // MCP 2026-07-28, Streamable HTTP: the header names a revision that is not supported.
        None if headers.is_some_and(names_other_version) => return unsupported(VERSION),
        None => return Some(StatelessReply::error(-32602, "_meta lacks the protocol version")),
        Some(VERSION) => {}
        Some(_) => return unsupported(VERSION),
    }
    if !call.meta(CLIENT_CAPABILITIES).is_object() {
        return Some(StatelessReply::error(-32602, "_meta lacks the capabilities"));
    }
    let headers = headers.filter(|_| state.strict)?;
    let method = call.message["method"].as_str().unwrap_or_default();
    let expected = request_headers(method, call.params());
    let value_of = |wanted: &str| expected.iter().find(|(name, _)| *name == wanted);
    let differs = ["mcp-protocol-version", "mcp-method", "mcp-name"]
        .into_iter()
        .find(|name| decoded(headers, name).as_deref() != value_of(name).map(|(_, value)| *value));
    differs.map(|name| StatelessReply::error(-32020, &format!("header {name} and the body differ")))
}

/// Returns whether the headers of a request name another revision.
pub(super) fn names_other_version(headers: &HeaderMap) -> bool {
    headers.get("mcp-protocol-version").is_some_and(|named| named != VERSION)
}

/// Returns a header's value, decoded from base64 if it is encoded.
pub(super) fn decoded(headers: &HeaderMap, name: &str) -> Option<String> {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let value = headers.get(name)?.to_str().ok()?;
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(text) => String::from_utf8(STANDARD.decode(text).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

/// Opens a stream of notifications, which has no answer until it ends.
async fn listen(shared: &Arc<StatelessShared>, call: &StatelessCall) -> Option<StatelessReply> {
    let handler = shared.lock().handlers.get("subscriptions/listen").cloned();
    if let Some(handler) = handler {
        return Some(handler(call.clone()).await);
    }
    let id = call.message["id"].clone();
    let mut filter = call.params()["notifications"].clone();
    let stop = CancellationToken::new();
    {
        let state = shared.lock();
        if let Some(uris) = filter["resourceSubscriptions"].as_array_mut() {
            uris.retain(|uri| !state.refused_uris.iter().any(|refused| uri == refused));
        }
    }
    call.notify(
        "notifications/subscriptions/acknowledged",
        json!({"notifications": filter, "_meta": {SUBSCRIPTION_ID: id}}),
    )
    .await;
    let one = ListenStream { id: id.clone(), filter, out: call.out.clone(), stop: stop.clone() };
    shared.lock().listens.push(one);
    shared.touch();
    tokio::select! { () = call.client_disconnected() => {}, () = stop.cancelled() => {} }
    shared.lock().listens.retain(|one| one.id != id);
    shared.touch();
    None
}

fn built_in(state: &StatelessState, call: &StatelessCall) -> StatelessReply {
    let method = call.message["method"].as_str().unwrap_or_default();
    match method {
        "initialize" => {
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}});
            StatelessReply::Result(result)
        }
        "ping" => StatelessReply::Result(json!({})),
        "server/discover" => {
            let info =
                json!({"io.modelcontextprotocol/serverInfo": {"name": "modern", "version": "1"}});
            cacheable(
                state,
                json!({"supportedVersions": [VERSION], "capabilities": state.capabilities, "instructions": "be modern", "_meta": info}),
            )
        }
        "tools/list" => list(state, "tools", call),
        "prompts/list" => list(state, "prompts", call),
        "resources/list" => list(state, "resources", call),
        "resources/templates/list" => list(state, "resourceTemplates", call),
        "tools/call" => StatelessReply::text(&call.arguments().to_string()),
        "prompts/get" => {
            let text = call.arguments().to_string();
            StatelessReply::Result(
                json!({"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}),
            )
        }
        "resources/read" => cacheable(
            state,
            json!({"contents": [{"uri": call.params()["uri"], "text": "content"}]}),
        ),
        "completion/complete" => StatelessReply::Result(json!({"completion": {"values": ["one"]}})),
        other => StatelessReply::error(-32601, &format!("this server has no {other}")),
    }
}

fn list(state: &StatelessState, member: &str, call: &StatelessCall) -> StatelessReply {
    let items = state.lists.get(member).map(Vec::as_slice).unwrap_or_default();
    let start = match call.params()["cursor"].as_str() {
        None => 0,
        Some(cursor) => {
            match cursor.strip_prefix("page:").and_then(|at| at.parse::<usize>().ok()) {
                Some(start) => start,
                None => return StatelessReply::error(-32602, "unknown cursor"),
            }
        }
    };
    let end = start.saturating_add(state.page_size).min(items.len());
    let mut result = json!({ member: items.get(start..end).unwrap_or_default() });
    if end < items.len() {
        result["nextCursor"] = json!(format!("page:{end}"));
    }
    cacheable(state, result)
}

fn cacheable(state: &StatelessState, mut result: Value) -> StatelessReply {
    if !state.legacy {
        (result["ttlMs"], result["cacheScope"]) = (json!(state.ttl_ms), json!("private"));
    }
    StatelessReply::Result(result)
}
