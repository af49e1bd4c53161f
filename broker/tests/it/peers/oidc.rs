//! Tokens of a real authorization server, `oidc-provider`: JWT and opaque ones, of users that signed
//! in and of machines, with policies by group, introspection, revocation and binding.

use std::{path::PathBuf, time::Duration};

use aws_lc_rs::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use testkit::{
    Authority, FakeBackend, GateAnswer, TestBroker,
    authorization::RESOURCE,
    eventually,
    http::{RawResponse, send_http1},
    within,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
};

use super::{install::Peers, process::Server};
use crate::{
    builder, initialize_body,
    tokens::{status, until_status},
};

const REDIRECT: &str = "http://127.0.0.1:1/callback";
const VERIFIER: &str = "a-verifier-of-tests-that-has-at-least-43-characters";

/// The authorization server, and what a client does there.
struct Login(Server);

impl Login {
    async fn start(arguments: &[&str]) -> Self {
        let peers = Peers::installed();
        let mut command = Command::new(peers.node());
        command
            .env("NODE_MODULES", peers.node_folder().join("node_modules"))
            .arg(Peers::ours("peers/servers/oidc.mjs"))
            .args(["--redirect-uri", REDIRECT])
            .args(["--groups", r#"{"ann":["dev"],"bob":["ops"]}"#])
            .args(arguments);
        let server = Server::start(command, |line| {
            line.strip_prefix("oidc listening on ").map(str::to_owned)
        });
        Self(server.await)
    }

    fn issuer(&self) -> &str {
        &self.0.url
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        body: &str,
    ) -> RawResponse {
        let address = self.issuer().strip_prefix("http://").unwrap();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", address)
            .header("content-type", "application/x-www-form-urlencoded");
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        within("an answer of the server", send_http1(address.parse().unwrap(), request))
            .await
            .unwrap()
    }

    /// Signs a user in (authorization code with PKCE). Returns the answer with the tokens.
    async fn login(&self, client: &str, user: &str) -> Value {
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, VERIFIER.as_bytes()));
        let path = format!(
            "/auth?client_id={client}&response_type=code&redirect_uri={REDIRECT}&scope=mcp:read&state=s&resource={RESOURCE}&login_hint={user}&code_challenge={challenge}&code_challenge_method=S256"
        );
        let redirected = self.send("GET", &path, &[], "").await;
        let location = redirected.header("location").expect("a redirect").to_owned();
        let (_, query) = location.split_once('?').unwrap();
        let code = query.split('&').find_map(|pair| pair.strip_prefix("code=")).expect(&location);
        let form = format!(
            "grant_type=authorization_code&client_id={client}&redirect_uri={REDIRECT}&code={code}&code_verifier={VERIFIER}&resource={RESOURCE}"
        );
        self.send("POST", "/token", &[], &form).await.json().await
    }

    async fn access_token(&self, client: &str, user: &str) -> String {
        self.login(client, user).await["access_token"].as_str().expect("a token").to_owned()
    }

    async fn revoke(&self, client: &str, token: &str) {
        let form = format!("client_id={client}&token={token}");
        assert_eq!(self.send("POST", "/token/revocation", &[], &form).await.status, 200);
    }

    /// Returns a token of a machine, bound to the certificate.
    async fn bound_token(&self, certificate: &std::path::Path) -> String {
        let pem = std::fs::read_to_string(certificate).unwrap();
        let pem: String = pem.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let basic = STANDARD.encode("machine-bound:secret-of-machine-bound");
        let basic = format!("Basic {basic}");
        let headers = [("authorization", basic.as_str()), ("x-client-certificate", pem.as_str())];
        let form = format!("grant_type=client_credentials&resource={RESOURCE}");
        let answer = self.send("POST", "/token", &headers, &form).await.json().await;
        answer["access_token"].as_str().expect("a token").to_owned()
    }

    /// Starts a broker that accepts tokens of the server for tenant `acme`.
    async fn broker(&self, backend: &FakeBackend, introspection: Value, more: Value) -> TestBroker {
        let mut settings = introspection;
        settings["endpoint"] = json!(format!("{}/token/introspection", self.issuer()));
        settings["ttl"] = json!("2s");
        let issuer = json!({
            "issuer": self.issuer(), "tenant": "acme", "claims": {"groups": "groups"},
            "introspection": settings,
        });
        let auth = json!({"auth": {"resource": RESOURCE, "issuers": [issuer]}});
        let policy = json!({"default": "deny", "rules": [
            {"id": "dev", "effect": "allow", "subjects": {"groups": ["dev"]}},
        ]});
        let broker = builder()
            .single_process()
            .auth_required()
            .admin_token("operator-of-tests")
            .config(auth)
            .config(more)
            .tenant("acme")
            .backend("acme", "b", backend.spec())
            .start()
            .await;
        let path = "/admin/v1/tenants/acme/policy";
        assert_eq!(broker.admin().put(path, &policy).await.0, 201);
        broker
    }
}

/// Returns the names of the tools that a token shows.
async fn tools(broker: &TestBroker, token: &str) -> Vec<String> {
    let client = broker.client("/mcp").bearer(token).connected(json!({})).await;
    let listed = client.result("tools/list", json!({})).await;
    let tools = listed["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

fn by_secret() -> Value {
    json!({"client_id": "broker", "client_secret": "secret-of-broker"})
}

#[tokio::test]
async fn users_of_a_real_provider_have_the_rights_of_their_groups() {
    let (login, backend) = (Login::start(&[]).await, FakeBackend::echo().await);
    let broker = login.broker(&backend, by_secret(), json!({})).await;
    let ann = login.access_token("login", "ann").await;
    until_status(&broker, &ann, 200).await;
    assert_eq!(tools(&broker, &ann).await, ["b__echo"]);
    let bob = login.access_token("login", "bob").await;
    assert_eq!(tools(&broker, &bob).await, Vec::<String>::new());
    let opaque = login.access_token("login-opaque", "ann").await;
    assert!(!opaque.contains('.'), "{opaque}");
    assert_eq!(tools(&broker, &opaque).await, ["b__echo"]);
    let of_bob = login.access_token("login-opaque", "bob").await;
    assert_eq!(tools(&broker, &of_bob).await, Vec::<String>::new());
    let sessions = broker.admin().sessions("acme").await;
    for subject in ["ann", "bob"] {
        let principal = format!("{} {subject}", login.issuer());
        assert!(sessions.iter().any(|session| session["principal"] == principal), "{sessions:?}");
    }
    // A refresh token is active there, and no access token here.
    let refresh = login.login("login-opaque", "ann").await["refresh_token"].clone();
    assert_eq!(status(&broker, refresh.as_str().unwrap()).await, 401);
    login.revoke("login-opaque", &opaque).await;
    until_status(&broker, &opaque, 401).await;
    assert_eq!(
        status(&broker, &ann).await,
        200,
        "a JWT lasts until its end, unless it is revoked here"
    );
    let principal = format!("{} ann", login.issuer());
    let path = "/admin/v1/tenants/acme/revocations";
    assert_eq!(broker.admin().post(path, &json!({"principal": principal})).await.0, 201);
    assert_eq!(status(&broker, &ann).await, 401);
    assert_eq!(status(&broker, &bob).await, 200);
}

/// Returns the public key set of a client, and its private key in PEM.
fn client_key() -> (Value, String) {
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref()).unwrap();
    let point = &pair.public_key().as_ref()[1..];
    let key = json!({"keys": [{
        "kty": "EC", "crv": "P-256", "kid": "k", "alg": "ES256",
        "x": URL_SAFE_NO_PAD.encode(&point[..32]), "y": URL_SAFE_NO_PAD.encode(&point[32..]),
    }]});
    let body = STANDARD.encode(document.as_ref());
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n");
    (key, pem)
}

#[tokio::test]
async fn a_real_provider_accepts_the_broker_with_each_kind_of_credential() {
    let (key, pem) = client_key();
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("key.pem");
    std::fs::write(&file, pem).unwrap();
    let login = Login::start(&["--client-jwks", &key.to_string()]).await;
    let backend = FakeBackend::echo().await;
    let opaque = login.access_token("login-opaque", "ann").await;
    for (introspection, wanted) in [
        (
            json!({"client_id": "broker-post", "client_secret": "secret-of-broker-post", "auth": "post"}),
            200,
        ),
        (
            json!({"client_id": "broker-key", "client_key_file": file, "client_key_id": "k", "auth": "private_key_jwt"}),
            200,
        ),
        (json!({"client_id": "broker", "client_secret": "wrong"}), 503),
    ] {
        let broker = login.broker(&backend, introspection.clone(), json!({})).await;
        assert_eq!(status(&broker, &opaque).await, wanted, "{introspection}");
    }
}

#[tokio::test]
async fn a_token_that_a_real_provider_binds_needs_its_certificate() {
    let (login, backend, authority) =
        (Login::start(&[]).await, FakeBackend::echo().await, Authority::new());
    let signed = authority.server("server");
    let tls = json!({"tls": {
        "cert_file": signed.cert, "key_file": signed.key,
        "client_auth": "optional", "client_ca_file": authority.ca(),
    }});
    let broker = login.broker(&backend, by_secret(), tls).await;
    let own = authority.server_called("own", "machine.example");
    let token = login.bound_token(&own.cert).await;
    let request = |identity| {
        let (authority, token, port) = (&authority, &token, broker.http_address().port());
        async move {
            let mut stream =
                within("TLS", authority.connect(port, identity, &["http/1.1"])).await.unwrap();
            let more = format!("connection: close\r\nauthorization: Bearer {token}\r\n");
            let text = testkit::http::post("/mcp", &more, &initialize_body("2025-11-25"));
            stream.write_all(text.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let read =
                tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer));
            let _no_close_notify = read.await.expect("the answer ends");
            String::from_utf8_lossy(&answer).into_owned()
        }
    };
    eventually("the token is accepted with its certificate", || async {
        match request(Some(&own)).await {
            answer if answer.starts_with("HTTP/1.1 200") => Ok(()),
            answer => Err(answer),
        }
    })
    .await;
    assert!(request(None).await.starts_with("HTTP/1.1 401"));
    let other = authority.server_called("other", "machine.example");
    assert!(request(Some(&other)).await.starts_with("HTTP/1.1 401"));
}

/// Calls a backend whose resource is the broker's usual one, with tokens of the real provider.
async fn call_as_machine(login: &Login, auth: Value) -> Value {
    let backend = FakeBackend::echo().await;
    let document = json!({
        "resource": backend.url(), "authorization_servers": [login.issuer()],
        "scopes_supported": ["mcp:read"],
    });
    backend.gate(move |path, headers| {
        let is_known = headers.get("authorization").is_some_and(|value| value.len() > 20);
        let (status, body) = match path.starts_with("/.well-known/") {
            true => (200, document.clone()),
            false if is_known => return None,
            false => (401, json!({})),
        };
        Some(GateAnswer { status, headers: Vec::new(), body })
    });
    let mut spec = backend.spec();
    spec["auth"] = json!({"type": "oauth_client", "issuer": login.issuer()});
    for (name, value) in auth.as_object().unwrap() {
        spec["auth"][name] = value.clone();
    }
    let broker = builder().single_process().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    client.result("tools/call", json!({"name": "b__echo", "arguments": {}})).await;
    let call = backend.recorded().into_iter().find(|request| request.calls("echo")).unwrap();
    let token = call.header("authorization").unwrap().to_owned();
    let claims = token.split('.').nth(1).map(|part| URL_SAFE_NO_PAD.decode(part).unwrap());
    let claims: Value = claims.map_or(Value::Null, |text| serde_json::from_slice(&text).unwrap());
    if !claims.is_null() {
        assert_eq!((&claims["aud"], &claims["scope"]), (&json!(backend.url()), &json!("mcp:read")));
    }
    claims
}

#[tokio::test]
async fn the_broker_gets_tokens_for_backends_as_a_client_of_a_real_provider() {
    let (key, pem) = client_key();
    let login = Login::start(&["--client-jwks", &key.to_string()]).await;
    let of = |id: &str| json!({"client_id": id, "client_secret": format!("secret-of-{id}")});
    assert_eq!(call_as_machine(&login, of("machine")).await["client_id"], "machine");
    assert_eq!(call_as_machine(&login, of("machine-opaque")).await, Value::Null);
    let mut post = of("broker-post");
    post["token_endpoint_auth_method"] = json!("client_secret_post");
    assert_eq!(call_as_machine(&login, post).await["client_id"], "broker-post");
    let signed = json!({"client_id": "broker-key", "client_key": pem, "client_key_id": "k"});
    assert_eq!(call_as_machine(&login, signed).await["client_id"], "broker-key");
}
