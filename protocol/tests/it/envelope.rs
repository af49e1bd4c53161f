//! The parts of a decoded message.

use bytes::Bytes;
use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
use protocol::{Kind, Limits, Message, Method, RequestId};

use crate::text;

fn decode(text: &'static str) -> Message {
    Message::decode(Bytes::from_static(text.as_bytes()), &Limits::default())
        .unwrap_or_else(|error| panic!("{error:?}: {text}"))
}

#[test]
fn every_field_of_a_message_is_found() {
    let message = decode(
        r#"{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"n","uri":"u","cursor":"c","level":"l","requestId":1,
        "progressToken":2,"progress":0.5,"taskId":"t","task":{"ttl":1,"taskId":"tt"},"arguments":{"name":"inner"},"status":"s","mode":"form",
        "elicitationId":"e","ref":{"type":"ref/prompt","name":"rn","uri":"ru"},"_meta":{"progressToken":"p","x":{"progressToken":0},
        "io.modelcontextprotocol/related-task":{"taskId":"rt"},"dev.mcp-broker/token":"k","io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
    );
    let fields = &message.fields;
    let text =
        |span| String::from_utf8(message.bytes(span).expect("found").to_vec()).expect("UTF-8");
    let found = [
        fields.name,
        fields.uri,
        fields.cursor,
        fields.level,
        fields.request_id,
        fields.progress_token,
        fields.progress,
        fields.task_id,
        fields.task_task_id,
        fields.status,
        fields.mode,
        fields.elicitation_id,
        fields.reference_type,
        fields.reference_name,
        fields.reference_uri,
        fields.meta_progress_token,
        fields.meta_related_task_id,
        fields.meta_token,
        fields.meta_protocol_version,
    ];
    let expected = [
        r#""n""#,
        r#""u""#,
        r#""c""#,
        r#""l""#,
        "1",
        "2",
        "0.5",
        r#""t""#,
        r#""tt""#,
        r#""s""#,
        r#""form""#,
        r#""e""#,
        r#""ref/prompt""#,
        r#""rn""#,
        r#""ru""#,
        r#""p""#,
        r#""rt""#,
        r#""k""#,
        r#""2026-07-28""#,
    ];
    assert_eq!(found.map(text), expected);
    assert_eq!(text(fields.arguments), r#"{"name":"inner"}"#);
    assert_eq!(text(fields.task), r#"{"ttl":1,"taskId":"tt"}"#);
    assert!(text(fields.reference).ends_with(r#""uri":"ru"}"#));
    assert!(text(fields.meta).starts_with(r#"{"progressToken":"p","x""#));
    assert_eq!((message.kind, message.method), (Kind::Request, Method::ToolsCall));
    assert_eq!(message.id, Some(RequestId::from_raw(Bytes::from_static(b"\"1\""))));
    assert_ne!(message.id, Some(RequestId::from_u64(1)), "a string is not a number");
    assert!(message.is_stateless());
}

#[test]
fn fields_of_results_and_errors_are_found() {
    let result = decode(
        r#"{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"t","status":"working"},"_meta":{}}}"#,
    );
    assert_eq!(result.text(result.fields.task_task_id).as_deref(), Some("t"));
    assert_eq!(
        (result.kind, result.method, result.method_text().as_ref()),
        (Kind::Result, Method::Unknown, "")
    );
    let failed = decode(
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"isError":false}],"isError":true}}"#,
    );
    assert_eq!(failed.bytes(failed.fields.is_error), Some(&b"true"[..]));
    let nested = decode(
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"isError":true}}}"#,
    );
    assert_eq!(nested.fields.is_error, None);
    let error =
        decode(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"m","data":{"x":1}}}"#);
    assert_eq!(error.bytes(error.fields.error_code), Some(&b"-32042"[..]));
    assert_eq!(error.text(error.fields.error_message).as_deref(), Some("m"));
    assert_eq!(error.bytes(error.fields.error_data), Some(&br#"{"x":1}"#[..]));
}

#[test]
fn a_null_beside_a_result_or_an_error_is_not_forwarded() {
    let result = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}"#;
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true},"error":null}"#,
        r#"{"error":null,"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":true}}"#,
        r#"{"jsonrpc":"2.0", "err\u006fr" : null ,"id":1,"result":{"content":[],"isError":true}}"#,
    ] {
        let message = decode(text);
        assert_eq!((message.kind, message.error), (Kind::Result, None));
        let frame = String::from_utf8(message.frame.to_vec()).expect("UTF-8");
        assert_eq!(frame.replace(' ', ""), result);
        assert_eq!(message.bytes(message.fields.is_error), Some(&b"true"[..]));
    }
    let error = decode(
        r#"{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":-1,"message":"m","data":null}}"#,
    );
    assert_eq!(
        &error.frame[..],
        br#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"m","data":null}}"#
    );
    assert_eq!((error.kind, error.result), (Kind::Error, None));
}

#[test]
fn escaped_keys_and_names_are_decoded() {
    let message = decode(
        r#"{"jsonrpc":"2.0","id":1,"m\u0065thod":"tools\/call","params":{"n\u0061me":"caf\u00e9"}}"#,
    );
    assert_eq!(message.method, Method::ToolsCall);
    assert_eq!(message.method_text(), "tools/call");
    assert_eq!(message.text(message.fields.name).as_deref(), Some("café"));
}

#[test]
fn values_of_the_wrong_type_are_not_read_as_text() {
    let message = decode(
        r#"{"jsonrpc":"2.0","method":"m","params":{"name":1,"_meta":3,"task":null,"ref":[]}}"#,
    );
    assert_eq!(message.text(message.fields.name), None);
    assert_eq!(message.bytes(message.fields.name), Some(&b"1"[..]));
    assert_eq!(message.fields.meta_progress_token, None);
    assert_eq!(message.kind, Kind::Notification);
    assert!(!message.is_stateless());
    assert!(decode(r#"{"jsonrpc":"2.0","id":1,"method":"server/discover"}"#).is_stateless());
}

#[test]
fn a_progress_token_is_as_long_as_an_id_at_most() {
    let is_accepted = |letters: usize| {
        let token = "t".repeat(letters);
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"_meta":{{"progressToken":"{token}"}}}}}}"#
        );
        let message = Message::decode(Bytes::from(text), &Limits::default()).expect("a message");
        message.check_progress_token().is_ok()
    };
    assert!(is_accepted(1_022) && !is_accepted(1_023));
}

#[test]
fn parts_of_a_message_share_its_frame() {
    let message = decode(r#"{"jsonrpc":"2.0","id":123,"method":"ping","params":{"a":[1, 2]}}"#);
    let params = message.params.expect("params").slice(&message.frame);
    assert_eq!(params, r#"{"a":[1, 2]}"#);
    assert!(message.frame.as_ptr_range().contains(&params.as_ptr()));
    assert!(
        message.frame.as_ptr_range().contains(&message.id.as_ref().expect("an id").raw().as_ptr())
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_message_is_refused_or_equal_for_a_plain_reader(
        params in text::object(),
        at in any::<proptest::sample::Index>(),
        byte in proptest::sample::select(b"\"{}[]:,\\ \x00019tne\xff".to_vec()),
    ) {
        let mut text = format!(r#"{{"jsonrpc":"2.0","id":12,"method":"tools/call","params":{{"name":"n","arguments":{params}}}}}"#).into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        let Ok(message) = Message::decode(Bytes::from(text.clone()), &Limits::default()) else {
            return Ok(());
        };
        let plain: serde_json::Value = serde_json::from_slice(&text).expect("what we accept is JSON");
        prop_assert_eq!(plain["method"].as_str().unwrap_or_default(), message.method_text());
        let id = message.id.as_ref().map(|id| serde_json::from_slice(id.raw()).expect("an id is JSON"));
        prop_assert_eq!(plain.get("id").cloned(), id);
        let name = message.text(message.fields.name);
        prop_assert_eq!(plain["params"]["name"].as_str(), name.as_deref());
    }
}
