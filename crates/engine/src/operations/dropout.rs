//! Dropout by a mask that is computed, never stored.
//!
//! Takes rows of values and a [`Mask`], which is a seed and a share. Sets that share of the values to zero
//! and divides the rest by what is left, or does the same to a gradient. Whether a value stays depends on the
//! seed, its row and its column alone: forward, backward and recomputation agree whatever the threads do.

use super::rows_per_task;
use crate::simd::vectorised;
use rayon::prelude::*;

/// Which values of a matrix are dropped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mask {
    seed: u64,
    /// A value is dropped whose 32 random bits are below this.
    threshold: u32,
    /// What the others are multiplied with.
    scale: f32,
    /// The column of a row's first value.
    first: u32,
}

impl Mask {
    /// Drops a share of `probability` (at least 0, below 1); equal seeds drop the same values.
    pub fn new(seed: u64, probability: f32) -> Self {
        assert!((0.0..1.0).contains(&probability), "a share of values to drop");
        let threshold = (f64::from(probability) * 4_294_967_296.0) as u32;
        Self { seed, threshold, scale: 1.0 / (1.0 - probability), first: 0 }
    }

    /// The same share of other values, for each `index` others.
    pub fn fork(self, index: u64) -> Self {
        Self { seed: mix(self.seed ^ mix(index)), ..self }
    }

    /// The same mask, for rows of which only the columns from `first` on are at hand.
    pub fn from_column(self, first: usize) -> Self {
        let first = u32::try_from(first).expect("a column of a row that memory can hold");
        Self { first, ..self }
    }

    /// `out = mask * x` on rows of `width` values.
    pub fn forward(&self, x: &[f32], width: usize, out: &mut [f32]) {
        self.rows(x, width, out, |out, value| *out = value);
    }

    /// `grad += mask * grad_out`: what the values that were not dropped hand back.
    pub fn backward_add(&self, grad_out: &[f32], width: usize, grad: &mut [f32]) {
        self.rows(grad_out, width, grad, |grad, value| *grad += value);
    }

    #[inline(always)]
    fn rows(&self, from: &[f32], width: usize, to: &mut [f32], put: impl Fn(&mut f32, f32) + Sync) {
        assert!(from.len() == to.len() && width > 0 && from.len().is_multiple_of(width), "rows to mask");
        let rows = rows_per_task(width);
        let parts = (to.par_chunks_mut(rows * width), from.par_chunks(rows * width));
        parts.into_par_iter().enumerate().for_each(|(task, (to, from))| {
            vectorised(
                #[inline(always)]
                || {
                    let pairs = to.chunks_exact_mut(width).zip(from.chunks_exact(width));
                    for (row, (to, from)) in pairs.enumerate() {
                        let key = self.row_key((task * rows + row) as u64);
                        for (column, (to, from)) in to.iter_mut().zip(from).enumerate() {
                            put(to, from * self.factor(key, self.first.wrapping_add(column as u32)));
                        }
                    }
                },
            );
        });
    }

    fn row_key(&self, row: u64) -> [u32; 2] {
        let bits = mix(self.seed.wrapping_add(row.wrapping_mul(GOLDEN_RATIO)));
        [bits as u32, (bits >> 32) as u32]
    }

    /// What a value is multiplied with: 32-bit arithmetic, of which every instruction set has vectors.
    #[inline(always)]
    fn factor(&self, [offset, flip]: [u32; 2], column: u32) -> f32 {
        let mut bits = column.wrapping_mul(0x9E37_79B1).wrapping_add(offset);
        bits = (bits ^ (bits >> 16)).wrapping_mul(0x7FEB_352D);
        bits = (bits ^ (bits >> 15)).wrapping_mul(0x846C_A68B);
        bits ^= (bits >> 16) ^ flip;
        if bits < self.threshold { 0.0 } else { self.scale }
    }
}

const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;

/// splitmix64's last step: every bit of the result depends on every bit of `z`.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::testing::{Numbers, assert_close, assert_gradient, to_f64, weighted};

    const WIDTH: usize = 37;

    /// One value after another, in f64, from what the module's documentation says.
    fn reference(mask: &Mask, x: &[f64]) -> Vec<f64> {
        let value = |(at, x): (usize, &f64)| {
            let factor = mask.factor(mask.row_key((at / WIDTH) as u64), (at % WIDTH) as u32);
            if factor == 0.0 { 0.0 } else { x / (1.0 - 0.25) }
        };
        x.iter().enumerate().map(value).collect()
    }

    #[test]
    fn forward_and_backward_are_one_mask() {
        let mut numbers = Numbers::new(5);
        let mask = Mask::new(9, 0.25);
        for rows in [0, 1, 3, 1200] {
            let (x, grad_out) = (numbers.values(rows * WIDTH), numbers.values(rows * WIDTH));
            let mut out = vec![f32::NAN; x.len()];
            mask.forward(&x, WIDTH, &mut out);
            assert_close("forward", &out, &reference(&mask, &to_f64(&x)), 1e-6);
            let mut grad = vec![0.0; x.len()];
            mask.backward_add(&grad_out, WIDTH, &mut grad);
            assert_gradient("x", &grad, &x, |x| weighted(&reference(&mask, x), &grad_out));
            let once = grad.clone();
            mask.backward_add(&grad_out, WIDTH, &mut grad);
            assert!(grad.iter().zip(&once).all(|(twice, once)| *twice == 2.0 * once));
        }
    }

    /// Whether each of `rows x WIDTH` values stays.
    fn kept(mask: Mask, rows: usize) -> Vec<bool> {
        let mut out = vec![0.0; rows * WIDTH];
        mask.forward(&vec![1.0; rows * WIDTH], WIDTH, &mut out);
        out.iter().map(|&value| value != 0.0).collect()
    }

    /// Share of true values; of equal ones, with `zip`.
    fn share(values: impl Iterator<Item = bool>) -> f64 {
        let (mut count, mut all) = (0, 0);
        for value in values {
            count += usize::from(value);
            all += 1;
        }
        f64::from(count as u32) / f64::from(all)
    }

    #[test]
    fn the_share_is_as_asked_in_all_of_it_and_in_every_column() {
        // 111,000 values: the deviation of a share is below 0.0015.
        for probability in [0.05f32, 0.1, 0.5, 0.9] {
            let kept = kept(Mask::new(3, probability), 3000);
            let expected = 1.0 - f64::from(probability);
            assert!((share(kept.iter().copied()) - expected).abs() < 0.006, "{probability}");
            for column in 0..WIDTH {
                let of_column = kept.iter().skip(column).step_by(WIDTH).copied();
                assert!((share(of_column) - expected).abs() < 0.045, "{probability}, column {column}");
            }
        }
        assert!(kept(Mask::new(3, 0.0), 50).into_iter().all(|kept| kept));
    }

    #[test]
    fn rows_seeds_and_forks_are_independent() {
        let mask = Mask::new(1, 0.5);
        let first = kept(mask, 3000);
        assert_eq!(first, kept(Mask::new(1, 0.5), 3000));
        let others = [kept(Mask::new(2, 0.5), 3000), kept(mask.fork(0), 3000), kept(mask.fork(1), 3000)];
        for other in others.iter().map(Vec::as_slice).chain([&first[WIDTH..], &first[1..]]) {
            let equal = share(first.iter().zip(other).map(|(a, b)| a == b));
            assert!((equal - 0.5).abs() < 0.008, "{equal} of the values are equal");
        }
    }

    #[test]
    fn some_columns_are_dropped_as_in_whole_rows() {
        let mask = Mask::new(6, 0.4);
        let whole = kept(mask, 20);
        let mut part = vec![0.0; 20 * 12];
        mask.from_column(25).forward(&vec![1.0; part.len()], 12, &mut part);
        for (whole, part) in whole.chunks_exact(WIDTH).zip(part.chunks_exact(12)) {
            assert!(whole[25..].iter().eq(part.iter().map(|value| *value != 0.0).collect::<Vec<_>>().iter()));
        }
    }

    #[test]
    fn threads_change_nothing() {
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| kept(Mask::new(4, 0.3), 5000))
        };
        assert_eq!(on(1), on(3));
    }
}
