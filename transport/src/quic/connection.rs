//! A client's connection on the server: its control stream and the streams of its requests.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use quinn::{Connection, ConnectionError, RecvStream, SendStream, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;

use super::{
    CLIENT_WINDOW_BYTES, Limits,
    frames::{CloseScope, QuicSink, QuicSource, cancel},
    streams_allowed,
};
use crate::{
    frame::{CloseReason, FrameSink, FrameSource, ReadError},
    read_buffer::SHARED_PERMIT_BYTES,
    tls::ClientCertificate,
};

/// Cheap to clone. The connection ends when all clones and all streams are dropped.
#[derive(Debug, Clone)]
pub struct QuicConnection {
    connection: Connection,
    message_bytes_max: usize,
    silence_max: Duration,
    stall_max: Duration,
    /// Budget for incomplete requests.
    request_budget: Arc<Semaphore>,
    request_streams_max: u32,
    /// Set once the client may open the full number of request streams instead of
    /// [`super::FIRST_REQUEST_STREAMS`].
    has_all_streams: Arc<AtomicBool>,
}

impl QuicConnection {
    pub(super) fn new(connection: Connection, limits: &Limits) -> Self {
        let Limits {
            message_bytes_max,
            idle_timeout: silence_max,
            stall_max,
            request_streams_max,
            ..
        } = *limits;
        let request_budget =
            Arc::new(Semaphore::new(limits.request_bytes_max.div_ceil(SHARED_PERMIT_BYTES)));
        let has_all_streams = Arc::default();
        Self {
            connection,
            message_bytes_max,
            silence_max,
            stall_max,
            request_budget,
            request_streams_max,
            has_all_streams,
        }
    }

    /// Returns the client's current address, which may change.
    pub fn remote(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// Returns the client's certificate, or `None` if the listener requested none or the client has
    /// none.
    pub fn client_certificate(&self) -> Option<ClientCertificate> {
        let chain =
            self.connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        ClientCertificate::new(&chain)
    }

    /// Returns the next stream that the client opens for a request, or `None` after the end of the
    /// connection.
    pub async fn accept_request(&self) -> Option<RequestStream> {
        let (sink, source) = self.connection.accept_bi().await.ok()?;
        if !self.has_all_streams.swap(true, Ordering::Relaxed) {
            self.connection
                .set_max_concurrent_bi_streams(streams_allowed(self.request_streams_max));
        }
        let mut stream = self.request_stream(sink, source);
        stream.source.share(self.request_budget.clone());
        Some(stream)
    }

    /// Lets a client send more at once, after it has proved who it is. Until then its unread bytes
    /// belong to no budget.
    pub fn open_window(&self) {
        self.connection.set_receive_window(VarInt::from_u32(CLIENT_WINDOW_BYTES));
    }

    /// Closes the connection at once. Data that has not arrived is lost. For an orderly end close
    /// the sink of the control stream.
    pub fn close(&self, close_reason: CloseReason) {
        self.connection
            .close(VarInt::from_u32(close_reason.quic_code()), close_reason.reason().as_bytes());
    }

    /// Resolves when either side has ended the connection.
    pub async fn closed(&self) {
        self.connection.closed().await;
    }

    /// Accepts the first stream of a connection. quinn returns streams in the order in which the
    /// client opened them, even if packets arrive in another order.
    pub(super) async fn accept_control(&self) -> Result<(QuicSource, QuicSink), ConnectionError> {
        let (sink, source) = self.connection.accept_bi().await?;
        Ok(self.control(sink, source))
    }

    pub(super) async fn open_control(&self) -> Result<(QuicSource, QuicSink), ConnectionError> {
        let (sink, source) = self.connection.open_bi().await?;
        Ok(self.control(sink, source))
    }

    /// Opens a stream. Waits while the server's stream limit is reached.
    pub(super) async fn open_request(&self) -> Result<RequestStream, ConnectionError> {
        let (sink, source) = self.connection.open_bi().await?;
        Ok(self.request_stream(sink, source))
    }

    fn control(&self, sink: SendStream, source: RecvStream) -> (QuicSource, QuicSink) {
        // Messages on the control stream must not wait for the answers of single requests.
        let _ = sink.set_priority(1);
        let source = QuicSource::new(source, self.message_bytes_max, self.silence_max);
        (
            source,
            QuicSink::new(sink, CloseScope::Connection(self.connection.clone()), self.stall_max),
        )
    }

    fn request_stream(&self, sink: SendStream, source: RecvStream) -> RequestStream {
        RequestStream {
            source: QuicSource::new(source, self.message_bytes_max, self.silence_max),
            sink: QuicSink::new(sink, CloseScope::Stream, self.stall_max),
        }
    }
}

/// The stream of one request. It carries the request, then the messages that belong to the request,
/// and the answer last.
#[derive(Debug)]
pub struct RequestStream {
    pub source: QuicSource,
    pub sink: QuicSink,
}

impl RequestStream {
    /// Receives the request. Returns `None` if the stream ends without one.
    pub async fn receive(&mut self) -> Result<Option<Bytes>, ReadError> {
        let received = self.source.next().await;
        // The stream is not read again before its answer.
        self.source.next_message();
        received
    }

    /// Returns the sink for the answer and the source of cancellations.
    pub fn into_response_sink(self) -> (QuicSink, Cancellation) {
        (self.sink, Cancellation { source: self.source })
    }

    /// Refuses the request and sends the reason.
    pub async fn refuse(mut self, close_reason: CloseReason) {
        self.source.stop(close_reason);
        self.sink.close(close_reason).await;
    }

    /// Cancels the exchange in both directions. The other side sees a cancellation.
    pub fn cancel(&mut self) {
        cancel(&mut self.source, &mut self.sink);
    }
}

/// Reports when the client cancels a request.
#[derive(Debug)]
pub struct Cancellation {
    source: QuicSource,
}

impl Cancellation {
    /// Resolves when the client resets the stream, stops the sending on `sink`, or disconnects.
    /// Otherwise it never resolves.
    ///
    /// Cancel-safe, and borrows the sink only during the call.
    pub fn cancelled(&mut self, sink: &QuicSink) -> impl Future<Output = ()> + Send + use<'_> {
        let (reset, stopped) = (self.source.stream_mut(), sink.stopped());
        async move {
            let reset = async {
                // No reset will come, because the client has finished sending. The other direction
                // decides.
                if let Ok(None) = reset.received_reset().await {
                    std::future::pending().await
                }
            };
            let stopped = async {
                // The sink is finished, and the client has received everything.
                if let Ok(None) = stopped.await {
                    std::future::pending().await
                }
            };
            tokio::select! {
                () = reset => {}
                () = stopped => {}
            }
        }
    }
}
