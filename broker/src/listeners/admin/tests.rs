//! Tests of the routes, without a socket except where a test is about the connection.

use std::net::SocketAddr;

use axum::{
    body::Body,
    http::{Request, Response, StatusCode, header},
};
use http_body_util::BodyExt;
use protocol::ids::TaskId;
use records::{
    NodeName, SessionIdentity, SessionKey, SessionRecord, TaskRecord, TaskStatus, WriteOp,
};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::{
    control::tests::Rig,
    persistence::tests::{task_creation, task_record},
    sessions::tasks,
};

pub(super) const LOOPBACK: &str = "127.0.0.1:9090";

pub(super) struct Admin {
    router: Router,
    control: Arc<Control>,
    _folder: tempfile::TempDir,
}

impl Admin {
    /// Starts an admin plane that is open to local users.
    async fn open() -> Self {
        Self::start("", LOOPBACK).await
    }

    pub(super) async fn start(yaml: &str, address: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let control = Rig::start(folder.path(), yaml).await.control;
        Self::of(control, address, folder)
    }

    /// Starts an admin plane that requires the token, with another number of sessions or tasks in
    /// one answer.
    pub(super) async fn start_with_lists(list_max: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let control = Rig::start_with_lists(folder.path(), WITH_TOKEN, list_max).await.control;
        Self::of(control, LOOPBACK, folder)
    }

    /// Stores a session and a task of another replica. Returns the ids that lists show.
    pub(super) async fn stored_elsewhere(&self, tenant: &str, number: u8) -> [String; 2] {
        let (key, task) = stored_elsewhere(&self.control, tenant, number).await;
        [key.digest(), tasks::digest(&task)]
    }

    fn of(control: Arc<Control>, address: &str, folder: tempfile::TempDir) -> Self {
        let access =
            Access::new(control.broker.auth_settings(), address.parse::<SocketAddr>().unwrap());
        Self { router: router(Arc::clone(&control), access), control, _folder: folder }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.control.broker.draining()
    }

    pub(super) async fn send(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn request(&self, method: &str, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let request = request(method, path).header(header::CONTENT_TYPE, "application/json");
        read(
            self.send(
                request
                    .body(body.map_or(Body::empty(), |body| Body::from(body.to_string())))
                    .unwrap(),
            )
            .await,
        )
        .await
    }

    /// Expects a problem as the answer. Returns its field and detail.
    async fn refused(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
        status: u16,
    ) -> (String, String) {
        let (code, problem) = self.request(method, path, body).await;
        assert_eq!(
            (code.as_u16(), problem["status"].as_u64()),
            (status, Some(u64::from(status))),
            "{method} {path}: {problem}"
        );
        assert!(
            problem["type"].as_str().unwrap().starts_with("urn:mcp-broker:problem:"),
            "{problem}"
        );
        assert!(!problem["title"].as_str().unwrap().is_empty(), "{problem}");
        (
            problem["field"].as_str().unwrap_or_default().to_owned(),
            problem["detail"].as_str().unwrap().to_owned(),
        )
    }
}

pub(super) fn request(method: &str, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path).header(header::HOST, LOOPBACK)
}

pub(super) async fn read(response: Response<Body>) -> (StatusCode, Value) {
    let status = response.status();
    let problem = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind == "application/problem+json");
    assert_eq!(
        problem,
        status.is_client_error() || (status.is_server_error() && problem),
        "{response:?}"
    );
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

pub(super) fn http_backend() -> Value {
    json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/mcp"}, "credentials": {"bearer": "canary"}})
}

#[tokio::test]
async fn tenants_are_created_replaced_and_removed() {
    let admin = Admin::open().await;
    let (status, tenant) =
        admin.request("PUT", "/admin/v1/tenants/acme", Some(json!({"weight": 2}))).await;
    assert_eq!(
        (status.as_u16(), &tenant["weight"], &tenant["enabled"]),
        (201, &json!(2), &json!(true))
    );
    let (status, _) =
        admin.request("PUT", "/admin/v1/tenants/acme", Some(json!({"enabled": false}))).await;
    assert_eq!(status, 200, "replaced");
    let (_, tenant) = admin.request("GET", "/admin/v1/tenants/acme", None).await;
    assert_eq!(
        (&tenant["weight"], &tenant["enabled"]),
        (&json!(1), &json!(false)),
        "a replaced tenant keeps nothing of the old one"
    );
    let (_, list) = admin.request("GET", "/admin/v1/tenants", None).await;
    let names: Vec<&str> = list["tenants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tenant| tenant["tenant"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["acme", "default"]);
    assert_eq!(admin.request("DELETE", "/admin/v1/tenants/acme", None).await.0, 204);
    admin.refused("GET", "/admin/v1/tenants/acme", None, 404).await;
    admin.refused("DELETE", "/admin/v1/tenants/acme", None, 404).await;
    admin.refused("DELETE", "/admin/v1/tenants/default", None, 409).await;
}

#[tokio::test]
async fn keys_are_shown_once() {
    let admin = Admin::open().await;
    let keys = "/admin/v1/tenants/default/keys";
    let (status, made) =
        admin.request("POST", keys, Some(json!({"name": "laptop", "principal": "ann"}))).await;
    assert_eq!(status, 201);
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    assert!(key.starts_with("mcpb_"), "{made}");
    assert_eq!(admin.request("POST", keys, None).await.0, 201, "a body is not needed");
    let (_, list) = admin.request("GET", keys, None).await;
    assert_eq!(list["keys"].as_array().unwrap().len(), 2);
    assert!(list.to_string().contains(id) && !list.to_string().contains(key), "{list}");
    assert_eq!(admin.request("DELETE", &format!("{keys}/{id}"), None).await.0, 204);
    admin.refused("DELETE", &format!("{keys}/{id}"), None, 404).await;
    let (field, _) = admin.refused("POST", keys, Some(json!({"nmae": "x"})), 400).await;
    assert_eq!(field, "nmae");
    let (field, _) = admin.refused("POST", keys, Some(json!({"name": 1})), 400).await;
    assert_eq!(field, "name");
    assert_eq!(
        admin.request("POST", keys, Some(json!({"name": null}))).await.0,
        201,
        "as the document allows"
    );
    let breaker = "/admin/v1/tenants/default/backends/one/breaker";
    let (field, detail) = admin.refused("POST", breaker, Some(json!({"state": "ajar"})), 400).await;
    assert_eq!(
        (field.as_str(), detail.as_str()),
        ("state", "state is \"ajar\"; allowed: open, closed")
    );
}

#[tokio::test]
async fn backends_are_created_and_removed_without_showing_secrets() {
    let admin = Admin::open().await;
    let path = "/admin/v1/tenants/default/backends/one";
    let (status, made) =
        admin.request("PUT", &format!("{path}?wait=false"), Some(http_backend())).await;
    assert_eq!(
        (status.as_u16(), &made["backend"], &made["settings"]["credentials"]["bearer"]),
        (201, &json!("one"), &json!(true)),
        "{made}"
    );
    assert!(
        made["state"].is_string() && made["tools"].is_u64() && made["links"].is_u64(),
        "{made}"
    );
    assert_eq!(
        admin.request("PUT", path, Some(http_backend())).await.0,
        200,
        "waits until it is known to fail, then tells"
    );
    let (_, shown) = admin.request("GET", path, None).await;
    let (_, list) = admin.request("GET", "/admin/v1/tenants/default/backends", None).await;
    assert_eq!(list["backends"].as_array().unwrap().len(), 1);
    for answer in [made, shown, list] {
        assert!(!answer.to_string().contains("canary"), "{answer}");
    }
    assert_eq!(admin.request("POST", &format!("{path}/probe"), None).await.0, 200);
    assert_eq!(admin.request("DELETE", path, None).await.0, 204);
    admin.refused("GET", path, None, 404).await;
    admin.refused("POST", &format!("{path}/probe"), None, 404).await;
}

#[tokio::test]
async fn settings_without_secrets_are_a_body_of_put() {
    let admin = Admin::open().await;
    let path = "/admin/v1/tenants/default/backends/one?wait=false";
    for transport in [
        json!({"type": "http", "url": "http://127.0.0.1:9/mcp"}),
        json!({"type": "websocket", "url": "ws://127.0.0.1:9/"}),
        json!({"type": "tcp", "address": "127.0.0.1:9"}),
        json!({"type": "stdio", "command": "true", "args": ["serve"], "cwd": "/tmp"}),
    ] {
        let (_, made) = admin.request("PUT", path, Some(json!({"transport": transport}))).await;
        let settings = &made["settings"];
        let (status, again) = admin.request("PUT", path, Some(settings.clone())).await;
        assert_eq!((status.as_u16(), &again["settings"]), (200, settings), "{again}");
    }
    admin.request("PUT", path, Some(http_backend())).await;
    let (_, shown) = admin.request("GET", "/admin/v1/tenants/default/backends/one", None).await;
    let (field, _) = admin.refused("PUT", path, Some(shown["settings"].clone()), 400).await;
    assert!(field.starts_with("credentials"), "a secret that is not shown: {field}");
}

#[tokio::test]
async fn bodies_at_fault_name_the_field() {
    let admin = Admin::open().await;
    let (backend, tenant) = ("/admin/v1/tenants/default/backends/one", "/admin/v1/tenants/acme");
    for (path, body, expected) in [
        (backend, json!({}), "transport"),
        (backend, json!({"transport": {"type": "http"}}), "transport.url"),
        (backend, json!({"transport": {"type": "http", "url": "ftp://x"}}), "transport.url"),
        (
            backend,
            json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/", "uri": 1}}),
            "transport.uri",
        ),
        (backend, json!({"transport": {"type": "stdio", "command": ""}}), "transport.command"),
        (
            backend,
            json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/"}, "colour": 1}),
            "colour",
        ),
        (
            backend,
            json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/"}, "timeouts": {"call": "soon"}}),
            "timeouts.call",
        ),
        (
            backend,
            json!({"transport": {"type": "http", "url": "http://10.1.2.3/"}}),
            "transport.url",
        ),
        (tenant, json!({"weight": 0}), "weight"),
        (tenant, json!({"limits": {"burst": -1}}), "limits.burst"),
        (tenant, json!({"id": "other"}), "id"),
        (tenant, json!([]), ""),
    ] {
        let (field, detail) = admin.refused("PUT", path, Some(body.clone()), 400).await;
        assert_eq!(field, expected, "{body}: {detail}");
    }
    admin.refused("GET", tenant, None, 404).await;
}

#[tokio::test]
async fn a_body_with_a_duplicate_member_is_refused() {
    let admin = Admin::open().await;
    for (method, path, body, field) in [
        ("PUT", "/admin/v1/tenants/acme", r#"{"weight":1,"weight":2}"#, "weight"),
        (
            "PUT",
            "/admin/v1/tenants/default/policy",
            r#"{"default":"deny","default":"allow"}"#,
            "default",
        ),
        (
            "PUT",
            "/admin/v1/tenants/default/backends/b",
            r#"{"transport":{"type":"http","url":"http://127.0.0.1:9/","\u0075rl":"http://127.0.0.1:8/"}}"#,
            "transport.url",
        ),
        (
            "PUT",
            "/admin/v1/tenants/default/toolsets/t",
            r#"{"tools":[{"name":"a"},{"name":"b","name":"c"}]}"#,
            "tools[1].name",
        ),
        (
            "POST",
            "/admin/v1/tenants/default/keys",
            r#"{"name":"k","scopes":[],"scopes":["a"]}"#,
            "scopes",
        ),
    ] {
        let request = request(method, path).header(header::CONTENT_TYPE, "application/json");
        let (code, problem) = read(admin.send(request.body(Body::from(body)).unwrap()).await).await;
        assert_eq!(code, 400, "{problem}");
        assert_eq!(problem["type"], "urn:mcp-broker:problem:invalid");
        assert_eq!(problem["field"], field, "{problem}");
    }
}

#[tokio::test]
async fn bodies_that_are_not_json_are_refused() {
    let admin = Admin::open().await;
    let path = "/admin/v1/tenants/acme";
    let with = |kind: &str, body: Body| {
        request("PUT", path).header(header::CONTENT_TYPE, kind).body(body).unwrap()
    };
    for (kind, body, status) in [
        ("application/json", Body::from("{\"weight\": 1"), 400),
        ("application/json", Body::from("{} {}"), 400),
        ("application/json", Body::empty(), 400),
        ("text/plain", Body::from("{}"), 415),
        ("application/jsonp", Body::from("{}"), 415),
        ("application/json", Body::from(" ".repeat(1024 * 1024 + 1)), 413),
        ("application/json", Body::from("[".repeat(10_000)), 400),
    ] {
        let (code, problem) = read(admin.send(with(kind, body)).await).await;
        assert_eq!(code, status, "{problem}");
        assert!(problem["field"].is_string(), "{problem}");
    }
    assert_eq!(
        admin.send(with("Application/JSON; charset=utf-8", Body::from("{}"))).await.status(),
        201
    );
}

#[tokio::test]
async fn names_and_parameters_at_fault_are_named() {
    let admin = Admin::open().await;
    for (method, path, expected) in [
        ("GET", "/admin/v1/tenants/Acme", "tenant"),
        ("PUT", "/admin/v1/tenants/a__b", "tenant"),
        ("GET", "/admin/v1/tenants/%ff", "tenant"),
        ("GET", "/admin/v1/tenants/..%2fdefault", "tenant"),
        ("GET", "/admin/v1/tenants/default/backends/-x", "backend"),
        ("DELETE", "/admin/v1/tenants/default/keys/a%20b", "id"),
        ("GET", "/admin/v1/sessions?tenant=NO", "tenant"),
        ("GET", "/admin/v1/sessions?tennant=default", "tennant"),
        ("GET", "/admin/v1/tasks?status=lost", "status"),
        ("PUT", "/admin/v1/tenants/default/backends/one?wait=perhaps", "wait"),
    ] {
        let (field, detail) = admin.refused(method, path, Some(http_backend()), 400).await;
        assert_eq!(field, expected, "{method} {path}: {detail}");
    }
    assert_eq!(admin.refused("GET", "/admin/v1/tasks?tenant=ghost", None, 404).await.0, "tenant");
    admin.refused("GET", "/admin/v1/sessions/nobody", None, 404).await;
    admin.refused("DELETE", "/admin/v1/sessions/nobody", None, 404).await;
    admin.refused("POST", "/admin/v1/tasks/none/cancel", None, 404).await;
}

#[tokio::test]
async fn unknown_routes_and_methods_are_problems() {
    let admin = Admin::open().await;
    for path in
        ["/", "/admin", "/admin/v1/tenants/", "/admin/v1/tenants/default/backends/one/fuse", "/mcp"]
    {
        admin.refused("GET", path, None, 404).await;
    }
    let response =
        admin.send(request("POST", "/admin/v1/tenants/acme").body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 405);
    let allow = response.headers()[header::ALLOW].to_str().unwrap().to_owned();
    assert!(allow.contains("PUT") && allow.contains("DELETE"), "{allow}");
    assert_eq!(read(response).await.1["status"], 405);
}

pub(super) const WITH_TOKEN: &str = r#"{"auth": {"admin_token": "correct-horse-battery-staple"}}"#;

#[tokio::test]
async fn every_documented_route_exists_and_requires_the_token() {
    let admin = Admin::start(WITH_TOKEN, LOOPBACK).await;
    let document = serde_json::to_value(openapi::document()).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    let mut operations = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let concrete = path
            .replace("{tenant}", "default")
            .replace("{backend}", "none")
            .replace("{issuer}", "none")
            .replace("{principal}", "none")
            .replace("{kind}", "tool")
            .replace("{name}", "none")
            .replace("{node}", "none")
            .replace("{id}", "none");
        for method in item.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
            operations += 1;
            let shut = admin.send(request(&method, &concrete).body(Body::empty()).unwrap()).await;
            let is_probe = concrete == health::LIVE || concrete == health::READY;
            assert_eq!(shut.status() == 401, !is_probe, "{method} {path}");
            let opened = request(&method, &concrete)
                .header(header::AUTHORIZATION, "bearer correct-horse-battery-staple");
            let (status, answer) =
                read(admin.send(opened.body(Body::empty()).unwrap()).await).await;
            assert_ne!(status, 405, "{method} {path}");
            assert_ne!(answer["type"], "urn:mcp-broker:problem:no-such-route", "{method} {path}");
        }
    }
    assert_eq!(operations, 81, "a new route needs its annotation in `openapi`, and a line here");
}

#[tokio::test]
async fn only_the_admin_token_gives_access() {
    let admin = Admin::start(WITH_TOKEN, LOOPBACK).await;
    let long = format!("Bearer {}", "x".repeat(8_000));
    for shown in [
        "",
        "Bearer",
        "Bearer ",
        "Basic Y29ycmVjdA==",
        "Bearer correct-horse-battery-stapl",
        "Bearer wrong",
        &long,
    ] {
        let response = admin.send(
            request("GET", "/admin/v1/tenants")
                .header(header::AUTHORIZATION, shown)
                .body(Body::empty())
                .unwrap(),
        );
        let response = response.await;
        assert_eq!(response.status(), 401, "{shown}");
        assert!(response.headers().contains_key(header::WWW_AUTHENTICATE));
    }
    admin.refused("GET", "/no/such/route", None, 401).await;
    for path in [
        "/admin/v1/tenants/",
        "/admin/v1/tenants%2fdefault",
        "//admin/v1/tenants",
        "/metrics/",
        "/healthz/",
        "/healthz/../metrics",
    ] {
        for method in ["GET", "HEAD", "OPTIONS", "POST", "TRACE"] {
            assert_eq!(
                admin.send(request(method, path).body(Body::empty()).unwrap()).await.status(),
                401,
                "{method} {path}"
            );
        }
    }
    let public = Admin::start("", "192.0.2.1:9090").await;
    let (_, detail) = public.refused("GET", "/admin/v1/tenants", None, 401).await;
    assert!(detail.contains("auth.admin_token"), "{detail}");
    assert_eq!(public.request("GET", "/healthz", None).await.0, 200);
}

#[tokio::test]
async fn web_pages_cannot_reach_a_loopback_listener() {
    let admin = Admin::start(
        "auth: {allowed_origins: ['https://app.example.com', 'http://localhost:3000']}",
        "127.0.0.1:9090",
    )
    .await;
    let page = |host: &str, origin: Option<&str>| {
        let builder =
            Request::builder().method("GET").uri("/admin/v1/tenants").header(header::HOST, host);
        let builder = origin
            .into_iter()
            .fold(builder, |builder, origin| builder.header(header::ORIGIN, origin));
        builder.body(Body::empty()).unwrap()
    };
    for (host, origin, status) in [
        ("localhost:9090", None, 200),
        ("127.0.0.1", None, 200),
        ("[::1]:9090", None, 200),
        ("localhost:9090", Some("http://localhost:9090"), 200),
        ("rebound.example:9090", None, 403),
        ("127.0.0.1.example", None, 403),
        ("localhost:9090", Some("http://localhost:3000"), 403),
        ("localhost:9090", Some("https://evil.example"), 403),
        ("localhost:9090", Some("https://app.example.com"), 403),
        ("localhost:9090", Some("https://localhost:9090"), 200),
        ("localhost:9090", Some("null"), 403),
        ("user@localhost", None, 400),
        ("", None, 400),
    ] {
        let response = admin.send(page(host, origin)).await;
        assert_eq!(response.status(), status, "{host} {origin:?}");
        assert!(!response.headers().contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
    }
}

/// Stores a session of another replica, and a task of that session. The number is in their ids.
async fn stored_elsewhere(control: &Control, tenant: &str, number: u8) -> (SessionKey, TaskId) {
    let store = &control.broker.shared.persistence.store;
    let other = NodeName::new("other/1");
    store.join(&other, Some("127.0.0.1:1"), Duration::from_secs(600)).await.unwrap();
    let (key, task) = (SessionKey::new([number; 32]), TaskId::new(format!("task-{number}")));
    let tenant = protocol::ids::TenantId::parse(tenant).unwrap();
    let principal = protocol::ids::PrincipalId::new("ann");
    let session = SessionRecord {
        key,
        identity: SessionIdentity {
            tenant: tenant.clone(),
            principal: principal.clone(),
            endpoint: None,
        },
        api_key: None,
        transport: "http".into(),
        version: "2025-11-25".into(),
        agreement: Vec::new(),
        state: Vec::new(),
        links: Vec::new(),
    };
    let record = TaskRecord { tenant, principal, session: key, ..task_record(task.as_str()) };
    let end = WriteOp::EndTask {
        task: task.clone(),
        epoch: None,
        status: TaskStatus::Cancelled,
        message: None,
        outcome: None,
    };
    for write in [
        WriteOp::OpenSession { record: Box::new(session), owner: other.clone() },
        task_creation(record, other),
        end,
    ] {
        store.write(&[write]).await.unwrap();
    }
    (key, task)
}

#[tokio::test]
async fn sessions_and_tasks_of_other_replicas_are_listed_and_can_be_ended() {
    let admin = Admin::open().await;
    let (key, task) = stored_elsewhere(&admin.control, "default", 7).await;
    let path = format!("/admin/v1/sessions/{}", key.digest());
    let (_, list) = admin.request("GET", "/admin/v1/sessions?tenant=default", None).await;
    let (status, shown) = admin.request("GET", &path, None).await;
    assert_eq!((status.as_u16(), &list["sessions"][0]), (200, &shown), "{list}");
    assert_eq!(
        (&shown["node"], &shown["state"], &shown["principal"]),
        (&json!("other/1"), &json!("ready"), &json!("ann")),
        "{shown}"
    );
    assert!(shown.get("calls_in_flight").is_none(), "only its owner knows: {shown}");

    let (_, listed) = admin.request("GET", "/admin/v1/tasks?status=cancelled", None).await;
    assert_eq!(listed["tasks"][0]["id"], tasks::digest(&task), "{listed}");
    let (_, shown) =
        admin.request("GET", &format!("/admin/v1/tasks/{}", task.as_str()), None).await;
    let history: Vec<&str> = shown["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| change["to"].as_str().unwrap())
        .collect();
    assert_eq!(
        (history, &shown["session"]),
        (vec!["working", "cancelled"], &json!(key.digest())),
        "{shown}"
    );

    assert_eq!(admin.request("DELETE", &path, None).await.0, 204);
    let store = &admin.control.broker.shared.persistence.store;
    let renewal = store
        .renew_lease(&NodeName::new("other/1"), Duration::from_secs(600), false)
        .await
        .unwrap();
    assert_eq!(renewal.sessions_to_end, [key], "its owner is told");
    let (_, nodes) = admin.request("GET", "/admin/v1/nodes", None).await;
    assert_eq!(
        (&nodes["nodes"][0]["node"], &nodes["nodes"][0]["is_this"]),
        (&json!("other/1"), &json!(false)),
        "{nodes}"
    );
}

#[tokio::test]
async fn without_the_database_no_partial_answer_is_returned() {
    let admin = Admin::open().await;
    admin.control.close().await;
    for path in
        ["sessions", "sessions/0123456789abcdef", "tasks", "tasks/none", "subscriptions", "nodes"]
    {
        let (status, problem) = admin.request("GET", &format!("/admin/v1/{path}"), None).await;
        assert_eq!(
            (status.as_u16(), &problem["type"]),
            (503, &json!("urn:mcp-broker:problem:store-unavailable")),
            "{path}: {problem}"
        );
    }
    assert_eq!(admin.request("GET", "/admin/v1/tenants", None).await.0, 200);
}

#[tokio::test]
async fn a_drain_makes_the_broker_unready() {
    let admin = Admin::open().await;
    let accepting = async |value: u8| {
        let metrics = admin.send(request("GET", "/metrics").body(Body::empty()).unwrap()).await;
        let metrics = metrics.into_body().collect().await.unwrap().to_bytes();
        let line = format!("\nmcp_accepting {value}\n");
        assert!(String::from_utf8_lossy(&metrics).contains(&line), "{line}");
    };
    assert_eq!(admin.request("GET", "/readyz", None).await.0, 200);
    accepting(1).await;
    assert_eq!(admin.request("POST", "/admin/v1/drain", None).await.0, 202);
    let response = admin.send(request("GET", "/readyz").body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 503);
    accepting(0).await;
    assert_eq!(admin.request("GET", "/healthz", None).await.0, 200);
}

#[tokio::test]
async fn metrics_are_prometheus_text() {
    let admin = Admin::open().await;
    let response = admin.send(request("GET", "/metrics").body(Body::empty()).unwrap()).await;
    assert!(
        response.headers()[header::CONTENT_TYPE]
            .to_str()
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
}

#[tokio::test]
async fn a_stopped_listener_finishes_its_answers_and_frees_its_port() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = tempfile::tempdir().unwrap();
    let control = Rig::start(folder.path(), "").await.control;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let tls_acceptor = TlsAcceptor::plain(&control.config);
    let serving =
        tokio::spawn(serve(control, HandoffListener::new(listener), tls_acceptor, stop.clone()));
    let mut client = TcpStream::connect(address).await.unwrap();
    client
        .write_all(format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut head = [0; 15];
    client.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    stop.cancel();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    serving.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
