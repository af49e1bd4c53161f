//! The two transports over HTTP as channels of texts: Streamable HTTP, and HTTP+SSE of 2024-11-05.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinSet};

use super::wire::{QUEUE, Wire};
use crate::{
    abort_on_drop::AbortOnDrop,
    client::ACCEPT_BOTH,
    events::EventReader,
    http::{RawResponse, send_http1},
    stateless_request::request_headers,
};

type IncomingSender = mpsc::Sender<Result<String, String>>;

fn request(
    method: &str,
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Request<Full<Bytes>> {
    let mut request =
        Request::builder().method(method).uri(path).header("host", address.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body.into())).expect("a request")
}

async fn pass_on(mut events: EventReader, sender: IncomingSender) {
    while let Some(event) = events.advance().await {
        if let Some(text) = event.data.filter(|text| !text.is_empty()) {
            let _gone = sender.send(Ok(text)).await;
        }
    }
}

impl Wire {
    /// Opens the stream with `GET /sse`, and sends a POST for each message. `Err`: the status, if
    /// there is not a stream.
    pub async fn http_sse(
        address: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Self, u16> {
        let owned: Vec<(String, String)> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut all = headers.to_vec();
        all.push(("accept", "text/event-stream"));
        let response = send_http1(address, request("GET", address, path, &all, String::new()))
            .await
            .expect("a response");
        if response.status != 200 {
            return Err(response.status);
        }
        let mut events = response.events();
        let first = events.advance().await.expect("a stream begins with an event");
        assert_eq!(first.event.as_deref(), Some("endpoint"));
        let messages = first.data.expect("the event names an address");
        let (out, mut outgoing) = mpsc::channel::<String>(QUEUE);
        let (sender, incoming) = mpsc::channel(QUEUE);
        let writing = tokio::spawn(async move {
            while let Some(text) = outgoing.recv().await {
                let mut headers: Vec<(&str, &str)> =
                    owned.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                headers.push(("content-type", "application/json"));
                let answer =
                    send_http1(address, request("POST", address, &messages, &headers, text)).await;
                if !answer.is_ok_and(|answer| answer.status == 202) {
                    return;
                }
            }
        });
        let reading = tokio::spawn(async move {
            // A client that is gone reads no more.
            tokio::select! {
                () = pass_on(events, sender.clone()) => {}
                () = sender.closed() => {}
            }
            let _gone = sender.send(Err("the end".to_owned())).await;
        });
        Ok(Self { out, incoming, tasks: vec![writing.abort_handle(), reading.abort_handle()] })
    }

    /// Uses Streamable HTTP: a POST for each message, and a GET once the session is ready. The
    /// session is ended when the sending half is dropped.
    pub fn streamable_http(address: SocketAddr, path: &str) -> Self {
        let (out, mut outgoing) = mpsc::channel::<String>(QUEUE);
        let (sender, incoming) = mpsc::channel(QUEUE);
        let endpoint = HttpEndpoint { address, path: path.to_owned(), known: Arc::default() };
        let task = tokio::spawn(async move {
            let mut posts = JoinSet::new();
            while let Some(text) = outgoing.recv().await {
                let message: Value = serde_json::from_str(&text).unwrap_or_default();
                let posted = post(endpoint.clone(), text, sender.clone());
                match message["method"].as_str() {
                    Some(method) if method != "initialize" && message.get("id").is_some() => {
                        drop(posts.spawn(posted))
                    }
                    // Later messages depend on its answer.
                    method => {
                        posted.await;
                        if method == Some("notifications/initialized") {
                            posts.spawn(general(endpoint.clone(), sender.clone()));
                        }
                    }
                }
            }
            endpoint.end_session().await;
        });
        Self { out, incoming, tasks: vec![task.abort_handle()] }
    }

    /// Uses Streamable HTTP of 2026-07-28: a POST for each request, closed to cancel it. An error
    /// with a status that does not belong to it ends the connection.
    pub fn stateless_http(address: SocketAddr, path: &str) -> Self {
        let (out, mut outgoing) = mpsc::channel::<String>(QUEUE);
        let (sender, incoming) = mpsc::channel(QUEUE);
        let endpoint = HttpEndpoint { address, path: path.to_owned(), known: Arc::default() };
        let task = tokio::spawn(async move {
            let mut posts: HashMap<String, AbortOnDrop> = HashMap::new();
            while let Some(text) = outgoing.recv().await {
                let message: Value = serde_json::from_str(&text).unwrap_or_default();
                if message["method"] == "notifications/cancelled" {
                    posts.remove(&message["params"]["requestId"].to_string());
                    continue;
                }
                posts.retain(|_, post| !post.0.is_finished());
                let posted = tokio::spawn(post_stateless(endpoint.clone(), text, sender.clone()));
                posts.insert(message["id"].to_string(), AbortOnDrop(posted));
            }
        });
        Self { out, incoming, tasks: vec![task.abort_handle()] }
    }
}

/// Address that a client posts to, and the headers of its session.
#[derive(Clone)]
struct HttpEndpoint {
    address: SocketAddr,
    path: String,
    known: Arc<Mutex<SessionHeaders>>,
}

#[derive(Default, Clone)]
struct SessionHeaders {
    session: Option<String>,
    /// Agreed version, if requests have to carry it.
    version: Option<String>,
}

impl HttpEndpoint {
    fn known(&self) -> MutexGuard<'_, SessionHeaders> {
        self.known.lock()
    }

    async fn send(&self, method: &str, headers: &[(&str, &str)], body: String) -> RawResponse {
        send_http1(self.address, self.request(method, headers, body)).await.expect("a response")
    }

    /// Ends the session, if there is one and the broker knows it.
    async fn end_session(&self) {
        if self.known().session.is_some() {
            let _gone = send_http1(self.address, self.request("DELETE", &[], String::new())).await;
        }
    }

    fn request(
        &self,
        method: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Request<Full<Bytes>> {
        let SessionHeaders { session, version } = self.known().clone();
        let mut headers = headers.to_vec();
        headers.extend(session.as_deref().map(|id| ("mcp-session-id", id)));
        headers.extend(version.as_deref().map(|version| ("mcp-protocol-version", version)));
        request(method, self.address, &self.path, &headers, body)
    }
}

/// The first revision that has the header.
const VERSION_HEADER_SINCE: &str = "2025-06-18";

async fn post(endpoint: HttpEndpoint, text: String, sender: IncomingSender) {
    let response = endpoint
        .send("POST", &[("content-type", "application/json"), ("accept", ACCEPT_BOTH)], text)
        .await;
    if let Some(id) = response.header("mcp-session-id") {
        endpoint.known().session = Some(id.to_owned());
    }
    if response.is_event_stream() {
        pass_on(response.events(), sender).await;
    } else if response.content_type() == "application/json" {
        let text = response.text().await;
        let message: Value = serde_json::from_str(&text).unwrap_or_default();
        if let Some(agreed) = message["result"]["protocolVersion"]
            .as_str()
            .filter(|agreed| *agreed >= VERSION_HEADER_SINCE)
        {
            endpoint.known().version = Some(agreed.to_owned());
        }
        let _gone = sender.send(Ok(text)).await;
    }
}

async fn general(endpoint: HttpEndpoint, sender: IncomingSender) {
    pass_on(
        endpoint.send("GET", &[("accept", "text/event-stream")], String::new()).await.events(),
        sender,
    )
    .await;
}

/// Sends a request of 2026-07-28, with headers that repeat its body.
async fn post_stateless(endpoint: HttpEndpoint, text: String, sender: IncomingSender) {
    let message: Value = serde_json::from_str(&text).unwrap_or_default();
    let (method, params) = (message["method"].as_str().unwrap_or_default(), &message["params"]);
    let mut headers = vec![("content-type", "application/json"), ("accept", ACCEPT_BOTH)];
    headers.extend(request_headers(method, params));
    let response = endpoint.send("POST", &headers, text).await;
    if response.is_event_stream() {
        return pass_on(response.events(), sender).await;
    }
    let status = response.status;
    let text = response.text().await;
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    let reply = match answer["error"]["code"].as_i64() {
        Some(-32601) if status != 404 => Err(format!("status {status} with {text}")),
        Some(-32022..=-32020) if status != 400 => Err(format!("status {status} with {text}")),
        _ => Ok(text),
    };
    let _gone = sender.send(reply).await;
}
