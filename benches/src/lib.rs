//! Shared parts of the benches: the start of one, its samples, its table.
//!
//! A bench is a file next to `src/` that answers one question. It compares its measurement with
//! another one of the same run: on a machine with other work to do, ratios are more stable than
//! figures.
//!
//! Under `cargo bench` a bench runs in full. Under a test runner, or with `--quick`, it does the
//! same things a few times only, and shows that it still works. A word among the arguments chooses
//! the benches whose names contain it.

pub mod growth;
pub mod load;

use std::{future::Future, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, ensure};

/// The product's allocator: it is part of the cost of a message.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Amount of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    Full,
    Quick,
}

impl Scale {
    pub fn of<T>(self, full: T, quick: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }
}

/// Runs a bench in a runtime like the product's, with a worker for each core.
pub fn main<F>(name: &str, bench: impl FnOnce(Scale) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_given = |flag: &str| arguments.iter().any(|argument| argument == flag);
    if is_given("--list") {
        // Test runners list the tests with this argument.
        if !is_given("--ignored") {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
    if filters.peek().is_some() && !filters.any(|argument| name.contains(argument.as_str())) {
        return ExitCode::SUCCESS;
    }
    let scale =
        if is_given("--bench") && !is_given("--quick") { Scale::Full } else { Scale::Quick };
    println!(
        "# cargo bench -p benches --bench {name}{}",
        scale.of("", " -- --quick (its figures mean nothing)")
    );
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime");
    match runtime.and_then(|runtime| runtime.block_on(bench(scale))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the path of the broker: the one of `MCP_BROKER_BINARY`, or the one that was built with a
/// bench, in the same profile.
pub fn broker_binary() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("MCP_BROKER_BINARY") {
        return Ok(named.into());
    }
    let folder = std::env::current_exe()?
        .parent()
        .and_then(|deps| deps.parent())
        .map(PathBuf::from)
        .context("no target folder")?;
    let binary = folder.join("mcp-broker");
    ensure!(
        binary.exists(),
        "{} is not there: build the broker first, in the same profile",
        binary.display()
    );
    Ok(binary)
}

/// Durations of one kind of thing.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<Duration>);

impl Samples {
    pub fn add(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn median(&self) -> Duration {
        self.quantile(0.5)
    }

    pub fn p99(&self) -> Duration {
        self.quantile(0.99)
    }

    pub fn max(&self) -> Duration {
        self.quantile(1.0)
    }

    /// Returns the smallest sample that this share of them does not exceed; zero if there is none.
    fn quantile(&self, share: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// Returns the median; the lower one of two.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// Returns the duration with three significant digits, in a fitting unit.
pub fn shown(duration: Duration) -> String {
    let nanos = duration.as_nanos() as f64;
    match nanos {
        ..1e3 => format!("{nanos:.0} ns"),
        ..1e6 => format!("{} µs", digits(nanos / 1e3)),
        ..1e9 => format!("{} ms", digits(nanos / 1e6)),
        _ => format!("{} s", digits(nanos / 1e9)),
    }
}

/// Returns three significant digits; all of them if the point comes later.
pub fn digits(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A table in Markdown, which can go into a page unchanged.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<const N: usize>(columns: [&str; N]) -> Self {
        Self { rows: vec![columns.map(str::to_owned).into()] }
    }

    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    pub fn print(&self, title: &str) {
        println!("\n{title}\n\n{}", self.markdown());
    }

    /// Returns the table, with every column as wide as its widest cell.
    pub fn markdown(&self) -> String {
        let widths: Vec<usize> = (0..self.rows[0].len())
            .map(|column| {
                self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
            })
            .collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            text += &format!("| {} |\n", cells.join(" | "));
            if number == 0 {
                text += &format!(
                    "|{}|\n",
                    widths.iter().map(|width| "-".repeat(width + 2)).collect::<Vec<_>>().join("|")
                );
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_quantile_is_one_of_the_samples() {
        let mut samples = Samples::default();
        assert_eq!(samples.p99(), Duration::ZERO);
        (1..=200).rev().for_each(|ms| samples.add(Duration::from_millis(ms)));
        assert_eq!(
            [samples.median(), samples.p99(), samples.max()],
            [100, 198, 200].map(Duration::from_millis)
        );
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn durations_have_three_digits() {
        let shown = [999, 1_500, 15_550, 155_500, 1_555_000, 2_000_000_000]
            .map(|nanos| shown(Duration::from_nanos(nanos)));
        assert_eq!(shown, ["999 ns", "1.50 µs", "15.6 µs", "156 µs", "1.55 ms", "2.00 s"]);
    }
}
