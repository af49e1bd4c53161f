//! Roots that operators give a backend: in its body, and at run time.

use serde_json::{Value, json};
use testkit::{
    AdminClient, ClusterBuilder, FakeBackend, Reply, TestBroker, TestClient, eventually,
};

use crate::{alone_with, builder, kind, stateless::Modern, text_of};

const ROOTS: &str = "/admin/v1/tenants/default/backends/b/roots";

/// Starts a backend whose tool `roots` returns the answer to `roots/list`.
async fn backend_with_questions() -> FakeBackend {
    let backend = FakeBackend::with_tool("roots", |call| async move {
        Reply::text(&call.request("roots/list", json!({})).await.to_string())
    })
    .await;
    backend.sessions();
    backend
}

fn spec(backend: &FakeBackend, mode: &str, uris: &[&str]) -> Value {
    let mut spec = backend.spec();
    let list: Vec<Value> = uris.iter().map(|uri| json!({"uri": uri})).collect();
    spec["roots"] = json!({"mode": mode, "list": list});
    spec
}

async fn seen_by(client: &TestClient) -> Vec<String> {
    let answer: Value =
        serde_json::from_str(text_of(&client.call("b__roots", json!({})).await)).unwrap();
    let roots = answer["result"]["roots"].as_array().unwrap_or_else(|| panic!("{answer}"));
    roots.iter().map(|root| root["uri"].as_str().unwrap().to_owned()).collect()
}

async fn client(broker: &TestBroker, uris: &'static [&'static str]) -> TestClient {
    let list: Vec<Value> = uris.iter().map(|uri| json!({"uri": uri, "name": "own"})).collect();
    let answers = move |_: &str, _: &Value| Ok(json!({"roots": list}));
    broker.client("/mcp").answers(answers).connected(json!({"roots": {"listChanged": true}})).await
}

#[tokio::test]
async fn the_mode_decides_whose_roots_a_backend_gets() {
    for (mode, of_client, of_other) in [
        ("client", Some(vec!["file:///c", "file:///a"]), None),
        ("configured", Some(vec!["file:///a", "file:///b"]), Some(vec!["file:///a", "file:///b"])),
        (
            "merge",
            Some(vec!["file:///a", "file:///b", "file:///c"]),
            Some(vec!["file:///a", "file:///b"]),
        ),
    ] {
        let backend = backend_with_questions().await;
        let given = spec(&backend, mode, &["file:///a", "file:///b"]);
        let broker = builder().backend("default", "b", given).start().await;
        let with_roots = client(&broker, &["file:///c", "file:///a"]).await;
        assert_eq!(
            Some(seen_by(&with_roots).await),
            of_client.map(|uris| uris.iter().map(ToString::to_string).collect()),
            "{mode}"
        );
        let without = broker.connected(json!({})).await;
        match of_other {
            Some(uris) => assert_eq!(seen_by(&without).await, uris, "{mode}"),
            None => {
                let answer = without.call("b__roots", json!({})).await;
                assert!(text_of(&answer).contains("-32601"), "{answer}");
            }
        }
        let declared =
            &backend.recorded_of("initialize").pop().unwrap().message["params"]["capabilities"];
        let expected = (mode != "client").then(|| json!({"listChanged": true}));
        assert_eq!(declared.get("roots"), expected.as_ref(), "{mode}: {declared}");
    }
}

/// A client without a session is asked in the answer to its request, and the operator's roots come
/// without it.
#[tokio::test]
async fn the_roots_of_the_operator_apply_to_clients_of_2026_07_28_too() {
    let backend = backend_with_questions().await;
    let broker = builder()
        .backend("default", "b", spec(&backend, "configured", &["file:///a"]))
        .start()
        .await;
    let modern = Modern::of(&broker, "/mcp");
    let result = modern.result("tools/call", json!({"name": "b__roots", "arguments": {}})).await;
    assert!(text_of(&result).contains("file:///a"), "{result}");
}

#[tokio::test]
async fn roots_change_while_the_backend_runs() {
    let backend = backend_with_questions().await;
    let broker = builder()
        .single_process()
        .backend("default", "b", spec(&backend, "merge", &["file:///a"]))
        .start()
        .await;
    let (one, admin) = (client(&broker, &["file:///c"]).await, broker.admin());
    assert_eq!(seen_by(&one).await, ["file:///a", "file:///c"]);
    let handshakes = backend.recorded_of("initialize").len();
    let heard = |count| {
        backend.wait_count("the notification on each connection", count, |seen| {
            seen.is("notifications/roots/list_changed")
        })
    };
    let (status, roots) = admin.post(ROOTS, &json!({"uri": "file:///b", "name": "B"})).await;
    assert_eq!((status, &roots["list"][1]), (201, &json!({"uri": "file:///b", "name": "B"})));
    heard(2).await; // the session's connection and the one that reads the lists
    assert_eq!(seen_by(&one).await, ["file:///a", "file:///b", "file:///c"]);
    let (status, roots) = admin.post(ROOTS, &json!({"uri": "file:///b"})).await;
    assert_eq!((status, &roots["list"][1]), (200, &json!({"uri": "file:///b"})));
    heard(4).await;
    assert_eq!(admin.delete(&format!("{ROOTS}?uri=file:///a")).await.0, 204);
    heard(6).await;
    assert_eq!(seen_by(&one).await, ["file:///b", "file:///c"]);
    assert_eq!(admin.delete(&format!("{ROOTS}?uri=file:///a")).await.0, 404);
    // A body that changes only the list changes the running backend too.
    admin.put_backend("default", "b", &spec(&backend, "merge", &["file:///d"])).await;
    heard(8).await;
    assert_eq!(seen_by(&one).await, ["file:///d", "file:///c"]);
    assert_eq!(backend.recorded_of("initialize").len(), handshakes, "nothing connects again");
    let shown = admin.backend("default", "b").await;
    assert_eq!(
        shown["settings"]["roots"],
        json!({"list": [{"uri": "file:///d"}], "mode": "merge"})
    );
}

#[tokio::test]
async fn roots_survive_a_restart_and_another_mode_connects_again() {
    let backend = backend_with_questions().await;
    let mut broker = builder()
        .single_process()
        .backend("default", "b", spec(&backend, "configured", &[]))
        .start()
        .await;
    assert_eq!(broker.admin().post(ROOTS, &json!({"uri": "file:///kept"})).await.0, 201);
    broker.kill().await;
    broker.restart().await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let one = client(&broker, &["file:///c"]).await;
    assert_eq!(seen_by(&one).await, ["file:///kept"]);
    broker
        .admin()
        .put_ready_backend("default", "b", &spec(&backend, "client", &["file:///kept"]))
        .await;
    assert_eq!(seen_by(&one).await, ["file:///c"]);
}

#[tokio::test]
async fn wrong_roots_are_refused_with_their_faults() {
    let backend = backend_with_questions().await;
    let broker = alone_with(&backend).await;
    let admin = broker.admin();
    for (root, field) in [
        (json!({}), "uri"),
        (json!({"uri": "http://a.example/"}), "uri"),
        (json!({"uri": "file:///a\u{1}"}), "uri"),
        (json!({"uri": "file:///a", "name": ""}), "name"),
        (json!({"uri": "file:///a", "path": "/a"}), "path"),
    ] {
        let (status, problem) = admin.post(ROOTS, &root).await;
        assert_eq!((status, &problem["field"]), (400, &json!(field)), "{root}: {problem}");
    }
    assert_eq!(
        admin.post(&ROOTS.replace("/b/", "/none/"), &json!({"uri": "file:///a"})).await.0,
        404
    );
    assert_eq!(admin.delete(ROOTS).await.0, 400);
    let several = json!({"list": [{"uri": "x"}, {"uri": "file:///a", "name": ""}]});
    let mut body = backend.spec();
    body["roots"] = several;
    let (status, problem) = admin.put_backend("default", "b", &body).await;
    assert_eq!(status, 400, "{problem}");
    for path in ["roots.list[0].uri", "roots.list[1].name"] {
        assert!(problem.to_string().contains(path), "{problem}");
    }
}

/// A change through one replica reaches the connections of the others.
#[tokio::test]
async fn roots_reach_the_connections_of_every_replica() {
    let backend = backend_with_questions().await;
    let cluster: ClusterBuilder =
        builder().backend("default", "b", spec(&backend, "configured", &["file:///a"])).cluster(2);
    let cluster = cluster.start().await;
    let other = cluster.client_of(1, "/mcp").connected(json!({})).await;
    assert_eq!(seen_by(&other).await, ["file:///a"]);
    let path = format!("{}/roots", AdminClient::backend_path("default", "b"));
    assert_eq!(cluster.admin(0).post(&path, &json!({"uri": "file:///b"})).await.0, 201);
    eventually("the other replica's roots", || async {
        let seen = seen_by(&other).await;
        if seen == ["file:///a", "file:///b"] { Ok(()) } else { Err(seen) }
    })
    .await;
    // Both replicas read lists, and one has a session.
    eventually("the notice on every connection", || async {
        let changed = backend.count(|seen| seen.is("notifications/roots/list_changed"));
        if changed >= 3 { Ok(()) } else { Err(changed) }
    })
    .await;
}

/// The rules for resources stay: roots tell a backend where to look, and `resources.roots` what
/// clients may name.
#[tokio::test]
async fn roots_of_an_operator_give_no_access_to_resources() {
    let backend = backend_with_questions().await;
    backend.capabilities(json!({"tools": {}, "resources": {}}));
    let mut given = spec(&backend, "configured", &["file:///outside"]);
    given["resources"] = json!({"roots": ["file:///inside"]});
    let broker = builder().backend("default", "b", given).start().await;
    let one = broker.connected(json!({})).await;
    let refusal = one.error("resources/read", json!({"uri": "b+file:///outside/a"})).await;
    assert_eq!(kind(&refusal), "outside_roots");
}
