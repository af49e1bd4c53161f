//! Access policies: who may use which tool, prompt and resource, on every wire.

use serde_json::{Value, json};
use testkit::{
    DuplexClient, FakeBackend, PostgresServer, Reply, TestBroker, backend::tool, eventually,
    servers::RedisServer,
};

use crate::{
    builder, kind,
    restarts::{back, written_behind},
    stateless::Modern,
    tasks::{start, wait_status},
};

/// Reads a tool with an annotation.
fn reading(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}})
}

/// A backend that answers every tool with its name, and has two resources and a prompt.
async fn backend() -> FakeBackend {
    let backend = FakeBackend::start().await;
    for name in ["read", "write", "delete"] {
        backend.tool(name, |_| async { Reply::text("done") });
    }
    backend.on("resources/read", |_| async { Reply::Result(json!({"contents": []})) });
    backend.list("tools", vec![reading("read"), tool("write"), tool("delete")]);
    backend.list("prompts", vec![json!({"name": "review"}), json!({"name": "secret"})]);
    backend.list(
        "resources",
        vec![
            json!({"uri": "file:///public/a", "name": "a"}),
            json!({"uri": "file:///secret/b", "name": "b"}),
        ],
    );
    backend
}

/// A policy that lets the group `dev` use everything and others read.
fn readers() -> Value {
    json!({
        "default": "deny",
        "rules": [
            {"id": "dev", "effect": "allow", "subjects": {"groups": ["dev"]}},
            {"id": "reads", "effect": "allow", "objects": {"tools": ["b/*"], "classes": ["read"]}},
            {"id": "public", "effect": "allow", "objects": {"resources": ["b/file:///public/*"], "prompts": ["b/review"]}},
        ],
    })
}

const POLICY: &str = "/admin/v1/tenants/default/policy";

async fn put(broker: &TestBroker, policy: &Value) -> Value {
    let (status, answer) = broker.admin().put(POLICY, policy).await;
    assert!(status == 200 || status == 201, "{status} {answer}");
    answer
}

async fn key(broker: &TestBroker, body: Value) -> String {
    let (status, key) = broker.admin().post("/admin/v1/tenants/default/keys", &body).await;
    assert_eq!(status, 201, "{key}");
    key["key"].as_str().unwrap().to_owned()
}

async fn started(backend: &FakeBackend) -> TestBroker {
    builder().auth_required().backend("default", "b", backend.spec()).start().await
}

fn names(list: &Value, member: &str, name: &str) -> Vec<String> {
    let entries = list[member].as_array().unwrap_or_else(|| panic!("{list}"));
    entries.iter().map(|entry| entry[name].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn exactly_the_listed_tools_are_callable_on_both_endpoints() {
    let backend = backend().await;
    let broker = started(&backend).await;
    put(&broker, &readers()).await;
    let (dev, guest) =
        (key(&broker, json!({"groups": ["dev"]})).await, key(&broker, json!({})).await);
    for (path, prefix, uri) in [("/mcp", "b__", "b+"), ("/mcp/b", "", "")] {
        for (bearer, tools, prompts, resources) in
            [(&dev, vec!["read", "write", "delete"], 2, 2), (&guest, vec!["read"], 1, 1)]
        {
            let client = broker.client(path).bearer(bearer).connected(json!({})).await;
            let listed = names(&client.result("tools/list", json!({})).await, "tools", "name");
            let expected: Vec<String> =
                tools.iter().map(|tool| format!("{prefix}{tool}")).collect();
            assert_eq!(listed, expected, "{path}");
            for tool in ["read", "write", "delete"] {
                let name = format!("{prefix}{tool}");
                let answer =
                    client.request("tools/call", json!({"name": name, "arguments": {}})).await;
                let is_callable = answer.get("result").is_some();
                assert_eq!(is_callable, listed.contains(&name), "{path} {name}: {answer}");
                assert!(is_callable || kind(&answer["error"]) == "tool_not_found", "{answer}");
            }
            let listed = client.result("prompts/list", json!({})).await;
            assert_eq!(names(&listed, "prompts", "name").len(), prompts, "{path}");
            let listed = client.result("resources/list", json!({})).await;
            assert_eq!(names(&listed, "resources", "uri").len(), resources, "{path}");
            for resource in ["file:///public/a", "file:///secret/b", "FILE:///secret/b"] {
                for method in ["resources/read", "resources/subscribe"] {
                    let asked = json!({"uri": format!("{uri}{resource}")});
                    let answer = client.request(method, asked).await;
                    let is_hidden = resource.contains("secret") && bearer == &guest;
                    let found = answer["error"]["data"]["kind"] == "resource_not_found";
                    assert_eq!(found, is_hidden, "{path} {method} {resource}: {answer}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_hidden_tool_answers_like_one_that_does_not_exist() {
    let backend = backend().await;
    let broker = started(&backend).await;
    put(&broker, &readers()).await;
    let guest = key(&broker, json!({})).await;
    for (path, prefix) in [("/mcp", "b__"), ("/mcp/b", "")] {
        let client = broker.client(path).bearer(&guest).connected(json!({})).await;
        let mut answers = Vec::new();
        for name in ["write", "wrote"] {
            let params = json!({"name": format!("{prefix}{name}"), "arguments": {}});
            let mut answer = client.error("tools/call", params).await;
            answer["data"]["requestId"].take();
            answers.push(answer.to_string().replace(name, "NAME"));
        }
        assert_eq!(answers[0], answers[1], "{path}");
    }
    assert!(backend.recorded_of("tools/call").is_empty());
}

#[tokio::test]
async fn every_wire_and_era_applies_the_same_policy() {
    let backend = backend().await;
    let broker = builder()
        .auth_required()
        .config(json!({"listen": {"tcp": "127.0.0.1:0"}}))
        .backend("default", "b", backend.spec())
        .start()
        .await;
    put(&broker, &readers()).await;
    let guest = key(&broker, json!({})).await;
    let token = json!({"dev.mcp-broker/token": guest});
    let tcp = DuplexClient::builder().tcp(broker.tcp_address()).await;
    let bearer = format!("Bearer {guest}");
    let (websocket, _) = DuplexClient::builder()
        .websocket(broker.http_address(), "/ws", &[("authorization", &bearer)])
        .await
        .unwrap();
    let duplex = [tcp.connected_with(json!({}), token).await, websocket.connected(json!({})).await];
    for client in duplex {
        let listed = client.result("tools/list", json!({})).await;
        assert_eq!(names(&listed, "tools", "name"), ["b__read"]);
        let refused =
            client.error("tools/call", json!({"name": "b__write", "arguments": {}})).await;
        assert_eq!(kind(&refused), "tool_not_found");
    }
    let stateless = Modern::of(&broker, "/mcp").bearer(&guest);
    let listed = stateless.result("tools/list", json!({})).await;
    assert_eq!(names(&listed, "tools", "name"), ["b__read"]);
    assert_eq!(listed["cacheScope"], "private");
    let refused = stateless.error("tools/call", json!({"name": "b__write", "arguments": {}})).await;
    assert_eq!(kind(&refused), "tool_not_found");
    // Another key with other rights does not get the cached list.
    let dev = Modern::of(&broker, "/mcp").bearer(&key(&broker, json!({"groups": ["dev"]})).await);
    let listed = dev.result("tools/list", json!({})).await;
    assert_eq!(names(&listed, "tools", "name").len(), 3);
}

#[tokio::test]
async fn a_batch_is_decided_element_by_element() {
    let backend = backend().await;
    let broker = started(&backend).await;
    put(&broker, &readers()).await;
    let client = broker.client("/mcp").bearer(&key(&broker, json!({})).await);
    client.initialize("2025-03-26", json!({})).await;
    let call = |id: u64, name: &str| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": {}}});
    let body = json!([call(71, "b__read"), call(72, "b__write")]).to_string();
    let text = client.post(body).await.text().await;
    let answers: Vec<Value> = serde_json::from_str(&text).unwrap();
    let of = |id: u64| answers.iter().find(|answer| answer["id"] == id).unwrap();
    assert_eq!(kind(&of(72)["error"]), "tool_not_found");
    assert!(of(71)["result"].is_object(), "{text}");
    assert_eq!(backend.recorded_of("tools/call").len(), 1);
}

#[tokio::test]
async fn a_challenge_names_every_scope_and_a_key_with_them_passes() {
    let backend = backend().await;
    let broker = started(&backend).await;
    put(
        &broker,
        &json!({"explain_to_callers": true, "rules": [
            {"id": "w", "effect": "deny", "objects": {"classes": ["write"]}, "required_scopes": ["files:write"]},
            {"id": "d", "effect": "deny", "objects": {"tools": ["b/delete"]}, "required_scopes": ["files:delete"]},
        ]}),
    )
    .await;
    let plain = broker.client("/mcp").bearer(&key(&broker, json!({})).await);
    let plain = plain.connected(json!({})).await;
    assert_eq!(plain.tool_names().await.len(), 3, "what is challenged is listed");
    let id = plain.take_id();
    let body = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "b__delete", "arguments": {}}});
    let answer = plain.post(body.to_string()).await;
    assert_eq!(answer.status, 403);
    let challenge = answer.header("www-authenticate").unwrap().to_owned();
    assert!(
        challenge.contains(r#"error="insufficient_scope", scope="files:write files:delete""#),
        "{challenge}"
    );
    let refused: Value = serde_json::from_str(&answer.text().await).unwrap();
    assert_eq!(kind(&refused["error"]), "forbidden");
    assert_eq!(refused["error"]["data"]["required_scopes"], json!(["files:write", "files:delete"]));
    assert_eq!(refused["error"]["data"]["rule"], "w");
    let able = key(&broker, json!({"scopes": ["files:write", "files:delete"]})).await;
    let able = broker.client("/mcp").bearer(&able).connected(json!({})).await;
    able.call("b__delete", json!({})).await;
}

#[tokio::test]
async fn a_change_of_the_policy_reaches_open_sessions_and_their_tasks() {
    let backend = FakeBackend::with_tool("job", |_| async { Reply::text("done") }).await;
    let broker = started(&backend).await;
    let client = broker.client("/mcp").bearer(&key(&broker, json!({})).await);
    let client = client.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    let task = start(&client, "b__job").await;
    wait_status(&client, &task, "completed").await;
    put(
        &broker,
        &json!({"rules": [{"id": "d", "effect": "deny", "objects": {"tools": ["b/job"]}}]}),
    )
    .await;
    stream.find(|message| message["method"] == "notifications/tools/list_changed").await;
    assert_eq!(client.tool_names().await, [""; 0]);
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let refused = client.error(method, json!({"taskId": task})).await;
        assert_eq!(kind(&refused), "task_not_found", "{method}");
    }
    assert_eq!(client.result("tasks/list", json!({})).await["tasks"], json!([]));
    let (status, _) = broker.admin().delete(POLICY).await;
    assert_eq!(status, 204);
    stream.find(|message| message["method"] == "notifications/tools/list_changed").await;
    client.result("tasks/result", json!({"taskId": task})).await;
}

#[tokio::test]
async fn a_task_stays_visible_while_its_tool_is_not_listed() {
    let backend = backend().await;
    let mut broker = started(&backend).await;
    put(&broker, &readers()).await;
    let bearer = key(&broker, json!({})).await;
    let client = broker.client("/mcp").bearer(&bearer).connected(json!({})).await;
    let task = start(&client, "b__read").await;
    wait_status(&client, &task, "completed").await;
    written_behind(&broker.admin()).await;
    // The next process does not know the tools of the backend.
    broker.kill().await;
    backend.die().await;
    broker.restart().await;
    let client = back(&broker, &client).bearer(&bearer);
    assert_eq!(client.tool_names().await, [""; 0]);
    let asked = json!({"taskId": task});
    let listed = client.list_all("tasks/list", "tasks").await;
    assert_eq!(listed.iter().map(|one| &one["taskId"]).collect::<Vec<_>>(), [&json!(task)]);
    assert_eq!(client.result("tasks/get", asked.clone()).await["status"], "completed");
    let outcome = client.result("tasks/result", asked.clone()).await;
    assert_eq!(outcome["content"][0]["text"], "done", "{outcome}");
    // The policy still decides by what the tool declared.
    put(
        &broker,
        &json!({"rules": [{"id": "d", "effect": "deny", "objects": {"classes": ["read"]}}]}),
    )
    .await;
    assert_eq!(kind(&client.error("tasks/get", asked).await), "task_not_found");
}

#[tokio::test]
async fn the_endpoint_of_a_hidden_backend_does_not_exist() {
    let backend = backend().await;
    let broker = started(&backend).await;
    put(&broker, &json!({"rules": [{"id": "d", "effect": "deny", "subjects": {"groups": ["guests"]}, "objects": {"backends": ["b"]}}]})).await;
    let guest = key(&broker, json!({"groups": ["guests"]})).await;
    for name in ["b", "ghost"] {
        let client = broker.client(&format!("/mcp/{name}")).bearer(&guest);
        let answer = client.post(crate::initialize_body("2025-11-25")).await;
        assert_eq!(answer.status, 404, "{name}");
    }
    let other = broker.client("/mcp/b").bearer(&key(&broker, json!({})).await);
    assert_eq!(other.post(crate::initialize_body("2025-11-25")).await.status, 200);
}

#[tokio::test]
async fn a_shadow_rule_is_counted_and_changes_nothing() {
    let backend = backend().await;
    let broker = started(&backend).await;
    put(&broker, &json!({"rules": [{"id": "s", "effect": "deny", "mode": "shadow", "objects": {"classes": ["write"]}}]})).await;
    let client = broker.client("/mcp").bearer(&key(&broker, json!({})).await);
    let client = client.connected(json!({})).await;
    client.call("b__write", json!({})).await;
    client.call("b__read", json!({})).await;
    let decisions = async |verdict, mode| {
        broker
            .admin()
            .metric("mcp_policy_decisions_total", &[("verdict", verdict), ("mode", mode)])
            .await
    };
    assert_eq!(decisions("allow", "enforce").await, Some(2.0));
    assert_eq!(decisions("deny", "shadow").await, Some(1.0));
    let (_, report) = broker.admin().get(&format!("{POLICY}/report?since=1h")).await;
    let row = &report["decisions"][0];
    assert_eq!(
        (&row["rule"], &row["verdict"], &row["mode"], &row["count"], &row["objects"]),
        (&json!("s"), &json!("deny"), &json!("shadow"), &json!(1), &json!(["b/write"])),
        "{report}"
    );
    assert_eq!(broker.admin().get(&format!("{POLICY}/report?since=soon")).await.0, 400);
}

#[tokio::test]
async fn each_request_counts_one_decision_and_an_unknown_name_has_none() {
    let backend = FakeBackend::with_tool("job", |_| async { Reply::text("done") }).await;
    let broker = started(&backend).await;
    put(&broker, &json!({"rules": [{"id": "s", "effect": "deny", "mode": "shadow", "objects": {"tools": ["b/job"]}}]})).await;
    let client = broker.client("/mcp").bearer(&key(&broker, json!({})).await);
    let client = client.connected(json!({})).await;
    client.error("tools/call", json!({"name": "none"})).await;
    let decisions = async |verdict, mode| {
        broker
            .admin()
            .metric("mcp_policy_decisions_total", &[("verdict", verdict), ("mode", mode)])
            .await
    };
    assert_eq!(decisions("allow", "enforce").await, Some(0.0));
    let task = start(&client, "b__job").await;
    client.result("tasks/result", json!({"taskId": task})).await;
    assert_eq!(decisions("allow", "enforce").await, Some(2.0));
    assert_eq!(decisions("deny", "shadow").await, Some(2.0));
}

#[tokio::test]
async fn a_policy_is_checked_versioned_and_explained() {
    let backend = backend().await;
    let broker = started(&backend).await;
    let admin = broker.admin();
    assert_eq!(admin.get(POLICY).await.0, 404);
    let (status, refused) = admin
        .put(POLICY, &json!({"rules": [{"id": "a", "effect": "deny", "objects": {"tools": ["ghost/x"], "backends": ["nope"]}}]}))
        .await;
    assert_eq!(status, 422, "{refused}");
    let fields: Vec<&str> = refused["faults"]
        .as_array()
        .unwrap()
        .iter()
        .map(|fault| fault["field"].as_str().unwrap())
        .collect();
    assert_eq!(fields, ["rules[0].objects.backends[0]", "rules[0].objects.tools[0]"]);
    let (status, refused) =
        admin.put(POLICY, &json!({"rules": [{"id": "a", "effect": "maybe"}]})).await;
    assert_eq!((status, refused["field"].as_str()), (400, Some("rules[0].effect")), "{refused}");
    let mut policy = readers();
    policy["tests"] =
        json!([{"as": {}, "method": "tools/call", "object": "b/write", "expect": "allow"}]);
    let (status, refused) = admin.put(POLICY, &policy).await;
    assert_eq!((status, refused["field"].as_str()), (409, Some("tests[0]")), "{refused}");
    policy["tests"][0]["expect"] = json!("deny");
    policy["rules"][1]["objects"]["tools"] = json!(["b/*", "b/not-yet"]);
    let stored = put(&broker, &policy).await;
    assert_eq!(stored["warnings"][0]["field"], "rules[1].objects.tools[1]");
    let (_, shown) = admin.get(POLICY).await;
    assert_eq!(shown["rules"], policy["rules"]);
    let check = json!({"as": {"groups": ["x"]}, "method": "tools/call", "object": "b/write"});
    let (status, decided) = admin.post(&format!("{POLICY}/check"), &check).await;
    assert_eq!((status, decided["verdict"].as_str()), (200, Some("deny")), "{decided}");
    let outcomes: Vec<&str> = decided["considered"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["other_subject", "other_object", "other_object"]);
    assert_eq!(decided.get("note"), None, "{decided}");
    let checked = broker.cli(&["policy", "check", "tools/call", "ghost/read"]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.stderr.contains("no backend ghost is registered"), "{checked:?}");
    let checked = broker.cli(&["policy", "check", "tools/call", "b/wriet"]).await;
    assert!(checked.stderr.contains("the backend b lists no tool wriet at present"), "{checked:?}");
    let (_, log) = admin.get("/admin/v1/audit?kind=admin&tenant=default").await;
    let log = log.to_string();
    assert!(log.contains(POLICY), "the audit log has the change: {log}");
    let (status, _) = admin.delete(POLICY).await;
    assert_eq!(status, 204);
    let (_, log) = admin.get("/admin/v1/audit?kind=admin&tenant=default").await;
    let records = log["records"].as_array().unwrap();
    let made = records.iter().find(|record| record["after"].is_object()).unwrap();
    assert_eq!((&made["before"], &made["after"]["rules"]), (&Value::Null, &policy["rules"]));
    let removed = records.last().unwrap();
    assert_eq!((&removed["before"]["rules"], &removed["after"]), (&policy["rules"], &Value::Null));
    let many: Vec<String> = (0..65).map(|n| format!("g{n}")).collect();
    let (status, refused) =
        admin.post("/admin/v1/tenants/default/keys", &json!({"groups": many})).await;
    assert_eq!((status, refused["field"].as_str()), (400, Some("groups")), "{refused}");
    let checked = broker.cli(&["policy", "check", "tools/call", "b/write"]).await;
    let reason = "the tenant has no policy, so everything is allowed";
    assert!(checked.stderr.is_empty() && checked.stdout.contains(reason), "{checked:?}");
    assert_eq!(checked.stdout.lines().count(), 2, "a table without rules is left out: {checked:?}");
}

#[tokio::test]
async fn an_api_key_expires() {
    let backend = backend().await;
    let broker = started(&backend).await;
    let short = key(&broker, json!({"expires_in": "1s", "labels": {"team": "x"}})).await;
    let client = broker.client("/mcp").bearer(&short).connected(json!({})).await;
    eventually("the key is refused", || async {
        match client.post(crate::initialize_body("2025-11-25")).await.status {
            401 => Ok(()),
            status => Err(status),
        }
    })
    .await;
}

#[tokio::test]
async fn an_api_key_with_a_life_out_of_range_is_refused() {
    let backend = backend().await;
    let broker = started(&backend).await;
    for life in ["0s", "999ms", "3651d", "99999999h"] {
        let (status, refused) = broker
            .admin()
            .post("/admin/v1/tenants/default/keys", &json!({"expires_in": life}))
            .await;
        assert_eq!((status, refused["field"].as_str()), (400, Some("expires_in")), "{refused}");
    }
}

#[tokio::test]
async fn a_policy_holds_on_every_replica_and_after_a_restart() {
    let backend = backend().await;
    let (server, redis) = (PostgresServer::fast().await, RedisServer::start().await);
    let url = server.database().await;
    let replica = |name: &str| {
        builder().auth_required().config(json!({
            "listen": {"internal": "127.0.0.1:0"},
            "node": {"id": name, "secret": "one-secret-for-all-of-them"},
            "storage": {"url": url, "redis_url": redis.url()},
        }))
    };
    let (one, two) = tokio::join!(replica("one").start(), replica("two").start());
    one.admin().put_ready_backend("default", "b", &backend.spec()).await;
    two.admin().wait_backend_state("default", "b", "ready").await;
    let guest = key(&one, json!({})).await;
    let client = eventually("the other replica knows the key", || async {
        let client = two.client("/mcp").bearer(&guest);
        match client.post(crate::initialize_body("2025-11-25")).await.status {
            200 => Ok(client),
            status => Err(status),
        }
    })
    .await;
    let client = client.connected(json!({})).await;
    put(&one, &readers()).await;
    client.wait_tools(&["b__read"]).await;
}

#[tokio::test]
async fn a_declared_policy_is_in_force_and_can_only_be_changed_in_the_file() {
    let backend = backend().await;
    let broker = builder()
        .auth_required()
        .config(json!({"tenants": {"acme": {"policy": readers()}}}))
        .start()
        .await;
    broker.admin().put_ready_backend("acme", "b", &backend.spec()).await;
    let path = "/admin/v1/tenants/acme/policy";
    let (status, refused) = broker.admin().put(path, &json!({})).await;
    assert_eq!(status, 409, "{refused}");
    let key = broker.admin().create_key("acme").await;
    let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__read"]);
}

#[tokio::test]
async fn a_task_of_a_permitted_tool_is_visible_to_its_client_behind_a_policy() {
    let backend = FakeBackend::start().await;
    backend.tool("job", |_| async { Reply::text("done") });
    let broker = started(&backend).await;
    put(&broker, &json!({"default": "deny", "rules": [{"id": "j", "effect": "allow", "objects": {"tools": ["b/job"]}}]})).await;
    let bearer = key(&broker, json!({})).await;
    for (path, name) in [("/mcp", "b__job"), ("/mcp/b", "job")] {
        let client = broker.client(path).bearer(&bearer).connected(json!({})).await;
        let task = start(&client, name).await;
        wait_status(&client, &task, "completed").await;
        let outcome = client.result("tasks/result", json!({"taskId": task})).await;
        assert_eq!(outcome["content"][0]["text"], "done", "{outcome}");
        let listed = client.list_all("tasks/list", "tasks").await;
        assert!(listed.iter().any(|listed| listed["taskId"] == task.as_str()), "{listed:?}");
    }
}
