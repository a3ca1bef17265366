//! What the tests of the operations share: repeatable numbers, comparisons, and derivatives by finite
//! differences.
//!
//! A reference is the textbook formula in f64. A kernel's forward is compared with it directly, and its
//! backward with the central differences of it, so that a hand-derived gradient is never its own witness.

/// Repeatable numbers (splitmix64).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// A number from `from` up to `to`, both included.
    pub(crate) fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }

    /// `len` values between -2 and 2.
    pub(crate) fn values(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() >> 40) as f32 / (1 << 22) as f32 - 2.0).collect()
    }
}

/// `count` values from `from` to `to` in equal steps.
pub(super) fn spread(from: f32, to: f32, count: usize) -> impl Iterator<Item = f32> {
    (0..count).map(move |i| from + (to - from) * (i as f32 / (count - 1) as f32))
}

pub(super) fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

/// `sum of a * b`: the scalar whose gradient is `b` where `a` is an output.
pub(super) fn weighted(a: &[f64], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, &b)| a * f64::from(b)).sum()
}

/// Every value within `tolerance` of the reference, measured against the largest of the reference.
#[track_caller]
pub(super) fn assert_close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: lengths");
    let largest = expected.iter().fold(1e-3f64, |largest, v| largest.max(v.abs()));
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs() / largest;
        assert!(error <= tolerance, "{what}[{index}]: {found} for {expected} (error {error:e})");
    }
}

/// Entries of a gradient that [`assert_gradient`] looks at.
const SAMPLES: usize = 32;

/// `gradient` is that of `loss` at `at`, by central differences in f64 on every entry, or on some of many.
#[track_caller]
pub(super) fn assert_gradient(what: &str, gradient: &[f32], at: &[f32], loss: impl Fn(&[f64]) -> f64) {
    const STEP: f64 = 1e-4;
    const TOLERANCE: f64 = 2e-5;
    assert_eq!(gradient.len(), at.len(), "{what}: lengths");
    let largest = gradient.iter().fold(1e-3f64, |largest, v| largest.max(f64::from(v.abs())));
    let mut point = to_f64(at);
    let mut numbers = Numbers::new(at.len() as u64);
    for sample in 0..at.len().min(SAMPLES) {
        let index = if at.len() <= SAMPLES { sample } else { numbers.below(at.len()) };
        let middle = point[index];
        point[index] = middle + STEP;
        let above = loss(&point);
        point[index] = middle - STEP;
        let below = loss(&point);
        point[index] = middle;
        let expected = (above - below) / (2.0 * STEP);
        let error = (f64::from(gradient[index]) - expected).abs() / largest;
        assert!(error <= TOLERANCE, "{what}[{index}]: {} for {expected} (error {error:e})", gradient[index]);
    }
}

/// The standard normal distribution at `x`: cumulative probability and density.
pub(super) fn normal_f64(x: f64) -> (f64, f64) {
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let z = x.abs();
    let tail = match z < 4.0 {
        // The middle by its series, of which every term is positive.
        true => {
            let (mut term, mut sum, mut n) = (z, z, 1.0);
            while term > sum * 1e-18 {
                n += 2.0;
                term *= z * z / n;
                sum += term;
            }
            0.5 - density * sum
        }
        // The tail by its continued fraction.
        false => density / (1..200).rev().fold(z, |fraction, n| z + f64::from(n) / fraction),
    };
    (if x > 0.0 { 1.0 - tail } else { tail }, density)
}
