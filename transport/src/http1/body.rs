//! The body of a response that is read from its connection by whoever wants it. Read to its end, it gives the connection back;
//! dropped before, it closes it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::io::AsyncReadExt as _;

use super::{
    Connection, Return,
    chunks::{Chunks, Piece},
    head::Length,
};

/// Room made at once for a body of which only its length is known.
const ROOM_MAX: usize = 1024 * 1024;

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub enum BodyBroken {
    #[error("the connection ended before the body")]
    Ended,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Malformed(&'static str),
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// What is left of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Exactly(u64),
    Chunks(Chunks),
    UntilClosed,
}

/// A body on its connection.
#[derive(Debug)]
pub(crate) struct Http1Body {
    left: Left,
    /// `None` once everything was read.
    connection: Option<Box<Connection>>,
    /// Where it goes then; `None`: nowhere.
    back: Option<Return>,
}

impl Http1Body {
    pub(super) fn new(length: Length, connection: Box<Connection>, back: Option<Return>) -> Self {
        let left = match length {
            Length::Exactly(bytes) => Left::Exactly(bytes),
            Length::Chunked => Left::Chunks(Chunks::new()),
            Length::UntilClosed => Left::UntilClosed,
        };
        let mut body = Self { left, connection: Some(connection), back };
        if left == Left::Exactly(0) {
            body.is_read();
        }
        body
    }

    fn is_read(&mut self) {
        if let (Some(connection), Some(back)) = (self.connection.take(), self.back.take()) {
            back.give(connection);
        }
    }

    /// Its length, where that was announced and no byte of it was taken.
    pub(crate) fn exact_bytes(&self) -> Option<u64> {
        // `all` only reads; what still has to be written meanwhile is seen to by `poll_frame`.
        let owes = self.connection.as_ref().is_some_and(|connection| !connection.unsent.is_empty());
        match self.left {
            Left::Exactly(bytes) if !owes => Some(bytes),
            _ => None,
        }
    }

    /// All of a body of this length (see [`Http1Body::exact_bytes`]), read to where it stays: mostly it came with its head, and
    /// what did not is read straight behind what did.
    pub(crate) async fn all(mut self, bytes: usize) -> Result<Bytes, BodyBroken> {
        let Some(connection) = &mut self.connection else { return Ok(Bytes::new()) };
        let whole = if connection.buffer.len() >= bytes {
            connection.buffer.split_to(bytes)
        } else {
            let mut whole = BytesMut::with_capacity(bytes.min(ROOM_MAX) + 1);
            whole.extend_from_slice(&connection.buffer);
            connection.buffer.clear();
            while whole.len() < bytes {
                // With room to spare a read that fills less has seen that there is no more: one system call fewer.
                whole.reserve((bytes - whole.len()).min(ROOM_MAX) + 1);
                if connection.socket.read_buf(&mut whole).await? == 0 {
                    return Err(BodyBroken::Ended);
                }
            }
            connection.buffer = whole.split_off(bytes);
            whole
        };
        connection.note_response(bytes);
        self.is_read();
        Ok(whole.freeze())
    }

    /// The next bytes out of what was read already.
    fn next_piece(&mut self) -> Result<Piece, BodyBroken> {
        let Some(connection) = &mut self.connection else { return Ok(Piece::Over) };
        let buffer = &mut connection.buffer;
        let piece = match &mut self.left {
            Left::Exactly(0) => Piece::Over,
            Left::Exactly(_) | Left::UntilClosed if buffer.is_empty() => Piece::More,
            Left::Exactly(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
                *left -= here as u64;
                Piece::Data(buffer.split_to(here).freeze())
            }
            Left::Chunks(chunks) => chunks.next(buffer).map_err(BodyBroken::Malformed)?,
            Left::UntilClosed => Piece::Data(buffer.split().freeze()),
        };
        let is_over = match self.left {
            Left::Exactly(left) => left == 0,
            Left::Chunks(chunks) => chunks.is_over(),
            Left::UntilClosed => false,
        };
        if is_over {
            self.is_read();
        }
        Ok(piece)
    }
}

impl Body for Http1Body {
    type Data = Bytes;
    type Error = BodyBroken;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyBroken>>> {
        loop {
            match self.next_piece() {
                Ok(Piece::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(Piece::Over) => return Poll::Ready(None),
                Ok(Piece::More) => {}
                Err(broken) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(broken)));
                }
            }
            let until_closed = self.left == Left::UntilClosed;
            let Some(connection) = &mut self.connection else { return Poll::Ready(None) };
            let ended = match ready!(connection.poll_more(context)) {
                Ok(0) if until_closed => None,
                Ok(0) => Some(BodyBroken::Ended),
                Ok(_) => continue,
                Err(error) => Some(error.into()),
            };
            self.connection = None;
            return Poll::Ready(ended.map(Err));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.connection.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match (self.left, &self.connection) {
            (_, None) => SizeHint::with_exact(0),
            (Left::Exactly(left), _) => SizeHint::with_exact(left),
            _ => SizeHint::default(),
        }
    }
}
