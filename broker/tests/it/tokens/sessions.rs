//! Sessions of clients with tokens belong to issuer and subject, whatever the token.

use serde_json::json;
use testkit::{AuthorizationServer, FakeBackend};

use super::{client, guarded, started, until_status, with_token};
use crate::request;

#[tokio::test]
async fn ses_06_a_session_continues_only_with_tokens_of_the_same_subject() {
    let (server, other, backend) = (
        AuthorizationServer::start().await,
        AuthorizationServer::start().await,
        FakeBackend::echo().await,
    );
    let mut config = server.config("acme", json!({}));
    config["auth"]["issuers"].as_array_mut().unwrap().push(other.entry("acme", json!({})));
    let broker = guarded(&server, &backend, json!({})).config(config).start().await;
    until_status(&broker, &server.token("ann"), 200).await;
    until_status(&broker, &other.token("ann"), 200).await;
    let ann = client(&broker, &server.token("ann")).connected(json!({})).await;
    let refreshed = with_token(&broker, &ann, &server.token_with("ann", json!({"jti": "another"})));
    refreshed.call("b__echo", json!({})).await;
    let key = broker.admin().create_key("acme").await;
    for (who, token) in [
        ("another subject", server.token("bob")),
        ("the same subject of another issuer", other.token("ann")),
        ("an API key", key),
    ] {
        let thief = with_token(&broker, &ann, &token);
        assert_eq!(thief.post(request(9, "ping", json!({}))).await.status, 404, "{who}");
        assert_eq!(thief.get_stream_raw(None).await.status, 404, "{who}");
        assert_eq!(thief.delete_session().await, 404, "{who}");
    }
    let sessions = broker.admin().sessions("acme").await;
    let principal = format!("{} ann", server.issuer());
    assert!(sessions.iter().any(|session| session["principal"] == principal), "{sessions:?}");
    assert_eq!(refreshed.delete_session().await, 204);
}

#[tokio::test]
async fn the_principal_comes_from_the_configured_claim() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let broker = guarded(&server, &backend, json!({"principal_claim": "client_id"})).start().await;
    until_status(&broker, &server.token_with("x", json!({"client_id": "app"})), 200).await;
    assert_eq!(super::status(&broker, &server.token("x")).await, 401);
    let app = client(&broker, &server.token_with("x", json!({"client_id": "app"})))
        .connected(json!({}))
        .await;
    with_token(&broker, &app, &server.token_with("y", json!({"client_id": "app"})))
        .call("b__echo", json!({}))
        .await;
}

#[tokio::test]
async fn a_session_continues_at_another_replica_with_another_token() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let config = server.config("acme", json!({}));
    let cluster = crate::builder()
        .auth_required()
        .config(config)
        .tenant("acme")
        .backend("acme", "b", backend.spec())
        .cluster(2)
        .start()
        .await;
    let at = |replica: usize, token: &str| cluster.client_of(replica, "/mcp").bearer(token);
    for replica in 0..2 {
        testkit::eventually("the keys at each replica", || async {
            let status = at(replica, &server.token("ann"))
                .post(crate::initialize_body("2025-11-25"))
                .await
                .status;
            if status == 200 { Ok(()) } else { Err(status) }
        })
        .await;
    }
    let ann = at(0, &server.token("ann")).connected(json!({})).await;
    let there = |token: &str| {
        let client = at(1, token);
        client.set_session(ann.session().as_deref());
        client.set_version(Some("2025-11-25"));
        client
    };
    there(&server.token_with("ann", json!({"jti": "2"}))).call("b__echo", json!({})).await;
    assert_eq!(there(&server.token("bob")).post(request(9, "ping", json!({}))).await.status, 404);
    assert_eq!(
        there(&server.token_with("ann", json!({"exp": 1})))
            .post(request(9, "ping", json!({})))
            .await
            .status,
        401
    );
    // A stream of a session on another replica ends with its token too.
    let ending = there(&server.token_with("ann", super::ending_in(6)));
    let mut stream = ending.open_get_stream().await;
    stream.rest().await;
    assert_eq!(ending.post(request(9, "ping", json!({}))).await.status, 401);
    ann.call("b__echo", json!({})).await;
}

#[tokio::test]
async fn a_call_with_a_cached_token_is_not_verified_again() {
    let (broker, server, _backend) = started().await;
    let token = server.token("ann");
    until_status(&broker, &token, 200).await;
    let ann = client(&broker, &token).connected(json!({})).await;
    let checked = || async {
        broker.admin().metric("mcp_tokens_checked_total", &[("outcome", "verified")]).await.unwrap()
    };
    let before = checked().await;
    for _ in 0..20 {
        ann.call("b__echo", json!({})).await;
    }
    assert_eq!(checked().await, before);
}

#[tokio::test]
async fn a_task_belongs_to_its_principal_with_any_token_and_session() {
    let (broker, server, _backend) = started().await;
    until_status(&broker, &server.token("ann"), 200).await;
    let session = |subject: &str| {
        client(&broker, &server.token_with(subject, json!({"jti": subject}))).connected(json!({}))
    };
    let made = session("ann")
        .await
        .result("tools/call", json!({"name": "b__echo", "arguments": {}, "task": {}}))
        .await;
    let id = json!({"taskId": made["task"]["taskId"]});
    assert_eq!(session("ann").await.result("tasks/get", id.clone()).await["taskId"], id["taskId"]);
    assert_eq!(crate::kind(&session("bob").await.error("tasks/get", id).await), "task_not_found");
}
