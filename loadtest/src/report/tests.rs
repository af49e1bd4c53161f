//! Tests of reports: their content, and that they can be read back and shown.

use super::*;

fn report(rate: f64) -> Report {
    let latency = Latency { mean: 1.0, p50: 0.5, p90: 1.5, p99: 20.0, p999: 30.0, max: 40.0 };
    let window = |at_s: f64| WindowFigures { at_s, rate, refused: 1, wrong: 0, latency };
    Report {
        name: "one".to_owned(),
        target: "http://127.0.0.1:1/mcp".to_owned(),
        began_at: 1,
        measured_s: 3.0,
        open_loop: true,
        sessions: 1,
        in_flight: 1,
        calls: 100,
        refused: 3,
        rate,
        latency,
        operations: [(
            "tools/call".to_owned(),
            OperationFigures { calls: 100, refused: 3, wrong: 0, latency },
        )]
        .into(),
        windows: vec![window(1.0), window(2.0), window(3.0)],
        refusals: [("code -32000".to_owned(), 3)].into(),
        wrong: BTreeMap::new(),
        witnesses: Vec::new(),
        notifications: 0,
        usage: vec![
            Sample { at_s: 1.0, cpu_s: 0.5, resident_bytes: 1 << 20 },
            Sample { at_s: 2.0, cpu_s: 1.0, resident_bytes: 2 << 20 },
        ],
        cpu_us_per_call: Some(12.5),
        faults: Vec::new(),
    }
}

#[test]
fn refusals_are_allowed_up_to_a_share() {
    let mut good = report(10.0);
    good.judge(0.03);
    assert!(good.is_good());
    let mut bad = report(10.0);
    bad.judge(0.0);
    assert_eq!(bad.faults, ["3.0 % of the calls were refused (3 x code -32000), 0 % are allowed"]);
    assert!(bad.summary().contains("FAILED: 3.0 %"));
}

#[test]
fn whatever_was_wrong_fails_a_run() {
    let mut bad = report(10.0);
    bad.wrong.insert("swapped".to_owned(), 2);
    bad.judge(1.0);
    assert_eq!(bad.faults, ["2 answers were swapped"]);
}

#[test]
fn a_report_survives_being_written() {
    let text = serde_json::to_string(&report(10.0)).unwrap();
    let read: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
}

#[test]
fn the_page_shows_all_runs_and_needs_nothing_from_elsewhere() {
    let mut other = report(20.0);
    other.name = "<script>alert(1)</script>".to_owned();
    other.faults.push("5 answers were lost".to_owned());
    let page = page(&[report(10.0), other]);
    assert_eq!(
        page.matches("<svg").count(),
        10,
        "latency, throughput, errors, processor and memory of two runs"
    );
    assert!(
        page.contains("20 (2.00)") && page.contains("5 answers were lost") && page.contains("p99")
    );
    for absent in ["<script", "http-equiv", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(absent), "{absent} is in the page");
    }
}
