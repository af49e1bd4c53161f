//! Which HTTP a client speaks, told by its first bytes. They are handed on together with what follows them: a head that
//! seems to come in two pieces would cost its connection a buffer of twice the size for as long as it lives.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// How HTTP/2 begins (RFC 9113, 3.4). No request of HTTP/1 begins like it.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spoken {
    Http1,
    Http2,
}

/// A connection of which the first bytes were looked at.
#[derive(Debug)]
pub(super) struct Begun<S> {
    inner: S,
    first: [u8; PREFACE.len()],
    /// Of `first`, what was read, and what of it was handed on.
    read: u8,
    handed_on: u8,
}

/// Reads until it is clear what is spoken. The end of the connection is for whoever reads on.
pub(super) async fn heard<S: AsyncRead + Unpin>(mut inner: S) -> io::Result<(Spoken, Begun<S>)> {
    let mut first = [0; PREFACE.len()];
    let mut read = 0;
    let spoken = loop {
        let count = inner.read(&mut first[read..]).await?;
        read += count;
        if count == 0 || !PREFACE.starts_with(&first[..read]) {
            break Spoken::Http1;
        }
        if read == PREFACE.len() {
            break Spoken::Http2;
        }
    };
    Ok((spoken, Begun { inner, first, read: read as u8, handed_on: 0 }))
}

impl<S> Begun<S> {
    /// The connection itself, once a request was read from it.
    pub(super) fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let begun = &mut *self;
        let first = &begun.first[usize::from(begun.handed_on)..usize::from(begun.read)];
        if first.is_empty() {
            return Pin::new(&mut begun.inner).poll_read(context, buffer);
        }
        let count = first.len().min(buffer.remaining());
        buffer.put_slice(&first[..count]);
        begun.handed_on += count as u8;
        if buffer.remaining() > 0 {
            // Nothing yet, the end or an error: the next read will tell.
            let _told_later = Pin::new(&mut begun.inner).poll_read(context, buffer);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
