//! Clients of 2026-07-28, whose requests are stateless, in front of backends with sessions. The
//! tests cite ids of the checklist.

mod http;
mod inputs;
mod listening;
mod observed;
mod promotion;
mod refusals;
mod replicas;
mod results;
mod task_bridge;
pub(crate) mod tasks;
mod wires;

use std::net::SocketAddr;

use serde_json::{Value, json};
use testkit::{
    RawResponse, STATELESS, TestBroker, TestClient, client::ACCEPT_BOTH, request_headers,
    request_meta,
};

pub(crate) const VERSION: &str = STATELESS;

/// Returns the `_meta` of a request with these capabilities.
pub(crate) fn meta(capabilities: Value) -> Value {
    request_meta("raw", &capabilities)
}

/// A client without a session. Each request has headers that repeat its body.
#[derive(Clone)]
pub(crate) struct Modern {
    client: TestClient,
    key: Option<String>,
    pub(crate) capabilities: Value,
}

impl Modern {
    pub(crate) fn at(address: SocketAddr, path: &str, capabilities: Value) -> Self {
        Self { client: TestClient::new(address, path), key: None, capabilities }
    }

    pub(crate) fn of(broker: &TestBroker, path: &str) -> Self {
        Self {
            client: broker.client(path).to(broker.http_address()),
            key: None,
            capabilities: json!({}),
        }
    }

    pub(crate) fn with(&self, capabilities: Value) -> Self {
        Self { capabilities, ..self.clone() }
    }

    pub(crate) fn bearer(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.clone() }
    }

    /// Adds `_meta` to params that have none.
    fn params(&self, mut params: Value) -> Value {
        if params.get("_meta").is_none() {
            params["_meta"] = meta(self.capabilities.clone());
        }
        params
    }

    pub(crate) fn headers(&self, method: &str, params: &Value) -> Vec<(String, String)> {
        let mut headers = vec![("content-type", "application/json"), ("accept", ACCEPT_BOTH)];
        headers.extend(request_headers(method, params));
        let mut headers: Vec<(String, String)> =
            headers.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        headers.extend(
            self.key.iter().map(|key| ("authorization".to_owned(), format!("Bearer {key}"))),
        );
        headers
    }

    /// Sends exactly these headers and this body.
    pub(crate) async fn send(&self, headers: &[(String, String)], body: String) -> RawResponse {
        self.client.send_with("POST", headers.to_vec(), body).await
    }

    pub(crate) async fn post(&self, id: Value, method: &str, params: Value) -> RawResponse {
        let params = self.params(params);
        let headers = self.headers(method, &params);
        self.send(
            &headers,
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string(),
        )
        .await
    }

    /// Sends a request; returns the messages before the answer, and the answer.
    pub(crate) async fn exchange(&self, method: &str, params: Value) -> (Vec<Value>, Value) {
        let response = self.post(json!(self.client.take_id()), method, params).await;
        if !response.is_event_stream() {
            return (Vec::new(), response.json().await);
        }
        let mut messages: Vec<Value> =
            response.events().rest().await.iter().filter_map(testkit::Event::message).collect();
        let answer = messages.pop().expect("a stream ends with the answer");
        (messages, answer)
    }

    pub(crate) async fn answer(&self, method: &str, params: Value) -> Value {
        self.exchange(method, params).await.1
    }

    pub(crate) async fn result(&self, method: &str, params: Value) -> Value {
        let answer = self.answer(method, params).await;
        answer.get("result").cloned().unwrap_or_else(|| panic!("{method} failed: {answer}"))
    }

    pub(crate) async fn error(&self, method: &str, params: Value) -> Value {
        let answer = self.answer(method, params).await;
        answer.get("error").cloned().unwrap_or_else(|| panic!("{method} is refused: {answer}"))
    }

    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.result("tools/call", json!({"name": tool, "arguments": arguments})).await
    }

    /// Repeats a call with the state and the answers that its `input_required` result needs.
    pub(crate) async fn retry(
        &self,
        tool: &str,
        arguments: Value,
        state: &Value,
        responses: Value,
    ) -> Value {
        self.answer("tools/call", json!({"name": tool, "arguments": arguments, "requestState": state, "inputResponses": responses})).await
    }
}
