//! Attention, backward: scores are computed again, a tile at a time, from the log-sum-exp of the forward.
//!
//! Takes the forward's rows and results and the gradient of the results, and gives the gradients of queries,
//! keys and values. A task owns one key head of one segment with all its query heads, so that what several
//! queries give to one key is added in one order.

use super::tile::{self, KEYS, Left, PAD, Part, Shared, Size};
use super::{Rows, Shape};
use crate::operations::RowsMut;
use crate::operations::math::{dot, exp};
use crate::products::fits;
use crate::simd::{Kernel, Lanes, dispatch};
use rayon::prelude::*;

/// Queries of a tile; as many as [`KEYS`] keeps the ten tiles of a step (300 KiB at a head size of 128) in
/// the L2.
const QUERIES: usize = 64;

/// What the forward was given and gave.
#[derive(Debug, Clone, Copy)]
pub struct Saved<'a> {
    /// Query rows.
    pub q: Rows<'a>,
    /// Key rows.
    pub k: Rows<'a>,
    /// Value rows.
    pub v: Rows<'a>,
    /// The attended rows.
    pub out: &'a [f32],
    /// Their log-sum-exp.
    pub log_sum_exp: &'a [f32],
}

/// Writes the gradients of queries, keys and values into rows of `grad_qkv`, one after another.
pub fn backward(shape: &Shape<'_>, saved: &Saved<'_>, grad_out: &[f32], grad_qkv: RowsMut<'_>) {
    let RowsMut { data: grad_qkv, stride } = grad_qkv;
    shape.check(saved.q, saved.k, saved.v);
    let rows = shape.tokens() * shape.heads;
    let whole = |data: &[f32]| data.len() == rows * shape.head_dim;
    assert!(whole(saved.out) && whole(grad_out) && saved.log_sum_exp.len() == rows, "results of attention");
    let width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    assert!(fits(shape.tokens(), width, stride, grad_qkv.len()), "gradients leave their slice");
    let grad_qkv = &Shared::new(grad_qkv);
    let grad_out = Rows { data: grad_out, stride: shape.heads * shape.head_dim };
    (0..shape.segment_count() * shape.kv_heads).into_par_iter().with_max_len(1).for_each(|task| {
        let (start, len) = shape.segment(task / shape.kv_heads);
        let kv_head = task % shape.kv_heads;
        let width = shape.head_dim.next_multiple_of(PAD);
        tile::with_scratch(largest_scratch(shape), |scratch| {
            let tiles = Tiles::new(scratch, width);
            dispatch(Pass { shape, saved, grad_out, grad_qkv, stride, kv_head, start, len, tiles });
        });
    });
}

/// Values that a task computes with.
pub(super) fn largest_scratch(shape: &Shape<'_>) -> usize {
    scratch_len(shape.head_dim.next_multiple_of(PAD))
}

/// One task: the segment at `start` for `kv_head` and its query heads.
struct Pass<'a> {
    shape: &'a Shape<'a>,
    saved: &'a Saved<'a>,
    grad_out: Rows<'a>,
    grad_qkv: &'a Shared<'a>,
    stride: usize,
    kv_head: usize,
    start: usize,
    len: usize,
    tiles: Tiles<'a>,
}

/// What a task computes with.
struct Tiles<'a> {
    width: usize,
    keys: &'a mut [f32],
    /// Transposed: a row for each value of a head.
    keys_across: &'a mut [f32],
    values_across: &'a mut [f32],
    grad_keys: &'a mut [f32],
    grad_values: &'a mut [f32],
    queries: &'a mut [f32],
    grad_queries: &'a mut [f32],
    grad_results: &'a mut [f32],
    scores: &'a mut [f32],
    grad_scores: &'a mut [f32],
}

fn scratch_len(width: usize) -> usize {
    5 * KEYS * width + 3 * QUERIES * width + 2 * QUERIES * KEYS
}

impl<'a> Tiles<'a> {
    fn new(mut rest: &'a mut [f32], width: usize) -> Self {
        let mut take = |len| tile::take(&mut rest, len);
        let [keys, keys_across, values_across, grad_keys, grad_values] = [(); 5].map(|()| take(KEYS * width));
        let [queries, grad_queries, grad_results] = [(); 3].map(|()| take(QUERIES * width));
        let [scores, grad_scores] = [(); 2].map(|()| take(QUERIES * KEYS));
        Self {
            width,
            keys,
            keys_across,
            values_across,
            grad_keys,
            grad_values,
            queries,
            grad_queries,
            grad_results,
            scores,
            grad_scores,
        }
    }
}

impl Kernel for Pass<'_> {
    type Output = ();

    fn run<L: Lanes>(mut self, lanes: L) {
        let shape = self.shape;
        for key in (0..self.len).step_by(KEYS) {
            let n = KEYS.min(self.len - key);
            self.load_keys(lanes, key, n);
            // A tile of queries before this tile of keys sees none of it.
            let first = if shape.causal { key / QUERIES * QUERIES } else { 0 };
            for g in 0..shape.group() {
                for query in (first..self.len).step_by(QUERIES) {
                    let m = QUERIES.min(self.len - query);
                    self.load_queries(lanes, g, query, m);
                    self.scores(lanes, g, (query, m), (key, n));
                    self.gradients(lanes, m, n);
                    self.store_queries(g, (query, m), key == 0);
                }
            }
            self.store_keys(key, n);
        }
    }
}

impl Pass<'_> {
    fn load_keys<L: Lanes>(&mut self, lanes: L, key: usize, n: usize) {
        let Tiles { width, keys, keys_across, values_across, grad_keys, grad_values, .. } = &mut self.tiles;
        let (width, dim) = (*width, self.shape.head_dim);
        let (token, column) = (self.start + key, self.kv_head * dim);
        let padded = n.next_multiple_of(PAD);
        tile::load(lanes, Part { rows: self.saved.v, token, column, dim }, n, 1.0, keys, width);
        keys[n * width..padded * width].fill(0.0);
        tile::transpose(lanes, keys, padded, width, values_across, KEYS);
        tile::load(lanes, Part { rows: self.saved.k, token, column, dim }, n, 1.0, keys, width);
        tile::transpose(lanes, keys, padded, width, keys_across, KEYS);
        // From here on the rows serve the queries' gradients, which the scale of the scores multiplies.
        let scale = self.shape.scale();
        keys[..n * width].iter_mut().for_each(|value| *value *= scale);
        grad_keys[..n * width].fill(0.0);
        grad_values[..n * width].fill(0.0);
    }

    fn load_queries<L: Lanes>(&mut self, lanes: L, g: usize, query: usize, m: usize) {
        let at = self.part(self.saved.q, g, query);
        let Tiles { width, queries, grad_results, .. } = &mut self.tiles;
        tile::load(lanes, at, m, self.shape.scale(), queries, *width);
        tile::load(lanes, Part { rows: self.grad_out, ..at }, m, 1.0, grad_results, *width);
    }

    /// Query head `g` of the group, from `query` on.
    fn part<'r>(&self, rows: Rows<'r>, g: usize, query: usize) -> Part<'r> {
        let dim = self.shape.head_dim;
        let column = (self.kv_head * self.shape.group() + g) * dim;
        Part { rows, token: self.start + query, column, dim }
    }

    /// The probabilities of a tile, and the gradients of its scores.
    fn scores<L: Lanes>(&mut self, lanes: L, g: usize, (query, m): (usize, usize), (key, n): (usize, usize)) {
        let Pass { shape, saved, .. } = *self;
        let head = self.kv_head * shape.group() + g;
        let out = self.part(Rows { data: saved.out, stride: shape.heads * shape.head_dim }, g, query);
        let Tiles { width, keys_across, values_across, queries, grad_results, scores, grad_scores, .. } =
            &mut self.tiles;
        let size = Size { m, n: n.next_multiple_of(PAD), k: shape.head_dim };
        let left = Left { data: queries, row: *width, step: 1 };
        let scores_out = RowsMut { data: scores, stride: KEYS };
        tile::product(lanes, scores_out, left, Rows { data: keys_across, stride: KEYS }, size, false);
        let left = Left { data: grad_results, row: *width, step: 1 };
        let grads_out = RowsMut { data: grad_scores, stride: KEYS };
        tile::product(lanes, grads_out, left, Rows { data: values_across, stride: KEYS }, size, false);
        let start = self.start;
        lanes.enter(
            #[inline(always)]
            || {
                let rows = scores.chunks_exact_mut(KEYS).zip(grad_scores.chunks_exact_mut(KEYS));
                for (i, (scores, grad_scores)) in rows.take(m).enumerate() {
                    let seen = if shape.causal { n.min((query + i + 1).saturating_sub(key)) } else { n };
                    scores[seen..size.n].fill(f32::NEG_INFINITY);
                    let log_sum_exp = saved.log_sum_exp[(start + query + i) * shape.heads + head];
                    // What the softmax takes back from every score: the row's gradient along its own result.
                    let along = dot(&grad_results[i * *width..][..shape.head_dim], out.row(i));
                    for (score, grad) in scores[..size.n].iter_mut().zip(&mut grad_scores[..size.n]) {
                        *score = exp(*score - log_sum_exp);
                        *grad = *score * (*grad - along);
                    }
                }
            },
        );
    }

    /// Adds the tile to the gradients of its keys and values, and writes that of its queries.
    fn gradients<L: Lanes>(&mut self, lanes: L, m: usize, n: usize) {
        let tiles = &mut self.tiles;
        let width = tiles.width;
        let rows = |data| Rows { data, stride: width };
        let to_keys = Size { m: n, n: width, k: m };
        let left = Left { data: tiles.scores, row: 1, step: KEYS };
        let out = RowsMut { data: tiles.grad_values, stride: width };
        tile::product(lanes, out, left, rows(tiles.grad_results), to_keys, true);
        let left = Left { data: tiles.grad_scores, row: 1, step: KEYS };
        let out = RowsMut { data: tiles.grad_keys, stride: width };
        tile::product(lanes, out, left, rows(tiles.queries), to_keys, true);
        let left = Left { data: tiles.grad_scores, row: KEYS, step: 1 };
        let to_queries = Size { m, n: width, k: n };
        let out = RowsMut { data: tiles.grad_queries, stride: width };
        tile::product(lanes, out, left, rows(tiles.keys), to_queries, false);
    }

    /// The first tile of keys reaches every query, so it begins their gradients and the others add.
    fn store_queries(&self, g: usize, (query, m): (usize, usize), begin: bool) {
        let dim = self.shape.head_dim;
        let column = (self.kv_head * self.shape.group() + g) * dim;
        for (i, from) in self.tiles.grad_queries.chunks_exact(self.tiles.width).take(m).enumerate() {
            // SAFETY: only this task has these query heads of this segment.
            let to = unsafe { self.grad_qkv.part((self.start + query + i) * self.stride + column, dim) };
            match begin {
                true => to.copy_from_slice(&from[..dim]),
                false => to.iter_mut().zip(from).for_each(|(to, from)| *to += from),
            }
        }
    }

    fn store_keys(&self, key: usize, n: usize) {
        let Shape { heads, kv_heads, head_dim: dim, .. } = *self.shape;
        let all = [(heads, &self.tiles.grad_keys), (heads + kv_heads, &self.tiles.grad_values)];
        for (heads_before, grads) in all {
            for (i, from) in grads.chunks_exact(self.tiles.width).take(n).enumerate() {
                let at = (self.start + key + i) * self.stride + (heads_before + self.kv_head) * dim;
                // SAFETY: only this task has this key head of this segment.
                unsafe { self.grad_qkv.part(at, dim) }.copy_from_slice(&from[..dim]);
            }
        }
    }
}
