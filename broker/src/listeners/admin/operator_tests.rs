//! Tests of operators: what each role may do, and what an operator of some tenants sees.

use axum::{body::Body, http::header};
use rules::operators::{Permission, Role};
use serde_json::{Value, json};

use super::{
    health, openapi,
    permissions::{OPERATIONS, required},
    tests::{Admin, WITH_TOKEN, http_backend, read, request},
};

const ADMIN: &str = "correct-horse-battery-staple";

/// Starts an admin plane with two tenants, each with a backend and a key.
async fn two_tenants() -> Admin {
    with_two_tenants(Admin::start(WITH_TOKEN, super::tests::LOOPBACK).await).await
}

async fn with_two_tenants(admin: Admin) -> Admin {
    for tenant in ["acme", "zoo"] {
        let path = format!("/admin/v1/tenants/{tenant}");
        assert_eq!(admin.as_operator(ADMIN, "PUT", &path, Some(json!({}))).await.0, 201);
        let backend = format!("{path}/backends/files?wait=false");
        let body = Some(http_backend());
        assert_eq!(admin.as_operator(ADMIN, "PUT", &backend, body).await.0, 201);
        assert_eq!(admin.as_operator(ADMIN, "POST", &format!("{path}/keys"), None).await.0, 201);
    }
    admin
}

impl Admin {
    async fn as_operator(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        let request = request(method, path)
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header(header::CONTENT_TYPE, "application/json");
        let body = body.map_or(Body::empty(), |body| Body::from(body.to_string()));
        let (status, answer) = read(self.send(request.body(body).unwrap()).await).await;
        (status.as_u16(), answer)
    }

    /// Creates an operator. Returns its token.
    async fn operator(&self, body: Value) -> String {
        let (status, made) =
            self.as_operator(ADMIN, "POST", "/admin/v1/operators", Some(body)).await;
        assert_eq!(status, 201, "{made}");
        made["token"].as_str().unwrap().to_owned()
    }
}

/// Returns the operations of the OpenAPI document with their permissions.
fn documented() -> Vec<(String, String, Value)> {
    let document = serde_json::to_value(openapi::document()).unwrap();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let permission = operation["x-permission"].clone();
            operations.push((method.to_uppercase(), path.clone(), permission));
        }
    }
    operations
}

fn concrete(path: &str) -> String {
    path.replace("{tenant}", "acme").replace("{backend}", "files").replace("{id}", "none")
}

#[test]
fn every_documented_operation_requires_a_permission() {
    let documented = documented();
    for (method, path, shown) in &documented {
        let method = method.parse().unwrap();
        let permission = required(&method, path).map(Permission::name);
        let is_probe = path == health::LIVE || path == health::READY;
        assert_eq!(permission.is_none(), is_probe, "{method} {path}");
        assert_eq!(shown.as_str(), permission, "{method} {path}");
    }
    for (method, path, _) in OPERATIONS {
        let is_known =
            documented.iter().any(|(known, route, _)| known == method.as_str() && route == path);
        assert!(is_known, "{method} {path} is in the table only");
    }
}

#[tokio::test]
async fn a_role_opens_exactly_the_operations_of_its_permissions() {
    let admin = two_tenants().await;
    for role in Role::ALL {
        let mut body = json!({"name": format!("the {role}"), "role": role.name()});
        if role == Role::BackendOwner {
            body["backends"] = json!(["acme/files"]);
        }
        let token = admin.operator(body).await;
        for (method, path, permission) in OPERATIONS {
            let is_permitted = role.permits(*permission);
            if is_permitted && path.ends_with("/drain") {
                continue; // it would end the broker
            }
            // The request changes nothing: it has no body, or concerns no existing entry.
            let path =
                concrete(path).replace("/files", "/none").replace("tenants/acme", "tenants/gone");
            let (status, answer) = admin.as_operator(&token, method.as_str(), &path, None).await;
            match is_permitted {
                true => assert_ne!(status, 403, "{role} {method} {path}: {answer}"),
                false => {
                    assert_eq!(status, 403, "{role} {method} {path}: {answer}");
                    assert_eq!(answer["type"], "urn:mcp-broker:problem:forbidden");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_viewer_changes_nothing() {
    let admin = two_tenants().await;
    let token = admin.operator(json!({"name": "vera", "role": "viewer"})).await;
    for (method, path, _) in documented() {
        let reads = method == "GET" || path.ends_with("/policy/check");
        if reads {
            continue;
        }
        // Neither a valid nor an invalid body makes a difference.
        for body in [None, Some(json!({})), Some(http_backend()), Some(json!([1]))] {
            let (status, answer) = admin.as_operator(&token, &method, &concrete(&path), body).await;
            assert_eq!(status, 403, "{method} {path}: {answer}");
        }
    }
    let (_, list) = admin.as_operator(&token, "GET", "/admin/v1/tenants", None).await;
    assert_eq!(list["tenants"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn an_operator_of_a_tenant_sees_no_other() {
    let admin = two_tenants().await;
    for role in ["tenant_admin", "admin", "auditor", "viewer", "operator"] {
        let body = json!({"name": format!("the {role}"), "role": role, "tenants": ["acme"]});
        let token = admin.operator(body).await;
        for (method, path, _) in documented() {
            // The same request about an existing tenant of others, and about one that is absent.
            let of = |tenant: &str| {
                concrete(&path).replace("tenants/acme", &format!("tenants/{tenant}"))
            };
            if !path.contains("{tenant}") {
                continue;
            }
            let (theirs, answer) = admin.as_operator(&token, &method, &of("zoo"), None).await;
            let (absent, expected) = admin.as_operator(&token, &method, &of("nix"), None).await;
            let (answer, expected) = (answer.to_string(), expected.to_string());
            assert_eq!(
                (theirs, answer),
                (absent, expected.replace("nix", "zoo")),
                "{role} {method} {path}"
            );
            assert!([403, 404].contains(&theirs), "{role} {method} {path}");
        }
        for path in [
            "/admin/v1/tenants",
            "/admin/v1/sessions",
            "/admin/v1/tasks",
            "/admin/v1/subscriptions",
            "/admin/v1/audit",
            "/admin/v1/audit/export",
            "/admin/v1/audit/chains",
            "/admin/v1/audit/chains?limit=1",
            "/admin/v1/audit/verify",
            "/admin/v1/audit?tenant=zoo",
            "/admin/v1/audit/verify?tenant=zoo",
            "/admin/v1/sessions?tenant=zoo",
            "/admin/v1/configuration",
            "/admin/v1/nodes",
            "/admin/v1/operators",
            "/metrics",
        ] {
            let response = admin
                .send(
                    request("GET", path)
                        .header(header::AUTHORIZATION, format!("Bearer {token}"))
                        .body(Body::empty())
                        .unwrap(),
                )
                .await;
            let (status, answer) = read(response).await;
            let answer = answer.to_string();
            let echoed = path.contains("tenant=zoo") && status == 404;
            assert!(echoed || !answer.contains("zoo"), "{role} {path}: {answer}");
        }
        let (_, mine) = admin.as_operator(&token, "GET", "/admin/v1/tenants", None).await;
        let names: Vec<_> =
            mine["tenants"].as_array().unwrap().iter().map(|view| view["tenant"].clone()).collect();
        assert_eq!(names, ["acme"], "{role}");
    }
}

#[tokio::test]
async fn an_operator_of_a_tenant_reads_no_record_of_an_earlier_tenant_of_the_name() {
    let admin = two_tenants().await;
    let acme = "/admin/v1/tenants/acme";
    assert_eq!(admin.as_operator(ADMIN, "DELETE", acme, None).await.0, 204);
    assert_eq!(admin.as_operator(ADMIN, "PUT", acme, Some(json!({}))).await.0, 201);
    let body = json!({"name": "tess", "role": "tenant_admin", "tenants": ["acme"]});
    let token = admin.operator(body).await;
    let actions = async |token: &str, query: &str| -> Vec<String> {
        let path = format!("/admin/v1/audit?tenant=acme{query}");
        let (status, log) = admin.as_operator(token, "GET", &path, None).await;
        assert_eq!(status, 200, "{log}");
        let records = log["records"].as_array().unwrap().iter();
        records.map(|record| record["action"].as_str().unwrap().to_owned()).collect()
    };
    let put = "PUT /admin/v1/tenants/{tenant}";
    for query in ["", "&since=24h", "&order=newest"] {
        assert_eq!(actions(token.as_str(), query).await, [put], "{query}");
    }
    let all = actions(ADMIN, "").await;
    assert!(all.len() > 3 && all[0] == put, "records outlive their tenant: {all:?}");
    let export = "/admin/v1/audit/export?tenant=acme";
    let request = request("GET", export).header(header::AUTHORIZATION, format!("Bearer {token}"));
    let response = admin.send(request.body(Body::empty()).unwrap()).await;
    let (_, exported) = read(response).await;
    assert_eq!(exported["action"], put, "one line: {exported}");
}

/// Returns the ids of a list of sessions or tasks, in the order of its parts.
async fn listed_in_parts(admin: &Admin, token: &str, list: &str, part_max: usize) -> Vec<String> {
    let (mut ids, mut after, mut query) = (Vec::new(), String::new(), String::new());
    loop {
        let path = format!("/admin/v1/{list}{query}");
        let (status, part) = admin.as_operator(token, "GET", &path, None).await;
        assert_eq!(status, 200, "{part}");
        let entries = part[list].as_array().unwrap();
        assert!(entries.len() <= part_max, "{part}");
        ids.extend(entries.iter().map(|entry| entry["id"].as_str().unwrap().to_owned()));
        let Some(next) = part["next"].as_str() else { return ids };
        assert!(next > after.as_str(), "the part ends where it began: {part}");
        next.clone_into(&mut after);
        query = format!("?after={next}");
    }
}

#[tokio::test]
async fn a_list_that_is_longer_than_one_answer_continues_in_the_next() {
    const LIST_MAX: usize = 2;
    let admin = with_two_tenants(Admin::start_with_lists(LIST_MAX).await).await;
    let (mut sessions, mut tasks) = (Vec::new(), Vec::new());
    for (number, tenant) in (1..).zip(["acme", "acme", "acme", "zoo", "default", "zoo", "acme"]) {
        let [session, task] = admin.stored_elsewhere(tenant, number).await;
        sessions.push((tenant, session));
        tasks.push((tenant, task));
    }
    let scopes = [json!(["acme"]), json!(["acme", "zoo"]), json!(["zoo", "default"])];
    for (list, stored) in [("sessions", sessions), ("tasks", tasks)] {
        let of = |tenants: &[&str]| {
            let seen = stored.iter().filter(|(tenant, _)| tenants.contains(tenant));
            seen.map(|(_, id)| id.clone()).collect::<Vec<_>>()
        };
        let all = listed_in_parts(&admin, ADMIN, list, LIST_MAX).await;
        assert_eq!(all, of(&["acme", "default", "zoo"]), "{list}");
        for tenants in &scopes {
            let name = format!("a viewer of {list} in {tenants}");
            let body = json!({"name": name, "role": "viewer", "tenants": tenants});
            let token = admin.operator(body).await;
            let names = tenants.as_array().unwrap().iter().map(|tenant| tenant.as_str().unwrap());
            let expected = of(&names.collect::<Vec<_>>());
            let seen = listed_in_parts(&admin, &token, list, LIST_MAX).await;
            assert_eq!(seen, expected, "{name}");
        }
    }
}

#[tokio::test]
async fn only_an_admin_of_the_broker_starts_programs_that_are_not_listed() {
    let stdio = |more: Value| {
        let mut body = json!({"transport": {"type": "stdio", "command": "/bin/cat"}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Some(body)
    };
    let path = "/admin/v1/tenants/default/backends/cat?wait=false";
    for (listed, more, status) in [
        ("", json!({}), 403),
        (", stdio: {commands: [/bin/cat]}", json!({}), 201),
        (", stdio: {commands: [/bin/cat]}", json!({"sandbox": {"write": ["/"]}}), 403),
        (", stdio: {commands: [/bin/true]}", json!({}), 400),
    ] {
        let yaml = format!("{{auth: {{admin_token: {ADMIN}}}{listed}}}");
        let admin = Admin::start(&yaml, super::tests::LOOPBACK).await;
        for role in ["tenant_admin", "admin"] {
            let body = json!({"name": format!("the {role}"), "role": role, "tenants": ["default"]});
            let token = admin.operator(body).await;
            let (code, answer) = admin.as_operator(&token, "PUT", path, stdio(more.clone())).await;
            let replaced = status == 201 && code == 200;
            assert!(code == status || replaced, "{listed} {role}: {answer}");
        }
        if listed.is_empty() {
            assert_eq!(admin.as_operator(ADMIN, "PUT", path, stdio(more)).await.0, 201);
        }
    }
}

#[tokio::test]
async fn a_refusal_names_the_role_or_the_tenants_that_are_the_reason() {
    let admin = two_tenants().await;
    let viewer = json!({"name": "vera", "role": "viewer", "tenants": ["acme"]});
    let token = admin.operator(viewer).await;
    for (method, path, reason) in [
        (
            "GET",
            "/admin/v1/nodes",
            "operator vera is limited to the tenant acme, and this operation is about the whole broker",
        ),
        (
            "POST",
            "/admin/v1/drain",
            "operator vera has the role viewer, and this operation needs broker:drain",
        ),
    ] {
        let (status, answer) = admin.as_operator(&token, method, path, None).await;
        assert_eq!((status, answer["detail"].as_str()), (403, Some(reason)), "{path}");
    }
}

#[tokio::test]
async fn a_backend_owner_sees_and_operates_only_its_backend() {
    let admin = two_tenants().await;
    let other = "/admin/v1/tenants/acme/backends/mail?wait=false";
    assert_eq!(admin.as_operator(ADMIN, "PUT", other, Some(http_backend())).await.0, 201);
    let body = json!({"name": "olga", "role": "backend_owner", "backends": ["acme/files"]});
    let token = admin.operator(body).await;
    let request = |method, path| admin.as_operator(&token, method, path, None);
    let (_, list) = request("GET", "/admin/v1/tenants/acme/backends").await;
    assert_eq!(list["backends"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(list["backends"][0]["backend"], "files");
    assert_eq!(request("GET", "/admin/v1/tenants/acme/backends/files").await.0, 200);
    assert_eq!(request("POST", "/admin/v1/tenants/acme/backends/files/probe").await.0, 200);
    assert_eq!(request("DELETE", "/admin/v1/tenants/acme/backends/files").await.0, 403);
    let (theirs, answer) = request("GET", "/admin/v1/tenants/acme/backends/mail").await;
    let (absent, expected) = request("GET", "/admin/v1/tenants/acme/backends/none").await;
    assert_eq!(
        (theirs, answer.to_string()),
        (absent, expected.to_string().replace("none", "mail"))
    );
    assert_eq!(theirs, 404);
    assert_eq!(request("POST", "/admin/v1/tenants/zoo/backends/files/probe").await.0, 404);
}

#[tokio::test]
async fn a_revoked_operator_is_refused_and_the_audit_log_names_it() {
    let admin = two_tenants().await;
    let token = admin.operator(json!({"name": "tess", "role": "tenant_admin"})).await;
    let path = "/admin/v1/tenants/acme/keys";
    assert_eq!(admin.as_operator(&token, "POST", path, None).await.0, 201);
    assert_eq!(admin.as_operator(&token, "POST", "/admin/v1/drain", None).await.0, 403);
    let (_, log) = admin.as_operator(ADMIN, "GET", "/admin/v1/audit", None).await;
    let by_tess: Vec<&Value> = log["records"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["principal"] == "tess")
        .collect();
    let shown: Vec<_> = by_tess.iter().map(|row| (&row["action"], &row["outcome"])).collect();
    assert_eq!(
        shown,
        [
            (&json!("POST /admin/v1/tenants/{tenant}/keys"), &json!("ok")),
            (&json!("POST /admin/v1/drain"), &json!("refused"))
        ]
    );
    assert!(!log.to_string().contains(&token), "the log holds no token");
    let (_, list) = admin.as_operator(ADMIN, "GET", "/admin/v1/operators", None).await;
    let id = list["operators"][0]["id"].as_str().unwrap();
    assert!(!list.to_string().contains(&token) && list["operators"][0]["name"] == "tess");
    let revoke = format!("/admin/v1/operators/{id}");
    assert_eq!(admin.as_operator(ADMIN, "DELETE", &revoke, None).await.0, 204);
    assert_eq!(admin.as_operator(ADMIN, "DELETE", &revoke, None).await.0, 404);
    assert_eq!(admin.as_operator(&token, "GET", path, None).await.0, 401);
}

#[tokio::test]
async fn bad_operators_are_refused_with_their_field() {
    let admin = two_tenants().await;
    admin.operator(json!({"name": "ann", "role": "viewer"})).await;
    let names: Vec<String> = (0..1_001).map(|at| format!("t{at}")).collect();
    for (body, status, field) in [
        (json!({"role": "viewer"}), 400, "name"),
        (json!({"name": "", "role": "viewer"}), 400, "name"),
        (json!({"name": "a\nb", "role": "viewer"}), 400, "name"),
        (json!({"name": "admin", "role": "viewer"}), 400, "name"),
        (json!({"name": "configuration", "role": "viewer"}), 400, "name"),
        (json!({"name": "bob", "role": "root"}), 400, "role"),
        (json!({"name": "bob", "role": "viewer", "tenants": []}), 400, "tenants"),
        (json!({"name": "bob", "role": "viewer", "tenants": names}), 400, "tenants"),
        (json!({"name": "bob", "role": "viewer", "tenants": ["acme", "acme"]}), 400, "tenants"),
        (json!({"name": "bob", "role": "viewer", "tenants": ["nix"]}), 400, "tenants[0]"),
        (json!({"name": "bob", "role": "viewer", "backends": ["acme/files"]}), 400, "backends"),
        (json!({"name": "bob", "role": "scraper", "tenants": ["acme"]}), 400, "tenants"),
        (json!({"name": "bob", "role": "backend_owner"}), 400, "backends"),
        (
            json!({"name": "bob", "role": "backend_owner", "backends": ["files"]}),
            400,
            "backends[0]",
        ),
        (
            json!({"name": "bob", "role": "backend_owner", "backends": ["acme/nix"]}),
            400,
            "backends[0]",
        ),
        (json!({"name": "bob", "role": "viewer", "scope": 1}), 400, "scope"),
    ] {
        let path = "/admin/v1/operators";
        let (code, problem) = admin.as_operator(ADMIN, "POST", path, Some(body.clone())).await;
        assert_eq!((code, problem["field"].as_str()), (status, Some(field)), "{body}: {problem}");
    }
    let again = Some(json!({"name": "ann", "role": "admin"}));
    assert_eq!(admin.as_operator(ADMIN, "POST", "/admin/v1/operators", again).await.0, 409);
}

#[tokio::test]
async fn a_tenant_that_an_operator_names_cannot_be_removed() {
    let admin = two_tenants().await;
    for name in ["ann", "bob"] {
        admin.operator(json!({"name": name, "role": "viewer", "tenants": ["acme"]})).await;
    }
    let (status, problem) =
        admin.as_operator(ADMIN, "DELETE", "/admin/v1/tenants/acme", None).await;
    assert_eq!(status, 409, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains(": ann, bob; revoke"), "{problem}");
    assert_eq!(admin.as_operator(ADMIN, "DELETE", "/admin/v1/tenants/zoo", None).await.0, 204);
}
