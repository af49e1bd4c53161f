//! Results that are longer than the budget of their toolset: shortened, and read in pages by the
//! principal that made the call.

use serde_json::{Value, json};
use testkit::{AdminClient, FakeBackend, Reply, TestBroker, backend::tool, eventually};

use crate::{builder, kind, stateless::Modern, text_of};

const SET: &str = "/admin/v1/tenants/default/toolsets/set";

fn lines() -> String {
    (0..2_000).map(|at| format!("line {at}\n")).collect()
}

async fn backend() -> FakeBackend {
    let backend = FakeBackend::start().await;
    backend.tool("long", |_| async { Reply::text(&lines()) });
    backend.tool("short", |_| async { Reply::text("short") });
    backend.tool("rows", |_| async {
        let rows: Vec<Value> = (0..2_000).map(|at| json!({"row": at})).collect();
        Reply::Result(json!({"content": [{"type": "text", "text": "rows"}], "structuredContent": {"rows": rows}}))
    });
    let mut rows = tool("rows");
    rows["outputSchema"] = json!({"type": "object", "required": ["rows"]});
    backend.list("tools", vec![tool("long"), tool("short"), rows]);
    backend
}

async fn put_set(broker: &TestBroker, more: Value) {
    put_set_at(&broker.admin(), more).await;
}

async fn put_set_at(admin: &AdminClient, more: Value) {
    let mut set = json!({"published": true, "include": {"tools": ["b/*"]}, "names": "unique", "max_result_tokens": 500});
    set.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, answer) = admin.put(SET, &set).await;
    assert!([200, 201].contains(&status), "{answer}");
}

fn link_of(result: &Value) -> String {
    let blocks = result["content"].as_array().unwrap();
    let link = blocks.iter().find(|block| block["type"] == "resource_link");
    link.unwrap_or_else(|| panic!("a link: {result}"))["uri"].as_str().unwrap().to_owned()
}

/// Reads all pages with `read`, which returns the result of `resources/read`.
async fn whole(uri: String, read: impl AsyncFn(Value) -> Value) -> String {
    let (mut text, mut next) = (String::new(), Some(uri));
    while let Some(uri) = next {
        let page = read(json!({"uri": uri})).await["contents"][0].clone();
        let part = page["text"].as_str().unwrap_or_else(|| panic!("a page: {page}"));
        assert!(part.len() <= 2_000, "a page has the budget: {}", part.len());
        text += part;
        next = page["_meta"]["dev.mcp-broker/next"].as_str().map(str::to_owned);
    }
    text
}

#[tokio::test]
async fn a_long_result_is_shortened_and_read_in_pages_in_both_eras() {
    let backend = backend().await;
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    put_set(&broker, json!({})).await;
    let client = broker.client("/mcp/t/set").connected(json!({})).await;
    let short = client.call("long", json!({})).await;
    assert!(short.to_string().len() <= 2_000, "{short}");
    assert!(lines().starts_with(text_of(&short)));
    let text = whole(link_of(&short), async |params| client.result("resources/read", params).await);
    assert_eq!(text.await, lines());
    assert_eq!(text_of(&client.call("short", json!({})).await), "short");
    let modern = Modern::of(&broker, "/mcp/t/set");
    let short = modern.call("long", json!({})).await;
    let text = whole(link_of(&short), async |params| modern.result("resources/read", params).await);
    assert_eq!(text.await, lines());
    let unlimited = broker.client("/mcp").connected(json!({})).await;
    assert_eq!(text_of(&unlimited.call("b__long", json!({})).await), lines());
}

#[tokio::test]
async fn structured_content_is_never_cut_and_its_schema_is_not_listed() {
    let backend = backend().await;
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    put_set(&broker, json!({"overrides": {"b/long": {"max_result_tokens": 100_000}}})).await;
    let client = broker.client("/mcp/t/set").connected(json!({})).await;
    let listed = client.result("tools/list", json!({})).await;
    let tools = listed["tools"].as_array().unwrap();
    assert!(tools.iter().all(|tool| tool.get("outputSchema").is_none()), "{listed}");
    assert_eq!(text_of(&client.call("long", json!({})).await), lines(), "by its own budget");
    let short = client.call("rows", json!({})).await;
    assert_eq!(short.get("structuredContent"), None, "{short}");
    let text = whole(link_of(&short), async |params| client.result("resources/read", params).await);
    let read: Value = serde_json::from_str(&text.await).unwrap();
    assert_eq!(read["structuredContent"]["rows"].as_array().unwrap().len(), 2_000);
    let faults = json!({"max_result_tokens": 1, "overrides": {"b/long": {"max_result_tokens": 0}}});
    let (status, problem) = broker.admin().put(SET, &faults).await;
    assert_eq!((status, problem["faults"].as_array().unwrap().len()), (422, 2), "{problem}");
}

#[tokio::test]
async fn only_the_calling_principal_reads_the_result_also_after_a_restart() {
    let backend = backend().await;
    let mut broker =
        builder().auth_required().backend("default", "b", backend.spec()).start().await;
    put_set(&broker, json!({})).await;
    let mut keys = Vec::new();
    for principal in ["ann", "bob"] {
        let keys_path = "/admin/v1/tenants/default/keys";
        let (_, key) = broker.admin().post(keys_path, &json!({"principal": principal})).await;
        keys.push(key["key"].as_str().unwrap().to_owned());
    }
    let ann = broker.client("/mcp/t/set").bearer(&keys[0]).connected(json!({})).await;
    let uri = link_of(&ann.call("long", json!({})).await);
    let absent = |uri: &str| json!({"uri": format!("{}x", uri)});
    for path in ["/mcp", "/mcp/t/set"] {
        let bob = broker.client(path).bearer(&keys[1]).connected(json!({})).await;
        let foreign = bob.error("resources/read", json!({"uri": uri})).await;
        let unknown = bob.error("resources/read", absent(&uri)).await;
        assert_eq!((kind(&foreign), kind(&unknown)), ("resource_not_found", "resource_not_found"));
        assert_eq!(
            (&foreign["code"], &foreign["message"]),
            (&unknown["code"], &unknown["message"])
        );
    }
    let page = json!({"uri": format!("{uri}?page=999")});
    assert_eq!(kind(&ann.error("resources/read", page).await), "invalid_params");
    broker.terminate().await;
    broker.restart().await;
    let ann = broker.client("/mcp").bearer(&keys[0]).connected(json!({})).await;
    let text = whole(uri.clone(), async |params| ann.result("resources/read", params).await);
    assert_eq!(text.await, lines());
    // A tool that the principal may not call any more has no results either.
    let policy = json!({"default": "allow", "rules": [{"id": "r", "effect": "deny", "objects": {"tools": ["b/long"]}}]});
    let (status, answer) = broker.admin().put("/admin/v1/tenants/default/policy", &policy).await;
    assert_eq!(status, 201, "{answer}");
    let denied = ann.error("resources/read", json!({"uri": uri})).await;
    assert_eq!(kind(&denied), "resource_not_found");
}

/// The call is made at one replica, and its pages are read at the other one.
#[tokio::test]
async fn a_result_is_read_at_another_replica_by_its_principal_alone() {
    let backend = backend().await;
    let cluster = builder().auth_required().cluster(2).start().await;
    let (here, there) = (cluster.admin(0), cluster.admin(1));
    here.put_ready_backend("default", "b", &backend.spec()).await;
    let mut keys = Vec::new();
    for principal in ["ann", "bob"] {
        let path = "/admin/v1/tenants/default/keys";
        let (_, key) = here.post(path, &json!({"principal": principal})).await;
        keys.push(key["key"].as_str().unwrap().to_owned());
    }
    put_set_at(&here, json!({})).await;
    there.wait_backend_state("default", "b", "ready").await;
    eventually("the toolset at the other replica", || async {
        let (status, answer) = there.get(SET).await;
        if status == 200 { Ok(()) } else { Err(answer) }
    })
    .await;
    let ann = cluster.client_of(0, "/mcp/t/set").bearer(&keys[0]).connected(json!({})).await;
    let short = ann.call("long", json!({})).await;
    assert!(short.to_string().len() <= 2_000, "{short}");
    let uri = link_of(&short);
    let elsewhere = cluster.client_of(1, "/mcp/t/set").bearer(&keys[0]).connected(json!({})).await;
    let read = async |params| elsewhere.result("resources/read", params).await;
    assert_eq!(whole(uri.clone(), read).await, lines(), "a session of the other replica");
    // The session of the call itself, whose next requests reach the other replica.
    let moved = cluster.at(1, &ann);
    let read = async |params| moved.result("resources/read", params).await;
    assert_eq!(whole(uri.clone(), read).await, lines(), "a request that is forwarded");
    let bob = cluster.client_of(1, "/mcp/t/set").bearer(&keys[1]).connected(json!({})).await;
    let foreign = bob.error("resources/read", json!({"uri": uri})).await;
    assert_eq!(kind(&foreign), "resource_not_found", "{foreign}");
}
