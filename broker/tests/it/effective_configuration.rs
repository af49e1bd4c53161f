//! The configuration in force, as operators see it: merged from every source, and without secrets.

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{BrokerBuilder, TestBroker, Topology};

use crate::{builder, tokens::reload::reload};

const EFFECTIVE: &str = "/admin/v1/configuration/effective";
/// Part of every secret.
const CANARY: &str = "canary";

async fn effective(broker: &TestBroker) -> Value {
    let (status, view) = broker.admin().get(EFFECTIVE).await;
    assert_eq!(status, 200, "{view}");
    view
}

/// Plants a secret in every setting that can have one.
fn with_secrets(folder: &TempDir) -> BrokerBuilder {
    let bearer = folder.path().join("bearer");
    std::fs::write(&bearer, "canary-of-a-file").unwrap();
    let issuer = json!({
        "issuer": "http://127.0.0.1:9/issuer", "tenant": "default",
        "jwks_url": "http://127.0.0.1:9/keys?key=canary-jwks",
        "sign_in": {"client_id": "broker", "client_secret": "canary-sign-in"},
        "introspection": {"endpoint": "http://127.0.0.1:9/introspect", "client_id": "broker", "client_secret": "canary-introspection"},
        "admin": {"claim": "groups", "map": [{"value": "sre", "role": "viewer"}],
            "login": {"client_id": "console", "client_secret": "canary-login"}},
    });
    let stdio = json!({"transport": {"type": "stdio", "command": "/bin/false", "args": ["--token", "canary-argument", "-e", "A=canary-e"], "env": {"KEY": "canary-variable"}}});
    let http = json!({
        "transport": {"type": "http", "url": "http://127.0.0.1:9/mcp?key=canary-query"},
        "credentials": {"bearer": "canary-bearer", "headers": {"x-key": "canary-header"}},
    });
    let of_file = json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/mcp"}, "credentials": {"bearer_file": bearer}});
    let oauth = json!({
        "transport": {"type": "http", "url": "http://127.0.0.1:9/mcp"},
        "auth": {"type": "oauth_client", "client_id": "broker", "client_secret": "canary-client"},
    });
    builder()
        .single_process()
        .admin_token("canary-admin-token")
        .env("MCP_BROKER__NODE__SECRET", "canary-root-secret")
        .env(
            "MCP_BROKER__TELEMETRY__TRACES__ENDPOINT",
            "http://127.0.0.1:9/v1/traces?key=canary-traces",
        )
        .config(json!({
            "auth": {
                "resource": "https://mcp.example.com",
                "operators": [{"name": "vera", "role": "viewer", "token": "canary-operator-token"}],
                "issuers": [issuer],
            },
            "tenants": {"acme": {"weight": 3}},
            "backends": {"stdio": stdio, "http": http, "file": of_file, "acme/oauth": oauth},
        }))
}

#[tokio::test]
async fn no_secret_of_the_configuration_is_shown() {
    let folder = TempDir::new().unwrap();
    let broker = with_secrets(&folder).start().await;
    // With its own token, a viewer of the whole broker reads it too.
    let viewer = broker.admin().with_token(Some("canary-operator-token"));
    let (status, view) = viewer.get(EFFECTIVE).await;
    assert_eq!(status, 200, "{view}");
    assert!(!view.to_string().contains(CANARY), "{view:#}");
    for arguments in [&["config", "show"][..], &["config", "show", "--json"]] {
        let shown = broker.cli(arguments).await;
        assert_eq!(shown.code, Some(0), "{shown:?}");
        assert!(!shown.stdout.contains(CANARY), "{}", shown.stdout);
    }

    let configuration = &view["configuration"];
    let pointers = [
        "/node/secret",
        "/auth/admin_token",
        "/auth/operators/0/token",
        "/auth/issuers/0/sign_in/client_secret",
        "/auth/issuers/0/introspection/client_secret",
        "/auth/issuers/0/admin/login/client_secret",
        "/backends/default~1stdio/transport/env/KEY",
        "/backends/default~1stdio/transport/args/1",
        "/backends/default~1http/credentials/bearer",
        "/backends/default~1http/credentials/headers/x-key",
        "/backends/default~1file/credentials/bearer",
        "/backends/acme~1oauth/auth/client_secret",
    ];
    for pointer in pointers {
        assert_eq!(configuration.pointer(pointer), Some(&json!("***")), "{pointer}: {view:#}");
    }
    let shown = [
        ("/telemetry/traces.endpoint", "http://127.0.0.1:9/v1/traces?key=***"),
        ("/auth/issuers/0/jwks_url", "http://127.0.0.1:9/keys?key=***"),
        ("/backends/default~1http/transport/url", "http://127.0.0.1:9/mcp?key=***"),
        ("/auth/operators/0/name", "vera"),
        ("/auth/issuers/0/admin/map/0/value", "sre"),
        ("/shutdown/grace", "25s"),
    ];
    for (pointer, text) in shown {
        assert_eq!(configuration.pointer(pointer), Some(&json!(text)), "{pointer}: {view:#}");
    }
}

#[tokio::test]
async fn each_setting_has_its_source_and_what_needs_a_restart_stays() {
    let folder = TempDir::new().unwrap();
    let file = json!({"tenants": {"acme": {}}});
    std::fs::write(folder.path().join("team.yaml"), file.to_string()).unwrap();
    let broker = builder()
        .single_process()
        .env("MCP_BROKER__LIMITS__BURST", "77")
        .config(json!({
            "include": {"folder": folder.path(), "interval": "100ms"},
            "limits": {"burst": 5, "batch_calls": 4},
            "telemetry": {"log": "info"},
        }))
        .start()
        .await;
    let view = effective(&broker).await;
    let configuration = &view["configuration"];
    assert_eq!(configuration["limits"]["burst"], 77, "{view:#}");
    assert!(configuration["node"]["id"].is_string(), "a generated name is shown: {view:#}");
    assert_eq!(configuration["tenants"]["acme"]["weight"], 1, "{view:#}");
    let source = |view: &Value, path: &str| view["sources"][path].clone();
    let variable = json!({"kind": "environment", "name": "MCP_BROKER__LIMITS__BURST"});
    assert_eq!(source(&view, "limits.burst"), variable);
    assert_eq!(source(&view, "limits.batch_calls"), json!({"kind": "file"}));
    assert_eq!(source(&view, "shutdown.grace"), Value::Null, "the default");
    let included = json!({"kind": "included_file", "name": "team.yaml"});
    assert_eq!(source(&view, "tenants.acme"), included);

    reload(&broker, |config| {
        config["telemetry"]["log"] = json!("info,hyper=warn");
        config["limits"]["batch_calls"] = json!(9);
        config["tenants"] = json!({"zoo": {"weight": 2}});
    })
    .await;
    let next = effective(&broker).await;
    assert!(next["generation"].as_u64() > view["generation"].as_u64(), "{next:#}");
    let configuration = &next["configuration"];
    assert_eq!(configuration["telemetry"]["log"], "info,hyper=warn", "{next:#}");
    assert_eq!(configuration["limits"]["batch_calls"], 4, "it needs a restart: {next:#}");
    assert_eq!(configuration["tenants"]["zoo"]["weight"], 2, "{next:#}");
    assert_eq!(source(&next, "tenants.zoo"), json!({"kind": "file"}));
    assert_eq!(source(&next, "tenants.acme"), included);
}

#[tokio::test]
async fn the_printed_configuration_is_a_valid_configuration_file() {
    let backend = json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/mcp"}, "timeouts": {"call": "9s"}});
    // On PostgreSQL, the file has a root secret, which is printed as `***`.
    let broker = builder()
        .on(Topology::Sqlite)
        .config(json!({"tenants": {"on": {}}, "backends": {"on/b": backend}}))
        .start()
        .await;
    let shown = broker.cli(&["config", "show"]).await;
    let file = broker.folder().join("shown.yaml");
    std::fs::write(&file, &shown.stdout).unwrap();
    let checked = broker.cli(&["check-config", file.to_str().unwrap()]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}\n{}", shown.stdout);
}

#[tokio::test]
async fn only_operators_of_the_whole_broker_read_the_configuration() {
    let broker = builder().single_process().tenant("acme").start().await;
    let admin = broker.admin();
    let backend = json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/mcp"}});
    let (status, _) = admin.put("/admin/v1/tenants/acme/backends/b?wait=false", &backend).await;
    assert_eq!(status, 201);
    for body in [
        json!({"name": "tessa", "role": "viewer", "tenants": ["acme"]}),
        json!({"name": "otto", "role": "backend_owner", "backends": ["acme/b"]}),
    ] {
        let (_, made) = admin.post("/admin/v1/operators", &body).await;
        let operator = admin.with_token(made["token"].as_str());
        for path in [EFFECTIVE, "/admin/v1/log"] {
            assert_eq!(operator.get(path).await.0, 403, "{body} {path}");
        }
    }
}
