//! The evidence, in sentences whose units cannot be misread: what was seen, what explains it, what
//! contradicts it.

use super::{
    curve::{Axis, Returning},
    fit::{Fit, Shape},
    forecast::{SETTLED, jump_place, settled_place},
    mechanism::Growth,
    outlook::outlook,
    study::{LEAST_PLACES, Study},
};
use crate::{Assessment, ByteSize, Verdict, units::counted};

/// Everything that speaks for the verdict.
pub fn evidence(study: &Study, growth: &Growth, assessment: &Assessment) -> Vec<String> {
    let mut sentences = vec![seen(study)];
    sentences.extend(story(study, assessment));
    sentences.extend(rate(assessment));
    sentences.extend(epoch(study, assessment));
    sentences.extend(explanations(study, assessment.verdict));
    sentences.extend(returning(study));
    sentences.extend(kinds(study, growth, assessment));
    sentences.extend(dying(study.curve.dying));
    sentences
}

fn dying(samples: usize) -> Option<String> {
    match samples {
        0 => None,
        1 => Some("The last sample shows the process ending and was left out.".to_owned()),
        _ => Some(format!("The last {samples} samples show the process ending and were left out.")),
    }
}

/// Bytes as people read them, without a sign.
pub(super) fn size(bytes: f64) -> String {
    ByteSize(bytes.abs().round() as u64).to_string()
}

/// `grew by 3 MB`, `fell by 3 MB`, or that it did neither.
fn moved(bytes: f64) -> String {
    match bytes.round() {
        0.0 => "stayed as it was".to_owned(),
        grown if grown > 0.0 => format!("grew by {}", size(grown)),
        fallen => format!("fell by {}", size(-fallen)),
    }
}

/// `a`, `a and b`, `a, b and c`.
fn listed(things: &[String]) -> String {
    match things {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// A place on the axis, in words.
fn place(study: &Study, place: f64) -> String {
    on_axis(study, study.curve.axis(place))
}

/// An axis value, in words.
fn on_axis(study: &Study, value: f64) -> String {
    let value = value.max(0.0);
    match study.axis {
        Axis::Steps => format!("step {value:.0}"),
        Axis::Seconds => format!("second {value:.0}"),
    }
}

/// What was seen: the resident memory at the end, and how much of it is the process's own, which the verdict
/// is about.
fn seen(study: &Study) -> String {
    let bins = study.series.complete_bins();
    let last = &bins[bins.len() - 1 - study.curve.dying.min(bins.len() - 1)];
    let readings = counted(study.series.readings(), "sample");
    let span = format!("{} to {}", on_axis(study, bins[0].x.start), on_axis(study, last.x.end));
    let from = study.before.map_or(study.curve.y[0], |before| before.from);
    let to = study.curve.y[study.curve.y.len() - 1];
    let end = last.mean();
    if end.anon + end.file + end.shmem + end.swap == 0.0 {
        return format!(
            "{readings} from {span}: resident memory (the source does not tell its kinds apart) went from {} to {}.",
            size(from),
            size(to)
        );
    }
    let swapped =
        if end.swap >= 1e6 { format!(" and {} swapped out", size(end.swap)) } else { String::new() };
    let own = if end.file > 0.0 {
        format!("{} of it the process's own (anonymous + shared + swapped), which", size(end.owned))
    } else {
        "all of it the process's own (anonymous + shared + swapped); it".to_owned()
    };
    format!(
        "{readings} from {span}: at the end {} were resident{swapped}, {own} went from {} to {}.",
        size(end.rss),
        size(from),
        size(to)
    )
}

fn story(study: &Study, assessment: &Assessment) -> Option<String> {
    match assessment.verdict {
        Verdict::Undecided if study.series.distinct_x() < LEAST_PLACES => Some(format!(
            "{} with samples: too few to tell shapes apart, {LEAST_PLACES} are the least.",
            counted(study.series.distinct_x(), if study.axis == Axis::Steps { "step" } else { "moment" })
        )),
        Verdict::Undecided => {
            let open = "; whether growth has ended is not plain yet";
            standing_still(study).or_else(|| before(study, open)).or_else(|| level_now(study, assessment))
        }
        Verdict::Steady => {
            let (low, high) = assessment.plateau.map(|plateau| (plateau.low, plateau.high))?;
            Some(format!(
                "Nine tenths of the kept memory lie between {} and {}{}.",
                ByteSize(low),
                ByteSize(high),
                drift(study)
            ))
        }
        Verdict::WarmUp => Some(settled(study, study.explanation(|outlook| outlook.warm_up))),
        Verdict::Fill => Some(settled(study, study.explanation(|outlook| outlook.fill))),
        Verdict::Leak => before(study, " and goes on growing and does not slow down").or_else(|| {
            let start = match study.explanation(|outlook| outlook.leak).shape {
                Shape::LateLine { knee, .. } => knee,
                _ => 0.0,
            };
            Some(format!("It grows from {} on and does not slow down.", place(study, start)))
        }),
    }
}

fn standing_still(study: &Study) -> Option<String> {
    study.standstill.map(|still| {
        format!(
            "Memory {} while the step stood at {:.0}: a curve over steps cannot tell whether that ends.",
            moved(still.grown),
            still.step
        )
    })
}

/// The growth that had settled before the part that is judged, and what came after.
fn before(study: &Study, since: &str) -> Option<String> {
    let before = study.before?;
    let grown = study.curve.y[study.curve.y.len() - 1] - study.curve.y[0];
    let verb = if before.to > before.from { "rose" } else { "fell" };
    Some(format!(
        "It {verb} from {} to {} by {}, since then it {}{since}.",
        size(before.from),
        size(before.to),
        on_axis(study, before.span.end),
        moved(grown),
    ))
}

/// Growth that has ceased, though not for long enough to say that it stopped.
fn level_now(study: &Study, assessment: &Assessment) -> Option<String> {
    let fit = &study.weighed[0].fit;
    let from = match &fit.shape {
        Shape::Stairs(stairs) => {
            stairs.climbs().last().map_or(0.0, |climb| jump_place(fit, climb.place, study))
        }
        _ => settled_place(fit, SETTLED, study),
    };
    let has_ceased = !assessment.grows_now && fit.rise() > study.material() / 2.0 && from < 1.0;
    has_ceased.then(|| {
        format!(
            "It has hardly grown since {}, which is too short a time to say that growth has ended.",
            place(study, from)
        )
    })
}

/// A drift that shows but does not matter, as the end of a sentence.
fn drift(study: &Study) -> String {
    /// Standard errors from which on a drift shows.
    const SHOWS: f64 = 6.0;
    let rise = study.weighed[0].fit.rise();
    let is_start_up = rise > study.material();
    if is_start_up || rise < (SHOWS * study.situation.error).max(study.curve.noise) {
        return String::new();
    }
    format!("; it drifted up by {}, which is too little to be called growth", size(rise))
}

/// How growth came to its end.
fn settled(study: &Study, fit: &Fit) -> String {
    let unit = if study.axis == Axis::Steps { "step" } else { "second" };
    let since = |at: f64| counted((study.curve.length() * (1.0 - at)).round() as u64, unit);
    let verb = if fit.rise() < 0.0 { "fell" } else { "grew" };
    let Shape::Stairs(stairs) = &fit.shape else {
        let at = settled_place(fit, SETTLED, study);
        let since = since(at);
        return format!("It {verb} until {} and has stayed level for the {since} since.", place(study, at));
    };
    let places: Vec<f64> =
        stairs.climbs().into_iter().map(|climb| jump_place(fit, climb.place, study)).collect();
    let jumps: Vec<String> =
        places.iter().map(|place| format!("{:.0}", study.curve.axis(*place).max(0.0))).collect();
    let since = since(places.last().copied().unwrap_or(0.0));
    let next = stairs.next_climb().filter(|next| *next > 1.0).map_or(String::new(), |next| {
        format!(
            " Each jump took longer to come than the one before; a further one would come near {}.",
            place(study, next)
        )
    });
    format!(
        "It {verb} in {} (at {unit}s {}) and has stayed level for the {since} since.{next}",
        counted(jumps.len() as u64, "jump"),
        listed(&jumps)
    )
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
    // Where each step sees all of the data, there was no epoch to wait for.
    let steps = study.epoch_steps.filter(|steps| *steps > 1.0)?;
    let end = study.first_pass?.end;
    let told = match (study.facts.dataset_size, study.facts.samples_per_step) {
        (Some(rows), Some(per_step)) => format!("{}, {per_step} a step", counted(rows, "row")),
        _ if study.facts.steps_per_epoch.is_some() => format!("{steps:.1} steps each"),
        _ => format!("{steps:.0} steps each, as the samples' epochs tell"),
    };
    let meaning = match assessment.verdict {
        Verdict::Fill => "which is where growth stopped",
        Verdict::Leak if study.curve.span.end > end => "and growth went on past it",
        Verdict::Undecided if study.curve.span.end < end => "which has not come yet",
        _ => return None,
    };
    let is_resumed = study.origin > 0.0;
    let ends = if is_resumed { "The first whole epoch of the resumed run" } else { "The first epoch" };
    Some(format!("{ends} ({told}) ends at step {end:.0}, {meaning}."))
}

/// An explanation in words.
struct Told {
    words: String,
    /// In percent.
    probability: f64,
    /// It means what the verdict says.
    agrees: bool,
}

fn explanations(study: &Study, verdict: Verdict) -> Option<String> {
    if study.series.distinct_x() < LEAST_PLACES {
        return None;
    }
    let told = told(study, verdict);
    let best = told.first()?;
    let besides = |told: Option<&Told>, how: &str| match told {
        Some(Told { words, probability, .. }) if *probability >= 1.0 => {
            format!("; {how} {words} ({probability:.0} %)")
        }
        _ => String::new(),
    };
    let Told { words, probability, .. } = best;
    if verdict == Verdict::Undecided || best.agrees {
        let subject = if verdict == Verdict::Undecided { "So far the" } else { "The" };
        let next = besides(told.get(1), "next comes");
        return Some(format!("{subject} best explanation is {words} ({probability:.0} %){next}."));
    }
    // Several explanations with the same meaning may outweigh one that is likelier than each of them.
    let kind = match verdict {
        Verdict::Steady => "without growth",
        Verdict::WarmUp | Verdict::Fill => "by growth that has ended",
        Verdict::Leak | Verdict::Undecided => "by growth that goes on",
    };
    let together: f64 = told.iter().filter(|told| told.agrees).map(|told| told.probability).sum();
    let first = told.iter().find(|told| told.agrees)?;
    let against = besides(Some(best), "against them stands");
    Some(format!(
        "Explanations {kind} come to {together:.0} % together, first of them {} ({:.0} %){against}.",
        first.words, first.probability
    ))
}

/// All explanations, the likeliest first; shapes that say the same are one.
fn told(study: &Study, verdict: Verdict) -> Vec<Told> {
    /// An explanation agrees with the verdict if at least this part of its meaning does.
    const MEANT: f64 = 0.4;
    let mut all: Vec<Told> = Vec::new();
    for explanation in &study.weighed {
        let words = describe(&explanation.fit, study);
        let probability = explanation.probability * 100.0;
        let meant = outlook(&explanation.fit, &study.curve, &study.situation);
        let agrees = match verdict {
            Verdict::Steady => meant.steady,
            Verdict::WarmUp | Verdict::Fill => meant.warm_up + meant.fill,
            Verdict::Leak => meant.leak,
            Verdict::Undecided => 1.0,
        } >= MEANT;
        match all.iter_mut().find(|told| told.words == words) {
            Some(told) => told.probability += probability,
            None => all.push(Told { words, probability, agrees }),
        }
    }
    all.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    all
}

/// A shape in words, by what it means: growth too small to matter is not called growth.
fn describe(fit: &Fit, study: &Study) -> String {
    let meant = outlook(fit, &study.curve, &study.situation);
    if meant.steady >= 0.5 {
        return calm(fit, study);
    }
    let over = meant.bounded() >= 0.5;
    match &fit.shape {
        Shape::Level { .. } => "a level".to_owned(),
        Shape::Line { .. } if over => "a line that hardly rises".to_owned(),
        Shape::Line { .. } => "a straight line".to_owned(),
        Shape::Saturating { .. } | Shape::Hyperbola { .. } => slowing(fit, "towards a ceiling"),
        Shape::SaturatingLine { .. } if over => slowing(fit, "until hardly any is left"),
        Shape::SaturatingLine { .. } => "a warm-up on top of a straight line".to_owned(),
        Shape::Logarithm { .. } => slowing(fit, "without a ceiling"),
        Shape::Hinge { at_epoch: true, .. } => {
            "a constant rate that stops at the end of the epoch".to_owned()
        }
        Shape::Hinge { .. } => "a constant rate that stops".to_owned(),
        Shape::TwoRates { at_epoch, .. } => {
            let until = if *at_epoch { "up to the end of the epoch" } else { "at first" };
            let then = if over { "hardly any growth" } else { "another" };
            format!("one rate {until} and {then} after it")
        }
        Shape::Dealt { .. } => "a rate that falls from epoch to epoch".to_owned(),
        Shape::LateLine { .. } => "a level, then a straight line".to_owned(),
        Shape::Jump { .. } => "one jump between two levels".to_owned(),
        Shape::Stairs(stairs) => {
            format!("{} between levels", counted(stairs.climbs().len() as u64, "jump"))
        }
    }
}

/// A shape that means no growth, in words.
fn calm(fit: &Fit, study: &Study) -> String {
    let (rise, material) = (fit.rise(), study.material());
    let start_up = rise > material;
    match &fit.shape {
        Shape::Level { .. } => "a level".to_owned(),
        Shape::Line { .. } if rise < 0.0 => "a slow fall".to_owned(),
        Shape::Line { .. } => "a line that hardly rises".to_owned(),
        Shape::LateLine { .. } => "a level that hardly moves at the end".to_owned(),
        Shape::Jump { .. } | Shape::Stairs(_) if start_up => "a level after a jump at the start".to_owned(),
        Shape::Jump { .. } if rise < -material => "a jump down to a level".to_owned(),
        Shape::Jump { .. } => "a level with a jump that is too small to count".to_owned(),
        Shape::Stairs(_) if rise < -material => "jumps that lead down to a level".to_owned(),
        Shape::Stairs(stairs) => {
            let jumps = counted(stairs.climbs().len() as u64, "jump");
            format!("a level with {jumps} that come to no growth")
        }
        _ if rise < -material => "a fall to a level".to_owned(),
        _ if start_up => "a level after growth at the start".to_owned(),
        _ => "a level that hardly moves".to_owned(),
    }
}

/// Growth, or a fall, that slows down.
fn slowing(fit: &Fit, how: &str) -> String {
    if fit.rise() < 0.0 {
        "a fall that slows down".to_owned()
    } else {
        format!("growth that slows down {how}")
    }
}

fn returning(study: &Study) -> Option<String> {
    let height = size(study.curve.peak_height);
    let often = |times: usize| counted(times as u64, "time");
    Some(match study.curve.returning? {
        Returning::Spikes { times } => {
            format!("Peaks of up to {height} came {} and returned to the base line.", often(times))
        }
        Returning::Sawtooth { times } => {
            format!("Memory rose by up to {height} and was given back {}.", often(times))
        }
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
            .map(|(kind, bytes)| {
                format!("{kind} {}{}", if bytes > 0.0 { "+" } else { "-" }, size(bytes.abs()))
            })
            .collect();
        if !named.is_empty() {
            sentences.push(format!("By kind, over the run: {}.", named.join(", ")));
        }
    }
    if let Some(file) = growth.file_growth(study) {
        sentences.push(format!(
            "File-backed memory {}: mapped files or page cache, which the kernel drops when memory is short. That is no leak.",
            moved(file)
        ));
    }
    if growth.tree && assessment.verdict != Verdict::Steady {
        let (parent, workers) = (growth.kinds.main_rss, growth.kinds.rss - growth.kinds.main_rss);
        sentences.push(format!("The parent {}, its children {}.", moved(parent), moved(workers)));
    }
    sentences
}
