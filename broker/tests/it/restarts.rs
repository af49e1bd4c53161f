//! State of a client after the broker's process ended, by a crash or in order: its session, its
//! subscriptions, its streams.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use testkit::{
    AdminClient, EventReader, FakeBackend, Gate, GateAnswer, Reply, TestBroker, TestClient,
    backend::tool, eventually,
};

use crate::{builder, configured_alone, kind, refused, request, session_lists, text_of};

/// Way in which a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Crash,
    Order,
}

const BOTH: [End; 2] = [End::Crash, End::Order];

/// Returns a backend with sessions, a resource, and the tools `echo` and `count`, which counts the
/// calls of its session.
async fn backend() -> FakeBackend {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    backend.list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    backend
}

async fn start(backend: &FakeBackend) -> TestBroker {
    builder().backend("default", "b", backend.spec()).start().await
}

/// Ends the process and starts it again on the same folder.
async fn restart(broker: &mut TestBroker, end: End) {
    match end {
        End::Crash => broker.kill().await,
        End::Order => assert!(broker.terminate().await.success()),
    }
    broker.restart().await;
}

/// Returns a client of the same session at the new process, which has another port.
pub(crate) fn back(broker: &TestBroker, client: &TestClient) -> TestClient {
    let back = broker.client("/mcp");
    back.set_session(client.session().as_deref());
    back.set_version(Some("2025-11-25"));
    // Ids are not used twice in a session.
    while back.take_id() < 100 {}
    back
}

/// Returns the writes of the store so far.
async fn writes(broker: &TestBroker) -> f64 {
    broker
        .admin()
        .metric("mcp_store_seconds_count", &[("operation", "write")])
        .await
        .unwrap_or_default()
}

/// Waits until delayed writes are done: the store had no new write for a while.
pub(crate) async fn written_behind(admin: &AdminClient) {
    let (mut quiet, mut last) = (0, String::new());
    while quiet < 15 {
        let metrics = admin.metrics().await;
        let counts = metrics.lines().filter(|line| line.starts_with("mcp_store_seconds_count"));
        let now: String = counts
            .filter(|line| line.contains(r#""write""#) || line.contains(r#""append_events""#))
            .collect();
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
        tokio::time::sleep(Duration::from_millis(100)).await; // longer in all than the pause between two rounds
    }
}

async fn methods(stream: &mut EventReader, count: usize) -> Vec<String> {
    let mut methods = Vec::new();
    while methods.len() < count {
        methods.push(
            stream.next_message().await.unwrap().1["method"]
                .as_str()
                .unwrap_or("an answer")
                .to_owned(),
        );
    }
    methods
}

/// Collects every message of a stream until the session ends.
async fn until_deleted(client: &TestClient, mut stream: EventReader) -> Vec<Value> {
    let reading = tokio::spawn(async move {
        let mut messages = Vec::new();
        while let Some(event) = stream.advance().await {
            messages.extend(event.message());
        }
        messages
    });
    client.result("ping", json!({})).await;
    assert_eq!(client.delete_session().await, 204);
    reading.await.unwrap()
}

#[tokio::test]
async fn a_parked_session_of_a_revoked_key_is_gone() {
    let backend = backend().await;
    let mut broker =
        builder().auth_required().backend("default", "b", backend.spec()).start().await;
    let (id, revoked) = broker.admin().create_key_with_id("default").await;
    let other = broker.admin().create_key("default").await;
    for key in [&revoked, &other] {
        let client = broker.client("/mcp").bearer(key).connected(json!({})).await;
        client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    }
    restart(&mut broker, End::Order).await;
    let admin = broker.admin();
    let states = async || {
        let sessions = admin.sessions("default").await;
        sessions.iter().map(|session| session["state"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(states().await, ["parked", "parked"]);
    assert_eq!(admin.delete(&format!("/admin/v1/tenants/default/keys/{id}")).await.0, 204);
    assert_eq!(states().await, ["parked"], "at once");
    eventually("the end of the session in the store", || async {
        let listed = admin.get("/admin/v1/subscriptions").await.1;
        let sessions = listed["subscriptions"][0]["sessions"].clone();
        if sessions == 1 { Ok(()) } else { Err(listed) }
    })
    .await;
    assert_eq!(states().await, ["parked"], "the session of the other key stays");
}

#[tokio::test]
async fn a_session_continues_after_a_restart_with_its_state() {
    for end in BOTH {
        let backend = backend().await;
        backend.tool("log", |call| async move {
            for level in ["info", "error"] {
                call.notify("notifications/message", json!({"level": level, "data": level})).await;
            }
            Reply::text("logged")
        });
        let mut broker = start(&backend).await;
        let client = broker.connected(json!({})).await;
        client.result("logging/setLevel", json!({"level": "warning"})).await;
        client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
        written_behind(&broker.admin()).await;
        let subscribed = backend.recorded_of("resources/subscribe")[0]
            .header("mcp-session-id")
            .map(str::to_owned);

        restart(&mut broker, end).await;
        let client = back(&broker, &client);
        let mut call = client.start_call("b__log", json!({}));
        assert_eq!(text_of(&call.finish().await.value["result"]), "logged", "{end:?}");
        let logged: Vec<_> =
            call.before.iter().map(|message| message.value["params"]["level"].clone()).collect();
        assert_eq!(logged, ["error"], "{end:?}: the log level is kept");
        let called = backend.wait_for("the call", |seen| seen.calls("log")).await;
        assert_eq!(
            called.header("mcp-session-id").map(str::to_owned),
            subscribed,
            "{end:?}: the broker resumed its session at the backend"
        );
        // The broker renews the subscription. Updates may have been missed, so it notifies the
        // client to read again.
        let mut stream = client.open_get_stream().await;
        let (_, received) = stream.next_message().await.unwrap();
        assert_eq!(
            (&received["method"], &received["params"]["uri"]),
            (&json!("notifications/resources/updated"), &json!("b+test://one"))
        );
        backend.wait_get_streams(2).await;
        backend.notify("notifications/resources/updated", json!({"uri": "test://one"})).await;
        assert_eq!(methods(&mut stream, 1).await, ["notifications/resources/updated"], "{end:?}");
        assert_eq!(broker.admin().metric("mcp_sessions_adopted_total", &[]).await, Some(1.0));
    }
}

/// Returns a broker that was killed, and a client with a session at the backend.
async fn killed_after_a_call(backend: &FakeBackend) -> (TestBroker, TestClient) {
    let mut broker = start(backend).await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    written_behind(&broker.admin()).await;
    broker.kill().await;
    (broker, client)
}

#[tokio::test]
async fn a_session_at_a_backend_outlasts_an_outage_after_a_restart() {
    let backend = backend().await;
    let (mut broker, client) = killed_after_a_call(&backend).await;
    let is_away = Arc::new(AtomicBool::new(true));
    let gate = is_away.clone();
    backend.gate(move |_, _| {
        gate.load(Ordering::Relaxed).then(|| GateAnswer {
            status: 503,
            headers: vec![],
            body: json!({}),
        })
    });
    broker.restart().await;
    let client = back(&broker, &client);
    let refused = client.error("tools/call", request_of_echo()).await;
    assert_eq!(kind(&refused), "backend_unavailable");
    is_away.store(false, Ordering::Relaxed);
    eventually("a call after the outage", || async {
        let answer = client.request("tools/call", request_of_echo()).await;
        if answer.get("result").is_some() { Ok(()) } else { Err(answer) }
    })
    .await;
    let calls = backend.recorded_of("tools/call");
    let sessions: Vec<_> = calls.iter().map(|call| call.header("mcp-session-id")).collect();
    assert!(
        sessions[0].is_some() && sessions.iter().all(|one| *one == sessions[0]),
        "{sessions:?}"
    );
}

#[tokio::test]
async fn a_session_at_a_backend_outlasts_an_opening_that_is_given_up() {
    let backend = backend().await;
    let mut spec = backend.spec();
    // Shorter than the broker waits for the head of a GET stream.
    spec["timeouts"] = json!({"initialize": "500ms"});
    let mut broker = builder().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    written_behind(&broker.admin()).await;
    let session = backend.recorded_of("tools/call")[0].header("mcp-session-id").map(str::to_owned);
    restart(&mut broker, End::Crash).await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let gate = Gate::new();
    backend.forget_recorded();
    backend.hold_get_streams(&gate);
    let client = back(&broker, &client);
    let refused = client.error("tools/call", request_of_echo()).await;
    assert_eq!(kind(&refused), "backend_unavailable");
    backend
        .wait_for("the GET stream of the resumed session", |seen| {
            seen.http == "GET" && seen.header("mcp-session-id").map(str::to_owned) == session
        })
        .await;
    gate.open();
    eventually("a call over a later connection", || async {
        let answer = client.request("tools/call", request_of_echo()).await;
        if answer.get("result").is_some() { Ok(()) } else { Err(answer) }
    })
    .await;
    let call = &backend.recorded_of("tools/call")[0];
    assert_eq!(call.header("mcp-session-id").map(str::to_owned), session);
    assert_eq!(backend.count(|seen| seen.http == "DELETE"), 0);
}

fn request_of_echo() -> Value {
    json!({"name": "b__echo", "arguments": {}})
}

#[tokio::test]
async fn a_backend_that_lost_its_sessions_is_initialised_again_transparently() {
    let backend = backend().await;
    let (mut broker, client) = killed_after_a_call(&backend).await;
    backend.forget_sessions();
    broker.restart().await;
    let before =
        (backend.recorded_of("initialize").len(), backend.count(|seen| seen.calls("echo")));
    let client = back(&broker, &client);
    client.call("b__echo", json!({"round": 2})).await;
    assert!(backend.recorded_of("initialize").len() > before.0);
    let executed = backend
        .recorded()
        .iter()
        .filter(|seen| seen.calls("echo") && seen.message["params"]["arguments"]["round"] == 2)
        .count();
    assert!(executed <= 2, "refused once, carried out once");
}

#[tokio::test]
async fn ids_of_requests_at_a_backends_session_do_not_repeat_over_a_restart() {
    let backend = backend().await;
    let mut broker = start(&backend).await;
    let client = broker.connected(json!({})).await;
    client.call("b__echo", json!({})).await;
    written_behind(&broker.admin()).await;
    restart(&mut broker, End::Crash).await;
    back(&broker, &client).call("b__echo", json!({})).await;
    let calls: Vec<_> = backend.recorded_of("tools/call");
    assert_eq!(
        calls[0].header("mcp-session-id"),
        calls[1].header("mcp-session-id"),
        "the same session there"
    );
    assert_ne!(calls[0].message["id"], calls[1].message["id"]);
}

#[tokio::test]
async fn sse_09_a_get_stream_is_resumed_after_a_restart_without_loss_or_repeat() {
    for end in BOTH {
        let backend = backend().await;
        let mut broker = start(&backend).await;
        let client = broker.connected(json!({})).await;
        let mut stream = client.open_get_stream().await;
        backend.wait_get_streams(1).await;
        backend.list("tools", vec![tool("echo"), tool("second")]);
        backend.notify("notifications/tools/list_changed", json!({})).await;
        let (read, received) = stream.next_message().await.unwrap();
        assert_eq!(received["method"], "notifications/tools/list_changed");
        drop(stream);
        backend.list("resources", vec![]);
        backend.notify("notifications/resources/list_changed", json!({})).await;
        broker
            .admin()
            .wait_backend("default", "b", "no resource", |view| view["resources"] == 0)
            .await;
        written_behind(&broker.admin()).await;

        restart(&mut broker, end).await;
        let client = back(&broker, &client);
        let mut resumed = client.resume(&read.unwrap()).await;
        let (missed, received) = resumed.next_message().await.unwrap();
        assert_eq!(
            received["method"], "notifications/resources/list_changed",
            "{end:?}: what was missed"
        );
        // It continues as the session's stream, with ids that were not there before.
        backend.wait_get_streams(1).await;
        backend.list("tools", vec![tool("echo")]);
        backend.notify("notifications/tools/list_changed", json!({})).await;
        let (new, received) = resumed.next_message().await.unwrap();
        assert_eq!(received["method"], "notifications/tools/list_changed", "{end:?}");
        let sequence = |id: &Option<String>| {
            id.as_deref().unwrap().split_once('-').unwrap().1.parse::<u64>().unwrap()
        };
        assert!(sequence(&new) > sequence(&missed));
        assert_eq!(
            until_deleted(&client, resumed).await,
            Vec::<Value>::new(),
            "{end:?}: nothing twice"
        );
    }
}

#[tokio::test]
async fn unread_events_are_delivered_by_the_next_process() {
    for end in BOTH {
        let backend = backend().await;
        let mut broker = start(&backend).await;
        let client = broker.connected(json!({})).await;
        client.result("ping", json!({})).await;
        backend.wait_get_streams(1).await;
        backend.list("tools", vec![tool("echo"), tool("second")]);
        backend.notify("notifications/tools/list_changed", json!({})).await;
        broker.admin().wait_backend("default", "b", "two tools", |view| view["tools"] == 2).await;
        written_behind(&broker.admin()).await;
        restart(&mut broker, end).await;
        let client = back(&broker, &client);
        let mut stream = client.open_get_stream().await;
        assert_eq!(methods(&mut stream, 1).await, ["notifications/tools/list_changed"], "{end:?}");
        assert_eq!(until_deleted(&client, stream).await, Vec::<Value>::new(), "{end:?}: once");
    }
}

#[tokio::test]
async fn lists_that_changed_while_the_broker_was_down_are_announced() {
    let backend = backend().await;
    let mut broker = start(&backend).await;
    let client = broker.connected(json!({})).await;
    written_behind(&broker.admin()).await;
    broker.kill().await;
    backend.list("tools", vec![tool("echo"), tool("new")]);
    broker.restart().await;
    let client = back(&broker, &client);
    let mut stream = client.open_get_stream().await;
    assert_eq!(methods(&mut stream, 1).await, ["notifications/tools/list_changed"]);
    assert_eq!(client.tool_names().await, ["b__echo", "b__new"]);
    assert_eq!(
        until_deleted(&client, stream).await,
        Vec::<Value>::new(),
        "the others are as they were"
    );
}

/// The session at the backend goes on, and so do the lists that it alone has.
#[tokio::test]
async fn lists_of_one_session_survive_a_restart() {
    for end in BOTH {
        let (backend, _) = session_lists::with_toolsets().await;
        let mut broker = start(&backend).await;
        let (client, other) =
            (broker.connected(json!({})).await, broker.connected(json!({})).await);
        client.call("b__enable", json!({})).await;
        session_lists::lists(&client, "b__extra", true).await;
        other.call("b__echo", json!({})).await;
        written_behind(&broker.admin()).await;

        restart(&mut broker, end).await;
        let (client, other) = (back(&broker, &client), back(&broker, &other));
        assert_eq!(text_of(&client.call("b__extra", json!({})).await), "extra", "{end:?}");
        session_lists::lists(&client, "b__extra", true).await;
        let names = other.tool_names().await;
        assert!(!names.contains(&"b__extra".to_owned()), "{end:?}: {names:?}");
    }
}

#[tokio::test]
async fn a_lost_position_is_reported_with_all_possible_changes() {
    let backend = backend().await;
    let mut broker = start(&backend).await;
    let client = broker.connected(json!({})).await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    let priming = client.open_get_stream().await.next().await.unwrap().id.unwrap();
    restart(&mut broker, End::Crash).await;
    let client = back(&broker, &client);
    // The id looks as if events had been sent that were not logged before the crash.
    let ahead = format!("{}-77", priming.split_once('-').unwrap().0);
    let mut stream = client.resume(&ahead).await;
    let mut received = methods(&mut stream, 4).await;
    received.sort();
    let list = |name: &str| format!("notifications/{name}/list_changed");
    let mut expected =
        vec![list("tools"), list("resources"), "notifications/resources/updated".to_owned()];
    let prompts = received.contains(&list("prompts"));
    expected.extend(prompts.then(|| list("prompts")));
    expected.sort();
    assert_eq!(received, expected);
    assert_eq!(stream.comments(), 1, "the gap is said");
    assert_eq!(broker.admin().metric("mcp_event_gaps_total", &[]).await, Some(1.0));
}

#[tokio::test]
async fn events_beyond_the_bytes_of_their_tenant_are_not_logged_and_are_a_gap() {
    let backend = FakeBackend::with_tool("steps", |call| async move {
        for step in 0..3 {
            let params =
                json!({"level": "info", "data": "x".repeat(600_000), "logger": step.to_string()});
            call.notify("notifications/message", params).await;
        }
        Reply::text("done")
    })
    .await;
    // Enough for one call, and not for two.
    let mut broker = builder()
        .config(json!({"events": {"tenant_bytes": "3MiB"}}))
        .auth_required()
        .tenant("other")
        .backend("default", "b", backend.spec())
        .backend("other", "b", backend.spec())
        .start()
        .await;
    let connected = async |tenant: &str| {
        let key = broker.admin().create_key(tenant).await;
        let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
        (client, key)
    };
    let ((flooding, key), (other, other_key)) =
        (connected("default").await, connected("other").await);
    // A connected client gets all events, whether they are logged or not.
    let called = async |client: &TestClient, id: u64| {
        let call = request(id, "tools/call", json!({"name": "b__steps"}));
        let events = client.post_stream(call).await.rest().await;
        assert_eq!(events.iter().filter_map(|event| event.message()).count(), 4);
        events[0].id.clone().unwrap()
    };
    let (first, second) = (called(&flooding, 1).await, called(&flooding, 2).await);
    let unaffected = called(&other, 1).await;
    let lost = broker.admin().metric("mcp_events_lost_total", &[]).await;
    assert!(lost.is_some_and(|lost| lost >= 1.0), "{lost:?}");
    written_behind(&broker.admin()).await;

    restart(&mut broker, End::Crash).await;
    let flooding = back(&broker, &flooding).bearer(&key);
    let other = back(&broker, &other).bearer(&other_key);
    for (client, place) in [(&flooding, first), (&other, unaffected)] {
        let again = client.resume(&place).await.rest().await;
        assert!(again.iter().filter_map(|event| event.message()).count() >= 3, "{place}");
    }
    let (status, error) = refused(flooding.get_stream_raw(Some(&second)).await).await;
    assert_eq!((status, kind(&error)), (400, "events_gone"), "{error}");
}

#[tokio::test]
async fn calls_that_ended_with_the_process_are_answered_on_their_streams() {
    let gate = Gate::new();
    let backend = backend().await;
    let at = gate.clone();
    backend.tool("wait", move |call| {
        let at = at.clone();
        async move {
            call.progress(1.0, 2.0).await;
            at.passed().await;
            Reply::text("too late")
        }
    });
    let mut broker = start(&backend).await;
    let client = broker.connected(json!({})).await;
    let body = request(7, "tools/call", json!({"name": "b__wait", "_meta": {"progressToken": 1}}));
    let mut stream = client.post_stream(body).await;
    let priming = stream.next().await.unwrap().id.unwrap();
    let (progress, _) = stream.next_message().await.unwrap();
    written_behind(&broker.admin()).await;
    restart(&mut broker, End::Crash).await;
    let client = back(&broker, &client);
    for (from, messages) in
        [(priming.as_str(), 2), (progress.as_deref().unwrap(), 1), (priming.as_str(), 2)]
    {
        let events = client.resume(from).await.rest().await;
        let received: Vec<Value> = events.iter().filter_map(testkit::Event::message).collect();
        assert_eq!(received.len(), messages, "{received:?}");
        let answer = received.last().unwrap();
        assert_eq!((&answer["id"], kind(&answer["error"])), (&json!(7), "outcome_unknown"));
    }
    // Another crash does not change the client's messages.
    written_behind(&broker.admin()).await;
    restart(&mut broker, End::Crash).await;
    let client = back(&broker, &client);
    let received: Vec<Value> = client
        .resume(&priming)
        .await
        .rest()
        .await
        .iter()
        .filter_map(testkit::Event::message)
        .collect();
    assert_eq!((received.len(), kind(&received[1]["error"])), (2, "outcome_unknown"));
    let ahead = format!("{}-9999999999999", priming.split_once('-').unwrap().0);
    let (status, error) = refused(client.get_stream_raw(Some(&ahead)).await).await;
    assert_eq!((status, kind(&error)), (400, "events_gone"));
    gate.open();
}

/// Makes the backend wait at the gate before it answers a list of tools.
fn slow_to_start(backend: &FakeBackend, gate: &Gate) {
    backend.on("tools/list", gate.before(Reply::Result(json!({"tools": [tool("echo")]}))));
}

/// Returns a broker after a crash whose backend cannot be reached before the gate is open, and a
/// client from before.
async fn crashed_behind(gate: &Gate) -> (FakeBackend, TestBroker, TestClient) {
    let backend = backend().await;
    let mut broker = start(&backend).await;
    let client = broker.connected(json!({})).await;
    slow_to_start(&backend, gate);
    restart(&mut broker, End::Crash).await;
    let client = back(&broker, &client);
    (backend, broker, client)
}

#[tokio::test]
async fn a_tool_of_a_restored_session_is_never_reported_as_unknown() {
    let gate = Gate::new();
    let (_backend, broker, client) = crashed_behind(&gate).await;
    // Both calls come while the backend is being reached. One restores the session, and the other
    // finds it.
    let calls = tokio::spawn({
        let (one, other) = (client.clone(), client.clone());
        async move {
            tokio::join!(
                one.call("b__echo", json!({"text": "one"})),
                other.call("b__echo", json!({"text": "other"}))
            )
        }
    });
    broker.admin().wait_metric("mcp_sessions_adopted_total", &[], |adopted| adopted > 0.0).await;
    gate.open();
    let (one, other) = calls.await.unwrap();
    assert_eq!((text_of(&one).contains("one"), text_of(&other).contains("other")), (true, true));
}

#[tokio::test]
async fn a_call_waits_for_a_backend_that_restores_later_than_its_session() {
    let gate = Gate::new();
    let (_backend, broker, client) = crashed_behind(&gate).await;
    // The session is restored without the lists.
    client.result("ping", json!({})).await;
    let calls = tokio::spawn({
        let client = client.clone();
        async move {
            tokio::join!(
                client.call("b__echo", json!({"text": "one"})),
                client.error("tools/call", json!({"name": "b__none", "arguments": {}}))
            )
        }
    });
    broker.admin().wait_metric("mcp_requests_pending", &[], |pending| pending == 2.0).await;
    gate.open();
    let (echo, none) = calls.await.unwrap();
    assert!(text_of(&echo).contains("one"), "{echo}");
    assert_eq!(kind(&none), "tool_not_found");
}

#[tokio::test]
async fn a_call_waits_for_the_handshake_of_its_backend_not_only_for_a_control_request() {
    let impatient = |backend: &FakeBackend| {
        let mut spec = backend.spec();
        spec["timeouts"] = json!({"control": "1s"});
        spec
    };
    let backend = backend().await;
    let mut broker = builder().backend("default", "b", impatient(&backend)).start().await;
    let client = broker.connected(json!({})).await;
    let gate = Gate::new();
    backend.on(
        "initialize",
        gate.before(Reply::Result(json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "resources": {}},
            "serverInfo": {"name": "late", "version": "1"},
        }))),
    );
    restart(&mut broker, End::Crash).await;
    let client = back(&broker, &client);
    let call = tokio::spawn(async move { client.call("b__echo", json!({"text": "late"})).await });
    broker.admin().wait_metric("mcp_requests_pending", &[], |pending| pending == 1.0).await;
    // Another backend with the same timeout exceeds it after the call has begun to wait.
    let silent = FakeBackend::echo().await;
    slow_to_start(&silent, &Gate::new());
    broker.admin().put_backend("default", "silent", &impatient(&silent)).await;
    broker.admin().wait_backend_state("default", "silent", "failed").await;
    gate.open();
    let answer = call.await.unwrap();
    assert!(text_of(&answer).contains("late"), "{answer}");
}

#[tokio::test]
async fn objects_of_a_backend_not_yet_reached_are_not_reported_as_absent() {
    let gate = Gate::new();
    let (_backend, broker, client) = crashed_behind(&gate).await;
    for (method, params) in [
        ("tools/call", json!({"name": "b__echo", "arguments": {}})),
        ("resources/read", json!({"uri": "b+test://one"})),
        ("prompts/get", json!({"name": "b__greet"})),
    ] {
        let error = client.error(method, params).await;
        assert_eq!(kind(&error), "backend_unavailable", "{method}: {error}");
    }
    // Another backend's names cannot be those of `b`.
    for (method, params, absent) in [
        ("tools/call", json!({"name": "c__echo", "arguments": {}}), "tool_not_found"),
        ("tools/call", json!({"name": "echo", "arguments": {}}), "tool_not_found"),
        ("resources/read", json!({"uri": "c+test://one"}), "resource_not_found"),
        ("resources/read", json!({"uri": "test://one"}), "resource_not_found"),
        ("prompts/get", json!({"name": "bb__greet"}), "prompt_not_found"),
    ] {
        let error = client.error(method, params.clone()).await;
        assert_eq!(kind(&error), absent, "{params}: {error}");
    }
    gate.open();
    broker.admin().wait_backend_state("default", "b", "ready").await;
    client.call("b__echo", json!({})).await;
    assert_eq!(
        kind(&client.error("tools/call", json!({"name": "b__none", "arguments": {}})).await),
        "tool_not_found"
    );
}

#[tokio::test]
async fn ses_05_a_session_that_ended_stays_ended() {
    let backend = backend().await;
    let mut broker = start(&backend).await;
    let (deleted, ended, kept) = (
        broker.connected(json!({})).await,
        broker.connected(json!({})).await,
        broker.connected(json!({})).await,
    );
    kept.call("b__echo", json!({})).await;
    written_behind(&broker.admin()).await;
    assert_eq!(deleted.delete_session().await, 204);
    let sessions = broker.admin().sessions("default").await;
    let (first, writes_before) =
        (sessions[0]["id"].as_str().unwrap().to_owned(), writes(&broker).await);
    assert_eq!(sessions.len(), 2);
    let (status, _) = broker.admin().delete(&format!("/admin/v1/sessions/{first}")).await;
    assert!((200..300).contains(&status), "{status}");
    broker
        .admin()
        .wait_metric("mcp_store_seconds_count", &[("operation", "write")], |count| {
            count > writes_before
        })
        .await;
    restart(&mut broker, End::Crash).await;
    let (deleted, ended, kept) =
        (back(&broker, &deleted), back(&broker, &ended), back(&broker, &kept));
    assert_eq!(deleted.post(request(1, "ping", json!({}))).await.status, 404);
    assert_eq!(ended.post(request(1, "ping", json!({}))).await.status, 404, "by an operator");
    assert_eq!(kept.delete_session().await, 204, "also of a session that was only just taken up");
    backend
        .wait_for("the goodbye to a backend's session that was never used again", |seen| {
            seen.http == "DELETE"
        })
        .await;
}

#[tokio::test]
async fn ses_06_a_foreign_caller_finds_no_session_after_a_restart() {
    let backend = backend().await;
    let mut broker =
        builder().auth_required().backend("default", "b", backend.spec()).start().await;
    let admin = broker.admin();
    let ((own_id, own), other) =
        (admin.create_key_with_id("default").await, admin.create_key("default").await);
    let client = broker.client("/mcp").bearer(&own).connected(json!({})).await;
    let session = client.session();
    restart(&mut broker, End::Crash).await;
    let at = |key: &str, path: &str| {
        let client = broker.client(path).bearer(key);
        client.set_session(session.as_deref());
        client
    };
    for client in [at(&other, "/mcp"), at(&own, "/mcp/b")] {
        assert_eq!(client.post(request(1, "ping", json!({}))).await.status, 404);
        assert_eq!(client.delete_session().await, 404);
    }
    assert_eq!(at(&own, "/mcp").post(request(1, "ping", json!({}))).await.status, 200);
    let (status, _) =
        broker.admin().delete(&format!("/admin/v1/tenants/default/keys/{own_id}")).await;
    assert!((200..300).contains(&status), "{status}");
    // Other replicas learn it a moment later.
    eventually("the key to be refused", || async {
        let status = at(&own, "/mcp").post(request(2, "ping", json!({}))).await.status;
        if status == 401 { Ok(()) } else { Err(status) }
    })
    .await;
}

#[tokio::test]
async fn ses_07_the_time_without_a_process_counts_as_idle() {
    let backend = backend().await;
    let config = json!({"session": {"idle": "2s"}});
    let mut broker = configured_alone(config, backend.spec()).await;
    let client = broker.connected(json!({})).await;
    let soon = broker.connected(json!({})).await;
    broker.kill().await;
    broker.restart().await;
    let soon = back(&broker, &soon);
    assert_eq!(soon.post(request(1, "ping", json!({}))).await.status, 200, "not yet");
    broker.kill().await;
    tokio::time::sleep(Duration::from_millis(2_100)).await; // what is tested is the time
    broker.restart().await;
    assert_eq!(back(&broker, &client).post(request(1, "ping", json!({}))).await.status, 404);
}
