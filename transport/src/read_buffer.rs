//! Buffer between a socket and its frames. Shared by the framings of `lines` and `websocket`.
//!
//! Most connections wait most of the time, so a waiting connection holds no buffer. Frames are
//! slices of the buffer, not copies. A small frame that arrived alone is copied, so that its owner
//! does not keep the buffer alive and the buffer can be used again.

use std::{
    io,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::{OwnedSemaphorePermit, Semaphore},
};

use crate::{
    frame::ReadError,
    message_bound::{FREE_BYTES, MessageBound},
};

/// Space for the first read. A read that fills its space doubles the next one, up to the maximum.
const READ_BYTES_MIN: usize = 8 * 1024;
const READ_BYTES_MAX: usize = 64 * 1024;
const COPIED_BYTES_MAX: usize = 4 * 1024;

#[derive(Debug)]
pub(crate) struct ReadBuffer {
    bytes: BytesMut,
    read_bytes: usize,
    confined: Option<SharedBudget>,
    bound: Option<Box<MessageBound>>,
}

/// A memory budget shared with other buffers, such as those of unauthenticated peers.
#[derive(Debug)]
struct SharedBudget {
    semaphore: Arc<Semaphore>,
    /// Bytes that one permit covers. With `None` one permit covers any number of bytes.
    permit_bytes: Option<usize>,
    held: Option<OwnedSemaphorePermit>,
}

impl SharedBudget {
    /// Returns whether a buffer of this size may grow, and takes the permits for it.
    fn may_grow(&mut self, bytes: usize) -> bool {
        let above = bytes.saturating_sub(FREE_BYTES);
        if above == 0 {
            self.held = None;
            return true;
        }
        let wanted = self.permit_bytes.map_or(1, |permit_bytes| above.div_ceil(permit_bytes));
        let more =
            wanted.saturating_sub(self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        if more == 0 {
            return true;
        }
        let Ok(count) = u32::try_from(more) else { return false };
        let Ok(permits) = self.semaphore.clone().try_acquire_many_owned(count) else {
            return false;
        };
        match &mut self.held {
            Some(held) => held.merge(permits),
            None => self.held = Some(permits),
        }
        true
    }
}

/// Bytes that one permit of [`ReadBuffer::share`] covers.
pub(crate) const SHARED_PERMIT_BYTES: usize = 1024;

impl ReadBuffer {
    /// Starts with bytes that were already read from the connection.
    pub(crate) fn new(prefix: Bytes) -> Self {
        Self { bytes: prefix.into(), read_bytes: READ_BYTES_MIN, confined: None, bound: None }
    }

    /// Sets the semaphore for permits from now on. `None` removes the bound.
    pub(crate) fn set_budget(&mut self, semaphore: Option<&Arc<Semaphore>>) {
        self.confined = semaphore.map(|semaphore| SharedBudget {
            semaphore: semaphore.clone(),
            permit_bytes: None,
            held: None,
        });
    }

    /// Takes a permit of `semaphore` for each [`SHARED_PERMIT_BYTES`].
    pub(crate) fn share(&mut self, semaphore: Arc<Semaphore>) {
        self.confined =
            Some(SharedBudget { semaphore, permit_bytes: Some(SHARED_PERMIT_BYTES), held: None });
    }

    /// Bounds each incomplete message from now on.
    pub(crate) fn set_bound(&mut self, bound: Option<MessageBound>) {
        self.bound = bound.map(Box::new);
    }

    /// Notes that a message of this size was taken. It keeps its memory.
    pub(crate) fn complete_message(&mut self, bytes: usize) {
        if let Some(bound) = &mut self.bound {
            bound.complete_message(bytes);
        }
    }

    /// Returns the memory of the message that was taken last. Does nothing inside a message.
    pub(crate) fn next_message(&mut self) {
        if let Some(bound) = &mut self.bound {
            bound.next_message();
        }
    }

    /// Returns whether the incomplete message waits for memory.
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.bound.as_ref().is_some_and(|bound| bound.is_waiting())
    }

    /// Returns the bytes that were read and not taken.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Reads once, within the bounds of the message. `outside` is the number of its bytes that the
    /// buffer does not hold any more, or `None` outside a message.
    pub(crate) fn poll_fill_bounded(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
        wanted: usize,
        outside: Option<usize>,
    ) -> Poll<Result<usize, ReadError>> {
        let held = self.bytes.len() + outside.unwrap_or(0);
        let is_held = match &mut self.bound {
            Some(bound) => bound.may_hold(context, held),
            None => true,
        };
        if is_held && let Poll::Ready(read) = self.poll_fill(reader, context, wanted) {
            return Poll::Ready(read.map_err(ReadError::from));
        }
        let Some(bound) = &mut self.bound else { return Poll::Pending };
        bound.poll_wait(context, held > 0 || outside.is_some()).map(Err)
    }

    /// Reads once. Returns 0 at the end. `wanted` is the number of bytes missing from the frame, or
    /// 0 if that is unknown.
    ///
    /// The buffer grows with the bytes that have arrived. An announced length alone takes no
    /// memory.
    pub(crate) fn poll_fill(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin),
        context: &mut Context<'_>,
        wanted: usize,
    ) -> Poll<io::Result<usize>> {
        let bytes = self.bytes.len();
        if self.confined.as_mut().is_some_and(|confined| !confined.may_grow(bytes)) {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "no memory is free for the incomplete message",
            )));
        }
        // Doubling keeps the copies of a long frame linear.
        self.bytes.reserve(wanted.min(self.bytes.len()).max(self.read_bytes));
        let spare = self.bytes.capacity() - self.bytes.len();
        // Messages after the present one do not count in its bound.
        let capacity = if self.bound.is_some() { spare.min(READ_BYTES_MAX) } else { spare };
        let mut space = (&mut self.bytes).limit(capacity);
        let polled = pin!(reader.read_buf(&mut space)).poll(context);
        if polled.is_pending() {
            self.read_bytes = READ_BYTES_MIN;
            if self.bytes.is_empty() {
                self.bytes = BytesMut::new();
            }
        }
        let count = ready!(polled)?;
        if count == capacity {
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        }
        Poll::Ready(Ok(count))
    }

    /// Removes `count` bytes from the front and returns the first `kept` of them.
    pub(crate) fn take(&mut self, count: usize, kept: usize) -> Bytes {
        // A complete message needs no permits. The stream of a request is not read again before its
        // answer, so it would not release them later.
        let remaining = self.bytes.len() - count;
        if let Some(confined) = self
            .confined
            .as_mut()
            .filter(|confined| confined.permit_bytes.is_some() && remaining <= FREE_BYTES)
        {
            confined.held = None;
        }
        if count == self.bytes.len() && kept <= COPIED_BYTES_MAX {
            let frame = Bytes::copy_from_slice(&self.bytes[..kept]);
            self.bytes.clear();
            return frame;
        }
        let mut taken = self.bytes.split_to(count);
        // The next frame would begin in the memory of a large one, and move out when it grows. Its
        // beginning would stay there as long as the large one is held.
        if count > READ_BYTES_MAX && self.bytes.len() <= READ_BYTES_MAX {
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
        taken.truncate(kept);
        taken.freeze()
    }

    pub(crate) fn skip(&mut self, count: usize) {
        self.bytes.advance(count);
    }

    pub(crate) fn discard(&mut self) {
        self.bytes = BytesMut::new();
    }

    /// Reads and discards data until the peer or the connection ends.
    pub(crate) async fn drain(&mut self, reader: &mut (impl AsyncRead + Unpin)) {
        loop {
            self.bytes.clear();
            match std::future::poll_fn(|context| self.poll_fill(reader, context, 0)).await {
                Ok(0) | Err(_) => return self.discard(),
                Ok(_) => {}
            }
        }
    }
}
