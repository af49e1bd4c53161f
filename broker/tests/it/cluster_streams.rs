//! Event streams over several replicas: a client can resume at any replica, and every gap is
//! reported.

use serde_json::{Value, json};
use testkit::{
    Event, EventReader, Gate, Ledger, Reply, TestClient, TestCluster, eventually,
    history::OUTCOME_UNKNOWN,
};

use crate::{builder, kind, request, text_of};

/// Returns a cluster whose backend has a tool `steps`: three steps of progress, the gate, three
/// more, the answer.
async fn stepping(resume: &Gate) -> (TestCluster, Ledger, String) {
    let ledger = Ledger::start().await;
    let gate = resume.clone();
    ledger.backend().on("tools/call", move |call| {
        let gate = gate.clone();
        async move {
            for step in 1..=3 {
                call.progress(f64::from(step), 6.0).await;
            }
            gate.passed().await;
            for step in 4..=6 {
                call.progress(f64::from(step), 6.0).await;
            }
            Reply::text("done")
        }
    });
    let cluster =
        builder().auth_required().backend("default", "b", ledger.spec()).cluster(2).start().await;
    let key = cluster.operator().create_key("default").await;
    (cluster, ledger, key)
}

/// Begins the call and reads its first three steps. Returns the reader and the id of each event so
/// far.
async fn open_stream(client: &TestClient) -> (EventReader, Vec<String>) {
    let params = json!({"name": "b__write", "arguments": {}, "_meta": {"progressToken": 7}});
    let mut events = client.post_stream(request(7, "tools/call", params)).await;
    let mut ids = Vec::new();
    loop {
        let event = events.next().await.expect("the stream goes on");
        ids.extend(event.id.clone());
        if event.message().is_some_and(|message| message["params"]["progress"] == 3.0) {
            return (events, ids);
        }
    }
}

fn steps(events: &[Event]) -> Vec<u64> {
    events
        .iter()
        .filter_map(|event| event.message()?["params"]["progress"].as_f64())
        .map(|step| step as u64)
        .collect()
}

#[tokio::test]
async fn sse_12_a_stream_is_resumed_at_another_replica() {
    let resume = Gate::new();
    let (cluster, _ledger, key) = stepping(&resume).await;
    let client = cluster.client_of(0, "/mcp").bearer(&key).connected(json!({})).await;
    let (events, ids) = open_stream(&client).await;
    drop(events);
    let mut resumed = cluster.at(1, &client).resume(&ids[1]).await;
    resume.open();
    let rest = resumed.rest().await;
    assert_eq!(steps(&rest), [2, 3, 4, 5, 6], "what came after the event that was named: {rest:?}");
    assert_eq!(text_of(&rest.last().unwrap().message().unwrap()["result"]), "done");
    let mut all: Vec<_> = rest.iter().filter_map(|event| event.id.clone()).collect();
    let count = all.len();
    all.dedup();
    assert_eq!(all.len(), count, "no id twice");
}

/// Requests the rest of a stream until the session's new owner answers: with the events or a
/// refusal.
async fn rest_of(there: &TestClient, last: &str) -> Result<Vec<Event>, Value> {
    let answer = eventually("the session to be taken over", || async {
        let answer = there.get_stream_raw(Some(last)).await;
        if matches!(answer.status, 200 | 400) { Ok(answer) } else { Err(answer.text().await) }
    })
    .await;
    if answer.is_event_stream() {
        Ok(answer.events().rest().await)
    } else {
        Err(answer.json().await["error"].clone())
    }
}

/// Checks the end of a stream whose call was lost: one answer, and no event that was there before.
fn assert_lost(rest: &[Event]) {
    assert_eq!(steps(rest), [] as [u64; 0], "nothing comes twice: {rest:?}");
    let answers: Vec<Value> =
        rest.iter().filter_map(Event::message).filter(|message| message["id"] == 7).collect();
    assert_eq!(
        answers.iter().map(|answer| kind(&answer["error"])).collect::<Vec<_>>(),
        [OUTCOME_UNKNOWN],
        "{rest:?}"
    );
}

#[tokio::test]
async fn f_08_a_stream_of_a_killed_replica_reports_that_its_call_is_lost() {
    let (mut cluster, _ledger, key) = stepping(&Gate::new()).await;
    let client = cluster.client_of(0, "/mcp").bearer(&key).connected(json!({})).await;
    let (mut events, ids) = open_stream(&client).await;
    // The first record of the log names the stream and the request whose answer is due on it.
    cluster
        .admin(0)
        .wait_metric("mcp_store_seconds_count", &[("operation", "append_events")], |appended| {
            appended > 0.0
        })
        .await;
    cluster.kill(0).await;
    while events.next().await.is_some() {}
    assert!(events.broken, "a killed replica ends nothing in an orderly way");
    let rest = rest_of(&cluster.at(1, &client), ids.last().unwrap()).await;
    assert_lost(&rest.expect("the log has the stream"));
}

#[tokio::test]
async fn f_08_an_unlogged_stream_of_a_killed_replica_reports_a_lost_call() {
    let (mut cluster, _ledger, key) = stepping(&Gate::new()).await;
    let client = cluster.client_of(0, "/mcp").bearer(&key).connected(json!({})).await;
    let (_events, ids) = open_stream(&client).await;
    cluster.kill(0).await;
    // The log holds the events that the replica was fast enough to write.
    cluster.redis().flush_all().await;
    // The first id is that of the priming event, which comes before anything is done.
    for id in [&ids[0], ids.last().unwrap()] {
        let there = cluster.at(1, &client);
        assert_lost(&rest_of(&there, id).await.expect("the id names the request"));
        assert_lost(&rest_of(&there, id).await.expect("as often as it is asked for"));
    }
}

#[tokio::test]
async fn a_stream_without_its_events_reports_a_gap() {
    let (mut cluster, ledger, key) = stepping(&Gate::new()).await;
    ledger.backend().list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    let client = cluster.client_of(0, "/mcp").bearer(&key).connected(json!({})).await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    let mut general = client.open_get_stream().await;
    let first = general.next().await.unwrap().id.expect("a priming event");
    let (_call, ids) = open_stream(&client).await;
    ledger.backend().wait_get_streams(1).await;
    ledger.backend().notify("notifications/resources/updated", json!({"uri": "test://one"})).await;
    general.find(|message| message["method"] == "notifications/resources/updated").await;
    cluster.kill(0).await;
    // With Redis the log of the streams is lost too.
    cluster.redis().flush_all().await;
    let there = cluster.at(1, &client);
    let mut resumed = eventually("the general stream to be resumed", || async {
        let answer = there.get_stream_raw(Some(&first)).await;
        if answer.is_event_stream() { Ok(answer) } else { Err(answer.text().await) }
    })
    .await
    .events();
    resumed.find(|message| message["method"] == "notifications/resources/updated").await;
    assert_eq!(resumed.gaps(), 1, "said before anything else");
    // An id that names no request, as those of batches are.
    let unnamed = ids.last().unwrap().rsplit_once('-').unwrap().0;
    let (status, error) = crate::refused(there.get_stream_raw(Some(unnamed)).await).await;
    assert_eq!((status, kind(&error)), (400, "events_gone"));
    // The id names one request, so the broker can report its outcome.
    assert_lost(&rest_of(&there, ids.last().unwrap()).await.expect("the id names the request"));
}

#[tokio::test]
async fn without_redis_a_session_that_moved_gets_its_general_stream_with_the_gap_signal() {
    let (mut cluster, _ledger, key) = stepping(&Gate::new()).await;
    let client = cluster.client_of(0, "/mcp").bearer(&key).connected(json!({})).await;
    let first = client.open_get_stream().await.next().await.unwrap().id.expect("a priming event");
    cluster.redis().kill().await;
    cluster.kill(0).await;
    let there = cluster.at(1, &client);
    for event_id in [None, Some(first.as_str())] {
        let answer = eventually("a general stream", || async {
            let answer = there.get_stream_raw(event_id).await;
            if answer.is_event_stream() { Ok(answer) } else { Err(answer.text().await) }
        })
        .await;
        let mut stream = answer.events();
        stream.find(|message| message["method"] == "notifications/tools/list_changed").await;
        assert_eq!(stream.gaps(), 1, "{event_id:?}");
    }
}

#[tokio::test]
async fn f_04_a_replica_that_shuts_down_hands_over_its_streams() {
    let resume = Gate::new();
    resume.open();
    let (mut cluster, ledger, key) = stepping(&resume).await;
    ledger.backend().list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    let client = cluster.client_of(0, "/mcp").bearer(&key).connected(json!({})).await;
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    let mut general = client.open_get_stream().await;
    let mut last = general.next().await.unwrap().id.expect("a priming event");
    assert!(cluster.terminate(0).await, "a clean exit");
    let goodbye = general.rest().await;
    assert!(
        !general.broken && goodbye.iter().any(|event| event.retry.is_some()),
        "told to come back: {goodbye:?}"
    );
    last = goodbye.iter().filter_map(|event| event.id.clone()).next_back().unwrap_or(last);
    let through = cluster.at(1, &client);
    let mut resumed = through.resume(&last).await;
    ledger.backend().wait_get_streams(1).await;
    ledger.backend().notify("notifications/resources/updated", json!({"uri": "test://one"})).await;
    resumed.find(|message| message["method"] == "notifications/resources/updated").await;
    assert_eq!(resumed.gaps(), 0, "nothing was lost");
    assert_eq!(text_of(&through.call("b__write", json!({})).await), "done");
}
