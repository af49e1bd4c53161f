//! Refused tokens, from outside: all get the same answer, and the broker fetches nothing from URLs
//! in them.

use serde_json::{Value, json};
use testkit::{
    AuthorizationServer, FakeBackend, SigningKey,
    authorization::{RESOURCE, encoded, now},
};

use super::{client, guarded, started, status, until_status};
use crate::{configured, initialize_body, kind, refused};

#[tokio::test]
async fn auth_03_auth_09_a_06_all_forged_tokens_are_refused_equally() {
    let (broker, server, _backend) = started().await;
    let canary = AuthorizationServer::start().await;
    let (key, other) = (server.key(), SigningKey::ec("one"));
    let good = server.token("ann");
    until_status(&broker, &good, 200).await;
    let asked = server.key_requests();
    let claims = || server.claims("ann", json!({}));
    let with = |changes: Value| server.token_with("ann", changes);
    let under = |header: Value| key.sign_under(&header, &claims());
    let parts: Vec<&str> = good.split('.').collect();
    let at = |seconds: i64| now().checked_add_signed(seconds).unwrap();
    let mut texts = std::collections::HashSet::new();
    for (what, token) in [
        ("no signature", format!("{}.{}.", encoded(r#"{"alg":"none"}"#), parts[1])),
        ("no algorithm", under(json!({"alg": "none", "kid": "one"}))),
        ("a shared secret", under(json!({"alg": "HS256", "kid": "one"}))),
        ("another key of that name", other.sign(&claims())),
        ("an algorithm of another key type", under(json!({"alg": "RS256", "kid": "one"}))),
        ("its own key", other.sign_under(&json!({"alg": "ES256", "kid": "one", "jwk": other.public()}), &claims())),
        (
            "keys elsewhere",
            other.sign_under(&json!({"alg": "ES256", "kid": "one", "jku": canary.keys_url(), "x5u": canary.keys_url()}), &claims()),
        ),
        ("a critical header", under(json!({"alg": "ES256", "kid": "one", "crit": ["b64"], "b64": false}))),
        ("another kind of token", under(json!({"alg": "ES256", "kid": "one", "typ": "secevent+jwt"}))),
        ("expired", with(json!({"exp": at(-90)}))),
        ("without end", with(json!({"exp": null}))),
        ("not yet valid", with(json!({"nbf": at(90)}))),
        ("of the future", with(json!({"iat": at(90)}))),
        ("for somebody else", with(json!({"aud": "https://other.example.com"}))),
        ("for nobody", with(json!({"aud": null}))),
        ("of another issuer", with(json!({"iss": canary.issuer()}))),
        ("of an issuer that looks like it", with(json!({"iss": format!("{}/", server.issuer())}))),
        ("of nobody", with(json!({"sub": null}))),
        ("a claim twice", key.sign_text(&key.header().to_string(), &format!("{{\"sub\":\"eve\",{}", &claims().to_string()[1..]))),
        ("a header twice", key.sign_text(&format!("{{\"alg\":\"none\",{}", &key.header().to_string()[1..]), &claims().to_string())),
        ("claims of another", format!("{}.{}.{}", parts[0], encoded(server.claims("eve", json!({})).to_string()), parts[2])),
        ("a part too many", format!("{good}.{}", parts[2])),
        ("cut", good[..good.len() - 1].to_owned()),
        ("twice", format!("{good}{good}")),
        ("in capitals", good.to_uppercase()),
        ("too long", with(json!({"x": "y".repeat(9_000)}))),
        ("an API key that is none", "mcpb_AAAAAAAAAAAA_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".to_owned()),
    ] {
        let response = client(&broker, &token).post(initialize_body("2025-11-25")).await;
        assert!(response.header("www-authenticate").is_some_and(|text| text.contains("error=\"invalid_token\"")), "{what}");
        let (status, error) = refused(response).await;
        assert_eq!((status, kind(&error)), (401, "unauthorized"), "{what}");
        texts.insert(error["message"].as_str().unwrap().to_owned());
    }
    assert_eq!(
        texts,
        ["the token is not valid for this broker".to_owned()].into(),
        "the reason stays in the log"
    );
    assert_eq!(
        (server.key_requests(), canary.key_requests(), canary.metadata_requests()),
        (asked, 0, 0),
        "nothing was fetched for them"
    );
    assert_eq!(status(&broker, &good).await, 200);
    assert!(
        broker.admin().metric("mcp_tokens_checked_total", &[("outcome", "refused")]).await.unwrap()
            >= 25.0
    );
}

#[tokio::test]
async fn a_token_is_valid_for_the_resource_or_the_configured_audiences() {
    let (broker, server, _backend) = started().await;
    until_status(&broker, &server.token("ann"), 200).await;
    for audience in [
        json!(format!("{RESOURCE}/mcp")),
        json!(format!("{RESOURCE}/mcp/b")),
        json!(["x", RESOURCE]),
    ] {
        assert_eq!(
            status(&broker, &server.token_with("ann", json!({"aud": audience}))).await,
            200,
            "{audience}"
        );
    }
    let backend = FakeBackend::echo().await;
    let broker = guarded(&server, &backend, json!({"audiences": ["mcp"]})).start().await;
    until_status(&broker, &server.token_with("ann", json!({"aud": "mcp"})), 200).await;
    assert_eq!(status(&broker, &server.token("ann")).await, 401);
}

#[tokio::test]
async fn a_token_of_a_tenant_that_is_unknown_or_disabled_is_refused_at_once() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let more = json!({"tenant": null, "tenant_claim": "org"});
    let broker = guarded(&server, &backend, more).start().await;
    let (acme, nobody) = (
        server.token_with("ann", json!({"org": "acme"})),
        server.token_with("ann", json!({"org": "umbrella"})),
    );
    until_status(&broker, &acme, 200).await;
    assert_eq!(
        (status(&broker, &nobody).await, status(&broker, &server.token("ann")).await),
        (401, 401)
    );
    let ann = client(&broker, &acme).connected(json!({})).await;
    ann.call("b__echo", json!({})).await;
    broker.admin().put_tenant("acme", json!({"enabled": false})).await;
    assert_eq!(status(&broker, &acme).await, 401);
    assert_eq!(
        ann.post(crate::request(9, "ping", json!({}))).await.status,
        401,
        "on a connection that knows it too"
    );
    broker.admin().put_tenant("acme", json!({"enabled": true})).await;
    assert_eq!(status(&broker, &acme).await, 200);
}

#[tokio::test]
async fn without_required_auth_only_a_bad_token_is_refused() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let broker = configured(server.config("default", json!({})), backend.spec()).await;
    let anonymous = broker.connected(json!({})).await;
    assert_eq!(anonymous.tool_names().await, ["b__echo"]);
    assert_eq!(status(&broker, &server.token_with("ann", json!({"exp": 1}))).await, 401);
    until_status(&broker, &server.token("ann"), 200).await;
    let key = broker.admin().create_key("default").await;
    assert_eq!(status(&broker, &key).await, 200, "API keys go on being taken");
    let ann = super::with_token(&broker, &anonymous, &server.token("ann"));
    assert_eq!(
        ann.post(crate::request(9, "ping", json!({}))).await.status,
        404,
        "a session of anonymous callers is none of hers"
    );
}

#[tokio::test]
async fn no_api_key_can_be_created_for_the_principal_of_a_token() {
    let (broker, server, _backend) = started().await;
    for principal in
        [format!("{} ann", server.issuer()), "https://login.example.com ann".to_owned()]
    {
        let (status, answer) = broker
            .admin()
            .post("/admin/v1/tenants/acme/keys", &json!({"principal": principal}))
            .await;
        assert!([400, 422].contains(&status), "{answer}");
    }
}

#[tokio::test]
async fn s10_id_tokens_bound_tokens_and_hidden_characters_are_refused() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let broker = guarded(&server, &backend, json!({"audiences": ["client-7", RESOURCE]}))
        .config(json!({"telemetry": {"log": "debug"}}))
        .start()
        .await;
    until_status(&broker, &server.token("ann"), 200).await;
    let key = server.key();
    let header = |kind: &str| json!({"alg": "ES256", "kid": "one", "typ": kind});
    let of_client = |changes: Value| {
        let mut claims = server.claims("ann", json!({"aud": "client-7"}));
        claims.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        claims
    };
    let id_token = |claim: &str| key.sign_under(&header("JWT"), &of_client(json!({claim: "x"})));
    let mut texts = std::collections::HashSet::new();
    for (what, token) in [
        ("an ID token with a nonce", id_token("nonce")),
        ("an ID token with at_hash", id_token("at_hash")),
        ("an ID token with c_hash", id_token("c_hash")),
        ("bound to a key", server.token_with("ann", json!({"cnf": {"jkt": "x"}}))),
        (
            "the connection does not present the certificate that the token is bound to",
            server.token_with("ann", json!({"cnf": {"x5t#S256": "x"}})),
        ),
        ("a subject that is read backwards", server.token("\u{202e}nna")),
        ("a subject with a separator of lines", server.token("ann\u{2028}admin")),
        ("a subject with a character without width", server.token("ann\u{200b}")),
    ] {
        let response = client(&broker, &token).post(initialize_body("2025-11-25")).await;
        assert!(
            response
                .header("www-authenticate")
                .is_some_and(|text| text.contains("error=\"invalid_token\"")),
            "{what}"
        );
        let (status, error) = refused(response).await;
        assert_eq!((status, kind(&error)), (401, "unauthorized"), "{what}");
        texts.insert(error["message"].as_str().unwrap().to_owned());
    }
    assert_eq!(texts, ["the token is not valid for this broker".to_owned()].into());
    for reason in [
        "the token is an ID token, not an access token",
        "the token is bound (cnf) by another method than a client certificate",
        "invisible characters",
    ] {
        broker.wait_for_log(reason).await;
    }
    for fine in [
        key.sign_under(&header("JWT"), &of_client(json!({}))),
        key.sign_under(&header("at+jwt"), &of_client(json!({"nonce": "x"}))),
    ] {
        assert_eq!(status(&broker, &fine).await, 200);
    }
}

#[tokio::test]
async fn s10_the_type_of_an_access_token_can_be_required() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let broker = guarded(&server, &backend, json!({"require_typ": "at+jwt"})).start().await;
    let typed = |header: Value| server.key().sign_under(&header, &server.claims("ann", json!({})));
    until_status(&broker, &typed(json!({"alg": "ES256", "kid": "one", "typ": "at+jwt"})), 200)
        .await;
    assert_eq!(
        status(&broker, &typed(json!({"alg": "ES256", "kid": "one", "typ": "application/at+jwt"})))
            .await,
        200
    );
    for header in
        [json!({"alg": "ES256", "kid": "one"}), json!({"alg": "ES256", "kid": "one", "typ": "JWT"})]
    {
        assert_eq!(status(&broker, &typed(header.clone())).await, 401, "{header}");
    }
}

#[tokio::test]
async fn s10_a_tenant_claim_is_accepted_only_for_listed_tenants() {
    let (server, backend) = (AuthorizationServer::start().await, FakeBackend::echo().await);
    let listed = json!({"tenant": null, "tenant_claim": "org", "tenants": ["acme"]});
    let broker = guarded(&server, &backend, listed).tenant("umbrella").start().await;
    let of = |tenant: &str| server.token_with("ann", json!({"org": tenant}));
    until_status(&broker, &of("acme"), 200).await;
    let key = broker.admin().create_key("umbrella").await;
    assert_eq!(status(&broker, &key).await, 200, "the other tenant is served");
    assert_eq!(
        (status(&broker, &of("umbrella")).await, status(&broker, &of("default")).await),
        (401, 401)
    );
    assert!(!broker.log().contains(
        "tokens of this issuer can name every tenant; set auth.issuers[].tenants to limit them"
    ));
    let unlisted =
        guarded(&server, &backend, json!({"tenant": null, "tenant_claim": "org"})).start().await;
    unlisted
        .wait_for_log(
            "tokens of this issuer can name every tenant; set auth.issuers[].tenants to limit them",
        )
        .await;
}
