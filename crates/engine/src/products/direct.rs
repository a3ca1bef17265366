//! Multiplies matrices as they lie, without packing.
//!
//! For operands small enough for the cache (the tiles of attention) or so thin that packing them would cost
//! more than multiplying them (an adapter's products). Sums are kept in registers. Columns of the result are
//! a multiple of [`PAD`].

use super::{Matrix, Output, Span, fits};
use crate::rows::{Rows, RowsMut};
use crate::simd::{Kernel, Lanes};
use rayon::prelude::*;
use std::marker::PhantomData;

/// Columns come in multiples of the widest register.
pub(crate) const PAD: usize = 16;
/// A product with this many rows or columns at the most is thin: each value of the long operand is used so
/// seldom that packing it is most of the work. On 548 rows of 1024 and 5504 values (`examples/products.rs`)
/// an adapter's products are 1.1 to 2.2 times as fast unpacked at ranks 16 to 64, 1.05 to 1.5 times at 80 and
/// 96; at 128 one of them is slower.
const THIN: usize = 96;
/// Values of the thin operand that are multiplied before the next ones: half of a 48 KiB L1, so that the long
/// operand is read in long rows. At rank 16 up to a tenth faster than a depth of 128, at higher ranks even.
const THIN_VALUES: usize = 6144;
/// Rows or columns of one task: several tasks a thread, and whole tiles of 14 rows and of 32 columns.
const TASK: usize = 224;

/// Whether [`Thin`] takes the product.
pub(super) fn is_thin(rows: usize, cols: usize) -> bool {
    cols.is_multiple_of(PAD) && rows.min(cols) <= THIN
}

/// `out = left x right`, or added to `out`; `right` lies row by row.
pub(super) struct Thin<'a> {
    pub(super) out: Output<'a>,
    pub(super) left: Matrix<'a>,
    pub(super) right: Matrix<'a>,
    pub(super) add: bool,
    pub(super) parallel: bool,
}

impl Kernel for Thin<'_> {
    type Output = ();

    fn run<L: Lanes>(self, lanes: L) {
        let Self { out, left, right, add, parallel } = self;
        assert!(!right.transposed && right.rows == left.cols);
        let data = out.data.as_mut_ptr();
        let job = Job { lanes, data, stride: out.stride, left, right, add, borrow: PhantomData };
        let tall = out.rows >= out.cols;
        let (rows, cols) = (out.rows, out.cols);
        let run = |task: usize| {
            let span = |len: usize| Span { from: task * TASK, to: ((task + 1) * TASK).min(len) };
            let (rows, cols) = match tall {
                true => (span(rows), Span { from: 0, to: cols }),
                false => (Span { from: 0, to: rows }, span(cols)),
            };
            // SAFETY: every task has other rows or other columns, all inside the output.
            unsafe { job.run(rows, cols) };
        };
        let tasks = if tall { rows } else { cols }.div_ceil(TASK);
        match parallel {
            true => (0..tasks).into_par_iter().with_max_len(1).for_each(run),
            false => (0..tasks).for_each(run),
        }
    }
}

/// One [`Thin`] product, as its tasks see it.
struct Job<'a, L> {
    lanes: L,
    data: *mut f32,
    stride: usize,
    left: Matrix<'a>,
    right: Matrix<'a>,
    add: bool,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is to an exclusive borrow that the job holds; tasks write disjoint parts of it.
unsafe impl<L: Lanes> Sync for Job<'_, L> {}

impl<L: Lanes> Job<'_, L> {
    /// Computes `rows x cols` of the output.
    ///
    /// # Safety
    /// Nobody else touches these elements meanwhile, and they lie inside the output.
    unsafe fn run(&self, rows: Span, cols: Span) {
        let steps = if self.left.transposed { (1, self.left.stride) } else { (self.left.stride, 1) };
        let depth = self.left.cols;
        let (m, n) = (rows.to - rows.from, cols.to - cols.from);
        let piece = (THIN_VALUES / self.left.rows.min(self.right.cols)).max(1);
        for from in (0..depth.max(1)).step_by(piece) {
            let size = Size { m, n, k: piece.min(depth - from) };
            let left = &self.left.data[rows.from * steps.0 + from * steps.1..];
            let left = Left { data: left, row: steps.0, step: steps.1 };
            let right = &self.right.data[(from * self.right.stride + cols.from).min(self.right.data.len())..];
            let right = Rows { data: right, stride: self.right.stride };
            check(left, right, size);
            // SAFETY: the operands were checked just now, the output by the caller.
            unsafe {
                let first = self.data.add(rows.from * self.stride + cols.from);
                let out = Place { first, stride: self.stride };
                product_at(self.lanes, out, left, right, size, self.add || from > 0);
            }
        }
    }
}

/// The left side of a product: element `(i, k)` is at `i * row + k * step`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
    pub(crate) step: usize,
}

impl Left<'_> {
    /// Where the last element of `m` rows and a depth of `k` lies, neither of them zero.
    fn last(&self, m: usize, k: usize) -> Option<usize> {
        (m - 1).checked_mul(self.row)?.checked_add((k - 1).checked_mul(self.step)?)
    }
}

/// Rows, columns and depth of a product.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) m: usize,
    /// A multiple of [`PAD`].
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// `out = left x right`, or added to `out`.
pub(crate) fn product<L: Lanes>(
    lanes: L,
    out: RowsMut<'_>,
    left: Left<'_>,
    right: Rows<'_>,
    size: Size,
    add: bool,
) {
    if size.m == 0 || size.n == 0 {
        return;
    }
    assert!(fits(size.m, size.n, out.stride, out.data.len()));
    check(left, right, size);
    let out = Place { first: out.data.as_mut_ptr(), stride: out.stride };
    // SAFETY: the output was checked just now, and so were the operands.
    unsafe { product_at(lanes, out, left, right, size, add) };
}

/// Panics where an operand is too short for `size`.
fn check(left: Left<'_>, right: Rows<'_>, Size { m, n, k }: Size) {
    assert!(n.is_multiple_of(PAD) && fits(k, n, right.stride, right.data.len()));
    assert!(k == 0 || left.last(m, k).is_some_and(|last| last < left.data.len()));
}

/// Where rows of a result go that are not a slice of their own.
#[derive(Clone, Copy)]
struct Place {
    first: *mut f32,
    stride: usize,
}

/// [`product`] to a place that is not a slice of its own.
///
/// # Safety
/// `out` holds the rows and columns of `size`, which nobody else touches; the operands were checked.
unsafe fn product_at<L: Lanes>(lanes: L, out: Place, left: Left<'_>, right: Rows<'_>, size: Size, add: bool) {
    let Size { m, n, k } = size;
    let mut col = 0;
    while col < n {
        let double = col + 2 * L::WIDTH <= n;
        let mut row = 0;
        while row < m {
            // SAFETY: rows `row..row + H`, columns `col..` and depth `k` lie inside all three, as the caller vouches.
            row += unsafe {
                let block = Block {
                    out: Place { first: out.first.add(row * out.stride + col), ..out },
                    left: left.data.as_ptr().add(row * left.row),
                    left_row: left.row,
                    left_step: left.step,
                    right: right.data.as_ptr().add(col),
                    right_step: right.stride,
                    k,
                    add,
                };
                match double {
                    true => block.rows::<L, 2>(lanes, m - row),
                    false => block.rows::<L, 1>(lanes, m - row),
                }
            };
        }
        col += if double { 2 * L::WIDTH } else { L::WIDTH };
    }
}

/// Some rows of one or two registers of columns.
struct Block {
    out: Place,
    left: *const f32,
    left_row: usize,
    left_step: usize,
    right: *const f32,
    right_step: usize,
    k: usize,
    add: bool,
}

impl Block {
    /// Computes as many rows at once as the registers hold and `left` has; gives their number.
    ///
    /// # Safety
    /// At least one row is left, and all that are left lie inside the slices.
    #[inline(always)]
    unsafe fn rows<L: Lanes, const C: usize>(&self, lanes: L, left: usize) -> usize {
        // SAFETY: as many rows are computed as the caller vouches for.
        unsafe {
            match left {
                // Twice eight rows are faster than fourteen and two.
                16 if L::ROWS >= 14 => self.entered::<L, 8, C>(lanes),
                14.. if L::ROWS >= 14 => self.entered::<L, 14, C>(lanes),
                8.. if L::ROWS >= 8 => self.entered::<L, 8, C>(lanes),
                6.. if L::ROWS == 6 => self.entered::<L, 6, C>(lanes),
                4.. => self.entered::<L, 4, C>(lanes),
                2.. => self.entered::<L, 2, C>(lanes),
                _ => self.entered::<L, 1, C>(lanes),
            }
        }
    }

    /// [`sums`](Self::sums) as a function of its own.
    ///
    /// # Safety
    /// As for `rows`.
    #[inline(always)]
    unsafe fn entered<L: Lanes, const H: usize, const C: usize>(&self, lanes: L) -> usize {
        lanes.enter(
            #[inline(always)]
            || {
                // SAFETY: as the caller vouches, and inside the instructions of `L`.
                unsafe { self.sums::<L, H, C>() }
            },
        )
    }

    /// `H` rows of `C` registers.
    ///
    /// # Safety
    /// As for `rows`, and this runs inside [`Lanes::enter`].
    #[inline(always)]
    unsafe fn sums<L: Lanes, const H: usize, const C: usize>(&self) -> usize {
        // SAFETY: the caller vouches for `H` rows and `C` registers of columns.
        unsafe {
            let mut sums = [[L::zero(); C]; H];
            let (mut left, mut right) = (self.left, self.right);
            for _ in 0..self.k {
                let mut columns = [L::zero(); C];
                for (c, column) in columns.iter_mut().enumerate() {
                    *column = L::load(right.add(c * L::WIDTH));
                }
                for (h, sums) in sums.iter_mut().enumerate() {
                    let value = L::splat(left.add(h * self.left_row));
                    for (sum, column) in sums.iter_mut().zip(columns) {
                        *sum = L::mul_add(value, column, *sum);
                    }
                }
                left = left.wrapping_add(self.left_step);
                right = right.wrapping_add(self.right_step);
            }
            for (h, sums) in sums.iter().enumerate() {
                for (c, sum) in sums.iter().enumerate() {
                    let out = self.out.first.add(h * self.out.stride + c * L::WIDTH);
                    // Added at the end: products are rounded to their own sum, not to what is there already.
                    L::store(out, if self.add { L::add(*sum, L::load(out)) } else { *sum });
                }
            }
        }
        H
    }
}
