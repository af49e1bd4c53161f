//! MCP Apps and other extensions: links to user interfaces, the names that apps use, and what each
//! side declares.

use serde_json::{Value, json};
use testkit::{
    FakeBackend, PipeBackend, Reply, StatelessBackend, StatelessReply, TestBroker, backend::tool,
};

use crate::{
    alone_with, broker_with, builder, configured, kind,
    stateless::{Modern, VERSION},
    stdio, text_of,
};

const UI: &str = "ui://app/view.html";
const EXPOSED: &str = "ui://b+app/view.html";
const EXTENSION: &str = "io.modelcontextprotocol/ui";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

/// Returns what a host of apps declares.
fn host() -> Value {
    json!({"extensions": {EXTENSION: {"mimeTypes": ["text/html;profile=mcp-app"]}, "com.example/x": {"y": 15}}})
}

fn app_tool(name: &str) -> Value {
    let mut tool = tool(name);
    tool["_meta"] = json!({"ui": {"resourceUri": UI}, "ui/resourceUri": UI});
    tool
}

/// Starts a backend with an app: a tool that shows it, and a tool that it calls. The results name
/// the backend.
async fn with_app(name: &'static str) -> FakeBackend {
    let backend = FakeBackend::start().await;
    backend.sessions();
    backend.list("tools", vec![app_tool("show"), tool("poll")]);
    for tool in ["show", "poll"] {
        backend.tool(tool, move |_| async move { Reply::text(name) });
    }
    backend
}

async fn two_apps() -> (TestBroker, [FakeBackend; 2]) {
    let (one, two) = (with_app("one").await, with_app("two").await);
    two.list("tools", vec![app_tool("view"), tool("poll")]);
    two.tool("view", |_| async { Reply::text("two") });
    let broker = builder()
        .backend("default", "one", one.spec())
        .backend("default", "two", two.spec())
        .start()
        .await;
    (broker, [one, two])
}

#[tokio::test]
async fn links_to_a_user_interface_name_their_backend_in_every_message() {
    let backend = FakeBackend::start().await;
    backend.capabilities(json!({"tools": {}, "resources": {"subscribe": true}}));
    backend.list("tools", vec![app_tool("show")]);
    backend.list("resources", vec![json!({"uri": UI, "name": "view"})]);
    backend.list(
        "resourceTemplates",
        vec![json!({"uriTemplate": "ui://app/{view}", "name": "views"})],
    );
    backend.on("resources/read", |call| async move {
        let uri = call.params()["uri"].clone();
        let meta = json!({"ui": {"csp": {"connectDomains": ["https://a.example"]}, "prefersBorder": true}});
        Reply::Result(json!({"contents": [{"uri": uri, "mimeType": "text/html;profile=mcp-app", "text": "<p>", "_meta": meta}]}))
    });
    backend.on("resources/subscribe", |_| async { Reply::Result(json!({})) });
    backend.tool("show", |_| async {
        let resource = json!({"uri": UI, "text": "<p>"});
        Reply::Result(json!({"content": [{"type": "resource_link", "uri": UI, "name": "view"}, {"type": "resource", "resource": resource}],
            "_meta": {"ui": {"resourceUri": UI, "domain": "d.example"}, "ui/resourceUri": UI}}))
    });
    let broker = broker_with(&backend).await;
    let (all, one) =
        (broker.connected(host()).await, broker.client("/mcp/b").connected(host()).await);
    for (client, name, uri, template) in
        [(&all, "b__show", EXPOSED, "ui://b+app/{view}"), (&one, "show", UI, "ui://app/{view}")]
    {
        let tools = client.list_all("tools/list", "tools").await;
        assert_eq!(tools[0]["_meta"], json!({"ui": {"resourceUri": uri}, "ui/resourceUri": uri}));
        assert_eq!(client.list_all("resources/list", "resources").await[0]["uri"], uri);
        let templates = client.list_all("resources/templates/list", "resourceTemplates").await;
        assert_eq!(templates[0]["uriTemplate"], template);
        let result = client.call(name, json!({})).await;
        assert_eq!(result["content"][0]["uri"], uri);
        assert_eq!(result["content"][1]["resource"]["uri"], uri);
        let meta =
            json!({"ui": {"resourceUri": uri, "domain": "d.example"}, "ui/resourceUri": uri});
        assert_eq!(result["_meta"], meta);
        // Servers need not list their user interfaces.
        let unlisted = uri.replace("view.html", "other.html");
        let read = client.result("resources/read", json!({"uri": unlisted})).await;
        assert_eq!(read["contents"][0]["uri"], *unlisted);
        assert_eq!(read["contents"][0]["_meta"]["ui"]["prefersBorder"], true);
        assert_eq!(
            backend.recorded_of("resources/read").pop().unwrap().message["params"]["uri"],
            "ui://app/other.html"
        );
        let mut stream = client.open_get_stream().await;
        client.result("resources/subscribe", json!({"uri": uri})).await;
        backend.notify("notifications/resources/updated", json!({"uri": UI})).await;
        let (_, updated) = stream.next_message().await.unwrap();
        assert_eq!(updated["params"]["uri"], uri);
        client.result("resources/unsubscribe", json!({"uri": uri})).await;
    }
}

#[tokio::test]
async fn an_app_calls_the_tools_of_its_own_server_and_no_other() {
    let (broker, [one, two]) = two_apps().await;
    let client = broker.connected(host()).await;
    assert_eq!(text_of(&client.call("show", json!({})).await), "one");
    assert_eq!(text_of(&client.call("view", json!({})).await), "two");
    assert_eq!(text_of(&client.call("two__poll", json!({})).await), "two");
    let ambiguous = json!({"name": "poll", "arguments": {}});
    let refusal = client.error("tools/call", ambiguous.clone()).await;
    assert_eq!((kind(&refusal), &refusal["code"]), ("tool_ambiguous", &json!(-32602)));
    assert_eq!(refusal["data"]["tools"], json!(["one__poll", "two__poll"]));
    let modern = Modern::of(&broker, "/mcp").with(host());
    let refusal = modern.error("tools/call", ambiguous).await;
    assert_eq!(refusal["data"]["tools"], json!(["one__poll", "two__poll"]));
    let shown = modern.result("tools/call", json!({"name": "view", "arguments": {}})).await;
    assert_eq!(text_of(&shown), "two");
    assert_eq!(one.count(|seen| seen.calls("poll")), 0);
    assert_eq!(two.count(|seen| seen.calls("poll")), 1);
}

/// What a caller may not see cannot make its calls ambiguous, and policy names the backend's tool.
#[tokio::test]
async fn app_names_resolve_only_to_backends_visible_to_the_caller() {
    let (broker, _backends) = two_apps().await;
    let rules = json!([
        {"id": "no-two", "effect": "deny", "objects": {"backends": ["two"]}},
        {"id": "no-show", "effect": "deny", "objects": {"tools": ["one/show"]}},
    ]);
    let put = |rules: &Value| json!({"default": "allow", "rules": rules});
    let admin = broker.admin();
    let path = "/admin/v1/tenants/default/policy";
    let client = broker.connected(host()).await;
    admin.put(path, &put(&json!([rules[0]]))).await;
    assert_eq!(text_of(&client.call("poll", json!({})).await), "one");
    let hidden = client.error("tools/call", json!({"name": "view", "arguments": {}})).await;
    assert_eq!(kind(&hidden), "tool_not_found");
    // The app's only tool with a link is hidden, so the backend has no app for this caller.
    admin.put(path, &put(&rules)).await;
    for name in ["show", "poll"] {
        let hidden = client.error("tools/call", json!({"name": name, "arguments": {}})).await;
        assert_eq!(kind(&hidden), "tool_not_found", "{name}");
    }
    assert_eq!(text_of(&client.call("one__poll", json!({})).await), "one");
}

#[tokio::test]
async fn names_of_apps_can_be_switched_off() {
    let backend = with_app("one").await;
    let broker = configured(json!({"compat": {"app_names": false}}), backend.spec()).await;
    let client = broker.connected(host()).await;
    let refusal = client.error("tools/call", json!({"name": "poll", "arguments": {}})).await;
    assert_eq!(kind(&refusal), "tool_not_found");
    assert_eq!(text_of(&client.call("b__poll", json!({})).await), "one");
}

#[tokio::test]
async fn a_denied_user_interface_is_not_linked_and_the_tool_still_answers() {
    let backend = with_app("one").await;
    backend.capabilities(json!({"tools": {}, "resources": {}}));
    backend.on("resources/read", |_| async { Reply::Result(json!({"contents": []})) });
    let broker = broker_with(&backend).await;
    let rule = json!({"id": "no-ui", "effect": "deny", "objects": {"resources": ["b/ui://*"]}});
    let policy = json!({"default": "allow", "rules": [rule]});
    let (status, answer) = broker.admin().put("/admin/v1/tenants/default/policy", &policy).await;
    assert!([200, 201].contains(&status), "{answer}");
    for (client, name) in [
        (broker.connected(host()).await, "b__show"),
        (broker.client("/mcp/b").connected(host()).await, "show"),
    ] {
        let tools = client.list_all("tools/list", "tools").await;
        assert_eq!((&tools[0]["name"], &tools[0]["_meta"]), (&json!(name), &json!({"ui": {}})));
        assert_eq!(text_of(&client.call(name, json!({})).await), "one");
        let uri = if name == "show" { UI } else { EXPOSED };
        let hidden = client.error("resources/read", json!({"uri": uri})).await;
        assert_eq!(kind(&hidden), "resource_not_found");
    }
}

#[tokio::test]
async fn extensions_of_a_client_reach_its_backend_in_every_revision() {
    let backend = with_app("one").await;
    let broker = alone_with(&backend).await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = broker.client("/mcp");
        client.initialize(version, host()).await;
        client.call("b__poll", json!({})).await;
        let received = backend.recorded_of("initialize").pop().unwrap();
        let received = &received.message["params"]["capabilities"];
        assert_eq!(received["extensions"], host()["extensions"], "{version}");
    }
    Modern::of(&broker, "/mcp").with(host()).result("tools/call", json!({"name": "b__poll"})).await;
    let received = backend.recorded_of("initialize").pop().unwrap();
    assert_eq!(received.message["params"]["capabilities"], host());
    let plain = broker.connected(json!({})).await;
    plain.call("b__poll", json!({})).await;
    let received = backend.recorded_of("initialize").pop().unwrap();
    assert_eq!(received.message["params"]["capabilities"], json!({}));
}

/// Sessions that declare the same extensions share a pipe, and no others do.
#[tokio::test]
async fn a_shared_pipe_declares_the_extensions_of_its_clients() {
    let backend = PipeBackend::tcp(&stdio()).await;
    let broker = builder().single_process().backend("default", "s", backend.spec()).start().await;
    let links = || async { broker.admin().backend("default", "s").await["links"].clone() };
    let before = links().await.as_u64().unwrap();
    for (capabilities, opened) in [(host(), 1), (json!({}), 2), (host(), 2)] {
        broker.connected(capabilities).await.call("s__echo", json!({})).await;
        assert_eq!(links().await, before + opened);
    }
}

#[tokio::test]
async fn extensions_reach_backends_of_2026_07_28_with_each_request() {
    let backend = StatelessBackend::http().await;
    backend.list("tools", vec![app_tool("show")]);
    backend.tool("show", |_| async { StatelessReply::text("shown") });
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let mut expected = host()["extensions"].clone();
    expected["io.modelcontextprotocol/tasks"] = json!({});
    let declared = || {
        let call = backend.recorded_of("tools/call").pop().unwrap();
        call.message["params"]["_meta"][CAPABILITIES]["extensions"].clone()
    };
    broker.connected(host()).await.call("b__show", json!({})).await;
    assert_eq!(declared(), expected);
    let modern = Modern::of(&broker, "/mcp").with(host());
    modern.result("tools/call", json!({"name": "b__show"})).await;
    assert_eq!(declared(), expected);
}

/// An endpoint declares what its backends declare, in both eras.
#[tokio::test]
async fn endpoints_declare_the_extensions_of_their_backends() {
    let (old, new) = (with_app("one").await, StatelessBackend::http().await);
    old.capabilities(
        json!({"tools": {}, "extensions": {EXTENSION: {}, "com.example/x": {"a": 1}}}),
    );
    new.capabilities(json!({"tools": {}, "extensions": {"com.example/y": {}, "com.example/x": {"a": 2}, "io.modelcontextprotocol/tasks": {}}}));
    let broker = builder()
        .backend("default", "a", old.spec())
        .backend("default", "b", new.spec())
        .start()
        .await;
    let of_old = json!({EXTENSION: {}, "com.example/x": {"a": 1}});
    let of_new = json!({"com.example/y": {}, "com.example/x": {"a": 2}});
    let of_both = json!({EXTENSION: {}, "com.example/x": {"a": 1}, "com.example/y": {}});
    for (path, expected) in [("/mcp", of_both), ("/mcp/a", of_old), ("/mcp/b", of_new)] {
        let answer = broker.client(path).initialize("2025-11-25", json!({})).await;
        assert_eq!(answer["capabilities"]["extensions"], expected, "{path}");
        let modern = Modern::of(&broker, path).result("server/discover", json!({})).await;
        assert_eq!(modern["supportedVersions"].as_array().unwrap().last().unwrap(), VERSION);
        let mut with_tasks = expected;
        with_tasks["io.modelcontextprotocol/tasks"] = json!({});
        assert_eq!(modern["capabilities"]["extensions"], with_tasks, "{path}");
    }
    // The link that reads the lists shows itself as a host of apps.
    let first = &old.recorded_of("initialize")[0].message["params"]["capabilities"];
    let ui = &first["extensions"][EXTENSION];
    assert_eq!(*ui, json!({"mimeTypes": ["text/html;profile=mcp-app"]}));
}

/// A client that changes the settings of an extension with each request does not open a session at
/// the backend for each.
#[tokio::test]
async fn settings_of_extensions_open_a_bounded_number_of_sessions() {
    let backend = with_app("one").await;
    let broker = alone_with(&backend).await;
    for number in 0..40 {
        let extensions = json!({"extensions": {"com.example/x": {"n": number}}});
        let modern = Modern::of(&broker, "/mcp").with(extensions);
        modern.result("tools/call", json!({"name": "b__poll"})).await;
    }
    // One session reads the lists.
    backend.wait_live_sessions(|count| count <= 17).await;
}
