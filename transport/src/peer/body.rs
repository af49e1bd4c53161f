//! Bodies of requests between replicas, and of their responses.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, header::CONTENT_LENGTH};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::{sync::OwnedSemaphorePermit, task::AbortHandle};

/// Body of another replica's request or response. Dropping a response's body ends the stream at that
/// replica.
#[derive(Debug)]
pub struct PeerBody {
    stream: RecvStream,
    /// Unread bytes that [`PeerBody::merge_unread`] has copied. They still use the window.
    merged: BytesMut,
    /// Bytes that are still to come, if the head names them.
    remaining: Option<u64>,
    _sent: Option<SentRequest>,
}

/// What a sent request holds until the body of its response is dropped.
#[derive(Debug)]
pub(super) struct SentRequest {
    _upload: Option<Upload>,
    _permit: OwnedSemaphorePermit,
}

impl SentRequest {
    pub(super) fn new(upload: Option<Upload>, permit: OwnedSemaphorePermit) -> Self {
        Self { _upload: upload, _permit: permit }
    }
}

/// The task that sends the streamed body of a request. Dropping it ends the body.
#[derive(Debug)]
pub(super) struct Upload(AbortHandle);

impl Upload {
    pub(super) fn start<B>(body: B, stream: SendStream<Bytes>) -> Self
    where
        B: Body<Data = Bytes, Error = io::Error> + Send + 'static,
    {
        Self(tokio::spawn(send(body, stream)).abort_handle())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PeerBody {
    /// Returns the body of a received request, or of the response to a sent one.
    pub(super) fn new(stream: RecvStream, headers: &HeaderMap, sent: Option<SentRequest>) -> Self {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let remaining = length.and_then(|length| length.parse().ok());
        Self { stream, merged: BytesMut::new(), remaining, _sent: sent }
    }

    /// Returns the received bytes that were not taken. They use the window of the connection, which
    /// all streams share.
    pub fn unread_bytes(&mut self) -> usize {
        self.stream.flow_control().used_capacity()
    }

    /// Copies the unread pieces into one. Each piece otherwise uses some 256 bytes more than its own,
    /// which the window does not count.
    pub fn merge_unread(&mut self) {
        let unread = self.unread_bytes();
        self.merged.reserve(unread.saturating_sub(self.merged.len()));
        // The library has a piece at each of these polls, so it keeps the waker of the reader.
        let mut context = Context::from_waker(Waker::noop());
        while self.merged.len() < unread {
            let Poll::Ready(Some(Ok(piece))) = self.stream.poll_data(&mut context) else { return };
            self.merged.extend_from_slice(&piece);
        }
    }
}

impl Drop for PeerBody {
    fn drop(&mut self) {
        // The library itself frees the window of the bytes that were not taken from it.
        let _freed = self.stream.flow_control().release_capacity(self.merged.len());
    }
}

impl Body for PeerBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let data = if self.merged.is_empty() {
            match ready!(self.stream.poll_data(context)) {
                Some(Ok(data)) => data,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        } else {
            std::mem::take(&mut self.merged).freeze()
        };
        self.stream.flow_control().release_capacity(data.len())?;
        let length = data.len() as u64;
        self.remaining = self.remaining.map(|remaining| remaining.saturating_sub(length));
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.merged.is_empty() && self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.remaining {
            _ if self.is_end_stream() => SizeHint::with_exact(0),
            Some(remaining) => SizeHint::with_exact(remaining),
            None => SizeHint::default(),
        }
    }
}

/// Sends a body as fast as the other replica takes it. Ends when that replica resets the stream.
pub(super) async fn send<B>(body: B, mut stream: SendStream<Bytes>)
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            _ = poll_fn(|context| stream.poll_reset(context)) => return,
        };
        let (piece, is_last) = match frame {
            // Trailers are left out.
            Some(Ok(frame)) => (frame.into_data().unwrap_or_default(), body.is_end_stream()),
            Some(Err(_)) => return stream.send_reset(Reason::INTERNAL_ERROR),
            None => (Bytes::new(), true),
        };
        if send_piece(&mut stream, piece, is_last).await.is_err() || is_last {
            return;
        }
    }
}

/// Sends one piece of a body. The window of the stream bounds what is buffered of it.
async fn send_piece(
    stream: &mut SendStream<Bytes>,
    mut piece: Bytes,
    is_last: bool,
) -> Result<(), StreamClosed> {
    if piece.is_empty() && is_last {
        return stream.send_data(piece, true).map_err(|_| StreamClosed);
    }
    while !piece.is_empty() {
        stream.reserve_capacity(piece.len());
        let capacity = poll_fn(|context| stream.poll_capacity(context)).await;
        let Some(Ok(capacity)) = capacity else { return Err(StreamClosed) };
        let part = piece.split_to(capacity.min(piece.len()));
        if !part.is_empty() {
            let is_end = is_last && piece.is_empty();
            stream.send_data(part, is_end).map_err(|_| StreamClosed)?;
        }
    }
    Ok(())
}

/// The other replica takes no more bytes of a stream.
struct StreamClosed;
