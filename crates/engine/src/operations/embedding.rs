//! Token embedding: rows of the vocabulary's matrix, looked up by id.
//!
//! Takes token ids and the matrix in any stored type, and gives f32 rows, or the matrix's gradient when it is
//! trained. An id beyond the vocabulary comes from an input and is an error that names its place.

use crate::weight::Weight;
use rayon::prelude::*;

/// An id that the vocabulary does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "token {position} has id {id}, but the vocabulary has only {vocabulary}: the tokenizer is not this model's"
)]
pub struct OutOfVocabulary {
    /// Its place among the ids given.
    pub position: usize,
    /// The id.
    pub id: u32,
    /// Rows of the matrix.
    pub vocabulary: usize,
}

/// Copies row `ids[i]` of `table` to row `i` of `out`.
pub fn forward(table: &Weight, ids: &[u32], out: &mut [f32]) -> Result<(), OutOfVocabulary> {
    let width = table.cols();
    assert!(width > 0 && out.len() == ids.len() * width, "rows of an embedding");
    check(ids, table.rows())?;
    let rows = super::rows_per_task(width);
    out.par_chunks_mut(rows * width).zip(ids.par_chunks(rows)).for_each(|(out, ids)| {
        for (out, &id) in out.chunks_exact_mut(width).zip(ids) {
            table.read(id as usize, 0, out);
        }
    });
    Ok(())
}

/// Adds row `i` of `grad_out` to row `ids[i]` of `grad_table`, tokens in their order.
pub fn backward(
    ids: &[u32],
    grad_out: &[f32],
    width: usize,
    grad_table: &mut [f32],
) -> Result<(), OutOfVocabulary> {
    assert!(width > 0 && grad_out.len() == ids.len() * width, "rows of an embedding");
    check(ids, grad_table.len() / width)?;
    // Every task owns some rows of the table and looks for their ids: nothing is shared, and no order is left
    // to chance.
    let rows = (grad_table.len() / width).div_ceil(2 * rayon::current_num_threads()).max(1);
    grad_table.par_chunks_mut(rows * width).enumerate().for_each(|(task, grad_table)| {
        let first = task * rows;
        for (&id, grad) in ids.iter().zip(grad_out.chunks_exact(width)) {
            let row =
                (id as usize).checked_sub(first).and_then(|row| grad_table.chunks_exact_mut(width).nth(row));
            row.into_iter().flatten().zip(grad).for_each(|(to, grad)| *to += grad);
        }
    });
    Ok(())
}

/// Every id is below `vocabulary`.
pub(super) fn check(ids: &[u32], vocabulary: usize) -> Result<(), OutOfVocabulary> {
    match ids.iter().position(|&id| id as usize >= vocabulary) {
        None => Ok(()),
        Some(position) => Err(OutOfVocabulary { position, id: ids[position], vocabulary }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::testing::{Numbers, assert_close, to_f64};
    use crate::weight::StoredAs;

    #[test]
    fn rows_come_out_of_every_stored_type() {
        let mut numbers = Numbers::new(1);
        let (vocabulary, width) = (50, 192);
        let ids: Vec<u32> = (0..300).map(|_| numbers.below(vocabulary) as u32).collect();
        for stored in [StoredAs::F32, StoredAs::Bf16, StoredAs::F16, StoredAs::Int8, StoredAs::Nf4] {
            let values = numbers.values(vocabulary * width);
            let table = Weight::quantise(vocabulary, width, &values, stored).unwrap();
            let mut out = vec![f32::NAN; ids.len() * width];
            forward(&table, &ids, &mut out).unwrap();
            let whole = table.to_f32();
            for (row, &id) in out.chunks_exact(width).zip(&ids) {
                assert_eq!(row, &whole[id as usize * width..][..width], "{stored:?}, id {id}");
            }
        }
    }

    #[test]
    fn the_gradient_adds_up_where_an_id_repeats() {
        let mut numbers = Numbers::new(2);
        let (vocabulary, width) = (23, 5);
        let ids: Vec<u32> = (0..100).map(|_| numbers.below(vocabulary) as u32).collect();
        let grad_out = numbers.values(100 * width);
        let start = numbers.values(vocabulary * width);
        let mut expected = to_f64(&start);
        for (i, &id) in ids.iter().enumerate() {
            for c in 0..width {
                expected[id as usize * width + c] += f64::from(grad_out[i * width + c]);
            }
        }
        let mut grad_table = start;
        backward(&ids, &grad_out, width, &mut grad_table).unwrap();
        assert_close("table", &grad_table, &expected, 1e-6);
    }

    #[test]
    fn an_id_beyond_the_vocabulary_is_named() {
        let table = Weight::from_f32(3, 2, vec![0.0; 6]).unwrap();
        let error = forward(&table, &[0, 2, 3], &mut [0.0; 6]).unwrap_err();
        assert_eq!(error, OutOfVocabulary { position: 2, id: 3, vocabulary: 3 });
        assert_eq!(backward(&[7], &[0.0; 2], 2, &mut [0.0; 6]).unwrap_err().id, 7);
    }
}
