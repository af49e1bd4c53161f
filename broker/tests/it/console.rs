//! What the console asks of the admin API, through the binary: trials of tools as a chosen subject,
//! recent activity, the catalog, and logins on several replicas. The pages themselves are tested in
//! a browser (`peers/console.rs`).

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use testkit::{AdminClient, FakeBackend, Reply, eventually};

use crate::{
    builder,
    stateless::{VERSION, meta},
};

const TRY: &str = "/admin/v1/tenants/default/try";

/// A trial as the console's page makes one.
struct Trial<'a> {
    admin: &'a AdminClient,
    path: String,
    subject: String,
    session: Option<String>,
}

impl<'a> Trial<'a> {
    fn new(admin: &'a AdminClient, subject: Value) -> Self {
        let subject = URL_SAFE_NO_PAD.encode(subject.to_string());
        Self { admin, path: TRY.to_owned(), subject, session: None }
    }

    async fn post(&mut self, message: Value) -> (u16, Value) {
        let mut headers = vec![
            ("accept", "application/json, text/event-stream"),
            ("mcp-broker-subject", self.subject.as_str()),
        ];
        if let Some(session) = &self.session {
            headers.push(("mcp-session-id", session));
            headers.push(("mcp-protocol-version", "2025-11-25"));
        }
        let response = self.admin.send_with("POST", &self.path, &headers, Some(&message)).await;
        let session = response.header("mcp-session-id").map(str::to_owned);
        let status = response.status;
        let text = response.text().await;
        self.session = session.or(self.session.take());
        let data = text.lines().rev().find_map(|line| line.strip_prefix("data: "));
        (status, serde_json::from_str(data.unwrap_or(&text)).unwrap_or_default())
    }

    async fn open(&mut self) {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}});
        let opened = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        let (status, answer) = self.post(opened).await;
        assert_eq!(status, 200, "{answer}");
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(self.post(ready).await.0, 202);
    }

    async fn call(&mut self, tool: &str) -> Value {
        let params = json!({"name": tool, "arguments": {"text": "hello"}});
        let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
        self.post(call).await.1
    }
}

async fn deny_guests(admin: &AdminClient) {
    let policy = json!({"rules": [{
        "id": "no-guests", "effect": "deny", "subjects": {"groups": ["guests"]},
        "objects": {"tools": ["b/echo"]},
    }]});
    let (status, answer) = admin.put("/admin/v1/tenants/default/policy", &policy).await;
    assert_eq!(status, 201, "{answer}");
}

#[tokio::test]
async fn a_trial_is_handled_like_a_client_call_with_the_policy_of_its_subject() {
    let backend = FakeBackend::echo().await;
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let admin = broker.admin();
    admin.wait_backend_state("default", "b", "ready").await;
    deny_guests(&admin).await;
    let mut ann = Trial::new(&admin, json!({"principal": "ann", "groups": ["staff"]}));
    ann.open().await;
    let answer = ann.call("b__echo").await;
    assert_eq!(answer["result"]["content"][0]["type"], "text", "{answer}");
    let mut guest = Trial::new(&admin, json!({"principal": "bob", "groups": ["guests"]}));
    guest.open().await;
    let refused = guest.call("b__echo").await;
    let absent = guest.call("b__none").await;
    assert_eq!(refused["error"]["code"], absent["error"]["code"], "{refused}");
    assert_eq!(backend.count(|request| request.calls("echo")), 1, "the backend saw one call");

    // Every record has the operator's name, and the session does not belong to the subject.
    let sessions = admin.sessions("default").await;
    let principals: Vec<&str> =
        sessions.iter().map(|session| session["principal"].as_str().unwrap()).collect();
    assert_eq!(principals, ["operator admin as ann", "operator admin as bob"]);
    let (_, log) = admin.get("/admin/v1/audit?kind=admin").await;
    let tried = log["records"].as_array().unwrap().iter().filter(|record| {
        record["action"] == "POST /admin/v1/tenants/{tenant}/try" && record["principal"] == "admin"
    });
    assert!(tried.count() >= 4, "{log}");
    let (_, activity) = admin.get("/admin/v1/activity").await;
    let entry = &activity["entries"][0];
    assert_eq!(entry["principal"], "operator admin as bob", "{activity}");
    assert_eq!((&entry["verdict"], &entry["rule"]), (&json!("deny"), &json!("no-guests")));
    assert!(!activity.to_string().contains("hello"), "no arguments: {activity}");
}

#[tokio::test]
async fn the_activity_of_an_earlier_tenant_is_not_shown_as_that_of_a_later_one() {
    let broker = builder().single_process().auth_required().start().await;
    let admin = broker.admin();
    admin.put_tenant("acme", json!({})).await;
    let key = admin.create_key("acme").await;
    let client = broker.client("/mcp").bearer(&key).connected(json!({})).await;
    let refused = client.request("tools/call", json!({"name": "b__pay", "arguments": {}})).await;
    assert!(refused["error"].is_object(), "{refused}");
    let entries = async |admin: &AdminClient| -> Vec<Value> {
        let (status, activity) = admin.get("/admin/v1/activity").await;
        assert_eq!(status, 200, "{activity}");
        activity["entries"].as_array().unwrap().clone()
    };
    eventually("the refusal in the activity", || async {
        let entries = entries(&admin).await;
        let is_there = entries.iter().any(|entry| entry["tenant"] == "acme");
        if is_there { Ok(()) } else { Err(entries) }
    })
    .await;
    let tenant = "/admin/v1/tenants/acme";
    for is_later in [false, true] {
        let body = json!({"name": "vera", "role": "viewer", "tenants": ["acme"]});
        let (status, operator) = admin.post("/admin/v1/operators", &body).await;
        assert_eq!(status, 201, "{operator}");
        let seen = entries(&admin.with_token(operator["token"].as_str())).await;
        assert_eq!(seen.is_empty(), is_later, "{seen:?}");
        let id = operator["id"].as_str().unwrap();
        assert_eq!(admin.delete(&format!("/admin/v1/operators/{id}")).await.0, 204);
        assert_eq!(admin.delete(tenant).await.0, 204);
        admin.put_tenant("acme", json!({})).await;
    }
    assert!(!entries(&admin).await.is_empty(), "an operator of all tenants sees them");
}

#[tokio::test]
async fn the_trials_of_a_revoked_operator_end_and_others_continue() {
    let backend = FakeBackend::echo().await;
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let admin = broker.admin();
    admin.wait_backend_state("default", "b", "ready").await;
    let mut made = Vec::new();
    for name in ["ann", "anna"] {
        let body = json!({"name": name, "role": "tenant_admin", "tenants": ["default"]});
        let (status, operator) = admin.post("/admin/v1/operators", &body).await;
        assert_eq!(status, 201, "{operator}");
        made.push(operator);
    }
    for operator in &made {
        let admin = admin.with_token(operator["token"].as_str());
        let mut trial = Trial::new(&admin, json!({"principal": "bob"}));
        trial.open().await;
    }
    admin.wait_sessions("default", 2).await;
    let id = made[0]["id"].as_str().unwrap();
    assert_eq!(admin.delete(&format!("/admin/v1/operators/{id}")).await.0, 204);
    admin.wait_sessions("default", 1).await;
    let sessions = admin.sessions("default").await;
    assert_eq!(sessions[0]["principal"], "operator anna as bob");
}

#[tokio::test]
async fn a_trial_has_no_access_to_sessions_of_its_subject() {
    let backend = FakeBackend::echo().await;
    backend.sessions();
    let broker = builder()
        .single_process()
        .auth_required()
        .config(json!({"audit": {"calls": "metadata"}}))
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let admin = broker.admin();
    admin.wait_backend_state("default", "b", "ready").await;
    let key = json!({"principal": "ann"});
    let (_, key) = admin.post("/admin/v1/tenants/default/keys", &key).await;
    let (id, key) = (key["id"].as_str().unwrap(), key["key"].as_str().unwrap());
    let client = broker.client("/mcp").bearer(key).connected(json!({})).await;
    let mut trial = Trial::new(&admin, json!({"principal": "ann", "key": id}));
    trial.session = client.session().map(|session| session.to_string());
    let (status, answer) =
        trial.post(json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})).await;
    assert_eq!(status, 404, "her session is unknown to it: {answer}");
    // Records of a trial name the operator, and not the key of the subject.
    let mut trial = Trial::new(&admin, json!({"principal": "ann", "key": id}));
    trial.open().await;
    assert!(trial.call("b__echo").await["result"].is_object());
    let record = eventually("the record of the call", || async {
        let (_, log) = admin.get("/admin/v1/audit?tenant=default&kind=call").await;
        let records = log["records"].as_array().cloned().unwrap_or_default();
        let of_trial =
            records.into_iter().find(|record| record["principal"] == "operator admin as ann");
        of_trial.ok_or(log)
    })
    .await;
    assert_eq!(record.get("api_key"), None, "{record}");
    // No key can be made for the principal of a trial either.
    let body = json!({"principal": "Operator admin as ann"});
    let (status, answer) = admin.post("/admin/v1/tenants/default/keys", &body).await;
    assert_eq!((status, &answer["field"]), (422, &json!("principal")), "{answer}");
}

#[tokio::test]
async fn a_trial_sends_messages_of_2026_07_28() {
    let backend = FakeBackend::start().await;
    backend.tool("paint", |_| async { Reply::text("painted") });
    let colour = json!({"type": "string", "x-mcp-header": "Colour"});
    let schema = json!({"type": "object", "properties": {"colour": colour}});
    backend.list("tools", vec![json!({"name": "paint", "inputSchema": schema})]);
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let admin = broker.admin();
    admin.wait_backend_state("default", "b", "ready").await;
    let subject = URL_SAFE_NO_PAD.encode(json!({"principal": "ann"}).to_string());
    for (method, name, param, params, expected) in [
        ("tools/list", None, None, json!({}), 200),
        (
            "tools/call",
            Some("b__paint"),
            Some("red"),
            json!({"name": "b__paint", "arguments": {"colour": "red"}}),
            200,
        ),
        (
            "tools/call",
            Some("b__paint"),
            Some("blue"),
            json!({"name": "b__paint", "arguments": {"colour": "red"}}),
            400,
        ),
    ] {
        let mut params = params;
        params["_meta"] = meta(json!({}));
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let mut headers = vec![
            ("accept", "application/json, text/event-stream"),
            ("mcp-broker-subject", subject.as_str()),
            ("mcp-protocol-version", VERSION),
            ("mcp-method", method),
        ];
        headers.extend(name.map(|name| ("mcp-name", name)));
        headers.extend(param.map(|param| ("mcp-param-colour", param)));
        let response = admin.send_with("POST", TRY, &headers, Some(&message)).await;
        let (status, text) = (response.status, response.text().await);
        assert_eq!(status, expected, "{method} {param:?}: {text}");
        assert!(expected != 200 || text.contains("\"result\""), "{text}");
    }
    assert_eq!(backend.count(|request| request.calls("paint")), 1);
}

#[tokio::test]
async fn the_openapi_document_declares_each_answer_of_a_trial() {
    let backend = FakeBackend::with_tool("slow", |call| async move {
        call.progress(1.0, 2.0).await;
        Reply::text("done")
    })
    .await;
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let admin = broker.admin();
    admin.wait_backend_state("default", "b", "ready").await;
    let (_, document) = admin.get("/admin/v1/openapi.json").await;
    let declared = &document["paths"]["/admin/v1/tenants/{tenant}/try"]["post"]["responses"];
    let mut trial = Trial::new(&admin, json!({"principal": "ann"}));
    trial.open().await;
    let session = trial.session.clone().unwrap();
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let ping = json!({"jsonrpc": "2.0", "id": 3, "method": "ping"});
    let params = json!({"name": "b__slow", "_meta": {"progressToken": 1}});
    let call = json!({"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": params});
    for (message, expected) in [
        (ready, (202, None)),
        (ping, (200, Some("application/json"))),
        (call, (200, Some("text/event-stream"))),
    ] {
        let headers = [
            ("accept", "application/json, text/event-stream"),
            ("mcp-broker-subject", trial.subject.as_str()),
            ("mcp-session-id", session.as_str()),
            ("mcp-protocol-version", "2025-11-25"),
        ];
        let response = admin.send_with("POST", TRY, &headers, Some(&message)).await;
        assert_eq!((response.status, response.header("content-type")), expected, "{message}");
        let answer = &declared[expected.0.to_string()];
        assert!(answer.is_object(), "{declared}");
        assert!(expected.1.is_none_or(|kind| answer["content"].get(kind).is_some()), "{answer}");
    }
}

#[tokio::test]
async fn a_trial_needs_its_permission_and_its_tenant() {
    let broker = builder().single_process().tenant("acme").tenant("zoo").start().await;
    let admin = broker.admin();
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    for (role, tenant, wanted) in [
        ("viewer", "acme", 403),
        ("operator", "acme", 403),
        ("auditor", "acme", 403),
        ("tenant_admin", "zoo", 404),
    ] {
        let name = format!("{role}-{tenant}");
        let made = json!({"name": name, "role": role, "tenants": ["acme"]});
        let (status, made) = admin.post("/admin/v1/operators", &made).await;
        assert_eq!(status, 201, "{made}");
        let operator = admin.with_token(made["token"].as_str());
        let (status, answer) =
            operator.post(&format!("/admin/v1/tenants/{tenant}/try"), &ping).await;
        assert_eq!(status, wanted, "{role}: {answer}");
    }
}

#[tokio::test]
async fn a_subject_that_cannot_be_read_is_refused_with_its_field() {
    let broker = builder().single_process().start().await;
    let admin = broker.admin();
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    for (subject, field) in [
        ("%%".to_owned(), "Mcp-Broker-Subject"),
        (URL_SAFE_NO_PAD.encode("[]"), ""),
        (URL_SAFE_NO_PAD.encode(r#"{"principle": "ann"}"#), "principle"),
        (URL_SAFE_NO_PAD.encode("{\"principal\": \"a\u{200b}b\"}"), "Mcp-Broker-Subject"),
        ("A".repeat(9_000), "Mcp-Broker-Subject"),
    ] {
        let headers = [("mcp-broker-subject", subject.as_str())];
        let response = admin.send_with("POST", TRY, &headers, Some(&ping)).await;
        assert_eq!(response.status, 400, "{subject}");
        let problem: Value = serde_json::from_str(&response.text().await).unwrap();
        assert_eq!(problem["field"].as_str().unwrap_or_default(), field, "{problem}");
    }
}

#[tokio::test]
async fn a_login_and_a_trial_continue_on_another_replica() {
    let backend = FakeBackend::echo().await;
    let cluster = builder().cluster(2).start().await;
    cluster.admin(0).put_ready_backend("default", "b", &backend.spec()).await;
    let there = cluster.admin(1);
    there.wait_backend_state("default", "b", "ready").await;
    deny_guests(&cluster.admin(0)).await;
    eventually("the policy on the other replica", || async {
        let (status, answer) = there.get("/admin/v1/tenants/default/policy").await;
        if status == 200 { Ok(()) } else { Err(answer) }
    })
    .await;
    let here = cluster.admin(0);
    for (group, is_allowed) in [("staff", true), ("guests", false)] {
        let mut trial = Trial::new(&here, json!({"principal": "ann", "groups": [group]}));
        trial.open().await;
        // The next request of the page reaches the other replica, which forwards it.
        let mut moved = Trial { admin: &there, ..trial };
        let answer = moved.call("b__echo").await;
        assert_eq!(answer["result"].is_object(), is_allowed, "{group}: {answer}");
    }

    let host = |admin: &AdminClient| format!("http://{}", admin.address());
    let origin = host(&here);
    let page = [
        ("origin", origin.as_str()),
        ("mcp-broker-console", "the-key-of-a-page-of-the-console-0123456789"),
    ];
    let (status, made) =
        here.post("/admin/v1/operators", &json!({"name": "vera", "role": "viewer"})).await;
    assert_eq!(status, 201, "{made}");
    let browser = here.with_token(None);
    let body = json!({"token": made["token"]});
    let response = browser.send_with("POST", "/console/login", &page, Some(&body)).await;
    assert_eq!(response.status, 204);
    let cookie = response.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let headers = [
        ("cookie", cookie.as_str()),
        ("mcp-broker-console", "the-key-of-a-page-of-the-console-0123456789"),
    ];
    eventually("the login on the other replica", || async {
        let browser = there.with_token(None);
        let response = browser.send_with("GET", "/admin/v1/operator", &headers, None).await;
        match response.text().await {
            text if text.contains("vera") => Ok(()),
            text => Err(text),
        }
    })
    .await;
}

#[tokio::test]
async fn a_logout_at_one_replica_ends_the_login_at_the_other() {
    const TOKEN: &str = "admin-of-two-replicas";
    let cluster = builder().admin_token(TOKEN).cluster(2).start().await;
    let [here, there] = [0, 1].map(|at| cluster.admin(at).with_token(None));
    let origin = format!("http://{}", here.address());
    let page = [
        ("origin", origin.as_str()),
        ("mcp-broker-console", "the-key-of-a-page-of-the-console-0123456789"),
    ];
    let body = json!({"token": TOKEN});
    let response = here.send_with("POST", "/console/login", &page, Some(&body)).await;
    assert_eq!(response.status, 204);
    let cookie = response.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let login = [
        ("cookie", cookie.as_str()),
        ("mcp-broker-console", "the-key-of-a-page-of-the-console-0123456789"),
    ];
    let who = async || there.send_with("GET", "/admin/v1/operator", &login, None).await.status;
    assert_eq!(who().await, 200);
    let headers = [page[0], login[0], login[1]];
    let out = here.send_with("POST", "/console/logout", &headers, None).await;
    assert_eq!(out.status, 204);
    assert_eq!(who().await, 401, "at once, because the answer came after the store had it");
}

#[tokio::test]
async fn the_catalog_lists_definitions_of_backends_unchanged() {
    let backend = FakeBackend::start().await;
    backend.tool("wait", |_| async { Reply::Result(json!({"content": []})) });
    // The broker adds the support of tasks to a tool that names none.
    let hostile = json!({
        "name": "evil", "description": "a\u{202e}b<img src=x>", "inputSchema": {"type": "object"},
        "execution": {"taskSupport": "optional"},
    });
    backend.list("tools", vec![hostile.clone()]);
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let admin = broker.admin();
    admin.wait_backend_state("default", "b", "ready").await;
    let (status, list) = admin.get("/admin/v1/tenants/default/catalog?kind=tool").await;
    assert_eq!(status, 200, "{list}");
    let evil = &list["items"].as_array().unwrap()[0];
    assert_eq!((&evil["name"], &evil["exposed_name"]), (&json!("evil"), &json!("b__evil")));
    assert_eq!(evil["description"], hostile["description"]);
    assert!(evil["definition"].is_null(), "only on request");
    let path = "/admin/v1/tenants/default/catalog?kind=tool&backend=b&name=evil&definitions=true";
    let (_, one) = admin.get(path).await;
    assert_eq!(one["items"][0]["definition"], hostile, "{one}");
    let (status, problem) = admin.get("/admin/v1/tenants/default/catalog?kind=all").await;
    assert_eq!((status, &problem["field"]), (400, &json!("kind")), "{problem}");
}
