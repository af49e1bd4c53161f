//! The walker, documents, the tape and the search for repeated members, against simd-json and
//! serde_json.

use std::{collections::hash_map::RandomState, str};

use protocol::{
    Limits,
    json::{Document, JsonError, Tape, TapeValue, Value, ValueKind, duplicate_member},
};
use simd_json::{prelude::*, tape};

use super::MESSAGE_TOKENS;
use crate::{Outcome, Target, json_oracle};

pub(super) const TARGET: Target =
    Target { name: "json", tokens: MESSAGE_TOKENS, bytes_max: 2048, check };

fn check(input: &[u8]) -> Outcome {
    let limits = Limits { bytes_max: 1 << 20, depth_max: json_oracle::SERDE_DEPTH_MAX };
    let (walked, tape) = (Document::parse(input, &limits), Tape::parse(input, &limits));
    // A text with two faults may be refused for either.
    assert_eq!(walked.is_err(), tape.is_err(), "walker {walked:?}, tape");
    if matches!(walked, Err(JsonError::TooDeep { .. })) {
        return Outcome::of(&"too deep");
    }
    let tree = serde_json::from_slice::<serde_json::Value>(input);
    let mut copy = input.to_vec();
    let simd = simd_json::to_tape(&mut copy);
    let accepts = (walked.is_ok(), tree.is_ok(), simd.is_ok());
    assert!(
        accepts == (true, true, true) || accepts == (false, false, false),
        "walker {:?}, serde_json {:?}, simd-json {:?}",
        walked.err(),
        tree.err(),
        simd.err()
    );
    let (Ok(walked), Ok(tape), Ok(simd)) = (walked, tape, simd) else {
        let before = input.iter().take_while(|byte| byte.is_ascii_graphic()).count();
        return Outcome::of(&("malformed", Outcome::magnitude(before)));
    };
    let text = str::from_utf8(input).expect("what is read is UTF-8");
    let root = json_oracle::root(text).expect("serde_json has read it");
    same_spans(text, walked.root(), root);
    same_values(walked.root(), simd.as_value());
    same_as_tape(walked.root(), tape.root());
    let found = duplicate_member(input, &limits, &RandomState::new(), 200);
    let repeated = json_oracle::has_duplicate(root);
    assert_eq!(found.expect("it is JSON").is_some(), repeated, "repeated members");
    Outcome::of(&(shape(walked.root()), repeated))
}

/// Describes a value by its kinds.
fn shape(value: Value<'_>) -> String {
    match value.kind() {
        ValueKind::Object => {
            let members: Vec<String> =
                value.members().take(4).map(|member| shape(member.value)).collect();
            format!("{{{}}}", members.join(""))
        }
        ValueKind::Array => {
            let elements: Vec<String> = value.elements().take(4).map(shape).collect();
            format!("[{}]", elements.join(""))
        }
        ValueKind::String => format!("s{}", u8::from(value.raw().contains(&b'\\'))),
        ValueKind::Number => {
            format!("n{}{}", u8::from(value.as_i64().is_some()), u8::from(value.as_u64().is_some()))
        }
        kind => format!("{kind:?}"),
    }
}

/// Checks that serde_json finds each value and each key at the same span.
fn same_spans(text: &str, ours: Value<'_>, theirs: &str) {
    assert_eq!(ours.span(), json_oracle::span_of(text, theirs), "span of a value");
    match ours.kind() {
        ValueKind::Object => {
            let members = json_oracle::members(theirs).expect("serde_json finds an object");
            assert_eq!(ours.members().count(), members.len(), "members of {theirs}");
            for (member, (key, value)) in ours.members().zip(members) {
                assert_eq!(*member.key, key, "key");
                same_spans(text, member.value, value);
            }
        }
        ValueKind::Array => {
            let elements = json_oracle::elements(theirs).expect("serde_json finds an array");
            assert_eq!(ours.elements().count(), elements.len(), "elements of {theirs}");
            for (element, value) in ours.elements().zip(elements) {
                same_spans(text, element, value);
            }
        }
        ValueKind::String => {
            let string = serde_json::from_str::<String>(theirs).ok();
            assert_eq!(ours.as_str().as_deref(), string.as_deref(), "string");
        }
        _ => {}
    }
}

/// Checks that simd-json reads the same values.
fn same_values(ours: Value<'_>, theirs: tape::Value<'_, '_>) {
    match ours.kind() {
        ValueKind::Object => {
            let object = theirs.as_object().expect("simd-json finds an object");
            for (member, (key, value)) in ours.members().zip(object.iter()) {
                assert_eq!(&*member.key, key, "key");
                same_values(member.value, value);
            }
        }
        ValueKind::Array => {
            let array = theirs.as_array().expect("simd-json finds an array");
            for (element, value) in ours.elements().zip(array.iter()) {
                same_values(element, value);
            }
        }
        ValueKind::String => assert_eq!(ours.as_str().as_deref(), theirs.as_str(), "string"),
        ValueKind::Number => {
            assert_eq!(ours.as_f64(), theirs.cast_f64(), "{ours:?}");
            // simd-json reads it as an integer, which has no negative zero.
            if ours.raw() != b"-0" {
                assert_eq!(
                    (ours.as_u64(), ours.as_i64()),
                    (theirs.as_u64(), theirs.as_i64()),
                    "{ours:?}"
                );
            }
        }
        ValueKind::Bool => assert_eq!(ours.as_bool(), theirs.as_bool(), "bool"),
        ValueKind::Null => assert!(theirs.is_null(), "null"),
    }
}

/// Checks that the tape finds what the walker finds.
fn same_as_tape(walked: Value<'_>, tape: TapeValue<'_>) {
    assert_eq!((walked.span(), walked.kind()), (tape.span(), tape.kind()), "tape");
    for (ours, other) in walked.members().zip(tape.members()) {
        assert_eq!((&ours.key, ours.key_span), (&other.key, other.key_span), "tape");
        assert_eq!(
            walked.unambiguous(&ours.key).map(|value| value.map(|value| value.span())),
            tape.unambiguous(&ours.key).map(|value| value.map(|value| value.span())),
            "tape"
        );
        same_as_tape(ours.value, other.value);
    }
    walked.elements().zip(tape.elements()).for_each(|(ours, other)| same_as_tape(ours, other));
}
