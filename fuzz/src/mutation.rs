//! Makes new inputs out of known ones.
//!
//! Formats on the broker's wires consist of lines, of brackets, of numbers that are lengths, and of
//! words. The mutations work on these parts as well as on bytes, so that a changed input often still
//! has a form.

use crate::Random;

/// Numbers at which readers change their mind.
const EDGES: [u64; 17] = [
    0,
    1,
    2,
    7,
    8,
    125,
    126,
    127,
    128,
    255,
    256,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    u64::MAX,
];
const OPENING: &[u8] = b"{[(\"<";
const CLOSING: &[u8] = b"}])\">";
/// Most changes from a known input to a new one.
const CHANGES_MAX: usize = 6;

/// Makes inputs for one target.
#[derive(Debug)]
pub struct Mutator<'a> {
    random: Random,
    tokens: &'a [&'a str],
    bytes_max: usize,
}

impl<'a> Mutator<'a> {
    /// Creates a mutator whose inputs `seed` decides.
    pub fn new(seed: u64, tokens: &'a [&'a str], bytes_max: usize) -> Self {
        Self { random: Random::new(seed), tokens, bytes_max }
    }

    /// Returns a new input, made of one or two of `known`.
    pub fn next_input(&mut self, known: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.random.one_of(known).cloned().unwrap_or_default();
        for _ in 0..=self.random.below(CHANGES_MAX) {
            self.change(&mut input, known);
        }
        input.truncate(self.bytes_max);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, known: &[Vec<u8>]) {
        match self.random.below(14) {
            0 => self.flip_bit(input),
            1 => self.set_byte(input),
            2 => self.insert_bytes(input),
            3 => self.remove_part(input),
            4 => self.repeat_part(input),
            5 | 6 => self.insert_token(input),
            7 => self.change_number(input),
            8 => self.change_binary_number(input),
            9 => self.change_lines(input),
            10 => self.move_bracketed(input),
            11 => self.change_case(input),
            12 => self.take_over(input, known),
            _ => self.swap_parts(input),
        }
    }

    fn position(&mut self, input: &[u8]) -> usize {
        self.random.below(input.len() + 1)
    }

    /// Returns a part, short more often than long.
    fn part(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let start = self.position(input);
        let longest = if self.random.below(4) == 0 { input.len() } else { 8 };
        let end = start + self.random.below(longest.min(input.len() - start) + 1);
        start..end
    }

    fn flip_bit(&mut self, input: &mut [u8]) {
        let (at, bit) = (self.random.below(input.len()), self.random.below(8));
        if let Some(byte) = input.get_mut(at) {
            *byte ^= 1 << bit;
        }
    }

    fn set_byte(&mut self, input: &mut [u8]) {
        let (at, value) = (self.random.below(input.len()), self.telling_byte());
        if let Some(byte) = input.get_mut(at) {
            *byte = value;
        }
    }

    fn telling_byte(&mut self) -> u8 {
        let special = b"{}[]:,\"\\/%?#;=+-.0 \t\r\n\x00\x7f\x80\xc0\xed\xff";
        if self.random.below(2) == 0 {
            self.random.byte()
        } else {
            self.random.one_of(special).copied().unwrap_or(0)
        }
    }

    fn insert_bytes(&mut self, input: &mut Vec<u8>) {
        let at = self.position(input);
        let count = 1 + self.random.below(4);
        let byte = self.telling_byte();
        input.splice(at..at, std::iter::repeat_n(byte, count));
    }

    fn remove_part(&mut self, input: &mut Vec<u8>) {
        let part = self.part(input);
        input.drain(part);
    }

    fn repeat_part(&mut self, input: &mut Vec<u8>) {
        let part = self.part(input);
        let repeated = input[part.clone()].repeat(1 + self.random.below(3));
        input.splice(part.end..part.end, repeated);
    }

    fn swap_parts(&mut self, input: &mut Vec<u8>) {
        let (part, to) = (self.part(input), self.position(input));
        let moved: Vec<u8> = input.drain(part).collect();
        let to = to.min(input.len());
        input.splice(to..to, moved);
    }

    fn insert_token(&mut self, input: &mut Vec<u8>) {
        let Some(token) = self.random.one_of(self.tokens).copied() else { return };
        let start = self.position(input);
        let replaced = if self.random.below(3) == 0 { token.len() } else { 0 };
        let end = (start + replaced).min(input.len());
        input.splice(start..end, token.bytes());
    }

    /// Replaces a number in digits.
    fn change_number(&mut self, input: &mut Vec<u8>) {
        let from = self.position(input);
        let Some(start) = input[from..].iter().position(u8::is_ascii_digit).map(|at| from + at)
        else {
            return;
        };
        let digits = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let old = std::str::from_utf8(&input[start..start + digits]).ok();
        let old = old.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let edge = self.random.one_of(&EDGES).copied().unwrap_or(0);
        let new = match self.random.below(5) {
            0 => old.wrapping_add(1).to_string(),
            1 => old.wrapping_sub(1).to_string(),
            2 => format!("{old:x}"),
            3 => format!("0{old}"),
            _ => edge.to_string(),
        };
        input.splice(start..start + digits, new.into_bytes());
    }

    /// Overwrites one to eight bytes with a number at which readers change their mind.
    fn change_binary_number(&mut self, input: &mut [u8]) {
        let width = 1 << self.random.below(4);
        let edge = self.random.one_of(&EDGES).copied().unwrap_or(0).to_be_bytes();
        let at = self.random.below(input.len());
        for (byte, new) in input[at..].iter_mut().zip(&edge[8 - width..]) {
            *byte = *new;
        }
    }

    fn change_lines(&mut self, input: &mut Vec<u8>) {
        let mut lines: Vec<Vec<u8>> =
            input.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        if lines.is_empty() {
            return;
        }
        let (one, other) = (self.random.below(lines.len()), self.random.below(lines.len()));
        match self.random.below(4) {
            0 => lines.swap(one, other),
            1 => drop(lines.remove(one)),
            2 => lines.insert(other, lines[one].clone()),
            _ => {
                let line = &mut lines[one];
                let bare = line.ends_with(b"\n") && !line.ends_with(b"\r\n");
                let kept = line.trim_ascii_end().len();
                let end: &[u8] = if bare { b"\r\n" } else { b"\n" };
                line.splice(kept.., end.iter().copied());
            }
        }
        *input = lines.concat();
    }

    /// Copies what stands between two brackets to another position, or over another such part.
    fn move_bracketed(&mut self, input: &mut Vec<u8>) {
        let (Some(from), Some(to)) = (self.bracketed(input), self.bracketed(input)) else { return };
        let copied = input[from].to_vec();
        let to = if self.random.below(2) == 0 { to } else { to.start..to.start };
        input.splice(to, copied);
    }

    fn bracketed(&mut self, input: &[u8]) -> Option<std::ops::Range<usize>> {
        let from = self.position(input);
        let start = from + input[from..].iter().position(|byte| OPENING.contains(byte))?;
        let kind = OPENING.iter().position(|byte| *byte == input[start])?;
        let mut depth = 0_usize;
        for (at, byte) in input.iter().enumerate().skip(start) {
            if at > start && *byte == CLOSING[kind] {
                depth -= 1;
            } else if *byte == OPENING[kind] {
                depth += 1;
            }
            if depth == 0 {
                return Some(start..at + 1);
            }
        }
        None
    }

    fn change_case(&mut self, input: &mut [u8]) {
        let part = self.part(input);
        for byte in &mut input[part] {
            if byte.is_ascii_alphabetic() {
                *byte ^= 0x20;
            }
        }
    }

    /// Inserts a part of another known input.
    fn take_over(&mut self, input: &mut Vec<u8>, known: &[Vec<u8>]) {
        let Some(other) = self.random.one_of(known) else { return };
        let bracketed = if self.random.below(2) == 0 { self.bracketed(other) } else { None };
        let taken = match bracketed {
            Some(part) => part,
            None => self.part(other),
        };
        let into = self.part(input);
        input.splice(into, other[taken].iter().copied());
    }
}
