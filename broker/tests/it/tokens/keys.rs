//! Keys of issuers: found, changed, and unavailable (A-07, AUTH-09). Each process fetches them for
//! itself, so these tests have one.

use serde_json::{Value, json};
use testkit::{
    AuthorizationServer, BrokerBuilder, FakeBackend, IssuerBehavior, SigningKey, TestBroker,
    eventually_within,
};

use super::{client, status, until_status};

/// Longer than the pause after keys were fetched.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

fn guarded(server: &AuthorizationServer, backend: &FakeBackend, more: Value) -> BrokerBuilder {
    super::guarded(server, backend, more).single_process()
}

async fn started() -> (TestBroker, AuthorizationServer, FakeBackend) {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    (guarded(&server, &backend, json!({})).start().await, server, backend)
}

async fn eventually_let_in(broker: &TestBroker, token: &str) {
    eventually_within(PATIENCE, "a token to be taken", || async {
        match status(broker, token).await {
            200 => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

#[tokio::test]
async fn keys_are_found_by_metadata_or_at_a_configured_url() {
    let (broker, server, _backend) = started().await;
    until_status(&broker, &server.token("ann"), 200).await;
    assert_eq!((server.metadata_requests(), server.key_requests()), (1, 1));
    let (other, backend) =
        (AuthorizationServer::with(SigningKey::rsa("r")).await, FakeBackend::echo().await);
    let broker = guarded(&other, &backend, json!({"jwks_url": other.keys_url()})).start().await;
    until_status(&broker, &other.token("ann"), 200).await;
    assert_eq!((other.metadata_requests(), other.key_requests()), (0, 1));
    assert_eq!(broker.admin().metric("mcp_issuers_without_keys", &[]).await, Some(0.0));
}

#[tokio::test]
async fn a_07_a_token_of_a_new_key_triggers_a_key_fetch_that_drops_old_keys() {
    let (broker, server, _backend) = started().await;
    let old = server.token("ann");
    until_status(&broker, &old, 200).await;
    let ann = client(&broker, &old).connected(json!({})).await;
    let new = SigningKey::ed("two");
    server.publish(&[&new]);
    eventually_let_in(&broker, &new.sign(&server.claims("ann", json!({})))).await;
    assert_eq!(status(&broker, &old).await, 401);
    assert_eq!(
        ann.post(crate::request(9, "ping", json!({}))).await.status,
        401,
        "nor is it on a connection that knows it"
    );
}

#[tokio::test]
async fn auth_09_a_flood_of_unknown_keys_causes_few_fetches() {
    let (broker, server, _backend) = started().await;
    let good = server.token("ann");
    until_status(&broker, &good, 200).await;
    let stranger = SigningKey::ec("x");
    let started = std::time::Instant::now();
    for round in 0..20 {
        let asked = (0..20).map(|number| {
            let header = json!({"alg": "ES256", "kid": format!("{round}-{number}")});
            let token = stranger.sign_under(&header, &server.claims("ann", json!({})));
            let broker = &broker;
            async move { status(broker, &token).await }
        });
        assert!(futures_util::future::join_all(asked).await.iter().all(|status| *status == 401));
        assert_eq!(status(&broker, &good).await, 200, "who is known waits for nothing");
    }
    let most = 2 + started.elapsed().as_secs() / 5;
    assert!(
        server.key_requests() as u64 <= most,
        "{} fetches in {:?}",
        server.key_requests(),
        started.elapsed()
    );
}

#[tokio::test]
async fn a_07_an_unavailable_or_broken_issuer_does_not_affect_others() {
    let (server, other, backend) = (
        AuthorizationServer::start().await,
        AuthorizationServer::start().await,
        FakeBackend::echo().await,
    );
    server.set_behavior(IssuerBehavior::Hangs);
    let mut config = other.config("acme", json!({}));
    config["auth"]["issuers"].as_array_mut().unwrap().push(server.entry("acme", json!({})));
    // The broker is ready though one issuer hangs. It accepts API keys and the other's tokens.
    let broker = guarded(&other, &backend, json!({})).config(config).start().await;
    until_status(&broker, &other.token("ann"), 200).await;
    let key = broker.admin().create_key("acme").await;
    assert_eq!(status(&broker, &key).await, 200);
    let token = server.token("ann");
    assert_eq!(status(&broker, &token).await, 401);
    assert_eq!(broker.admin().metric("mcp_issuers_without_keys", &[]).await, Some(1.0));
    server.set_behavior(IssuerBehavior::Serves);
    eventually_let_in(&broker, &token).await;
    assert_eq!(broker.admin().metric("mcp_issuers_without_keys", &[]).await, Some(0.0));

    // The issuer is away again, with any kind of answer: the known keys stay in use.
    let unknown = SigningKey::ec("x");
    for manner in [
        IssuerBehavior::Refuses,
        IssuerBehavior::Garbage,
        IssuerBehavior::Oversized,
        IssuerBehavior::Redirects,
        IssuerBehavior::WrongIssuer,
    ] {
        server.set_behavior(manner);
        let failed = || async {
            broker
                .admin()
                .metric("mcp_issuer_key_fetches_total", &[("outcome", "failed")])
                .await
                .unwrap_or(0.0)
        };
        let before = failed().await;
        let token_of_unknown = unknown.sign(&server.claims("eve", json!({})));
        eventually_within(PATIENCE, &format!("a fetch that fails: {manner:?}"), || async {
            assert_eq!(status(&broker, &token_of_unknown).await, 401, "{manner:?}");
            if failed().await > before { Ok(()) } else { Err("none") }
        })
        .await;
        assert_eq!(status(&broker, &token).await, 200, "{manner:?}");
    }
    broker.wait_for_log("the keys of an issuer cannot be fetched").await;
}

/// Longer than the shortest age of keys, a fetch and the wait before it together.
const AGED: std::time::Duration = std::time::Duration::from_secs(45);

async fn eventually_refused(broker: &TestBroker, token: &str) {
    eventually_within(AGED, "a token to be refused", || async {
        match status(broker, token).await {
            401 => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

#[tokio::test]
async fn s05_a_key_set_that_becomes_empty_withdraws_every_key() {
    let (broker, server, _backend) = started().await;
    let token = server.token("ann");
    until_status(&broker, &token, 200).await;
    let ann = client(&broker, &token).connected(json!({})).await;
    server.publish(&[]);
    let unknown = SigningKey::ec("x").sign(&server.claims("eve", json!({})));
    eventually_within(PATIENCE, "the empty set", || async {
        // The named key is not known, so the keys are fetched.
        assert_eq!(status(&broker, &unknown).await, 401);
        if status(&broker, &token).await == 401 { Ok(()) } else { Err("the token is still taken") }
    })
    .await;
    assert_eq!(
        ann.post(crate::request(9, "ping", json!({}))).await.status,
        401,
        "on a connection that knows it too"
    );
    assert_eq!(broker.admin().metric("mcp_issuers_without_keys", &[]).await, Some(1.0));
    broker
        .wait_for_log("the issuer publishes no usable key: the broker refuses all its tokens")
        .await;
    server.publish(&[server.key()]);
    eventually_let_in(&broker, &token).await;
}

#[tokio::test]
async fn s05_keys_that_cannot_be_refreshed_are_used_until_their_maximum_age() {
    let backend = FakeBackend::echo().await;
    let [gone, babbling, faithful] = [
        AuthorizationServer::start().await,
        AuthorizationServer::start().await,
        AuthorizationServer::start().await,
    ];
    let age = || json!({"keys_max_age": "10s"});
    let mut config = gone.config("acme", age());
    config["auth"]["issuers"]
        .as_array_mut()
        .unwrap()
        .extend([babbling.entry("acme", age()), faithful.entry("acme", age())]);
    let broker = guarded(&gone, &backend, json!({})).config(config).start().await;
    let tokens = [&gone, &babbling, &faithful].map(|server| server.token("ann"));
    for token in &tokens {
        until_status(&broker, token, 200).await;
    }
    gone.set_behavior(IssuerBehavior::Gone);
    babbling.set_behavior(IssuerBehavior::Garbage);
    assert_eq!(
        (status(&broker, &tokens[0]).await, status(&broker, &tokens[1]).await),
        (200, 200),
        "they are believed for a while"
    );
    eventually_refused(&broker, &tokens[0]).await;
    eventually_refused(&broker, &tokens[1]).await;
    broker.wait_for_log("older than keys_max_age").await;
    assert_eq!(status(&broker, &tokens[2]).await, 200, "keys that are fetched in time stay");
    assert_eq!(broker.admin().metric("mcp_issuers_without_keys", &[]).await, Some(2.0));
    gone.set_behavior(IssuerBehavior::Serves);
    eventually_let_in(&broker, &tokens[0]).await;
}
