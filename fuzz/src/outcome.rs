//! What a target saw of an input, as a number.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};

/// Kind of result that an input led to. Two inputs with one outcome took about the same way through
/// the reader. Runs without instrumented code keep an input with a new outcome, and mutate it
/// further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Outcome(u64);

impl Outcome {
    /// Returns the outcome for a description of the way. It should name the verdict and the shape of
    /// the result, and nothing that differs for nearly every input.
    pub fn of(description: &impl Hash) -> Self {
        Self(BuildHasherDefault::<DefaultHasher>::default().hash_one(description))
    }

    /// Returns a name for a file.
    pub(crate) fn name(self) -> String {
        format!("{:016x}", self.0)
    }

    /// Returns a small number that grows with `count`, so that outcomes tell few from many.
    pub fn magnitude(count: usize) -> u32 {
        count.checked_ilog2().map_or(0, |log| log + 1)
    }
}
