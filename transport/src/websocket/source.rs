//! The receiving half of a WebSocket connection, which also keeps it alive. It answers pings, sends
//! pings to a silent peer, and answers its close frame. All of that happens inside `next`.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
    time::{Instant, Sleep, sleep},
};

use super::{
    Limits,
    codec::{CloseFrame, DecodedFrame, Decoder, Message},
    message_splitter::MessageSplitter,
    shared_writer::SharedWriter,
};
use crate::{
    frame::{CLOSE_TIMEOUT, CloseReason, FrameSource, ReadError},
    message_bound::MessageBound,
    read_buffer::ReadBuffer,
    read_turns::ReadTurns,
};

/// Shortest ping interval. An interval of zero would leave no time for reading.
const PING_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Receives text messages.
#[derive(Debug)]
pub struct WsSource<R, W> {
    reader: R,
    buffer: ReadBuffer,
    turns: ReadTurns,
    decoder: Decoder,
    /// Remaining messages of the last text frame.
    messages: MessageSplitter,
    outgoing: Arc<SharedWriter<W>>,
    ping_interval: Duration,
    silence_max: Duration,
    /// Time of the last bytes of the peer, or of the first wait after a message.
    silent_since: Instant,
    /// Set while the owner has a message and does not wait for the next one.
    is_handled: bool,
    /// Time of the next ping or the end of the wait for a silent peer. In the closing phase: time
    /// limit for writing the close frame.
    timer: Pin<Box<Sleep>>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Open,
    /// The peer has sent a close frame, which may name a fault of this side. The answer is being
    /// written.
    Closing(Option<ReadError>),
    /// The source has ended. The start of the next frame is known or does not matter.
    Ended,
    /// The source has ended. The bytes that follow cannot be parsed.
    Failed,
}

/// Returns the interval of pings. A peer that only answers pings gets one before its silence ends the
/// connection.
fn ping_interval(limits: &Limits) -> Duration {
    limits.ping_interval.min(limits.idle_timeout / 2).max(PING_INTERVAL_MIN)
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send> WsSource<R, W> {
    pub(super) fn new(
        reader: R,
        prefix: Bytes,
        decoder: Decoder,
        outgoing: Arc<SharedWriter<W>>,
        limits: &Limits,
    ) -> Self {
        let ping_interval = ping_interval(limits);
        Self {
            reader,
            buffer: ReadBuffer::new(prefix),
            turns: ReadTurns::new(),
            decoder,
            messages: MessageSplitter::default(),
            outgoing,
            ping_interval,
            silence_max: limits.idle_timeout,
            silent_since: Instant::now(),
            is_handled: false,
            timer: Box::pin(sleep(ping_interval.min(limits.idle_timeout))),
            phase: Phase::Open,
        }
    }

    /// Accepts binary messages, which are a fault by default.
    pub(super) fn take_binary(&mut self) {
        self.decoder.take_binary();
    }

    /// Returns the next message with its kind.
    pub(super) async fn receive(&mut self) -> Result<Option<Message>, ReadError> {
        self.buffer.next_message();
        // The peer gets no ping while its last message is handled, which may take long.
        if std::mem::take(&mut self.is_handled) {
            self.silent_since = Instant::now();
        }
        poll_fn(|context| self.poll_message(context)).await
    }

    fn poll_message(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Message>, ReadError>> {
        loop {
            match &self.phase {
                Phase::Open => {}
                Phase::Closing(_) => return self.poll_close(context),
                Phase::Ended | Phase::Failed => return Poll::Ready(Ok(None)),
            }
            ready!(self.turns.poll_step(context));
            match self.decoder.decode(&mut self.buffer) {
                Ok(Some(DecodedFrame::Message(message))) => {
                    self.buffer.complete_message(message.payload.len());
                    self.is_handled = true;
                    return Poll::Ready(Ok(Some(message)));
                }
                Ok(Some(DecodedFrame::Ping(payload))) => self.answer_ping(&payload, context)?,
                Ok(Some(DecodedFrame::Pong | DecodedFrame::Fragment)) => {}
                Ok(Some(DecodedFrame::Close(received))) => self.start_close(received),
                Ok(None) => match self.poll_read(context) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(self.end_without_close()),
                    Poll::Ready(Ok(_)) => self.silent_since = Instant::now(),
                    Poll::Ready(Err(error)) => return self.fail(error),
                    Poll::Pending => return self.poll_idle(context),
                },
                Err(error) => return self.fail(error),
            }
        }
    }

    fn answer_ping(&mut self, payload: &[u8], context: &mut Context<'_>) -> Result<(), ReadError> {
        self.outgoing.queue_pong(payload);
        // If the socket is full, the answer waits until a later poll, and reading continues.
        if let Poll::Ready(Err(error)) = self.outgoing.poll_control(context) {
            self.phase = Phase::Failed;
            return Err(error.into());
        }
        Ok(())
    }

    /// Answers with the same code (RFC 6455, 5.5.1), unless the frame is the answer to one of this
    /// side.
    fn start_close(&mut self, received: Option<CloseFrame>) {
        let is_answer = self.outgoing.is_closing();
        self.outgoing.queue_close(received.as_ref().map(|closing| closing.code), "");
        self.timer.as_mut().reset(Instant::now() + CLOSE_TIMEOUT);
        let fault = received.filter(|closing| {
            !is_answer
                && ![CloseReason::Done, CloseReason::GoingAway]
                    .map(CloseReason::ws_code)
                    .contains(&closing.code)
        });
        let fault = fault
            .map(|CloseFrame { code, reason }| ReadError::Closed { code: code.into(), reason });
        self.phase = Phase::Closing(fault);
    }

    /// Waits until the close frame is written, up to the time limit, and returns the result.
    fn poll_close(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Message>, ReadError>> {
        let written = self.outgoing.poll_all_control(context);
        if written.is_pending() {
            ready!(self.timer.as_mut().poll(context));
        }
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Closing(Some(fault)) => Poll::Ready(Err(fault)),
            _ => Poll::Ready(Ok(None)),
        }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, ReadError>> {
        let wanted = self.decoder.wanted(self.buffer.bytes().len());
        let outside = self.decoder.unfinished_bytes();
        self.buffer.poll_fill_bounded(&mut self.reader, context, wanted, outside)
    }

    /// Handles the case that no data is available. Checks the silence limit only here: data that
    /// has arrived is read first, even if the owner did not poll for a long time.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Message>, ReadError>> {
        while self.timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            // A peer that reads slowly gets a ping only after the data before it.
            let taken_at = self.outgoing.taken_at().unwrap_or(self.silent_since);
            let silence_ends = self.silent_since.max(taken_at) + self.silence_max;
            if now >= silence_ends {
                return self.fail(ReadError::IdleTimeout { limit: self.silence_max });
            }
            self.outgoing.queue_ping();
            self.timer.as_mut().reset((now + self.ping_interval).min(silence_ends));
        }
        match self.outgoing.poll_control(context) {
            Poll::Ready(Err(error)) => self.fail(error.into()),
            _ => Poll::Pending,
        }
    }

    fn end_without_close(&mut self) -> Result<Option<Message>, ReadError> {
        self.phase = Phase::Ended;
        if self.outgoing.is_closing() {
            return Ok(None);
        }
        Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the connection ended without a close frame",
        )
        .into())
    }

    fn fail(&mut self, error: ReadError) -> Poll<Result<Option<Message>, ReadError>> {
        self.phase = Phase::Failed;
        self.buffer.set_bound(None);
        self.buffer.discard();
        Poll::Ready(Err(error))
    }
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send> FrameSource for WsSource<R, W> {
    async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if let Some(frame) = self.messages.take_next() {
                return Ok(Some(frame));
            }
            let Some(message) = self.receive().await? else { return Ok(None) };
            self.messages = MessageSplitter::new(message.payload);
        }
    }

    fn set_message_limit(
        &mut self,
        message_bytes_max: usize,
        byte_budget: Option<&Arc<Semaphore>>,
    ) {
        self.decoder.set_message_limit(message_bytes_max);
        self.buffer.set_budget(byte_budget);
    }

    fn bound_messages(&mut self, bound: MessageBound) {
        self.buffer.set_bound(Some(bound));
    }

    /// Reads until the peer's close frame. After a fault it reads until the end of the connection,
    /// because frame boundaries are lost.
    async fn drain(&mut self) {
        while let Ok(Some(_)) = self.receive().await {}
        if matches!(self.phase, Phase::Failed) {
            self.buffer.drain(&mut self.reader).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{
        AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split,
    };

    use super::*;
    use crate::{
        frame::FrameSink as _,
        message_bound::MessageBudget,
        websocket::{WsSink, codec::Role, server_over},
    };

    /// A masked text frame.
    const TEXT: &[u8] = b"\x81\x82\0\0\0\0{}";
    const PIPE_BYTES: usize = 1024;

    type Reader = ReadHalf<DuplexStream>;
    type Writer = WriteHalf<DuplexStream>;

    /// Returns a server that waits for a silent client for ten seconds, and the client.
    fn impatient() -> (WsSource<Reader, Writer>, WsSink<Writer>, (Reader, Writer)) {
        let (near, far) = duplex(PIPE_BYTES);
        let (reader, writer) = split(far);
        let limits = Limits {
            ping_interval: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(10),
            ..Limits::default()
        };
        let (source, sink) = server_over(reader, writer, Bytes::new(), &limits);
        (source, sink, split(near))
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_a_large_message_slowly_is_not_silent() {
        const PIECES: usize = 20;
        let (mut source, mut sink, (mut from_server, mut to_server)) = impatient();
        let sending = async {
            sink.send_all(&mut vec![Bytes::from(vec![b'x'; PIECES * PIPE_BYTES])]).await.unwrap();
        };
        let reading = async {
            for _ in 0..PIECES {
                sleep(Duration::from_secs(2)).await;
                from_server.read_exact(&mut [0; PIPE_BYTES]).await.unwrap();
            }
            to_server.write_all(TEXT).await.unwrap();
        };
        let ((), (), message) = tokio::join!(sending, reading, source.next());
        assert_eq!(message.unwrap().unwrap(), "{}");
        let silence = source.next().await.unwrap_err();
        assert!(matches!(silence, ReadError::IdleTimeout { .. }), "{silence}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_is_not_silent_while_its_message_is_handled() {
        let (mut source, _sink, (mut from_server, mut to_server)) = impatient();
        to_server.write_all(TEXT).await.unwrap();
        source.next().await.unwrap().unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        let answering = async {
            let mut ping = [0; 2];
            from_server.read_exact(&mut ping).await.unwrap();
            assert_eq!(ping, [0x89, 0]);
            to_server.write_all(TEXT).await.unwrap();
        };
        let (message, ()) = tokio::join!(source.next(), answering);
        assert_eq!(message.unwrap().unwrap(), "{}");
    }

    #[tokio::test]
    async fn a_text_frame_keeps_its_memory_until_its_last_message_was_handled() {
        let budget = MessageBudget::new(1024 * 1024);
        let text = format!("[{}]\n[2]\n", "1,".repeat(50_000));
        let mut frame = vec![0x81, 127];
        frame.extend((text.len() as u64).to_be_bytes());
        frame.extend(text.as_bytes());
        let limits = Limits::default();
        let outgoing = Arc::new(SharedWriter::new(tokio::io::sink(), Role::Client));
        let decoder = Decoder::new(Role::Client, limits.message_bytes_max);
        let mut source = WsSource::new(&frame[..], Bytes::new(), decoder, outgoing, &limits);
        source.bound_messages(MessageBound::new(budget.clone(), Duration::from_secs(1)));
        for length in [100_002, 3] {
            assert_eq!(source.next().await.unwrap().unwrap().len(), length);
            assert!(budget.held_bytes() > 30_000);
        }
        assert!(source.next().await.is_err(), "the connection ends without a close frame");
        assert_eq!(budget.held_bytes(), 0);
    }
}
