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
        ended_after_load: 0,
        refused: 3,
        rate,
        latency,
        distribution: vec![(0.0, 0.2), (0.5, 0.5), (0.99, 20.0), (1.0, 40.0)],
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
        environment: Environment {
            processors: 2,
            server: "a server 1.0".to_owned(),
            ..Environment::default()
        },
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
fn a_run_without_a_successful_call_fails_whatever_share_may_be_refused() {
    let refused = |refused| {
        let mut report = Report { refused, ..report(0.0) };
        report.judge(1.0);
        report
    };
    assert_eq!(refused(100).faults, ["every call was refused (3 x code -32000)"]);
    let mostly = refused(99);
    assert!(mostly.is_good() && mostly.summary().contains("99.0 % (3 x code -32000)"));
}

#[test]
fn any_wrong_answer_fails_a_run() {
    let mut bad = report(10.0);
    bad.wrong.insert("swapped".to_owned(), 2);
    bad.judge(1.0);
    assert_eq!(bad.faults, ["2 answers were swapped"]);
}

#[test]
fn calls_that_ended_after_the_load_are_named() {
    let throughput = |ended_after_load| Report { ended_after_load, ..report(10.0) }.throughput();
    assert_eq!(throughput(0), "100 calls in 3.0 s, 10 a second");
    assert_eq!(throughput(70), "100 calls in 3.0 s (70 ended after the load), 10 a second");
}

#[test]
fn a_report_can_be_read_back() {
    let text = serde_json::to_string(&report(10.0)).unwrap();
    let read: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
}

#[test]
fn the_page_shows_all_runs_and_loads_no_external_resource() {
    let mut other = report(20.0);
    other.name = "<script>alert(1)</script>".to_owned();
    other.faults.push("5 answers were lost".to_owned());
    let page = page(&[report(10.0), other]);
    assert_eq!(
        page.matches("<svg").count(),
        5 + 2 * 6,
        "both runs laid over each other, and latency, its distribution, throughput, errors, processor and memory of each"
    );
    assert!(page.contains("a server 1.0; mcp-loadtest") && page.contains("99 %"));
    assert!(
        page.contains("20 (2.00)") && page.contains("5 answers were lost") && page.contains("p99")
    );
    for absent in ["<script", "http-equiv", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(absent), "{absent} is in the page");
    }
}

#[test]
fn the_image_shows_all_runs_in_the_same_charts() {
    let mut other = report(20.0);
    other.name = "<b>two</b>".to_owned();
    let image = picture(&[report(10.0), other]);
    let lines_of = |title: &str| {
        let chart = image.split("<g ").find(|chart| chart.contains(title)).unwrap_or_default();
        chart.matches(r#"class="line""#).count()
    };
    for title in ["Latency distribution", "Throughput", "Latency, p99", "Memory of the target"] {
        assert_eq!(lines_of(title), 2 + 2, "two runs and their names: {title}");
    }
    assert!(
        image.starts_with("<svg xmlns") && image.contains("&lt;b&gt;two") && !image.contains("<b>")
    );
}

#[test]
fn a_control_character_in_a_name_keeps_the_image_valid_xml() {
    let mut named = report(10.0);
    named.name = "a\0b\u{1b}[1m\u{ffff}\nc".to_owned();
    let image = picture(&[named]);
    assert!(image.contains("a\u{fffd}b\u{fffd}[1m\u{fffd}\nc"), "{image}");
}

#[test]
fn an_incomplete_last_window_does_not_lower_the_rate() {
    let window = |succeeded| Window { succeeded, ..Window::default() };
    let second = Duration::from_secs(1);
    let rates = |counts: &[u64], measured: f64| -> Vec<(f64, f64)> {
        let counted: Vec<Window> = counts.iter().copied().map(window).collect();
        let figures = windows(&counted, second, Duration::from_secs_f64(measured));
        figures.iter().map(|window| (window.at_s, window.rate)).collect()
    };
    // Calls that ended after the load are no window of their own, and no part of a rate.
    assert_eq!(rates(&[100, 100, 3], 2.0), [(1.0, 100.0), (2.0, 100.0)]);
    // A short rest belongs to the window before it, a long one is a window.
    assert_eq!(rates(&[100, 100, 20], 2.2), [(1.0, 100.0), (2.2, 100.0)]);
    assert_eq!(rates(&[100, 100, 80], 2.8), [(1.0, 100.0), (2.0, 100.0), (2.8, 100.0)]);
    assert_eq!(rates(&[30], 0.3), [(0.3, 100.0)]);
    // A target that died early has no windows later.
    assert_eq!(rates(&[100, 7], 5.0), [(1.0, 100.0), (2.0, 7.0)]);
}
