//! Choices derived from a number: the same number makes the same choices, on every machine and with
//! every version of any crate.

use std::{ops::Range, time::Duration};

/// A SplitMix64 generator.
#[derive(Debug, Clone)]
pub(super) struct Seed(u64);

impl Seed {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    pub(super) fn index(&mut self, count: usize) -> usize {
        self.below(0..count as u64) as usize
    }

    pub(super) fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.below(range))
    }

    /// Returns true in `percent` of 100 cases.
    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(0..100) < percent
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_choices_again() {
        let choices = |seed| {
            let mut seed = Seed::new(seed);
            let mut order: Vec<u32> = (0..10).collect();
            seed.shuffle(&mut order);
            (order, seed.below(5..9), seed.chance(50), seed.millis(0..1_000))
        };
        assert_eq!(choices(7), choices(7));
        assert_ne!(choices(7), choices(8));
        assert!((0..100).all(|seed| (5..9).contains(&Seed::new(seed).below(5..9))));
    }
}
