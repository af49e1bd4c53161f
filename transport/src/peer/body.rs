//! Bodies of requests to other replicas, and of their responses.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, header::CONTENT_LENGTH};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::task::AbortHandle;

/// Body of another replica's response. Dropping it ends the stream at that replica.
#[derive(Debug)]
pub struct PeerBody {
    stream: RecvStream,
    /// Bytes that are still to come, if the head names them.
    remaining: Option<u64>,
    _upload: Option<Upload>,
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
    pub(super) fn new(stream: RecvStream, headers: &HeaderMap, upload: Option<Upload>) -> Self {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let remaining = length.and_then(|length| length.parse().ok());
        Self { stream, remaining, _upload: upload }
    }

    /// Returns the received bytes that were not taken. They use the window of the connection, which
    /// all streams share.
    pub fn unread_bytes(&mut self) -> usize {
        self.stream.flow_control().used_capacity()
    }
}

impl Body for PeerBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let Some(data) = ready!(self.stream.poll_data(context)) else { return Poll::Ready(None) };
        Poll::Ready(Some(data.and_then(|data| {
            self.stream.flow_control().release_capacity(data.len())?;
            let length = data.len() as u64;
            self.remaining = self.remaining.map(|remaining| remaining.saturating_sub(length));
            Ok(Frame::data(data))
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.remaining {
            _ if self.stream.is_end_stream() => SizeHint::with_exact(0),
            Some(remaining) => SizeHint::with_exact(remaining),
            None => SizeHint::default(),
        }
    }
}

/// Sends a body as fast as the other replica takes it. Ends when that replica resets the stream.
async fn send<B>(body: B, mut stream: SendStream<Bytes>)
where
    B: Body<Data = Bytes, Error = io::Error>,
{
    let mut body = pin!(body);
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            _ = poll_fn(|context| stream.poll_reset(context)) => return,
        };
        let sent = match frame {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => send_piece(&mut stream, data).await,
                Err(_trailers) => Ok(()),
            },
            Some(Err(_)) => return stream.send_reset(Reason::INTERNAL_ERROR),
            None => {
                let _reset_meanwhile = stream.send_data(Bytes::new(), true);
                return;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Sends one piece of a body. The window of the stream bounds what is buffered of it.
async fn send_piece(stream: &mut SendStream<Bytes>, mut piece: Bytes) -> Result<(), StreamClosed> {
    while !piece.is_empty() {
        stream.reserve_capacity(piece.len());
        let capacity = poll_fn(|context| stream.poll_capacity(context)).await;
        let Some(Ok(capacity)) = capacity else { return Err(StreamClosed) };
        let part = piece.split_to(capacity.min(piece.len()));
        if !part.is_empty() {
            stream.send_data(part, false).map_err(|_| StreamClosed)?;
        }
    }
    Ok(())
}

/// The other replica takes no more bytes of a stream.
struct StreamClosed;
