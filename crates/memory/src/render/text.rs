//! The report for a terminal: verdict, curve, numbers, evidence, what to do.

use super::{
    Run,
    braille::Canvas,
    scale::{bytes, duration},
};
use crate::{
    Ending, Exhaustion, Plateau, Verdict,
    assessment::{Pattern, TreePart},
    sentence::Sentence,
    verdict::{Axis, Bin, Trail},
};
use std::fmt::Write;

/// How the text is laid out.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Whether colours may be used.
    pub color: bool,
    /// Columns of the terminal.
    pub width: usize,
}

/// Columns left of the chart.
const MARGIN: usize = 10;
/// Rows of the chart.
const ROWS: usize = 9;
/// The chart shows the limit if it is at most so many times what the run reached.
const LIMIT_IN_SIGHT: f64 = 1.6;

/// Writes the report of a run.
pub fn text(run: &Run, style: Style) -> String {
    let mut out = String::new();
    headline(&mut out, run, style);
    chart(&mut out, run, style);
    numbers(&mut out, run);
    endings(&mut out, run);
    list(&mut out, "Evidence", &run.assessment.evidence, style);
    list(&mut out, "What to do", &run.assessment.advice, style);
    out
}

fn headline(out: &mut String, run: &Run, style: Style) {
    let assessment = &run.assessment;
    let verdict = assessment.verdict.name().to_uppercase();
    let verdict = paint(&verdict, colour(assessment.verdict), style);
    let _ = writeln!(out, "{}: {verdict}, {} ({})\n", run.name, assessment.meaning, assessment.ending());
}

fn colour(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Steady => "1;32",
        Verdict::WarmUp | Verdict::Fill => "1;36",
        Verdict::Leak => "1;31",
        Verdict::Undecided => "1;33",
    }
}

fn paint(text: &str, code: &str, style: Style) -> String {
    if style.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// The curve with its marks: a dotted line down at the end of the epoch, one across at the limit.
fn chart(out: &mut String, run: &Run, style: Style) {
    let trail = run.analyst.trail();
    let (Some(first), Some(last)) = (trail.run.first(), trail.run.last()) else { return };
    let width = style.width.clamp(40, 100) - MARGIN - 2;
    let (from, to) = (first.x.start, last.x.end);
    let low = trail.run.iter().map(|bin| bin.low).fold(f64::INFINITY, f64::min);
    let reached = trail.run.iter().map(|bin| bin.high).fold(0.0, f64::max);
    let limit = run.analyst.facts().limit.map(|limit| limit as f64);
    let limit = limit.filter(|limit| *limit <= LIMIT_IN_SIGHT * reached);
    let high = limit.map_or(reached, |limit| limit.max(reached));
    let low = low - 0.03 * (high - low).max(0.02 * high);
    let height = |value: f64| (value - low) / (high - low).max(1.0);
    let mut canvas = Canvas::new(width, ROWS);
    draw(&mut canvas, trail.run, (from, to), height);

    let column_of = |x: f64| ((x - from) / (to - from).max(f64::MIN_POSITIVE) * (width - 1) as f64).round();
    let epoch = trail.epoch_end.filter(|end| (from..=to).contains(end)).map(|end| column_of(end) as usize);
    let limit_row = limit.map(|limit| ((1.0 - height(limit)) * (ROWS - 1) as f64).round() as usize);
    for row in 0..ROWS {
        let label = match row {
            _ if Some(row) == limit_row => "limit".to_owned(),
            0 => bytes(high),
            _ if row == ROWS - 1 => bytes(low.max(0.0)),
            _ => String::new(),
        };
        let _ = write!(out, "{label:>MARGIN$} ");
        out.push(if label.is_empty() { '│' } else { '┤' });
        for column in 0..width {
            out.push(match canvas.character(column, row) {
                ' ' if Some(row) == limit_row => '╌',
                ' ' if Some(column) == epoch => '┊',
                dots => dots,
            });
        }
        trim_end(out);
        out.push('\n');
    }
    axis(out, &trail, (from, to), epoch, width);
}

fn draw(canvas: &mut Canvas, bins: &[Bin], (from, to): (f64, f64), height: impl Fn(f64) -> f64) {
    let dots = canvas.dots_wide();
    let span = (to - from).max(f64::MIN_POSITIVE);
    let mut before: Option<f64> = None;
    for dot in 0..dots {
        let (left, right) = (dot as f64 / dots as f64, (dot + 1) as f64 / dots as f64);
        let place = |bin: &Bin| (bin.mid_x() - from) / span;
        let inside = bins
            .iter()
            .filter(|bin| (left..right).contains(&place(bin)) || (dot + 1 == dots && place(bin) >= left));
        let (low, high) = inside.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), bin| {
            (low.min(bin.low), high.max(bin.high))
        });
        let has_samples = low <= high;
        let (low, high) = if has_samples {
            (low, high)
        } else {
            // Between two samples the curve is a line.
            let after = bins.partition_point(|bin| place(bin) < left).min(bins.len() - 1);
            let (a, b) = (&bins[after.saturating_sub(1)], &bins[after]);
            let width = (place(b) - place(a)).max(f64::MIN_POSITIVE);
            let value = a.high + (b.high - a.high) * ((left - place(a)) / width).clamp(0.0, 1.0);
            (value, value)
        };
        // Columns touch each other where the curve is steep.
        let (bottom, top) = before.map_or((low, high), |before| (low.min(before), high.max(before)));
        canvas.column(dot, height(bottom), height(top));
        before =
            Some(bins[..bins.partition_point(|bin| place(bin) < right)].last().map_or(high, |bin| bin.high))
                .filter(|_| has_samples);
    }
}

fn axis(out: &mut String, trail: &Trail<'_>, (from, to): (f64, f64), epoch: Option<usize>, width: usize) {
    let mut line: Vec<char> = std::iter::repeat_n('─', width).collect();
    let mut labels: Vec<char> = vec![' '; width];
    let mut put = |at: usize, text: &str| {
        let start = at.min(width.saturating_sub(text.chars().count()));
        text.chars().zip(&mut labels[start..]).for_each(|(c, slot)| *slot = c);
    };
    let (unit, end) = match trail.axis {
        Axis::Steps => ("step ", format!("{to:.0}")),
        Axis::Seconds => ("", duration(to)),
    };
    let start = if trail.axis == Axis::Steps { format!("{unit}{from:.0}") } else { duration(from) };
    put(0, &start);
    put(width, &end);
    if let (Some(column), Some(step)) = (epoch, trail.epoch_end) {
        line[column] = '┴';
        let text = format!("{step:.0}: epoch ends");
        // Only where it leaves the labels at both ends alone.
        if column > start.len() + 1 && column + text.len() + end.len() + 1 < width {
            put(column, &text);
        }
    }
    let _ = writeln!(out, "{:>MARGIN$} └{}", "", line.into_iter().collect::<String>());
    let _ = writeln!(out, "{:>MARGIN$}  {}\n", "", labels.into_iter().collect::<String>().trim_end());
}

fn trim_end(out: &mut String) {
    out.truncate(out.trim_end_matches(' ').len());
}

fn numbers(out: &mut String, run: &Run) {
    let assessment = &run.assessment;
    let mut row = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<10}{value}");
    };
    // Growth that has stopped is told in the past tense.
    let growth = if assessment.grows_now { "grows by" } else { "grew by" };
    if let Some(rate) = assessment.growth_per_step {
        let sample = assessment
            .growth_per_sample
            .map_or(String::new(), |rate| format!(" ({} per sample)", bytes(rate)));
        row(growth, format!("{} per step{sample}", bytes(rate)));
    }
    if let Some(rate) = assessment.growth_per_minute {
        row(
            if assessment.growth_per_step.is_some() { "" } else { growth },
            format!("{} per minute", bytes(rate)),
        );
    }
    if let Some(plateau) = &assessment.plateau {
        row(
            if assessment.verdict == Verdict::Steady { "level" } else { "plateau" },
            format!("{}{}", describe_plateau(plateau), resident(run)),
        );
    }
    if let Some(exhaustion) = &assessment.exhaustion {
        row("limit", format!("reached {}", describe_exhaustion(exhaustion)));
    } else if let (Some(limit), Some(plateau)) = (run.analyst.facts().limit, &assessment.plateau) {
        let fits = if plateau.bytes <= limit { "it fits" } else { "it does not fit" };
        row("limit", format!("{}: {fits}", bytes(limit as f64)));
    }
    if let Some(mechanism) = &assessment.mechanism {
        let place = mechanism.place.map(TreePart::name);
        let parts = [Some(mechanism.memory.name()), place, mechanism.pattern.map(Pattern::name)];
        row("memory", parts.into_iter().flatten().collect::<Vec<_>>().join(", "));
    }
}

/// The resident memory at the end, or before the process ended, where mapped files make it more than what the
/// verdict is about.
fn resident(run: &Run) -> String {
    /// A difference below this part is not worth a word.
    const WORTH_NAMING: f64 = 0.02;
    let before_end = run.assessment.before_end.map(|end| (end.owned as f64, end.resident as f64));
    let at_end = || run.analyst.trail().run.last().map(Bin::mean).map(|kinds| (kinds.owned, kinds.rss));
    let more = before_end.or_else(at_end).filter(|(owned, resident)| resident - owned > WORTH_NAMING * owned);
    more.map_or(String::new(), |(_, resident)| {
        format!("; {} resident, files it has mapped included", bytes(resident))
    })
}

fn describe_plateau(plateau: &Plateau) -> String {
    let from = plateau.step.map_or(String::new(), |step| format!(" from step {step} on"));
    format!(
        "{} ({} to {}){from}",
        bytes(plateau.bytes as f64),
        bytes(plateau.low as f64),
        bytes(plateau.high as f64)
    )
}

fn describe_exhaustion(exhaustion: &Exhaustion) -> String {
    let between = match (exhaustion.low, exhaustion.high) {
        (Some(low), Some(high)) => format!(" (between {low:.0} and {high:.0})"),
        (Some(low), None) => format!(" (not before {low:.0})"),
        _ => String::new(),
    };
    let when = exhaustion.seconds.map(|seconds| format!("in {}", duration(seconds)));
    match (exhaustion.step, when) {
        (Some(step), Some(when)) => format!("at step {step}{between}, {when}"),
        (Some(step), None) => format!("at step {step}{between}"),
        (None, Some(when)) => when,
        (None, None) => "at an unknown time".to_owned(),
    }
}

fn endings(out: &mut String, run: &Run) {
    if run.assessment.endings.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nHow it may end");
    for ending in &run.assessment.endings {
        let _ = writeln!(
            out,
            "  {:<8}{:>3.0} %  {}",
            ending.verdict.name(),
            ending.probability * 100.0,
            describe_ending(ending, run.analyst.facts().limit)
        );
    }
    if let Some(step) = run.assessment.decidable_at_step {
        let _ = writeln!(out, "  It can be told from step {step} on.");
    }
}

fn describe_ending(ending: &Ending, limit: Option<u64>) -> String {
    let limit = limit.map_or(String::new(), |limit| format!("{} are gone ", bytes(limit as f64)));
    match (&ending.plateau, &ending.exhaustion) {
        (Some(plateau), Some(exhaustion)) => {
            format!("{}; {limit}{}", describe_plateau(plateau), describe_exhaustion(exhaustion))
        }
        (Some(plateau), None) => describe_plateau(plateau),
        (None, Some(exhaustion)) => format!("{limit}{}", describe_exhaustion(exhaustion)),
        (None, None) if ending.verdict == Verdict::Leak => "grows until memory is gone".to_owned(),
        (None, None) => "where it stops cannot be told yet".to_owned(),
    }
}

fn list(out: &mut String, title: &str, sentences: &[Sentence], style: Style) {
    if sentences.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", paint(title, "1", style));
    for sentence in sentences {
        let mut lines = wrap(sentence.as_str(), style.width.clamp(40, 100) - 4).into_iter();
        let _ = writeln!(out, "  - {}", lines.next().unwrap_or_default());
        for line in lines {
            let _ = writeln!(out, "    {line}");
        }
    }
}

/// Breaks a sentence into lines at its spaces.
pub fn wrap(sentence: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in sentence.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
