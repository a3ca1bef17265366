//! The arithmetic of a resize, and the reference for the vectors.
//!
//! Takes bytes and weights and gives bytes: the weighted sum, rounded to nearest and clipped.

use super::{CHANNELS, weights::Weights};

/// Rows that make one output row.
pub(super) struct Inputs<'a> {
    pub rows: &'a [u8],
    /// Where each row begins, and how much it counts; an even number of them.
    pub offsets: &'a [usize],
    pub weights: &'a [i16],
}

/// Half a level, so that dropping the fractional bits rounds to nearest.
pub(super) fn half(precision: u32) -> i32 {
    (1 << precision) >> 1
}

fn level(sum: i32, precision: u32) -> u8 {
    (sum >> precision).clamp(0, 255) as u8
}

/// Resizes a row sideways: channels of `stride` bytes to channels of `plane` bytes.
pub(super) fn narrow(across: &Weights, incoming: &[u8], stride: usize, out: &mut [u8], plane: usize) {
    for channel in 0..CHANNELS {
        let (samples, out) = (&incoming[channel * stride..][..stride], &mut out[channel * plane..][..plane]);
        for (output, (to, window)) in out.iter_mut().zip(&across.windows).enumerate() {
            let products = samples[window.start..window.end].iter().zip(across.of(output));
            let sum: i32 = products.map(|(&sample, &weight)| i32::from(sample) * i32::from(weight)).sum();
            *to = level(sum + half(across.precision), across.precision);
        }
    }
}

/// Makes an output row from rows.
pub(super) fn combine(inputs: &Inputs, precision: u32, out: &mut [u8]) {
    for (x, to) in out.iter_mut().enumerate() {
        let products = inputs.offsets.iter().zip(inputs.weights);
        let sum: i32 =
            products.map(|(&offset, &weight)| i32::from(inputs.rows[offset + x]) * i32::from(weight)).sum();
        *to = level(sum + half(precision), precision);
    }
}
