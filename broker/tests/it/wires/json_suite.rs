//! Texts that are not JSON, over wires whose connection continues after them (J-01, W-06).

use serde_json::{Value, json};
use testkit::{Authority, FakeBackend};

use super::matrix::{Doors, FRONTS, client, listening_everywhere};
use crate::bad_input::suite;

/// Wires on which many messages follow one another on one connection.
const WIRES: [&str; 4] = ["websocket", "tcp", "tls", "quic"];

/// Returns a call that has this text among its arguments.
fn call_with(id: &str, text: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{{"name":"b__echo","arguments":{{"x":{text}}}}}}}"#,
        json!(id)
    )
}

fn is_error(message: &Value) -> bool {
    message["id"].is_null() && [json!(-32700), json!(-32600)].contains(&message["error"]["code"])
}

#[tokio::test]
async fn j_01_w_06_no_n_file_ends_a_connection_or_reaches_a_backend() {
    assert!(WIRES.iter().all(|wire| FRONTS.iter().any(|(front, _)| front == wire)));
    let (authority, backend) = (Authority::new(), FakeBackend::echo().await);
    let broker =
        listening_everywhere(&authority).backend("default", "b", backend.spec()).start().await;
    let mut executed = 0;
    for wire in WIRES {
        let client = client(wire, &broker, Doors::of(&broker), &authority).await.client;
        for (name, content) in suite("n_") {
            // The wire itself refuses bytes that are not UTF-8:
            // `w_04_text_that_is_not_utf_8_is_refused`, `j_03_invalid_utf8_is_a_parse_error`.
            let Ok(text) = String::from_utf8(content) else { continue };
            // A line feed is the end of a message, and blanks are not a message.
            if text.trim().is_empty() || text.contains('\n') {
                continue;
            }
            for message in [call_with(&name, &text), text] {
                client.send(message).await;
                client.wait_for_message(&format!("{wire}: an error for {name}"), is_error).await;
            }
        }
        for (name, content) in suite("i_") {
            let Ok(text) = String::from_utf8(content) else { continue };
            client.send(call_with(&name, &text)).await;
            let either = |message: &Value| message["id"] == name.as_str() || is_error(message);
            let message =
                client.wait_for_message(&format!("{wire}: what comes of {name}"), either).await;
            executed += usize::from(message["result"].is_object());
        }
        client.result("ping", json!({})).await;
    }
    let seen = backend.recorded_of("tools/call");
    assert_eq!(seen.len(), executed);
    for seen in seen {
        assert!(
            serde_json::from_slice::<Value>(&seen.body).is_ok(),
            "a backend got {:?}",
            seen.body
        );
    }
}
