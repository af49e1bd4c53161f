//! Decisions of operators: they name what was looked at, need a right, are recorded, and apply as a
//! whole or not at all.

use serde_json::{Value, json};
use testkit::{AdminClient, FakeBackend};

use super::{
    PINS, approve, approve_all, backend_of_each_kind, broker_with, described, item, pin, pinned,
    pins, refused_call, show_tools, wait_state,
};
use crate::builder;

#[tokio::test]
async fn an_approval_of_a_hash_that_moved_is_refused() {
    let backend = backend_of_each_kind().await;
    let broker = broker_with(&backend, json!("hold_changed")).await;
    let admin = broker.admin();
    show_tools(&backend, vec![described("read", "Two."), described("write", "Two.")]).await;
    let looked_at = wait_state(&admin, "tool", "read", "changed").await;
    let write = wait_state(&admin, "tool", "write", "changed").await;
    show_tools(&backend, vec![described("read", "Three."), described("write", "Two.")]).await;
    testkit::eventually("the third definition", || async {
        let now = pin(&admin, "tool", "read").await.unwrap();
        if now["hash"] == looked_at["hash"] { Err(now) } else { Ok(()) }
    })
    .await;
    let (status, problem) =
        approve(&admin, json!({"items": [item(&write), item(&looked_at)]})).await;
    assert_eq!(status, 409, "{problem}");
    assert_eq!(problem["type"], "urn:mcp-broker:problem:pin-moved");
    assert!(problem["detail"].as_str().unwrap().contains("tool/read"), "{problem}");
    let write = pin(&admin, "tool", "write").await.unwrap();
    assert_eq!(write["state"], "changed", "nothing of a refused approval is in force");
    let now = pin(&admin, "tool", "read").await.unwrap();
    let (status, answer) = approve(&admin, json!({"items": [item(&now), item(&write)]})).await;
    assert_eq!(status, 200, "{answer}");
    let read = pin(&admin, "tool", "read").await.unwrap();
    assert_eq!((&read["state"], &read["decided_by"]), (&json!("trusted"), &json!("admin")));
    assert_eq!(read["approved"], json!([read["hash"]]));
    assert!(read["decided_at"].is_string());
}

#[tokio::test]
async fn a_blocked_object_is_held_in_every_mode() {
    let backend = backend_of_each_kind().await;
    let broker = broker_with(&backend, json!("observe")).await;
    let (admin, client) = (broker.admin(), broker.connected(json!({})).await);
    let body = json!({"items": [{"kind": "tool", "name": "read"}]});
    let (status, answer) = admin.post(&format!("{PINS}/block"), &body).await;
    assert_eq!(status, 200, "{answer}");
    client.wait_tools(&["b__write"]).await;
    assert_eq!(refused_call(&client, "b__read").await, "tool_held");
    show_tools(&backend, vec![described("read", "Another one."), described("write", "Writes.")])
        .await;
    testkit::eventually("the sighting", || async {
        let pin = pin(&admin, "tool", "read").await.unwrap();
        if pin["hash"] == pin["first"] { Err(pin) } else { Ok(()) }
    })
    .await;
    assert_eq!(refused_call(&client, "b__read").await, "tool_held");
    approve_all(&admin).await;
    let blocked = pin(&admin, "tool", "read").await.unwrap();
    assert_eq!((&blocked["state"], &blocked["held"]), (&json!("blocked"), &json!(true)));
    approve(&admin, json!({"items": [item(&blocked)]})).await;
    client.wait_tools(&["b__read", "b__write"]).await;
}

#[tokio::test]
async fn a_removed_object_is_forgotten_only_with_a_new_baseline() {
    let backend = backend_of_each_kind().await;
    let broker = broker_with(&backend, json!("hold_changed")).await;
    let admin = broker.admin();
    show_tools(&backend, vec![described("write", "Writes.")]).await;
    wait_state(&admin, "tool", "read", "gone").await;
    show_tools(&backend, vec![described("write", "Writes."), described("read", "Evil.")]).await;
    wait_state(&admin, "tool", "read", "changed").await;
    show_tools(&backend, vec![described("write", "Writes.")]).await;
    wait_state(&admin, "tool", "read", "gone").await;
    approve_all(&admin).await;
    assert_eq!(pin(&admin, "tool", "read").await, None);
    assert!(pins(&admin).await.iter().all(|pin| pin["state"] == "trusted"));
}

#[tokio::test]
async fn the_difference_shows_members_and_invisible_characters() {
    let backend = backend_of_each_kind().await;
    let broker = broker_with(&backend, json!("hold_changed")).await;
    let admin = broker.admin();
    let mut changed = described("read", "Reads\u{200b} anything.");
    changed["inputSchema"]["properties"] = json!({"path": {"type": "string"}});
    show_tools(&backend, vec![changed]).await;
    wait_state(&admin, "tool", "read", "changed").await;
    let (status, diff) = admin.get(&format!("{PINS}/tool/read/diff")).await;
    assert_eq!(status, 200, "{diff}");
    let changes = diff["changes"].as_array().unwrap();
    let pointers: Vec<&str> =
        changes.iter().map(|change| change["pointer"].as_str().unwrap()).collect();
    assert_eq!(pointers, ["/description", "/inputSchema/properties"], "{diff}");
    assert_eq!(changes[0]["before"], "Reads.");
    assert_eq!(changes[0]["after"], "Reads<U+200B> anything.");
    assert_eq!(diff["findings"][0]["rule"], "hidden-zero-width");
    let name = "file%3A%2F%2F%2Fa";
    let (status, diff) = admin.get(&format!("{PINS}/resource/{name}/diff")).await;
    assert_eq!((status, &diff["changes"]), (200, &json!([])), "{diff}");
    for path in ["tool/nothing", "thing/read", "resource/read"] {
        let (status, problem) = admin.get(&format!("{PINS}/{path}/diff")).await;
        assert!([400, 404].contains(&status), "{path}: {problem}");
    }
}

#[tokio::test]
async fn a_bad_decision_is_refused_with_every_fault() {
    let backend = backend_of_each_kind().await;
    let broker = broker_with(&backend, json!("hold_all")).await;
    let admin = broker.admin();
    let hash = format!("v1:{}", "0".repeat(64));
    let of = |kind: &str, name: &str, hash: &str| json!({"kind": kind, "name": name, "hash": hash});
    for (body, status, field) in [
        (json!({}), 400, "items"),
        (json!({"items": []}), 400, "items"),
        (json!({"item": []}), 400, "item"),
        (json!({"all": "yes"}), 400, "all"),
        (json!({"all": true, "items": [of("tool", "read", &hash)]}), 400, "items"),
        (json!({"items": [of("thing", "read", &hash)]}), 400, "items[0].kind"),
        (json!({"items": [of("tool", "read", "abc")]}), 400, "items[0].hash"),
        (json!({"items": [{"kind": "tool", "name": "read"}]}), 400, "items[0].hash"),
        (json!({"items": [of("tool", "read", &hash), of("tool", "read", &hash)]}), 400, "items[1]"),
    ] {
        let (answered, problem) = approve(&admin, body.clone()).await;
        assert_eq!(
            (answered, problem["field"].as_str()),
            (status, Some(field)),
            "{body} {problem}"
        );
    }
    let unknown = json!({"items": [of("tool", "nothing", &hash)]});
    assert_eq!(approve(&admin, unknown).await.0, 404);
    let body = json!({"items": [{"kind": "tool", "name": "nothing"}]});
    assert_eq!(admin.post(&format!("{PINS}/block"), &body).await.0, 404);
    let (status, problem) = admin.post(&format!("{PINS}/block"), &json!({"items": []})).await;
    assert_eq!((status, &problem["field"]), (400, &json!("items")), "{problem}");
    let elsewhere = "/admin/v1/tenants/default/backends/none/pins";
    assert_eq!(admin.get(elsewhere).await.0, 404);
    assert_eq!(admin.post(&format!("{elsewhere}/approve"), &json!({"all": true})).await.0, 404);
    assert!(pins(&admin).await.iter().all(|pin| pin["state"] == "pending"));
}

async fn operator(admin: &AdminClient, body: Value) -> AdminClient {
    let (status, made) = admin.post("/admin/v1/operators", &body).await;
    assert_eq!(status, 201, "{made}");
    admin.with_token(made["token"].as_str())
}

#[tokio::test]
async fn decisions_require_a_permission_and_are_recorded() {
    let (backend, other) = (backend_of_each_kind().await, FakeBackend::echo().await);
    let broker = builder()
        .single_process()
        .auth_required()
        .backend("default", "b", pinned(&backend, json!("hold_all")))
        .backend("default", "other", pinned(&other, json!("hold_all")))
        .start()
        .await;
    let admin = broker.admin();
    let owner = json!({"name": "own", "role": "backend_owner", "backends": ["default/b"]});
    let owner = operator(&admin, owner).await;
    let viewer = operator(&admin, json!({"name": "view", "role": "viewer"})).await;
    let elsewhere = json!({"name": "far", "role": "operator", "tenants": ["far"]});
    let _ = admin.put("/admin/v1/tenants/far", &json!({})).await;
    let elsewhere = operator(&admin, elsewhere).await;
    let all = json!({"all": true});
    assert_eq!(viewer.get(PINS).await.0, 200);
    assert_eq!(approve(&viewer, all.clone()).await.0, 403);
    assert_eq!(approve(&elsewhere, all.clone()).await.0, 404);
    assert_eq!(elsewhere.get(PINS).await.0, 404);
    let others = "/admin/v1/tenants/default/backends/other/pins";
    assert_eq!(owner.get(others).await.0, 404);
    assert_eq!(owner.post(&format!("{others}/approve"), &all).await.0, 404);
    let read = pin(&owner, "tool", "read").await.unwrap();
    let (status, answer) = approve(&owner, json!({"items": [item(&read)]})).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(pin(&admin, "tool", "read").await.unwrap()["decided_by"], "own");
    let (_, log) = admin.get("/admin/v1/audit?tenant=default&kind=admin&limit=1000").await;
    let records = log["records"].as_array().unwrap();
    let action = "POST /admin/v1/tenants/{tenant}/backends/{backend}/pins/approve";
    let recorded: Vec<(&str, &str)> = records
        .iter()
        .filter(|record| record["action"] == action)
        .map(|record| (record["principal"].as_str().unwrap(), record["outcome"].as_str().unwrap()))
        .collect();
    assert!(
        recorded.contains(&("own", "ok")) && recorded.contains(&("view", "refused")),
        "{records:?}"
    );
    let made =
        records.iter().find(|record| record["principal"] == "own" && record["outcome"] == "ok");
    assert_eq!(made.unwrap()["after"][0]["hash"], read["hash"]);
}
