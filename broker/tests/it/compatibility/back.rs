//! A backend that strictly follows one revision, with the same tools in each. Their messages are in
//! their arguments.
//!
//! | tool | does | |---|---| | `say` | answers with the result whose text is `result` | | `fail` |
//! answers with the error whose text is `error` | | `ask` | sends `method` with `params` to the
//! client, and returns the outcome | | `talk` | sends `notifications` first, with its own progress
//! token where they have one | | `hang` | never answers | | `long` | sends `notifications`, and
//! answers when the gate of its `mark` opens | | `opened` | requests that a URL be opened, and
//! reports that it was (of earlier revisions) | | `withdraw` | sends a request to the client, and
//! cancels it (of earlier revisions) | | `job` | becomes a task (of 2026-07-28) |

use std::{collections::HashMap, sync::LazyLock};

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{
    BackendCall, FakeBackend, Gate, RecordedRequest, Reply, StatelessBackend, StatelessCall,
    StatelessReply, eventually,
};

use super::{Of, REVISIONS, features};

/// Returns the gate that the test opens when the call with this mark may end.
pub(super) fn gate(mark: &str) -> Gate {
    static GATES: LazyLock<Mutex<HashMap<String, Gate>>> = LazyLock::new(Mutex::default);
    GATES.lock().entry(mark.to_owned()).or_default().clone()
}

pub(super) enum Back {
    Legacy(FakeBackend),
    Modern(StatelessBackend),
}

/// Calls a method of the backend of either era.
macro_rules! either {
    ($self:expr, $backend:ident => $what:expr) => {
        match $self {
            Back::Legacy($backend) => $what,
            Back::Modern($backend) => $what,
        }
    };
}

/// Error message of a backend for an unknown tool or prompt.
pub(super) const UNKNOWN: &str = "no such thing here";
const INSTRUCTIONS: &str = "be modern";

impl Back {
    pub(super) async fn start(of: Of, pipe: bool) -> Self {
        let back = match (REVISIONS[of] == super::STATELESS, pipe) {
            (true, true) => Self::Modern(StatelessBackend::pipe().await),
            (true, false) => Self::Modern(StatelessBackend::http().await),
            (false, true) => Self::Legacy(FakeBackend::start().await.behind_lines().await),
            (false, false) => Self::Legacy(FakeBackend::start().await),
        };
        match &back {
            Self::Legacy(backend) => legacy(backend, of),
            Self::Modern(backend) => modern(backend),
        }
        for member in ["resources", "resourceTemplates", "prompts"] {
            back.list(member, features::entries(member, of));
        }
        either!(&back, backend => {
            backend.page_size(40);
        });
        back.add_tools(features::entries("tools", of));
        back
    }

    pub(super) fn spec(&self) -> Value {
        either!(self, backend => backend.spec())
    }

    pub(super) fn list(&self, member: &'static str, items: Vec<Value>) {
        either!(self, backend => { backend.list(member, items); });
    }

    /// Adds entries to its own tools.
    fn add_tools(&self, entries: Vec<Value>) {
        let mut tools: Vec<Value> = ["say", "fail", "ask", "talk", "hang", "long", "opened"]
            .map(testkit::backend::tool)
            .into();
        tools.extend(entries);
        self.list("tools", tools);
    }

    /// Adds an entry to a list, and announces that the list changed.
    pub(super) async fn add(&self, member: &'static str, of: Of, entry: Value) {
        let mut entries = features::entries(member, of);
        entries.push(entry);
        match member {
            "tools" => self.add_tools(entries),
            _ => self.list(member, entries),
        }
        match self {
            Self::Legacy(backend) => {
                backend.notify(&format!("notifications/{member}/list_changed"), json!({})).await;
            }
            Self::Modern(backend) => {
                backend.list_changed(member).await;
            }
        }
    }

    /// Waits until a client listens to a resource, and announces that it changed.
    pub(super) async fn update_once_listened_to(&self, uri: &str) {
        match self {
            Self::Legacy(backend) => {
                let wants = |seen: &RecordedRequest| {
                    seen.is("resources/subscribe") && seen.message["params"]["uri"] == uri
                };
                let seen = backend.wait_for("the subscription", wants).await;
                let session = seen.header("mcp-session-id").expect("it has a session").to_owned();
                let update = json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}});
                // The client's stream may be opened after its first request.
                eventually("a stream of the session", || async {
                    let streams = backend.push_to(&session, update.clone()).await;
                    if streams == 0 { Err("none") } else { Ok(()) }
                })
                .await;
            }
            Self::Modern(backend) => {
                eventually("a listener to the resource", || async {
                    if backend.updated(uri).await == 0 { Err("none") } else { Ok(()) }
                })
                .await;
            }
        }
    }

    pub(super) async fn wait_for(
        &self,
        what: &str,
        wanted: impl Fn(&RecordedRequest) -> bool,
    ) -> RecordedRequest {
        either!(self, backend => backend.wait_for(what, wanted).await)
    }

    pub(super) fn seen_of(&self, method: &str) -> Vec<RecordedRequest> {
        either!(self, backend => backend.recorded_of(method))
    }
}

fn legacy(backend: &FakeBackend, of: Of) {
    backend.version(REVISIONS[of]).sessions();
    let mut capabilities = json!({
        "tools": {"listChanged": true}, "prompts": {"listChanged": true}, "logging": {}, "completions": {},
        "resources": {"listChanged": true, "subscribe": true},
    });
    if REVISIONS[of] < "2025-03-26" {
        capabilities.as_object_mut().expect("an object").remove("completions");
    }
    backend.capabilities(capabilities);
    backend.server_info(features::server_info(of), Some(INSTRUCTIONS));
    backend.tool("say", |call| async move { Reply::ResultText(text(call.arguments(), "result")) });
    backend.tool("fail", |call| async move {
        Reply::Message(format!(
            r#"{{"jsonrpc":"2.0","id":{},"error":{}}}"#,
            call.id(),
            text(call.arguments(), "error")
        ))
    });
    backend.tool("ask", |call| async move { legacy_question(&call).await });
    backend.tool("talk", |call| async move {
        let token = call.progress_token().clone();
        for (method, params) in notifications(call.arguments(), &token) {
            call.notify(&method, params).await;
        }
        Reply::text("done")
    });
    backend.tool("hang", |call| async move {
        call.client_disconnected().await;
        Reply::Hang
    });
    backend.tool("long", |call| async move {
        let token = call.progress_token().clone();
        for (method, params) in notifications(call.arguments(), &token) {
            call.notify(&method, params).await;
        }
        gate(&text(call.arguments(), "mark")).passed().await;
        Reply::text("done")
    });
    backend.tool("opened", |call| async move {
        let answer = call.request("elicitation/create", call.arguments()["params"].clone()).await;
        call.notify(
            "notifications/elicitation/complete",
            json!({"elicitationId": call.arguments()["params"]["elicitationId"]}),
        )
        .await;
        Reply::text(&answer["result"].to_string())
    });
    backend.tool("withdraw", |call| async move {
        let (id, _answer) =
            call.start_question("sampling/createMessage", features::sampling()).await;
        call.notify("notifications/cancelled", json!({"requestId": id})).await;
        Reply::text("without it")
    });
    backend.tool("none", |_| async { Reply::error(-32602, UNKNOWN) });
    backend.on("prompts/get", |call| async move {
        match call.params()["arguments"]["result"].as_str() {
            Some(result) => Reply::ResultText(result.to_owned()),
            None if call.params()["name"] != "p" => Reply::error(-32602, UNKNOWN),
            None => Reply::Result(features::prompt(call.params())),
        }
    });
    backend.on("resources/read", |call| async move {
        match features::contents(call.params()["uri"].as_str().unwrap_or_default()) {
            Some(result) => Reply::Result(result),
            None => Reply::Error(json!({"code": -32002, "message": "it is not there", "data": {"uri": call.params()["uri"]}})),
        }
    });
    backend.on("completion/complete", |call| async move {
        if call.params()["argument"]["value"] == "ask" {
            let answers = [
                call.request("roots/list", json!({})).await["error"]["code"].to_string(),
                call.request("sampling/createMessage", features::sampling()).await["error"]["code"]
                    .to_string(),
            ];
            return Reply::Result(json!({"completion": {"values": answers}}));
        }
        Reply::Result(features::completion(call.params()))
    });
}

/// Returns a text among the arguments.
fn text(arguments: &Value, name: &str) -> String {
    arguments[name].as_str().unwrap_or_else(|| panic!("{arguments} has no {name}")).to_owned()
}

async fn legacy_question(call: &BackendCall) -> Reply {
    let mut answer =
        call.request(&text(call.arguments(), "method"), call.arguments()["params"].clone()).await;
    let answer = answer.as_object_mut().expect("a response");
    answer.retain(|key, _| key == "result" || key == "error");
    Reply::text(&json!(answer).to_string())
}

fn notifications(arguments: &Value, token: &Value) -> Vec<(String, Value)> {
    let all = arguments["notifications"].as_array().cloned().unwrap_or_default();
    let one = |mut notification: Value| {
        let mut params = notification["params"].take();
        if params.get("progressToken").is_some() {
            params["progressToken"] = token.clone();
        }
        (notification["method"].as_str().unwrap_or_default().to_owned(), params)
    };
    all.into_iter().map(one).collect()
}

fn modern(backend: &StatelessBackend) {
    backend.on("server/discover", |_| async {
        let capabilities = json!({
            "tools": {"listChanged": true}, "prompts": {"listChanged": true}, "logging": {}, "completions": {},
            "resources": {"listChanged": true, "subscribe": true}, "extensions": {"io.modelcontextprotocol/tasks": {}},
        });
        let info = json!({"io.modelcontextprotocol/serverInfo": features::server_info(REVISIONS.len() - 1)});
        StatelessReply::Result(json!({
            "supportedVersions": [super::STATELESS], "capabilities": capabilities, "instructions": INSTRUCTIONS,
            "ttlMs": 0, "cacheScope": "private", "_meta": info,
        }))
    });
    backend.tool("say", |call| async move {
        StatelessReply::ResultText(typed(&text(call.arguments(), "result")))
    });
    backend.tool("fail", |call| async move {
        let error = text(call.arguments(), "error");
        let code = serde_json::from_str::<Value>(&error).expect("an error")["code"].as_i64();
        let status = if matches!(code, Some(-32602 | -32021)) { 400 } else { 200 };
        StatelessReply::ErrorText(status, error)
    });
    backend.tool("ask", |call| async move {
        let (method, params) =
            (text(call.arguments(), "method"), call.arguments()["params"].clone());
        answered(&call, &method, &params, |answer| {
            StatelessReply::text(&json!({"result": answer}).to_string())
        })
    });
    backend.tool("talk", |call| async move {
        for (method, params) in notifications(call.arguments(), call.meta("progressToken")) {
            let level = params["level"].as_str().map(severity);
            let wanted = call.meta("io.modelcontextprotocol/logLevel").as_str().map(severity);
            if level.is_none() || wanted.is_some() && level >= wanted {
                call.notify(&method, params).await;
            }
        }
        StatelessReply::text("done")
    });
    backend.tool("hang", |_| async { StatelessReply::Hang });
    backend.tool("long", |call| async move {
        for (method, params) in notifications(call.arguments(), call.meta("progressToken")) {
            call.notify(&method, params).await;
        }
        gate(&text(call.arguments(), "mark")).passed().await;
        StatelessReply::text("done")
    });
    backend.tool("job", |_| async {
        let mut task = task("working");
        task["resultType"] = json!("task");
        StatelessReply::Exactly(task)
    });
    backend.on("tasks/get", |_| async {
        let mut task = task("completed");
        task["result"] =
            json!({"resultType": "complete", "content": [{"type": "text", "text": "done"}]});
        StatelessReply::Result(task)
    });
    backend.tool("none", |_| async { StatelessReply::error(-32602, UNKNOWN) });
    backend.on("prompts/get", |call| async move {
        match call.params()["arguments"]["result"].as_str() {
            Some(result) => StatelessReply::ResultText(typed(result)),
            None if call.params()["name"] != "p" => StatelessReply::error(-32602, UNKNOWN),
            None => StatelessReply::Result(features::prompt(call.params())),
        }
    });
    backend.on("resources/read", |call| async move {
        let uri = call.params()["uri"].as_str().unwrap_or_default();
        match features::contents(uri) {
            Some(mut result) => {
                (result["ttlMs"], result["cacheScope"]) = (json!(0), json!("private"));
                StatelessReply::Result(result)
            }
            None => StatelessReply::Error(
                400,
                json!({"code": -32602, "message": "it is not there", "data": {"uri": uri}}),
            ),
        }
    });
    backend.on("completion/complete", |call| async move {
        if call.params()["argument"]["value"] == "ask" {
            return StatelessReply::needs(json!({"q": {"method": "roots/list"}}), None);
        }
        StatelessReply::Result(features::completion(call.params()))
    });
}

/// Returns an `input_required` result first, as this revision requires.
fn answered(
    call: &StatelessCall,
    method: &str,
    params: &Value,
    then: impl FnOnce(&Value) -> StatelessReply,
) -> StatelessReply {
    match call.input("q") {
        Value::Null if method == "roots/list" => {
            StatelessReply::needs(json!({"q": {"method": method}}), Some("s"))
        }
        Value::Null => {
            StatelessReply::needs(json!({"q": {"method": method, "params": params}}), Some("s"))
        }
        answer => then(answer),
    }
}

/// Adds `resultType` to a result, which this revision requires.
fn typed(result: &str) -> String {
    if result.contains("\"resultType\"") {
        return result.to_owned();
    }
    format!("{{\"resultType\":\"complete\",{}", result.strip_prefix('{').expect("an object"))
}

fn severity(level: &str) -> usize {
    const LEVELS: [&str; 8] =
        ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
    LEVELS.iter().position(|known| *known == level).expect("a level")
}

fn task(status: &str) -> Value {
    json!({"taskId": "t-1", "status": status, "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:01Z",
        "ttlMs": 60000, "pollIntervalMs": 50})
}
