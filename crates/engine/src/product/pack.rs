//! Packing: operands rearranged so that the kernel reads memory in order.
//!
//! In come a left matrix, or any right side; out come strips (`k` by `k`, one row of a tile after another) and panels
//! (`k` by `k`, two registers of columns after another). What lies beyond the edge of the matrix is packed as zero.

use super::{Matrix, Right, Span};
use crate::nf4::{BLOCK, CODES, Nf4};
use crate::simd::{Lanes, vectorised};
use crate::weight::{Elements, Weight};
use std::cell::RefCell;

/// Runs `work` with a panel of `len` values that this thread keeps for the next product. It begins at a cache line: else every
/// register that the kernel loads would come from two.
pub(super) fn with_panel<R>(len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    thread_local!(static PANEL: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
    PANEL.with_borrow_mut(|panel| {
        panel.resize(len + LINE / size_of::<f32>(), 0.0);
        let start = panel.as_ptr().align_offset(LINE).min(LINE / size_of::<f32>());
        work(&mut panel[start..][..len])
    })
}

/// Packs rows `row..row + L::ROWS` of `left` at `depth`; each `k` takes `L::WIDTH` values, of which a tile reads `ROWS`.
pub(super) fn left<L: Lanes>(left: &Matrix<'_>, row: usize, depth: Span, strip: &mut [f32]) {
    let ks = depth.to - depth.from;
    let rows = L::ROWS.min(left.rows - row);
    assert!(strip.len() >= ks * L::WIDTH);
    // The fast way moves whole squares and so may read up to `WIDTH` rows.
    let wide = row + L::WIDTH <= left.rows;
    if left.transposed {
        let count = if wide { L::WIDTH } else { rows };
        for (k, to) in strip.chunks_exact_mut(L::WIDTH).take(ks).enumerate() {
            to[..count].copy_from_slice(&left.data[(depth.from + k) * left.stride + row..][..count]);
        }
        return;
    }
    let base = &left.data[row * left.stride + depth.from..];
    let whole = if wide { ks / L::WIDTH * L::WIDTH } else { 0 };
    assert!(whole == 0 || super::extent(L::WIDTH, whole, left.stride) <= base.len());
    // SAFETY: the squares' rows and columns lie inside `base` (asserted) and `k + WIDTH <= ks` rows of `strip` are
    // written; the instruction set was checked by whoever called with `L`.
    unsafe {
        L::enter(
            #[inline(always)]
            || {
                for k in (0..whole).step_by(L::WIDTH) {
                    let to = strip.as_mut_ptr().add(k * L::WIDTH);
                    L::transpose(base.as_ptr().add(k), left.stride, to, L::WIDTH);
                }
            },
        );
    }
    for k in whole..ks {
        for r in 0..rows {
            strip[k * L::WIDTH + r] = base[r * left.stride + k];
        }
    }
}

/// Packs `depth x cols` of `right` into `panel`; each two registers of columns take `depth * 2 * L::WIDTH` values.
pub(super) fn right<L: Lanes>(right: &Right<'_>, depth: Span, cols: Span, panel: &mut [f32]) {
    match right {
        Right::Dense(matrix) if matrix.transposed => {
            columns_of_rows::<L>(matrix.data, matrix.stride, depth, cols, panel);
        }
        Right::Dense(matrix) => rows::<L>(matrix.data, matrix.stride, depth, cols, panel),
        Right::Weight(weight) => match weight.elements() {
            Elements::F32(values) => rows::<L>(values, weight.cols(), depth, cols, panel),
            _ => dequantised_rows::<L>(weight, depth, cols, panel),
        },
        Right::WeightRows { weight, first, .. } => {
            self::right::<L>(&Right::Weight(weight), depth.after(*first), cols, panel);
        }
        Right::WeightRowsT { weight, first, .. } => {
            self::right::<L>(&Right::WeightT(weight), depth, cols.after(*first), panel);
        }
        Right::WeightT(weight) => match weight.elements() {
            Elements::F32(values) => columns_of_rows::<L>(values, weight.cols(), depth, cols, panel),
            _ => dequantised_columns::<L>(weight, depth, cols, panel),
        },
    }
}

/// Where a panel comes from in memory: the cache lines of a rectangle, asked for one after another.
pub(super) struct Source {
    /// The next row's first line.
    row: *const u8,
    /// Bytes from a row to the next.
    pitch: usize,
    /// Lines of a row, and how many of the next row were asked for.
    lines: usize,
    asked: usize,
    /// Lines that are left in all.
    left: usize,
}

impl Source {
    /// No panel at all.
    pub(super) const NOTHING: Self = Self { row: std::ptr::null(), pitch: 0, lines: 0, asked: 0, left: 0 };

    /// That of `depth x cols` of `right`.
    pub(super) fn new(right: &Right<'_>, depth: Span, cols: Span) -> Self {
        let (first, bits, stride, transposed) = match right {
            Right::Dense(matrix) => (matrix.data.as_ptr().cast(), 32, matrix.stride, matrix.transposed),
            Right::Weight(weight) => (weight.first_byte(), weight.bits(), weight.cols(), false),
            Right::WeightRows { weight, first, .. } => {
                return Self::new(&Right::Weight(weight), depth.after(*first), cols);
            }
            Right::WeightRowsT { weight, first, .. } => {
                return Self::new(&Right::WeightT(weight), depth, cols.after(*first));
            }
            Right::WeightT(weight) => (weight.first_byte(), weight.bits(), weight.cols(), true),
        };
        let (rows, values) = if transposed { (cols, depth) } else { (depth, cols) };
        let start = (rows.from * stride + values.from) * bits / 8;
        let lines = ((values.to - values.from) * bits / 8).div_ceil(LINE);
        let left = (rows.to - rows.from) * lines;
        Self { row: first.wrapping_add(start), pitch: stride * bits / 8, lines, asked: 0, left }
    }

    /// That of packed strips.
    pub(super) fn packed(strips: &[f32]) -> Self {
        let lines = size_of_val(strips).div_ceil(LINE);
        Self { row: strips.as_ptr().cast(), pitch: 0, lines, asked: 0, left: lines }
    }

    /// Lines that are left.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Asks for the next `count` lines. The place is carried along: to divide for every line took 5 % of a step.
    pub(super) fn prefetch<L: Lanes>(&mut self, count: usize) {
        let count = count.min(self.left);
        self.left -= count;
        for _ in 0..count {
            // SAFETY: the instruction set was checked by whoever called with `L`; nothing is read.
            unsafe { L::prefetch_line(self.row.wrapping_add(self.asked * LINE)) };
            self.asked += 1;
            if self.asked == self.lines {
                (self.row, self.asked) = (self.row.wrapping_add(self.pitch), 0);
            }
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// From rows of `k`: each row is cut into pieces of two registers.
fn rows<L: Lanes>(data: &[f32], stride: usize, depth: Span, cols: Span, panel: &mut [f32]) {
    let ks = depth.to - depth.from;
    for k in 0..ks {
        let from = &data[(depth.from + k) * stride..][cols.from..cols.to];
        scatter_row::<L>(from, k, ks, panel);
    }
}

/// One row of `k`, cut into pieces of two registers.
fn scatter_row<L: Lanes>(from: &[f32], k: usize, ks: usize, panel: &mut [f32]) {
    let width = 2 * L::WIDTH;
    let (whole, rest) = from.split_at(from.len() / width * width);
    let pieces = whole.len() / width;
    assert!(pieces == 0 || ((pieces - 1) * ks + k + 1) * width <= panel.len());
    // SAFETY: each piece has its place in the panel (asserted); the instruction set was checked by whoever called with `L`.
    unsafe {
        L::enter(
            #[inline(always)]
            || {
                for piece in 0..pieces {
                    let (from, to) =
                        (whole.as_ptr().add(piece * width), panel.as_mut_ptr().add((piece * ks + k) * width));
                    L::store(to, L::load(from));
                    L::store(to.add(L::WIDTH), L::load(from.add(L::WIDTH)));
                }
            },
        );
    }
    if !rest.is_empty() {
        let to = &mut panel[(pieces * ks + k) * width..][..width];
        to[..rest.len()].copy_from_slice(rest);
        to[rest.len()..].fill(0.0);
    }
}

/// From rows of columns: squares are transposed on the way.
fn columns_of_rows<L: Lanes>(data: &[f32], stride: usize, depth: Span, cols: Span, panel: &mut [f32]) {
    let ks = depth.to - depth.from;
    for (piece, col) in (cols.from..cols.to).step_by(2 * L::WIDTH).enumerate() {
        let count = (2 * L::WIDTH).min(cols.to - col);
        let to = &mut panel[piece * ks * 2 * L::WIDTH..][..ks * 2 * L::WIDTH];
        transpose_rows::<L>(&data[col * stride + depth.from..], stride, count, ks, to);
    }
}

/// `to[k][c] = from[c * stride + k]` for `count` columns, the others zero.
fn transpose_rows<L: Lanes>(from: &[f32], stride: usize, count: usize, ks: usize, to: &mut [f32]) {
    let width = 2 * L::WIDTH;
    assert!(count <= width && to.len() >= ks * width && super::extent(count, ks, stride) <= from.len());
    let squares = count / L::WIDTH * L::WIDTH;
    let whole = ks / L::WIDTH * L::WIDTH;
    for c in (0..squares).step_by(L::WIDTH) {
        // SAFETY: rows `c..c + WIDTH` and columns `k..k + WIDTH` lie inside `from`, and the squares inside `to` (both
        // asserted); the instruction set was checked by whoever called with `L`.
        unsafe {
            L::enter(
                #[inline(always)]
                || {
                    for k in (0..whole).step_by(L::WIDTH) {
                        let source = from.as_ptr().add(c * stride + k);
                        L::transpose(source, stride, to.as_mut_ptr().add(k * width + c), width);
                    }
                },
            );
        }
        for k in whole..ks {
            for c in c..c + L::WIDTH {
                to[k * width + c] = from[c * stride + k];
            }
        }
    }
    for (k, to) in to.chunks_exact_mut(width).take(ks).enumerate() {
        for c in squares..width {
            to[c] = if c < count { from[c * stride + k] } else { 0.0 };
        }
    }
}

/// Room for one dequantised row piece of a panel, or for two registers of columns at the panel's depth.
const PIECE: usize = 32 * super::DEPTH;

fn dequantised_rows<L: Lanes>(weight: &Weight, depth: Span, cols: Span, panel: &mut [f32]) {
    let ks = depth.to - depth.from;
    let mut row = [0.0; super::PANEL];
    for k in 0..ks {
        let row = &mut row[..cols.to - cols.from];
        read::<L>(weight, depth.from + k, cols.from, row);
        scatter_row::<L>(row, k, ks, panel);
    }
}

fn dequantised_columns<L: Lanes>(weight: &Weight, depth: Span, cols: Span, panel: &mut [f32]) {
    let ks = depth.to - depth.from;
    let mut piece = [0.0; PIECE];
    for (index, col) in (cols.from..cols.to).step_by(2 * L::WIDTH).enumerate() {
        let count = (2 * L::WIDTH).min(cols.to - col);
        for (c, row) in piece.chunks_exact_mut(ks).take(count).enumerate() {
            read::<L>(weight, col + c, depth.from, row);
        }
        let to = &mut panel[index * ks * 2 * L::WIDTH..][..ks * 2 * L::WIDTH];
        transpose_rows::<L>(&piece, ks, count, ks, to);
    }
}

/// [`Weight::read`] with this machine's lookup for whole 4-bit blocks.
fn read<L: Lanes>(weight: &Weight, row: usize, col: usize, out: &mut [f32]) {
    let start = row * weight.cols() + col;
    match weight.elements() {
        Elements::Nf4(nf4) if start.is_multiple_of(BLOCK) => {
            let whole = out.len() / BLOCK * BLOCK;
            let (blocks, rest) = out.split_at_mut(whole);
            lookup_blocks::<L>(nf4, start, blocks);
            nf4.dequantise(start + whole, rest);
        }
        _ => vectorised(
            #[inline(always)]
            || weight.read(row, col, out),
        ),
    }
}

/// Whole blocks of 64 from `start`, itself the first value of a block.
fn lookup_blocks<L: Lanes>(nf4: &Nf4, start: usize, out: &mut [f32]) {
    let packed = &nf4.packed()[start / 2..][..out.len() / 2];
    for (block, (out, packed)) in out.chunks_exact_mut(BLOCK).zip(packed.chunks_exact(BLOCK / 2)).enumerate()
    {
        let scale = nf4.scale(start / BLOCK + block);
        // SAFETY: 32 bytes give 64 values, two lookups of 16 bytes and 32 values; the instruction set was checked by
        // whoever called with `L`.
        unsafe {
            L::enter(
                #[inline(always)]
                || {
                    L::lookup(packed.as_ptr(), &CODES, scale, out.as_mut_ptr());
                    L::lookup(packed.as_ptr().add(16), &CODES, scale, out.as_mut_ptr().add(32));
                },
            );
        }
    }
}
