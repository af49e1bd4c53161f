//! Circuit breakers: backends that die, hang, flap and fail, on several wires. The errors of
//! clients, and the actions of operators.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::{
    Direction, FakeBackend, FaultProxy, PipeBackend, Reply, TestBroker, TestClient, backend::tool,
    eventually, eventually_within,
};

use crate::{builder, configured_alone, kind, stdio, text_of};

/// Longest time from a healthy backend to a call that succeeds.
const RECOVERY: Duration = Duration::from_secs(5);

async fn state(broker: &TestBroker) -> Value {
    broker.admin().backend("default", "b").await["breaker"]["state"].clone()
}

/// Calls until the breaker refuses one; returns that refusal.
async fn until_open(client: &TestClient, name: &str) -> Value {
    eventually("the breaker to refuse a call", || async {
        let answer = client.request("tools/call", json!({"name": name})).await;
        let error = answer["error"].clone();
        if error["data"]["breaker"].is_string() { Ok(error) } else { Err(answer) }
    })
    .await
}

/// Tests a backend `b` with the tool `echo` that dies and comes back.
async fn dies_and_returns<D: Future, R: Future<Output = T>, T>(
    spec: Value,
    die: impl FnOnce() -> D,
    revive: impl FnOnce() -> R,
) {
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    let links = |view: &Value| view["links"].as_u64().unwrap_or_default();
    assert!(links(&broker.admin().backend("default", "b").await) >= 1);
    die().await;

    let refusal = until_open(&client, "b__echo").await;
    assert_eq!(
        (refusal["code"].as_i64(), kind(&refusal)),
        (Some(1008), "backend_unavailable"),
        "{refusal}"
    );
    assert_eq!(
        (&refusal["data"]["retryable"], &refusal["data"]["refusalCode"]),
        (&json!(true), &json!(1008))
    );
    let after = refusal["data"]["retryAfterMs"].as_u64().unwrap();
    assert!((1..=3_000).contains(&after), "{refusal}");

    let view = broker.admin().backend("default", "b").await;
    assert!(["open", "half_open"].contains(&view["breaker"]["state"].as_str().unwrap()), "{view}");
    assert_eq!(view["breaker"]["reason"], "failures_in_a_row", "{view}");
    assert!(broker.admin().metric("mcp_breaker_state", &[("backend", "b")]).await.unwrap() >= 1.0);
    assert!(
        client.tool_names().await.contains(&"b__echo".to_owned()),
        "lists go on from the last good copy"
    );
    let asked = Instant::now();
    for _ in 0..20 {
        assert!(
            client.error("tools/call", json!({"name": "b__echo"})).await["data"]["breaker"]
                .is_string()
        );
    }
    println!("a refusal takes {:?}", asked.elapsed() / 20);
    assert!(asked.elapsed() < Duration::from_secs(1), "refused at once: {:?}", asked.elapsed());

    let _alive = revive().await;
    let well = Instant::now();
    eventually_within(RECOVERY, "a call to succeed", || async {
        let answer = client.request("tools/call", json!({"name": "b__echo"})).await;
        if answer.get("result").is_some() { Ok(()) } else { Err(answer) }
    })
    .await;
    println!("well again after {:?}", well.elapsed());
    assert_eq!(state(&broker).await, "closed");
    broker.admin().wait_backend_state("default", "b", "ready").await;
    assert_eq!(broker.admin().metric("mcp_breaker_state", &[("backend", "b")]).await, Some(0.0));
    for to in ["open", "half_open", "closed"] {
        let count = broker
            .admin()
            .metric("mcp_breaker_transitions_total", &[("backend", "b"), ("to", to)])
            .await;
        assert!(count.unwrap_or_default() >= 1.0, "to {to}: {count:?}");
    }
}

#[tokio::test]
async fn b_03_the_breaker_opens_and_closes_with_an_http_backend() {
    let backend = FakeBackend::echo().await;
    let (spec, address) = (backend.spec(), backend.address());
    dies_and_returns(
        spec,
        || backend.die(),
        || async move {
            let listener =
                eventually("the port again", || tokio::net::TcpListener::bind(address)).await;
            let again = FakeBackend::on_listener(listener);
            again.list("tools", vec![tool("echo")]);
            again
        },
    )
    .await;
}

#[tokio::test]
async fn b_03_the_breaker_opens_and_closes_with_a_tcp_backend() {
    let backend = PipeBackend::tcp(&stdio()).await;
    let proxy = FaultProxy::start(backend.address()).await;
    let spec = json!({"transport": {"type": "tcp", "address": proxy.address().to_string()}});
    let die = || async {
        proxy.refuse().await;
        proxy.reset();
    };
    dies_and_returns(spec, die, || proxy.accept_again()).await;
}

#[tokio::test]
async fn b_03_the_breaker_opens_and_closes_with_a_child_process() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken");
    let own = stdio().marker(&format!("it-breaker-{}", std::process::id())).spec();
    let (program, arguments) = (
        own["transport"]["command"].as_str().unwrap(),
        own["transport"]["args"].as_array().unwrap(),
    );
    let quoted: Vec<String> =
        arguments.iter().map(|argument| format!("'{}'", argument.as_str().unwrap())).collect();
    let script =
        format!("test -e '{}' && exit 3; exec '{program}' {}", broken.display(), quoted.join(" "));
    let spec = json!({"transport": {"type": "stdio", "command": "sh", "args": ["-c", script]}, "sandbox": {"read": [program]}});
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .unwrap();
    let die = || async {
        std::fs::write(&broken, "").unwrap();
        for pid in testkit::stdio::processes_with(&format!("it-breaker-{}", std::process::id())) {
            let _gone = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    };
    dies_and_returns(spec, die, || async { std::fs::remove_file(&broken).unwrap() }).await;
}

/// Calls and gives up before the deadline, again and again, until `enough`.
async fn gives_up(client: &TestClient, name: &str, enough: impl AsyncFn() -> bool) {
    eventually_within(Duration::from_secs(60), "the end of giving up", || async {
        let call = client.start_request("tools/call", json!({"name": name}));
        tokio::time::sleep(Duration::from_millis(400)).await;
        client.notify("notifications/cancelled", json!({"requestId": call.id})).await;
        if enough().await { Ok(()) } else { Err("not yet") }
    })
    .await;
}

#[tokio::test]
async fn a_hanging_backend_is_detected_when_clients_give_up() {
    let backend = PipeBackend::tcp(&stdio()).await;
    let proxy = FaultProxy::start(backend.address()).await;
    let spec = json!({"transport": {"type": "tcp", "address": proxy.address().to_string()}});
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    proxy.hold(Direction::Upstream, true);
    // None of their calls ever reaches its deadline, which is half a minute.
    gives_up(&client, "b__echo", async || state(&broker).await != "closed").await;
    let view = broker.admin().backend("default", "b").await;
    assert_eq!(view["breaker"]["reason"], "failures_in_a_row", "{view}");
    proxy.heal();
    eventually_within(RECOVERY, "a call to succeed", || async {
        let answer = client.request("tools/call", json!({"name": "b__echo"})).await;
        if answer.get("result").is_some() { Ok(()) } else { Err(answer) }
    })
    .await;
}

#[tokio::test]
async fn clients_that_give_up_do_not_open_the_breaker_of_a_live_backend() {
    let backend = FakeBackend::start().await;
    backend.tool("slow", |_| async { Reply::Hang });
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    let pings = || backend.count(|seen| seen.is("ping"));
    let before = pings();
    gives_up(&client, "b__slow", async || pings() >= before + 3).await;
    assert_eq!(state(&broker).await, "closed");
    assert_eq!(broker.admin().backend("default", "b").await["breaker"]["failures_in_a_row"], 0);
}

/// A session keeps its connection, and the broker cannot open another one.
#[tokio::test]
async fn a_hanging_backend_that_accepts_no_connection_is_detected_when_clients_give_up() {
    let backend = FakeBackend::start().await;
    backend.sessions().tool("slow", |_| async { Reply::Hang });
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    let held = client.start_request("tools/call", json!({"name": "b__slow"}));
    backend.wait_count("the call", 1, |seen| seen.calls("slow")).await;
    backend.on("ping", |_| async { Reply::status(404) });
    backend.on("initialize", |_| async { Reply::status(500) });
    gives_up(&client, "b__slow", async || state(&broker).await != "closed").await;
    let view = broker.admin().backend("default", "b").await;
    assert_eq!(view["breaker"]["reason"], "failures_in_a_row", "{view}");
    drop(held);
}

/// Tests a backend whose traffic is held back, and continues again.
async fn freezes_and_thaws(mut spec: Value, proxy: FaultProxy) {
    spec["timeouts"] = json!({"call": "300ms"});
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    proxy.hold(Direction::Upstream, true);
    let refusal = until_open(&client, "b__echo").await;
    assert_eq!(refusal["data"]["breaker"], "failures_in_a_row");
    broker
        .admin()
        .wait_metric("mcp_breaker_transitions_total", &[("to", "open")], |count| count >= 2.0)
        .await;
    proxy.heal();
    let well = Instant::now();
    eventually_within(RECOVERY, "a call to succeed", || async {
        let answer = client.request("tools/call", json!({"name": "b__echo"})).await;
        if answer.get("result").is_some() { Ok(()) } else { Err(answer) }
    })
    .await;
    println!("thawed: well again after {:?}", well.elapsed());
}

#[tokio::test]
async fn a_frozen_tcp_backend_gets_calls_again_when_it_continues() {
    let backend = PipeBackend::tcp(&stdio()).await;
    let proxy = FaultProxy::start(backend.address()).await;
    freezes_and_thaws(
        json!({"transport": {"type": "tcp", "address": proxy.address().to_string()}}),
        proxy,
    )
    .await;
}

#[tokio::test]
async fn a_frozen_http_backend_gets_calls_again_when_it_continues() {
    let backend = FakeBackend::echo().await;
    let proxy = FaultProxy::start(backend.address()).await;
    freezes_and_thaws(
        json!({"transport": {"type": "http", "url": format!("http://{}/mcp", proxy.address())}}),
        proxy,
    )
    .await;
}

#[tokio::test]
async fn b_01_a_call_that_is_never_answered_ends_at_its_deadline_on_every_wire() {
    let folder = tempfile::tempdir().unwrap();
    let record = |name: &str| folder.path().join(name);
    let http = FakeBackend::start().await;
    http.tool("hang", |_| async { Reply::Hang });
    let tcp = PipeBackend::tcp(&stdio().record(&record("tcp"))).await;
    let websocket = PipeBackend::websocket(&stdio().record(&record("websocket"))).await;
    let mut building = builder().single_process();
    let specs = [
        ("http", http.spec()),
        ("tcp", tcp.spec()),
        ("websocket", websocket.spec()),
        ("stdio", stdio().record(&record("stdio")).spec()),
    ];
    for (name, mut spec) in specs {
        spec["timeouts"] = json!({"tools": {"hang": "400ms"}});
        building = building.backend("default", name, spec);
    }
    let broker = building.start().await;
    let client = broker.connected(json!({})).await;
    for name in ["http", "tcp", "websocket", "stdio"] {
        let warm = client.request("tools/call", json!({"name": format!("{name}__echo")})).await;
        assert!(name == "http" || warm.get("result").is_some(), "{warm}");
        let asked = Instant::now();
        let error = client.error("tools/call", json!({"name": format!("{name}__hang")})).await;
        let took = asked.elapsed();
        println!("{name}: {took:?} of 400 ms");
        assert_eq!(kind(&error), "timeout", "{name}");
        assert!(
            took >= Duration::from_millis(400) && took < Duration::from_millis(700),
            "{name}: {took:?}"
        );
        if name == "http" {
            http.wait_for("the cancellation", |seen| seen.is("notifications/cancelled")).await;
        } else {
            eventually("the cancellation", || async {
                let seen = std::fs::read_to_string(record(name)).unwrap_or_default();
                if seen.contains("notifications/cancelled") { Ok(()) } else { Err(seen) }
            })
            .await;
        }
    }
}

#[tokio::test]
async fn b_03_calls_that_fail_with_one_process_count_as_one_failure() {
    let broker = builder().single_process().backend("default", "b", stdio().spec()).start().await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    let mut hanging: Vec<_> =
        (0..8).map(|_| client.start_request("tools/call", json!({"name": "b__hang"}))).collect();
    eventually("all to be there", || async {
        let there = broker.admin().backend("default", "b").await["calls_in_flight"].clone();
        if there == 8 { Ok(()) } else { Err(there) }
    })
    .await;
    client.error("tools/call", json!({"name": "b__exit"})).await;
    for call in &mut hanging {
        assert_eq!(kind(&call.finish().await.value["error"]), "outcome_unknown");
    }
    let view = broker.admin().backend("default", "b").await;
    assert_eq!(
        (&view["breaker"]["state"], &view["breaker"]["failures_in_a_row"]),
        (&json!("closed"), &json!(1)),
        "{view}"
    );
}

#[tokio::test]
async fn answered_errors_and_cancelled_calls_are_not_failures() {
    let backend = FakeBackend::start().await;
    backend.tool("sad", |_| async {
        Reply::Result(json!({"isError": true, "content": [{"type": "text", "text": "no"}]}))
    });
    backend.tool("wrong", |_| async { Reply::error(-32000, "no") });
    backend.tool("throttled", |_| async { Reply::status(429) });
    backend.tool("large", |_| async { Reply::text(&"x".repeat(400_000)) });
    backend.tool("slow", |call| async move {
        call.client_disconnected().await;
        Reply::Hang
    });
    let config = json!({"limits": {"message_bytes": "256KiB"}});
    let broker = configured_alone(config, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    for _ in 0..8 {
        client.result("tools/call", json!({"name": "b__sad"})).await;
        for name in ["b__wrong", "b__throttled", "b__large"] {
            client.error("tools/call", json!({"name": name})).await;
        }
    }
    for n in 0..8 {
        let _never =
            client.start_request_with_id(json!(n + 900), "tools/call", json!({"name": "b__slow"}));
        backend.wait_count("the call", n + 1, |seen| seen.calls("slow")).await;
        client.notify("notifications/cancelled", json!({"requestId": n + 900})).await;
    }
    backend.wait_count("the cancellations", 8, |seen| seen.is("notifications/cancelled")).await;
    let view = broker.admin().backend("default", "b").await;
    assert_eq!(
        (&view["breaker"]["state"], &view["breaker"]["failures_in_a_row"]),
        (&json!("closed"), &json!(0)),
        "{view}"
    );
}

#[tokio::test]
async fn every_kind_of_failure_opens_the_breaker() {
    for (name, reply) in [
        ("status", Reply::status(500)),
        ("unavailable", Reply::status(503)),
        ("cut", Reply::Cut),
        (
            "noise",
            Reply::Http {
                status: 200,
                headers: vec![("content-type".to_owned(), "application/json".to_owned())],
                body: "{".into(),
            },
        ),
        ("hang", Reply::Hang),
    ] {
        let backend = FakeBackend::start().await;
        backend.tool("t", move |_| {
            let reply = reply.clone();
            async move { reply }
        });
        let mut spec = backend.spec();
        spec["timeouts"] = json!({"call": "600ms"});
        spec["breaker"] = json!({"probe_after": "1m", "probe_max": "1m"});
        let broker = builder().single_process().backend("default", "b", spec).start().await;
        let client = broker.connected(json!({})).await;
        for n in 1..=5 {
            let error = client.error("tools/call", json!({"name": "b__t"})).await;
            assert!(
                error["data"]["breaker"].is_null(),
                "{name}: the {n}th reaches the backend: {error}"
            );
        }
        let error = client.error("tools/call", json!({"name": "b__t"})).await;
        assert_eq!(error["data"]["breaker"], "failures_in_a_row", "{name}: {error}");
        assert!(
            (20_000..=60_000).contains(&error["data"]["retryAfterMs"].as_u64().unwrap()),
            "{error}"
        );
        assert_eq!(backend.count(|seen| seen.calls("t")), 5, "{name}");
    }
}

/// The backend answers every second call: never five failures in a row.
#[tokio::test]
async fn a_backend_that_fails_half_of_its_calls_opens_the_breaker() {
    let backend = FakeBackend::start().await;
    backend.tool("t", |call| async move {
        let fails = call.arguments()["n"].as_u64().unwrap().is_multiple_of(2);
        if fails { Reply::status(500) } else { Reply::text("fine") }
    });
    let mut spec = backend.spec();
    spec["breaker"] = json!({"probe_after": "1m", "probe_max": "1m", "window": "1m"});
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    for n in 0..21 {
        let _either =
            client.request("tools/call", json!({"name": "b__t", "arguments": {"n": n}})).await;
    }
    let view = broker.admin().backend("default", "b").await;
    assert_eq!(
        (&view["breaker"]["state"], &view["breaker"]["reason"]),
        (&json!("open"), &json!("error_ratio")),
        "{view}"
    );
    let sent = backend.count(|seen| seen.calls("t"));
    assert!((20..=21).contains(&sent), "as soon as there are twenty: {sent}");
}

/// The backend refuses the link that reads the lists, and no other one. It does so on the open
/// connection, or on the next one.
#[tokio::test]
async fn a_backend_that_refuses_only_probes_gets_calls_again() {
    for ping in [403, 404] {
        let backend = FakeBackend::start().await;
        let fails = Arc::new(AtomicBool::new(false));
        let failing = fails.clone();
        backend.sessions().tool("t", move |_| {
            let fails = failing.load(Ordering::Relaxed);
            async move { if fails { Reply::status(500) } else { Reply::text("fine") } }
        });
        let broker =
            builder().single_process().backend("default", "b", backend.spec()).start().await;
        let client = broker.connected(json!({})).await;
        client.call("b__t", json!({})).await; // over a link of its own
        backend.on("ping", move |_| async move { Reply::status(ping) });
        backend.on("initialize", |_| async { Reply::status(403) });
        fails.store(true, Ordering::Relaxed);
        until_open(&client, "b__t").await;
        fails.store(false, Ordering::Relaxed);
        eventually_within(RECOVERY, "a call to succeed", || async {
            let answer = client.request("tools/call", json!({"name": "b__t"})).await;
            if answer.get("result").is_some() { Ok(()) } else { Err(answer) }
        })
        .await;
        assert_eq!(state(&broker).await, "closed", "{ping}");
    }
}

/// The backend answers each probe, and fails each call.
#[tokio::test]
async fn a_flapping_backend_gets_fewer_and_fewer_calls() {
    let backend = FakeBackend::start().await;
    backend.tool("t", |_| async { Reply::status(500) });
    let mut spec = backend.spec();
    spec["breaker"] = json!({"failures": 1, "probe_after": "100ms", "probe_max": "30s"});
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    let mut waits = Vec::new();
    for round in 0..5 {
        eventually("a call to get through", || async {
            let error = client.error("tools/call", json!({"name": "b__t"})).await;
            if error["data"]["breaker"].is_null() { Ok(()) } else { Err(error) }
        })
        .await;
        assert_eq!(backend.count(|seen| seen.calls("t")), round + 1);
        waits.push(
            client.error("tools/call", json!({"name": "b__t"})).await["data"]["retryAfterMs"]
                .as_u64()
                .unwrap(),
        );
    }
    println!("waits for the next probe: {waits:?} ms");
    assert!(waits[4] > 4 * waits[0], "{waits:?}");
}

#[tokio::test]
async fn an_operator_opens_closes_and_probes_a_breaker() {
    let backend = FakeBackend::echo().await;
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    let path = "/admin/v1/tenants/default/backends/b/breaker";
    let (status, view) = broker.admin().post(path, &json!({"state": "open"})).await;
    assert_eq!(
        (status, &view["breaker"]["state"], &view["breaker"]["reason"]),
        (200, &json!("open"), &json!("operator")),
        "{view}"
    );
    let refusal = client.error("tools/call", json!({"name": "b__echo"})).await;
    assert_eq!(
        (kind(&refusal), &refusal["data"]["breaker"]),
        ("backend_unavailable", &json!("operator"))
    );
    assert!(refusal["data"]["retryAfterMs"].is_null(), "nobody knows: {refusal}");
    broker.admin().post("/admin/v1/tenants/default/backends/b/probe", &json!({})).await;
    assert_eq!(state(&broker).await, "open", "a probe does not overrule an operator");
    assert_eq!(client.tool_names().await, ["b__echo"]);
    let shown = broker.cli(&["backend", "breaker", "b", "closed"]).await;
    assert!(shown.code == Some(0) && shown.stdout.contains("closed"), "{shown:?}");
    client.call("b__echo", json!({})).await;
    for (body, field) in [
        (json!({"state": "ajar"}), "state"),
        (json!({}), "state"),
        (json!({"state": "open", "x": 1}), "x"),
    ] {
        let (status, problem) = broker.admin().post(path, &body).await;
        assert_eq!((status, problem["field"].as_str()), (400, Some(field)), "{problem}");
    }
    assert_eq!(
        broker
            .admin()
            .post("/admin/v1/tenants/default/backends/none/breaker", &json!({"state": "open"}))
            .await
            .0,
        404
    );
}

#[tokio::test]
async fn a_probe_requested_by_an_operator_is_sent_at_once() {
    let backend = FakeBackend::start().await;
    backend.tool("t", |call| async move {
        if call.arguments()["bad"] == true { Reply::status(500) } else { Reply::text("fine") }
    });
    let mut spec = backend.spec();
    spec["breaker"] = json!({"failures": 1, "probe_after": "30m", "probe_max": "1h"});
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    client.error("tools/call", json!({"name": "b__t", "arguments": {"bad": true}})).await;
    assert_eq!(state(&broker).await, "open");
    let (_, view) =
        broker.admin().post("/admin/v1/tenants/default/backends/b/probe", &json!({})).await;
    assert_eq!(view["breaker"]["state"], "closed", "{view}");
    assert_eq!(text_of(&client.call("b__t", json!({})).await), "fine");
}
