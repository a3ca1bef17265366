//! The inner product of packed strips and panels: a tile of sums that stays in registers.
//!
//! In come a [`Job`] with its left sides packed and a part of the output to compute; out come the finished elements. Two
//! tasks never share an element, which is what makes writing through one pointer from several threads sound.

use super::pack;
use super::{DEPTH, Output, Right, Span, Start, Term};
use crate::simd::Lanes;
use std::marker::PhantomData;
use std::ptr;

/// Strips that are multiplied with a whole panel before the next ones.
const BAND: usize = 10;

/// Steps of depth by which a strip is asked for before it is multiplied; strips come from the L2.
const AHEAD: usize = 16;

/// One call of `multiply`, as its tasks see it.
pub(super) struct Job<'a> {
    out: *mut f32,
    stride: usize,
    rows: usize,
    cols: usize,
    start: Start<'a>,
    terms: &'a [Term<'a>],
    packed: &'a [f32],
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is to an exclusive borrow that the job holds; tasks write disjoint parts of it.
unsafe impl Sync for Job<'_> {}

impl<'a> Job<'a> {
    pub(super) fn new(out: Output<'a>, start: Start<'a>, terms: &'a [Term<'a>], packed: &'a [f32]) -> Self {
        let (rows, cols, stride) = (out.rows, out.cols, out.stride);
        Self { out: out.data.as_mut_ptr(), stride, rows, cols, start, terms, packed, borrow: PhantomData }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    /// Computes `rows x cols` of the output; `rows` starts at a strip, `panel` holds `DEPTH` by the columns.
    pub(super) fn run<L: Lanes>(&self, rows: Span, cols: Span, panel: &mut [f32]) {
        let strips = self.rows.div_ceil(L::ROWS);
        let mut packed = self.packed;
        let mut blocks = self.blocks().peekable();
        // The task after this one most likely has the next columns.
        let beyond = Span { from: cols.to, to: (2 * cols.to - cols.from).min(self.cols) };
        let mut first = true;
        if blocks.peek().is_none() {
            return self.write_start(rows, cols);
        }
        while let Some((right, span)) = blocks.next() {
            let mut next = match blocks.peek() {
                Some((right, span)) => pack::Source::new(right, *span, cols),
                None => self
                    .blocks()
                    .next()
                    .map_or(pack::Source::NOTHING, |(right, span)| pack::Source::new(right, span, beyond)),
            };
            pack::right::<L>(right, span, cols, panel);
            self.block::<L>(packed, span.to - span.from, rows, cols, first, panel, &mut next);
            packed = &packed[strips * L::WIDTH * (span.to - span.from)..];
            first = false;
        }
    }

    /// The right sides in the order of the sum, each cut into pieces of `DEPTH`.
    fn blocks(&self) -> impl Iterator<Item = (&Right<'a>, Span)> {
        self.terms.iter().flat_map(|term| {
            let depth = term.left.cols;
            let span = move |from| Span { from, to: (from + DEPTH).min(depth) };
            (0..depth).step_by(DEPTH).map(move |from| (&term.right, span(from)))
        })
    }

    /// Adds the products of a packed panel to every tile of the task, and brings the next panel near meanwhile.
    #[allow(clippy::too_many_arguments)]
    fn block<L: Lanes>(
        &self,
        packed: &[f32],
        ks: usize,
        rows: Span,
        cols: Span,
        first: bool,
        panel: &[f32],
        next: &mut pack::Source,
    ) {
        let pieces = (cols.to - cols.from).div_ceil(2 * L::WIDTH);
        let lines = next.left().div_ceil((rows.to - rows.from).div_ceil(L::ROWS) * pieces);
        for band in (rows.from..rows.to).step_by(BAND * L::ROWS) {
            let band_end = (band + BAND * L::ROWS).min(rows.to);
            let mut beyond = self.strips::<L>(packed, ks, band_end, rows.to);
            let beyond_lines = beyond.left().div_ceil(BAND * pieces);
            for (piece, col) in (cols.from..cols.to).step_by(2 * L::WIDTH).enumerate() {
                let right = &panel[piece * ks * 2 * L::WIDTH..][..ks * 2 * L::WIDTH];
                let width = (2 * L::WIDTH).min(cols.to - col);
                for row in (band..band_end).step_by(L::ROWS) {
                    let strip = row / L::ROWS * ks * L::WIDTH;
                    let left = &packed[strip..][..ks * L::WIDTH];
                    let height = L::ROWS.min(rows.to - row);
                    next.prefetch::<L>(lines);
                    beyond.prefetch::<L>(beyond_lines);
                    self.tile::<L>(left, right, ks, Place { row, col, height, width }, first);
                }
            }
        }
    }

    /// The packed strips of the band from row `from` on: of a deep product they come from far.
    fn strips<L: Lanes>(&self, packed: &[f32], ks: usize, from: usize, to: usize) -> pack::Source {
        let strip = ks * L::WIDTH;
        let to = (from + BAND * L::ROWS).min(to);
        pack::Source::packed(&packed[from.div_ceil(L::ROWS) * strip..to.div_ceil(L::ROWS) * strip])
    }

    /// One tile, of any height up to `L::ROWS`.
    fn tile<L: Lanes>(&self, left: &[f32], right: &[f32], ks: usize, place: Place, first: bool) {
        let width = 2 * L::WIDTH;
        assert!(left.len() >= ks * L::WIDTH && right.len() >= ks * width);
        let at = place.row * self.stride + place.col;
        let bias = if first { self.start.bias } else { None };
        let residual = if first { self.start.residual } else { None };
        // SAFETY: the tile lies inside this task's part of the output; bias and residual are as long (all checked in
        // `multiply`); the instruction set was checked by whoever called `run` with `L`.
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
                return sums_of_height::<L>(place.height, left, right, ks, &end);
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
            sums_of_height::<L>(place.height, left, right, ks, &end);
            edge.copy_out();
        }
    }

    /// A sum of no products is where it starts.
    fn write_start(&self, rows: Span, cols: Span) {
        for row in rows.from..rows.to {
            let at = row * self.stride;
            // SAFETY: the row's columns belong to this task and lie inside the output.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.add(at), cols.to) };
            for (col, out) in out.iter_mut().enumerate().skip(cols.from) {
                *out = if self.start.accumulate { *out } else { 0.0 }
                    + self.start.residual.map_or(0.0, |residual| residual[at + col])
                    + self.start.bias.map_or(0.0, |bias| bias[col]);
            }
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
unsafe fn sums_of_height<L: Lanes>(height: usize, left: &[f32], right: &[f32], ks: usize, end: &End) {
    macro_rules! of_height {
        ($($height:literal)*) => {
            match height {
                $($height if $height <= L::ROWS => {
                    // SAFETY: the caller's promise.
                    unsafe { L::enter(#[inline(always)] || sums::<L, $height>(left, right, ks, end)) }
                })*
                _ => {}
            }
        };
    }
    of_height!(14 13 12 11 10 9 8 7 6 5 4 3 2 1);
}

/// The sums of a tile of `H` rows, in registers for all of `ks`, then written where `end` says.
///
/// # Safety
/// `left` and `right` hold `ks` packed steps, `end` points to `H` rows of two registers, and this runs inside `L::enter`.
#[inline(always)]
unsafe fn sums<L: Lanes, const H: usize>(left: &[f32], right: &[f32], ks: usize, end: &End) {
    // SAFETY: the caller's promise covers every access.
    unsafe {
        for h in 0..H {
            L::prefetch(end.out.add(h * end.stride));
        }
        let mut sums = [[L::zero(); 2]; H];
        let (mut left, mut right) = (left.as_ptr(), right.as_ptr());
        for _ in 0..ks {
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

/// A tile's place in the output and its size.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    col: usize,
    height: usize,
    width: usize,
}
