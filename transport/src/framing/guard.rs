//! A connection whose requests are held to [`super`] before the HTTP library sees a byte of them.
//!
//! Used by the listeners between a connection of HTTP/1.1 and the library. Bytes pass as they came. A head passes when all of it is
//! there and was found right; a body passes up to the end that its head names. In place of a head that is refused the library gets
//! a request that stands for it, so that the refusal takes its turn among the answers, and then nothing more. A chunked body that
//! breaks its rules ends there, and one that announces more than it may have ends with an error. Behind an upgrade to WebSocket nothing passes either: the bytes are the WebSocket's
//! ([`FramingGuard::into_parts`]), or the connection closes with the refusal of the upgrade.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use http::header::UPGRADE;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    ChunksTooLong, FramingViolation, VIOLATION_HEADER,
    chunked::{ChunkScanner, ChunkStep, Padding},
    head::{BodyFraming, HeadScanner, is_websocket_upgrade, parse},
};
use crate::{linger::Linger, read_buffer::ReadBuffer};

/// What a client may send behind a request for a WebSocket before that is answered.
const EARLY_BYTES_MAX: usize = 8 * 1024;

/// Wraps a connection in the server's role.
#[derive(Debug)]
pub struct FramingGuard<S> {
    inner: S,
    /// Read and not handed on.
    read: ReadBuffer,
    /// So many of these bytes were found right.
    checked: usize,
    next: GuardState,
    /// Nothing passes behind the request that is being read.
    is_last: bool,
    /// What is handed on in place of a request that was refused.
    stand_in: Bytes,
    head_bytes_max: usize,
    /// Of a body in chunks, which does not say its length before.
    chunks_bytes_max: u64,
    closing: Option<Linger>,
}

/// What the bytes are that were not looked at yet.
#[derive(Debug)]
enum GuardState {
    Head(HeadScanner),
    Body(usize),
    /// With the bytes that the body may still have.
    Chunks(ChunkScanner, u64),
    /// For nobody here to look at: a WebSocket is asked for.
    Upgrade,
    /// A head was refused; the connection closes behind the answer.
    Refused,
    /// A body is longer than it may be, which is still to be told.
    TooLong,
    /// A body broke off.
    Broken,
}

impl<S> FramingGuard<S> {
    /// On a connection of which `first` was read. A head has `head_bytes_max` bytes at most, a body in chunks `chunks_bytes_max`.
    pub fn new(inner: S, first: Bytes, head_bytes_max: usize, chunks_bytes_max: usize) -> Self {
        Self {
            inner,
            read: ReadBuffer::new(first),
            checked: 0,
            next: GuardState::Head(HeadScanner::default()),
            is_last: false,
            stand_in: Bytes::new(),
            head_bytes_max,
            chunks_bytes_max: chunks_bytes_max as u64,
            closing: None,
        }
    }

    /// The connection itself, and what is to be read before it.
    pub fn into_parts(self) -> (S, Bytes) {
        let unread = Bytes::copy_from_slice(self.read.bytes());
        (self.inner, unread)
    }

    /// Finds out how much of what was read may be handed on: a request at a time.
    fn check(&mut self) {
        while self.checked < self.read.bytes().len() {
            let rest = &self.read.bytes()[self.checked..];
            match &mut self.next {
                GuardState::Head(_) if self.checked > 0 => return,
                // Empty lines before a request (RFC 9112, 2.2) go nowhere.
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
                GuardState::Body(left) => {
                    let here = rest.len().min(*left);
                    self.checked += here;
                    *left -= here;
                    if *left == 0 {
                        self.next = self.behind_request();
                    }
                }
                GuardState::Chunks(scanner, left) => match scanner.next(rest) {
                    // Refused as it is announced: nothing of it is waited for.
                    Ok(ChunkStep::Overhead(_))
                        if scanner.announced().is_some_and(|bytes| bytes > *left) =>
                    {
                        tracing::debug!("a chunk of a request is longer than its body may be");
                        self.next = GuardState::TooLong;
                    }
                    Ok(step @ (ChunkStep::Overhead(bytes) | ChunkStep::Data(bytes))) => {
                        self.checked += bytes;
                        if matches!(step, ChunkStep::Data(_)) {
                            *left -= bytes as u64;
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

    /// Looks at the head that is next; false while it is not all there.
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

    fn refuse(&mut self, violation: FramingViolation) {
        tracing::debug!(reason = violation.reason(), "the head of a request is refused");
        let code = violation.code();
        self.stand_in = format!("GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{VIOLATION_HEADER}: {code}\r\n\r\n").into();
        self.next = GuardState::Refused;
        self.read.discard();
    }

    /// Hands on what may be; false when there is nothing.
    fn hand_on(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        if !self.stand_in.is_empty() {
            let count = self.stand_in.len().min(buffer.remaining());
            buffer.put_slice(&self.stand_in[..count]);
            self.stand_in.advance(count);
            return true;
        }
        let count = self.checked.min(buffer.remaining());
        buffer.put_slice(&self.read.bytes()[..count]);
        self.read.skip(count);
        self.checked -= count;
        count > 0
    }

    /// Whether the peer may still be sending what nobody is going to read.
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
            if guard.checked > 0 || !guard.stand_in.is_empty() {
                continue;
            }
            match &mut guard.next {
                // Its answer is on its way, and the end of the connection behind it.
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
                // As much as there is room for belongs to the body: it need not be copied.
                GuardState::Body(left)
                    if *left >= buffer.remaining() && guard.read.bytes().is_empty() =>
                {
                    let before = buffer.filled().len();
                    ready!(Pin::new(&mut guard.inner).poll_read(context, buffer))?;
                    *left -= buffer.filled().len() - before;
                    if *left == 0 {
                        guard.next = guard.behind_request();
                    }
                    return Poll::Ready(Ok(()));
                }
                _ => {}
            }
            if ready!(guard.read.poll_fill(&mut guard.inner, context, 0))? == 0 {
                return Poll::Ready(Ok(()));
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
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
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
