//! What the tests of accounts at backends share: a browser in front of the connect pages, and a
//! backend that demands a token of each user.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use aws_lc_rs::digest::{SHA256, digest};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::{
    AuthorizationServer, CollectedSpan, FakeBackend, GateAnswer, TestBroker, TestClient,
    TokenRequest,
    http::{RawResponse, send_http1},
    within,
};

use crate::builder;

/// A browser: cookies, and requests to the broker.
pub(crate) struct Browser {
    broker: SocketAddr,
    /// Its address, as a trusted proxy names it.
    address: Option<String>,
    cookies: Mutex<HashMap<String, String>>,
}

impl Browser {
    pub(crate) fn new(broker: &TestBroker) -> Self {
        Self::at(broker.http_address())
    }

    pub(crate) fn at(broker: SocketAddr) -> Self {
        Self { broker, address: None, cookies: Mutex::default() }
    }

    pub(crate) fn from(self, address: &str) -> Self {
        Self { address: Some(address.to_owned()), ..self }
    }

    pub(crate) async fn send(&self, method: &str, path: &str, form: &str) -> RawResponse {
        self.send_from(None, method, path, form).await
    }

    /// Sends a request as a page of this origin does.
    pub(crate) async fn send_from(
        &self,
        origin: Option<&str>,
        method: &str,
        path: &str,
        form: &str,
    ) -> RawResponse {
        let cookies: Vec<String> =
            self.cookies.lock().iter().map(|(name, value)| format!("{name}={value}")).collect();
        let address = self.broker;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", address.to_string())
            .header("cookie", cookies.join("; "))
            .header("content-type", "application/x-www-form-urlencoded");
        if let Some(address) = &self.address {
            request = request.header("x-forwarded-for", address);
        }
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let request = request.body(Full::new(Bytes::from(form.to_owned()))).unwrap();
        let answer = within("a page", send_http1(address, request)).await.unwrap();
        for value in answer.headers.get_all("set-cookie") {
            let (name, value) = value.to_str().unwrap().split_once('=').unwrap();
            let value = value.split(';').next().unwrap();
            self.cookies.lock().insert(name.to_owned(), value.to_owned());
        }
        answer
    }

    /// Opens the page of the backend and sends its form. Returns the address of the authorization
    /// request.
    pub(crate) async fn start_login(&self) -> String {
        self.start_login_at("b").await
    }

    pub(crate) async fn start_login_at(&self, backend: &str) -> String {
        let path = format!("/connect/{backend}");
        let page = self.send("GET", &path, "").await;
        assert_eq!(page.status, 200);
        assert_eq!(page.header("x-frame-options"), Some("DENY"));
        let proof = self.proof_for(backend).await;
        let sent = self.send("POST", &path, &format!("proof={proof}")).await;
        let status = sent.status;
        let location = sent.header("location").map(str::to_owned);
        location.unwrap_or_else(|| panic!("no redirect, but {status}"))
    }

    /// Returns the proof of the form on the page of a backend.
    pub(crate) async fn proof_for(&self, backend: &str) -> String {
        let page = self.send("GET", &format!("/connect/{backend}"), "").await.text().await;
        between(&page, "name=\"proof\" value=\"", "\"").expect(&page).to_owned()
    }

    /// Plays the authorization server's redirect back.
    pub(crate) async fn answer(&self, request: &str, more: &str) -> u16 {
        let state = parameter(request, "state").expect(request);
        let redirect_uri = parameter(request, "redirect_uri").expect(request);
        let path = callback_of(&redirect_uri);
        self.send("GET", &format!("{path}?state={state}{more}"), "").await.status
    }

    pub(crate) async fn connect(&self) -> u16 {
        let request = self.start_login().await;
        self.answer(&request, "&code=code-1").await
    }
}

/// Returns the path of a redirect URI in the encoding of forms.
pub(crate) fn callback_of(redirect_uri: &str) -> String {
    let decoded = redirect_uri.replace("%2F", "/").replace("%3A", ":");
    decoded[decoded.find("/oauth/callback").expect(redirect_uri)..].to_owned()
}

pub(crate) fn between<'t>(text: &'t str, before: &str, after: &str) -> Option<&'t str> {
    text.split_once(before)?.1.split_once(after).map(|(found, _)| found)
}

pub(crate) fn parameter(url: &str, name: &str) -> Option<String> {
    let mut pairs = url.split_once('?')?.1.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    Some(value.to_owned())
}

pub(crate) fn member(request: &TokenRequest, name: &str) -> Option<String> {
    parameter(&format!("?{}", request.form), name)
}

/// Returns a text as the broker writes it in a form.
pub(crate) fn form_text(text: &str) -> String {
    text.replace(':', "%3A").replace('/', "%2F")
}

/// Checks that a token request belongs to an authorization request: it shows the secret of the
/// challenge (RFC 7636, 4.6), and it has the redirect URI of this broker again (RFC 6749, 4.1.3).
pub(crate) fn assert_proves(asked: &TokenRequest, request: &str, redirect_uri: &str) {
    let verifier = member(asked, "code_verifier").expect("a verifier");
    let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
    assert_eq!(parameter(request, "code_challenge"), Some(challenge), "{asked:?}");
    assert_eq!(parameter(request, "code_challenge_method").as_deref(), Some("S256"));
    let redirect_uri = Some(form_text(redirect_uri));
    assert_eq!(parameter(request, "redirect_uri"), redirect_uri);
    assert_eq!(member(asked, "redirect_uri"), redirect_uri);
}

/// A backend that demands a token of each user, and its authorization server.
pub(crate) struct World {
    pub(crate) backend: FakeBackend,
    pub(crate) server: AuthorizationServer,
    pub(crate) accepted: Arc<Mutex<HashSet<String>>>,
    /// Life of the next tokens, in seconds.
    pub(crate) lifetime: Arc<AtomicU64>,
}

impl World {
    pub(crate) async fn start(life: u64) -> Self {
        let (backend, server) = (FakeBackend::echo().await, AuthorizationServer::start().await);
        let accepted = Arc::<Mutex<HashSet<String>>>::default();
        let issued = accepted.clone();
        let used = Mutex::new(HashSet::new());
        let lifetime = Arc::new(AtomicU64::new(life));
        let lives = lifetime.clone();
        server.set_metadata(json!({"code_challenge_methods_supported": ["S256"]}));
        // Rotation with detection of reuse: a refresh token that comes twice ends everything.
        server.answer_tokens(Arc::new(move |request, number| {
            if let Some(refresh) = member(request, "refresh_token")
                && !used.lock().insert(refresh)
            {
                issued.lock().clear();
                return (400, json!({"error": "invalid_grant"}));
            }
            let token = format!("token-{number}");
            issued.lock().insert(format!("Bearer {token}"));
            let life = lives.load(Ordering::Relaxed);
            (200, json!({"access_token": token, "token_type": "Bearer", "expires_in": life, "refresh_token": format!("refresh-{number}")}))
        }));
        let world = Self { backend, server, accepted, lifetime };
        world.gate(false);
        world
    }

    pub(crate) fn gate(&self, needs_scope: bool) {
        self.gate_where(move |_| needs_scope);
    }

    /// Refuses these tokens for want of a scope.
    pub(crate) fn gate_except(&self, lacking: HashSet<String>) {
        self.gate_where(move |header| lacking.contains(header));
    }

    /// Makes the backend name another authorization server than its own.
    pub(crate) fn name_server(&self, issuer: &str) {
        self.name_servers(&[issuer]);
    }

    /// Makes the backend name these authorization servers.
    pub(crate) fn name_servers(&self, issuers: &[&str]) {
        self.gate_with(Some(self.metadata(issuers)), |_| false);
    }

    /// Makes the backend answer 404 where its metadata was.
    pub(crate) fn hide_metadata(&self) {
        self.gate_with(None, |_| false);
    }

    fn metadata(&self, issuers: &[&str]) -> Value {
        json!({"resource": self.backend.url(), "authorization_servers": issuers})
    }

    fn gate_where(&self, lacks_scope: impl Fn(&str) -> bool + Send + Sync + 'static) {
        self.gate_with(Some(self.metadata(&[self.server.issuer()])), lacks_scope);
    }

    fn gate_with(
        &self,
        metadata: Option<Value>,
        lacks_scope: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) {
        let accepted = self.accepted.clone();
        self.backend.gate(move |path, headers| {
            let answer = |status, challenge: Option<&str>, body: Value| {
                let challenge =
                    challenge.map(|text| ("www-authenticate".to_owned(), text.to_owned()));
                Some(GateAnswer { status, headers: challenge.into_iter().collect(), body })
            };
            if path.starts_with("/.well-known/") {
                return match &metadata {
                    Some(metadata) => answer(200, None, metadata.clone()),
                    None => answer(404, None, json!({})),
                };
            }
            let header = headers.get("authorization").and_then(|value| value.to_str().ok());
            match header.filter(|header| accepted.lock().contains(*header)) {
                None => answer(401, Some("Bearer"), json!({})),
                Some(header) if lacks_scope(header) => answer(
                    403,
                    Some("Bearer error=\"insufficient_scope\", scope=\"more\""),
                    json!({}),
                ),
                Some(_) => None,
            }
        });
    }

    pub(crate) fn spec(&self) -> Value {
        let mut spec = self.backend.spec();
        spec["auth"] = json!({"type": "oauth_user", "client_id": "broker", "scopes": ["base"]});
        spec
    }

    pub(crate) async fn broker(&self) -> TestBroker {
        let broker = builder().single_process().start().await;
        let (status, view) = broker.admin().put_backend("default", "b", &self.spec()).await;
        assert_eq!(status, 201, "{view}");
        broker
    }
}

pub(crate) async fn call(client: &TestClient, tool: &str) -> Value {
    client.result("tools/call", json!({"name": tool, "arguments": {}})).await
}

/// Returns whatever the broker shows or stores, by output: answers of the admin API, the log,
/// spans, and every file of its folder. What the test kit recorded of its own clients is not the
/// broker's.
pub(crate) async fn outputs(
    broker: &TestBroker,
    spans: &[CollectedSpan],
) -> Vec<(String, Vec<u8>)> {
    let spans: Vec<Value> = spans.iter().map(CollectedSpan::to_json).collect();
    let mut outputs = vec![
        ("the log".to_owned(), broker.log().into_bytes()),
        ("spans".to_owned(), json!(spans).to_string().into_bytes()),
    ];
    for path in [
        "/metrics",
        "/admin/v1/tenants/default/backends",
        "/admin/v1/tenants/default/backends/b",
        "/admin/v1/tenants/default/connections",
        "/admin/v1/overview",
        "/admin/v1/sessions",
        "/admin/v1/tasks",
        "/admin/v1/audit",
    ] {
        let answer = broker.admin().send("GET", path, None).await.expect_status(200, path).await;
        outputs.push((path.to_owned(), answer.text().await.into_bytes()));
    }
    let recorded = broker.traffic();
    let mut folders = vec![broker.folder().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !recorded.contains(&path) {
                outputs
                    .push((path.display().to_string(), std::fs::read(&path).unwrap_or_default()));
            }
        }
    }
    outputs
}

/// Returns a text as files and dumps can have it: as it is, in hexadecimal digits, and in base64 at
/// any offset of three bytes.
fn encodings(text: &str) -> Vec<String> {
    let hexadecimal = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let in_base64 = (0..3).map(|start| {
        let whole = (text.len() - start) / 3 * 3;
        STANDARD_NO_PAD.encode(&text.as_bytes()[start..start + whole])
    });
    [text.to_owned(), hexadecimal].into_iter().chain(in_base64).collect()
}

/// Returns the names of outputs that contain one of the texts, or a part of it that could be used:
/// tokens are also sought without their ends.
pub(crate) fn outputs_containing(texts: &[&str], outputs: &[(String, Vec<u8>)]) -> Vec<String> {
    let middle = |text: &str| text[text.len() / 4..text.len() - text.len() / 4].to_owned();
    let sought: Vec<String> = texts.iter().flat_map(|text| encodings(&middle(text))).collect();
    let is_in =
        |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    let found = outputs.iter().filter(|(_, bytes)| sought.iter().any(|text| is_in(bytes, text)));
    found.map(|(name, _)| name.clone()).collect()
}
