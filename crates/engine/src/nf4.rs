//! 4-bit NormalFloat, bit for bit as bitsandbytes stores it.
//!
//! Takes f32 values, or the parts of a quantised tensor as a file holds them, and gives packed codes and
//! scales, or any stretch of the values again. [`NF4_BLOCK`] values share a scale; the scales minus their mean
//! are themselves 8-bit codes of bitsandbytes' dynamic map, in blocks of [`NF4_NESTED_BLOCK`]. The order of every
//! sum and rounding follows bitsandbytes' CPU code, because a scale that differs by one bit is another model.

mod torch_mean;

use crate::dynamic_map::{DYNAMIC_BLOCK, DynamicMap};
use crate::storage::Storage;
use crate::weight::{WeightError, largest_magnitude};
use torch_mean::torch_mean;

/// Values that share a scale.
pub const NF4_BLOCK: usize = 64;
/// Nf4Scales that share a scale of their own.
pub const NF4_NESTED_BLOCK: usize = DYNAMIC_BLOCK;

/// The sixteen values of a code, the quantiles of a normal distribution.
pub const NF4_CODES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// A tensor in 4-bit NormalFloat; two codes a byte, the first in the high half.
#[derive(Debug, Clone)]
pub struct Nf4 {
    len: usize,
    packed: Storage<u8>,
    scales: Nf4Scales,
}

/// The scale of each block of 64 values.
#[derive(Debug, Clone)]
pub enum Nf4Scales {
    /// As they are.
    Plain(Storage<f32>),
    /// Quantised themselves: `map[codes[i]] * scales[i / 256] + offset`.
    Nested {
        /// One 8-bit code a block.
        codes: Storage<u8>,
        /// One scale per 256 codes.
        scales: Storage<f32>,
        /// What a code stands for.
        map: Box<[f32; 256]>,
        /// The mean of the scales.
        offset: f32,
    },
}

impl Nf4 {
    /// Puts together what a checkpoint holds for a tensor of `len` values.
    pub fn from_parts(len: usize, packed: Storage<u8>, scales: Nf4Scales) -> Result<Self, WeightError> {
        let blocks = len.div_ceil(NF4_BLOCK);
        let check = |what, expected: usize, found: usize| match expected == found {
            true => Ok(()),
            false => Err(WeightError::Length { what, rows: 1, cols: len, expected, found }),
        };
        check("the packed codes", len.div_ceil(2), packed.len())?;
        match &scales {
            Nf4Scales::Plain(scales) => check("the scales", blocks, scales.len())?,
            Nf4Scales::Nested { codes, scales, .. } => {
                check("the scale codes", blocks, codes.len())?;
                check("the nested scales", blocks.div_ceil(NF4_NESTED_BLOCK), scales.len())?;
            }
        }
        Ok(Self { len, packed, scales })
    }

    /// Quantises `values`, nested scales and all.
    pub fn quantise(values: &[f32]) -> Result<Self, WeightError> {
        let (packed, scales) = quantise_values(values)?;
        let scales = quantise_scales(&scales);
        Self::from_parts(values.len(), packed.into(), scales)
    }

    /// Quantises `values` but keeps the scales in f32.
    #[cfg(test)]
    fn quantise_plain(values: &[f32]) -> Result<Self, WeightError> {
        let (packed, scales) = quantise_values(values)?;
        Self::from_parts(values.len(), packed.into(), Nf4Scales::Plain(scales.into()))
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The packed codes.
    pub fn packed(&self) -> &[u8] {
        &self.packed
    }

    /// The scales.
    pub fn scales(&self) -> &Nf4Scales {
        &self.scales
    }

    /// The scale of block `block`.
    #[inline]
    pub(crate) fn scale(&self, block: usize) -> f32 {
        match &self.scales {
            Nf4Scales::Plain(scales) => scales[block],
            Nf4Scales::Nested { codes, scales, map, offset } => {
                map[usize::from(codes[block])] * scales[block / NF4_NESTED_BLOCK] + offset
            }
        }
    }

    /// Writes the values `start..start + out.len()`.
    pub(crate) fn dequantise(&self, start: usize, out: &mut [f32]) {
        let mut at = start;
        let mut rest = out;
        while !rest.is_empty() {
            let in_block = (NF4_BLOCK - at % NF4_BLOCK).min(rest.len());
            let (stretch, behind) = rest.split_at_mut(in_block);
            dequantise_stretch(&self.packed, at, self.scale(at / NF4_BLOCK), stretch);
            at += in_block;
            rest = behind;
        }
    }
}

/// Values `at..at + out.len()`, all of one block.
fn dequantise_stretch(packed: &[u8], mut at: usize, scale: f32, mut out: &mut [f32]) {
    if at % 2 == 1 {
        out[0] = NF4_CODES[usize::from(packed[at / 2] & 15)] * scale;
        out = &mut out[1..];
        at += 1;
    }
    let bytes = &packed[at / 2..];
    let pairs = out.len() / 2;
    for (pair, byte) in out.chunks_exact_mut(2).zip(bytes) {
        pair[0] = NF4_CODES[usize::from(byte >> 4)] * scale;
        pair[1] = NF4_CODES[usize::from(byte & 15)] * scale;
    }
    if out.len() % 2 == 1 {
        out[2 * pairs] = NF4_CODES[usize::from(bytes[pairs] >> 4)] * scale;
    }
}

/// Packed codes and plain scales of `values`.
fn quantise_values(values: &[f32]) -> Result<(Vec<u8>, Vec<f32>), WeightError> {
    let midpoints: [f32; 15] = std::array::from_fn(|i| (NF4_CODES[i] + NF4_CODES[i + 1]) / 2.0);
    let mut packed = Vec::with_capacity(values.len().div_ceil(2));
    let mut scales = Vec::with_capacity(values.len().div_ceil(NF4_BLOCK));
    for (block, values) in values.chunks(NF4_BLOCK).enumerate() {
        let largest = largest_magnitude(block * NF4_BLOCK, values)?;
        // bitsandbytes multiplies a whole block by the inverse, but divides the short last one.
        let whole = values.len() == NF4_BLOCK;
        let divisor = largest.max(1e-38);
        let inverse = 1.0 / divisor;
        let code = |v: f32| {
            let scaled = if whole { v * inverse } else { v / divisor };
            midpoints.iter().filter(|&&m| m < scaled.clamp(-1.0, 1.0)).count() as u8
        };
        for pair in values.chunks(2) {
            let second = pair.get(1).map_or(code(0.0), |&v| code(v));
            packed.push(code(pair[0]) << 4 | second);
        }
        scales.push(if whole { largest } else { divisor });
    }
    Ok((packed, scales))
}

/// The 8-bit form of the block scales.
fn quantise_scales(scales: &[f32]) -> Nf4Scales {
    let map = DynamicMap::signed();
    let offset = torch_mean(scales);
    let mut codes = vec![0; scales.len()];
    let mut nested = Vec::with_capacity(scales.len().div_ceil(NF4_NESTED_BLOCK));
    for (block, codes) in scales.chunks(NF4_NESTED_BLOCK).zip(codes.chunks_mut(NF4_NESTED_BLOCK)) {
        let centred: Vec<f32> = block.iter().map(|scale| scale - offset).collect();
        nested.push(map.quantise(&centred, codes));
    }
    Nf4Scales::Nested { codes: codes.into(), scales: nested.into(), map: Box::new(*map.values()), offset }
}

#[cfg(test)]
mod tests;
