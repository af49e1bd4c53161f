//! Durable tasks whose calls wait, through crashes of the broker.

use serde_json::{Value, json};
use testkit::{Gate, Reply, TestBroker, TestClient, eventually};

use super::{
    Desk, approval_of, bank, change_definition, decide, id_of, key, pending,
    policy_requiring_approval, to, wait_changed,
};
use crate::{
    accounts::{Browser, World},
    builder, kind,
    stateless::{
        Modern,
        tasks::{self as stateless_tasks, with_tasks},
    },
    tasks::wait_status,
    text_of,
};

/// Starts a task of `send`. Returns its id.
pub(super) async fn start(client: &TestClient, name: &str) -> String {
    let params = json!({"name": "b__send", "arguments": to(name), "task": {"ttl": 60_000}});
    let made = client.result("tools/call", params).await;
    assert_eq!(made["task"]["status"], "working", "{made}");
    made["task"]["taskId"].as_str().unwrap().to_owned()
}

pub(super) async fn outcome(client: &TestClient, task: &str) -> Value {
    client.request("tasks/result", json!({"taskId": task})).await
}

#[tokio::test]
async fn the_status_of_a_waiting_task_names_its_approval() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    let (approved, denied) = (start(&client, "ann").await, start(&client, "bob").await);
    let listed = desk.pending(2).await;
    for task in [&approved, &denied] {
        let task = client.result("tasks/get", json!({"taskId": task})).await;
        let message = task["statusMessage"].as_str().unwrap_or_else(|| panic!("{task}"));
        assert!(message.starts_with("waits for the approval of a person: apr_"), "{task}");
    }
    for approval in &listed {
        let is_ann = approval["arguments"]["to"] == "ann";
        let decision = if is_ann { "approve" } else { "deny" };
        let id = super::id_of(approval);
        assert_eq!(decide(&desk.broker.admin(), &id, decision).await.0, 200);
    }
    assert_eq!(text_of(&outcome(&client, &approved).await["result"]), "sent ann");
    let refused = outcome(&client, &denied).await;
    assert_eq!(approval_of(&refused["result"]).1, "denied");
    let failed = wait_status(&client, &denied, "failed").await;
    assert!(failed["statusMessage"].as_str().unwrap().contains("denied"), "{failed}");
    assert_eq!(desk.sent(), 1);
}

#[tokio::test]
async fn a_repeated_task_request_opens_no_second_approval() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    let request = json!({
        "name": "b__send", "arguments": {"to": "ann"}, "task": {},
        "_meta": {"dev.mcp-broker/idempotency-key": "k"},
    });
    let create = async || {
        let created = client.result("tools/call", request.clone()).await;
        created["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{created}")).to_owned()
    };
    let task = create().await;
    desk.decide("approve").await;
    assert_eq!(text_of(&outcome(&client, &task).await["result"]), "sent ann");
    assert_eq!(create().await, task);
    assert_eq!(super::list(&desk.broker.admin(), "pending").await, Vec::<Value>::new());
    assert_eq!(desk.sent(), 1);
}

#[tokio::test]
async fn only_one_of_two_tasks_with_equal_calls_is_executed() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    let tasks = [start(&client, "ann").await, start(&client, "ann").await];
    assert_ne!(tasks[0], tasks[1]);
    desk.decide("approve").await;
    let mut ended = Vec::new();
    for task in &tasks {
        let answer = outcome(&client, task).await;
        ended.push(answer["result"]["isError"] == true);
    }
    ended.sort_unstable();
    assert_eq!((ended, desk.sent()), (vec![false, true], 1));
}

#[tokio::test]
async fn a_cancelled_task_is_not_executed_by_a_later_approval() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    let task = start(&client, "ann").await;
    desk.pending(1).await;
    client.result("tasks/cancel", json!({"taskId": task})).await;
    desk.decide("approve").await;
    wait_status(&client, &task, "cancelled").await;
    assert_eq!(text_of(&client.call("b__send", to("ann")).await), "sent ann");
    assert_eq!(desk.sent(), 1, "the approval is there for the same call");
}

/// Opens a window for calls of `send`. Returns the id of its approval.
pub(super) async fn open_window(desk: &Desk, client: &TestClient) -> String {
    let call = client.start_call("b__send", to("ann"));
    let id = id_of(&desk.pending(1).await[0]);
    let path = format!("{}/{id}", super::APPROVALS);
    let (status, approval) =
        desk.broker.admin().post(&path, &json!({"decision": "approve", "for": "10m"})).await;
    assert_eq!(status, 200, "{approval}");
    assert_eq!(text_of(&call.result().await), "sent ann");
    id
}

#[tokio::test]
async fn a_task_in_a_window_is_not_executed_after_its_tool_changed() {
    let (desk, done) = Desk::with_one_permit().await;
    let client = desk.client().await;
    let window = open_window(&desk, &client).await;
    let executed = start(&client, "bob").await;
    assert_eq!(text_of(&outcome(&client, &executed).await["result"]), "sent bob");

    // The next task waits for the only permit of the backend.
    crate::tasks::start(&client, "b__read").await;
    desk.backend.wait_for("the call", |seen| seen.calls("read")).await;
    let late = start(&client, "cat").await;
    desk.backend.wait_get_streams(1).await;
    change_definition(&desk.backend).await;
    wait_changed(&client).await;
    done.open();
    let answer = outcome(&client, &late).await;
    assert_eq!(approval_of(&answer["result"]), (window, "expired".to_owned()));
    assert_eq!(desk.sent(), 2);
}

#[tokio::test]
async fn a_task_in_a_window_is_not_sent_to_a_later_backend_of_the_name() {
    let (backend, done) = (bank().await, Gate::new());
    backend.tool("read", done.before(Reply::text("read")));
    let mut spec = backend.spec();
    spec["limits"] = json!({"calls_in_flight": 1});
    let broker = builder().single_process().auth_required().start().await;
    let admin = broker.admin();
    assert_eq!(admin.put_backend("default", "b", &spec).await.0, 201);
    admin.wait_backend_state("default", "b", "ready").await;
    let desk = Desk { key: key(&admin, "ann").await, broker, backend };
    desk.put(&policy_requiring_approval(json!({}))).await;
    let client = desk.client().await;
    open_window(&desk, &client).await;

    // The next task waits for the only permit of the backend.
    crate::tasks::start(&client, "b__read").await;
    desk.backend.wait_for("the call", |seen| seen.calls("read")).await;
    let late = start(&client, "cat").await;
    assert_eq!(admin.delete("/admin/v1/tenants/default/backends/b").await.0, 204);
    assert_eq!(admin.put_backend("default", "b", &spec).await.0, 201);
    admin.wait_backend_state("default", "b", "ready").await;
    let answer = outcome(&client, &late).await;
    assert_eq!(kind(&answer["error"]), "permission_denied", "{answer}");
    assert_eq!(desk.sent(), 1, "only the call that opened the window");
    done.open();
}

#[tokio::test]
async fn an_approved_task_of_a_held_tool_does_not_use_its_approval() {
    let backend = bank().await;
    let mut spec = backend.spec();
    spec["pins"] = json!("hold_changed");
    let broker = builder().single_process().auth_required().backend("default", "b", spec);
    let broker = broker.start().await;
    let desk = Desk { key: key(&broker.admin(), "ann").await, broker, backend };
    desk.put(&policy_requiring_approval(json!({}))).await;
    let client = desk.client().await;
    let task = start(&client, "ann").await;
    desk.pending(1).await;
    desk.backend.wait_get_streams(1).await;
    change_definition(&desk.backend).await;
    eventually("the tool to be held", || async {
        let names = client.tool_names().await;
        if names.is_empty() { Ok(()) } else { Err(names) }
    })
    .await;
    let id = desk.decide("approve").await;
    let answer = outcome(&client, &task).await;
    assert_eq!(kind(&answer["error"]), "tool_held", "{answer}");
    let approved = super::list(&desk.broker.admin(), "approved").await;
    assert_eq!(approved.iter().map(id_of).collect::<Vec<_>>(), [id]);
    assert_eq!(desk.sent(), 0);
}

#[tokio::test]
async fn an_approved_task_waits_for_the_lists_of_its_principal_after_a_crash() {
    let world = World::start(3600).await;
    world.backend.tool("send", |_| async { Reply::text("sent") });
    let mut broker = builder().single_process().start().await;
    let mut spec = world.spec();
    spec["auth"]["catalog_auth"] = json!("per_principal");
    assert_eq!(broker.admin().put_backend("default", "b", &spec).await.0, 201);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    assert_eq!(Browser::new(&broker).connect().await, 200);
    let (status, answer) =
        broker.admin().put(super::POLICY, &policy_requiring_approval(json!({}))).await;
    assert_eq!(status, 201, "{answer}");
    let client = |broker: &TestBroker| Modern::of(broker, "/mcp").with(with_tasks(json!({})));
    let task = stateless_tasks::task(&client(&broker), "b__send", to("ann")).await;
    let id = id_of(&pending(&broker.admin(), 1).await[0]);
    broker.kill().await;
    broker.restart().await;
    // No request of the client reads the lists in the new process.
    assert_eq!(decide(&broker.admin(), &id, "approve").await.0, 200);
    let done = stateless_tasks::wait(&client(&broker), &task, "completed").await;
    assert_eq!(text_of(&done["result"]), "sent", "{done}");
}

async fn broker_on(
    folder: &std::path::Path,
    point: Option<&str>,
    backend: Option<&testkit::FakeBackend>,
) -> TestBroker {
    let url = format!("sqlite:{}", folder.join("broker.db").display());
    let mut builder = builder().auth_required().config(json!({"storage": {"url": url}}));
    if let Some(point) = point {
        builder = builder.env("MCP_BROKER_FAULT", point);
    }
    if let Some(backend) = backend {
        builder = builder.backend("default", "b", backend.spec());
    }
    builder.start().await
}

/// Kills the broker while a task waits (`point` is `None`), or at a point after the approval, and
/// returns the outcome at the next one, with the number of calls.
async fn killed_at(point: Option<&str>) -> (Value, usize) {
    let (folder, backend) = (tempfile::tempdir().unwrap(), bank().await);
    let mut first = broker_on(folder.path(), point, Some(&backend)).await;
    let key = key(&first.admin(), "ann").await;
    first.admin().put(super::POLICY, &policy_requiring_approval(json!({}))).await;
    let client = first.client("/mcp").bearer(&key).connected(json!({})).await;
    let task = start(&client, "ann").await;
    let id = super::id_of(&pending(&first.admin(), 1).await[0]);
    match point {
        None => first.kill().await,
        Some(_) => {
            let (status, answer) = decide(&first.admin(), &id, "approve").await;
            assert_eq!(status, 200, "{answer}");
            assert!(!first.wait_for_exit().await.success());
        }
    }
    assert_eq!(backend.count(|seen| seen.calls("send")), 0);
    let second = broker_on(folder.path(), None, None).await;
    let client = second.client("/mcp").bearer(&key).connected(json!({})).await;
    if point.is_none() {
        assert_eq!(decide(&second.admin(), &id, "approve").await.0, 200);
    }
    let answer = outcome(&client, &task).await;
    (answer, backend.count(|seen| seen.calls("send")))
}

#[tokio::test]
async fn a_broker_killed_while_a_task_waits_resumes_the_task() {
    let (answer, calls) = killed_at(None).await;
    assert_eq!((text_of(&answer["result"]), calls), ("sent ann", 1));
}

#[tokio::test]
async fn a_broker_killed_after_the_use_of_an_approval_executes_its_task_once() {
    let (answer, calls) = killed_at(Some("approval.used:1")).await;
    assert_eq!((text_of(&answer["result"]), calls), ("sent ann", 1));
}

#[tokio::test]
async fn a_broker_killed_after_the_call_may_have_been_sent_does_not_repeat_it() {
    let (answer, calls) = killed_at(Some("task.sent.committed:1")).await;
    assert_eq!(answer["error"]["data"]["kind"], "outcome_unknown", "{answer}");
    assert_eq!(calls, 0);
}
