//! One run, studied: curve, explanations, outlook, verdict.
//!
//! A [`Study`] holds everything that forecast and wording need. The verdict is the group of endings that the
//! evidence leaves: bounded, endless, or both, which is undecided.

use super::{
    curve::{Axis, Curve, median},
    fit::{self, Epoch, Fit, Shape},
    forecast::large_growth_end,
    outlook::{self, Outlook, Situation},
    series::{Bin, Series, Span},
    weigh::{self, Weighed, Weighing},
};
use crate::{RunFacts, Verdict};

/// With fewer places than this on the axis nothing is decided: three points make a line, a hinge and a curve
/// alike.
pub(super) const LEAST_PLACES: u64 = 10;
/// Probability from which on growth is called a leak ...
const SURE_OF_LEAK: f64 = 0.8;
/// ... and from which on it is said to be bounded.
const SURE_OF_BOUND: f64 = 0.75;

/// Growth while the step stood still, as in an evaluation that gathers its predictions: to a curve over steps
/// it is a single place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standstill {
    /// The step.
    pub step: f64,
    /// By how much memory rose there.
    pub grown: f64,
}

impl Standstill {
    /// The last step, if a good part of all readings was taken there and memory rose by more than `material`.
    fn at_end(series: &Series, axis: Axis, material: f64) -> Option<Self> {
        /// This part of all readings.
        const LONG: f64 = 0.2;
        /// Parts of which the first and the last are compared.
        const PARTS: usize = 10;
        let bins = series.bins();
        let step = bins.last().filter(|_| axis == Axis::Steps)?.x.end;
        let still = &bins[bins.partition_point(|bin| bin.x.start < step)..];
        let readings: f64 = still.iter().map(|bin| f64::from(bin.count)).sum();
        let part = still.len() / PARTS;
        if part == 0 || readings < LONG * series.readings() as f64 {
            return None;
        }
        let level = |bins: &[Bin]| median(bins.iter().map(|bin| bin.low).collect());
        let grown = level(&still[still.len() - part..]) - level(&still[..part]);
        (grown > material).then_some(Self { step, grown })
    }
}

/// A run, and what is known of it.
#[derive(Clone, Copy)]
struct Run<'a> {
    series: &'a Series,
    axis: Axis,
    facts: &'a RunFacts,
    epoch_steps: Option<f64>,
    /// The axis values of its curve.
    span: Span,
}

/// A run with its explanations.
pub struct Study<'a> {
    /// The run's bins.
    pub series: &'a Series,
    /// What places are counted in.
    pub axis: Axis,
    /// What was told of the run.
    pub facts: &'a RunFacts,
    /// The kept memory.
    pub curve: Curve,
    /// Axis value at which rows began to be seen.
    pub origin: f64,
    /// Steps in an epoch, told or read from the samples.
    pub epoch_steps: Option<f64>,
    /// When all rows were seen, where the epochs are known.
    pub first_pass: Option<FirstPass>,
    /// What is known, as places on the curve.
    pub situation: Situation,
    /// Explanations, the most likely first; never empty.
    pub weighed: Vec<Weighed>,
    /// Growth that they cannot see.
    pub standstill: Option<Standstill>,
    /// What they mean together.
    pub outlook: Outlook,
    /// The verdict.
    pub verdict: Verdict,
    /// The growth that had settled before the part of the run that is studied, where that is not the whole.
    pub before: Option<Settled>,
}

/// Growth that has settled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settled {
    /// Axis values at which it began and ended.
    pub span: Span,
    /// Bytes when it began.
    pub from: f64,
    /// Bytes when it ended.
    pub to: f64,
}

impl<'a> Study<'a> {
    /// Studies a run; `None` when there is no curve to speak of.
    ///
    /// Growth of gigabytes hides megabytes, because misfits that are small against a curve's range are
    /// tolerated. So the part after growth that has settled is studied by itself, and decides whether growth
    /// has ended.
    pub fn of(
        series: &'a Series,
        axis: Axis,
        facts: &'a RunFacts,
        seen_epoch_steps: Option<f64>,
    ) -> Option<Self> {
        /// A warm-up, a fill after it, a leak after that: no run has more parts worth telling apart.
        const PARTS: usize = 4;
        let curve = Curve::new(series.complete_bins(), axis)?;
        let epoch_steps = facts.epoch_steps().or(seen_epoch_steps).filter(|_| axis == Axis::Steps);
        let run = Run { series, axis, facts, epoch_steps, span: curve.span };
        let start = curve.y[0];
        let mut whole = Self::over(&run, curve, 0.0);
        let mut rest = whole.after_growth();
        for _ in 1..PARTS {
            let Some(curve) = rest else { break };
            let risen = curve.y[0] - start;
            let mut later = Self::over(&run, curve, risen);
            rest = later.after_growth();
            let outlook = whole.outlook.followed_by(&later.outlook);
            whole.decide(outlook);
            if whole.verdict == Verdict::Undecided || whole.verdict == Verdict::Leak {
                later.before = Some(whole.until(later.curve.span.start));
                later.decide(outlook);
                return Some(later);
            }
        }
        Some(whole)
    }

    /// Studies a part of a run; memory had `risen` before it.
    fn over(run: &Run<'a>, curve: Curve, risen: f64) -> Self {
        let Run { series, axis, facts, epoch_steps, span } = *run;
        let origin = origin(series, axis);
        let first_pass = epoch_steps.map(|steps| FirstPass::of(series, origin, steps));
        let epoch =
            epoch_steps.map(|steps| Epoch { start: curve.place(origin), end: curve.place(origin + steps) });
        let Weighing { explanations: weighed, effective } =
            weigh::weigh(fit::explanations(&curve, epoch), &curve);
        let scatter = weigh::scatter(&weighed[0].fit, &curve);
        let situation = Situation {
            epoch,
            origin: curve.place(origin),
            all_seen: first_pass.map(|pass| curve.place(pass.end)),
            decidable: first_pass.map(|pass| curve.place(pass.decidable)),
            unknown_fill: unknown_fill(span.length(), axis),
            spacing: 1.0 / (curve.x.len() - 1) as f64,
            scatter,
            error: scatter * (12.0 / effective).sqrt(),
            share: curve.length() / span.length(),
            risen,
            forgiving: weigh::forgives(&curve),
            timed: axis == Axis::Seconds,
        };
        let mut outlook = Outlook::default();
        for explanation in &weighed {
            outlook.add(&outlook::outlook(&explanation.fit, &curve, &situation), explanation.probability);
        }
        let standstill = Standstill::at_end(series, axis, outlook::material(&curve, situation.share));
        let verdict = Verdict::Undecided;
        let mut study = Self {
            series,
            axis,
            facts,
            curve,
            origin,
            epoch_steps,
            first_pass,
            situation,
            weighed,
            standstill,
            outlook,
            verdict,
            before: None,
        };
        study.decide(outlook);
        study
    }

    /// Sets the run's outlook, and the verdict that follows from it.
    fn decide(&mut self, outlook: Outlook) {
        self.standstill = self.standstill.filter(|_| outlook.bounded() >= SURE_OF_BOUND);
        self.outlook = if self.standstill.is_some() { outlook::WARM_UP_OR_LEAK } else { outlook };
        let decidable = self.series.distinct_x() >= LEAST_PLACES;
        self.verdict = if decidable { decide(&self.outlook) } else { Verdict::Undecided };
    }

    /// What came after growth had settled, if it did.
    fn after_growth(&self) -> Option<Curve> {
        let part: fn(&Outlook) -> f64 = match self.verdict {
            Verdict::WarmUp => |outlook| outlook.warm_up,
            Verdict::Fill => |outlook| outlook.fill,
            // By the clock, growth at the very beginning was start-up.
            Verdict::Steady if self.weighed[0].fit.rise() > self.material() => |outlook| outlook.steady,
            _ => return None,
        };
        let fit = self.explanation(part);
        let end = large_growth_end(fit, self);
        /// Standard deviations of the noise that a good explanation stays within.
        const GOOD: f64 = 2.0;
        // Where no misfit is tolerated, an explanation that fits the growth well fits the rest too, or
        // visibly strays from it.
        let hides = self.situation.forgiving
            || self.situation.scatter > GOOD * self.curve.noise
            || matches!(fit.shape, Shape::Stairs(_))
            || outlook::strays(fit, &self.curve, end);
        self.curve.after(end).filter(|_| hides)
    }

    /// What the curve did up to an axis value.
    fn until(&self, end: f64) -> Settled {
        let curve = &self.curve;
        let last = curve.x.partition_point(|x| curve.axis(*x) < end).min(curve.y.len() - 1);
        Settled { span: Span { start: curve.span.start, end }, from: curve.y[0], to: curve.y[last] }
    }

    /// The most likely explanation that means `part` of the outlook; the most likely of all if none does.
    pub fn explanation(&self, part: impl Fn(&Outlook) -> f64) -> &Fit {
        let meant = |fit: &Fit| part(&outlook::outlook(fit, &self.curve, &self.situation)) >= 0.4;
        let found = self.weighed.iter().find(|explanation| meant(&explanation.fit));
        &found.unwrap_or(&self.weighed[0]).fit
    }

    /// Seconds per unit of the axis, where the clock tells.
    pub fn seconds_per_unit(&self) -> Option<f64> {
        let bins = self.series.bins();
        let (first, last) = (bins.first()?, bins.last()?);
        let (seconds, units) = (last.seconds.end - first.seconds.start, last.x.end - first.x.start);
        (seconds > 0.0 && units > 0.0).then(|| seconds / units)
    }

    /// Growth that would matter.
    pub fn material(&self) -> f64 {
        outlook::material(&self.curve, self.situation.share)
    }
}

/// Where rows began to be seen: at step 0, unless the first step is so high that the run was resumed.
pub(super) fn origin(series: &Series, axis: Axis) -> f64 {
    let (first, last) = match (series.bins().first(), series.bins().last()) {
        (Some(first), Some(last)) => (first.x.start, last.x.end),
        _ => return 0.0,
    };
    if axis == Axis::Seconds {
        return first;
    }
    let gap = (last - first) / (series.distinct_x().max(2) - 1) as f64;
    /// Logs begin with their first interval or, at a coarse one, a little later.
    const FIRST_GAPS: f64 = 3.0;
    if first <= FIRST_GAPS * gap { 0.0 } else { first - gap }
}

/// When all rows of a run were seen, in steps.
#[derive(Debug, Clone, Copy)]
pub struct FirstPass {
    /// The step by which every row was seen once.
    pub end: f64,
    /// The step from which on a fill and a leak differ.
    pub decidable: f64,
}

impl FirstPass {
    /// Of a run that saw its first rows at `origin`.
    ///
    /// A run that was resumed in the middle of an epoch sees the rest of it; the rows that it missed may come anywhere in the next.
    fn of(series: &Series, origin: f64, epoch_steps: f64) -> Self {
        /// So near to the start of an epoch, hardly any row is missed.
        const AT_ITS_START: f64 = 0.05;
        /// Past the end of the epoch by this part of its length, a fill would have stopped visibly.
        const MARGIN: f64 = 0.10;
        /// A fill in a resumed run slows down first, so that it takes longer to see that it stopped.
        const RESUMED_MARGIN: f64 = 0.5;
        if origin <= 0.0 {
            let end = origin + epoch_steps;
            return Self { end, decidable: end + MARGIN * epoch_steps };
        }
        // It was resumed at the step before its first reading, or earlier.
        let resumed = series.bins().first().map_or(origin, |bin| bin.x.start - 1.0);
        let end = ((resumed / epoch_steps - AT_ITS_START).ceil() + 1.0) * epoch_steps;
        Self { end, decidable: end + RESUMED_MARGIN * epoch_steps }
    }
}

/// How likely it is that growth at a constant rate, `length` long so far, is a fill of a dataset of unknown
/// size.
///
/// Epochs are as likely to have 20 steps as 200, 2,000 or 20,000; a fill and a leak are equally common in
/// training. Without steps it need not be training at all, and a fill is rare; an epoch then lasts from a
/// minute to a day.
fn unknown_fill(length: f64, axis: Axis) -> f64 {
    let (shortest, longest, fills): (f64, f64, f64) = match axis {
        Axis::Steps => (20.0, 20_000.0, 0.5),
        Axis::Seconds => (60.0, 86_400.0, 0.15),
    };
    let ended = ((length / shortest).ln() / (longest / shortest).ln()).clamp(0.0, 1.0);
    let filling = fills * (1.0 - ended);
    filling / (filling + 1.0 - fills)
}

fn decide(outlook: &Outlook) -> Verdict {
    if outlook.leak >= SURE_OF_LEAK {
        return Verdict::Leak;
    }
    if outlook.bounded() < SURE_OF_BOUND {
        return Verdict::Undecided;
    }
    let endings = [
        (outlook.steady, Verdict::Steady),
        (outlook.warm_up, Verdict::WarmUp),
        (outlook.fill, Verdict::Fill),
    ];
    endings.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).map_or(Verdict::Undecided, |(_, verdict)| verdict)
}
