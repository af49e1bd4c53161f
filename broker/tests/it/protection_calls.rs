//! Deadlines, retries and the queue in front of a backend, from outside.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::{FakeBackend, Gate, Reply, TestBroker, backend::tool, eventually, within};

use crate::{builder, configured_alone, kind, text_of};

/// Returns a backend whose tools, and whose `prompts/get`, never answer.
async fn silent(tools: &[&str]) -> FakeBackend {
    let backend = FakeBackend::start().await;
    for name in tools {
        backend.tool(name, |_| async { Reply::Hang });
    }
    backend.list("prompts", vec![json!({"name": "p"})]);
    backend.on("prompts/get", |_| async { Reply::Hang });
    backend
}

async fn timed_out_after(broker: &TestBroker, method: &str, name: &str) -> Duration {
    let client = broker.connected(json!({})).await;
    let asked = Instant::now();
    let error = client.error(method, json!({"name": name})).await;
    assert_eq!(
        (error["code"].as_i64(), kind(&error), &error["data"]["refusalCode"]),
        (Some(1069), "timeout", &json!(1069)),
        "{error}"
    );
    asked.elapsed()
}

#[tokio::test]
async fn the_most_specific_deadline_applies() {
    let (first, second) = (silent(&["tool", "other"]).await, silent(&["tool"]).await);
    let mut spec = first.spec();
    spec["timeouts"] = json!({"tools": {"tool": "200ms"}, "methods": {"tools/call": "600ms"}});
    let config = json!({
        "timeouts": {"call": "2m"}, "breaker": {"enabled": false},
        "tenants": {"default": {"timeouts": {"call": "1s", "methods": {"tools/call": "1400ms"}}}},
    });
    let broker = builder()
        .single_process()
        .config(config)
        .backend("default", "a", spec)
        .backend("default", "b", second.spec())
        .start()
        .await;
    let wanted = [
        ("tools/call", "a__tool", 200, "the backend's word on the tool"),
        ("tools/call", "a__other", 600, "the backend's word on the method"),
        ("prompts/get", "a__p", 1_000, "the tenant's word on calls"),
        ("tools/call", "b__tool", 1_400, "the tenant's word on the method"),
    ];
    for (method, name, ms, why) in wanted {
        let took = timed_out_after(&broker, method, name).await;
        println!("{why}: {took:?}");
        assert!(
            took >= Duration::from_millis(ms) && took < Duration::from_millis(ms + 400),
            "{why}: {took:?}"
        );
    }
    first.wait_count("the cancellations", 3, |seen| seen.is("notifications/cancelled")).await;
}

#[tokio::test]
async fn progress_extends_a_deadline_to_the_maximum_and_no_further() {
    let backend = FakeBackend::with_tool("busy", |call| async move {
        for step in 1..1_000 {
            if !call.progress(f64::from(step), 1_000.0).await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Reply::Hang
    })
    .await;
    let mut spec = backend.spec();
    spec["timeouts"] = json!({"call": "300ms", "call_max": "900ms"});
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    let asked = Instant::now();
    let error =
        client.error("tools/call", json!({"name": "b__busy", "_meta": {"progressToken": 1}})).await;
    assert_eq!(kind(&error), "timeout");
    assert!(
        asked.elapsed() >= Duration::from_millis(900)
            && asked.elapsed() < Duration::from_millis(1_500),
        "{:?}",
        asked.elapsed()
    );
}

/// Returns a tool that fails a given number of times. `harmless`: its annotations permit repeated
/// calls.
async fn flaky(harmless: bool) -> (FakeBackend, Arc<AtomicUsize>) {
    let left = Arc::new(AtomicUsize::new(0));
    let backend = FakeBackend::start().await;
    let failures = left.clone();
    backend.tool("t", move |_| {
        let fails = failures
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok();
        async move { if fails { Reply::Cut } else { Reply::text("fine") } }
    });
    let mut described = tool("t");
    described["annotations"] = json!({"readOnlyHint": harmless});
    backend.list("tools", vec![described]);
    (backend, left)
}

#[tokio::test]
async fn f_31_a_lost_call_is_retried_only_if_its_tool_is_declared_harmless() {
    for harmless in [true, false] {
        let (backend, failures) = flaky(harmless).await;
        let broker =
            builder().single_process().backend("default", "b", backend.spec()).start().await;
        let client = broker.connected(json!({})).await;
        failures.store(1, Ordering::SeqCst);
        let answer = client.request("tools/call", json!({"name": "b__t"})).await;
        if harmless {
            assert_eq!(text_of(&answer["result"]), "fine");
        } else {
            assert_eq!(kind(&answer["error"]), "outcome_unknown");
        }
        assert_eq!(backend.count(|seen| seen.calls("t")), if harmless { 2 } else { 1 });
        let sent = broker
            .admin()
            .metric("mcp_retries_total", &[("outcome", "sent")])
            .await
            .unwrap_or_default();
        assert_eq!(sent, f64::from(u8::from(harmless)));
    }
}

#[tokio::test]
async fn retries_are_limited_to_a_tenth_of_calls_and_can_be_disabled() {
    for (enabled, sent_most) in [(true, 60 + 1 + 6), (false, 60)] {
        let (backend, failures) = flaky(true).await;
        let config = json!({"breaker": {"enabled": false}, "retries": {"enabled": enabled}});
        let broker = configured_alone(config, backend.spec()).await;
        let client = broker.connected(json!({})).await;
        failures.store(usize::MAX, Ordering::SeqCst);
        for _ in 0..60 {
            assert_eq!(
                kind(&client.error("tools/call", json!({"name": "b__t"})).await),
                "outcome_unknown"
            );
        }
        let sent = backend.count(|seen| seen.calls("t"));
        println!("60 calls, all lost: sent {sent} times (retries: {enabled})");
        assert!(sent <= sent_most && (!enabled || sent > 60), "{sent}");
    }
}

/// Returns a backend with two tools that answer when the gate opens.
async fn gated(gate: &Gate) -> FakeBackend {
    let backend = FakeBackend::start().await;
    for name in ["t", "patient"] {
        backend.tool(name, gate.before(Reply::text("done")));
    }
    backend
}

/// Returns a backend `b` that takes one call at a time and answers when the gate opens.
async fn narrow(queued: usize, call_timeout: &str) -> (TestBroker, FakeBackend, Gate) {
    let gate = Gate::new();
    let backend = gated(&gate).await;
    let mut spec = backend.spec();
    spec["limits"] = json!({"calls_in_flight": 1, "calls_queued": queued});
    spec["timeouts"] = json!({"call": call_timeout, "tools": {"patient": "1m"}});
    (builder().single_process().backend("default", "b", spec).start().await, backend, gate)
}

#[tokio::test]
async fn excess_calls_are_queued_and_refused_when_the_queue_is_full() {
    let (broker, backend, gate) = narrow(1, "30s").await;
    let client = broker.connected(json!({})).await;
    let first = client.start_request("tools/call", json!({"name": "b__t"}));
    backend.wait_count("the first", 1, |seen| seen.calls("t")).await;
    let second = client.start_request("tools/call", json!({"name": "b__t"}));
    broker
        .admin()
        .wait_metric("mcp_queue_depth", &[("queue", "backend_calls")], |depth| depth == 1.0)
        .await;
    let view = broker.admin().backend("default", "b").await;
    assert_eq!(
        [&view["calls_in_flight"], &view["calls_queued"], &view["calls_max"]],
        [&json!(1), &json!(1), &json!(1)]
    );
    let asked = Instant::now();
    let refusal = client.error("tools/call", json!({"name": "b__t"})).await;
    assert_eq!(
        (refusal["code"].as_i64(), kind(&refusal), &refusal["data"]["retryable"]),
        (Some(1004), "overloaded", &json!(true))
    );
    assert!(
        refusal["data"]["retryAfterMs"].as_u64().unwrap() > 0
            && asked.elapsed() < Duration::from_millis(500),
        "{refusal}"
    );
    assert_eq!(backend.count(|seen| seen.calls("t")), 1, "one at a time");
    gate.open();
    assert_eq!((text_of(&first.result().await), text_of(&second.result().await)), ("done", "done"));
    broker
        .admin()
        .wait_metric("mcp_queue_depth", &[("queue", "backend_calls")], |depth| depth == 0.0)
        .await;
}

#[tokio::test]
async fn a_queued_call_that_times_out_is_never_sent() {
    let (broker, backend, gate) = narrow(10, "400ms").await;
    let client = broker.connected(json!({})).await;
    let first = client.start_request("tools/call", json!({"name": "b__patient"}));
    backend.wait_count("the first", 1, |seen| seen.calls("patient")).await;
    let asked = Instant::now();
    let refusal = client.error("tools/call", json!({"name": "b__t"})).await;
    assert_eq!(
        (kind(&refusal), &refusal["data"]["retryable"]),
        ("timeout", &json!(true)),
        "nothing was sent: {refusal}"
    );
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    gate.open();
    assert_eq!(
        (text_of(&first.result().await), text_of(&client.call("b__t", json!({})).await)),
        ("done", "done")
    );
    assert_eq!(
        backend.count(|seen| seen.calls("t")),
        1,
        "the call without a permit was not sent later"
    );
}

#[tokio::test]
async fn calls_queued_for_a_dead_backend_are_refused_at_once() {
    let (broker, backend, _gate) = narrow(10, "30s").await;
    let client = broker.connected(json!({})).await;
    let _first = client.start_request("tools/call", json!({"name": "b__t"}));
    backend.wait_count("the first", 1, |seen| seen.calls("t")).await;
    let waiting: Vec<_> =
        (0..3).map(|_| client.start_request("tools/call", json!({"name": "b__t"}))).collect();
    broker
        .admin()
        .wait_metric("mcp_queue_depth", &[("queue", "backend_calls")], |depth| depth == 3.0)
        .await;
    broker
        .admin()
        .post("/admin/v1/tenants/default/backends/b/breaker", &json!({"state": "open"}))
        .await;
    for call in waiting {
        assert_eq!(within("the refusal", call.error()).await["data"]["breaker"], "operator");
    }
}

/// Without a key all clients are one principal, and only sessions distinguish them.
#[tokio::test]
async fn one_session_cannot_fill_a_queue_for_other_sessions_of_its_principal() {
    let (broker, backend, gate) = narrow(20, "30s").await;
    let loud = broker.connected(json!({})).await;
    let first = loud.start_request("tools/call", json!({"name": "b__t"}));
    backend.wait_count("the first", 1, |seen| seen.calls("t")).await;
    let flood: Vec<_> =
        (0..20).map(|_| loud.start_request("tools/call", json!({"name": "b__t"}))).collect();
    broker
        .admin()
        .wait_metric("mcp_queue_depth", &[("queue", "backend_calls")], |depth| depth == 20.0)
        .await;
    // A session's flood affects the session itself: none of its waiting calls is displaced for more
    // of it.
    assert_eq!(kind(&loud.error("tools/call", json!({"name": "b__t"})).await), "overloaded");
    let quiet = broker.connected(json!({})).await;
    let calls: Vec<_> =
        (0..3).map(|_| quiet.start_request("tools/call", json!({"name": "b__patient"}))).collect();
    // It is not known which of the flood came last; three of them were displaced.
    let mut flood: tokio::task::JoinSet<Value> =
        flood.into_iter().map(|call| async { call.response().await.value }).collect();
    for _ in 0..3 {
        let displaced =
            within("three of the flood to go", flood.join_next()).await.unwrap().unwrap();
        assert_eq!(kind(&displaced["error"]), "overloaded", "{displaced}");
    }
    gate.open();
    for call in calls {
        assert_eq!(text_of(&call.result().await), "done");
    }
    // The sessions take turns: not all of the flood was served first.
    let order: Vec<bool> = backend
        .recorded()
        .iter()
        .filter(|seen| seen.calls("t") || seen.calls("patient"))
        .map(|seen| seen.calls("t"))
        .collect();
    assert!(order.iter().take(7).filter(|of_flood| !**of_flood).count() == 3, "{order:?}");
    assert_eq!(text_of(&first.result().await), "done");
    while let Some(answer) = flood.join_next().await {
        assert_eq!(text_of(&answer.unwrap()["result"]), "done");
    }
}

#[tokio::test]
async fn two_tenants_with_hung_backends_leave_permits_for_a_third() {
    let (hung, good) = (silent(&["t"]).await, FakeBackend::echo().await);
    let mut building = builder()
        .single_process()
        .auth_required()
        .config(json!({"limits": {"calls_in_flight": 64}, "breaker": {"enabled": false}}));
    for (tenant, backend) in [("one", &hung), ("two", &hung), ("three", &good)] {
        building = building.tenant(tenant).backend(tenant, "b", backend.spec());
    }
    let broker = building.start().await;
    let mut held = Vec::new();
    for tenant in ["one", "two"] {
        let key = broker.admin().create_key(tenant).await;
        let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
        held.extend((0..40).map(|_| client.start_request("tools/call", json!({"name": "b__t"}))));
    }
    // Eight of 64 permits are reserved, two of them for each of four tenants.
    broker
        .admin()
        .wait_metric("mcp_queue_depth", &[("queue", "calls")], |depth| depth == 80.0 - 56.0)
        .await;
    let key = broker.admin().create_key("three").await;
    let third = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    for _ in 0..20 {
        within("an answer, though others wait", third.call("b__echo", json!({}))).await;
    }
    assert_eq!(hung.count(|seen| seen.calls("t")), 56, "what is kept is kept");
}

/// With only a few permits, a tenant does not wait until one of another's fifty calls ends.
#[tokio::test]
async fn r14_an_idle_tenant_does_not_wait_for_one_that_uses_most_permits() {
    let (hung, good) = (silent(&["t"]).await, FakeBackend::echo().await);
    let building = builder()
        .single_process()
        .auth_required()
        .config(json!({"limits": {"calls_in_flight": 20}, "breaker": {"enabled": false}}));
    let building = building
        .tenant("loud")
        .backend("loud", "b", hung.spec())
        .tenant("quiet")
        .backend("quiet", "b", good.spec());
    let broker = building.start().await;
    let loud = broker.admin().create_key("loud").await;
    let loud = broker.client("/mcp").bearer(&loud).connected(json!({})).await;
    let _held: Vec<_> =
        (0..50).map(|_| loud.start_request("tools/call", json!({"name": "b__t"}))).collect();
    // An eighth of the twenty is reserved.
    broker
        .admin()
        .wait_metric("mcp_queue_depth", &[("queue", "calls")], |depth| depth == 50.0 - 18.0)
        .await;
    let quiet = broker.admin().create_key("quiet").await;
    let quiet = broker.client("/mcp").bearer(&quiet).connected(json!({})).await;
    for _ in 0..20 {
        within("an answer, though others wait", quiet.call("b__echo", json!({}))).await;
    }
    assert_eq!(hung.count(|seen| seen.calls("t")), 18, "what is kept is kept");
}

/// A slow call does not predict the time of those behind it: later calls wait as if it were an
/// ordinary one.
#[tokio::test]
async fn one_slow_call_does_not_cause_refusals_of_later_calls() {
    let (broker, backend, gate) = narrow(1_000, "30s").await;
    let client = broker.connected(json!({})).await;
    let first = client.start_request("tools/call", json!({"name": "b__patient"}));
    backend.wait_count("the first", 1, |seen| seen.calls("patient")).await;
    let mut waiting: Vec<_> =
        (0..60).map(|_| client.start_request("tools/call", json!({"name": "b__t"}))).collect();
    broker
        .admin()
        .wait_metric("mcp_queue_depth", &[("queue", "backend_calls")], |depth| depth == 60.0)
        .await;
    // Only time passes here, and no call moves.
    tokio::time::sleep(Duration::from_secs(1)).await;
    waiting.extend((0..3).map(|_| client.start_request("tools/call", json!({"name": "b__t"}))));
    broker
        .admin()
        .wait_metric("mcp_queue_depth", &[("queue", "backend_calls")], |depth| depth == 63.0)
        .await;
    gate.open();
    assert_eq!(text_of(&first.result().await), "done");
    for call in waiting {
        assert_eq!(text_of(&call.result().await), "done");
    }
}

#[tokio::test]
async fn a_flood_of_one_key_does_not_delay_another_at_a_busy_backend() {
    let gate = Gate::new();
    let backend = gated(&gate).await;
    let mut spec = backend.spec();
    spec["limits"] = json!({"calls_in_flight": 1, "calls_queued": 1000});
    let broker = builder()
        .single_process()
        .config(json!({"overload": {"queue_delay": "0s"}}))
        .auth_required()
        .tenant("acme")
        .backend("acme", "b", spec)
        .start()
        .await;
    let (loud, quiet) =
        (broker.admin().create_key("acme").await, broker.admin().create_key("acme").await);
    let loud = broker.client("/mcp").bearer(&loud).connected(json!({})).await;
    let quiet = broker.client("/mcp").bearer(&quiet).connected(json!({})).await;
    let mut flood = vec![loud.start_request("tools/call", json!({"name": "b__t"}))];
    backend.wait_count("the first", 1, |seen| seen.calls("t")).await;
    // One by one: a busy machine needs time for many at once.
    for waiting in 1..=40 {
        flood.push(loud.start_request("tools/call", json!({"name": "b__t"})));
        broker
            .admin()
            .wait_metric("mcp_queue_depth", &[("queue", "backend_calls")], |depth| {
                depth == f64::from(waiting)
            })
            .await;
    }
    let call = quiet.start_request("tools/call", json!({"name": "b__patient"}));
    broker
        .admin()
        .wait_metric("mcp_queue_depth", &[("queue", "backend_calls")], |depth| depth == 41.0)
        .await;
    gate.open();
    assert_eq!(text_of(&call.result().await), "done");
    for call in flood {
        call.result().await;
    }
    // The one that was at the backend, and one in turn.
    let order: Vec<bool> = backend
        .recorded()
        .iter()
        .filter(|seen| seen.calls("t") || seen.calls("patient"))
        .map(|seen| seen.calls("t"))
        .collect();
    let before = order.iter().take_while(|of_flood| **of_flood).count();
    assert!(before <= 2, "{before} of the flood came first");
}

#[tokio::test]
async fn adaptive_concurrency_finds_the_capacity_of_a_backend() {
    // Four at a time; more slow each other down.
    let permits = Arc::new(tokio::sync::Semaphore::new(4));
    let backend = FakeBackend::with_tool("t", move |_| {
        let permits = permits.clone();
        async move {
            let _permit = permits.acquire().await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
            Reply::text("done")
        }
    })
    .await;
    let mut spec = backend.spec();
    spec["limits"] = json!({"calls_in_flight": 64, "adaptive_concurrency": true});
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    for _ in 0..10 {
        client.call("b__t", json!({})).await;
    }
    let workers: Vec<_> = (0..40)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                loop {
                    client.request("tools/call", json!({"name": "b__t"})).await;
                }
            })
        })
        .collect();
    let limit = eventually("the limit to come down", || async {
        let limit =
            broker.admin().metric("mcp_backend_calls_max", &[("backend", "b")]).await.unwrap();
        if limit < 40.0 { Ok(limit) } else { Err(limit) }
    })
    .await;
    println!("64 were allowed, {limit} are let through");
    workers.iter().for_each(|worker| worker.abort());
    let view: Value = broker.admin().backend("default", "b").await;
    assert_eq!(view["settings"]["limits"]["adaptive_concurrency"], true);
}
