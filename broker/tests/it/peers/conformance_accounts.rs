//! The official conformance suite about authorization: the broker is the OAuth client of the suite's
//! servers, and a client in front of it has a browser (`peers/clients/accounts.py`). A warning counts
//! as a failure.

use std::{collections::BTreeMap, time::Duration};

use super::{
    conformance::{Check, complaints, verdicts},
    install::Peers,
    process::{Ended, run},
};
use crate::builder;

const SUITE_WITHIN: Duration = Duration::from_secs(120);

/// Runs scenarios at the same time, over one broker. `opens_urls`: the client in front declares
/// elicitation by URL. No scenario may fail or warn.
async fn scenarios(selection: &[&str], opens_urls: bool) -> BTreeMap<String, Vec<Check>> {
    let peers = Peers::installed();
    let results = tempfile::tempdir().expect("a temporary folder");
    let broker = builder().single_process().start().await;
    let driver = Peers::ours("peers/conformance-client.py");
    let mut suite = peers.conformance();
    suite
        .env("DRIVER_BROKER", broker.url(""))
        .env("DRIVER_ADMINS", format!("http://{}", broker.admin_address()))
        .env("DRIVER_OPENS_URLS", if opens_urls { "1" } else { "" })
        .args(["client", "--command"])
        .arg(format!("'{}' -B '{}'", peers.python(2).display(), driver.display()))
        .args(["--timeout", "60000", "-o"])
        .arg(results.path())
        .args(selection);
    let Ended { status, stdout, stderr } = run(suite, SUITE_WITHIN).await;

    // A suite can have scenarios of other subjects, which the driver does not run.
    let scenarios = verdicts(&results.path().join("auth"));
    let complaints = complaints(&scenarios);
    assert!(complaints.is_empty(), "{status}\n{}\n{stdout}\n{stderr}", complaints.join("\n"));
    for (name, checks) in &scenarios {
        let succeeded = checks.iter().any(|check| check.status == "SUCCESS");
        assert!(succeeded, "no check of {name} succeeded:\n{stdout}\n{stderr}");
    }
    scenarios
}

/// The client is notified by error -32042.
#[tokio::test]
async fn accounts_of_2025_11_25() {
    let done = scenarios(&["--suite", "auth", "--spec-version", "2025-11-25"], true).await;
    assert_eq!(done.len(), 14, "{:?}", done.keys());
}

/// The client is notified by `input_required`.
#[tokio::test]
async fn accounts_of_2026_07_28() {
    for (suite, count) in [("auth", 14), ("draft", 11)] {
        let done = scenarios(&["--suite", suite, "--spec-version", "2026-07-28"], true).await;
        assert_eq!(done.len(), count, "{:?}", done.keys());
    }
}

/// The client is notified by the text of a tool error. The servers of that revision have no
/// metadata of the resource, and one of them has none at all.
#[tokio::test]
async fn accounts_of_2025_03_26() {
    let done = scenarios(&["--suite", "backcompat", "--spec-version", "2025-03-26"], false).await;
    assert_eq!(done.len(), 2, "{:?}", done.keys());
}

#[tokio::test]
async fn accounts_at_an_identity_provider() {
    for revision in ["2025-11-25", "2026-07-28"] {
        let scenario = "auth/enterprise-managed-authorization";
        let selection = ["--scenario", scenario, "--spec-version", revision, "--force"];
        assert_eq!(scenarios(&selection, true).await.len(), 1);
    }
}
