//! Chooses the charts of runs: of one run, or of several laid over each other.

use super::{
    Report, Sample, WindowFigures,
    svg::{Axis, Chart, STYLE, Series, WIDTH, milliseconds, of_share, plain},
};

const MEBIBYTE: f64 = 1_048_576.0;
/// Space between the charts of a picture.
const GAP: f64 = 16.0;
const COLUMNS: usize = 2;

/// The axes, shared by all charts of a kind so that they can be compared.
pub(super) struct Axes {
    time: Axis,
    latency: Axis,
    distribution: Axis,
    shares: Axis,
    rate: Axis,
    failed: Axis,
    cores: Axis,
    memory: Axis,
}

impl Axes {
    pub(super) fn of(runs: &[Report]) -> Self {
        let windows = || runs.iter().flat_map(|run| &run.windows);
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let spread = || runs.iter().flat_map(|run| &run.distribution);
        let least =
            spread().map(|(_, ms)| *ms).filter(|ms| *ms > 0.0).fold(f64::INFINITY, f64::min);
        let least = if least.is_finite() { least } else { 0.1 };
        let cores = runs.iter().flat_map(|run| cores(&run.usage)).map(|(_, cores)| cores);
        let resident = runs.iter().flat_map(|run| resident(&run.usage)).map(|(_, bytes)| bytes);
        Self {
            time: Axis::time(most(&mut windows().map(|window| window.at_s))),
            latency: Axis::linear(
                most(&mut windows().map(|window| window.latency.p99)),
                milliseconds,
            ),
            distribution: Axis::logarithmic(
                least,
                most(&mut spread().map(|(_, ms)| *ms)),
                milliseconds,
            ),
            // The last point, at 100 %, has no place on the axis.
            shares: Axis::shares(most(
                &mut runs.iter().map(|run| of_share(1.0 - 1.0 / run.calls.max(2) as f64)),
            )),
            rate: Axis::linear(most(&mut windows().map(|window| window.rate)), plain),
            failed: Axis::linear(most(&mut windows().map(failures)), plain),
            cores: Axis::linear(most(&mut { cores }), plain),
            memory: Axis::linear(most(&mut { resident }), |mebibytes| {
                format!("{} MiB", plain(mebibytes))
            }),
        }
    }
}

fn failures(window: &WindowFigures) -> f64 {
    (window.refused + window.wrong) as f64
}

/// Returns the use of the processor between the samples, in processors.
fn cores(samples: &[Sample]) -> Vec<(f64, f64)> {
    let pairs = samples.windows(2).filter_map(|pair| match pair {
        [before, after] => Some((before, after)),
        _ => None,
    });
    let used = pairs.map(|(before, after)| {
        (
            after.at_s,
            (after.cpu_s - before.cpu_s) / (after.at_s - before.at_s).max(f64::MIN_POSITIVE),
        )
    });
    used.collect()
}

fn resident(samples: &[Sample]) -> Vec<(f64, f64)> {
    samples.iter().map(|sample| (sample.at_s, sample.resident_bytes as f64 / MEBIBYTE)).collect()
}

fn over_time(run: &Report, value: impl Fn(&WindowFigures) -> f64) -> Vec<(f64, f64)> {
    run.windows.iter().map(|window| (window.at_s, value(window))).collect()
}

fn distribution(run: &Report) -> Vec<(f64, f64)> {
    run.distribution.iter().map(|(share, ms)| (of_share(*share), *ms)).collect()
}

fn series(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), points }
}

const DISTRIBUTION: &str = "Latency distribution (logarithmic)";

/// Returns the charts of one run.
pub(super) fn of_one(run: &Report, axes: &Axes) -> Vec<Chart> {
    let latencies = [
        series("p50", over_time(run, |window| window.latency.p50)),
        series("p90", over_time(run, |window| window.latency.p90)),
        series("p99", over_time(run, |window| window.latency.p99)),
    ];
    let failed = [
        series("refused", over_time(run, |window| window.refused as f64)),
        series("wrong", over_time(run, |window| window.wrong as f64)),
    ];
    let mut charts = vec![
        Chart::new("Latency", &latencies, &axes.time, &axes.latency),
        Chart::new(
            DISTRIBUTION,
            &[series("all calls", distribution(run))],
            &axes.shares,
            &axes.distribution,
        ),
        Chart::new(
            "Throughput",
            &[series("calls/s", over_time(run, |window| window.rate))],
            &axes.time,
            &axes.rate,
        ),
        Chart::new("Errors", &failed, &axes.time, &axes.failed),
    ];
    if !run.usage.is_empty() {
        let (cores, memory) =
            (series("processors", cores(&run.usage)), series("resident", resident(&run.usage)));
        charts.push(Chart::new("Processor of the target", &[cores], &axes.time, &axes.cores));
        charts.push(Chart::new("Memory of the target", &[memory], &axes.time, &axes.memory));
    }
    charts
}

/// Returns charts with one line for each run.
pub(super) fn overlaid(
    runs: &[Report],
    axes: &Axes,
    label: impl Fn(&Report) -> String,
) -> Vec<Chart> {
    let lines = |points: &dyn Fn(&Report) -> Vec<(f64, f64)>| -> Vec<Series> {
        runs.iter().map(|run| series(&label(run), points(run))).collect()
    };
    let p99 = |run: &Report| over_time(run, |window| window.latency.p99);
    let rate = |run: &Report| over_time(run, |window| window.rate);
    let mut charts = vec![
        Chart::new(DISTRIBUTION, &lines(&distribution), &axes.shares, &axes.distribution),
        Chart::new("Throughput, calls/s", &lines(&rate), &axes.time, &axes.rate),
        Chart::new("Latency, p99", &lines(&p99), &axes.time, &axes.latency),
    ];
    if runs.iter().any(|run| !run.usage.is_empty()) {
        let (cores, memory) = (lines(&|run| cores(&run.usage)), lines(&|run| resident(&run.usage)));
        charts.push(Chart::new("Processors of the target", &cores, &axes.time, &axes.cores));
        charts.push(Chart::new("Memory of the target", &memory, &axes.time, &axes.memory));
    }
    charts
}

/// Returns one image with these charts in two columns.
pub(super) fn picture(charts: &[Chart]) -> String {
    let columns = charts.len().min(COLUMNS);
    let (mut content, mut top) = (String::new(), 0.0);
    for row in charts.chunks(COLUMNS) {
        for (column, chart) in row.iter().enumerate() {
            content += &chart.placed(column as f64 * (WIDTH + GAP), top);
        }
        top += row.iter().map(|chart| chart.height).fold(0.0, f64::max) + GAP;
    }
    let (width, height) = (columns as f64 * (WIDTH + GAP), top);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"><style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{content}</svg>
"##
    )
}
