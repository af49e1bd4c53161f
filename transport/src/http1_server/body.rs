//! The body of a request that is read from its connection by whoever wants it.

use std::{
    io,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::net::TcpStream;

/// What is read to before any of it is handed on. What is longer comes in pieces of this size.
const PIECE_BYTES_MAX: usize = 1024 * 1024;

/// Whether so many bytes of `buffer` are better copied: whoever keeps some of them keeps all that was made room for.
pub(super) fn is_wasteful(buffer: &BytesMut, bytes: usize) -> bool {
    buffer.capacity() / 8 > bytes
}

/// A body on its connection. In one piece where it is not very large: it is read to where it stays.
#[derive(Debug)]
pub struct RequestBody<'a> {
    pub(super) socket: &'a TcpStream,
    /// What was read already.
    pub(super) buffer: &'a mut BytesMut,
    /// Bytes of the body that nobody has taken.
    pub(super) left: &'a AtomicUsize,
}

impl Body for RequestBody<'_> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Self { socket, buffer, left } = &mut *self;
        let rest = left.load(Ordering::Relaxed);
        if rest == 0 {
            return Poll::Ready(None);
        }
        let piece = rest.min(PIECE_BYTES_MAX);
        while buffer.len() < piece {
            ready!(socket.poll_read_ready(context))?;
            buffer.reserve(piece - buffer.len());
            match socket.try_read_buf(*buffer) {
                Ok(0) => return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Some(Err(error)));
                }
                Ok(_) | Err(_) => {}
            }
        }
        left.store(rest - piece, Ordering::Relaxed);
        let is_wasteful = is_wasteful(buffer, piece);
        let data = buffer.split_to(piece);
        Poll::Ready(Some(Ok(Frame::data(if is_wasteful {
            Bytes::copy_from_slice(&data)
        } else {
            data.freeze()
        }))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.load(Ordering::Relaxed) as u64)
    }
}
