//! A client's connection, seen from the server: its control stream and the streams of its requests.

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
    Limits,
    frames::{CloseScope, QuicSink, QuicSource, cancel},
    streams_allowed,
};
use crate::{
    frame::{CloseReason, FrameSink, FrameSource, ReadError},
    read_buffer::SHARED_PERMIT_BYTES,
    tls::ClientCertificate,
};

/// Cheap to clone; the connection ends when all clones and all streams are gone.
#[derive(Debug, Clone)]
pub struct QuicConnection {
    connection: Connection,
    message_bytes_max: usize,
    silence_max: Duration,
    stall_max: Duration,
    /// For requests that are not whole yet.
    request_room: Arc<Semaphore>,
    request_streams_max: u32,
    /// The client may have as many of them as the limit says, and no longer only [`super::FIRST_REQUEST_STREAMS`].
    has_all_streams: Arc<AtomicBool>,
}

impl QuicConnection {
    pub(super) fn new(connection: Connection, limits: &Limits) -> Self {
        let Limits { message_bytes_max, silence_max, stall_max, request_streams_max, .. } = *limits;
        let request_room =
            Arc::new(Semaphore::new(limits.request_bytes_max.div_ceil(SHARED_PERMIT_BYTES)));
        let has_all_streams = Arc::default();
        Self {
            connection,
            message_bytes_max,
            silence_max,
            stall_max,
            request_room,
            request_streams_max,
            has_all_streams,
        }
    }

    /// Where the client is now: it may move.
    pub fn remote(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// The certificate the client presented, if it was asked for one and had one.
    pub fn client_certificate(&self) -> Option<ClientCertificate> {
        let chain =
            self.connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        ClientCertificate::new(&chain)
    }

    /// The next stream a client opens for a request; `None` when the connection has ended.
    pub async fn accept_request(&self) -> Option<RequestStream> {
        let (sink, source) = self.connection.accept_bi().await.ok()?;
        if !self.has_all_streams.swap(true, Ordering::Relaxed) {
            self.connection
                .set_max_concurrent_bi_streams(streams_allowed(self.request_streams_max));
        }
        let mut stream = self.request_stream(sink, source);
        stream.source.share(self.request_room.clone());
        Some(stream)
    }

    /// Ends everything at once; what has not arrived is lost. For an orderly end close the sink of the control stream.
    pub fn close(&self, goodbye: CloseReason) {
        self.connection.close(VarInt::from_u32(goodbye.quic_code()), goodbye.reason().as_bytes());
    }

    /// Resolves when the connection has ended, whoever ended it.
    pub async fn closed(&self) {
        self.connection.closed().await;
    }

    /// The first stream of a connection. quinn hands streams out in the order in which they were opened, whatever arrived first.
    pub(super) async fn accept_control(&self) -> Result<(QuicSource, QuicSink), ConnectionError> {
        let (sink, source) = self.connection.accept_bi().await?;
        Ok(self.control(sink, source))
    }

    pub(super) async fn open_control(&self) -> Result<(QuicSource, QuicSink), ConnectionError> {
        let (sink, source) = self.connection.open_bi().await?;
        Ok(self.control(sink, source))
    }

    /// Waits while as many streams are open as the server allows.
    pub(super) async fn open_request(&self) -> Result<RequestStream, ConnectionError> {
        let (sink, source) = self.connection.open_bi().await?;
        Ok(self.request_stream(sink, source))
    }

    fn control(&self, sink: SendStream, source: RecvStream) -> (QuicSource, QuicSink) {
        // What is said to all must not wait behind the answers of single requests.
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

/// The stream of one request: it first, then back what belongs to it, the answer last.
#[derive(Debug)]
pub struct RequestStream {
    pub source: QuicSource,
    pub sink: QuicSink,
}

impl RequestStream {
    /// The request. `None` when the client has thought better of it.
    pub async fn receive(&mut self) -> Result<Option<Bytes>, ReadError> {
        self.source.next().await
    }

    /// The halves for the time after the request: where to answer, and what tells that nobody waits for it any more.
    pub fn answering(self) -> (QuicSink, Cancellation) {
        (self.sink, Cancellation { source: self.source })
    }

    /// Sends the request away, with the reason.
    pub async fn refuse(mut self, goodbye: CloseReason) {
        self.source.stop(goodbye);
        self.sink.close(goodbye).await;
    }

    /// Gives the exchange up in both directions; to the other side that is a cancellation.
    pub fn cancel(&mut self) {
        cancel(&mut self.source, &mut self.sink);
    }
}

/// Tells when the client gives up a request.
#[derive(Debug)]
pub struct Cancellation {
    source: QuicSource,
}

impl Cancellation {
    /// Resolves when the client resets the stream, stops us from sending on `sink`, or is gone. Otherwise never.
    ///
    /// Cancel-safe, and does not borrow the sink for longer than the call.
    pub fn cancelled(&mut self, sink: &QuicSink) -> impl Future<Output = ()> + Send + use<'_> {
        let (reset, stopped) = (self.source.stream_mut(), sink.stopped());
        async move {
            let reset = async {
                // No reset will come: the client has sent all it had to say. The other direction decides.
                if let Ok(None) = reset.received_reset().await {
                    std::future::pending().await
                }
            };
            let stopped = async {
                // We have finished, and the client has everything.
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
