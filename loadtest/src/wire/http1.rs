//! Minimal HTTP/1.1 client for a load. A client library would cost more than the measured target. A
//! request is one write, an answer usually one read.

use anyhow::{Context as _, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::MESSAGE_BYTES_MAX;

const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Framing of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyLength {
    Known(usize),
    Chunked,
    /// The body ends with the connection.
    UntilClose,
}

#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) status: u16,
    pub(super) is_events: bool,
    pub(super) length: BodyLength,
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
    pub(super) closes: bool,
}

impl Response {
    /// Returns the messages in the response: the body, or one for each event.
    pub(super) fn messages(&self) -> anyhow::Result<Vec<Bytes>> {
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

/// An HTTP/1.1 connection for consecutive exchanges.
#[derive(Debug)]
pub struct HttpStream {
    pub(super) socket: TcpStream,
    /// Bytes read that are not part of a response yet.
    pub(super) buffer: BytesMut,
    request: Vec<u8>,
}

impl HttpStream {
    pub async fn connect(address: &str) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address)
            .await
            .with_context(|| format!("no connection to {address}"))?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: BytesMut::new(), request: Vec::new() })
    }

    /// Returns whether the server has closed the connection since the last response. Bytes that it
    /// sent meanwhile stay in the buffer.
    pub(super) fn has_ended(&mut self) -> bool {
        match self.socket.try_read_buf(&mut self.buffer) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }

    /// Sends a POST and waits for the response. `head` comes from
    /// [`post_head`](super::http::post_head).
    pub async fn post(&mut self, head: &str, body: &[u8]) -> anyhow::Result<Response> {
        self.request.clear();
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body.len().to_string().as_bytes());
        self.request.extend_from_slice(b"\r\n\r\n");
        self.request.extend_from_slice(body);
        self.socket.write_all(&self.request).await?;
        self.response().await
    }

    pub(super) async fn response(&mut self) -> anyhow::Result<Response> {
        let ResponseHead { status, is_events, length, session_id, closes } = self.head().await?;
        let body = match length {
            BodyLength::Known(length) => {
                while self.buffer.len() < length {
                    self.fill(length - self.buffer.len()).await?;
                }
                self.buffer.split_to(length).freeze()
            }
            BodyLength::Chunked => {
                let mut body = BytesMut::new();
                while let Some(chunk) = self.chunk().await? {
                    body.extend_from_slice(&chunk);
                }
                body.freeze()
            }
            BodyLength::UntilClose => {
                while self.read(0).await? > 0 {}
                self.buffer.split().freeze()
            }
        };
        Ok(Response { status, body, session_id, is_events, closes })
    }

    /// Returns the number of bytes read, which is zero at the end of the connection.
    async fn read(&mut self, wanted: usize) -> anyhow::Result<usize> {
        ensure!(self.buffer.len() <= MESSAGE_BYTES_MAX, "the response is too large");
        self.buffer.reserve(wanted.clamp(4096, 1024 * 1024));
        Ok(self.socket.read_buf(&mut self.buffer).await?)
    }

    async fn fill(&mut self, wanted: usize) -> anyhow::Result<()> {
        ensure!(self.read(wanted).await? > 0, "the connection ended in the middle of a response");
        Ok(())
    }

    pub(super) async fn head(&mut self) -> anyhow::Result<ResponseHead> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut response = httparse::Response::new(&mut headers);
            if let httparse::Status::Complete(bytes) = response.parse(&self.buffer)? {
                let head = head_of(&response)?;
                self.buffer.advance(bytes);
                // Interim responses precede the response.
                if head.status < 200 {
                    continue;
                }
                return Ok(head);
            }
            ensure!(self.buffer.len() <= HEAD_BYTES_MAX, "the head of the response is too large");
            self.fill(0).await?;
        }
    }

    /// Returns the next part of a body without a known length, or `None` at its end.
    pub(super) async fn part(&mut self, length: BodyLength) -> anyhow::Result<Option<Bytes>> {
        match length {
            BodyLength::Known(_) => bail!("an event stream of a known length"),
            BodyLength::Chunked => self.chunk().await,
            BodyLength::UntilClose => {
                let is_over = self.buffer.is_empty() && self.read(0).await? == 0;
                Ok((!is_over).then(|| self.buffer.split().freeze()))
            }
        }
    }

    /// Returns the next part of a chunked body, or `None` after the last one.
    async fn chunk(&mut self) -> anyhow::Result<Option<Bytes>> {
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
        ensure!(self.buffer.starts_with(b"\r\n"), "a chunk does not end at its stated size");
        self.buffer.advance(2);
        Ok((size > 0).then_some(chunk))
    }
}

fn head_of(response: &httparse::Response<'_, '_>) -> anyhow::Result<ResponseHead> {
    let status = response.code.context("a response has a status")?;
    // 202 and 204 may come without a length. They have no body then.
    let is_empty = matches!(status, 202 | 204);
    let mut head = ResponseHead {
        status,
        is_events: false,
        length: if is_empty { BodyLength::Known(0) } else { BodyLength::UntilClose },
        session_id: None,
        // HTTP/1.0 keeps a connection only if a header says so.
        closes: response.version == Some(0),
    };
    for header in response.headers.iter() {
        let value = std::str::from_utf8(header.value)?.trim();
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            head.length = BodyLength::Known(value.parse()?);
        } else if is("transfer-encoding") {
            head.length = BodyLength::Chunked;
        } else if is("content-type") {
            head.is_events = value.starts_with("text/event-stream");
        } else if is("mcp-session-id") {
            head.session_id = Some(value.to_owned());
        } else if is("connection") {
            head.closes = value.eq_ignore_ascii_case("close");
        }
    }
    head.closes |= head.length == BodyLength::UntilClose;
    Ok(head)
}
