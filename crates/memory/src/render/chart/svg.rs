//! A chart as a small SVG that needs nothing else.
//!
//! Colours follow the viewer's light or dark preference. The legend stands above the plot and the last values
//! beside it, so that neither covers a curve.

use super::{Chart, Colour, Line, Meaning, palette};
use crate::{
    render::{
        scale::{duration, number, ticks},
        svg::escape,
    },
    verdict::Axis,
};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
/// Height of the plot itself; title and legend come on top.
const PLOT: f64 = 270.0;
const LEFT: f64 = 78.0;
/// Room for the last value of each curve.
const RIGHT: f64 = 84.0;
const BOTTOM: f64 = 48.0;
/// Where the first line of the legend stands.
const LEGEND_TOP: f64 = 70.0;
const LEGEND_LINE: f64 = 20.0;
/// Width of a letter of the legend, rather too much than too little.
const LETTER: f64 = 6.9;
/// Labels of epochs are this wide at least.
const EPOCH_LABEL: f64 = 84.0;

const STYLE: &str = "\
svg{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;font-size:12px}\
.page{fill:var(--card)}.ink{fill:var(--ink)}.soft{fill:var(--soft)}.title{font-size:16px;font-weight:600}\
.rule{stroke:var(--rule)}.shade{fill:var(--shade)}\
.line{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}.thin{stroke-width:1.3}\
.band{opacity:.22}.end{font-weight:600}\
.halo{paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}\
.epoch{stroke:var(--soft);stroke-dasharray:2 4}\
.plateau{stroke:var(--mark);stroke-dasharray:5 4}.plateau-ink{fill:var(--mark)}\
.plan{stroke:var(--calm);stroke-dasharray:8 4}.plan-ink{fill:var(--calm)}\
.limit{stroke:var(--bad);stroke-width:1.6}.limit-ink{fill:var(--bad)}";

impl Chart {
    /// The picture; without a point it has a title and nothing else.
    pub fn svg(&self) -> String {
        let legend = Legend::of(self);
        let top = LEGEND_TOP + LEGEND_LINE * legend.rows as f64;
        let height = top + PLOT + BOTTOM;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-labelledby=\"title summary\">\n<title id=\"title\">{}</title>\n<desc id=\"summary\">{}</desc>\n\
             <style>{}{STYLE}</style>\n<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n",
            escape(&self.title),
            escape(&self.summary),
            palette::variables("svg"),
        );
        label(&mut out, (LEFT, 28.0), "ink title", &self.title, "start");
        label(&mut out, (LEFT, 48.0), "soft", &self.summary, "start");
        legend.draw(&mut out, self);
        if self.has_points() {
            let plane = Plane::of(self, top);
            self.shade(&mut out, &plane);
            self.grid(&mut out, &plane);
            self.lines.iter().for_each(|line| curve(&mut out, &plane, line));
            self.levels(&mut out, &plane);
            self.epochs(&mut out, &plane);
            self.names_of_parts(&mut out, &plane);
            self.last_values(&mut out, &plane);
        }
        out.push_str("</svg>\n");
        out
    }

    /// The part in which memory grows.
    fn shade(&self, out: &mut String, plane: &Plane) {
        let Some(knee) = self.knee.as_ref().filter(|knee| plane.has(knee.at)) else { return };
        let (from, to) = (LEFT, plane.x(knee.at));
        let _ = writeln!(
            out,
            "<rect class=\"shade\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{PLOT}\"/>",
            plane.top,
            to - from
        );
    }

    /// The names of the part in which memory grows and of the one after it. They come after the lines of
    /// epochs, which their edges keep off.
    fn names_of_parts(&self, out: &mut String, plane: &Plane) {
        let Some(knee) = self.knee.as_ref().filter(|knee| plane.has(knee.at)) else { return };
        let at = plane.x(knee.at);
        let y = plane.bottom() - 8.0;
        for (from, to, name) in [(LEFT, at, knee.before), (at, WIDTH - RIGHT, knee.after)] {
            if to - from > LETTER * name.len() as f64 + 8.0 {
                label(out, ((from + to) / 2.0, y), "soft halo", name, "middle");
            }
        }
    }

    fn grid(&self, out: &mut String, plane: &Plane) {
        for value in ticks(plane.y.0, plane.y.1, 5) {
            let y = plane.y(value);
            stroke(out, (LEFT, y), (WIDTH - RIGHT, y), "rule");
            label(out, (LEFT - 8.0, y + 4.0), "soft", &self.unit.label(value, plane.y.1), "end");
        }
        for value in ticks(plane.x.0, plane.x.1, 7) {
            let text = if self.axis == Axis::Steps { number(value) } else { duration(value) };
            label(out, (plane.x(value), plane.bottom() + 18.0), "soft", &text, "middle");
        }
        let name = if self.axis == Axis::Steps { "step" } else { "time" };
        label(out, ((LEFT + WIDTH - RIGHT) / 2.0, plane.bottom() + 38.0), "soft", name, "middle");
    }

    fn levels(&self, out: &mut String, plane: &Plane) {
        for level in &self.levels {
            let class = match level.meaning {
                Meaning::Plateau => "plateau",
                Meaning::Plan => "plan",
                Meaning::Limit => "limit",
            };
            let y = plane.y(level.value);
            stroke(out, (LEFT, y), (WIDTH - RIGHT, y), class);
            // Above its line, or below where a curve would run through it.
            let width = LETTER * level.text.chars().count() as f64;
            let is_free = |top: f64, bottom: f64| {
                let crossed =
                    |line: &Line| plane.crosses(line, (LEFT + 8.0, LEFT + 8.0 + width), (top, bottom));
                bottom < plane.bottom() && !self.lines.iter().any(crossed)
            };
            let below = !is_free(y - 18.0, y - 4.0) && is_free(y + 4.0, y + 18.0);
            let base = if below { y + 16.0 } else { y - 6.0 };
            label(out, (LEFT + 8.0, base), &format!("{class}-ink halo"), &level.text, "start");
        }
    }

    fn epochs(&self, out: &mut String, plane: &Plane) {
        let Some(epochs) = self.epochs.filter(|_| self.axis == Axis::Steps) else { return };
        let most = ((WIDTH - LEFT - RIGHT) / EPOCH_LABEL) as usize;
        let ends = epochs.within(plane.x, most);
        for (index, (number, end)) in ends.iter().enumerate() {
            let x = plane.x(*end);
            stroke(out, (x, plane.top), (x, plane.bottom()), "epoch");
            // The first one says where it is, if the next leaves room for that.
            let next = ends.get(index + 1).map_or(WIDTH - RIGHT, |(_, next)| plane.x(*next));
            let text = match number {
                1 if next - x > 2.0 * EPOCH_LABEL => format!("epoch 1 ends at step {end:.0}"),
                _ => format!("epoch {number} ends"),
            };
            let (x, anchor) =
                if next - x > LETTER * text.len() as f64 { (x + 6.0, "start") } else { (x - 6.0, "end") };
            label(out, (x, plane.top + 12.0), "soft halo", &text, anchor);
        }
    }

    /// The last value of each curve, right of the plot, moved apart where they would cover one another.
    fn last_values(&self, out: &mut String, plane: &Plane) {
        const APART: f64 = 14.0;
        let ends = self.lines.iter().filter(|line| matches!(line.colour, Colour::Nth(_)));
        let mut ends: Vec<(f64, f64, &Line)> = ends
            .filter_map(|line| line.points().next_back().map(|(_, value)| (plane.y(value), value, line)))
            .collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut lowest = f64::NEG_INFINITY;
        for (y, ..) in &mut ends {
            *y = y.max(lowest + APART);
            lowest = *y;
        }
        // Those at the bottom move up: below it are the labels of the axis.
        let mut highest = plane.bottom();
        for (y, ..) in ends.iter_mut().rev() {
            *y = y.min(highest);
            highest = *y - APART;
        }
        for (y, value, line) in ends {
            let text = escape(&self.unit.write(value));
            let _ = writeln!(
                out,
                "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\" fill=\"{}\">{text}</text>",
                WIDTH - RIGHT + 8.0,
                y + 4.0,
                colour(line.colour)
            );
        }
    }
}

fn colour(colour: Colour) -> String {
    match colour {
        Colour::Nth(index) => format!("var(--line{})", index % palette::DISTINCT),
        Colour::Quiet => "var(--quiet)".to_owned(),
    }
}

/// Lines beyond the palette take its colours again and are dashed.
fn dashes(colour: Colour) -> &'static str {
    match colour {
        Colour::Nth(index) if index >= 2 * palette::DISTINCT => " stroke-dasharray=\"2 5\"",
        Colour::Nth(index) if index >= palette::DISTINCT => " stroke-dasharray=\"9 5\"",
        _ => "",
    }
}

fn width(colour: Colour) -> &'static str {
    if colour == Colour::Quiet { "line thin" } else { "line" }
}

fn curve(out: &mut String, plane: &Plane, line: &Line) {
    let place = |(x, y): (f64, f64)| format!("{:.1},{:.1}", plane.x(x), plane.y(y));
    let joined =
        |points: &mut dyn Iterator<Item = (f64, f64)>| points.map(place).collect::<Vec<_>>().join(" ");
    let colour_of = colour(line.colour);
    if line.band().any(|(_, low, high)| high > low) {
        let upper = line.band().map(|(x, _, high)| (x, high));
        let lower = line.band().rev().map(|(x, low, _)| (x, low));
        let points = joined(&mut upper.chain(lower));
        let _ = writeln!(out, "<polygon class=\"band\" fill=\"{colour_of}\" points=\"{points}\"/>");
    }
    let mut points = line.points();
    match (points.next(), points.next()) {
        (Some((x, y)), None) => {
            let (x, y) = (plane.x(x), plane.y(y));
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour_of}\"/>");
        }
        _ => {
            let points = joined(&mut line.points());
            let _ = writeln!(
                out,
                "<polyline class=\"{}\" stroke=\"{colour_of}\"{} points=\"{points}\"/>",
                width(line.colour),
                dashes(line.colour)
            );
        }
    }
}

/// The names of the lines, in rows above the plot; one line needs none.
struct Legend {
    /// Where each name stands: its left end and its row.
    places: Vec<(f64, usize)>,
    rows: usize,
}

impl Legend {
    const SWATCH: f64 = 22.0;
    const GAP: f64 = 22.0;

    fn of(chart: &Chart) -> Self {
        if chart.lines.len() < 2 {
            return Self { places: Vec::new(), rows: 0 };
        }
        let (mut x, mut row) = (LEFT, 0);
        let mut places = Vec::new();
        for line in &chart.lines {
            let wide = Self::SWATCH + 8.0 + LETTER * line.name.chars().count() as f64 + Self::GAP;
            if x > LEFT && x + wide > WIDTH - 16.0 {
                (x, row) = (LEFT, row + 1);
            }
            places.push((x, row));
            x += wide;
        }
        Self { places, rows: row + 1 }
    }

    fn draw(&self, out: &mut String, chart: &Chart) {
        for ((x, row), line) in self.places.iter().zip(&chart.lines) {
            let y = LEGEND_TOP + 4.0 + LEGEND_LINE * *row as f64;
            let _ = writeln!(
                out,
                "<path class=\"{}\" stroke=\"{}\"{} d=\"M{x:.1} {:.1}h{}\"/>",
                width(line.colour),
                colour(line.colour),
                dashes(line.colour),
                y - 4.0,
                Self::SWATCH
            );
            label(out, (x + Self::SWATCH + 8.0, y), "ink", &line.name, "start");
        }
    }
}

/// From values to the plane of the picture.
struct Plane {
    x: (f64, f64),
    y: (f64, f64),
    top: f64,
}

impl Plane {
    fn of(chart: &Chart, top: f64) -> Self {
        let bounds = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let points = || chart.lines.iter().flat_map(Line::points);
        let bands = || chart.lines.iter().flat_map(Line::band).flat_map(|(_, low, high)| [low, high]);
        let levels = || chart.levels.iter().map(|level| level.value);
        let x = bounds(&mut points().map(|(x, _)| x));
        let (low, high) = bounds(&mut points().map(|(_, y)| y).chain(bands()).chain(levels()));
        let margin = 0.06 * (high - low);
        let y = if chart.from_zero { (0.0, high * 1.08) } else { (low - margin, high + margin) };
        Self { x: widened(x), y: widened(y), top }
    }

    fn bottom(&self) -> f64 {
        self.top + PLOT
    }

    fn has(&self, x: f64) -> bool {
        (self.x.0..=self.x.1).contains(&x)
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + (value - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom() - (value - self.y.0) / (self.y.1 - self.y.0) * PLOT
    }

    /// Whether a line's curve runs through a part of the picture.
    fn crosses(&self, line: &Line, (left, right): (f64, f64), (top, bottom): (f64, f64)) -> bool {
        let mut before = None;
        line.points().any(|(x, y)| {
            let (x1, y1) = (self.x(x), self.y(y));
            let (x0, y0) = before.replace((x1, y1)).unwrap_or((x1, y1));
            if x1 < left || x0 > right {
                return false;
            }
            let at = |x: f64| if x1 > x0 { y0 + (y1 - y0) * (x.clamp(x0, x1) - x0) / (x1 - x0) } else { y1 };
            let (a, b) = (at(left), at(right));
            a.max(b) > top && a.min(b) < bottom
        })
    }
}

/// An interval of one value still needs a width to be drawn in.
fn widened((low, high): (f64, f64)) -> (f64, f64) {
    if high > low { (low, high) } else { (low - 0.5 * low.abs().max(1.0), high + 0.5 * high.abs().max(1.0)) }
}

fn stroke(out: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
    let _ = writeln!(out, "<path class=\"{class}\" d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\"/>");
}

fn label(out: &mut String, (x, y): (f64, f64), class: &str, text: &str, anchor: &str) {
    let text = escape(text);
    let _ = writeln!(
        out,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::chart::{Epochs, Level, Unit};

    fn chart(names: &[&str], points: &[(f64, f64)]) -> Chart {
        let lines =
            names.iter().enumerate().map(|(index, name)| Line::through(name, Colour::Nth(index), points));
        Chart::new("Loss", Axis::Steps, Unit::Number, lines.collect())
    }

    /// The first number that follows a text.
    fn number_after(svg: &str, text: &str) -> f64 {
        let rest = &svg[svg.find(text).unwrap_or_else(|| panic!("{text} in {svg}")) + text.len()..];
        rest[..rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap()].parse().unwrap()
    }

    #[test]
    fn a_line_goes_from_corner_to_corner() {
        let svg = chart(&["loss <x>"], &[(0.0, 0.0), (10.0, 1.0)]).svg();
        let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let points: Vec<Vec<f64>> =
            points.split(' ').map(|point| point.split(',').map(|n| n.parse().unwrap()).collect()).collect();
        assert!(points[0][0] == LEFT && points[1][0] == WIDTH - RIGHT, "{points:?}");
        assert!(points[0][1] > points[1][1], "up is less: {points:?}");
        assert!(!svg.contains("<x>"));
    }

    #[test]
    fn nothing_and_one_point_and_bad_points_are_fine() {
        assert!(!chart(&["a"], &[]).svg().contains("<polyline"));
        assert!(!chart(&["a"], &[(f64::NAN, 1.0)]).svg().contains("NaN"));
        assert!(chart(&["a"], &[(1.0, 5.0)]).svg().contains("<circle"));
        assert!(!chart(&["a"], &[(0.0, 1.0), (1.0, f64::INFINITY), (2.0, 2.0)]).svg().contains("inf"));
    }

    #[test]
    fn every_line_looks_different() {
        let names: Vec<String> = (0..18).map(|index| format!("run {index}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let svg = chart(&names, &[(0.0, 0.0), (10.0, 1.0)]).svg();
        let looks: std::collections::HashSet<&str> =
            svg.lines().filter_map(|line| line.strip_prefix("<polyline ")?.split(" points").next()).collect();
        assert_eq!(looks.len(), names.len(), "{looks:?}");
    }

    #[test]
    fn the_legend_stands_above_the_plot_however_long_it_is() {
        let names = ["a run with a rather long name: steady"; 9];
        let svg = chart(&names, &[(0.0, 0.0), (10.0, 1.0)]).svg();
        let legend = svg.match_indices(names[0]).map(|(at, _)| svg[..at].rsplit(" y=\"").next().unwrap());
        let lowest =
            legend.map(|text| text.split('"').next().unwrap().parse::<f64>().unwrap()).fold(0.0, f64::max);
        let plot_top = number_after(&svg, "<path class=\"rule\" d=\"M78.0 ").min(1e9);
        let highest_rule = svg
            .lines()
            .filter(|line| line.starts_with("<path class=\"rule\""))
            .map(|line| number_after(line, "M78.0 "))
            .fold(plot_top, f64::min);
        assert!(lowest > LEGEND_TOP && lowest < highest_rule, "{lowest} {highest_rule}");
    }

    #[test]
    fn last_values_stay_beside_the_plot_and_apart() {
        let svg = chart(&["a", "b", "c", "d"], &[(0.0, 400.0), (150.0, 0.0)]).svg();
        let of_ends = svg.lines().filter(|line| line.contains("class=\"end\""));
        let ends: Vec<f64> = of_ends.map(|line| number_after(line, " y=\"")).collect();
        // Its numbers stand twenty units above the name of the axis.
        let axis = number_after(svg.lines().find(|line| line.contains(">step<")).unwrap(), " y=\"") - 20.0;
        assert!(ends.len() == 4 && ends.iter().all(|y| *y < axis - 12.0), "{ends:?} and the axis at {axis}");
        assert!(ends.windows(2).all(|pair| pair[1] - pair[0] >= 14.0), "{ends:?}");
    }

    #[test]
    fn no_curve_runs_through_the_name_of_a_level() {
        let name_at = |values: &[(f64, f64)], level: f64| {
            let mut chart = chart(&["a"], values);
            chart.from_zero = true;
            chart.add_level(Level { value: level, text: "plan 69 MB".into(), meaning: Meaning::Plan });
            let svg = chart.svg();
            let line = svg.lines().find(|line| line.contains("\"plan\"")).unwrap().to_owned();
            let name = svg.lines().find(|line| line.contains("plan 69 MB")).unwrap().to_owned();
            number_after(&name, " y=\"") - number_after(&line, "M78.0 ")
        };
        // A run that takes a little more than its plan, and one that takes a little less.
        assert!(name_at(&[(0.0, 73.0), (100.0, 73.0)], 69.0) > 0.0, "below its line");
        assert!(name_at(&[(0.0, 66.0), (100.0, 66.0)], 69.0) < 0.0, "above its line");
        assert!(
            name_at(&[(0.0, 1.0), (90.0, 73.0), (100.0, 73.0)], 69.0) < 0.0,
            "the curve comes there late"
        );
    }

    #[test]
    fn the_names_of_parts_are_drawn_over_the_ends_of_epochs() {
        let mut chart = chart(&["a"], &[(0.0, 1.0), (250.0, 3.0)]);
        chart.epochs = Some(Epochs { first_end: 80.0, steps: 80.0 });
        chart.knee = Some(super::super::Knee { at: 80.0, before: "grows", after: "level" });
        let svg = chart.svg();
        let last_epoch = svg.rfind("class=\"epoch\"").unwrap();
        assert!(svg.find(">grows<").unwrap() > last_epoch && svg.find(">level<").unwrap() > last_epoch);
    }

    #[test]
    fn epochs_and_levels_are_drawn_and_named() {
        let mut chart = chart(&["a"], &[(0.0, 1.0), (250.0, 3.0)]);
        chart.epochs = Some(Epochs { first_end: 80.0, steps: 80.0 });
        chart.add_level(Level { value: 4.0, text: "limit 4".into(), meaning: Meaning::Limit });
        let svg = chart.svg();
        assert_eq!(svg.matches("class=\"epoch\"").count(), 3, "at 80, 160 and 240");
        for text in ["epoch 1 ends at step 80", "epoch 2 ends", "class=\"limit\"", ">limit 4<"] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
    }
}
