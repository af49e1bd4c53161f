//! A client that strictly follows one revision. It declares only the features of that revision, and
//! opens a session or sends stateless requests. It answers requests of servers in the way of its
//! era.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{
    DuplexClient, TestBroker,
    duplex::{DuplexBuilder, DuplexCall, Wire},
    judge::Revision,
    request_meta,
    stateless_request::add_request_meta,
};

use super::{Of, REVISIONS, STATELESS};

/// Name of the client.
const CLIENT: &str = "matrix";

/// Transport of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Front {
    /// The HTTP transport of its revision: HTTP+SSE, Streamable HTTP with sessions, or without.
    Http,
    WebSocket,
}

/// Prompt that is answered with a content array by clients that have them.
pub(super) const ANSWER_WITH_AN_ARRAY: &str = "answer with an array";

/// Requests that the client received: method and params.
type Asked = Arc<Mutex<Vec<(String, Value)>>>;

pub(super) struct Client {
    pub(super) of: Of,
    duplex: DuplexClient,
    capabilities: Value,
    asked: Asked,
    /// The result of `initialize` or `server/discover`.
    pub(super) opened: Value,
}

/// Outcome of a request.
pub(super) struct Answer {
    /// The whole response, as it came.
    pub(super) text: String,
    pub(super) message: Value,
}

impl Answer {
    pub(super) fn result(&self) -> Result<&Value, String> {
        self.message.get("result").ok_or_else(|| format!("no result: {}", self.text))
    }

    /// Returns the first text of a tool's result.
    pub(super) fn text_result(&self) -> Result<&str, String> {
        self.result()?["content"][0]["text"]
            .as_str()
            .ok_or_else(|| format!("no text: {}", self.text))
    }
}

/// Returns all capabilities that a client of this revision can declare.
pub(super) fn everything(of: Of) -> Value {
    match REVISIONS[of] {
        "2024-11-05" | "2025-03-26" => json!({"roots": {"listChanged": true}, "sampling": {}}),
        "2025-06-18" => json!({"roots": {"listChanged": true}, "sampling": {}, "elicitation": {}}),
        "2025-11-25" => {
            json!({"roots": {"listChanged": true}, "sampling": {"tools": {}, "context": {}}, "elicitation": {"form": {}, "url": {}}})
        }
        _ => {
            json!({"roots": {}, "sampling": {"tools": {}, "context": {}}, "elicitation": {"form": {}, "url": {}}})
        }
    }
}

/// Returns the answer of every client here to a server's request.
pub(super) fn answer(method: &str, params: &Value) -> Result<Value, Value> {
    match method {
        "ping" => Ok(json!({})),
        "roots/list" => Ok(json!({"roots": [{"uri": "file:///r", "name": "r"}]})),
        "sampling/createMessage"
            if params["messages"][0]["content"]["text"] == ANSWER_WITH_AN_ARRAY =>
        {
            Ok(
                json!({"role": "assistant", "content": [{"type": "text", "text": "ho"}], "model": "m"}),
            )
        }
        "sampling/createMessage" => Ok(
            json!({"role": "assistant", "content": {"type": "text", "text": "ho"}, "model": "m"}),
        ),
        "elicitation/create" if params["mode"] == "url" => Ok(json!({"action": "accept"})),
        "elicitation/create" => match params["message"].as_str() {
            Some(action @ ("decline" | "cancel")) => Ok(json!({"action": action})),
            _ => Ok(json!({"action": "accept", "content": {"name": "ann"}})),
        },
        other => Err(json!({"code": -32601, "message": format!("no {other}")})),
    }
}

impl Client {
    pub(super) async fn open(
        broker: &TestBroker,
        front: Front,
        of: Of,
        backend: &str,
        capabilities: Value,
    ) -> Self {
        let asked = Asked::default();
        let recorded = asked.clone();
        let builder = Self::builder(broker, of).answers(move |method, params| {
            recorded.lock().push((method.to_owned(), params.clone()));
            answer(method, params)
        });
        Self::over(builder, broker, front, of, backend, (capabilities, asked)).await
    }

    /// Creates a client that declares everything, and leaves the answers to its test.
    pub(super) async fn silent(broker: &TestBroker, front: Front, of: Of, backend: &str) -> Self {
        Self::over(
            Self::builder(broker, of),
            broker,
            front,
            of,
            backend,
            (everything(of), Asked::default()),
        )
        .await
    }

    fn builder(broker: &TestBroker, of: Of) -> DuplexBuilder {
        broker.duplex().speaking(Revision::of(REVISIONS[of]).expect("it is one"))
    }

    async fn over(
        builder: DuplexBuilder,
        broker: &TestBroker,
        front: Front,
        of: Of,
        backend: &str,
        (capabilities, asked): (Value, Asked),
    ) -> Self {
        let address = broker.http_address();
        let duplex = match (front, REVISIONS[of]) {
            (Front::WebSocket, _) => {
                builder
                    .websocket(address, &format!("/ws/{backend}"), &[])
                    .await
                    .expect("an upgrade")
                    .0
            }
            (Front::Http, "2024-11-05") => builder.over(
                Wire::http_sse(address, &format!("/sse/{backend}"), &[])
                    .await
                    .expect("an event stream"),
            ),
            (Front::Http, STATELESS) => {
                builder.over(Wire::stateless_http(address, &format!("/mcp/{backend}")))
            }
            (Front::Http, _) => {
                builder.over(Wire::streamable_http(address, &format!("/mcp/{backend}")))
            }
        };
        let mut client = Self { of, duplex, capabilities, asked, opened: Value::Null };
        client.opened = if client.is_modern() {
            client.request("server/discover", json!({})).await.message["result"].clone()
        } else {
            let answer = client
                .duplex
                .initialize_in(REVISIONS[of], client.capabilities.clone(), json!({}))
                .await;
            client.duplex.notify("notifications/initialized", json!({})).await;
            answer["result"].clone()
        };
        client
    }

    pub(super) fn is_modern(&self) -> bool {
        REVISIONS[self.of] == STATELESS
    }

    fn meta(&self) -> Value {
        request_meta(CLIENT, &self.capabilities)
    }

    /// Returns the params to send, with the `_meta` that 2026-07-28 requires.
    fn params(&self, mut params: Value) -> Value {
        if self.is_modern() {
            add_request_meta(&mut params, CLIENT, &self.capabilities);
        }
        params
    }

    /// Sends a request, answers the server's requests during it, and waits for its response.
    pub(super) async fn request(&self, method: &str, params: Value) -> Answer {
        let mut params = self.params(params);
        loop {
            let answer =
                self.answer_to(self.duplex.start_request(method, params.clone()).await).await;
            let result = &answer.message["result"];
            if !self.is_modern() || result["resultType"] != "input_required" {
                return answer;
            }
            let mut responses = json!({});
            for (key, request) in result["inputRequests"].as_object().into_iter().flatten() {
                let (method, asked) =
                    (request["method"].as_str().unwrap_or_default(), &request["params"]);
                self.asked.lock().push((method.to_owned(), asked.clone()));
                responses[key] = match self::answer(method, asked) {
                    Ok(answer) => answer,
                    Err(_) => return answer, // who refuses does not come back
                };
            }
            params["inputResponses"] = responses;
            params["requestState"] = result["requestState"].clone();
        }
    }

    async fn answer_to(&self, call: DuplexCall) -> Answer {
        let (message, text) = call.response_and_text().await;
        Answer { text, message }
    }

    /// Sends a request whose params are this text, with the additions that its revision requires.
    pub(super) async fn request_text(&self, method: &str, params: &str) -> Answer {
        let rest = params.strip_prefix('{').expect("an object");
        let text = if self.is_modern() && params.contains("\"_meta\":{") {
            let meta = self.meta().to_string();
            params.replacen("\"_meta\":{", &format!("\"_meta\":{{{},", &meta[1..meta.len() - 1]), 1)
        } else if self.is_modern() {
            format!("{{\"_meta\":{},{rest}", self.meta())
        } else {
            params.to_owned()
        };
        self.answer_to(self.duplex.start_text(method, &text).await).await
    }

    /// Sends a request without waiting for anything.
    pub(super) async fn start_request(&self, method: &str, params: Value) -> DuplexCall {
        self.duplex.start_request(method, self.params(params)).await
    }

    pub(super) async fn notify(&self, method: &str, params: Value) {
        self.duplex.notify(method, params).await;
    }

    /// Sends any text.
    pub(super) async fn send(&self, text: String) {
        self.duplex.send(text).await;
    }

    /// Cancels a request.
    pub(super) async fn cancel(&self, id: u64) {
        self.duplex.notify("notifications/cancelled", self.params(json!({"requestId": id}))).await;
    }

    pub(super) async fn call(&self, tool: &str, arguments: Value) -> Answer {
        self.request("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Returns the requests received since the last call.
    pub(super) fn requests_received(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.asked.lock())
    }

    /// Returns the next message that `wanted` accepts.
    pub(super) async fn wait_for_message(
        &self,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        self.duplex.wait_for_message(what, wanted).await
    }

    pub(super) fn untaken(&self) -> Vec<Value> {
        self.duplex.unread_messages()
    }
}
