//! Checks the requests of a connection against the rules of [`super`] before the HTTP library sees
//! a byte of them.
//!
//! The listeners put the guard between an HTTP/1.1 connection and the library. The guard passes
//! bytes unchanged:
//! - A head passes when it is complete and valid.
//! - A body passes up to the end that its head names.
//! - Instead of a refused head the guard passes a replacement request, so that the refusal takes
//!   its turn among the answers. Then no more bytes pass.
//! - A chunked body that breaks the rules ends there.
//! - A chunked body that announces more than the limit ends with an error.
//! - After a WebSocket upgrade no bytes pass. They belong to the WebSocket
//!   ([`FramingGuard::into_parts`]), or the connection closes with the refusal of the upgrade.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use http::header::UPGRADE;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use super::{
    ChunksTooLong, FramingViolation, VIOLATION_HEADER,
    chunked::{ChunkScanner, ChunkStep, Padding},
    head::{BodyFraming, HeadScanner, is_websocket_upgrade, parse},
};
use crate::{linger::Linger, read_buffer::ReadBuffer};

/// Bytes that a client may send after a WebSocket upgrade before the upgrade is answered.
const EARLY_BYTES_MAX: usize = 8 * 1024;

/// Wraps a connection in the server's role.
#[derive(Debug)]
pub struct FramingGuard<S> {
    inner: S,
    /// Bytes read and not passed to the library.
    read: ReadBuffer,
    /// Number of these bytes that are checked and valid.
    checked: usize,
    next: GuardState,
    /// Set when no byte passes after the current request.
    is_last: bool,
    /// Rest of the replacement request for a refused request.
    replacement: Bytes,
    head_bytes_max: usize,
    /// Time for a head, from its first bytes. `None`: the library limits it.
    head_time_max: Option<Duration>,
    /// End of this time for an incomplete head.
    head_deadline: Option<Pin<Box<Sleep>>>,
    /// True from a head that passed until the library writes.
    awaits_answer: bool,
    /// True if the library wrote since the time of the head began.
    has_written: bool,
    /// Size limit of a chunked body, whose length is not known in advance.
    chunks_bytes_max: u64,
    closing: Option<Linger>,
}

/// State of the check at the first byte that is not checked yet.
#[derive(Debug)]
enum GuardState {
    Head(HeadScanner),
    Body(usize),
    /// Holds the number of bytes that the body may still have.
    Chunks(ChunkScanner, u64),
    /// The client requested a WebSocket. The guard does not check the bytes after that request.
    Upgrade,
    /// The guard refused a head. The connection closes after the answer.
    Refused,
    /// A body exceeds its limit, and the error has not been returned yet.
    TooLong,
    /// A body broke off.
    Broken,
}

impl<S> FramingGuard<S> {
    /// Wraps a connection from which `first` was already read. A head has at most `head_bytes_max`
    /// bytes, and a chunked body at most `chunks_bytes_max`.
    pub fn new(inner: S, first: Bytes, head_bytes_max: usize, chunks_bytes_max: usize) -> Self {
        Self {
            inner,
            read: ReadBuffer::new(first),
            checked: 0,
            next: GuardState::Head(HeadScanner::default()),
            is_last: false,
            replacement: Bytes::new(),
            head_bytes_max,
            head_time_max: None,
            head_deadline: None,
            awaits_answer: false,
            has_written: false,
            chunks_bytes_max: chunks_bytes_max as u64,
            closing: None,
        }
    }

    /// Ends the connection if a head is incomplete for this long after its first bytes. The time
    /// begins again if the library answers the request before it meanwhile. A connection without a
    /// request has no such limit.
    #[must_use]
    pub fn limit_head_time(mut self, time_max: Duration) -> Self {
        self.head_time_max = Some(time_max);
        self
    }

    /// Returns the connection and the bytes that were read from it and not passed on.
    pub fn into_parts(self) -> (S, Bytes) {
        let unread = Bytes::copy_from_slice(self.read.bytes());
        (self.inner, unread)
    }

    /// Determines how many of the read bytes may pass, one request at a time.
    fn check(&mut self) {
        while self.checked < self.read.bytes().len() {
            let rest = &self.read.bytes()[self.checked..];
            match &mut self.next {
                GuardState::Head(_) if self.checked > 0 => return,
                // The guard drops empty lines before a request (RFC 9112, 2.2).
                GuardState::Head(scan)
                    if *scan == HeadScanner::default() && rest.starts_with(b"\r\n") =>
                {
                    self.read.skip(2)
                }
                GuardState::Head(_) => match self.head() {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(violation) => return self.refuse(violation),
                },
                GuardState::Body(remaining) => {
                    let here = rest.len().min(*remaining);
                    self.checked += here;
                    *remaining -= here;
                    if *remaining == 0 {
                        self.next = self.behind_request();
                    }
                }
                GuardState::Chunks(scanner, remaining) => match scanner.next(rest) {
                    // The guard refuses the chunk at its announcement and does not wait for its
                    // data.
                    Ok(ChunkStep::Overhead(_))
                        if scanner.announced().is_some_and(|bytes| bytes > *remaining) =>
                    {
                        tracing::debug!("a chunk of a request is longer than its body may be");
                        self.next = GuardState::TooLong;
                    }
                    Ok(step @ (ChunkStep::Overhead(bytes) | ChunkStep::Data(bytes))) => {
                        self.checked += bytes;
                        if matches!(step, ChunkStep::Data(_)) {
                            *remaining -= bytes as u64;
                        }
                        if scanner.is_over() {
                            self.next = self.behind_request();
                        }
                    }
                    Ok(ChunkStep::More | ChunkStep::Over) => return,
                    Err(reason) => {
                        tracing::debug!(reason, "the chunks of a request are refused");
                        self.next = GuardState::Broken;
                    }
                },
                GuardState::Upgrade
                | GuardState::Refused
                | GuardState::TooLong
                | GuardState::Broken => return,
            }
        }
    }

    /// Checks the next head. Returns false while the head is incomplete.
    fn head(&mut self) -> Result<bool, FramingViolation> {
        let GuardState::Head(scan) = &mut self.next else { return Ok(false) };
        let Some(end) = scan.end(self.read.bytes())? else {
            return if self.read.bytes().len() > self.head_bytes_max {
                Err(FramingViolation::HeadTooLong)
            } else {
                Ok(false)
            };
        };
        if end > self.head_bytes_max {
            return Err(FramingViolation::HeadTooLong);
        }
        let (framing, is_last) = parse(&self.read.bytes()[..end], |request, framing| {
            let upgrades = request
                .headers
                .iter()
                .filter(|header| header.name.eq_ignore_ascii_case(UPGRADE.as_str()));
            (framing, is_websocket_upgrade(upgrades.map(|header| header.value)))
        })?;
        (self.checked, self.is_last) = (end, is_last);
        (self.head_deadline, self.awaits_answer) = (None, true);
        self.next = match framing {
            BodyFraming::Absent | BodyFraming::Length(0) => self.behind_request(),
            BodyFraming::Length(bytes) => GuardState::Body(bytes),
            BodyFraming::Chunked => {
                GuardState::Chunks(ChunkScanner::new(Padding::Refused), self.chunks_bytes_max)
            }
        };
        Ok(true)
    }

    fn behind_request(&self) -> GuardState {
        if self.is_last { GuardState::Upgrade } else { GuardState::Head(HeadScanner::default()) }
    }

    /// Becomes ready with an error when an incomplete head has taken too long. The library also
    /// reads during an answer, and an error would end that answer.
    fn poll_head_deadline(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let has_begun = matches!(self.next, GuardState::Head(_)) && !self.read.bytes().is_empty();
        let Some(time_max) = self.head_time_max.filter(|_| has_begun) else { return Poll::Pending };
        loop {
            let deadline = self.head_deadline.get_or_insert_with(|| {
                self.has_written = false;
                Box::pin(sleep(time_max))
            });
            ready!(deadline.as_mut().poll(context));
            self.head_deadline = None;
            if !self.awaits_answer && !self.has_written {
                tracing::debug!("the head of a request was not complete in time");
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
    }

    fn refuse(&mut self, violation: FramingViolation) {
        tracing::debug!(reason = violation.reason(), "the head of a request is refused");
        let code = violation.code();
        self.replacement = format!("GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{VIOLATION_HEADER}: {code}\r\n\r\n").into();
        self.next = GuardState::Refused;
        self.read.discard();
    }

    /// Copies the bytes that may pass into `buffer`. Returns false if there are none.
    fn hand_on(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        if !self.replacement.is_empty() {
            let count = self.replacement.len().min(buffer.remaining());
            buffer.put_slice(&self.replacement[..count]);
            self.replacement.advance(count);
            return true;
        }
        let count = self.checked.min(buffer.remaining());
        buffer.put_slice(&self.read.bytes()[..count]);
        self.read.skip(count);
        self.checked -= count;
        count > 0
    }

    /// Returns whether the peer may still be sending bytes that no reader will read.
    fn is_unread(&self) -> bool {
        match &self.next {
            GuardState::Head(_) | GuardState::Upgrade => !self.read.bytes().is_empty(),
            GuardState::Body(_)
            | GuardState::Chunks(..)
            | GuardState::Refused
            | GuardState::TooLong
            | GuardState::Broken => true,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FramingGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let guard = &mut *self;
        loop {
            if guard.hand_on(buffer) || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            guard.check();
            if guard.checked > 0 || !guard.replacement.is_empty() {
                continue;
            }
            match &mut guard.next {
                // The library writes the answer and then ends the connection.
                GuardState::Refused => return Poll::Pending,
                GuardState::TooLong => {
                    guard.next = GuardState::Broken;
                    let too_long = ChunksTooLong { bytes_max: guard.chunks_bytes_max };
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::FileTooLarge, too_long)));
                }
                GuardState::Broken => return Poll::Ready(Ok(())),
                GuardState::Upgrade if guard.read.bytes().len() >= EARLY_BYTES_MAX => {
                    return Poll::Pending;
                }
                // The body fills the whole buffer, so the guard reads into it without a copy.
                GuardState::Body(remaining)
                    if *remaining >= buffer.remaining() && guard.read.bytes().is_empty() =>
                {
                    let before = buffer.filled().len();
                    ready!(Pin::new(&mut guard.inner).poll_read(context, buffer))?;
                    *remaining -= buffer.filled().len() - before;
                    if *remaining == 0 {
                        guard.next = guard.behind_request();
                    }
                    return Poll::Ready(Ok(()));
                }
                _ => {}
            }
            match guard.read.poll_fill(&mut guard.inner, context, 0) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return guard.poll_head_deadline(context),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for FramingGuard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        (self.awaits_answer, self.has_written) = (false, true);
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        (self.awaits_answer, self.has_written) = (false, true);
        Pin::new(&mut self.inner).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closing.is_none() {
            ready!(Pin::new(&mut self.inner).poll_shutdown(context))?;
            if !self.is_unread() {
                return Poll::Ready(Ok(()));
            }
            self.read.discard();
        }
        let guard = &mut *self;
        guard.closing.get_or_insert_with(Linger::new).poll(&mut guard.inner, context).map(Ok)
    }
}
