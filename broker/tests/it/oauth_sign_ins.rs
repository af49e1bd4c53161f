//! Sign-ins at the connect page with an issuer, which a stranger can begin too: what they cost the
//! issuer and the database, and who still gets in.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::{AuthorizationServer, IssuerBehavior, SigningKey, TestBroker, eventually};

use crate::{
    accounts::{Browser, World, between, callback_of, parameter},
    builder,
};

/// Sign-ins that use an issuer at the same time.
const AT_ONCE: usize = 16;

/// Starts a broker at which people sign in with the issuer, and waits for the issuer's keys.
async fn broker_of(issuer: &AuthorizationServer, more: Value) -> TestBroker {
    broker_with(issuer, json!({"client_id": "pages"}), more).await
}

async fn broker_with(issuer: &AuthorizationServer, sign_in: Value, more: Value) -> TestBroker {
    issuer.set_metadata(json!({"code_challenge_methods_supported": ["S256"]}));
    // Requests for metadata are those of sign-ins alone.
    let entry = json!({"sign_in": sign_in, "jwks_url": issuer.keys_url()});
    let broker = builder()
        .single_process()
        .auth_required()
        .admin_token("operator-of-tests")
        .config(issuer.config("default", entry))
        .config(more)
        .start()
        .await;
    eventually("the keys of the issuer", || async {
        let absent = broker.admin().metric("mcp_issuers_without_keys", &[]).await;
        if absent == Some(0.0) { Ok(()) } else { Err(absent) }
    })
    .await;
    broker
}

/// Returns the members of the form that the page offers, with this backend.
async fn form_of(browser: &Browser, backend: &str) -> String {
    let page = browser.send("GET", "/connect/b", "").await.text().await;
    let value = |name: &str| {
        between(&page, &format!("name=\"{name}\" value=\""), "\"").expect(&page).to_owned()
    };
    format!("issuer={}&backend={backend}&proof={}", value("issuer"), value("proof"))
}

/// Sends the form of the page. Returns the address of the authorization request.
async fn start_sign_in(browser: &Browser) -> String {
    let sent = browser.send("POST", "/connect", &form_of(browser, "b").await).await;
    let status = sent.status;
    let location = sent.header("location").map(str::to_owned);
    location.unwrap_or_else(|| panic!("no redirect, but {status}"))
}

/// The issuer answers the next token request with an ID token for this authorization request.
fn issue(issuer: &AuthorizationServer, key: &SigningKey, request: &str) {
    let claims = json!({"aud": "pages", "nonce": parameter(request, "nonce")});
    let token = key.sign(&issuer.claims("ann", claims));
    issuer.answer_tokens(Arc::new(move |_, _| {
        (200, json!({"access_token": "x", "token_type": "Bearer", "id_token": token}))
    }));
}

fn refuse(issuer: &AuthorizationServer) {
    issuer.answer_tokens(Arc::new(|_, _| (400, json!({"error": "invalid_grant"}))));
}

/// Returns how often the database was used in this way.
async fn uses(broker: &TestBroker, operation: &str) -> f64 {
    let labels = [("operation", operation)];
    broker.admin().metric("mcp_store_seconds_count", &labels).await.unwrap_or_default()
}

#[tokio::test]
async fn the_start_of_a_sign_in_writes_nothing_and_seldom_asks_the_issuer() {
    let issuer = AuthorizationServer::start().await;
    let broker = broker_of(&issuer, json!({})).await;
    let before = uses(&broker, "put_secret").await;
    let stranger = Browser::new(&broker);
    for _ in 0..20 {
        start_sign_in(&stranger).await;
    }
    assert_eq!(issuer.metadata_requests(), 1);
    assert_eq!(uses(&broker, "put_secret").await, before);
    for backend in ["x".repeat(5_000), "..%2Fadmin".to_owned()] {
        let form = form_of(&stranger, &backend).await;
        let sent = stranger.send("POST", "/connect", &form).await;
        assert_eq!((sent.status, sent.header("location")), (404, None), "{backend}");
    }
}

/// A stranger needs no failure of an address for them.
#[tokio::test]
async fn attempts_while_the_issuer_is_away_do_not_fill_the_log() {
    const MANY: usize = 300;
    let issuer = AuthorizationServer::start().await;
    let broker = broker_of(&issuer, json!({})).await;
    let stranger = Browser::new(&broker);
    let form = form_of(&stranger, "b").await;
    issuer.set_behavior(IssuerBehavior::Gone);
    for _ in 0..MANY {
        assert_eq!(stranger.send("POST", "/connect", &form).await.status, 502);
    }
    let line = "a person could not log in at the connect page";
    broker.wait_for_log(line).await;
    let lines = broker.log().matches(line).count();
    assert!(lines < MANY / 2, "{lines} lines");
}

/// Another issuer has another redirect URI, so it cannot bring an answer of this one.
#[tokio::test]
async fn an_issuer_with_its_own_redirect_uri_answers_there_only() {
    let issuer = AuthorizationServer::start().await;
    let sign_in = json!({"client_id": "pages", "callback": "one"});
    let broker = broker_with(&issuer, sign_in, json!({})).await;
    let browser = Browser::new(&broker);
    let request = start_sign_in(&browser).await;
    let (state, redirect_uri) =
        (parameter(&request, "state").unwrap(), parameter(&request, "redirect_uri").unwrap());
    assert_eq!(callback_of(&redirect_uri), "/oauth/callback/one");
    issue(&issuer, issuer.key(), &request);
    for path in ["/oauth/callback", "/oauth/callback/two", "/oauth/callback/one/more"] {
        let sent = browser.send("GET", &format!("{path}?state={state}&code=c"), "").await;
        assert_eq!(sent.status, 403, "{path}");
    }
    assert_eq!(issuer.take_token_requests(), []);
    assert_eq!(browser.answer(&request, "&code=c").await, 303);
}

#[tokio::test]
async fn pages_in_two_tabs_of_a_browser_sign_in_at_the_same_time() {
    let issuer = AuthorizationServer::start().await;
    let broker = broker_of(&issuer, json!({})).await;
    let browser = Browser::new(&broker);
    let first = start_sign_in(&browser).await;
    // The names of the cookies have few values.
    let slot = |request: &str| {
        let state = parameter(request, "state").unwrap().to_lowercase();
        state.split_once('.').unwrap().1.chars().find(char::is_ascii_alphanumeric)
    };
    let second = eventually("a sign-in with another cookie", || async {
        let second = start_sign_in(&browser).await;
        if slot(&second) == slot(&first) { Err(second) } else { Ok(second) }
    })
    .await;
    for request in [second, first] {
        issue(&issuer, issuer.key(), &request);
        assert_eq!(browser.answer(&request, "&code=c").await, 303);
    }
}

#[tokio::test]
async fn an_address_with_failed_sign_ins_sends_an_issuer_no_further_codes() {
    let issuer = AuthorizationServer::start().await;
    let limits = json!({"limits": {"sign_in_failures_per_minute": 3}, "listen": {"trusted_proxies": ["127.0.0.1/32"]}});
    let broker = broker_of(&issuer, limits).await;
    let world = World::start(3600).await;
    assert_eq!(broker.admin().put_backend("default", "b", &world.spec()).await.0, 201);
    refuse(&issuer);
    let attacker = Browser::new(&broker).from("192.0.2.1");
    for status in [502, 502, 502, 429, 429] {
        let request = start_sign_in(&attacker).await;
        assert_eq!(attacker.answer(&request, "&code=guessed").await, status);
    }
    assert_eq!(issuer.take_token_requests().len(), 3);
    let labels = [("plane", "data"), ("reason", "login")];
    assert_eq!(broker.admin().metric("mcp_auth_failures_total", &labels).await, Some(3.0));

    // Another client of the proxy signs in.
    let person = Browser::new(&broker).from("192.0.2.2");
    let request = start_sign_in(&person).await;
    issue(&issuer, issuer.key(), &request);
    assert_eq!(person.answer(&request, "&code=c").await, 303);

    // A link that is not valid counts too, and writes nothing. A valid one always signs in.
    let taken = uses(&broker, "take_secret").await;
    let other = Browser::new(&broker).from("192.0.2.3");
    for status in [403, 403, 403, 429] {
        let sent = other.send("POST", "/connect", "link=default.guessed").await;
        assert_eq!(sent.status, status);
        assert_eq!(sent.header("retry-after").is_some(), status == 429);
    }
    assert_eq!(uses(&broker, "take_secret").await, taken);
    let read = uses(&broker, "get_secret").await;
    for _ in 0..3 {
        let sent = other.send("POST", "/connect", "link=default.guessed").await;
        assert_eq!(sent.status, 429);
    }
    assert_eq!(uses(&broker, "get_secret").await, read, "the database is not asked");
    let path = "/admin/v1/tenants/default/connections";
    let wanted = json!({"principal": "ann", "backend": "b"});
    let (status, link) = broker.admin().post(path, &wanted).await;
    assert_eq!(status, 201, "{link}");
    let secret = parameter(link["url"].as_str().unwrap(), "link").unwrap();
    assert_eq!(other.send("POST", "/connect", &format!("link={secret}")).await.status, 303);
}

#[tokio::test]
async fn a_limited_number_of_sign_ins_waits_for_an_issuer() {
    let (issuer, world) = (AuthorizationServer::start().await, World::start(3_600).await);
    let broker = broker_of(&issuer, json!({"limits": {"sign_in_failures_per_minute": 0}})).await;
    assert_eq!(broker.admin().put_backend("default", "b", &world.spec()).await.0, 201);
    let browser = Browser::new(&broker);
    let request = start_sign_in(&browser).await;
    refuse(&issuer);
    issuer.hold_tokens(true);
    let waiting = join_all((0..AT_ONCE).map(|_| browser.answer(&request, "&code=c")));
    let released = async {
        eventually("the waiting sign-ins", || async {
            let count = issuer.token_requests().len();
            if count == AT_ONCE { Ok(()) } else { Err(count) }
        })
        .await;
        let other = Browser::new(&broker);
        let form = form_of(&other, "b").await;
        let busy = other.send("POST", "/connect", &form).await;
        assert_eq!((busy.status, busy.header("retry-after")), (503, Some("2")));
        assert_eq!(browser.answer(&request, "&code=c").await, 503);
        // A link needs no issuer.
        let path = "/admin/v1/tenants/default/connections";
        let (status, link) =
            broker.admin().post(path, &json!({"principal": "ann", "backend": "b"})).await;
        assert_eq!(status, 201, "{link}");
        let secret = parameter(link["url"].as_str().unwrap(), "link").unwrap();
        assert_eq!(other.send("POST", "/connect", &format!("link={secret}")).await.status, 303);
        issuer.hold_tokens(false);
    };
    let (statuses, ()) = tokio::join!(waiting, released);
    assert!(statuses.iter().all(|status| *status == 502), "{statuses:?}");
}

/// The broker fetches the keys of an issuer every five minutes.
#[tokio::test]
async fn a_person_signs_in_with_a_key_that_the_issuer_has_just_published() {
    let issuer = AuthorizationServer::start().await;
    let broker = broker_of(&issuer, json!({"limits": {"sign_in_failures_per_minute": 0}})).await;
    let new = SigningKey::ed("two");
    issuer.publish(&[&new]);
    eventually("a sign-in with the new key", || async {
        let browser = Browser::new(&broker);
        let request = start_sign_in(&browser).await;
        issue(&issuer, &new, &request);
        match browser.answer(&request, "&code=c").await {
            303 => Ok(()),
            other => Err(other),
        }
    })
    .await;
}
