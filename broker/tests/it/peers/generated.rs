//! A client that openapi-python-client generates from the OpenAPI document of the real binary. It
//! knows nothing of the broker: names, types and errors are those of the document.

use std::{fs, time::Duration};

use serde_json::Value;
use tokio::process::Command;

use super::{
    install::Peers,
    process::{Ended, run},
};
use crate::builder;

const GENERATED_WITHIN: Duration = Duration::from_secs(60);
const RUN_WITHIN: Duration = Duration::from_secs(120);
const TOKEN: &str = "the-token-of-the-operator";
/// Media types that the generator does not know, and what they are read as. The generated code is
/// not formatted.
const SETTINGS: &str =
    r#"{"content_type_overrides": {"application/x-ndjson": "text/plain"}, "post_hooks": []}"#;
const CHECKS: [&str; 7] = [
    "ok each transport has a class",
    "ok a tenant",
    "ok backends on two transports",
    "ok a key",
    "ok the session of the key",
    "ok a policy",
    "ok refusals",
];

#[tokio::test]
async fn a_generated_client_operates_the_broker() {
    let peers = Peers::installed();
    let server = peers.everything_over_http().await;
    let broker = builder().single_process().auth_required().admin_token(TOKEN).start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);

    let (status, document) = broker.admin().get("/admin/v1/openapi.json").await;
    assert_eq!(status, 200);
    fs::write(path("openapi.json"), document.to_string()).unwrap();
    fs::write(path("settings.json"), SETTINGS).unwrap();
    let mut generate = Command::new(peers.python_of_openapi());
    generate.args(["-m", "openapi_python_client", "generate", "--meta", "none"]);
    // A warning is a part of the document that the generator leaves out.
    generate.arg("--fail-on-warning");
    generate.arg("--path").arg(path("openapi.json"));
    generate.arg("--config").arg(path("settings.json"));
    generate.arg("--output-path").arg(path("broker_admin"));
    let Ended { status, stdout, stderr } = run(generate, GENERATED_WITHIN).await;
    assert!(status.success(), "{stdout}\n{stderr}");

    let stdio: Value = peers.everything_over_stdio();
    let mut client = Command::new(peers.python_of_openapi());
    client.arg("-B").arg(Peers::ours("peers/clients/generated.py"));
    client.arg(format!("http://{}", broker.admin_address())).arg(TOKEN);
    client.arg(broker.url("/mcp")).arg(&server.url).arg(stdio.to_string());
    client.env("PYTHONPATH", folder.path());
    let Ended { status, stdout, stderr } = run(client, RUN_WITHIN).await;
    assert!(status.success(), "{stdout}\n{stderr}\nthe broker: {}", broker.log());
    assert_eq!(stdout.lines().collect::<Vec<_>>(), CHECKS);
}
