//! Decoder for chunked bodies. No I/O.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::framing::{ChunkScanner, ChunkStep, Padding};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkedDecoder(ChunkScanner);

/// Next piece of a chunked body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DecodedChunk {
    Data(Bytes),
    /// The caller has to read more.
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

    /// Removes the next piece from `buffer`.
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
