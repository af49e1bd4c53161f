//! Shows several runs side by side on one self-contained page, with tables and charts over time.

use std::fmt::Write as _;

use super::{
    Report,
    charts::{self, Axes},
    shown, svg,
};

const STYLE: &str = "
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:100rem;padding:0 1rem;color:#1b1b1b;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:0 0 .4rem}
.runs{display:grid;grid-template-columns:repeat(auto-fit,minmax(24rem,1fr));gap:2rem}
table{border-collapse:collapse;width:100%;margin:.6rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .5rem;border-bottom:1px solid #ddd;text-align:right}th:first-child,td:first-child{text-align:left}
svg{width:100%;height:auto;margin:.4rem 0}
.good{color:#00694c}.bad{color:#b00020}pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:12px}
";

/// Returns the page for these runs.
pub fn page(runs: &[Report]) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>mcp-loadtest</title><style>{STYLE}{}</style></head><body><h1>Load test</h1>",
        svg::STYLE
    );
    let axes = Axes::of(runs);
    if runs.len() > 1 {
        page += &comparison(runs);
        page += "<div class=\"runs\">";
        for chart in charts::overlaid(runs, &axes, label) {
            page += &chart.inline();
        }
        page += "</div>";
    }
    page += "<div class=\"runs\">";
    for run in runs {
        page += &section(run, &axes);
    }
    page + "</div></body></html>\n"
}

/// Returns one SVG image that lays the runs over each other.
pub fn picture(runs: &[Report]) -> String {
    charts::picture(&charts::overlaid(runs, &Axes::of(runs), label))
}

fn label(run: &Report) -> String {
    escaped(if run.name.is_empty() { &run.target } else { &run.name })
}

/// Returns a table that compares each run with the first one.
fn comparison(runs: &[Report]) -> String {
    let mut table = "<table><tr><th>run</th><th>calls/s</th><th>p50</th><th>p99</th><th>CPU a call</th><th>verdict</th></tr>".to_owned();
    let first = &runs[0];
    let ratio = |value: f64, of: f64| {
        if of > 0.0 { format!(" ({:.2})", value / of) } else { String::new() }
    };
    for run in runs {
        let cpu = run.cpu_us_per_call.map_or_else(
            || "-".to_owned(),
            |cpu| format!("{cpu:.1} µs{}", ratio(cpu, first.cpu_us_per_call.unwrap_or_default())),
        );
        let _ = write!(
            table,
            "<tr><td>{}</td><td>{:.0}{}</td><td>{}{}</td><td>{}{}</td><td>{cpu}</td><td>{}</td></tr>",
            label(run),
            run.rate,
            ratio(run.rate, first.rate),
            shown(run.latency.p50),
            ratio(run.latency.p50, first.latency.p50),
            shown(run.latency.p99),
            ratio(run.latency.p99, first.latency.p99),
            verdict(run),
        );
    }
    table + "</table><p>In parentheses: of the first run.</p>"
}

fn verdict(run: &Report) -> &'static str {
    if run.is_good() {
        "<span class=\"good\">good</span>"
    } else {
        "<span class=\"bad\">failed</span>"
    }
}

fn section(run: &Report, axes: &Axes) -> String {
    let mut html = format!("<section><h2>{} {}</h2>", label(run), verdict(run));
    let kind = if run.open_loop {
        "open loop: latency counts from when a call was due"
    } else {
        "closed loop"
    };
    let _ = write!(
        html,
        "<p>{}; {} sessions with {} requests in flight; {}; {kind}.</p>",
        escaped(&run.target),
        run.sessions,
        run.in_flight,
        run.throughput(),
    );
    let _ = write!(html, "<p>{}</p>", escaped(&run.environment.to_string()));
    for fault in &run.faults {
        let _ = write!(html, "<p class=\"bad\">{}</p>", escaped(fault));
    }
    html += "<table><tr><th>method</th><th>calls</th><th>refused</th><th>wrong</th><th>p50</th><th>p90</th><th>p99</th><th>p99.9</th><th>max</th></tr>";
    for (name, figures) in &run.operations {
        let latency = figures.latency;
        let times = [latency.p50, latency.p90, latency.p99, latency.p999, latency.max]
            .map(|ms| format!("<td>{}</td>", shown(ms)));
        let counts = format!(
            "<td>{}</td><td>{}</td><td>{}</td>",
            figures.calls, figures.refused, figures.wrong
        );
        let _ = write!(html, "<tr><td>{name}</td>{counts}{}</tr>", times.concat());
    }
    html += "</table>";
    for chart in charts::of_one(run, axes) {
        html += &chart.inline();
    }
    if !run.refusals.is_empty() {
        let refusals: Vec<String> =
            run.refusals.iter().map(|(why, count)| format!("{count} x {}", escaped(why))).collect();
        let _ = write!(html, "<p>Refused: {}.</p>", refusals.join(", "));
    }
    if !run.witnesses.is_empty() {
        let _ = write!(html, "<pre>{}</pre>", escaped(&run.witnesses.join("\n")));
    }
    html + "</section>"
}

/// Returns the text for HTML and XML. Replaces the characters that XML 1.0 does not allow.
fn escaped(text: &str) -> String {
    let replaced = |char| match char {
        '\t' | '\n' | '\r' => char,
        '\0'..' ' | '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        _ => char,
    };
    let text: String = text.chars().map(replaced).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
