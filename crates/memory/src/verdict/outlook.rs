//! What an explanation means for the ending of a run.
//!
//! [`outlook`] gives the probabilities of the endings if a fit is right. Part of it may stay open: a line
//! inside the first epoch is a fill or a leak, and nothing in it says which.

use super::{
    curve::{Curve, Returning},
    fit::{Epoch, Fit, Shape},
    stairs::Stairs,
};

/// An amount of movement: a part of the level or bytes, whichever is more.
#[derive(Debug, Clone, Copy)]
struct Movement {
    part: f64,
    bytes: f64,
}

/// Below `may_be_growth` a curve only drifts; from `is_growth` on it grows; in between it may be either.
#[derive(Debug, Clone, Copy)]
struct Material {
    may_be_growth: Movement,
    is_growth: Movement,
}

/// Movement over the whole run. Healthy runs drift by less than half a percent, and an allocator's pools move by
/// themselves: in forty steps of a trainer that holds 61 MB they drifted by 3.3 MB in one of three runs, which must
/// not be called a leak.
const MATERIAL: Material = Material {
    may_be_growth: Movement { part: 0.004, bytes: 3.5e6 },
    is_growth: Movement { part: 0.008, bytes: 4e6 },
};
/// Movement after growth that has settled, where a slow leak would hide.
const MATERIAL_AFTER: Material = Material {
    may_be_growth: Movement { part: 0.002, bytes: 2e6 },
    is_growth: Movement { part: 0.004, bytes: 4e6 },
};
/// Movement of fewer standard errors is chance ...
const CHANCE: f64 = 3.5;
/// ... and from this many on it is not.
const NO_CHANCE: f64 = 5.0;
/// From this many standard errors on, growth is no longer excluded.
const DOUBT: f64 = 2.0;
/// Growth has settled when less than this part of it is still to come.
const SETTLED: f64 = 0.10;
/// Time constants after which a warm-up on top of a line is over: 2 % of it are left.
const OVER: f64 = 4.0;
/// A rate below this part of the earlier one has stopped.
const STOPPED: f64 = 0.12;
/// Growth has stopped only if less than this part of it was added since.
const STOPPED_GROWTH: f64 = 0.3;
/// A rate below this part of the earlier one has fallen by more than rows dealt out again to two workers
/// explain.
const KEPT_RATE: f64 = 0.4;
/// Without steps, growth that ends before this part of the run was start-up.
const STARTED: f64 = 0.05;

/// What is known besides the curve, in places of the curve.
#[derive(Debug, Clone, Copy)]
pub struct Situation {
    /// The first epoch, where it is known; its end may lie beyond 1.
    pub epoch: Option<Epoch>,
    /// Where rows began to be seen; 0 or a little less.
    pub origin: f64,
    /// Where every row was seen once: the end of the first epoch, or later in a run that was resumed.
    pub all_seen: Option<f64>,
    /// Place from which on a fill and a leak differ.
    pub decidable: Option<f64>,
    /// Probability that growth at a constant rate since the start is still a fill, where no epoch is known.
    pub unknown_fill: f64,
    /// Distance between points, as a place.
    pub spacing: f64,
    /// Standard deviation of the points around the best explanation.
    pub scatter: f64,
    /// Standard error of a line's rise over the curve, for as many independent points as the curve is worth.
    pub error: f64,
    /// The part of the run that the curve covers; less than 1 after growth that has settled.
    pub share: f64,
    /// Bytes of growth that had settled before the curve begins.
    pub risen: f64,
    /// Whether the curve's range hides more than its noise does; then the part after the growth is studied by
    /// itself.
    pub forgiving: bool,
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
/// Jumps that come ever more rarely, the last one recently: the next one would lie beyond the recording.
const RARER: Outlook = Outlook { steady: 0.0, warm_up: 0.8, warming: 0.1, leak: 0.1, ..STEADY };
/// Growth that slows down as caches do whose rows are dealt out again in each epoch.
const DEALT: Outlook = Outlook { steady: 0.0, warming: 0.7, leak: 0.3, ..STEADY };

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

    /// What `self` and `other` mean together, if `other` is right with the given probability.
    fn or(&self, other: &Self, probability: f64) -> Self {
        let mut both = Self { steady: 0.0, ..STEADY };
        both.add(self, 1.0 - probability);
        both.add(other, probability);
        both
    }

    /// What becomes of growth that has ended if `later` is the outlook of what came after it.
    pub fn followed_by(&self, later: &Self) -> Self {
        let (ended, still) = (self.bounded(), later.bounded());
        Self {
            steady: self.steady * still,
            warm_up: self.warm_up * still,
            fill: self.fill * still,
            leak: self.leak + ended * later.leak,
            filling: self.filling + ended * later.filling,
            warming: self.warming + ended * later.warming,
        }
    }

    /// Probability that growth has ended, or never was.
    pub fn bounded(&self) -> f64 {
        self.steady + self.warm_up + self.fill
    }
}

/// What `fit` means for the ending.
pub fn outlook(fit: &Fit, curve: &Curve, situation: &Situation) -> Outlook {
    let Thresholds { slight, material } = thresholds(curve, 1.0, situation);
    let real = |rise: f64, share: f64| real(rise, share, curve, situation);
    let meant = match fit.shape {
        Shape::Level { .. } => STEADY,
        Shape::Line { .. } => going_on(curve, situation),
        Shape::Saturating { rise, tau, .. } => saturating(tau, rise, slight, situation),
        Shape::SaturatingLine { rise, tau, rate, .. } => {
            /// The line must have been alone for this part of the curve ...
            const ALONE: f64 = 0.4;
            /// ... unless the warm-up gave less than this part of what the line gave: no tail of it grows like that.
            const BESIDE: f64 = 0.05;
            let over = OVER * tau;
            let little = rise < BESIDE * rate && keeps_pace(curve, 0.0, situation);
            let slow = rate < STOPPED * (rise + rate);
            let on = if situation.forgiving && slow {
                saturating(tau, rise, slight, situation)
            } else if rise < 0.0 && fit.rise() < material {
                WARM_UP_OR_LEAK
            } else if rise < 0.0 {
                endless(situation, tau, 1.0)
            } else if situation.share < 1.0 && slow {
                // The last of a warm-up bends too little to be told from a line.
                WARM_UP_OR_LEAK
            } else if little {
                endless(situation, situation.origin, 1.0)
            } else if 1.0 - over > ALONE && keeps_pace(curve, over, situation) {
                endless(situation, over, 1.0 - over)
            } else {
                WARM_UP_OR_LEAK
            };
            saturating(tau, rise, slight, situation).or(&on, real(rate, 1.0))
        }
        Shape::Hyperbola { rise, tau, .. } => {
            let to_come = tau / (1.0 + tau);
            // Its last part looks like a slow leak, and a slow leak like it.
            let open = situation.share < 1.0 && rise * to_come >= slight;
            if open { WARM_UP_OR_LEAK } else { ceiling_ahead(to_come, rise, slight, situation) }
        }
        Shape::Logarithm { scale, tau, .. } => {
            let end_rate = scale / (1.0 + tau);
            if end_rate < SETTLED * fit.rise() { WARM_UP } else { WARM_UP_OR_LEAK }
        }
        Shape::Hinge { knee, rate, .. } => stopped_at(knee, rate, curve, situation),
        Shape::TwoRates { knee, rate, later_rate, .. } => {
            let (before, after) = (rate * knee, later_rate * (1.0 - knee));
            let on = if situation.forgiving && later_rate < STOPPED * rate && after < STOPPED_GROWTH * before
            {
                stopped_at(knee, rate, curve, situation)
            } else if before < -slight && fit.rise() < material {
                // It has only come back to where it was.
                WARM_UP_OR_LEAK
            } else if before < slight {
                late(knee, situation)
            } else {
                slowed(knee, later_rate / rate, curve, situation)
            };
            // At this rate growth has not stopped, however short the time since.
            let goes_on = if later_rate > KEPT_RATE * rate { 1.0 } else { real(after, 1.0 - knee) };
            stopped_at(knee, rate, curve, situation).or(&on, goes_on)
        }
        Shape::Dealt { first, epoch, kept, .. } => {
            let to_come = kept.powf(epoch.passed(1.0));
            if to_come < SETTLED || first * to_come / (1.0 - kept) < slight { WARM_UP } else { DEALT }
        }
        Shape::LateLine { knee, .. } => late(knee, situation),
        Shape::Jump { at, .. } => jumped(at, situation),
        Shape::Stairs(ref stairs) => climbing(stairs, slight, situation),
    };
    let end = end_rise(&fit.shape);
    let whole = if let Shape::LateLine { knee, .. } = fit.shape { 1.0 - knee } else { 1.0 };
    STEADY.or(&meant, real(fit.rise(), whole).max(real(end.rise, end.share)))
}

/// Growth over the curve that would matter, if it covers this part of the run.
pub(super) fn material(curve: &Curve, share: f64) -> f64 {
    movement(curve, limits(share).is_growth)
}

/// What counts as growth on a curve that covers this part of the run.
fn limits(share: f64) -> Material {
    if share < 1.0 { MATERIAL_AFTER } else { MATERIAL }
}

/// Bytes of growth over a part of a curve.
struct Thresholds {
    /// Growth that may matter.
    slight: f64,
    /// Growth that does.
    material: f64,
}

fn thresholds(curve: &Curve, share: f64, situation: &Situation) -> Thresholds {
    let limits = limits(situation.share);
    // A short part has fewer points.
    let error = situation.error / share.max(situation.spacing).sqrt();
    Thresholds {
        slight: movement(curve, limits.may_be_growth).max(CHANCE * error),
        material: movement(curve, limits.is_growth).max(NO_CHANCE * error),
    }
}

/// Bytes of an amount of movement on this curve; peaks make its floor uncertain.
fn movement(curve: &Curve, Movement { part, bytes }: Movement) -> f64 {
    /// Where the bottom of a tooth is seen depends on when one looks: the floor moves by this part of its
    /// height.
    const OF_TEETH: f64 = 0.25;
    /// The floor beside a spike is plain to see.
    const OF_SPIKES: f64 = 0.05;
    let of_peaks = match curve.returning {
        Some(Returning::Sawtooth { .. }) => OF_TEETH,
        _ => OF_SPIKES,
    };
    (part * curve.level).max(bytes).max(of_peaks * curve.peak_height)
}

/// How likely a rise over a part of the curve is growth, and not the drift of a healthy run or chance.
fn real(rise: f64, share: f64, curve: &Curve, situation: &Situation) -> f64 {
    let Thresholds { material, .. } = thresholds(curve, share, situation);
    let error = situation.error / share.max(situation.spacing).sqrt();
    let slight = movement(curve, limits(situation.share).may_be_growth).max(DOUBT * error);
    ((rise - slight) / (material - slight).max(1.0)).clamp(0.0, 1.0)
}

/// A straight line to the end.
fn going_on(curve: &Curve, situation: &Situation) -> Outlook {
    if situation.share < 1.0 && !keeps_pace(curve, 0.0, situation) {
        return WARM_UP_OR_LEAK;
    }
    endless(situation, situation.origin, 1.0)
}

/// Growth that goes on since `knee`, at `part` of the rate before.
fn slowed(knee: f64, part: f64, curve: &Curve, situation: &Situation) -> Outlook {
    /// A rate above this part of the earlier one is the same.
    const SAME: f64 = 0.93;
    if part > SAME {
        return endless(situation, situation.origin, 1.0);
    }
    // Caches in workers that get other rows in each epoch grow more slowly from epoch to epoch; until the
    // epoch after next they look the same.
    let keeps_on = slows_no_more(knee, part, curve, situation).unwrap_or(part < KEPT_RATE);
    if keeps_on && keeps_pace(curve, knee, situation) {
        endless(situation, knee, 1.0 - knee)
    } else {
        WARM_UP_OR_LEAK
    }
}

/// Whether growth that slowed down to `part` of its rate at `knee` kept that rate in the epoch after the
/// next; `None` until enough of it was seen. Where workers get other rows in each epoch, it slows down by
/// about the same part once more.
fn slows_no_more(knee: f64, part: f64, curve: &Curve, situation: &Situation) -> Option<bool> {
    /// Epochs of which the later rate is read.
    const SEEN: f64 = 0.5;
    let epoch = situation.epoch?;
    let next = knee + epoch.end - epoch.start;
    if epoch.passed(1.0) - epoch.passed(next) < SEEN {
        return None;
    }
    let at = |place: f64| curve.x.partition_point(|x| *x < place);
    let earlier = rate(curve, at(knee)..at(next), situation);
    let later = rate(curve, at(next)..curve.x.len(), situation);
    Some(later.bytes - later.error > (3.0 + part) / 4.0 * earlier.bytes)
}

/// A rate, per length of the curve.
struct Rate {
    bytes: f64,
    /// Standard error of the bytes.
    error: f64,
}

/// The rate of a stretch of the curve.
fn rate(curve: &Curve, stretch: std::ops::Range<usize>, situation: &Situation) -> Rate {
    let (x, y) = (&curve.x[stretch.clone()], &curve.y[stretch]);
    // Points that resemble their neighbours count for fewer.
    let scatter = situation.error * (curve.x.len() as f64 / 12.0).sqrt();
    Rate { bytes: slope(x, y), error: scatter / spread(x).max(f64::MIN_POSITIVE).sqrt() }
}

/// Whether the curve rises above its explanation from a place on.
pub(super) fn strays(fit: &Fit, curve: &Curve, from: f64) -> bool {
    /// Points that a line is read from.
    const LEAST: usize = 8;
    let start = curve.x.partition_point(|x| *x < from);
    let points = curve.x.len() - start;
    if points < LEAST {
        return false;
    }
    let x = &curve.x[start..];
    let off: Vec<f64> = x.iter().zip(&curve.y[start..]).map(|(x, y)| y - fit.at(*x)).collect();
    let slope = slope(x, &off);
    let (mean_x, mean_off) = (mean(x), mean(&off));
    let misfit = |(x, off): (&f64, &f64)| (off - mean_off - slope * (x - mean_x)).powi(2);
    let scatter = (x.iter().zip(&off).map(misfit).sum::<f64>() / points as f64).sqrt();
    let rise = slope * (x[points - 1] - x[0]);
    let chance = DOUBT * scatter * (12.0 / points as f64).sqrt();
    rise > movement(curve, MATERIAL_AFTER.may_be_growth).max(chance)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Slope of the line through some points.
fn slope(x: &[f64], y: &[f64]) -> f64 {
    let (mean_x, mean_y) = (mean(x), mean(y));
    let together: f64 = x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    together / spread(x).max(f64::MIN_POSITIVE)
}

/// Sum of the squared distances from the mean.
fn spread(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

/// Whether growth that slowed down once keeps its rate since `from`: a leak does, a cache that fills up does
/// not.
fn keeps_pace(curve: &Curve, from: f64, situation: &Situation) -> bool {
    /// The later half must grow at this part of the earlier half's rate ...
    const PACE: f64 = 0.8;
    /// ... which must be known to this part of itself.
    const KNOWN: f64 = 0.5;
    /// Points that a rate is read from.
    const LEAST: usize = 4;
    let start = curve.x.partition_point(|x| *x < from.min(1.0));
    let half = start + (curve.x.len() - start) / 2;
    if half - start < LEAST {
        return false;
    }
    let whole = rate(curve, start..curve.x.len(), situation);
    if whole.bytes < CHANCE * whole.error {
        return false;
    }
    let earlier = rate(curve, start..half, situation).bytes;
    let Rate { bytes: later, error } = rate(curve, half..curve.x.len(), situation);
    error < KNOWN * earlier.max(later) && later + 2.0 * error >= PACE * earlier
}

/// Whether growth has clearly not kept its earlier rate since `knee`.
fn has_stopped(curve: &Curve, knee: f64, before: f64, situation: &Situation) -> bool {
    /// Points that a rate is read from.
    const LEAST: usize = 3;
    let start = curve.x.partition_point(|x| *x < knee);
    if curve.x.len() - start < LEAST {
        return false;
    }
    let since = rate(curve, start..curve.x.len(), situation);
    since.bytes + 2.0 * since.error < KEPT_RATE * before
}

/// Growth at the end of a curve.
struct EndRise {
    /// Bytes.
    rise: f64,
    /// The part of the curve that it took.
    share: f64,
}

/// Growth at the end of a curve, which may be no higher there than at its start.
fn end_rise(shape: &Shape) -> EndRise {
    match *shape {
        Shape::TwoRates { knee, later_rate, .. } => {
            EndRise { rise: later_rate * (1.0 - knee), share: 1.0 - knee }
        }
        Shape::SaturatingLine { rate, .. } => EndRise { rise: rate, share: 1.0 },
        _ => EndRise { rise: 0.0, share: 1.0 },
    }
}

fn saturating(tau: f64, amplitude: f64, slight: f64, situation: &Situation) -> Outlook {
    ceiling_ahead((-1.0 / tau).exp(), amplitude, slight, situation)
}

/// Growth towards a ceiling, of which the given part is still to come.
fn ceiling_ahead(to_come: f64, amplitude: f64, slight: f64, situation: &Situation) -> Outlook {
    /// A curve that has done this part of the way has bent plainly.
    const BENT: f64 = 0.4;
    /// The end of a warm-up is still to come if it is less than this part of the growth before.
    const REST: f64 = 0.1;
    let bytes = amplitude * to_come;
    let last_of_it = to_come < BENT && bytes < REST * situation.risen;
    if to_come < SETTLED || bytes < slight || last_of_it { WARM_UP } else { WARM_UP_OR_LEAK }
}

/// Growth at a constant rate up to `knee`, and none since.
fn stopped_at(knee: f64, rate: f64, curve: &Curve, situation: &Situation) -> Outlook {
    /// Without growth for this part of the time that growth took, it has stopped.
    const REST: f64 = 0.10;
    if rate <= 0.0 || (situation.timed && knee < STARTED) {
        return STEADY;
    }
    if 1.0 - knee < (REST * (knee - situation.origin)).max(2.0 * situation.spacing) {
        // Where readings are far apart, few of them tell what came after the epoch.
        let ends = [situation.epoch.map(|epoch| epoch.end), situation.all_seen];
        let at_end = ends.into_iter().flatten().any(|end| (knee - end).abs() < situation.spacing);
        return if at_end { FILL_OR_LEAK } else { endless(situation, situation.origin, 1.0) };
    }
    if !has_stopped(curve, knee, rate, situation) {
        return WARM_UP_OR_LEAK;
    }
    // It levelled off. Whether rows were the reason can only be said where the epoch is known.
    if ends_with_epoch(knee, 0.0, situation) { FILL } else { WARM_UP }
}

/// Whether growth that was last seen at `knee` ended with the first epoch; it may have gone on `unseen` for a while.
fn ends_with_epoch(knee: f64, unseen: f64, situation: &Situation) -> bool {
    situation.epoch.is_some_and(|Epoch { end, .. }| {
        // Rows per step vary, and so does what a row costs: the knee need not be sharp.
        let tolerance = 0.12 * (end - situation.origin) + 2.0 * situation.spacing;
        (knee - tolerance..=knee + unseen + tolerance).contains(&end)
    })
}

/// Jumps, levels between them.
fn climbing(stairs: &Stairs, material: f64, situation: &Situation) -> Outlook {
    /// Jumps below this part of the highest are ripples.
    const RIPPLE: f64 = 0.25;
    /// Fewer equal jumps than this may be chance.
    const REGULAR: usize = 4;
    /// Points without which a jump may be a peak.
    const SEEN: f64 = 3.5;
    /// With less than this part of the climb in the second half, it is coming to its end.
    const EARLY: f64 = 0.3;
    let highest = stairs.jumps().map(|jump| jump.height).fold(0.0, f64::max);
    let falls = stairs.jumps().any(|jump| jump.height < -RIPPLE * highest);
    let places: Vec<f64> =
        stairs.jumps().filter(|jump| jump.height > RIPPLE * highest).map(|jump| jump.place).collect();
    let gaps: Vec<f64> = places.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let widest = gaps.iter().copied().fold(0.0, f64::max);
    let narrowest = gaps.iter().copied().fold(1.0, f64::min);
    let level_since = 1.0 - stairs.level_from(material.min(highest / 2.0));
    let is_regular = !falls && places.len() >= REGULAR && widest < 2.5 * narrowest;
    if is_regular && level_since < 1.6 * widest {
        return endless(situation, situation.origin, 1.0);
    }
    // Records are broken ever more seldom: a pool that keeps the largest batch climbs early.
    let late: f64 = stairs.jumps().filter(|jump| jump.place > 0.5).map(|jump| jump.height).sum();
    let climbed: f64 = stairs.jumps().map(|jump| jump.height).sum();
    let late_is_small = late < EARLY * climbed;
    if is_regular && ends_with_epoch(1.0 - level_since, widest, situation) {
        // Rows that are kept in pieces of many, such as huge pages.
        FILL
    } else if level_since > 0.3 || level_since > 1.5 * widest || (late_is_small && level_since > 0.1) {
        WARM_UP
    } else if stairs.rarer_climbs().is_some() && level_since > SEEN * situation.spacing {
        RARER
    } else {
        WARM_UP_OR_LEAK
    }
}

/// Growth at a constant rate since `start` that goes on.
fn endless(situation: &Situation, start: f64, shown: f64) -> Outlook {
    /// A rate that changed must have been seen for this part of the run.
    const SHOWN: f64 = 0.2;
    let shown = shown * situation.share;
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
