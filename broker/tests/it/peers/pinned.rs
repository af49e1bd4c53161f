//! Pins of the definitions of `server-everything`: the same on every replica and in every process,
//! and held until an operator approves them.

use serde_json::{Value, json};
use testkit::{AdminClient, Topology, eventually};

use super::install::Peers;
use crate::{builder, kind, text_of};

const PINS: &str = "/admin/v1/tenants/default/backends/everything/pins";

async fn pins(admin: &AdminClient) -> Vec<Value> {
    let (status, answer) = admin.get(PINS).await;
    assert_eq!(status, 200, "{answer}");
    answer["pins"].as_array().unwrap().clone()
}

on_every_ground! {
    async fn server_everything_is_held_until_it_is_approved(topology: Topology) {
        let peers = Peers::installed();
        let spec = json!({"transport": peers.everything_over_stdio(), "pins": "hold_all"});
        let broker = builder().on(topology).backend("default", "everything", spec).start().await;
        let (admin, client) = (broker.admin(), broker.connected(json!({})).await);
        let echo = json!({"name": "everything__echo", "arguments": {"message": "hello"}});
        let held = client.error("tools/call", echo.clone()).await;
        assert_eq!(kind(&held), "tool_held");
        assert_eq!(client.tool_names().await, Vec::<String>::new());
        let found = pins(&admin).await;
        for wanted in ["tool", "prompt", "resource", "template", "instructions", "command"] {
            assert!(found.iter().any(|pin| pin["kind"] == wanted), "{wanted} in {found:?}");
        }
        let serious = |finding: &Value| finding["severity"] == "serious";
        for pin in &found {
            let findings = pin["findings"].as_array().unwrap();
            assert!(!findings.iter().any(serious), "an honest server: {pin}");
        }
        let (status, answer) = admin.post(&format!("{PINS}/approve"), &json!({"all": true})).await;
        assert_eq!(status, 200, "{answer}");
        eventually("the tools", || async {
            let names = client.tool_names().await;
            if names.contains(&"everything__echo".to_owned()) { Ok(()) } else { Err(names) }
        })
        .await;
        let answer = client.result("tools/call", echo).await;
        assert!(text_of(&answer).contains("hello"), "{answer}");
        // Another process of the server shows the same definitions.
        admin.post("/admin/v1/tenants/default/backends/everything/probe", &json!({})).await;
        let trusted = |pin: &Value| pin["state"] == "trusted";
        let found = pins(&admin).await;
        assert!(found.iter().all(trusted), "{found:?}");
    }
}
