//! Lists: served from memory, merged, stable, paged. They never wait for a backend.

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, Reply, TestBroker, TestClient, backend::tool};

use crate::{broker_with, builder, echo, kind, text_of};

async fn list_text(client: &TestClient, id: u64) -> String {
    let answer = client.start_request_with_id(json!(id), "tools/list", json!({})).response().await;
    answer.text
}

#[tokio::test]
async fn two_lists_in_a_row_are_byte_equal() {
    let (one, two) = (FakeBackend::start().await, FakeBackend::start().await);
    for (backend, count) in [(&one, 40), (&two, 30)] {
        backend.list("tools", (0..count).rev().map(|n| tool(&format!("t{n}"))).collect());
    }
    let broker = builder()
        .backend("default", "z", one.spec())
        .backend("default", "a", two.spec())
        .start()
        .await;
    let client = broker.connected(json!({})).await;
    let first = list_text(&client, 7).await;
    assert_eq!(list_text(&client, 7).await, first);
    assert_eq!(
        list_text(&broker.connected(json!({})).await, 7).await,
        first,
        "in another session too"
    );
    broker.admin().post("/admin/v1/tenants/default/backends/z/probe", &json!({})).await;
    assert_eq!(list_text(&client, 7).await, first, "after a refresh too");
    assert!(first.find("a__t0").unwrap() < first.find("z__t0").unwrap(), "backends by name");
    assert!(
        first.find("z__t39").unwrap() < first.find("z__t0").unwrap(),
        "the backend's own order"
    );
}

/// The list, the access policy and the validation of arguments use the first entry.
#[tokio::test]
async fn the_first_of_several_tools_with_one_name_counts_everywhere() {
    let backend = FakeBackend::with_tool("t", |_| async { Reply::text("done") }).await;
    let described = |reads: bool, of: &str| {
        let schema = json!({"type": "object", "properties": {"n": {"type": of}}});
        json!({"name": "t", "inputSchema": schema, "annotations": {"readOnlyHint": reads}})
    };
    backend.list("tools", vec![described(true, "integer"), described(false, "string")]);
    backend.page_size(1);
    let mut spec = backend.spec();
    spec["tools"] = json!({"validate_arguments": true, "validate_timeout": "10s"});
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    broker.wait_for_log("an entry is left out of the catalog").await;
    let rule = json!({"id": "w", "effect": "deny", "objects": {"classes": ["write"]}});
    let policy = json!({"rules": [rule]});
    let (status, answer) = broker.admin().put("/admin/v1/tenants/default/policy", &policy).await;
    assert_eq!(status, 201, "{answer}");
    for (path, name) in [("/mcp", "b__t"), ("/mcp/b", "t")] {
        let client = broker.client(path).connected(json!({})).await;
        let list = client.result("tools/list", json!({})).await;
        assert_eq!(list["tools"].as_array().unwrap().len(), 1, "{list}");
        assert_eq!(list["tools"][0]["annotations"]["readOnlyHint"], true, "{list}");
        assert_eq!(text_of(&client.call(name, json!({"n": 1})).await), "done");
        let params = json!({"name": name, "arguments": {"n": "a"}});
        let refused = client.error("tools/call", params).await;
        assert_eq!(kind(&refused), "arguments_invalid", "{refused}");
    }
}

#[tokio::test]
async fn page_01_250_tools_come_in_pages_of_100() {
    let backend = FakeBackend::start().await;
    backend.list("tools", (0..250).map(|n| tool(&format!("t{n}"))).collect()).page_size(33);
    let broker = broker_with(&backend).await;
    for (path, prefix) in [("/mcp", "b__"), ("/mcp/b", "")] {
        let client = broker.client(path).connected(json!({})).await;
        let (mut sizes, mut names, mut params) = (Vec::new(), Vec::new(), json!({}));
        loop {
            let page = client.result("tools/list", params).await;
            let tools = page["tools"].as_array().unwrap();
            sizes.push(tools.len());
            names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
            let Some(cursor) = page["nextCursor"].as_str() else { break };
            params = json!({"cursor": cursor});
        }
        assert_eq!(sizes, [100, 100, 50], "{path}");
        assert_eq!(names, (0..250).map(|n| format!("{prefix}t{n}")).collect::<Vec<_>>(), "{path}");
    }
}

#[tokio::test]
async fn lists_are_served_without_a_request_to_the_backend() {
    let (broker, backend) = echo().await;
    let before = backend.recorded_of("tools/list").len();
    for _ in 0..5 {
        broker.connected(json!({})).await.tool_names().await;
    }
    assert_eq!(backend.recorded_of("tools/list").len(), before);
}

/// Returns a broker with a good backend `good` and one named `bad`, without waiting for the second.
async fn good_and(bad: Value) -> (TestBroker, FakeBackend) {
    let good = FakeBackend::echo().await;
    // Each process detects by itself that a backend is gone.
    let broker = builder().single_process().backend("default", "good", good.spec()).start().await;
    let (status, answer) =
        broker.admin().put("/admin/v1/tenants/default/backends/bad?wait=false", &bad).await;
    assert!((200..300).contains(&status), "{status} {answer}");
    (broker, good)
}

#[tokio::test]
async fn a_backend_that_hangs_never_delays_a_list_or_another_backends_call() {
    let hanging = FakeBackend::start().await;
    hanging.on("initialize", |_| async { Reply::Hang });
    let (broker, _good) = good_and(hanging.spec()).await;
    hanging.wait_for("the handshake", |seen| seen.is("initialize")).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["good__echo"]);
    assert_eq!(text_of(&client.call("good__echo", json!({})).await), "{}");
}

#[tokio::test]
async fn a_backend_whose_list_hangs_never_delays_a_list() {
    let gate = Gate::new();
    let slow = FakeBackend::start().await;
    slow.on("tools/list", gate.before(Reply::Result(json!({"tools": [tool("late")]}))));
    let (broker, _good) = good_and(slow.spec()).await;
    slow.wait_for("the list", |seen| seen.is("tools/list")).await;
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    assert_eq!(client.tool_names().await, ["good__echo"]);
    gate.open();
    stream.find(|message| message["method"] == "notifications/tools/list_changed").await;
    assert_eq!(client.tool_names().await, ["bad__late", "good__echo"]);
}

#[tokio::test]
async fn a_dead_backend_is_not_listed_and_delays_nothing() {
    let dead = FakeBackend::echo().await;
    let spec = dead.spec();
    dead.die().await;
    let (broker, _good) = good_and(spec).await;
    let view = broker.admin().wait_backend_state("default", "bad", "failed").await;
    assert!(view["last_error"].is_string(), "{view}");
    assert_eq!(broker.connected(json!({})).await.tool_names().await, ["good__echo"]);
}

#[tokio::test]
async fn lists_of_a_dead_backend_are_served_from_the_last_copy_marked_stale() {
    let dying = FakeBackend::echo().await;
    let (broker, _good) = good_and(dying.spec()).await;
    broker.admin().wait_backend_state("default", "bad", "ready").await;
    let client = broker.connected(json!({})).await;
    assert!(client.result("tools/list", json!({})).await.get("_meta").is_none());
    let address = dying.die().await;
    broker.admin().post("/admin/v1/tenants/default/backends/bad/probe", &json!({})).await;
    broker.admin().wait_backend_state("default", "bad", "degraded").await;
    let list = client.result("tools/list", json!({})).await;
    assert_eq!(list["_meta"]["dev.mcp-broker/stale"], json!(["bad"]), "{list}");
    assert_eq!(list["tools"].as_array().unwrap().len(), 2);
    let listener =
        testkit::eventually("the port again", || tokio::net::TcpListener::bind(address)).await;
    let again = FakeBackend::on_listener(listener);
    again.list("tools", vec![tool("echo"), tool("more")]);
    broker.admin().post("/admin/v1/tenants/default/backends/bad/probe", &json!({})).await;
    broker.admin().wait_backend_state("default", "bad", "ready").await;
    let list = client.result("tools/list", json!({})).await;
    assert!(list.get("_meta").is_none() && list["tools"].as_array().unwrap().len() == 3, "{list}");
}

#[tokio::test]
async fn a_probe_answers_with_the_lists_that_it_read() {
    let (broker, backend) = echo().await;
    for count in 2..5 {
        backend.list("tools", (0..count).map(|number| tool(&format!("t{number}"))).collect());
        let path = "/admin/v1/tenants/default/backends/b/probe";
        let (status, view) = broker.admin().post(path, &json!({})).await;
        assert_eq!((status, &view["tools"]), (200, &json!(count)), "{view}");
    }
}

#[tokio::test]
async fn a_burst_of_list_changed_causes_one_refresh_and_one_notification() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    backend.wait_get_streams(1).await;
    let before = backend.recorded_of("tools/list").len();
    backend.list("tools", vec![tool("echo"), tool("new")]);
    for _ in 0..50 {
        backend.notify("notifications/tools/list_changed", json!({})).await;
    }
    stream.find(|message| message["method"] == "notifications/tools/list_changed").await;
    assert_eq!(client.tool_names().await, ["b__echo", "b__new"]);
    client.delete_session().await;
    let mut more = 0;
    while let Some(event) = stream.next().await {
        more += usize::from(event.message().is_some());
    }
    assert_eq!(more, 0, "told once");
    let refreshes = backend.recorded_of("tools/list").len() - before;
    assert!(refreshes <= 3, "{refreshes} refreshes for one burst");
}

#[tokio::test]
async fn a_list_changed_without_a_change_is_not_forwarded() {
    let (broker, backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    backend.wait_get_streams(1).await;
    let before = backend.recorded_of("tools/list").len();
    backend.notify("notifications/tools/list_changed", json!({})).await;
    backend.wait_count("the refresh", before + 1, |seen| seen.is("tools/list")).await;
    backend.list("prompts", vec![json!({"name": "p"})]);
    backend.notify("notifications/prompts/list_changed", json!({})).await;
    let (_, first) = stream.next_message().await.unwrap();
    assert_eq!(first["method"], "notifications/prompts/list_changed", "only what changed is told");
}

#[tokio::test]
async fn tool_06_adding_and_removing_a_backend_changes_open_sessions_lists() {
    let (broker, _backend) = echo().await;
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    let other = FakeBackend::with_tool("other", |_| async { Reply::text("other") }).await;
    broker.admin().put_ready_backend("default", "o", &other.spec()).await;
    stream.find(|message| message["method"] == "notifications/tools/list_changed").await;
    assert_eq!(client.tool_names().await, ["b__echo", "o__other"]);
    assert_eq!(text_of(&client.call("o__other", json!({})).await), "other");
    broker.admin().delete("/admin/v1/tenants/default/backends/o").await;
    stream.find(|message| message["method"] == "notifications/tools/list_changed").await;
    assert_eq!(client.tool_names().await, ["b__echo"]);
    assert_eq!(client.error("tools/call", json!({"name": "o__other"})).await["code"], -32602);
}

#[tokio::test]
async fn replacing_a_backend_uses_the_new_one_at_once() {
    let (broker, _old) = echo().await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    let new = FakeBackend::with_tool("echo", |_| async { Reply::text("the new one") }).await;
    broker.admin().put_ready_backend("default", "b", &new.spec()).await;
    assert_eq!(text_of(&client.call("b__echo", json!({})).await), "the new one");
}

#[tokio::test]
async fn a_failing_list_keeps_the_other_lists() {
    let backend = FakeBackend::echo().await;
    backend.list("prompts", vec![json!({"name": "p"})]);
    backend.on("resources/list", |_| async { Reply::error(-32603, "inner") });
    backend.on("resources/templates/list", |_| async { Reply::error(-32601, "not here") });
    let broker = builder().start().await;
    broker.admin().put_backend("default", "b", &backend.spec()).await;
    broker.admin().wait_backend("default", "b", "a tool", |view| view["tools"] == 1).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__echo"]);
    assert_eq!(client.list_all("prompts/list", "prompts").await.len(), 1);
    assert_eq!(client.list_all("resources/list", "resources").await.len(), 0);
}

#[tokio::test]
async fn an_error_does_not_empty_a_list_that_clients_have() {
    let backend = FakeBackend::echo().await;
    let broker = broker_with(&backend).await;
    let client = broker.connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__echo"]);
    backend.on("tools/list", |_| async { Reply::error(-32603, "database down") });
    backend.notify("notifications/tools/list_changed", json!({})).await;
    let view = broker.admin().wait_backend_state("default", "b", "degraded").await;
    assert!(view["last_error"].as_str().unwrap().contains("tools/list"), "{view}");
    assert_eq!(client.tool_names().await, ["b__echo"]);
    let tools = json!({"tools": [testkit::backend::tool("echo"), testkit::backend::tool("two")]});
    backend.on("tools/list", move |_| {
        let tools = tools.clone();
        async move { Reply::Result(tools) }
    });
    broker.admin().wait_backend("default", "b", "both tools", |view| view["tools"] == 2).await;
    assert_eq!(client.tool_names().await, ["b__echo", "b__two"]);
}
