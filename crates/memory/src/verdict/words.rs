//! The evidence, in sentences whose units cannot be misread.
//!
//! A study and its forecast come in, sentences go out: what was seen, what explains it, what contradicts it.

use super::{
    curve::{Axis, Returning},
    fit::Shape,
    forecast::{SETTLED, settled_place},
    mechanism::Growth,
    study::{LEAST_PLACES, Study},
};
use crate::{Assessment, ByteSize, Verdict};

/// Everything that speaks for the verdict.
pub fn evidence(study: &Study, growth: &Growth, assessment: &Assessment) -> Vec<String> {
    let mut sentences = vec![seen(study)];
    sentences.extend(story(study, assessment));
    sentences.extend(rate(assessment));
    sentences.extend(epoch(study, assessment));
    sentences.extend(explanations(study, assessment.verdict));
    sentences.extend(returning(study));
    sentences.extend(kinds(study, growth, assessment));
    if study.curve.dying > 0 {
        sentences.push(format!(
            "The last {} shows the process ending and was left out.",
            counted(study.curve.dying as u64, "sample")
        ));
    }
    sentences
}

/// `1 sample`, `2 samples`.
pub(super) fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// Bytes as people read them; a fall keeps its sign.
pub(super) fn size(bytes: f64) -> String {
    let text = ByteSize(bytes.abs().round() as u64).to_string();
    if bytes < 0.0 { format!("-{text}") } else { text }
}

/// A place on the axis, in words.
fn place(study: &Study, place: f64) -> String {
    let value = study.curve.axis(place).max(0.0);
    match study.axis {
        Axis::Steps => format!("step {value:.0}"),
        Axis::Seconds => format!("second {value:.0}"),
    }
}

fn seen(study: &Study) -> String {
    let readings = counted(study.series.readings(), "sample");
    let memory = if study.series.bins().iter().any(|bin| bin.mean().anon > 0.0) {
        "anonymous + shared + swapped memory"
    } else {
        "resident memory (the source does not tell its kinds apart)"
    };
    format!(
        "{readings} from {} to {}: {memory} went from {} to {}.",
        place(study, 0.0),
        place(study, 1.0),
        size(study.curve.y[0]),
        size(study.curve.y[study.curve.y.len() - 1]),
    )
}

fn story(study: &Study, assessment: &Assessment) -> Option<String> {
    let curve = &study.curve;
    match assessment.verdict {
        Verdict::Undecided if study.series.distinct_x() < LEAST_PLACES => Some(format!(
            "{} with samples: too few to tell shapes apart, {LEAST_PLACES} are the least.",
            counted(study.series.distinct_x(), if study.axis == Axis::Steps { "step" } else { "moment" })
        )),
        Verdict::Undecided => study.standstill.map(|still| {
            format!(
                "Memory grew by {} while the step stood at {:.0}: a curve over steps cannot tell whether that ends.",
                size(still.grown),
                still.step
            )
        }),
        Verdict::Steady => {
            let (low, high) = assessment.plateau.map(|plateau| (plateau.low, plateau.high))?;
            Some(format!(
                "Nine tenths of the kept memory lie between {} and {}.",
                ByteSize(low),
                ByteSize(high)
            ))
        }
        Verdict::WarmUp | Verdict::Fill => {
            let fit = study.explanation(|outlook| {
                if assessment.verdict == Verdict::Fill { outlook.fill } else { outlook.warm_up }
            });
            let settled = settled_place(fit, SETTLED, study);
            let since = curve.length() * (1.0 - settled);
            let unit = if study.axis == Axis::Steps { "steps" } else { "seconds" };
            Some(format!(
                "It grew until {} and has stayed level for the {since:.0} {unit} since.",
                place(study, settled)
            ))
        }
        Verdict::Leak => {
            let fit = study.explanation(|outlook| outlook.leak);
            let start = match fit.shape {
                Shape::LateLine { knee } => knee,
                _ => 0.0,
            };
            Some(format!("It grows from {} on and does not slow down.", place(study, start)))
        }
    }
}

fn rate(assessment: &Assessment) -> Option<String> {
    let per_minute = assessment.growth_per_minute.map(|rate| format!("{} per minute", size(rate)));
    let per_step = assessment.growth_per_step.map(|rate| match assessment.growth_per_sample {
        Some(sample) => format!("{} per step ({} per sample)", size(rate), size(sample)),
        None => format!("{} per step", size(rate)),
    });
    let rates: Vec<String> = per_step.into_iter().chain(per_minute).collect();
    (!rates.is_empty()).then(|| format!("Rate while growing: +{}.", rates.join(", +")))
}

fn epoch(study: &Study, assessment: &Assessment) -> Option<String> {
    let steps = study.epoch_steps?;
    let end = study.origin + steps;
    let told = match (study.facts.dataset_size, study.facts.samples_per_step) {
        (Some(rows), Some(per_step)) => format!("{rows} rows, {per_step} a step"),
        _ if study.facts.steps_per_epoch.is_some() => format!("{steps:.1} steps each"),
        _ => format!("{steps:.0} steps each, as the samples' epochs tell"),
    };
    let meaning = match assessment.verdict {
        Verdict::Fill => "which is where growth stopped",
        Verdict::Leak if study.curve.span.1 > end => "and growth went on past it",
        Verdict::Undecided if study.curve.span.1 < end => "which has not come yet",
        _ => return None,
    };
    Some(format!("The first epoch ({told}) ends at step {end:.0}, {meaning}."))
}

fn explanations(study: &Study, verdict: Verdict) -> Option<String> {
    if study.series.distinct_x() < LEAST_PLACES {
        return None;
    }
    let named = |at: usize| {
        study
            .weighed
            .get(at)
            .map(|explanation| (describe(&explanation.fit.shape), explanation.probability * 100.0))
    };
    let (best, probability) = named(0)?;
    let next = named(1).filter(|(_, probability)| *probability >= 1.0);
    let besides = next
        .map_or(String::new(), |(other, probability)| format!("; next comes {other} ({probability:.0} %)"));
    let subject = if verdict == Verdict::Undecided { "So far the" } else { "The" };
    Some(format!("{subject} best explanation is {best} ({probability:.0} %){besides}."))
}

fn describe(shape: &Shape) -> String {
    match shape {
        Shape::Level => "a level".to_owned(),
        Shape::Line => "a straight line".to_owned(),
        Shape::Saturating { .. } | Shape::Hyperbola { .. } => {
            "growth that slows down towards a ceiling".to_owned()
        }
        Shape::SaturatingLine { .. } => "a warm-up on top of a straight line".to_owned(),
        Shape::Logarithm { .. } => "growth that slows down without a ceiling".to_owned(),
        Shape::Hinge { at_epoch: true, .. } => {
            "a constant rate that stops at the end of the epoch".to_owned()
        }
        Shape::Hinge { .. } => "a constant rate that stops".to_owned(),
        Shape::TwoRates { at_epoch: true, .. } => {
            "one rate up to the end of the epoch and another after it".to_owned()
        }
        Shape::TwoRates { .. } => "one rate, then another".to_owned(),
        Shape::Dealt { .. } => "a rate that falls from epoch to epoch".to_owned(),
        Shape::LateLine { .. } => "a level, then a straight line".to_owned(),
        Shape::Jump { .. } => "one jump between two levels".to_owned(),
        Shape::Stairs(stairs) => format!("{} jumps between levels", stairs.jumps().count()),
    }
}

fn returning(study: &Study) -> Option<String> {
    let (kind, times) = study.curve.returning?;
    let height = size(study.curve.peak_height);
    let times = counted(times as u64, "time");
    Some(match kind {
        Returning::Spikes => format!("Peaks of up to {height} came {times} and returned to the base line."),
        Returning::Sawtooth => format!("Memory rose by up to {height} and was given back {times}."),
    })
}

fn kinds(study: &Study, growth: &Growth, assessment: &Assessment) -> Vec<String> {
    let mut sentences = Vec::new();
    if assessment.verdict != Verdict::Steady && growth.split {
        let parts = [
            ("anonymous", growth.kinds.anon),
            ("shared", growth.kinds.shmem),
            ("swapped", growth.kinds.swap),
            ("file-backed", growth.kinds.file),
        ];
        let named: Vec<String> = parts
            .into_iter()
            .filter(|(_, bytes)| bytes.abs() > study.material() / 2.0)
            .map(|(kind, bytes)| format!("{kind} {}{}", if bytes > 0.0 { "+" } else { "" }, size(bytes)))
            .collect();
        if !named.is_empty() {
            sentences.push(format!("By kind, over the run: {}.", named.join(", ")));
        }
    }
    if let Some(file) = growth.file_growth(study) {
        sentences.push(format!(
            "File-backed memory grew by {}: mapped files or page cache, which the kernel drops when memory is short. That is no leak.",
            size(file)
        ));
    }
    if growth.tree && assessment.verdict != Verdict::Steady {
        let (parent, workers) = (growth.kinds.main_rss, growth.kinds.rss - growth.kinds.main_rss);
        sentences.push(format!("The parent grew by {}, its children by {}.", size(parent), size(workers)));
    }
    sentences
}
