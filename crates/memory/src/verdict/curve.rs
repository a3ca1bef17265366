//! Makes the curve that explanations are fitted to: memory that was kept.
//!
//! Reduces the bins of a run to at most a few hundred points and takes away everything that says nothing
//! about the ending: the last samples of a dying process, peaks that return (evaluations, saves) and teeth
//! (memory that is collected again and again). What remains at a place is the memory that was not given back
//! soon after it. A curve that only rises, or only falls, stays as it is.

use super::series::{Bin, Span};

/// Points that explanations are fitted to; medians of neighbours above that, which also calms noise.
const MAX_POINTS: usize = 160;
/// Noise is at least this part of the level: allocators work in steps of this order.
const LEAST_NOISE: f64 = 2e-4;
/// A rise or fall counts as one when it exceeds this many standard deviations of the noise ...
const SIGNIFICANT: f64 = 8.0;
/// ... and this part of the level.
const MATERIAL_PEAK: f64 = 0.004;
/// Samples of a dying process lie lower than before by this part of what it had (an interpreter that ends
/// gives memory back piece by piece), if it never fell half as far before ...
const DYING_FALL: f64 = 0.03;
/// ... or below this part of the least that it ever had.
const DYING_LEVEL: f64 = 0.8;
/// At most this many samples show a process while it ends ...
const MAX_DYING: usize = 3;
/// ... or, where the step no longer changes, this part of all samples: on a busy machine an end takes its
/// time.
const MAX_DYING_AT_LAST_STEP: f64 = 0.1;
/// Peaks and teeth wider than this part of the run are part of its shape.
const WIDEST_PEAK: f64 = 0.25;

/// What goes up and comes back on top of the curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returning {
    /// Short peaks above a base line.
    Spikes {
        /// How often they came.
        times: usize,
    },
    /// Growth that is collected again and again.
    Sawtooth {
        /// How often it was collected.
        times: usize,
    },
}

/// What places are counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Optimizer steps.
    Steps,
    /// Seconds, where there are no steps.
    Seconds,
}

/// Points to be explained. Places run from 0 to 1.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Place of each point, ascending.
    pub x: Vec<f64>,
    /// Bytes kept.
    pub y: Vec<f64>,
    /// Trust in each point: less than 1 for those that stand out from their neighbours.
    pub weight: Vec<f64>,
    /// Axis values (steps or seconds) of the places 0 and 1.
    pub span: Span,
    /// Standard deviation of the noise of a point.
    pub noise: f64,
    /// The level, as the median.
    pub level: f64,
    /// What was taken away.
    pub returning: Option<Returning>,
    /// How high above the curve it stood; 0 where nothing was.
    pub peak_height: f64,
    /// Samples at the end that were left out because the process was ending.
    pub dying: usize,
}

impl Curve {
    /// Prepares the bins of a run; `None` when there are too few to speak of a curve.
    pub fn new(bins: &[Bin], axis: Axis) -> Option<Self> {
        let dying = dying_bins(bins);
        let bins = &bins[..bins.len() - dying];
        let bins = &bins[..bins.len() - usize::from(rises_alone(bins))];
        let bins = &bins[if axis == Axis::Seconds { loading_bins(bins) } else { 0 }..];
        if bins.len() < 3 {
            return None;
        }
        let raw: Vec<f64> = bins.iter().map(|bin| bin.low).collect();
        let (kept, returning) = without_peaks(&raw);
        let bins = &bins[..kept.len()];
        let span = Span { start: bins.first()?.mid_x(), end: bins.last()?.mid_x() };
        if bins.len() < 3 || span.end <= span.start {
            return None;
        }
        let place = |bin: &Bin| (bin.mid_x() - span.start) / (span.end - span.start);
        let group = kept.len().div_ceil(MAX_POINTS);
        let (x, y): (Vec<f64>, Vec<f64>) = kept
            .chunks(group)
            .zip(bins.chunks(group))
            .map(|(values, bins)| {
                let places = bins[..values.len()].iter().map(place).sum::<f64>() / values.len() as f64;
                (places, median(values.to_vec()))
            })
            .unzip();
        let level = median(y.clone());
        let noise = noise(&y, level);
        let weight = weights(&y, noise);
        let mut peaks: Vec<f64> = bins.iter().zip(&kept).map(|(bin, kept)| bin.high - kept).collect();
        let peak_height = if returning.is_some() { quantile(&mut peaks, 0.98) } else { 0.0 };
        Some(Self { x, y, weight, span, noise, level, returning, peak_height, dying })
    }

    /// The part from a place on, as a curve of its own; `None` where too few points are left.
    pub fn after(&self, place: f64) -> Option<Self> {
        /// Points that a shape can be told from.
        const LEAST: usize = 12;
        let start = self.x.partition_point(|x| *x < place);
        if start == 0 || self.x.len() - start < LEAST {
            return None;
        }
        let (first, last) = (self.x[start], self.x[self.x.len() - 1]);
        let y = self.y[start..].to_vec();
        let level = median(y.clone());
        let noise = noise(&y, level);
        Some(Self {
            x: self.x[start..].iter().map(|x| (x - first) / (last - first)).collect(),
            weight: weights(&y, noise),
            span: Span { start: self.axis(first), end: self.axis(last) },
            noise,
            level,
            y,
            ..*self
        })
    }

    /// Axis value at a place.
    pub fn axis(&self, place: f64) -> f64 {
        self.span.start + place * (self.span.end - self.span.start)
    }

    /// Place of an axis value, which may lie outside 0 to 1.
    pub fn place(&self, axis: f64) -> f64 {
        (axis - self.span.start) / (self.span.end - self.span.start)
    }

    /// Length of the run on the axis.
    pub fn length(&self) -> f64 {
        self.span.length()
    }
}

/// Readings that say what was usual before the end.
const NEIGHBOURS: usize = 5;

/// The bins before the process began to end.
pub fn without_dying(bins: &[Bin]) -> &[Bin] {
    &bins[..bins.len() - dying_bins(bins)]
}

/// How many bins at the end show a process that was already ending. The tree may hold more by then: a parent
/// that tidies up copies pages which its workers still share.
fn dying_bins(bins: &[Bin]) -> usize {
    let at_last_step =
        bins.iter().rev().take_while(|bin| bins.last().is_some_and(|last| bin.x.start == last.x.end));
    let still = at_last_step.count().min((MAX_DYING_AT_LAST_STEP * bins.len() as f64) as usize);
    let most = MAX_DYING.max(still).min(bins.len().saturating_sub(NEIGHBOURS));
    let is_dying = |dying: &usize| {
        let (alive, ending) = bins.split_at(bins.len() - dying);
        gives_back(alive, ending, |bin| bin.low) || gives_back(alive, ending, |bin| bin.mean().main_rss)
    };
    (1..=most).rev().find(is_dying).unwrap_or(0)
}

/// Whether the last bin rises as none before it did. One reading is no rate: the next tells what it means,
/// and if there is none, the process was ending.
fn rises_alone(bins: &[Bin]) -> bool {
    /// So many times as far as the others.
    const FAR: f64 = 3.0;
    let Some(last) = bins.len().checked_sub(NEIGHBOURS + 2).map(|start| &bins[start..]) else {
        return false;
    };
    let rises: Vec<f64> = last.windows(2).map(|pair| pair[1].low - pair[0].low).collect();
    let usual = rises[..NEIGHBOURS].iter().fold(0.0_f64, |most, rise| most.max(rise.abs()));
    rises[NEIGHBOURS] > FAR * usual
}

/// Whether a value falls further, or lies lower, than ever before in the run.
fn gives_back(alive: &[Bin], ending: &[Bin], value: impl Fn(&Bin) -> f64) -> bool {
    let before = median(alive[alive.len() - NEIGHBOURS..].iter().map(&value).collect());
    let lowest = |bins: &[Bin]| bins.iter().map(&value).fold(f64::INFINITY, f64::min);
    let usual = alive.windows(2).map(|pair| value(&pair[0]) - value(&pair[1])).fold(0.0, f64::max);
    let falls_as_never = usual < (before - lowest(ending)) / 2.0
        && ending.iter().all(|bin| before - value(bin) > DYING_FALL * before);
    let below_all = lowest(ending) < DYING_LEVEL * lowest(alive)
        && ending.iter().all(|bin| value(bin) < DYING_LEVEL * before);
    falls_as_never || below_all
}

/// How many bins at the start show a process that was still loading, for runs without steps.
fn loading_bins(bins: &[Bin]) -> usize {
    const EARLY: f64 = 0.25;
    const LOADED: f64 = 0.9;
    const LONGEST: f64 = 0.2;
    let early = &bins[..(bins.len() as f64 * EARLY).ceil() as usize];
    let usual = median(early.iter().map(|bin| bin.low).collect());
    let loading = early.iter().take_while(|bin| bin.low < LOADED * usual).count();
    loading.min((bins.len() as f64 * LONGEST) as usize)
}

/// Removes peaks and teeth: each value becomes the lowest of the next few, of as few as suffice.
fn without_peaks(raw: &[f64]) -> (Vec<f64>, Option<Returning>) {
    let level = median(raw.to_vec());
    let peak = (SIGNIFICANT * noise(raw, level)).max(MATERIAL_PEAK * level);
    let cycles = count_cycles(raw, peak);
    if cycles == 0 {
        return (raw.to_vec(), None);
    }
    let widest = (raw.len() as f64 * WIDEST_PEAK) as usize;
    let ladder = std::iter::successors(Some(1_usize), |width| Some(width + width.div_ceil(2)));
    let mut best = (cycles, 0, raw.to_vec());
    for width in ladder.take_while(|width| *width <= widest) {
        let kept = lowest_ahead(raw, width);
        let left = count_cycles(&kept, peak);
        if left < best.0 {
            best = (left, width, kept);
        }
        if left == 0 {
            break;
        }
    }
    let (_, width, mut kept) = best;
    if width == 0 {
        return (kept, None);
    }
    let above = raw.iter().zip(&kept).filter(|(raw, kept)| *raw - *kept > peak / 2.0).count();
    /// Peaks that cover less of the run than this are spikes.
    const SPIKES_COVER: f64 = 0.35;
    let returning = if (above as f64) < SPIKES_COVER * raw.len() as f64 {
        Returning::Spikes { times: cycles }
    } else {
        Returning::Sawtooth { times: cycles }
    };
    if cycles > 1 {
        // What a tooth at the end comes back to is not known yet.
        kept.truncate(kept.len() - width);
    }
    (kept, Some(returning))
}

/// How often the values rise by `peak` and then fall by `peak`.
fn count_cycles(values: &[f64], peak: f64) -> usize {
    let (mut cycles, mut rising, mut extreme) = (0, false, values[0]);
    let mut low = values[0];
    for &value in values {
        if rising {
            extreme = extreme.max(value);
            if value < extreme - peak {
                cycles += 1;
                rising = false;
                low = value;
            }
        } else {
            low = low.min(value);
            if value > low + peak {
                rising = true;
                extreme = value;
            }
        }
    }
    cycles
}

/// The lowest of each value and the `width` that follow it.
fn lowest_ahead(values: &[f64], width: usize) -> Vec<f64> {
    // Candidates for the lowest, ascending in value and place; each value enters and leaves once.
    let mut candidates = std::collections::VecDeque::new();
    let mut lowest = vec![0.0; values.len()];
    for (i, &value) in values.iter().enumerate().rev() {
        while candidates.back().is_some_and(|&(_, candidate)| candidate >= value) {
            candidates.pop_back();
        }
        candidates.push_back((i, value));
        while candidates.front().is_some_and(|&(at, _)| at > i + width) {
            candidates.pop_front();
        }
        lowest[i] = candidates.front().map_or(value, |&(_, candidate)| candidate);
    }
    lowest
}

/// Noise of single values, from the quieter half of the differences between neighbours: jumps and peaks, even
/// where every fourth value is one, leave it alone.
fn noise(values: &[f64], level: f64) -> f64 {
    /// Lower quartile of the absolute value of a standard normal variable.
    const LOWER_QUARTILE: f64 = 0.318_64;
    let mut steps: Vec<f64> = values.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let usual = median(steps.clone());
    steps.iter_mut().for_each(|step| *step = (*step - usual).abs());
    let quartile = quantile(&mut steps, 0.25);
    (quartile / LOWER_QUARTILE / std::f64::consts::SQRT_2).max(LEAST_NOISE * level.abs()).max(1.0)
}

/// Huber weights against the median of the neighbours.
fn weights(values: &[f64], noise: f64) -> Vec<f64> {
    const REACH: usize = 2;
    const TRUSTED: f64 = 3.0;
    (0..values.len())
        .map(|i| {
            let neighbours = &values[i.saturating_sub(REACH)..(i + REACH + 1).min(values.len())];
            let off = (values[i] - median(neighbours.to_vec())).abs();
            // At the ends the median of the neighbours lags behind a slope.
            let at_end = i < REACH || i + REACH >= values.len();
            if at_end || off <= TRUSTED * noise { 1.0 } else { TRUSTED * noise / off }
        })
        .collect()
}

/// The middle value; 0 of none.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    quantile(&mut values, 0.5)
}

/// The value below which the given part of the values lies; 0 of none.
pub(super) fn quantile(values: &mut [f64], part: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let at = (part * (values.len() - 1) as f64).round() as usize;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}
