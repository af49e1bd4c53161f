//! Members of `_meta` between a client and the broker are not passed on, in any message (LOG-03).

use serde_json::{Value, json};
use testkit::{DuplexClient, duplex::Wire, eventually};

use super::{answering, everything, listening};
use crate::{stdio, text_of};

const TOKEN: &str = "mcpb_canary-7f3a-0123456789";

/// Returns a member of ours, and one that is the backend's.
fn meta() -> Value {
    json!({"dev.mcp-broker/token": TOKEN, "other": "mine", "dev.mcp-broker/\u{fc}": TOKEN})
}

async fn all_messages(client: &DuplexClient) {
    let call = |name: &str, arguments: Value| json!({"name": name, "arguments": arguments, "_meta": meta()});
    assert_eq!(
        text_of(&client.result("tools/call", call("b__echo", json!({"_meta": 1}))).await),
        "{\"_meta\":1}"
    );
    client.result("resources/read", json!({"uri": "b+test://one", "_meta": meta()})).await;
    client.notify("notifications/roots/list_changed", json!({"_meta": meta()})).await;
    let mut task = call("b__echo", json!({}));
    task["task"] = json!({"ttl": 60_000});
    task["_meta"]["dev.mcp-broker/idempotency-key"] = json!(format!("{TOKEN}-once"));
    let created = client.result("tools/call", task.clone()).await;
    assert_eq!(
        client.result("tools/call", task).await["task"]["taskId"],
        created["task"]["taskId"],
        "the same task"
    );
    client.result("tasks/result", json!({"taskId": created["task"]["taskId"]})).await;
    // A call that sends a request to the client, whose answer has the members too.
    client.call("b__elicit", json!({"message": "m"})).await;
}

#[tokio::test]
async fn metadata_for_the_broker_reaches_no_backend_no_store_and_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let broker = listening().backend("default", "b", stdio().record(&record).spec()).start().await;
    let recorded = || std::fs::read_to_string(&record).unwrap_or_default();
    let builder = || {
        answering(broker.duplex()).answers(|method, _| match method {
            "elicitation/create" => {
                Ok(json!({"action": "accept", "content": {"name": "n"}, "_meta": meta()}))
            }
            "roots/list" => Ok(json!({"roots": [], "_meta": meta()})),
            _ => Ok(json!({})),
        })
    };
    for front in ["tcp", "websocket", "sse", "http"] {
        let before = recorded().matches("\"mine\"").count();
        let client = match front {
            "tcp" => builder().tcp(broker.tcp_address()).await,
            "websocket" => builder().websocket(broker.http_address(), "/ws", &[]).await.unwrap().0,
            "sse" => {
                builder().over(Wire::http_sse(broker.http_address(), "/sse", &[]).await.unwrap())
            }
            _ => builder().over(Wire::streamable_http(broker.http_address(), "/mcp")),
        };
        let client = client.connected(everything()).await;
        all_messages(&client).await;
        eventually("what is the backend's", || async {
            let count = recorded().matches("\"mine\"").count() - before;
            if count >= 4 { Ok(()) } else { Err((front, count)) }
        })
        .await;
        assert!(!recorded().contains(TOKEN), "{front}: {}", recorded());
    }
    assert!(!broker.log().contains(TOKEN));
    let mut folders = vec![broker.folder().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                assert!(
                    !bytes.windows(TOKEN.len()).any(|text| text == TOKEN.as_bytes()),
                    "{}",
                    path.display()
                );
            }
        }
    }
}
