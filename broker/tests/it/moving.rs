//! A replica stops without delay. Waiting requests, and those that can continue elsewhere, leave
//! with their session. A client whose session is just moving is redirected.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::json;
use testkit::{
    AttemptOutcome, Call, DuplexClient, FakeBackend, Gate, Ledger, Reply, TestBroker, TestClient,
    TestCluster, duplex::Wire, eventually,
};

use crate::{
    builder,
    cluster::{TAKEN_OVER_WITHIN, on, opened_at, over, result_of, served_at, status, task, two},
    kind, tasks, text_of,
};

/// Far below any grace period.
const SOON: Duration = Duration::from_secs(4);
/// Enough callers that their calls overlap all the time.
const CALLERS: usize = 12;

/// Returns a call that is known to wait for a task at a replica.
async fn waits_at(cluster: &TestCluster, replica: usize, client: &TestClient, task: &str) -> Call {
    let before = cluster.admin(replica).metric("mcp_requests_pending", &[]).await.unwrap_or(0.0);
    let waiting = client.start_request("tasks/result", json!({"taskId": task}));
    cluster
        .admin(replica)
        .wait_metric("mcp_requests_pending", &[], |pending| pending > before)
        .await;
    waiting
}

/// Stops a replica, which must not take long.
async fn ends_soon(cluster: &mut TestCluster, replica: usize) {
    let asked = Instant::now();
    assert!(cluster.terminate(replica).await, "a clean exit");
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_client_that_waits_for_a_task_resumes_at_another_replica() {
    let (mut cluster, ledger, key) = two().await;
    let (here, there) = (opened_at(&cluster, 0, &key).await, opened_at(&cluster, 1, &key).await);
    let id = task(&there, "write", json!({"key": "a", "hang": true})).await;
    ledger.wait_for("a").await;
    let mut waiting = waits_at(&cluster, 0, &here, &id).await;
    ends_soon(&mut cluster, 0).await;
    let event_id = waiting.first_event_id().await;
    assert!(waiting.next_or_end().await.is_none(), "no answer: the client is to come back for it");
    let mut resumed = cluster.at(1, &here).resume(&event_id).await;
    ledger.release();
    let answer = resumed.find(|message| message.get("result").is_some()).await;
    assert_eq!(
        (&answer["id"], text_of(&answer["result"])),
        (&waiting.id, ledger.results("a")[0].as_str())
    );
    assert_eq!(ledger.count("a"), 1);
}

#[tokio::test]
async fn a_waiting_client_that_cannot_resume_gets_a_retryable_error() {
    let ledger = Ledger::start().await;
    let mut cluster =
        on(&ledger).config(json!({"events": {"log": "off"}})).cluster(2).start().await;
    let key = cluster.operator().create_key("default").await;
    let (here, there) = (opened_at(&cluster, 0, &key).await, opened_at(&cluster, 1, &key).await);
    let id = task(&there, "write", json!({"key": "a", "hang": true})).await;
    ledger.wait_for("a").await;
    let waiting = waits_at(&cluster, 0, &here, &id).await;
    ends_soon(&mut cluster, 0).await;
    let error = waiting.error().await;
    assert_eq!((kind(&error), &error["data"]["retryable"]), ("session_elsewhere", &json!(true)));
    ledger.release();
    assert_eq!(text_of(&result_of(&cluster.at(1, &here), &id).await), ledger.results("a")[0]);
}

#[tokio::test]
async fn a_question_of_a_task_is_sent_again_at_the_next_replica() {
    let (mut cluster, ledger, key) = two().await;
    let (here, there) = (opened_at(&cluster, 0, &key).await, opened_at(&cluster, 1, &key).await);
    let id = task(&there, "ask", json!({"key": "q"})).await;
    let mut waiting = here.start_request("tasks/result", json!({"taskId": id}));
    let first = waiting.next().await.unwrap();
    assert_eq!(first.method(), Some("elicitation/create"));
    let mut event_id = first.event_id.clone().unwrap();
    ends_soon(&mut cluster, 0).await;
    while let Some(message) = waiting.next_or_end().await {
        assert!(!message.is_response(), "{message:?}");
        event_id = message.event_id.clone().unwrap();
    }
    let here = cluster.at(1, &here);
    let mut resumed = here.resume(&event_id).await;
    let again = resumed.find(|message| message["method"] == "elicitation/create").await;
    assert_ne!(again["id"], first.value["id"], "a number is not used twice");
    here.respond(again["id"].clone(), json!({"action": "accept", "content": {"word": "yes"}}))
        .await;
    let answer = resumed.find(|message| message.get("result").is_some()).await;
    assert!(text_of(&answer["result"]).ends_with("told \"yes\""), "{answer}");
    assert_eq!(ledger.count("q"), 1);
}

#[tokio::test]
async fn a_restart_restores_waiting_clients_and_watched_tasks() {
    let done = Gate::new();
    let backend = tasks::with_tasks(&done).await;
    let mut broker = builder()
        .single_process()
        .auth_required()
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let key = broker.admin().create_key("default").await;
    let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    let id = tasks::start(&client, "b__job").await;
    let mut waiting = client.start_request("tasks/result", json!({"taskId": id}));
    broker.admin().wait_metric("mcp_requests_pending", &[], |pending| pending >= 1.0).await;
    backend.wait_for("the task to be watched", |seen| seen.is("tasks/get")).await;
    let asked = Instant::now();
    assert_eq!(broker.terminate().await.code(), Some(0));
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    let event_id = waiting.first_event_id().await;
    broker.restart().await;
    let client = client.to(broker.http_address());
    let mut resumed = client.resume(&event_id).await;
    done.open();
    let answer = resumed.find(|message| message.get("id").is_some()).await;
    assert_eq!(text_of(&answer["result"]), "result of task-1", "{answer}");
    assert_eq!(backend.count(|seen| seen.calls("job")), 1);
}

#[tokio::test]
async fn a_draining_replica_keeps_a_sent_task_call_unless_it_is_harmless() {
    let (mut cluster, ledger, key) = two().await;
    let (here, there) = (opened_at(&cluster, 0, &key).await, opened_at(&cluster, 1, &key).await);
    let (once, again) =
        (json!({"key": "once", "hang": true}), json!({"key": "again", "hang": true}));
    let (once, again) = (task(&here, "write", once).await, task(&here, "put", again).await);
    ledger.wait_for("once").await;
    ledger.wait_for("again").await;
    let ended = tokio::join!(cluster.terminate(0), async {
        // The other replica takes over the call, while its first owner still runs.
        eventually("the harmless call to be sent again", || async {
            if ledger.count("again") == 2 { Ok(()) } else { Err(()) }
        })
        .await;
        assert_eq!(status(&there, &once).await, "working");
        ledger.release();
    })
    .0;
    assert!(ended, "a clean exit");
    for (id, key) in [(&once, "once"), (&again, "again")] {
        assert_eq!(over(&there, id).await, "completed");
        assert!(ledger.results(key).contains(&text_of(&result_of(&there, id).await).to_owned()));
    }
    assert_eq!((ledger.count("once"), ledger.count("again")), (1, 2));
}

/// Starts one broker that listens everywhere, with a backend that has tasks of its own. Returns it
/// with a client and the id of its task.
async fn watching(wire: &str) -> (TestBroker, FakeBackend, DuplexClient, String) {
    let backend = tasks::with_tasks(&Gate::new()).await;
    let listening = builder().single_process().config(json!({"listen": {"tcp": "127.0.0.1:0"}}));
    let broker = listening.backend("default", "b", backend.spec()).start().await;
    let duplex = broker.duplex();
    let client = match wire {
        "websocket" => duplex.websocket(broker.http_address(), "/ws", &[]).await.unwrap().0,
        "sse" => duplex.over(Wire::http_sse(broker.http_address(), "/sse", &[]).await.unwrap()),
        _ => duplex.tcp(broker.tcp_address()).await,
    };
    let client = client.connected(json!({})).await;
    let created = client
        .result("tools/call", json!({"name": "b__job", "arguments": {}, "task": {"ttl": 60000}}))
        .await;
    let id = created["task"]["taskId"]
        .as_str()
        .unwrap_or_else(|| panic!("a task: {created}"))
        .to_owned();
    backend.wait_for("the task to be watched", |seen| seen.is("tasks/get")).await;
    (broker, backend, client, id)
}

/// Checks that a waiting client on this wire does not delay a broker that stops, and gets an
/// answer.
async fn waits_on(wire: &str) {
    let (mut broker, _backend, client, id) = watching(wire).await;
    let waiting = client.start_request("tasks/result", json!({"taskId": id})).await;
    broker.admin().wait_metric("mcp_requests_pending", &[], |pending| pending >= 1.0).await;
    let asked = Instant::now();
    assert_eq!(broker.terminate().await.code(), Some(0), "{wire}");
    assert!(asked.elapsed() < SOON, "{wire}: {:?}", asked.elapsed());
    let error = waiting.error().await;
    assert_eq!(
        (kind(&error), &error["data"]["retryable"]),
        ("session_elsewhere", &json!(true)),
        "{wire}"
    );
}

#[tokio::test]
async fn a_client_that_waits_on_a_websocket_gets_a_retryable_error() {
    waits_on("websocket").await;
}

#[tokio::test]
async fn a_client_that_waits_on_a_session_connection_gets_a_retryable_error() {
    for wire in ["tcp", "sse"] {
        waits_on(wire).await;
    }
}

#[tokio::test]
async fn requests_on_an_open_websocket_wait_for_the_release_of_their_session() {
    let (first, second) = (Gate::new(), Gate::new());
    let backend = FakeBackend::echo().await;
    let gates = [first.clone(), second.clone()];
    backend.on("tools/call", move |call| {
        let gate =
            call.arguments()["gate"].as_u64().map(|gate| gates[usize::from(gate != 0)].clone());
        async move {
            if let Some(gate) = gate {
                gate.passed().await;
            }
            Reply::text("done")
        }
    });
    let mut broker =
        builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = broker
        .duplex()
        .websocket(broker.http_address(), "/ws", &[])
        .await
        .unwrap()
        .0
        .connected(json!({}))
        .await;
    let short = client.start_call("b__echo", json!({"gate": 0})).await;
    backend.wait_count("the first call", 1, |seen| seen.is("tools/call")).await;
    broker.request_shutdown();
    eventually("the drain to begin", || async {
        if broker.admin().get("/readyz").await.0 == 503 { Ok(()) } else { Err(()) }
    })
    .await;
    let long = client.start_call("b__echo", json!({"gate": 1})).await;
    backend.wait_count("the second call", 2, |seen| seen.is("tools/call")).await;
    first.open();
    short.result().await;
    // Calls continue for the time in which the session would close after the first call. The second
    // call prevents that.
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(300) {
        assert_eq!(text_of(&client.call("b__echo", json!({})).await), "done");
    }
    second.open();
    long.result().await;
    assert_eq!(broker.wait_for_exit().await.code(), Some(0));
}

/// Returns a backend whose own task `task-1` needs input of its client, and ends with it.
async fn backend_with_questions() -> FakeBackend {
    let backend = tasks::with_tasks(&Gate::new()).await;
    let stored_answer = Arc::new(Mutex::new(None));
    let known = stored_answer.clone();
    backend.on("tasks/get", move |_| {
        let status = if known.lock().is_some() { "completed" } else { "input_required" };
        async move { Reply::Result(tasks::task("task-1", status)) }
    });
    backend.on("tasks/result", move |call| {
        let stored_answer = stored_answer.clone();
        async move {
            let answered = stored_answer.lock().clone();
            let answered: String = match answered {
                Some(answered) => answered,
                None => {
                    let schema = json!({"type": "object", "properties": {}});
                    let answer = call
                        .request(
                            "elicitation/create",
                            json!({"message": "?", "requestedSchema": schema}),
                        )
                        .await;
                    let answered =
                        answer["result"]["action"].as_str().unwrap_or("refused").to_owned();
                    stored_answer.lock().get_or_insert(answered).clone()
                }
            };
            Reply::Result(json!({"content": [{"type": "text", "text": answered}]}))
        }
    });
    backend
}

#[tokio::test]
async fn a_backend_task_with_an_open_question_is_kept_until_it_is_answered() {
    let backend = backend_with_questions().await;
    let mut cluster =
        builder().auth_required().backend("default", "b", backend.spec()).cluster(2).start().await;
    let key = cluster.operator().create_key("default").await;
    let (here, there) = (opened_at(&cluster, 0, &key).await, opened_at(&cluster, 1, &key).await);
    let id = tasks::start(&here, "b__job").await;
    let mut waiting = there.start_request("tasks/result", json!({"taskId": id}));
    let question = waiting.next().await.unwrap();
    assert_eq!(question.method(), Some("elicitation/create"));
    let leaving = cluster.admin(0);
    let (clean, answer) = tokio::join!(cluster.terminate(0), async {
        leaving.wait_metric("mcp_sessions_released_total", &[], |released| released >= 1.0).await;
        there.respond(question.value["id"].clone(), json!({"action": "decline"})).await;
        waiting.finish().await
    });
    assert!(clean, "a clean exit");
    assert_eq!(text_of(&answer.value["result"]), "decline", "{answer:?}");
}

/// Makes one call after the other until `until` opens, or the broker is gone. Returns how many were
/// answered, and the other outcomes.
async fn keeps_calling(
    client: &TestClient,
    name: usize,
    until: &Gate,
) -> (usize, Vec<AttemptOutcome>) {
    let (mut answered, mut failed) = (0, Vec::new());
    while tokio::time::timeout(Duration::ZERO, until.passed()).await.is_err() {
        let arguments = json!({"key": format!("{name}/{answered}"), "millis": 60});
        match client
            .attempt(
                "tools/call",
                json!({"name": "b__write", "arguments": arguments}),
                TAKEN_OVER_WITHIN,
            )
            .await
        {
            AttemptOutcome::Result(_) => answered += 1,
            AttemptOutcome::NoAnswer(_) => break,
            error => {
                failed.push(error);
                break;
            }
        }
    }
    (answered, failed)
}

/// Opens one GET stream after the other until `until` opens; returns the statuses.
async fn keeps_opening(client: &TestClient, until: &Gate) -> Vec<u16> {
    let mut statuses = Vec::new();
    while tokio::time::timeout(Duration::ZERO, until.passed()).await.is_err() {
        statuses.push(client.get_stream_raw(None).await.status);
    }
    statuses.dedup();
    statuses
}

/// Runs a session of the first replica that always has calls in flight, all through one replica,
/// while the first one stops.
async fn is_never_at_rest(through: usize) {
    let (mut cluster, ledger, key) = two().await;
    let client = opened_at(&cluster, 0, &key).await;
    let (edge, over) = (cluster.at(through, &client), Gate::new());
    let calling =
        futures_util::future::join_all((0..CALLERS).map(|name| keeps_calling(&edge, name, &over)));
    let stays = cluster.at(1, &client);
    let (outcomes, opened, ended) = tokio::join!(calling, keeps_opening(&stays, &over), async {
        ledger.wait_for("0/3").await;
        let asked = Instant::now();
        let clean = cluster.terminate(0).await;
        let took = asked.elapsed();
        served_at(&cluster, 1, &client).await;
        over.open();
        (clean, took)
    });
    assert!(ended.0 && ended.1 < SOON, "{ended:?}");
    assert_eq!(opened, [200], "streams are opened all along");
    let failed: Vec<&AttemptOutcome> = outcomes.iter().flat_map(|(_, failed)| failed).collect();
    assert_eq!(failed, [] as [&AttemptOutcome; 0]);
    let answered: usize = outcomes.iter().map(|(answered, _)| answered).sum();
    assert_eq!(ledger.effects().len(), answered, "each call was carried out once and answered");
}

#[tokio::test]
async fn a_session_with_constant_calls_moves_without_a_failed_call() {
    is_never_at_rest(1).await;
}

#[tokio::test]
async fn a_leaving_replica_forwards_requests_until_it_ends() {
    is_never_at_rest(0).await;
}
