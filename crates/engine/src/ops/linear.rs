//! A linear layer, with the LoRA pair beside it in the same product.
//!
//! In come rows of inputs and a weight of any stored type; out come `x W^T + bias + scale (x A^T) B^T`, and on the way back
//! the gradients of what is trained. The pair's narrow product `scale x A^T` is kept for the backward; the wide
//! products run once for weight and pair together. Frozen weights never get a gradient.

use crate::product::{Matrix, Output, Right, Start, Term, multiply, scratch_len as product_scratch};
use crate::simd::vectorised;
use crate::weight::Weight;
use rayon::prelude::*;

/// The pair `A` (`rank x inputs`) and `B` (`outputs x rank`).
#[derive(Debug, Clone, Copy)]
pub struct Lora<'a> {
    /// Narrow side.
    pub a: &'a [f32],
    /// Wide side.
    pub b: &'a [f32],
    /// Width between the two.
    pub rank: usize,
    /// What their product is multiplied with.
    pub scale: f32,
}

/// One linear layer.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// `outputs x inputs`.
    pub weight: &'a Weight,
    /// One value an output.
    pub bias: Option<&'a [f32]>,
    /// The pair beside it.
    pub lora: Option<Lora<'a>>,
}

impl<'a> Linear<'a> {
    /// Width of the narrow product; zero without a pair.
    pub fn rank(&self) -> usize {
        self.lora.map_or(0, |lora| lora.rank)
    }

    /// `narrow = scale x A^T` for `rows` rows; nothing without a pair.
    pub fn project(&self, x: &[f32], rows: usize, narrow: &mut [f32], scratch: &mut [f32]) {
        let Some(lora) = self.lora else { return };
        let a = Matrix::new(lora.a, lora.rank, self.weight.cols());
        let term = Term { left: Matrix::new(x, rows, self.weight.cols()), right: Right::Dense(a.t()) };
        multiply(Output::new(narrow, rows, lora.rank), Start::ZERO, &[term], scratch);
        scale(&mut narrow[..rows * lora.rank], lora.scale);
    }

    /// `out = x W^T + narrow B^T + bias + residual`; rows of `out` (and of `residual`) lie `stride` apart.
    pub fn forward(
        &self,
        x: &[f32],
        narrow: &[f32],
        rows: usize,
        (out, stride): (&mut [f32], usize),
        residual: Option<&[f32]>,
        scratch: &mut [f32],
    ) {
        let (outputs, inputs) = (self.weight.rows(), self.weight.cols());
        let main = Term { left: Matrix::new(x, rows, inputs), right: Right::WeightT(self.weight) };
        let out = Output::with_stride(out, rows, outputs, stride);
        let start = Start { accumulate: false, bias: self.bias, residual };
        match self.lora {
            None => multiply(out, start, &[main], scratch),
            Some(lora) => {
                let b = Matrix::new(lora.b, outputs, lora.rank);
                let pair = Term { left: Matrix::new(narrow, rows, lora.rank), right: Right::Dense(b.t()) };
                multiply(out, start, &[main, pair], scratch);
            }
        }
    }

    /// `grad_narrow = scale grad B`: what flows into the narrow product. Rows of `grad` lie `stride` apart.
    pub fn backward_narrow(
        &self,
        (grad, stride): (&[f32], usize),
        rows: usize,
        grad_narrow: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Some(lora) = self.lora else { return };
        let outputs = self.weight.rows();
        let b = Matrix::new(lora.b, outputs, lora.rank);
        let term = Term { left: Matrix::with_stride(grad, rows, outputs, stride), right: Right::Dense(b) };
        multiply(Output::new(grad_narrow, rows, lora.rank), Start::ZERO, &[term], scratch);
        scale(&mut grad_narrow[..rows * lora.rank], lora.scale);
    }

    /// The products that make up the gradient of the input; layers that share an input add theirs in one call.
    pub fn input_terms<'b>(
        &self,
        grad: (&'b [f32], usize),
        grad_narrow: &'b [f32],
        rows: usize,
    ) -> impl Iterator<Item = Term<'b>>
    where
        'a: 'b,
    {
        std::iter::once(self.weight_input_term(grad, rows)).chain(self.pair_input_term(grad_narrow, rows))
    }

    /// The weight's product among them.
    pub fn weight_input_term<'b>(&self, (grad, stride): (&'b [f32], usize), rows: usize) -> Term<'b>
    where
        'a: 'b,
    {
        let left = Matrix::with_stride(grad, rows, self.weight.rows(), stride);
        Term { left, right: Right::Weight(self.weight) }
    }

    /// The pair's product among them: apart from the weight's where dropout lies between the input and the pair.
    pub fn pair_input_term<'b>(&self, grad_narrow: &'b [f32], rows: usize) -> Option<Term<'b>>
    where
        'a: 'b,
    {
        self.lora.map(|lora| Term {
            left: Matrix::new(grad_narrow, rows, lora.rank),
            right: Right::Dense(Matrix::new(lora.a, lora.rank, self.weight.cols())),
        })
    }
}

/// Adds the gradient of a matrix `y = x M^T`: `grad^T x`, shaped as the matrix. Rows of `grad` lie `stride` apart.
pub fn backward_matrix(
    (grad, stride, outputs): (&[f32], usize, usize),
    (x, inputs): (&[f32], usize),
    rows: usize,
    grad_matrix: &mut [f32],
    scratch: &mut [f32],
) {
    let grad = Matrix::with_stride(grad, rows, outputs, stride);
    let term = Term { left: grad.t(), right: Right::Dense(Matrix::new(x, rows, inputs)) };
    multiply(Output::new(grad_matrix, outputs, inputs), Start::ACCUMULATE, &[term], scratch);
}

/// Adds the gradient of a bias: the sum of the rows, in their order.
pub fn backward_bias((grad, stride): (&[f32], usize), rows: usize, grad_bias: &mut [f32]) {
    for row in grad.chunks(stride).take(rows) {
        for (sum, grad) in grad_bias.iter_mut().zip(row) {
            *sum += grad;
        }
    }
}

/// Values of scratch for all of a layer's products on `rows` rows, weight gradients included when `trained`.
pub fn scratch_len(rows: usize, outputs: usize, inputs: usize, rank: usize, trained: bool) -> usize {
    let forward = product_scratch(rows, inputs + rank);
    let backward = product_scratch(rows, outputs + rank);
    let pair = if rank > 0 { product_scratch(rank.max(outputs), rows) } else { 0 };
    let weight = if trained { product_scratch(outputs, rows) } else { 0 };
    forward.max(backward).max(pair).max(weight)
}

/// Values one thread scales: far more than waking it costs.
const STRETCH: usize = 1 << 14;

fn scale(values: &mut [f32], factor: f32) {
    if factor == 1.0 {
        return;
    }
    values.par_chunks_mut(STRETCH).for_each(|values| {
        vectorised(
            #[inline(always)]
            || values.iter_mut().for_each(|value| *value *= factor),
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoredAs;

    fn wave(count: usize, pace: f32) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * pace).sin()).collect()
    }

    /// `sum(out * probe)` in f64, of which the gradients below are the derivatives.
    fn objective(
        weight: &[f32],
        bias: &[f32],
        a: &[f32],
        b: &[f32],
        x: &[f32],
        probe: &[f32],
        scale: f64,
    ) -> f64 {
        let (outputs, inputs) = (bias.len(), x.len() / ROWS);
        let mut sum = 0.0;
        for row in 0..ROWS {
            let x = &x[row * inputs..][..inputs];
            let dot = |m: &[f32], i: usize| -> f64 {
                x.iter().zip(&m[i * inputs..]).map(|(x, m)| f64::from(*x) * f64::from(*m)).sum()
            };
            for o in 0..outputs {
                let pair: f64 = (0..RANK).map(|r| f64::from(b[o * RANK + r]) * dot(a, r)).sum();
                let out = dot(weight, o) + f64::from(bias[o]) + scale * pair;
                sum += out * f64::from(probe[row * outputs + o]);
            }
        }
        sum
    }

    const ROWS: usize = 7;
    const RANK: usize = 3;

    #[test]
    fn forward_and_every_gradient_agree_with_differences_in_f64() {
        let (outputs, inputs, scale) = (9, 11, 0.5f32);
        let (w, bias) = (wave(outputs * inputs, 0.3), wave(outputs, 0.7));
        let (a, b) = (wave(RANK * inputs, 0.9), wave(outputs * RANK, 1.3));
        let (x, probe) = (wave(ROWS * inputs, 0.21), wave(ROWS * outputs, 0.57));
        let weight = Weight::quantise(outputs, inputs, &w, StoredAs::F32).unwrap();
        let lora = Some(Lora { a: &a, b: &b, rank: RANK, scale });
        let linear = Linear { weight: &weight, bias: Some(&bias), lora };
        let mut scratch = vec![0.0; scratch_len(ROWS, outputs, inputs, RANK, true)];
        let (mut narrow, mut out) = (vec![0.0; ROWS * RANK], vec![0.0; ROWS * outputs]);
        linear.project(&x, ROWS, &mut narrow, &mut scratch);
        linear.forward(&x, &narrow, ROWS, (&mut out, outputs), None, &mut scratch);
        let value = |w: &[f32], bias: &[f32], a: &[f32], b: &[f32], x: &[f32]| {
            objective(w, bias, a, b, x, &probe, f64::from(scale))
        };
        let found: f64 = out.iter().zip(&probe).map(|(o, p)| f64::from(*o) * f64::from(*p)).sum();
        assert!((found - value(&w, &bias, &a, &b, &x)).abs() < 1e-4);

        let mut grad_narrow = vec![0.0; ROWS * RANK];
        linear.backward_narrow((&probe, outputs), ROWS, &mut grad_narrow, &mut scratch);
        let mut grads = [&w, &bias, &a, &b, &x].map(|values| vec![0.0; values.len()]);
        let [grad_w, grad_bias, grad_a, grad_b, grad_x] = &mut grads;
        backward_matrix((&probe, outputs, outputs), (&x, inputs), ROWS, grad_w, &mut scratch);
        backward_bias((&probe, outputs), ROWS, grad_bias);
        backward_matrix((&grad_narrow, RANK, RANK), (&x, inputs), ROWS, grad_a, &mut scratch);
        backward_matrix((&probe, outputs, outputs), (&narrow, RANK), ROWS, grad_b, &mut scratch);
        let terms: Vec<Term<'_>> = linear.input_terms((&probe, outputs), &grad_narrow, ROWS).collect();
        multiply(Output::new(grad_x, ROWS, inputs), Start::ZERO, &terms, &mut scratch);

        // The objective is linear in each argument alone, so any step gives the exact derivative.
        for which in 0..5 {
            for at in 0..grads[which].len() {
                let mut arguments = [w.clone(), bias.clone(), a.clone(), b.clone(), x.clone()];
                let mut at_offset = |offset: f32| {
                    arguments[which][at] += offset;
                    let [w, bias, a, b, x] = &arguments;
                    value(w, bias, a, b, x)
                };
                let difference = (at_offset(0.5) - at_offset(-1.0)) / 1.0;
                let found = f64::from(grads[which][at]);
                assert!(
                    (found - difference).abs() < 1e-4,
                    "argument {which} at {at}: {found}, not {difference}"
                );
            }
        }
    }
}
