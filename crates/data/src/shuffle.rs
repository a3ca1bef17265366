//! A seeded order of rows for each epoch that needs no list of them.
//!
//! Takes a seed, an epoch and a number of rows, and gives the row at each place of the epoch. The order is a
//! permutation computed row by row (a Feistel network walked until it lands inside the range), so its memory
//! is the same for ten rows and for ten million.

/// Rounds of the network. Four give a pseudo-random permutation by theory (Luby and Rackoff); two more cost
/// nothing beside reading a row, and make short ranges look random too.
const ROUNDS: usize = 6;

/// The order of one epoch.
#[derive(Debug, Clone)]
pub struct RowOrder {
    rows: u64,
    keys: Option<[u64; ROUNDS]>,
    half_bits: u32,
}

impl RowOrder {
    /// The rows as they are written.
    pub(crate) fn sequential(rows: u64) -> Self {
        Self { rows, keys: None, half_bits: 0 }
    }

    /// The rows in an order that the seed and the epoch decide.
    pub fn shuffled(rows: u64, seed: u64, epoch: u64) -> Self {
        let mut state = mix(seed ^ mix(epoch));
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            mix(state)
        });
        let bits = u64::BITS - rows.saturating_sub(1).leading_zeros();
        Self { rows, keys: Some(keys), half_bits: bits.div_ceil(2).max(1) }
    }

    /// The row at a place of the epoch; `None` past its end.
    pub fn row(&self, place: u64) -> Option<u64> {
        if place >= self.rows {
            return None;
        }
        let Some(keys) = &self.keys else { return Some(place) };
        // The network permutes a square range of up to four times the rows: walking its cycle from inside the
        // rows comes back inside after at most a few steps, and each row is reached from one place only.
        let mut value = place;
        loop {
            value = self.permute(keys, value);
            if value < self.rows {
                return Some(value);
            }
        }
    }

    /// The place of the epoch at which a row comes; `None` past the last one.
    pub(crate) fn place(&self, row: u64) -> Option<u64> {
        if row >= self.rows {
            return None;
        }
        let Some(keys) = &self.keys else { return Some(row) };
        // The same cycle, walked backwards.
        let mut value = row;
        loop {
            value = self.restore(keys, value);
            if value < self.rows {
                return Some(value);
            }
        }
    }

    fn permute(&self, keys: &[u64; ROUNDS], value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }

    /// Undoes [`RowOrder::permute`].
    fn restore(&self, keys: &[u64; ROUNDS], value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in keys.iter().rev() {
            (left, right) = (right ^ (mix(left ^ key) & mask), left);
        }
        (left << self.half_bits) | right
    }
}

/// The finaliser of SplitMix64: each bit of the input changes about half the bits of the output.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(order: &RowOrder) -> Vec<u64> {
        (0..order.rows).filter_map(|place| order.row(place)).collect()
    }

    #[test]
    fn every_row_comes_once() {
        for rows in (0..70).chain([255, 256, 257, 663, 4095, 10_000]) {
            for epoch in 0..3 {
                let order = RowOrder::shuffled(rows, 7, epoch);
                let mut seen = places(&order);
                seen.sort_unstable();
                assert_eq!(seen, (0..rows).collect::<Vec<_>>(), "{rows} rows, epoch {epoch}");
                assert_eq!(order.row(rows), None);
            }
        }
    }

    #[test]
    fn a_row_knows_its_place() {
        for order in [RowOrder::shuffled(663, 7, 2), RowOrder::shuffled(1, 7, 0), RowOrder::sequential(5)] {
            for place in 0..order.rows {
                assert_eq!(order.row(place).and_then(|row| order.place(row)), Some(place), "{order:?}");
            }
            assert_eq!(order.place(order.rows), None);
        }
    }

    #[test]
    fn the_order_depends_on_seed_and_epoch_alone() {
        let order = |seed, epoch| places(&RowOrder::shuffled(100, seed, epoch));
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_eq!(places(&RowOrder::sequential(4)), [0, 1, 2, 3]);
    }

    #[test]
    fn a_row_comes_at_every_place_about_equally_often() {
        const ROWS: u64 = 10;
        const SEEDS: u64 = 10_000;
        let mut counts = [[0u32; ROWS as usize]; ROWS as usize];
        for seed in 0..SEEDS {
            for (place, row) in places(&RowOrder::shuffled(ROWS, seed, 0)).into_iter().enumerate() {
                counts[place][row as usize] += 1;
            }
        }
        // 1000 expected each; five standard deviations are 150.
        let all = counts.as_flattened();
        assert!(all.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_largest_range_is_permuted_too() {
        let order = RowOrder::shuffled(u64::MAX, 1, 0);
        let rows: std::collections::HashSet<_> = (0..1000).map(|place| order.row(place)).collect();
        assert_eq!(rows.len(), 1000);
    }
}
