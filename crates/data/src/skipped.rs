//! The rows of a dataset that are not trained on, as one bit a row.
//!
//! Takes the numbers of such rows and tells whether a row is one of them. The bits span the rows from the
//! first such row to the last, so a dataset without any costs nothing and no dataset costs more than one bit
//! a row.

use serde::{Deserialize, Serialize};

/// The rows of a dataset that are not trained on: too long, without a label, or bad.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedRows {
    /// The first of `words` has the rows from this number times [`BITS`].
    first: u64,
    /// The lowest bit of a word is its first row. Neither the first nor the last word is zero.
    words: Vec<u64>,
}

const BITS: u64 = u64::BITS as u64;

impl SkippedRows {
    /// Whether a row of the dataset is one of them.
    pub fn contains(&self, row: u64) -> bool {
        let word = (row / BITS).checked_sub(self.first).and_then(|at| self.words.get(at as usize));
        word.is_some_and(|word| word >> (row % BITS) & 1 == 1)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Adds a row.
    pub(crate) fn insert(&mut self, row: u64) {
        self.add_word(row / BITS, 1 << (row % BITS));
    }

    /// Adds the rows of another set.
    pub(crate) fn extend(&mut self, other: &Self) {
        for (at, word) in (other.first..).zip(&other.words).filter(|(_, word)| **word != 0) {
            self.add_word(at, *word);
        }
    }

    fn add_word(&mut self, at: u64, word: u64) {
        if self.is_empty() {
            self.first = at;
        }
        if at < self.first {
            let missing = (self.first - at) as usize;
            self.words.splice(..0, std::iter::repeat_n(0, missing));
            self.first = at;
        }
        let place = (at - self.first) as usize;
        if place >= self.words.len() {
            self.words.resize(place + 1, 0);
        }
        self.words[place] |= word;
    }
}

impl FromIterator<u64> for SkippedRows {
    fn from_iter<I: IntoIterator<Item = u64>>(rows: I) -> Self {
        let mut skipped = Self::default();
        rows.into_iter().for_each(|row| skipped.insert(row));
        skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [u64; 7] = [700, 130, 64, 65, 127, 191, 700];

    #[test]
    fn it_has_the_rows_that_it_was_given_in_any_order() {
        let skipped: SkippedRows = ROWS.into_iter().collect();
        assert!((0..2000).all(|row| skipped.contains(row) == ROWS.contains(&row)));
        assert!(!skipped.contains(u64::MAX));
        assert_eq!(skipped.len(), 6);
        let mut sorted = ROWS;
        sorted.sort_unstable();
        assert_eq!(skipped, sorted.into_iter().collect());
        assert!(SkippedRows::default().is_empty() && !SkippedRows::default().contains(0));
    }

    #[test]
    fn two_sets_together_have_the_rows_of_both() {
        for cut in 0..=ROWS.len() {
            let (one, other) = ROWS.split_at(cut);
            let mut both: SkippedRows = one.iter().copied().collect();
            both.extend(&other.iter().copied().collect());
            assert_eq!(both, ROWS.into_iter().collect(), "cut at {cut}");
        }
    }

    #[test]
    fn it_travels_as_text_and_stays_small() {
        let skipped: SkippedRows = (1_000_000..1_000_640).filter(|row| row % 64 == 3).collect();
        let text = serde_json::to_string(&skipped).unwrap();
        assert_eq!(serde_json::from_str::<SkippedRows>(&text).unwrap(), skipped);
        assert_eq!(skipped.words.len(), 10, "nothing before the first row");
        assert!(text.len() < 60, "{text}");
    }
}
