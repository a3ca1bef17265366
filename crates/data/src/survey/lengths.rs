//! How often each length occurs among rows.
//!
//! Takes lengths one by one and gives their sum, mean, quantiles and histogram, and what the longest of them
//! come to together. Memory is bounded by the number of different lengths.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How often each length occurs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lengths(BTreeMap<usize, u64>);

impl Lengths {
    /// Counts a length.
    pub fn add(&mut self, length: usize) {
        *self.0.entry(length).or_default() += 1;
    }

    /// Adds the lengths that were counted elsewhere.
    pub(crate) fn join(&mut self, other: Self) {
        other.0.into_iter().for_each(|(length, count)| *self.0.entry(length).or_default() += count);
    }

    /// How many lengths were counted.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The sum of all.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(length, count)| *length as u64 * count).sum()
    }

    /// The mean of all.
    pub fn mean(&self) -> f64 {
        self.total() as f64 / self.count().max(1) as f64
    }

    /// The longest.
    pub fn max(&self) -> usize {
        self.0.last_key_value().map_or(0, |(length, _)| *length)
    }

    /// The length that a share of the rows does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> usize {
        let wanted = (share * self.count() as f64).ceil() as u64;
        let mut seen = 0;
        let reached = self.0.iter().find(|(_, count)| {
            seen += **count;
            seen >= wanted
        });
        reached.map_or(0, |(length, _)| *length)
    }

    /// The sum of the `n` longest: what the heaviest batch of `n` rows can have.
    pub fn longest(&self, n: u64) -> u64 {
        let (mut left, mut sum) = (n, 0);
        for (length, count) in self.0.iter().rev() {
            let taken = left.min(*count);
            sum += taken * *length as u64;
            left -= taken;
        }
        sum
    }

    /// Counts by ranges of equal width, at most `bars` of them: (from, to, count).
    pub(crate) fn histogram(&self, bars: usize) -> Vec<(usize, usize, u64)> {
        let Some((min, _)) = self.0.first_key_value() else { return Vec::new() };
        let width = nice_width((self.max() - min) / bars.max(1) + 1);
        let first = min / width;
        let mut counts = vec![0; self.max() / width - first + 1];
        for (length, count) in &self.0 {
            counts[length / width - first] += count;
        }
        let bar = |(i, count)| ((first + i) * width, (first + i + 1) * width - 1, count);
        counts.into_iter().enumerate().map(bar).collect()
    }
}

/// The next of 1, 2, 5, 10, 20, 50, ... that is not smaller.
fn nice_width(width: usize) -> usize {
    let powers = std::iter::successors(Some(1usize), |power| power.checked_mul(10));
    let candidates = powers.flat_map(|power| [1, 2, 5].map(|digit| power.saturating_mul(digit)));
    candidates.take(40).find(|candidate| *candidate >= width).unwrap_or(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(values: &[usize]) -> Lengths {
        let mut lengths = Lengths::default();
        values.iter().for_each(|value| lengths.add(*value));
        lengths
    }

    #[test]
    fn lengths_know_their_quantiles_and_their_heaviest_batch() {
        let lengths = lengths(&[10, 30, 20, 20, 100]);
        assert_eq!((lengths.count(), lengths.total(), lengths.max()), (5, 180, 100));
        assert_eq!((lengths.quantile(0.5), lengths.quantile(0.9), lengths.quantile(0.0)), (20, 100, 10));
        assert_eq!((lengths.longest(1), lengths.longest(3), lengths.longest(9)), (100, 150, 180));
        assert_eq!(Lengths::default().quantile(0.5), 0);
    }

    #[test]
    fn histograms_have_round_bounds_and_lose_nothing() {
        let lengths = lengths(&[103, 110, 111, 199, 250]);
        assert_eq!(lengths.histogram(3), [(100, 149, 3), (150, 199, 1), (200, 249, 0), (250, 299, 1)]);
        assert_eq!(Lengths::default().histogram(5), []);
        assert_eq!(Lengths(BTreeMap::from([(usize::MAX - 1, 1)])).histogram(4).len(), 1);
    }
}
