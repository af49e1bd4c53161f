//! The two transports over HTTP as channels of texts: Streamable HTTP, and HTTP+SSE of 2024-11-05.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;
use tokio::{sync::mpsc, task::JoinSet};

use super::wire::{QUEUE, Wire};
use crate::{client::ACCEPT_BOTH, events::EventReader, http::send_http1};

type Incoming = mpsc::Sender<Result<String, String>>;

fn request(method: &str, address: SocketAddr, path: &str, headers: &[(&str, &str)], body: String) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", address.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body.into())).expect("a request")
}

async fn pass_on(mut events: EventReader, tell: Incoming) {
    while let Some(event) = events.advance().await {
        if let Some(text) = event.data.filter(|text| !text.is_empty()) {
            let _gone = tell.send(Ok(text)).await;
        }
    }
}

impl Wire {
    /// `GET /sse`, and a POST for each message; the status, when there is no stream.
    pub async fn legacy(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Result<Self, u16> {
        let owned: Vec<(String, String)> = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut all = headers.to_vec();
        all.push(("accept", "text/event-stream"));
        let response = send_http1(address, request("GET", address, path, &all, String::new())).await.expect("a response");
        if response.status != 200 {
            return Err(response.status);
        }
        let mut events = response.events();
        let first = events.advance().await.expect("a stream begins with an event");
        assert_eq!(first.event.as_deref(), Some("endpoint"));
        let messages = first.data.expect("the event names an address");
        let (out, mut outgoing) = mpsc::channel::<String>(QUEUE);
        let (tell, incoming) = mpsc::channel(QUEUE);
        let writing = tokio::spawn(async move {
            while let Some(text) = outgoing.recv().await {
                let mut headers: Vec<(&str, &str)> = owned.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                headers.push(("content-type", "application/json"));
                let answer = send_http1(address, request("POST", address, &messages, &headers, text)).await;
                if !answer.is_ok_and(|answer| answer.status == 202) {
                    return;
                }
            }
        });
        let reading = tokio::spawn(async move {
            pass_on(events, tell.clone()).await;
            let _gone = tell.send(Err("the end".to_owned())).await;
        });
        Ok(Self { out, incoming, tasks: vec![writing.abort_handle(), reading.abort_handle()] })
    }

    /// Streamable HTTP: a POST for each message, and a GET once the session is ready.
    pub fn streamable_http(address: SocketAddr, path: &'static str) -> Self {
        let (out, mut outgoing) = mpsc::channel::<String>(QUEUE);
        let (tell, incoming) = mpsc::channel(QUEUE);
        let session: Arc<Mutex<Option<String>>> = Arc::default();
        let task = tokio::spawn(async move {
            let mut posts = JoinSet::new();
            while let Some(text) = outgoing.recv().await {
                let message: Value = serde_json::from_str(&text).unwrap_or_default();
                let posted = post(address, path, text, session.clone(), tell.clone());
                match message["method"].as_str() {
                    Some("tools/call") => drop(posts.spawn(posted)),
                    // What follows builds on it.
                    method => {
                        posted.await;
                        if method == Some("notifications/initialized") {
                            posts.spawn(general(address, path, session.clone(), tell.clone()));
                        }
                    }
                }
            }
        });
        Self { out, incoming, tasks: vec![task.abort_handle()] }
    }
}

fn session_of(session: &Mutex<Option<String>>) -> Option<String> {
    session.lock().expect("nothing panics while it holds this lock").clone()
}

async fn post(address: SocketAddr, path: &'static str, text: String, session: Arc<Mutex<Option<String>>>, tell: Incoming) {
    let known = session_of(&session);
    let mut headers = vec![("content-type", "application/json"), ("accept", ACCEPT_BOTH)];
    headers.extend(known.as_deref().map(|id| ("mcp-session-id", id)));
    let response = send_http1(address, request("POST", address, path, &headers, text)).await.expect("a response");
    if let Some(id) = response.header("mcp-session-id") {
        *session.lock().expect("nothing panics while it holds this lock") = Some(id.to_owned());
    }
    if response.is_event_stream() {
        pass_on(response.events(), tell).await;
    } else if response.content_type() == "application/json" {
        let _gone = tell.send(Ok(response.text().await)).await;
    }
}

async fn general(address: SocketAddr, path: &'static str, session: Arc<Mutex<Option<String>>>, tell: Incoming) {
    let known = session_of(&session).unwrap_or_default();
    let headers = [("accept", "text/event-stream"), ("mcp-session-id", known.as_str())];
    let response = send_http1(address, request("GET", address, path, &headers, String::new())).await.expect("a response");
    pass_on(response.events(), tell).await;
}
