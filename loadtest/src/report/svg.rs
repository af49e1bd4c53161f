//! Draws charts as SVG: several series on one pair of axes, with ticks at round numbers.

use std::fmt::Write as _;

pub(super) const WIDTH: f64 = 560.0;
const PLOT_HEIGHT: f64 = 148.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 28.0;
const LEGEND_LINE: f64 = 16.0;
/// Estimated width of a character of the legend, and of its line with the space around it.
const LEGEND_CHARACTER: f64 = 6.2;
const LEGEND_SPACE: f64 = 30.0;
/// Number of steps of an axis, about.
const STEPS: f64 = 4.0;
/// Colours that people with red-green blindness can tell apart. Further series are dashed.
const COLOURS: [&str; 6] = ["#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#555555"];
const SECOND: f64 = 1.0;
const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
/// Steps of time that people read easily, in seconds.
const TIME_STEPS: [f64; 13] =
    [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0];

pub(super) const STYLE: &str = "text{font:11px system-ui,sans-serif;fill:#555}\
.title{font-size:12px;font-weight:600;fill:#1b1b1b}.x{text-anchor:middle}.y{text-anchor:end}\
.grid{stroke:#e6e6e6;fill:none}.line{fill:none;stroke-width:1.5}";

#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// One direction of a chart.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    from: f64,
    to: f64,
    is_logarithmic: bool,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Returns an axis from zero to a round number above the largest value.
    pub(super) fn linear(most: f64, label: impl Fn(f64) -> String) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let step = round_step(most);
        let steps = (most / step).ceil().max(1.0) as usize;
        let ticks = (0..=steps).map(|number| number as f64 * step).map(|at| (at, label(at)));
        Self { from: 0.0, to: steps as f64 * step, is_logarithmic: false, ticks: ticks.collect() }
    }

    /// Returns an axis of seconds that ends where the data end.
    pub(super) fn time(most: f64) -> Self {
        let most = most.max(f64::MIN_POSITIVE);
        let coarse = TIME_STEPS.iter().copied().find(|step| step * (STEPS + 2.0) >= most);
        let step = if most < STEPS { round_step(most) } else { coarse.unwrap_or(24.0 * HOUR) };
        let ticks = (0..=(most / step * 1.0001) as usize).map(|number| number as f64 * step);
        let ticks = ticks.map(|at| (at, seconds(at))).collect();
        Self { from: 0.0, to: most, is_logarithmic: false, ticks }
    }

    /// Returns a logarithmic axis around these values, with ticks at 1, 2 and 5.
    pub(super) fn logarithmic(least: f64, most: f64, label: impl Fn(f64) -> String) -> Self {
        let least = if least > 0.0 { least } else { 0.001 };
        let (first, last) = (least.log10().floor(), most.max(least * 2.0).log10().ceil());
        let decades = (first as i32..=last as i32).map(|power| 10_f64.powi(power));
        let round: Vec<f64> = decades.flat_map(|ten| [ten, 2.0 * ten, 5.0 * ten]).collect();
        let from = round.iter().copied().rfind(|at| *at <= least).unwrap_or(least);
        let to = round.iter().copied().find(|at| *at >= most && *at > from).unwrap_or(most);
        // With many decades only the decades are named.
        let is_long = to / from > 2000.0;
        let is_named = |at: &f64| {
            (from..=to).contains(at) && (!is_long || (at.log10() - at.log10().round()).abs() < 1e-9)
        };
        let ticks = round.into_iter().filter(is_named).map(|at| (at, label(at))).collect();
        Self { from, to, is_logarithmic: true, ticks }
    }

    /// Returns an axis of shares, on which each further nine takes the same space. Its values are
    /// those of [`of_share`].
    pub(super) fn shares(most: f64) -> Self {
        let to = most.max(of_share(0.99));
        let names = [
            (0.0, "0 %"),
            (0.5, "50 %"),
            (0.9, "90 %"),
            (0.99, "99 %"),
            (0.999, "99.9 %"),
            (0.9999, "99.99 %"),
            (0.999_99, "99.999 %"),
        ];
        let ticks = names.map(|(share, name)| (of_share(share), name.to_owned()));
        let ticks = ticks.into_iter().filter(|(at, _)| *at <= to).collect();
        Self { from: 1.0, to, is_logarithmic: true, ticks }
    }

    /// Returns the position of a value, as a share of the length of the axis.
    fn fraction(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        if self.is_logarithmic {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        }
    }
}

/// Returns the position of a share on [`Axis::shares`]: the number of calls of which one is above
/// it.
pub(super) fn of_share(share: f64) -> f64 {
    1.0 / (1.0 - share).max(1e-9)
}

/// Returns a step of 1, 2 or 5 times a power of ten, for about [`STEPS`] steps.
fn round_step(most: f64) -> f64 {
    let least = most / (STEPS + 1.0);
    let ten = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .map(|factor| factor * ten)
        .into_iter()
        .find(|step| *step >= least * 0.9999)
        .unwrap_or(10.0 * ten)
}

/// Formats a number without zeros at its end.
pub(super) fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn seconds(at: f64) -> String {
    match at {
        0.0 => "0".to_owned(),
        ..=120.0 => format!("{} s", plain(at / SECOND)),
        ..=7200.0 => format!("{} min", plain(at / MINUTE)),
        _ => format!("{} h", plain(at / HOUR)),
    }
}

/// Formats a latency in milliseconds at a tick.
pub(super) fn milliseconds(at: f64) -> String {
    match at {
        0.0 => "0".to_owned(),
        ..1.0 => format!("{} µs", plain(at * 1000.0)),
        ..1000.0 => format!("{} ms", plain(at)),
        _ => format!("{} s", plain(at / 1000.0)),
    }
}

/// A chart, with its height.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    content: String,
    title: String,
    pub(super) height: f64,
}

impl Chart {
    pub(super) fn new(title: &str, series: &[Series], x: &Axis, y: &Axis) -> Self {
        let bottom = TOP + PLOT_HEIGHT;
        let at_x = |value: f64| LEFT + x.fraction(value) * (WIDTH - LEFT - RIGHT);
        let at_y = |value: f64| bottom - y.fraction(value) * PLOT_HEIGHT;
        let mut content = format!(r#"<text x="{LEFT}" y="14" class="title">{title}</text>"#);
        for (value, label) in &y.ticks {
            let at = at_y(*value);
            let (right, text_x, text_y) = (WIDTH - RIGHT, LEFT - 6.0, at + 4.0);
            let _ = write!(content, r#"<path class="grid" d="M{LEFT} {at:.1}H{right:.1}"/>"#);
            let _ = write!(
                content,
                r#"<text x="{text_x:.1}" y="{text_y:.1}" class="y">{label}</text>"#
            );
        }
        for (value, label) in &x.ticks {
            let (at, text_y) = (at_x(*value), bottom + 16.0);
            let _ = write!(content, r#"<path class="grid" d="M{at:.1} {TOP}V{bottom:.1}"/>"#);
            let _ =
                write!(content, r#"<text x="{at:.1}" y="{text_y:.1}" class="x">{label}</text>"#);
        }
        for (index, Series { points, .. }) in series.iter().enumerate() {
            let path: Vec<String> =
                points.iter().map(|(x, y)| format!("{:.1} {:.1}", at_x(*x), at_y(*y))).collect();
            let (colour, dashes) = look(index);
            if let [only] = &path[..] {
                let (cx, cy) = only.split_once(' ').unwrap_or_default();
                let _ = write!(content, r#"<circle cx="{cx}" cy="{cy}" r="3" fill="{colour}"/>"#);
            } else if !path.is_empty() {
                let line = path.join("L");
                let _ = write!(
                    content,
                    r#"<path class="line" stroke="{colour}"{dashes} d="M{line}"/>"#
                );
            }
        }
        let (legend, height) = legend(series, bottom + BOTTOM);
        Self { content: content + &legend, title: title.to_owned(), height }
    }

    /// Returns the chart as an image of its own inside a page.
    pub(super) fn inline(&self) -> String {
        let Self { content, title, height } = self;
        format!(
            r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">{content}</svg>"#
        )
    }

    /// Returns the chart as a part of a picture.
    pub(super) fn placed(&self, x: f64, y: f64) -> String {
        format!(r#"<g transform="translate({x} {y})">{}</g>"#, self.content)
    }
}

/// Returns the colour and the dashes of a series.
fn look(index: usize) -> (&'static str, &'static str) {
    let dashes = ["", r#" stroke-dasharray="6 3""#, r#" stroke-dasharray="2 3""#];
    (COLOURS[index % COLOURS.len()], dashes[index / COLOURS.len() % dashes.len()])
}

/// Returns the names of the series below the chart, and where they end.
fn legend(series: &[Series], top: f64) -> (String, f64) {
    let (mut content, mut x, mut y) = (String::new(), LEFT, top + 10.0);
    for (index, Series { name, .. }) in series.iter().enumerate() {
        let width = name.chars().count() as f64 * LEGEND_CHARACTER + LEGEND_SPACE;
        if x + width > WIDTH - RIGHT && x > LEFT {
            (x, y) = (LEFT, y + LEGEND_LINE);
        }
        let (colour, dashes) = look(index);
        let (line_y, end, text_x) = (y - 4.0, x + 16.0, x + 20.0);
        let _ = write!(
            content,
            r#"<path class="line" stroke="{colour}"{dashes} d="M{x:.1} {line_y:.1}H{end:.1}"/>"#
        );
        let _ = write!(content, r#"<text x="{text_x:.1}" y="{y:.1}">{name}</text>"#);
        x += width;
    }
    (content, y + 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn ticks_are_at_round_numbers() {
        assert_eq!(labels(&Axis::linear(87.0, plain)), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(labels(&Axis::linear(10_432.0, plain)), ["0", "5000", "10000", "15000"]);
        assert_eq!(
            labels(&Axis::linear(0.31, milliseconds)),
            ["0", "100 µs", "200 µs", "300 µs", "400 µs"]
        );
        assert_eq!(labels(&Axis::time(10.3)), ["0", "2 s", "4 s", "6 s", "8 s", "10 s"]);
        assert_eq!(
            labels(&Axis::time(3600.0)),
            ["0", "10 min", "20 min", "30 min", "40 min", "50 min", "60 min"]
        );
        assert_eq!(labels(&Axis::linear(0.0, plain)).len(), 6, "an axis without data is still one");
    }

    #[test]
    fn a_logarithmic_axis_gives_each_decade_the_same_space() {
        let axis = Axis::logarithmic(0.3, 40.0, milliseconds);
        assert_eq!(
            labels(&axis),
            ["200 µs", "500 µs", "1 ms", "2 ms", "5 ms", "10 ms", "20 ms", "50 ms"]
        );
        let (first, second) =
            (axis.fraction(5.0) - axis.fraction(0.5), axis.fraction(50.0) - axis.fraction(5.0));
        assert!((first - second).abs() < 1e-9);
        assert_eq!(labels(&Axis::logarithmic(0.1, 9000.0, milliseconds)).first(), Some(&"100 µs"));
        assert_eq!(
            labels(&Axis::shares(of_share(0.9995))),
            ["0 %", "50 %", "90 %", "99 %", "99.9 %"]
        );
    }

    #[test]
    fn every_value_lies_within_the_axes() {
        for axis in [Axis::linear(87.0, plain), Axis::time(9.0), Axis::logarithmic(1.0, 9.0, plain)]
        {
            for value in [0.0, 1.0, 8.9, 1e9] {
                assert!((0.0..=1.0).contains(&axis.fraction(value)), "{axis:?} {value}");
            }
        }
    }
}
