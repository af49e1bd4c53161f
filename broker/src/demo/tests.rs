//! Tests of the demo backend over a pipe in memory, from a client's view.

use std::time::Duration;

use tokio::io::{
    AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf,
};

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);

struct Client {
    input: WriteHalf<DuplexStream>,
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    served: tokio::task::JoinHandle<Result<(), ReadError>>,
}

impl Client {
    async fn start(version: &str, capabilities: Value) -> (Self, Value) {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (their_input, their_output) = tokio::io::split(far);
        let served = tokio::spawn(serve(their_input, their_output));
        let (output, input) = tokio::io::split(near);
        let mut client = Self { input, lines: BufReader::new(output).lines(), served };
        let params = json!({"protocolVersion": version, "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}});
        let answer = client.request("initialize", params).await;
        client.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        (client, answer["result"].clone())
    }

    async fn ready() -> Self {
        Self::start("2025-11-25", json!({})).await.0
    }

    async fn send(&mut self, message: Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(DEADLINE, self.lines.next_line())
            .await
            .expect("a line before the deadline");
        serde_json::from_str(&line.unwrap().expect("the server still talks")).unwrap()
    }

    /// Sends a request. The next message of the server must be its answer.
    async fn request(&mut self, method: &str, params: Value) -> Value {
        self.send(json!({"jsonrpc": "2.0", "id": method, "method": method, "params": params}))
            .await;
        let answer = self.next().await;
        assert_eq!(answer["id"], method, "{answer}");
        answer
    }

    async fn call(&mut self, name: &str, arguments: Value) -> Value {
        self.request("tools/call", json!({"name": name, "arguments": arguments})).await["result"]
            .clone()
    }
}

#[tokio::test]
async fn protocol_versions_are_negotiated() {
    for (requested, agreed) in
        [("2025-11-25", "2025-11-25"), ("2025-06-18", "2025-06-18"), ("2024-11-05", "2025-11-25")]
    {
        let (_, result) = Client::start(requested, json!({})).await;
        assert_eq!(result["protocolVersion"], agreed, "{requested}");
        assert_eq!(result["capabilities"]["resources"]["subscribe"], true);
    }
}

#[tokio::test]
async fn the_demo_tools_return_their_documented_results() {
    let mut client = Client::ready().await;
    assert_eq!(
        client.call("echo", json!({"message": "héllo"})).await["content"][0]["text"],
        "héllo"
    );
    let sum = client.call("add", json!({"a": 2, "b": 3})).await;
    assert_eq!(
        (&sum["structuredContent"], &sum["content"][0]["text"]),
        (&json!({"sum": 5}), &json!("{\"sum\":5}"))
    );
    assert_eq!(
        client.call("add", json!({"a": 0.5, "b": 1})).await["structuredContent"]["sum"],
        1.5
    );
    assert_eq!(client.call("add", json!({"a": 1e308, "b": 1e308})).await["isError"], true);
    assert_eq!(client.call("add", json!({"a": "2", "b": 3})).await["isError"], true);
    assert_eq!(
        client.request("tools/call", json!({"name": "none"})).await["error"]["code"],
        -32602
    );
}

#[tokio::test]
async fn a_countdown_reports_its_progress() {
    let mut client = Client::ready().await;
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params":
        {"name": "countdown", "arguments": {"from": 2, "pause_ms": 0}, "_meta": {"progressToken": "p"}}});
    client.send(call.clone()).await;
    for done in 0..2 {
        assert_eq!(client.next().await["method"], "notifications/message");
        let progress = client.next().await;
        assert_eq!(
            (&progress["params"]["progressToken"], &progress["params"]["progress"]),
            (&json!("p"), &json!(done))
        );
    }
    assert_eq!(client.next().await["result"]["content"][0]["text"], "lift-off");
    client.request("logging/setLevel", json!({"level": "warning"})).await;
    client.send(call).await;
    assert_eq!(
        client.next().await["method"],
        "notifications/progress",
        "no log message below the level"
    );
}

#[tokio::test]
async fn a_cancelled_call_is_not_answered_and_others_continue() {
    let mut client = Client::ready().await;
    client.request("logging/setLevel", json!({"level": "error"})).await;
    for id in [json!(1), json!("1")] {
        client
            .send(json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params":
            {"name": "countdown", "arguments": {"from": 1, "pause_ms": 10_000}}}))
            .await;
    }
    client.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})).await;
    client.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "unknown"}})).await;
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
    client.send(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "1"}})).await;
    let Client { mut input, mut lines, served } = client;
    input.shutdown().await.unwrap();
    tokio::time::timeout(DEADLINE, served)
        .await
        .expect("nothing is left running")
        .unwrap()
        .unwrap();
    assert_eq!(lines.next_line().await.unwrap(), None, "neither call was answered");
}

#[tokio::test]
async fn a_user_is_asked_only_if_the_client_supports_elicitation() {
    for capabilities in [json!({}), json!({"elicitation": {"url": {}}})] {
        let (mut client, _) = Client::start("2025-11-25", capabilities).await;
        assert_eq!(client.call("ask", json!({})).await["isError"], true);
    }
    let (mut client, _) = Client::start("2025-11-25", json!({"elicitation": {}})).await;
    for (reply, expected) in [
        (
            json!({"result": {"action": "accept", "content": {"answer": "blue"}}}),
            "the user answered: blue",
        ),
        (json!({"result": {"action": "decline"}}), "the user would rather not say"),
        (json!({"error": {"code": -1, "message": "no"}}), "the client refused to ask its user"),
    ] {
        client.send(json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "ask"}})).await;
        let mut answer = reply;
        let question = client.next().await;
        assert_eq!(question["method"], "elicitation/create");
        (answer["jsonrpc"], answer["id"]) = ("2.0".into(), question["id"].clone());
        client.send(answer).await;
        assert_eq!(client.next().await["result"]["content"][0]["text"], expected);
    }
}

#[tokio::test]
async fn a_subscriber_is_notified_of_the_counter() {
    let mut client = Client::ready().await;
    assert_eq!(
        client.call("increment", json!({})).await["structuredContent"]["count"],
        1,
        "and no client is told"
    );
    client.request("resources/subscribe", json!({"uri": "demo://counter"})).await;
    client.send(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "increment", "arguments": {"by": 4}}})).await;
    let update = client.next().await;
    assert_eq!(
        (&update["method"], &update["params"]["uri"]),
        (&json!("notifications/resources/updated"), &json!("demo://counter"))
    );
    assert_eq!(client.next().await["result"]["structuredContent"]["count"], 5);
    assert_eq!(
        client.request("resources/read", json!({"uri": "demo://counter"})).await["result"]["contents"]
            [0]["text"],
        "5"
    );
    client.request("resources/unsubscribe", json!({"uri": "demo://counter"})).await;
    client.call("increment", json!({})).await;
}

#[tokio::test]
async fn resources_and_templates_are_read() {
    let mut client = Client::ready().await;
    for uri in ["demo://about", "demo://counter", "demo://greeting/Ada"] {
        assert_eq!(
            client.request("resources/read", json!({"uri": uri})).await["result"]["contents"][0]["uri"],
            uri
        );
    }
    for (method, uri) in [
        ("resources/read", "demo://greeting/"),
        ("resources/read", "demo://x"),
        ("resources/subscribe", "demo://x"),
    ] {
        let error = client.request(method, json!({"uri": uri})).await["error"].clone();
        assert_eq!((&error["code"], &error["data"]["uri"]), (&json!(-32002), &json!(uri)));
    }
}

#[tokio::test]
async fn the_prompt_is_filled_in_and_completed() {
    let mut client = Client::ready().await;
    let prompt = client
        .request(
            "prompts/get",
            json!({"name": "greet", "arguments": {"name": "Ada", "style": "pirate"}}),
        )
        .await;
    assert!(
        prompt["result"]["messages"][0]["content"]["text"]
            .as_str()
            .unwrap()
            .contains("pirate greeting for Ada")
    );
    assert_eq!(
        client.request("prompts/get", json!({"name": "greet"})).await["error"]["code"],
        -32602
    );
    for (reference, argument, expected) in [
        (
            json!({"type": "ref/prompt", "name": "greet"}),
            json!({"name": "style", "value": "f"}),
            json!(["formal", "friendly"]),
        ),
        (
            json!({"type": "ref/resource", "uri": "demo://greeting/{name}"}),
            json!({"name": "name", "value": "gr"}),
            json!(["Grace"]),
        ),
        (
            json!({"type": "ref/prompt", "name": "other"}),
            json!({"name": "style", "value": ""}),
            json!([]),
        ),
    ] {
        let answer = client
            .request("completion/complete", json!({"ref": reference, "argument": argument}))
            .await;
        assert_eq!(answer["result"]["completion"]["values"], expected);
    }
}

#[tokio::test]
async fn lists_have_one_page() {
    let mut client = Client::ready().await;
    for (method, member, count) in [
        ("tools/list", "tools", 5),
        ("resources/list", "resources", 2),
        ("resources/templates/list", "resourceTemplates", 1),
        ("prompts/list", "prompts", 1),
    ] {
        let result = client.request(method, json!({})).await["result"].clone();
        assert_eq!(result[member].as_array().unwrap().len(), count);
        assert_eq!(result.get("nextCursor"), None);
        assert_eq!(client.request(method, json!({"cursor": "x"})).await["error"]["code"], -32602);
    }
}

#[tokio::test]
async fn invalid_input_is_answered_with_errors() {
    let mut client = Client::ready().await;
    client.input.write_all(b"{nonsense\n[]\n42\n").await.unwrap();
    for code in [-32700, -32600, -32600] {
        assert_eq!(client.next().await["error"]["code"], code);
    }
    assert_eq!(client.request("no/such/method", json!({})).await["error"]["code"], -32601);
    client.send(json!({"jsonrpc": "2.0", "id": "never-asked", "result": {}})).await;
    assert_eq!(client.request("resources/read", json!({})).await["error"]["code"], -32602);
    assert_eq!(client.request("ping", json!(null)).await["result"], json!({}));
}
