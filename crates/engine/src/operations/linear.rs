//! A linear layer, with the LoRA pair beside it in the same product.
//!
//! Takes rows of inputs and a weight of any stored type, and gives `x W^T + bias + scale (x A^T) B^T`; on the
//! way back it gives the gradients of what is trained. The pair's narrow product `scale x A^T` is kept for
//! the backward; the wide products run once for weight and pair together. Frozen weights never get a
//! gradient.

use crate::operations::{Rows, RowsMut};
use crate::products::{
    Matrix, Output, Right, Start, Term, multiply, multiply_rowwise, scratch_len as product_scratch,
};
use crate::simd::vectorised;
use crate::weight::{Elements, StoredAs, Weight};
use rayon::prelude::*;
use std::ops::Range;

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

/// What goes into a layer.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Rows of the layer's inputs.
    pub x: &'a [f32],
    /// Their narrow products, as [`Linear::project`] gives them; empty without a pair.
    pub narrow: &'a [f32],
    /// Number of rows.
    pub rows: usize,
}

/// One linear layer, or a part of one: some of its outputs, or some of its inputs.
///
/// All parts of a layer are to be computed one after another in their order. What is a sum over all parts is
/// begun by the first and complete with the last; what follows from such a sum comes with the last.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// `outputs x inputs` of the whole layer.
    weight: &'a Weight,
    bias: Option<&'a [f32]>,
    lora: Option<Lora<'a>>,
    outputs: Part,
    inputs: Part,
}

/// `count` of `all`, from `first` on.
#[derive(Debug, Clone, Copy)]
struct Part {
    first: usize,
    count: usize,
    all: usize,
}

impl Part {
    fn whole(all: usize) -> Self {
        Self { first: 0, count: all, all }
    }

    fn of(self, range: &Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.all, "a part of a layer leaves it");
        Self { first: range.start, count: range.len(), ..self }
    }

    fn begins(self) -> bool {
        self.first == 0
    }

    fn ends(self) -> bool {
        self.first + self.count == self.all
    }

    /// Where a sum over all parts stands before this one.
    fn start(self) -> Start<'static> {
        if self.begins() { Start::ZERO } else { Start::ACCUMULATE }
    }
}

impl<'a> Linear<'a> {
    /// A whole layer: `weight` is `outputs x inputs`, `bias` has one value an output.
    pub fn new(weight: &'a Weight, bias: Option<&'a [f32]>, lora: Option<Lora<'a>>) -> Self {
        let (outputs, inputs) = (Part::whole(weight.rows()), Part::whole(weight.cols()));
        Self { weight, bias, lora, outputs, inputs }
    }

    /// The part of a whole layer that gives these outputs.
    pub fn of_outputs(self, outputs: &Range<usize>) -> Self {
        Self { outputs: self.outputs.of(outputs), ..self }
    }

    /// The part of a whole layer that reads these inputs; only a layer that is [`Linear::divides_inputs`] has
    /// such parts.
    pub fn of_inputs(self, inputs: &Range<usize>) -> Self {
        Self { inputs: self.inputs.of(inputs), ..self }
    }

    /// Whether there are parts by inputs: columns of a weight can be taken alone where it is stored as f32.
    pub fn divides_inputs(stored: StoredAs) -> bool {
        stored == StoredAs::F32
    }

    /// Outputs of the part.
    pub fn outputs(&self) -> usize {
        self.outputs.count
    }

    /// Inputs of the part.
    pub fn inputs(&self) -> usize {
        self.inputs.count
    }

    /// The first of them.
    pub fn first_input(&self) -> usize {
        self.inputs.first
    }

    /// Whether sums over parts of the outputs begin here: the gradient of the input, and of the narrow
    /// product.
    pub fn begins_outputs(&self) -> bool {
        self.outputs.begins()
    }

    /// Whether they are complete with this part: only then is there a gradient of `A`.
    pub fn ends_outputs(&self) -> bool {
        self.outputs.ends()
    }

    /// Width of the narrow product; zero without a pair.
    pub fn rank(&self) -> usize {
        self.lora.map_or(0, |lora| lora.rank)
    }

    /// `rank x inputs`.
    fn a(&self, lora: Lora<'a>) -> Matrix<'a> {
        Matrix::with_stride(&lora.a[self.inputs.first..], lora.rank, self.inputs.count, self.inputs.all)
    }

    /// `outputs x rank`.
    fn b(&self, lora: Lora<'a>) -> Matrix<'a> {
        Matrix::new(&lora.b[self.outputs.first * lora.rank..], self.outputs.count, lora.rank)
    }

    /// The gradient of the part's outputs.
    fn grad_matrix<'b>(&self, grad: Rows<'b>, rows: usize) -> Matrix<'b> {
        Matrix::with_stride(grad.data, rows, self.outputs.count, grad.stride)
    }

    /// `outputs x inputs`, or that transposed.
    fn matrix(&self, transposed: bool) -> Right<'a> {
        let (weight, Part { first, count, .. }) = (self.weight, self.outputs);
        if self.inputs.count == self.inputs.all {
            return match transposed {
                true => Right::WeightRowsT { weight, first, count },
                false => Right::WeightRows { weight, first, count },
            };
        }
        let Elements::F32(values) = weight.elements() else {
            panic!("a weight stored as {:?} has no parts by inputs", weight.stored_as());
        };
        let values = &values[first * self.inputs.all + self.inputs.first..];
        let matrix = Matrix::with_stride(values, count, self.inputs.count, self.inputs.all);
        Right::Dense(if transposed { matrix.t() } else { matrix })
    }

    /// `narrow = scale x A^T` for `rows` rows; nothing without a pair.
    pub fn project(&self, x: &[f32], rows: usize, narrow: &mut [f32], scratch: &mut [f32]) {
        self.project_by(multiply, x, rows, narrow, scratch);
    }

    /// The same, with the same bits for a row whatever rows are computed with it.
    pub fn project_rowwise(&self, x: &[f32], rows: usize, narrow: &mut [f32], scratch: &mut [f32]) {
        self.project_by(multiply_rowwise, x, rows, narrow, scratch);
    }

    fn project_by(
        &self,
        multiply: impl FnOnce(Output<'_>, Start<'_>, &[Term<'_>], &mut [f32]),
        x: &[f32],
        rows: usize,
        narrow: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Some(lora) = self.lora else { return };
        let left = Matrix::new(x, rows, self.inputs.count);
        let term = Term { left, right: Right::Dense(self.a(lora).t()) };
        multiply(Output::new(narrow, rows, lora.rank), self.inputs.start(), &[term], scratch);
        if self.inputs.ends() {
            scale(&mut narrow[..rows * lora.rank], lora.scale);
        }
    }

    /// `out = x W^T + narrow B^T + bias + residual`; rows of `residual` lie as far apart as those of `out`.
    pub fn forward(&self, input: Input<'_>, out: RowsMut<'_>, residual: Option<&[f32]>, scratch: &mut [f32]) {
        let Input { x, narrow, rows } = input;
        let main = Term { left: Matrix::new(x, rows, self.inputs.count), right: self.matrix(true) };
        let out = Output::with_stride(out.data, rows, self.outputs.count, out.stride);
        let start = match self.inputs.begins() {
            true => Start {
                accumulate: false,
                bias: self.bias.map(|bias| &bias[self.outputs.first..][..self.outputs.count]),
                residual,
            },
            false => Start::ACCUMULATE,
        };
        match self.lora.filter(|_| self.inputs.ends()) {
            None => multiply(out, start, &[main], scratch),
            Some(lora) => {
                let left = Matrix::new(narrow, rows, lora.rank);
                let pair = Term { left, right: Right::Dense(self.b(lora).t()) };
                multiply(out, start, &[main, pair], scratch);
            }
        }
    }

    /// `grad_narrow = scale grad B`: what flows into the narrow product.
    pub fn backward_narrow(&self, grad: Rows<'_>, rows: usize, grad_narrow: &mut [f32], scratch: &mut [f32]) {
        let Some(lora) = self.lora.filter(|_| self.inputs.begins()) else { return };
        let left = self.grad_matrix(grad, rows);
        let term = Term { left, right: Right::Dense(self.b(lora)) };
        multiply(Output::new(grad_narrow, rows, lora.rank), self.outputs.start(), &[term], scratch);
        if self.outputs.ends() {
            scale(&mut grad_narrow[..rows * lora.rank], lora.scale);
        }
    }

    /// Adds the gradient of `A` to that of the whole layer's.
    pub fn backward_a(
        &self,
        grad_narrow: &[f32],
        x: &[f32],
        rows: usize,
        grad_a: &mut [f32],
        scratch: &mut [f32],
    ) {
        if self.outputs.ends() {
            let Part { first, count, all } = self.inputs;
            let (grad, x) = (Matrix::new(grad_narrow, rows, self.rank()), Matrix::new(x, rows, count));
            add_product(grad, x, RowsMut { data: &mut grad_a[first..], stride: all }, scratch);
        }
    }

    /// Adds the gradient of `B` to that of the whole layer's.
    pub fn backward_b(
        &self,
        grad: Rows<'_>,
        narrow: &[f32],
        rows: usize,
        grad_b: &mut [f32],
        scratch: &mut [f32],
    ) {
        if self.inputs.ends() {
            let rank = self.rank();
            let grad_b = RowsMut { data: &mut grad_b[self.outputs.first * rank..], stride: rank };
            add_product(self.grad_matrix(grad, rows), Matrix::new(narrow, rows, rank), grad_b, scratch);
        }
    }

    /// Adds the gradient of the weight to that of the whole layer's.
    pub fn backward_weight(
        &self,
        grad: Rows<'_>,
        x: &[f32],
        rows: usize,
        grad_weight: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Part { first, count, all } = self.inputs;
        let grad_weight = RowsMut { data: &mut grad_weight[self.outputs.first * all + first..], stride: all };
        add_product(self.grad_matrix(grad, rows), Matrix::new(x, rows, count), grad_weight, scratch);
    }

    /// Adds the gradient of the bias, the sum of the rows in their order.
    pub fn backward_bias(&self, grad: Rows<'_>, rows: usize, grad_bias: &mut [f32]) {
        if !self.inputs.ends() {
            return;
        }
        let grad_bias = &mut grad_bias[self.outputs.first..][..self.outputs.count];
        for row in grad.data.chunks(grad.stride).take(rows) {
            for (sum, grad) in grad_bias.iter_mut().zip(row) {
                *sum += grad;
            }
        }
    }

    /// The weight's product of those that make up the gradient of the input; layers that share an input add
    /// theirs in one call, parts of the outputs go on where those before them ended.
    pub fn weight_input_term<'b>(&self, grad: Rows<'b>, rows: usize) -> Term<'b>
    where
        'a: 'b,
    {
        let left = self.grad_matrix(grad, rows);
        Term { left, right: self.matrix(false) }
    }

    /// The pair's product among them: apart from the weight's where dropout lies between the input and the
    /// pair.
    pub fn pair_input_term<'b>(&self, grad_narrow: &'b [f32], rows: usize) -> Option<Term<'b>>
    where
        'a: 'b,
    {
        self.lora.filter(|_| self.outputs.ends()).map(|lora| Term {
            left: Matrix::new(grad_narrow, rows, lora.rank),
            right: Right::Dense(self.a(lora)),
        })
    }
}

/// Adds the gradient of a matrix `y = x M^T`: `grad^T x`, shaped as the matrix.
pub fn backward_matrix(grad: Matrix<'_>, x: Matrix<'_>, grad_matrix: &mut [f32], scratch: &mut [f32]) {
    let stride = x.cols();
    add_product(grad, x, RowsMut { data: grad_matrix, stride }, scratch);
}

/// The same where rows of the matrix lie further apart.
fn add_product(grad: Matrix<'_>, x: Matrix<'_>, grad_matrix: RowsMut<'_>, scratch: &mut [f32]) {
    let out = Output::with_stride(grad_matrix.data, grad.cols(), x.cols(), grad_matrix.stride);
    let term = Term { left: grad.t(), right: Right::Dense(x) };
    multiply(out, Start::ACCUMULATE, &[term], scratch);
}

/// Values of scratch for all of a layer's products on `rows` rows, weight gradients included when `trained`.
pub fn scratch_len(rows: usize, outputs: usize, inputs: usize, rank: usize, trained: bool) -> usize {
    let forward = product_scratch(rows, inputs.saturating_add(rank));
    let backward = product_scratch(rows, outputs.saturating_add(rank));
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
    fn objective([weight, bias, a, b, x]: [&[f32]; 5], probe: &[f32], scale: f64) -> f64 {
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

    /// How a layer is computed.
    #[derive(Debug, Clone, Copy)]
    enum Divided {
        Not,
        ByOutputs,
        ByInputs,
    }

    impl Divided {
        /// Outputs and inputs of every part.
        fn parts(self, outputs: usize, inputs: usize) -> Vec<[Range<usize>; 2]> {
            match self {
                Self::Not => vec![[0..outputs, 0..inputs]],
                Self::ByOutputs => vec![[0..4, 0..inputs], [4..5, 0..inputs], [5..outputs, 0..inputs]],
                Self::ByInputs => vec![[0..outputs, 0..3], [0..outputs, 3..8], [0..outputs, 8..inputs]],
            }
        }
    }

    /// The columns of some rows, row by row.
    fn columns(rows: &[f32], width: usize, columns: &Range<usize>) -> Vec<f32> {
        rows.chunks_exact(width).flat_map(|row| &row[columns.clone()]).copied().collect()
    }

    #[test]
    fn forward_and_every_gradient_agree_with_differences_in_f64() {
        for divided in [Divided::Not, Divided::ByOutputs, Divided::ByInputs] {
            agrees_with_differences(divided);
        }
    }

    fn agrees_with_differences(divided: Divided) {
        let (outputs, inputs, scale) = (9, 11, 0.5f32);
        let (w, bias) = (wave(outputs * inputs, 0.3), wave(outputs, 0.7));
        let (a, b) = (wave(RANK * inputs, 0.9), wave(outputs * RANK, 1.3));
        let (x, probe) = (wave(ROWS * inputs, 0.21), wave(ROWS * outputs, 0.57));
        let weight = Weight::quantise(outputs, inputs, &w, StoredAs::F32).unwrap();
        let lora = Some(Lora { a: &a, b: &b, rank: RANK, scale });
        let whole = Linear::new(&weight, Some(&bias), lora);
        let parts = divided.parts(outputs, inputs);
        let parts =
            parts.iter().map(|[o, i]| (whole.of_outputs(o).of_inputs(i), o, columns(&x, inputs, i), i));
        let mut scratch = vec![0.0; scratch_len(ROWS, outputs, inputs, RANK, true)];
        let (mut narrow, mut out) = (vec![0.0; ROWS * RANK], vec![f32::NAN; ROWS * outputs]);
        for (part, o, x, _) in parts.clone() {
            part.project(&x, ROWS, &mut narrow, &mut scratch);
            let out = RowsMut { data: &mut out[o.start..], stride: outputs };
            part.forward(Input { x: &x, narrow: &narrow, rows: ROWS }, out, None, &mut scratch);
        }
        let value = |arguments: [&[f32]; 5]| objective(arguments, &probe, f64::from(scale));
        let found: f64 = out.iter().zip(&probe).map(|(o, p)| f64::from(*o) * f64::from(*p)).sum();
        assert!((found - value([&w, &bias, &a, &b, &x])).abs() < 1e-4, "{divided:?}");

        let mut grad_narrow = vec![f32::NAN; ROWS * RANK];
        let mut grads = [&w, &bias, &a, &b, &x].map(|values| vec![0.0; values.len()]);
        let [grad_w, grad_bias, grad_a, grad_b, grad_x] = &mut grads;
        for (part, o, x, i) in parts {
            let grad = Rows { data: &probe[o.start..], stride: outputs };
            part.backward_narrow(grad, ROWS, &mut grad_narrow, &mut scratch);
            part.backward_weight(grad, &x, ROWS, grad_w, &mut scratch);
            part.backward_bias(grad, ROWS, grad_bias);
            part.backward_a(&grad_narrow, &x, ROWS, grad_a, &mut scratch);
            part.backward_b(grad, &narrow, ROWS, grad_b, &mut scratch);
            let mut terms = vec![part.weight_input_term(grad, ROWS)];
            terms.extend(part.pair_input_term(&grad_narrow, ROWS));
            let start = if part.begins_outputs() { Start::ZERO } else { Start::ACCUMULATE };
            let to = Output::with_stride(&mut grad_x[i.start..], ROWS, i.len(), inputs);
            multiply(to, start, &terms, &mut scratch);
        }

        // The objective is linear in each argument alone, so any step gives the exact derivative.
        for which in 0..5 {
            for at in 0..grads[which].len() {
                let mut arguments = [w.clone(), bias.clone(), a.clone(), b.clone(), x.clone()];
                let mut at_offset = |offset: f32| {
                    arguments[which][at] += offset;
                    value(arguments.each_ref().map(Vec::as_slice))
                };
                let difference = (at_offset(0.5) - at_offset(-1.0)) / 1.0;
                let found = f64::from(grads[which][at]);
                assert!(
                    (found - difference).abs() < 1e-4,
                    "{divided:?}, argument {which} at {at}: {found}, not {difference}"
                );
            }
        }
    }
}
