//! Logins of operators at an issuer, as a browser sends them to the console. The pages themselves are
//! tested in a browser (`peers/console.rs`).

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::{
    AdminClient, AuthorizationServer, TestBroker, authorization::RESOURCE, eventually,
    http::RawResponse,
};

use crate::{
    accounts::{assert_proves, form_text, parameter},
    builder,
};

const AUDIENCE: &str = "https://broker.example/operators";
const FAILED: Option<&str> = Some("./#/login-failed");

/// A browser at the console.
struct Page {
    admin: AdminClient,
    origin: String,
}

impl Page {
    fn callback(&self) -> String {
        format!("{}/console/callback", self.origin)
    }

    /// Begins a login at an issuer, as the page of this origin does.
    async fn start_login(&self, issuer: &str, redirect_uri: &str) -> RawResponse {
        let headers = [
            ("origin", self.origin.as_str()),
            ("mcp-broker-console", "the-key-of-a-page-of-the-console-0123456789"),
        ];
        let body = json!({"issuer": issuer, "redirect_uri": redirect_uri});
        self.admin.send_with("POST", "/console/logins", &headers, Some(&body)).await
    }

    /// Begins a login. Returns the address of the authorization request and the cookie.
    async fn started_login(&self, issuer: &str) -> (String, String) {
        let started = self.start_login(issuer, &self.callback()).await;
        assert_eq!(started.status, 200);
        let cookie = started.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        assert!(cookie.starts_with("mcp-broker-begun="), "{cookie}");
        let answer: Value = serde_json::from_str(&started.text().await).unwrap();
        (answer["url"].as_str().unwrap().to_owned(), cookie)
    }

    /// Comes back from the issuer.
    async fn answer(&self, query: &str, cookie: &str) -> RawResponse {
        let headers = [("cookie", cookie), ("sec-fetch-site", "cross-site")];
        self.admin.send_with("GET", &format!("/console/callback?{query}"), &headers, None).await
    }

    async fn who(&self, cookie: &str) -> Value {
        let headers = [
            ("cookie", cookie),
            ("mcp-broker-console", "the-key-of-a-page-of-the-console-0123456789"),
        ];
        let answer = self.admin.send_with("GET", "/admin/v1/operator", &headers, None).await;
        serde_json::from_str(&answer.text().await).unwrap()
    }
}

/// Starts a broker at whose console operators log in at the issuer of `server`.
async fn page_of(server: &AuthorizationServer, issuer: Value) -> (TestBroker, Page) {
    let metadata = json!({"authorization_response_iss_parameter_supported": true});
    server.set_metadata(metadata);
    let broker = builder()
        .single_process()
        .admin_token("operator-of-tests")
        .config(server.config("default", issuer))
        .start()
        .await;
    let admin = broker.admin().with_token(None);
    let origin = format!("http://{}", broker.admin_address());
    (broker, Page { admin, origin })
}

/// Returns the cookies that an answer sets, without their values.
fn set(answer: &RawResponse) -> Vec<String> {
    let cookies = answer.headers.get_all("set-cookie").iter();
    let shown = |text: &str| {
        let (name, rest) = text.split_once('=').unwrap();
        format!("{name}; {}", rest.split_once("; ").unwrap().1)
    };
    cookies.map(|value| shown(value.to_str().unwrap())).collect()
}

#[tokio::test]
async fn a_login_at_an_issuer_is_bound_to_its_browser_and_its_request() {
    let server = AuthorizationServer::start().await;
    let admin = json!({"admin": {
        "claim": "groups", "audiences": [AUDIENCE], "map": [{"value": "auditors", "role": "auditor"}],
        "login": {"client_id": "console", "scopes": ["openid"]},
    }});
    let (_broker, page) = page_of(&server, admin).await;
    let issuer = server.issuer();
    let gives = |audience: &str, groups: &[&str]| {
        let token = server.token_with("ann", json!({"aud": audience, "groups": groups}));
        server.answer_tokens(Arc::new(move |_, _| {
            (200, json!({"access_token": token, "token_type": "Bearer"}))
        }));
    };
    gives(AUDIENCE, &["auditors"]);

    // No login begins for an address that is not the console's.
    let origin = &page.origin;
    for redirect_uri in [
        "https://evil.example/console/callback".to_owned(),
        format!("{origin}.evil.example/console/callback"),
        format!("{origin}@evil.example/console/callback"),
        format!("{origin}/elsewhere"),
    ] {
        let refused = page.start_login(issuer, &redirect_uri).await;
        assert_eq!(refused.header("set-cookie"), None, "{redirect_uri}");
        let status = refused.status;
        let problem: Value = serde_json::from_str(&refused.text().await).unwrap();
        assert_eq!(problem["field"], "redirect_uri", "{status} {problem}");
    }
    let headers = [("origin", origin.as_str())];
    let body = json!({"issuer": issuer, "redirect_uri": page.callback()});
    let unmarked = page.admin.send_with("POST", "/console/logins", &headers, Some(&body)).await;
    assert_eq!(unmarked.status, 403, "a form of another page");

    let (request, cookie) = page.started_login(issuer).await;
    let state = parameter(&request, "state").unwrap();
    let from = form_text(issuer);
    let forgotten = "mcp-broker-begun; Path=/; HttpOnly; SameSite=Lax; Max-Age=0".to_owned();
    for (query, cookie, forgets) in [
        (format!("state={state}&code=c&iss={from}"), "", false),
        (format!("state={state}&code=c&iss={from}"), "mcp-broker-begun=AAAA", false),
        (format!("state=x{state}&code=c&iss={from}"), &cookie, false),
        (format!("code=c&iss={from}"), &cookie, false),
        (format!("state={state}&code=c&iss=https%3A%2F%2Fevil.example"), &cookie, true),
        (format!("state={state}&code=c"), &cookie, true),
        (format!("state={state}&error=access_denied&iss={from}"), &cookie, true),
    ] {
        let refused = page.answer(&query, cookie).await;
        assert_eq!((refused.status, refused.header("location")), (303, FAILED), "{query}");
        let wanted = if forgets { vec![forgotten.clone()] } else { Vec::new() };
        assert_eq!(set(&refused), wanted, "{query}");
    }
    assert_eq!(server.take_token_requests(), []);

    let query = format!("state={state}&code=c&iss={from}");
    let answer = eventually("the keys of the issuer to be known", || async {
        let answer = page.answer(&query, &cookie).await;
        if answer.header("location") == Some("./") { Ok(answer) } else { Err(set(&answer)) }
    })
    .await;
    let login = "mcp-broker; Path=/; HttpOnly; SameSite=Strict; Max-Age=28800".to_owned();
    assert_eq!(set(&answer), [forgotten, login]);
    let asked = server.take_token_requests();
    assert_proves(&asked[0], &request, &page.callback());
    let resource = Some(form_text(AUDIENCE));
    assert_eq!(parameter(&request, "resource"), resource);
    assert_eq!(crate::accounts::member(&asked[0], "resource"), resource);
    let cookies: Vec<&str> =
        answer.headers.get_all("set-cookie").iter().map(|value| value.to_str().unwrap()).collect();
    let login = cookies[1].split(';').next().unwrap();
    let who = page.who(login).await;
    assert_eq!((&who["name"], &who["role"]), (&json!(format!("{issuer} ann")), &json!("auditor")));

    // The issuer knows the person. The person is not an operator, or the token is for MCP clients.
    for (audience, group) in [(AUDIENCE, "others"), (RESOURCE, "auditors")] {
        gives(audience, &[group]);
        let (request, cookie) = page.started_login(issuer).await;
        let state = parameter(&request, "state").unwrap();
        let refused = page.answer(&format!("state={state}&code=c&iss={from}"), &cookie).await;
        assert_eq!(refused.header("location"), FAILED);
        assert_eq!(set(&refused).len(), 1, "no login");
    }
}

/// Another issuer has another callback, so it cannot bring an answer of this one.
#[tokio::test]
async fn an_issuer_with_its_own_callback_answers_there_only() {
    let server = AuthorizationServer::start().await;
    let admin = json!({"admin": {
        "claim": "groups", "audiences": [AUDIENCE], "map": [{"value": "auditors", "role": "auditor"}],
        "login": {"client_id": "console", "callback": "own"},
    }});
    let (_broker, page) = page_of(&server, admin).await;
    let token = server.token_with("ann", json!({"aud": AUDIENCE, "groups": ["auditors"]}));
    server.answer_tokens(Arc::new(move |_, _| {
        (200, json!({"access_token": token, "token_type": "Bearer"}))
    }));
    let (request, cookie) = page.started_login(server.issuer()).await;
    let own = format!("{}/own", page.callback());
    assert_eq!(parameter(&request, "redirect_uri"), Some(form_text(&own)));
    let (state, from) = (parameter(&request, "state").unwrap(), form_text(server.issuer()));
    let query = format!("state={state}&code=c&iss={from}");
    assert_eq!(page.answer(&query, &cookie).await.header("location"), FAILED);
    assert_eq!(server.take_token_requests(), []);
    let headers = [("cookie", cookie.as_str()), ("sec-fetch-site", "cross-site")];
    let path = format!("/console/callback/own?{query}");
    eventually("the keys of the issuer to be known", || async {
        let answer = page.admin.send_with("GET", &path, &headers, None).await;
        if answer.header("location") == Some("../") { Ok(()) } else { Err(set(&answer)) }
    })
    .await;
}

/// A stranger can begin logins.
#[tokio::test]
async fn the_metadata_of_an_issuer_is_fetched_once_for_many_logins() {
    let server = AuthorizationServer::start().await;
    let issuer = json!({"jwks_url": server.keys_url(), "admin": {
        "claim": "groups", "audiences": [AUDIENCE], "map": [{"value": "auditors", "role": "auditor"}],
        "login": {"client_id": "console", "scopes": ["openid"]},
    }});
    let (_broker, page) = page_of(&server, issuer).await;
    for _ in 0..10 {
        page.started_login(server.issuer()).await;
    }
    assert_eq!(server.metadata_requests(), 1);
}

#[tokio::test]
async fn a_login_names_its_audience_only_as_the_issuer_accepts_it() {
    for (parameter_rule, name) in [("strip", None), ("audience", Some("audience"))] {
        let server = AuthorizationServer::start().await;
        let issuer = json!({"front": "adapted", "resource": parameter_rule, "admin": {
            "claim": "groups", "audiences": [AUDIENCE], "map": [{"value": "sre", "role": "viewer"}],
            "login": {"client_id": "console", "scopes": ["openid"]},
        }});
        let (_broker, page) = page_of(&server, issuer).await;
        let (request, cookie) = page.started_login(server.issuer()).await;
        let (state, from) = (parameter(&request, "state").unwrap(), form_text(server.issuer()));
        page.answer(&format!("state={state}&code=c&iss={from}"), &cookie).await;
        let token_requests = server.take_token_requests();
        for parameter_name in ["resource", "audience"] {
            let wanted = (name == Some(parameter_name)).then(|| form_text(AUDIENCE));
            assert_eq!(parameter(&request, parameter_name), wanted, "{parameter_rule}: {request}");
            let sent = crate::accounts::member(&token_requests[0], parameter_name);
            assert_eq!(sent, wanted, "{parameter_rule}: {:?}", token_requests[0]);
        }
    }
}
