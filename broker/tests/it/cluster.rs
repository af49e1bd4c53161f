//! Several replicas on one PostgreSQL and one Redis: the operations of each for a session, and the
//! takeover after its end. Tests are named after their faults and promises.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{
    AttemptOutcome, BrokerBuilder, Call, Ledger, Store, TestClient, TestCluster, eventually,
    history::OUTCOME_UNKNOWN,
};

use crate::{builder, kind, text_of};

/// Longer than a lease of the clusters here and the work after it lapsed.
pub(crate) const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(8);

pub(crate) fn on(ledger: &Ledger) -> BrokerBuilder {
    ledger.backend().list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    builder().auth_required().backend("default", "b", ledger.spec())
}

/// Starts two replicas in front of a ledger; returns them with a key for their clients.
pub(crate) async fn two() -> (TestCluster, Ledger, String) {
    two_on(Store::Postgres).await
}

async fn two_on(store: Store) -> (TestCluster, Ledger, String) {
    let ledger = Ledger::start().await;
    let cluster = on(&ledger).cluster(2).store(store).start().await;
    let key = cluster.operator().create_key("default").await;
    (cluster, ledger, key)
}

/// Opens a session at one replica, which then owns it.
pub(crate) async fn opened_at(cluster: &TestCluster, replica: usize, key: &str) -> TestClient {
    cluster.client_of(replica, "/mcp").bearer(key).connected(json!({"elicitation": {}})).await
}

pub(crate) fn as_task(tool: &str, arguments: Value) -> Value {
    json!({"name": format!("b__{tool}"), "arguments": arguments, "task": {"ttl": 600_000}})
}

/// Requests a task; returns its id.
pub(crate) async fn task(client: &TestClient, tool: &str, arguments: Value) -> String {
    let created = client.result("tools/call", as_task(tool, arguments)).await;
    created["task"]["taskId"].as_str().unwrap_or_else(|| panic!("a task: {created}")).to_owned()
}

pub(crate) async fn status(client: &TestClient, task: &str) -> String {
    let view = client.result("tasks/get", json!({"taskId": task})).await;
    view["status"].as_str().unwrap().to_owned()
}

/// Polls the task until its status is final; returns the status.
pub(crate) async fn over(client: &TestClient, task: &str) -> String {
    eventually("the task to be over", || async {
        match client.attempt("tasks/get", json!({"taskId": task}), TAKEN_OVER_WITHIN).await {
            AttemptOutcome::Result(view)
                if !["working", "input_required"].contains(&view["status"].as_str().unwrap()) =>
            {
                Ok(view["status"].as_str().unwrap().to_owned())
            }
            other => Err(other),
        }
    })
    .await
}

pub(crate) async fn result_of(client: &TestClient, task: &str) -> Value {
    client.result("tasks/result", json!({"taskId": task})).await
}

/// Waits until this replica serves a session, as it must soon after the session's owner died.
pub(crate) async fn served_at(cluster: &TestCluster, replica: usize, client: &TestClient) {
    let there = cluster.at(replica, client);
    eventually("the session to be served", || async {
        match there.attempt("ping", json!({}), TAKEN_OVER_WITHIN).await {
            AttemptOutcome::Result(_) => Ok(()),
            other => {
                assert_ne!(other.kind(), "session_not_found", "a session that was acknowledged");
                Err(other)
            }
        }
    })
    .await;
}

#[tokio::test]
async fn proof_1_a_client_works_behind_a_balancer_without_affinity() {
    let (cluster, ledger, key) = two().await;
    let client = cluster.client("/mcp").bearer(&key).connected(json!({"elicitation": {}})).await;
    for number in 0..6 {
        let answer = client.call("b__write", json!({"key": format!("k{number}")})).await;
        assert_eq!(text_of(&answer), ledger.results(&format!("k{number}"))[0]);
    }
    let sent =
        cluster.replicas().iter().map(|replica| cluster.balancer().sent_to(replica.http_address()));
    assert!(sent.clone().all(|sent| sent >= 3), "{:?}", sent.collect::<Vec<_>>());
    client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    let mut stream = client.open_get_stream().await;
    stream.next().await;
    ledger.backend().wait_get_streams(1).await;
    ledger.backend().notify("notifications/resources/updated", json!({"uri": "test://one"})).await;
    stream
        .find(|message| {
            message["method"] == "notifications/resources/updated"
                && message["params"]["uri"] == "b+test://one"
        })
        .await;
    assert!((200..300).contains(&client.delete_session().await));
    for replica in 0..2 {
        assert_eq!(
            cluster.at(replica, &client).post(crate::request(9, "ping", json!({}))).await.status,
            404
        );
    }
}

#[tokio::test]
async fn proof_1_a_question_is_answered_and_a_call_cancelled_at_either_replica() {
    let (cluster, ledger, key) = two().await;
    let client = opened_at(&cluster, 0, &key).await;
    for (asked, answered) in [(0, 1), (1, 0), (1, 1)] {
        let mut call: Call = cluster
            .at(asked, &client)
            .start_call("b__ask", json!({"key": format!("ask {asked}{answered}")}));
        let question = call.next().await.unwrap();
        assert_eq!(question.method(), Some("elicitation/create"));
        let accepted = json!({"action": "accept", "content": {"word": "yes"}});
        cluster.at(answered, &client).respond(question.value["id"].clone(), accepted).await;
        assert!(text_of(&call.finish().await.value["result"]).ends_with("told \"yes\""));
        let hanging = cluster.at(asked, &client).start_call(
            "b__write",
            json!({"key": format!("cancel {asked}{answered}"), "hang": true}),
        );
        ledger.wait_for(&format!("cancel {asked}{answered}")).await;
        let before = ledger.backend().recorded_of("notifications/cancelled").len();
        cluster
            .at(answered, &client)
            .notify("notifications/cancelled", json!({"requestId": hanging.id}))
            .await;
        ledger
            .backend()
            .wait_count("the cancellation", before + 1, |seen| seen.is("notifications/cancelled"))
            .await;
    }
}

#[tokio::test]
async fn a_task_is_read_answered_and_cancelled_at_a_replica_that_does_not_run_it() {
    let (cluster, ledger, key) = two().await;
    let here = opened_at(&cluster, 0, &key).await;
    let there = opened_at(&cluster, 1, &key).await;
    let id = task(&here, "write", json!({"key": "a", "millis": 50})).await;
    assert_eq!(text_of(&result_of(&there, &id).await), ledger.results("a")[0]);
    assert_eq!(status(&there, &id).await, "completed");
    let backend_with_questions = task(&here, "ask", json!({"key": "q"})).await;
    let mut waiting =
        there.start_request("tasks/result", json!({"taskId": backend_with_questions}));
    let question = waiting.next().await.unwrap();
    assert_eq!(question.method(), Some("elicitation/create"));
    assert_eq!(
        question.value["params"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"],
        backend_with_questions.as_str()
    );
    assert_eq!(status(&here, &backend_with_questions).await, "input_required");
    there
        .respond(
            question.value["id"].clone(),
            json!({"action": "accept", "content": {"word": "yes"}}),
        )
        .await;
    assert!(text_of(&waiting.finish().await.value["result"]).ends_with("told \"yes\""));
    let hanging = task(&here, "write", json!({"key": "h", "hang": true})).await;
    ledger.wait_for("h").await;
    let cancelled = there.result("tasks/cancel", json!({"taskId": hanging})).await;
    assert_eq!(cancelled["status"], "cancelled");
    ledger.backend().wait_for("the cancellation", |seen| seen.is("notifications/cancelled")).await;
    ledger.release();
    assert_eq!(status(&here, &hanging).await, "cancelled", "a late answer changes nothing");
    let listed = there.list_all("tasks/list", "tasks").await;
    assert_eq!(listed.len(), 3, "{listed:?}");
}

#[tokio::test]
async fn r1_a_result_is_collected_at_another_replica_after_a_crash() {
    collected_after_a_crash(Store::Postgres).await;
}

#[tokio::test]
async fn r1_a_result_is_collected_after_a_crash_through_a_pooler() {
    collected_after_a_crash(Store::PooledPostgres).await;
}

async fn collected_after_a_crash(store: Store) {
    let (mut cluster, ledger, key) = two_on(store).await;
    let client = opened_at(&cluster, 0, &key).await;
    let done = task(&client, "write", json!({"key": "done"})).await;
    assert_eq!(over(&client, &done).await, "completed");
    let running = task(&client, "write", json!({"key": "running", "hang": true})).await;
    let repeatable = task(&client, "put", json!({"key": "repeatable", "millis": 700})).await;
    ledger.wait_for("running").await;
    ledger.wait_for("repeatable").await;
    cluster.kill(0).await;
    let other = opened_at(&cluster, 1, &key).await;
    assert_eq!(text_of(&result_of(&other, &done).await), ledger.results("done")[0]);
    assert_eq!(over(&other, &running).await, "failed");
    assert_eq!(
        kind(&other.error("tasks/result", json!({"taskId": running})).await),
        OUTCOME_UNKNOWN
    );
    assert_eq!(over(&other, &repeatable).await, "completed");
    assert!(
        ledger
            .results("repeatable")
            .contains(&text_of(&result_of(&other, &repeatable).await).to_owned())
    );
    assert_eq!(
        (ledger.count("done"), ledger.count("running"), ledger.count("repeatable")),
        (1, 1, 2)
    );
    // The session that made them continues too.
    served_at(&cluster, 1, &client).await;
    assert_eq!(status(&cluster.at(1, &client), &done).await, "completed");
}

#[tokio::test]
async fn f_07_a_replica_that_was_stopped_for_long_is_fenced_when_it_continues() {
    let (mut cluster, ledger, key) = two().await;
    let client = opened_at(&cluster, 0, &key).await;
    let id = task(&client, "write", json!({"key": "a", "hang": true})).await;
    ledger.wait_for("a").await;
    cluster.freeze(0);
    let other = opened_at(&cluster, 1, &key).await;
    assert_eq!(over(&other, &id).await, "failed", "its owner is as good as dead");
    served_at(&cluster, 1, &client).await;
    let epochs = cluster.sql("SELECT count(*), max(epoch) FROM sessions").await;
    assert_eq!(epochs, "2|2", "the session was taken over once");
    // The answer comes, and the old owner would store it.
    ledger.release();
    cluster.thaw(0);
    served_at(&cluster, 0, &client).await;
    for replica in 0..2 {
        let reader = cluster.at(replica, &client);
        assert_eq!(status(&reader, &id).await, "failed");
        assert_eq!(
            kind(&reader.error("tasks/result", json!({"taskId": id})).await),
            OUTCOME_UNKNOWN
        );
    }
    assert_eq!(ledger.count("a"), 1);
}

#[tokio::test]
async fn f_08_sessions_of_a_killed_replica_move_with_their_subscriptions() {
    let (mut cluster, ledger, key) = two().await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        let client = opened_at(&cluster, 0, &key).await;
        client.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
        clients.push(client);
    }
    cluster.kill(0).await;
    let killed = Instant::now();
    for client in &clients {
        served_at(&cluster, 1, client).await;
    }
    assert!(killed.elapsed() < TAKEN_OVER_WITHIN, "{:?}", killed.elapsed());
    for client in &clients {
        let mut stream = cluster.at(1, client).open_get_stream().await;
        // The broker sends it unasked, because an update may have been missed.
        stream.find(|message| message["method"] == "notifications/resources/updated").await;
        ledger
            .backend()
            .notify("notifications/resources/updated", json!({"uri": "test://one"}))
            .await;
        stream.find(|message| message["method"] == "notifications/resources/updated").await;
    }
    cluster.restart(0).await;
    served_at(&cluster, 0, &clients[0]).await;
    assert_eq!(ledger.effects(), []);
}

#[tokio::test]
async fn f_09_both_replicas_killed_and_one_started_lose_nothing() {
    let (mut cluster, ledger, key) = two().await;
    let mut tasks = Vec::new();
    let mut clients = Vec::new();
    for number in 0..6 {
        let client = opened_at(&cluster, number % 2, &key).await;
        tasks.push(
            task(&client, "put", json!({"key": format!("k{number}"), "millis": 300 * number}))
                .await,
        );
        clients.push(client);
    }
    cluster.kill(0).await;
    cluster.kill(1).await;
    cluster.restart(1).await;
    for (number, (client, id)) in clients.iter().zip(&tasks).enumerate() {
        served_at(&cluster, 1, client).await;
        let there = cluster.at(1, client);
        assert_eq!(over(&there, id).await, "completed");
        assert!(
            ledger
                .results(&format!("k{number}"))
                .contains(&text_of(&result_of(&there, id).await).to_owned())
        );
    }
}

#[tokio::test]
async fn r11_a_flushed_or_stopped_redis_loses_no_data() {
    let (cluster, ledger, key) = two().await;
    let here = opened_at(&cluster, 0, &key).await;
    let there = opened_at(&cluster, 1, &key).await;
    here.result("resources/subscribe", json!({"uri": "b+test://one"})).await;
    let before = task(&here, "write", json!({"key": "before"})).await;
    let hanging = task(&here, "write", json!({"key": "hanging", "hang": true})).await;
    ledger.wait_for("hanging").await;
    cluster.redis().flush_all().await;
    served_at(&cluster, 1, &here).await;
    assert_eq!(over(&there, &before).await, "completed");
    cluster.redis().kill().await;
    for (replica, client) in [(1, &here), (0, &there)] {
        served_at(&cluster, replica, client).await;
        assert_eq!(
            text_of(
                &cluster
                    .at(replica, client)
                    .call("b__write", json!({"key": format!("r{replica}")}))
                    .await
            ),
            ledger.results(&format!("r{replica}"))[0]
        );
    }
    // No wake-up can be sent, so the other replica finds the end by polling.
    let waiting = there.start_request("tasks/result", json!({"taskId": hanging}));
    ledger.release();
    let released = Instant::now();
    assert_eq!(text_of(&waiting.result().await), ledger.results("hanging")[0]);
    assert!(released.elapsed() < Duration::from_secs(4), "{:?}", released.elapsed());
    let without = task(&there, "write", json!({"key": "without"})).await;
    cluster.redis().start_again().await;
    assert_eq!(text_of(&result_of(&here, &without).await), ledger.results("without")[0]);
    let mut stream = cluster.at(1, &here).open_get_stream().await;
    stream.next().await;
    ledger.backend().notify("notifications/resources/updated", json!({"uri": "test://one"})).await;
    stream.find(|message| message["method"] == "notifications/resources/updated").await;
    assert!(ledger.effects().iter().all(|effect| ledger.count(&effect.key) == 1));
}
