//! Tests of the console's routes and of its logins, without a browser.

use axum::{
    body::Body,
    http::{Response, StatusCode, header},
};
use serde_json::{Value, json};

use crate::listeners::admin::tests::{Admin, LOOPBACK, WITH_TOKEN, read, request};

const ADMIN: &str = "correct-horse-battery-staple";
const OPERATOR: &str = "/admin/v1/operator";

/// A browser at the console: sends what the page sends.
struct Browser<'a> {
    admin: &'a Admin,
    origin: &'static str,
    host: &'static str,
    cookie: Option<String>,
}

impl<'a> Browser<'a> {
    fn new(admin: &'a Admin) -> Self {
        Self { admin, origin: "http://127.0.0.1:9090", host: LOOPBACK, cookie: None }
    }

    async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Response<Body> {
        let mut request = axum::http::Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.host)
            .header("mcp-broker-console", "the-key-of-a-page-of-the-console-0123456789")
            .header("sec-fetch-site", "same-origin")
            .header(header::CONTENT_TYPE, "application/json");
        if method != "GET" {
            request = request.header(header::ORIGIN, self.origin);
        }
        if let Some(cookie) = &self.cookie {
            request = request.header(header::COOKIE, cookie);
        }
        let body = body.map_or(Body::empty(), |body| Body::from(body.to_string()));
        self.admin.send(request.body(body).unwrap()).await
    }

    async fn sign_in(&mut self, token: &str) -> StatusCode {
        let response = self.send("POST", "/console/login", Some(json!({"token": token}))).await;
        if let Some(set) = response.headers().get(header::SET_COOKIE) {
            let pair = set.to_str().unwrap().split(';').next().unwrap();
            self.cookie = Some(pair.to_owned());
        }
        response.status()
    }

    async fn whoami(&self) -> (u16, Value) {
        let (status, answer) = read(self.send("GET", OPERATOR, None).await).await;
        (status.as_u16(), answer)
    }
}

#[tokio::test]
async fn the_page_needs_no_token_and_may_load_its_own_files_only() {
    let admin = Admin::start(WITH_TOKEN, LOOPBACK).await;
    let page = admin.send(request("GET", "/console/").body(Body::empty()).unwrap()).await;
    assert_eq!(page.status(), StatusCode::OK);
    let headers = page.headers().clone();
    let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
    for forbidden in ["unsafe", "http", "data:", "*"] {
        assert!(!policy.contains(forbidden), "{policy}");
    }
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-cache"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    let features = headers["permissions-policy"].to_str().unwrap();
    assert!(features.contains("camera=()") && features.contains("microphone=()"), "{features}");
    let bare = admin.send(request("GET", "/console").body(Body::empty()).unwrap()).await;
    assert_eq!(bare.headers()[header::LOCATION], "console/", "relative, below any prefix");
    let absent = admin.send(request("GET", "/console/none.js").body(Body::empty()).unwrap()).await;
    assert_eq!(absent.status(), StatusCode::NOT_FOUND);
    assert!(absent.headers().contains_key(header::CONTENT_SECURITY_POLICY));
    assert_eq!(absent.headers()[header::CACHE_CONTROL], "no-store");
}

#[tokio::test]
async fn a_rebound_host_name_and_a_foreign_page_are_refused() {
    let admin = Admin::start(WITH_TOKEN, LOOPBACK).await;
    for path in ["/console/", OPERATOR] {
        for name in ["evil.example:9090", "localhost.evil.example", "127.0.0.1.evil.example:9090"] {
            let rebound = axum::http::Request::get(path).header(header::HOST, name);
            let response = admin.send(rebound.body(Body::empty()).unwrap()).await;
            assert_eq!(response.status(), StatusCode::FORBIDDEN, "{path} {name}");
        }
        for second in [LOOPBACK, "evil.example"] {
            let two = request("GET", path).header(header::HOST, second);
            let response = admin.send(two.body(Body::empty()).unwrap()).await;
            assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{path} {second}");
        }
    }
    let mut browser = Browser::new(&admin);
    browser.origin = "http://evil.example";
    assert_eq!(browser.sign_in(ADMIN).await, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_login_has_the_rights_of_its_token_until_revocation() {
    let admin = Admin::start(WITH_TOKEN, LOOPBACK).await;
    let mut root = Browser::new(&admin);
    assert_eq!(root.sign_in(ADMIN).await, StatusCode::NO_CONTENT);
    let (status, who) = root.whoami().await;
    assert_eq!((status, &who["name"], &who["role"]), (200, &json!("admin"), &json!("admin")));
    let answer = root.send("GET", OPERATOR, None).await;
    for (name, value) in [("cache-control", "no-store"), ("x-content-type-options", "nosniff")] {
        assert_eq!(answer.headers()[name], value, "{name}");
    }
    let made = json!({"name": "vera", "role": "viewer"});
    let (status, made) = read(root.send("POST", "/admin/v1/operators", Some(made)).await).await;
    assert_eq!(status, 201, "{made}");
    let mut vera = Browser::new(&admin);
    assert_eq!(vera.sign_in(made["token"].as_str().unwrap()).await, StatusCode::NO_CONTENT);
    let (_, who) = vera.whoami().await;
    let permissions = who["permissions"].as_array().unwrap();
    assert!(permissions.contains(&json!("backends:read")), "{who}");
    assert!(!permissions.contains(&json!("backends:write")), "{who}");
    assert!(!permissions.contains(&json!("tools:try")), "{who}");
    assert_eq!(vera.send("GET", "/admin/v1/operators", None).await.status(), 403);
    let path = format!("/admin/v1/operators/{}", made["id"].as_str().unwrap());
    assert_eq!(root.send("DELETE", &path, None).await.status(), 204);
    assert_eq!(vera.whoami().await.0, 401, "the login ends with the token");
}

#[tokio::test]
async fn a_cookie_alone_is_not_sufficient() {
    let admin = Admin::start(WITH_TOKEN, LOOPBACK).await;
    let mut browser = Browser::new(&admin);
    browser.sign_in(ADMIN).await;
    let cookie = browser.cookie.clone().unwrap();
    assert!(cookie.starts_with("mcp-broker="), "{cookie}");
    let as_page = |more: &[(&'static str, &'static str)]| {
        let mut request = request("POST", "/admin/v1/drain").header(header::COOKIE, cookie.clone());
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        admin.send(request.body(Body::empty()).unwrap())
    };
    // A form or an image of another page cannot set the header of the console.
    assert_eq!(as_page(&[]).await.status(), 403);
    let console = ("mcp-broker-console", "the-key-of-a-page-of-the-console-0123456789");
    assert_eq!(as_page(&[console, ("sec-fetch-site", "cross-site")]).await.status(), 403);
    assert_eq!(as_page(&[console, ("origin", "http://127.0.0.1:8080")]).await.status(), 403);
    assert!(!admin.is_draining());
    assert_eq!(as_page(&[console, ("origin", "http://127.0.0.1:9090")]).await.status(), 202);
}

#[tokio::test]
async fn a_wrong_token_gives_no_cookie_and_counts_as_a_failed_sign_in() {
    let admin = Admin::start(WITH_TOKEN, LOOPBACK).await;
    let mut browser = Browser::new(&admin);
    assert_eq!(browser.sign_in("wrong").await, StatusCode::UNAUTHORIZED);
    assert_eq!(browser.cookie, None);
    assert_eq!(browser.whoami().await.0, 401);
    let (status, problem) =
        read(browser.send("POST", "/console/login", Some(json!({"key": "x"}))).await).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
}

#[tokio::test]
async fn a_logout_removes_the_cookie() {
    let admin = Admin::start(WITH_TOKEN, LOOPBACK).await;
    let mut browser = Browser::new(&admin);
    browser.sign_in(ADMIN).await;
    let response = browser.send("POST", "/console/logout", None).await;
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    let set = response.headers()[header::SET_COOKIE].to_str().unwrap();
    assert!(set.starts_with("mcp-broker=;") && set.contains("Max-Age=0"), "{set}");
}

#[tokio::test]
async fn a_logout_ends_its_login_and_no_other_one() {
    let admin = Admin::start(WITH_TOKEN, LOOPBACK).await;
    let (mut browser, mut other) = (Browser::new(&admin), Browser::new(&admin));
    browser.sign_in(ADMIN).await;
    other.sign_in(ADMIN).await;
    let mut stranger = Browser { origin: "http://evil.example", ..Browser::new(&admin) };
    stranger.cookie = browser.cookie.clone();
    let refused = stranger.send("POST", "/console/logout", None).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    assert_eq!(browser.whoami().await.0, 200, "a foreign page ends no login");
    let out = browser.send("POST", "/console/logout", None).await;
    assert_eq!(out.status(), StatusCode::NO_CONTENT);
    // The browser of this test keeps its copy of the cookie.
    assert_eq!(browser.whoami().await.0, 401);
    assert_eq!(other.whoami().await.0, 200, "another login of the operator is another one");
    let again = browser.send("POST", "/console/logout", None).await;
    assert_eq!(again.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn another_machine_signs_in_over_tls_only() {
    let admin = Admin::start(WITH_TOKEN, "10.1.2.3:9090").await;
    let mut browser = Browser::new(&admin);
    browser.host = "ops.example";
    browser.origin = "http://ops.example";
    assert_eq!(browser.sign_in(ADMIN).await, StatusCode::FORBIDDEN);
    browser.origin = "https://ops.example";
    assert_eq!(browser.sign_in(ADMIN).await, StatusCode::NO_CONTENT);
    assert!(browser.cookie.as_ref().unwrap().starts_with("__Host-mcp-broker="));
    assert_eq!(browser.whoami().await.0, 200);
    // Its name without TLS means nothing at that host.
    browser.cookie = browser.cookie.map(|cookie| cookie.replace("__Host-", ""));
    assert_eq!(browser.whoami().await.0, 401);
}

#[tokio::test]
async fn without_an_admin_token_the_console_is_open_like_the_api() {
    let admin = Admin::start("", LOOPBACK).await;
    let (status, who) = Browser::new(&admin).whoami().await;
    assert_eq!((status, &who["role"]), (200, &json!("admin")));
}

/// Returns the number of backends in an overview, whatever their state.
fn backends_of(overview: &Value) -> u64 {
    overview["backends"].as_object().unwrap().values().filter_map(Value::as_u64).sum()
}

#[tokio::test]
async fn the_overview_counts_visible_entries_and_returns_304_without_changes() {
    let admin = Admin::start(WITH_TOKEN, LOOPBACK).await;
    let mut root = Browser::new(&admin);
    root.sign_in(ADMIN).await;
    for tenant in ["acme", "zoo"] {
        let path = format!("/admin/v1/tenants/{tenant}");
        assert_eq!(root.send("PUT", &path, Some(json!({}))).await.status(), 201);
        let backend = format!("{path}/backends/files?wait=false");
        let body = json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/mcp"}});
        assert_eq!(root.send("PUT", &backend, Some(body)).await.status(), 201);
    }
    let (_, all) = read(root.send("GET", "/admin/v1/overview", None).await).await;
    assert_eq!((&all["tenants"], backends_of(&all)), (&json!(3), 2), "{all}");
    assert_eq!(all["troubled"].as_array().unwrap().len(), 2, "{all}");
    let made = json!({"name": "tess", "role": "tenant_admin", "tenants": ["acme"]});
    let (_, made) = read(root.send("POST", "/admin/v1/operators", Some(made)).await).await;
    let mut tess = Browser::new(&admin);
    tess.sign_in(made["token"].as_str().unwrap()).await;
    let (_, hers) = read(tess.send("GET", "/admin/v1/overview", None).await).await;
    assert_eq!((&hers["tenants"], backends_of(&hers)), (&json!(1), 1), "{hers}");
    let (_, list) = read(tess.send("GET", "/admin/v1/backends", None).await).await;
    assert_eq!(list["backends"].as_array().unwrap().len(), 1, "{list}");
    for path in ["backends", "activity"] {
        let path = format!("/admin/v1/{path}?tenant=zoo");
        assert_eq!(tess.send("GET", &path, None).await.status(), 404, "{path}");
    }
    let foreign = "/admin/v1/tenants/zoo/catalog";
    assert_eq!(tess.send("GET", foreign, None).await.status(), 404);

    let request = |tag: Option<String>| {
        let mut again = request("GET", "/admin/v1/overview")
            .header(header::AUTHORIZATION, format!("Bearer {ADMIN}"));
        if let Some(tag) = tag {
            again = again.header(header::IF_NONE_MATCH, tag);
        }
        admin.send(again.body(Body::empty()).unwrap())
    };
    // Until both backends have been tried, their states change.
    testkit::eventually("both backends to have failed", || async {
        let (_, all) = read(request(None).await).await;
        if all["backends"]["failed"] == 2 { Ok(()) } else { Err(all) }
    })
    .await;
    let tag = request(None).await.headers()[header::ETAG].to_str().unwrap().to_owned();
    assert_eq!(request(Some(tag.clone())).await.status(), StatusCode::NOT_MODIFIED);
    // A proxy that compresses the answer makes the tag weak.
    let weak = format!("\"other\", W/{tag}");
    assert_eq!(request(Some(weak)).await.status(), StatusCode::NOT_MODIFIED);
    root.send("DELETE", "/admin/v1/tenants/zoo", None).await;
    assert_eq!(request(Some(tag)).await.status(), StatusCode::OK, "it has changed");
}
