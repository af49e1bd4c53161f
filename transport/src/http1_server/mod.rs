//! HTTP/1.1 server without TLS for plain POSTs, and for plain GETs of event streams. The task that
//! serves a request reads and answers it.
//!
//! The HTTP listener uses it for the calls of clients. A general server passes requests, bodies and
//! responses between a connection and a service, and parses every head. This server has no queues,
//! and does not parse a head that repeats the last one.
//!
//! The server does not handle a request that is not plain: another method, another version, chunks,
//! `Expect`, `Upgrade`, and all that two readers could interpret differently. The connection then
//! goes to the HTTP library, with the bytes already read ([`ServerConnection::into_parts`]).
//!
//! Invariants:
//! - A connection has one request at a time.
//! - A connection whose request was not complete is closed after the answer.

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
use http::{Method, Response, request::Parts};
use http_body::{Body, Frame};
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
    time::timeout,
};

pub(crate) use self::body::PIECE_BYTES_MAX;
pub use self::body::RequestBody;
use self::{
    body::is_wasteful,
    head::{ParsedHead, RequestHead, RequestLengths},
    response_head::{LAST_CHUNK, ResponseFraming},
};
use crate::{
    linger::Linger, stall::StallGuard, vectored_body::COPIED_BYTES_MAX,
    write_batching::yield_before_write,
};

/// Space for the head of an answer.
const HEAD_BYTES_USUAL: usize = 512;
/// Bounds for the size of one read. The size follows the last request.
const READ_BYTES_MIN: usize = 1024;
const READ_BYTES_MAX: usize = 128 * 1024;
/// Smallest piece of an answer whose rest is moved for a client that does not read.
const MOVED_BYTES_MIN: usize = 256 * 1024;
/// Time without progress after which the rest is moved.
const MOVED_AFTER: Duration = Duration::from_millis(500);

/// What happens to a connection after an answer (RFC 9112, 9.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterAnswer {
    /// The connection stays open for a further request, if the client permits it.
    KeepAlive,
    /// The connection closes.
    Close,
}

/// A connection of a client, while the client sends only plain requests.
#[derive(Debug)]
pub struct ServerConnection {
    socket: StallGuard<TcpStream>,
    /// Bytes read and not taken yet.
    buffer: BytesMut,
    read_bytes: usize,
    head_bytes_max: usize,
    /// Number of bytes of an incomplete head that were searched for its end.
    seen: usize,
    head: Option<Box<RequestHead>>,
    /// True if the previous request had the same head.
    is_cached_head: bool,
    /// Lengths of the request at the start of the buffer.
    lengths: RequestLengths,
    /// Bytes of the body that the handler has not taken.
    remaining: AtomicUsize,
}

/// Next event on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextRequest {
    /// A plain POST with a complete head.
    Post,
    /// A plain GET, without a body, of a client that wants an event stream.
    EventStream,
    /// Another kind of request.
    Other,
    /// The client has closed the connection.
    Closed,
}

/// A request whose answer is in progress.
#[derive(Debug)]
pub struct PlainRequest<'a> {
    pub head: &'a Parts,
    /// True if the head repeats that of the previous request, except for the length of the body.
    pub is_repeated: bool,
    pub body: RequestBody<'a>,
    pub client: ClientWatch<'a>,
}

/// Watches the client that waits for an answer.
#[derive(Debug)]
pub struct ClientWatch<'a> {
    socket: &'a TcpStream,
    remaining: &'a AtomicUsize,
}

impl ClientWatch<'_> {
    /// Resolves when the client hangs up. Data that the client sends in the meantime stays unread
    /// until the answer is sent.
    pub async fn disconnected(&self) {
        poll_fn(|context| {
            // The handler still reads the body from this socket.
            if self.remaining.load(Ordering::Relaxed) > 0 {
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
    /// Takes a connection from which no byte was read. A head longer than `head_bytes_max` is
    /// [`NextRequest::Other`]. A client that reads nothing of an answer for `stall_max` loses the
    /// connection.
    pub fn new(socket: TcpStream, head_bytes_max: usize, stall_max: Duration) -> Self {
        Self {
            socket: StallGuard::new(socket, stall_max),
            buffer: BytesMut::new(),
            read_bytes: READ_BYTES_MIN,
            head_bytes_max,
            seen: 0,
            head: None,
            is_cached_head: false,
            lengths: RequestLengths { head: 0, body: 0 },
            remaining: AtomicUsize::new(0),
        }
    }

    /// Waits for the head of the next request. Cancel-safe.
    pub async fn next(&mut self) -> io::Result<NextRequest> {
        // An earlier call returned this request, and the caller has not taken it.
        if self.lengths.head > 0 {
            return Ok(self.plain());
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

    /// Waits for the first bytes of the next request, or for the end of the connection. Cancel-safe.
    pub async fn begun(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            poll_fn(|context| self.socket.get_mut().poll_read_ready(context)).await?;
        }
        Ok(())
    }

    /// Returns the kind of request at the start of the buffer, or `None` while it is not known.
    fn look(&mut self) -> Option<NextRequest> {
        let seen = std::mem::replace(&mut self.seen, self.buffer.len());
        // The guard in front of the HTTP library skips empty lines before a request (RFC 9112,
        // 2.2).
        if matches!(self.buffer[0], b'\r' | b'\n') {
            return Some(NextRequest::Other);
        }
        // However small the pieces of a head are, the parser runs only on the first piece and when
        // the end may have arrived.
        let may_be_whole = seen == 0
            || self.buffer[seen.saturating_sub(2)..]
                .windows(2)
                .any(|end| end == b"\n\r" || end == b"\n\n");
        if may_be_whole {
            if let Some(lengths) =
                self.head.as_mut().and_then(|head| head.match_prefix(&self.buffer))
            {
                (self.lengths, self.is_cached_head) = (lengths, true);
                return Some(self.plain());
            }
            match head::read(&self.buffer) {
                ParsedHead::Plain(head, lengths) if lengths.head <= self.head_bytes_max => {
                    (self.head, self.lengths, self.is_cached_head) = (Some(head), lengths, false);
                    return Some(self.plain());
                }
                ParsedHead::Plain(..) | ParsedHead::Other => return Some(NextRequest::Other),
                ParsedHead::Incomplete => {}
            }
        }
        (self.buffer.len() > self.head_bytes_max).then_some(NextRequest::Other)
    }

    /// Returns the kind of the plain request whose head was read last.
    fn plain(&self) -> NextRequest {
        match &self.head {
            Some(head) if head.parts.method == Method::GET => NextRequest::EventStream,
            _ => NextRequest::Post,
        }
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let socket = self.socket.get_mut();
        // Checked first, so that a waiting connection needs no buffer.
        ready!(socket.poll_read_ready(context))?;
        self.buffer.reserve(self.read_bytes);
        pin!(socket.read_buf(&mut self.buffer)).poll(context)
    }

    /// Returns the path of the next request.
    pub fn path(&self) -> &str {
        self.head.as_ref().map_or("", |head| head.parts.uri.path())
    }

    /// Takes the next request. Returns `None` unless [`ServerConnection::next`] returned one.
    pub fn take_request(&mut self) -> Option<PlainRequest<'_>> {
        let head = self.head.as_ref()?;
        let RequestLengths { head: head_bytes, body: body_bytes } =
            std::mem::replace(&mut self.lengths, RequestLengths { head: 0, body: 0 });
        if head_bytes == 0 {
            return None;
        }
        self.seen = 0;
        self.buffer.advance(head_bytes);
        // With one spare byte, a read that does not fill the buffer shows that no more data is
        // there.
        self.read_bytes = (head_bytes + body_bytes.min(READ_BYTES_MAX) + 1)
            .next_power_of_two()
            .clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        *self.remaining.get_mut() = body_bytes;
        let (socket, remaining) = (self.socket.get_ref(), &self.remaining);
        let is_repeated = self.is_cached_head;
        Some(PlainRequest {
            head: &head.parts,
            is_repeated,
            body: RequestBody { socket, buffer: &mut self.buffer, remaining },
            client: ClientWatch { socket, remaining },
        })
    }

    /// Answers the request that was taken last. Returns true if another request may follow.
    pub async fn respond<B>(
        &mut self,
        response: Response<B>,
        after: AfterAnswer,
    ) -> io::Result<bool>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let keeps_open = self.finish_request(after);
        let (parts, body) = response.into_parts();
        let framing = ResponseFraming::of(parts.status, body.size_hint().exact());
        let mut out = Vec::with_capacity(HEAD_BYTES_USUAL);
        response_head::head(&mut out, &parts, framing, keeps_open);
        yield_before_write(usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX)).await;
        if framing == ResponseFraming::Absent {
            self.write(&out, Bytes::new()).await?;
        } else {
            self.write_body(out, body, framing).await?;
        }
        self.answered(keeps_open).await
    }

    /// Works as [`ServerConnection::respond`] with a prepared head: the status line and headers,
    /// each with its line end.
    pub async fn respond_full(
        &mut self,
        head: &str,
        body: Bytes,
        after: AfterAnswer,
    ) -> io::Result<bool> {
        let keeps_open = self.finish_request(after);
        let is_copied = body.len() <= COPIED_BYTES_MAX;
        let copied = if is_copied { &body[..] } else { &[] };
        let mut out = Vec::with_capacity(HEAD_BYTES_USUAL + copied.len());
        out.extend_from_slice(head.as_bytes());
        response_head::end(&mut out, ResponseFraming::Exactly(body.len() as u64), keeps_open);
        out.extend_from_slice(copied);
        yield_before_write(body.len()).await;
        self.write(&out, if is_copied { Bytes::new() } else { body }).await?;
        self.answered(keeps_open).await
    }

    /// Ends the request that was taken last. Returns whether another request may follow.
    fn finish_request(&mut self, after: AfterAnswer) -> bool {
        let remaining = self.remaining.get_mut();
        if *remaining <= self.buffer.len() {
            self.buffer.advance(std::mem::take(remaining)); // its reader did not take it
        }
        let keeps_open = after == AfterAnswer::KeepAlive
            && *remaining == 0
            && self.head.as_ref().is_some_and(|head| head.keep_alive);
        // The start of the next request must not keep the large buffer of this one.
        if is_wasteful(&self.buffer, self.buffer.len()) {
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        if self.head.as_ref().is_some_and(|head| !head.is_cacheable()) {
            self.head = None;
        }
        keeps_open
    }

    /// Runs after the answer is written. Closes the connection after the last answer.
    async fn answered(&mut self, keeps_open: bool) -> io::Result<bool> {
        if !keeps_open {
            self.socket.shutdown().await?;
            if *self.remaining.get_mut() > 0 || !self.buffer.is_empty() {
                let mut linger = Linger::new();
                poll_fn(|context| linger.poll(self.socket.get_mut(), context)).await;
            }
        }
        Ok(keeps_open)
    }

    /// Writes a body as it becomes available. Data that is ready together is written together.
    async fn write_body<B>(
        &mut self,
        mut out: Vec<u8>,
        mut body: B,
        framing: ResponseFraming,
    ) -> io::Result<()>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        // The body ends without the last chunk, or before its announced length, so that the client
        // detects the loss.
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
                    self.write(&out, Bytes::new()).await?;
                    out.clear();
                    let client =
                        ClientWatch { socket: self.socket.get_ref(), remaining: &self.remaining };
                    tokio::select! {
                        biased;
                        frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)) => frame,
                        () = client.disconnected() => return Err(broken()),
                    }
                }
            };
            let data = match frame.map(|frame| frame.map(Frame::into_data)) {
                None => break,
                Some(Ok(Ok(data))) => data,
                Some(Ok(Err(_trailers))) => continue,
                Some(Err(_)) => {
                    // The client gets what there is. A connection that ends without a head says
                    // that nothing was answered.
                    self.write(&out, Bytes::new()).await?;
                    return Err(broken());
                }
            };
            if data.is_empty() {
                continue;
            }
            let is_chunk = framing == ResponseFraming::Chunked;
            if let Some(announced) = &mut announced {
                *announced = announced.checked_sub(data.len() as u64).ok_or_else(broken)?;
            }
            if is_chunk {
                response_head::start_chunk(&mut out, data.len());
            }
            if data.len() <= COPIED_BYTES_MAX {
                out.extend_from_slice(&data);
            } else {
                self.write(&out, data).await?;
                out.clear();
            }
            if is_chunk {
                out.extend_from_slice(b"\r\n");
            }
            if out.len() > COPIED_BYTES_MAX {
                self.write(&out, Bytes::new()).await?;
                out.clear();
            }
        }
        match announced {
            None => out.extend_from_slice(LAST_CHUNK),
            Some(0) => {}
            Some(_) => return Err(broken()),
        }
        self.write(&out, Bytes::new()).await
    }

    /// Writes `first`, then `second`. If the client stops reading, the unwritten rest of a large
    /// `second` is copied, so that the written part can be freed.
    async fn write(&mut self, mut first: &[u8], mut second: Bytes) -> io::Result<()> {
        let mut held = second.len();
        while !first.is_empty() || !second.is_empty() {
            let parts = [IoSlice::new(first), IoSlice::new(&second)];
            let writing = poll_fn(|context| {
                let socket = Pin::new(&mut self.socket);
                if second.is_empty() {
                    socket.poll_write(context, first)
                } else {
                    socket.poll_write_vectored(context, &parts)
                }
            });
            let is_wasteful = held >= MOVED_BYTES_MIN && second.len() <= held / 4 * 3;
            let written = if is_wasteful {
                // Boxed, because it is rare and would enlarge the future of every connection.
                match Box::pin(timeout(MOVED_AFTER, writing)).await {
                    Ok(written) => written?,
                    Err(_) => {
                        second = Bytes::copy_from_slice(&second);
                        held = second.len();
                        continue;
                    }
                }
            } else {
                writing.await?
            };
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            let of_first = written.min(first.len());
            first = &first[of_first..];
            second.advance(written - of_first);
        }
        Ok(())
    }

    /// Returns the connection and the bytes read from it and not taken.
    pub fn into_parts(self) -> (TcpStream, Bytes) {
        (self.socket.into_inner(), self.buffer.freeze())
    }
}
