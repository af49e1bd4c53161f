//! The admin API: the state it keeps over a restart, and its refusals.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use testkit::{AdminClient, FakeBackend, Reply, admin::items};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use crate::{builder, echo, stdio, text_of};

const BACKEND: &str = "/admin/v1/tenants/default/backends/b";

#[tokio::test]
async fn tenants_keys_and_backends_survive_a_restart() {
    let backend = FakeBackend::echo().await;
    let mut spec = backend.spec();
    spec["credentials"] = json!({"bearer": "kept-secret-4711"});
    let mut broker = builder()
        .auth_required()
        .admin_token("operator-of-tests")
        .tenant("acme")
        .backend("acme", "b", spec)
        .start()
        .await;
    broker.admin().put_tenant("acme", json!({"weight": 7, "limits": {"burst": 5}})).await;
    let key = broker.admin().create_key("acme").await;
    for stop in ["terminate", "kill"] {
        match stop {
            "terminate" => assert!(broker.terminate().await.success()),
            _ => broker.kill().await,
        }
        broker.restart().await;
        let (_, tenant) = broker.admin().get("/admin/v1/tenants/acme").await;
        assert!(tenant.to_string().contains("\"weight\":7"), "{tenant}");
        broker.admin().wait_backend_state("acme", "b", "ready").await;
        let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
        assert_eq!(client.tool_names().await, ["b__echo"], "after {stop}");
        assert_eq!(
            backend.recorded().pop().map(|seen| seen.header("authorization").map(str::to_owned)),
            Some(Some("Bearer kept-secret-4711".into()))
        );
    }
    for file in std::fs::read_dir(broker.folder()).unwrap().flatten() {
        let bytes = std::fs::read(file.path()).unwrap_or_default();
        for secret in [key.as_bytes(), b"kept-secret-4711"] {
            let found = bytes.windows(secret.len()).any(|window| window == secret);
            assert!(!found, "a secret is in clear in {}", file.path().display());
        }
    }
}

#[tokio::test]
async fn declared_tenants_and_backends_are_read_only_next_to_stored_ones() {
    let (declared, added) = (FakeBackend::echo().await, FakeBackend::echo().await);
    let config = json!({"tenants": {"acme": {}}, "backends": {"declared": declared.spec()}});
    let broker = builder().config(config).backend("default", "added", added.spec()).start().await;
    broker.admin().wait_backend_state("default", "declared", "ready").await;
    assert_eq!(
        broker.connected(json!({})).await.tool_names().await,
        ["added__echo", "declared__echo"]
    );
    let path = "/admin/v1/tenants/default/backends/declared";
    assert_eq!(broker.admin().put(path, &added.spec()).await.0, 409);
    assert_eq!(broker.admin().delete(path).await.0, 409);
    assert_eq!(broker.admin().delete("/admin/v1/tenants/acme").await.0, 409);
    assert_eq!(broker.admin().get(path).await.0, 200);
}

/// Checks that an answer is a problem document; returns its detail.
async fn problem(
    admin: &AdminClient,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> (u16, String) {
    let response = admin.send(method, path, body).await;
    assert_eq!(
        response.content_type(),
        "application/problem+json",
        "{method} {path}: {}",
        response.status
    );
    let status = response.status;
    let problem = response.json().await;
    assert!(problem["type"].is_string() && problem["title"].is_string(), "{problem}");
    assert_eq!(problem["status"], status);
    (status, problem.to_string())
}

#[tokio::test]
async fn a_bad_body_is_refused_with_its_field_and_the_allowed_values() {
    let broker = builder().start().await;
    for (body, field) in [
        (json!({}), "transport"),
        (json!({"transport": {}}), "type"),
        (json!({"transport": {"type": "carrier-pigeon"}}), "type"),
        (json!({"transport": {"type": "http"}}), "url"),
        (json!({"transport": {"type": "http", "url": "ftp://x"}}), "url"),
        (json!({"transport": {"type": "http", "url": "http://user:pw@127.0.0.1/"}}), "url"),
        (json!({"transport": {"type": "http", "url": 7}}), "url"),
        (json!({"transport": {"type": "http", "url": "http://127.0.0.1/", "urll": 1}}), "urll"),
        (json!({"transport": {"type": "stdio", "command": ""}}), "command"),
        (json!({"transport": {"type": "stdio", "command": "x", "args": "y"}}), "args"),
        (json!({"transport": {"type": "stdio", "command": "x", "cwd": "relative"}}), "cwd"),
        (
            json!({"transport": {"type": "http", "url": "http://127.0.0.1/"}, "links": "some"}),
            "links",
        ),
        (
            json!({"transport": {"type": "http", "url": "http://127.0.0.1/"}, "timeouts": {"call": "soon"}}),
            "timeouts.call",
        ),
        (
            json!({"transport": {"type": "http", "url": "http://127.0.0.1/"}, "timeouts": {"call": "-1s"}}),
            "timeouts.call",
        ),
        (
            json!({"transport": {"type": "http", "url": "http://127.0.0.1/"}, "colour": "red"}),
            "colour",
        ),
        (json!({"transport": {"type": "tcp", "address": "127.0.0.1"}}), "address"),
        (json!({"transport": {"type": "tcp", "address": "127.0.0.1:1", "url": "x"}}), "url"),
        (json!({"transport": {"type": "quic", "address": "127.0.0.1"}}), "address"),
        (json!({"transport": {"type": "websocket", "url": "http://127.0.0.1/"}}), "url"),
        (
            json!({"transport": {"type": "http", "url": "http://127.0.0.1/"}, "breaker": {"failures": 0}}),
            "breaker.failures",
        ),
        (json!([]), ""),
    ] {
        let (status, text) = problem(&broker.admin(), "PUT", BACKEND, Some(&body)).await;
        assert!([400, 422].contains(&status) && text.contains(field), "{body}: {status} {text}");
    }
    assert_eq!(broker.admin().get(BACKEND).await.0, 404);
    for (body, field) in [
        (json!({"weight": 0}), "weight"),
        (json!({"weight": "heavy"}), "weight"),
        (json!({"enabled": "yes"}), "enabled"),
        (json!({"limits": {"burst": -1}}), "burst"),
        (json!({"limits": {"bursts": 1}}), "bursts"),
        (json!({"name": "x"}), "name"),
    ] {
        let (status, text) =
            problem(&broker.admin(), "PUT", "/admin/v1/tenants/acme", Some(&body)).await;
        assert!([400, 422].contains(&status) && text.contains(field), "{body}: {status} {text}");
    }
    assert_eq!(broker.admin().get("/admin/v1/tenants/acme").await.0, 404);
}

#[tokio::test]
async fn bad_names_unknown_objects_and_wrong_methods_return_problems() {
    let (broker, _backend) = echo().await;
    let admin = broker.admin();
    for name in ["UPPER", "a__b", "-a", "a-", "a.b", "%00", "a%2Fb", &"x".repeat(40), "%C3%BC"] {
        let (status, _) =
            problem(&admin, "PUT", &format!("/admin/v1/tenants/{name}"), Some(&json!({}))).await;
        assert!([400, 404, 422].contains(&status), "{name}: {status}");
    }
    for (method, path) in [
        ("GET", "/admin/v1/tenants/none"),
        ("DELETE", "/admin/v1/tenants/none"),
        ("GET", "/admin/v1/tenants/none/backends/b"),
        ("GET", "/admin/v1/tenants/none/backends"),
        ("GET", "/admin/v1/tenants/none/keys"),
        ("GET", "/admin/v1/tenants/default/backends/none"),
        ("DELETE", "/admin/v1/tenants/default/backends/none"),
        ("DELETE", "/admin/v1/tenants/default/keys/none"),
        ("POST", "/admin/v1/tenants/default/backends/none/probe"),
        ("GET", "/admin/v1/sessions/none"),
        ("DELETE", "/admin/v1/sessions/none"),
        ("GET", "/admin/v1/tasks/none"),
        ("POST", "/admin/v1/tasks/none/cancel"),
        ("GET", "/admin/v1/nothing"),
        ("GET", "/"),
    ] {
        assert_eq!(problem(&admin, method, path, None).await.0, 404, "{method} {path}");
    }
    for (method, path) in [
        ("PATCH", "/admin/v1/tenants"),
        ("POST", "/admin/v1/tenants/default"),
        ("DELETE", "/admin/v1/sessions"),
        ("PUT", "/healthz"),
    ] {
        let response = admin.send(method, path, None).await;
        assert_eq!(response.status, 405, "{method} {path}");
    }
    let (status, _) = problem(
        &admin,
        "PUT",
        "/admin/v1/tenants/none/backends/b",
        Some(&FakeBackend::echo().await.spec()),
    )
    .await;
    assert_eq!(status, 404, "a backend needs its tenant");
}

#[tokio::test]
async fn a_body_that_is_not_json_or_too_large_is_a_problem() {
    let broker = builder().start().await;
    for (body, media) in [
        ("{", "application/json"),
        ("", "application/json"),
        ("\u{0}", "application/json"),
        ("a: 1", "application/yaml"),
    ] {
        let request = http::Request::builder()
            .method("PUT")
            .uri("/admin/v1/tenants/acme")
            .header("host", "localhost")
            .header("content-type", media);
        let request = request.body(http_body_util::Full::new(bytes::Bytes::from(body))).unwrap();
        let response = testkit::http::send_http1(broker.admin_address(), request).await.unwrap();
        assert!(
            [400, 415, 422].contains(&response.status),
            "{body:?} {media}: {}",
            response.status
        );
        assert_eq!(response.content_type(), "application/problem+json");
    }
    let huge = json!({"weight": 1, "x": "y".repeat(4 << 20)});
    // The broker may close the connection while a client still sends.
    if let Ok(response) =
        broker.admin().try_send("PUT", "/admin/v1/tenants/acme", Some(&huge)).await
    {
        assert_eq!(response.status, 413);
    }
    assert_eq!(broker.admin().get("/admin/v1/tenants/acme").await.0, 404);
}

#[tokio::test]
async fn health_readiness_metrics_and_openapi_are_served() {
    let (broker, _backend) = echo().await;
    let admin = broker.admin();
    assert_eq!((admin.get("/healthz").await.0, admin.get("/readyz").await.0), (200, 200));
    let (status, document) = admin.get("/admin/v1/openapi.json").await;
    assert_eq!(status, 200);
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    for path in [
        "/admin/v1/tenants/{tenant}",
        "/admin/v1/tenants/{tenant}/backends/{backend}",
        "/admin/v1/sessions",
        "/admin/v1/drain",
    ] {
        assert!(document["paths"].get(path).is_some(), "{path}");
    }
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    let text = admin.metrics().await;
    for name in [
        "mcp_requests_total",
        "mcp_request_seconds",
        "mcp_requests_pending",
        "mcp_protocol_version_negotiated_total",
        "mcp_phase_transitions_total",
        "mcp_sessions",
        "mcp_links",
        "mcp_backend_request_seconds",
        "mcp_bytes_total",
        "process_resident_memory_bytes",
        "process_open_fds",
    ] {
        assert!(text.contains(&format!("# TYPE {name} ")), "{name} in {text}");
    }
    assert_eq!(
        admin
            .metric(
                "mcp_requests_total",
                &[("method", "tools/call"), ("outcome", "ok"), ("transport", "http")]
            )
            .await,
        Some(1.0)
    );
    assert_eq!(
        admin
            .metric(
                "mcp_protocol_version_negotiated_total",
                &[("version", "2025-11-25"), ("side", "client")]
            )
            .await,
        Some(1.0)
    );
    admin.wait_metric("mcp_sessions", &[("transport", "http")], |value| value == 1.0).await;
    client.delete_session().await;
    admin.wait_metric("mcp_sessions", &[("transport", "http")], |value| value == 0.0).await;
    assert!(!text.contains("tenant=\"default\""), "tenants are no label unless configured");
}

#[tokio::test]
async fn the_view_of_a_backend_has_its_state_version_and_counts() {
    let backend = FakeBackend::echo().await;
    backend
        .list("prompts", vec![json!({"name": "p"})])
        .server_info(json!({"name": "weather", "version": "7"}), None);
    let broker = crate::broker_with(&backend).await;
    let view = broker.admin().backend("default", "b").await;
    assert_eq!(
        (view["state"].as_str(), view["protocol_version"].as_str()),
        (Some("ready"), Some("2025-11-25")),
        "{view}"
    );
    assert_eq!(
        (view["tools"].as_u64(), view["prompts"].as_u64(), view["resources"].as_u64()),
        (Some(1), Some(1), Some(0)),
        "{view}"
    );
    let (_, all) = broker.admin().get("/admin/v1/tenants/default/backends").await;
    assert_eq!(items(&all, "backends").len(), 1, "{all}");
}

#[tokio::test]
async fn put_answers_after_the_first_handshake_or_with_its_error() {
    let broker = builder().single_process().start().await;
    let good = FakeBackend::echo().await;
    let (status, answer) = broker.admin().put_backend("default", "b", &good.spec()).await;
    assert!([200, 201].contains(&status) && answer["state"] == "ready", "{status} {answer}");
    let (_, answer) = broker.admin().put_backend("default", "b", &good.spec()).await;
    assert_eq!(answer["state"], "ready", "the same again changes nothing");
    assert_eq!(good.recorded_of("initialize").len(), 1);
    let bad = json!({"transport": {"type": "http", "url": "http://127.0.0.1:1/mcp"}});
    let (status, answer) = broker.admin().put_backend("default", "c", &bad).await;
    assert!(
        (200..300).contains(&status)
            && answer["state"] == "failed"
            && answer["last_error"].is_string(),
        "{status} {answer}"
    );
}

#[tokio::test]
async fn sec_02_backends_outside_of_the_egress_policy_are_refused() {
    let backend = FakeBackend::echo().await;
    let broker =
        builder().config(json!({"egress": {"allow": [], "deny": ["127.0.0.1/32"]}})).start().await;
    for url in [
        backend.url(),
        format!("http://[::ffff:127.0.0.1]:{}/mcp", backend.address().port()),
        "http://169.254.169.254/".into(),
    ] {
        let (status, answer) = broker
            .admin()
            .put_backend("default", "b", &json!({"transport": {"type": "http", "url": url}}))
            .await;
        let refused = (400..500).contains(&status) || answer["state"] == "failed";
        assert!(refused && answer.to_string().contains("egress"), "{url}: {status} {answer}");
    }
    assert_eq!(backend.recorded().len(), 0);
}

#[tokio::test]
async fn keys_are_shown_once_and_listed_without_their_secret() {
    let broker = builder().tenant("acme").start().await;
    let (id, key) = broker.admin().create_key_with_id("acme").await;
    assert!(key.starts_with("mcpb_") && key.len() > 40, "{key}");
    let (status, listed) = broker.admin().get("/admin/v1/tenants/acme/keys").await;
    assert_eq!(status, 200);
    assert!(listed.to_string().contains(&id) && !listed.to_string().contains(&key), "{listed}");
    assert_eq!(
        items(&broker.admin().get("/admin/v1/tenants/default/keys").await.1, "keys").len(),
        0
    );
    assert_eq!(
        broker.admin().delete(&format!("/admin/v1/tenants/default/keys/{id}")).await.0,
        404,
        "another tenant's key is as absent"
    );
}

#[tokio::test]
async fn sec_04_a_stdio_backend_shows_no_credential_and_no_environment_value() {
    let script = stdio().env("API_TOKEN", "value-0815");
    let broker = builder().backend("default", "s", script.spec()).start().await;
    let (_, shown) = broker.admin().get("/admin/v1/tenants/default/backends/s").await;
    assert!(!shown.to_string().contains("value-0815"), "{shown}");
    assert!(
        text_of(&broker.connected(json!({})).await.call("s__env", json!({})).await)
            .contains("value-0815")
    );
}

#[tokio::test]
async fn r26_sighup_applies_a_changed_file_and_a_bad_one_changes_nothing() {
    let (one, two) = (FakeBackend::echo().await, FakeBackend::echo().await);
    let broker =
        builder().single_process().config(json!({"backends": {"one": one.spec()}})).start().await;
    broker.admin().wait_backend_state("default", "one", "ready").await;
    let file = broker.folder().join("config.yaml");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::write(&file, "colour: [red").unwrap();
    broker.signal(rustix::process::Signal::HUP);
    broker.wait_for_log("the configuration was not reloaded").await;
    assert_eq!(broker.connected(json!({})).await.tool_names().await, ["one__echo"]);
    config["backends"] = json!({"two": two.spec()});
    std::fs::write(&file, config.to_string()).unwrap();
    let client = broker.connected(json!({})).await;
    let mut stream = client.open_get_stream().await;
    broker.signal(rustix::process::Signal::HUP);
    broker.admin().wait_backend_state("default", "two", "ready").await;
    stream.find(|message| message["method"] == "notifications/tools/list_changed").await;
    client.wait_tools(&["two__echo"]).await;
}

/// Rules that protect callers are among the settings that are shown, so an operator who changes
/// what was read keeps them.
#[tokio::test]
async fn settings_that_were_read_and_are_stored_again_change_nothing() {
    let broker = builder().start().await;
    let admin = broker.admin();
    let folder = tempfile::tempdir().unwrap();
    let mut spec = stdio().spec();
    spec["sandbox"] = json!({"write": [folder.path()], "network": false});
    spec["pins"] = json!("hold_all");
    spec["timeouts"] = json!({"call": "7s"});
    spec["resources"] = json!({"roots": ["test://"]});
    admin.put_backend("default", "s", &spec).await;
    let before = admin.backend("default", "s").await["settings"].clone();
    assert_eq!((&before["sandbox"], &before["pins"]), (&spec["sandbox"], &spec["pins"]));
    let mut again = before.clone();
    again.as_object_mut().unwrap().remove("credentials");
    assert_eq!(admin.put_backend("default", "s", &again).await.0, 200);
    assert_eq!(admin.backend("default", "s").await["settings"], before);
}

#[tokio::test]
async fn a_put_of_a_backend_returns_when_the_backend_is_removed() {
    let backend = FakeBackend::echo().await;
    backend.on("initialize", |_| async { Reply::Hang });
    let broker = builder().start().await;
    let spec = json!({
        "transport": {"type": "http", "url": backend.url()},
        "protocol": "legacy",
        "timeouts": {"initialize": "10m"},
    });
    let admin = broker.admin();
    let removal = async {
        backend.wait_for("the handshake", |seen| seen.is("initialize")).await;
        assert_eq!(broker.admin().delete("/admin/v1/tenants/default/backends/b").await.0, 204);
    };
    let (put, ()) = tokio::join!(admin.put_backend("default", "b", &spec), removal);
    assert_eq!(put.0, 404, "{}", put.1);
}

/// Returns an admin connection from `address` whose request never gets its body.
async fn without_body(address: &str, admin: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(admin).await.unwrap();
    let head = "PUT /admin/v1/tenants/slow HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ncontent-length: 10\r\n\r\n";
    let _is_closed = stream.write_all(head.as_bytes()).await;
    stream
}

#[tokio::test]
async fn one_address_leaves_admin_connections_to_the_others() {
    let broker = builder().single_process().start().await;
    let mut held = Vec::new();
    for _ in 0..200 {
        held.push(without_body("127.0.0.2", broker.admin_address()).await);
    }
    // The broker waits 30 s for a body, and 128 connections are open at most.
    let probe = broker.admin();
    let answer = tokio::time::timeout(Duration::from_secs(15), probe.get("/healthz")).await;
    assert_eq!(answer.expect("no place for a probe").0, 200);
    let last = held.last_mut().unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(15), last.read(&mut [0; 64])).await;
    assert!(
        matches!(closed, Ok(Ok(0) | Err(_))),
        "the broker keeps more of one address: {closed:?}"
    );
}
