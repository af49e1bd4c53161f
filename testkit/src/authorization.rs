//! An authorization server: keys, tokens signed with them, metadata and a key set over HTTP. It
//! counts requests, can change its keys, and can be set to hang, to refuse, or to answer nonsense.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};

use crate::{
    abort_on_drop::AbortOnDrop, broker::merge, http_server::serve, signing_key::SigningKey,
};

/// Audience of tokens unless a test sets another.
pub const RESOURCE: &str = "https://mcp.example.com";
const METADATA: &str = "/.well-known/oauth-authorization-server";
const KEYS: &str = "/keys";
const TOKEN: &str = "/token";
const INTROSPECTION: &str = "/introspect";

/// Returns the seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// Encodes a part of a token.
pub fn encoded(text: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

/// Way in which the server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IssuerBehavior {
    Serves,
    /// Reads and never answers.
    Hangs,
    /// Answers with 503.
    Refuses,
    /// Answers with 410.
    Gone,
    /// Redirects to a path with the right answer.
    Redirects,
    /// Answers with a text that is neither metadata nor a key set.
    Garbage,
    /// Answers with more bytes than a client should read.
    Oversized,
    /// Answers with another issuer's metadata.
    WrongIssuer,
}

struct IssuerState {
    url: String,
    keys: Mutex<Vec<Value>>,
    manner: watch::Sender<IssuerBehavior>,
    metadata_requests: AtomicUsize,
    key_requests: AtomicUsize,
    /// Members that the metadata has too.
    metadata: Mutex<Value>,
    token_requests: Mutex<Vec<TokenRequest>>,
    token_answer: Mutex<Option<TokenAnswer>>,
    /// True while token requests wait for their answers.
    holds_tokens: watch::Sender<bool>,
    /// Answers to introspections, by token. Every other token is inactive.
    introspected: Mutex<HashMap<String, Value>>,
    introspection_requests: AtomicUsize,
}

/// Answers the token request with this number, from 1: status and body.
pub type TokenAnswer = Arc<dyn Fn(&TokenRequest, usize) -> (u16, Value) + Send + Sync>;

/// A request at the token endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// The body, a form.
    pub form: String,
    pub authorization: Option<String>,
}

impl IssuerState {
    fn keys(&self) -> MutexGuard<'_, Vec<Value>> {
        self.keys.lock()
    }
}

/// The server, which stops when it is dropped.
pub struct AuthorizationServer {
    state: Arc<IssuerState>,
    key: SigningKey,
    _server: AbortOnDrop,
}

impl AuthorizationServer {
    /// Starts a server with one key, which signs its tokens.
    pub async fn start() -> Self {
        Self::with(SigningKey::ec("one")).await
    }

    pub async fn with(key: SigningKey) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address: SocketAddr = listener.local_addr().expect("a bound listener has an address");
        let state = Arc::new(IssuerState {
            url: format!("http://{address}"),
            keys: Mutex::new(vec![key.public()]),
            manner: watch::Sender::new(IssuerBehavior::Serves),
            metadata_requests: AtomicUsize::new(0),
            key_requests: AtomicUsize::new(0),
            metadata: Mutex::new(json!({})),
            token_requests: Mutex::default(),
            token_answer: Mutex::default(),
            holds_tokens: watch::Sender::new(false),
            introspected: Mutex::default(),
            introspection_requests: AtomicUsize::new(0),
        });
        let answering = state.clone();
        let server = AbortOnDrop(tokio::spawn(serve(listener, move |request| {
            answer(answering.clone(), request)
        })));
        Self { state, key, _server: server }
    }

    /// Returns its name, at which its metadata is published.
    pub fn issuer(&self) -> &str {
        &self.state.url
    }

    /// Returns the URL for `jwks_url`.
    pub fn keys_url(&self) -> String {
        format!("{}{KEYS}", self.state.url)
    }

    /// Returns a configuration that accepts its tokens for a tenant, with more members of the
    /// entry.
    pub fn config(&self, tenant: &str, more: Value) -> Value {
        json!({"auth": {"resource": RESOURCE, "issuers": [self.entry(tenant, more)]}})
    }

    /// Returns the server's entry among `issuers`.
    pub fn entry(&self, tenant: &str, more: Value) -> Value {
        let mut entry = json!({"issuer": self.issuer(), "tenant": tenant});
        for (name, value) in more.as_object().into_iter().flatten() {
            entry[name] = value.clone();
        }
        entry.as_object_mut().expect("a map").retain(|_, value| !value.is_null());
        entry
    }

    pub fn key(&self) -> &SigningKey {
        &self.key
    }

    /// Replaces the published keys.
    pub fn publish(&self, keys: &[&SigningKey]) {
        *self.state.keys() = keys.iter().map(|key| key.public()).collect();
    }

    pub fn publish_raw(&self, keys: Vec<Value>) {
        *self.state.keys() = keys;
    }

    pub fn set_behavior(&self, manner: IssuerBehavior) {
        self.state.manner.send_replace(manner);
    }

    /// Sets more members of its metadata.
    pub fn set_metadata(&self, members: Value) {
        *self.state.metadata.lock() = members;
    }

    pub fn answer_tokens(&self, answer: TokenAnswer) {
        *self.state.token_answer.lock() = Some(answer);
    }

    /// Holds the answers to token requests back, or sends them.
    pub fn hold_tokens(&self, held: bool) {
        self.state.holds_tokens.send_replace(held);
    }

    /// Returns the requests at its token endpoint that were not taken yet.
    pub fn token_requests(&self) -> Vec<TokenRequest> {
        self.state.token_requests.lock().clone()
    }

    /// Returns the requests at its token endpoint since the last call.
    pub fn take_token_requests(&self) -> Vec<TokenRequest> {
        std::mem::take(&mut *self.state.token_requests.lock())
    }

    /// Returns how often its keys were requested.
    pub fn key_requests(&self) -> usize {
        self.state.key_requests.load(Ordering::Relaxed)
    }

    /// Returns the member `introspection` of the entry, with changes.
    pub fn introspection(&self, changes: Value) -> Value {
        let mut settings = json!({
            "endpoint": format!("{}{INTROSPECTION}", self.state.url),
            "client_id": "broker",
            "client_secret": "a secret",
        });
        for (name, value) in changes.as_object().into_iter().flatten() {
            settings[name] = value.clone();
        }
        json!({"introspection": settings})
    }

    /// Sets the answer about an opaque token. `None`: the token is inactive.
    pub fn set_introspected(&self, token: &str, answer: Option<Value>) {
        let mut known = self.state.introspected.lock();
        match answer {
            Some(answer) => drop(known.insert(token.to_owned(), answer)),
            None => drop(known.remove(token)),
        }
    }

    /// Returns the answer about an active token with these claims, and with changes.
    pub fn active(&self, subject: &str, changes: Value) -> Value {
        let mut answer = self.claims(subject, changes);
        answer["active"] = json!(true);
        answer
    }

    /// Returns how often it was asked about tokens.
    pub fn introspection_requests(&self) -> usize {
        self.state.introspection_requests.load(Ordering::Relaxed)
    }

    /// Returns how often its metadata was requested.
    pub fn metadata_requests(&self) -> usize {
        self.state.metadata_requests.load(Ordering::Relaxed)
    }

    /// Returns the claims of a valid token for an hour, with changes; `null` removes a claim.
    pub fn claims(&self, subject: &str, changes: Value) -> Value {
        let mut claims = json!({"iss": self.issuer(), "sub": subject, "aud": RESOURCE, "iat": now(), "exp": now() + 3_600});
        for (name, value) in changes.as_object().into_iter().flatten() {
            claims[name] = value.clone();
        }
        claims.as_object_mut().expect("a map").retain(|_, value| !value.is_null());
        claims
    }

    /// Returns a valid token.
    pub fn token(&self, subject: &str) -> String {
        self.token_with(subject, json!({}))
    }

    pub fn token_with(&self, subject: &str, changes: Value) -> String {
        self.key.sign(&self.claims(subject, changes))
    }
}

async fn answer(
    state: Arc<IssuerState>,
    mut request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let respond = |status: StatusCode, body: String| {
        let response =
            Response::builder().status(status).header("content-type", "application/json");
        response.body(Full::new(Bytes::from(body))).expect("a response")
    };
    let is_moved = request.uri().path().starts_with("/moved");
    let path = request.uri().path().trim_start_matches("/moved").to_owned();
    let right = match path.as_str() {
        METADATA => {
            state.metadata_requests.fetch_add(1, Ordering::Relaxed);
            let url = &state.url;
            let mut members = json!({
                "issuer": url,
                "jwks_uri": format!("{url}{KEYS}"),
                "authorization_endpoint": format!("{url}/authorize"),
                "token_endpoint": format!("{url}{TOKEN}"),
            });
            merge(&mut members, state.metadata.lock().clone());
            members
        }
        KEYS => {
            state.key_requests.fetch_add(1, Ordering::Relaxed);
            json!({"keys": *state.keys()})
        }
        TOKEN => {
            let authorization = request.headers().get("authorization");
            let authorization = authorization.and_then(|value| value.to_str().ok());
            let authorization = authorization.map(str::to_owned);
            let body = request.body_mut().collect().await.map(|body| body.to_bytes());
            let form = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
            let token_request = TokenRequest { form, authorization };
            let number = {
                let mut requests = state.token_requests.lock();
                requests.push(token_request.clone());
                requests.len()
            };
            let mut held = state.holds_tokens.subscribe();
            drop(held.wait_for(|held| !held).await);
            let scripted = state.token_answer.lock().clone();
            if let Some(scripted) = scripted {
                let (status, body) = scripted(&token_request, number);
                let status = StatusCode::from_u16(status).expect("tests use valid statuses");
                return Ok(respond(status, body.to_string()));
            }
            json!({"access_token": "issued", "token_type": "Bearer"})
        }
        INTROSPECTION => {
            state.introspection_requests.fetch_add(1, Ordering::Relaxed);
            // `broker` and `a secret`, form-encoded.
            let is_known = request
                .headers()
                .get("authorization")
                .is_some_and(|value| value.as_bytes() == b"Basic YnJva2VyOmErc2VjcmV0");
            if !is_known {
                return Ok(respond(StatusCode::UNAUTHORIZED, "{}".to_owned()));
            }
            let body = request.body_mut().collect().await.map(|body| body.to_bytes());
            let body = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
            let token = body.split('&').find_map(|pair| pair.strip_prefix("token="));
            let known = state.introspected.lock();
            let found = token.and_then(|token| known.get(token)).cloned();
            found.unwrap_or_else(|| json!({"active": false}))
        }
        _ => return Ok(respond(StatusCode::NOT_FOUND, "{}".to_owned())),
    };
    let manner = *state.manner.borrow();
    Ok(match manner {
        _ if is_moved => respond(StatusCode::OK, right.to_string()),
        IssuerBehavior::Serves => respond(StatusCode::OK, right.to_string()),
        IssuerBehavior::Hangs => {
            let mut changes = state.manner.subscribe();
            drop(changes.wait_for(|manner| *manner != IssuerBehavior::Hangs).await);
            respond(StatusCode::SERVICE_UNAVAILABLE, String::new())
        }
        IssuerBehavior::Refuses => respond(StatusCode::SERVICE_UNAVAILABLE, "{}".to_owned()),
        IssuerBehavior::Gone => respond(StatusCode::GONE, "{}".to_owned()),
        IssuerBehavior::Redirects => {
            let mut response = respond(StatusCode::FOUND, String::new());
            let location = format!("{}/moved{path}", state.url).parse().expect("a header");
            response.headers_mut().insert("location", location);
            response
        }
        IssuerBehavior::Garbage => respond(StatusCode::OK, "<html>{\"keys\": 7}".to_owned()),
        IssuerBehavior::Oversized => {
            respond(StatusCode::OK, format!("{{\"x\": \"{}\"}}", "y".repeat(4 << 20)))
        }
        IssuerBehavior::WrongIssuer if path == METADATA => {
            respond(StatusCode::OK, right.to_string().replace(&state.url, "https://evil.example"))
        }
        IssuerBehavior::WrongIssuer => respond(StatusCode::OK, right.to_string()),
    })
}
