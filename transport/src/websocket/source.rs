//! The receiving half of a WebSocket connection, which also keeps it alive: answers pings, asks whether the peer is there, and
//! answers its goodbye. All of that happens inside `next`.

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
    read_buffer::ReadBuffer,
};

/// An interval of nothing would leave no time for anything else.
const PING_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// Receives text messages.
#[derive(Debug)]
pub struct WsSource<R, W> {
    reader: R,
    buffer: ReadBuffer,
    decoder: Decoder,
    /// Of the text frame that came last.
    messages: MessageSplitter,
    outgoing: Arc<SharedWriter<W>>,
    ping_interval: Duration,
    silence_max: Duration,
    heard: Instant,
    /// When to ask the peer again or to give it up; while leaving, how long to try to answer its goodbye.
    timer: Pin<Box<Sleep>>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Open,
    /// The peer has said goodbye, with a fault of ours perhaps. Ours is being written.
    Closing(Option<ReadError>),
    /// Over, and the place of the next frame is known or does not matter.
    Ended,
    /// Over, and what follows cannot be understood.
    Failed,
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send> WsSource<R, W> {
    pub(super) fn new(
        reader: R,
        begun: Bytes,
        decoder: Decoder,
        outgoing: Arc<SharedWriter<W>>,
        limits: &Limits,
    ) -> Self {
        Self {
            reader,
            buffer: ReadBuffer::new(begun),
            decoder,
            messages: MessageSplitter::default(),
            outgoing,
            ping_interval: limits.ping_interval.max(PING_INTERVAL_MIN),
            silence_max: limits.silence_max,
            heard: Instant::now(),
            timer: Box::pin(sleep(limits.ping_interval.min(limits.silence_max))),
            phase: Phase::Open,
        }
    }

    /// Binary messages are a fault from the beginning; this ends that.
    pub(super) fn take_binary(&mut self) {
        self.decoder.take_binary();
    }

    /// The next message as it came.
    pub(super) async fn receive(&mut self) -> Result<Option<Message>, ReadError> {
        poll_fn(|context| self.poll_message(context)).await
    }

    fn poll_message(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Message>, ReadError>> {
        loop {
            match &self.phase {
                Phase::Open => {}
                Phase::Closing(_) => return self.poll_leave(context),
                Phase::Ended | Phase::Failed => return Poll::Ready(Ok(None)),
            }
            match self.decoder.decode(&mut self.buffer) {
                Ok(Some(DecodedFrame::Message(message))) => return Poll::Ready(Ok(Some(message))),
                Ok(Some(DecodedFrame::Ping(payload))) => self.answer_ping(&payload, context)?,
                Ok(Some(DecodedFrame::Pong)) => {}
                Ok(Some(DecodedFrame::Close(said))) => self.begin_leaving(said),
                Ok(None) => match self.poll_read(context) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(self.end_without_goodbye()),
                    Poll::Ready(Ok(_)) => self.heard = Instant::now(),
                    Poll::Ready(Err(error)) => return self.fail(error.into()),
                    Poll::Pending => return self.poll_idle(context),
                },
                Err(error) => return self.fail(error),
            }
        }
    }

    fn answer_ping(&mut self, payload: &[u8], context: &mut Context<'_>) -> Result<(), ReadError> {
        self.outgoing.answer_ping(payload);
        // Where the socket is full the answer waits until the next time round; reading goes on.
        if let Poll::Ready(Err(error)) = self.outgoing.poll_control(context) {
            self.phase = Phase::Failed;
            return Err(error.into());
        }
        Ok(())
    }

    /// Answers with the same code (RFC 6455, 5.5.1), unless this is the answer to ours.
    fn begin_leaving(&mut self, said: Option<CloseFrame>) {
        let is_answer = self.outgoing.is_closing();
        self.outgoing.say_goodbye(said.as_ref().map(|closing| closing.code), "");
        self.timer.as_mut().reset(Instant::now() + CLOSE_TIMEOUT);
        let fault = said.filter(|closing| {
            !is_answer
                && ![CloseReason::Done, CloseReason::GoingAway]
                    .map(CloseReason::ws_code)
                    .contains(&closing.code)
        });
        let fault = fault
            .map(|CloseFrame { code, reason }| ReadError::Closed { code: code.into(), reason });
        self.phase = Phase::Closing(fault);
    }

    /// Waits until our goodbye is written, but not for ever, and says how it ended.
    fn poll_leave(
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

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let wanted = self.decoder.wanted(self.buffer.bytes().len());
        self.buffer.poll_fill(&mut self.reader, context, wanted)
    }

    /// Nothing to read now. Judges the peer's silence only here, so that what it has sent is heard first however long nobody asked.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Message>, ReadError>> {
        while self.timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let silence_ends = self.heard + self.silence_max;
            if now >= silence_ends {
                return self.fail(ReadError::IdleTimeout { limit: self.silence_max });
            }
            self.outgoing.ask();
            self.timer.as_mut().reset((now + self.ping_interval).min(silence_ends));
        }
        match self.outgoing.poll_control(context) {
            Poll::Ready(Err(error)) => self.fail(error.into()),
            _ => Poll::Pending,
        }
    }

    fn end_without_goodbye(&mut self) -> Result<Option<Message>, ReadError> {
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

    /// Until the peer's close frame, or the end of the connection where frames can no longer be told apart.
    fn allow(&mut self, message_bytes_max: usize, room: Option<&Arc<Semaphore>>) {
        self.decoder.allow(message_bytes_max);
        self.buffer.confine(room);
    }

    async fn drain(&mut self) {
        while let Ok(Some(_)) = self.receive().await {}
        if matches!(self.phase, Phase::Failed) {
            self.buffer.drain(&mut self.reader).await;
        }
    }
}
