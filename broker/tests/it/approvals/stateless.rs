//! Calls of 2026-07-28. They are answered with `input_required` and a request state.

use serde_json::{Value, json};
use testkit::eventually;

use super::{Desk, approval_of, change_definition, decide, id_of, list, to, wait_changed};
use crate::{kind, stateless::Modern, text_of};

fn modern(desk: &Desk) -> Modern {
    Modern::of(&desk.broker, "/mcp").bearer(&desk.key)
}

/// Returns the state of a required input, and the id of the approval.
pub(super) fn required(result: &Value) -> (Value, String) {
    assert_eq!(result["resultType"], "input_required", "{result}");
    assert!(result.get("inputRequests").is_none(), "no question to the client: {result}");
    let approval = &result["_meta"]["dev.mcp-broker/approval"];
    assert_eq!(approval["state"], "pending", "{result}");
    (result["requestState"].clone(), id_of(approval))
}

#[tokio::test]
async fn a_client_that_retries_with_the_state_gets_the_result() {
    let desk = Desk::start(json!({})).await;
    let client = modern(&desk);
    let (state, id) = required(&client.call("b__send", to("ann")).await);
    // The client knows now, so the second round waits for a while.
    let second = client.retry("b__send", to("ann"), &state, json!({})).await;
    let (state, again) = required(&second["result"]);
    assert_eq!(again, id);
    let admin = desk.broker.admin();
    let counted = async |outcome: &str| {
        let labels = [("method", "tools/call"), ("outcome", outcome)];
        admin.metric("mcp_requests_total", &labels).await.unwrap_or_default()
    };
    assert_eq!(
        (counted("ok").await, counted("tool_error").await),
        (2.0, 0.0),
        "a wait is not an error"
    );
    let (_, activity) = admin.get("/admin/v1/activity").await;
    for entry in activity["entries"].as_array().unwrap() {
        assert_eq!((&entry["outcome"], &entry["verdict"]), (&json!("ok"), &json!("approve")));
    }
    let retry = client.retry("b__send", to("ann"), &state, json!({}));
    let (answer, decided) = tokio::join!(retry, desk.decide("approve"));
    assert_eq!((text_of(&answer["result"]), decided), ("sent ann", id));
    assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    assert_eq!(desk.sent(), 1);
}

#[tokio::test]
async fn a_request_state_is_valid_once_and_only_for_its_arguments() {
    let desk = Desk::start(json!({})).await;
    let client = modern(&desk);
    let (state, id) = required(&client.call("b__send", to("ann")).await);
    assert_eq!(decide(&desk.broker.admin(), &id, "approve").await.0, 200);
    let changed = client.retry("b__send", to("eve"), &state, json!({})).await;
    assert_eq!(kind(&changed["error"]), "invalid_params", "{changed}");
    let fresh = required(&client.call("b__send", to("eve")).await);
    assert_ne!(fresh.1, id);
    let done = client.retry("b__send", to("ann"), &state, json!({})).await;
    assert_eq!(text_of(&done["result"]), "sent ann");
    let again = client.retry("b__send", to("ann"), &state, json!({})).await;
    assert_ne!(required(&again["result"]).1, id, "the second use asks for another approval");
    assert_eq!(desk.sent(), 1);
}

#[tokio::test]
async fn an_equal_call_without_the_state_joins_and_a_denial_is_a_result() {
    let desk = Desk::start(json!({})).await;
    let client = modern(&desk);
    let (state, id) = required(&client.call("b__send", to("ann")).await);
    assert_eq!(required(&client.call("b__send", to("ann")).await).1, id);
    desk.decide("deny").await;
    // The client comes back for the denied approval, and hears it as often as it does.
    for _ in 0..2 {
        let answer = client.retry("b__send", to("ann"), &state, json!({})).await;
        assert_eq!(approval_of(&answer["result"]), (id.clone(), "denied".to_owned()));
    }
    assert_eq!(list(&desk.broker.admin(), "pending").await, [json!(null); 0]);
    // A call without the state asks for the next one.
    let answer = client.call("b__send", to("ann")).await;
    assert_ne!(required(&answer).1, id);
    let (state, id) = required(&answer);
    let retry = client.retry("b__send", to("ann"), &state, json!({}));
    let denial = async {
        let admin = desk.broker.admin();
        admin.wait_metric("mcp_requests_pending", &[], |pending| pending == 1.0).await;
        desk.decide("deny").await;
    };
    let (answer, ()) = tokio::join!(retry, denial);
    assert_eq!(approval_of(&answer["result"]), (id, "denied".to_owned()));
    assert_eq!(desk.sent(), 0);
}

#[tokio::test]
async fn a_client_that_comes_back_too_late_hears_that_its_approval_expired() {
    let desk = Desk::start(json!({"ttl": "1s"})).await;
    let client = modern(&desk);
    let (state, id) = required(&client.call("b__send", to("ann")).await);
    eventually("the approval to expire", || async {
        let expired = list(&desk.broker.admin(), "expired").await;
        if expired.iter().any(|one| id_of(one) == id) { Ok(()) } else { Err(expired) }
    })
    .await;
    let answer = client.retry("b__send", to("ann"), &state, json!({})).await;
    assert_eq!(approval_of(&answer["result"]), (id.clone(), "expired".to_owned()));
    assert_ne!(required(&client.call("b__send", to("ann")).await).1, id);
    assert_eq!(desk.sent(), 0);
}

#[tokio::test]
async fn a_denial_of_another_definition_does_not_answer_a_call() {
    let desk = Desk::start(json!({})).await;
    let client = modern(&desk);
    let (state, id) = required(&client.call("b__send", to("ann")).await);
    desk.decide("deny").await;
    desk.backend.wait_get_streams(1).await;
    change_definition(&desk.backend).await;
    wait_changed(&desk.client().await).await;
    let answer = client.retry("b__send", to("ann"), &state, json!({})).await;
    assert_ne!(required(&answer["result"]).1, id, "the changed tool needs another approval");
}

#[tokio::test]
async fn a_principal_has_twenty_pending_approvals_at_most() {
    let desk = Desk::start(json!({})).await;
    let client = modern(&desk);
    for at in 0..20 {
        required(&client.call("b__send", to(&at.to_string())).await);
    }
    let asked = json!({"name": "b__send", "arguments": to("20")});
    let refused = client.error("tools/call", asked).await;
    assert_eq!(kind(&refused), "approval_limit", "{refused}");
    required(&client.call("b__send", to("0")).await);
    let first = list(&desk.broker.admin(), "pending").await;
    assert_eq!(first.len(), 20);
    assert_eq!(decide(&desk.broker.admin(), &id_of(&first[0]), "deny").await.0, 200);
    required(&client.call("b__send", to("20")).await);
}

#[tokio::test]
async fn a_client_that_supports_tasks_gets_a_waiting_task() {
    let desk = Desk::start(json!({})).await;
    let tasks = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    let client = modern(&desk).with(tasks);
    let made = client.call("b__send", to("ann")).await;
    assert_eq!(
        (&made["resultType"], &made["status"]),
        (&json!("task"), &json!("working")),
        "{made}"
    );
    let id = id_of(&desk.pending(1).await[0]);
    assert!(made["statusMessage"].as_str().unwrap().contains(&id), "{made}");
    desk.decide("approve").await;
    let task = json!({"taskId": made["taskId"]});
    let done = testkit::eventually("the task to complete", || async {
        let task = client.result("tasks/get", task.clone()).await;
        if task["status"] == "completed" { Ok(task) } else { Err(task) }
    })
    .await;
    assert_eq!(text_of(&done["result"]), "sent ann", "{done}");
    assert!(done.get("statusMessage").is_none(), "{done}");
    assert_eq!(desk.sent(), 1);
}
