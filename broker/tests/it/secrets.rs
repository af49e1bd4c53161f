//! Secrets put in at every source they may come from, and searched for in every output (LOG-03).

use serde_json::json;
use testkit::{FakeBackend, Reply, TestBroker, Topology, eventually};

use crate::{builder, refused, request, stdio};

/// Text in every secret of this test, by which it is found.
const CANARY: &str = "canary-7f3a";

fn secret(of: &str) -> String {
    format!("{of}-{CANARY}-0123456789")
}

/// Returns the answers of the admin API to every read, and to requests it refuses.
async fn outputs_for_operators(broker: &TestBroker) -> Vec<(String, String)> {
    let mut outputs = Vec::new();
    for path in [
        "/healthz",
        "/readyz",
        "/metrics",
        "/admin/v1/tenants",
        "/admin/v1/tenants/default",
        "/admin/v1/tenants/default/keys",
        "/admin/v1/tenants/default/backends",
        "/admin/v1/tenants/default/backends/b",
        "/admin/v1/tenants/default/backends/child",
        "/admin/v1/tenants/default/backends/down",
        "/admin/v1/sessions",
        "/admin/v1/tasks",
        "/admin/v1/subscriptions",
        "/admin/v1/openapi.json",
    ] {
        let answer = broker.admin().send("GET", path, None).await.expect_status(200, path).await;
        outputs.push((path.to_owned(), answer.text().await));
    }
    for session in broker.admin().sessions("default").await {
        let path = format!("/admin/v1/sessions/{}", session["id"].as_str().unwrap());
        outputs.push((path.clone(), broker.admin().send("GET", &path, None).await.text().await));
    }
    let wrong = broker.admin().with_token(Some(&secret("wrong-admin")));
    outputs.push((
        "a wrong token".to_owned(),
        wrong.send("GET", "/admin/v1/tenants", None).await.text().await,
    ));
    let path = "/admin/v1/tenants/default/backends/bad";
    for body in [
        json!({"transport": {"type": "http", "url": "http://127.0.0.1:1/"}, "credentials": {"bearer": format!("{}\n", secret("bearer"))}}),
        json!({"transport": {"type": "http", "url": "http://127.0.0.1:1/"}, "credentials": {"headers": {"x-key": format!("{}\n", secret("header"))}}}),
        json!({"transport": {"type": "http", "url": format!("http://user:{}@127.0.0.1:1/", secret("password"))}}),
        json!({"transport": {"type": "http", "url": "http://127.0.0.1:1/"}, "credentials": secret("credentials")}),
    ] {
        let answer = broker.admin().send("PUT", path, Some(&body)).await;
        assert!([400, 422].contains(&answer.status), "{body}");
        outputs.push((format!("refused {body}").replace(CANARY, "..."), answer.text().await));
    }
    for arguments in [
        &["backend", "list"][..],
        &["backend", "show", "b"],
        &["session", "list"],
        &["key", "list"],
        &["tenant", "list"],
    ] {
        let finished = broker.cli(arguments).await;
        assert_eq!(finished.code, Some(0), "{arguments:?}: {}", finished.stderr);
        outputs.push((arguments.join(" "), finished.stdout + &finished.stderr));
    }
    outputs
}

/// Returns the answers to clients without a right, or with bad input.
async fn outputs_for_clients(broker: &TestBroker, key: &str) -> Vec<(String, String)> {
    let mut outputs = Vec::new();
    let ping = || request(1, "ping", json!({}));
    let wrong = broker.client("/mcp").bearer(&secret("wrong-key"));
    outputs.push(("a wrong key".to_owned(), refused(wrong.post(ping()).await).await.1.to_string()));
    let basic =
        broker.client("/mcp").header("authorization", &format!("Basic {}", secret("basic")));
    outputs.push(("basic".to_owned(), refused(basic.post(ping()).await).await.1.to_string()));
    let in_query = broker.client(&format!("/mcp?api_key={}", secret("query-key")));
    outputs.push((
        "a key in the query".to_owned(),
        refused(in_query.post(ping()).await).await.1.to_string(),
    ));
    let client =
        broker.client("/mcp").bearer(key).header("cookie", &format!("s={}", secret("cookie")));
    let guessed = client.fresh();
    guessed.set_session(Some(&secret("guessed-session")));
    outputs.push((
        "a guessed session".to_owned(),
        refused(guessed.post(ping()).await).await.1.to_string(),
    ));
    client.initialize("2025-11-25", json!({})).await;
    let hidden = json!({"token": secret("argument")});
    for tool in ["b__fails", "b__html", "down__x", "none"] {
        outputs.push((
            tool.to_owned(),
            client
                .error("tools/call", json!({"name": tool, "arguments": hidden}))
                .await
                .to_string(),
        ));
    }
    let half = request(1, "tools/call", json!({"name": "b__echo", "arguments": hidden}));
    outputs.push((
        "half a body".to_owned(),
        refused(client.post(half[..half.len() - 3].to_owned()).await).await.1.to_string(),
    ));
    let meta = json!({"name": "b__echo", "arguments": hidden, "_meta": {"progressToken": {"x": secret("token")}}});
    outputs.push(("a bad token".to_owned(), client.request("tools/call", meta).await.to_string()));
    client.call("b__echo", hidden.clone()).await;
    client.call("child__echo", hidden).await;
    outputs
}

/// Returns a broker with a backend that has credentials, a child with a secret environment, and an
/// unreachable backend. Its database is a file that the test reads.
async fn broker(backend: &FakeBackend) -> TestBroker {
    let mut http = backend.spec();
    http["transport"]["url"] = json!(format!("{}?token={}", backend.url(), secret("url")));
    http["credentials"] =
        json!({"bearer": secret("bearer"), "headers": {"x-api-key": secret("header")}});
    let child = stdio().noisy_stderr().env("CHILD_SECRET", &secret("child-env")).spec();
    let down = json!({
        "transport": {"type": "http", "url": format!("http://127.0.0.1:9/mcp?token={}", secret("down-url"))},
        "credentials": {"bearer": secret("down-bearer")},
    });
    let config = json!({"telemetry": {"log": "trace"}, "node": {"secret": secret("node")}, "backends": {"down": down}});
    let builder = builder()
        .on(Topology::Sqlite)
        .config(config)
        .auth_required()
        .admin_token(&secret("admin"))
        .env("UNRELATED_SECRET", &secret("env"));
    builder.backend("default", "b", http).backend("default", "child", child).start().await
}

#[tokio::test]
async fn a_41_log_03_no_secret_is_in_any_output() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    backend.on("tools/call", |call| async move {
        match call.params()["name"].as_str().unwrap() {
            "fails" => Reply::Http {
                status: 401,
                headers: vec![("www-authenticate".into(), secret("challenge"))],
                body: secret("body").into(),
            },
            "html" => {
                let headers = vec![
                    ("content-type".to_owned(), "text/html".to_owned()),
                    ("set-cookie".to_owned(), secret("set-cookie")),
                ];
                Reply::Http { status: 500, headers, body: secret("page").into() }
            }
            _ => Reply::text("done"),
        }
    });
    backend.list("tools", ["echo", "fails", "html"].map(testkit::backend::tool).to_vec());
    let mut broker = broker(&backend).await;
    let key = broker.admin().create_key("default").await;
    let client = broker.client("/mcp").bearer(&key).connected(json!({"sampling": {}})).await;
    client.call("b__echo", json!({})).await;
    let call = backend.wait_for("the call", |seen| seen.calls("echo")).await;
    assert_eq!(
        call.header("authorization"),
        Some(format!("Bearer {}", secret("bearer")).as_str()),
        "the secrets are in use"
    );

    let mut outputs = outputs_for_clients(&broker, &key).await;
    outputs.extend(outputs_for_operators(&broker).await);
    let session = client.session().unwrap();
    client.delete_session().await;
    let line = std::fs::read(format!("/proc/{}/cmdline", broker.pid())).unwrap();
    outputs.push(("the command line".to_owned(), String::from_utf8_lossy(&line).into_owned()));
    broker.terminate().await;
    // Stored secrets are hashed or sealed. (Tasks and events are stored as they are; there are none
    // here with secrets.)
    for entry in std::fs::read_dir(broker.folder())
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().contains("broker.db"))
    {
        outputs.push((
            entry.path().display().to_string(),
            String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).into_owned(),
        ));
    }
    assert!(outputs.iter().any(|(name, _)| name.ends_with("broker.db")), "the database was read");
    broker.wait_for_log("TRACE").await; // the log tells everything
    outputs.push(("the log".to_owned(), broker.log()));

    let backend_session = call.header("mcp-session-id").unwrap().to_owned();
    for (name, text) in outputs {
        for secret in [CANARY, &key, &session, &backend_session] {
            let at = text.find(secret).map(|at| {
                text[..at]
                    .chars()
                    .rev()
                    .take(300)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .rev()
                    .collect::<String>()
            });
            assert!(at.is_none(), "{secret} is told by {name}, after: {}", at.unwrap_or_default());
        }
    }
}

/// Returns everything that operators can read about the backends of tenant `default`, and the log.
async fn outputs_about_backends(broker: &TestBroker, names: &[&str]) -> Vec<(String, String)> {
    let mut outputs = Vec::new();
    for name in [""].iter().chain(names) {
        let path = format!("/admin/v1/tenants/default/backends/{name}");
        let path = path.trim_end_matches('/');
        outputs.push((path.to_owned(), broker.admin().send("GET", path, None).await.text().await));
    }
    outputs.push((
        "audit".to_owned(),
        broker.admin().send("GET", "/admin/v1/audit?limit=1000", None).await.text().await,
    ));
    for arguments in
        [&["backend", "list"][..], &["backend", "show", names[0]], &["audit", "export"]]
    {
        let finished = broker.cli(arguments).await;
        outputs.push((arguments.join(" "), finished.stdout + &finished.stderr));
    }
    outputs.push(("the log".to_owned(), broker.log()));
    outputs
}

#[tokio::test]
async fn s14_settings_and_errors_of_backends_show_no_secret() {
    let broker = builder().config(json!({"telemetry": {"log": "debug"}})).start().await;
    let (token, variable, header, segment) =
        (secret("token"), secret("variable"), secret("header"), secret("segment"));
    // A process that stays behind holds standard output open, so that the broker notices the end of
    // the process and not that of the output.
    let script = r#"echo "no access with $*" >&2; sleep 600 & exit 3"#;
    let args = [
        "-c",
        script,
        "sh",
        "--api-key",
        &token,
        &format!("--password={token}"),
        "-e",
        &format!("REGION={variable}"),
        "-H",
        &format!("X-Any: {header}"),
        "--mode",
        "shown-word",
    ];
    let http = format!("http://127.0.0.1:9/hooks/{segment}/mcp?k={token}");
    let websocket = format!("ws://127.0.0.1:9/v1/mcp/{segment}");
    for (name, transport) in [
        (
            "child",
            json!({"type": "stdio", "command": "sh", "args": args, "env": {"MODE": variable}}),
        ),
        ("http", json!({"type": "http", "url": http})),
        ("socket", json!({"type": "websocket", "url": websocket})),
    ] {
        let (status, answer) = broker
            .admin()
            .put(
                &format!("/admin/v1/tenants/default/backends/{name}"),
                &json!({"transport": transport}),
            )
            .await;
        assert_eq!(status, 201, "{answer}");
        assert!(answer["last_error"].is_string(), "{answer}");
        assert!(!answer.to_string().contains(CANARY), "{answer}");
    }
    let path = "/admin/v1/tenants/default/backends/bad";
    for url in [
        format!("http://me:{token}@127.0.0.1:9/"),
        format!("http://127.0.0.1:9/#{token}"),
        format!("http://127.0.0.1:99999/{token}"),
    ] {
        let (status, answer) =
            broker.admin().put(path, &json!({"transport": {"type": "http", "url": url}})).await;
        assert!([400, 422].contains(&status) && !answer.to_string().contains(CANARY), "{answer}");
    }
    eventually("what the child said", || async {
        let log = broker.log();
        if log.contains("no access with") { Ok(()) } else { Err(log) }
    })
    .await;
    eventually("how the child ended", || async {
        let last_error = broker.admin().backend("default", "child").await["last_error"].to_string();
        let is_reported =
            last_error.contains("exit status: 3") && last_error.contains("no access with");
        if is_reported { Ok(()) } else { Err(last_error) }
    })
    .await;
    for (output, text) in outputs_about_backends(&broker, &["child", "http", "socket"]).await {
        assert!(!text.contains(CANARY), "{output}: {text}");
    }
    let shown =
        broker.admin().backend("default", "child").await["settings"]["transport"]["args"].clone();
    let expected = [
        "-c",
        script,
        "sh",
        "--api-key",
        "***",
        "--password=***",
        "-e",
        "REGION=***",
        "-H",
        "X-Any: ***",
        "--mode",
        "shown-word",
    ];
    assert_eq!(shown, json!(expected));
    let url = async |name: &str| {
        broker.admin().backend("default", name).await["settings"]["transport"]["url"].clone()
    };
    assert_eq!(url("http").await, "http://127.0.0.1:9/hooks/***/***?k=***");
    assert_eq!(url("socket").await, "ws://127.0.0.1:9/v1/mcp/***");
}

#[tokio::test]
async fn s14_the_last_error_of_a_child_has_its_exit_status_and_no_secret() {
    let broker = builder().start().await;
    let script = r#"printf 'first\nno such file: %s\033[31m\n' "$MODE" >&2; exit 7"#;
    let transport = json!({
        "type": "stdio", "command": "sh", "args": ["-c", script], "env": {"MODE": secret("mode")},
    });
    let path = "/admin/v1/tenants/default/backends/child";
    let (status, answer) = broker.admin().put(path, &json!({"transport": transport})).await;
    assert_eq!(status, 201, "{answer}");
    eventually("how the child ended", || async {
        let last_error = broker.admin().backend("default", "child").await["last_error"].clone();
        let last_error = last_error.as_str().unwrap_or_default().to_owned();
        let is_reported = last_error.contains("the child process ended (exit status: 7)")
            && last_error.ends_with("on standard error: no such file: ***");
        if is_reported { Ok(()) } else { Err(last_error) }
    })
    .await;
}
