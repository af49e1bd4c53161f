//! Accounts that people connect at backends: the pages, the grants, and what clients get before and
//! after.

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::{
    AuthorizationServer, Collector, SigningKey,
    authorization::{self, RESOURCE},
    eventually,
};

use crate::{
    accounts::{
        Browser, World, assert_proves, between, call, member, outputs, outputs_containing,
        parameter,
    },
    builder, text_of,
    tokens::reload::reload,
};

#[tokio::test]
async fn a_user_connects_an_account_and_the_backend_gets_its_token() {
    let world = World::start(3600).await;
    let broker = world.broker().await;
    let url = format!("{}/connect/b", broker.url(""));
    // A client that does not open URLs gets the address as text of a tool error.
    let client = broker.connected(json!({})).await;
    let answer = call(&client, "b__connect").await;
    assert_eq!(answer["isError"], true, "{answer}");
    assert!(answer.to_string().contains(&url), "{answer}");
    // One that does gets the error of MCP 2025-11-25.
    let opens = broker.connected(json!({"elicitation": {"url": {}}})).await;
    let error = opens.error("tools/call", json!({"name": "b__connect", "arguments": {}})).await;
    assert_eq!(error["code"], -32042, "{error}");
    assert_eq!(error["data"]["elicitations"][0]["url"], json!(url), "{error}");
    let mut answer = opens.open_get_stream().await;
    answer.next().await;
    let browser = Browser::new(&broker);
    let request = browser.start_login().await;
    assert!(
        request.starts_with(&format!("{}/authorize?response_type=code&", world.server.issuer()))
    );
    for (name, wanted) in
        [("code_challenge_method", "S256"), ("client_id", "broker"), ("scope", "base")]
    {
        assert_eq!(parameter(&request, name).as_deref(), Some(wanted), "{request}");
    }
    assert!(
        parameter(&request, "resource").is_some()
            && parameter(&request, "state").unwrap().len() > 43
    );
    assert_eq!(browser.answer(&request, "&code=code-1").await, 200);
    let id = &error["data"]["elicitations"][0]["elicitationId"];
    let completes = |message: &Value| {
        message["method"] == "notifications/elicitation/complete"
            && message["params"]["elicitationId"] == *id
    };
    answer.find(completes).await;
    assert_eq!(browser.answer(&request, "&code=code-1").await, 403, "an answer counts once");
    let asked = world.server.take_token_requests();
    assert_eq!(asked.len(), 1);
    assert!(
        member(&asked[0], "code_verifier").is_some() && member(&asked[0], "resource").is_some()
    );
    eventually("the tools", || async {
        let listed = client.result("tools/list", json!({})).await;
        if listed.to_string().contains("b__echo") { Ok(()) } else { Err(listed) }
    })
    .await;
    assert_ne!(call(&client, "b__echo").await["isError"], true);
    let path = "/admin/v1/tenants/default/connections";
    let (_, list) = broker.admin().get(path).await;
    let connection = &list["connections"][0];
    assert_eq!(
        (&connection["state"], &connection["principal"]),
        (&json!("connected"), &json!("anonymous"))
    );
    assert!(!list.to_string().contains("token-"), "{list}");
    assert_eq!(broker.admin().delete(&format!("{path}/anonymous/b")).await.0, 204);
    eventually("the end of the connection", || async {
        let answer = call(&client, "b__echo").await;
        if answer["isError"] == true { Ok(()) } else { Err(text_of(&answer).to_owned()) }
    })
    .await;
    assert!(!broker.log().contains("token-1") && !broker.log().contains("refresh-1"));
}

#[tokio::test]
async fn a_policy_hides_the_tool_connect() {
    let world = World::start(3600).await;
    let broker = world.broker().await;
    let client = broker.connected(json!({})).await;
    let policy = json!({"rules": [{"id": "d", "effect": "deny", "objects": {"tools": ["b/*"]}}]});
    let path = "/admin/v1/tenants/default/policy";
    assert_eq!(broker.admin().put(path, &policy).await.0, 201);
    let hidden = client.error("tools/call", json!({"name": "b__connect", "arguments": {}})).await;
    let absent = client.error("tools/call", json!({"name": "b__none", "arguments": {}})).await;
    assert_eq!(hidden["data"]["kind"], "tool_not_found", "{hidden}");
    let message = hidden["message"].as_str().unwrap().replace("connect", "none");
    assert_eq!((&hidden["code"], json!(message)), (&absent["code"], absent["message"].clone()));
}

#[tokio::test]
async fn answers_and_forms_of_another_browser_connect_no_account() {
    let world = World::start(3600).await;
    world.server.set_metadata(json!({"code_challenge_methods_supported": ["S256"], "authorization_response_iss_parameter_supported": true}));
    let broker = world.broker().await;
    let (victim, attacker) = (Browser::new(&broker), Browser::new(&broker));
    let request = attacker.start_login().await;
    assert_eq!(victim.answer(&request, "&code=c").await, 403, "of another browser");
    victim.start_login().await;
    assert_eq!(victim.answer(&request, "&code=c").await, 403, "that has begun a request too");
    let issuer = world.server.issuer().replace(':', "%3A").replace('/', "%2F");
    assert_eq!(attacker.answer(&request, "&code=c").await, 502, "without iss");
    let request = attacker.start_login().await;
    assert_eq!(attacker.answer(&request, &format!("&code=c&iss={issuer}%2F")).await, 502);
    let request = attacker.start_login().await;
    assert_eq!(attacker.answer(&request, &format!("&error=server_error&iss={issuer}")).await, 502);
    let request = attacker.start_login().await;
    let declined = format!("&error=access_denied&iss={issuer}");
    assert_eq!(attacker.answer(&request, &declined).await, 403, "the person said no");
    broker.wait_for_log("a person declined to connect an account").await;
    for form in ["", "proof=", "proof=x", "action=end&proof=x"] {
        assert_eq!(victim.send("POST", "/connect/b", form).await.status, 403, "{form}");
    }
    assert_eq!(world.server.take_token_requests(), []);
    let request = attacker.start_login().await;
    assert_eq!(attacker.answer(&request, &format!("&code=c&iss={issuer}")).await, 200);
    world.server.set_metadata(json!({}));
    let page = attacker.send("GET", "/connect/b", "").await;
    assert_eq!(page.status, 200);
    let page = page.text().await;
    let proof = between(&page, "name=\"proof\" value=\"", "\"").unwrap();
    let sent = attacker.send("POST", "/connect/b", &format!("proof={proof}")).await;
    assert_eq!(sent.status, 502, "a server without PKCE is not used");
}

#[tokio::test]
async fn concurrent_calls_with_an_expired_token_use_the_refresh_token_once() {
    let world = World::start(3).await;
    let broker = world.broker().await;
    let granted = async || {
        let labels = [("outcome", "granted")];
        broker.admin().metric("mcp_upstream_refresh_total", &labels).await
    };
    assert_eq!(granted().await, Some(0.0));
    assert_eq!(Browser::new(&broker).connect().await, 200);
    assert!(granted().await >= Some(1.0), "the exchange of the code");
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({})).await;
    eventually("three renewals", || async {
        let results =
            futures_util::future::join_all((0..20).map(|_| call(&client, "b__echo"))).await;
        assert!(results.iter().all(|result| result["isError"] != true), "{results:?}");
        let path = "/admin/v1/tenants/default/connections";
        let (_, list) = broker.admin().get(path).await;
        assert_eq!(list["connections"][0]["state"], "connected");
        let granted = granted().await;
        if granted >= Some(4.0) { Ok(()) } else { Err(granted) }
    })
    .await;
    // A server that refuses the refresh token ends the connection, and says so.
    world.server.answer_tokens(Arc::new(|_, _| (400, json!({"error": "invalid_grant"}))));
    eventually("the end", || async {
        let answer = call(&client, "b__echo").await;
        if answer["isError"] == true { Ok(()) } else { Err(answer) }
    })
    .await;
    let (_, list) = broker.admin().get("/admin/v1/tenants/default/connections").await;
    assert_eq!(list["connections"][0]["state"], "reconnect");
}

/// Supabase grants tokens with 201. GitHub sends errors with 200, under names of its own.
#[tokio::test]
async fn unusual_statuses_of_a_token_endpoint_are_understood() {
    let world = World::start(3600).await;
    let accepted = world.accepted.clone();
    world.server.answer_tokens(Arc::new(move |request, number| {
        if member(request, "refresh_token").is_some() {
            return (200, json!({"error": "bad_refresh_token", "error_description": "expired"}));
        }
        accepted.lock().insert(format!("Bearer token-{number}"));
        (201, json!({"access_token": format!("token-{number}"), "token_type": "bearer", "refresh_token": "once"}))
    }));
    let broker = world.broker().await;
    assert_eq!(Browser::new(&broker).connect().await, 200);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({})).await;
    let answer = call(&client, "b__echo").await;
    assert_ne!(answer["isError"], true, "{answer}");
    world.accepted.lock().clear();
    eventually("the end", || async {
        let answer = call(&client, "b__echo").await;
        if answer["isError"] == true { Ok(()) } else { Err(answer) }
    })
    .await;
    let (_, list) = broker.admin().get("/admin/v1/tenants/default/connections").await;
    assert_eq!(list["connections"][0]["state"], "reconnect");
}

/// Some servers send an ID token with any scopes. The broker makes something of it only if they are
/// an identity provider.
#[tokio::test]
async fn an_id_token_that_ends_first_does_not_end_an_account() {
    let world = World::start(3600).await;
    let accepted = world.accepted.clone();
    let id_token = world.server.token_with("ann", json!({"exp": authorization::now() - 1}));
    world.server.answer_tokens(Arc::new(move |_, number| {
        accepted.lock().insert(format!("Bearer token-{number}"));
        (200, json!({"access_token": format!("token-{number}"), "token_type": "Bearer", "expires_in": 3600, "id_token": id_token}))
    }));
    let broker = world.broker().await;
    assert_eq!(Browser::new(&broker).connect().await, 200);
    let (_, list) = broker.admin().get("/admin/v1/tenants/default/connections").await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({})).await;
    let answer = call(&client, "b__echo").await;
    assert_ne!(answer["isError"], true, "{answer} {list}");
    assert_eq!(world.server.take_token_requests().len(), 1);
}

#[tokio::test]
async fn a_backend_that_requires_more_scopes_leads_to_the_connect_page_again() {
    let world = World::start(3600).await;
    let broker = world.broker().await;
    let browser = Browser::new(&broker);
    assert_eq!(browser.connect().await, 200);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = broker.connected(json!({})).await;
    call(&client, "b__echo").await;
    world.gate(true);
    let answer = call(&client, "b__echo").await;
    assert!(answer.to_string().contains("/connect/b"), "{answer}");
    let request = browser.start_login().await;
    assert_eq!(parameter(&request, "scope").as_deref(), Some("base+more"));
}

#[tokio::test]
async fn a_sign_in_link_works_once_for_its_principal() {
    let world = World::start(3600).await;
    let broker =
        builder().single_process().auth_required().admin_token("operator-of-tests").start().await;
    let admin = broker.admin();
    let (status, view) = admin.put_backend("default", "b", &world.spec()).await;
    assert_eq!(status, 201, "{view}");
    let page = Browser::new(&broker);
    assert_eq!(page.send("GET", "/connect/b", "").await.status, 403, "without a login");
    let path = "/admin/v1/tenants/default/connections";
    let (status, link) = admin.post(path, &json!({"principal": "ann", "backend": "b"})).await;
    assert_eq!(status, 201, "{link}");
    let secret = parameter(link["url"].as_str().unwrap(), "link").unwrap();
    let browser = Browser::new(&broker);
    assert_eq!(browser.send("GET", &format!("/connect?link={secret}"), "").await.status, 200);
    assert_eq!(browser.send("POST", "/connect", &format!("link={secret}")).await.status, 303);
    let thief = Browser::new(&broker);
    assert_eq!(thief.send("POST", "/connect", &format!("link={secret}")).await.status, 403);
    assert_eq!(browser.connect().await, 200);
    let (_, list) = admin.get(path).await;
    assert_eq!(list["connections"][0]["principal"], "ann", "{list}");
    for (body, wanted) in [
        (json!({"principal": "", "backend": "b"}), 400),
        (json!({"principal": "ann", "backend": "c"}), 404),
        (json!({"backend": "b"}), 400),
    ] {
        assert_eq!(admin.post(path, &body).await.0, wanted, "{body}");
    }
}

#[tokio::test]
async fn a_shared_link_cannot_carry_tokens_of_users() {
    let world = World::start(3600).await;
    let broker = builder().single_process().start().await;
    let mut spec = world.spec();
    spec["links"] = json!("shared");
    let (status, problem) = broker.admin().put_backend("default", "b", &spec).await;
    assert_eq!(status, 400, "{problem}");
    assert_eq!(problem["field"], "auth.type");
}

/// Returns a text that occurs nowhere by chance.
fn canary(of: &str, number: usize) -> String {
    format!("{of}-canary-7f3a9c51-{number:08}-0123456789")
}

#[tokio::test]
async fn tokens_of_users_are_in_no_output_and_in_no_file() {
    let world = World::start(3600).await;
    let accepted = world.accepted.clone();
    world.server.answer_tokens(Arc::new(move |_, number| {
        let (access, refresh) = (canary("access", number), canary("refresh", number));
        accepted.lock().insert(format!("Bearer {access}"));
        (200, json!({"access_token": access, "token_type": "Bearer", "expires_in": 3600, "refresh_token": refresh}))
    }));
    let collector = Collector::start().await;
    let traces = json!({"telemetry": {"traces": {"endpoint": collector.endpoint()}}});
    let broker = builder().single_process().config(traces).start().await;
    let mut spec = world.spec();
    spec["auth"]["client_secret"] = json!(canary("secret", 0));
    assert_eq!(broker.admin().put_backend("default", "b", &spec).await.0, 201);
    let browser = Browser::new(&broker);
    let request = browser.start_login().await;
    let (code, state) = (canary("code", 0), parameter(&request, "state").unwrap());
    assert_eq!(browser.answer(&request, &format!("&code={code}")).await, 200);
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let client = broker.client("/mcp").header("traceparent", trace).connected(json!({})).await;
    assert_ne!(call(&client, "b__echo").await["isError"], true);
    // A refused token is not shown either.
    world.accepted.lock().clear();
    assert_ne!(call(&client, "b__echo").await["isError"], true);
    eventually("spans", || async {
        if collector.spans().is_empty() { Err("none") } else { Ok(()) }
    })
    .await;
    let seen = format!("{:?}", world.backend.recorded()).into_bytes();
    assert_eq!(outputs_containing(&[&canary("access", 1)], &[("it".to_owned(), seen)]), ["it"]);
    let mut secrets = vec![code, state, canary("secret", 0)];
    for number in 1..=2 {
        secrets.extend([canary("access", number), canary("refresh", number)]);
    }
    let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
    assert_eq!(outputs_containing(&secrets, &outputs(&broker, &collector.spans()).await), [""; 0]);
}

#[tokio::test]
async fn a_person_signs_in_with_the_issuer_of_its_tokens() {
    let world = World::start(3600).await;
    let issuer = AuthorizationServer::start().await;
    issuer.set_metadata(json!({"code_challenge_methods_supported": ["S256"], "authorization_response_iss_parameter_supported": true}));
    let sign_in =
        json!({"sign_in": {"client_id": "pages", "client_secret": "the-secret-of-the-pages"}});
    let broker = builder()
        .single_process()
        .auth_required()
        .admin_token("operator-of-tests")
        .config(issuer.config("default", sign_in))
        .start()
        .await;
    assert_eq!(broker.admin().put_backend("default", "b", &world.spec()).await.0, 201);
    let client = broker.client("/mcp").bearer(&issuer.token("ann")).connected(json!({})).await;
    assert!(call(&client, "b__connect").await.to_string().contains("/connect/b"));

    // The page offers the issuer, and leads there with a form of its own only.
    let start_login = |browser: Browser| async move {
        let page = browser.send("GET", "/connect/b", "").await.text().await;
        assert!(page.contains("Sign in at"), "{page}");
        let proof = between(&page, "name=\"proof\" value=\"", "\"").unwrap();
        let name = between(&page, "name=\"issuer\" value=\"", "\"").unwrap();
        let form = |proof: &str| format!("issuer={name}&backend=b&proof={proof}");
        assert_eq!(browser.send("POST", "/connect", &form("x")).await.status, 403);
        let sent = browser.send("POST", "/connect", &form(proof)).await;
        let location = sent.header("location").unwrap().to_owned();
        (browser, location)
    };
    let from = issuer.issuer().replace(':', "%3A").replace('/', "%2F");
    let (browser, request) = start_login(Browser::new(&broker)).await;
    assert_eq!(parameter(&request, "scope").as_deref(), Some("openid"));
    let answers = |request: &str, changes: Value| {
        let mut claims = json!({"aud": "pages", "nonce": parameter(request, "nonce")});
        claims.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let token = issuer.token_with("ann", claims);
        issuer.answer_tokens(Arc::new(move |_, _| {
            (200, json!({"access_token": "x", "token_type": "Bearer", "id_token": token}))
        }));
    };
    answers(&request, json!({}));
    // The thief has begun a sign-in of its own.
    let (thief, _) = start_login(Browser::new(&broker)).await;
    assert_eq!(thief.answer(&request, &format!("&code=c&iss={from}")).await, 403);
    assert_eq!(browser.answer(&request, &format!("&code=c&iss={from}")).await, 303);
    assert_eq!(browser.answer(&request, &format!("&code=c&iss={from}")).await, 403, "once");
    assert_eq!(browser.connect().await, 200);
    let (_, list) = broker.admin().get("/admin/v1/tenants/default/connections").await;
    assert_eq!(list["connections"][0]["principal"], json!(format!("{} ann", issuer.issuer())));
    eventually("the tools", || async {
        let lists = client.result("tools/list", json!({})).await;
        if lists.to_string().contains("b__echo") { Ok(()) } else { Err(lists) }
    })
    .await;
    assert_ne!(call(&client, "b__echo").await["isError"], true);
    let asked = issuer.take_token_requests();
    assert_proves(&asked[0], &request, &format!("{RESOURCE}/oauth/callback"));
    assert!(asked[0].authorization.as_deref().unwrap().starts_with("Basic "));

    // What does not prove the person signs no browser in.
    for (changes, iss) in [
        (json!({"aud": "other"}), from.as_str()),
        (json!({"aud": ["pages", "other"]}), from.as_str()),
        (json!({"nonce": "another"}), from.as_str()),
        (json!({"iss": "https://evil.example"}), from.as_str()),
        (json!({"exp": 1}), from.as_str()),
        (json!({}), "https%3A%2F%2Fevil.example"),
    ] {
        let (browser, request) = start_login(Browser::new(&broker)).await;
        answers(&request, changes.clone());
        let status = browser.answer(&request, &format!("&code=c&iss={iss}")).await;
        assert!([403, 502].contains(&status), "{changes} {iss}: {status}");
        assert!(browser.send("GET", "/connect/b", "").await.text().await.contains("Sign in at"));
    }
    // Older than the revocation below, which only reaches tokens of the same second and before.
    let issued = authorization::now() - 5;
    let refused = async |key: &SigningKey, why: &str| {
        let (browser, request) = start_login(Browser::new(&broker)).await;
        let nonce = parameter(&request, "nonce");
        let claims = json!({"aud": "pages", "nonce": nonce, "iat": issued});
        let token = key.sign(&issuer.claims("ann", claims));
        issuer.answer_tokens(Arc::new(move |_, _| {
            (200, json!({"access_token": "x", "token_type": "Bearer", "id_token": token}))
        }));
        let status = browser.answer(&request, &format!("&code=c&iss={from}")).await;
        assert_eq!(status, 403, "{why}");
    };
    refused(&SigningKey::ec("one"), "the key of another server with the same name").await;
    let enable = async |enabled: bool| {
        let (status, answer) =
            broker.admin().put("/admin/v1/tenants/default", &json!({"enabled": enabled})).await;
        assert_eq!(status, 200, "{answer}");
    };
    enable(false).await;
    refused(issuer.key(), "a tenant that is not enabled").await;
    enable(true).await;
    // A login ends when its issuer may sign in no one any more.
    let is_signed_in = async || {
        browser.send("GET", "/connect/b", "").await.text().await.contains("You are signed in as")
    };
    assert!(is_signed_in().await);
    let settings = std::cell::RefCell::new(Value::Null);
    reload(&broker, |config| {
        *settings.borrow_mut() = config["auth"]["issuers"][0]["sign_in"].take();
        config["auth"]["issuers"][0].as_object_mut().unwrap().remove("sign_in");
    })
    .await;
    assert!(!is_signed_in().await);
    reload(&broker, |config| config["auth"]["issuers"][0]["sign_in"] = settings.take()).await;
    let revocation = json!({"principal": format!("{} ann", issuer.issuer())});
    let (status, made) =
        broker.admin().post("/admin/v1/tenants/default/revocations", &revocation).await;
    assert_eq!(status, 201, "{made}");
    refused(issuer.key(), "a revoked principal").await;
}
