//! Tables agree with themselves and with the specification. Names and phases keep their grammar.

use std::collections::HashSet;

use bytes::Bytes;
use protocol::error::{REFUSAL_NUMBERS, kinds_markdown, refusal_numbers_markdown};
use protocol::method::methods_markdown;
use protocol::{
    BackendId, Batches, Direction, ErrorKind, LinkPhase, MessageKind, Method, PrincipalId, Refusal,
    RequestId, SessionPhase, TenantId, Version, WireId,
};
use std::time::Duration;

#[test]
fn each_method_is_found_by_its_name() {
    let mut names = HashSet::new();
    for method in Method::ALL {
        let info = method.info();
        assert_eq!(Method::parse(info.name), *method);
        assert!(names.insert(info.name), "{} is there twice", info.name);
        assert_eq!(
            info.name.starts_with("notifications/"),
            info.kind == MessageKind::Notification,
            "{}",
            info.name
        );
        assert!(info.until.is_none_or(|last| info.since <= last), "{}", info.name);
        assert!(
            info.server_capability.is_none()
                || info.direction != Direction::ServerToClient
                || info.kind == MessageKind::Notification
        );
        assert!(methods_markdown().contains(&format!("| `{}` |", info.name)));
    }
    assert_eq!(names.len(), 36);
    for unknown in ["", "unknown", "tools/List", "notifications/", "tools/list "] {
        assert_eq!(Method::parse(unknown), Method::Unknown);
    }
    assert!(!Method::Unknown.exists_in(Version::V2025_11_25));
}

#[test]
fn revisions_have_the_methods_of_their_schema() {
    let count = |version| Method::ALL.iter().filter(|method| method.exists_in(version)).count();
    assert_eq!(Version::ALL.map(count), [24, 24, 25, 31, 22]);
    assert!(
        Method::ElicitationCreate.exists_in(Version::V2025_06_18)
            && !Method::ElicitationCreate.exists_in(Version::V2025_03_26)
    );
    assert!(
        !Method::Ping.exists_in(Version::V2026_07_28)
            && Method::ServerDiscover.exists_in(Version::V2026_07_28)
    );
}

#[test]
fn versions_keep_their_order_and_features() {
    assert!(Version::ALL.is_sorted());
    for version in Version::ALL {
        assert_eq!(Version::parse(version.as_str()), Some(version));
        assert_eq!(version.batches() == Batches::Permitted, version == Version::V2025_03_26);
        assert_eq!(version.tasks(), version == Version::V2025_11_25);
        assert_eq!(version.has_sessions(), version < Version::V2026_07_28);
    }
    assert_eq!(Version::parse("2025-11-25 "), None);
}

#[test]
fn error_kinds_have_permitted_codes() {
    let mut names = HashSet::new();
    let prescribed =
        [-32700, -32600, -32601, -32602, -32603, -32002, -32020, -32021, -32022, -32042];
    for kind in ErrorKind::ALL {
        assert!(names.insert(kind.name()), "{} is there twice", kind.name());
        let own = kind.refusal_code().is_some_and(|number| i64::from(number) == kind.code());
        assert!(prescribed.contains(&kind.code()) || own, "{}", kind.name());
        if let Some(number) = kind.refusal_code() {
            let entry =
                REFUSAL_NUMBERS.iter().find(|entry| entry.number == number).expect("registered");
            assert!(!entry.used.is_empty(), "{number} is used by {}", kind.name());
        }
        assert!(matches!(kind.http_status(), 200 | 400..=499 | 503), "{}", kind.name());
        assert!(kinds_markdown().contains(&format!("| `{}` | {} |", kind.name(), kind.code())));
    }
    assert!(REFUSAL_NUMBERS.is_sorted_by_key(|entry| entry.number));
    assert!(REFUSAL_NUMBERS.iter().all(|entry| (1001..=1089).contains(&entry.number)));
    assert!(refusal_numbers_markdown().contains("| 1069 | timeout |"));
    assert!(!ErrorKind::OutcomeUnknown.retryable() && ErrorKind::BackendUnavailable.retryable());
}

#[test]
fn a_refusal_contains_kind_retryable_and_request_id() {
    let refusal = Refusal::new(ErrorKind::RateLimited, "too \"many\"")
        .retry_after(Duration::from_millis(1500))
        .with("scope", "tenant");
    let expected = r#"{"code":1003,"message":"too \"many\"","data":{"kind":"rate_limited","retryable":true,"requestId":"q1","retryAfterMs":1500,"refusalCode":1003,"scope":"tenant"}}"#;
    assert_eq!(refusal.to_error_json("q1"), expected);
    let id = RequestId::from_raw(Bytes::from_static(b"\"x\""));
    assert_eq!(
        refusal.to_response(Some(&id), "q1"),
        format!(r#"{{"jsonrpc":"2.0","id":"x","error":{expected}}}"#)
    );
    assert_eq!(
        refusal.to_response(None, "q1"),
        format!(r#"{{"jsonrpc":"2.0","error":{expected}}}"#)
    );
    assert_eq!(refusal.to_string(), "rate_limited: too \"many\"");
}

#[test]
fn names_are_checked_by_their_grammar() {
    for good in ["a", "0", "a-b", "a--b", "x2", "abcdefghijabcdefghijabcdefghijab"] {
        assert_eq!(TenantId::parse(good).expect(good).as_str(), good);
    }
    for bad in
        ["", "-", "-a", "a-", "A", "a_b", "a.b", "ä", "a b", "abcdefghijabcdefghijabcdefghijabc"]
    {
        let error = BackendId::parse(bad).expect_err(bad);
        assert!(error.to_string().contains("not allowed"));
        assert!(serde_json::from_value::<BackendId>(bad.into()).is_err());
    }
    let id: BackendId = serde_json::from_str("\"weather\"").expect("a name");
    assert_eq!(serde_json::to_string(&id).expect("a string"), "\"weather\"");
    assert_eq!(PrincipalId::new("any / thing").to_string(), "any / thing");
}

#[test]
fn request_ids_keep_their_text() {
    let raw = |text: &'static str| RequestId::from_raw(Bytes::from_static(text.as_bytes()));
    assert_eq!(raw("7"), RequestId::from_u64(7));
    assert_eq!(RequestId::from(WireId(7)), RequestId::from_u64(7));
    assert_ne!(raw("7"), raw("\"7\""));
    assert_eq!(raw("18446744073709551615").as_u64(), Some(u64::MAX));
    for other in ["-1", "\"1\"", "18446744073709551616"] {
        assert_eq!(raw(other).as_u64(), None);
        assert_eq!(raw(other).to_string(), other);
    }
    for (text, wire_id) in [
        ("7", Some(7)),
        ("\"7\"", Some(7)),
        ("\"0\"", Some(0)),
        ("\"07\"", None),
        ("\"\"", None),
        ("\"+7\"", None),
        ("\"7 \"", None),
        ("-7", None),
        ("\"18446744073709551616\"", None),
    ] {
        assert_eq!(raw(text).as_wire_id(), wire_id, "{text}");
    }
}

#[test]
fn request_ids_are_equal_in_every_spelling() {
    let raw = |text: &str| RequestId::from_raw(Bytes::copy_from_slice(text.as_bytes()));
    for (text, other) in [
        (r#""\u0061""#, r#""a""#),
        (r#""\/\u002f""#, r#""//""#),
        (r#""\u0022\\\u000A""#, r#""\"\\\n""#),
        (r#""\ud83d\uDE00\u00e9""#, "\"😀é\""),
        ("-0", "0"),
    ] {
        let mut ids = HashSet::from([raw(text)]);
        assert!(!ids.insert(raw(other)), "{text}");
        assert_eq!(raw(text), raw(other));
        assert_eq!(raw(text).to_string(), text);
    }
    for (text, other) in [(r#""\u0030""#, "0"), (r#""-0""#, "0"), (r#""\u0061""#, r#""A""#)] {
        assert_ne!(raw(text), raw(other), "{text}");
    }
    // `requestId` of a cancellation can be any value.
    assert_ne!(raw(r#"{"\u0061":0}"#), raw(r#"{"a":0}"#));
}

#[test]
fn session_phases_permit_only_defined_transitions() {
    use SessionPhase::{AwaitingInitialized, Closed, Closing, Opening, Ready};
    let steps = |from: SessionPhase| {
        SessionPhase::ALL.into_iter().filter(|to| from.advance(*to).is_ok()).collect::<Vec<_>>()
    };
    assert_eq!(
        SessionPhase::ALL.map(steps),
        [
            vec![AwaitingInitialized, Closing, Closed],
            vec![Ready, Closing, Closed],
            vec![Closing, Closed],
            vec![Closed],
            vec![]
        ]
    );
    assert_eq!(
        Closed.advance(Opening).expect_err("over").to_string(),
        "phase closed cannot change to opening"
    );
    for phase in LinkPhase::ALL {
        assert!(
            phase == LinkPhase::Closed || phase.advance(LinkPhase::Closed) == Ok(LinkPhase::Closed),
            "{}",
            phase.name()
        );
        assert!(phase.advance(phase).is_err());
    }
    assert_eq!(Closing.admits(Method::ToolsCall).expect_err("closing").kind, ErrorKind::Draining);
    assert_eq!(Closed.admits(Method::Ping).expect_err("closed").kind, ErrorKind::SessionNotFound);
}
