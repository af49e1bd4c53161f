//! A client of any wire, with the same requests and the same checks.

use std::time::Duration;

use serde_json::{Value, json};

use super::visits::{Site, Wire};
use crate::{
    DuplexClient, EventReader, QuicPeer, TestClient, duplex,
    stateless_request::{TASKS_EXTENSION, add_request_meta, request_headers},
};

/// A client with a session, or one that needs none.
pub(super) enum Peer {
    Http(TestClient),
    Stateless(TestClient),
    Duplex(DuplexClient, Option<QuicPeer>),
}

/// Answers the questions of the backend: the text of the question is the word.
fn answer(method: &str, params: &Value) -> Result<Value, Value> {
    match method {
        "elicitation/create" => Ok(accepted(params)),
        "ping" => Ok(json!({})),
        other => Err(json!({"code": -32601, "message": format!("no {other}")})),
    }
}

fn accepted(question: &Value) -> Value {
    json!({"action": "accept", "content": {"word": question["message"]}})
}

impl Peer {
    /// Opens a session of this principal at a replica, or at the balancer over HTTP. A stateless
    /// client uses one replica: each replica has its own process of the stdio backend, so a listener
    /// at one gets no update of a change at the other.
    pub(super) async fn open(site: &Site, wire: Wire, replica: usize, key: &str) -> Self {
        let capabilities = json!({"elicitation": {}});
        let address = site.replicas[replica];
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let token = json!({"dev.mcp-broker/token": key});
        let http = TestClient::new(site.front, "/mcp").bearer(key).answers(answer);
        let duplex = DuplexClient::builder().answers(answer);
        match wire {
            Wire::Http => Self::Http(http.connected(capabilities).await),
            Wire::Stateless => Self::Stateless(http.to(address.http)),
            Wire::WebSocket => {
                let opened = duplex.websocket(address.http, "/ws", &headers).await;
                let (client, _) = opened.unwrap_or_else(|status| panic!("status {status}"));
                Self::Duplex(client.connected(capabilities).await, None)
            }
            Wire::HttpSse => {
                let wire = duplex::Wire::http_sse(address.http, "/sse", &headers).await;
                let wire = wire.unwrap_or_else(|status| panic!("status {status}"));
                Self::Duplex(duplex.over(wire).connected(capabilities).await, None)
            }
            Wire::Tcp => {
                let client = duplex.tcp(address.tcp).await;
                Self::Duplex(client.connected_with(capabilities, token).await, None)
            }
            Wire::Quic => {
                let peer = QuicPeer::connect(address.quic, &site.authority, None, "mcp").await;
                let peer = peer.unwrap_or_else(|error| panic!("no QUIC connection: {error}"));
                let client = duplex.over(peer.streams().await);
                Self::Duplex(client.connected_with(capabilities, token).await, Some(peer))
            }
        }
    }

    /// Returns the whole answer to a request.
    pub(super) async fn request(&self, method: &str, params: Value) -> Value {
        match self {
            Self::Http(client) => client.request(method, params).await,
            Self::Duplex(client, _) => client.request(method, params).await,
            Self::Stateless(client) => stateless(client, method, params).await,
        }
    }

    pub(super) async fn result(&self, method: &str, params: Value) -> Value {
        let answer = self.request(method, params).await;
        answer.get("result").cloned().unwrap_or_else(|| panic!("{method} failed: {answer}"))
    }

    /// Calls a tool, and answers its question if the answer is one; returns the text.
    pub(super) async fn call(&self, tool: &str, arguments: Value) -> String {
        let mut params = json!({"name": tool, "arguments": arguments});
        let mut result = self.result("tools/call", params.clone()).await;
        if result["resultType"] == "input_required" {
            let inputs = result["inputRequests"].as_object().cloned().unwrap_or_default();
            let answers =
                inputs.iter().map(|(key, input)| (key.clone(), accepted(&input["params"])));
            params["inputResponses"] = Value::Object(answers.collect());
            params["requestState"] = result["requestState"].take();
            result = self.result("tools/call", params).await;
        }
        text_of(&result)
    }

    /// Runs a tool as a task; returns its id.
    pub(super) async fn task(&self, tool: &str, arguments: Value, key: &str) -> String {
        let mut params = json!({"name": tool, "arguments": arguments});
        let created = if let Self::Stateless(_) = self {
            params["_meta"] = json!({"dev.mcp-broker/idempotency-key": key});
            self.result("tools/call", params).await
        } else {
            params["task"] = json!({"ttl": 20_000});
            self.result("tools/call", params).await["task"].take()
        };
        let id = created["taskId"].as_str();
        id.unwrap_or_else(|| panic!("a task was asked for: {created}")).to_owned()
    }

    /// Waits for the end of a task; returns the text of its result.
    pub(super) async fn task_text(&self, id: &str) -> String {
        let params = json!({"taskId": id});
        if !matches!(self, Self::Stateless(_)) {
            return text_of(&self.result("tasks/result", params).await);
        }
        let done = crate::eventually("a task to be completed", || async {
            let task = self.result("tasks/get", params.clone()).await;
            if task["status"] == "completed" { Ok(task) } else { Err(task) }
        });
        text_of(&done.await["result"])
    }

    /// Subscribes to a resource, lets `change` change it, waits for the notification, and ends the
    /// subscription.
    pub(super) async fn subscription(&self, uri: &str, change: impl Future<Output = ()>) {
        let is_update = |message: &Value| {
            message["method"] == "notifications/resources/updated"
                && message["params"]["uri"] == uri
        };
        let params = json!({"uri": uri});
        match self {
            Self::Stateless(client) => {
                let filter = json!({"notifications": {"resourceSubscriptions": [uri]}});
                let mut events = post(client, "subscriptions/listen", filter).await.1.events();
                events
                    .find(|message| message["method"] == "notifications/subscriptions/acknowledged")
                    .await;
                change.await;
                events.find(is_update).await;
                return;
            }
            Self::Http(client) => {
                let mut events: EventReader = client.open_get_stream().await;
                self.result("resources/subscribe", params.clone()).await;
                change.await;
                events.find(is_update).await;
            }
            Self::Duplex(client, _) => {
                self.result("resources/subscribe", params.clone()).await;
                change.await;
                client.wait_for_message("an update", is_update).await;
            }
        }
        self.result("resources/unsubscribe", params).await;
    }

    /// Makes a call of `steps` steps. Over HTTP its stream is cut after the first event and resumed.
    pub(super) async fn steps(&self, tool: &str, steps: u64, token: &str) -> String {
        let params = json!({"name": tool, "arguments": {"from": steps, "pause_ms": 50}, "_meta": {"progressToken": token}});
        let Self::Http(client) = self else {
            return text_of(&self.result("tools/call", params).await);
        };
        let id = json!(client.take_id());
        let mut call = client.start_request_with_id(id.clone(), "tools/call", params);
        let from = call.first_event_id().await;
        drop(call);
        let mut resumed = client.resume(&from).await;
        text_of(&resumed.find(|message| message["id"] == id).await["result"])
    }

    /// Ends the session in one of several ways, which `number` chooses.
    pub(super) async fn disconnect(self, number: u64) {
        match self {
            Self::Http(client) if !number.is_multiple_of(3) => {
                let call = client.start_call("s__countdown", json!({"from": 100, "pause_ms": 50}));
                if number % 3 == 1 {
                    let call = call.response();
                    let _cut = tokio::time::timeout(Duration::from_millis(100), call).await;
                }
                assert_eq!(client.delete_session().await, 204, "the session was there");
            }
            // It expires.
            Self::Http(_) | Self::Stateless(_) => {}
            Self::Duplex(client, quic) => {
                if number.is_multiple_of(2) {
                    client.disconnect();
                } else if let Some(quic) = quic {
                    quic.close(0);
                }
            }
        }
    }
}

/// Returns the text of a tool's result.
fn text_of(result: &Value) -> String {
    let text = result["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text in {result}")).to_owned()
}

/// Sends a request of 2026-07-28; returns its id and the response.
async fn post(client: &TestClient, method: &str, mut params: Value) -> (Value, crate::RawResponse) {
    let capabilities = json!({"elicitation": {}, "extensions": {TASKS_EXTENSION: {}}});
    add_request_meta(&mut params, "soak", &capabilities);
    let headers = client.headers_with(&request_headers(method, &params));
    let id = json!(client.take_id());
    let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    (id, client.send_with("POST", headers, body.to_string()).await)
}

async fn stateless(client: &TestClient, method: &str, params: Value) -> Value {
    let (id, response) = post(client, method, params).await;
    if response.is_event_stream() {
        response.events().find(|message| message["id"] == id).await
    } else {
        response.json().await
    }
}
