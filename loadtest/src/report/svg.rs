//! Line charts over time as self-contained SVG: several series on one pair of axes.

use std::fmt::Write as _;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 28.0;
const GRID_LINES: usize = 4;
/// Colours that people with red-green blindness can tell apart.
const COLOURS: [&str; 5] = ["#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7"];

pub(super) struct Series {
    pub(super) name: &'static str,
    /// Seconds, value.
    pub(super) points: Vec<(f64, f64)>,
}

/// Draws a chart. The caller sets `x_max` and `y_max`, so that charts side by side have the same
/// scale.
pub(super) fn chart(
    title: &str,
    series: &[Series],
    x_max: f64,
    y_max: f64,
    unit: impl Fn(f64) -> String,
) -> String {
    let (x_max, y_max) = (x_max.max(f64::MIN_POSITIVE), if y_max > 0.0 { y_max } else { 1.0 });
    let x = |value: f64| LEFT + value / x_max * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / y_max * (HEIGHT - TOP - BOTTOM);
    let mut svg =
        format!(r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">"#);
    let _ = write!(svg, r#"<text x="{LEFT}" y="14" class="title">{title}</text>"#);
    for line in 0..=GRID_LINES {
        let share = line as f64 / GRID_LINES as f64;
        let (at_y, at_x) = (y(y_max * share), x(x_max * share));
        let _ = write!(svg, r#"<path class="grid" d="M{LEFT} {at_y:.1}H{:.1}"/>"#, WIDTH - RIGHT);
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" class="y">{}</text>"#,
            LEFT - 6.0,
            at_y + 4.0,
            unit(y_max * share)
        );
        let _ = write!(
            svg,
            r#"<text x="{at_x:.1}" y="{:.1}" class="x">{:.0} s</text>"#,
            HEIGHT - 10.0,
            x_max * share
        );
    }
    for (place, Series { name, points }) in series.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let path: Vec<String> = points
            .iter()
            .map(|(at, value)| format!("{:.1} {:.1}", x(*at), y(value.min(y_max))))
            .collect();
        if let [only] = &path[..] {
            let (cx, cy) = only.split_once(' ').unwrap_or_default();
            let _ = write!(svg, r#"<circle cx="{cx}" cy="{cy}" r="3" fill="{colour}"/>"#);
        } else if !path.is_empty() {
            let _ =
                write!(svg, r#"<path class="line" stroke="{colour}" d="M{}"/>"#, path.join("L"));
        }
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="14" class="key" style="fill:{colour}">{name}</text>"#,
            WIDTH - RIGHT - place as f64 * 62.0
        );
    }
    svg + "</svg>"
}
