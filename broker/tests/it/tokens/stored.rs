//! Issuers of tenants that operators store through the admin API.

use serde_json::{Value, json};
use testkit::{AuthorizationServer, FakeBackend, TestBroker, eventually_within};

use super::{client, guarded, reload::reload, status, until_status};
use crate::{initialize_body, request};

const ISSUERS: &str = "/admin/v1/tenants/acme/issuers";

/// Addresses of this machine are refused for stored issuers unless `egress` allows them.
fn loopback() -> Value {
    json!({"egress": {"allow": ["127.0.0.0/8"]}})
}

async fn started() -> (TestBroker, AuthorizationServer, AuthorizationServer, FakeBackend) {
    let (declared, server, backend) = (
        AuthorizationServer::start().await,
        AuthorizationServer::start().await,
        FakeBackend::echo().await,
    );
    let broker =
        guarded(&declared, &backend, json!({})).single_process().config(loopback()).start().await;
    (broker, declared, server, backend)
}

#[tokio::test]
async fn a_stored_issuer_gives_access_to_its_tenant_until_it_is_removed() {
    let (mut broker, declared, server, _backend) = started().await;
    let admin = broker.admin();
    admin.put_tenant("umbrella", json!({})).await;
    let path = format!("{ISSUERS}/main");
    let body = json!({"issuer": server.issuer(), "scopes": ["mcp:tools"], "jwks_url": null});
    let (stored, view) = admin.put(&path, &body).await;
    assert_eq!((stored, &view["issuer"]), (201, &json!(server.issuer())), "{view}");
    let token = server.token_with("ann", json!({"scope": "mcp:tools", "tenant": "umbrella"}));
    until_status(&broker, &token, 200).await;
    let ann = client(&broker, &token).connected(json!({})).await;
    ann.call("b__echo", json!({})).await;
    let (_, list) = admin.get(ISSUERS).await;
    let sources: Vec<_> =
        list["issuers"].as_array().unwrap().iter().map(|issuer| &issuer["source"]).collect();
    assert_eq!(sources, ["config", "api"], "{list}");
    assert_eq!(list["issuers"][1]["keys"], 1);
    assert_eq!(admin.get("/admin/v1/tenants/umbrella/issuers").await.1["issuers"], json!([]));

    // Conditions, as for policies.
    let shown = admin.send("GET", &path, None).await;
    let tag = shown.header("etag").unwrap().to_owned();
    let other = json!({"issuer": server.issuer()});
    let stale = admin.send_with("PUT", &path, &[("if-match", "\"x\"")], Some(&other)).await;
    assert_eq!(stale.status, 412);
    let replaced = admin.send_with("PUT", &path, &[("if-match", &tag)], Some(&other)).await;
    assert_eq!(replaced.status, 200);
    until_status(&broker, &server.token("ann"), 200).await;

    // It is sealed in the store, and there after a restart.
    let keys = declared.key_requests();
    broker.terminate().await;
    broker.restart().await;
    until_status(&broker, &server.token("ann"), 200).await;
    assert!(declared.key_requests() > keys);
    let ann = client(&broker, &server.token("ann")).connected(json!({})).await;
    let admin = broker.admin();
    assert_eq!(admin.delete(&path).await.0, 204);
    assert_eq!(ann.post(request(9, "ping", json!({}))).await.status, 401);
    assert_eq!(status(&broker, &server.token("ann")).await, 401);
    assert_eq!((admin.delete(&path).await.0, admin.get(&path).await.0), (404, 404));
    let (_, audit) = admin.get("/admin/v1/audit?limit=1000").await;
    let actions: Vec<_> = audit["records"].as_array().unwrap().iter().collect();
    assert!(actions.iter().any(|record| record.to_string().contains("issuers/main")), "{audit}");

    // The issuers of a removed tenant are gone too.
    admin.put("/admin/v1/tenants/umbrella/issuers/own", &other).await;
    until_status(&broker, &server.token("ann"), 200).await;
    admin.delete("/admin/v1/tenants/umbrella").await;
    assert_eq!(status(&broker, &server.token("ann")).await, 401);
}

#[tokio::test]
async fn an_issuer_is_accepted_once_and_faults_name_their_field() {
    let (broker, declared, server, _backend) = started().await;
    let admin = broker.admin();
    admin.put_tenant("umbrella", json!({})).await;
    let path = format!("{ISSUERS}/main");
    let url = server.issuer();
    for (body, wanted, field) in [
        (json!({"issuer": declared.issuer()}), 409, "the configuration file"),
        (json!({"issuer": url, "tenant": "umbrella"}), 400, "tenant"),
        (json!({"issuer": url, "tenant_claim": "org"}), 400, "tenant_claim"),
        (json!({"issuer": url, "colour": 1}), 400, "colour"),
        (json!({"issuer": url, "algorithms": ["HS256"]}), 400, "algorithms"),
        (json!({"issuer": "http://login.example"}), 400, "issuer"),
        (json!({"issuer": "https://169.254.169.254"}), 400, "issuer"),
        (json!({"issuer": url, "jwks_url": "https://10.0.0.1/k"}), 400, "jwks_url"),
        (json!({}), 400, "issuer"),
        (
            json!({"issuer": url, "front": "adapted", "registration":
                {"client_id": "a", "redirect_uris": ["http://localhost/cb"], "secret_file": "/etc/passwd"}}),
            400,
            "registration.secret_file",
        ),
    ] {
        let (status, problem) = admin.put(&path, &body).await;
        assert_eq!(status, wanted, "{body}: {problem}");
        assert!(problem.to_string().contains(field), "{body}: {problem}");
    }
    assert_eq!(admin.put(&format!("{ISSUERS}/No"), &json!({"issuer": url})).await.0, 400);
    assert_eq!(admin.put(&path, &json!({"issuer": url})).await.0, 201);
    let (again, problem) = admin.put(&format!("{ISSUERS}/twin"), &json!({"issuer": url})).await;
    assert!(
        again == 409 && problem.to_string().contains("issuer main of this tenant"),
        "{problem}"
    );
    let elsewhere = "/admin/v1/tenants/umbrella/issuers/main";
    let (taken, problem) = admin.put(elsewhere, &json!({"issuer": url})).await;
    assert_eq!((taken, &problem["field"]), (409, &json!("issuer")), "{problem}");
    assert!(!problem.to_string().contains("acme"), "{problem}");
}

#[tokio::test]
async fn a_stored_issuer_is_in_force_on_every_replica_within_a_second() {
    let (declared, server, backend) = (
        AuthorizationServer::start().await,
        AuthorizationServer::start().await,
        FakeBackend::echo().await,
    );
    let cluster =
        guarded(&declared, &backend, json!({})).config(loopback()).cluster(2).start().await;
    let body = json!({"issuer": server.issuer()});
    assert_eq!(cluster.admin(0).put(&format!("{ISSUERS}/main"), &body).await.0, 201);
    let until = |wanted: u16| {
        let (cluster, token) = (&cluster, server.token("ann"));
        async move {
            let second = std::time::Duration::from_secs(1);
            eventually_within(second, "the change at the other replica", || async {
                let client = cluster.client_of(1, "/mcp").bearer(&token);
                match client.post(initialize_body("2025-11-25")).await.status {
                    found if found == wanted => Ok(()),
                    found => Err(found),
                }
            })
            .await;
        }
    };
    until(200).await;
    assert_eq!(cluster.admin(1).delete(&format!("{ISSUERS}/main")).await.0, 204);
    until(401).await;
}

#[tokio::test]
async fn an_issuer_of_the_file_has_precedence_over_a_stored_one() {
    let (mut broker, _declared, server, _backend) = started().await;
    let admin = broker.admin();
    admin.put_tenant("umbrella", json!({})).await;
    let path = "/admin/v1/tenants/umbrella/issuers/squat";
    let body = json!({"issuer": server.issuer()});
    let (stored, view) = admin.put(path, &body).await;
    assert_eq!((stored, &view["in_force"]), (201, &json!(true)), "{view}");
    reload(&broker, |config| {
        let mut entry = config["auth"]["issuers"][0].clone();
        entry["issuer"] = json!(server.issuer());
        config["auth"]["issuers"].as_array_mut().unwrap().push(entry);
    })
    .await;
    let shown = || async {
        let (_, list) = broker.admin().get("/admin/v1/tenants/umbrella/issuers").await;
        let of_file = broker.admin().get(ISSUERS).await.1["issuers"].clone();
        (list["issuers"][0].clone(), of_file)
    };
    let (unused, of_file) = shown().await;
    assert_eq!((&unused["in_force"], &unused["keys"]), (&json!(false), &json!(0)), "{unused}");
    assert!(unused["fault"].as_str().unwrap().contains("configuration file"), "{unused}");
    assert!(broker.log().contains("a stored issuer is not in force"), "{}", broker.log());
    let url = json!(server.issuer());
    let is_in_force = |list: &Value| {
        let all = list.as_array().unwrap();
        all.iter().any(|one| one["issuer"] == url && one["in_force"] == true)
    };
    assert!(is_in_force(&of_file), "{of_file}");
    broker.terminate().await;
    broker.restart().await;
    let (_, list) = broker.admin().get("/admin/v1/tenants/umbrella/issuers").await;
    assert_eq!(list["issuers"][0]["in_force"], false, "{list}");
    assert_eq!(broker.admin().delete(path).await.0, 204);
}
