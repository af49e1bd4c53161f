//! The broker treats backends in the same way on every wire behind:
//!
//! - messages in order
//! - an exact limit
//! - pieces of any size
//! - backends that end their half of a connection
//! - backends that do not read
//! - connections that break

use std::path::PathBuf;

use futures_util::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::{
    Authority, Direction, DuplexClient, FaultProxy, Reply, TestBroker, duplex::DuplexCall,
    eventually, within,
};

use super::IN_ORDER;
use crate::{
    kind, stdio as script, text_of,
    wires::{
        answering, everything,
        matrix::{BACKS, Behind, listening_everywhere},
        over_each,
    },
};

const LIMIT: usize = 256 << 10;
/// Calls of that many bytes are more than pipes and streams hold on the way to a backend.
const LARGE_CALLS: usize = 30;
const LARGE_BYTES: usize = 200_000;

/// The broker and backend of one wire. A second backend, `other`, is a child of its own.
struct Topology {
    back: &'static str,
    broker: TestBroker,
    backend: Behind,
    /// The proxy, on wires that have connections of TCP.
    proxy: Option<FaultProxy>,
    record: PathBuf,
    _folder: tempfile::TempDir,
}

impl Topology {
    async fn new(back: &'static str) -> Self {
        let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
        let record = folder.path().join("record");
        let backend = Behind::new(back, script().record(&record), &authority).await;
        let (mut spec, mut proxy) = (backend.spec(), None);
        if let Behind::Http(backend) = &backend {
            backend.tool("count", |call| async move {
                for n in 0..IN_ORDER {
                    call.notify("notifications/message", json!({"level": "info", "data": n})).await;
                }
                Reply::text("done")
            });
            backend.tool("sized", |call| async move {
                Reply::Message(sized(call.arguments()["bytes"].as_u64().unwrap(), call.id()))
            });
            backend.tool("mute", |_| async { Reply::End });
            backend.tool("pid", |_| async { Reply::text("none") });
        }
        let address = match &backend {
            Behind::Http(backend) => Some(backend.address()),
            Behind::Sse(backend) => Some(backend.address()),
            Behind::Socket(backend) if !back.starts_with("quic") => Some(backend.address()),
            Behind::Socket(_) | Behind::Child(_) => None,
        };
        if let Some(address) = address {
            let between = FaultProxy::start(address).await;
            spec = serde_json::from_str(
                &spec.to_string().replace(&address.to_string(), &between.address().to_string()),
            )
            .unwrap();
            proxy = Some(between);
        }
        let limits = json!({"limits": {"message_bytes": LIMIT}});
        let broker = listening_everywhere(&authority)
            .config(limits)
            .backend("default", "b", spec)
            .backend("default", "other", script().spec())
            .start()
            .await;
        Self { back, broker, backend, proxy, record, _folder: folder }
    }

    /// Opens a session with one backend, under its own names, listed or not.
    async fn client(&self, backend: &str) -> DuplexClient {
        let client = answering(self.broker.duplex()).tcp(self.broker.tcp_address()).await;
        client.connected_with(everything(), json!({"dev.mcp-broker/backend": backend})).await
    }

    /// Returns how many calls of this tool the backend got.
    fn calls(&self, tool: &str) -> usize {
        match &self.backend {
            Behind::Http(backend) => backend.count(|seen| seen.calls(tool)),
            _ => std::fs::read_to_string(&self.record)
                .unwrap_or_default()
                .matches(&format!("\"name\":\"{tool}\""))
                .count(),
        }
    }

    async fn has_got(&self, tool: &str, count: usize) {
        eventually("the call at the backend", || async {
            let calls = self.calls(tool);
            if calls == count { Ok(()) } else { Err(calls) }
        })
        .await;
    }
}

/// Returns an answer of so many bytes.
fn sized(bytes: u64, id: &Value) -> String {
    let with = |text: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#
        )
    };
    with(&"x".repeat(bytes as usize - with("").len()))
}

async fn serves(client: &DuplexClient) {
    eventually("a backend that serves", || async {
        let answer = client
            .request("tools/call", json!({"name": "echo", "arguments": {"fine": true}}))
            .await;
        if answer["result"].is_object() { Ok(()) } else { Err(answer) }
    })
    .await;
}

async fn messages_come_in_order(topology: &Topology, client: &DuplexClient) {
    client.result("logging/setLevel", json!({"level": "debug"})).await;
    match &topology.backend {
        Behind::Http(_) => drop(client.call("count", json!({})).await),
        _ => {
            let notification = |n| {
                json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": n}}).to_string()
            };
            let answer = r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"done"}]}}"#;
            let lines: Vec<String> =
                (0..IN_ORDER).map(notification).chain([answer.to_owned()]).collect();
            assert_eq!(text_of(&client.call("say", json!({"lines": lines})).await), "done");
        }
    }
    for n in 0..IN_ORDER {
        assert_eq!(client.notification("notifications/message").await["params"]["data"], n);
    }
}

async fn the_limit_is_exact(topology: &Topology, client: &DuplexClient) {
    let fits = client.call("sized", json!({"bytes": LIMIT})).await;
    assert!(text_of(&fits).len() > LIMIT - 200);
    let over = client
        .request("tools/call", json!({"name": "sized", "arguments": {"bytes": LIMIT + 1}}))
        .await;
    // On a shared connection it is not known which call the answer belonged to.
    let (code, why) = match topology.back {
        "http" | "quic_streams" => ("result_too_large", format!("larger than {LIMIT} bytes")),
        _ => ("outcome_unknown", format!("longer than the {LIMIT} bytes allowed")),
    };
    assert_eq!(kind(&over["error"]), code, "{over}");
    assert!(over["error"]["message"].as_str().unwrap().contains(&why), "{over}");
    let has_reason =
        |shown: &Value| shown["last_error"].as_str().is_some_and(|error| error.contains(&why));
    topology.broker.admin().wait_backend("default", "b", "why", has_reason).await;
    serves(client).await;
}

async fn pieces_of_any_size_have_the_same_result(topology: &Topology, client: &DuplexClient) {
    let text = "x".repeat(500);
    match &topology.proxy {
        Some(proxy) => {
            for way in [Direction::Upstream, Direction::Downstream] {
                proxy.slice(way, true);
            }
            assert!(text_of(&client.call("echo", json!({"text": text})).await).contains(&text));
            proxy.heal();
        }
        None => {
            let line = format!(
                r#"{{"jsonrpc":"2.0","id":@ID@,"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#
            );
            assert_eq!(
                text_of(&client.call("drip", json!({"line": line, "bytes": 7})).await),
                text
            );
        }
    }
    let calls: Vec<DuplexCall> =
        join_all((0..100).map(|n| client.start_call("echo", json!({"n": n})))).await;
    for (n, result) in join_all(calls.into_iter().map(DuplexCall::result)).await.iter().enumerate()
    {
        assert_eq!(text_of(result), json!({"n": n}).to_string());
    }
}

/// The backend ends its half and still reads. The outcome of the call is unknown, it is not sent
/// again, and the next call uses another connection.
async fn a_backend_that_ends_its_half_is_disconnected(topology: &Topology, client: &DuplexClient) {
    let open = || if let Behind::Socket(backend) = &topology.backend { backend.open() } else { 0 };
    let before = open();
    let answer = client.request("tools/call", json!({"name": "mute", "arguments": {}})).await;
    assert_eq!(kind(&answer["error"]), "outcome_unknown", "{answer}");
    serves(client).await;
    assert_eq!(topology.calls("mute"), 1);
    // The broker has ended its own half.
    eventually("the end of the old connection", || async {
        let now = open();
        if now <= before { Ok(()) } else { Err(now) }
    })
    .await;
}

/// Calls to the backend wait, cost other backends nothing, and none is lost.
async fn calls_wait_for_a_backend_that_does_not_read(
    topology: &Topology,
    client: &DuplexClient,
    other: &DuplexClient,
) {
    let stopped = match &topology.backend {
        Behind::Http(_) => None,
        _ => Some(
            Pid::from_raw(text_of(&client.call("pid", json!({})).await).parse().unwrap()).unwrap(),
        ),
    };
    match (&stopped, &topology.proxy) {
        (Some(pid), _) => kill_process(*pid, Signal::STOP).unwrap(),
        (None, Some(proxy)) => proxy.hold(Direction::Upstream, true),
        (None, None) => unreachable!("an HTTP backend is behind a proxy"),
    }
    // The answers are small: reading the requests is enough work for the backend.
    let (text, before) = ("x".repeat(LARGE_BYTES), topology.calls("pid"));
    let calls: Vec<DuplexCall> =
        join_all((0..LARGE_CALLS).map(|_| client.start_call("pid", json!({"text": text})))).await;
    for _ in 0..20 {
        other.call("echo", json!({})).await;
    }
    client.result("ping", json!({})).await;
    match (&stopped, &topology.proxy) {
        (Some(pid), _) => kill_process(*pid, Signal::CONT).unwrap(),
        (None, proxy) => proxy.as_ref().unwrap().heal(),
    }
    topology.has_got("pid", before + LARGE_CALLS).await;
    let answers = join_all(calls.into_iter().map(DuplexCall::result)).await;
    assert!(answers.iter().all(|answer| !text_of(answer).is_empty()));
}

/// Tests wires where a message ends with its line. Half a line of a broken connection is not an
/// answer, though it names the call. A whole one may come without its line end.
async fn half_a_line_is_not_an_answer(topology: &Topology, client: &DuplexClient) {
    if ["http", "sse", "websocket"].contains(&topology.back) {
        return;
    }
    for half in [
        r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[]"#,
        r#"{"jsonrpc":"2.0","id":@ID@,"resu"#,
    ] {
        let answer = client
            .request("tools/call", json!({"name": "last", "arguments": {"text": half}}))
            .await;
        assert_eq!(kind(&answer["error"]), "outcome_unknown", "{answer}");
        serves(client).await;
    }
    let whole =
        r#"{"jsonrpc":"2.0","id":@ID@,"result":{"content":[{"type":"text","text":"whole"}]}}"#;
    assert_eq!(text_of(&client.call("last", json!({"text": whole})).await), "whole");
    serves(client).await;
    assert_eq!(topology.calls("last"), 3);
}

/// Tests the same with a partial message before the break.
async fn a_broken_connection_fails_only_its_own_calls(topology: &Topology, client: &DuplexClient) {
    let pid = match &topology.backend {
        Behind::Child(_) => Some(text_of(&client.call("pid", json!({})).await).parse().unwrap()),
        _ => None,
    };
    let before = topology.calls("hang");
    let call = client.start_call("hang", json!({})).await;
    topology.has_got("hang", before + 1).await;
    match (&topology.backend, &topology.proxy) {
        (_, Some(proxy)) => proxy.reset(),
        (Behind::Socket(backend), None) => backend.cut(),
        _ => kill_process(Pid::from_raw(pid.unwrap()).unwrap(), Signal::KILL).unwrap(),
    }
    let answer = within("the answer", call.response()).await;
    assert_eq!(kind(&answer["error"]), "outcome_unknown", "{answer}");
    serves(client).await;
    assert_eq!(topology.calls("hang"), before + 1);
}

async fn conducts(back: &'static str) {
    let topology = Topology::new(back).await;
    let (client, other) = (topology.client("b").await, topology.client("other").await);
    println!("{} behind", topology.back);
    messages_come_in_order(&topology, &client).await;
    the_limit_is_exact(&topology, &client).await;
    pieces_of_any_size_have_the_same_result(&topology, &client).await;
    a_backend_that_ends_its_half_is_disconnected(&topology, &client).await;
    calls_wait_for_a_backend_that_does_not_read(&topology, &client, &other).await;
    half_a_line_is_not_an_answer(&topology, &client).await;
    a_broken_connection_fails_only_its_own_calls(&topology, &client).await;
    other.call("echo", json!({})).await;
}

over_each!(BACKS, conducts: stdio, http, sse, tcp, tls, websocket, quic, quic_streams);
