//! Matrix products: sums of `left x right` with weights of any stored type, written straight to their place.
//!
//! Computes `start + left_1 x right_1 + left_2 x right_2 + ...`, so that an adapter's product, a bias and a
//! residual cost no pass of their own. The right side is packed a cache-sized panel at a time, and packing is
//! also where a weight is dequantised: the matrix never exists whole in f32. An element is summed in the same
//! order whatever the number of threads, so results are equal to the bit.

pub(crate) mod direct;
mod kernel;
mod pack;
#[cfg(test)]
mod random_tests;
mod schedule;
#[cfg(test)]
mod tests;

pub use pack::prepare_threads;

use crate::simd::{Kernel, Lanes, dispatch};
use crate::weight::Weight;
use rayon::prelude::*;
use schedule::{Blocks, Grid, Span};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A read-only row-major matrix, or the transpose of one.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
    transposed: bool,
}

impl<'a> Matrix<'a> {
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// `rows x cols`, row by row without gaps.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// `rows x cols` whose rows start every `stride` values.
    pub(crate) fn with_stride(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(fits(rows, cols, stride, data.len()), "matrix view leaves its slice");
        Self { data, rows, cols, stride, transposed: false }
    }

    /// The transpose, without moving anything.
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, transposed: !self.transposed, ..self }
    }
}

/// The right side of a product.
#[derive(Debug, Clone, Copy)]
pub enum Right<'a> {
    /// f32 values.
    Dense(Matrix<'a>),
    /// A weight as it is: `rows x cols`.
    Weight(&'a Weight),
    /// `count` rows of a weight, from `first` on.
    WeightRows {
        /// The weight.
        weight: &'a Weight,
        /// The first row.
        first: usize,
        /// How many.
        count: usize,
    },
    /// The transpose of `count` rows of a weight, from `first` on.
    WeightRowsT {
        /// The weight.
        weight: &'a Weight,
        /// The first row.
        first: usize,
        /// How many.
        count: usize,
    },
    /// The transpose of a weight, as a linear layer's forward needs it.
    WeightT(&'a Weight),
}

impl Right<'_> {
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Dense(matrix) => (matrix.rows, matrix.cols),
            Self::Weight(weight) => (weight.rows(), weight.cols()),
            Self::WeightRows { weight, first, count } | Self::WeightRowsT { weight, first, count } => {
                let end = first.checked_add(*count);
                assert!(end.is_some_and(|end| end <= weight.rows()), "rows of a weight leave it");
                match self {
                    Self::WeightRows { .. } => (*count, weight.cols()),
                    _ => (weight.cols(), *count),
                }
            }
            Self::WeightT(weight) => (weight.cols(), weight.rows()),
        }
    }
}

/// One product of a sum.
#[derive(Debug, Clone, Copy)]
pub struct Term<'a> {
    /// `m x k`.
    pub left: Matrix<'a>,
    /// `k x n`.
    pub right: Right<'a>,
}

/// What the sum starts from.
#[derive(Debug, Clone, Copy, Default)]
pub struct Start<'a> {
    /// Whether the output already holds a part of the sum.
    pub accumulate: bool,
    /// Added to every row.
    pub bias: Option<&'a [f32]>,
    /// Added element by element; laid out exactly as the output.
    pub residual: Option<&'a [f32]>,
}

impl Start<'static> {
    /// Nothing: the output is overwritten.
    pub const ZERO: Self = Self { accumulate: false, bias: None, residual: None };
    /// What the output holds.
    pub const ACCUMULATE: Self = Self { accumulate: true, bias: None, residual: None };
}

/// Where a product is written: `rows x cols`, rows `stride` apart.
#[derive(Debug)]
pub struct Output<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> Output<'a> {
    /// Row by row without gaps.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// Rows start every `stride` values; what lies between them is left alone.
    pub(crate) fn with_stride(data: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(fits(rows, cols, stride, data.len()), "output leaves its slice");
        Self { data, rows, cols, stride }
    }
}

/// Values from the first to the last of a strided matrix; `None` where no slice can be so long.
pub(crate) fn extent(rows: usize, cols: usize, stride: usize) -> Option<usize> {
    match (rows, cols) {
        (0, _) | (_, 0) => Some(0),
        _ => (rows - 1).checked_mul(stride)?.checked_add(cols),
    }
}

/// Whether rows of `cols` values, `stride` apart, lie one after another in a slice of `len`.
pub(crate) fn fits(rows: usize, cols: usize, stride: usize, len: usize) -> bool {
    cols <= stride && extent(rows, cols, stride).is_some_and(|extent| extent <= len)
}

/// Products smaller than this many multiplications are not worth waking another thread.
const PARALLEL_FROM: usize = 1 << 18;

/// Values of scratch that [`multiply`] needs for `rows` and the sum of its terms' depths.
pub fn scratch_len(rows: usize, depth: usize) -> usize {
    let (height, pitch) = tile();
    rows.div_ceil(height).saturating_mul(pitch).saturating_mul(depth)
}

/// Rows of a tile and the pitch at which they are packed, for this machine.
fn tile() -> (usize, usize) {
    struct Tile;
    impl Kernel for Tile {
        type Output = (usize, usize);

        fn run<L: Lanes>(self, _lanes: L) -> (usize, usize) {
            (L::ROWS, L::WIDTH)
        }
    }
    dispatch(Tile)
}

/// All that the process has multiplied so far.
static MULTIPLICATIONS: AtomicU64 = AtomicU64::new(0);

/// Multiplications in all products so far, each with its addition: what a benchmark holds against the time
/// they took.
pub fn multiplications() -> u64 {
    MULTIPLICATIONS.load(Ordering::Relaxed)
}

/// `out = start + sum of terms`. `scratch` holds at least [`scratch_len`] values and is overwritten.
pub fn multiply(out: Output<'_>, start: Start<'_>, terms: &[Term<'_>], scratch: &mut [f32]) {
    multiply_by(true, out, start, terms, scratch);
}

/// As [`multiply`], and the bits of a row are the same whatever rows are computed with it: the fastest way for
/// a thin product, which depends on their number, is not taken.
pub fn multiply_rowwise(out: Output<'_>, start: Start<'_>, terms: &[Term<'_>], scratch: &mut [f32]) {
    multiply_by(false, out, start, terms, scratch);
}

fn multiply_by(fastest: bool, out: Output<'_>, start: Start<'_>, terms: &[Term<'_>], scratch: &mut [f32]) {
    let depth = check(&out, &start, terms);
    assert!(scratch.len() >= scratch_len(out.rows, depth), "scratch is too short for the packed left side");
    if out.rows == 0 || out.cols == 0 {
        return;
    }
    let multiplications = out.rows.saturating_mul(out.cols).saturating_mul(depth);
    MULTIPLICATIONS.fetch_add(multiplications as u64, Ordering::Relaxed);
    let parallel = multiplications >= PARALLEL_FROM && rayon::current_num_threads() > 1;
    let thin = if fastest { thin(&out, &start, terms, scratch) } else { None };
    if let Some((left, right)) = thin {
        return dispatch(direct::Thin { out, left, right, add: start.accumulate, parallel });
    }
    if depth == 0 {
        return write_start(out, start);
    }
    let blocks = Blocks::new(depth);
    pack_lefts(terms, blocks, out.rows, scratch, parallel);
    let threads = if parallel { rayon::current_num_threads() } else { 1 };
    let grid = Grid::new(out.rows, out.cols, threads);
    let job = kernel::Job::new(out, start, terms, blocks, scratch);
    let next = AtomicUsize::new(0);
    let work = |_| {
        while let Some((rows, cols)) = grid.task(next.fetch_add(1, Ordering::Relaxed)) {
            pack::with_panel(|room| dispatch(kernel::Task { job: &job, rows, cols, room }));
        }
    };
    match parallel {
        true => (0..threads).into_par_iter().with_max_len(1).for_each(work),
        false => work(0),
    }
}

/// A sum of no products is where it starts.
fn write_start(out: Output<'_>, start: Start<'_>) {
    for (row, values) in out.data.chunks_mut(out.stride).take(out.rows).enumerate() {
        for (col, value) in values[..out.cols].iter_mut().enumerate() {
            *value = if start.accumulate { *value } else { 0.0 }
                + start.residual.map_or(0.0, |residual| residual[row * out.stride + col])
                + start.bias.map_or(0.0, |bias| bias[col]);
        }
    }
}

/// The operands of a product that is faster without packing, the right one row by row: in `scratch` if it was
/// transposed and the room that the shape asks for holds it. More room than that changes nothing: the way
/// decides the last bits of a result, and they must not depend on what else the caller needs its scratch for.
fn thin<'a>(
    out: &Output<'_>,
    start: &Start<'_>,
    terms: &[Term<'a>],
    scratch: &'a mut [f32],
) -> Option<(Matrix<'a>, Matrix<'a>)> {
    let [Term { left, right: Right::Dense(right) }] = terms else { return None };
    let plain = start.bias.is_none() && start.residual.is_none();
    let (depth, cols) = (right.rows, right.cols);
    if !plain || depth == 0 || !direct::is_thin(out.rows, cols) {
        return None;
    }
    if !right.transposed {
        return Some((*left, *right));
    }
    if cols.checked_mul(depth)? > scratch_len(out.rows, depth) {
        return None;
    }
    let straight = &mut scratch[..depth * cols];
    for (col, values) in right.data.chunks(right.stride).take(cols).enumerate() {
        for (k, value) in values[..depth].iter().enumerate() {
            straight[k * cols + col] = *value;
        }
    }
    Some((*left, Matrix::new(straight, depth, cols)))
}

/// Panics where the shapes do not fit each other: a caller's error, never that of an input. Gives the whole
/// depth.
fn check(out: &Output<'_>, start: &Start<'_>, terms: &[Term<'_>]) -> usize {
    for term in terms {
        let (depth, cols) = term.right.shape();
        assert_eq!(
            (term.left.rows, term.left.cols, cols),
            (out.rows, depth, out.cols),
            "shapes of a product"
        );
    }
    assert!(!(start.accumulate && start.residual.is_some()), "a sum starts from one matrix");
    assert!(start.bias.is_none_or(|bias| bias.len() >= out.cols), "bias is too short");
    let whole = |residual: &[f32]| fits(out.rows, out.cols, out.stride, residual.len());
    assert!(start.residual.is_none_or(whole), "residual is too short");
    let add = |depth: usize, term: &Term<'_>| depth.checked_add(term.left.cols);
    terms.iter().try_fold(0, add).expect("terms of a sum that memory can hold")
}

/// Packs the left sides block by block, each block strip by strip.
fn pack_lefts(terms: &[Term<'_>], blocks: Blocks, rows: usize, scratch: &mut [f32], parallel: bool) {
    let (height, pitch) = tile();
    let strips = rows.div_ceil(height);
    let mut rest = scratch;
    for block in 0..blocks.count() {
        let strip = pitch * blocks.span(block).len();
        let (packed, others) = rest.split_at_mut(strips * strip);
        rest = others;
        let pack = |(index, packed): (usize, &mut [f32])| {
            for segment in blocks.segments(terms, block) {
                dispatch(pack::Left {
                    matrix: &segment.term.left,
                    row: index * height,
                    depth: segment.depth,
                    strip: &mut packed[segment.at * pitch..],
                });
            }
        };
        match parallel {
            true => packed.par_chunks_mut(strip).enumerate().for_each(pack),
            false => packed.chunks_mut(strip).enumerate().for_each(pack),
        }
    }
}
