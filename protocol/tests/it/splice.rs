//! Edits change what they name and nothing else.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use protocol::{Limits, Message, RequestId, Span, Splice, splice::replace_in_place};
use serde_json::value::RawValue;

use crate::text;

fn decode(text: &str) -> Message {
    Message::decode(Bytes::copy_from_slice(text.as_bytes()), &Limits::default())
        .unwrap_or_else(|error| panic!("{error:?}: {text}"))
}

fn set_meta(text: &str, members: &[(&str, &str)]) -> String {
    let message = decode(text);
    let mut splice = Splice::new(&message.frame);
    for (key, value) in members {
        splice.set_meta(&message, key, value.as_bytes());
    }
    String::from_utf8(splice.finish().to_vec()).expect("UTF-8")
}

#[test]
fn a_message_without_edits_is_not_copied() {
    let frame = Bytes::from_static(b"{}");
    assert_eq!(Splice::new(&frame).finish().as_ptr(), frame.as_ptr());
}

#[test]
fn edits_come_in_any_order() {
    let frame = Bytes::from_static(b"0123456789");
    let span = |start, end| Span { start, end };
    let mut splice = Splice::new(&frame);
    splice
        .replace(span(8, 9), &b"eight"[..])
        .insert(3, &b"<"[..])
        .remove(span(0, 2))
        .replace(span(3, 4), &b"three"[..])
        .insert(3, &b">"[..]);
    assert_eq!(splice.insert(10, &b"end"[..]).finish(), "2<>three4567eight9end");
}

#[test]
fn a_vectored_edit_copies_only_the_part_between_edits() {
    let frame = Bytes::from_static(b"0123456789");
    let span = |start, end| Span { start, end };
    let mut splice = Splice::new(&frame);
    let [before, edited, behind] =
        splice.replace(span(6, 7), &b"six"[..]).replace(span(2, 3), &b"two"[..]).finish_vectored();
    assert_eq!(
        (&before[..], &edited[..], &behind[..]),
        (&b"01"[..], &b"two345six"[..], &b"789"[..])
    );
    assert_eq!((before.as_ptr(), behind.as_ptr()), (frame.as_ptr(), frame[7..].as_ptr()));
    let [whole, nothing, neither] = Splice::new(&frame).finish_vectored();
    assert_eq!((whole.as_ptr(), nothing.len() + neither.len()), (frame.as_ptr(), 0));
}

#[test]
fn an_id_is_replaced_in_place_if_it_fits_and_the_bytes_are_not_shared() {
    let span = Span { start: 6, end: 9 };
    for (id, text) in [
        ("7", r#"{"id":7,"x":1}"#),
        ("789", r#"{"id":789,"x":1}"#),
        ("\"long\"", r#"{"id":"long","x":1}"#),
    ] {
        let frame = || Bytes::from(br#"{"id":123,"x":1}"#.to_vec());
        let (alone, shared) = (frame(), frame());
        let (end, other) = (alone.as_ptr_range().end, shared.clone());
        let edited = replace_in_place(alone, span, id.as_bytes());
        assert_eq!(
            (&edited[..], edited.as_ptr_range().end == end),
            (text.as_bytes(), id.len() <= 3),
            "{id}"
        );
        assert_eq!(replace_in_place(shared, span, id.as_bytes()), text);
        assert_eq!(other, frame(), "what somebody else has stays as it is");
    }
}

#[test]
fn members_are_set_in_place_or_first() {
    let frame = Bytes::from_static(br#"{"a":1,"b":{ },"c":{"d":2}}"#);
    let (root, empty, full) =
        (Span { start: 0, end: 27 }, Span { start: 11, end: 14 }, Span { start: 19, end: 26 });
    let mut splice = Splice::new(&frame);
    splice
        .set_member(root, Some(Span { start: 5, end: 6 }), "a", b"10")
        .set_member(empty, None, "x", b"1");
    splice.set_member(empty, None, "y\"", b"2").set_member(full, None, "z", b"3");
    assert_eq!(splice.finish(), r#"{"a":10,"b":{"x":1,"y\"":2 },"c":{"z":3,"d":2}}"#);
}

#[test]
fn members_are_removed_with_their_comma() {
    for (before, after) in [
        (r#"{"k":1}"#, "{}"),
        (r#"{ "k" : 1 , "b":2}"#, r#"{ "b":2}"#),
        (r#"{"a":1, "k":[1,2]}"#, r#"{"a":1}"#),
        (r#"{"a":1,"\u006b":{},"b":2}"#, r#"{"a":1,"b":2}"#),
        (r#"{"a":1}"#, r#"{"a":1}"#),
    ] {
        let frame = Bytes::copy_from_slice(before.as_bytes());
        let root = Span { start: 0, end: frame.len() as u32 };
        assert_eq!(Splice::new(&frame).remove_member(root, "k").finish(), after);
    }
    let frame = Bytes::from_static(br#"{"k":1}"#);
    let root = Span { start: 0, end: 7 };
    assert_eq!(
        Splice::new(&frame).remove_member(root, "k").set_member(root, None, "n", b"2").finish(),
        r#"{"n":2}"#
    );
}

#[test]
fn several_members_of_meta_replace_one_of_another_type() {
    for other in ["1", "[{}]", "null", "\"x\""] {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"_meta":{other},"a":2}}}}"#
        );
        let members = [("progressToken", "7"), ("traceparent", "\"00\"")];
        let after = r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"progressToken":7,"traceparent":"00"},"a":2}}"#;
        assert_eq!(set_meta(&text, &members), after);
    }
}

#[test]
fn a_missing_meta_is_created() {
    let check = |before: &str, after: &str| {
        assert_eq!(set_meta(before, &[("t", "1"), ("u", "\"2\"")]), after)
    };
    check(
        r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
        r#"{"params":{"_meta":{"t":1,"u":"2"}},"jsonrpc":"2.0","id":1,"method":"ping"}"#,
    );
    check(
        r#" {"jsonrpc":"2.0","method":"ping","params":{}} "#,
        r#" {"jsonrpc":"2.0","method":"ping","params":{"_meta":{"t":1,"u":"2"}}} "#,
    );
    check(
        r#"{"jsonrpc":"2.0","id":1,"result":{"a":1}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"t":1,"u":"2"},"a":1}}"#,
    );
    check(
        r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"t":1,"u":"2"}}}"#,
    );
    check(
        r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"\u0074":9,"o":0}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"u":"2","\u0074":1,"o":0}}}"#,
    );
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}"#;
    check(error, error);
}

#[test]
fn meta_that_is_not_an_object_is_replaced() {
    assert_eq!(
        set_meta(r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":null}}"#, &[("t", "1")]),
        r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"t":1}}}"#
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    // RPC-11
    #[test]
    fn everything_except_the_edit_is_unchanged(arguments in text::object(), extra in text::value(), id in any::<u64>(), token in text::string_literal()) {
        let message = decode(&format!(
            r#"{{"x-unknown":{extra},"jsonrpc":"2.0","method":"tools/call","params":{{"name":"n","arguments":{arguments},"_meta":{{"progressToken":{token},"o":{extra}}}}},"id":{id}}}"#
        ));
        let mut splice = Splice::new(&message.frame);
        splice.replace(message.id_span.expect("an id"), &b"7"[..]).replace(message.fields.name.expect("a name"), &b"\"other\""[..]);
        splice.set_meta(&message, "progressToken", b"8");
        let out = splice.finish();
        let expected = format!(
            r#"{{"x-unknown":{extra},"jsonrpc":"2.0","method":"tools/call","params":{{"name":"other","arguments":{arguments},"_meta":{{"progressToken":8,"o":{extra}}}}},"id":7}}"#
        );
        prop_assert_eq!(String::from_utf8_lossy(&out), expected);

        // The second edit restores the bytes that the sender wrote.
        let sent = Message::decode(out, &Limits::default()).expect("still a message");
        let mut splice = Splice::new(&sent.frame);
        splice.replace(sent.id_span.expect("an id"), id.to_string().into_bytes()).replace(sent.fields.name.expect("a name"), &b"\"n\""[..]);
        splice.replace(sent.fields.meta_progress_token.expect("a token"), token.into_bytes());
        prop_assert_eq!(&splice.finish(), &message.frame);
    }

    #[test]
    fn set_member_adds_one_member_and_keeps_the_others(object in text::object(), value in text::value()) {
        let frame = Bytes::from(object.clone().into_bytes());
        let root = Span { start: 0, end: frame.len() as u32 };
        let out = Splice::new(&frame).set_member(root, None, "a key no generator makes", value.as_bytes()).finish();
        let before: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&object).expect("an object");
        let mut after: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&out).expect("still an object");
        let added = after.remove("a key no generator makes").expect("the new member");
        prop_assert_eq!(added.get(), value);
        let texts = |map: BTreeMap<String, Box<RawValue>>| map.into_iter().map(|(key, value)| (key, value.get().to_owned())).collect::<Vec<_>>();
        prop_assert_eq!(texts(before), texts(after));
    }
}

#[test]
fn an_edited_message_equals_its_decoded_frame() {
    let text = r#" {"jsonrpc":"2.0","params":{"name":"n","_meta":{"io.modelcontextprotocol/logLevel":"info"},"arguments":{"uri":1}},"id":17,"method":"tools/call"}"#;
    let decoded = decode(text);
    let (id, meta) = (decoded.id_span.expect("an id"), decoded.fields.meta.expect("a _meta"));
    let mut splice = Splice::new(&decoded.frame);
    splice.replace(id, &b"\"other\""[..]).replace(meta, &b"{}"[..]);
    // Parts inside of a replaced value are not reported as present.
    assert!(splice.finish_message(decoded.clone()).is_err());

    let mut known = decoded.clone();
    known.id = Some(RequestId::from_raw(Bytes::from_static(b"\"other\"")));
    known.fields.clear_hop_meta();
    let mut splice = Splice::new(&decoded.frame);
    splice.replace(id, &b"\"other\""[..]).replace(meta, &b"{}"[..]);
    let edited = splice.finish_message(known.clone()).expect("nothing is added");
    assert_eq!(
        format!("{edited:?}"),
        format!(
            "{:?}",
            Message::decode(edited.frame.clone(), &Limits::default()).expect("a message")
        )
    );

    let mut splice = Splice::new(&decoded.frame);
    splice.set_meta(&decoded, "x", b"1");
    assert!(splice.finish_message(decoded.clone()).is_err(), "what is added is read nowhere");
}
