//! HTTP/1.1 client without TLS: a pool of sockets. The task that sends a request reads and writes
//! its socket itself.
//!
//! Used by `http_client` for every `http://` backend. A general client gives each connection its
//! own task and passes requests, responses and bodies through queues. This client has no queues: a
//! request is one write, and its response is usually one read, on the task that waits for it.
//! Invariants:
//! - A connection has one request at a time.
//! - A connection is closed if its response was not read to its end.
//! - A connection is closed if the server sent more than its response.
//! - A request is not sent twice if a byte of it may have left.

mod body;
mod chunked;
mod head;

use std::{
    collections::HashMap,
    fmt,
    future::poll_fn,
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Request, Uri};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite as _},
    net::TcpStream,
};

pub use self::body::BodyStreamError;
pub(crate) use self::body::Http1Body;
use self::head::{CachedHead, ResponseHead};
use crate::{
    connect::host_without_brackets,
    connection_watch::{ConnectionWatch, WatchedConnection},
    http_client_config::HttpClientConfig,
    response::HttpResponse,
    send_error::SendError,
    vectored_body::{COPIED_BYTES_MAX, VectoredBody},
    write_batching::yield_before_write,
};

/// Bounds for the size of one read. The size follows the last response.
const READ_BYTES_MIN: usize = 1024;
const READ_BYTES_MAX: usize = 128 * 1024;
/// Space for the head of a response. A longer head costs another read.
const HEAD_BYTES_USUAL: usize = 512;

/// One connection to a server.
#[derive(Debug)]
struct ClientConnection {
    /// Host and port of the server.
    server: Arc<str>,
    socket: TcpStream,
    /// `None` if nothing can retire the connection.
    watched: Option<Arc<WatchedConnection>>,
    /// Bytes read and not taken yet.
    buffer: BytesMut,
    read_bytes: usize,
    /// Rest of a request that the server has answered but not read to its end. Some servers send
    /// their 200 before they read on.
    unsent: Bytes,
    /// Head of the last response.
    known: Option<Box<CachedHead>>,
}

#[derive(Debug)]
struct IdleConnection {
    connection: Box<ClientConnection>,
    since: Instant,
}

#[derive(Debug, Default)]
struct IdleConnections {
    /// Idle connections by host and port. The last entry is the one used last, and the next request
    /// takes it. The operator names the servers, so no client can choose names with colliding
    /// hashes.
    by_server: HashMap<Arc<str>, Vec<IdleConnection>, foldhash::fast::RandomState>,
    /// True once a task closes expired connections.
    is_swept: bool,
}

#[derive(Debug)]
struct PoolShared {
    idle: Mutex<IdleConnections>,
    idle_timeout: Duration,
    idle_per_host: usize,
    head_bytes_max: usize,
    watch: ConnectionWatch,
}

/// Pool of idle connections. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Pool(Arc<PoolShared>);

/// Handle that returns a free connection to the pool.
#[derive(Debug)]
struct PoolReturn {
    pool: Pool,
}

/// Head of requests that differ only in their bodies, encoded once. Clones share it.
#[derive(Clone)]
pub(crate) struct PreparedHead(Arc<(Uri, Vec<u8>)>);

/// Omits the head, which contains credentials.
impl fmt::Debug for PreparedHead {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("PreparedHead").finish_non_exhaustive()
    }
}

impl PreparedHead {
    pub(crate) fn new(post: Request<()>) -> Self {
        let head = post.into_parts().0;
        let open = head::encode_open(&head);
        Self(Arc::new((head.uri, open)))
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.0.0
    }
}

/// Result of writing a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteOutcome {
    Whole,
    /// The server sends data before it has the whole request.
    Interrupted,
    /// The connection accepts no more of the request.
    Broken,
}

/// Result of an attempt to send a request.
enum SendOutcome {
    Answered(HttpResponse<Http1Body>),
    /// The connection accepted no byte of the request.
    NotSent(io::Error),
}

impl Pool {
    pub(crate) fn new(config: &HttpClientConfig, head_bytes_max: usize) -> Self {
        Self(Arc::new(PoolShared {
            idle: Mutex::default(),
            idle_timeout: config.idle_timeout,
            idle_per_host: config.idle_per_host,
            head_bytes_max,
            watch: ConnectionWatch::new(
                config.resolver.clone(),
                config.address_check_interval,
                None,
            ),
        }))
    }

    /// Sends a request and waits for the head of its response. Calls `connect` when no idle
    /// connection is left.
    pub(crate) async fn send<Connecting>(
        &self,
        request: Request<Bytes>,
        connect: impl FnOnce() -> Connecting,
    ) -> Result<HttpResponse<Http1Body>, SendError>
    where
        Connecting: Future<Output = Result<TcpStream, SendError>>,
    {
        let (head, body) = request.into_parts();
        let written = head::encode(&head, body.len());
        self.send_written(&head.uri, written, body.into(), connect).await
    }

    /// Sends a POST whose head is already encoded, and waits for the head of its response.
    pub(crate) async fn send_post<Connecting>(
        &self,
        prepared: &PreparedHead,
        body: VectoredBody,
        connect: impl FnOnce() -> Connecting,
    ) -> Result<HttpResponse<Http1Body>, SendError>
    where
        Connecting: Future<Output = Result<TcpStream, SendError>>,
    {
        let written = head::complete_head(&prepared.0.1, body.len());
        self.send_written(prepared.uri(), written, body, connect).await
    }

    async fn send_written<Connecting>(
        &self,
        uri: &Uri,
        mut written: Vec<u8>,
        mut body: VectoredBody,
        connect: impl FnOnce() -> Connecting,
    ) -> Result<HttpResponse<Http1Body>, SendError>
    where
        Connecting: Future<Output = Result<TcpStream, SendError>>,
    {
        if body.len() <= COPIED_BYTES_MAX {
            std::mem::take(&mut body).append_to(&mut written);
        }
        // Other requests that were read together with this one can then be written together with
        // it. The yield comes before the pool check, because that check tests whether the
        // connection is still open.
        yield_before_write(written.len() + body.len()).await;
        let server = uri.authority().map_or("", |authority| authority.as_str());
        // A connection that closed while idle accepts no byte. The loop then tries the next one.
        while let Some(connection) = self.take(server) {
            if let SendOutcome::Answered(response) =
                self.exchange(connection, &written, &body).await?
            {
                return Ok(response);
            }
        }
        // Boxed because it is rare, and every request's future would contain space for it.
        let socket = Box::pin(connect()).await?;
        let host = host_without_brackets(uri.host().unwrap_or_default());
        let watched = self.0.watch.add(host, &socket);
        let (buffer, unsent) = (BytesMut::new(), Bytes::new());
        // Boxed because every request moves it several times.
        let connection = ClientConnection {
            server: server.into(),
            socket,
            watched,
            buffer,
            read_bytes: READ_BYTES_MIN,
            unsent,
            known: None,
        };
        match self.exchange(Box::new(connection), &written, &body).await? {
            SendOutcome::Answered(response) => Ok(response),
            SendOutcome::NotSent(error) => Err(SendError::NotSent { reason: error.to_string() }),
        }
    }

    async fn exchange(
        &self,
        mut connection: Box<ClientConnection>,
        head: &[u8],
        body: &VectoredBody,
    ) -> Result<SendOutcome, SendError> {
        let mut sent = 0;
        let (answer, written) = loop {
            let written = match connection.write(head, body, &mut sent).await {
                Ok(written) => written,
                Err(error) => return Ok(SendOutcome::NotSent(error)),
            };
            if let Some(answer) = connection
                .next_head(self.0.head_bytes_max, written != WriteOutcome::Interrupted)
                .await?
            {
                break (answer, written);
            }
        };
        if written == WriteOutcome::Interrupted {
            connection.unsent = match sent.checked_sub(head.len()) {
                Some(of_body) => body.skip_bytes(of_body).into_bytes(),
                None => [&head[sent..], &body.clone().into_bytes()].concat().into(),
            };
        }
        let ResponseHead { parts, length, keep_alive: keeps } = answer;
        tracing::trace!(
            server = &*connection.server,
            status = parts.status.as_u16(),
            "a server answered"
        );
        // A server that answers half a request has not read the rest of it.
        let back =
            (keeps && written == WriteOutcome::Whole).then(|| PoolReturn { pool: self.clone() });
        Ok(SendOutcome::Answered(HttpResponse::new(
            parts,
            Http1Body::new(length, connection, back),
        )))
    }

    fn take(&self, server: &str) -> Option<Box<ClientConnection>> {
        let mut idle = self.lock();
        let resting = idle.by_server.get_mut(server)?;
        while let Some(IdleConnection { mut connection, since }) = resting.pop() {
            if since.elapsed() < self.0.idle_timeout && connection.is_reusable() {
                return Some(connection);
            }
        }
        None
    }

    fn put(&self, mut connection: Box<ClientConnection>) {
        // Data after a response does not belong to any request.
        if connection.is_retired() || !connection.buffer.is_empty() {
            return;
        }
        connection.buffer = BytesMut::new();
        let mut idle = self.lock();
        let resting = match idle.by_server.get_mut(&connection.server) {
            Some(resting) => resting,
            None => idle.by_server.entry(connection.server.clone()).or_default(),
        };
        if resting.len() < self.0.idle_per_host {
            resting.push(IdleConnection { connection, since: Instant::now() });
        }
        if !std::mem::replace(&mut idle.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(&self.0)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, IdleConnections> {
        self.0.idle.lock()
    }
}

impl PoolReturn {
    fn give(self, connection: Box<ClientConnection>) {
        self.pool.put(connection);
    }
}

/// Closes connections that exceeded the idle timeout or that their server closed, while any are
/// idle.
async fn sweep(pool: Weak<PoolShared>) {
    while let Some(pause) = pool.upgrade().map(|shared| shared.idle_timeout / 4) {
        tokio::time::sleep(pause).await;
        let Some(pool) = pool.upgrade().map(Pool) else { return };
        let mut idle = pool.lock();
        let still_good = |resting: &mut IdleConnection| {
            resting.since.elapsed() < pool.0.idle_timeout && resting.connection.is_reusable()
        };
        idle.by_server.retain(|_, resting| {
            resting.retain_mut(still_good);
            !resting.is_empty()
        });
        if idle.by_server.is_empty() {
            idle.is_swept = false;
            return;
        }
    }
}

impl ClientConnection {
    /// Writes a request from offset `sent` on. Returns `Err` if the connection accepted no byte.
    async fn write(
        &mut self,
        head: &[u8],
        body: &VectoredBody,
        sent: &mut usize,
    ) -> Result<WriteOutcome, io::Error> {
        let all = head.len() + body.len();
        poll_fn(|context| {
            while *sent < all {
                let socket = Pin::new(&mut self.socket);
                let written = if body.is_empty() {
                    socket.poll_write(context, &head[*sent..])
                } else {
                    let [first, second, third] =
                        body.io_slices_after(sent.saturating_sub(head.len()));
                    let head = IoSlice::new(&head[head.len().min(*sent)..]);
                    socket.poll_write_vectored(context, &[head, first, second, third])
                };
                match written {
                    Poll::Ready(Ok(0)) if *sent == 0 => {
                        return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                    }
                    Poll::Ready(Err(error)) if *sent == 0 => return Poll::Ready(Err(error)),
                    // The server may have sent a response with the reason.
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Ok(WriteOutcome::Broken)),
                    Poll::Ready(Ok(bytes)) => *sent += bytes,
                    Poll::Pending if self.socket.poll_read_ready(context).is_ready() => {
                        return Poll::Ready(Ok(WriteOutcome::Interrupted));
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
            Poll::Ready(Ok(WriteOutcome::Whole))
        })
        .await
    }

    /// Returns the head of the response. Returns `None` if `waits` is false and no head has
    /// arrived.
    async fn next_head(
        &mut self,
        bytes_max: usize,
        waits: bool,
    ) -> Result<Option<ResponseHead>, SendError> {
        let aborted = |reason: &str| SendError::Aborted { reason: reason.to_owned() };
        loop {
            // The buffer is usually empty here.
            if !self.buffer.is_empty()
                && let Some(head) =
                    head::decode(&mut self.buffer, &mut self.known).map_err(aborted)?
            {
                return Ok(Some(head));
            }
            if self.buffer.len() >= bytes_max {
                return Err(aborted("the head of the response is too large"));
            }
            let read = poll_fn(|context| match self.poll_more(context) {
                Poll::Pending if !waits => Poll::Ready(None),
                read => read.map(Some),
            });
            match read.await {
                None => return Ok(None),
                Some(Ok(0)) => return Err(aborted("the server closed the connection")),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(aborted(&error.to_string())),
            }
        }
    }

    /// Appends available data to the buffer. Returns 0 at the end of the connection.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        while !self.unsent.is_empty() {
            match Pin::new(&mut self.socket).poll_write(context, &self.unsent) {
                Poll::Ready(Ok(bytes @ 1..)) => self.unsent.advance(bytes),
                Poll::Ready(_) => self.unsent.clear(), // its response is still read
                Poll::Pending => break,
            }
        }
        // Checked first, so that a waiting connection needs no buffer.
        ready!(self.socket.poll_read_ready(context))?;
        self.buffer.reserve(self.read_bytes);
        let read = ready!(pin!(self.socket.read_buf(&mut self.buffer)).poll(context))?;
        if self.buffer.len() == self.buffer.capacity() {
            self.read_bytes = (2 * self.read_bytes).min(READ_BYTES_MAX); // there was more than there was space for
        }
        Poll::Ready(Ok(read))
    }

    fn record_response(&mut self, body_bytes: usize) {
        self.read_bytes = (body_bytes + HEAD_BYTES_USUAL)
            .next_power_of_two()
            .clamp(READ_BYTES_MIN, READ_BYTES_MAX);
    }

    fn is_retired(&self) -> bool {
        self.watched.as_ref().is_some_and(|watched| watched.is_retired())
    }

    /// Returns whether an idle connection is not retired, and received no data and no end. Costs no
    /// system call unless an event arrived.
    fn is_reusable(&mut self) -> bool {
        if self.is_retired() {
            return false;
        }
        // `poll_read` would return pending for a task that has used up its budget, even if data is
        // there.
        matches!(self.socket.try_read(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}
