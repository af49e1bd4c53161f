//! Streams of notifications for clients without a session (MCP 2026-07-28, Subscriptions).

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{EventReader, FakeBackend, Gate, Reply, backend::tool};

use super::Modern;
use crate::{broker_with, builder, configured};

pub(super) const ID: &str = "io.modelcontextprotocol/subscriptionId";

async fn watched() -> FakeBackend {
    let backend = FakeBackend::echo().await;
    backend.capabilities(json!({"tools": {"listChanged": true}, "prompts": {}, "resources": {"subscribe": true}, "logging": {}}));
    backend.list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    backend
}

pub(super) async fn listen(client: &Modern, id: Value, notifications: Value) -> EventReader {
    let response =
        client.post(id, "subscriptions/listen", json!({"notifications": notifications})).await;
    assert!(response.is_event_stream() && response.header("x-accel-buffering") == Some("no"));
    response.events()
}

pub(super) async fn next(events: &mut EventReader) -> Value {
    events.next_message().await.expect("the stream is open").1
}

#[tokio::test]
async fn n_sub_01_n_sub_02_requested_notifications_have_the_id_of_their_request() {
    let backend = watched().await;
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp");
    let filter = json!({"toolsListChanged": true, "resourceSubscriptions": ["b+test://one", "b+test://one", "unknown+test://x"], "later": true});
    let mut both = listen(&client, json!("a"), filter).await;
    let acknowledged = next(&mut both).await;
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    let accepted = json!({"toolsListChanged": true, "resourceSubscriptions": ["b+test://one"]});
    assert_eq!(acknowledged["params"], json!({"notifications": accepted, "_meta": {ID: "a"}}));
    let mut prompts = listen(&client, json!(7), json!({"promptsListChanged": true})).await;
    assert_eq!(next(&mut prompts).await["params"]["_meta"][ID], 7, "the type of the id is kept");

    backend.wait_get_streams(1).await;
    backend
        .notify(
            "notifications/resources/updated",
            json!({"uri": "test://one", "_meta": {"own": 1}}),
        )
        .await;
    let updated = next(&mut both).await;
    assert_eq!(updated["params"], json!({"uri": "b+test://one", "_meta": {"own": 1, ID: "a"}}));
    backend.notify("notifications/message", json!({"level": "error", "data": "N-SUB-04"})).await;
    backend.list("tools", vec![tool("echo"), tool("new")]);
    backend.notify("notifications/tools/list_changed", json!({})).await;
    let changed = next(&mut both).await;
    assert_eq!(
        (changed["method"].as_str(), &changed["params"]),
        (Some("notifications/tools/list_changed"), &json!({"_meta": {ID: "a"}}))
    );
    backend.list("prompts", vec![json!({"name": "p"})]);
    backend.notify("notifications/prompts/list_changed", json!({})).await;
    assert_eq!(
        next(&mut prompts).await["method"],
        "notifications/prompts/list_changed",
        "and nothing else before"
    );

    drop(both);
    backend.wait_for("the end of the subscription", |seen| seen.is("resources/unsubscribe")).await;
}

#[tokio::test]
async fn br_05_a_disconnected_listener_does_not_decide_for_others() {
    let (backend, gate) = (watched().await, Gate::new());
    backend.on("resources/subscribe", gate.before(Reply::error(-32603, "no")));
    let mut spec = backend.spec();
    spec["links"] = json!("shared");
    let broker = builder().backend("default", "b", spec).start().await;
    let first = Modern::of(&broker, "/mcp/b");
    let filter = json!({"notifications": {"resourceSubscriptions": ["test://one"]}});
    let listening =
        tokio::spawn(async move { first.post(json!(1), "subscriptions/listen", filter).await });
    backend.wait_for("the subscribe", |seen| seen.is("resources/subscribe")).await;
    listening.abort();
    let other = broker.client("/mcp/b").connected(json!({})).await;
    let subscribing = other.start_request("resources/subscribe", json!({"uri": "test://one"}));
    gate.open();
    let answer = subscribing.response().await.value;
    assert_eq!(answer["error"]["data"]["uri"], "test://one", "nothing is subscribed: {answer}");
}

#[tokio::test]
async fn br_05_listeners_of_one_resource_share_one_subscription_on_shared_links() {
    let backend = watched().await;
    let mut spec = backend.spec();
    spec["links"] = json!("shared");
    let broker = builder().backend("default", "b", spec).start().await;
    let client = Modern::of(&broker, "/mcp/b");
    let filter = json!({"resourceSubscriptions": ["test://one"]});
    let (mut one, mut other) =
        (listen(&client, json!(1), filter.clone()).await, listen(&client, json!(1), filter).await);
    next(&mut one).await;
    next(&mut other).await;
    assert_eq!(backend.count(|seen| seen.is("resources/subscribe")), 1);
    backend.wait_get_streams(1).await;
    backend.notify("notifications/resources/updated", json!({"uri": "test://one"})).await;
    for stream in [&mut one, &mut other] {
        assert_eq!(next(stream).await["params"]["uri"], "test://one");
    }
    // The session at the backend is lost. The broker subscribes again, and notifies the client,
    // which may have missed an update.
    backend.sessions();
    backend.cut_connections();
    assert_eq!(next(&mut one).await["method"], "notifications/resources/updated");
    drop(one);
    drop(other);
    backend.wait_for("the end of the subscription", |seen| seen.is("resources/unsubscribe")).await;
}

#[tokio::test]
async fn n_sub_03_n_can_02_a_stopping_broker_ends_streams_with_a_result() {
    let backend = watched().await;
    let mut broker =
        builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = Modern::of(&broker, "/mcp");
    let mut stream = listen(&client, json!("s"), json!({"toolsListChanged": true})).await;
    next(&mut stream).await;
    broker.signal(Signal::TERM);
    let cancelled = next(&mut stream).await;
    assert_eq!(
        (cancelled["method"].as_str(), cancelled["params"]["requestId"].as_str()),
        (Some("notifications/cancelled"), Some("s"))
    );
    assert_eq!(cancelled["params"]["_meta"][ID], "s");
    let end = next(&mut stream).await;
    assert_eq!(
        (end["id"].as_str(), end["result"]["resultType"].as_str()),
        (Some("s"), Some("complete"))
    );
    assert_eq!(end["result"]["_meta"][ID], "s");
    assert!(stream.next().await.is_none());
    assert!(broker.wait_for_exit().await.success());
}

#[tokio::test]
async fn listeners_are_limited_and_malformed_filters_are_refused() {
    let backend = watched().await;
    let limits = json!({"limits": {"sessions_per_principal": 2}});
    let broker = configured(limits, backend.spec()).await;
    let client = Modern::of(&broker, "/mcp");
    for bad in [json!(7), json!({"toolsListChanged": "yes"}), json!({"resourceSubscriptions": [1]})]
    {
        let error = client.error("subscriptions/listen", json!({"notifications": bad})).await;
        assert_eq!(error["code"], -32602);
    }
    assert_eq!(client.error("subscriptions/listen", json!({})).await["code"], -32602);
    let _open =
        [listen(&client, json!(1), json!({})).await, listen(&client, json!(2), json!({})).await];
    let refused = client.post(json!(3), "subscriptions/listen", json!({"notifications": {}})).await;
    assert_eq!(refused.status, 429);
}

#[tokio::test]
async fn a_resource_outside_the_roots_is_not_subscribed() {
    let backend = watched().await;
    backend.list(
        "resources",
        vec![
            json!({"uri": "test://in/a", "name": "a"}),
            json!({"uri": "test://out/a", "name": "b"}),
        ],
    );
    let mut spec = backend.spec();
    spec["resources"] = json!({"roots": ["test://in"]});
    let broker = builder().backend("default", "b", spec).start().await;
    let filter = json!({"resourceSubscriptions": ["b+test://in/a", "b+test://out/a"]});
    let mut events = listen(&Modern::of(&broker, "/mcp"), json!("a"), filter).await;
    let acknowledged = next(&mut events).await;
    assert_eq!(
        acknowledged["params"]["notifications"],
        json!({"resourceSubscriptions": ["b+test://in/a"]}),
        "{acknowledged}"
    );
}
