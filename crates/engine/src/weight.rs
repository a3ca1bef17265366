//! A weight matrix in the type it is stored in.
//!
//! Takes the elements as a file holds them, or f32 values to quantise. Whoever multiplies with it dequantises
//! f32 rows a stretch at a time. A [`Weight`] is always `rows x cols`, row by row, and its storage has
//! exactly that many elements: every constructor checks it.

use crate::nf4::{NF4_BLOCK, Nf4};
use crate::storage::Storage;
use half::{bf16, f16};

/// Why numbers do not make a weight.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum WeightError {
    /// The storage has another number of elements than the shape says.
    #[error("{what} has {found} elements where a {rows} x {cols} matrix needs {expected}")]
    Length {
        /// Which part of the weight.
        what: &'static str,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Elements the shape asks for.
        expected: usize,
        /// Elements there are.
        found: usize,
    },
    /// The shape has more elements than any memory holds.
    #[error("a {rows} x {cols} matrix is larger than any memory")]
    TooLarge {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// A value is NaN or infinite, so it cannot be quantised.
    #[error("element {index} is {value}: only finite values can be quantised")]
    NotFinite {
        /// Its place, row by row.
        index: usize,
        /// The value.
        value: f32,
    },
}

/// The types a weight can be stored in; arithmetic is always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoredAs {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// 8-bit codes with one scale a row.
    Int8,
    /// 4-bit NormalFloat codes, blocks of 64, nested 8-bit scales.
    Nf4,
}

/// A `rows x cols` matrix, row by row.
#[derive(Debug, Clone)]
pub struct Weight {
    rows: usize,
    cols: usize,
    elements: Elements,
}

/// The elements of a [`Weight`].
#[derive(Debug, Clone)]
pub enum Elements {
    /// 32-bit floats.
    F32(Storage<f32>),
    /// bfloat16.
    Bf16(Storage<bf16>),
    /// IEEE half precision.
    F16(Storage<f16>),
    /// 8-bit codes; a value is `code * scales[row]`.
    Int8 {
        /// One code an element.
        codes: Storage<i8>,
        /// One scale a row.
        scales: Storage<f32>,
    },
    /// 4-bit NormalFloat.
    Nf4(Nf4),
}

impl Weight {
    /// A weight of `rows x cols` made of `elements`.
    pub fn new(rows: usize, cols: usize, elements: Elements) -> Result<Self, WeightError> {
        let check = |what, expected: usize, found: usize| match expected == found {
            true => Ok(()),
            false => Err(WeightError::Length { what, rows, cols, expected, found }),
        };
        let count = rows.checked_mul(cols).ok_or(WeightError::TooLarge { rows, cols })?;
        match &elements {
            Elements::F32(values) => check("the weight", count, values.len())?,
            Elements::Bf16(values) => check("the weight", count, values.len())?,
            Elements::F16(values) => check("the weight", count, values.len())?,
            Elements::Int8 { codes, scales } => {
                check("the weight", count, codes.len())?;
                check("the row scales", rows, scales.len())?;
            }
            Elements::Nf4(nf4) => check("the weight", count, nf4.len())?,
        }
        Ok(Self { rows, cols, elements })
    }

    /// An owned f32 weight.
    pub fn from_f32(rows: usize, cols: usize, values: Vec<f32>) -> Result<Self, WeightError> {
        Self::new(rows, cols, Elements::F32(values.into()))
    }

    /// `values` stored as `stored`; the only copy made is the result.
    pub fn quantise(rows: usize, cols: usize, values: &[f32], stored: StoredAs) -> Result<Self, WeightError> {
        let expected = rows.checked_mul(cols).ok_or(WeightError::TooLarge { rows, cols })?;
        if values.len() != expected {
            let found = values.len();
            return Err(WeightError::Length { what: "the weight", rows, cols, expected, found });
        }
        let elements = match stored {
            StoredAs::F32 => Elements::F32(values.to_vec().into()),
            StoredAs::Bf16 => {
                Elements::Bf16(values.iter().map(|&v| bf16::from_f32(v)).collect::<Vec<_>>().into())
            }
            StoredAs::F16 => {
                Elements::F16(values.iter().map(|&v| f16::from_f32(v)).collect::<Vec<_>>().into())
            }
            StoredAs::Int8 => quantise_rows(cols, values)?,
            StoredAs::Nf4 => Elements::Nf4(Nf4::quantise(values)?),
        };
        Self::new(rows, cols, elements)
    }

    /// Rows: the outputs of a linear layer.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: the inputs of a linear layer.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The elements as they are stored.
    pub fn elements(&self) -> &Elements {
        &self.elements
    }

    /// The type of the elements.
    pub fn stored_as(&self) -> StoredAs {
        match self.elements {
            Elements::F32(_) => StoredAs::F32,
            Elements::Bf16(_) => StoredAs::Bf16,
            Elements::F16(_) => StoredAs::F16,
            Elements::Int8 { .. } => StoredAs::Int8,
            Elements::Nf4(_) => StoredAs::Nf4,
        }
    }

    /// The f32 values of a weight that is trained; `None` for every other type of storage.
    pub fn f32_mut(&mut self) -> Option<&mut [f32]> {
        match &mut self.elements {
            Elements::F32(values) => Some(values.make_mut()),
            _ => None,
        }
    }

    /// Writes `out.len()` values of row `row`, from column `col` on, as f32; panics where the row has fewer.
    pub fn read(&self, row: usize, col: usize, out: &mut [f32]) {
        if out.is_empty() {
            return;
        }
        let inside = row < self.rows && col < self.cols && out.len() <= self.cols - col;
        assert!(inside, "a part of a row leaves its weight");
        let start = row * self.cols + col;
        let range = start..start + out.len();
        match &self.elements {
            Elements::F32(values) => out.copy_from_slice(&values[range]),
            Elements::Bf16(values) => {
                for (out, value) in out.iter_mut().zip(&values[range]) {
                    *out = value.to_f32();
                }
            }
            Elements::F16(values) => {
                for (out, value) in out.iter_mut().zip(&values[range]) {
                    *out = value.to_f32();
                }
            }
            Elements::Int8 { codes, scales } => {
                let scale = scales[row];
                for (out, code) in out.iter_mut().zip(&codes[range]) {
                    *out = f32::from(*code) * scale;
                }
            }
            Elements::Nf4(nf4) => nf4.dequantise(start, out),
        }
    }

    /// The whole matrix as f32: for tests, merging and export, never for training.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.cols];
        for (row, out) in values.chunks_exact_mut(self.cols.max(1)).enumerate() {
            self.read(row, 0, out);
        }
        values
    }
}

/// Bytes that a `rows x cols` weight takes when stored as `stored`; what a plan counts before any weight
/// exists.
pub fn stored_bytes(rows: usize, cols: usize, stored: StoredAs) -> usize {
    let count = rows.saturating_mul(cols);
    match stored {
        StoredAs::F32 => count.saturating_mul(4),
        StoredAs::Bf16 | StoredAs::F16 => count.saturating_mul(2),
        StoredAs::Int8 => count.saturating_add(rows.saturating_mul(4)),
        StoredAs::Nf4 => {
            let blocks = count.div_ceil(NF4_BLOCK);
            count.div_ceil(2) + blocks + 4 * blocks.div_ceil(crate::nf4::NF4_NESTED_BLOCK)
        }
    }
}

/// Row-wise 8-bit: the largest magnitude of a row becomes 127.
fn quantise_rows(cols: usize, values: &[f32]) -> Result<Elements, WeightError> {
    let mut codes = Vec::with_capacity(values.len());
    let mut scales = Vec::with_capacity(values.len() / cols.max(1));
    for (row, row_values) in values.chunks_exact(cols.max(1)).enumerate() {
        let largest = largest_magnitude(row * cols, row_values)?;
        let inverse = if largest == 0.0 { 0.0 } else { 127.0 / largest };
        codes.extend(row_values.iter().map(|v| (v * inverse).round_ties_even() as i8));
        scales.push(largest / 127.0);
    }
    Ok(Elements::Int8 { codes: codes.into(), scales: scales.into() })
}

/// The largest magnitude of `values`, or the place of the first that is not finite (`start` is the first's
/// place).
pub(crate) fn largest_magnitude(start: usize, values: &[f32]) -> Result<f32, WeightError> {
    let largest = values.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
    // `max` drops NaN, so a second look decides; it is a sum that only a NaN or an infinity can spoil.
    match values.iter().position(|v| !v.is_finite()) {
        None => Ok(largest),
        Some(at) => Err(WeightError::NotFinite { index: start + at, value: values[at] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [StoredAs; 5] = [StoredAs::F32, StoredAs::Bf16, StoredAs::F16, StoredAs::Int8, StoredAs::Nf4];

    fn wave(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 0.37).sin() * 0.1).collect()
    }

    #[test]
    fn every_storage_gives_back_the_values_to_its_own_precision() {
        let values = wave(6 * 80);
        for (stored, tolerance) in ALL.into_iter().zip([0.0, 4e-4, 5e-5, 4e-4, 1.6e-2]) {
            let weight = Weight::quantise(6, 80, &values, stored).unwrap();
            assert_eq!(weight.stored_as(), stored);
            for (index, (back, value)) in weight.to_f32().iter().zip(&values).enumerate() {
                assert!((back - value).abs() <= tolerance, "{stored:?} {index}: {back} for {value}");
            }
        }
    }

    #[test]
    fn a_part_of_a_row_reads_as_the_whole_does() {
        let values = wave(5 * 130);
        for stored in ALL {
            let weight = Weight::quantise(5, 130, &values, stored).unwrap();
            let whole = weight.to_f32();
            let mut part = [0.0; 67];
            weight.read(3, 21, &mut part);
            assert_eq!(part, whole[3 * 130 + 21..3 * 130 + 88], "{stored:?}");
        }
    }

    #[test]
    fn no_part_of_a_row_reaches_into_the_next() {
        let values = wave(4 * 64);
        for stored in ALL {
            let weight = Weight::quantise(4, 64, &values, stored).unwrap();
            let refuses = |row: usize, col: usize, len: usize| {
                let read = || weight.read(row, col, &mut vec![0.0; len]);
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err()
            };
            assert!(!refuses(3, 60, 4) && !refuses(9, 9, 0), "{stored:?}");
            // 2^58 rows of 64 wrap to the first one.
            for (row, col, len) in [(3, 60, 5), (4, 0, 1), (1 << 58, 0, 1), (0, usize::MAX, 2)] {
                assert!(refuses(row, col, len), "{stored:?}: {len} from {row}, {col}");
            }
        }
    }

    #[test]
    fn a_wrong_length_is_refused_with_both_lengths() {
        let error = Weight::from_f32(3, 4, vec![0.0; 11]).unwrap_err();
        assert_eq!(error.to_string(), "the weight has 11 elements where a 3 x 4 matrix needs 12");
    }

    #[test]
    fn a_shape_whose_size_wraps_is_refused_and_planned_in_full() {
        for (rows, cols) in [(1 << 32, 1 << 32), (usize::MAX, 2)] {
            let error = Weight::from_f32(rows, cols, Vec::new()).unwrap_err();
            assert_eq!(error, WeightError::TooLarge { rows, cols });
            assert!(Weight::quantise(rows, cols, &[], StoredAs::Nf4).is_err());
            for stored in ALL {
                assert!(stored_bytes(rows, cols, stored) > usize::MAX / 2, "{stored:?}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_cannot_be_quantised() {
        let mut values = wave(256);
        values[77] = f32::NAN;
        for stored in [StoredAs::Int8, StoredAs::Nf4] {
            let error = Weight::quantise(2, 128, &values, stored).unwrap_err();
            assert!(matches!(error, WeightError::NotFinite { index: 77, .. }), "{error}");
        }
    }

    #[test]
    fn bytes_are_those_of_the_parts() {
        let weight = Weight::quantise(7, 100, &wave(700), StoredAs::Nf4).unwrap();
        assert_eq!(stored_bytes(7, 100, weight.stored_as()), 350 + 11 + 4);
        assert_eq!(stored_bytes(7, 100, StoredAs::Int8), 700 + 28);
    }
}
