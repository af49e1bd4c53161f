//! HTTP/1.1 without TLS in the server's role, for plain POSTs: each is read and answered by the task that serves it.
//!
//! Used by the HTTP listener for clients' calls. A general server passes requests, bodies and responses between a connection and
//! a service, and reads every head anew; here nothing is passed on, and a head that says again what the last one said is not read
//! again. What is not plain (another method, another version, chunks, `Expect`, `Upgrade`, and whatever can be read in two ways)
//! is not looked at any further: the connection goes to the library as it is, with what was read of it ([`ServerConnection::into_unread`]).
//! Invariants: a connection has one request at a time; one whose request was not all there is closed behind the answer.

mod body;
mod head;
mod response_head;

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Response, request::Parts};
use http_body::{Body, Frame};
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
};

pub use self::body::RequestBody;
use self::{
    body::is_wasteful,
    head::{ParsedHead, RequestHead, RequestLengths},
    response_head::{LAST_CHUNK, ResponseFraming},
};
use crate::{linger::Linger, stall::StallGuard, write_batching::turn};

/// What the head of an answer takes, with room to spare.
const HEAD_BYTES_USUAL: usize = 512;
/// How much is read at once: as much as the last request took, within these.
const READ_BYTES_MIN: usize = 1024;
const READ_BYTES_MAX: usize = 128 * 1024;
/// Pieces of an answer up to this size are copied, to be written together.
const COPIED_BYTES_MAX: usize = 8 * 1024;
/// A connection of a client, for as long as all it sends are plain POSTs.
#[derive(Debug)]
pub struct ServerConnection {
    socket: StallGuard<TcpStream>,
    /// Read and not taken yet.
    buffer: BytesMut,
    read_bytes: usize,
    head_bytes_max: usize,
    /// How much of a head that is not all there yet was looked at.
    seen: usize,
    head: Option<Box<RequestHead>>,
    /// The request before had the same.
    is_repeated: bool,
    /// Of the request that the buffer begins with.
    lengths: RequestLengths,
    /// Bytes of the body that nobody has taken.
    left: AtomicUsize,
}

/// What comes next on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextRequest {
    /// A plain POST, whose head is all there.
    Post,
    /// Something else.
    Other,
    /// Its client has closed it.
    Closed,
}

/// A request, while its answer is made.
#[derive(Debug)]
pub struct PostRequest<'a> {
    pub head: &'a Parts,
    /// The head of the request before said the same, but for the length of the body.
    pub is_repeated: bool,
    pub body: RequestBody<'a>,
    pub client: ClientWatch<'a>,
}

/// Whoever waits for an answer.
#[derive(Debug)]
pub struct ClientWatch<'a> {
    socket: &'a TcpStream,
    left: &'a AtomicUsize,
}

impl ClientWatch<'_> {
    /// Resolves when the client hangs up. One that says more meanwhile is looked at when it has its answer.
    pub async fn hung_up(&self) {
        poll_fn(|context| {
            // Its body is read by somebody else.
            if self.left.load(Ordering::Relaxed) > 0 {
                return Poll::Pending;
            }
            match ready!(self.socket.poll_peek(context, &mut ReadBuf::new(&mut [0]))) {
                Ok(1..) => Poll::Pending,
                Ok(0) | Err(_) => Poll::Ready(()),
            }
        })
        .await;
    }
}

impl ServerConnection {
    /// On a connection of which nothing was read. Heads of more than `head_bytes_max` are for somebody else to refuse. A client that
    /// takes nothing of an answer for `stall_max` loses it.
    pub fn new(socket: TcpStream, head_bytes_max: usize, stall_max: Duration) -> Self {
        Self {
            socket: StallGuard::new(socket, stall_max),
            buffer: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            head_bytes_max,
            seen: 0,
            head: None,
            is_repeated: false,
            lengths: RequestLengths { head: 0, body: 0 },
            left: AtomicUsize::new(0),
        }
    }

    /// Waits for the head of the next request. Cancel-safe.
    pub async fn next(&mut self) -> io::Result<NextRequest> {
        // It was said already, and the request not taken.
        if self.lengths.head > 0 {
            return Ok(NextRequest::Post);
        }
        loop {
            if !self.buffer.is_empty()
                && let Some(next) = self.look()
            {
                return Ok(next);
            }
            if poll_fn(|context| self.poll_more(context)).await? == 0 {
                return Ok(NextRequest::Closed);
            }
        }
    }

    /// What the buffer begins with; `None` while that is not known.
    fn look(&mut self) -> Option<NextRequest> {
        let seen = std::mem::replace(&mut self.seen, self.buffer.len());
        // Empty lines before a request (RFC 9112, 2.2) are for the guard before the library to pass over.
        if matches!(self.buffer[0], b'\r' | b'\n') {
            return Some(NextRequest::Other);
        }
        // However small the pieces it comes in, a head is read when it begins and when it may be whole.
        let may_be_whole = seen == 0
            || self.buffer[seen.saturating_sub(2)..]
                .windows(2)
                .any(|end| end == b"\n\r" || end == b"\n\n");
        if may_be_whole {
            if let Some(lengths) = self.head.as_mut().and_then(|head| head.again(&self.buffer)) {
                (self.lengths, self.is_repeated) = (lengths, true);
                return Some(NextRequest::Post);
            }
            match head::read(&self.buffer) {
                ParsedHead::Post(head, lengths) if lengths.head <= self.head_bytes_max => {
                    (self.head, self.lengths, self.is_repeated) = (Some(head), lengths, false);
                    return Some(NextRequest::Post);
                }
                ParsedHead::Post(..) | ParsedHead::Other => return Some(NextRequest::Other),
                ParsedHead::Incomplete => {}
            }
        }
        (self.buffer.len() > self.head_bytes_max).then_some(NextRequest::Other)
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let socket = self.socket.get_mut();
        // First, so that what only waits needs no memory to read into.
        ready!(socket.poll_read_ready(context))?;
        self.buffer.reserve(self.read_bytes);
        pin!(socket.read_buf(&mut self.buffer)).poll(context)
    }

    /// Where the request goes that is next.
    pub fn path(&self) -> &str {
        self.head.as_ref().map_or("", |head| head.parts.uri.path())
    }

    /// The request that is next, taken. `None` unless [`ServerConnection::next`] said that there is one.
    pub fn take(&mut self) -> Option<PostRequest<'_>> {
        let head = self.head.as_ref()?;
        let RequestLengths { head: head_bytes, body: body_bytes } =
            std::mem::replace(&mut self.lengths, RequestLengths { head: 0, body: 0 });
        if head_bytes == 0 {
            return None;
        }
        self.seen = 0;
        self.buffer.advance(head_bytes);
        // With room to spare: a read that fills less has seen that there is no more.
        self.read_bytes = (head_bytes + body_bytes.min(READ_BYTES_MAX) + 1)
            .next_power_of_two()
            .clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        *self.left.get_mut() = body_bytes;
        let (socket, left) = (self.socket.get_ref(), &self.left);
        let is_repeated = self.is_repeated;
        Some(PostRequest {
            head: &head.parts,
            is_repeated,
            body: RequestBody { socket, buffer: &mut self.buffer, left },
            client: ClientWatch { socket, left },
        })
    }

    /// Answers the request that was taken last. True where another may follow; `keeps`: whether the caller wants one.
    pub async fn answer<B>(&mut self, response: Response<B>, keeps: bool) -> io::Result<bool>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let keeps = self.is_read(keeps);
        let (parts, body) = response.into_parts();
        let framing = ResponseFraming::of(parts.status, body.size_hint().exact());
        let mut out = Vec::with_capacity(HEAD_BYTES_USUAL);
        response_head::head(&mut out, &parts, framing, keeps);
        turn(usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX)).await;
        if framing == ResponseFraming::Absent {
            self.write(&out, &[]).await?;
        } else {
            self.write_body(out, body, framing).await?;
        }
        self.answered(keeps).await
    }

    /// [`ServerConnection::answer`] with a head that is mostly written: its first line and headers, each with its end.
    pub async fn answer_whole(&mut self, head: &str, body: Bytes, keeps: bool) -> io::Result<bool> {
        let keeps = self.is_read(keeps);
        let mut out = Vec::with_capacity(HEAD_BYTES_USUAL);
        out.extend_from_slice(head.as_bytes());
        response_head::end(&mut out, ResponseFraming::Exactly(body.len() as u64), keeps);
        turn(body.len()).await;
        self.write(&out, &body).await?;
        self.answered(keeps).await
    }

    /// The request that was taken last is not looked at any more. Whether another may follow.
    fn is_read(&mut self, keeps: bool) -> bool {
        let left = self.left.get_mut();
        if *left <= self.buffer.len() {
            self.buffer.advance(std::mem::take(left)); // nobody wanted to see it
        }
        let keeps = keeps && *left == 0 && self.head.as_ref().is_some_and(|head| head.keeps);
        // What was begun of the next request does not keep the room of this one.
        if is_wasteful(&self.buffer, self.buffer.len()) {
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        if self.head.as_ref().is_some_and(|head| !head.may_be_repeated()) {
            self.head = None;
        }
        keeps
    }

    /// The answer is written; behind the last one the connection is closed.
    async fn answered(&mut self, keeps: bool) -> io::Result<bool> {
        if !keeps {
            self.socket.shutdown().await?;
            if *self.left.get_mut() > 0 || !self.buffer.is_empty() {
                let mut linger = Linger::new();
                poll_fn(|context| linger.poll(self.socket.get_mut(), context)).await;
            }
        }
        Ok(keeps)
    }

    /// Writes what there is of a body, and all of it in the end. What is ready together is written together.
    async fn write_body<B>(
        &mut self,
        mut out: Vec<u8>,
        mut body: B,
        framing: ResponseFraming,
    ) -> io::Result<()>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        // Broken off without the last chunk, or before its length, so that nobody takes it for whole.
        let broken = || io::Error::from(io::ErrorKind::ConnectionAborted);
        let mut announced = match framing {
            ResponseFraming::Exactly(bytes) => Some(bytes),
            ResponseFraming::Chunked | ResponseFraming::Absent => None,
        };
        loop {
            let ready =
                poll_fn(|context| Poll::Ready(Pin::new(&mut body).poll_frame(context))).await;
            let frame = match ready {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    self.write(&out, &[]).await?;
                    out.clear();
                    let client = ClientWatch { socket: self.socket.get_ref(), left: &self.left };
                    tokio::select! {
                        biased;
                        frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)) => frame,
                        () = client.hung_up() => return Err(broken()),
                    }
                }
            };
            let Some(data) = frame.transpose().map_err(|_| broken())?.map(Frame::into_data) else {
                break;
            };
            let Ok(data) = data else { continue };
            if data.is_empty() {
                continue;
            }
            let is_chunk = framing == ResponseFraming::Chunked;
            if let Some(announced) = &mut announced {
                *announced = announced.checked_sub(data.len() as u64).ok_or_else(broken)?;
            }
            if is_chunk {
                response_head::begin_chunk(&mut out, data.len());
            }
            if data.len() <= COPIED_BYTES_MAX {
                out.extend_from_slice(&data);
            } else {
                self.write(&out, &data).await?;
                out.clear();
            }
            if is_chunk {
                out.extend_from_slice(b"\r\n");
            }
            if out.len() > COPIED_BYTES_MAX {
                self.write(&out, &[]).await?;
                out.clear();
            }
        }
        match announced {
            None => out.extend_from_slice(LAST_CHUNK),
            Some(0) => {}
            Some(_) => return Err(broken()),
        }
        self.write(&out, &[]).await
    }

    async fn write(&mut self, first: &[u8], second: &[u8]) -> io::Result<()> {
        let (mut sent, all) = (0, first.len() + second.len());
        while sent < all {
            let parts = [
                IoSlice::new(&first[first.len().min(sent)..]),
                IoSlice::new(&second[sent.saturating_sub(first.len())..]),
            ];
            match poll_fn(|context| Pin::new(&mut self.socket).poll_write_vectored(context, &parts))
                .await?
            {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                bytes => sent += bytes,
            }
        }
        Ok(())
    }

    /// The connection, and what was read of it and not taken.
    pub fn into_unread(self) -> (TcpStream, Bytes) {
        (self.socket.into_inner(), self.buffer.freeze())
    }
}
