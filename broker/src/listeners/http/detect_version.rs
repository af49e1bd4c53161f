//! Detects a client's HTTP version from its first bytes, and returns them together with the stream.
//! A head in two pieces would cost its connection a buffer of twice the size for its whole life.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// First bytes of an HTTP/2 connection (RFC 9113, 3.4). No HTTP/1 request begins with them.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HttpVersion {
    Http1,
    Http2,
}

/// A connection whose first bytes were read for the detection.
#[derive(Debug)]
pub(super) struct PrefixedStream<S> {
    inner: S,
    /// Bytes that were read but not yet returned.
    first: Bytes,
}

/// Reads until the version is clear, unless `first` shows it. The next reader sees the end of the
/// connection.
pub(super) async fn detect<S: AsyncRead + Unpin>(
    mut inner: S,
    first: Bytes,
) -> io::Result<(HttpVersion, PrefixedStream<S>)> {
    let mut first = BytesMut::from(first);
    let version = loop {
        let seen = first.len().min(PREFACE.len());
        if PREFACE[..seen] != first[..seen] {
            break HttpVersion::Http1;
        }
        if seen == PREFACE.len() {
            break HttpVersion::Http2;
        }
        let mut limited = (&mut first).limit(PREFACE.len() - seen);
        if inner.read_buf(&mut limited).await? == 0 {
            break HttpVersion::Http1;
        }
    };
    Ok((version, PrefixedStream { inner, first: first.freeze() }))
}

impl<S> PrefixedStream<S> {
    /// Returns the connection, and the bytes to read before it.
    pub(super) fn into_parts(self) -> (S, Bytes) {
        (self.inner, self.first)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefixedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.first.is_empty() {
            return Pin::new(&mut this.inner).poll_read(context, buffer);
        }
        let count = this.first.len().min(buffer.remaining());
        buffer.put_slice(&this.first[..count]);
        // Frees the buffer after its last byte was returned.
        this.first =
            if count < this.first.len() { this.first.slice(count..) } else { Bytes::new() };
        if buffer.remaining() > 0 {
            // A pending read, the end or an error is reported by the next read.
            let _reported_later = Pin::new(&mut this.inner).poll_read(context, buffer);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefixedStream<S> {
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
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_already_read_are_returned_first_in_reads_of_any_size() {
        let cases = [
            ("GET /", " HTTP", HttpVersion::Http1),
            ("PRI * HT", "TP/2.0\r\n\r\nSM\r\n\r\nframes", HttpVersion::Http2),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nfra", "mes", HttpVersion::Http2),
            ("PRI", "", HttpVersion::Http1),
            ("", "x", HttpVersion::Http1),
        ];
        for (first, rest, expected) in cases {
            let (spoken, mut detected) =
                detect(rest.as_bytes(), Bytes::from_static(first.as_bytes())).await.unwrap();
            assert_eq!(spoken, expected);
            let (mut read, mut little) = (Vec::new(), [0; 3]);
            loop {
                match detected.read(&mut little).await.unwrap() {
                    0 => break,
                    count => read.extend_from_slice(&little[..count]),
                }
            }
            assert_eq!(read, [first, rest].concat().as_bytes());
        }
        let (_, mut detected) = detect(&b"later"[..], Bytes::from_static(b"first")).await.unwrap();
        detected.read_exact(&mut [0; 2]).await.unwrap();
        assert_eq!(detected.into_parts(), (&b"later"[..], Bytes::from_static(b"rst")));
    }
}
