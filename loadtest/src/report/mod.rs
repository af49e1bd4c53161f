//! The results of a load: figures and findings as one value. It is written as JSON and drawn as a
//! page.

mod charts;
mod environment;
mod html;
mod svg;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

pub use self::{
    environment::Environment,
    html::{page, picture},
};
use crate::{
    findings::{FindingKind, Findings},
    histogram::Histogram,
    profile::{LoopModel, Profile},
    recorder::{Recorder, Window},
    wire::LoadTarget,
};

/// Results of one load. Durations are in milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    pub name: String,
    pub target: String,
    /// Seconds since 1970.
    pub began_at: u64,
    pub measured_s: f64,
    pub open_loop: bool,
    pub sessions: usize,
    pub in_flight: usize,
    pub calls: u64,
    /// Calls that ended after the load, such as those that waited for a slow target.
    #[serde(default)]
    pub ended_after_load: u64,
    pub refused: u64,
    /// Successful calls per second, without calls that ended after the load.
    pub rate: f64,
    pub latency: Latency,
    /// Shares of the calls, with the milliseconds that each share does not exceed.
    #[serde(default)]
    pub distribution: Vec<(f64, f64)>,
    pub operations: BTreeMap<String, OperationFigures>,
    pub windows: Vec<WindowFigures>,
    pub refusals: BTreeMap<String, u64>,
    /// Findings by kind, without kinds that did not occur.
    pub wrong: BTreeMap<String, u64>,
    pub witnesses: Vec<String>,
    pub notifications: u64,
    pub usage: Vec<Sample>,
    /// Processor time of the sampled processes during the load, in microseconds for each call that
    /// ended in that time.
    pub cpu_us_per_call: Option<f64>,
    /// The machine of the load tester, and the versions of both sides.
    #[serde(default)]
    pub environment: Environment,
    /// Reasons why the run failed. Empty after a good run.
    pub faults: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Latency {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OperationFigures {
    pub calls: u64,
    pub refused: u64,
    pub wrong: u64,
    pub latency: Latency,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WindowFigures {
    /// End of the window, in seconds after the start.
    pub at_s: f64,
    pub rate: f64,
    pub refused: u64,
    pub wrong: u64,
    pub latency: Latency,
}

/// Total resource use of the processes at one time.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Sample {
    pub at_s: f64,
    pub cpu_s: f64,
    pub resident_bytes: u64,
}

/// Results of a run in addition to those of its calls.
#[derive(Debug)]
pub(crate) struct RunOutcome {
    /// Time of the load after the warm-up.
    pub(crate) measured: Duration,
    pub(crate) usage: Vec<Sample>,
    /// Processor time of the sampled processes, if it is complete.
    pub(crate) cpu: Option<Duration>,
    /// Name and version of the target.
    pub(crate) server: String,
    /// Faults of the run as a whole.
    pub(crate) faults: Vec<String>,
    /// Probable reason for refusals and wrong lists. Alone, it does not fail the run.
    pub(crate) hint: Option<String>,
}

impl Report {
    pub(crate) fn new(
        site: &LoadTarget,
        profile: &Profile,
        record: &Recorder,
        outcome: RunOutcome,
    ) -> Self {
        let RunOutcome { measured, usage, cpu, server, faults, hint } = outcome;
        let totals = record.totals();
        let mut all = Window::default();
        totals.windows.iter().for_each(|window| all.merge(window));
        let during = &totals.windows[..started(record.window(), measured, &totals.windows)];
        let succeeded: u64 = during.iter().map(|window| window.succeeded).sum();
        let in_time: u64 = during.iter().map(Window::calls).sum();
        let names = profile.mix.operations().map(|operation| operation.name());
        let mut operations = BTreeMap::<&str, Window>::new();
        for (name, window) in names.zip(&totals.operations) {
            operations.entry(name).or_default().merge(window);
        }
        let mut report = Self {
            name: String::new(),
            target: site.target.to_string(),
            began_at: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |now| now.as_secs().saturating_sub(measured.as_secs())),
            measured_s: measured.as_secs_f64(),
            open_loop: profile.kind == LoopModel::Open,
            sessions: profile.sessions,
            in_flight: profile.in_flight,
            calls: all.calls(),
            ended_after_load: all.calls() - in_time,
            refused: all.refused,
            rate: succeeded as f64 / measured.as_secs_f64().max(f64::MIN_POSITIVE),
            latency: Latency::of(&all.latency),
            distribution: all
                .latency
                .distribution()
                .into_iter()
                .map(|(share, latency)| (share, latency.as_secs_f64() * 1000.0))
                .collect(),
            operations: operations
                .into_iter()
                .map(|(name, window)| (name.to_owned(), OperationFigures::of(&window)))
                .collect(),
            windows: windows(&totals.windows, record.window(), measured),
            refusals: totals.refusals,
            wrong: wrong(&site.findings),
            witnesses: site.findings.witnesses(),
            notifications: site.notifications.load(std::sync::atomic::Ordering::Relaxed),
            cpu_us_per_call: cpu
                .filter(|_| in_time > 0)
                .map(|cpu| cpu.as_secs_f64() * 1e6 / in_time as f64),
            usage,
            environment: Environment::here(server),
            faults,
        };
        report.judge(profile.refused_max);
        if !report.is_good() {
            report.faults.extend(hint);
        }
        report
    }

    fn judge(&mut self, refused_max: f64) {
        if self.calls == 0 {
            self.faults.push("no call got an answer".to_owned());
        }
        for (kind, count) in &self.wrong {
            self.faults.push(format!("{count} answers were {kind}"));
        }
        if self.calls > 0 && self.refused == self.calls {
            // Not a single latency was measured, whatever share is allowed.
            self.faults.push(format!("every call was refused ({})", self.refusal_kinds()));
        } else if self.refused as f64 > refused_max * self.calls as f64 {
            self.faults.push(format!(
                "{:.1} % of the calls were refused ({}), {} % are allowed",
                self.refused_percent(),
                self.refusal_kinds(),
                refused_max * 100.0
            ));
        }
    }

    fn refusal_kinds(&self) -> String {
        let kinds = self.refusals.iter().map(|(why, count)| format!("{count} x {why}"));
        kinds.collect::<Vec<_>>().join(", ")
    }

    /// Returns the share of the calls that were refused, in percent.
    pub fn refused_percent(&self) -> f64 {
        100.0 * self.refused as f64 / self.calls.max(1) as f64
    }

    pub fn is_good(&self) -> bool {
        self.faults.is_empty()
    }

    /// Formats the number and the rate of the calls.
    fn throughput(&self) -> String {
        let Self { calls, measured_s, rate, ended_after_load, .. } = self;
        let after = match ended_after_load {
            0 => String::new(),
            after => format!(" ({after} ended after the load)"),
        };
        format!("{calls} calls in {measured_s:.1} s{after}, {rate:.0} a second")
    }

    /// Formats the figures and the verdict for a terminal.
    pub fn summary(&self) -> String {
        let Latency { p50, p90, p99, p999, max, .. } = self.latency;
        let mut text = format!("{}: {}\n", self.target, self.throughput());
        let from = if self.open_loop { "from when each call was due" } else { "closed loop" };
        let times = [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p999), ("max", max)];
        let times: Vec<String> =
            times.iter().map(|(name, ms)| format!("{name} {}", shown(*ms))).collect();
        let _ = writeln!(text, "latency ({from}): {}", times.join(", "));
        for (name, figures) in self.operations.iter().filter(|_| self.operations.len() > 1) {
            let OperationFigures { calls, latency, .. } = figures;
            let _ = writeln!(
                text,
                "  {name}: {calls} calls, p50 {}, p99 {}",
                shown(latency.p50),
                shown(latency.p99)
            );
        }
        if self.refused > 0 {
            let (percent, kinds) = (self.refused_percent(), self.refusal_kinds());
            let _ = writeln!(text, "refused, without latency: {percent:.1} % ({kinds})");
        }
        if let (Some(cpu), Some(last)) = (self.cpu_us_per_call, self.usage.last()) {
            let _ = writeln!(
                text,
                "target: {cpu:.1} µs of processor time a call, {} MiB resident",
                last.resident_bytes >> 20
            );
        }
        let _ = writeln!(text, "{}", self.environment);
        if self.notifications > 0 {
            let _ = writeln!(text, "{} notifications", self.notifications);
        }
        for fault in &self.faults {
            let _ = writeln!(text, "FAILED: {fault}");
        }
        for witness in &self.witnesses {
            let _ = writeln!(text, "  {witness}");
        }
        text
    }
}

/// Formats milliseconds in a suitable unit.
pub fn shown(ms: f64) -> String {
    match ms {
        ..1.0 => format!("{:.0} µs", ms * 1000.0),
        ..100.0 => format!("{ms:.2} ms"),
        ..10_000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ms / 1000.0),
    }
}

impl Latency {
    pub fn of(histogram: &Histogram) -> Self {
        let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
        let [p50, p90, p99, p999] =
            [0.5, 0.9, 0.99, 0.999].map(|share| ms(histogram.quantile(share)));
        Self { mean: ms(histogram.mean()), p50, p90, p99, p999, max: ms(histogram.max()) }
    }
}

impl OperationFigures {
    fn of(window: &Window) -> Self {
        Self {
            calls: window.calls(),
            refused: window.refused,
            wrong: window.wrong,
            latency: Latency::of(&window.latency),
        }
    }
}

/// Returns how many of the windows began before the end of the load.
fn started(length: Duration, measured: Duration, windows: &[Window]) -> usize {
    let started = measured.as_nanos().div_ceil(length.as_nanos()) as usize;
    started.min(windows.len())
}

/// A call that ended after the load counts in the last window, but not in its rate. So does a rest
/// that is shorter than half a window. Otherwise the last window would show a fall that the target
/// did not have.
fn windows(windows: &[Window], length: Duration, measured: Duration) -> Vec<WindowFigures> {
    let whole = (measured.as_secs_f64() / length.as_secs_f64()).round().max(1.0) as usize;
    let started = started(length, measured, windows);
    let (own, late) = windows.split_at(whole.min(windows.len()));
    let Some((last, others)) = own.split_last() else { return Vec::new() };
    let mut end = last.clone();
    let in_time = started.saturating_sub(whole);
    let succeeded =
        last.succeeded + late[..in_time].iter().map(|window| window.succeeded).sum::<u64>();
    late.iter().for_each(|window| end.merge(window));
    let is_last = |index: usize| index == others.len();
    let figures = others.iter().chain([&end]).enumerate().map(|(index, window)| {
        let end = if index + 1 == whole { measured } else { length * (index as u32 + 1) };
        let time = end - length * index as u32;
        let succeeded = if is_last(index) { succeeded } else { window.succeeded };
        WindowFigures {
            at_s: end.as_secs_f64(),
            rate: succeeded as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE),
            refused: window.refused,
            wrong: window.wrong,
            latency: Latency::of(&window.latency),
        }
    });
    figures.collect()
}

fn wrong(findings: &Findings) -> BTreeMap<String, u64> {
    let counts = FindingKind::ALL.iter().map(|wrong| (wrong.to_string(), findings.count(*wrong)));
    counts.filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests;
