//! The measures over time as one SVG: a chart for each measure, with a line for each replica.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{gauges::Measure, trend::Series};

const COLUMNS: usize = 3;
const WIDTH: f64 = 320.0;
const HEIGHT: f64 = 140.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 10.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 24.0;
/// Colours that people with red-green blindness can tell apart.
const COLOURS: [&str; 3] = ["#0072b2", "#e69f00", "#009e73"];
const STYLE: &str = "text{font:11px sans-serif;fill:#444}.title{font-weight:bold}.line{fill:none;stroke-width:1.5}.grid{stroke:#ddd}.warm{fill:#f3f3f3}";

/// Draws the charts in the order of their names, without measures that never changed. The time
/// before `warm_up` has a grey ground.
pub(super) fn draw(all: &BTreeMap<Measure, Series>, warm_up: f64) -> String {
    let mut charts: BTreeMap<&str, Vec<(&Measure, &Series)>> = BTreeMap::new();
    for (measure, series) in all.iter().filter(|(_, series)| series.changes()) {
        charts.entry(&measure.chart).or_default().push((measure, series));
    }
    let rows = charts.len().div_ceil(COLUMNS);
    let (width, height) = (COLUMNS as f64 * WIDTH, rows as f64 * HEIGHT);
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="Measures of a long run"><style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>"#
    );
    for (index, (title, lines)) in charts.iter().enumerate() {
        let (column, row) = (index % COLUMNS, index / COLUMNS);
        let (x, y) = (column as f64 * WIDTH, row as f64 * HEIGHT);
        let chart = chart(title, lines, warm_up);
        let _ = write!(svg, r#"<g transform="translate({x} {y})">{chart}</g>"#);
    }
    svg + "</svg>\n"
}

fn chart(title: &str, lines: &[(&Measure, &Series)], warm_up: f64) -> String {
    let points = || lines.iter().flat_map(|(_, series)| &series.points);
    let largest = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
    let (x_max, y_max) = (largest(|point| point.0).max(1.0), largest(|point| point.1).max(1.0));
    let x = |at: f64| LEFT + at / x_max * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / y_max * (HEIGHT - TOP - BOTTOM);
    let (top, bottom, end) = (y(y_max), y(0.0), WIDTH - RIGHT);
    let mut svg = format!(r#"<text x="{LEFT}" y="16" class="title">{title}</text>"#);
    let _ = write!(
        svg,
        r#"<rect class="warm" x="{LEFT}" y="{top}" width="{:.1}" height="{:.1}"/>"#,
        x(warm_up.min(x_max)) - LEFT,
        bottom - top
    );
    let unit = lines.first().map(|(measure, _)| measure.unit());
    for value in [0.0, y_max] {
        let at = y(value);
        let label = unit.map(|unit| unit.show(value)).unwrap_or_default();
        let _ = write!(
            svg,
            r#"<path class="grid" d="M{LEFT} {at:.1}H{end}"/><text x="{:.1}" y="{:.1}" text-anchor="end">{label}</text>"#,
            LEFT - 5.0,
            at + 4.0
        );
    }
    let _ = write!(
        svg,
        r#"<text x="{end}" y="{:.1}" text-anchor="end">{:.0} min</text>"#,
        HEIGHT - 8.0,
        x_max / 60.0
    );
    for (index, (_, series)) in lines.iter().enumerate() {
        let path: Vec<String> = series
            .points
            .iter()
            .map(|(at, value)| format!("{:.1} {:.1}", x(*at), y(*value)))
            .collect();
        let colour = COLOURS[index % COLOURS.len()];
        let _ = write!(svg, r#"<path class="line" stroke="{colour}" d="M{}"/>"#, path.join("L"));
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::trend::Unit;

    #[test]
    fn each_measure_has_a_chart_and_each_replica_a_line() {
        let series = |name: &str| Series {
            name: name.to_owned(),
            unit: Unit::Count,
            points: vec![(0.0, 0.0), (3_600.0, 8.0)],
        };
        let all = BTreeMap::from([
            (Measure::new("memory", "replica 1"), series("a")),
            (Measure::new("memory", "replica 2"), series("b")),
            (Measure::new("rows of tasks", ""), series("c")),
            (Measure::new("threads", ""), Series { points: vec![(0.0, 4.0)], ..series("d") }),
        ]);
        let svg = draw(&all, 600.0);
        assert_eq!(svg.matches(r#"class="title""#).count(), 2, "{svg}");
        assert_eq!(svg.matches(r#"class="line""#).count(), 3);
        assert_eq!(svg.matches("60 min").count(), 2);
        assert!(svg.contains("M70.0 116.0L310.0 28.0"), "from the corner to the corner: {svg}");
        assert!(svg.contains(r#"width="40.0""#), "a sixth of the time is the warm-up: {svg}");
    }
}
