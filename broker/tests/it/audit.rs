//! The audit log: records of operators' changes and clients' requests, its readers, and what it
//! leaves out.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{
    BrokerBuilder, FakeBackend, PostgresServer, RecordedRequest, Reply, TestBroker, eventually,
};

use crate::{
    builder, configured, configured_alone, request, stdio,
    tasks::{start, task_digest},
};

async fn records(broker: &TestBroker, query: &str) -> Vec<Value> {
    let (status, answer) = broker.admin().get(&format!("/admin/v1/audit?limit=1000&{query}")).await;
    assert_eq!(status, 200, "{answer}");
    without_reads(answer["records"].as_array().unwrap().clone())
}

fn is_read(record: &Value) -> bool {
    record["action"].as_str().is_some_and(|action| action.starts_with("GET /admin/v1/audit"))
}

/// Leaves out the records of reads of the log, which every test makes.
fn without_reads(mut records: Vec<Value>) -> Vec<Value> {
    records.retain(|record| !is_read(record));
    records
}

async fn calls(broker: &TestBroker, wanted: usize) -> Vec<Value> {
    eventually("the calls in the audit log", || async {
        let found = records(broker, "kind=call").await;
        if found.len() >= wanted { Ok(found) } else { Err(found) }
    })
    .await
}

/// Otherwise one caller could fill the queue, which drops the records of others then.
#[tokio::test]
async fn refused_calls_over_a_rate_have_few_records() {
    const MANY: u64 = 600;
    let backend = FakeBackend::echo().await;
    let config = json!({
        "audit": {"calls": "arguments"},
        "limits": {"requests_per_second": 1, "burst": 5},
    });
    let broker = configured_alone(config, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    for id in 1..=MANY {
        let call = json!({"name": "b__echo", "arguments": {"tag": "x"}});
        client.post(request(id, "tools/call", call)).await;
    }
    let left_out = [("outcome", "left_out")];
    let few = (MANY / 2) as f64;
    let is_most = |count: f64| count > few;
    broker.admin().wait_metric("mcp_audit_records_total", &left_out, is_most).await;
    let stored = calls(&broker, 5).await;
    assert!(stored.len() < MANY as usize / 2, "{} records", stored.len());
    assert!(stored.iter().any(|record| record["error"] == "rate_limited"), "{stored:?}");
}

#[tokio::test]
async fn changes_of_operators_are_recorded_before_they_are_answered() {
    let broker = builder().start().await;
    let admin = broker.admin();
    admin.put_tenant("acme", json!({"weight": 2})).await;
    let (key, _) = admin.create_key_with_id("acme").await;
    let spec = json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/"}, "credentials": {"bearer": "canary-7"}});
    assert_eq!(admin.put("/admin/v1/tenants/acme/backends/one?wait=false", &spec).await.0, 201);
    assert_eq!(
        admin.put("/admin/v1/tenants/acme/backends/one", &json!({"transport": {}})).await.0,
        400
    );
    assert_eq!(admin.get("/admin/v1/tenants/acme").await.0, 200);
    assert_eq!(admin.delete("/admin/v1/tenants/acme").await.0, 204);
    let all = records(&broker, "tenant=acme&kind=admin").await;
    let recorded: Vec<String> = all
        .iter()
        .map(|record| {
            format!(
                "{} {}",
                record["action"].as_str().unwrap(),
                record["outcome"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(
        recorded,
        [
            "PUT /admin/v1/tenants/{tenant} ok",
            "POST /admin/v1/tenants/{tenant}/keys ok",
            "PUT /admin/v1/tenants/{tenant}/backends/{backend} ok",
            "PUT /admin/v1/tenants/{tenant}/backends/{backend} refused",
            "DELETE /admin/v1/tenants/{tenant} ok",
        ],
        "{all:?}"
    );
    assert_eq!(
        (&all[0]["principal"], &all[0]["address"], &all[3]["error"]),
        (&json!("admin"), &json!("127.0.0.1"), &json!("400"))
    );
    assert!(
        all[0]["arguments_digest"].as_str().unwrap().starts_with("sha256:")
            && all[4].get("arguments_digest").is_none()
    );
    let text = format!("{all:?}");
    assert!(!text.contains("canary-7") && !text.contains(&key), "{text}");
}

#[tokio::test]
async fn a_change_is_recorded_when_it_is_made_and_not_when_it_is_answered() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let broker = builder().start().await;
    let admin = broker.admin();
    let spec = json!({"transport": {"type": "http", "url": format!("http://{}/", silent.local_addr().unwrap())}});
    let path = "/admin/v1/tenants/default/backends/silent";
    let recorded = eventually("the record", || async {
        let found = records(&broker, "tenant=default&kind=admin").await;
        if found.is_empty() { Err(found) } else { Ok(found) }
    });
    // The author of the change waits for the handshake, and disconnects.
    let record = tokio::select! {
        answer = admin.try_send("PUT", path, Some(&spec)) => panic!("answered with {:?}", answer.map(|answer| answer.status)),
        found = recorded => found[0].clone(),
    };
    assert_eq!((&record["target"], &record["outcome"]), (&json!(path), &json!("ok")), "{record}");
    assert_eq!(admin.delete(path).await.0, 204);
    let recorded: Vec<Value> = records(&broker, "tenant=default&kind=admin").await;
    let actions: Vec<&str> = recorded
        .iter()
        .map(|record| record["action"].as_str().unwrap().split(' ').next().unwrap())
        .collect();
    assert_eq!(actions, ["PUT", "DELETE"], "each once: {recorded:?}");
}

/// Kills a broker at this point of a change. Returns whether the next one has the change, and the
/// number of its records.
async fn left_by_a_change_killed_at(point: &str, on: impl Fn() -> BrokerBuilder) -> (bool, usize) {
    // The first broker stores the retention of the log, which is a change too: the second one must
    // not meet the point on its own account.
    let mut first = on().start().await;
    let is_stored = |count: f64| count > 0.0;
    let stored = [("operation", "put_audit_terms")];
    first.admin().wait_metric("mcp_store_seconds_count", &stored, is_stored).await;
    first.terminate().await;
    let mut killed = on().env("MCP_BROKER_FAULT", point).start().await;
    let answer =
        killed.admin().try_send("PUT", "/admin/v1/tenants/acme", Some(&json!({"weight": 2}))).await;
    assert!(answer.is_err(), "it does not live to answer");
    assert!(!killed.wait_for_exit().await.success());
    let next = on().start().await;
    let is_there = next.admin().get("/admin/v1/tenants/acme").await.0 == 200;
    (is_there, records(&next, "tenant=acme&kind=admin").await.len())
}

#[tokio::test]
async fn a_change_and_its_record_outlive_a_crash_together_or_not_at_all() {
    for (point, left) in [
        ("change.executed", (false, 0)),
        ("change.told", (false, 0)),
        ("change.committed", (true, 1)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("broker.db").display());
        let on = || builder().single_process().config(json!({"storage": {"url": url}}));
        assert_eq!(left_by_a_change_killed_at(point, on).await, left, "at {point} on SQLite");
    }
    for (point, left) in [("change.executed", (false, 0)), ("change.committed", (true, 1))] {
        let server = PostgresServer::fast().await;
        let (url, node) = (server.database().await, json!({"secret": "0123456789abcdef"}));
        let on =
            || builder().single_process().config(json!({"storage": {"url": url}, "node": node}));
        assert_eq!(left_by_a_change_killed_at(point, on).await, left, "at {point} on PostgreSQL");
    }
}

#[tokio::test]
async fn calls_are_recorded_as_configured() {
    let backend = FakeBackend::echo().await;
    for (how, shows_arguments) in [("metadata", false), ("arguments", true)] {
        let broker = builder()
            .auth_required()
            .config(json!({"audit": {"calls": how}}))
            .backend("default", "b", backend.spec())
            .start()
            .await;
        let key = broker.admin().create_key("default").await;
        let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
        client.call("b__echo", json!({"city": "Ulm", "apiKey": "canary-1"})).await;
        client.error("tools/call", json!({"name": "b__nothing", "arguments": {}})).await;
        client.list_all("tools/list", "tools").await;
        let all = calls(&broker, 2).await;
        assert_eq!(all.len(), 2, "lists are no calls: {all:?}");
        let call = &all[0];
        for (member, value) in [
            ("tenant", "default"),
            ("action", "tools/call"),
            ("target", "b__echo"),
            ("backend", "b"),
            ("outcome", "ok"),
            ("transport", "http"),
        ] {
            assert_eq!(call[member], value, "{member} of {call}");
        }
        for digest in ["definition", "arguments_digest"] {
            assert!(
                call[digest].as_str().is_some_and(|text| text.starts_with("sha256:")),
                "{digest} of {call}"
            );
        }
        assert!(
            call["principal"] != "anonymous"
                && call["api_key"].is_string()
                && call["request_id"].is_string(),
            "{call}"
        );
        assert!(call["duration_ms"].as_f64().is_some() && call["session"].is_string(), "{call}");
        assert_eq!(
            (&all[1]["outcome"], &all[1]["error"]),
            (&json!("refused"), &json!("tool_not_found"))
        );
        let shown = &call["arguments"];
        assert_eq!(shown.is_object(), shows_arguments, "{call}");
        if shows_arguments {
            assert_eq!(*shown, json!({"city": "Ulm", "apiKey": "[redacted]"}));
        }
        let text = format!("{all:?}");
        assert!(
            !text.contains("canary-1")
                && !text.contains(&key)
                && !text.contains(&client.session().unwrap()),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_changed_definition_has_another_hash_and_a_task_has_its_outcome() {
    let backend = FakeBackend::start().await;
    backend.tool("job", |_| async { Reply::text("done") });
    let broker = configured(json!({"audit": {"calls": "metadata"}}), backend.spec()).await;
    let client = broker.connected(json!({})).await;
    client.call("b__job", json!({})).await;
    let before = calls(&broker, 1).await[0]["definition"].clone();
    backend.list("tools", vec![json!({"name": "job", "description": "now something else", "inputSchema": {"type": "object"}})]);
    backend.notify("notifications/tools/list_changed", json!({})).await;
    eventually("the new list", || async {
        let tools = client.list_all("tools/list", "tools").await;
        if tools[0]["description"] == "now something else" { Ok(()) } else { Err(tools) }
    })
    .await;
    let made =
        client.result("tools/call", json!({"name": "b__job", "arguments": {}, "task": {}})).await;
    client.result("tasks/result", json!({"taskId": made["task"]["taskId"]})).await;
    let all = calls(&broker, 4).await;
    let of_task: Vec<&Value> =
        all.iter().filter(|record| record["action"] == "tools/call").skip(1).collect();
    assert_ne!(of_task[0]["definition"], before, "{all:?}");
    assert_eq!(
        of_task[0]["request_id"], of_task[1]["request_id"],
        "the task stands for its request"
    );
    assert_eq!(
        (&of_task[1]["transport"], &of_task[1]["outcome"]),
        (&json!("task"), &json!("completed"))
    );
}

#[tokio::test]
async fn the_end_of_a_cancelled_task_is_recorded_once() {
    let backend = FakeBackend::start().await;
    backend.tool("job", |_| async { std::future::pending::<Reply>().await });
    let broker = configured(json!({"audit": {"calls": "metadata"}}), backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(start(&client, "b__job").await);
    }
    backend.wait_count("the calls", 2, |seen| seen.calls("job")).await;
    client.result("tasks/cancel", json!({"taskId": ids[0]})).await;
    let path = format!("/admin/v1/tasks/{}/cancel", ids[1]);
    assert_eq!(broker.admin().post(&path, &json!({})).await.0, 200);
    let cancels = |seen: &RecordedRequest| seen.is("notifications/cancelled");
    backend.wait_count("the ends of the runs", 2, cancels).await;
    // The calls, their ends, and the cancellation of the client.
    let all = calls(&broker, 5).await;
    assert_eq!(all.len(), 5, "{all:?}");
    let cancelled = all.iter().find(|record| record["action"] == "tasks/cancel").unwrap();
    assert_eq!(cancelled["target"], task_digest(&ids[0]), "{cancelled}");
    let (ends, rest): (Vec<&Value>, Vec<&Value>) =
        all.iter().partition(|record| record["transport"] == "task");
    let made = rest.into_iter().filter(|record| record["action"] == "tools/call");
    let mut requests: Vec<&Value> = made.map(|record| &record["request_id"]).collect();
    let mut ended: Vec<&Value> = ends.iter().map(|record| &record["request_id"]).collect();
    requests.sort_by_key(|id| id.to_string());
    ended.sort_by_key(|id| id.to_string());
    assert_eq!(ended, requests, "{all:?}");
    for end in ends {
        assert_eq!((&end["outcome"], end.get("error")), (&json!("cancelled"), None), "{end}");
        assert_eq!(end["definition"], all[0]["definition"]);
    }
}

/// Returns the records of all pages.
async fn paged(broker: &TestBroker, query: &str) -> Vec<Value> {
    let (mut records, mut after) = (Vec::new(), String::new());
    loop {
        let (_, page) = broker.admin().get(&format!("/admin/v1/audit?{query}{after}")).await;
        records.extend(page["records"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_i64() else { return records };
        after = format!("&after={next}");
    }
}

#[tokio::test]
async fn the_log_is_read_in_pages_and_exported_as_lines() {
    let broker = builder().start().await;
    for number in 0..7 {
        broker.admin().put_tenant(&format!("t{number}"), json!({})).await;
    }
    let all = records(&broker, "").await;
    assert!(all.len() >= 7 && all.is_sorted_by_key(|record| record["number"].as_i64().unwrap()));
    assert_eq!(without_reads(paged(&broker, "limit=3").await), all);
    let mut newest_first = without_reads(paged(&broker, "limit=3&order=newest").await);
    newest_first.reverse();
    assert_eq!(newest_first, all);
    let export = broker.admin().send("GET", "/admin/v1/audit/export?limit=2", None).await;
    assert_eq!(export.header("content-type"), Some("application/x-ndjson"));
    let text = export.text().await;
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(without_reads(lines), all);
    let exported = broker.cli(&["audit", "export", "--kind", "admin", "--since", "1h"]).await;
    let exported: Vec<Value> =
        exported.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (reads, changes): (Vec<_>, Vec<_>) = exported.iter().partition(|record| is_read(record));
    assert_eq!(changes.len(), all.len(), "{exported:?}");
    for (action, target) in [
        ("GET /admin/v1/audit", "/admin/v1/audit?limit=3"),
        ("GET /admin/v1/audit/export", "/admin/v1/audit/export?limit=2"),
    ] {
        let is_reported =
            |record: &&&Value| record["action"] == action && record["target"] == target;
        let recorded =
            reads.iter().find(is_reported).unwrap_or_else(|| panic!("{target} in {reads:?}"));
        assert_eq!((&recorded["principal"], &recorded["outcome"]), (&json!("admin"), &json!("ok")));
    }
    let listed = broker.cli(&["audit", "list", "--tenant", "t3"]).await;
    assert!(
        listed.stdout.contains("PUT /admin/v1/tenants/{tenant}") && !listed.stdout.contains("t4"),
        "{}",
        listed.stdout
    );
    for (query, field) in [
        ("kind=x", "kind"),
        ("since=never", "since"),
        ("limit=0", "limit"),
        ("order=desc", "order"),
        ("what=1", "what"),
    ] {
        let (status, problem) = broker.admin().get(&format!("/admin/v1/audit?{query}")).await;
        assert_eq!((status, problem["field"].as_str()), (400, Some(field)), "{problem}");
    }
}

#[tokio::test]
async fn a_reload_is_recorded_and_records_outlive_the_process() {
    let mut broker =
        builder().single_process().backend("default", "b", stdio().spec()).start().await;
    broker.admin().put_tenant("acme", json!({})).await;
    broker.signal(Signal::HUP);
    let before = eventually("the reload", || async {
        let all = records(&broker, "").await;
        if all
            .iter()
            .any(|record| record["action"] == "reload" && record["principal"] == "configuration")
        {
            Ok(all)
        } else {
            Err(all)
        }
    })
    .await;
    broker.terminate().await;
    broker.restart().await;
    let after = records(&broker, "").await;
    assert_eq!(after[..before.len()], before[..]);
}

#[tokio::test]
async fn a_change_is_made_only_if_its_precondition_holds() {
    let broker = builder().start().await;
    let admin = broker.admin();
    let send = async |method: &str, path: &str, headers: &[(&str, &str)], body: Option<Value>| {
        admin.send_with(method, path, headers, body.as_ref()).await
    };
    for (path, one, two) in [
        ("/admin/v1/tenants/acme", json!({"weight": 2}), json!({"weight": 3})),
        (
            "/admin/v1/tenants/default/backends/one?wait=false",
            json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/"}}),
            json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/other"}}),
        ),
    ] {
        let bare = path.split('?').next().unwrap();
        let refused = send("PUT", path, &[("if-match", "*")], Some(one.clone())).await;
        assert_eq!(refused.status, 412, "{path}: nothing is there");
        let made = send("PUT", path, &[("if-none-match", "*")], Some(one.clone())).await;
        assert_eq!(made.status, 201, "{path}");
        let tag = made.header("etag").unwrap().to_owned();
        assert_eq!(send("GET", bare, &[], None).await.header("etag"), Some(tag.as_str()));
        assert_eq!(
            send("PUT", path, &[("if-none-match", "*")], Some(two.clone())).await.status,
            412,
            "{path}"
        );
        let changed = send("PUT", path, &[("if-match", &tag)], Some(two.clone())).await;
        assert_eq!(changed.status, 200, "{path}");
        assert_ne!(changed.header("etag"), Some(tag.as_str()));
        let stale = send("PUT", path, &[("if-match", &tag)], Some(one.clone())).await;
        assert_eq!(
            (stale.status, stale.json().await["type"].as_str()),
            (412, Some("urn:mcp-broker:problem:precondition-failed"))
        );
        assert_eq!(send("DELETE", bare, &[("if-match", &tag)], None).await.status, 412, "{path}");
        assert_eq!(
            send("DELETE", bare, &[("if-match", "nonsense")], None).await.status,
            400,
            "{path}"
        );
        let now = send("GET", bare, &[], None).await.header("etag").unwrap().to_owned();
        for status in [204, 404] {
            let removed = send("DELETE", bare, &[("if-match", &now)], None).await;
            assert_eq!(removed.status, status, "{path}: a repetition finds nothing to compare");
        }
    }
}

#[tokio::test]
async fn long_lists_are_read_in_pages() {
    let broker = builder().start().await;
    for number in 0..5 {
        broker.admin().put_tenant(&format!("t{number}"), json!({})).await;
        broker.admin().create_key("default").await;
        let spec = json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/"}});
        broker
            .admin()
            .put(&format!("/admin/v1/tenants/default/backends/b{number}?wait=false"), &spec)
            .await;
        broker.connected(json!({})).await;
    }
    for (path, member) in [
        ("tenants", "tenants"),
        ("tenants/default/keys", "keys"),
        ("tenants/default/backends", "backends"),
        ("sessions", "sessions"),
        ("tasks", "tasks"),
        ("subscriptions", "subscriptions"),
    ] {
        let name = |entry: &Value| {
            ["tenant", "id", "backend"].map(|name| entry[name].to_string()).join("/")
        };
        let names = |answer: &Value| {
            answer[member].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
        };
        let (_, whole) = broker.admin().get(&format!("/admin/v1/{path}")).await;
        let (mut paged, mut after) = (Vec::new(), String::new());
        loop {
            let (status, page) =
                broker.admin().get(&format!("/admin/v1/{path}?limit=2{after}")).await;
            assert_eq!(status, 200, "{path}: {page}");
            assert!(page[member].as_array().unwrap().len() <= 2);
            paged.extend(names(&page));
            let Some(next) = page["next"].as_str() else { break };
            after = format!("&after={}", next.replace('+', "%2B"));
        }
        assert_eq!(paged, names(&whole), "{path}");
        assert_eq!(broker.admin().get(&format!("/admin/v1/{path}?limit=0")).await.0, 400, "{path}");
    }
    assert_eq!(
        broker.admin().get("/admin/v1/tenants/default/backends?state=sleepy").await.1["field"],
        "state"
    );
}

/// An encoded name reaches the same tenant, and a name that no tenant has begins no chain.
#[tokio::test]
async fn changes_are_recorded_for_the_tenant_that_they_reach() {
    let broker = builder().single_process().start().await;
    let admin = broker.admin();
    assert_eq!(admin.put("/admin/v1/tenants/acme", &json!({})).await.0, 201);
    assert_eq!(admin.post("/admin/v1/tenants/%61cme/keys", &json!({})).await.0, 201);
    assert_eq!(admin.post("/admin/v1/tenants/unknown/keys", &json!({})).await.0, 404);
    let actions = async |query: &str| {
        let (_, log) = admin.get(&format!("/admin/v1/audit?kind=admin{query}")).await;
        let records = log["records"].as_array().unwrap().clone();
        let action = |record: &Value| {
            format!(
                "{} {}",
                record["action"].as_str().unwrap(),
                record["outcome"].as_str().unwrap()
            )
        };
        records.iter().map(action).collect::<Vec<_>>()
    };
    let created = "PUT /admin/v1/tenants/{tenant} ok";
    let made = "POST /admin/v1/tenants/{tenant}/keys ok";
    assert_eq!(actions("&tenant=acme").await, [created, made]);
    assert!(actions("&tenant=unknown").await.is_empty());
    let refused = "POST /admin/v1/tenants/{tenant}/keys refused".to_owned();
    assert!(actions("").await.contains(&refused));
    let (_, chains) = admin.get("/admin/v1/audit/chains").await;
    assert!(!chains.to_string().contains("unknown"), "{chains}");
}
