//! RMS normalisation: every row divided by its root mean square, then weighted.
//!
//! Takes rows as wide as the weight, and gives the normalised rows and, for the backward, one `1 / rms` a
//! row. Rows are independent; the weight's gradient is summed over them in their order.

use super::math::{dot, dot3};
use super::{Write, rows_per_task};
use crate::simd::vectorised;
use rayon::prelude::*;

/// `out = x / rms(x) * weight`, row by row; `inverse_rms` takes one value a row.
pub fn forward(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32], inverse_rms: &mut [f32]) {
    let width = weight.len();
    check(inverse_rms.len(), width, &[x, out]);
    let rows = rows_per_task(width);
    let stretch = rows * width.max(1);
    let parts = (out.par_chunks_mut(stretch), x.par_chunks(stretch), inverse_rms.par_chunks_mut(rows));
    parts.into_par_iter().for_each(|(out, x, inverse_rms)| {
        vectorised(
            #[inline(always)]
            || {
                let rows = out.chunks_exact_mut(width).zip(x.chunks_exact(width));
                for ((out, x), inverse) in rows.zip(inverse_rms) {
                    *inverse = 1.0 / (dot(x, x) / width as f32 + epsilon).sqrt();
                    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                        *out = x * *inverse * weight;
                    }
                }
            },
        );
    });
}

/// The gradient of the rows: `inverse * (weight * g - x * inverse^2 * mean(weight * g * x))`.
pub fn backward(
    x: &[f32],
    weight: &[f32],
    inverse_rms: &[f32],
    grad_out: &[f32],
    write: Write,
    grad_x: &mut [f32],
) {
    let width = weight.len();
    check(inverse_rms.len(), width, &[x, grad_out, grad_x]);
    let rows = rows_per_task(width);
    let stretch = rows * width.max(1);
    let parts = (
        grad_x.par_chunks_mut(stretch),
        x.par_chunks(stretch),
        grad_out.par_chunks(stretch),
        inverse_rms.par_chunks(rows),
    );
    parts.into_par_iter().for_each(|(grad_x, x, grad_out, inverse_rms)| {
        vectorised(
            #[inline(always)]
            || {
                let rows = grad_x.chunks_exact_mut(width).zip(x.chunks_exact(width));
                for (((grad_x, x), grad_out), inverse) in
                    rows.zip(grad_out.chunks_exact(width)).zip(inverse_rms)
                {
                    let along = dot3(x, weight, grad_out) / width as f32 * inverse * inverse;
                    let row = grad_x.iter_mut().zip(x).zip(weight).zip(grad_out);
                    match write {
                        Write::Replace => {
                            row.for_each(|(((to, x), w), g)| *to = inverse * (w * g - x * along))
                        }
                        Write::Add => row.for_each(|(((to, x), w), g)| *to += inverse * (w * g - x * along)),
                    }
                }
            },
        );
    });
}

/// Columns that one task of [`backward_weight`] sums: a cache line of every row at the least.
const COLUMNS: usize = 64;

/// Adds the gradient of the weight: the sum of `g * x * inverse` over the rows.
pub fn backward_weight(x: &[f32], inverse_rms: &[f32], grad_out: &[f32], grad_weight: &mut [f32]) {
    let width = grad_weight.len();
    check(inverse_rms.len(), width, &[x, grad_out]);
    grad_weight.par_chunks_mut(COLUMNS).enumerate().for_each(|(task, grad_weight)| {
        vectorised(
            #[inline(always)]
            || {
                let columns = task * COLUMNS..task * COLUMNS + grad_weight.len();
                let rows = x.chunks_exact(width).zip(grad_out.chunks_exact(width));
                for ((x, grad_out), inverse) in rows.zip(inverse_rms) {
                    let row = grad_weight.iter_mut().zip(&x[columns.clone()]).zip(&grad_out[columns.clone()]);
                    row.for_each(|((to, x), g)| *to += g * x * inverse);
                }
            },
        );
    });
}

fn check(rows: usize, width: usize, all: &[&[f32]]) {
    assert!(width > 0 && all.iter().all(|one| one.len() == rows * width), "rows of a normalisation");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::testing::{Numbers, assert_close, assert_gradient, to_f64, weighted};

    const EPSILON: f32 = 1e-6;

    fn reference(x: &[f64], weight: &[f64]) -> Vec<f64> {
        let width = weight.len();
        let row = |x: &[f64]| {
            let rms = (x.iter().map(|v| v * v).sum::<f64>() / width as f64 + f64::from(EPSILON)).sqrt();
            x.iter().zip(weight).map(|(x, w)| x / rms * w).collect::<Vec<_>>()
        };
        x.chunks_exact(width).flat_map(row).collect()
    }

    struct Case {
        x: Vec<f32>,
        weight: Vec<f32>,
        grad_out: Vec<f32>,
        inverse_rms: Vec<f32>,
    }

    fn case(numbers: &mut Numbers, rows: usize, width: usize) -> Case {
        let [x, grad_out] = [(); 2].map(|()| numbers.values(rows * width));
        Case { x, weight: numbers.values(width), grad_out, inverse_rms: vec![0.0; rows] }
    }

    fn run(case: &mut Case) -> Vec<f32> {
        let mut out = vec![0.0; case.x.len()];
        forward(&case.x, &case.weight, EPSILON, &mut out, &mut case.inverse_rms);
        out
    }

    #[test]
    fn rows_of_any_shape_are_normalised_as_by_the_formula() {
        let mut numbers = Numbers::new(1);
        for (rows, width) in [(1, 1), (3, 7), (5, 64), (70, 515), (2, 20_000)] {
            let mut case = case(&mut numbers, rows, width);
            let out = run(&mut case);
            let expected = reference(&to_f64(&case.x), &to_f64(&case.weight));
            assert_close(&format!("{rows} x {width}"), &out, &expected, 1e-6);
        }
    }

    #[test]
    fn the_gradients_are_those_of_finite_differences() {
        let mut case = case(&mut Numbers::new(2), 5, 37);
        run(&mut case);
        let Case { x, weight, grad_out, inverse_rms } = &case;
        let mut grad_x = vec![f32::NAN; x.len()];
        backward(x, weight, inverse_rms, grad_out, Write::Replace, &mut grad_x);
        assert_gradient("x", &grad_x, x, |x| weighted(&reference(x, &to_f64(weight)), grad_out));
        let mut grad_weight = vec![0.0; weight.len()];
        backward_weight(x, inverse_rms, grad_out, &mut grad_weight);
        assert_gradient("weight", &grad_weight, weight, |w| weighted(&reference(&to_f64(x), w), grad_out));
    }

    #[test]
    fn gradients_add_to_what_is_there() {
        let mut case = case(&mut Numbers::new(3), 40, 600);
        run(&mut case);
        let Case { x, weight, grad_out, inverse_rms } = &case;
        let mut alone = vec![0.0; x.len()];
        backward(x, weight, inverse_rms, grad_out, Write::Replace, &mut alone);
        let mut added = vec![1.0; x.len()];
        backward(x, weight, inverse_rms, grad_out, Write::Add, &mut added);
        assert!(added.iter().zip(&alone).all(|(added, alone)| *added == 1.0 + alone));
        let mut once = vec![0.0; weight.len()];
        backward_weight(x, inverse_rms, grad_out, &mut once);
        let mut twice = once.clone();
        backward_weight(x, inverse_rms, grad_out, &mut twice);
        assert_close("twice", &twice, &to_f64(&once).iter().map(|v| 2.0 * v).collect::<Vec<_>>(), 1e-6);
    }

    #[test]
    fn a_row_of_zeros_stays_finite() {
        let mut case = Case { x: vec![0.0; 8], ..case(&mut Numbers::new(4), 1, 8) };
        assert_eq!(run(&mut case), [0.0; 8]);
        let mut grad_x = [0.0; 8];
        backward(&case.x, &case.weight, &case.inverse_rms, &case.grad_out, Write::Replace, &mut grad_x);
        assert!(grad_x.iter().all(|v| v.is_finite()));
    }
}
