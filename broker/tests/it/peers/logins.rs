//! The login of real clients, among them the Inspector in a browser, at a real authorization server:
//! `oidc-provider` with the habits of Entra, behind the broker's own authorization server.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{BrokerBuilder, FakeBackend, Reply, TestBroker};
use tokio::process::Command;

use super::{
    install::Peers,
    process::{Ended, Server, run},
};
use crate::tokens::reload::reload;

/// Redirect URI of the client. Nothing listens there: the client reads the code from the redirect.
const REDIRECT_URI: &str = "http://127.0.0.1:7999/cb";
const RUN_WITHIN: Duration = Duration::from_secs(120);
const AUDIENCE: &str = "0a1b2c3d";

async fn provider(peers: &Peers, options: &[&str]) -> Server {
    let mut command = Command::new(peers.node());
    command
        .arg(Peers::ours("peers/servers/oidc.mjs"))
        .args(options)
        .env("NODE_MODULES", peers.node_folder().join("node_modules"));
    Server::start(command, |line| line.strip_prefix("oidc listening on ").map(str::to_owned)).await
}

/// Starts a broker with this issuer, whose tool `write` needs another scope.
async fn broker_of(backend: &FakeBackend, issuer: Value) -> TestBroker {
    backend.tool("write", |_| async {
        Reply::Result(json!({"content": [{"type": "text", "text": "written"}]}))
    });
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .single_process()
        .auth_required()
        .admin_token("operator-of-tests")
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let policy = json!({"rules": [{
        "id": "writers", "effect": "deny", "objects": {"tools": ["b/write"]},
        "required_scopes": ["mcp:write"],
    }]});
    let (status, answer) = broker.admin().put("/admin/v1/tenants/default/policy", &policy).await;
    assert_eq!(status, 201, "{answer}");
    // The address is known only now.
    reload(&broker, |config| {
        config["auth"]["resource"] = json!(broker.url("").trim_end_matches('/'));
        config["auth"]["issuers"] = json!([issuer]);
    })
    .await;
    broker
}

/// Runs a client that prints `ok` for each of its checks.
async fn passes(client: Command, checks: usize, broker: &TestBroker) -> String {
    let Ended { status, stdout, stderr } = run(client, RUN_WITHIN).await;
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(
        status.success()
            && lines.len() == checks
            && lines.iter().all(|line| line.starts_with("ok ")),
        "{status}\n{stdout}\n{stderr}\n{}",
        broker.log()
    );
    stdout
}

/// Starts an authorization server with the habits of Entra, and returns it with the broker's issuer.
async fn like_entra(peers: &Peers, redirect_uri: &str) -> (Server, Value) {
    let habits = ["--no-registration", "--refuse-resource", "--no-iss", "--hide-pkce"];
    let own = ["--audience", AUDIENCE, "--redirect-uri", redirect_uri];
    let server = provider(peers, &[&habits[..], &own].concat()).await;
    let issuer = json!({
        "issuer": server.url,
        "tenant": "default",
        "preset": "entra",
        "audiences": [AUDIENCE],
        "scopes": ["mcp:read"],
        "registration": {"client_id": "login", "redirect_uris": [redirect_uri]},
    });
    (server, issuer)
}

#[tokio::test]
async fn clients_log_in_with_a_provider_that_refuses_resource_and_registers_no_client() {
    let peers = Peers::installed();
    let (_server, issuer) = like_entra(&peers, "http://127.0.0.1/cb").await;
    let backend = FakeBackend::echo().await;
    let broker = broker_of(&backend, issuer).await;
    let mut python = Command::new(peers.python(2));
    python.arg("-B").arg(Peers::ours("peers/clients/logins.py"));
    let mut typescript = Command::new(peers.node());
    typescript.arg(Peers::ours("peers/clients/logins.mjs"));
    for mut client in [python, typescript] {
        client.args([&broker.url("/mcp"), REDIRECT_URI, "b__echo", "b__write"]);
        let printed = passes(client, 6, &broker).await;
        assert!(printed.starts_with("ok logged in with login\n"), "{printed}");
    }
}

#[tokio::test]
async fn the_inspector_in_a_browser_logs_in_and_requests_another_scope() {
    let peers = Peers::installed();
    let (_server, issuer) = like_entra(&peers, "http://127.0.0.1/oauth/callback").await;
    let backend = FakeBackend::echo().await;
    let broker = broker_of(&backend, issuer).await;
    let storage = tempfile::tempdir().unwrap();
    let mut inspector = Command::new(peers.node());
    inspector
        .arg(Peers::ours("peers/clients/inspector.mjs"))
        .args([&broker.url("/mcp"), "b__write", "mcp:write", "written"])
        .env("TMPDIR", storage.path());
    passes(inspector, 3, &broker).await;
}
