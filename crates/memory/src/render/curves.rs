//! Makes the chart that shows a judged run.

use super::{
    Run,
    chart::{Chart, Colour, Epochs, Knee, Level, Line, MOST_POINTS, Meaning, Unit},
};
use crate::{
    Verdict,
    verdict::{Axis, Bin, Kinds, Trail},
};

/// A run with its kinds of memory, epochs, plateau and limit.
pub fn one(run: &Run) -> Chart {
    let trail = run.analyst.trail();
    let assessment = &run.assessment;
    let mut lines = vec![memory(&trail, "memory of its own", Colour::Nth(0), trail.axis)];
    lines.extend(kinds(&trail));
    let mut chart = memory_chart(&format!("{}: {}", run.name, assessment.verdict.name()), trail.axis, lines);
    chart.summary = format!("{} ({})", capitalised(assessment.meaning), assessment.ending());
    chart.epochs = epochs(&trail);
    if let Some(plateau) = &assessment.plateau {
        let name = if assessment.verdict == Verdict::Steady { "level" } else { "plateau" };
        chart.add_level(Level::bytes(name, plateau.bytes, Meaning::Plateau));
        let before = match assessment.verdict {
            Verdict::Fill => Some("grows"),
            Verdict::WarmUp => Some("warms up"),
            _ => None,
        };
        let knee = before.zip(plateau.step.filter(|_| trail.axis == Axis::Steps));
        chart.knee = knee.map(|(before, step)| Knee { at: step as f64, before, after: "level" });
    }
    if let Some(limit) = run.analyst.facts().limit {
        chart.add_level(Level::bytes("limit", limit, Meaning::Limit));
    }
    chart
}

/// Several runs over one another: over steps if all count them, otherwise over time if all know it, otherwise
/// not at all.
pub fn together(runs: &[Run]) -> Option<Chart> {
    let trails: Vec<Trail<'_>> = runs.iter().map(|run| run.analyst.trail()).collect();
    let all_count = trails.iter().all(|trail| trail.axis == Axis::Steps);
    let axis = if all_count { Axis::Steps } else { Axis::Seconds };
    if axis == Axis::Seconds && !trails.iter().all(knows_time) {
        return None;
    }
    let lines = runs.iter().zip(&trails).enumerate().map(|(index, (run, trail))| {
        let name = format!("{}: {}", run.name, run.assessment.verdict.name());
        memory(trail, &name, Colour::Nth(index), axis)
    });
    let mut chart = memory_chart("Memory", axis, lines.collect());
    "Memory of its own, whole process tree".clone_into(&mut chart.summary);
    if all_count {
        chart.epochs = trails.iter().find_map(epochs);
    }
    let limits: Vec<u64> = runs.iter().filter_map(|run| run.analyst.facts().limit).collect();
    if let Some(limit) = limits.first().filter(|limit| limits.iter().all(|other| other == *limit)) {
        chart.add_level(Level::bytes("limit", *limit, Meaning::Limit));
    }
    chart.has_points().then_some(chart)
}

/// Some logs tell steps and no times.
fn knows_time(trail: &Trail<'_>) -> bool {
    trail
        .run
        .first()
        .zip(trail.run.last())
        .is_some_and(|(first, last)| last.seconds.end > first.seconds.start)
}

fn memory_chart(title: &str, axis: Axis, lines: Vec<Line>) -> Chart {
    // Memory is an amount: the axis starts at nothing.
    Chart { from_zero: true, ..Chart::new(title, axis, Unit::Bytes, lines) }
}

fn epochs(trail: &Trail<'_>) -> Option<Epochs> {
    Some(Epochs { first_end: trail.epoch_end?, steps: trail.epoch_steps? })
}

/// The memory that the verdict is about, with its lowest and highest values.
fn memory(trail: &Trail<'_>, name: &str, colour: Colour, axis: Axis) -> Line {
    let mut line = line(trail, name, colour, axis, |kinds| kinds.owned);
    for stretch in thinned(trail) {
        line.low.push(stretch.iter().map(|bin| bin.low).fold(f64::INFINITY, f64::min));
        line.high.push(stretch.iter().map(|bin| bin.high).fold(0.0, f64::max));
    }
    line
}

/// What else is worth a line: file-backed memory, and the kinds where there are several.
fn kinds(trail: &Trail<'_>) -> Vec<Line> {
    type Pick = fn(&Kinds) -> f64;
    let used = |pick: Pick| trail.run.iter().any(|bin| pick(&bin.mean()) > 0.0);
    let owned: [(&str, Pick); 3] = [
        ("anonymous", |kinds| kinds.anon),
        ("shared", |kinds| kinds.shmem),
        ("swapped out", |kinds| kinds.swap),
    ];
    let owned: Vec<(&str, Pick)> = owned.into_iter().filter(|(_, pick)| used(*pick)).collect();
    // A single kind is the memory of its own.
    let owned = if owned.len() > 1 { owned } else { Vec::new() };
    let numbered = owned.into_iter().enumerate();
    let mut lines: Vec<Line> = numbered
        .map(|(index, (name, pick))| line(trail, name, Colour::Nth(index + 1), trail.axis, pick))
        .collect();
    if used(|kinds| kinds.file) {
        lines.push(line(trail, "file-backed (the kernel can drop it)", Colour::Quiet, trail.axis, |kinds| {
            kinds.file
        }));
    }
    lines
}

fn line(trail: &Trail<'_>, name: &str, colour: Colour, axis: Axis, pick: impl Fn(&Kinds) -> f64) -> Line {
    let mut line = Line::through(name, colour, &[]);
    let steps = trail.start_up.len();
    let mut seen = 0;
    for stretch in thinned(trail) {
        let count: f64 = stretch.iter().map(|bin| f64::from(bin.count)).sum();
        let sum: f64 = stretch.iter().map(|bin| pick(&bin.mean()) * f64::from(bin.count)).sum();
        let (first, last) = (&stretch[0], &stretch[stretch.len() - 1]);
        let seconds = (first.seconds.start + last.seconds.end) / 2.0;
        let place = (first.x.start + last.x.end) / 2.0;
        let counts_steps = trail.axis == Axis::Steps && seen >= steps;
        line.x.push(match axis {
            Axis::Seconds => seconds,
            Axis::Steps if counts_steps => place,
            Axis::Steps => f64::NAN,
        });
        line.seconds.push(seconds);
        line.y.push(sum / count);
        seen += stretch.len();
    }
    line
}

/// The bins of a run in stretches: those before the first step, then the others.
fn thinned<'a>(trail: &Trail<'a>) -> impl Iterator<Item = &'a [Bin]> {
    let whole = trail.start_up.len() + trail.run.len();
    let each = whole.div_ceil(MOST_POINTS - 1).max(1);
    trail.start_up.chunks(each).chain(trail.run.chunks(each))
}

/// A sentence begins with a capital letter.
pub fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
