//! Sign-ins that fail: counted, logged, audited, and answered with 429 if an address fails too
//! often. Also credentials that are never accepted: short admin tokens, API keys of anonymous
//! callers, pages of other origins.

use serde_json::{Value, json};
use testkit::{
    Authority, BrokerBuilder, FakeBackend, QuicPeer, TestBroker, Topology, duplex::Wire, eventually,
};

use crate::{
    builder, initialize_body, kind, refused,
    stateless::{Modern, meta},
};

const ADMIN_TOKEN: &str = "operator-of-tests";
/// A text in the form of an API key that was never issued.
const WRONG_KEY: &str = "mcpb_AAAAAAAAAAAA_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const PER_MINUTE: u64 = 5;

fn guarded() -> BrokerBuilder {
    builder().single_process().auth_required().admin_token(ADMIN_TOKEN)
}

fn limited() -> BrokerBuilder {
    guarded().config(json!({"limits": {"sign_in_failures_per_minute": PER_MINUTE}}))
}

async fn failures(broker: &TestBroker, plane: &str, reason: &str) -> f64 {
    broker
        .admin()
        .metric("mcp_auth_failures_total", &[("plane", plane), ("reason", reason)])
        .await
        .unwrap_or(0.0)
}

/// Waits for so many records of failed sign-ins at a plane, and returns all of them.
async fn recorded(broker: &TestBroker, plane: &str, count: usize) -> Vec<Value> {
    eventually("the records of the failed sign-ins", || async {
        let (status, answer) = broker.admin().get("/admin/v1/audit?limit=1000").await;
        assert_eq!(status, 200, "{answer}");
        let is_wanted =
            |record: &&Value| record["action"] == "sign_in" && record["target"] == plane;
        let found: Vec<Value> =
            answer["records"].as_array().unwrap().iter().filter(is_wanted).cloned().collect();
        if found.len() < count { Err(answer) } else { Ok(found) }
    })
    .await
}

fn assert_recorded(records: &[Value], kind: &str, reason: &str) {
    assert_eq!(
        records.len(),
        1,
        "one for each address, plane and reason within a minute: {records:?}"
    );
    let record = &records[0];
    assert_eq!(
        (
            &record["kind"],
            &record["outcome"],
            &record["error"],
            &record["address"],
            &record["count"],
            &record["principal"]
        ),
        (
            &json!(kind),
            &json!("refused"),
            &json!(reason),
            &json!("127.0.0.1"),
            &json!(1),
            &json!("unknown")
        ),
        "{record}"
    );
    assert!(record["tenant"].is_null() && record["api_key"].is_null(), "{record}");
}

#[tokio::test]
async fn s08_wrong_admin_tokens_are_counted_and_the_right_one_is_always_accepted() {
    let broker = limited().start().await;
    let wrong = broker.admin().with_token(Some("operator-of-testz"));
    for number in 0..2 * PER_MINUTE {
        let answer = wrong.send("GET", "/admin/v1/tenants", None).await;
        let expected = if number < PER_MINUTE { 401 } else { 429 };
        assert_eq!(answer.status, expected, "failure {number}");
        if expected == 429 {
            let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=61).contains(&wait), "{wait}");
            assert_eq!(answer.json().await["type"], "urn:mcp-broker:problem:too-many-sign-ins");
        }
        assert_eq!(
            broker.admin().get("/admin/v1/tenants").await.0,
            200,
            "from the same address, after failure {number}"
        );
    }
    assert_eq!(failures(&broker, "admin", "admin_token").await, 10.0);
    assert_eq!(
        broker.admin().metric("mcp_rate_limited_total", &[("scope", "sign_in_failures")]).await,
        Some(5.0)
    );
    broker.wait_for_log("sign-ins failed").await;
    assert_eq!(broker.log().matches("sign-ins failed").count(), 1, "{}", broker.log());
    assert_recorded(&recorded(&broker, "admin", 1).await, "admin", "admin_token");
    assert!(!broker.log().contains("operator-of-test"), "no token is told");

    // A request without a token gets the challenge.
    assert_eq!(
        broker.admin().with_token(None).send("GET", "/admin/v1/tenants", None).await.status,
        401
    );
    assert_eq!(failures(&broker, "admin", "missing").await, 1.0);
}

#[tokio::test]
async fn s08_the_number_of_failures_in_a_minute_is_recorded_before_the_exit() {
    let mut broker =
        guarded().config(json!({"limits": {"sign_in_failures_per_minute": 0}})).start().await;
    let wrong = broker.admin().with_token(Some("operator-of-testz"));
    for _ in 0..21 {
        assert_eq!(
            wrong.send("GET", "/admin/v1/tenants", None).await.status,
            401,
            "0 is any number"
        );
    }
    broker.terminate().await;
    broker.restart().await;
    let counts: Vec<Value> =
        recorded(&broker, "admin", 2).await.iter().map(|record| record["count"].clone()).collect();
    assert_eq!(counts, [json!(1), json!(20)]);
}

#[tokio::test]
async fn s08_wrong_keys_are_counted_and_audited_over_every_wire() {
    let authority = Authority::new();
    let signed = authority.server("server");
    let listen = json!({
        "listen": {"tcp": "127.0.0.1:0", "quic": "127.0.0.1:0"},
        "tls": {"cert_file": signed.cert, "key_file": signed.key},
        "limits": {"sign_in_failures_per_minute": 0},
    });
    let broker = guarded().config(listen).start().await;
    let bearer = format!("Bearer {WRONG_KEY}");
    let headers = [("authorization", bearer.as_str())];
    let token = json!({"dev.mcp-broker/token": WRONG_KEY});
    let mut expected = 0.0;
    let mut counted = async |what: &str| {
        expected += 1.0;
        assert_eq!(failures(&broker, "data", "api_key").await, expected, "{what}");
    };

    assert_eq!(
        broker.client("/mcp").bearer(WRONG_KEY).post(initialize_body("2025-11-25")).await.status,
        401
    );
    counted("HTTP").await;
    assert_eq!(
        Modern::of(&broker, "/mcp")
            .bearer(WRONG_KEY)
            .post(json!(1), "tools/list", json!({}))
            .await
            .status,
        401
    );
    counted("HTTP of 2026-07-28").await;
    assert_eq!(
        broker
            .duplex()
            .websocket(broker.http_address(), "/ws", &headers)
            .await
            .map(|_| ())
            .unwrap_err(),
        401
    );
    counted("WebSocket").await;
    assert_eq!(
        Wire::http_sse(broker.http_address(), "/sse", &headers).await.map(|_| ()).unwrap_err(),
        401
    );
    counted("HTTP+SSE").await;
    let lines = broker.duplex().tcp(broker.tcp_address()).await;
    assert_eq!(kind(&lines.initialize(json!({}), token.clone()).await["error"]), "unauthorized");
    lines.wait_for_close().await;
    counted("TCP").await;
    let peer = QuicPeer::connect(broker.quic_address(), &authority, None, "mcp").await.unwrap();
    let control = broker.duplex().over(peer.control().await);
    assert_eq!(kind(&control.initialize(json!({}), token).await["error"]), "unauthorized");
    control.wait_for_close().await;
    counted("QUIC").await;

    assert_recorded(&recorded(&broker, "data", 1).await, "call", "api_key");
    let malformed = broker.client("/mcp");
    let answer = malformed
        .send_with(
            "POST",
            malformed.headers_with(&[("authorization", "Basic YTpi")]),
            initialize_body("2025-11-25"),
        )
        .await;
    assert_eq!(answer.status, 401);
    assert_eq!(broker.client("/mcp").post(initialize_body("2025-11-25")).await.status, 401);
    assert_eq!(
        (failures(&broker, "data", "malformed").await, failures(&broker, "data", "missing").await),
        (1.0, 1.0)
    );
    assert!(!broker.log().contains(WRONG_KEY), "no key is told");
}

#[tokio::test]
async fn s08_an_address_with_many_failures_must_wait_but_valid_keys_are_accepted() {
    let backend = FakeBackend::echo().await;
    let broker = limited()
        .config(json!({"listen": {"tcp": "127.0.0.1:0"}}))
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let key = broker.admin().create_key("default").await;
    for _ in 0..PER_MINUTE {
        let (status, error) = refused(
            broker.client("/mcp").bearer(WRONG_KEY).post(initialize_body("2025-11-25")).await,
        )
        .await;
        assert_eq!((status, kind(&error)), (401, "unauthorized"));
    }
    let response =
        broker.client("/mcp").bearer(WRONG_KEY).post(initialize_body("2025-11-25")).await;
    assert!(response.header("retry-after").is_some());
    let (status, error) = refused(response).await;
    assert_eq!(
        (status, kind(&error), &error["data"]["retryable"]),
        (429, "too_many_sign_ins", &json!(true)),
        "{error}"
    );
    let bearer = format!("Bearer {WRONG_KEY}");
    let headers = [("authorization", bearer.as_str())];
    assert_eq!(
        broker
            .duplex()
            .websocket(broker.http_address(), "/ws", &headers)
            .await
            .map(|_| ())
            .unwrap_err(),
        429
    );
    assert_eq!(
        Wire::http_sse(broker.http_address(), "/sse", &headers).await.map(|_| ()).unwrap_err(),
        429
    );
    let lines = broker.duplex().tcp(broker.tcp_address()).await;
    let answer = lines.initialize(json!({}), json!({"dev.mcp-broker/token": WRONG_KEY})).await;
    assert_eq!(kind(&answer["error"]), "too_many_sign_ins");
    lines.wait_for_close().await;
    let lines = broker
        .duplex()
        .speaking(testkit::judge::Revision::V2026_07_28)
        .tcp(broker.tcp_address())
        .await;
    let mut shown = meta(json!({}));
    shown["dev.mcp-broker/token"] = json!(WRONG_KEY);
    assert_eq!(
        kind(&lines.error("tools/list", json!({"_meta": shown})).await),
        "too_many_sign_ins"
    );
    lines.wait_for_close().await;

    // A client without a key gets the challenge, and one with a good key is served.
    assert_eq!(broker.client("/mcp").post(initialize_body("2025-11-25")).await.status, 401);
    let good = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    good.call("b__echo", json!({})).await;
    let lines = broker.duplex().tcp(broker.tcp_address()).await;
    lines
        .connected_with(json!({}), json!({"dev.mcp-broker/token": key}))
        .await
        .call("b__echo", json!({}))
        .await;
}

#[tokio::test]
async fn s08_certificates_without_a_tenant_and_another_credential_are_counted() {
    let authority = Authority::new();
    let (server, nobody, absent) =
        (authority.server("server"), authority.server("nobody"), authority.client("absent", "ann"));
    let config = json!({
        "listen": {"tcp": "127.0.0.1:0"},
        "tls": {"cert_file": server.cert, "key_file": server.key, "client_ca_file": authority.ca(), "client_auth": "optional"},
    });
    let broker = guarded().config(config).start().await;
    for (certificate, reason) in [(&nobody, "certificate"), (&absent, "tenant")] {
        let stream = authority
            .connect(broker.tcp_address().port(), Some(certificate), &["mcp"])
            .await
            .unwrap();
        let lines = broker.duplex().over(Wire::lines(stream));
        assert_eq!(
            kind(&lines.initialize(json!({}), json!({})).await["error"]),
            "unauthorized",
            "{reason}"
        );
        lines.wait_for_close().await;
        let stream = authority
            .connect(broker.http_address().port(), Some(certificate), &["http/1.1"])
            .await
            .unwrap();
        assert_eq!(
            Wire::websocket(stream, "localhost", "/ws", &[]).await.map(|_| ()).unwrap_err(),
            401,
            "{reason}"
        );
        assert_eq!(failures(&broker, "data", reason).await, 2.0, "{reason}");
    }
    let reasons: Vec<Value> =
        recorded(&broker, "data", 2).await.iter().map(|record| record["error"].clone()).collect();
    assert_eq!(reasons, [json!("certificate"), json!("tenant")]);
}

#[tokio::test]
async fn s08_an_admin_token_of_fewer_than_16_bytes_is_a_fault_of_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    for (file, name, text) in [
        ("short", "admin_token_file", "fifteen-bytes-x\n"),
        ("long", "admin_token_file", "sixteen-bytes-xx\n"),
    ] {
        let path = folder.path().join(file);
        std::fs::write(&path, text).unwrap();
        let config = folder.path().join(format!("{file}.yaml"));
        std::fs::write(&config, json!({"auth": {name: path}}).to_string()).unwrap();
        let finished =
            builder().run(folder.path(), &["check-config", config.to_str().unwrap()]).await;
        if file == "long" {
            assert_eq!(finished.code, Some(0), "{}", finished.stderr);
            continue;
        }
        let output = finished.stdout + &finished.stderr;
        assert_eq!(finished.code, Some(64), "{output}");
        assert!(
            output.contains("auth.admin_token_file")
                && output.contains("too short")
                && output.contains("at least 16 are needed"),
            "{output}"
        );
    }
    for (token, code) in [("x", 64), ("fifteen-bytes-x", 64), ("sixteen-bytes-xx", 0)] {
        let config = folder.path().join("text.yaml");
        std::fs::write(&config, json!({"auth": {"admin_token": token}}).to_string()).unwrap();
        let finished =
            builder().run(folder.path(), &["check-config", config.to_str().unwrap()]).await;
        assert_eq!(finished.code, Some(code), "{token}: {}{}", finished.stdout, finished.stderr);
    }
}

#[tokio::test]
async fn s11_no_api_key_can_be_for_anonymous_or_token_principals() {
    let mut broker = guarded().on(Topology::Sqlite).start().await;
    let keys = "/admin/v1/tenants/default/keys";
    for principal in ["anonymous", "https://login.example.com ann"] {
        let (status, answer) = broker.admin().post(keys, &json!({"principal": principal})).await;
        assert_eq!(
            (status, &answer["type"], &answer["field"]),
            (422, &json!("urn:mcp-broker:problem:reserved"), &json!("principal")),
            "{answer}"
        );
        assert!(
            answer["detail"].as_str().unwrap().contains("allowed: a name other than"),
            "{answer}"
        );
        let finished = broker.cli(&["key", "create", "--principal", principal]).await;
        assert!(
            finished.code != Some(0) && finished.stderr.contains("allowed: a name other than"),
            "{}",
            finished.stderr
        );
    }
    assert_eq!(broker.admin().post(keys, &json!({"principal": "a\u{202e}b"})).await.0, 400);
    let (status, made) = broker.admin().post(keys, &json!({"principal": "ann"})).await;
    assert_eq!(status, 201, "{made}");
    let key = made["key"].as_str().unwrap().to_owned();
    assert_eq!(
        broker.client("/mcp").bearer(&key).post(initialize_body("2025-11-25")).await.status,
        200
    );

    // The row was changed outside of the broker.
    broker.terminate().await;
    let text = "import glob, sqlite3\nfor path in glob.glob('**/*.db', recursive=True):\n    d = sqlite3.connect(path)\n    d.execute(\"UPDATE api_keys SET principal = 'anonymous'\")\n    d.commit()\n";
    let changed = std::process::Command::new("python3")
        .args(["-c", text])
        .current_dir(broker.folder())
        .output()
        .unwrap();
    assert!(changed.status.success(), "{}", String::from_utf8_lossy(&changed.stderr));
    broker.restart().await;
    assert_eq!(
        broker.client("/mcp").bearer(&key).post(initialize_body("2025-11-25")).await.status,
        401
    );
    broker
        .wait_for_log("the broker ignores a stored API key, because its principal is reserved")
        .await;
}

#[tokio::test]
async fn s13_a_page_of_a_client_origin_cannot_write_to_an_open_admin_api() {
    let origins =
        json!({"auth": {"allowed_origins": ["https://app.example.com", "http://localhost:3000"]}});
    let broker = builder().single_process().config(origins).start().await;
    let body = json!({"weight": 2});
    for origin in ["https://app.example.com", "http://localhost:3000"] {
        let client = broker.client("/mcp");
        let served = client
            .send_with(
                "POST",
                client.headers_with(&[("origin", origin)]),
                initialize_body("2025-11-25"),
            )
            .await;
        assert_eq!(served.status, 200, "clients' pages are served at the listeners of clients");
        for (method, path) in [
            ("PUT", "/admin/v1/tenants/acme"),
            ("POST", "/admin/v1/drain"),
            ("GET", "/admin/v1/tenants"),
        ] {
            let body = Some(&body).filter(|_| method == "PUT");
            let answer = broker.admin().send_with(method, path, &[("origin", origin)], body).await;
            assert_eq!(answer.status, 403, "{method} {path} from {origin}");
            assert_eq!(answer.json().await["type"], "urn:mcp-broker:problem:origin-refused");
        }
    }
    assert_eq!(broker.admin().get("/admin/v1/tenants/acme").await.0, 404);
    let own = format!("http://{}", broker.admin_address());
    assert_eq!(
        broker
            .admin()
            .send_with("PUT", "/admin/v1/tenants/acme", &[("origin", &own)], Some(&body))
            .await
            .status,
        201
    );
}
