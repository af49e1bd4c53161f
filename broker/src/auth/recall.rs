//! How a secret that was checked once is known again, without being kept.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes digests of secrets, good for this process.
#[derive(Debug, Default)]
pub(super) struct Recall(RandomState);

impl Recall {
    /// A keyed hash (SipHash, a pseudo-random function) under a secret of this process, of the text and of the text with a byte
    /// behind it, which is read once for both: nobody can make a text with the digest of another one but by trying, one request
    /// for each of 2^128 guesses. The comparison is one of numbers and takes as long wherever they differ.
    pub(super) fn digest(&self, text: &str) -> u128 {
        let mut hasher = self.0.build_hasher();
        hasher.write(text.as_bytes());
        let half = hasher.finish();
        hasher.write_u8(0xff); // in no text
        u128::from(half) << 64 | u128::from(hasher.finish())
    }
}
