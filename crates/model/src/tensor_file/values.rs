//! Reads bytes of a file as f32 values.
//!
//! Takes bytes of one of the float types and gives f32 values, or the place of the first that is NaN or
//! infinite. Lengths are whole elements: the check of the header guarantees it.

use super::Dtype;
use half::{bf16, f16};

/// Appends `bytes` as f32 to `out`; `Err` holds the place (within `bytes`) and value of the first that is not
/// finite.
pub fn finite_as_f32(dtype: Dtype, bytes: &[u8], out: &mut Vec<f32>) -> Result<(), (usize, f32)> {
    let start = out.len();
    match dtype {
        Dtype::BF16 => out.extend(pairs(bytes).map(|bits| bf16::from_bits(bits).to_f32())),
        Dtype::F16 => out.extend(pairs(bytes).map(|bits| f16::from_bits(bits).to_f32())),
        _ => out.extend(words(bytes).map(f32::from_bits)),
    }
    let added = &out[start..];
    // The sum of magnitudes is finite if every value is and none is huge: one pass that vectorises.
    if added.iter().map(|value| value.abs()).sum::<f32>().is_finite() {
        return Ok(());
    }
    added.iter().position(|value| !value.is_finite()).map_or(Ok(()), |index| Err((index, added[index])))
}

/// Place of the first element of `bytes` that is NaN or infinite: its exponent has all bits set.
pub fn first_not_finite(dtype: Dtype, bytes: &[u8]) -> Option<usize> {
    const BF16_EXPONENT: u16 = 0x7F80;
    const F16_EXPONENT: u16 = 0x7C00;
    const F32_EXPONENT: u32 = 0x7F80_0000;
    match dtype {
        Dtype::BF16 => pairs(bytes).position(|bits| bits & BF16_EXPONENT == BF16_EXPONENT),
        Dtype::F16 => pairs(bytes).position(|bits| bits & F16_EXPONENT == F16_EXPONENT),
        Dtype::F32 => words(bytes).position(|bits| bits & F32_EXPONENT == F32_EXPONENT),
        _ => None,
    }
}

fn pairs(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];

    fn bytes_of(dtype: Dtype, values: &[f32]) -> Vec<u8> {
        let encode = |&value: &f32| match dtype {
            Dtype::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        };
        values.iter().flat_map(encode).collect()
    }

    #[test]
    fn values_come_back_from_every_float_type() {
        for dtype in FLOATS {
            let mut out = vec![7.0];
            finite_as_f32(dtype, &bytes_of(dtype, &[0.5, -2.0, 1024.0]), &mut out).unwrap();
            assert_eq!(out, [7.0, 0.5, -2.0, 1024.0], "{dtype:?}");
        }
    }

    #[test]
    fn what_is_not_finite_is_found_by_both_readers() {
        for dtype in FLOATS {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let bytes = bytes_of(dtype, &[1.0, 2.0, bad, 3.0]);
                assert_eq!(first_not_finite(dtype, &bytes), Some(2), "{dtype:?}");
                assert_eq!(finite_as_f32(dtype, &bytes, &mut Vec::new()).unwrap_err().0, 2, "{dtype:?}");
            }
        }
    }

    #[test]
    fn large_but_finite_values_pass() {
        let bytes = bytes_of(Dtype::F32, &[f32::MAX; 4]);
        assert_eq!(first_not_finite(Dtype::F32, &bytes), None);
        finite_as_f32(Dtype::F32, &bytes, &mut Vec::new()).unwrap();
    }
}
