//! The messages that capabilities permit in each direction.

use bytes::Bytes;
use protocol::{
    ClientCapabilities, ErrorKind, Limits, Message, Method, ServerCapabilities, Version,
};

fn client(text: &str) -> ClientCapabilities {
    ClientCapabilities::parse(text.as_bytes()).expect("capabilities")
}

fn server(text: &str) -> ServerCapabilities {
    ServerCapabilities::parse(text.as_bytes()).expect("capabilities")
}

/// Returns the kind of refusal for a request to a client with these capabilities and this version.
fn refusal(capabilities: &str, version: Version, method: &str, params: &str) -> Option<ErrorKind> {
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    let message = Message::decode(Bytes::from(text), &Limits::default()).expect("a message");
    client(capabilities).permits(&message, version).err().map(|refusal| refusal.kind)
}

#[test]
fn server_requests_need_the_clients_capability() {
    let check = |capabilities, method, expected| {
        assert_eq!(refusal(capabilities, Version::V2025_11_25, method, "{}"), expected, "{method}")
    };
    check("{}", "ping", None);
    check("{}", "roots/list", Some(ErrorKind::CapabilityMissing));
    check(r#"{"roots":{}}"#, "roots/list", None);
    check(r#"{"roots":null}"#, "roots/list", Some(ErrorKind::CapabilityMissing));
    check("{}", "sampling/createMessage", Some(ErrorKind::CapabilityMissing));
    check(r#"{"sampling":{}}"#, "sampling/createMessage", None);
    check("{}", "elicitation/create", Some(ErrorKind::CapabilityMissing));
    check("{}", "tasks/get", Some(ErrorKind::CapabilityMissing));
    check(r#"{"tasks":{}}"#, "tasks/get", None);
    check(r#"{"tasks":{}}"#, "tasks/list", Some(ErrorKind::CapabilityMissing));
    check("{}", "notifications/tasks/status", None);
    check("{}", "tools/list", Some(ErrorKind::MethodNotFound));
    check("{}", "no/such", Some(ErrorKind::MethodNotFound));
}

#[test]
fn elicitation_modes_are_checked_separately() {
    let check = |capabilities, version, params, expected| {
        assert_eq!(
            refusal(capabilities, version, "elicitation/create", params),
            expected,
            "{capabilities} {params}"
        );
    };
    let (form_only, url_only, both) = (
        r#"{"elicitation":{}}"#,
        r#"{"elicitation":{"url":{}}}"#,
        r#"{"elicitation":{"form":{},"url":{}}}"#,
    );
    let latest = Version::V2025_11_25;
    check(form_only, latest, "{}", None);
    check(form_only, latest, r#"{"mode":"form"}"#, None);
    check(form_only, latest, r#"{"mode":"url"}"#, Some(ErrorKind::InvalidParams));
    check(url_only, latest, r#"{"mode":"url"}"#, None);
    check(url_only, latest, "{}", Some(ErrorKind::InvalidParams));
    check(both, latest, r#"{"mode":"url"}"#, None);
    check(both, latest, r#"{"mode":"smoke"}"#, Some(ErrorKind::InvalidParams));
    check(both, latest, r#"{"mode":1}"#, Some(ErrorKind::InvalidParams));
    check(both, Version::V2025_06_18, r#"{"mode":"url"}"#, Some(ErrorKind::InvalidParams));
    check(both, Version::V2025_06_18, "{}", None);
    // LIFE-05
    check(both, Version::V2024_11_05, "{}", Some(ErrorKind::CapabilityMissing));
    check(both, Version::V2025_03_26, "{}", Some(ErrorKind::CapabilityMissing));
}

#[test]
fn sampling_with_tools_needs_its_own_capability() {
    let check = |capabilities, version, params, expected| {
        assert_eq!(
            refusal(capabilities, version, "sampling/createMessage", params),
            expected,
            "{capabilities} {params}"
        );
    };
    let (plain, tools) = (r#"{"sampling":{}}"#, r#"{"sampling":{"tools":{}}}"#);
    let blocks = r#"{"messages":[{"role":"user","content":{"type":"text"}},{"role":"user","content":[{"type":"text"}]}]}"#;
    check(plain, Version::V2025_11_25, r#"{"tools":[]}"#, Some(ErrorKind::InvalidParams));
    check(plain, Version::V2025_11_25, r#"{"toolChoice":{}}"#, Some(ErrorKind::InvalidParams));
    check(tools, Version::V2025_11_25, r#"{"tools":[]}"#, None);
    check(tools, Version::V2025_06_18, r#"{"tools":[]}"#, Some(ErrorKind::InvalidParams));
    check(plain, Version::V2025_11_25, blocks, None);
    check(plain, Version::V2025_06_18, blocks, None); // reported as the block it holds
    let several = r#"{"messages":[{"role":"user","content":[{"type":"text"},{"type":"text"}]}]}"#;
    check(plain, Version::V2025_11_25, several, None);
    check(plain, Version::V2025_06_18, several, Some(ErrorKind::InvalidParams));
    for audio in [
        r#"{"messages":[{"content":{"type":"audio"}}]}"#,
        r#"{"messages":[{"content":[{"type":"audio"}]}]}"#,
    ] {
        check(plain, Version::V2024_11_05, audio, Some(ErrorKind::InvalidParams));
        check(plain, Version::V2025_03_26, audio, None);
    }
}

#[test]
fn forms_with_multiple_choice_need_a_revision_that_supports_them() {
    let form = r#"{"message":"m","requestedSchema":{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array"}}}}"#;
    let kind = |version| refusal(r#"{"elicitation":{}}"#, version, "elicitation/create", form);
    assert_eq!(kind(Version::V2025_06_18), Some(ErrorKind::InvalidParams));
    assert_eq!(kind(Version::V2025_11_25), None);
}

// LIFE-08, B-LIFE-03
#[test]
fn client_requests_need_the_servers_capability() {
    let latest = Version::V2025_11_25;
    let kind = |server: &ServerCapabilities, method, version| {
        server.permits(method, version).err().map(|refusal| refusal.kind)
    };
    let none = ServerCapabilities::none();
    let missing = Some(ErrorKind::CapabilityMissing);
    for method in [
        Method::ToolsList,
        Method::ToolsCall,
        Method::PromptsGet,
        Method::ResourcesRead,
        Method::LoggingSetLevel,
        Method::TasksGet,
    ] {
        assert_eq!(kind(&none, method, latest), missing, "{method}");
    }
    assert_eq!(kind(&none, Method::Ping, latest), None);
    assert_eq!(kind(&none, Method::Cancelled, latest), None);
    assert_eq!(kind(&none, Method::TasksStatus, latest), None);
    assert_eq!(kind(&none, Method::SamplingCreateMessage, latest), Some(ErrorKind::MethodNotFound));
    assert_eq!(kind(&none, Method::Unknown, latest), Some(ErrorKind::MethodNotFound));
    let resources = server(r#"{"resources":{"subscribe":false}}"#);
    assert_eq!(kind(&resources, Method::ResourcesTemplatesList, latest), None);
    assert_eq!(kind(&resources, Method::ResourcesSubscribe, latest), missing);
    // The method existed before its capability.
    assert_eq!(kind(&none, Method::CompletionComplete, Version::V2024_11_05), None);
    assert_eq!(kind(&none, Method::CompletionComplete, Version::V2025_03_26), missing);
    let tasks = server(r#"{"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}}"#);
    assert!(tasks.tasks_tools_call);
    assert_eq!(kind(&tasks, Method::TasksCancel, latest), None);
    assert_eq!(kind(&tasks, Method::TasksList, latest), missing);
    assert_eq!(kind(&tasks, Method::TasksGet, Version::V2025_06_18), missing);
}

#[test]
fn client_capabilities_determine_answerable_questions() {
    assert!(!ClientCapabilities::none().can_answer());
    assert!(!client(r#"{"experimental":{"x":{}},"tasks":{}}"#).can_answer());
    for one in [
        r#"{"roots":{}}"#,
        r#"{"sampling":{}}"#,
        r#"{"elicitation":{}}"#,
        r#"{"elicitation":{"url":{}}}"#,
    ] {
        assert!(client(one).can_answer(), "{one}");
    }
    let odd = client(r#"{ "roots": {"listChanged":true}, "x": 1e2 }"#);
    assert!(odd.roots_list_changed);
    assert_eq!(odd.raw(), br#"{ "roots": {"listChanged":true}, "x": 1e2 }"#);
    assert_eq!(
        odd.fingerprint(),
        client(r#"{ "roots": {"listChanged":true}, "x": 1e2 }"#).fingerprint()
    );
    assert_ne!(odd.fingerprint(), ClientCapabilities::none().fingerprint());
    assert_eq!(client("{}"), ClientCapabilities::none());
    assert!(ClientCapabilities::parse(b"[]").is_err());
}

#[test]
fn capabilities_without_modes_have_the_form_of_2025_06_18() {
    let plain = |text: &str| client(text).without_modes();
    let all = r#"{"extensions":{"a/b":{}},"roots":{"listChanged":true},"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}},"tasks":{"list":{}}}"#;
    let expected = r#"{"roots":{"listChanged":true},"sampling":{},"elicitation":{}}"#;
    assert_eq!(plain(all).unwrap(), expected);
    assert_eq!(
        plain(r#"{"roots":{},"elicitation":{"form":{}}}"#).unwrap(),
        r#"{"roots":{},"elicitation":{}}"#
    );
    // An empty object would promise forms.
    assert_eq!(plain(r#"{"elicitation":{"url":{}}}"#).unwrap(), "{}");
    for same in ["{}", expected, r#"{"extensions":{"a/b":{}},"tasks":{"list":{}}}"#] {
        assert_eq!(plain(same), None, "{same}");
    }
}

// LIFE-07
#[test]
fn merged_capabilities_are_the_union() {
    let backends = [
        server(r#"{"tools":{},"experimental":{"a":{"v":1}},"x":{}}"#),
        server(
            r#"{"tools":{"listChanged":true},"resources":{"subscribe":true},"logging":{},"experimental":{"a":{"v":2},"b":{}}}"#,
        ),
        server(r#"{"tasks":{"list":{},"requests":{"tools":{"call":{}}}},"completions":{}}"#),
    ];
    let merged = ServerCapabilities::merge(backends.iter());
    let expected = r#"{"experimental":{"a":{"v":1},"b":{}},"logging":{},"completions":{},"resources":{"subscribe":true},"tools":{"listChanged":true},"tasks":{"list":{},"requests":{"tools":{"call":{}}}}}"#;
    assert_eq!(merged.to_json(), expected);
    assert_eq!(server(expected), merged, "what is written reads back the same");
    assert_eq!(ServerCapabilities::merge(std::iter::empty()), ServerCapabilities::none());
}

// LIFE-07
#[test]
fn a_feature_that_is_null_at_one_backend_does_not_hide_that_of_another() {
    let backends = [
        server(r#"{"experimental":{"x":null,"y":null},"extensions":{"a/b":null}}"#),
        server(r#"{"experimental":{"x":{}},"extensions":{"a/b":{"v":1}}}"#),
        server(r#"{"experimental":{"x":null,"y":null},"extensions":{"a/b":{"v":2}}}"#),
    ];
    let merged = ServerCapabilities::merge(backends.iter());
    let expected = r#"{"experimental":{"x":{},"y":null},"extensions":{"a/b":{"v":1}}}"#;
    assert_eq!(merged.to_json(), expected);
}
