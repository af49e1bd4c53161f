//! The official conformance suite, for revision 2025-11-25 and as far as it supports the earlier
//! ones. The broker is the server in front of the Python SDK's everything-server, and the client of
//! the suite's own servers. Verdicts are read from the suite's result files; a warning counts as a
//! failure.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde_json::{Value, json};
use testkit::{BrokerBuilder, Topology};

use super::{
    install::Peers,
    process::{Ended, run},
};

const REVISION: &str = "2025-11-25";
const SUITE_WITHIN: Duration = Duration::from_secs(180);
/// Number of scenarios that count for the revision.
const SCORED: usize = 30;
/// Scenarios that the suite runs but does not count. They count here.
const ALSO_WANTED: [&str; 3] =
    ["server-session-lifecycle", "server-sse-polling", "json-schema-2020-12"];

/// One check of a scenario.
pub(super) struct Check {
    id: String,
    pub(super) status: String,
    why: String,
}

/// Returns the checks of each scenario. The suite writes one folder per scenario,
/// `{role}-{scenario}-{time}`, with a list of checks in it. A scenario with a slash in its name has
/// a folder in a folder.
pub(super) fn verdicts(folder: &Path) -> BTreeMap<String, Vec<Check>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut scenarios = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the suite wrote its results") {
        let entry = entry.expect("a readable folder");
        let name = entry.file_name().to_string_lossy().into_owned();
        if !entry.path().join("checks.json").exists() {
            scenarios.extend(verdicts(&entry.path()));
            continue;
        }
        let checks =
            std::fs::read(entry.path().join("checks.json")).expect("a scenario has its checks");
        let checks: Vec<Value> = serde_json::from_slice(&checks).expect("the checks are JSON");
        let checks = checks
            .iter()
            .map(|check| Check {
                id: text(&check["id"]),
                status: text(&check["status"]),
                why: check["errorMessage"].to_string(),
            })
            .collect();
        scenarios.insert(name, checks);
    }
    scenarios
}

/// Returns failures and warnings, one line each.
pub(super) fn complaints(scenarios: &BTreeMap<String, Vec<Check>>) -> Vec<String> {
    let bad = |check: &&Check| check.status == "FAILURE" || check.status == "WARNING";
    scenarios
        .iter()
        .flat_map(|(name, checks)| {
            checks
                .iter()
                .filter(bad)
                .map(move |Check { id, status, why }| format!("{name}: {status} {id} {why}"))
        })
        .collect()
}

/// Runs the suite against the broker's endpoint for the Python SDK's everything-server. No scenario
/// may fail or warn.
async fn server_scenarios(topology: Topology, selection: &[&str]) -> BTreeMap<String, Vec<Check>> {
    let (scenarios, success, output) = run_server_scenarios(topology, "auto", selection).await;
    let complaints = complaints(&scenarios);
    assert!(success && complaints.is_empty(), "{}\n{output}", complaints.join("\n"));
    scenarios
}

/// Returns the verdicts, whether all counted scenarios passed, and the suite's output. `protocol`:
/// the era of the link to the backend.
async fn run_server_scenarios(
    topology: Topology,
    protocol: &str,
    selection: &[&str],
) -> (BTreeMap<String, Vec<Check>>, bool, String) {
    let peers = Peers::installed();
    let fixture = peers.conformance_fixture().await;
    let spec = json!({"transport": {"type": "http", "url": fixture.url}, "protocol": protocol});
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .backend("default", "fixture", spec)
        .on(topology)
        .start()
        .await;
    let results = tempfile::tempdir().expect("a temporary folder");
    let mut suite = peers.conformance();
    suite
        .args(["server", "--url", &broker.url("/mcp/fixture"), "-o"])
        .arg(results.path())
        .args(selection);
    let Ended { status, stdout, stderr } = run(suite, SUITE_WITHIN).await;

    (verdicts(results.path()), status.success(), format!("{status}\n{stdout}\n{stderr}"))
}

/// Scenarios of 2026-07-28 whose tools answer with `input_required` by themselves. The fixture does
/// that only for a client of the revision, not in a session that the operator has configured.
const NEED_A_MODERN_LINK: [&str; 1] = ["input-required-result-"];
/// Scenarios of the extension of tasks, whose tools this fixture does not have: `conformance_tasks`
/// has them.
const ALSO_NOT: [&str; 1] = ["tasks-"];
/// The fixture announces a change of an unchanged list, to show that it can. The broker announces
/// changes only.
const NOT_REPORTED: [&str; 2] = [
    "sep-2575-server-sends-prompts-list-changed-on-subscription",
    "sep-2575-server-sends-tools-list-changed-on-subscription",
];
const SCORED_2026: usize = 37;

on_every_ground! {
    /// Runs all counted scenarios, and all others except those of tasks.
    async fn server_scenarios_of_2026_07_28(topology: Topology) {
        modern_scenarios(topology, "auto", &ALSO_NOT).await;
    }

    /// Runs the same scenarios in front of a server that is used in sessions.
    async fn server_scenarios_of_2026_07_28_over_sessions(topology: Topology) {
        modern_scenarios(topology, "legacy", &[NEED_A_MODERN_LINK, ALSO_NOT].concat()).await;
    }

    async fn server_scenarios_of_2025_11_25(topology: Topology) {
        let scenarios = server_scenarios(topology, &["--requirements", REVISION]).await;
        assert_eq!(scenarios.len(), SCORED + ALSO_WANTED.len(), "{:?}", scenarios.keys());
        for wanted in ALSO_WANTED {
            assert!(scenarios.keys().any(|name| name.starts_with(&format!("server-{wanted}-"))), "{wanted} did not run");
        }
        // Passing is not enough here: if the answer were plain JSON, the suite would skip the
        // scenario as not applicable.
        let polling = scenarios.iter().find(|(name, _)| name.contains("server-sse-polling")).map(|(_, checks)| checks);
        let passed = |id: &str| polling.is_some_and(|checks| checks.iter().any(|check| check.id == id && check.status == "SUCCESS"));
        assert!(passed("server-sse-priming-event") && passed("server-sse-retry-field"), "the call was not answered by a stream");
    }

    async fn server_scenarios_of_2025_06_18(topology: Topology) {
        let scenarios = server_scenarios(topology, &["--suite", "all", "--spec-version", "2025-06-18"]).await;
        assert_eq!(scenarios.len(), 27, "{:?}", scenarios.keys());
    }

    async fn server_scenarios_of_2025_03_26(topology: Topology) {
        let scenarios = server_scenarios(topology, &["--suite", "all", "--spec-version", "2025-03-26"]).await;
        assert_eq!(scenarios.len(), 1, "{:?}", scenarios.keys());
    }
}

async fn modern_scenarios(topology: Topology, protocol: &str, excused: &[&str]) {
    let (scenarios, success, output) =
        run_server_scenarios(topology, protocol, &["--requirements", "2026-07-28"]).await;
    assert!(success || protocol == "legacy", "{output}");
    assert!(scenarios.len() >= SCORED_2026, "{:?}", scenarios.keys());
    let is_excused = |name: &str| {
        excused.iter().any(|known| name.trim_start_matches("server-").starts_with(known))
    };
    let bad = |check: &&Check| {
        ["FAILURE", "WARNING"].contains(&check.status.as_str())
            && !NOT_REPORTED.contains(&check.id.as_str())
    };
    let complaints: Vec<String> = scenarios
        .iter()
        .filter(|(name, _)| !is_excused(name))
        .flat_map(|(name, checks)| {
            checks
                .iter()
                .filter(bad)
                .map(move |check| format!("{name}: {} {}", check.id, check.why))
        })
        .collect();
    assert!(complaints.is_empty(), "{}\n{output}", complaints.join("\n"));
}

/// Runs a client scenario. The suite starts the backend; its driver connects that and a client to
/// the broker.
async fn client_scenario(topology: Topology, scenario: &str, revision: &str) {
    client_scenario_of(topology, scenario, revision, None).await;
}

/// `crossing`: the revision of the client in front of the broker, and the era of the link to the
/// suite's server. `None`: both have the server's revision.
async fn client_scenario_of(
    topology: Topology,
    scenario: &str,
    revision: &str,
    crossing: Option<(&str, &str)>,
) {
    let peers = Peers::installed();
    let results = tempfile::tempdir().expect("a temporary folder");
    let driver = Peers::ours("peers/conformance-client.py");
    let mut suite = peers.conformance();
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker")).on(topology).start().await;
    let admins: Vec<String> =
        broker.admin_addresses().iter().map(|address| format!("http://{address}")).collect();
    suite.env("DRIVER_BROKER", broker.url("")).env("DRIVER_ADMINS", admins.join(" "));
    if let Some((speaks, protocol)) = crossing {
        suite.env("DRIVER_CLIENT_SPEAKS", speaks).env("DRIVER_PROTOCOL", protocol);
    }
    suite.args([
        "client",
        "--command",
        &format!("'{}' -B '{}'", peers.python(2).display(), driver.display()),
    ]);
    suite
        .args(["--scenario", scenario, "--spec-version", revision, "--timeout", "60000", "-o"])
        .arg(results.path())
        // Extensions belong to no revision.
        .args(scenario.starts_with("auth/client-credentials").then_some("--force"));
    let Ended { status, stdout, stderr } = run(suite, SUITE_WITHIN).await;

    let scenarios = verdicts(results.path());
    let complaints = complaints(&scenarios);
    // The suite's server declares no tools, so the broker refuses its client's request for them.
    // The requests that arrived there are judged nevertheless.
    let passed = status.success() || scenario == "request-metadata";
    assert!(
        passed && complaints.is_empty(),
        "{status}\n{}\n{stdout}\n{stderr}",
        complaints.join("\n")
    );
    let successes = scenarios.values().flatten().filter(|check| check.status == "SUCCESS").count();
    assert!(successes > 0, "no check succeeded:\n{stdout}");
}

on_every_ground! {
    async fn client_scenario_initialize(topology: Topology) {
        client_scenario(topology, "initialize", REVISION).await;
    }

    async fn client_scenario_tools_call(topology: Topology) {
        client_scenario(topology, "tools_call", REVISION).await;
    }

    async fn client_scenario_elicitation_defaults(topology: Topology) {
        client_scenario(topology, "elicitation-sep1034-client-defaults", REVISION).await;
    }

    async fn client_scenario_sse_retry(topology: Topology) {
        client_scenario(topology, "sse-retry", REVISION).await;
    }

    async fn client_scenario_json_schema_preservation(topology: Topology) {
        client_scenario(topology, "json-schema-2020-12-preservation", REVISION).await;
    }

    async fn client_scenarios_of_2025_06_18(topology: Topology) {
        client_scenario(topology, "initialize", "2025-06-18").await;
        client_scenario(topology, "tools_call", "2025-06-18").await;
    }
}

#[tokio::test]
async fn client_scenarios_of_client_credentials() {
    for scenario in ["auth/client-credentials-basic", "auth/client-credentials-jwt"] {
        for revision in [REVISION, "2026-07-28"] {
            client_scenario(Topology::Sqlite, scenario, revision).await;
        }
    }
}

/// Scenarios that need a session: their tools send requests of their own to the client.
const NEED_A_SESSION: [&str; 4] = [
    "tools-call-sampling",
    "tools-call-elicitation",
    "elicitation-sep1034-defaults",
    "elicitation-sep1330-enums",
];

#[tokio::test]
async fn br_01_clients_of_2025_11_25_in_front_of_the_fixture_as_a_server_of_2026_07_28() {
    let peers = Peers::installed();
    let fixture = peers.conformance_fixture().await;
    let spec = json!({"transport": {"type": "http", "url": fixture.url}, "protocol": "modern"});
    let broker = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .backend("default", "fixture", spec)
        .start()
        .await;
    let results = tempfile::tempdir().expect("a temporary folder");
    let mut suite = peers.conformance();
    suite
        .args(["server", "--url", &broker.url("/mcp/fixture"), "--requirements", REVISION, "-o"])
        .arg(results.path());
    let Ended { stdout, stderr, .. } = run(suite, SUITE_WITHIN).await;

    let (lost, kept): (Vec<_>, Vec<_>) =
        complaints(&verdicts(results.path())).into_iter().partition(|complaint| {
            NEED_A_SESSION
                .iter()
                .any(|scenario| complaint.starts_with(&format!("server-{scenario}-")))
        });
    assert!(
        kept.is_empty() && lost.len() == NEED_A_SESSION.len(),
        "{}\n{stdout}\n{stderr}",
        kept.join("\n")
    );
    assert_eq!(verdicts(results.path()).len(), SCORED + ALSO_WANTED.len());
    assert_eq!(
        broker.admin().backend("default", "fixture").await["protocol_version"],
        "2026-07-28"
    );
}

/// Runs the suite's servers of 2026-07-28, with a client of 2025-11-25 in front. `protocol`: of the
/// backend.
async fn modern_client_scenario(scenario: &str, protocol: &'static str) {
    client_scenario_of(Topology::Sqlite, scenario, "2026-07-28", Some((REVISION, protocol))).await;
}

#[tokio::test]
async fn nb_meta_01_client_scenario_request_metadata() {
    modern_client_scenario("request-metadata", "modern").await;
}

#[tokio::test]
async fn nb_rt_01_client_scenario_tools_call_of_2026_07_28() {
    modern_client_scenario("tools_call", "auto").await;
}

#[tokio::test]
async fn nb_hdr_01_client_scenario_http_standard_headers() {
    modern_client_scenario("http-standard-headers", "modern").await;
}

#[tokio::test]
async fn nb_hdr_02_client_scenario_http_custom_headers() {
    modern_client_scenario("http-custom-headers", "auto").await;
}

#[tokio::test]
async fn nb_hdr_03_client_scenario_http_invalid_tool_headers() {
    modern_client_scenario("http-invalid-tool-headers", "auto").await;
}

#[tokio::test]
async fn nb_mrtr_01_client_scenario_request_state() {
    modern_client_scenario("sep-2322-client-request-state", "auto").await;
}

#[tokio::test]
async fn n_sch_01_client_scenario_json_schema_ref_no_deref() {
    modern_client_scenario("json-schema-ref-no-deref", "auto").await;
}

#[tokio::test]
async fn client_scenario_json_schema_preservation_of_2026_07_28() {
    modern_client_scenario("json-schema-2020-12-preservation", "auto").await;
}

/// Runs all of them again with a client of 2026-07-28 in front. The backend's only setting is its
/// URL.
#[tokio::test]
async fn br_01_client_scenarios_of_headers_and_states_with_a_client_of_2026_07_28() {
    for scenario in [
        "http-custom-headers",
        "http-invalid-tool-headers",
        "http-standard-headers",
        "sep-2322-client-request-state",
    ] {
        client_scenario(Topology::Sqlite, scenario, "2026-07-28").await;
    }
}

#[tokio::test]
async fn br_01_client_scenarios_of_metadata_and_schemas_with_a_client_of_2026_07_28() {
    for scenario in [
        "request-metadata",
        "tools_call",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
    ] {
        client_scenario(Topology::Sqlite, scenario, "2026-07-28").await;
    }
}
