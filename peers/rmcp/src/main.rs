//! The client of the Rust SDK in each of its three modes. It must see the same
//! `servers/both_eras.py` through the broker as directly. The arguments and the steps are those of
//! `clients/eras.py`.

#![expect(deprecated, reason = "what the next revision removes is what is checked here")]

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rmcp::{
    ClientHandler, ClientLifecycleMode, ClientServiceExt, ErrorData, RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, ClientConfig, ClientRequest, CreateMessageRequestParams, CreateMessageResult,
        ElicitRequestParams, ElicitResult, ElicitationAction, GetPromptRequestParams, Implementation, ListRootsResult,
        ProgressNotificationParam, ProtocolVersion, ReadResourceRequestParams, ResourceUpdatedNotificationParam, Root,
        SamplingMessage, ServerNotification, SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams,
    },
    service::{NotificationContext, PeerRequestOptions, RequestContext, RunningService, ServiceError},
    transport::StreamableHttpClientTransport,
};
use serde_json::{Map, Value, json};
use tokio::time::{sleep, timeout};

const NOTE: &str = "note://one";
const STEP_MAX: Duration = Duration::from_secs(30);

/// Requests that the client received, and its answers to them.
#[derive(Clone, Default)]
struct Peer {
    declares: bool,
    asked: Arc<Mutex<Vec<String>>>,
    progress: Arc<Mutex<Vec<Value>>>,
    updated: Arc<Mutex<Vec<String>>>,
}

impl ClientHandler for Peer {
    async fn create_elicitation(&self, request: ElicitRequestParams, _: RequestContext<RoleClient>) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, .. } = request else {
            return Err(ErrorData::invalid_params("a form is expected", None));
        };
        self.asked.lock().unwrap().push(format!("elicitation {message}"));
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({"name": "Ada"})))
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let asked = serde_json::to_value(&params).unwrap();
        let (text, tokens) = (asked["messages"][0]["content"]["text"].as_str().unwrap_or_default(), &asked["maxTokens"]);
        self.asked.lock().unwrap().push(format!("sampling {text} {tokens}"));
        Ok(CreateMessageResult::new(SamplingMessage::assistant_text("word"), "peer".to_owned()))
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.asked.lock().unwrap().push("roots".to_owned());
        Ok(ListRootsResult::new(vec![Root::new("file:///srv/project").with_name("project")]))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.progress.lock().unwrap().push(json!([params.progress, params.total]));
    }

    async fn on_resource_updated(&self, params: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        self.updated.lock().unwrap().push(params.uri);
    }

    fn get_info(&self) -> ClientConfig {
        let declared = if self.declares { json!({"sampling": {}, "roots": {}, "elicitation": {"form": {}}}) } else { json!({}) };
        ClientConfig::new(serde_json::from_value(declared).unwrap(), Implementation::new("peer", "1"))
    }
}

type Client = RunningService<RoleClient, Peer>;

async fn connect(url: &str, mode: &str, declares: bool) -> Result<(Client, Peer)> {
    let modern = vec![ProtocolVersion::V_2026_07_28];
    let lifecycle = match mode {
        "initialize" => ClientLifecycleMode::Initialize,
        "discover" => ClientLifecycleMode::Discover { preferred_versions: modern },
        "auto" => ClientLifecycleMode::Auto { preferred_versions: modern, legacy_version: None },
        other => bail!("{other} is not a mode"),
    };
    let peer = Peer { declares, ..Peer::default() };
    let transport = StreamableHttpClientTransport::from_uri(url.to_owned());
    let client = peer.clone().serve_with_lifecycle(transport, lifecycle).await.with_context(|| format!("{mode} to {url}"))?;
    Ok((client, peer))
}

fn revision(client: &Client) -> Option<ProtocolVersion> {
    Some(client.peer_info()?.protocol_version.clone())
}

fn tool(name: &str, arguments: Value) -> CallToolRequestParams {
    let arguments: Map<String, Value> = serde_json::from_value(arguments).unwrap();
    CallToolRequestParams::new(name.to_owned()).with_arguments(arguments)
}

async fn call(client: &Client, name: &str, arguments: Value) -> Result<Value, ServiceError> {
    let result = serde_json::to_value(client.call_tool(tool(name, arguments)).await?).unwrap();
    Ok(json!({
        "content": result["content"],
        "structuredContent": result["structuredContent"],
        "isError": result["isError"] == true,
    }))
}

/// Returns these members of listed items, in the order of the first member.
fn by_name(listed: impl serde::Serialize, members: &[&str]) -> Value {
    let listed: Vec<Value> = serde_json::from_value(serde_json::to_value(listed).unwrap()).unwrap();
    let kept = |one: &Value| members.iter().map(|member| one[*member].clone()).collect::<Vec<_>>();
    let mut all: Vec<Vec<Value>> = listed.iter().map(kept).collect();
    all.sort_by_key(|one| one[0].to_string());
    json!(all)
}

/// Returns the code of an error, which for a missing resource differs between the eras. Null if
/// there was no error.
fn refused(outcome: Result<Value, ServiceError>) -> Value {
    match outcome {
        Ok(result) if result["isError"] == true => json!(-32602),
        Ok(_) => Value::Null,
        Err(ServiceError::McpError(error)) if error.code.0 == -32002 => json!(-32602),
        Err(ServiceError::McpError(error)) => json!(error.code.0),
        Err(other) => json!(other.to_string()),
    }
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(10);
    while !holds() {
        if Instant::now() > until {
            bail!("{what} did not come");
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

async fn read(client: &Client, uri: &str) -> Result<Value, ServiceError> {
    let result = client.read_resource(ReadResourceRequestParams::new(uri)).await?;
    Ok(serde_json::to_value(result).unwrap()["contents"].clone())
}

const STEPS: [&str; 9] = ["lists", "call", "progress", "input", "failing tool", "prompt", "errors", "resources", "cancel"];

async fn step(name: &str, client: &Client, peer: &Peer, run: &str) -> Result<Value> {
    Ok(match name {
        "lists" => json!({
            "tools": by_name(client.list_all_tools().await?, &["name", "description", "inputSchema", "outputSchema"]),
            "prompts": by_name(client.list_all_prompts().await?, &["name", "description", "arguments"]),
            "resources": by_name(client.list_all_resources().await?, &["uri", "name", "mimeType"]),
            "templates": by_name(client.list_all_resource_templates().await?, &["uriTemplate", "name"]),
        }),
        "call" => call(client, "echo", json!({"message": "quotes \" \\ \u{1} ümläut 漢字 😀 \u{2028}"})).await?,
        "progress" => {
            peer.progress.lock().unwrap().clear();
            let result = call(client, "steps", json!({"run": run, "count": 3, "pause": 0.05})).await?;
            eventually("the last progress", || peer.progress.lock().unwrap().len() >= 3).await?;
            json!([result, *peer.progress.lock().unwrap()])
        }
        "input" => {
            peer.asked.lock().unwrap().clear();
            let result = call(client, "ask", json!({})).await?;
            let mut asked = peer.asked.lock().unwrap().clone();
            asked.sort();
            json!([result, asked])
        }
        "failing tool" => call(client, "fail", json!({})).await?,
        "prompt" => {
            let arguments = serde_json::from_value(json!({"name": "Ada"}))?;
            let result = client.get_prompt(GetPromptRequestParams::new("greet").with_arguments(arguments)).await?;
            serde_json::to_value(result)?["messages"].clone()
        }
        "errors" => {
            let prompt = client.get_prompt(GetPromptRequestParams::new("no-such-prompt")).await;
            json!([refused(call(client, "no-such-tool", json!({})).await), refused(read(client, "note://none").await), prompt.is_err()])
        }
        "resources" => resources(client, peer).await?,
        "cancel" => cancel(client, peer, run).await?,
        other => bail!("{other} is not a step"),
    })
}

/// Reads a page, and the note before and after it was changed and its reader was notified.
async fn resources(client: &Client, peer: &Peer) -> Result<Value> {
    call(client, "write", json!({"text": "before"})).await?;
    let (page, before) = (read(client, "page://7/text").await?, read(client, NOTE).await?);
    let told = if revision(client) == Some(ProtocolVersion::V_2026_07_28) {
        let filter: SubscriptionFilter = serde_json::from_value(json!({"resourceSubscriptions": [NOTE]}))?;
        let mut stream = client.listen(filter).await?;
        call(client, "write", json!({"text": "after"})).await?;
        let told = match timeout(STEP_MAX, stream.next()).await?? {
            Some(ServerNotification::ResourceUpdatedNotification(updated)) => updated.params.uri,
            other => bail!("{other:?} came instead of an update"),
        };
        stream.cancel().await?;
        told
    } else {
        peer.updated.lock().unwrap().clear();
        client.subscribe(SubscribeRequestParams::new(NOTE)).await?;
        call(client, "write", json!({"text": "after"})).await?;
        eventually("the update", || !peer.updated.lock().unwrap().is_empty()).await?;
        client.unsubscribe(UnsubscribeRequestParams::new(NOTE)).await?;
        peer.updated.lock().unwrap()[0].clone()
    };
    Ok(json!([page, before, told, read(client, NOTE).await?]))
}

async fn cancel(client: &Client, peer: &Peer, run: &str) -> Result<Value> {
    let run = format!("{run} cancelled");
    peer.progress.lock().unwrap().clear();
    let params = tool("steps", json!({"run": run, "count": 500, "pause": 0.05}));
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let handle = client.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
    eventually("the first step", || !peer.progress.lock().unwrap().is_empty()).await?;
    handle.cancel(Some("enough".to_owned())).await?;
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if call(client, "was_cancelled", json!({"run": run})).await?["structuredContent"]["result"] == true {
            return Ok(json!("the server was told"));
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(json!("the server was not told"))
}

async fn transcript(url: &str, mode: &str, run: &str) -> Result<Vec<(&'static str, Value)>> {
    let (client, peer) = connect(url, mode, true).await?;
    let mut taken = vec![("revision", json!(revision(&client)))];
    for name in STEPS {
        let outcome = timeout(STEP_MAX, step(name, &client, &peer, run)).await;
        let outcome = outcome.unwrap_or_else(|_| bail!("it took too long"));
        taken.push((name, outcome.unwrap_or_else(|error| json!(format!("failed: {error:#}")))));
    }
    client.cancel().await?;
    let (silent, _) = connect(url, mode, false).await?;
    taken.push(("nothing declared", json!(!refused(call(&silent, "ask", json!({})).await).is_null())));
    silent.cancel().await?;
    Ok(taken)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [direct, broker, modes @ ..] = arguments.as_slice() else { bail!("rmcp-peer DIRECT BROKER MODE...") };
    let mut failed = 0;
    for (backend, own) in [("old", "initialize"), ("new", "discover")] {
        let seen = transcript(direct, own, &format!("direct {backend}")).await?;
        for mode in modes {
            let through = transcript(&format!("{broker}/mcp/{backend}"), mode, &format!("{mode} {backend}")).await?;
            for ((name, expected), (_, here)) in seen.iter().zip(&through) {
                let revision = json!(if mode == "initialize" { "2025-11-25" } else { "2026-07-28" });
                let expected = if *name == "revision" { &revision } else { expected };
                if here == expected {
                    println!("ok {mode} {backend} {name}");
                } else {
                    failed += 1;
                    println!("FAIL {mode} {backend} {name}: {here}, not {expected}");
                }
            }
        }
    }
    std::process::exit(i32::from(failed > 0))
}
