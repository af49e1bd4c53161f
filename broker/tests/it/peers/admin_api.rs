//! schemathesis against the admin API: requests made from its OpenAPI document, legal ones and
//! illegal ones, with a fixed seed. No answer is a fault of the broker, and the document announces
//! each.

use std::time::Duration;

use serde_json::json;
use tokio::process::Command;

use super::{install::Peers, process::run};
use crate::builder;

const RUN_WITHIN: Duration = Duration::from_secs(300);
/// Least number of cases. Fewer mean that the document was not understood.
const CASES_MIN: u32 = 500;
/// Seed of the requests. `MCP_BROKER_SEED=N` chooses another one.
const SEED: u64 = 7;

#[tokio::test]
async fn schemathesis_finds_no_fault_in_the_admin_api() {
    let config = json!({
        // Registered backends cannot be reached, and the short timeouts keep the waits short.
        "egress": {"deny": ["0.0.0.0/0", "::/0"]},
        "timeouts": {"connect": "100ms", "initialize": "100ms"},
    });
    let broker = builder().single_process().config(config).start().await;
    broker.admin().put_tenant("acme", json!({})).await;
    let admin = format!("http://{}", broker.admin_address());
    let seed =
        std::env::var("MCP_BROKER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    let mut command = Command::new(Peers::installed().python_of_admin());
    command.args([
        "-m",
        "schemathesis.cli",
        "run",
        &format!("{admin}/admin/v1/openapi.json"),
        "--url",
        &admin,
    ]);
    command.args([
        "--seed",
        &seed.to_string(),
        "--max-examples",
        "10",
        "--generation-database",
        "none",
        "--no-color",
    ]);
    command.args([
        "--checks",
        CHECKS,
        "--exclude-path",
        "/admin/v1/drain",
        "--exclude-path",
        "/admin/v1/nodes/{node}/drain",
        "--continue-on-failure",
    ]);
    command.current_dir(broker.folder());
    let ended = run(command, RUN_WITHIN).await;
    assert!(
        ended.status.success(),
        "{}\n{}\nthe broker: {}",
        ended.stdout,
        ended.stderr,
        broker.log()
    );
    // Some hundreds of requests to every operation but the drains.
    let cases = ended.stdout.lines().find_map(|line| line.trim().split_once(" generated, "));
    let (generated, passed) = cases.unwrap_or_else(|| panic!("no summary: {}", ended.stdout));
    assert_eq!(passed, format!("{generated} passed"), "{}", ended.stdout);
    assert!(generated.parse().is_ok_and(|count: u32| count >= CASES_MIN), "{}", ended.stdout);
    assert!(!broker.log().contains("internal fault"), "{}", broker.log());
    assert_eq!(broker.admin().get("/healthz").await.0, 200);
}

/// All checks that compare answers with the document. The check that takes every text allowed by
/// the schema for valid is left out: a schema cannot state that a host name exists, for example.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance,unsupported_method,allow_header_conformance";
