//! The back side's handshake and the writers of messages.

use bytes::Bytes;
use protocol::handshake::{
    HandshakeError, InitializeParams, InitializeResult, initialize_request, initialize_result,
    notification, request,
};
use protocol::{Limits, Message, Method, RequestId, Version};

fn answer(result: &str) -> Result<InitializeResult, HandshakeError> {
    let text = format!(r#"{{"jsonrpc":"2.0","id":0,{result}}}"#);
    InitializeResult::parse(&Message::decode(text.into(), &Limits::default()).expect("a message"))
}

#[test]
fn the_initialize_request_is_valid_for_a_server() {
    let info = br#"{"name":"mcp-broker","version":"1","x":[1]}"#;
    let sent = initialize_request(
        &RequestId::from_u64(0),
        Version::LATEST_WITH_SESSIONS,
        br#"{"roots":{}}"#,
        info,
        br#"{"x":1}"#,
    );
    let message = Message::decode(sent, &Limits::default()).expect("a message");
    let params = InitializeParams::parse(&message).expect("good params");
    assert_eq!(params.requested_version, "2025-11-25");
    assert_eq!((params.client_name.as_str(), params.client_version.as_str()), ("mcp-broker", "1"));
    assert_eq!(params.client_info, &info[..]);
    assert!(params.capabilities.roots);
    assert_eq!(message.bytes(message.fields.meta), Some(&br#"{"x":1}"#[..]));
}

// B-LIFE-02
#[test]
fn any_supported_answer_is_accepted() {
    for version in Version::ALL.into_iter().filter(|version| version.has_sessions()) {
        let result = initialize_result(
            version,
            br#"{"tools":{}}"#,
            br#"{"name":"s","version":"2","icons":[]}"#,
            Some("be \"nice\""),
        );
        let answer = answer(&format!(r#""result":{}"#, String::from_utf8_lossy(&result)))
            .expect("a good answer");
        assert_eq!(
            (answer.version, answer.server_name.as_str(), answer.server_version.as_str()),
            (version, "s", "2")
        );
        assert_eq!(answer.instructions.as_deref(), Some("be \"nice\""));
        assert_eq!(answer.server_info, &br#"{"name":"s","version":"2","icons":[]}"#[..]);
        assert!(answer.capabilities.tools && !answer.capabilities.prompts);
    }
}

#[test]
fn a_bad_answer_is_refused_with_its_fault() {
    let check = |text: &str, expected: &str| {
        assert_eq!(answer(text).expect_err(text).to_string(), expected)
    };
    let rest = r#""capabilities":{},"serverInfo":{"name":"s","version":"1"}"#;
    check(
        &format!(r#""result":{{"protocolVersion":"1999-01-01",{rest}}}"#),
        r#"backend answered with protocol version "1999-01-01", which is not supported"#,
    );
    check(
        &format!(r#""result":{{"protocolVersion":"2026-07-28",{rest}}}"#),
        r#"backend answered with protocol version "2026-07-28", which is not supported"#,
    );
    check(
        &format!(r#""result":{{{rest}}}"#),
        "backend's answer to initialize needs `protocolVersion` to be a string",
    );
    check(
        r#""result":{"protocolVersion":"2025-11-25"}"#,
        "backend's answer to initialize needs `capabilities` to be an object",
    );
    check(
        r#""result":{"protocolVersion":"2025-11-25","capabilities":{}}"#,
        "backend's answer to initialize needs `serverInfo` to be an object",
    );
    check(
        r#""error":{"code":-32602,"message":"no"}"#,
        "backend refused initialize with error -32602",
    );
    check(r#""method":"ping""#, "backend sent a message that is not a response to initialize");
}

#[test]
fn calls_are_written_with_and_without_id_and_params() {
    let id = RequestId::from_u64(5);
    assert_eq!(request(&id, Method::Ping, None), r#"{"jsonrpc":"2.0","id":5,"method":"ping"}"#);
    assert_eq!(
        request(&id, Method::ToolsList, Some(b"{}")),
        r#"{"jsonrpc":"2.0","id":5,"method":"tools/list","params":{}}"#
    );
    assert_eq!(
        notification(Method::Initialized, None),
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#
    );
    let cancelled = notification(Method::Cancelled, Some(br#"{"requestId":5}"#));
    assert_eq!(
        cancelled,
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}"#
    );
    let message = Message::decode(Bytes::clone(&cancelled), &Limits::default()).expect("a message");
    assert_eq!(message.bytes(message.fields.request_id), Some(&b"5"[..]));
}
