//! Scalar functions and sums, written so that a loop over them becomes vector instructions.
//!
//! Functions are exact to about one unit in the last place, without a branch or a call. Sums have sixteen
//! fixed lanes. NaN stays NaN: a run that diverged must show it. Everything is inlined into the caller's
//! loop, which decides the instruction set.

/// Lanes of a sum: one AVX-512 register, two of AVX2. Fixed, so that every machine adds in the same order.
const LANES: usize = 16;

/// `e^x`; 0 below the smallest normal result, infinity above the largest.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LOWEST: f32 = -87.336_54;
    const HIGHEST: f32 = 88.722_83;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first short enough for `n * HIGH` to be exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x < LOWEST { LOWEST } else { x };
    let clamped = if clamped > HIGHEST { HIGHEST } else { clamped };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    // The Taylor polynomial: |r| <= ln 2 / 2, where its first missing term is 5e-9 of the result.
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    // 2^n in two factors, since n may be 128 where the largest power of two is 127.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let result = p * power(half) * power(n.wrapping_sub(half));
    let result = if x < LOWEST { 0.0 } else { result };
    if x > HIGHEST { f32::INFINITY } else { result }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The standard normal distribution at `x`: its cumulative probability and its density.
#[inline(always)]
pub(super) fn normal(x: f32) -> (f32, f32) {
    // The tail beyond |x| is e^(-x*x/2) times a polynomial in t = 1 / (1 + 0.34 |x|), fitted for the least
    // relative error over |x| <= 14: 3e-7 when evaluated in f32.
    const FIT: [f32; 9] = [
        -0.026_120_158,
        0.139_497_8,
        -0.273_129,
        0.202_178_22,
        -0.044_715_33,
        0.115_357_846,
        0.115_197_99,
        0.136_112_15,
        0.135_620_5,
    ];
    let t = 1.0 / (1.0 + 0.34 * x.abs());
    let mut p = 0.0;
    for c in FIT {
        p = p * t + c;
    }
    let bell = exp(-0.5 * x * x);
    let tail = p * t * bell;
    let below = if x > 0.0 { 1.0 - tail } else { tail };
    const INVERSE_ROOT_TWO_PI: f32 = 0.398_942_3;
    (below, bell * INVERSE_ROOT_TWO_PI)
}

/// Lanes into one, by halves.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// `sum of a * b`, in [`LANES`] lanes that are added up at the end.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b[..a.len()].as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i];
        }
    }
    a_rest.iter().zip(b_rest).fold(fold(lanes, |a, b| a + b), |sum, (a, b)| sum + a * b)
}

/// `sum of a * b * c`, likewise.
#[inline(always)]
pub(super) fn dot3(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b[..a.len()].as_chunks::<LANES>();
    let (c_chunks, c_rest) = c[..a.len()].as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for ((a, b), c) in a_chunks.iter().zip(b_chunks).zip(c_chunks) {
        for i in 0..LANES {
            lanes[i] += a[i] * b[i] * c[i];
        }
    }
    let rest = a_rest.iter().zip(b_rest).zip(c_rest);
    rest.fold(fold(lanes, |a, b| a + b), |sum, ((a, b), c)| sum + a * b * c)
}

/// The largest value; NaN counts as none.
#[inline(always)]
pub(super) fn largest(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*value, *lane);
        }
    }
    rest.iter().fold(fold(lanes, larger), |found, value| larger(*value, found))
}

/// What exponentials are taken below, where `highest` is the highest value so far: itself, or 0 where there
/// is none yet. Values that are all minus infinity then give zeros instead of NaN, and a later value finds
/// nothing to bring down.
#[inline(always)]
pub(super) fn reference(highest: f32) -> f32 {
    if highest == f32::NEG_INFINITY { 0.0 } else { highest }
}

/// Replaces every value by `e^(value - below)`; gives their sum.
#[inline(always)]
pub(super) fn exponentials(values: &mut [f32], below: f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (chunks, rest) = values.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for (value, lane) in chunk.iter_mut().zip(&mut lanes) {
            *value = exp(*value - below);
            *lane += *value;
        }
    }
    rest.iter_mut().fold(fold(lanes, |a, b| a + b), |sum, value| {
        *value = exp(*value - below);
        sum + *value
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::testing::{assert_close, normal_f64, spread};

    #[test]
    fn exp_is_right_to_two_units_in_the_last_place() {
        for x in spread(-87.3, 88.7, 200_001) {
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) / expected - 1.0).abs();
            assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}) is off by {error:e}");
        }
    }

    #[test]
    fn exp_keeps_what_is_not_a_number_and_saturates() {
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e9), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
    }

    #[test]
    fn the_normal_distribution_is_right_in_both_tails() {
        for x in spread(-12.0, 12.0, 100_001) {
            let (below, density) = normal(x);
            let (expected_below, expected_density) = normal_f64(f64::from(x));
            assert!((f64::from(below) - expected_below).abs() < 2e-7, "{x}: {below} for {expected_below}");
            assert!((f64::from(density) - expected_density).abs() < 2e-7, "{x}: {density}");
            // The argument of the exponential is itself rounded, so far out the relative error grows with
            // x*x.
            let relative = (f64::from(below) / expected_below - 1.0).abs();
            assert!(relative < 1e-6 + 1e-7 * f64::from(x * x), "{x}: relative {relative:e}");
        }
        assert!(normal(f32::NAN).0.is_nan());
    }

    #[test]
    fn the_largest_is_found_at_any_place() {
        for len in [1, 15, 16, 33] {
            for at in 0..len {
                let mut values = vec![-1.0; len];
                values[at] = 2.0;
                values[(at + 1) % len] = if len > 1 { f32::NAN } else { 2.0 };
                assert_eq!(largest(&values), 2.0, "{at} of {len}");
            }
        }
        assert_eq!(largest(&[]), f32::NEG_INFINITY);
    }

    #[test]
    fn exponentials_come_with_their_sum() {
        let mut scores = [0.0, 2.0f32.ln(), f32::NEG_INFINITY];
        let sum = exponentials(&mut scores, 0.0);
        assert_close("exponentials", &[scores[0], scores[1], scores[2], sum], &[1.0, 2.0, 0.0, 3.0], 1e-6);
    }

    #[test]
    fn sums_take_every_value_once_whatever_the_length() {
        for len in [0, 1, 15, 16, 17, 100] {
            let values: Vec<f32> = (1..=len).map(|i| i as f32).collect();
            let expected: f32 = values.iter().map(|v| v * v).sum();
            assert_eq!(dot(&values, &values), expected, "{len} values");
            let expected: f32 = values.iter().map(|v| v * v * v).sum();
            assert!((dot3(&values, &values, &values) - expected).abs() <= expected * 1e-6, "{len} values");
        }
    }
}
