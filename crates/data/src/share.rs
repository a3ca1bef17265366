//! Which rows of a dataset are read: all, those held out for evaluation, or the others.
//!
//! Takes the number of a dataset's rows and gives the row at each place of the share. Both parts of a split
//! are computed from the same seed, so they never overlap, and no list of rows is kept.

use crate::shuffle::RowOrder;

/// Which rows of a dataset are read: all of them, those held out for evaluation, or the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RowShare {
    /// All.
    #[default]
    All,
    /// The first rows of an order that the seed decides.
    HeldOut {
        /// How many.
        rows: u64,
        /// Decides which.
        seed: u64,
    },
    /// All but those that [`RowShare::HeldOut`] with the same numbers reads.
    Rest {
        /// How many are held out.
        held_out: u64,
        /// Decides which.
        seed: u64,
    },
}

/// The epoch whose order decides which rows are held out. No run gets this far, so the order is never trained
/// in.
const SPLIT_EPOCH: u64 = u64::MAX;

impl RowShare {
    /// How many of a dataset's rows are read.
    pub fn rows(self, all: u64) -> u64 {
        match self {
            Self::All => all,
            Self::HeldOut { rows, .. } => rows.min(all),
            Self::Rest { held_out, .. } => all.saturating_sub(held_out),
        }
    }

    /// The number in the dataset of the row at a place of the share.
    pub fn row(self, place: u64, all: u64) -> u64 {
        self.finder(all)(place)
    }

    /// Tells whether a row of the dataset is read.
    pub(crate) fn membership(self, all: u64) -> impl Fn(u64) -> bool {
        let (seed, places) = match self {
            Self::All => (0, 0..all),
            Self::HeldOut { rows, seed } => (seed, 0..rows.min(all)),
            Self::Rest { held_out, seed } => (seed, held_out.min(all)..all),
        };
        let order = RowOrder::shuffled(all, seed, SPLIT_EPOCH);
        move |row| order.place(row).is_some_and(|place| places.contains(&place))
    }

    /// Gives, for a row counted within the share, its number in the dataset.
    pub(crate) fn finder(self, all: u64) -> impl Fn(u64) -> u64 + Send + Sync + Clone {
        let (seed, skipped) = match self {
            Self::All => (None, 0),
            Self::HeldOut { seed, .. } => (Some(seed), 0),
            Self::Rest { held_out, seed } => (Some(seed), held_out),
        };
        let order = seed.map_or(RowOrder::sequential(all), |seed| RowOrder::shuffled(all, seed, SPLIT_EPOCH));
        // A place within the share is within the dataset.
        move |place| order.row(place + skipped).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_tells_its_rows_from_the_others() {
        const ALL: u64 = 23;
        let shares = [
            RowShare::All,
            RowShare::HeldOut { rows: 6, seed: 3 },
            RowShare::Rest { held_out: 6, seed: 3 },
            RowShare::HeldOut { rows: 99, seed: 3 },
        ];
        for share in shares {
            let find = share.finder(ALL);
            let mut read: Vec<u64> = (0..share.rows(ALL)).map(find).collect();
            read.sort_unstable();
            let has = share.membership(ALL);
            assert_eq!((0..ALL).filter(|row| has(*row)).collect::<Vec<_>>(), read, "{share:?}");
            assert!(!has(ALL), "{share:?}");
        }
    }
}
