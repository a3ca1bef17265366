//! Memory that moves in jumps: buffers that double, something kept per evaluation.
//!
//! [`Stairs::of`] finds the levels and the jumps between them that explain a curve best if each further jump
//! must pay for itself. A curve with fewer than two jumps is not a staircase.

use super::curve::Curve;

/// More jumps than this are a slope.
const MAX_JUMPS: usize = 24;

/// Bytes from a place on.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Level {
    place: f64,
    bytes: f64,
}

/// A change from one level to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Jump {
    /// Where.
    pub place: f64,
    /// Bytes that it rises by; below 0 where it falls.
    pub height: f64,
}

/// Levels, each from its place on.
#[derive(Debug, Clone, PartialEq)]
pub struct Stairs {
    levels: Vec<Level>,
    /// Distance between two points of the curve, as a place.
    spacing: f64,
}

impl Stairs {
    /// The staircase that explains the curve best, if there is one.
    pub fn of(curve: &Curve) -> Option<Self> {
        let sums = Sums::new(curve);
        let n = curve.x.len();
        // A jump must explain more than noise would by chance, and more than one that hardly shows.
        let range = super::weigh::range(&curve.y);
        let price = 12.0 * curve.noise.powi(2) * (n as f64).ln() + (0.02 * range).powi(2);
        // best[end] is the least cost of the first `end` points, and where their last level starts.
        let mut best = vec![(0.0, 0)];
        for end in 1..=n {
            let least = (0..end)
                .map(|start| (best[start].0 + sums.squares(start, end) + price, start))
                .min_by(|a: &(f64, usize), b| a.0.total_cmp(&b.0))?;
            best.push(least);
        }
        let mut levels = Vec::new();
        let mut end = n;
        while end > 0 {
            let start = best[end].1;
            let place = if start == 0 { 0.0 } else { (curve.x[start - 1] + curve.x[start]) / 2.0 };
            levels.push(Level { place, bytes: sums.mean(start, end) });
            end = start;
        }
        levels.reverse();
        (3..=MAX_JUMPS + 1).contains(&levels.len()).then_some(Self { levels, spacing: 1.0 / (n - 1) as f64 })
    }

    /// Bytes at a place.
    pub fn at(&self, x: f64) -> f64 {
        let after = self.levels.partition_point(|level| level.place <= x);
        self.levels[after.saturating_sub(1)].bytes
    }

    /// Place from which on no level differs from the last by more than `tolerance`.
    pub fn level_from(&self, tolerance: f64) -> f64 {
        let last = self.levels.last().map_or(0.0, |level| level.bytes);
        let other = self.levels.iter().rposition(|level| (level.bytes - last).abs() > tolerance);
        self.levels.get(other.map_or(0, |at| at + 1)).map_or(0.0, |level| level.place)
    }

    /// Every jump.
    pub fn jumps(&self) -> impl Iterator<Item = Jump> + '_ {
        let jump = |pair: &[Level]| Jump { place: pair[1].place, height: pair[1].bytes - pair[0].bytes };
        self.levels.windows(2).map(jump)
    }
}

impl Stairs {
    /// Every climb: jumps at neighbouring points are one that took a while.
    pub fn climbs(&self) -> Vec<Jump> {
        let mut climbs: Vec<Jump> = Vec::new();
        let mut last = f64::NEG_INFINITY;
        for jump in self.jumps() {
            match climbs.last_mut() {
                Some(climb) if jump.place - last < 1.5 * self.spacing && climb.height * jump.height > 0.0 => {
                    climb.height += jump.height;
                }
                _ => climbs.push(jump),
            }
            last = jump.place;
        }
        climbs
    }

    /// Where the last of the large climbs was over; several small ones after it may be a slope.
    pub fn last_large_climb(&self) -> Option<f64> {
        /// A climb is large if it is at least this part of the highest.
        const LARGE: f64 = 0.25;
        let highest = self.jumps().map(|jump| jump.height.abs()).fold(0.0, f64::max);
        let large = self.jumps().filter(|jump| jump.height.abs() >= LARGE * highest);
        large.map(|jump| jump.place).last()
    }

    /// The places of the climbs, where each came after a longer time than the one before; ripples do not
    /// count.
    ///
    /// So grow buffers that double: each lasts for twice as long as the one before.
    pub fn rarer_climbs(&self) -> Option<Vec<f64>> {
        /// A buffer's first jump is an eighth of its fourth.
        const NOTICED: f64 = 0.1;
        /// A gap is longer than the one before if it is this many times as long.
        const LONGER: f64 = 1.5;
        let climbs = self.climbs();
        let highest = climbs.iter().map(|climb| climb.height).fold(0.0, f64::max);
        let noticed = climbs.into_iter().filter(|climb| climb.height.abs() > NOTICED * highest);
        let (places, heights): (Vec<f64>, Vec<f64>) =
            noticed.map(|climb| (climb.place, climb.height)).unzip();
        let gaps: Vec<f64> = places.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let rarer = gaps.len() >= 2 && gaps.windows(2).all(|pair| pair[1] > LONGER * pair[0]);
        (rarer && heights.iter().all(|height| *height > 0.0)).then_some(places)
    }

    /// Where one more climb would come if the gaps go on growing as they did.
    pub fn next_climb(&self) -> Option<f64> {
        let places = self.rarer_climbs()?;
        let [.., first, second, last] = places[..] else { return None };
        Some(last + (last - second).powi(2) / (second - first))
    }
}

/// Running sums, for the cost of any stretch in constant time.
struct Sums {
    weight: Vec<f64>,
    value: Vec<f64>,
    square: Vec<f64>,
    level: f64,
}

impl Sums {
    fn new(curve: &Curve) -> Self {
        let running = |term: &dyn Fn(f64, f64) -> f64| {
            let mut sums = vec![0.0];
            for (&y, &weight) in curve.y.iter().zip(&curve.weight) {
                sums.push(sums[sums.len() - 1] + term(y - curve.level, weight));
            }
            sums
        };
        Self {
            weight: running(&|_, weight| weight),
            value: running(&|y, weight| weight * y),
            square: running(&|y, weight| weight * y * y),
            level: curve.level,
        }
    }

    fn mean(&self, start: usize, end: usize) -> f64 {
        self.level + (self.value[end] - self.value[start]) / (self.weight[end] - self.weight[start])
    }

    fn squares(&self, start: usize, end: usize) -> f64 {
        let (weight, value) = (self.weight[end] - self.weight[start], self.value[end] - self.value[start]);
        (self.square[end] - self.square[start] - value * value / weight).max(0.0)
    }
}
