//! Instructions that are written in base64, in hexadecimal or with percent signs.

use base64::{
    Engine,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::{Finding, excerpt, phrases};
use crate::{limits::pins::FINDINGS_MAX, pins::pointer::Pointer};

/// Shortest run of characters that is decoded. It is about the length of one instruction.
const RUN_MIN: usize = 24;
/// Smallest number of percent signs that are decoded.
const PERCENTS_MIN: usize = 8;

/// Returns the first encoded texts whose decoded form is a finding itself.
pub(super) fn find(pointer: &Pointer<'_>, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut start = 0;
    for piece in text.split_inclusive(|char: char| !is_encoded(char)) {
        let decoded = decode(piece.trim_end_matches(|char: char| !is_encoded(char)));
        if let Some(decoded) = decoded.filter(|decoded| phrases::has_any(decoded)) {
            let excerpt = format!("{} = {decoded}", excerpt(text, start, start));
            findings.push(Finding::serious("encoded-instructions", &pointer.text(), &excerpt));
            if findings.len() == FINDINGS_MAX {
                break;
            }
        }
        start += piece.len();
    }
    findings
}

fn is_encoded(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '+' | '/' | '-' | '_' | '=' | '%')
}

fn decode(run: &str) -> Option<String> {
    if run.len() < RUN_MIN {
        return None;
    }
    if run.bytes().filter(|byte| *byte == b'%').count() >= PERCENTS_MIN {
        return readable(percent_decoded(run));
    }
    if run.len().is_multiple_of(2) && run.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let pairs = run.as_bytes().chunks_exact(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        return readable(pairs.map(byte).collect::<Option<_>>()?);
    }
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    let alphabets = [&STANDARD, &URL_SAFE].into_iter();
    let decoded = |alphabet| GeneralPurpose::new(alphabet, config).decode(run).ok();
    alphabets.filter_map(decoded).find_map(readable)
}

/// Returns bytes that are a text.
fn readable(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok().filter(|text| !text.chars().any(char::is_control))
}

fn percent_decoded(run: &str) -> Vec<u8> {
    let bytes = run.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let pair = (bytes[at] == b'%').then(|| run.get(at + 1..at + 3)).flatten();
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    decoded
}
