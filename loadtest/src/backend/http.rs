//! The server over Streamable HTTP, with JSON answers and without sessions. A request is usually
//! one read, an answer one write.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::responder::Responder;

const HEADERS_MAX: usize = 64;
const BODY_BYTES_MAX: usize = 128 * 1024 * 1024;

struct RequestHead {
    bytes: usize,
    is_post: bool,
    body_bytes: usize,
}

pub(super) async fn serve(mut socket: TcpStream, answers: Arc<Responder>) -> anyhow::Result<()> {
    let mut buffer = BytesMut::new();
    let mut out = Vec::new();
    loop {
        let Some(head) = head(&mut socket, &mut buffer).await? else { return Ok(()) };
        buffer.advance(head.bytes);
        while buffer.len() < head.body_bytes {
            let missing = head.body_bytes - buffer.len();
            fill(&mut socket, &mut buffer, missing).await?;
        }
        let body = buffer.split_to(head.body_bytes);
        let response =
            if head.is_post { answers.respond(&body) } else { super::responder::Reply::default() };
        if response.is_call && !answers.delay().is_zero() {
            tokio::time::sleep(answers.delay()).await;
        }
        out.clear();
        write_response(&mut out, head.is_post, response.answer);
        socket.write_all(&out).await?;
    }
}

fn write_response(out: &mut Vec<u8>, is_post: bool, answer: Option<Bytes>) {
    match answer {
        Some(answer) => {
            out.extend_from_slice(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ",
            );
            out.extend_from_slice(answer.len().to_string().as_bytes());
            out.extend_from_slice(b"\r\n\r\n");
            out.extend_from_slice(&answer);
        }
        None if is_post => {
            out.extend_from_slice(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
        }
        // The server has no streams and no sessions to end (MCP 2025-11-25, Transports).
        None => out.extend_from_slice(
            b"HTTP/1.1 405 Method Not Allowed\r\nAllow: POST\r\nContent-Length: 0\r\n\r\n",
        ),
    }
}

/// Returns the next request's head, or `None` when the client has closed the connection.
async fn head(
    socket: &mut TcpStream,
    buffer: &mut BytesMut,
) -> anyhow::Result<Option<RequestHead>> {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        if let httparse::Status::Complete(bytes) = request.parse(buffer)? {
            let length = request
                .headers
                .iter()
                .find(|header| header.name.eq_ignore_ascii_case("content-length"));
            let body_bytes = length.map_or(Ok(0), |length| {
                std::str::from_utf8(length.value).context("a length")?.parse().context("a length")
            })?;
            ensure!(body_bytes <= BODY_BYTES_MAX, "the body is too large");
            return Ok(Some(RequestHead {
                bytes,
                is_post: request.method == Some("POST"),
                body_bytes,
            }));
        }
        buffer.reserve(4096);
        if socket.read_buf(buffer).await? == 0 {
            ensure!(buffer.is_empty(), "the connection ended in the middle of a request");
            return Ok(None);
        }
    }
}

async fn fill(socket: &mut TcpStream, buffer: &mut BytesMut, wanted: usize) -> anyhow::Result<()> {
    buffer.reserve(wanted.min(1024 * 1024));
    ensure!(socket.read_buf(buffer).await? > 0, "the connection ended in the middle of a request");
    Ok(())
}
