//! Toolsets: bundles of tools with an endpoint of their own, and prompts that the broker hosts.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use testkit::{
    Authority, DuplexClient, FakeBackend, QuicPeer, Reply, TestBroker, TestClient, duplex::Wire,
    eventually, within,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{binary, builder, kind, stateless::Modern, text_of};

const TOOLSETS: &str = "/admin/v1/tenants/default/toolsets";
const PROMPTS: &str = "/admin/v1/tenants/default/prompts";

fn described(name: &str, reads: bool) -> Value {
    let schema = json!({
        "type": "object", "required": ["repo"], "additionalProperties": false,
        "properties": {"repo": {"type": "string"}, "path": {"type": "string"}}
    });
    json!({"name": name, "description": format!("Tool {name}. Long."), "inputSchema": schema,
        "annotations": {"readOnlyHint": reads}})
}

/// A backend whose tools answer with the arguments that they got.
async fn backend(tools: &[&str]) -> FakeBackend {
    let backend = FakeBackend::start().await;
    for name in tools {
        backend.tool(name, |call| async move { Reply::text(&call.arguments().to_string()) });
    }
    backend.list("tools", tools.iter().map(|name| described(name, *name == "read")).collect());
    backend.list("prompts", vec![json!({"name": "review"})]);
    let uris = ["file:///a/1", "file:///b/1"].map(|uri| json!({"uri": uri, "name": uri}));
    backend.list("resources", uris.into());
    backend.on("resources/read", |_| async { Reply::Result(json!({"contents": []})) });
    backend.on("prompts/get", |_| async { Reply::Result(json!({"messages": []})) });
    backend
}

async fn put(broker: &TestBroker, path: &str, document: Value) -> Value {
    let (status, answer) = broker.admin().put(path, &document).await;
    assert!([200, 201].contains(&status), "{status} {answer}");
    answer
}

async fn put_toolset(broker: &TestBroker, name: &str, document: Value) -> Value {
    put(broker, &format!("{TOOLSETS}/{name}"), document).await
}

/// A toolset of one tool with an alias, fixed arguments, some resources and one prompt.
fn reading() -> Value {
    json!({
        "description": "For reading.", "published": true,
        "include": {"tools": ["b/read"], "prompts": ["b/*"], "resources": ["b/file:///a/*"]},
        "aliases": {"b/read": "look"},
        "overrides": {"b/read": {"args": {"repo": {"const": "x", "hidden": true}}}},
        "descriptions": "first_sentence"
    })
}

async fn started(backend: &FakeBackend) -> TestBroker {
    builder().backend("default", "b", backend.spec()).start().await
}

async fn sent(client: &TestClient, tool: &str, arguments: Value) -> Value {
    serde_json::from_str(text_of(&client.call(tool, arguments).await)).unwrap()
}

#[tokio::test]
async fn a_toolset_is_stored_changed_and_removed() {
    let backend = backend(&["read", "write"]).await;
    let broker = started(&backend).await;
    let (admin, path) = (broker.admin(), format!("{TOOLSETS}/set"));
    let (status, view) = admin.put(&path, &json!({})).await;
    assert_eq!(status, 201, "{view}");
    assert_eq!((&view["name"], view.get("endpoint")), (&json!("set"), None), "closed at first");
    let refused = broker.client("/mcp/t/set").error("ping", json!({})).await;
    assert_eq!(kind(&refused), "not_found", "{refused}");
    let (status, _) = admin.put(&path, &reading()).await;
    assert_eq!(status, 200);
    let shown = admin.send("GET", &path, None).await;
    let tag = shown.header("etag").unwrap().to_owned();
    let view = shown.json().await;
    assert_eq!((&view["endpoint"], &view["lists"]["tools"]), (&json!("/mcp/t/set"), &json!(1)));
    for (tag, expected) in [("\"other\"", 412), (tag.as_str(), 200)] {
        let answer = admin.send_with("PUT", &path, &[("if-match", tag)], Some(&reading())).await;
        assert_eq!(answer.status, expected);
    }
    let faults =
        json!({"include": {"tools": ["gone/x"]}, "aliases": {"b/read": "a__b"}, "enforce": true});
    let (status, problem) = admin.put(&path, &faults).await;
    let fields: Vec<&str> = problem["faults"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["field"].as_str().unwrap())
        .collect();
    assert_eq!(
        (status, fields),
        (422, vec!["include.tools[0]", "aliases.b/read", "enforce"]),
        "{problem}"
    );
    let (status, problem) = admin.put(&path, &json!({"includes": {}, "names": "maybe"})).await;
    assert_eq!((status, problem["faults"].as_array().unwrap().len()), (400, 2), "{problem}");
    assert_eq!(
        admin.get("/admin/v1/tenants/default/toolsets").await.1["toolsets"][0]["name"],
        "set"
    );
    let (_, cost) = admin.get("/admin/v1/tenants/default/catalog/cost?toolset=set").await;
    assert_eq!(
        (&cost["tools"], &cost["most"][0]["object"]),
        (&json!(1), &json!("b/read")),
        "{cost}"
    );
    let client = broker.client("/mcp/t/set").connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["look"]);
    assert_eq!(admin.delete(&path).await.0, 204);
    eventually("the end of its sessions", || async {
        let answer = client.request("ping", json!({})).await;
        if answer["error"]["data"]["kind"] == "not_found" { Ok(()) } else { Err(answer) }
    })
    .await;
    assert_eq!(admin.delete(&path).await.0, 404);
}

/// A backend whose tool only reads, and loses its first answer.
async fn forgetful() -> FakeBackend {
    let backend = FakeBackend::start().await;
    let has_answered = AtomicBool::new(false);
    backend.tool("read", move |_| {
        let is_second = has_answered.swap(true, Ordering::Relaxed);
        async move { if is_second { Reply::text("second") } else { Reply::Cut } }
    });
    backend.list("tools", vec![described("read", true)]);
    backend
}

#[tokio::test]
async fn f_31_a_lost_call_is_not_repeated_if_its_toolset_lists_stricter_hints() {
    let strict = json!({
        "published": true, "include": {"tools": ["b/read"]},
        "overrides": {"b/read": {"annotations": {"readOnlyHint": false}}}
    });
    for (path, calls) in [("/mcp", 2), ("/mcp/t/set", 1)] {
        for is_task in [false, true] {
            let backend = forgetful().await;
            let broker = started(&backend).await;
            put_toolset(&broker, "set", strict.clone()).await;
            let client = broker.client(path).connected(json!({})).await;
            let mut params = json!({"name": "b__read", "arguments": {"repo": "x"}});
            if is_task {
                params["task"] = json!({});
            }
            let mut answer = client.request("tools/call", params).await;
            if is_task {
                let id = &answer["result"]["task"]["taskId"];
                answer = client.request("tasks/result", json!({"taskId": id})).await;
            }
            match calls {
                2 => assert_eq!(text_of(&answer["result"]), "second", "{path}: {answer}"),
                _ => assert_eq!(kind(&answer["error"]), "outcome_unknown", "{path}: {answer}"),
            }
            assert_eq!(backend.recorded_of("tools/call").len(), calls, "{path}");
        }
    }
}

/// Returns a broker that audits calls, with a toolset that names `read` of the backend `look`.
async fn audited_broker() -> (FakeBackend, TestBroker) {
    let backend = backend(&["read"]).await;
    let broker = builder()
        .config(json!({"audit": {"calls": "metadata"}}))
        .backend("default", "b", backend.spec())
        .start()
        .await;
    put_toolset(&broker, "set", reading()).await;
    (backend, broker)
}

#[tokio::test]
async fn the_audit_log_contains_the_backend_name_of_a_tool() {
    let (_backend, broker) = audited_broker().await;
    let client = broker.client("/mcp/t/set").connected(json!({})).await;
    client.call("look", json!({})).await;
    eventually("the record", || async {
        let (_, page) = broker.admin().get("/admin/v1/audit?kind=call").await;
        let entries = page["records"].as_array().cloned().unwrap_or_default();
        let is_call = |entry: &&Value| entry["action"] == "tools/call";
        match entries.iter().find(is_call) {
            Some(entry)
                if entry["target"] == "look"
                    && entry["tool"] == "read"
                    && entry["backend"] == "b" =>
            {
                Ok(())
            }
            _ => Err(page),
        }
    })
    .await;
}

#[tokio::test]
async fn the_audit_record_of_a_task_contains_the_backend_name_of_its_tool() {
    let (_backend, broker) = audited_broker().await;
    for (path, target, tool) in
        [("/mcp/t/set", "look", json!("read")), ("/mcp", "b__read", Value::Null)]
    {
        let client = broker.client(path).connected(json!({})).await;
        let call = json!({"name": target, "arguments": {"repo": "x"}, "task": {}});
        client.result("tools/call", call).await;
        let record = eventually("the record of the task", || async {
            let (_, page) = broker.admin().get("/admin/v1/audit?kind=call").await;
            let entries = page["records"].as_array().cloned().unwrap_or_default();
            let is_of_task =
                |entry: &Value| entry["transport"] == "task" && entry["target"] == target;
            entries.into_iter().find(is_of_task).ok_or(page)
        })
        .await;
        assert_eq!((&record["backend"], &record["tool"]), (&json!("b"), &tool), "{record}");
    }
}

#[tokio::test]
async fn ambiguous_names_are_not_published() {
    let (one, other) = (backend(&["read", "write"]).await, backend(&["read"]).await);
    let broker = builder()
        .backend("default", "one", one.spec())
        .backend("default", "other", other.spec())
        .start()
        .await;
    broker.connected(json!({})).await; // the lists are there
    let document = |names: &str, published: bool| json!({"include": {"tools": ["*"]}, "names": names, "published": published});
    let path = format!("{TOOLSETS}/set");
    let (status, problem) = broker.admin().put(&path, &document("never", true)).await;
    assert_eq!(status, 409, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("one/read and other/read"), "{problem}");
    put_toolset(&broker, "set", document("never", false)).await;
    put_toolset(&broker, "set", document("unique", true)).await;
    let client = broker.client("/mcp/t/set").connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["one__read", "write", "other__read"]);
    let mut named = document("never", true);
    named["aliases"] = json!({"other/read": "fetch"});
    put_toolset(&broker, "set", named).await;
    assert_eq!(client.tool_names().await, ["read", "write", "fetch"]);
    assert_eq!(sent(&client, "fetch", json!({"repo": "r"})).await, json!({"repo": "r"}));
    assert_eq!(other.recorded_of("tools/call").len(), 1);
}

enum Seat {
    Http(TestClient),
    Duplex(DuplexClient),
    Stateless(Modern),
}

impl Seat {
    async fn answer(&self, method: &str, params: Value) -> Value {
        match self {
            Self::Http(client) => client.request(method, params).await,
            Self::Duplex(client) => client.request(method, params).await,
            Self::Stateless(client) => client.answer(method, params).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_wire_serves_the_same_toolset() {
    let (backend, authority) = (backend(&["read", "write"]).await, Authority::new());
    let mut spec = backend.spec();
    spec["tools"] = json!({"validate_arguments": true});
    let signed = authority.server("server");
    let broker = builder()
        .single_process()
        .config(json!({
            "listen": {"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"},
            "tls": {"cert_file": signed.cert, "key_file": signed.key},
        }))
        .backend("default", "b", spec)
        .start()
        .await;
    put_toolset(&broker, "set", reading()).await;
    let address = broker.http_address();
    let meta = json!({"dev.mcp-broker/backend": "t/set"});
    let opened = broker.duplex().websocket(address, "/ws/t/set", &[]).await;
    let sse = Wire::http_sse(address, "/sse/t/set", &[]).await.unwrap();
    let lines = broker.duplex().tcp(broker.tcp_address()).await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let control = broker.duplex().over(peer.control().await);
    for (wire, seat) in [
        ("http", Seat::Http(broker.client("/mcp/t/set").connected(json!({})).await)),
        ("stateless", Seat::Stateless(Modern::of(&broker, "/mcp/t/set"))),
        ("websocket", Seat::Duplex(opened.unwrap().0.connected(json!({})).await)),
        ("sse", Seat::Duplex(broker.duplex().over(sse).connected(json!({})).await)),
        ("tcp", Seat::Duplex(lines.connected_with(json!({}), meta.clone()).await)),
        ("quic", Seat::Duplex(control.connected_with(json!({}), meta).await)),
    ] {
        let tools = seat.answer("tools/list", json!({})).await;
        let tools =
            tools["result"]["tools"].as_array().unwrap_or_else(|| panic!("{wire}: {tools}"));
        assert_eq!(tools.len(), 1, "{wire}");
        assert_eq!(
            (&tools[0]["name"], &tools[0]["description"]),
            (&json!("look"), &json!("Tool read."))
        );
        assert!(tools[0]["inputSchema"]["properties"].get("repo").is_none(), "{wire}: {tools:?}");
        for arguments in [json!({}), json!({"path": "/"}), json!({"repo": "evil"})] {
            let called =
                seat.answer("tools/call", json!({"name": "look", "arguments": arguments})).await;
            let text = called["result"]["content"][0]["text"]
                .as_str()
                .unwrap_or_else(|| panic!("{wire}: {called}"));
            let got: Value = serde_json::from_str(text).unwrap();
            assert_eq!(got["repo"], "x", "{wire} {arguments}: {called}");
        }
        for name in ["read", "b__read", "b__write", "write"] {
            let called =
                seat.answer("tools/call", json!({"name": name, "arguments": {"repo": ""}})).await;
            assert_eq!(kind(&called["error"]), "tool_not_found", "{wire} {name}: {called}");
        }
        let read = |uri: &str| seat.answer("resources/read", json!({"uri": uri}));
        assert!(read("b+file:///a/1").await.get("result").is_some(), "{wire}");
        for uri in ["b+file:///b/1", "b+file:///%61/../b/1", "b+FILE:///b/1"] {
            assert!(read(uri).await.get("result").is_none(), "{wire} {uri}");
        }
        let got = seat.answer("prompts/get", json!({"name": "b__review"})).await;
        assert!(got.get("result").is_some(), "{wire}: {got}");
    }
    let wrong = broker.duplex().tcp(broker.tcp_address()).await;
    let refused = wrong.initialize(json!({}), json!({"dev.mcp-broker/backend": "t/gone"})).await;
    assert_eq!(kind(&refused["error"]), "not_found", "{refused}");
}

#[tokio::test]
async fn a_session_stays_at_its_toolset_and_is_notified_only_of_its_changes() {
    let backend = backend(&["read", "write"]).await;
    let mut broker = started(&backend).await;
    for (name, tools) in [("a", "b/r*"), ("b", "b/w*")] {
        put_toolset(&broker, name, json!({"published": true, "include": {"tools": [tools]}})).await;
    }
    let client = |name: &str| broker.client(&format!("/mcp/t/{name}"));
    let (one, other) =
        (client("a").connected(json!({})).await, client("b").connected(json!({})).await);
    for path in ["/mcp/t/b", "/mcp", "/mcp/b"] {
        let stranger = broker.client(path);
        stranger.set_session(one.session().as_deref());
        stranger.set_version(Some("2025-11-25"));
        let answer = stranger.request("ping", json!({})).await;
        assert_eq!(kind(&answer["error"]), "session_not_found", "{path}: {answer}");
    }
    let (mut stream, mut silent) = (one.open_get_stream().await, other.open_get_stream().await);
    let tools = ["read", "write", "rename"].map(|name| described(name, false));
    backend.list("tools", tools.into());
    backend.notify("notifications/tools/list_changed", json!({})).await;
    let (_, received) = stream.next_message().await.unwrap();
    assert_eq!(received["method"], "notifications/tools/list_changed");
    assert_eq!(one.tool_names().await, ["b__read", "b__rename"]);
    // The other hears nothing of it: its first message is about its own toolset.
    put_toolset(&broker, "b", json!({"published": true, "include": {"prompts": ["*"]}})).await;
    let mut heard = Vec::new();
    while heard.len() < 2 {
        heard.push(silent.next_message().await.unwrap().1["method"].as_str().unwrap().to_owned());
    }
    heard.sort();
    assert_eq!(heard, ["notifications/prompts/list_changed", "notifications/tools/list_changed"]);
    broker.kill().await;
    broker.restart().await;
    assert_eq!(one.to(broker.http_address()).tool_names().await, ["b__read", "b__rename"]);
}

#[tokio::test]
async fn lists_have_the_same_bytes_on_every_replica_and_after_a_restart() {
    let backend = backend(&["read", "write", "delete"]).await;
    let mut cluster = builder().backend("default", "b", backend.spec()).cluster(2).start().await;
    let document = json!({
        "published": true, "include": {"tools": ["*"], "resources": ["*"]}, "names": "unique",
        "overrides": {"b/write": {"rank": 9, "title": "W"}}
    });
    let (status, view) = cluster.admin(0).put(&format!("{TOOLSETS}/set"), &document).await;
    assert_eq!(status, 201, "{view}");
    let mut seen = Vec::new();
    for replica in [0, 1] {
        let view = eventually("the toolset", || async {
            let (_, view) = cluster.admin(replica).get(&format!("{TOOLSETS}/set")).await;
            if view["lists"]["tools"] == 3 { Ok(view) } else { Err(view) }
        })
        .await;
        seen.push((page(&cluster.client_of(replica, "/mcp/t/set")).await, view["lists"].clone()));
    }
    cluster.terminate(0).await;
    cluster.restart(0).await;
    let client = cluster.client_of(0, "/mcp/t/set");
    let after = page(&client).await;
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0].0, after);
    let names: Value = serde_json::from_str(&after).unwrap();
    let names: Vec<&str> = names["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["delete", "read", "write"]);
}

/// Returns the text of the first page of the list of tools.
async fn page(client: &TestClient) -> String {
    let client = client.fresh().connected(json!({})).await;
    let list = json!({"jsonrpc": "2.0", "id": "list", "method": "tools/list", "params": {}});
    client.post(list.to_string()).await.text().await
}

#[tokio::test]
async fn an_enforced_toolset_limits_its_callers_at_every_endpoint() {
    let backend = backend(&["read", "write"]).await;
    let broker = builder().auth_required().backend("default", "b", backend.spec()).start().await;
    let key = async |groups: &[&str]| {
        let keys = "/admin/v1/tenants/default/keys";
        let (_, key) = broker.admin().post(keys, &json!({"groups": groups})).await;
        key["key"].as_str().unwrap().to_owned()
    };
    let (dev, ops) = (key(&["dev"]).await, key(&["ops"]).await);
    put_toolset(
        &broker,
        "set",
        json!({"include": {"tools": ["b/read"]}, "enforce": true, "bind": {"groups": ["dev"]}}),
    )
    .await;
    for (path, prefix) in [("/mcp", "b__"), ("/mcp/b", "")] {
        let client = broker.client(path).bearer(&dev).connected(json!({})).await;
        assert_eq!(client.tool_names().await, [format!("{prefix}read")]);
        let name = format!("{prefix}write");
        let refused = client.error("tools/call", json!({"name": name, "arguments": {}})).await;
        assert_eq!(kind(&refused), "tool_not_found", "{path}");
        let client = broker.client(path).bearer(&ops).connected(json!({})).await;
        assert_eq!(client.tool_names().await.len(), 2, "{path}");
    }
}

/// A prompt with a required argument of listed values, and an optional one.
fn review() -> Value {
    json!({
        "description": "Reviews code.",
        "arguments": [
            {"name": "language", "required": true, "values": ["rust", "ruby"]}, {"name": "note"}
        ],
        "messages": [{"text": "Review this {{language}} code. {{note}}"}, {"role": "assistant", "text": "Gladly."}]
    })
}

#[tokio::test]
async fn a_hosted_prompt_is_listed_filled_and_completed() {
    let backend = backend(&["read"]).await;
    let broker = started(&backend).await;
    let (status, problem) = broker
        .admin()
        .put(&format!("{PROMPTS}/review"), &json!({"messages": [{"text": "{{x}}"}]}))
        .await;
    assert_eq!((status, &problem["field"]), (422, &json!("messages[0].text")), "{problem}");
    assert_eq!(broker.admin().put(&format!("{PROMPTS}/a__b"), &review()).await.0, 400);
    put(&broker, &format!("{PROMPTS}/review"), review()).await;
    let arguments = json!({"language": "rust", "note": "{{language}}"});
    let complete = json!({
        "ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "language", "value": "ru"}
    });
    let client = broker.connected(json!({})).await;
    for seat in [Seat::Http(client), Seat::Stateless(Modern::of(&broker, "/mcp"))] {
        let listed = seat.answer("prompts/list", json!({})).await;
        let names: Vec<&str> = listed["result"]["prompts"]
            .as_array()
            .unwrap_or_else(|| panic!("{listed}"))
            .iter()
            .map(|prompt| prompt["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["review", "b__review"]);
        let got =
            seat.answer("prompts/get", json!({"name": "review", "arguments": arguments})).await;
        let messages = &got["result"]["messages"];
        assert_eq!(messages[0]["content"]["text"], "Review this rust code. {{language}}", "{got}");
        assert_eq!(messages[1]["role"], "assistant");
        for arguments in
            [json!({}), json!({"language": "go"}), json!({"language": "rust", "x": ""})]
        {
            let params = json!({"name": "review", "arguments": arguments});
            let refused = seat.answer("prompts/get", params).await;
            assert_eq!(kind(&refused["error"]), "invalid_params", "{refused}");
        }
        let completed = seat.answer("completion/complete", complete.clone()).await;
        assert_eq!(
            completed["result"]["completion"]["values"],
            json!(["rust", "ruby"]),
            "{completed}"
        );
    }
    let rule = json!({"id": "no", "effect": "deny", "objects": {"prompts": ["_broker/review"]}});
    put(&broker, "/admin/v1/tenants/default/policy", json!({"rules": [rule]})).await;
    let client = broker.connected(json!({})).await;
    let refused =
        client.error("prompts/get", json!({"name": "review", "arguments": arguments})).await;
    assert_eq!(kind(&refused), "prompt_not_found");
    let refused = client.error("completion/complete", complete).await;
    assert_eq!(kind(&refused), "reference_not_found");
    assert_eq!(broker.admin().delete(&format!("{PROMPTS}/review")).await.0, 204);
}

#[tokio::test]
async fn declared_toolsets_and_prompts_are_in_force_and_read_only() {
    let backend = backend(&["read"]).await;
    let broker = builder()
        .config(json!({"tenants": {"default": {
            "toolsets": {"set": {"published": true, "include": {"tools": ["b/*"], "prompts": ["_broker/*"]}}},
            "prompts": {"review": review()}
        }}}))
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let client = broker.client("/mcp/t/set").connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__read"]);
    let prompts = client.list_all("prompts/list", "prompts").await;
    assert_eq!((prompts.len(), &prompts[0]["name"]), (1, &json!("review")));
    let (status, problem) = broker.admin().put(&format!("{TOOLSETS}/set"), &json!({})).await;
    assert_eq!(status, 409, "{problem}");
    let listed = broker.cli(&["toolset", "list"]).await;
    assert!(listed.stdout.contains("/mcp/t/set") && listed.stdout.contains("config"), "{listed:?}");
    let cost = broker.cli(&["catalog", "cost", "--toolset", "set"]).await;
    assert!(cost.stdout.contains("b/read"), "{cost:?}");
    let file = broker.folder().join("typo.json");
    let typo = json!({"include": {"tools": ["b/raed"], "prompts": ["_broker/review"]}});
    std::fs::write(&file, typo.to_string()).unwrap();
    let stored = broker.cli(&["toolset", "put", "typo", file.to_str().unwrap()]).await;
    let warnings: Vec<&str> =
        stored.stdout.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert_eq!(
        warnings,
        ["warning: include.tools[0] matches nothing that a backend lists at present"],
        "{stored:?}"
    );
}

#[tokio::test]
async fn a_searched_toolset_calls_the_found_tools_in_both_eras() {
    let backend = backend(&["read", "write"]).await;
    let broker = started(&backend).await;
    put_toolset(
        &broker,
        "set",
        json!({
            "published": true, "search": true, "include": {"tools": ["b/*"]},
            "overrides": {"b/write": {"args": {"path": {"const": "/", "hidden": true}}}}
        }),
    )
    .await;
    let client = broker.client("/mcp/t/set").connected(json!({})).await;
    for seat in [Seat::Http(client), Seat::Stateless(Modern::of(&broker, "/mcp/t/set"))] {
        let listed = seat.answer("tools/list", json!({})).await;
        assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 5, "{listed}");
        let call = |name: &str, arguments: Value| {
            seat.answer("tools/call", json!({"name": name, "arguments": arguments}))
        };
        let found = call("search_tools", json!({"query": "tool write"})).await;
        let found = &found["result"]["structuredContent"]["tools"][0]["name"];
        assert_eq!(found, "b__write");
        let described = call("describe_tool", json!({"name": found})).await;
        let described = &described["result"]["structuredContent"];
        assert_eq!(described["call_with"], "call_tool_destructive", "{described}");
        assert!(described["tool"]["inputSchema"]["properties"].get("path").is_none());
        let inner = json!({"name": found, "arguments": {"repo": "r", "path": "/evil"}});
        let refused = call("call_tool_read", inner.clone()).await;
        assert_eq!(refused["error"]["data"]["call_with"], "call_tool_destructive", "{refused}");
        let called = call("call_tool_destructive", inner).await;
        let text = called["result"]["content"][0]["text"].as_str().unwrap_or_default();
        let got: Value = serde_json::from_str(text).unwrap_or_default();
        assert_eq!(got, json!({"repo": "r", "path": "/"}), "{called}");
        let direct = call("b__write", json!({"repo": "r"})).await;
        assert_eq!(kind(&direct["error"]), "tool_not_found");
    }
    assert_eq!(backend.recorded_of("tools/call").len(), 2);
}

#[tokio::test]
async fn the_cost_of_a_toolset_is_that_of_the_tools_that_it_lists() {
    let backend = backend(&["read", "write"]).await;
    let broker = builder()
        .config(json!({"limits": {"batch_calls": 5}}))
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let document =
        |search: bool| json!({"published": true, "search": search, "include": {"tools": ["b/*"]}});
    put_toolset(&broker, "plain", document(false)).await;
    put_toolset(&broker, "found", document(true)).await;
    let admin = broker.admin();
    for (path, query, objects) in [
        ("/mcp", "", vec![json!("b/read"), json!("b/write"), Value::Null]),
        ("/mcp/t/plain", "?toolset=plain", vec![json!("b/read"), json!("b/write"), Value::Null]),
        ("/mcp/t/found", "?toolset=found", vec![Value::Null; 6]),
    ] {
        let client = broker.client(path).connected(json!({})).await;
        let mut names = client.tool_names().await;
        names.sort();
        let cost = admin.get(&format!("/admin/v1/tenants/default/catalog/cost{query}")).await.1;
        let mut most = cost["most"].as_array().unwrap().clone();
        most.sort_by_key(|tool| tool["name"].to_string());
        let counted: Vec<&str> = most.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(counted, names, "{cost}");
        assert_eq!(cost["tools"], names.len(), "{cost}");
        assert!(
            most.iter().zip(&objects).all(|(tool, object)| tool["object"] == *object),
            "{cost}"
        );
        let bytes: u64 = most.iter().map(|tool| tool["bytes"].as_u64().unwrap()).sum();
        assert_eq!(cost["bytes"], bytes, "{cost}");
        if let Some(name) = path.strip_prefix("/mcp/t/") {
            let (_, view) = admin.get(&format!("{TOOLSETS}/{name}")).await;
            assert_eq!(
                (&view["lists"]["tools"], &view["lists"]["tokens"]),
                (&cost["tools"], &cost["tokens"])
            );
        }
    }
    let shown = broker.cli(&["catalog", "cost", "--toolset", "found"]).await;
    assert!(shown.stdout.contains("search_tools"), "{shown:?}");
}

/// Answers each request with the document of its path, as a registry does.
async fn registry(documents: Vec<(&'static str, Value)>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let path = head.split(' ').nth(1).unwrap_or_default();
            let found = documents.iter().find(|(known, _)| *known == path);
            let (status, body) = found.map_or(("404 Not Found", json!({})), |(_, document)| {
                ("200 OK", json!({"server": document, "_meta": {}}))
            });
            let body = body.to_string();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    format!("http://{address}")
}

#[tokio::test]
async fn a_server_of_a_registry_becomes_a_backend() {
    let schema = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json";
    let package = json!({
        "registryType": "npm", "identifier": "@example/search", "version": "1.2.0",
        "transport": {"type": "stdio"},
        "environmentVariables": [{"name": "API_KEY", "isRequired": true, "isSecret": true}]
    });
    let document = |name: &str, packages: Value| json!({"$schema": schema, "name": name, "description": "d", "version": "1.2.0", "packages": packages});
    let image = json!([{"registryType": "oci", "identifier": "docker.io/a/b:1", "transport": {"type": "stdio"}}]);
    let url = registry(vec![
        (
            "/v0.1/servers/io.example%2Fsearch/versions/1.2.0",
            document("io.example/search", json!([package])),
        ),
        ("/v0.1/servers/io.example%2Fimage/versions/latest", document("io.example/image", image)),
        (
            "/v0.1/servers/io.example%2Fother/versions/latest",
            document("io.evil/other", json!([package])),
        ),
    ])
    .await;
    let broker = builder().single_process().start().await;
    let add = async |arguments: &[&str]| {
        let mut all = vec!["backend", "add", "search", "--no-wait", "--registry-url", &url];
        all.extend(arguments);
        broker.cli(&all).await
    };
    let missing = add(&["--registry", "io.example/search@1.2.0"]).await;
    assert!(missing.code == Some(64) && missing.stderr.contains("API_KEY (secret)"), "{missing:?}");
    for (name, expected) in [
        ("io.example/image", "the broker cannot run images"),
        ("io.example/other", "with io.evil/other@1.2.0"),
        ("io.example/gone", "has no server"),
    ] {
        let refused = add(&["--registry", name]).await;
        assert!(
            refused.code == Some(64) && refused.stderr.contains(expected),
            "{name}: {refused:?}"
        );
    }
    let added = add(&["--registry", "io.example/search@1.2.0", "--input", "API_KEY=k-e-y"]).await;
    assert_eq!(added.code, Some(0), "{added:?}");
    let view = broker.admin().backend("default", "search").await;
    let transport = &view["settings"]["transport"];
    assert_eq!(transport["command"], "npx", "{view}");
    assert_eq!(transport["args"], json!(["-y", "@example/search@1.2.0"]));
    assert!(
        !view.to_string().contains("k-e-y") && !added.stdout.contains("k-e-y"),
        "sealed: {view}"
    );
    let file = broker.folder().join("server.json");
    let wrong = json!({"$schema": schema, "name": "far", "description": "d", "version": "1",
        "remotes": [{"type": "streamable-http", "headers": [{"isSecret": "yes"}]}]});
    std::fs::write(&file, wrong.to_string()).unwrap();
    let refused =
        broker.cli(&["backend", "add", "far", "--server-json", file.to_str().unwrap()]).await;
    assert_eq!(refused.code, Some(64), "{refused:?}");
    for path in
        ["name", "remotes[0].url", "remotes[0].headers[0].name", "remotes[0].headers[0].isSecret"]
    {
        assert!(refused.stderr.contains(&format!("\n  {path}: ")), "{path}: {refused:?}");
    }
    let remote = json!({"$schema": schema, "name": "io.example/r", "description": "d", "version": "1",
        "remotes": [{"type": "streamable-http", "url": "http://127.0.0.1:{port}/mcp", "variables": {"port": {"isRequired": true}}}]});
    std::fs::write(&file, remote.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let added = broker
        .cli(&["backend", "add", "far", "--no-wait", "--server-json", file, "--input", "port=9"])
        .await;
    assert_eq!(added.code, Some(0), "{added:?}");
    let view = broker.admin().backend("default", "far").await;
    assert_eq!(view["settings"]["transport"]["url"], "http://127.0.0.1:9/mcp");
}

/// Reads from a terminal until it shows a text. Returns everything that it showed.
async fn shown_until(terminal: &mut (impl tokio::io::AsyncRead + Unpin), text: &str) -> String {
    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains(text) {
        let read = within("the terminal", terminal.read_buf(&mut shown)).await.unwrap();
        assert!(read > 0, "{text} is not shown: {}", String::from_utf8_lossy(&shown));
    }
    String::from_utf8_lossy(&shown).into_owned()
}

/// Returns a server.json with a secret input and another one.
fn asking_server() -> Value {
    let input = |name: &str, is_secret: bool| json!({"name": name, "description": "needed", "isRequired": true, "isSecret": is_secret});
    json!({
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": "io.example/asks", "description": "d", "version": "1.0.0",
        "packages": [{
            "registryType": "npm", "identifier": "@example/asks", "version": "1.0.0",
            "transport": {"type": "stdio"},
            "environmentVariables": [input("API_KEY", true), input("REGION", false)]
        }]
    })
}

/// Runs a command at a terminal, and presses Ctrl-Z and then Ctrl-C at the prompt for a secret.
/// Prints whether the terminal shows what is typed and whether it can suspend, at the prompt and
/// afterwards, and the exit code.
const CTRL_Z_AND_C: &str = "import os, pty, sys, termios
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
shown = b''
while b'(secret)' not in shown:
    shown += os.read(terminal, 1024)
def settings():
    _, _, _, flags, _, _, keys = termios.tcgetattr(terminal)
    return bool(flags & termios.ECHO), keys[termios.VSUSP] != b'\\0'
prompt = settings()
os.write(terminal, b'\\x1a\\x03')
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(*prompt, *settings(), status)";

#[tokio::test]
async fn a_hidden_prompt_is_not_suspended_and_ctrl_c_restores_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("asks.json");
    std::fs::write(&file, asking_server().to_string()).unwrap();
    let mut python = tokio::process::Command::new("python3");
    python
        .args(["-c", CTRL_Z_AND_C, &binary(), "backend", "add", "asks", "--server-json"])
        .arg(&file);
    let output = within("the end", python.kill_on_drop(true).output()).await.unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed.trim(), "False False True True 130", "{output:?}");
}

#[tokio::test]
async fn inputs_are_requested_at_the_terminal_and_a_secret_is_not_shown() {
    let broker = builder().single_process().start().await;
    let file = broker.folder().join("asks.json");
    std::fs::write(&file, asking_server().to_string()).unwrap();
    let command =
        format!("{} backend add asks --no-wait --server-json {}", binary(), file.display());
    // A terminal around the command.
    let mut script = tokio::process::Command::new("script")
        .args(["-qefc", &command, "/dev/null"])
        .env("MCP_BROKER_ADMIN_URL", format!("http://{}", broker.admin_address()))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program script of util-linux");
    let (mut keys, mut screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let mut shown = shown_until(&mut screen, "API_KEY (secret)  needed: ").await;
    keys.write_all(b"k-e-y\n").await.unwrap();
    shown += &shown_until(&mut screen, "REGION  needed: ").await;
    keys.write_all(b"north\n").await.unwrap();
    let mut rest = String::new();
    within("the end", screen.read_to_string(&mut rest)).await.unwrap();
    shown += &rest;
    let status = within("the end of the command", script.wait()).await.unwrap();
    assert!(status.success(), "{status}: {shown}");
    assert!(!shown.contains("k-e-y") && shown.contains("north"), "{shown}");
    let view = broker.admin().backend("default", "asks").await;
    assert_eq!(view["settings"]["transport"]["args"], json!(["-y", "@example/asks@1.0.0"]));
    assert!(!view.to_string().contains("k-e-y"), "sealed: {view}");
}

#[tokio::test]
async fn a_toolset_does_not_exist_for_callers_that_may_use_no_backend_of_it() {
    let backend = backend(&["read"]).await;
    let broker = builder().auth_required().backend("default", "b", backend.spec()).start().await;
    let allow = json!({"default": "deny", "rules": [
        {"id": "dev", "effect": "allow", "subjects": {"groups": ["dev"]}, "objects": {"tools": ["b/*"]}}
    ]});
    put(&broker, "/admin/v1/tenants/default/policy", allow).await;
    put_toolset(
        &broker,
        "set",
        json!({"published": true, "description": "Plans.", "include": {"tools": ["b/read"]}}),
    )
    .await;
    let key = async |groups: &[&str]| {
        let keys = "/admin/v1/tenants/default/keys";
        let (_, key) = broker.admin().post(keys, &json!({"groups": groups})).await;
        key["key"].as_str().unwrap().to_owned()
    };
    let (dev, ops) = (key(&["dev"]).await, key(&["ops"]).await);
    let client = broker.client("/mcp/t/set").bearer(&dev).connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__read"]);
    let refused = broker.client("/mcp/t/set").bearer(&ops).error("ping", json!({})).await;
    let unknown = broker.client("/mcp/t/other").bearer(&ops).error("ping", json!({})).await;
    assert_eq!((kind(&refused), kind(&unknown)), ("not_found", "not_found"), "{refused}");
}
