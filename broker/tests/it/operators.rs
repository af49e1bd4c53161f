//! Named operators: their tokens on every replica, and what an operator of one tenant sees of live
//! state. The table of roles and operations is tested with the admin routes.

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{AdminClient, FakeBackend, Reply, TestBroker, eventually};

use crate::{
    builder,
    tasks::{start, wait_status},
    tokens::reload::reload,
};

/// Creates an operator. Returns its id and its token.
async fn create(admin: &AdminClient, body: Value) -> (String, String) {
    let (status, made) = admin.post("/admin/v1/operators", &body).await;
    assert_eq!(status, 201, "{made}");
    (made["id"].as_str().unwrap().to_owned(), made["token"].as_str().unwrap().to_owned())
}

async fn wait_admitted(admin: &AdminClient, token: &str, is_admitted: bool) {
    let admin = admin.with_token(Some(token));
    eventually("the token to be admitted or refused", || async {
        let (status, _) = admin.get("/admin/v1/tenants").await;
        if (status == 200) == is_admitted { Ok(()) } else { Err(status) }
    })
    .await;
}

#[tokio::test]
async fn operators_are_valid_at_every_replica_and_after_a_restart() {
    let mut cluster = builder().cluster(2).start().await;
    let (id, token) = create(&cluster.admin(0), json!({"name": "ann", "role": "viewer"})).await;
    for replica in [0, 1] {
        wait_admitted(&cluster.admin(replica), &token, true).await;
    }
    cluster.terminate(1).await;
    cluster.restart(1).await;
    wait_admitted(&cluster.admin(1), &token, true).await;
    let (status, _) = cluster.admin(1).delete(&format!("/admin/v1/operators/{id}")).await;
    assert_eq!(status, 204);
    for replica in [0, 1] {
        wait_admitted(&cluster.admin(replica), &token, false).await;
    }
}

async fn two_tenants(backend: &FakeBackend) -> TestBroker {
    let broker = builder()
        .auth_required()
        .tenant("acme")
        .tenant("zoo")
        .backend("acme", "b", backend.spec())
        .backend("zoo", "b", backend.spec())
        .start()
        .await;
    for tenant in ["acme", "zoo"] {
        broker.admin().wait_backend_state(tenant, "b", "ready").await;
    }
    broker
}

#[tokio::test]
async fn an_operator_of_a_tenant_neither_sees_nor_ends_sessions_and_tasks_of_others() {
    let backend = FakeBackend::start().await;
    backend.tool("wait", |_| async { std::future::pending::<Reply>().await });
    let broker = two_tenants(&backend).await;
    let mut tasks = Vec::new();
    let mut clients = Vec::new();
    for tenant in ["acme", "zoo"] {
        let key = broker.admin().create_key(tenant).await;
        let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
        let task = start(&client, "b__wait").await;
        wait_status(&client, &task, "working").await;
        tasks.push(task);
        clients.push(client);
    }
    let (_, token) = create(
        &broker.admin(),
        json!({"name": "tess", "role": "tenant_admin", "tenants": ["acme"]}),
    )
    .await;
    let tess = broker.admin().with_token(Some(&token));
    for (path, member) in [("sessions", "sessions"), ("tasks", "tasks")] {
        let (_, all) = broker.admin().get(&format!("/admin/v1/{path}")).await;
        assert_eq!(all[member].as_array().unwrap().len(), 2, "{all}");
        let (_, hers) = tess.get(&format!("/admin/v1/{path}")).await;
        let hers = hers[member].as_array().unwrap().clone();
        assert_eq!(hers.len(), 1, "{hers:?}");
        assert_eq!(hers[0]["tenant"], "acme");
        let others = all[member].as_array().unwrap().iter().find(|one| one["tenant"] == "zoo");
        let id = others.unwrap()["id"].as_str().unwrap();
        for (method, suffix) in [("GET", ""), ("DELETE", ""), ("POST", "/cancel")] {
            if (method == "DELETE") != (path == "sessions") && method != "GET" {
                continue;
            }
            let theirs = tess.send(method, &format!("/admin/v1/{path}/{id}{suffix}"), None).await;
            let absent = tess.send(method, &format!("/admin/v1/{path}/none{suffix}"), None).await;
            assert_eq!(theirs.status, 404, "{method} {path}");
            let (theirs, absent) = (theirs.text().await, absent.text().await);
            assert_eq!(theirs, absent.replace("none", id), "{method} {path}");
        }
    }
    wait_status(&clients[1], &tasks[1], "working").await;
    let own = format!("/admin/v1/tasks/{}/cancel", tasks[0]);
    assert_eq!(tess.post(&own, &json!({})).await.0, 200);
    wait_status(&clients[0], &tasks[0], "cancelled").await;
}

#[tokio::test]
async fn a_scraper_reads_metrics_where_the_admin_token_is_required() {
    let broker = builder().start().await;
    let admin = broker.admin();
    let (_, token) = create(&admin, json!({"name": "prometheus", "role": "scraper"})).await;
    let scraper = admin.with_token(Some(&token));
    let metrics = scraper.send("GET", "/metrics", None).await;
    assert_eq!(metrics.status, 200);
    let metrics = metrics.text().await;
    assert!(metrics.contains("mcp_"), "{metrics}");
    for path in ["/admin/v1/tenants", "/admin/v1/openapi.json", "/admin/v1/operators"] {
        assert_eq!(scraper.send("GET", path, None).await.status, 403, "{path}");
    }
    assert_eq!(scraper.send("GET", "/readyz", None).await.status, 200);
}

#[tokio::test]
async fn operators_of_the_file_are_updated_by_a_reload() {
    let entry = |name: &str, role: &str| json!({"name": name, "role": role, "token": format!("the-token-of-{name}")});
    let broker = builder()
        .single_process()
        .admin_token("the-token-of-the-admin")
        .config(json!({"auth": {"operators": [entry("prometheus", "scraper"), entry("ann", "viewer")]}}))
        .start()
        .await;
    let admin = broker.admin();
    let status = |token: &str, path: &'static str| {
        let admin = admin.with_token(Some(token));
        async move { admin.get(path).await.0 }
    };
    let (scraper, ann) = ("the-token-of-prometheus", "the-token-of-ann");
    let metrics = admin.with_token(Some(scraper)).metrics().await;
    assert!(metrics.contains("mcp_sessions"), "{metrics}");
    assert_eq!(status(scraper, "/admin/v1/tenants").await, 403);
    assert_eq!(status(ann, "/admin/v1/tenants").await, 200);
    assert_eq!(status("the-token-of-nix", "/admin/v1/tenants").await, 401);

    let (_, listed) = admin.get("/admin/v1/operators").await;
    let listed: Vec<_> = listed["operators"].as_array().unwrap().iter().collect();
    assert_eq!((&listed[0]["name"], &listed[0]["source"]), (&json!("ann"), &json!("config")));
    assert_eq!((&listed[1]["id"], listed.len()), (&json!("config/prometheus"), 2));
    let (code, problem) = admin.delete("/admin/v1/operators/config%2Fann").await;
    assert_eq!(code, 409, "{problem}");
    let taken = json!({"name": "ann", "role": "auditor"});
    let (code, problem) = admin.post("/admin/v1/operators", &taken).await;
    assert_eq!((code, &problem["field"]), (400, &json!("name")), "{problem}");

    reload(&broker, |config| {
        config["auth"]["operators"] =
            json!([entry("prometheus", "scraper"), entry("ben", "auditor")]);
    })
    .await;
    assert_eq!(status(ann, "/admin/v1/tenants").await, 401);
    assert_eq!(status("the-token-of-ben", "/admin/v1/operators").await, 200);
    let metrics = admin.with_token(Some(scraper)).metrics().await;
    assert!(metrics.contains("mcp_sessions"), "{metrics}");
    let (_, log) = admin.get("/admin/v1/audit?action=configuration").await;
    assert!(!log.to_string().contains("the-token-of"), "{log}");
}

#[tokio::test]
async fn a_file_cannot_take_the_name_of_a_stored_operator() {
    let broker = builder().single_process().admin_token("the-token-of-the-admin").start().await;
    create(&broker.admin(), json!({"name": "ann", "role": "viewer"})).await;
    let path = broker.folder().join("config.yaml");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["auth"]["operators"] =
        json!([{"name": "ann", "role": "admin", "token": "the-token-of-another-ann"}]);
    std::fs::write(&path, config.to_string()).unwrap();
    broker.signal(Signal::HUP);
    eventually("the refusal in the log", || async {
        let log = broker.log();
        if log.contains("operator ann is both stored and declared") { Ok(()) } else { Err(log) }
    })
    .await;
    let admin = broker.admin().with_token(Some("the-token-of-another-ann"));
    assert_eq!(admin.get("/admin/v1/tenants").await.0, 401);
}
