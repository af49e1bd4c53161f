//! Header values that repeat values of the body, against their round trip.

use std::str;

use http::HeaderValue;
use protocol::stateless::headers::{decode, encode, value_matches};

use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "header_values",
    tokens: &["=?base64?", "?=", "YQ==", "YQ", "/w==", "=", " ", "\t", "=?BASE64?", "é"],
    bytes_max: 256,
    check,
};

fn check(input: &[u8]) -> Outcome {
    if let Ok(text) = str::from_utf8(input) {
        let encoded = encode(text);
        assert!(HeaderValue::from_str(&encoded).is_ok(), "{encoded:?} is a header value");
        assert_eq!(decode(encoded.as_bytes()).as_deref(), Ok(text), "the round trip");
        assert_eq!(value_matches(encoded.as_bytes(), text), Ok(true), "it stands for itself");
    }
    match decode(input) {
        Ok(text) => {
            assert_eq!(decode(encode(&text).as_bytes()).as_deref(), Ok(&*text), "the round trip");
            assert_eq!(value_matches(input, &text), Ok(true), "a value matches what it stands for");
            let other = format!("{text}x");
            assert_eq!(value_matches(input, &other), Ok(false), "and nothing else");
            Outcome::of(&("value", text.as_bytes() == input, text.is_ascii()))
        }
        Err(_) => Outcome::of(&("none", input.is_ascii(), str::from_utf8(input).is_ok())),
    }
}
