//! A body in chunks, taken apart. No I/O.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::framing::{ChunkScanner, ChunkStep, Padding};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkedDecoder(ChunkScanner);

/// What the next bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DecodedChunk {
    Data(Bytes),
    /// More has to be read.
    Incomplete,
    End,
}

impl ChunkedDecoder {
    pub(super) fn new() -> Self {
        Self(ChunkScanner::new(Padding::Allowed))
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Takes what is next off `buffer`.
    pub(super) fn next(&mut self, buffer: &mut BytesMut) -> Result<DecodedChunk, &'static str> {
        loop {
            match self.0.next(buffer)? {
                ChunkStep::Overhead(bytes) => buffer.advance(bytes),
                ChunkStep::Data(bytes) => {
                    return Ok(DecodedChunk::Data(buffer.split_to(bytes).freeze()));
                }
                ChunkStep::More => return Ok(DecodedChunk::Incomplete),
                ChunkStep::Over => return Ok(DecodedChunk::End),
            }
        }
    }
}
