//! The broker as a client that signs with its own keys: its metadata document, its registration, and
//! the change of keys.

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::{FakeClock, TestBroker, TokenRequest, eventually};

use crate::{
    accounts::{Browser, World, form_text},
    builder,
    oauth_exchange::{member, payload, signer},
};

const BASE: &str = "https://mcp.example.com";

async fn start(world: &World, clock: &FakeClock) -> TestBroker {
    let address = json!({"auth": {"resource": BASE}});
    let builder = builder().single_process().tenant("idle").config(address);
    let env = clock.env();
    let broker = env.iter().fold(builder, |builder, (name, value)| builder.env(name, value));
    let broker = broker.start().await;
    let mut spec = world.backend.spec();
    spec["auth"] = json!({"type": "oauth_user", "token_endpoint_auth_method": "private_key_jwt"});
    let (status, view) = broker.admin().put_backend("default", "b", &spec).await;
    assert_eq!(status, 201, "{view}");
    broker
}

async fn fetched(broker: &TestBroker, path: &str) -> Value {
    let answer = Browser::new(broker).send("GET", path, "").await;
    assert_eq!(answer.status, 200, "{path}");
    answer.json().await
}

/// Returns the date of an answer, such as `Sun, 22 Nov 2026`.
pub(crate) async fn day(broker: &TestBroker) -> String {
    let answer = broker.admin().send("GET", "/healthz", None).await;
    answer.header("date").unwrap()[..16].to_owned()
}

async fn keys(broker: &TestBroker) -> Vec<Value> {
    fetched(broker, "/oauth/jwks.json?tenant=default").await["keys"].as_array().unwrap().clone()
}

/// Connects an account. Returns the request for its tokens.
async fn connected(broker: &TestBroker, world: &World) -> TokenRequest {
    world.server.take_token_requests();
    let browser = Browser::new(broker);
    let request = browser.start_login().await;
    let issuer = form_text(world.server.issuer());
    assert_eq!(browser.answer(&request, &format!("&code=code-1&iss={issuer}")).await, 200);
    let asked = world.server.take_token_requests();
    let is_code = |one: &TokenRequest| member(one, "code").is_some();
    asked.into_iter().find(is_code).expect("a request with a code")
}

#[tokio::test]
async fn the_client_metadata_document_names_the_current_keys() {
    let (world, clock) = (World::start(3600).await, FakeClock::set_to("+0"));
    world.server.set_metadata(json!({
        "code_challenge_methods_supported": ["S256"],
        "client_id_metadata_document_supported": true,
        "authorization_response_iss_parameter_supported": true,
        "token_endpoint_auth_methods_supported": ["none", "private_key_jwt"],
    }));
    let broker = start(&world, &clock).await;
    let document = fetched(&broker, "/oauth/clients/default.json").await;
    let id = format!("{BASE}/oauth/clients/default.json");
    for (name, wanted) in [
        ("client_id", json!(id)),
        ("token_endpoint_auth_method", json!("private_key_jwt")),
        ("token_endpoint_auth_signing_alg", json!("ES256")),
        ("jwks_uri", json!(format!("{BASE}/oauth/jwks.json?tenant=default"))),
        ("redirect_uris", json!([format!("{BASE}/oauth/callback")])),
    ] {
        assert_eq!(document[name], wanted, "{name}");
    }
    // The document without keys is that of a public client, as before.
    let public = fetched(&broker, "/oauth/client-metadata.json").await;
    assert_eq!(public["token_endpoint_auth_method"], "none");
    assert_eq!(public.get("jwks_uri"), None);
    for absent in ["idle", "none", "..", "default.json", ""] {
        let path = format!("/oauth/clients/{absent}.json");
        assert_eq!(Browser::new(&broker).send("GET", &path, "").await.status, 404, "{path}");
    }

    // A server that does not name itself in its answers gets a client that no other backend shares.
    let nameless = World::start(3600).await;
    nameless.server.set_metadata(json!({
        "code_challenge_methods_supported": ["S256"],
        "client_id_metadata_document_supported": true,
    }));
    let mut spec = nameless.spec();
    spec["auth"] = json!({"type": "oauth_user"});
    assert_eq!(broker.admin().put_backend("default", "nameless", &spec).await.0, 201);
    let browser = Browser::new(&broker);
    let proof = browser.proof_for("nameless").await;
    let refused = browser.send("POST", "/connect/nameless", &format!("proof={proof}")).await;
    assert_eq!(refused.status, 502);
    broker
        .wait_for_log("registers no clients and does not announce that its answers name it")
        .await;

    let published = keys(&broker).await;
    let asked = connected(&broker, &world).await;
    assert_eq!(member(&asked, "client_id"), Some(id.clone()));
    let assertion = member(&asked, "client_assertion").expect("a proof of the client");
    let first = signer(&assertion, &published);
    let claims = payload(&assertion);
    assert_eq!((&claims["sub"], &claims["aud"]), (&json!(id), &json!(world.server.issuer())));

    // A server that fetched the keys a period ago knows the key that is used now.
    let before = day(&broker).await;
    clock.set("+31d");
    // A login that the clock changes under would be too old.
    eventually("the broker to see its clock", || async {
        let day = day(&broker).await;
        if day == before { Err(day) } else { Ok(()) }
    })
    .await;
    let second = eventually("a proof with the next key", || async {
        let asked = connected(&broker, &world).await;
        let second = signer(&member(&asked, "client_assertion").unwrap(), &published);
        if second == first { Err(second) } else { Ok(second) }
    })
    .await;
    let later = keys(&broker).await;
    assert!([&first, &second].iter().all(|id| later.iter().any(|key| key["kid"] == **id)));
}

#[tokio::test]
async fn a_registration_contains_the_keys_if_the_server_accepts_no_document() {
    let (world, clock) = (World::start(3600).await, FakeClock::set_to("+0"));
    let endpoint = format!("{}/token", world.server.issuer());
    let metadata =
        json!({"code_challenge_methods_supported": ["S256"], "registration_endpoint": endpoint});
    world.server.set_metadata(metadata);
    let accepted = world.accepted.clone();
    world.server.answer_tokens(Arc::new(move |request, number| {
        let Ok(body) = serde_json::from_str::<Value>(&request.form) else {
            accepted.lock().insert(format!("Bearer token-{number}"));
            let token = format!("token-{number}");
            return (
                200,
                json!({"access_token": token, "token_type": "Bearer", "expires_in": 3600}),
            );
        };
        let has_keys = body["jwks_uri"] == format!("{BASE}/oauth/jwks.json?tenant=default")
            && body["token_endpoint_auth_method"] == "private_key_jwt"
            && body.get("client_id").is_none();
        if has_keys { (201, json!({"client_id": "made"})) } else { (400, json!({})) }
    }));
    let broker = start(&world, &clock).await;
    let published = keys(&broker).await;
    for _ in 0..2 {
        let asked = connected(&broker, &world).await;
        assert_eq!(member(&asked, "client_id").as_deref(), Some("made"));
        signer(&member(&asked, "client_assertion").unwrap(), &published);
    }
}
