//! The readers: each finds the id, the tool's name and the place of the arguments of a call.

use bytes::Bytes;
use protocol::{envelope::Message, json::Limits};
use serde::Deserialize;
use serde_json::value::RawValue;
use simd_json::prelude::ValueAsScalar as _;

/// Parts that each reader has to find.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ParsedCall {
    pub(crate) id: u64,
    pub(crate) tool: String,
}

pub(crate) type Reader = fn(&Bytes) -> Option<ParsedCall>;

/// The readers with their names. The first is the broker's own.
pub(crate) const READERS: [(&str, Reader); 5] = [
    ("ours", ours),
    ("simd-json tape", tape),
    ("serde RawValue", serde_raw),
    ("sonic-rs lazy", sonic),
    ("hand scanner, unchecked", scanned),
];

fn ours(frame: &Bytes) -> Option<ParsedCall> {
    let message = Message::decode(frame.clone(), &Limits::default()).ok()?;
    let id = std::str::from_utf8(message.bytes(message.id_span)?).ok()?.parse().ok()?;
    Some(ParsedCall { id, tool: message.text(message.fields.name)?.into_owned() })
}

/// Reads a copy: simd-json writes into its input, and a frame is shared.
fn tape(frame: &Bytes) -> Option<ParsedCall> {
    let mut copy = frame.to_vec();
    let tape = simd_json::to_tape(&mut copy).ok()?;
    let message = tape.as_value().as_object()?;
    let params = message.get("params")?.as_object()?;
    params.get("arguments")?;
    Some(ParsedCall {
        id: message.get("id")?.as_u64()?,
        tool: params.get("name")?.as_str()?.to_owned(),
    })
}

#[derive(Deserialize)]
struct Raw<'a> {
    id: u64,
    #[serde(borrow)]
    params: RawParams<'a>,
}

#[derive(Deserialize)]
struct RawParams<'a> {
    name: &'a str,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

fn serde_raw(frame: &Bytes) -> Option<ParsedCall> {
    let raw: Raw<'_> = serde_json::from_slice(frame).ok()?;
    (!raw.params.arguments.get().is_empty())
        .then(|| ParsedCall { id: raw.id, tool: raw.params.name.to_owned() })
}

#[derive(Deserialize)]
struct Lazy<'a> {
    id: u64,
    #[serde(borrow)]
    params: LazyParams<'a>,
}

#[derive(Deserialize)]
struct LazyParams<'a> {
    name: &'a str,
    #[serde(borrow)]
    arguments: sonic_rs::LazyValue<'a>,
}

fn sonic(frame: &Bytes) -> Option<ParsedCall> {
    let lazy: Lazy<'_> = sonic_rs::from_slice(frame).ok()?;
    (!lazy.params.arguments.as_raw_str().is_empty())
        .then(|| ParsedCall { id: lazy.id, tool: lazy.params.name.to_owned() })
}

/// Passes over values without checking them; accepts any text as JSON. It shows the least possible
/// cost.
fn scanned(frame: &Bytes) -> Option<ParsedCall> {
    let id = member(frame, b"id")?;
    let params = member(frame, b"params")?;
    let name = member(params, b"name")?;
    member(params, b"arguments")?;
    Some(ParsedCall {
        id: std::str::from_utf8(id).ok()?.parse().ok()?,
        tool: std::str::from_utf8(name).ok()?.trim_matches('"').to_owned(),
    })
}

/// Returns the value of a member of an object without whitespace.
fn member<'a>(object: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let mut at = 1;
    while object.get(at) == Some(&b'"') {
        let key_end = string_end(object, at)?;
        let value_end = value_end(object, key_end + 1)?;
        if &object[at + 1..key_end - 1] == wanted {
            return Some(&object[key_end + 1..value_end]);
        }
        at = value_end + 1;
    }
    None
}

/// Returns the index behind the string that begins here.
fn string_end(text: &[u8], begin: usize) -> Option<usize> {
    let mut at = begin + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', &text[at..])?;
        if text[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

fn value_end(text: &[u8], begin: usize) -> Option<usize> {
    let (mut at, mut depth) = (begin, 0);
    loop {
        match text.get(at)? {
            b'"' => at = string_end(text, at)?,
            b'{' | b'[' => (at, depth) = (at + 1, depth + 1),
            b'}' | b']' if depth == 0 => return Some(at),
            b'}' | b']' => (at, depth) = (at + 1, depth - 1),
            b',' if depth == 0 => return Some(at),
            _ => at += 1,
        }
        if depth == 0 && matches!(text.get(at), Some(b',' | b'}' | b']')) {
            return Some(at);
        }
    }
}
