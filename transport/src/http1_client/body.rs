//! The body of a response, which the caller reads from the connection. A body read to its end
//! returns the connection to the pool. A body dropped before its end closes the connection.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::io::AsyncReadExt as _;

use super::{
    ClientConnection, PoolReturn,
    chunked::{ChunkedDecoder, DecodedChunk},
    head::BodyLength,
};

/// Bytes of a body of known length that must have come before the rest of it gets its memory.
const INITIAL_CAPACITY_MAX: usize = 1024 * 1024;

/// Reason why a body broke off.
#[derive(Debug, thiserror::Error)]
pub enum BodyStreamError {
    #[error("the connection ended before the body")]
    Ended,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Malformed(&'static str),
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// Rest of a body that is not read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemainingBody {
    Exactly(u64),
    Chunks(ChunkedDecoder),
    UntilClosed,
}

/// A body on its connection.
#[derive(Debug)]
pub(crate) struct Http1Body {
    remaining: RemainingBody,
    /// `None` once the whole body was read.
    connection: Option<Box<ClientConnection>>,
    /// Pool that gets the connection after the body. `None` closes the connection.
    back: Option<PoolReturn>,
}

impl Http1Body {
    pub(super) fn new(
        length: BodyLength,
        connection: Box<ClientConnection>,
        back: Option<PoolReturn>,
    ) -> Self {
        let remaining = match length {
            BodyLength::Exactly(bytes) => RemainingBody::Exactly(bytes),
            BodyLength::Chunked => RemainingBody::Chunks(ChunkedDecoder::new()),
            BodyLength::UntilClosed => RemainingBody::UntilClosed,
        };
        let mut body = Self { remaining, connection: Some(connection), back };
        if remaining == RemainingBody::Exactly(0) {
            body.return_connection();
        }
        body
    }

    fn return_connection(&mut self) {
        if let (Some(connection), Some(back)) = (self.connection.take(), self.back.take()) {
            back.give(connection);
        }
    }

    /// Returns the length of the body if it was announced and no byte of the body was taken.
    pub(crate) fn exact_bytes(&self) -> Option<u64> {
        // `all` only reads. A connection with unsent request bytes needs `poll_frame`, which also
        // writes.
        let has_unsent =
            self.connection.as_ref().is_some_and(|connection| !connection.unsent.is_empty());
        match self.remaining {
            RemainingBody::Exactly(bytes) if !has_unsent => Some(bytes),
            _ => None,
        }
    }

    /// Reads a whole body of this length (see [`Http1Body::exact_bytes`]). Most bodies arrive with
    /// their head. The rest of a longer body is read directly after its beginning, without another
    /// copy.
    pub(crate) async fn all(mut self, bytes: usize) -> Result<Bytes, BodyStreamError> {
        let Some(connection) = &mut self.connection else { return Ok(Bytes::new()) };
        let whole = if connection.buffer.len() >= bytes {
            connection.buffer.split_to(bytes)
        } else {
            let mut whole = BytesMut::with_capacity(bytes.min(INITIAL_CAPACITY_MAX) + 1);
            whole.extend_from_slice(&connection.buffer);
            connection.buffer.clear();
            while whole.len() < bytes {
                // The rest gets its memory at once. Several steps would copy the body as often, and
                // leave as much memory behind as the body takes.
                let capacity = if whole.len() < INITIAL_CAPACITY_MAX {
                    bytes.min(INITIAL_CAPACITY_MAX)
                } else {
                    bytes
                };
                // With one spare byte, a read that does not fill the buffer shows that no more data
                // is there. This saves one system call.
                whole.reserve(capacity - whole.len() + 1);
                if connection.socket.read_buf(&mut whole).await? == 0 {
                    return Err(BodyStreamError::Ended);
                }
            }
            connection.buffer = whole.split_off(bytes);
            whole
        };
        connection.record_response(bytes);
        self.return_connection();
        Ok(whole.freeze())
    }

    /// Returns the next bytes from the data already read.
    fn next_piece(&mut self) -> Result<DecodedChunk, BodyStreamError> {
        let Some(connection) = &mut self.connection else { return Ok(DecodedChunk::End) };
        let buffer = &mut connection.buffer;
        let piece = match &mut self.remaining {
            RemainingBody::Exactly(0) => DecodedChunk::End,
            RemainingBody::Exactly(_) | RemainingBody::UntilClosed if buffer.is_empty() => {
                DecodedChunk::Incomplete
            }
            RemainingBody::Exactly(remaining) => {
                let here = usize::try_from(*remaining).unwrap_or(usize::MAX).min(buffer.len());
                *remaining -= here as u64;
                DecodedChunk::Data(buffer.split_to(here).freeze())
            }
            RemainingBody::Chunks(chunks) => {
                chunks.next(buffer).map_err(BodyStreamError::Malformed)?
            }
            RemainingBody::UntilClosed => DecodedChunk::Data(buffer.split().freeze()),
        };
        let is_over = match self.remaining {
            RemainingBody::Exactly(remaining) => remaining == 0,
            RemainingBody::Chunks(chunks) => chunks.is_over(),
            RemainingBody::UntilClosed => false,
        };
        if is_over {
            self.return_connection();
        }
        Ok(piece)
    }
}

impl Body for Http1Body {
    type Data = Bytes;
    type Error = BodyStreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        loop {
            match self.next_piece() {
                Ok(DecodedChunk::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(DecodedChunk::End) => return Poll::Ready(None),
                Ok(DecodedChunk::Incomplete) => {}
                Err(broken) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(broken)));
                }
            }
            let until_closed = self.remaining == RemainingBody::UntilClosed;
            let Some(connection) = &mut self.connection else { return Poll::Ready(None) };
            let ended = match ready!(connection.poll_more(context)) {
                Ok(0) if until_closed => None,
                Ok(0) => Some(BodyStreamError::Ended),
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
        match (self.remaining, &self.connection) {
            (_, None) => SizeHint::with_exact(0),
            (RemainingBody::Exactly(remaining), _) => SizeHint::with_exact(remaining),
            _ => SizeHint::default(),
        }
    }
}
