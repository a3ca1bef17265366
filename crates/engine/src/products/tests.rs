//! Products against a scalar reference in f64, for every storage, layout and edge.

use super::*;
use crate::weight::StoredAs;

fn wave(count: usize, pace: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * pace).sin()).collect()
}

/// `out[i][j] = sum over k of left(i, k) * right(k, j)`, in f64.
fn reference(
    shape: (usize, usize, usize),
    left: impl Fn(usize, usize) -> f32,
    right: impl Fn(usize, usize) -> f32,
) -> Vec<f64> {
    let (m, n, k) = shape;
    let element = |i, j| (0..k).map(|k| f64::from(left(i, k)) * f64::from(right(k, j))).sum();
    (0..m * n).map(|at| element(at / n, at % n)).collect()
}

fn assert_close(found: &[f32], expected: &[f64], what: &str) {
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let distance = (f64::from(*found) - expected).abs();
        assert!(distance < 2e-4, "{what}: element {at} is {found}, not {expected}");
    }
}

fn product(shape: (usize, usize, usize), start: Start<'_>, terms: &[Term<'_>], out: &mut [f32]) {
    let depth = terms.iter().map(|term| term.left.cols).sum();
    let mut scratch = vec![f32::NAN; scratch_len(shape.0, depth)];
    multiply(Output::new(out, shape.0, shape.1), start, terms, &mut scratch);
}

/// Below, at and beyond every tile, panel and block edge.
const SHAPES: [(usize, usize, usize); 11] = [
    (1, 1, 1),
    (3, 5, 7),
    (14, 32, 64),
    (16, 33, 65),
    (29, 70, 257),
    (43, 300, 128),
    (150, 64, 520),
    (2, 513, 300),
    (30, 200, 1300),
    // Thin enough to be multiplied without packing, in several tasks either way.
    (16, 480, 300),
    (450, 48, 140),
];

/// The interpreter that checks memory accesses takes minutes for the large ones.
fn shapes() -> impl Iterator<Item = (usize, usize, usize)> {
    SHAPES.into_iter().take(if cfg!(miri) { 4 } else { SHAPES.len() })
}

#[test]
fn all_four_layouts_equal_the_reference() {
    for shape in shapes() {
        let (m, n, k) = shape;
        let (x, w) = (wave(m * k, 0.7), wave(k * n, 0.3));
        for (left_t, right_t) in [(false, false), (false, true), (true, false), (true, true)] {
            let left = if left_t { Matrix::new(&x, k, m).t() } else { Matrix::new(&x, m, k) };
            let right = if right_t { Matrix::new(&w, n, k).t() } else { Matrix::new(&w, k, n) };
            let mut out = vec![f32::NAN; m * n];
            product(shape, Start::ZERO, &[Term { left, right: Right::Dense(right) }], &mut out);
            let left_at = |i: usize, p: usize| if left_t { x[p * m + i] } else { x[i * k + p] };
            let right_at = |p: usize, j: usize| if right_t { w[j * k + p] } else { w[p * n + j] };
            let expected = reference(shape, left_at, right_at);
            assert_close(&out, &expected, &format!("{shape:?} {left_t} {right_t}"));
        }
    }
}

#[test]
fn every_stored_type_multiplies_as_its_f32_values() {
    for (m, n, k) in shapes() {
        let (x, w) = (wave(m * k, 0.7), wave(k * n, 0.3));
        for stored in [StoredAs::F32, StoredAs::Bf16, StoredAs::F16, StoredAs::Int8, StoredAs::Nf4] {
            let rows_first = Weight::quantise(n, k, &w, stored).unwrap();
            let depth_first = Weight::quantise(k, n, &w, stored).unwrap();
            let (forward, backward) = (rows_first.to_f32(), depth_first.to_f32());
            let mut out = vec![f32::NAN; m * n];
            let left = Matrix::new(&x, m, k);
            product((m, n, k), Start::ZERO, &[Term { left, right: Right::WeightT(&rows_first) }], &mut out);
            let expected = reference((m, n, k), |i, p| x[i * k + p], |p, j| forward[j * k + p]);
            assert_close(&out, &expected, &format!("{stored:?} forward"));
            product((m, n, k), Start::ZERO, &[Term { left, right: Right::Weight(&depth_first) }], &mut out);
            let expected = reference((m, n, k), |i, p| x[i * k + p], |p, j| backward[p * n + j]);
            assert_close(&out, &expected, &format!("{stored:?} backward"));
        }
    }
}

#[test]
fn terms_bias_residual_and_what_was_there_add_up() {
    // Together deeper than a block: the adapter's term lies in the first one, the other one is cut.
    let (m, n, k, r) = (31, 45, 1150, 6);
    let (x, w) = (wave(m * k, 0.7), wave(k * n, 0.3));
    let (t, b) = (wave(m * r, 0.9), wave(r * n, 0.2));
    let (bias, residual) = (wave(n, 0.1), wave(m * n, 0.4));
    let terms = [
        Term { left: Matrix::new(&t, m, r), right: Right::Dense(Matrix::new(&b, r, n)) },
        Term { left: Matrix::new(&x, m, k), right: Right::Dense(Matrix::new(&w, k, n)) },
    ];
    let products = reference((m, n, k), |i, p| x[i * k + p], |p, j| w[p * n + j]);
    let adapter = reference((m, n, r), |i, p| t[i * r + p], |p, j| b[p * n + j]);
    let expected = |at: usize| products[at] + adapter[at] + f64::from(bias[at % n]) + f64::from(residual[at]);
    let expected: Vec<f64> = (0..m * n).map(expected).collect();
    let mut out = vec![f32::NAN; m * n];
    let start = Start { accumulate: false, bias: Some(&bias), residual: Some(&residual) };
    product((m, n, k), start, &terms, &mut out);
    assert_close(&out, &expected, "bias and residual");
    let mut out = residual.clone();
    product((m, n, k), Start { accumulate: true, bias: Some(&bias), residual: None }, &terms, &mut out);
    assert_close(&out, &expected, "accumulated");
    let mut out = residual.clone();
    product((m, n, 0), Start { accumulate: true, bias: Some(&bias), residual: None }, &[], &mut out);
    let expected: Vec<f64> = (0..m * n).map(|at| f64::from(residual[at] + bias[at % n])).collect();
    assert_close(&out, &expected, "no terms");
}

#[test]
fn thin_products_add_to_what_was_there_inside_wider_rows() {
    for (m, n, k) in [(16, 480, 300), (450, 16, 140)] {
        let stride = n + 16;
        let (x, w, before) = (wave(k * m, 0.7), wave(k * n, 0.3), wave(m * stride, 0.4));
        let mut out = before.clone();
        let term = Term { left: Matrix::new(&x, k, m).t(), right: Right::Dense(Matrix::new(&w, k, n)) };
        let mut scratch = vec![0.0; scratch_len(m, k)];
        multiply(Output::with_stride(&mut out, m, n, stride), Start::ACCUMULATE, &[term], &mut scratch);
        let products = reference((m, n, k), |i, p| x[p * m + i], |p, j| w[p * n + j]);
        let expected: Vec<f64> = (0..m * stride)
            .map(|at| {
                let (row, col) = (at / stride, at % stride);
                f64::from(before[at]) + if col < n { products[row * n + col] } else { 0.0 }
            })
            .collect();
        assert_close(&out, &expected, "thin");
    }
}

#[test]
fn strided_outputs_leave_what_lies_between_rows() {
    let (m, n, k, stride) = (20, 40, 64, 50);
    let (x, w) = (wave(m * k, 0.7), wave(k * n, 0.3));
    let mut out = vec![7.0; m * stride];
    let mut scratch = vec![0.0; scratch_len(m, k)];
    let term = Term { left: Matrix::new(&x, m, k), right: Right::Dense(Matrix::new(&w, k, n)) };
    multiply(Output::with_stride(&mut out, m, n, stride), Start::ZERO, &[term], &mut scratch);
    assert!(out.chunks(stride).all(|row| row[n..].iter().all(|&value| value == 7.0)));
    let expected = reference((m, n, k), |i, p| x[i * k + p], |p, j| w[p * n + j]);
    let rows: Vec<f32> = out.chunks(stride).flat_map(|row| row[..n].to_vec()).collect();
    assert_close(&rows, &expected, "strided");
}

#[test]
fn threads_do_not_change_a_bit() {
    let (m, n, k) = (150, 700, 1300);
    let (x, w) = (wave(m * k, 0.7), wave(k * n, 0.3));
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut out = vec![0.0; m * n];
        let term = Term { left: Matrix::new(&x, m, k), right: Right::Dense(Matrix::new(&w, k, n)) };
        pool.install(|| product((m, n, k), Start::ZERO, &[term], &mut out));
        out
    };
    assert_eq!(run(1), run(3));
}

#[test]
fn the_bits_do_not_depend_on_how_long_the_scratch_is() {
    // Thin either way, the right side transposed: what an adapter multiplies with.
    for (m, n, k) in [(1, 64, 96), (16, 480, 1000), (90, 1024, 200), (450, 48, 140)] {
        let (x, w) = (wave(m * k, 0.7), wave(n * k, 0.3));
        let term = Term { left: Matrix::new(&x, m, k), right: Right::Dense(Matrix::new(&w, n, k).t()) };
        let with_scratch = |len: usize| {
            let mut out = vec![f32::NAN; m * n];
            multiply(Output::new(&mut out, m, n), Start::ZERO, &[term], &mut vec![f32::NAN; len]);
            out.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        let least = scratch_len(m, k);
        assert_eq!(with_scratch(least), with_scratch(least + n * k), "{m} x {n} x {k}");
    }
}

/// Whether `work` refuses by a panic, as a caller's error asks for.
fn refuses<R>(work: impl FnOnce() -> R) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err()
}

#[test]
fn views_whose_sizes_wrap_are_refused() {
    const HUGE: usize = 1 << 61;
    // (9 - 1) * 2^61 wraps to 0: such a view would seem to fit, and every row but the first lie anywhere.
    assert_eq!(extent(9, 16, HUGE), None);
    assert!(refuses(|| Output::with_stride(&mut [0.0; 16], 9, 16, HUGE).rows));
    assert!(refuses(|| Matrix::with_stride(&[0.0; 16], 9, 16, HUGE).rows));
    assert!(refuses(|| Matrix::new(&[0.0; 16], 1 << 32, 1 << 32).rows));
    let weight = Weight::from_f32(4, 2, vec![0.0; 8]).unwrap();
    assert!(refuses(|| Right::WeightRows { weight: &weight, first: usize::MAX, count: 2 }.shape()));
    assert_eq!(scratch_len(usize::MAX, usize::MAX), usize::MAX);
}

#[test]
fn rowwise_the_bits_of_a_row_do_not_depend_on_the_rows_beside_it() {
    // An adapter's narrow product, and the patches of a small image: thin, so that the fastest way would depend on rows.
    for (n, k) in [(16, 96), (64, 11008), (48, 1000), (320, 588)] {
        const ROWS: usize = 40;
        let (x, w) = (wave(ROWS * k, 0.7), wave(n * k, 0.3));
        let rows = |from: usize, count: usize| {
            let left = Matrix::new(&x[from * k..][..count * k], count, k);
            let term = Term { left, right: Right::Dense(Matrix::new(&w, n, k).t()) };
            let (mut out, mut scratch) = (vec![f32::NAN; count * n], vec![f32::NAN; scratch_len(count, k)]);
            multiply_rowwise(Output::new(&mut out, count, n), Start::ZERO, &[term], &mut scratch);
            out.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        let all = rows(0, ROWS);
        for (from, count) in [(0, 1), (7, 8), (39, 1), (3, 29)] {
            assert_eq!(
                rows(from, count),
                all[from * n..][..count * n],
                "{n} x {k}: {count} rows from {from}"
            );
        }
    }
}
