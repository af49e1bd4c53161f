//! Edits of messages, against the same edits of a tree of `serde_json`.
//!
//! The bytes before the first `{` choose the edits.

use std::{collections::hash_map::RandomState, str};

use bytes::Bytes;
use protocol::{Kind, Limits, Message, Splice, json::duplicate_member};
use serde_json::{Map, Value, json};

use super::MESSAGE_TOKENS;
use crate::{Outcome, Target};

pub(super) const TARGET: Target =
    Target { name: "splice", tokens: MESSAGE_TOKENS, bytes_max: 1024, check };

const NEW_ID: &str = "18446744073709551615";
const NEW_NAME: &str = r#""a \"new\" name""#;
const META_KEYS: [&str; 3] = ["dev.mcp-broker/a", "progressToken", "b \"quoted\""];
const REMOVED_KEY: &str = "name";
const ADDED_KEY: &str = "added";

fn check(input: &[u8]) -> Outcome {
    let start = input.iter().position(|byte| *byte == b'{').unwrap_or(input.len());
    let (choices, text) = input.split_at(start);
    let limits = Limits::default();
    let Ok(message) = Message::decode(Bytes::copy_from_slice(text), &limits) else {
        return Outcome::of(&"refused");
    };
    // The tree keeps the last of two members, and the splice edits the first.
    let repeats = duplicate_member(text, &limits, &RandomState::new(), 1);
    let Ok(mut tree) = serde_json::from_slice::<Value>(text) else { return Outcome::of(&"deep") };
    if repeats.expect("it was decoded").is_some() {
        return Outcome::of(&"repeated members");
    }
    let chosen = choices.first().copied().unwrap_or(0);
    let made = edited(&message, &mut tree, chosen);
    let [first, second, third] = made.vectored;
    assert_eq!([first, second, third].concat(), made.text, "in pieces");
    let again: Value = serde_json::from_slice(&made.text).expect("an edited message is JSON");
    assert_eq!(again, tree, "edits {chosen:#b}");
    if let Ok(derived) = made.derived {
        let decoded = Message::decode(derived.frame.clone(), &limits).expect("it can be decoded");
        assert_eq!(derived.frame, made.text, "the derived message");
        let all = |message: &Message| {
            let mut spans = format!("{:?}", message.fields);
            spans += &format!(
                "{:?}",
                [
                    message.id_span,
                    message.method_span,
                    message.params,
                    message.result,
                    message.error
                ]
            );
            spans
        };
        assert_eq!(all(&derived), all(&decoded), "spans after the edits");
    }
    Outcome::of(&(
        chosen,
        message.kind,
        message.fields.meta.is_some(),
        message.fields.name.is_some(),
    ))
}

struct Edited {
    text: Bytes,
    vectored: [Bytes; 3],
    derived: Result<Message, Bytes>,
}

/// Makes the chosen edits in the message and in the tree.
fn edited(message: &Message, tree: &mut Value, chosen: u8) -> Edited {
    let has = |bit: u8| chosen & 1 << bit != 0;
    let body = if message.params.is_some() { "params" } else { "result" };
    let body_span = message.params.or(message.result);
    let removes_name = has(4) && body_span.is_some();
    let has_key = tree.get(body).is_some_and(|body| body.get(ADDED_KEY).is_some());
    let adds = has(5)
        && !has_key
        && body_span.is_some_and(|span| span.of(&message.frame).starts_with(b"{"));
    let splice = || {
        let mut splice = Splice::new(&message.frame);
        if let Some(span) = message.id_span.filter(|_| has(0)) {
            splice.replace(span, NEW_ID.as_bytes());
        }
        if let Some(span) = message.fields.name.filter(|_| has(1) && !removes_name) {
            splice.replace(span, NEW_NAME.as_bytes());
        }
        for (bit, key) in META_KEYS.iter().enumerate() {
            if has(2) && bit < 2 || has(3) && bit == 2 {
                splice.set_meta(message, key, b"[1]");
            }
        }
        if let Some(span) = body_span.filter(|_| removes_name) {
            splice.remove_member(span, REMOVED_KEY);
        }
        if let Some(span) = body_span.filter(|_| adds) {
            splice.set_member(span, None, ADDED_KEY, b"{}");
        }
        splice
    };
    let Value::Object(root) = tree else { unreachable!("a message is an object") };
    if has(0) && message.id_span.is_some() {
        root.insert("id".to_owned(), serde_json::from_str(NEW_ID).expect("JSON"));
    }
    if let Some(Value::Object(members)) = root.get_mut(body) {
        if removes_name {
            members.remove(REMOVED_KEY);
        } else if has(1) && message.fields.name.is_some() {
            members.insert("name".to_owned(), serde_json::from_str(NEW_NAME).expect("JSON"));
        }
        if adds {
            members.insert(ADDED_KEY.to_owned(), json!({}));
        }
    }
    if (has(2) || has(3)) && message.kind != Kind::Error {
        let keys = META_KEYS
            .iter()
            .enumerate()
            .filter(|(bit, _)| has(2) && *bit < 2 || has(3) && *bit == 2);
        set_meta(root, body_span.map_or("params", |_| body), keys.map(|(_, key)| *key));
    }
    Edited {
        text: splice().finish(),
        vectored: splice().finish_vectored(),
        derived: splice().finish_message(message.clone()),
    }
}

fn set_meta<'k>(root: &mut Map<String, Value>, body: &str, keys: impl Iterator<Item = &'k str>) {
    let body = root.entry(body).or_insert_with(|| json!({}));
    let Value::Object(body) = body else { return };
    let meta = body.entry("_meta").or_insert_with(|| json!({}));
    if !meta.is_object() {
        *meta = json!({});
    }
    for key in keys {
        meta[key] = json!([1]);
    }
}
