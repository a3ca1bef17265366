//! Rotary position embedding: pairs of values turned by an angle that grows with the token's position.
//!
//! Takes rows of heads and a [`Table`] of angles, and turns the rows in place. Value `j` of a head pairs with
//! value `j + half`, as in Hugging Face's models; a rotation's gradient is the rotation back. The angles
//! follow the positions on one axis (text), two (row and column of an image patch) or three (time, row and
//! column).

use super::{RowsMut, rows_per_task};
use crate::products::fits;
use crate::simd::vectorised;
use rayon::prelude::*;

/// Which axis turns each pair of a head, and how fast.
#[derive(Debug, Clone, PartialEq)]
pub struct Frequencies {
    pairs: Vec<(usize, f32)>,
}

impl Frequencies {
    /// The first half of the pairs follows the row, the second the column, each with all frequencies of its
    /// own.
    pub fn two_axes(head_dim: usize, theta: f32) -> Self {
        let axis = head_dim / 4;
        Self { pairs: (0..2 * axis).map(|j| (j / axis, frequency(j % axis, axis, theta))).collect() }
    }

    /// One run of frequencies over the whole head, of which axis `i` takes the next `sections[i]` pairs.
    pub fn sections(sections: &[usize], theta: f32) -> Self {
        let half = sections.iter().sum();
        let axes = sections.iter().enumerate().flat_map(|(axis, &count)| std::iter::repeat_n(axis, count));
        Self { pairs: axes.enumerate().map(|(j, axis)| (axis, frequency(j, half, theta))).collect() }
    }

    /// Pairs of a head: half its size.
    pub fn half(&self) -> usize {
        self.pairs.len()
    }

    /// Writes the cosines and sines of every token; `positions[axis][token]`.
    pub fn fill(&self, positions: &[&[u32]], cos: &mut [f32], sin: &mut [f32]) {
        let half = self.half();
        assert!(half > 0 && cos.len() == sin.len(), "lengths of a table of angles");
        let tokens = cos.len() / half;
        assert!(positions.iter().all(|axis| axis.len() == tokens), "one position a token on every axis");
        let tables = cos.par_chunks_mut(half).zip(sin.par_chunks_mut(half));
        tables.enumerate().with_min_len(64).for_each(|(token, (cos, sin))| {
            for ((cos, sin), &(axis, frequency)) in cos.iter_mut().zip(sin).zip(&self.pairs) {
                // The product is rounded to f32, as it is in Hugging Face's models.
                (*sin, *cos) = (positions[axis][token] as f32 * frequency).sin_cos();
            }
        });
    }
}

/// `theta^(-j / count)`; rounded as PyTorch rounds it, the power first, then its inverse.
fn frequency(j: usize, count: usize, theta: f32) -> f32 {
    1.0 / (f64::from(theta).powf(f64::from(j as f32 / count as f32)) as f32)
}

/// The angles of a batch: `tokens x half` cosines and sines.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    /// Cosines.
    pub cos: &'a [f32],
    /// Sines.
    pub sin: &'a [f32],
    /// Pairs of a head.
    pub half: usize,
}

/// Turns the first `heads` heads of every row.
pub fn forward(rows: RowsMut<'_>, heads: usize, table: Table<'_>) {
    turn::<false>(rows, heads, table);
}

/// Turns gradients back: the inverse of [`forward`].
pub fn backward(rows: RowsMut<'_>, heads: usize, table: Table<'_>) {
    turn::<true>(rows, heads, table);
}

fn turn<const BACK: bool>(rows: RowsMut<'_>, heads: usize, table: Table<'_>) {
    let RowsMut { data: rows, stride } = rows;
    let Table { cos, sin, half } = table;
    assert!(half > 0 && cos.len() == sin.len(), "angles of a rotation");
    let used = heads.checked_mul(2).and_then(|values| values.checked_mul(half));
    let used = used.expect("heads of a rotation that memory can hold");
    assert!(fits(cos.len() / half, used, stride, rows.len()), "rows of a rotation");
    let count = rows_per_task(used);
    let angles = count.saturating_mul(half);
    let parts =
        (rows.par_chunks_mut(count.saturating_mul(stride)), cos.par_chunks(angles), sin.par_chunks(angles));
    parts.into_par_iter().for_each(|(rows, cos, sin)| {
        vectorised(
            #[inline(always)]
            || {
                let angles = cos.chunks_exact(half).zip(sin.chunks_exact(half));
                for (row, (cos, sin)) in rows.chunks_mut(stride).zip(angles) {
                    for head in row[..used].chunks_exact_mut(2 * half) {
                        let (first, second) = head.split_at_mut(half);
                        for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                            let sin = if BACK { -sin } else { *sin };
                            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                        }
                    }
                }
            },
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::testing::{Numbers, assert_close, assert_gradient, to_f64, weighted};

    /// All pairs follow one position.
    fn one_axis(head_dim: usize, theta: f32) -> Frequencies {
        Frequencies::sections(&[head_dim / 2], theta)
    }

    /// As Hugging Face writes it: `x * cos + rotate_half(x) * sin` with doubled tables.
    fn reference(rows: &[f64], stride: usize, heads: usize, table: Table<'_>) -> Vec<f64> {
        let (half, mut out) = (table.half, rows.to_vec());
        for token in 0..table.cos.len() / half {
            for head in 0..heads {
                let at = token * stride + head * 2 * half;
                for i in 0..2 * half {
                    let rotated = if i < half { -rows[at + i + half] } else { rows[at + i - half] };
                    let angle = token * half + i % half;
                    let (cos, sin) = (f64::from(table.cos[angle]), f64::from(table.sin[angle]));
                    out[at + i] = rows[at + i] * cos + rotated * sin;
                }
            }
        }
        out
    }

    fn tables(frequencies: &Frequencies, positions: &[&[u32]]) -> (Vec<f32>, Vec<f32>) {
        let len = positions[0].len() * frequencies.half();
        let (mut cos, mut sin) = (vec![0.0; len], vec![0.0; len]);
        frequencies.fill(positions, &mut cos, &mut sin);
        (cos, sin)
    }

    fn angles(frequencies: &Frequencies, positions: &[&[u32]]) -> Vec<f32> {
        let (cos, sin) = tables(frequencies, positions);
        sin.iter().zip(cos).map(|(sin, cos)| sin.atan2(cos)).collect()
    }

    #[test]
    fn heads_turn_by_the_formula_and_the_rest_of_a_row_stays() {
        let mut numbers = Numbers::new(1);
        for (tokens, heads, head_dim, gap) in
            [(1, 1, 4, 0), (9, 3, 20, 7), (50, 10, 128, 256), (33, 8, 80, 80)]
        {
            let stride = heads * head_dim + gap;
            let positions: Vec<u32> = (0..tokens).map(|_| numbers.below(3000) as u32).collect();
            let frequencies = one_axis(head_dim, 1e6);
            let (cos, sin) = tables(&frequencies, &[&positions]);
            let table = Table { cos: &cos, sin: &sin, half: head_dim / 2 };
            // The last row ends with its heads, as it does where rows are a part of wider ones.
            let start = numbers.values(tokens * stride - gap);
            let mut rows = start.clone();
            forward(RowsMut { data: &mut rows, stride }, heads, table);
            assert_close("rows", &rows, &reference(&to_f64(&start), stride, heads, table), 1e-6);
            backward(RowsMut { data: &mut rows, stride }, heads, table);
            assert_close("there and back", &rows, &to_f64(&start), 1e-6);
        }
    }

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let mut numbers = Numbers::new(2);
        let (cos, sin) = tables(&Frequencies::two_axes(16, 1e4), &[&[0, 3, 9], &[5, 1, 2]]);
        let table = Table { cos: &cos, sin: &sin, half: 8 };
        let (x, grad_out) = (numbers.values(3 * 20), numbers.values(3 * 20));
        let mut grad = grad_out.clone();
        backward(RowsMut { data: &mut grad, stride: 20 }, 1, table);
        assert_gradient("x", &grad, &x, |x| weighted(&reference(x, 20, 1, table), &grad_out));
    }

    #[test]
    fn rows_whose_sizes_wrap_are_refused() {
        let refuses = |stride: usize, heads: usize| {
            let (cos, sin) = ([1.0; 18], [0.0; 18]);
            let table = Table { cos: &cos, sin: &sin, half: 2 };
            let turn = || forward(RowsMut { data: &mut [0.0; 64], stride }, heads, table);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(turn)).is_err()
        };
        assert!(!refuses(4, 1));
        // Nine tokens: eight strides of 2^61 wrap to nothing, and so do 2^62 heads of four values.
        assert!(refuses(1 << 61, 1));
        assert!(refuses(4, 1 << 62));
    }

    #[test]
    fn axes_take_their_frequencies() {
        // Small positions and a small theta keep the angles within half a turn, where atan2 gives them back.
        let one = angles(&one_axis(8, 16.0), &[&[3]]);
        assert_close("one axis", &one, &[3.0, 1.5, 0.75, 0.375], 1e-6);
        let two = angles(&Frequencies::two_axes(8, 16.0), &[&[3], &[2]]);
        assert_close("two axes", &two, &[3.0, 0.75, 2.0, 0.5], 1e-6);
        let three = angles(&Frequencies::sections(&[1, 2, 1], 16.0), &[&[3], &[2], &[1]]);
        assert_close("three axes", &three, &[3.0, 1.0, 0.5, 0.125], 1e-6);
    }

    #[test]
    fn frequencies_are_those_of_pytorch() {
        // 1 / (1e6 ** (torch.arange(0, 128, 2) / 128)), entries 1, 31 and 63, and the vision tower's last of
        // 20.
        let text = one_axis(128, 1e6);
        for (j, frequency) in [(1, 0.805_842_2), (31, 0.001_240_937_9), (63, 1.240_937_8e-6)] {
            assert_eq!(text.pairs[j], (0, frequency));
        }
        assert_eq!(Frequencies::two_axes(80, 1e4).pairs[39], (1, 0.000_158_489_33));
    }
}
