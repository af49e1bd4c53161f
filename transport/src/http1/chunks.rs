//! A body in chunks, taken apart. No I/O.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::framing::{ChunkScanner, Padding, Step};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunks(ChunkScanner);

/// What the next bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Data(Bytes),
    /// More has to be read.
    More,
    Over,
}

impl Chunks {
    pub(super) fn new() -> Self {
        Self(ChunkScanner::new(Padding::Allowed))
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// Takes what is next off `buffer`.
    pub(super) fn next(&mut self, buffer: &mut BytesMut) -> Result<Piece, &'static str> {
        loop {
            match self.0.next(buffer)? {
                Step::Overhead(bytes) => buffer.advance(bytes),
                Step::Data(bytes) => return Ok(Piece::Data(buffer.split_to(bytes).freeze())),
                Step::More => return Ok(Piece::More),
                Step::Over => return Ok(Piece::Over),
            }
        }
    }
}
