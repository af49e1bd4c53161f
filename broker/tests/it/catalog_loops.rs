//! Backends that lead back to their own tenant: the broker refuses them, and its lists do not grow.

use serde_json::{Value, json};
use testkit::{FakeBackend, TestBroker};

use crate::{builder, echo, text_of};

const VIA: &str = "dev.mcp-broker/via";

fn at(url: &str) -> Value {
    json!({"transport": {"type": "http", "url": url}})
}

/// Registers a backend, and waits for its refusal as a loop.
async fn is_refused(broker: &TestBroker, tenant: &str, name: &str, spec: &Value) {
    let admin = broker.admin();
    admin.put_backend(tenant, name, spec).await;
    let is_loop = |view: &Value| {
        let error = view["last_error"].as_str().unwrap_or_default();
        view["state"] == "failed" && error.contains("the catalog of the tenant contains itself")
    };
    let view = admin.wait_backend(tenant, name, "the refusal of a loop", is_loop).await;
    assert_eq!(view["tools"], 0, "{view}");
}

#[tokio::test]
async fn a_backend_that_is_the_tenants_own_endpoint_is_refused() {
    let (broker, _backend) = echo().await;
    for (name, protocol, path) in [
        ("auto", "auto", "/mcp"),
        ("modern", "modern", "/mcp"),
        ("legacy", "legacy", "/mcp"),
        ("single", "auto", "/mcp/b"),
        ("itself", "auto", "/mcp/itself"),
    ] {
        let mut spec = at(&broker.url(path));
        spec["protocol"] = json!(protocol);
        is_refused(&broker, "default", name, &spec).await;
    }
    let client = broker.connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__echo"]);
}

#[tokio::test]
async fn brokers_that_name_each_other_in_a_circle_are_refused() {
    for count in [2, 3] {
        let mut chain = Vec::new();
        for _ in 0..count {
            chain.push(echo().await);
        }
        for at_in_chain in (1..count).rev() {
            let spec = at(&chain[at_in_chain].0.url("/mcp"));
            chain[at_in_chain - 1].0.admin().put_ready_backend("default", "next", &spec).await;
        }
        let (first, last) = (&chain[0].0, &chain[count - 1].0);
        is_refused(last, "default", "next", &at(&first.url("/mcp"))).await;
        assert_eq!(last.connected(json!({})).await.tool_names().await, ["b__echo"]);
        let client = first.connected(json!({})).await;
        let names = client.tool_names().await;
        assert_eq!(names.len(), count, "{names:?}");
        let result = client.call("next__b__echo", json!({"x": 1})).await;
        assert_eq!(text_of(&result), json!({"x": 1}).to_string());
    }
}

#[tokio::test]
async fn a_tenant_may_use_another_tenant_of_its_broker_in_one_direction() {
    let backend = FakeBackend::echo().await;
    let broker = builder()
        .auth_required()
        .tenant("red")
        .tenant("blue")
        .backend("red", "b", backend.spec())
        .start()
        .await;
    let admin = broker.admin();
    let (red, blue) = (admin.create_key("red").await, admin.create_key("blue").await);
    let of = |key: &str| {
        let mut spec = at(&broker.url("/mcp"));
        spec["credentials"] = json!({"bearer": key});
        spec
    };
    admin.put_ready_backend("blue", "red", &of(&red)).await;
    let client = broker.client("/mcp").bearer(&blue).connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["red__b__echo"]);
    let result = client.call("red__b__echo", json!({"x": 1})).await;
    assert_eq!(text_of(&result), json!({"x": 1}).to_string());
    is_refused(&broker, "red", "blue", &of(&blue)).await;
    assert_eq!(client.tool_names().await, ["red__b__echo"]);
}

#[tokio::test]
async fn only_another_broker_gets_marks() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let plain = client.result("tools/list", json!({})).await;
    assert_eq!(plain.get("_meta"), None, "{plain}");
    let own = &backend.recorded_of("initialize")[0].message["params"]["_meta"];
    assert_eq!(own[VIA].as_array().map(Vec::len), Some(1), "{own}");
    let marked = client.result("tools/list", json!({"_meta": own})).await;
    assert_eq!(marked["tools"], plain["tools"]);
    let marks = marked["_meta"][VIA].as_array().unwrap();
    assert!(marks.len() == 1 && marks[0] != own[VIA][0], "a catalog has another mark: {marked}");
    client.call("b__echo", json!({"x": 1})).await;
    let call = &backend.recorded_of("tools/call")[0].message;
    assert!(!call.to_string().contains(VIA), "calls have no marks: {call}");
    let mut params = backend.recorded_of("initialize")[0].message["params"].clone();
    let refused = broker.client("/mcp").request("initialize", params.clone()).await;
    assert_eq!(refused["error"]["data"]["kind"], "catalog_loop", "{refused}");
    let text = refused["error"]["message"].as_str().unwrap();
    assert!(text.contains("tenant default contains itself through backend b"), "{text}");
    params["_meta"][VIA] = json!(["0000000000000000"]);
    let opened = broker.client("/mcp").request("initialize", params).await;
    assert!(opened["result"].is_object(), "the mark of another broker: {opened}");
}
