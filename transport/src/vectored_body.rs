//! A body in a few pieces that one write sends together, so that a large body is not copied.

use std::io::IoSlice;

use bytes::Bytes;

/// Up to three consecutive pieces.
#[derive(Debug, Clone, Default)]
pub struct VectoredBody([Bytes; 3]);

impl From<Bytes> for VectoredBody {
    fn from(whole: Bytes) -> Self {
        Self([whole, Bytes::new(), Bytes::new()])
    }
}

impl From<[Bytes; 3]> for VectoredBody {
    fn from(pieces: [Bytes; 3]) -> Self {
        Self(pieces)
    }
}

impl VectoredBody {
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Joins the pieces. Copies them, unless only one has bytes.
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            [whole, second, third] if second.is_empty() && third.is_empty() => whole,
            pieces => pieces.concat().into(),
        }
    }

    /// Returns the body without its first `skipped` bytes.
    pub(crate) fn skip_bytes(&self, mut skipped: usize) -> Self {
        Self(self.0.each_ref().map(|piece| {
            let here = skipped.min(piece.len());
            skipped -= here;
            piece.slice(here..)
        }))
    }

    /// Returns the body without its first `skipped` bytes, as slices for a vectored write.
    pub(crate) fn io_slices_after(&self, mut skipped: usize) -> [IoSlice<'_>; 3] {
        self.0.each_ref().map(|piece| {
            let here = skipped.min(piece.len());
            skipped -= here;
            IoSlice::new(&piece[here..])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_much_is_skipped_the_rest_is_the_same() {
        let text = b"onetwothree";
        let pieces = VectoredBody([
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
