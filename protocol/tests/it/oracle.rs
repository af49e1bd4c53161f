//! The walker against simd-json, which shares no code with it: both accept the same texts and read
//! the same values. Also the tape against the walker: every value is where the walker finds it.
//!
//! Intended differences: the walker has limits of its own (bytes, depth, values), and `-0` is an
//! integer to simd-json.

use std::{fs, path::Path};

use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::Index};
use protocol::{
    Limits, Message,
    json::{Document, JsonError, Tape, TapeValue, VALUES_MAX, Value, ValueKind},
};
use simd_json::{prelude::*, tape};

use crate::text;

/// Limits with simd-json's own limit of depth.
const LIMITS: Limits =
    Limits { bytes_max: 16 * 1024 * 1024, depth_max: simd_json::DEFAULT_MAX_DEPTH };

/// Checks that all readers judge `text` alike and read the same values.
fn read_alike(text: &[u8]) -> Result<(), TestCaseError> {
    let mut copy = text.to_vec();
    let (walked, oracle, tape) =
        (Document::parse(text, &LIMITS), simd_json::to_tape(&mut copy), Tape::parse(text, &LIMITS));
    prop_assert_eq!(
        walked.as_ref().err(),
        tape.as_ref().err(),
        "{}",
        String::from_utf8_lossy(text)
    );
    match (walked, oracle, tape) {
        (Ok(walked), Ok(oracle), Ok(tape)) => {
            same_values(walked.root(), oracle.as_value())?;
            same_spans(walked.root(), tape.root())
        }
        (Err(_), Err(_), Err(_)) => Ok(()),
        (walked, oracle, _) => {
            let (walked, oracle) = (walked.err(), oracle.err());
            Err(TestCaseError::fail(format!(
                "walker {walked:?}, simd-json {oracle:?}: {}",
                String::from_utf8_lossy(text)
            )))
        }
    }
}

fn same_values(ours: Value<'_>, oracle: tape::Value<'_, '_>) -> Result<(), TestCaseError> {
    match ours.kind() {
        ValueKind::Object => {
            let object = oracle.as_object().ok_or_else(|| TestCaseError::fail("not an object"))?;
            prop_assert_eq!(ours.members().count(), object.len());
            for (member, (key, value)) in ours.members().zip(object.iter()) {
                prop_assert_eq!(&*member.key, key);
                same_values(member.value, value)?;
            }
        }
        ValueKind::Array => {
            let array = oracle.as_array().ok_or_else(|| TestCaseError::fail("not an array"))?;
            prop_assert_eq!(ours.elements().count(), array.len());
            ours.elements()
                .zip(array.iter())
                .try_for_each(|(element, value)| same_values(element, value))?;
        }
        ValueKind::String => prop_assert_eq!(ours.as_str(), oracle.as_str().map(Into::into)),
        ValueKind::Number => {
            prop_assert_eq!(ours.as_f64(), oracle.cast_f64(), "{:?}", ours);
            if ours.raw() != b"-0" {
                prop_assert_eq!(
                    (ours.as_u64(), ours.as_i64()),
                    (oracle.as_u64(), oracle.as_i64()),
                    "{:?}",
                    ours
                );
            }
        }
        ValueKind::Bool => prop_assert_eq!(ours.as_bool(), oracle.as_bool()),
        ValueKind::Null => prop_assert!(oracle.is_null()),
    }
    Ok(())
}

fn same_spans(walked: Value<'_>, tape: TapeValue<'_>) -> Result<(), TestCaseError> {
    prop_assert_eq!(
        (walked.span(), walked.kind(), walked.raw()),
        (tape.span(), tape.kind(), tape.raw())
    );
    prop_assert_eq!(
        (walked.as_str(), walked.as_u64(), walked.as_bool()),
        (tape.as_str(), tape.as_u64(), tape.as_bool())
    );
    prop_assert_eq!(walked.is_null(), tape.is_null());
    prop_assert_eq!(
        (walked.members().count(), walked.elements().count()),
        (tape.members().count(), tape.elements().count())
    );
    for (ours, other) in walked.members().zip(tape.members()) {
        prop_assert_eq!((&ours.key, ours.key_span), (&other.key, other.key_span));
        prop_assert_eq!(
            walked.get(&ours.key).map(|value| value.span()),
            tape.get(&ours.key).map(|value| value.span())
        );
        let only = (walked.unambiguous(&ours.key), tape.unambiguous(&ours.key));
        prop_assert_eq!(
            only.0.map(|value| value.map(|value| value.span())),
            only.1.map(|value| value.map(|value| value.span()))
        );
        same_spans(ours.value, other.value)?;
    }
    walked.elements().zip(tape.elements()).try_for_each(|(ours, other)| same_spans(ours, other))
}

/// Returns a call whose arguments hold `text`.
fn call(text: &[u8]) -> Bytes {
    let head = br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"\u0074ool","arguments":{"value":"#;
    [head, text, b"}}}"].concat().into()
}

/// JSON with a few bytes changed, added or taken out.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let special = b"{}[]:,\"\\u0eE+-.1 \n\ttfn\x00\x1f\x7f\x80\xc3\xed\xa0".to_vec();
    let byte = prop_oneof![any::<u8>(), proptest::sample::select(special)];
    (text::value(), vec((any::<Index>(), 0..3_u8, byte), 1..4)).prop_map(|(text, changes)| {
        let mut text = text.into_bytes();
        for (at, change, byte) in changes {
            let at = at.index(text.len());
            match change {
                0 => text[at] = byte,
                1 => text.insert(at, byte),
                _ if text.len() > 1 => drop(text.remove(at)),
                _ => {}
            }
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_json_has_the_same_values_in_both_readers(before in text::blank(), value in text::value(), after in text::blank()) {
        read_alike((before + &value + &after).as_bytes())?;
    }

    #[test]
    fn damaged_json_has_the_same_verdict_in_both_readers(text in damaged()) {
        read_alike(&text)?;
    }

    #[test]
    fn text_similar_to_json_has_the_same_verdict_in_both_readers(text in "[\\[\\]{}:,\"\\\\u0-9a-fA-FeE+\\-.tnrls \n]{0,30}") {
        read_alike(text.as_bytes())?;
    }

    #[test]
    fn numbers_have_the_same_verdict_in_both_readers(text in "-?[0-9]{0,25}(\\.[0-9]{0,25})?([eE][+-]?[0-9]{0,4})?") {
        read_alike(text.as_bytes())?;
    }

    #[test]
    fn strings_have_the_same_verdict_in_both_readers(text in "\"([a-c]|\\\\[\"\\\\/bfnrtux]|\\\\u[dD][89abAB cdef][0-9a-fA-F]{2}|\\\\u[0-9a-f]{4}|[\\x00-\\x20]){0,12}\"") {
        read_alike(text.as_bytes())?;
    }

    #[test]
    fn confusable_keys_are_found_by_both_readers(keys in vec("(name|Name|NAME|n\\\\u0061me|nam\u{17f}|other|)", 0..4)) {
        let members: Vec<String> = keys.iter().map(|key| format!("\"{key}\":1")).collect();
        read_alike(format!("{{{}}}", members.join(",")).as_bytes())?;
    }

    /// Compares the decoded envelope, which is read for every message.
    #[test]
    fn messages_have_the_same_verdict_in_both_readers(text in prop_oneof![text::value().prop_map(String::into_bytes), damaged()]) {
        let frame = call(&text);
        let mut copy = frame.to_vec();
        let (message, oracle) = (Message::decode(frame.clone(), &Limits::default()), simd_json::to_tape(&mut copy));
        prop_assert_eq!(message.is_ok(), oracle.is_ok(), "{}", String::from_utf8_lossy(&frame));
        if let (Ok(message), Ok(oracle)) = (message, oracle) {
            let params = oracle.as_value().as_object().and_then(|root| root.get("params")?.as_object()).expect("a call has params");
            let (name, expected) = (message.text(message.fields.name), params.get("name").expect("it was sent"));
            prop_assert_eq!(name.as_deref(), expected.as_str());
            let arguments = Document::parse(message.bytes(message.fields.arguments).expect("arguments were sent"), &LIMITS);
            same_values(arguments.expect("they were decoded").root(), params.get("arguments").expect("they were sent"))?;
        }
    }
}

#[test]
fn the_json_test_suite_has_the_same_verdicts_in_both_readers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/json-test-suite");
    let files = fs::read_dir(folder)
        .expect("the corpus is part of the repository")
        .map(|file| file.expect("readable folder").path());
    let files: Vec<_> = files
        .filter(|file| file.extension().is_some_and(|extension| extension == "json"))
        .collect();
    assert!(files.len() > 300, "files are missing");
    for file in files {
        read_alike(&fs::read(&file).expect("readable file"))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

#[test]
fn the_tape_and_the_walker_have_the_same_limits() {
    let limits = Limits { bytes_max: 10, depth_max: 3 };
    for text in [
        "[[[1234]]]",
        "[[[12345]]]",
        "[[[[1]]]]",
        "",
        "{}\0",
        "[1,]",
        "{\"a\"}",
        r#"["\ud800"]"#,
        "\u{feff}{}",
        "1e999",
    ] {
        let (walked, tape) = (
            Document::parse(text.as_bytes(), &limits).err(),
            Tape::parse(text.as_bytes(), &limits).err(),
        );
        assert_eq!(walked, tape, "{text}");
    }
    let array = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
    assert!(Tape::parse(array(VALUES_MAX).as_bytes(), &Limits::default()).is_ok());
    let one_more = Tape::parse(array(VALUES_MAX + 1).as_bytes(), &Limits::default()).err();
    assert_eq!(one_more, Some(JsonError::TooManyValues { max: VALUES_MAX }));
    let (depth, commas) = (100_000, ",".repeat(2 * VALUES_MAX));
    let deep = [b"[".repeat(depth), b"]".repeat(depth)].concat();
    assert_eq!(Tape::parse(&deep, &Limits::default()).err(), Some(JsonError::TooDeep { max: 128 }));
    assert!(Tape::parse(&deep, &Limits { depth_max: depth, ..Limits::default() }).is_ok());
    assert!(Tape::parse(format!("[\"{commas}\"]").as_bytes(), &Limits::default()).is_ok());
}

#[test]
fn a_tape_returns_values_at_their_positions() {
    let text = br#" { "a" : [1, -2 , 3.50 ,"x\ty", true ,null], "\u0062":{"c":{"d":"deep"}}, "a":0, "n":123456789012345678901234567890 } "#;
    let tape = Tape::parse(text, &Limits::default()).expect("JSON");
    let root = tape.root();
    assert_eq!((root.span().start, root.members().count()), (1, 4));
    let elements: Vec<&[u8]> =
        root.get("a").expect("the first").elements().map(|element| element.raw()).collect();
    assert_eq!(elements, [&b"1"[..], b"-2", b"3.50", b"\"x\\ty\"", b"true", b"null"]);
    assert_eq!(
        root.path(&["b", "c", "d"]).and_then(|value| value.as_str()).as_deref(),
        Some("deep")
    );
    assert_eq!(
        root.get("n").map(|number| number.raw()),
        Some(&b"123456789012345678901234567890"[..])
    );
    assert!(root.path(&["a", "b"]).is_none() && root.get("c").is_none());
    assert!(root.unambiguous("a").is_err() && root.unambiguous("A").is_err());
    assert_eq!(
        root.unambiguous_path(&["b", "c", "d"]).expect("one").map(|value| value.raw()),
        Some(&b"\"deep\""[..])
    );
    assert_eq!(
        root.unambiguous_path(&["b", "x", "d"]).expect("none").map(|value| value.raw()),
        None
    );
}
