//! bitsandbytes' 8-bit codes with a dynamic exponent, for scales of 4-bit weights and for the optimizer's
//! moments.
//!
//! Quantises f32 values in blocks to one byte a value and one f32 scale a block, and back. Maps, rounding and
//! the treatment of zeros are those of bitsandbytes on a CPU, so that states and files agree byte for byte.

use std::sync::OnceLock;

/// Values that share a scale.
pub const DYNAMIC_BLOCK: usize = 256;
/// Bins of the table from a normalised value to its code. bitsandbytes rounds through the same bins: values
/// closer to zero than one bin (3e-5 of the block's largest) share a code.
const BINS: usize = 1 << 16;

/// A code book of 256 values in [-1, 1] with its table of nearest codes.
pub struct DynamicMap {
    values: [f32; 256],
    nearest: Box<[u8]>,
}

impl DynamicMap {
    /// The map with a sign, for first moments.
    pub fn signed() -> &'static Self {
        static MAP: OnceLock<DynamicMap> = OnceLock::new();
        MAP.get_or_init(|| Self::build(true))
    }

    /// The map of numbers that are not negative, for second moments.
    pub fn unsigned() -> &'static Self {
        static MAP: OnceLock<DynamicMap> = OnceLock::new();
        MAP.get_or_init(|| Self::build(false))
    }

    fn build(signed: bool) -> Self {
        let values = code_book(signed);
        let mut code = 0usize;
        let nearest = (0..BINS)
            .map(|bin| {
                let value = -1.0 + (2.0 * bin as f32) / (BINS - 1) as f32;
                while code < 255 && 0.5 * (values[code] + values[code + 1]) < value {
                    code += 1;
                }
                code as u8
            })
            .collect();
        Self { values, nearest }
    }

    /// The values of all codes, ascending.
    pub fn values(&self) -> &[f32; 256] {
        &self.values
    }

    /// The value of a code, before it is scaled.
    #[inline(always)]
    pub fn value(&self, code: u8) -> f32 {
        self.values[usize::from(code)]
    }

    /// Writes the codes of one block and gives its scale. A block of zeros gets scale zero and code zero.
    #[inline(always)]
    pub fn quantise(&self, block: &[f32], codes: &mut [u8]) -> f32 {
        let scale = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        if scale == 0.0 {
            codes.fill(0);
            return scale;
        }
        let inverse = 1.0 / scale;
        for (code, value) in codes.iter_mut().zip(block) {
            let half = ((value * inverse).clamp(-1.0, 1.0) + 1.0) * 0.5;
            // One rounding for product and sum together, as a fused multiply-add gives it: both are exact in
            // f64.
            let bin = (f64::from(half) * (BINS - 1) as f64 + 0.5) as f32;
            *code = self.nearest[bin as usize & (BINS - 1)];
        }
        scale
    }
}

/// For each power of ten from 1e-6 to 1, the middles of equal slices of [0.1, 1]: 1, 2, 4 ... 64 of them with
/// a sign, twice as many without one; then zero and one.
fn code_book(signed: bool) -> [f32; 256] {
    let mut values = vec![0.0f32, 1.0];
    for exponent in 0..7 {
        let slices = if signed { 1usize << exponent } else { 2usize << exponent };
        let power = 10f64.powi(exponent - 6);
        for slice in 0..slices {
            let middle = (boundary(slice, slices) + boundary(slice + 1, slices)) / 2.0;
            values.push((power as f32) * middle);
            if signed {
                values.push(-(power as f32) * middle);
            }
        }
    }
    values.sort_by(f32::total_cmp);
    let mut book = [0.0; 256];
    book.copy_from_slice(&values);
    book
}

/// The i-th of n+1 evenly spaced numbers from 0.1 to 1, counted from the nearer end as `torch.linspace` does.
fn boundary(i: usize, n: usize) -> f32 {
    let step = (1.0f32 - 0.1f32) / n as f32;
    if i < n.div_ceil(2) { step.mul_add(i as f32, 0.1) } else { (-step).mul_add((n - i) as f32, 1.0) }
}
