//! A body in a few pieces that one write sends together, so that a large body is not copied.

use std::io::IoSlice;

use bytes::{Buf as _, Bytes};

/// Largest body that is copied behind its head: one piece costs the kernel less than two.
pub(crate) const COPIED_BYTES_MAX: usize = 8 * 1024;

/// Up to three consecutive pieces.
#[derive(Debug, Clone)]
pub struct VectoredBody(Pieces);

/// Small, because each request moves it several times.
#[derive(Debug, Clone)]
enum Pieces {
    One(Bytes),
    Three(Box<[Bytes; 3]>),
}

impl Default for VectoredBody {
    fn default() -> Self {
        Self(Pieces::One(Bytes::new()))
    }
}

impl From<Bytes> for VectoredBody {
    fn from(whole: Bytes) -> Self {
        Self(Pieces::One(whole))
    }
}

impl From<[Bytes; 3]> for VectoredBody {
    fn from(pieces: [Bytes; 3]) -> Self {
        Self(Pieces::Three(Box::new(pieces)))
    }
}

impl VectoredBody {
    pub fn len(&self) -> usize {
        self.pieces().iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Joins the pieces. Copies them, unless only one has bytes.
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Pieces::One(whole) => whole,
            Pieces::Three(pieces) => match *pieces {
                [whole, second, third] if second.is_empty() && third.is_empty() => whole,
                pieces => pieces.concat().into(),
            },
        }
    }

    /// Appends all bytes to `out`.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        self.pieces().iter().for_each(|piece| out.extend_from_slice(piece));
    }

    /// Returns the body without its first `skipped` bytes.
    pub(crate) fn skip_bytes(&self, mut skipped: usize) -> Self {
        let mut rest = self.clone();
        let pieces = match &mut rest.0 {
            Pieces::One(whole) => std::slice::from_mut(whole),
            Pieces::Three(pieces) => &mut pieces[..],
        };
        for piece in pieces {
            let here = skipped.min(piece.len());
            skipped -= here;
            piece.advance(here);
        }
        rest
    }

    /// Returns the body without its first `skipped` bytes, as slices for a vectored write.
    pub(crate) fn io_slices_after(&self, mut skipped: usize) -> [IoSlice<'_>; 3] {
        let mut slices = [IoSlice::new(&[]); 3];
        for (slice, piece) in slices.iter_mut().zip(self.pieces()) {
            let here = skipped.min(piece.len());
            skipped -= here;
            *slice = IoSlice::new(&piece[here..]);
        }
        slices
    }

    fn pieces(&self) -> &[Bytes] {
        match &self.0 {
            Pieces::One(whole) => std::slice::from_ref(whole),
            Pieces::Three(pieces) => &pieces[..],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_unchanged_after_skipping_any_number_of_bytes() {
        let text = b"onetwothree";
        let pieces = VectoredBody::from([
            Bytes::from_static(b"one"),
            Bytes::new(),
            Bytes::from_static(b"twothree"),
        ]);
        assert_eq!((pieces.len(), pieces.is_empty()), (text.len(), false));
        for skipped in 0..=text.len() {
            let slices: Vec<u8> =
                pieces.io_slices_after(skipped).iter().flat_map(|slice| slice.to_vec()).collect();
            assert_eq!(slices, text[skipped..]);
            assert_eq!(pieces.skip_bytes(skipped).into_bytes(), text[skipped..]);
        }
        let whole = Bytes::from_static(text);
        assert_eq!(
            VectoredBody::from(whole.clone()).into_bytes().as_ptr(),
            whole.as_ptr(),
            "one piece is not copied"
        );
    }
}
