//! `compat.strict`: clients that refuse unknown members get none that their revision does not know.

use serde_json::{Value, json};
use testkit::{FakeBackend, Reply, TestBroker, TestClient};

use super::{REVISIONS, features};
use crate::{builder, configured};

const LATEST: usize = 3;

/// Returns a backend of 2025-11-25 that uses every member of its revision.
async fn talkative() -> FakeBackend {
    let backend = FakeBackend::start().await;
    backend.server_info(features::server_info(LATEST), None);
    for member in ["resources", "resourceTemplates", "prompts"] {
        backend.list(member, features::entries(member, LATEST));
    }
    backend.tool("t", |call| async move {
        let step = json!({"progressToken": call.progress_token(), "progress": 1, "message": "m"});
        call.notify("notifications/progress", step).await;
        let block = json!({"type": "text", "text": "x", "_meta": {"own": 1}, "annotations": {"lastModified": "2026-01-01T00:00:00Z"}});
        Reply::Result(json!({"content": [block], "structuredContent": {"n": 1}}))
    });
    backend.list("tools", features::entries("tools", LATEST));
    backend
}

/// Returns the messages to a client of each revision, with their methods.
async fn messages_of(broker: &TestBroker, revision: &str) -> Vec<(&'static str, Value)> {
    let client: TestClient = broker.client("/mcp/b");
    let mut received = vec![("initialize", client.initialize(revision, json!({})).await)];
    for method in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
        let mut page = client.result(method, json!({})).await;
        for entries in page.as_object_mut().unwrap().values_mut().filter_map(Value::as_array_mut) {
            entries.truncate(1);
        }
        received.push((method, page));
    }
    let mut call =
        client.start_request("tools/call", json!({"name": "t", "_meta": {"progressToken": "p"}}));
    let result = call.finish().await.value["result"].clone();
    received.push(("notifications/progress", call.before[0].value["params"].clone()));
    received.push(("tools/call", result));
    received
}

/// Collects every key at any depth.
fn keys(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            members.iter().filter(|(key, _)| *key != "inputSchema").for_each(|(key, value)| {
                found.push(key.clone());
                keys(value, found);
            })
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
        _ => {}
    }
}

/// Members with the first revision that knows them. None of them has another meaning in the
/// messages here.
const SINCE: [(&str, &str); 8] = [
    ("message", "2025-03-26"),
    ("readOnlyHint", "2025-03-26"),
    ("outputSchema", "2025-06-18"),
    ("structuredContent", "2025-06-18"),
    ("lastModified", "2025-06-18"),
    ("_meta", "2025-06-18"),
    ("icons", "2025-11-25"),
    ("websiteUrl", "2025-11-25"),
];

#[tokio::test]
async fn v_04_a_strict_client_gets_only_members_of_its_revision() {
    let backend = talkative().await;
    let strict = configured(json!({"compat": {"strict": true}}), backend.spec()).await;
    let lenient = builder().backend("default", "b", backend.spec()).start().await;
    for revision in &REVISIONS[..=LATEST] {
        let all_of = |received: &[(&str, Value)]| {
            let mut found = Vec::new();
            received.iter().for_each(|(_, value)| keys(value, &mut found));
            found
        };
        let received_all = messages_of(&lenient, revision).await;
        let everything = all_of(&received_all);
        assert!(
            SINCE.iter().all(|(key, _)| everything.iter().any(|found| found == key)),
            "{revision}: unknown members pass"
        );
        let received = messages_of(&strict, revision).await;
        let found = all_of(&received);
        for (key, since) in SINCE {
            assert_eq!(
                found.iter().any(|found| found == key),
                *revision >= since,
                "{revision} {key}: {received:?}"
            );
        }
        let result = &received.last().unwrap().1;
        let texts: Vec<&Value> =
            result["content"].as_array().unwrap().iter().map(|block| &block["text"]).collect();
        assert_eq!(
            texts.contains(&&json!("{\"n\":1}")),
            *revision < "2025-06-18",
            "what is left out is told before"
        );
        let info = &received[0].1["serverInfo"];
        assert_eq!(info.get("title").is_some(), *revision >= "2025-06-18", "{info}");
        assert_eq!(info["name"], "modern");
    }
}
