//! Fuzzing of everything that reads hostile bytes.
//!
//! A [`Target`] feeds an input to one reader of the broker and compares the result with an oracle.
//! Where another reader of the same format exists, it is the oracle. Else the oracle is a slow model
//! or a round trip. A target panics if the two disagree.
//!
//! Two users share the targets and their corpora:
//!
//! - The tests replay each corpus, then try new inputs for a short time ([`test()`]).
//! - `make fuzz` tries new inputs for as long as wanted. libFuzzer chooses them there by the code
//!   that they reach (`src/bin/coverage.rs`).
//!
//! A run is reproducible: its seed decides each input.

mod campaign;
mod corpus;
mod json_oracle;
mod mutation;
mod outcome;
mod pieces;
mod random;
pub mod targets;

pub use self::{
    campaign::{Effort, Finding, Summary, explore, replay, test},
    corpus::Corpus,
    mutation::Mutator,
    outcome::Outcome,
    random::Random,
};

/// Time for new inputs in one run of the whole suite, over all targets.
pub const NEW_INPUTS_TIME: std::time::Duration = std::time::Duration::from_secs(30);
/// Most targets. Each has the same share of [`NEW_INPUTS_TIME`].
pub const TARGETS_MAX: usize = 24;

/// One reader and its oracle.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the target, of its test and of the folder of its corpus.
    pub name: &'static str,
    /// Words of the format, which mutations insert.
    pub tokens: &'static [&'static str],
    /// Longest input that mutations make.
    pub bytes_max: usize,
    /// Reads an input and compares the result with the oracle. Panics if they disagree.
    pub check: fn(&[u8]) -> Outcome,
}

/// Returns the target with this name.
pub fn target(name: &str) -> Option<&'static Target> {
    targets::ALL.iter().find(|target| target.name == name)
}
