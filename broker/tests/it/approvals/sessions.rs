//! Calls in sessions. They wait up to their deadline, and then get the instruction for a retry.

use serde_json::{Value, json};
use testkit::eventually;

use super::{
    Desk, POLICY, approval_of, change_definition, decide, id_of, key, list,
    policy_requiring_approval, tasks::open_window, to, wait_changed,
};
use crate::{kind, text_of};

#[tokio::test]
async fn a_call_waits_and_is_executed_once_when_a_person_approves() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    assert_eq!(client.tool_names().await, ["b__send", "b__read"], "what needs approval is listed");
    assert_eq!(text_of(&client.call("b__read", json!({})).await), "read");
    let call = client.start_call("b__send", to("ann"));
    let approval = desk.pending(1).await.remove(0);
    assert_eq!(
        [&approval["principal"], &approval["backend"], &approval["tool"], &approval["rule"]],
        ["ann", "b", "send", "pay"]
    );
    assert_eq!(approval["arguments"], to("ann"), "the approver sees the arguments");
    for hash in ["arguments_hash", "definition"] {
        assert_eq!(approval[hash].as_str().unwrap().len(), "sha256:".len() + 64, "{approval}");
    }
    assert_eq!(desk.sent(), 0);
    let id = desk.decide("approve").await;
    assert_eq!(text_of(&call.result().await), "sent ann");
    assert_eq!(desk.sent(), 1);
    let used = list(&desk.broker.admin(), "used").await;
    assert_eq!((id_of(&used[0]), used[0]["decided_by"].as_str()), (id, Some("admin")));
    // Another call needs another approval.
    let second = approval_of(&client.call("b__send", to("ann")).await);
    assert_eq!((second.1.as_str(), desk.sent()), ("pending", 1));
}

#[tokio::test]
async fn after_its_deadline_a_call_gets_an_id_and_its_repeat_uses_the_approval() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    let (id, state) = approval_of(&client.call("b__send", to("ann")).await);
    assert_eq!(state, "pending");
    let (again, _) = approval_of(&client.call("b__send", to("ann")).await);
    assert_eq!(again, id, "the same call joins the pending approval");
    desk.decide("approve").await;
    // Another order of members and other white space are the same arguments.
    let body = r#"{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"b__send","arguments":{ "amount" : 9007199254740993, "to":"ann"}}}"#;
    assert_eq!(text_of(&client.start_raw(json!(77), body).result().await), "sent ann");
    assert_eq!(desk.sent(), 1);
}

#[tokio::test]
async fn a_call_that_the_breaker_refuses_leaves_its_approval_unused() {
    let desk = Desk::start(json!({})).await;
    let admin = desk.broker.admin();
    let hold = async |state: &str| {
        let path = "/admin/v1/tenants/default/backends/b/breaker";
        let (status, answer) = admin.post(path, &json!({"state": state})).await;
        assert_eq!(status, 200, "{answer}");
    };
    let client = desk.client().await;
    let call = client.start_call("b__send", to("ann"));
    desk.pending(1).await;
    hold("open").await;
    let id = desk.decide("approve").await;
    let refused = call.error().await;
    assert_eq!((kind(&refused), desk.sent()), ("backend_unavailable", 0), "{refused}");
    assert!(list(&admin, "used").await.is_empty());
    hold("closed").await;
    assert_eq!(text_of(&client.call("b__send", to("ann")).await), "sent ann");
    assert_eq!((id_of(&list(&admin, "used").await[0]), desk.sent()), (id, 1));
}

#[tokio::test]
async fn an_approval_does_not_cover_other_arguments_or_another_principal() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    let (approved, _) = approval_of(&client.call("b__send", to("ann")).await);
    desk.decide("approve").await;
    let other = json!({"to": "ann", "amount": 9_007_199_254_740_992_u64});
    let (id, state) = approval_of(&client.call("b__send", other).await);
    assert!(id != approved && state == "pending");
    let bob = key(&desk.broker.admin(), "bob").await;
    let bob = desk.broker.client("/mcp").bearer(&bob).connected(json!({})).await;
    let (id, state) = approval_of(&bob.call("b__send", to("ann")).await);
    assert!(id != approved && state == "pending");
    assert_eq!(desk.sent(), 0);
    assert_eq!(text_of(&client.call("b__send", to("ann")).await), "sent ann");
}

#[tokio::test]
async fn a_denied_call_is_not_executed_and_its_caller_gets_the_reason() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    let call = client.start_call("b__send", to("ann"));
    let id = id_of(&desk.pending(1).await[0]);
    let body = json!({"decision": "deny", "reason": "not this month"});
    let path = format!("{}/{id}", super::APPROVALS);
    assert_eq!(desk.broker.admin().post(&path, &body).await.0, 200);
    let result = call.result().await;
    assert_eq!(approval_of(&result), (id.clone(), "denied".to_owned()));
    assert!(text_of(&result).contains("not this month"), "{result}");
    let (next, _) = approval_of(&client.call("b__send", to("ann")).await);
    assert_ne!(next, id, "the next call asks again");
    assert_eq!(desk.sent(), 0);
}

#[tokio::test]
async fn an_approval_expires_before_and_after_the_decision() {
    let desk = Desk::start(json!({"ttl": "1s"})).await;
    let client = desk.client().await;
    let (id, state) = approval_of(&client.call("b__send", to("ann")).await);
    assert_eq!(state, "expired", "the call ends with its approval, before its own deadline");
    let (status, answer) = decide(&desk.broker.admin(), &id, "approve").await;
    assert_eq!(status, 409, "{answer}");
    // What is approved while no call waits expires too.
    let abandoned = client.start_call("b__send", to("bob"));
    let second = id_of(&desk.pending(1).await[0]);
    drop(abandoned);
    client.delete_session().await;
    assert_eq!(decide(&desk.broker.admin(), &second, "approve").await.0, 200);
    eventually("the approval to expire", || async {
        let expired = list(&desk.broker.admin(), "expired").await;
        let ids: Vec<String> = expired.iter().map(id_of).collect();
        if ids.contains(&second) { Ok(()) } else { Err(ids) }
    })
    .await;
    let client = desk.client().await;
    let (third, _) = approval_of(&client.call("b__send", to("bob")).await);
    assert!(third != second && desk.sent() == 0);
}

#[tokio::test]
async fn one_of_several_equal_concurrent_calls_uses_the_approval() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    let calls: Vec<_> = (0..8).map(|_| client.start_call("b__send", to("ann"))).collect();
    desk.decide("approve").await;
    let mut states = Vec::new();
    for call in calls {
        let result = call.result().await;
        states.push(match result["isError"] == true {
            true => approval_of(&result).1,
            false => text_of(&result).to_owned(),
        });
    }
    states.sort_unstable();
    // A call that came after the use asks for the next approval.
    let others = states.iter().filter(|state| ["used", "pending"].contains(&state.as_str()));
    assert_eq!((desk.sent(), others.count()), (1, 7), "{states:?}");
    assert!(states.contains(&"sent ann".to_owned()));
}

#[tokio::test]
async fn an_approval_window_permits_further_calls_of_the_principal() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    let call = client.start_call("b__send", to("ann"));
    let id = id_of(&desk.pending(1).await[0]);
    let path = format!("{}/{id}", super::APPROVALS);
    let body = json!({"decision": "approve", "for": "10m"});
    let (status, approval) = desk.broker.admin().post(&path, &body).await;
    assert_eq!(status, 200, "{approval}");
    assert!(approval["window_until"].is_string(), "{approval}");
    assert_eq!(text_of(&call.result().await), "sent ann");
    for name in ["bob", "cat"] {
        assert_eq!(text_of(&client.call("b__send", to(name)).await), format!("sent {name}"));
    }
    let bob = key(&desk.broker.admin(), "bob").await;
    let bob = desk.broker.client("/mcp").bearer(&bob).connected(json!({})).await;
    assert_eq!(approval_of(&bob.call("b__send", to("ann")).await).1, "pending");
    assert_eq!(desk.sent(), 3);
    // The log names the approval by which each call passed.
    let calls = eventually("the calls in the audit log", || async {
        let (_, log) = desk.broker.admin().get("/admin/v1/audit?kind=call&limit=1000").await;
        let records = log["records"].as_array().unwrap();
        let passed = records.iter().filter(|record| record["approval"] == id.as_str()).count();
        if passed == 3 { Ok(log.to_string()) } else { Err(log) }
    })
    .await;
    assert!(!calls.contains("9007199254740993"), "the audit log has hashes only: {calls}");
}

#[tokio::test]
async fn a_call_in_a_window_is_not_executed_after_its_tool_changed() {
    let (desk, done) = Desk::with_one_permit().await;
    let client = desk.client().await;
    let window = open_window(&desk, &client).await;
    let first = client.start_call("b__read", json!({}));
    desk.backend.wait_for("the call", |seen| seen.calls("read")).await;
    let late = client.start_call("b__send", to("cat"));
    let waits = |shown: &Value| shown["calls_queued"] == 1;
    desk.broker.admin().wait_backend("default", "b", "the call to wait", waits).await;
    desk.backend.wait_get_streams(1).await;
    change_definition(&desk.backend).await;
    wait_changed(&client).await;
    done.open();
    first.result().await;
    assert_eq!(approval_of(&late.result().await), (window, "expired".to_owned()));
    assert_eq!(desk.sent(), 1, "only the call that opened the window");
}

#[tokio::test]
async fn an_approval_does_not_cover_a_changed_tool_definition() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    let (id, _) = approval_of(&client.call("b__send", to("ann")).await);
    desk.decide("approve").await;
    change_definition(&desk.backend).await;
    let changed = |listed: &Value| listed.to_string().contains("twice");
    eventually("the changed definition", || async {
        let listed = client.result("tools/list", json!({})).await;
        if changed(&listed) { Ok(()) } else { Err(listed) }
    })
    .await;
    let (next, state) = approval_of(&client.call("b__send", to("ann")).await);
    assert!(next != id && state == "pending" && desk.sent() == 0);
}

#[tokio::test]
async fn a_policy_that_denies_the_call_meanwhile_wins_over_the_approval() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    let call = client.start_call("b__send", to("ann"));
    desk.pending(1).await;
    let deny = json!({"id": "no", "effect": "deny", "objects": {"tools": ["b/send"]}});
    let mut policy = policy_requiring_approval(json!({}));
    policy["rules"].as_array_mut().unwrap().push(deny);
    desk.put(&policy).await;
    desk.decide("approve").await;
    assert_eq!(kind(&call.error().await), "tool_not_found");
    assert_eq!(desk.sent(), 0);
    let (status, _) = desk.broker.admin().delete(POLICY).await;
    assert_eq!(status, 204);
    assert_eq!(text_of(&client.call("b__send", to("ann")).await), "sent ann");
}

#[tokio::test]
async fn a_call_with_too_long_arguments_is_refused_at_its_limit() {
    let desk = Desk::start(json!({})).await;
    let client = desk.client().await;
    let of = |bytes: usize| json!({"to": "x".repeat(bytes - r#"{"to":""}"#.len())});
    let longest = client.start_call("b__send", of(64 * 1024));
    desk.decide("approve").await;
    assert!(text_of(&longest.result().await).starts_with("sent x"));
    let asked = json!({"name": "b__send", "arguments": of(64 * 1024 + 1)});
    let refused = client.error("tools/call", asked).await;
    assert_eq!(
        (kind(&refused), &refused["data"]["maxSize"]),
        ("message_too_large", &json!(65_536))
    );
}
