//! The sending half of a WebSocket connection.

use std::{io::IoSlice, sync::Arc};

use bytes::{Bytes, BytesMut};
use tokio::{io::AsyncWrite, time::timeout};

use super::{
    codec::{self, Mask, Opcode, Role},
    shared_writer::{self, SharedWriter},
};
use crate::{
    frame::{CLOSE_TIMEOUT, CloseReason, FrameSink, WriteError},
    lines::one_line,
};

/// Frames written together: two slices each, well below the system's IOV_MAX of 1024.
const FRAMES_PER_WRITE: usize = 64;
/// Size at which a batch is full. Pongs wait for the end of a batch.
const BYTES_PER_WRITE: usize = 256 * 1024;

/// Sends each frame as one text message.
#[derive(Debug)]
pub struct WsSink<W> {
    outgoing: Arc<SharedWriter<W>>,
    role: Role,
}

impl<W: AsyncWrite + Unpin + Send> WsSink<W> {
    pub(super) fn new(outgoing: Arc<SharedWriter<W>>, role: Role) -> Self {
        Self { outgoing, role }
    }

    /// Sends each payload as one message of this kind.
    pub(super) async fn send(
        &mut self,
        opcode: Opcode,
        payloads: &[Bytes],
    ) -> Result<(), WriteError> {
        let mut rest = payloads;
        while !rest.is_empty() {
            let (batch, after) = rest.split_at(batch_len(rest));
            self.write_batch(opcode, batch).await?;
            rest = after;
        }
        Ok(())
    }

    async fn write_batch(&self, opcode: Opcode, batch: &[Bytes]) -> Result<(), WriteError> {
        match self.role {
            Role::Server => {
                // The heads of at most ten bytes each go between payloads that are not copied.
                let mut heads = BytesMut::with_capacity(batch.len() * 10);
                let mut head_ends = Vec::with_capacity(batch.len());
                for frame in batch {
                    codec::put_head(&mut heads, opcode, frame.len(), None);
                    head_ends.push(heads.len());
                }
                let mut slices = Vec::with_capacity(batch.len() * 2);
                let mut start = 0;
                for (frame, end) in batch.iter().zip(head_ends) {
                    slices.extend([IoSlice::new(&heads[start..end]), IoSlice::new(frame)]);
                    start = end;
                }
                self.outgoing.write_frames(&mut slices).await
            }
            Role::Client => {
                let mut masks = [Mask::default(); FRAMES_PER_WRITE];
                shared_writer::fill_random(masks[..batch.len()].as_flattened_mut());
                let mut bytes =
                    BytesMut::with_capacity(batch.iter().map(|frame| frame.len() + 14).sum());
                for (frame, mask) in batch.iter().zip(masks) {
                    codec::put_frame(&mut bytes, opcode, frame, Some(mask));
                }
                self.outgoing.write_frames(&mut [IoSlice::new(&bytes)]).await
            }
        }
    }
}

impl<W: AsyncWrite + Unpin + Send> FrameSink for WsSink<W> {
    async fn send_all(&mut self, frames: &mut Vec<Bytes>) -> Result<(), WriteError> {
        frames.retain(|frame| !frame.is_empty());
        for frame in frames.iter_mut() {
            // A peer that splits a text frame into several messages would split it there.
            if let Some(line) = one_line(frame) {
                *frame = line;
            }
        }
        let written = self.send(Opcode::Text, frames).await;
        frames.clear();
        written
    }

    /// Sends a close frame. After a fault the connection fails (RFC 6455, 7.1.7): the peer's
    /// further bytes cannot be parsed, so this side ends at once. Otherwise the peer may answer,
    /// and `drain` waits for it.
    async fn close(&mut self, close_reason: CloseReason) {
        let is_answered = self.outgoing.is_closing();
        self.outgoing.queue_close(Some(close_reason.ws_code()), close_reason.reason());
        let is_fault = matches!(
            close_reason,
            CloseReason::Protocol
                | CloseReason::NotText
                | CloseReason::InvalidUtf8
                | CloseReason::TooLarge
        );
        let closing = async {
            self.outgoing.finish().await?;
            if is_answered || is_fault {
                self.outgoing.shut_down().await?;
            }
            Ok::<_, WriteError>(())
        };
        let _ = timeout(CLOSE_TIMEOUT, closing).await;
    }
}

/// Returns the number of frames to write together.
fn batch_len(frames: &[Bytes]) -> usize {
    let mut bytes = 0;
    let fits = frames.iter().take(FRAMES_PER_WRITE).take_while(|frame| {
        let has_capacity = bytes < BYTES_PER_WRITE;
        bytes += frame.len();
        has_capacity
    });
    fits.count()
}
