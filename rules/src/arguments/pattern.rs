//! The keyword `pattern`, matched in pieces, so that the meter can end it.
//!
//! A pattern becomes a lazy automaton. Each byte costs one step, and in the worst case a visit of
//! all states of the pattern. Memory is bounded, and each match drops its states at its end.
//!
//! Invariant: the pattern alone bounds the time of a piece.

use jsonschema::{Keyword, ValidationError, json::Node as _};
use regex_automata::{
    Input,
    hybrid::dfa::{Config, DFA},
    nfa::thompson,
};

use super::{
    instance::{InstanceNode, MeteredJson},
    step_meter,
};
use crate::limits::arguments::PATTERN_COMPILED_BYTES_MAX;

/// Bytes of text between two payments.
const PIECE: usize = 64;
/// Bytes of lazily built states of one match.
const CACHE_BYTES: usize = 512 * 1024;

#[derive(Debug)]
pub(super) struct Pattern {
    automaton: DFA,
    states: u64,
}

impl Pattern {
    /// Compiles a regular expression of ECMA-262 without look-around and back-references.
    pub(super) fn new(pattern: &str) -> Result<Self, &'static str> {
        let pattern = jsonschema_regex::to_rust_regex(pattern).map_err(
            |()| "a pattern is not a regular expression, or uses look-around or back-references",
        )?;
        let config = Config::new()
            .cache_capacity(CACHE_BYTES)
            .skip_cache_capacity_check(true)
            .unicode_word_boundary(false);
        let compiled = thompson::Config::new()
            .nfa_size_limit(Some(PATTERN_COMPILED_BYTES_MAX))
            .which_captures(thompson::WhichCaptures::None);
        let automaton = DFA::builder()
            .configure(config)
            .thompson(compiled)
            .build(&pattern)
            .map_err(|_| "a pattern is larger than its limit once compiled, or has a word boundary of Unicode")?;
        let states = automaton.get_nfa().states().len() as u64;
        Ok(Self { automaton, states })
    }

    /// Returns the bytes of the compiled pattern.
    pub(super) fn bytes(&self) -> usize {
        self.automaton.memory_usage() + self.automaton.get_nfa().memory_usage()
    }

    /// Returns the worst-case cost of each byte, in sixteenths of a step.
    pub(super) fn weight(&self) -> u64 {
        self.states
    }

    /// Returns whether the pattern matches in `text`. The result has no meaning after the
    /// validation has ended.
    fn is_in(&self, text: &str) -> bool {
        if !step_meter::charge(1 + self.states / 4) {
            return true;
        }
        let mut cache = self.automaton.create_cache();
        let Ok(mut state) = self.automaton.start_state_forward(&mut cache, &Input::new(text))
        else {
            return false;
        };
        for piece in text.as_bytes().chunks(PIECE) {
            if !step_meter::charge(1 + piece.len() as u64 * self.states / 16) {
                return true;
            }
            for byte in piece {
                match self.automaton.next_state(&mut cache, state, *byte) {
                    Ok(next) if next.is_match() => return true,
                    Ok(next) if next.is_dead() || next.is_quit() => return false,
                    Ok(next) => state = next,
                    Err(_) => return false,
                }
            }
        }
        self.automaton.next_eoi_state(&mut cache, state).is_ok_and(|last| last.is_match())
    }
}

impl<'i> Keyword<'i, MeteredJson> for Pattern {
    fn validate(&self, instance: InstanceNode<'i>) -> Result<(), ValidationError<'i>> {
        if Keyword::<'i, MeteredJson>::is_valid(self, instance) {
            Ok(())
        } else {
            Err(ValidationError::custom("does not match"))
        }
    }

    fn is_valid(&self, instance: InstanceNode<'i>) -> bool {
        instance.as_string().is_none_or(|text| self.is_in(&text))
    }
}
