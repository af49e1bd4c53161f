//! Compares two targets under the same load, in turns. Other activity on the machine affects both,
//! so the ratios stay meaningful.

use std::{fmt::Write as _, time::Duration};

use tokio::sync::watch;

use crate::{
    report::{Report, shown},
    run::{self, Load, Progress},
};

/// Medians over all rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub rate: f64,
    /// Milliseconds.
    pub p50: f64,
    pub p99: f64,
    /// Share of the calls that were refused, in percent.
    pub refused: f64,
    pub cpu_us_per_call: Option<f64>,
}

impl Figures {
    pub fn of(rounds: &[Report]) -> Self {
        let middle = |value: &dyn Fn(&Report) -> f64| median(rounds.iter().map(value).collect());
        let cpu: Option<Vec<f64>> = rounds.iter().map(|round| round.cpu_us_per_call).collect();
        Self {
            rate: middle(&|round| round.rate),
            p50: middle(&|round| round.latency.p50),
            p99: middle(&|round| round.latency.p99),
            refused: middle(&Report::refused_percent),
            cpu_us_per_call: cpu.filter(|cpu| !cpu.is_empty()).map(median),
        }
    }
}

/// Reports of all rounds, one list for each target.
#[derive(Debug)]
pub struct Rounds(pub Vec<Vec<Report>>);

/// Loads every target once in each round.
pub async fn run_interleaved(
    loads: &[Load],
    rounds: usize,
    on_progress: impl Fn(Progress),
) -> anyhow::Result<Rounds> {
    let (_never, stop) = watch::channel(false);
    run_interleaved_until(loads, rounds, &stop, on_progress).await
}

/// Loads the targets as [`run_interleaved`] does, until `stop` is true.
pub async fn run_interleaved_until(
    loads: &[Load],
    rounds: usize,
    stop: &watch::Receiver<bool>,
    on_progress: impl Fn(Progress),
) -> anyhow::Result<Rounds> {
    let mut reports = vec![Vec::new(); loads.len()];
    for round in 0..rounds {
        for (index, load) in loads.iter().enumerate() {
            let (done, all) = ((round * loads.len() + index) as u32, (rounds * loads.len()) as u32);
            let on_progress = |progress: Progress| {
                on_progress(Progress {
                    at: progress.of * done + progress.at,
                    of: progress.of * all,
                    ..progress
                })
            };
            let mut report = run::run_until(load, stop.clone(), on_progress).await?;
            let is_stopped = *stop.borrow();
            if is_stopped && done + 1 < all && report.faults.is_empty() {
                // The stop came after the schedule of this load.
                report.faults.push("the comparison was stopped after this load".to_owned());
            }
            reports[index].push(report);
            if is_stopped {
                return Ok(Rounds(reports));
            }
        }
    }
    Ok(Rounds(reports))
}

impl Rounds {
    pub fn faults(&self) -> Vec<String> {
        let reports = self.0.iter().flatten();
        reports
            .flat_map(|report| {
                report.faults.iter().map(|fault| format!("{}: {fault}", report.target))
            })
            .collect()
    }

    /// Formats the figures of the first two targets, and the ratio of the second to the first.
    pub fn summary(&self) -> String {
        let figures: Vec<Figures> = self.0.iter().map(|rounds| Figures::of(rounds)).collect();
        let [a, b] = figures[..] else { return String::new() };
        let mut text = format!("{:<12} {:>12} {:>12} {:>8}\n", "", "A", "B", "B : A");
        let rows = [("calls/s", a.rate, b.rate), ("p50", a.p50, b.p50), ("p99", a.p99, b.p99)];
        // A target that refused every call has no rate and no latency.
        let ratio = |a: f64, b: f64| {
            if a > 0.0 { format!("{:.2}", b / a) } else { "-".to_owned() }
        };
        for (name, a, b) in rows {
            let show =
                |value: f64| if name == "calls/s" { format!("{value:.0}") } else { shown(value) };
            let _ = writeln!(text, "{name:<12} {:>12} {:>12} {:>8}", show(a), show(b), ratio(a, b));
        }
        if a.refused > 0.0 || b.refused > 0.0 {
            let (shown_a, shown_b) = (format!("{:.1} %", a.refused), format!("{:.1} %", b.refused));
            let _ = writeln!(text, "{:<12} {shown_a:>12} {shown_b:>12}", "refused");
        }
        if let (Some(a), Some(b)) = (a.cpu_us_per_call, b.cpu_us_per_call) {
            let (shown_a, shown_b) = (format!("{a:.1} µs"), format!("{b:.1} µs"));
            let _ = writeln!(
                text,
                "{:<12} {shown_a:>12} {shown_b:>12} {:>8}",
                "CPU a call",
                ratio(a, b)
            );
        }
        text
    }
}

/// Returns the median. Of two middle values it returns the lower one.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// Default time of each round of a comparison.
pub const ROUND: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_chosen() {
        assert_eq!(
            [median(vec![3.0, 1.0, 2.0]), median(vec![2.0, 1.0]), median(vec![])],
            [2.0, 1.0, 0.0]
        );
    }
}
