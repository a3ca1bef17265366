//! Attention, forward: a tile of queries passes over the keys with a running maximum and sum.
//!
//! Takes query, key and value rows, and gives attended rows and their log-sum-exp. A task owns some tokens of
//! one segment for all query heads that share a key head, so that keys and values are rearranged once for the
//! group.

use super::tile::{self, KEYS, Left, PAD, Part, Shared, Size};
use super::{Rows, Shape};
use crate::operations::RowsMut;
use crate::operations::math::{exp, exponentials, largest, reference};
use crate::simd::{Kernel, Lanes, dispatch};
use rayon::prelude::*;

/// Query rows of a task, over all heads of its group: enough to make the rearranging of keys cheap, and few
/// enough for queries and results (256 KiB at a head size of 128) to stay in the L2.
const QUERIES: usize = 256;

/// Attends every query to the keys of its segment. `out` is `tokens x heads * head_dim`, `log_sum_exp`
/// `tokens x heads`.
pub fn forward(
    shape: &Shape<'_>,
    q: Rows<'_>,
    k: Rows<'_>,
    v: Rows<'_>,
    out: &mut [f32],
    log_sum_exp: &mut [f32],
) {
    shape.check(q, k, v);
    let rows = shape.tokens() * shape.heads;
    assert!(out.len() == rows * shape.head_dim && log_sum_exp.len() == rows, "results of attention");
    let (out, log_sum_exp) = (&Shared::new(out), &Shared::new(log_sum_exp));
    let operands = Operands { shape, q, k, v, out, log_sum_exp };
    (0..shape.segment_count()).into_par_iter().for_each(|segment| {
        let (start, count) = shape.segment(segment);
        attend(operands, Queries { row: start, start, pages: None, before: 0, count });
    });
}

/// What all tasks share.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) shape: &'a Shape<'a>,
    pub(super) q: Rows<'a>,
    pub(super) k: Rows<'a>,
    pub(super) v: Rows<'a>,
    pub(super) out: &'a Shared<'a>,
    pub(super) log_sum_exp: &'a Shared<'a>,
}

/// The tokens of one segment that attend, and where its keys are.
#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    /// Row of the first among queries and results.
    pub(super) row: usize,
    /// Where the keys of the segment begin, unless they lie in pages.
    pub(super) start: usize,
    /// Where the keys lie that are kept in pages of a tile.
    pub(super) pages: Option<&'a [u32]>,
    /// Tokens of the segment before them.
    pub(super) before: usize,
    pub(super) count: usize,
}

/// Attends the queries of a segment, in tasks.
pub(super) fn attend(operands: Operands<'_>, queries: Queries<'_>) {
    let Operands { shape, q, k, v, out, log_sum_exp } = operands;
    let Queries { start, pages, before, .. } = queries;
    let step = tokens_of_a_task(shape);
    let pieces = queries.count.div_ceil(step);
    (0..pieces * shape.kv_heads).into_par_iter().for_each(|task| {
        let (kv_head, from) = (task % shape.kv_heads, task / shape.kv_heads * step);
        let count = step.min(queries.count - from);
        let width = shape.head_dim.next_multiple_of(PAD);
        let rows = shape.group() * count;
        tile::with_scratch(scratch_len(rows, count, width), |scratch| {
            let tiles = Tiles::new(scratch, rows, count, width);
            let (row, first, len) = (queries.row + from, before + from, before + queries.count);
            dispatch(Pass {
                shape,
                q,
                k,
                v,
                out,
                log_sum_exp,
                kv_head,
                start,
                row,
                pages,
                len,
                first,
                count,
                tiles,
            });
        });
    });
}

fn tokens_of_a_task(shape: &Shape<'_>) -> usize {
    (QUERIES / shape.group()).max(PAD)
}

/// Values that a task computes with at the most.
pub(super) fn largest_scratch(shape: &Shape<'_>) -> usize {
    let count = tokens_of_a_task(shape);
    scratch_len(shape.group() * count, count, shape.head_dim.next_multiple_of(PAD))
}

/// One task: `count` tokens from `first` on of the segment at `start`, for the heads of `kv_head`.
struct Pass<'a> {
    shape: &'a Shape<'a>,
    q: Rows<'a>,
    k: Rows<'a>,
    v: Rows<'a>,
    out: &'a Shared<'a>,
    log_sum_exp: &'a Shared<'a>,
    kv_head: usize,
    /// Where the keys of the segment begin, unless they lie in pages.
    start: usize,
    /// Row of the first token among queries and results.
    row: usize,
    /// Where the keys lie that are kept in pages of a tile.
    pages: Option<&'a [u32]>,
    len: usize,
    first: usize,
    count: usize,
    tiles: Tiles<'a>,
}

/// What a task computes with; the last four hold all heads of the group, one after another.
struct Tiles<'a> {
    width: usize,
    key_rows: &'a mut [f32],
    /// Transposed: a row for each value of a head.
    keys: &'a mut [f32],
    values: &'a mut [f32],
    scores: &'a mut [f32],
    queries: &'a mut [f32],
    results: &'a mut [f32],
    maxima: &'a mut [f32],
    sums: &'a mut [f32],
}

fn scratch_len(rows: usize, count: usize, width: usize) -> usize {
    3 * KEYS * width + count * KEYS + rows * (2 * width + 2)
}

impl<'a> Tiles<'a> {
    fn new(mut rest: &'a mut [f32], rows: usize, count: usize, width: usize) -> Self {
        let mut take = |len| tile::take(&mut rest, len);
        let [key_rows, keys, values] = [(); 3].map(|()| take(KEYS * width));
        let scores = take(count * KEYS);
        let [queries, results] = [(); 2].map(|()| take(rows * width));
        let [maxima, sums] = [(); 2].map(|()| take(rows));
        results.fill(0.0);
        maxima.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
        Self { width, key_rows, keys, values, scores, queries, results, maxima, sums }
    }
}

impl Kernel for Pass<'_> {
    type Output = ();

    fn run<L: Lanes>(mut self, lanes: L) {
        let Pass { shape, first, count, .. } = self;
        let (group, dim, width) = (shape.group(), shape.head_dim, self.tiles.width);
        for (g, queries) in self.tiles.queries.chunks_exact_mut(count * width).enumerate() {
            let column = (self.kv_head * group + g) * dim;
            let from = Part { rows: self.q, token: self.row, column, dim };
            tile::load(lanes, from, count, shape.scale(), queries, width);
        }
        let end = if shape.causal { first + count } else { self.len };
        for key in (0..end).step_by(KEYS) {
            let n = KEYS.min(end - key);
            self.load_keys(lanes, key, n);
            for g in 0..group {
                self.attend(lanes, g, key, n);
            }
        }
        self.store();
    }
}

impl Pass<'_> {
    fn load_keys<L: Lanes>(&mut self, lanes: L, key: usize, n: usize) {
        let Tiles { width, key_rows, keys, values, .. } = &mut self.tiles;
        let (width, dim) = (*width, self.shape.head_dim);
        let column = self.kv_head * dim;
        let token = self.pages.map_or(self.start + key, |pages| pages[key / KEYS] as usize * KEYS);
        let padded = n.next_multiple_of(PAD);
        tile::load(lanes, Part { rows: self.k, token, column, dim }, n, 1.0, key_rows, width);
        key_rows[n * width..padded * width].fill(0.0);
        tile::transpose(lanes, key_rows, padded, width, keys, KEYS);
        tile::load(lanes, Part { rows: self.v, token, column, dim }, n, 1.0, values, width);
    }

    /// Adds what head `g` sees of the `n` keys from `key` on.
    fn attend<L: Lanes>(&mut self, lanes: L, g: usize, key: usize, n: usize) {
        let Pass { shape, first, count, .. } = *self;
        let Tiles { width, keys, values, scores, queries, results, maxima, sums, .. } = &mut self.tiles;
        let width = *width;
        let padded = n.next_multiple_of(PAD);
        // Queries before the first key of the tile see none of it.
        let skip = if shape.causal { key.saturating_sub(first) } else { 0 };
        let rows = g * count + skip..(g + 1) * count;
        let left = Left { data: &queries[rows.start * width..], row: width, step: 1 };
        let size = Size { m: rows.len(), n: padded, k: shape.head_dim };
        let out = RowsMut { data: scores, stride: KEYS };
        tile::product(lanes, out, left, Rows { data: keys, stride: KEYS }, size, false);
        let results = &mut results[rows.start * width..rows.end * width];
        lanes.enter(
            #[inline(always)]
            || {
                for (i, row) in rows.clone().enumerate() {
                    let seen = if shape.causal { n.min(first + skip + i + 1 - key) } else { n };
                    let keep =
                        soften(&mut scores[i * KEYS..][..padded], seen, &mut maxima[row], &mut sums[row]);
                    for result in &mut results[i * width..][..width] {
                        *result *= keep;
                    }
                }
            },
        );
        let left = Left { data: scores, row: KEYS, step: 1 };
        let size = Size { m: rows.len(), n: width, k: n };
        let out = RowsMut { data: results, stride: width };
        tile::product(lanes, out, left, Rows { data: values, stride: width }, size, true);
    }

    fn store(&self) {
        let Tiles { width, results, maxima, sums, .. } = &self.tiles;
        let (group, dim) = (self.shape.group(), self.shape.head_dim);
        for (row, result) in results.chunks_exact(*width).enumerate() {
            let (g, i) = (row / self.count, row % self.count);
            let at = (self.row + i) * self.shape.heads + self.kv_head * group + g;
            // SAFETY: only this task has this head of this token.
            let (out, log_sum_exp) = unsafe { (self.out.part(at * dim, dim), self.log_sum_exp.part(at, 1)) };
            let inverse = 1.0 / sums[row];
            for (out, result) in out.iter_mut().zip(result) {
                *out = result * inverse;
            }
            log_sum_exp[0] = maxima[row] + sums[row].ln();
        }
    }
}

/// Turns scores into their exponentials below a new maximum; gives what earlier results are to be multiplied
/// with.
#[inline(always)]
fn soften(scores: &mut [f32], seen: usize, maximum: &mut f32, sum: &mut f32) -> f32 {
    scores[seen..].fill(f32::NEG_INFINITY);
    let found = largest(scores);
    let new = if found > *maximum { found } else { *maximum };
    let below = reference(new);
    let keep = exp(*maximum - below);
    *sum = *sum * keep + exponentials(scores, below);
    *maximum = new;
    keep
}
