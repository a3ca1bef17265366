//! The inner product of packed strips and panels: a tile of sums that stays in registers.
//!
//! Takes a [`Job`] with its left sides packed and the part of the output to compute. Two tasks never share an
//! element, which makes writing through one pointer from several threads sound.

use super::pack;
use super::schedule::{Blocks, Segment, Span};
use super::{Output, Start, Term};
use crate::simd::{Kernel, Lanes};
use std::marker::PhantomData;
use std::ptr;

/// Strips that are multiplied with a whole panel before the next ones: at a full depth they take 192 KiB of
/// the L2 beside the panels. 5 is as fast, 10 and more are slower.
const BAND: usize = 3;

/// Steps of depth by which a strip is asked for before it is multiplied: strips come from the L2, and
/// products are 2 to 4 % slower without.
const AHEAD: usize = 16;

/// Steps of depth before its end at which a tile asks for its place in the output: asked for earlier it would
/// be pushed out of the L1 again by what is multiplied.
const LAST: usize = 64;

/// One call of `multiply`, as its tasks see it.
pub(super) struct Job<'a> {
    out: *mut f32,
    stride: usize,
    rows: usize,
    start: Start<'a>,
    terms: &'a [Term<'a>],
    blocks: Blocks,
    packed: &'a [f32],
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is to an exclusive borrow that the job holds; tasks write disjoint parts of it.
unsafe impl Sync for Job<'_> {}

impl<'a> Job<'a> {
    pub(super) fn new(
        out: Output<'a>,
        start: Start<'a>,
        terms: &'a [Term<'a>],
        blocks: Blocks,
        packed: &'a [f32],
    ) -> Self {
        let (rows, stride) = (out.rows, out.stride);
        Self { out: out.data.as_mut_ptr(), stride, rows, start, terms, blocks, packed, borrow: PhantomData }
    }

    /// Adds the products of a packed panel to every tile of the task.
    fn block<L: Lanes>(&self, lanes: L, block: usize, rows: Span, cols: Span, panel: &[f32]) {
        let span = self.blocks.span(block);
        let ks = span.len();
        let packed = &self.packed[self.rows.div_ceil(L::ROWS) * L::WIDTH * span.from..];
        for band in (rows.from..rows.to).step_by(BAND * L::ROWS) {
            let band_end = (band + BAND * L::ROWS).min(rows.to);
            for (piece, col) in (cols.from..cols.to).step_by(2 * L::WIDTH).enumerate() {
                let right = &panel[piece * ks * 2 * L::WIDTH..][..ks * 2 * L::WIDTH];
                let width = (2 * L::WIDTH).min(cols.to - col);
                for row in (band..band_end).step_by(L::ROWS) {
                    let left = &packed[row / L::ROWS * ks * L::WIDTH..][..ks * L::WIDTH];
                    let place = Place { row, col, height: L::ROWS.min(rows.to - row), width };
                    self.tile(lanes, left, right, place, block == 0);
                }
            }
        }
    }

    /// One tile, of any height up to `L::ROWS`.
    fn tile<L: Lanes>(&self, lanes: L, left: &[f32], right: &[f32], place: Place, first: bool) {
        let width = 2 * L::WIDTH;
        let ks = left.len() / L::WIDTH;
        assert!(right.len() >= ks * width);
        let at = place.row * self.stride + place.col;
        let bias = if first { self.start.bias } else { None };
        let residual = if first { self.start.residual } else { None };
        // SAFETY: the tile lies inside this task's part of the output; bias and residual are as long (all checked in
        // `multiply`).
        unsafe {
            let out = self.out.add(at);
            let mut end = End {
                out,
                stride: self.stride,
                sum: match residual {
                    Some(residual) => residual.as_ptr().add(at),
                    None if first && !self.start.accumulate => ptr::null(),
                    None => out,
                },
                bias: bias.map_or(ptr::null(), |bias| bias.as_ptr().add(place.col)),
            };
            if place.width == width {
                return sums_of_height(lanes, place.height, left, right, ks, &end);
            }
            // At the right edge the tile is finished aside, on copies as wide as a register.
            let (mut aside, mut bias_aside) = ([0.0; TILE], [0.0; TILE_WIDTH]);
            let edge = Edge { end: End { ..end }, aside: aside.as_mut_ptr(), pitch: width, place };
            edge.copy_in(bias_aside.as_mut_ptr());
            if !end.sum.is_null() {
                end.sum = edge.aside;
            }
            if !end.bias.is_null() {
                end.bias = bias_aside.as_ptr();
            }
            (end.out, end.stride) = (edge.aside, width);
            sums_of_height(lanes, place.height, left, right, ks, &end);
            edge.copy_out();
        }
    }
}

/// A part of a job: `rows x cols` of the output. `rows` starts at a strip, and `room` holds a panel.
pub(super) struct Task<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) rows: Span,
    pub(super) cols: Span,
    pub(super) room: &'a mut [f32],
}

impl Kernel for Task<'_> {
    type Output = ();

    fn run<L: Lanes>(self, lanes: L) {
        let Self { job, rows, cols, room } = self;
        for block in 0..job.blocks.count() {
            let ks = job.blocks.span(block).len();
            for Segment { term, depth, at } in job.blocks.segments(job.terms, block) {
                pack::right(lanes, &term.right, depth, cols, &mut pack::Panel { values: room, ks, at });
            }
            job.block(lanes, block, rows, cols, room);
        }
    }
}

/// Columns of the widest tile.
const TILE_WIDTH: usize = 32;
/// Values of the largest tile.
const TILE: usize = 14 * TILE_WIDTH;

/// Where a finished tile goes and what is added on the way; null stands for nothing.
struct End {
    out: *mut f32,
    /// Rows of `out` and of `sum` are this far apart.
    stride: usize,
    sum: *const f32,
    bias: *const f32,
}

/// A tile narrower than two registers, finished in a buffer aside.
struct Edge {
    end: End,
    aside: *mut f32,
    pitch: usize,
    place: Place,
}

impl Edge {
    /// Brings what is added to the sums into the buffers aside.
    ///
    /// # Safety
    /// `end` describes `place` of the output, `aside` holds a tile and `bias` a row of it.
    unsafe fn copy_in(&self, bias: *mut f32) {
        // SAFETY: by the caller's promise both sides hold `place.width` values in each of `place.height` rows.
        unsafe {
            if !self.end.bias.is_null() {
                ptr::copy_nonoverlapping(self.end.bias, bias, self.place.width);
            }
            for h in 0..if self.end.sum.is_null() { 0 } else { self.place.height } {
                let from = self.end.sum.add(h * self.end.stride);
                ptr::copy_nonoverlapping(from, self.aside.add(h * self.pitch), self.place.width);
            }
        }
    }

    /// Brings the finished tile to the output.
    ///
    /// # Safety
    /// As for `copy_in`.
    unsafe fn copy_out(&self) {
        for h in 0..self.place.height {
            // SAFETY: as in `copy_in`.
            unsafe {
                let to = self.end.out.add(h * self.end.stride);
                ptr::copy_nonoverlapping(self.aside.add(h * self.pitch), to, self.place.width);
            }
        }
    }
}

/// [`sums`] for a height that is known only now.
///
/// # Safety
/// As for [`sums`], except that the instructions need not be entered yet.
unsafe fn sums_of_height<L: Lanes>(
    lanes: L,
    height: usize,
    left: &[f32],
    right: &[f32],
    ks: usize,
    end: &End,
) {
    macro_rules! of_height {
        ($($height:literal)*) => {
            match height {
                $($height if $height <= L::ROWS => lanes.enter(
                    #[inline(always)]
                    || {
                        // SAFETY: the caller's promise, and inside the instructions of `L`.
                        unsafe { sums::<L, $height>(left, right, ks, end) }
                    },
                ),)*
                _ => {}
            }
        };
    }
    of_height!(14 13 12 11 10 9 8 7 6 5 4 3 2 1);
}

/// The sums of a tile of `H` rows, in registers for all of `ks`, then written where `end` says.
///
/// # Safety
/// `left` and `right` hold `ks` packed steps, `end` points to `H` rows of two registers, and this runs inside
/// `L::enter`.
#[inline(always)]
unsafe fn sums<L: Lanes, const H: usize>(left: &[f32], right: &[f32], ks: usize, end: &End) {
    // SAFETY: the caller's promise covers every access.
    unsafe {
        let mut sums = [[L::zero(); 2]; H];
        let (left, right) = (left.as_ptr(), right.as_ptr());
        let rest = ks - ks.min(LAST);
        add_steps::<L, H>(&mut sums, left, right, rest);
        for h in 0..H {
            L::prefetch(end.out.add(h * end.stride));
        }
        let (left, right) = (left.add(rest * L::WIDTH), right.add(rest * 2 * L::WIDTH));
        add_steps::<L, H>(&mut sums, left, right, ks - rest);
        if !end.sum.is_null() {
            for (h, sums) in sums.iter_mut().enumerate() {
                sums[0] = L::add(sums[0], L::load(end.sum.add(h * end.stride)));
                sums[1] = L::add(sums[1], L::load(end.sum.add(h * end.stride + L::WIDTH)));
            }
        }
        if !end.bias.is_null() {
            let bias = [L::load(end.bias), L::load(end.bias.add(L::WIDTH))];
            for sums in &mut sums {
                *sums = [L::add(sums[0], bias[0]), L::add(sums[1], bias[1])];
            }
        }
        for (h, sums) in sums.iter().enumerate() {
            L::store(end.out.add(h * end.stride), sums[0]);
            L::store(end.out.add(h * end.stride + L::WIDTH), sums[1]);
        }
    }
}

/// Adds the products of `steps` packed steps.
///
/// # Safety
/// As for [`sums`].
#[inline(always)]
unsafe fn add_steps<L: Lanes, const H: usize>(
    sums: &mut [[L::V; 2]; H],
    mut left: *const f32,
    mut right: *const f32,
    steps: usize,
) {
    for _ in 0..steps {
        // SAFETY: the caller's promise covers every access.
        unsafe {
            let columns = [L::load(right), L::load(right.add(L::WIDTH))];
            L::prefetch_near(left.wrapping_add(AHEAD * L::WIDTH));
            for (h, sums) in sums.iter_mut().enumerate() {
                let value = L::splat(left.add(h));
                sums[0] = L::mul_add(value, columns[0], sums[0]);
                sums[1] = L::mul_add(value, columns[1], sums[1]);
            }
            left = left.add(L::WIDTH);
            right = right.add(2 * L::WIDTH);
        }
    }
}

/// A tile's place in the output and its size.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    col: usize,
    height: usize,
    width: usize,
}
