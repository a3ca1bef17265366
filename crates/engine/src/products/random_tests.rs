//! Products of random shapes, layouts, storages and starts against a scalar sum in f64.
//!
//! Every operand is as long as its view asks for and not a value longer, and the output lies between guards:
//! what is read or written outside shows under AddressSanitizer, or in the guards. Fixed shapes are in
//! `tests`.

use super::*;
use crate::operations::testing::Numbers;
use crate::weight::StoredAs;

/// What surrounds the output, and lies between its rows.
const GUARD: f32 = -77.25;

/// One side of a product: the values it stands for, and what they are kept in.
struct Side {
    data: Vec<f32>,
    weight: Option<Weight>,
    rows: usize,
    cols: usize,
    stride: usize,
    transposed: bool,
    /// Rows of the weight before those that count.
    first: usize,
}

impl Side {
    /// `rows x cols` as f32, perhaps transposed in memory, perhaps with gaps between rows.
    fn dense(numbers: &mut Numbers, rows: usize, cols: usize) -> Self {
        let transposed = numbers.below(2) == 0;
        let (lines, width) = if transposed { (cols, rows) } else { (rows, cols) };
        let stride = width + numbers.below(3) * numbers.below(20);
        let data = numbers.values(extent(lines, width, stride).unwrap());
        Self { data, weight: None, rows, cols, stride, transposed, first: 0 }
    }

    /// `rows x cols` as some or all rows of a weight, or of the transpose of one.
    fn weight(numbers: &mut Numbers, rows: usize, cols: usize) -> Self {
        let transposed = numbers.below(2) == 0;
        let (lines, width) = if transposed { (cols, rows) } else { (rows, cols) };
        let (first, after) = (numbers.below(3) * numbers.below(70), numbers.below(2) * numbers.below(5));
        let all = [StoredAs::F32, StoredAs::Bf16, StoredAs::F16, StoredAs::Nf4, StoredAs::Int8];
        // Rows of no columns have nothing to be scaled in 8 bits.
        let stored = all[numbers.below(if width > 0 { all.len() } else { all.len() - 1 })];
        let values = numbers.values((first + lines + after) * width);
        let weight = Weight::quantise(first + lines + after, width, &values, stored).unwrap();
        let (data, weight) = (weight.to_f32(), Some(weight));
        Self { data, weight, rows, cols, stride: width, transposed, first }
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        let (line, place) = if self.transposed { (col, row) } else { (row, col) };
        f64::from(self.data[(self.first + line) * self.stride + place])
    }

    fn matrix(&self) -> Matrix<'_> {
        match self.transposed {
            true => Matrix::with_stride(&self.data, self.cols, self.rows, self.stride).t(),
            false => Matrix::with_stride(&self.data, self.rows, self.cols, self.stride),
        }
    }

    fn right(&self) -> Right<'_> {
        let (first, transposed) = (self.first, self.transposed);
        match &self.weight {
            None => Right::Dense(self.matrix()),
            Some(weight) if transposed && weight.rows() == self.cols => Right::WeightT(weight),
            Some(weight) if !transposed && weight.rows() == self.rows => Right::Weight(weight),
            Some(weight) if transposed => Right::WeightRowsT { weight, first, count: self.cols },
            Some(weight) => Right::WeightRows { weight, first, count: self.rows },
        }
    }
}

struct Case {
    m: usize,
    n: usize,
    stride: usize,
    sides: Vec<(Side, Side)>,
    accumulate: bool,
    bias: Option<Vec<f32>>,
    residual: Option<Vec<f32>>,
    before: Vec<f32>,
}

impl Case {
    fn new(numbers: &mut Numbers) -> Self {
        let m = [numbers.below(4), numbers.between(1, 50), numbers.between(90, 240)][numbers.below(3)];
        // Whole registers of columns are multiplied without packing where the rest allows it.
        let n = [numbers.below(3), numbers.between(1, 80), 16 * numbers.between(1, 8)][numbers.below(3)];
        let side = |numbers: &mut Numbers| {
            let k = [numbers.below(3), numbers.between(1, 90), numbers.between(1100, 1400)][numbers.below(3)];
            let left = Side::dense(numbers, m, k);
            let right = match numbers.below(2) {
                0 => Side::dense(numbers, k, n),
                _ => Side::weight(numbers, k, n),
            };
            (left, right)
        };
        let sides = (0..numbers.below(4)).map(|_| side(numbers)).collect();
        let stride = n + numbers.below(2) * numbers.below(9);
        let len = extent(m, n, stride).unwrap();
        let accumulate = numbers.below(2) == 0;
        let bias = (numbers.below(2) == 0).then(|| numbers.values(n));
        let residual = (!accumulate && numbers.below(2) == 0).then(|| numbers.values(len));
        Self { m, n, stride, sides, accumulate, bias, residual, before: numbers.values(len) }
    }

    /// The sum that belongs at a place, and the magnitudes that it is made of.
    fn expected(&self, row: usize, col: usize) -> (f64, f64) {
        let at = row * self.stride + col;
        let started = self.accumulate.then(|| self.before[at]);
        let bias = self.bias.as_ref().map(|bias| bias[col]);
        let residual = self.residual.as_ref().map(|residual| residual[at]);
        let started = [started, bias, residual].into_iter().flatten().map(f64::from);
        let products = self
            .sides
            .iter()
            .flat_map(|(left, right)| (0..left.cols).map(|k| left.at(row, k) * right.at(k, col)));
        started.chain(products).fold((0.0, 0.0), |(sum, size), value| (sum + value, size + value.abs()))
    }

    /// The output with its guards, after the product.
    fn run(&self) -> Vec<f32> {
        let terms: Vec<Term<'_>> = self
            .sides
            .iter()
            .map(|(left, right)| Term { left: left.matrix(), right: right.right() })
            .collect();
        let depth = terms.iter().map(|term| term.left.cols).sum();
        let mut scratch = vec![f32::NAN; scratch_len(self.m, depth)];
        let mut room = [&[GUARD; 40], &self.before[..], &[GUARD; 40]].concat();
        let gaps = room[40..].chunks_mut(self.stride.max(1)).take(self.m.saturating_sub(1));
        gaps.for_each(|row| row[self.n..].fill(GUARD));
        let out = &mut room[40..40 + self.before.len()];
        let start = Start {
            accumulate: self.accumulate,
            bias: self.bias.as_deref(),
            residual: self.residual.as_deref(),
        };
        multiply(Output::with_stride(out, self.m, self.n, self.stride), start, &terms, &mut scratch);
        room
    }

    fn check(&self, name: &str) {
        let (stride, room) = (self.stride.max(1), self.run());
        for (at, found) in room.iter().enumerate() {
            let place = at.checked_sub(40).filter(|at| *at < self.before.len());
            match place.map(|at| (at / stride, at % stride)).filter(|(_, col)| *col < self.n) {
                Some((row, col)) => {
                    let (expected, size) = self.expected(row, col);
                    let distance = (f64::from(*found) - expected).abs();
                    assert!(
                        distance <= 1e-6 * (1.0 + size),
                        "{name}: ({row}, {col}) is {found}, not {expected}"
                    );
                }
                None => assert_eq!(*found, GUARD, "{name}: {at} lies outside the output"),
            }
        }
    }
}

#[test]
fn any_product_is_the_sum_of_its_parts_and_touches_nothing_else() {
    for seed in 0..if cfg!(miri) { 4 } else { 150 } {
        let case = Case::new(&mut Numbers::new(seed));
        let shape = |(left, right): &(Side, Side)| (left.cols, left.transposed, right.transposed);
        let terms: Vec<_> = case.sides.iter().map(shape).collect();
        case.check(&format!("seed {seed}: {} x {}, stride {}, {terms:?}", case.m, case.n, case.stride));
    }
}

/// A product whose operands hold what is not finite says so where it belongs, and nowhere else.
#[test]
fn what_is_not_finite_reaches_its_own_rows_and_columns_only() {
    for (m, n, k) in [(16, 48, 40), (40, 50, 200), (300, 16, 64)] {
        let mut numbers = Numbers::new(3);
        let (mut x, mut w) = (numbers.values(m * k), numbers.values(k * n));
        (x[2 * k + 1], w[5 * n + 3]) = (f32::NAN, f32::INFINITY);
        let term = Term { left: Matrix::new(&x, m, k), right: Right::Dense(Matrix::new(&w, k, n)) };
        let mut out = vec![0.0; m * n];
        let mut scratch = vec![f32::NAN; scratch_len(m, k)];
        multiply(Output::new(&mut out, m, n), Start::ZERO, &[term], &mut scratch);
        for (at, value) in out.iter().enumerate() {
            let touched = at / n == 2 || at % n == 3;
            assert_eq!(value.is_finite(), !touched, "{m} x {n}: {} {}", at / n, at % n);
        }
    }
}
