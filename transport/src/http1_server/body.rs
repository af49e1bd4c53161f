//! The body of a request, which the handler reads from the connection.

use std::{
    io,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::net::TcpStream;

use crate::message_bound::FREE_BYTES;

/// Bytes collected before the body passes any of them on. A longer body comes in pieces of this
/// size.
pub(crate) const PIECE_BYTES_MAX: usize = 1024 * 1024;
/// Space for the first bytes of a piece. An announced length alone takes no more memory.
const FIRST_BYTES_MAX: usize = 64 * 1024;

/// Returns whether it is better to copy this many bytes of `buffer`. A slice keeps the whole
/// allocation of the buffer.
pub(super) fn is_wasteful(buffer: &BytesMut, bytes: usize) -> bool {
    buffer.capacity() / 8 > bytes
}

/// A body on its connection. A body up to the piece limit comes as one piece, without another copy.
/// If it arrives with a wait, it comes in smaller pieces, so that little of it stays here.
#[derive(Debug)]
pub struct RequestBody<'a> {
    pub(super) socket: &'a TcpStream,
    /// Bytes already read from the connection.
    pub(super) buffer: &'a mut BytesMut,
    /// Bytes of the body that the handler has not taken.
    pub(super) remaining: &'a AtomicUsize,
}

impl Body for RequestBody<'_> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let Self { socket, buffer, remaining } = &mut *self;
        let rest = remaining.load(Ordering::Relaxed);
        if rest == 0 {
            return Poll::Ready(None);
        }
        let mut piece = rest.min(PIECE_BYTES_MAX);
        while buffer.len() < piece {
            match socket.poll_read_ready(context)? {
                Poll::Ready(()) => {}
                Poll::Pending if buffer.len() > FREE_BYTES => {
                    piece = buffer.len();
                    break;
                }
                Poll::Pending => return Poll::Pending,
            }
            let space = if buffer.len() < FIRST_BYTES_MAX { FIRST_BYTES_MAX } else { piece };
            buffer.reserve(space.min(piece) - buffer.len());
            match socket.try_read_buf(*buffer) {
                Ok(0) => return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Poll::Ready(Some(Err(error)));
                }
                Ok(_) | Err(_) => {}
            }
        }
        remaining.store(rest - piece, Ordering::Relaxed);
        let is_wasteful = is_wasteful(buffer, piece);
        let data = buffer.split_to(piece);
        Poll::Ready(Some(Ok(Frame::data(if is_wasteful {
            Bytes::copy_from_slice(&data)
        } else {
            data.freeze()
        }))))
    }

    fn is_end_stream(&self) -> bool {
        self.remaining.load(Ordering::Relaxed) == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining.load(Ordering::Relaxed) as u64)
    }
}
