//! Spans and values against serde_json, a slow and obvious reader.

use std::collections::BTreeMap;

use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use protocol::Limits;
use protocol::json::{Document, JsonError, VALUES_MAX, Value, ValueKind, quote};
use serde_json::value::RawValue;

use crate::text;

fn parse(text: &str) -> Document<'_> {
    Document::parse(text.as_bytes(), &Limits::default())
        .unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Checks that every value of `value` has the same text as serde_json finds in `raw`.
fn same(value: Value<'_>, raw: &RawValue) {
    let text = raw.get();
    assert_eq!(String::from_utf8_lossy(value.raw()), text);
    match value.kind() {
        ValueKind::Object => {
            let expected: BTreeMap<String, &RawValue> =
                serde_json::from_str(text).expect("an object");
            assert_eq!(value.members().count(), expected.len());
            for member in value.members() {
                same(member.value, expected[member.key.as_ref()]);
            }
        }
        ValueKind::Array => {
            let expected: Vec<&RawValue> = serde_json::from_str(text).expect("an array");
            assert_eq!(value.elements().count(), expected.len());
            value.elements().zip(expected).for_each(|(element, raw)| same(element, raw));
        }
        ValueKind::String => assert_eq!(
            value.as_str().as_deref(),
            serde_json::from_str::<String>(text).ok().as_deref()
        ),
        ValueKind::Number => assert_eq!(value.as_u64(), serde_json::from_str(text).ok()),
        ValueKind::Bool => assert_eq!(value.as_bool(), Some(text == "true")),
        ValueKind::Null => assert!(value.is_null()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn spans_equal_the_positions_found_by_serde(before in text::blank(), value in text::value(), after in text::blank()) {
        let text = before + &value + &after;
        let raw: &RawValue = serde_json::from_str(&text).expect("generated text is JSON");
        same(parse(&text).root(), raw);
    }

    #[test]
    fn damaged_text_is_refused_like_by_serde(value in text::value(), at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
        let mut text = value.into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        let serde = serde_json::from_slice::<&RawValue>(&text).is_ok();
        let ours = Document::parse(&text, &Limits::default()).is_ok();
        // serde's raw values are not checked for lone surrogates; we refuse those.
        if ours != serde {
            assert!(serde && serde_json::from_slice::<serde_json::Value>(&text).is_err(), "ours {ours}: {}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn a_quoted_text_is_read_back_unchanged(text in any::<String>()) {
        let literal = quote(&text);
        let document = parse(&literal);
        let read = document.root().as_str();
        prop_assert_eq!(read.as_deref(), Some(text.as_str()));
    }
}

#[test]
fn values_are_read_by_their_type() {
    let document = parse(
        r#" {"a":[1,-2,3.5,"x\ty",true,null],"b":{"c":{"d":"deep"}},"\u0062b":18446744073709551615} "#,
    );
    let root = document.root();
    let elements: Vec<_> = root.get("a").expect("a").elements().collect();
    assert_eq!(elements[0].as_u64(), Some(1));
    assert_eq!((elements[1].as_u64(), elements[1].as_i64()), (None, Some(-2)));
    assert_eq!((elements[2].as_i64(), elements[2].as_f64()), (None, Some(3.5)));
    assert_eq!(elements[3].as_str().as_deref(), Some("x\ty"));
    assert_eq!(elements[4].as_bool(), Some(true));
    assert!(elements[5].is_null());
    assert_eq!(
        root.path(&["b", "c", "d"]).and_then(|value| value.as_str()).as_deref(),
        Some("deep")
    );
    assert_eq!(
        root.get("bb").and_then(|value| value.as_u64()),
        Some(u64::MAX),
        "keys are compared unescaped"
    );
    assert_eq!(root.span().start, 1);
    assert!(root.path(&["a", "b"]).is_none());
}

#[test]
fn texts_of_numbers_of_any_size_are_kept() {
    let long = "9".repeat(308);
    let numbers = [
        "-0",
        "-0.0",
        "0e1",
        "1E308",
        "-1e-400",
        "123456789012345678901234567890",
        "0.1000000000000000055511151231257827",
        &long,
    ];
    for number in numbers {
        let text = format!("[{number}]");
        assert_eq!(parse(&text).root().elements().next().expect("one").raw(), number.as_bytes());
    }
    // A reader that takes one of these for a number reads another number, or fails.
    for number in ["1E400", "-1e309", &"9".repeat(400)] {
        let text = format!("[{number}]");
        assert_eq!(
            Document::parse(text.as_bytes(), &Limits::default()).err(),
            Some(JsonError::Malformed),
            "{number}"
        );
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_err(), "{number}");
    }
}

#[test]
fn limits_of_json_texts_are_exact() {
    let limits = Limits { bytes_max: 10, depth_max: 3 };
    assert!(Document::parse(b"[[[1234]]]", &limits).is_ok());
    assert_eq!(
        Document::parse(b"[[[12345]]]", &limits).err(),
        Some(JsonError::TooLarge { size: 11, max: 10 })
    );
    assert_eq!(Document::parse(b"[[[[1]]]]", &limits).err(), Some(JsonError::TooDeep { max: 3 }));
    assert_eq!(Document::parse(b"", &limits).err(), Some(JsonError::Malformed));
    assert_eq!(
        Document::parse(b"\xef\xbb\xbf{}", &limits).err(),
        Some(JsonError::Malformed),
        "a byte order mark is not JSON"
    );
    assert_eq!(Document::parse(b"{}\0", &limits).err(), Some(JsonError::Malformed));
    assert_eq!(
        Document::parse(br#"["\ud800"]"#, &limits).err(),
        Some(JsonError::Malformed),
        "a lone surrogate has no UTF-8"
    );
}

#[test]
fn brackets_are_matched_at_any_depth() {
    let limits = Limits { depth_max: 300, ..Limits::default() };
    for depth in [63, 64, 65, 127, 128, 129, 200] {
        let is_object = |level: usize| level * level % 7 < 3;
        let mut text: String =
            (0..depth).map(|level| if is_object(level) { "{\"a\":" } else { "[" }).collect();
        text.push('1');
        let begin = text.len();
        text.extend((0..depth).rev().map(|level| if is_object(level) { '}' } else { ']' }));
        assert!(Document::parse(text.as_bytes(), &limits).is_ok(), "{depth}");
        for at in begin..text.len() {
            let mut wrong = text.clone().into_bytes();
            wrong[at] ^= b']' ^ b'}';
            assert_eq!(
                Document::parse(&wrong, &limits).err(),
                Some(JsonError::Malformed),
                "{depth} {at}"
            );
        }
    }
}

#[test]
fn values_are_limited_and_commas_in_strings_are_not_counted() {
    let array = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
    assert!(Document::parse(array(VALUES_MAX).as_bytes(), &Limits::default()).is_ok());
    let one_more = Document::parse(array(VALUES_MAX + 1).as_bytes(), &Limits::default()).err();
    assert_eq!(one_more, Some(JsonError::TooManyValues { max: VALUES_MAX }));
    for csv in
        [",".repeat(2 * VALUES_MAX), "\\\",".repeat(2 * VALUES_MAX), ",\\\\".repeat(2 * VALUES_MAX)]
    {
        let text = format!(r#"{{"text":"{csv}","more":[1,2]}}"#);
        assert_eq!(parse(&text).root().members().count(), 2);
    }
    let unclosed = format!("{}\"{}\\", "1,".repeat(VALUES_MAX / 2), ",".repeat(VALUES_MAX));
    assert_eq!(
        Document::parse(unclosed.as_bytes(), &Limits::default()).err(),
        Some(JsonError::Malformed)
    );
}
