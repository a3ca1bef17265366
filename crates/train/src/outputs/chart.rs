//! Line charts as small SVG pictures that need nothing else.
//!
//! In come series of points; out comes a picture with a grid, round labels and a legend. Colours follow the viewer's light or dark
//! preference.

use garden_memory::report::{scale::ticks, svg::escape};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 36.0;
/// Told apart with any kind of colour vision.
const COLOURS: [&str; 4] = ["#0f766e", "#b45309", "#4f46e5", "#be185d"];

/// A named line.
pub struct Series<'a> {
    /// What the legend says.
    pub name: &'a str,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
}

/// A picture of one or more lines over steps.
pub struct Chart<'a> {
    /// The heading.
    pub title: &'a str,
    /// The lines.
    pub series: Vec<Series<'a>>,
    /// Writes a value of the vertical axis.
    pub label: fn(f64) -> String,
    /// Whether the vertical axis starts at nothing: for amounts, so that a tenth looks like a tenth.
    pub from_zero: bool,
}

impl Chart<'_> {
    /// The picture; empty if there is no point to draw.
    pub fn svg(&self) -> String {
        let finite = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite();
        let points = || self.series.iter().flat_map(|series| &series.points).filter(finite);
        if points().next().is_none() {
            return String::new();
        }
        let x = bounds(points().map(|point| point.0));
        let mut y = bounds(points().map(|point| point.1));
        let margin = 0.06 * (y.1 - y.0);
        y = if self.from_zero { (0.0, y.1 * 1.06) } else { (y.0 - margin, y.1 + margin) };
        let plane = Plane { x: widened(x), y: widened(y) };
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" font-family=\"system-ui,sans-serif\" font-size=\"12\" fill=\"currentColor\">\n<title>{title}</title>\n<text x=\"{LEFT}\" y=\"20\" font-size=\"15\" font-weight=\"600\">{title}</text>\n",
            title = escape(self.title),
        );
        self.grid(&mut out, &plane);
        for (index, series) in self.series.iter().enumerate() {
            line(&mut out, &plane, series, index);
        }
        out.push_str("</svg>\n");
        out
    }

    fn grid(&self, out: &mut String, plane: &Plane) {
        for value in ticks(plane.y.0, plane.y.1, 5) {
            let y = plane.y(value);
            let end = WIDTH - RIGHT;
            let _ = writeln!(
                out,
                "<path d=\"M{LEFT} {y:.1}H{end}\" stroke=\"currentColor\" opacity=\".15\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" opacity=\".7\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                escape(&(self.label)(value))
            );
        }
        for value in ticks(plane.x.0, plane.x.1, 8) {
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" opacity=\".7\">{}</text>",
                plane.x(value),
                HEIGHT - 14.0,
                plain(value)
            );
        }
    }
}

fn line(out: &mut String, plane: &Plane, series: &Series<'_>, index: usize) {
    let colour = COLOURS[index % COLOURS.len()];
    let finite = series.points.iter().filter(|point| point.0.is_finite() && point.1.is_finite());
    let path: Vec<String> = finite.map(|(x, y)| format!("{:.1} {:.1}", plane.x(*x), plane.y(*y))).collect();
    match path.as_slice() {
        [] => {}
        [only] => {
            let (x, y) = only.split_once(' ').unwrap_or_default();
            let _ = writeln!(out, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>");
        }
        several => {
            let _ = writeln!(
                out,
                "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>",
                several.join("L")
            );
        }
    }
    let x = WIDTH - RIGHT - 150.0 * (index + 1) as f64;
    let _ = writeln!(
        out,
        "<circle cx=\"{x}\" cy=\"16\" r=\"4\" fill=\"{colour}\"/><text x=\"{}\" y=\"20\">{}</text>",
        x + 9.0,
        escape(series.name)
    );
}

/// From values to the plane of the picture.
struct Plane {
    x: (f64, f64),
    y: (f64, f64),
}

impl Plane {
    fn x(&self, value: f64) -> f64 {
        LEFT + (value - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (value - self.y.0) / (self.y.1 - self.y.0) * (HEIGHT - TOP - BOTTOM)
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// An interval of one value still needs a width to be drawn in.
fn widened((low, high): (f64, f64)) -> (f64, f64) {
    if high > low { (low, high) } else { (low - 0.5 * low.abs().max(1.0), high + 0.5 * high.abs().max(1.0)) }
}

/// A number without what binary fractions add: 0.30000000000000004 is a label nobody wants.
pub fn plain(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> String {
        let series = vec![Series { name: "loss <x>", points }];
        Chart { title: "Loss", series, label: |value| value.to_string(), from_zero: false }.svg()
    }

    #[test]
    fn a_line_goes_from_corner_to_corner() {
        let svg = chart(vec![(0.0, 0.0), (10.0, 1.0)]);
        let path = svg.split("<path d=\"M").last().unwrap();
        let (start, end) = path.split('"').next().unwrap().split_once('L').unwrap();
        let point = |text: &str| text.split(' ').map(|n| n.parse::<f64>().unwrap()).collect::<Vec<_>>();
        let (start, end) = (point(start), point(end));
        assert!(start[0] == LEFT && end[0] == WIDTH - RIGHT, "{start:?} {end:?}");
        assert!(start[1] > end[1], "up is less: {start:?} {end:?}");
        assert!(svg.contains("loss &lt;x&gt;"));
    }

    #[test]
    fn labels_are_plain() {
        assert_eq!([0.1 + 0.2, 12.0, 0.0].map(plain), ["0.3", "12", "0"]);
    }

    #[test]
    fn nothing_and_one_point_and_bad_points_are_fine() {
        assert_eq!(chart(vec![]), "");
        assert_eq!(chart(vec![(f64::NAN, 1.0)]), "");
        assert!(chart(vec![(1.0, 5.0)]).contains("<circle"));
        assert!(!chart(vec![(0.0, 1.0), (1.0, f64::INFINITY), (2.0, 2.0)]).contains("inf"));
    }
}
