//! Who decides, what the decision is recorded as, and what metrics and commands show of it.

use serde_json::{Value, json};
use testkit::{AdminClient, AuthorizationServer, eventually};

use super::{
    APPROVALS, Desk, POLICY, approval_of, bank, change_definition, decide, id_of, key, pending,
    policy_requiring_approval, to,
};
use crate::{builder, text_of, tokens::guarded};

async fn operator(admin: &AdminClient, body: Value) -> AdminClient {
    let (status, made) = admin.post("/admin/v1/operators", &body).await;
    assert_eq!(status, 201, "{made}");
    admin.with_token(made["token"].as_str())
}

#[tokio::test]
async fn the_first_decision_counts_and_is_recorded_with_hashes_only() {
    let desk = Desk::start(json!({})).await;
    let (client, admin) = (desk.client().await, desk.broker.admin());
    let call = client.start_call("b__send", to("secret-canary"));
    let id = id_of(&desk.pending(1).await[0]);
    let path = format!("{APPROVALS}/{id}");
    let olga = operator(&admin, json!({"name": "olga", "role": "operator"})).await;
    let body = json!({"decision": "approve", "reason": "fine", "for": "90s"});
    let (status, approval) = olga.post(&path, &body).await;
    assert_eq!(status, 200, "{approval}");
    // The call waits, so it may use the approval before the answer is written.
    let is_approved = |state: &Value| *state == "approved" || *state == "used";
    assert!(is_approved(&approval["state"]), "{approval}");
    assert_eq!(text_of(&call.result().await), "sent secret-canary");
    for decision in ["approve", "deny"] {
        let (status, answer) = decide(&admin, &id, decision).await;
        assert_eq!(status, 409, "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains("decided by olga"), "{answer}");
    }
    let (_, log) = admin.get("/admin/v1/audit?kind=admin&tenant=default&limit=1000").await;
    let action = "POST /admin/v1/tenants/{tenant}/approvals/{id}";
    let recorded: Vec<&Value> = log["records"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|record| record["action"] == action)
        .collect();
    let outcomes: Vec<&str> =
        recorded.iter().map(|record| record["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["ok", "refused", "refused"], "{recorded:?}");
    let record = recorded[0];
    assert_eq!(record["principal"], "olga");
    assert_eq!(record["before"]["state"], "pending");
    assert!(is_approved(&record["after"]["state"]), "{record}");
    assert_eq!(
        (&record["after"]["for"], &record["after"]["reason"]),
        (&json!("90s"), &json!("fine"))
    );
    assert_eq!(record["after"]["arguments_hash"], approval["arguments_hash"]);
    assert!(!log.to_string().contains("canary"), "{log}");
    admin
        .wait_metric("mcp_approval_transitions_total", &[("to", "used")], |count| count == 1.0)
        .await;
    let waited = [("decision", "approved")];
    admin.wait_metric("mcp_approval_wait_seconds_count", &waited, |count| count == 1.0).await;
    let decisions = [("verdict", "approve"), ("mode", "enforce")];
    let counted = admin.metric("mcp_policy_decisions_total", &decisions).await;
    assert!(counted.is_some_and(|count| count >= 1.0), "{counted:?}");
}

#[tokio::test]
async fn faults_of_a_decision_are_named_and_another_tenants_approval_does_not_exist() {
    let desk = Desk::start(json!({})).await;
    let (client, admin) = (desk.client().await, desk.broker.admin());
    let (id, _) = approval_of(&client.call("b__send", to("ann")).await);
    let path = format!("{APPROVALS}/{id}");
    for (body, field) in [
        (json!({}), "decision"),
        (json!({"decision": "maybe"}), "decision"),
        (json!({"decision": "approve", "for": "25h"}), "for"),
        (json!({"decision": "approve", "for": "soon"}), "for"),
        (json!({"decision": "deny", "for": "10m"}), "for"),
        (json!({"decision": "deny", "reason": "a\nb"}), "reason"),
        (json!({"decision": "deny", "reason": "x".repeat(1_025)}), "reason"),
        (json!({"decision": "deny", "why": 1}), "why"),
    ] {
        let (status, answer) = admin.post(&path, &body).await;
        assert_eq!(status, 400, "{body} {answer}");
        assert!(answer.to_string().contains(field), "{body} {answer}");
    }
    admin.put_tenant("acme", json!({})).await;
    let foreign = format!("/admin/v1/tenants/acme/approvals/{id}");
    assert_eq!(admin.get(&foreign).await.0, 404);
    assert_eq!(admin.post(&foreign, &json!({"decision": "approve"})).await.0, 404);
    assert_eq!(admin.get(&format!("{APPROVALS}?state=open")).await.0, 400);
    let (_, shown) = admin.get(&path).await;
    assert_eq!(shown["state"], "pending");
    assert_eq!(shown["arguments_text"], to("ann").to_string(), "the very text: {shown}");
}

#[tokio::test]
async fn roles_and_backends_of_operators_limit_their_view_and_decisions() {
    let desk = Desk::start(json!({"by": {"roles": ["tenant_admin", "backend_owner"]}, "objects": {"tools": ["*/send"]}})).await;
    let spec = desk.backend.spec();
    desk.broker.admin().put_ready_backend("default", "other", &spec).await;
    let (client, admin) = (desk.client().await, desk.broker.admin());
    let (id, _) = approval_of(&client.call("b__send", to("ann")).await);
    let path = format!("{APPROVALS}/{id}");
    let approve = json!({"decision": "approve"});
    let viewer = operator(&admin, json!({"name": "v", "role": "viewer"})).await;
    let (status, shown) = viewer.get(&path).await;
    assert!(status == 200 && shown.get("arguments").is_none(), "{shown}");
    assert_eq!(viewer.post(&path, &approve).await.0, 403);
    let other = operator(&admin, json!({"name": "o", "role": "operator"})).await;
    let (status, answer) = other.post(&path, &approve).await;
    assert!(status == 403 && answer["detail"].as_str().unwrap().contains("`by`"), "{answer}");
    let stranger = json!({"name": "s", "role": "backend_owner", "backends": ["default/other"]});
    let stranger = operator(&admin, stranger).await;
    assert_eq!(stranger.get(&path).await.0, 404);
    assert_eq!(stranger.get(APPROVALS).await.1["approvals"], json!([]));
    let first_page = format!("{APPROVALS}?limit=1");
    assert_eq!(stranger.get(&first_page).await.1, json!({"approvals": []}));
    let overview = stranger.get("/admin/v1/overview").await.1;
    assert_eq!(overview["waiting"]["tenants"], json!([]), "{overview}");
    assert_eq!((&overview["waiting"]["approvals"], &overview["sessions"]), (&json!(0), &json!(0)));
    assert_eq!(viewer.get("/admin/v1/overview").await.1["waiting"]["approvals"], 1);
    assert_eq!(stranger.post(&path, &approve).await.0, 404);
    let owner = json!({"name": "w", "role": "backend_owner", "backends": ["default/b"]});
    let owner = operator(&admin, owner).await;
    assert_eq!(owner.get(APPROVALS).await.1["approvals"][0]["arguments"], to("ann"));
    approval_of(&client.call("other__send", to("bob")).await);
    let page = owner.get(&first_page).await.1;
    assert_eq!(
        (page["approvals"][0]["id"].as_str(), page["approvals"].as_array().map(Vec::len)),
        (Some(&*id), Some(1))
    );
    let next = page["next"].as_str().unwrap();
    assert!(next.ends_with(&*id), "the position of an approval that the operator sees: {next}");
    assert_eq!(owner.get(&format!("{first_page}&after={next}")).await.1, json!({"approvals": []}));
    assert_eq!(owner.post(&path, &approve).await.0, 200);
    assert_eq!(text_of(&client.call("b__send", to("ann")).await), "sent ann");
}

#[tokio::test]
async fn with_four_eyes_the_caller_cannot_decide_with_any_token() {
    let server = AuthorizationServer::start().await;
    let audience = "https://broker.example/operators";
    let mapping = json!({"admin": {"claim": "roles", "audiences": [audience], "map": [{"value": "sre", "role": "operator"}]}});
    let backend = bank().await;
    let broker = guarded(&server, &backend, mapping).start().await;
    let admin = broker.admin();
    let sign_in = |name: &str| {
        let claims = json!({"aud": audience, "roles": ["sre", "finance"]});
        admin.with_token(Some(&server.token_with(name, claims)))
    };
    let (status, answer) = admin
        .put(
            "/admin/v1/tenants/acme/policy",
            &policy_requiring_approval(json!({"by": {"groups": ["finance"]}})),
        )
        .await;
    assert_eq!(status, 201, "{answer}");
    let client = broker.client("/mcp").bearer(&server.token("ann")).connected(json!({})).await;
    let call = client.start_call("b__send", to("ann"));
    let approvals = "/admin/v1/tenants/acme/approvals";
    let id = eventually("the approval", || async {
        let (_, answer) = admin.get(approvals).await;
        answer["approvals"][0]["id"].as_str().map(str::to_owned).ok_or(answer)
    })
    .await;
    let (path, approve) = (format!("{approvals}/{id}"), json!({"decision": "approve"}));
    let (status, answer) = sign_in("ann").post(&path, &approve).await;
    assert!(
        status == 403 && answer["detail"].as_str().unwrap().contains("another person"),
        "{answer}"
    );
    let (status, answer) = admin.post(&path, &approve).await;
    assert_eq!(status, 403, "the admin token is in no group: {answer}");
    assert_eq!(sign_in("bob").post(&path, &approve).await.0, 200);
    assert_eq!(text_of(&call.result().await), "sent ann");
}

#[tokio::test]
async fn the_caller_may_decide_only_without_four_eyes() {
    let desk = Desk::start(json!({})).await;
    let (client, admin) = (desk.client().await, desk.broker.admin());
    let ann = operator(&admin, json!({"name": "ann", "role": "operator"})).await;
    let (id, _) = approval_of(&client.call("b__send", to("ann")).await);
    assert_eq!(decide(&ann, &id, "approve").await.0, 403);
    assert_eq!(decide(&ann, &id, "deny").await.0, 403);
    desk.decide("deny").await;
    desk.put(&policy_requiring_approval(json!({"four_eyes": false}))).await;
    let (id, _) = approval_of(&client.call("b__send", to("ann")).await);
    assert_eq!(decide(&ann, &id, "approve").await.0, 200);
}

#[tokio::test]
async fn a_check_and_a_shadow_rule_report_an_approval_but_create_none() {
    let desk = Desk::start(json!({"mode": "shadow"})).await;
    let (client, admin) = (desk.client().await, desk.broker.admin());
    assert_eq!(text_of(&client.call("b__send", to("ann")).await), "sent ann");
    let check = json!({"as": {"principal": "ann"}, "method": "tools/call", "object": "b/send"});
    let check_path = format!("{POLICY}/check");
    let (_, answer) = admin.post(&check_path, &check).await;
    assert_eq!(
        (&answer["verdict"], &answer["shadow_verdict"]),
        (&json!("allow"), &json!("approve"))
    );
    let shadow = [("verdict", "approve"), ("mode", "shadow")];
    admin.wait_metric("mcp_policy_decisions_total", &shadow, |count| count >= 1.0).await;
    let (_, report) = admin.get(&format!("{POLICY}/report?since=1h")).await;
    assert_eq!(report["decisions"][0]["verdict"], "approve", "{report}");
    desk.put(&policy_requiring_approval(json!({}))).await;
    let (_, answer) = admin.post(&check_path, &check).await;
    assert_eq!((&answer["verdict"], &answer["rule"]), (&json!("approve"), &json!("pay")));
    assert_eq!(super::list(&admin, "pending").await, Vec::<Value>::new());
}

#[tokio::test]
async fn approvals_are_decided_from_the_command_line() {
    let by = json!({"by": {"roles": ["operator", "admin"], "groups": ["finance"]}});
    let desk = Desk::patient(builder().admin_token("operator-of-tests"), by).await;
    let client = desk.client().await;
    let call = client.start_call("b__send", to("ann"));
    let id = id_of(&desk.pending(1).await[0]);
    let cli = async |arguments: &[&str]| {
        let finished = desk.broker.cli(arguments).await;
        assert_eq!(finished.code, Some(0), "{arguments:?}: {finished:?}");
        finished.stdout
    };
    let listed = cli(&["approval", "list", "--state", "pending"]).await;
    assert!(listed.contains(&id) && listed.contains("send"), "{listed}");
    let shown = cli(&["approval", "show", &id]).await;
    assert!(shown.contains(&to("ann").to_string()), "the very text: {shown}");
    for (fact, value) in [
        ("tool changed", "no"),
        ("four eyes", "yes"),
        ("by roles", "operator admin"),
        ("by groups", "finance"),
    ] {
        let line = shown.lines().find_map(|line| line.strip_prefix(fact));
        assert_eq!(line.map(str::trim), Some(value), "{fact}: {shown}");
    }
    let decided = cli(&["approval", "approve", &id, "--for", "1m", "--reason", "fine"]).await;
    // The call waits for the decision, and may use it before it is shown.
    let is_approved = ["approved", "used"].iter().any(|state| decided.contains(state));
    assert!(is_approved && decided.contains("window until"), "{decided}");
    assert_eq!(text_of(&call.result().await), "sent ann");
    let bob = key(&desk.broker.admin(), "bob").await;
    let bob = desk.broker.client("/mcp").bearer(&bob).connected(json!({})).await;
    let call = bob.start_call("b__send", to("bob"));
    let id = id_of(&pending(&desk.broker.admin(), 1).await[0]);
    cli(&["approval", "deny", &id, "--reason", "no"]).await;
    assert_eq!(approval_of(&call.result().await).1, "denied");
}

#[tokio::test]
async fn the_command_line_shows_hidden_characters_and_a_changed_tool() {
    let desk = Desk::on(builder().admin_token("operator-of-tests"), json!({})).await;
    let arguments = to("b\u{200b}o\u{202e}b\u{e0041}");
    let (id, _) = approval_of(&desk.client().await.call("b__send", arguments).await);
    change_definition(&desk.backend).await;
    let shown = eventually("the changed tool", || async {
        let shown = desk.broker.cli(&["approval", "show", &id]).await.stdout;
        let changed = shown.lines().find(|line| line.starts_with("tool changed"));
        if changed.is_some_and(|line| line.ends_with("yes")) { Ok(shown) } else { Err(shown) }
    })
    .await;
    assert!(shown.contains("\"b<U+200B>o<U+202E>b<U+E0041>\""), "{shown}");
}
