//! A session over Streamable HTTP. A message on a connection other than its answer is a finding.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, anyhow, ensure};
use bytes::Bytes;
use parking_lot::Mutex;
use protocol::Version;
use tokio::{io::AsyncWriteExt as _, task::AbortHandle};

use super::{
    LoadTarget, NoAnswer, get_stream,
    http1::{HttpStream, Response},
};
use crate::{
    answer::{self, Incoming},
    era::Era,
    findings::{FindingKind, excerpt},
    target::Target,
};

/// The parts that all requests of a session share.
#[derive(Debug)]
pub(super) struct HttpSession {
    /// From the request line to the name of the last header, `Content-Length`.
    post_head: String,
    /// Whole requests without a body, one for each of the two methods.
    get: String,
    delete: String,
    has_session_id: bool,
    listening: Mutex<Option<AbortHandle>>,
    ended: AtomicBool,
}

/// Returns the header lines that every request has, without the request line. `revision` is `None`
/// until the server has agreed on one.
fn headers(
    target: &Target,
    key: Option<&str>,
    session_id: Option<&str>,
    revision: Option<&str>,
) -> String {
    let mut lines = format!("Host: {}\r\n", target.address);
    let bearer = key.map(|key| format!("Bearer {key}"));
    for (name, value) in [
        ("Authorization", bearer.as_deref()),
        ("Mcp-Session-Id", session_id),
        ("MCP-Protocol-Version", revision),
    ] {
        if let Some(value) = value {
            lines += &format!("{name}: {value}\r\n");
        }
    }
    lines
}

fn post_head_of(target: &Target, headers: &str) -> String {
    let kinds = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    format!("POST {} HTTP/1.1\r\n{headers}{kinds}Content-Length: ", target.path)
}

/// Returns the head of a POST up to the length of the body. A session has the newest revision.
pub fn post_head(target: &Target, key: Option<&str>, session_id: Option<&str>) -> String {
    let revision = session_id.map(|_| Era::Sessions.version());
    post_head_of(target, &headers(target, key, session_id, revision))
}

/// Returns the revision in the answer to `initialize`. Without a known one, the session has the
/// requested revision.
fn agreed_revision(answer: &[u8]) -> &'static str {
    let result = answer::read(answer).and_then(|answer| answer.result).unwrap_or_default();
    let agreed = result["protocolVersion"]
        .as_str()
        .and_then(Version::parse)
        .filter(|agreed| agreed.has_sessions());
    agreed.map_or(Era::Sessions.version(), Version::as_str)
}

fn first_answer(response: Response) -> anyhow::Result<Bytes> {
    let answer = response
        .messages()?
        .into_iter()
        .find(|frame| answer::incoming(frame) == Incoming::Answer(0));
    answer.context("no answer to the first request")
}

impl HttpSession {
    pub(super) async fn open(
        site: &LoadTarget,
        key: Option<&str>,
        initialize: Bytes,
        initialized: Bytes,
    ) -> anyhow::Result<(Self, Bytes)> {
        let target = &site.target;
        let mut stream = HttpStream::connect(&target.address).await?;
        let opened = stream.post(&post_head(target, key, None), &initialize).await?;
        ensure!(
            opened.status == 200,
            "initialize got HTTP status {}: {}",
            opened.status,
            excerpt(&opened.body)
        );
        let (id, closes) = (opened.session_id.clone(), opened.closes);
        let answer = first_answer(opened)?;
        let common = headers(target, key, id.as_deref(), Some(agreed_revision(&answer)));
        let without_body = |method: &str| {
            format!(
                "{method} {} HTTP/1.1\r\n{common}Accept: text/event-stream\r\nContent-Length: 0\r\n\r\n",
                target.path
            )
        };
        let session = Self {
            post_head: post_head_of(target, &common),
            get: without_body("GET"),
            delete: without_body("DELETE"),
            has_session_id: id.is_some(),
            listening: Mutex::default(),
            ended: AtomicBool::new(false),
        };
        if closes {
            stream = HttpStream::connect(&target.address).await?;
        }
        let accepted = stream.post(&session.post_head, &initialized).await?;
        ensure!(
            accepted.status == 202,
            "notifications/initialized got HTTP status {}",
            accepted.status
        );
        Ok((session, answer))
    }

    /// Creates a session for stateless requests, each of which has its own head.
    pub(super) async fn stateless(
        site: &LoadTarget,
        head: &str,
        discover: &[u8],
    ) -> anyhow::Result<(Self, Bytes)> {
        let found = HttpStream::connect(&site.target.address).await?.post(head, discover).await?;
        ensure!(
            found.status == 200,
            "server/discover got HTTP status {}: {}",
            found.status,
            excerpt(&found.body)
        );
        let (post_head, get, delete) = (String::new(), String::new(), String::new());
        let (listening, ended) = (Mutex::default(), AtomicBool::new(false));
        let session = Self { post_head, get, delete, has_session_id: false, listening, ended };
        Ok((session, first_answer(found)?))
    }

    /// Sends a request on a lane's own connection. Opens the connection if the lane has none.
    pub(super) async fn call(
        &self,
        site: &LoadTarget,
        kept: &mut Option<HttpStream>,
        id: u64,
        head: Option<&str>,
        request: Bytes,
    ) -> Result<Bytes, NoAnswer> {
        let lost = |error: anyhow::Error| NoAnswer::Lost(format!("request {id}: {error:#}"));
        // A server closes a connection that was idle for its time limit, without a fault.
        let mut stream = match kept.take_if(|stream| !stream.has_ended()) {
            Some(stream) => stream,
            None => HttpStream::connect(&site.target.address).await.map_err(lost)?,
        };
        let response =
            stream.post(head.unwrap_or(&self.post_head), &request).await.map_err(lost)?;
        if !stream.buffer.is_empty() {
            site.findings.record(
                FindingKind::Duplicate,
                &format!("after the answer to request {id}: {}", excerpt(&stream.buffer)),
            );
        } else if !response.closes {
            *kept = Some(stream);
        }
        if response.status != 200 {
            return Err(NoAnswer::Status(response.status));
        }
        let mut own = None;
        for frame in response.messages().map_err(lost)? {
            match answer::incoming(&frame) {
                Incoming::Answer(number) if number == id && own.is_none() => own = Some(frame),
                Incoming::Answer(number) => {
                    // The number may belong to a request with or without an answer, or to none. It
                    // is certainly not this request's.
                    let wrong =
                        if number == id { FindingKind::Duplicate } else { FindingKind::Swapped };
                    site.findings.record(wrong, &format!("request {id} got {}", excerpt(&frame)));
                    *kept = None;
                    if own.is_none() {
                        return Err(NoAnswer::Wrong);
                    }
                }
                Incoming::Notification(_) | Incoming::Request { .. } => site.count_notification(),
                Incoming::Unreadable => {
                    site.findings.record(
                        FindingKind::Corrupted,
                        &format!("request {id} got {}", excerpt(&frame)),
                    );
                    return Err(NoAnswer::Wrong);
                }
            }
        }
        own.ok_or_else(|| NoAnswer::Lost(format!("the response to request {id} holds no answer")))
    }

    /// Opens a GET stream and counts the messages on it.
    pub(super) async fn listen(&self, site: &Arc<LoadTarget>) -> anyhow::Result<()> {
        let opening = async {
            let mut stream = HttpStream::connect(&site.target.address).await?;
            stream.socket.write_all(self.get.as_bytes()).await?;
            let head = stream.head().await?;
            anyhow::Ok((stream, head))
        };
        // Some servers send the head together with the first event only.
        let opened = tokio::time::timeout(site.timeout, opening).await;
        let (stream, head) = opened.map_err(|_| {
            anyhow!("GET got no head of a response within {:?}; without `listen`, the load needs no GET stream", site.timeout)
        })??;
        ensure!(head.status == 200 && head.is_events, "GET got HTTP status {}", head.status);
        let site = site.clone();
        let reading = tokio::spawn(async move {
            let _ended = get_stream::count(&site, stream, head.length).await;
            site.count_ended_stream();
        });
        *self.listening.lock() = Some(reading.abort_handle());
        Ok(())
    }

    pub(super) async fn close(&self, site: &LoadTarget) {
        if let Some(reading) = self.listening.lock().take() {
            reading.abort();
        }
        if self.has_session_id && !self.ended.swap(true, Ordering::Relaxed) {
            let deleting = async {
                let mut stream = HttpStream::connect(&site.target.address).await?;
                stream.socket.write_all(self.delete.as_bytes()).await?;
                stream.response().await
            };
            // Without this request the session ends after its timeout.
            let _deleted = tokio::time::timeout(site.timeout, deleting).await;
        }
    }
}
