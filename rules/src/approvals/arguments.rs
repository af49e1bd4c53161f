//! The canonical form of arguments, whose hash an approval is bound to.
//!
//! Members are sorted, and white space between tokens is removed. Texts and numbers stay as the
//! client wrote them. Members whose names a reader could take for equal stay in the client's order.
//! Two arguments that a backend could read differently therefore never share a form.

use aws_lc_rs::digest::{SHA256, digest};
use protocol::json::{Document, Limits, Value, ValueKind};

/// Returns the digest of the arguments' canonical form. Absent arguments count as `{}`. `None`: the
/// arguments are not JSON.
pub fn arguments_hash(arguments: Option<&[u8]>) -> Option<[u8; 32]> {
    let canonical = canonical_arguments(arguments.unwrap_or(b"{}"))?;
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, &canonical).as_ref());
    Some(hash)
}

/// Returns the arguments with sorted members and without white space. `None`: they are not JSON.
pub fn canonical_arguments(arguments: &[u8]) -> Option<Vec<u8>> {
    let limits = Limits::with_bytes_max(arguments.len());
    let document = Document::parse(arguments, &limits).ok()?;
    let mut out = Vec::with_capacity(arguments.len());
    write(document.root(), arguments, &mut out);
    Some(out)
}

/// Writes a value. The parser bounded its depth.
fn write(value: Value<'_>, text: &[u8], out: &mut Vec<u8>) {
    match value.kind() {
        ValueKind::Object => {
            let mut members: Vec<_> = value.members().collect();
            // A stable sort: members of one name keep their order.
            members.sort_by_cached_key(|member| without_case(&member.key));
            out.push(b'{');
            for (at, member) in members.into_iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                out.extend_from_slice(member.key_span.of(text));
                out.push(b':');
                write(member.value, text, out);
            }
            out.push(b'}');
        }
        ValueKind::Array => {
            out.push(b'[');
            for (at, element) in value.elements().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write(element, text, out);
            }
            out.push(b']');
        }
        _ => out.extend_from_slice(value.raw().trim_ascii()),
    }
}

/// Returns a name as readers compare it that ignore escapes and letter case.
fn without_case(name: &str) -> String {
    name.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(text: &str) -> String {
        String::from_utf8(canonical_arguments(text.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn only_member_order_and_white_space_do_not_change_the_hash() {
        let text = "{ \"b\" : [ 1 , {\"y\":2, \"x\": \" a b \"} ],\n\"a\":\ttrue }";
        assert_eq!(canonical(text), r#"{"a":true,"b":[1,{"x":" a b ","y":2}]}"#);
        assert_eq!(arguments_hash(None), arguments_hash(Some(b" { } ")));
        let hash = |text: &str| arguments_hash(Some(text.as_bytes())).unwrap();
        for (one, other) in [
            (r#"{"a":1}"#, r#"{"a":2}"#),
            (r#"{"a":1}"#, r#"{"a":1.0}"#),
            (r#"{"a":9007199254740993}"#, r#"{"a":9007199254740992}"#),
            (r#"{"a":"x"}"#, r#"{"a":"x "}"#),
            (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#),
            (r#"{"a":null}"#, "{}"),
        ] {
            assert_ne!(hash(one), hash(other), "{one} {other}");
        }
        for text in ["", "{", "{\"a\":}", "[1,]", r#"{"a":"\ud800"}"#] {
            assert_eq!(arguments_hash(Some(text.as_bytes())), None, "{text}");
        }
    }

    #[test]
    fn the_order_of_names_that_a_reader_takes_for_equal_changes_the_hash() {
        let hash = |members: [(&str, u8); 2]| {
            let [(one, first), (other, second)] = members;
            let text = format!(r#"{{"deep":[{{"{one}":{first},"{other}":{second},"z":0}}]}}"#);
            arguments_hash(Some(text.as_bytes())).unwrap()
        };
        let kelvin = "to\u{212a}en";
        for [one, other] in [
            ["amount", r"\u0061mount"],
            ["amount", "amount"],
            ["amount", "Amount"],
            ["token", kelvin],
            ["ſum", "SUM"],
        ] {
            let (sent, swapped) = ([(one, 1), (other, 2)], [(other, 2), (one, 1)]);
            assert_ne!(hash(sent), hash(swapped), "{one} {other}");
        }
        assert_eq!(hash([("b", 1), ("a", 2)]), hash([("a", 2), ("b", 1)]));
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            ".{0,6}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                prop::collection::hash_map("[a-c]{1,2}", inner, 0..5)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_equivalent_and_stable(value in value()) {
            let written = serde_json::to_vec_pretty(&value).unwrap();
            let form = canonical_arguments(&written).unwrap();
            prop_assert_eq!(&serde_json::from_slice::<serde_json::Value>(&form).unwrap(), &value);
            prop_assert_eq!(canonical_arguments(&form).unwrap(), form);
        }

        #[test]
        fn different_values_have_different_canonical_forms(one in value(), other in value()) {
            let form = |value| canonical_arguments(&serde_json::to_vec(value).unwrap()).unwrap();
            prop_assert_eq!(form(&one) == form(&other), one == other);
        }
    }
}
