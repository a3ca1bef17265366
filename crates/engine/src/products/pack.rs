//! Packing: operands rearranged so that the kernel reads memory in order.
//!
//! A left matrix becomes strips (`k` by `k`, one row of a tile after another), a right side panels (`k` by
//! `k`, two registers of columns after another). What lies beyond the edge of the matrix has no meaning and
//! is never written to an output.

use super::schedule::{DEPTH, PANEL, Span};
use super::{Matrix, Right, fits};
use crate::nf4::{NF4_BLOCK, NF4_CODES, Nf4};
use crate::simd::{Kernel, Lanes, vectorised};
use crate::weight::{Elements, Weight};
use std::cell::RefCell;

/// Runs `work` with room for a panel, which this thread keeps for the next product. It begins at a cache
/// line: else every register that the kernel loads would come from two.
pub(super) fn with_panel<R>(work: impl FnOnce(&mut [f32]) -> R) -> R {
    const LEN: usize = DEPTH * PANEL;
    thread_local!(static ROOM: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) });
    ROOM.with_borrow_mut(|room| {
        room.resize(LEN + LINE / size_of::<f32>(), 0.0);
        let start = room.as_ptr().align_offset(LINE).min(LINE / size_of::<f32>());
        work(&mut room[start..][..LEN])
    })
}

/// Gives every thread of the pool its room for a panel: one that gets its first task in a later step would
/// allocate there.
pub fn prepare_threads() {
    rayon::broadcast(|_| with_panel(|_| ()));
}

/// Packs a tile's rows of `matrix`, from `row` on, at `depth`.
pub(super) struct Left<'a> {
    pub(super) matrix: &'a Matrix<'a>,
    pub(super) row: usize,
    pub(super) depth: Span,
    pub(super) strip: &'a mut [f32],
}

impl Kernel for Left<'_> {
    type Output = ();

    fn run<L: Lanes>(self, lanes: L) {
        left(lanes, self.matrix, self.row, self.depth, self.strip);
    }
}

/// Packs rows `row..row + L::ROWS` of `left` at `depth`; each `k` takes `L::WIDTH` values, of which a tile
/// reads `ROWS`.
fn left<L: Lanes>(lanes: L, left: &Matrix<'_>, row: usize, depth: Span, strip: &mut [f32]) {
    let ks = depth.len();
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
    assert!(whole == 0 || fits(L::WIDTH, whole, left.stride, base.len()));
    lanes.enter(
        #[inline(always)]
        || {
            for k in (0..whole).step_by(L::WIDTH) {
                // SAFETY: the square's rows and columns lie inside `base` (asserted), and `k + WIDTH <= ks` rows of `strip`
                // are written.
                unsafe {
                    let to = strip.as_mut_ptr().add(k * L::WIDTH);
                    L::transpose(base.as_ptr().add(k), left.stride, to, L::WIDTH);
                }
            }
        },
    );
    for k in whole..ks {
        for r in 0..rows {
            strip[k * L::WIDTH + r] = base[r * left.stride + k];
        }
    }
}

/// A panel, or the part of it that a segment of a block fills.
pub(super) struct Panel<'a> {
    /// For each two registers of columns `ks` steps, each as wide as they are.
    pub(super) values: &'a mut [f32],
    /// Depth of the whole block.
    pub(super) ks: usize,
    /// The segment's first step.
    pub(super) at: usize,
}

/// Packs `depth x cols` of `right`.
pub(super) fn right<L: Lanes>(lanes: L, right: &Right<'_>, depth: Span, cols: Span, panel: &mut Panel<'_>) {
    match right {
        Right::Dense(matrix) if matrix.transposed => {
            columns(lanes, matrix.data, matrix.stride, depth, cols, panel);
        }
        Right::Dense(matrix) => rows(lanes, matrix.data, matrix.stride, depth, cols, panel),
        Right::Weight(weight) => match weight.elements() {
            Elements::F32(values) => rows(lanes, values, weight.cols(), depth, cols, panel),
            _ => dequantised_rows(lanes, weight, depth, cols, panel),
        },
        Right::WeightRows { weight, first, .. } => {
            self::right(lanes, &Right::Weight(weight), depth.after(*first), cols, panel);
        }
        Right::WeightRowsT { weight, first, .. } => {
            self::right(lanes, &Right::WeightT(weight), depth, cols.after(*first), panel);
        }
        Right::WeightT(weight) => match weight.elements() {
            Elements::F32(values) => columns(lanes, values, weight.cols(), depth, cols, panel),
            _ => dequantised_columns(lanes, weight, depth, cols, panel),
        },
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// Lanes of the widest register.
const MOST_LANES: usize = 16;
/// Depth to which a register of columns is dequantised before it is transposed: 16 KiB, a third of an L1.
const DEQUANTISED: usize = 256;

/// From rows of `k`: each row is cut into pieces of two registers.
fn rows<L: Lanes>(lanes: L, data: &[f32], stride: usize, depth: Span, cols: Span, panel: &mut Panel<'_>) {
    for k in 0..depth.len() {
        let from = &data[(depth.from + k) * stride..][cols.from..cols.to];
        scatter_row(lanes, from, k, panel);
    }
}

/// One row of `k`, cut into pieces of two registers.
fn scatter_row<L: Lanes>(lanes: L, from: &[f32], k: usize, panel: &mut Panel<'_>) {
    let (k, ks, panel) = (panel.at + k, panel.ks, &mut *panel.values);
    let width = 2 * L::WIDTH;
    let (whole, rest) = from.split_at(from.len() / width * width);
    let pieces = whole.len() / width;
    assert!(pieces == 0 || ((pieces - 1) * ks + k + 1) * width <= panel.len());
    lanes.enter(
        #[inline(always)]
        || {
            for piece in 0..pieces {
                // SAFETY: each piece has its place in the panel (asserted).
                unsafe {
                    let from = whole.as_ptr().add(piece * width);
                    let to = panel.as_mut_ptr().add((piece * ks + k) * width);
                    L::store(to, L::load(from));
                    L::store(to.add(L::WIDTH), L::load(from.add(L::WIDTH)));
                }
            }
        },
    );
    if !rest.is_empty() {
        let to = &mut panel[(pieces * ks + k) * width..][..width];
        to[..rest.len()].copy_from_slice(rest);
        to[rest.len()..].fill(0.0);
    }
}

/// The panel's columns a register at a time: which of the matrix, and the panel from their place on.
fn registers<L: Lanes>(cols: Span, panel: &mut Panel<'_>, mut fill: impl FnMut(Span, &mut [f32])) {
    let width = 2 * L::WIDTH;
    for from in (cols.from..cols.to).step_by(L::WIDTH) {
        let col = from - cols.from;
        let start = (col / width * panel.ks + panel.at) * width + col % width;
        fill(Span { from, to: (from + L::WIDTH).min(cols.to) }, &mut panel.values[start..]);
    }
}

/// From rows of columns: squares are transposed on the way.
fn columns<L: Lanes>(lanes: L, data: &[f32], stride: usize, depth: Span, cols: Span, panel: &mut Panel<'_>) {
    registers::<L>(cols, panel, |cols, to| {
        transpose(lanes, &data[cols.from * stride + depth.from..], stride, cols.len(), depth.len(), to);
    });
}

/// `to[k][c] = from[c * stride + k]` for `count` columns, those that are left of a register zero. Rows of
/// `to` are two registers apart.
fn transpose<L: Lanes>(lanes: L, from: &[f32], stride: usize, count: usize, ks: usize, to: &mut [f32]) {
    let pitch = 2 * L::WIDTH;
    assert!(count <= L::WIDTH && fits(count, ks, stride, from.len()));
    assert!(fits(ks, L::WIDTH, pitch, to.len()));
    let whole = if count == L::WIDTH { ks / L::WIDTH * L::WIDTH } else { 0 };
    lanes.enter(
        #[inline(always)]
        || {
            for k in (0..whole).step_by(L::WIDTH) {
                // SAFETY: rows `..WIDTH` and columns `k..k + WIDTH` lie inside `from`, and the squares inside `to` (both
                // asserted).
                unsafe { L::transpose(from.as_ptr().add(k), stride, to.as_mut_ptr().add(k * pitch), pitch) };
            }
        },
    );
    for k in whole..ks {
        for (c, to) in to[k * pitch..][..L::WIDTH].iter_mut().enumerate() {
            *to = if c < count { from[c * stride + k] } else { 0.0 };
        }
    }
}

fn dequantised_rows<L: Lanes>(lanes: L, weight: &Weight, depth: Span, cols: Span, panel: &mut Panel<'_>) {
    let mut row = [0.0; PANEL];
    let row = &mut row[..cols.len()];
    for k in 0..depth.len() {
        read(lanes, weight, depth.from + k, cols.from, row);
        scatter_row(lanes, row, k, panel);
    }
}

fn dequantised_columns<L: Lanes>(lanes: L, weight: &Weight, depth: Span, cols: Span, panel: &mut Panel<'_>) {
    let mut room = [0.0; MOST_LANES * DEQUANTISED];
    registers::<L>(cols, panel, |cols, to| {
        for (piece, from) in (depth.from..depth.to).step_by(DEQUANTISED).enumerate() {
            let ks = DEQUANTISED.min(depth.to - from);
            for (c, row) in room.chunks_exact_mut(ks).take(cols.len()).enumerate() {
                read(lanes, weight, cols.from + c, from, row);
            }
            let to = &mut to[piece * DEQUANTISED * 2 * L::WIDTH..];
            transpose(lanes, &room, ks, cols.len(), ks, to);
        }
    });
}

/// [`Weight::read`] with this machine's lookup for whole 4-bit blocks.
fn read<L: Lanes>(lanes: L, weight: &Weight, row: usize, col: usize, out: &mut [f32]) {
    let start = row * weight.cols() + col;
    match weight.elements() {
        Elements::Nf4(nf4) if start.is_multiple_of(NF4_BLOCK) => {
            let whole = out.len() / NF4_BLOCK * NF4_BLOCK;
            let (blocks, rest) = out.split_at_mut(whole);
            lookup_blocks(lanes, nf4, start, blocks);
            nf4.dequantise(start + whole, rest);
        }
        _ => vectorised(
            #[inline(always)]
            || weight.read(row, col, out),
        ),
    }
}

/// Whole blocks of 64 from `start`, itself the first value of a block.
fn lookup_blocks<L: Lanes>(lanes: L, nf4: &Nf4, start: usize, out: &mut [f32]) {
    let packed = &nf4.packed()[start / 2..][..out.len() / 2];
    for (block, (out, packed)) in
        out.chunks_exact_mut(NF4_BLOCK).zip(packed.chunks_exact(NF4_BLOCK / 2)).enumerate()
    {
        let scale = nf4.scale(start / NF4_BLOCK + block);
        lanes.enter(
            #[inline(always)]
            || {
                // SAFETY: 32 bytes give 64 values, two lookups of 16 bytes and 32 values.
                unsafe {
                    L::lookup(packed.as_ptr(), &NF4_CODES, scale, out.as_mut_ptr());
                    L::lookup(packed.as_ptr().add(16), &NF4_CODES, scale, out.as_mut_ptr().add(32));
                }
            },
        );
    }
}
