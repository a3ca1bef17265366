//! A curve of any length in bounded memory.
//!
//! Keeps at most [`MAX_BINS`] bins of equally many readings each, with the lowest, highest and mean value of
//! each. When there are too many bins, neighbours are merged: a million readings take no more room than two
//! thousand.

use crate::Sample;

/// Most bins that are kept: finer than any screen, and enough for a knee to be placed to 0.1 % of the run.
pub const MAX_BINS: usize = 2048;

/// Sizes of a reading, or their sums over a bin.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Kinds {
    /// What the verdict is about, see [`Sample::owned`].
    pub owned: f64,
    /// Anonymous memory.
    pub anon: f64,
    /// File-backed memory.
    pub file: f64,
    /// Shared memory.
    pub shmem: f64,
    /// Swapped-out memory.
    pub swap: f64,
    /// Resident memory of the root process; the tree's where that is not told apart.
    pub main_rss: f64,
    /// Resident memory of the tree.
    pub rss: f64,
    /// Proportional memory, 0 where it is not known.
    pub pss: f64,
    /// Processes in the tree.
    pub procs: f64,
}

impl Kinds {
    fn of(sample: &Sample) -> Self {
        Self {
            owned: sample.owned() as f64,
            anon: sample.anon as f64,
            file: sample.file as f64,
            shmem: sample.shmem as f64,
            swap: sample.swap as f64,
            main_rss: sample.main_rss.unwrap_or(sample.rss) as f64,
            rss: sample.rss as f64,
            pss: sample.pss.unwrap_or(0) as f64,
            procs: f64::from(sample.procs.unwrap_or(1)),
        }
    }

    fn zip(self, other: Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            owned: combine(self.owned, other.owned),
            anon: combine(self.anon, other.anon),
            file: combine(self.file, other.file),
            shmem: combine(self.shmem, other.shmem),
            swap: combine(self.swap, other.swap),
            main_rss: combine(self.main_rss, other.main_rss),
            rss: combine(self.rss, other.rss),
            pss: combine(self.pss, other.pss),
            procs: combine(self.procs, other.procs),
        }
    }
}

/// A stretch of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Where it starts.
    pub start: f64,
    /// Where it ends.
    pub end: f64,
}

impl Span {
    /// A single place.
    fn at(place: f64) -> Self {
        Self { start: place, end: place }
    }

    /// How long it is.
    pub fn length(&self) -> f64 {
        self.end - self.start
    }
}

/// Consecutive readings, summed up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bin {
    /// How many readings.
    pub count: u32,
    /// Steps so far (seconds where there are no steps) at the first and last reading.
    pub x: Span,
    /// Seconds at the first and last reading, jumps of the clock taken out.
    pub seconds: Span,
    /// Lowest owned memory.
    pub low: f64,
    /// Highest owned memory.
    pub high: f64,
    sums: Kinds,
}

impl Bin {
    fn new(x: f64, seconds: f64, sample: &Sample) -> Self {
        let sums = Kinds::of(sample);
        Self { count: 1, x: Span::at(x), seconds: Span::at(seconds), low: sums.owned, high: sums.owned, sums }
    }

    /// The bin's place on the axis.
    pub fn mid_x(&self) -> f64 {
        (self.x.start + self.x.end) / 2.0
    }

    /// Mean of each kind of memory.
    pub fn mean(&self) -> Kinds {
        let count = f64::from(self.count);
        self.sums.zip(Kinds::default(), |sum, _| sum / count)
    }

    fn merge(&mut self, later: &Self) {
        self.count += later.count;
        self.x.end = later.x.end;
        self.seconds.end = later.seconds.end;
        self.low = self.low.min(later.low);
        self.high = self.high.max(later.high);
        self.sums = self.sums.zip(later.sums, |a, b| a + b);
    }
}

/// The curve.
#[derive(Debug, Clone)]
pub struct Series {
    bins: Vec<Bin>,
    per_bin: u32,
    readings: u64,
    distinct_x: u64,
}

impl Default for Series {
    fn default() -> Self {
        Self { bins: Vec::new(), per_bin: 1, readings: 0, distinct_x: 0 }
    }
}

impl Series {
    /// Adds a reading.
    pub fn push(&mut self, x: f64, seconds: f64, sample: &Sample) {
        let reading = Bin::new(x, seconds, sample);
        self.readings += 1;
        self.distinct_x += u64::from(self.bins.last().is_none_or(|last| x > last.x.end));
        match self.bins.last_mut() {
            Some(last) if last.count < self.per_bin => last.merge(&reading),
            _ => self.bins.push(reading),
        }
        if self.bins.len() > MAX_BINS {
            self.halve();
        }
    }

    fn halve(&mut self) {
        self.bins = self
            .bins
            .chunks(2)
            .map(|pair| {
                let mut merged = pair[0];
                pair[1..].iter().for_each(|later| merged.merge(later));
                merged
            })
            .collect();
        self.per_bin = self.per_bin.saturating_mul(2);
    }

    /// The curve, oldest first.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// How many readings were taken in.
    pub fn readings(&self) -> u64 {
        self.readings
    }

    /// How many different places on the axis they have.
    pub fn distinct_x(&self) -> u64 {
        self.distinct_x
    }

    /// The bins that are complete: the last one of a long run may hold few readings, and its lowest value is
    /// then not comparable with the others'.
    pub fn complete_bins(&self) -> &[Bin] {
        match self.bins.split_last() {
            Some((last, rest)) if last.count < self.per_bin && !rest.is_empty() => rest,
            _ => &self.bins,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_readings_stay_in_bounds_and_keep_their_extremes() {
        let mut series = Series::default();
        for i in 0..1_000_000_u64 {
            let rss = if i == 777_777 { 9_000 } else { 1_000 + i / 1_000 };
            series.push(i as f64, i as f64 / 10.0, &Sample { rss, ..Sample::default() });
        }
        assert!(series.bins().len() <= MAX_BINS && series.bins().len() >= MAX_BINS / 4);
        assert_eq!(series.readings(), 1_000_000);
        assert_eq!(series.bins().iter().map(|bin| u64::from(bin.count)).sum::<u64>(), 1_000_000);
        assert_eq!(series.bins().iter().map(|bin| bin.high as u64).max(), Some(9_000));
        assert_eq!(series.bins()[0].low, 1_000.0);
        assert_eq!(series.bins().last().map(|bin| bin.x.end), Some(999_999.0));
    }
}
