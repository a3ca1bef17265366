//! Attends one new token to the keys and values kept of those before it, as generation needs it.
//!
//! Takes the query heads of one token and the cache's rows, and gives the attended row. Every key is read
//! once for all query heads that share it; the caller's scratch holds one score a head and key.

use super::Rows;
use crate::operations::math::{dot, softmax};
use crate::products::fits;
use crate::simd::vectorised;
use rayon::prelude::*;

/// Values of scratch that [`decode`] needs.
pub fn decode_scratch_len(heads: usize, keys: usize) -> usize {
    heads.saturating_mul(keys)
}

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

/// What is kept of the tokens so far.
#[derive(Debug, Clone, Copy)]
pub struct Past<'a> {
    /// Key rows.
    pub keys: Rows<'a>,
    /// Value rows.
    pub values: Rows<'a>,
    /// Tokens.
    pub count: usize,
}

/// Attends one token's query heads to all tokens of `past`; `q` and `out` hold the values of all query heads.
pub fn decode(heads: Heads, q: &[f32], past: Past<'_>, out: &mut [f32], scratch: &mut [f32]) {
    let Heads { heads, kv_heads, head_dim } = heads;
    let Past { keys, values, count } = past;
    assert!(count > 0 && kv_heads > 0 && heads.is_multiple_of(kv_heads), "heads of attention");
    assert!(head_dim > 0 && heads.checked_mul(head_dim) == Some(q.len()), "a token's heads");
    assert!(out.len() == q.len(), "a token's results");
    for rows in [keys, values] {
        // No more than the query heads', so it does not wrap.
        let width = kv_heads * head_dim;
        assert!(fits(count, width, rows.stride, rows.data.len()), "rows of heads leave their slice");
    }
    let group = heads / kv_heads;
    let scores = &mut scratch[..decode_scratch_len(heads, count)];
    let parts = (
        q.par_chunks(group * head_dim),
        out.par_chunks_mut(group * head_dim),
        scores.par_chunks_mut(group * count),
    );
    parts.into_par_iter().enumerate().for_each(|(kv_head, (q, out, scores))| {
        let row = |rows: Rows<'_>, token: usize| token * rows.stride + kv_head * head_dim;
        vectorised(
            #[inline(always)]
            || {
                let scale = 1.0 / (head_dim as f32).sqrt();
                for token in 0..count {
                    let key = &keys.data[row(keys, token)..][..head_dim];
                    for (scores, q) in scores.chunks_exact_mut(count).zip(q.chunks_exact(head_dim)) {
                        scores[token] = dot(q, key) * scale;
                    }
                }
                scores.chunks_exact_mut(count).for_each(softmax);
                out.fill(0.0);
                for token in 0..count {
                    let value = &values.data[row(values, token)..][..head_dim];
                    for (scores, out) in scores.chunks_exact(count).zip(out.chunks_exact_mut(head_dim)) {
                        out.iter_mut().zip(value).for_each(|(out, value)| *out += scores[token] * value);
                    }
                }
            },
        );
    });
}
