//! Choices derived from a number: the same number makes the same choices.

use std::{ops::Range, time::Duration};

/// A SplitMix64 generator.
#[derive(Debug, Clone)]
pub(crate) struct Choices(u64);

impl Choices {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn state(&self) -> u64 {
        self.0
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub(crate) fn index(&mut self, count: usize) -> usize {
        self.below(0..count as u64) as usize
    }

    pub(crate) fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.below(range))
    }

    /// Returns true in `many` of 1,000 cases.
    pub(crate) fn per_mille(&mut self, many: u64) -> bool {
        self.below(0..1_000) < many
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

/// Mixes the bits of a number.
pub(crate) const fn mix(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
