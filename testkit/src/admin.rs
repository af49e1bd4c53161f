//! The admin API as a test's operator uses it: tenants, keys, backends, any path, and metrics.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::{
    client::TestClient,
    deadline::{eventually, within},
    http::{RawResponse, send_http1_patiently},
};

/// Addresses of a further replica: its admin listener and its clients' one.
type ReplicaAddresses = (SocketAddr, SocketAddr);

#[derive(Debug, Clone)]
pub struct AdminClient {
    address: SocketAddr,
    token: Option<String>,
    others: Vec<ReplicaAddresses>,
}

impl AdminClient {
    pub fn new(address: SocketAddr, token: Option<&str>) -> Self {
        Self { address, token: token.map(str::to_owned), others: Vec::new() }
    }

    /// Adds replicas that must know a change before it counts as made, and whose metrics are added
    /// up. A test written for one broker then runs on several without a change.
    pub fn with_replicas(mut self, others: Vec<ReplicaAddresses>) -> Self {
        self.others = others;
        self
    }

    fn of_other(&self, other: &ReplicaAddresses) -> Self {
        Self::new(other.0, self.token.as_deref())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a client of the same address with another (or no) token.
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self { token: token.map(str::to_owned), ..self.clone() }
    }

    /// Sends any request; a body is JSON.
    pub async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> RawResponse {
        self.try_send(method, path, body).await.expect("the admin listener answers")
    }

    /// Sends a request with more headers.
    pub async fn send_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> RawResponse {
        self.try_send_with(method, path, headers, body).await.expect("the admin listener answers")
    }

    pub async fn try_send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<RawResponse, String> {
        self.try_send_with(method, path, &[], body).await
    }

    async fn try_send_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<RawResponse, String> {
        let mut request =
            Request::builder().method(method).uri(path).header("host", self.address.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = request.body(Full::new(bytes)).map_err(|error| error.to_string())?;
        within(
            &format!("the admin API's answer to {method} {path}"),
            send_http1_patiently(self.address, request),
        )
        .await
    }

    async fn json(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let response = self.send(method, path, body).await;
        let (status, tag) = (response.status, response.header("etag").map(str::to_owned));
        let text = response.text().await;
        let answer = serde_json::from_str(&text).unwrap_or(Value::String(text));
        if (200..300).contains(&status) {
            self.settled(method, path, &answer, tag.as_deref()).await;
        }
        (status, answer)
    }

    /// Waits until the other replicas have applied a change of anything of a tenant. `tag`: the
    /// entity tag of the answer. It is the same on every replica.
    async fn settled(&self, method: &str, path: &str, answer: &Value, tag: Option<&str>) {
        if !path.starts_with("/admin/v1/tenants/") {
            return;
        }
        for other in &self.others {
            let admin = self.of_other(other);
            eventually(&format!("another replica to know of {method} {path}"), || async {
                let known = match (method, answer["key"].as_str()) {
                    // The status of a GET without a session changes once the key is known.
                    ("POST", Some(key)) => {
                        TestClient::new(other.1, "/mcp")
                            .bearer(key)
                            .get_stream_raw(None)
                            .await
                            .status
                            != 401
                    }
                    // A policy, a toolset and a prompt have no time.
                    ("PUT", _) if answer["updated_at"].is_null() => {
                        admin.send("GET", path, None).await.header("etag") == tag
                    }
                    ("PUT", _) => {
                        Box::pin(admin.get(path)).await.1["updated_at"] == answer["updated_at"]
                    }
                    ("DELETE", _) if !path.contains("/keys/") => {
                        Box::pin(admin.get(path)).await.0 == 404
                    }
                    _ => true,
                };
                known.then_some(()).ok_or("unknown to it")
            })
            .await;
        }
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.json("GET", path, None).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        self.json("PUT", path, Some(body)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.json("POST", path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> (u16, Value) {
        self.json("DELETE", path, None).await
    }

    /// Sends a change that has to succeed, and returns its answer. While the database is busy, the
    /// change is sent again: on a slow machine many tests write at the same time.
    async fn change(&self, method: &str, path: &str, body: &Value) -> Value {
        let change = format!("{method} {path}");
        eventually(&change, || async {
            let (status, answer) = self.json(method, path, Some(body)).await;
            let is_busy = status == 503
                && answer["type"].as_str().is_some_and(|kind| kind.ends_with("store-unavailable"));
            let is_made = (200..300).contains(&status);
            assert!(is_made || is_busy, "{change}: {status} {answer}");
            if is_made { Ok(answer) } else { Err(answer) }
        })
        .await
    }

    pub async fn put_tenant(&self, tenant: &str, body: Value) {
        self.change("PUT", &format!("/admin/v1/tenants/{tenant}"), &body).await;
    }

    /// Returns a new API key of a tenant.
    pub async fn create_key(&self, tenant: &str) -> String {
        self.create_key_with_id(tenant).await.1
    }

    /// Returns a new API key: its id and the key.
    pub async fn create_key_with_id(&self, tenant: &str) -> (String, String) {
        let path = format!("/admin/v1/tenants/{tenant}/keys");
        let answer = self.change("POST", &path, &json!({})).await;
        let member = |name: &str| {
            answer[name]
                .as_str()
                .unwrap_or_else(|| panic!("a key answer has {name}: {answer}"))
                .to_owned()
        };
        (member("id"), member("key"))
    }

    pub fn backend_path(tenant: &str, backend: &str) -> String {
        format!("/admin/v1/tenants/{tenant}/backends/{backend}")
    }

    /// Registers a backend; the answer comes after its first handshake or failure.
    pub async fn put_backend(&self, tenant: &str, backend: &str, spec: &Value) -> (u16, Value) {
        self.put(&Self::backend_path(tenant, backend), spec).await
    }

    /// Registers a backend and insists that it is ready.
    pub async fn put_ready_backend(&self, tenant: &str, backend: &str, spec: &Value) {
        self.change("PUT", &Self::backend_path(tenant, backend), spec).await;
        self.wait_backend_state(tenant, backend, "ready").await;
    }

    pub async fn backend(&self, tenant: &str, backend: &str) -> Value {
        self.get(&Self::backend_path(tenant, backend)).await.1
    }

    pub async fn wait_backend_state(&self, tenant: &str, backend: &str, wanted: &str) -> Value {
        self.wait_backend(tenant, backend, wanted, |view| view["state"] == wanted).await
    }

    /// Waits for the state at every replica; returns the view of the first one.
    pub async fn wait_backend(
        &self,
        tenant: &str,
        backend: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut views = Vec::new();
        for admin in std::iter::once(self.clone())
            .chain(self.others.iter().map(|other| self.of_other(other)))
        {
            let view = eventually(&format!("backend {backend}: {what}"), || async {
                let view = admin.backend(tenant, backend).await;
                if wanted(&view) { Ok(view) } else { Err(view) }
            })
            .await;
            views.push(view);
        }
        views.swap_remove(0)
    }

    /// Returns the live sessions of a tenant.
    pub async fn sessions(&self, tenant: &str) -> Vec<Value> {
        let (_, answer) = self.get(&format!("/admin/v1/sessions?tenant={tenant}")).await;
        items(&answer, "sessions")
    }

    /// Waits until the tenant has this many sessions.
    pub async fn wait_sessions(&self, tenant: &str, wanted: usize) {
        eventually(&format!("{wanted} sessions of {tenant}"), || async {
            let sessions = self.sessions(tenant).await.len();
            if sessions == wanted { Ok(()) } else { Err(sessions) }
        })
        .await;
    }

    /// Returns the exposition text.
    pub async fn metrics(&self) -> String {
        self.send("GET", "/metrics", None).await.text().await
    }

    /// Returns the sum of a metric's samples that carry all these labels; `None` if there is none.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let mut text = self.metrics().await;
        for other in &self.others {
            text.push_str(&self.of_other(other).metrics().await);
        }
        let samples: Vec<f64> = text
            .lines()
            .filter(|line| sample_matches(line, name, labels))
            .filter_map(sample_value)
            .collect();
        (!samples.is_empty()).then(|| samples.iter().sum())
    }

    /// Waits until `wanted` accepts a metric, which is 0 if absent.
    pub async fn wait_metric(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        wanted: impl Fn(f64) -> bool,
    ) -> f64 {
        eventually(&format!("metric {name}{labels:?}"), || async {
            let value = self.metric(name, labels).await.unwrap_or(0.0);
            if wanted(value) { Ok(value) } else { Err(value) }
        })
        .await
    }
}

/// Returns the list in an answer that is either the list itself or an object with it as `member` or
/// `items`.
pub fn items(answer: &Value, member: &str) -> Vec<Value> {
    [answer, &answer[member], &answer["items"]]
        .into_iter()
        .find_map(Value::as_array)
        .cloned()
        .unwrap_or_default()
}

fn sample_matches(line: &str, name: &str, labels: &[(&str, &str)]) -> bool {
    let Some(rest) = line.strip_prefix(name) else { return false };
    (rest.starts_with('{') || rest.starts_with(' '))
        && labels.iter().all(|(label, value)| rest.contains(&format!("{label}=\"{value}\"")))
}

fn sample_value(line: &str) -> Option<f64> {
    line.rsplit(' ').next()?.parse().ok()
}
