//! Notifications: one stream for every hundred resources, reopened when its filter changes and after
//! a loss.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{Gate, StatelessBackend, StatelessReply, TestClient, eventually, within};

use super::{broker_with, on_both_wires};
use crate::{builder, configured_alone, kind, stateless::Modern};

fn with_resources(backend: &StatelessBackend) {
    let resource = |name: &str| json!({"uri": format!("test://{name}"), "name": name});
    backend.list("resources", vec![resource("one"), resource("two")]);
}

async fn next_updated(stream: &mut testkit::EventReader) -> Value {
    within("an update", async {
        loop {
            let (_, message) = stream.next_message().await.unwrap();
            if message["method"] == "notifications/resources/updated" {
                return message["params"].clone();
            }
        }
    })
    .await
}

async fn subscribe(client: &TestClient, name: &str) {
    client.result("resources/subscribe", json!({"uri": format!("b+test://{name}")})).await;
}

#[tokio::test]
async fn br_05_all_subscriptions_share_one_stream() {
    for backend in on_both_wires().await {
        with_resources(&backend);
        let broker = broker_with(&backend).await;
        let (one, two) = (broker.connected(json!({})).await, broker.connected(json!({})).await);
        let (mut of_one, mut of_two) = (one.open_get_stream().await, two.open_get_stream().await);
        subscribe(&one, "one").await;
        backend.wait_listening_to(&["test://one"]).await;
        subscribe(&two, "two").await;
        backend.wait_listening_to(&["test://one", "test://two"]).await;
        subscribe(&two, "one").await;
        assert_eq!(backend.updated("test://one").await, 1, "one stream");
        for stream in [&mut of_one, &mut of_two] {
            let params = next_updated(stream).await;
            assert_eq!(params["uri"], "b+test://one");
            assert!(
                !params.to_string().contains("subscriptionId"),
                "it means nothing to this client: {params}"
            );
        }
        backend.updated("test://two").await;
        assert_eq!(next_updated(&mut of_two).await["uri"], "b+test://two");
        two.result("resources/unsubscribe", json!({"uri": "b+test://two"})).await;
        backend.wait_listening_to(&["test://one"]).await;
        one.delete_session().await;
        two.delete_session().await;
        backend.wait_listening_to(&[]).await;
        assert!(
            backend.recorded_of("resources/subscribe").is_empty()
                && backend.recorded_of("resources/unsubscribe").is_empty()
        );
    }
}

#[tokio::test]
async fn br_05_a_client_can_subscribe_again_at_once() {
    for backend in on_both_wires().await {
        with_resources(&backend);
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let mut stream = client.open_get_stream().await;
        subscribe(&client, "one").await;
        // For a while after this answer, the broker also reads the former stream. It applies the next
        // changes after that.
        subscribe(&client, "two").await;
        client.result("resources/unsubscribe", json!({"uri": "b+test://one"})).await;
        subscribe(&client, "one").await;
        backend.wait_listening_to(&["test://one", "test://two"]).await;
        backend.updated("test://one").await;
        assert_eq!(next_updated(&mut stream).await["uri"], "b+test://one");
    }
}

#[tokio::test]
async fn nb_sub_01_a_resource_that_is_not_acknowledged_is_refused() {
    for backend in on_both_wires().await {
        with_resources(&backend);
        backend.refuses_updates_of("test://two");
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let error = client.error("resources/subscribe", json!({"uri": "b+test://two"})).await;
        assert_eq!(
            (&error["code"], &error["data"]["uri"]),
            (&json!(-32002), &json!("b+test://two"))
        );
        subscribe(&client, "one").await;
        let mut stream = client.open_get_stream().await;
        backend.updated("test://one").await;
        assert_eq!(next_updated(&mut stream).await["uri"], "b+test://one");
    }
}

#[tokio::test]
async fn nb_sub_01_a_subscription_without_an_acknowledgement_leaves_the_filter() {
    let backend = StatelessBackend::http().await;
    with_resources(&backend);
    backend.on("subscriptions/listen", |_| async { StatelessReply::Hang });
    let mut spec = backend.spec();
    spec["timeouts"] = json!({"control": "300ms"});
    let broker = builder().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    for name in ["one", "two"] {
        client.error("resources/subscribe", json!({"uri": format!("b+test://{name}")})).await;
    }
    let is_of_two_alone = |seen: &testkit::RecordedRequest| {
        seen.message["params"]["notifications"]["resourceSubscriptions"] == json!(["test://two"])
    };
    backend.wait_for("a filter without the first resource", is_of_two_alone).await;
}

#[tokio::test]
async fn nb_sub_01_br_05_a_lost_stream_is_reopened_and_the_gap_is_reported() {
    let backend = StatelessBackend::http().await;
    with_resources(&backend);
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    subscribe(&client, "one").await;
    for graceful in [true, false] {
        match graceful {
            true => backend.end_listens().await,
            false => backend.cut_listens(),
        }
        assert_eq!(
            next_updated(&mut stream).await["uri"],
            "b+test://one",
            "something may have been missed"
        );
        backend.wait_listening_to(&["test://one"]).await;
    }
    backend.updated("test://one").await;
    assert_eq!(next_updated(&mut stream).await["uri"], "b+test://one");
}

#[tokio::test]
async fn a_stream_that_cannot_be_opened_again_shows_that_the_backend_is_gone() {
    let backend = StatelessBackend::http().await;
    let config = json!({"timeouts": {"ping_interval": "10m"}});
    let broker = configured_alone(config, backend.spec()).await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    backend.wait_for("the stream", |seen| seen.is("subscriptions/listen")).await;
    backend.cut_connections();
    drop(backend);
    broker.admin().wait_backend_state("default", "b", "degraded").await;
}

#[tokio::test]
async fn nb_sub_01_a_stream_that_ends_at_once_keeps_its_subscriptions() {
    for backend in on_both_wires().await {
        with_resources(&backend);
        backend.on("subscriptions/listen", |call| async move {
            let meta = json!({"io.modelcontextprotocol/subscriptionId": call.message["id"]});
            let params = json!({"notifications": call.params()["notifications"], "_meta": meta});
            call.notify("notifications/subscriptions/acknowledged", params).await;
            StatelessReply::Exactly(json!({"resultType": "complete", "_meta": meta}))
        });
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let mut stream = client.open_get_stream().await;
        for name in ["one", "two"] {
            subscribe(&client, name).await;
        }
        backend.built_in("subscriptions/listen");
        backend.wait_listening_to(&["test://one", "test://two"]).await;
        next_updated(&mut stream).await; // something may have been missed
    }
}

/// The streams that a backend has open, with the number of resources of each. Their ids repeat on
/// the next connection, so each has a number of its own.
type OpenStreams = Arc<Mutex<HashMap<usize, usize>>>;

/// Makes a backend refuse streams of more than 100 resources.
fn limit_streams(backend: &StatelessBackend) -> OpenStreams {
    let open = OpenStreams::default();
    let (streams, next_number) = (open.clone(), AtomicUsize::new(0));
    backend.on("subscriptions/listen", move |call| {
        let (streams, number) = (streams.clone(), next_number.fetch_add(1, Ordering::Relaxed));
        async move {
            let filter = call.params()["notifications"].clone();
            let count = filter["resourceSubscriptions"].as_array().map_or(0, Vec::len);
            if count > 100 {
                return StatelessReply::error(-32602, "too many resources");
            }
            let meta = json!({"io.modelcontextprotocol/subscriptionId": call.message["id"]});
            let params = json!({"notifications": filter, "_meta": meta});
            call.notify("notifications/subscriptions/acknowledged", params).await;
            if count > 0 {
                streams.lock().insert(number, count);
                call.client_disconnected().await;
                streams.lock().remove(&number);
            }
            StatelessReply::Hang
        }
    });
    open
}

#[tokio::test]
async fn br_05_more_resources_than_one_stream_takes_share_several() {
    for backend in on_both_wires().await {
        with_resources(&backend);
        let streams = limit_streams(&backend);
        let two_streams = || async {
            let mut counts: Vec<usize> = streams.lock().values().copied().collect();
            counts.sort_unstable();
            if counts == [1, 100] { Ok(()) } else { Err(counts) }
        };
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let names: Vec<String> = (0..=100).map(|number| number.to_string()).collect();
        join_all(names.iter().map(|name| subscribe(&client, name))).await;
        eventually("streams with all resources", two_streams).await;
        streams.lock().clear();
        backend.cut_connections();
        eventually("the streams to be open again", two_streams).await;
    }
}

#[tokio::test]
async fn nb_sub_01_a_pipe_that_ends_is_opened_again_with_its_subscriptions() {
    let backend = StatelessBackend::pipe().await;
    with_resources(&backend);
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    subscribe(&client, "one").await;
    subscribe(&client, "two").await;
    backend.cut_connections();
    backend.wait_listening_to(&["test://one", "test://two"]).await;
    let mut received = [
        next_updated(&mut stream).await["uri"].clone(),
        next_updated(&mut stream).await["uri"].clone(),
    ];
    received.sort_by_key(Value::to_string);
    assert_eq!(received, [json!("b+test://one"), json!("b+test://two")]);
}

#[tokio::test]
async fn br_05_changed_lists_are_forwarded_to_clients() {
    for backend in on_both_wires().await {
        backend.list("tools", vec![testkit::backend::tool("one")]);
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let mut stream = client.open_get_stream().await;
        let asked = backend.wait_for("the stream", |seen| seen.is("subscriptions/listen")).await;
        assert_eq!(
            asked.message["params"]["notifications"],
            json!({"toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true})
        );
        backend.list("tools", vec![testkit::backend::tool("one"), testkit::backend::tool("two")]);
        eventually("somebody to hear it", || async {
            if backend.list_changed("tools").await > 0 { Ok(()) } else { Err("nobody") }
        })
        .await;
        let changed = within("the change", stream.next_message()).await.unwrap().1;
        assert_eq!(changed["method"], "notifications/tools/list_changed");
        assert_eq!(client.tool_names().await, ["b__one", "b__two"]);
    }
}

#[tokio::test]
async fn a_backend_without_a_notification_stream_is_still_served() {
    let backend = StatelessBackend::http().await;
    backend.list("tools", vec![testkit::backend::tool("one")]);
    backend
        .on("subscriptions/listen", |_| async { StatelessReply::error(-32601, "no such method") });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__one"]);
    let error = client.error("resources/subscribe", json!({"uri": "b+test://one"})).await;
    assert_eq!(error["code"], -32002);
}

fn tools(names: &[&str]) -> Vec<Value> {
    names.iter().map(|name| testkit::backend::tool(name)).collect()
}

/// Refuses streams of notifications for now.
fn is_busy(backend: &StatelessBackend) {
    backend.on("subscriptions/listen", |_| async { StatelessReply::error(-32603, "later") });
}

#[tokio::test]
async fn nb_sub_01_lists_that_changed_before_the_first_stream_are_read_again() {
    for failure in [StatelessReply::Refused(503), StatelessReply::error(-32603, "try later")] {
        let backend = StatelessBackend::http().await;
        backend.list("tools", tools(&["one"]));
        let failed = failure.clone();
        backend.on("subscriptions/listen", move |_| {
            let failed = failed.clone();
            async move { failed }
        });
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        client.wait_tools(&["b__one"]).await;
        let is_listen = |seen: &testkit::RecordedRequest| seen.is("subscriptions/listen");
        backend.wait_count("a second attempt", 2, is_listen).await;
        backend.list("tools", tools(&["one", "two"]));
        backend.built_in("subscriptions/listen");
        client.wait_tools(&["b__one", "b__two"]).await;
    }
}

#[tokio::test]
async fn nb_sub_01_lists_that_are_older_than_the_acknowledgement_are_read_again() {
    let (backend, gate) = (StatelessBackend::http().await, Gate::new());
    backend.list("tools", tools(&["one"]));
    let held = gate.clone();
    backend.on("subscriptions/listen", move |call| {
        let held = held.clone();
        async move {
            held.passed().await;
            let id = json!({"io.modelcontextprotocol/subscriptionId": call.message["id"]});
            let params = json!({"notifications": call.params()["notifications"], "_meta": id});
            call.notify("notifications/subscriptions/acknowledged", params).await;
            StatelessReply::Hang
        }
    });
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    client.wait_tools(&["b__one"]).await;
    backend.list("tools", tools(&["one", "two"]));
    gate.open();
    client.wait_tools(&["b__one", "b__two"]).await;
}

#[tokio::test]
async fn nb_sub_01_a_subscription_that_fails_for_now_can_be_retried() {
    for backend in on_both_wires().await {
        with_resources(&backend);
        let broker = broker_with(&backend).await;
        let client = broker.connected(json!({})).await;
        let mut stream = client.open_get_stream().await;
        subscribe(&client, "one").await;
        is_busy(&backend);
        let refused = client.error("resources/subscribe", json!({"uri": "b+test://two"})).await;
        assert_eq!(
            (kind(&refused), &refused["data"]["retryable"]),
            ("backend_unavailable", &json!(true)),
            "{refused}"
        );
        backend.updated("test://one").await;
        assert_eq!(next_updated(&mut stream).await["uri"], "b+test://one", "it stays open");
        backend.built_in("subscriptions/listen");
        subscribe(&client, "two").await;
        backend.wait_listening_to(&["test://one", "test://two"]).await;
    }
}

#[tokio::test]
async fn nb_sub_01_a_changed_filter_is_sent_again_after_a_failure() {
    let backend = StatelessBackend::http().await;
    with_resources(&backend);
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    subscribe(&client, "one").await;
    subscribe(&client, "two").await;
    backend.wait_listening_to(&["test://one", "test://two"]).await;
    is_busy(&backend);
    client.result("resources/unsubscribe", json!({"uri": "b+test://two"})).await;
    let is_smaller = |seen: &testkit::RecordedRequest| {
        seen.message["params"]["notifications"]["resourceSubscriptions"] == json!(["test://one"])
    };
    backend.wait_count("the failed filter", 2, is_smaller).await;
    backend.built_in("subscriptions/listen");
    backend.wait_listening_to(&["test://one"]).await;
}

#[tokio::test]
async fn nb_sub_01_a_listener_keeps_a_resource_whose_subscription_fails_for_now() {
    let backend = StatelessBackend::http().await;
    with_resources(&backend);
    is_busy(&backend);
    let broker = broker_with(&backend).await;
    let client = Modern::of(&broker, "/mcp");
    let filter = json!({"notifications": {"resourceSubscriptions": ["b+test://one"]}});
    let mut stream = client.post(json!(1), "subscriptions/listen", filter).await.events();
    let acknowledged = within("the acknowledgement", stream.next_message()).await.unwrap().1;
    assert_eq!(
        acknowledged["params"]["notifications"]["resourceSubscriptions"],
        json!(["b+test://one"]),
        "{acknowledged}"
    );
    backend.built_in("subscriptions/listen");
    assert_eq!(next_updated(&mut stream).await["uri"], "b+test://one", "updates may be missed");
    backend.updated("test://one").await;
    assert_eq!(next_updated(&mut stream).await["uri"], "b+test://one");
}
