//! Attends new tokens of several sequences to the keys and values kept of each, as generation needs it.
//!
//! Takes query rows of all sequences together, and keys and values in pages of [`PAGE`] tokens that lie
//! anywhere. Gives the attended rows. A page is a tile of the forward, which computes everything here too: a
//! token's result has the same bits however many tokens are read with it, beside it, or before it.

use super::forward::{Operands, Queries, attend};
use super::tile::{KEYS, Shared};
use super::{Rows, Shape};
use crate::products::fits;
use rayon::prelude::*;

/// Tokens whose keys and values lie together.
pub const PAGE: usize = KEYS;

/// The heads of a token.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
}

/// Keys and values of all pages, one page after another.
#[derive(Debug, Clone, Copy)]
pub struct Pages<'a> {
    /// Key rows, those of a token without gaps.
    pub keys: &'a [f32],
    /// Value rows, likewise.
    pub values: &'a [f32],
}

/// The new tokens of one sequence, whose keys and values are in its pages already.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// Its first row among all query rows.
    pub row: usize,
    /// New tokens.
    pub count: usize,
    /// Tokens before them.
    pub before: usize,
    /// Its pages in order.
    pub pages: &'a [u32],
}

/// Attends every new token to those before it in its sequence and to itself. `out` and `log_sum_exp` are as
/// in [`forward`](super::forward), with one row a query row.
pub fn paged(
    heads: Heads,
    q: Rows<'_>,
    kept: Pages<'_>,
    sequences: &[Reading<'_>],
    out: &mut [f32],
    log_sum_exp: &mut [f32],
) {
    let Heads { heads, kv_heads, head_dim } = heads;
    let shape = &Shape { heads, kv_heads, head_dim, segments: &[], causal: true };
    check(shape, q, kept, sequences, out.len(), log_sum_exp.len());
    let (out, log_sum_exp) = (&Shared::new(out), &Shared::new(log_sum_exp));
    let width = kv_heads * head_dim;
    let [k, v] = [kept.keys, kept.values].map(|data| Rows { data, stride: width });
    let operands = Operands { shape, q, k, v, out, log_sum_exp };
    sequences.par_iter().for_each(|&Reading { row, count, before, pages }| {
        attend(operands, Queries { row, start: 0, pages: Some(pages), before, count });
    });
}

/// Panics where shapes and slices do not fit each other: a caller's error, never that of an input.
fn check(
    shape: &Shape<'_>,
    q: Rows<'_>,
    kept: Pages<'_>,
    sequences: &[Reading<'_>],
    out: usize,
    log_sum_exp: usize,
) {
    let Shape { heads, kv_heads, head_dim, .. } = *shape;
    assert!(kv_heads > 0 && head_dim > 0 && heads.is_multiple_of(kv_heads), "heads of attention");
    let mut rows = 0;
    for sequence in sequences {
        // One after another: no two tasks write the same row.
        assert!(sequence.row == rows, "rows of a sequence");
        rows = rows.checked_add(sequence.count).expect("rows that memory can hold");
        let tokens = sequence.before.checked_add(sequence.count).expect("tokens that memory can hold");
        assert!(sequence.pages.len() >= tokens.div_ceil(PAGE), "pages of a sequence");
        let page = PAGE.checked_mul(kv_heads).and_then(|page| page.checked_mul(head_dim));
        let page = page.expect("a page that memory can hold");
        let inside =
            |at: &u32| (*at as usize + 1).checked_mul(page).is_some_and(|end| end <= kept.keys.len());
        assert!(sequence.pages.iter().all(inside), "a page leaves its slice");
    }
    assert!(kept.keys.len() == kept.values.len(), "as many keys as values");
    let width = heads.checked_mul(head_dim).expect("heads that memory can hold");
    assert!(fits(rows, width, q.stride, q.data.len()), "rows of heads leave their slice");
    assert!(rows.checked_mul(width) == Some(out) && log_sum_exp == rows * heads, "results of attention");
}
