//! A picture of a run, or of several over one another: curves, marks and verdicts, as a small SVG that needs nothing else.
//!
//! Colours follow the viewer's light or dark preference.

use super::{
    Run,
    scale::{bytes, duration, ticks},
};
use crate::verdict::{Axis, Bin, Trail};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 380.0;
/// Room for labels: left, right, top, bottom.
const LEFT: f64 = 78.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 46.0;

const STYLE: &str = "\
svg{font-family:system-ui,sans-serif;font-size:12px;--ink:#1c2733;--soft:#64748b;--rule:#e2e8f0;--page:#ffffff;--curve:#0f766e;--band:#99d5cf;--mark:#b45309;--bad:#b91c1c}
@media (prefers-color-scheme:dark){svg{--ink:#e5e9f0;--soft:#94a3b8;--rule:#2a3441;--page:#10151c;--curve:#2dd4bf;--band:#134e4a;--mark:#fbbf24;--bad:#f87171}}
.page{fill:var(--page)}.ink{fill:var(--ink)}.soft{fill:var(--soft)}.title{font-size:16px;font-weight:600}
.rule{stroke:var(--rule)}.curve{fill:none;stroke:var(--curve);stroke-width:2;stroke-linejoin:round}.band{fill:var(--band);opacity:.6}
.curve.b,.swatch.b{stroke:var(--mark)}.curve.c,.swatch.c{stroke:var(--soft)}.swatch{stroke:var(--curve);stroke-width:4;stroke-linecap:round}
.mark{stroke:var(--mark);stroke-dasharray:4 4}.bad{stroke:var(--bad);stroke-dasharray:6 3}.mark-ink{fill:var(--mark)}.bad-ink{fill:var(--bad)}";

/// Classes of the curves that lie over one another, in their order; further curves take the last.
const COLOURS: [&str; 3] = ["", " b", " c"];
/// Height of a line of the legend.
const LEGEND_LINE: f64 = 20.0;

/// From values to the plane of the picture.
struct Plane {
    x: (f64, f64),
    y: (f64, f64),
}

impl Plane {
    fn of(trails: &[Trail<'_>], limit: Option<f64>) -> Self {
        let bins = || trails.iter().flat_map(|trail| trail.run);
        let bounds = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let x = bounds(&mut bins().flat_map(|bin| [bin.x.0, bin.x.1]));
        let (_, high) = bounds(&mut bins().map(|bin| bin.high));
        // Memory is an amount: the axis starts at nothing, so that a tenth looks like a tenth.
        let high = limit.filter(|limit| *limit < 2.0 * high).map_or(high, |limit| limit.max(high));
        Self { x, y: (0.0, high * 1.06) }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + (value - self.x.0) / (self.x.1 - self.x.0).max(f64::MIN_POSITIVE) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (value - self.y.0) / (self.y.1 - self.y.0).max(1.0) * (HEIGHT - TOP - BOTTOM)
    }
}

/// Draws a run.
pub fn svg(run: &Run) -> String {
    let trail = run.analyst.trail();
    let limit = run.analyst.facts().limit.map(|limit| limit as f64);
    let plane = Plane::of(&[trail], limit);
    let assessment = &run.assessment;
    let title = format!("{}: {}", run.name, assessment.verdict.name());
    let mut out = page(&title, assessment.verdict.meaning());
    if !trail.run.is_empty() {
        grid(&mut out, &plane, trail.axis);
        curve(&mut out, &plane, trail.run, COLOURS[0]);
        marks(&mut out, &plane, run, &trail);
    }
    out.push_str("</svg>\n");
    out
}

/// Draws several runs over one another; nothing where one counts steps and another seconds.
pub fn overlay(title: &str, runs: &[Run]) -> Option<String> {
    let trails: Vec<_> = runs.iter().map(|run| run.analyst.trail()).collect();
    let axis = trails.first()?.axis;
    if trails.iter().any(|trail| trail.axis != axis || trail.run.is_empty()) {
        return None;
    }
    let plane = Plane::of(&trails, None);
    let mut out = page(title, "memory of its own, whole process tree");
    grid(&mut out, &plane, axis);
    if let Some(end) = trails.iter().find_map(|trail| trail.epoch_end) {
        epoch_mark(&mut out, &plane, end);
    }
    for (index, (run, trail)) in runs.iter().zip(&trails).enumerate() {
        let colour = COLOURS[index.min(COLOURS.len() - 1)];
        curve(&mut out, &plane, trail.run, colour);
        let last = trail.run.last().map_or(0.0, |bin| bin.mean().owned);
        label(&mut out, WIDTH - RIGHT - 4.0, plane.y(last) - 8.0, "ink", &bytes(last), "end");
        let y = 26.0 + LEGEND_LINE * index as f64;
        let x = WIDTH - RIGHT;
        line(&mut out, (x - 22.0, y - 4.0), (x, y - 4.0), &format!("swatch{colour}"));
        let text = format!("{}: {}", run.name, run.assessment.verdict.name());
        label(&mut out, x - 32.0, y, "ink", &text, "end");
    }
    out.push_str("</svg>\n");
    Some(out)
}

/// The beginning of a picture, with its title and what stands below it.
fn page(title: &str, subtitle: &str) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n<style>{STYLE}</style>\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n"
    );
    label(&mut out, LEFT, 26.0, "ink title", title, "start");
    label(&mut out, LEFT, 46.0, "soft", subtitle, "start");
    out
}

fn grid(out: &mut String, plane: &Plane, axis: Axis) {
    for value in ticks(plane.y.0, plane.y.1, 5) {
        let y = plane.y(value);
        line(out, (LEFT, y), (WIDTH - RIGHT, y), "rule");
        label(out, LEFT - 8.0, y + 4.0, "soft", &bytes(value), "end");
    }
    for value in ticks(plane.x.0, plane.x.1, 7) {
        let text = if axis == Axis::Steps { format!("{value:.0}") } else { duration(value) };
        label(out, plane.x(value), HEIGHT - BOTTOM + 18.0, "soft", &text, "middle");
    }
    let name = if axis == Axis::Steps { "step" } else { "time" };
    label(out, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0, "soft", name, "middle");
}

fn curve(out: &mut String, plane: &Plane, bins: &[Bin], colour: &str) {
    let points = |values: &mut dyn Iterator<Item = (f64, f64)>| {
        values.map(|(x, y)| format!("{:.1},{:.1}", plane.x(x), plane.y(y))).collect::<Vec<_>>().join(" ")
    };
    let upper = bins.iter().map(|bin| (bin.mid_x(), bin.high));
    let lower = bins.iter().rev().map(|bin| (bin.mid_x(), bin.low));
    let _ = writeln!(out, "<polygon class=\"band\" points=\"{}\"/>", points(&mut upper.chain(lower)));
    let mean = points(&mut bins.iter().map(|bin| (bin.mid_x(), bin.mean().owned)));
    let _ = writeln!(out, "<polyline class=\"curve{colour}\" points=\"{mean}\"/>");
}

fn marks(out: &mut String, plane: &Plane, run: &Run, trail: &Trail<'_>) {
    if let Some(end) = trail.epoch_end {
        epoch_mark(out, plane, end);
    }
    if let Some(plateau) = &run.assessment.plateau {
        let y = plane.y(plateau.bytes as f64);
        let text = format!("plateau {}", bytes(plateau.bytes as f64));
        line(out, (LEFT, y), (WIDTH - RIGHT, y), "mark");
        label(out, WIDTH - RIGHT - 4.0, y + 16.0, "mark-ink", &text, "end");
    }
    let limit = run.analyst.facts().limit.map(|limit| limit as f64);
    if let Some(limit) = limit.filter(|limit| *limit <= plane.y.1) {
        line(out, (LEFT, plane.y(limit)), (WIDTH - RIGHT, plane.y(limit)), "bad");
        label(out, LEFT + 6.0, plane.y(limit) - 5.0, "bad-ink", &format!("limit {}", bytes(limit)), "start");
    }
}

/// Where the first epoch ends, if that is in the picture.
fn epoch_mark(out: &mut String, plane: &Plane, end: f64) {
    if (plane.x.0..=plane.x.1).contains(&end) {
        let x = plane.x(end);
        line(out, (x, TOP), (x, HEIGHT - BOTTOM), "mark");
        label(out, x + 6.0, TOP + 10.0, "mark-ink", &format!("epoch ends at step {end:.0}"), "start");
    }
}

fn line(out: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
    let _ = writeln!(
        out,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn label(out: &mut String, x: f64, y: f64, class: &str, text: &str, anchor: &str) {
    let text = escape(text);
    let _ = writeln!(
        out,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

/// Text that cannot be taken for markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
