//! What an explanation means for the ending of a run.
//!
//! A fit and what is known of the run come in; out come the probabilities of the endings if that fit is right.
//! Part of it may stay open: a line inside the first epoch is a fill or a leak, and nothing in it says which.

use super::{
    curve::Curve,
    fit::{Fit, Shape},
    stairs::Stairs,
};

/// Movement below this part of the level, over the whole run, is none: healthy runs drift by this much.
pub(super) const MATERIAL: f64 = 0.008;
/// Nor is movement below this many bytes: an allocator's pools move that much by themselves. In forty steps of a trainer that
/// holds 61 MB they drifted by 3.3 MB in one of three runs, and that was called a leak.
pub(super) const MATERIAL_BYTES: f64 = 4e6;
/// Nor is movement of less than this many standard deviations of the points, however many they are: memory that
/// wanders does as much.
const SCATTER: f64 = 2.5;
/// Growth has settled when less than this part of it is still to come.
const SETTLED: f64 = 0.10;
/// A rate below this part of the earlier one has stopped.
const STOPPED: f64 = 0.12;
/// And if it stopped, what is added since is less than this part of the growth before.
const STOPPED_GROWTH: f64 = 0.3;
/// A rate above this part of the earlier one has gone on.
const KEPT_RATE: f64 = 0.4;
/// Past the end of the epoch by this part of its length, a fill would have stopped visibly.
pub(super) const EPOCH_MARGIN: f64 = 0.10;

/// Without steps, growth that ends before this part of the run was start-up.
const STARTED: f64 = 0.05;

/// What is known besides the curve, in places of the curve.
#[derive(Debug, Clone, Copy)]
pub struct Situation {
    /// End of the first epoch, where it is known; may lie beyond 1.
    pub epoch_end: Option<f64>,
    /// Where rows began to be seen; 0 or a little less.
    pub origin: f64,
    /// Place from which on a fill and a leak differ.
    pub decidable: Option<f64>,
    /// Probability that growth at a constant rate since the start is still a fill, where no epoch is known.
    pub unknown_fill: f64,
    /// Distance between points, as a place.
    pub spacing: f64,
    /// Standard deviation of the points around the best explanation.
    pub scatter: f64,
    /// Whether places are seconds: then nothing but the curve tells where start-up ends.
    pub timed: bool,
}

/// Probabilities of the endings; they sum to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outlook {
    /// No growth.
    pub steady: f64,
    /// Growth that ends by itself.
    pub warm_up: f64,
    /// Growth that ended with the first epoch.
    pub fill: f64,
    /// Growth without end.
    pub leak: f64,
    /// A fill that is still going on.
    pub filling: f64,
    /// A warm-up that is still going on.
    pub warming: f64,
}

const STEADY: Outlook =
    Outlook { steady: 1.0, warm_up: 0.0, fill: 0.0, leak: 0.0, filling: 0.0, warming: 0.0 };
const WARM_UP: Outlook = Outlook { steady: 0.0, warm_up: 1.0, ..STEADY };
const FILL: Outlook = Outlook { steady: 0.0, fill: 1.0, ..STEADY };
const LEAK: Outlook = Outlook { steady: 0.0, leak: 1.0, ..STEADY };
const FILL_OR_LEAK: Outlook = Outlook { steady: 0.0, filling: 0.5, leak: 0.5, ..STEADY };
/// Growth that goes on, and nothing says for how long.
pub(super) const WARM_UP_OR_LEAK: Outlook = Outlook { steady: 0.0, warming: 0.5, leak: 0.5, ..STEADY };

impl Outlook {
    /// Adds `other`, weighted.
    pub fn add(&mut self, other: &Self, weight: f64) {
        self.steady += weight * other.steady;
        self.warm_up += weight * other.warm_up;
        self.fill += weight * other.fill;
        self.leak += weight * other.leak;
        self.filling += weight * other.filling;
        self.warming += weight * other.warming;
    }

    /// Probability that growth has ended, or never was.
    pub fn bounded(&self) -> f64 {
        self.steady + self.warm_up + self.fill
    }
}

/// What `fit` means for the ending.
pub fn outlook(fit: &Fit, curve: &Curve, situation: &Situation) -> Outlook {
    let material = material(curve).max(situation.scatter * SCATTER);
    let [_, b, c] = fit.coefficients;
    if fit.rise() < material && !ends_rising(fit, material) {
        return STEADY;
    }
    match fit.shape {
        Shape::Level => STEADY,
        Shape::Line => endless(situation, situation.origin, 1.0),
        Shape::Saturating { tau } => saturating(tau, b, material),
        Shape::SaturatingLine { tau } => {
            if c < material || c < STOPPED * (b + c) {
                saturating(tau, b, material)
            } else if b < 0.0 {
                endless(situation, tau, 1.0)
            } else if keeps_pace(curve, 3.0 * tau, situation) {
                endless(situation, 3.0 * tau, 1.0)
            } else {
                WARM_UP_OR_LEAK
            }
        }
        Shape::Hyperbola { tau } => {
            let to_come = tau / (1.0 + tau);
            if to_come < SETTLED || b * to_come < material { WARM_UP } else { WARM_UP_OR_LEAK }
        }
        Shape::Logarithm { tau } => {
            let end_rate = b / (1.0 + tau);
            if end_rate < SETTLED * fit.rise() { WARM_UP } else { WARM_UP_OR_LEAK }
        }
        Shape::Hinge { knee, .. } => stopped_at(knee, b, situation),
        Shape::TwoRates { knee, .. } => {
            let (before, after) = (b * knee, c * (1.0 - knee));
            if after < material || (c < STOPPED * b && after < STOPPED_GROWTH * before) {
                stopped_at(knee, b, situation)
            } else if before < material {
                late(knee, situation)
            } else if c > KEPT_RATE * b {
                endless(situation, situation.origin, 1.0)
            } else if keeps_pace(curve, knee, situation) {
                endless(situation, knee, 1.0 - knee)
            } else {
                WARM_UP_OR_LEAK
            }
        }
        Shape::LateLine { knee } => late(knee, situation),
        Shape::Jump { at } => jumped(at, situation),
        Shape::Stairs(ref stairs) => climbing(stairs, material, situation),
    }
}

/// Growth over a whole run that would matter.
pub(super) fn material(curve: &Curve) -> f64 {
    /// Where the bottom of a tooth is seen depends on when one looks: the floor moves by this part of its height.
    const OF_PEAKS: f64 = 0.25;
    (MATERIAL * curve.level).max(MATERIAL_BYTES).max(OF_PEAKS * curve.peak_height)
}

/// Whether growth that slowed down once keeps its rate since `from`: a leak does, a cache that fills up does not.
fn keeps_pace(curve: &Curve, from: f64, situation: &Situation) -> bool {
    /// The later half must grow at this part of the earlier half's rate.
    const PACE: f64 = 0.8;
    /// Points that a rate is read from.
    const LEAST: usize = 4;
    let start = curve.x.partition_point(|x| *x < from.min(1.0));
    let half = start + (curve.x.len() - start) / 2;
    if half - start < LEAST {
        return true;
    }
    let rate = |range: std::ops::Range<usize>| {
        let (x, y) = (&curve.x[range.clone()], &curve.y[range]);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (mean_x, mean_y) = (mean(x), mean(y));
        let spread: f64 = x.iter().map(|x| (x - mean_x).powi(2)).sum();
        let together: f64 = x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
        (together / spread.max(f64::MIN_POSITIVE), situation.scatter / spread.max(f64::MIN_POSITIVE).sqrt())
    };
    let ((earlier, _), (later, error)) = (rate(start..half), rate(half..curve.x.len()));
    later + 2.0 * error >= PACE * earlier
}

/// Whether a curve that is no higher at its end than at its start grows there all the same.
fn ends_rising(fit: &Fit, material: f64) -> bool {
    match fit.shape {
        Shape::TwoRates { knee, .. } => fit.coefficients[2] * (1.0 - knee) > material,
        Shape::SaturatingLine { .. } => fit.coefficients[2] > material,
        _ => false,
    }
}

fn saturating(tau: f64, amplitude: f64, material: f64) -> Outlook {
    let to_come = (-1.0 / tau).exp();
    if to_come < SETTLED || amplitude * to_come < material { WARM_UP } else { WARM_UP_OR_LEAK }
}

/// Growth at a constant rate up to `knee`, and none since.
fn stopped_at(knee: f64, rate: f64, situation: &Situation) -> Outlook {
    /// Without growth for this part of the time that growth took, it has stopped.
    const REST: f64 = 0.10;
    if rate <= 0.0 || (situation.timed && knee < STARTED) {
        return STEADY;
    }
    if 1.0 - knee < (REST * (knee - situation.origin)).max(2.0 * situation.spacing) {
        return endless(situation, situation.origin, 1.0);
    }
    match situation.epoch_end {
        Some(epoch_end) => {
            // Rows per step vary, and so does what a row costs: the knee need not be sharp.
            let tolerance = 0.12 * (epoch_end - situation.origin) + 2.0 * situation.spacing;
            if (knee - epoch_end).abs() <= tolerance { FILL } else { WARM_UP }
        }
        None => Outlook { steady: 0.0, fill: 0.6, warm_up: 0.4, ..STEADY },
    }
}

/// Jumps, levels between them.
fn climbing(stairs: &Stairs, material: f64, situation: &Situation) -> Outlook {
    /// Jumps below this part of the highest are ripples.
    const RIPPLE: f64 = 0.25;
    /// Fewer equal jumps than this may be chance.
    const REGULAR: usize = 4;
    /// With less than this part of the climb in the second half, it is coming to its end.
    const EARLY: f64 = 0.3;
    let highest = stairs.jumps().map(|(_, height)| height).fold(0.0, f64::max);
    let falls = stairs.jumps().any(|(_, height)| height < -RIPPLE * highest);
    let places: Vec<f64> =
        stairs.jumps().filter(|(_, height)| *height > RIPPLE * highest).map(|(place, _)| place).collect();
    let gaps: Vec<f64> = places.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let widest = gaps.iter().copied().fold(0.0, f64::max);
    let narrowest = gaps.iter().copied().fold(1.0, f64::min);
    let level_since = 1.0 - stairs.level_from(material);
    if !falls && places.len() >= REGULAR && widest < 2.5 * narrowest && level_since < 1.6 * widest {
        return endless(situation, situation.origin, 1.0);
    }
    // Records are broken ever more seldom: a pool that keeps the largest batch climbs early.
    let late: f64 = stairs.jumps().filter(|(place, _)| *place > 0.5).map(|(_, height)| height).sum();
    let climbed: f64 = stairs.jumps().map(|(_, height)| height).sum();
    let ever_rarer = gaps.windows(2).all(|pair| pair[1] > 1.3 * pair[0]) || late < EARLY * climbed;
    if level_since > 0.3 || level_since > 1.5 * widest || (ever_rarer && level_since > 0.1) {
        WARM_UP
    } else {
        WARM_UP_OR_LEAK
    }
}

/// Growth at a constant rate since `start` that goes on.
fn endless(situation: &Situation, start: f64, shown: f64) -> Outlook {
    /// A rate that changed must have been seen for this part of the run.
    const SHOWN: f64 = 0.2;
    match situation.decidable {
        Some(decidable) if 1.0 < decidable => FILL_OR_LEAK,
        Some(_) if shown < SHOWN => WARM_UP_OR_LEAK,
        Some(decidable) if start < decidable || 1.0 - start > SHOWN => LEAK,
        Some(_) => WARM_UP_OR_LEAK,
        None if shown < SHOWN => WARM_UP_OR_LEAK,
        None => Outlook {
            steady: 0.0,
            leak: 1.0 - situation.unknown_fill,
            filling: situation.unknown_fill,
            ..STEADY
        },
    }
}

/// Level, then growth from `knee` on.
fn late(knee: f64, situation: &Situation) -> Outlook {
    /// Growth must have been seen for this part of the run; less may be a jump or a peak.
    const SHOWN: f64 = 0.15;
    if 1.0 - knee < SHOWN {
        return WARM_UP_OR_LEAK;
    }
    endless(situation, knee, 1.0 - knee)
}

/// One jump, level before and after.
fn jumped(at: f64, situation: &Situation) -> Outlook {
    /// A jump this close to the end may be a peak that has not returned yet.
    const RECENT: f64 = 0.05;
    /// A level held for this part of the run is one.
    const HELD: f64 = 0.15;
    match 1.0 - at {
        _ if situation.timed && at < STARTED => STEADY,
        held if held < RECENT => STEADY,
        held if held < HELD => WARM_UP_OR_LEAK,
        _ => WARM_UP,
    }
}
