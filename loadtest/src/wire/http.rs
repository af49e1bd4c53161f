//! A session over Streamable HTTP, and HTTP/1.1 as far as a load needs it.
//!
//! Written by hand, because a client library would cost more than what is measured: a request is one write, an answer mostly
//! one read. What a connection says beyond the answer it owes is a finding.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Context as _, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::AbortHandle,
};

use super::{MESSAGE_BYTES_MAX, NoAnswer, Site, listening};
use crate::{
    answer::{self, Incoming},
    era::Era,
    findings::{Wrong, excerpt},
    target::Target,
};

const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// What is the same for all requests of a session.
#[derive(Debug)]
pub(super) struct HttpSession {
    /// From the request line to the name of the last header, `Content-Length`.
    post_head: String,
    /// All of a request without a body, for each of the two methods.
    get: String,
    delete: String,
    has_session_id: bool,
    listening: Mutex<Option<AbortHandle>>,
    ended: AtomicBool,
}

/// The lines every request has but the first one.
fn headers(target: &Target, key: Option<&str>, session_id: Option<&str>) -> String {
    let mut lines = format!("Host: {}\r\n", target.address);
    if let Some(key) = key {
        lines += &format!("Authorization: Bearer {key}\r\n");
    }
    if let Some(id) = session_id {
        lines += &format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: {}\r\n", Era::Sessions.version());
    }
    lines
}

/// All before the length of the body.
pub fn post_head(target: &Target, key: Option<&str>, session_id: Option<&str>) -> String {
    let common = headers(target, key, session_id);
    let kinds = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    format!("POST {} HTTP/1.1\r\n{common}{kinds}Content-Length: ", target.path)
}

fn first_answer(response: Response) -> anyhow::Result<Bytes> {
    let answer = response.messages()?.into_iter().find(|frame| answer::incoming(frame) == Incoming::Answer(0));
    answer.context("no answer to the first request")
}

impl HttpSession {
    pub(super) async fn open(site: &Site, key: Option<&str>, initialize: Bytes, initialized: Bytes) -> anyhow::Result<(Self, Bytes)> {
        let target = &site.target;
        let mut stream = HttpStream::connect(&target.address).await?;
        let opened = stream.post(&post_head(target, key, None), &initialize).await?;
        ensure!(opened.status == 200, "initialize got HTTP status {}: {}", opened.status, excerpt(&opened.body));
        let id = opened.session_id.as_deref();
        let common = headers(target, key, id);
        let without_body =
            |method: &str| format!("{method} {} HTTP/1.1\r\n{common}Accept: text/event-stream\r\nContent-Length: 0\r\n\r\n", target.path);
        let session = Self {
            post_head: post_head(target, key, id),
            get: without_body("GET"),
            delete: without_body("DELETE"),
            has_session_id: id.is_some(),
            listening: Mutex::default(),
            ended: AtomicBool::new(false),
        };
        let accepted = stream.post(&session.post_head, &initialized).await?;
        ensure!(accepted.status == 202, "notifications/initialized got HTTP status {}", accepted.status);
        Ok((session, first_answer(opened)?))
    }

    /// For requests that stand alone, each with a head of its own.
    pub(super) async fn alone(site: &Site, head: &str, discover: &[u8]) -> anyhow::Result<(Self, Bytes)> {
        let found = HttpStream::connect(&site.target.address).await?.post(head, discover).await?;
        ensure!(found.status == 200, "server/discover got HTTP status {}: {}", found.status, excerpt(&found.body));
        let (post_head, get, delete) = (String::new(), String::new(), String::new());
        let (listening, ended) = (Mutex::default(), AtomicBool::new(false));
        let session = Self { post_head, get, delete, has_session_id: false, listening, ended };
        Ok((session, first_answer(found)?))
    }

    /// A request on a lane's own connection, which is opened when there is none.
    pub(super) async fn call(
        &self,
        site: &Site,
        kept: &mut Option<HttpStream>,
        id: u64,
        head: Option<&str>,
        request: Bytes,
    ) -> Result<Bytes, NoAnswer> {
        let lost = |error: anyhow::Error| NoAnswer::Lost(format!("request {id}: {error:#}"));
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => HttpStream::connect(&site.target.address).await.map_err(lost)?,
        };
        let response = stream.post(head.unwrap_or(&self.post_head), &request).await.map_err(lost)?;
        if !stream.buffer.is_empty() {
            site.findings.note(Wrong::Doubled, &format!("after the answer to request {id}: {}", excerpt(&stream.buffer)));
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
                    // One that has had its answer, one that has not, or none at all: all that is known is that it is not ours.
                    let wrong = if number == id { Wrong::Doubled } else { Wrong::Swapped };
                    site.findings.note(wrong, &format!("request {id} got {}", excerpt(&frame)));
                    *kept = None;
                    if own.is_none() {
                        return Err(NoAnswer::Wrong);
                    }
                }
                Incoming::Notification(_) | Incoming::Request { .. } => site.notified(),
                Incoming::Unreadable => {
                    site.findings.note(Wrong::Corrupted, &format!("request {id} got {}", excerpt(&frame)));
                    return Err(NoAnswer::Wrong);
                }
            }
        }
        own.ok_or_else(|| NoAnswer::Lost(format!("the response to request {id} holds no answer")))
    }

    /// Opens a GET stream and counts what comes on it.
    pub(super) async fn listen(&self, site: &Arc<Site>) -> anyhow::Result<()> {
        let mut stream = HttpStream::connect(&site.target.address).await?;
        stream.socket.write_all(self.get.as_bytes()).await?;
        let head = stream.head().await?;
        ensure!(head.status == 200 && head.is_events, "GET got HTTP status {}", head.status);
        let site = site.clone();
        let reading = tokio::spawn(async move { listening::count(&site, stream, head.length).await });
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading.abort_handle());
        Ok(())
    }

    pub(super) async fn close(&self, site: &Site) {
        if let Some(reading) = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take() {
            reading.abort();
        }
        if self.has_session_id && !self.ended.swap(true, Ordering::Relaxed) {
            let deleting = async {
                let mut stream = HttpStream::connect(&site.target.address).await?;
                stream.socket.write_all(self.delete.as_bytes()).await?;
                stream.response().await
            };
            // The session ends all the same, by and by.
            let _deleted = tokio::time::timeout(site.timeout, deleting).await;
        }
    }
}

/// How a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Known(usize),
    Chunked,
}

#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) is_events: bool,
    pub(super) length: Length,
    session_id: Option<String>,
    closes: bool,
}

/// A whole response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub body: Bytes,
    pub session_id: Option<String>,
    is_events: bool,
    closes: bool,
}

impl Response {
    /// The messages in it: the body, or one for each event.
    fn messages(&self) -> anyhow::Result<Vec<Bytes>> {
        if !self.is_events {
            return Ok(vec![self.body.clone()]);
        }
        let mut events = protocol::sse::SseParser::new(MESSAGE_BYTES_MAX);
        events.push(&self.body);
        let mut messages = Vec::new();
        while let Some(event) = events.next_event()? {
            messages.extend(event.data.filter(|data| !data.is_empty()));
        }
        Ok(messages)
    }
}

/// An HTTP/1.1 connection for one exchange after the other.
#[derive(Debug)]
pub struct HttpStream {
    pub(super) socket: TcpStream,
    /// Read, and not part of a response yet.
    pub(super) buffer: BytesMut,
    request: Vec<u8>,
}

impl HttpStream {
    pub async fn connect(address: &str) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address).await.with_context(|| format!("no connection to {address}"))?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: BytesMut::new(), request: Vec::new() })
    }

    /// `head` as [`post_head`] makes it.
    pub async fn post(&mut self, head: &str, body: &[u8]) -> anyhow::Result<Response> {
        self.request.clear();
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body.len().to_string().as_bytes());
        self.request.extend_from_slice(b"\r\n\r\n");
        self.request.extend_from_slice(body);
        self.socket.write_all(&self.request).await?;
        self.response().await
    }

    async fn response(&mut self) -> anyhow::Result<Response> {
        let Head { status, is_events, length, session_id, closes } = self.head().await?;
        let body = match length {
            Length::Known(length) => {
                while self.buffer.len() < length {
                    self.fill(length - self.buffer.len()).await?;
                }
                self.buffer.split_to(length).freeze()
            }
            Length::Chunked => {
                let mut body = BytesMut::new();
                while let Some(chunk) = self.chunk().await? {
                    body.extend_from_slice(&chunk);
                }
                body.freeze()
            }
        };
        Ok(Response { status, body, session_id, is_events, closes })
    }

    async fn fill(&mut self, wanted: usize) -> anyhow::Result<()> {
        ensure!(self.buffer.len() <= MESSAGE_BYTES_MAX, "the response is endless");
        self.buffer.reserve(wanted.clamp(4096, 1024 * 1024));
        ensure!(self.socket.read_buf(&mut self.buffer).await? > 0, "the connection ended in the middle of a response");
        Ok(())
    }

    pub(super) async fn head(&mut self) -> anyhow::Result<Head> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut response = httparse::Response::new(&mut headers);
            if let httparse::Status::Complete(bytes) = response.parse(&self.buffer)? {
                let head = head_of(&response)?;
                self.buffer.advance(bytes);
                return Ok(head);
            }
            ensure!(self.buffer.len() <= HEAD_BYTES_MAX, "the response's head is endless");
            self.fill(0).await?;
        }
    }

    /// The next part of a chunked body; `None` after the last one.
    pub(super) async fn chunk(&mut self) -> anyhow::Result<Option<Bytes>> {
        let (line, size) = loop {
            match httparse::parse_chunk_size(&self.buffer) {
                Ok(httparse::Status::Complete(found)) => break found,
                Ok(httparse::Status::Partial) => self.fill(0).await?,
                Err(_) => bail!("a chunk has no size"),
            }
        };
        let size = usize::try_from(size)?;
        ensure!(size <= MESSAGE_BYTES_MAX, "a chunk is too large");
        while self.buffer.len() < line + size + 2 {
            self.fill(line + size + 2 - self.buffer.len()).await?;
        }
        self.buffer.advance(line);
        let chunk = self.buffer.split_to(size).freeze();
        ensure!(self.buffer.starts_with(b"\r\n"), "a chunk does not end where it says");
        self.buffer.advance(2);
        Ok((size > 0).then_some(chunk))
    }
}

fn head_of(response: &httparse::Response<'_, '_>) -> anyhow::Result<Head> {
    let status = response.code.context("a response has a status")?;
    // 202 and 204 may come without a length; there is no body then.
    let mut head = Head { status, is_events: false, length: Length::Known(0), session_id: None, closes: false };
    for header in response.headers.iter() {
        let value = std::str::from_utf8(header.value)?.trim();
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            head.length = Length::Known(value.parse()?);
        } else if is("transfer-encoding") {
            head.length = Length::Chunked;
        } else if is("content-type") {
            head.is_events = value.starts_with("text/event-stream");
        } else if is("mcp-session-id") {
            head.session_id = Some(value.to_owned());
        } else if is("connection") {
            head.closes = value.eq_ignore_ascii_case("close");
        }
    }
    Ok(head)
}
