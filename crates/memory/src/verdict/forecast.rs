//! Rates, plateaus and the moment at which the limit is reached.
//!
//! All figures are in bytes, steps and seconds, each with the interval that the evidence allows.

use super::{
    curve::{Axis, median, quantile},
    fit::{Fit, Shape},
    series::Span,
    study::{LEAST_PLACES, Study},
};
use crate::{Ending, Exhaustion, Plateau, Verdict};

/// Rows differ: a rate is not known better than this, however smooth the curve.
const LEAST_UNCERTAINTY: f64 = 0.03;

/// Part of the growth after which it is called settled.
pub(super) const SETTLED: f64 = 0.95;

/// Growth per unit of the axis while growing, in bytes; `None` where nothing grows at a rate, as after jumps
/// that have ceased.
pub fn rate(study: &Study, verdict: Verdict) -> Option<f64> {
    let jumped = matches!(growing(study).shape, Shape::Jump { .. } | Shape::Stairs(_));
    let has_ceased = verdict == Verdict::Undecided && jumped && !grows_now(study, verdict);
    pace(study, verdict).filter(|_| !has_ceased)
}

/// Whether memory was still growing at the end of the curve. Undecided growth may have stopped; there the
/// likeliest explanation decides.
pub fn grows_now(study: &Study, verdict: Verdict) -> bool {
    /// A rate above this part of the one that is told.
    const STILL: f64 = 0.25;
    /// The part of the curve that is its end.
    const END: f64 = 0.2;
    /// Fewer jumps are no growth that goes on.
    const REGULAR: usize = 3;
    match verdict {
        Verdict::Leak => return true,
        Verdict::Steady | Verdict::WarmUp | Verdict::Fill => return false,
        Verdict::Undecided => {}
    }
    let fit = &study.weighed[0].fit;
    match &fit.shape {
        Shape::Level { .. } | Shape::Jump { .. } => false,
        Shape::Stairs(stairs) => {
            let places: Vec<f64> = stairs
                .climbs()
                .into_iter()
                .filter(|climb| climb.height > 0.0)
                .map(|climb| climb.place)
                .collect();
            let longest = places.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
            places.len() >= REGULAR && places.last().is_some_and(|last| 1.0 - last < longest)
        }
        Shape::Hinge { knee, .. } => 1.0 - knee < 2.0 * study.situation.spacing,
        _ => pace(study, verdict)
            .is_some_and(|rate| fit.at(1.0) - fit.at(1.0 - END) > STILL * END * rate * study.curve.length()),
    }
}

/// The explanation of growth that may still be going on.
fn growing<'a>(study: &'a Study) -> &'a Fit {
    study.explanation(|outlook| outlook.filling + outlook.warming)
}

/// Growth per unit of the axis, on average where it comes in jumps.
fn pace(study: &Study, verdict: Verdict) -> Option<f64> {
    let per_run = match verdict {
        Verdict::Steady => return None,
        // What grows while the step stands still has no rate per step.
        Verdict::Undecided if study.standstill.is_some() => return None,
        Verdict::Leak => ending_rate(study.explanation(|outlook| outlook.leak)),
        Verdict::Fill => {
            let fit = study.explanation(|outlook| outlook.fill);
            let knee = settled_place(fit, SETTLED, study);
            (level_after(study, knee) - fit.at(study.situation.origin)) / (knee - study.situation.origin)
        }
        Verdict::WarmUp => {
            let fit = study.explanation(|outlook| outlook.warm_up);
            if matches!(fit.shape, Shape::Jump { .. } | Shape::Stairs(_)) {
                return None;
            }
            let settled = settled_place(fit, SETTLED, study);
            (fit.at(settled) - fit.at(0.0)) / settled
        }
        Verdict::Undecided => ending_rate(growing(study)),
    };
    let rate = per_run / study.curve.length();
    (rate.is_finite() && rate * study.curve.length() > study.material() / 2.0).then_some(rate)
}

/// The level at which memory stays, or will.
pub fn plateau(study: &Study, verdict: Verdict) -> Option<Plateau> {
    match verdict {
        Verdict::Steady => Some(plateau_of(study.curve.level, spread(study, 0.0), None)),
        Verdict::Fill => {
            let settled = settled_place(study.explanation(|outlook| outlook.fill), SETTLED, study);
            let level = level_after(study, settled);
            Some(plateau_of(level, spread(study, settled), step_at(study, settled)))
        }
        Verdict::WarmUp => {
            let fit = study.explanation(|outlook| outlook.warm_up);
            let settled = settled_place(fit, SETTLED, study);
            let ceiling = ceiling(fit).unwrap_or_else(|| level_after(study, settled));
            Some(plateau_of(ceiling, spread(study, settled), step_at(study, settled)))
        }
        Verdict::Leak | Verdict::Undecided => None,
    }
}

/// When growth at the present rate reaches the limit.
pub fn exhaustion(study: &Study, rate: f64) -> Option<Exhaustion> {
    let limit = study.facts.limit? as f64;
    let bins = study.series.complete_bins();
    let last = &bins[bins.len() - 1 - study.curve.dying.min(bins.len() - 1)];
    let now = last.x.end;
    let missing = (limit - last.low.max(study.curve.y[study.curve.y.len() - 1])).max(0.0);
    let uncertainty = rate_uncertainty(study, rate);
    let at = |rate: f64| now + missing / rate;
    let (soonest, latest) = (at(rate + uncertainty), (rate > uncertainty).then(|| at(rate - uncertainty)));
    Some(Exhaustion {
        step: (study.axis == Axis::Steps).then(|| at(rate).ceil() as u64),
        seconds: study.seconds_per_unit().map(|seconds| missing / rate * seconds),
        low: Some(soonest),
        high: latest,
    })
}

/// The endings that remain for an undecided run, the likelier first.
pub fn endings(study: &Study) -> Vec<Ending> {
    let outlook = &study.outlook;
    let candidates = [
        (Verdict::Steady, outlook.steady),
        (Verdict::WarmUp, outlook.warm_up + outlook.warming),
        (Verdict::Fill, outlook.fill + outlook.filling),
        (Verdict::Leak, outlook.leak),
    ];
    /// Endings less likely than this are not worth a line.
    const WORTH_NAMING: f64 = 0.05;
    let mut endings: Vec<Ending> = candidates
        .into_iter()
        .filter(|(_, probability)| *probability >= WORTH_NAMING)
        .map(|(verdict, probability)| ending(study, verdict, probability))
        .collect();
    endings.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    endings
}

fn ending(study: &Study, verdict: Verdict, probability: f64) -> Ending {
    let growing = pace(study, Verdict::Undecided);
    let (plateau, exhaustion) = match verdict {
        Verdict::Leak => (None, growing.and_then(|rate| exhaustion(study, rate))),
        Verdict::Fill if study.outlook.filling > study.outlook.fill => {
            let plateau = filled(study);
            let too_high = |plateau: &Plateau| study.facts.limit.is_some_and(|limit| plateau.bytes > limit);
            let exceeds = plateau.as_ref().is_some_and(too_high);
            (plateau, growing.filter(|_| exceeds).and_then(|rate| exhaustion(study, rate)))
        }
        Verdict::WarmUp if study.outlook.warming > study.outlook.warm_up => (warmed_up(study), None),
        bounded => (self::plateau(study, bounded), None),
    };
    Ending { verdict, probability, plateau, exhaustion }
}

/// Where a fill that is still going on will end.
fn filled(study: &Study) -> Option<Plateau> {
    let end = study.situation.epoch?.end;
    let fit = study.explanation(|outlook| outlook.filling);
    let now = fit.at(1.0);
    let to_come = (ending_rate(fit) * (end - 1.0)).max(0.0);
    let uncertainty = 2.0 * study.situation.scatter
        + rate_uncertainty(study, ending_rate(fit) / study.curve.length())
            * study.curve.length()
            * (end - 1.0).max(0.0);
    let bytes = now + to_come;
    let step = study.first_pass.map(|pass| pass.end.round() as u64);
    let spread = Spread { low: (bytes - uncertainty).max(now), high: bytes + uncertainty };
    Some(plateau_of(bytes, spread, step))
}

/// Where a warm-up that is still going on will end.
fn warmed_up(study: &Study) -> Option<Plateau> {
    let fit = study.explanation(|outlook| outlook.warming);
    let now = fit.at(1.0);
    let ceiling = ceiling(fit).filter(|ceiling| *ceiling >= now)?;
    // The ceiling of a curve that still rises is known to about half of what is still to come.
    let uncertainty = 0.5 * (ceiling - now) + 2.0 * study.situation.scatter;
    let spread = Spread { low: (ceiling - uncertainty).max(now), high: ceiling + uncertainty };
    Some(plateau_of(ceiling, spread, None))
}

/// The step from which an undecided run can be decided.
pub fn decidable_at_step(study: &Study) -> Option<u64> {
    let Span { start: first, end: last } = study.curve.span;
    let step = match study.first_pass {
        _ if study.axis == Axis::Seconds => return None,
        Some(pass) if study.outlook.filling > 0.0 || last < pass.end => pass.decidable,
        // A line that may be the fill of a dataset of unknown size: only the size decides it.
        None if study.outlook.filling > study.outlook.warming => return None,
        // A change of rate shows once it has lasted for half of what was seen.
        _ => last + (last - first) / 2.0,
    };
    let places = study.series.distinct_x();
    let gap = (last - first) / (places.max(2) - 1) as f64;
    // The last of the places that are needed may follow at once on the one before it.
    let enough = last + gap * LEAST_PLACES.saturating_sub(places + 1) as f64 + 1.0;
    Some(step.max(enough).round() as u64)
}

/// Bytes per run at the end of the curve.
fn ending_rate(fit: &Fit) -> f64 {
    match fit.shape {
        Shape::SaturatingLine { rate, .. } if rate > 0.0 => rate,
        Shape::TwoRates { later_rate, .. } if later_rate > 0.0 => later_rate,
        Shape::LateLine { rate, .. } | Shape::Hinge { rate, .. } => rate,
        Shape::Stairs(_) | Shape::Jump { .. } => fit.rise(),
        // The last tenth of the curve.
        _ => (fit.at(1.0) - fit.at(0.9)) / 0.1,
    }
}

/// The ceiling of a shape that has one.
fn ceiling(fit: &Fit) -> Option<f64> {
    match fit.shape {
        Shape::Saturating { start, rise, .. } | Shape::Hyperbola { start, rise, .. } => Some(start + rise),
        _ => None,
    }
}

/// Place from which on the curve has (nearly) reached its level.
pub(super) fn settled_place(fit: &Fit, part: f64, study: &Study) -> f64 {
    match &fit.shape {
        Shape::Hinge { knee, .. } | Shape::TwoRates { knee, .. } => {
            match study.situation.epoch.map(|epoch| epoch.end) {
                // Where the curve agrees with the end of the epoch, that is the knee.
                Some(end) if study.outlook.fill >= study.outlook.warm_up && end < 1.0 => end,
                _ => *knee,
            }
        }
        Shape::Jump { at, .. } => jump_place(fit, *at, study),
        Shape::Stairs(stairs) => jump_place(fit, stairs.level_from(study.material()), study),
        _ => {
            let reached = |place: f64| fit.at(place) - fit.at(0.0) >= part * fit.rise();
            (1..=100).map(|i| f64::from(i) / 100.0).find(|place| reached(*place)).unwrap_or(1.0)
        }
    }
}

/// Where most of the growth is done, so that what came after it can be studied by itself.
///
/// Small jumps after large ones belong to what came after: a staircase explains a slow slope by many of them.
pub(super) fn large_growth_end(fit: &Fit, study: &Study) -> f64 {
    /// The part of the growth that must be done.
    const MOST: f64 = 0.85;
    let settled = settled_place(fit, MOST, study);
    match &fit.shape {
        Shape::Stairs(stairs) => stairs.last_large_climb().map_or(settled, |end| end.min(settled)),
        Shape::Hinge { knee, .. } | Shape::TwoRates { knee, .. } => settled.max(*knee),
        _ => settled,
    }
}

/// The place of the first reading after a jump: points are medians of several readings, so a fit knows it
/// less well.
pub(super) fn jump_place(fit: &Fit, at: f64, study: &Study) -> f64 {
    let reach = 2.0 * study.situation.spacing;
    let (before, after) = (fit.at(at - reach / 4.0), fit.at(at + reach / 4.0));
    let past = |low: f64| (low - before).abs() > (low - after).abs();
    let bins = study.series.complete_bins();
    let places = bins.iter().map(|bin| (study.curve.place(bin.x.start), bin.low));
    places
        .filter(|(place, _)| (place - at).abs() < reach)
        .find(|(_, low)| past(*low))
        .map_or(at, |(place, _)| place)
}

/// Median of the kept memory from a place on.
fn level_after(study: &Study, place: f64) -> f64 {
    median(after(study, place))
}

/// The interval that a level lies in, in bytes.
struct Spread {
    low: f64,
    high: f64,
}

/// Where nine tenths of the kept memory lie from a place on.
fn spread(study: &Study, place: f64) -> Spread {
    let mut values = after(study, place);
    Spread { low: quantile(&mut values, 0.05), high: quantile(&mut values, 0.95) }
}

fn after(study: &Study, place: f64) -> Vec<f64> {
    let curve = &study.curve;
    // At least the last few points: a level is not known from one.
    let start = curve.x.partition_point(|x| *x < place).min(curve.x.len().saturating_sub(3));
    curve.y[start..].to_vec()
}

fn step_at(study: &Study, place: f64) -> Option<u64> {
    (study.axis == Axis::Steps).then(|| study.curve.axis(place).max(0.0).round() as u64)
}

/// A level within its spread, which reaches at least as far as the level itself.
fn plateau_of(bytes: f64, spread: Spread, step: Option<u64>) -> Plateau {
    let whole = |bytes: f64| bytes.max(0.0).round() as u64;
    let (low, high) = (spread.low.min(bytes), spread.high.max(bytes));
    Plateau { bytes: whole(bytes), low: whole(low), high: whole(high), step }
}

/// Two standard errors of a rate per unit of the axis, but at least as much as rows differ.
fn rate_uncertainty(study: &Study, rate: f64) -> f64 {
    let points = study.curve.x.len() as f64;
    let standard_error = study.situation.scatter * (12.0 / points).sqrt() / study.curve.length();
    (2.0 * standard_error).max(LEAST_UNCERTAINTY * rate.abs())
}
