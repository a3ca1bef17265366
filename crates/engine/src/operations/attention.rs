//! Attention within segments of a batch, without a matrix of all scores.
//!
//! Takes rows of query, key and value heads, perhaps inside wider rows, and the segments that may see each
//! other: the sequences of a batch, the images of a vision batch, or its windows. Gives the attended rows
//! and, for the backward, one log-sum-exp a token and head. Scores exist only as tiles that fit the cache,
//! and are computed again for gradients. One task owns all that it writes, so sums have one order whatever
//! the threads do.

mod backward;
mod forward;
mod paged;
mod tile;

pub use backward::{Saved, backward};
pub use forward::forward;
pub use paged::{Heads, PAGE, Pages, Reading, paged};

use crate::operations::Rows;
use crate::products::fits;

/// Gives every thread of the pool the room that a task of such heads takes and keeps: which threads get a
/// task is left to chance, and one that gets its first in a later step would allocate there.
pub fn prepare_threads(shape: &Shape<'_>) {
    let len = forward::largest_scratch(shape).max(backward::largest_scratch(shape));
    rayon::broadcast(|_| tile::with_scratch(len, |_| ()));
}

/// Which heads and tokens see each other.
#[derive(Debug, Clone, Copy)]
pub struct Shape<'a> {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Where segments begin, then where the last one ends: `[0, 64, 128]` are two segments of 64 tokens.
    pub segments: &'a [usize],
    /// Whether a token sees only those before it and itself.
    pub causal: bool,
}

impl Shape<'_> {
    /// Tokens of all segments.
    pub fn tokens(&self) -> usize {
        self.segments.last().copied().unwrap_or(0)
    }

    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// First token and length of a segment.
    fn segment(&self, index: usize) -> (usize, usize) {
        (self.segments[index], self.segments[index + 1] - self.segments[index])
    }

    fn segment_count(&self) -> usize {
        self.segments.len().saturating_sub(1)
    }

    /// Panics where shapes and slices do not fit each other: a caller's error, never that of an input.
    fn check(&self, q: Rows<'_>, k: Rows<'_>, v: Rows<'_>) {
        assert!(self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads), "query heads share key heads");
        assert!(self.head_dim > 0 && self.segments.is_sorted(), "segments of attention");
        assert!(self.segments.first().is_none_or(|&first| first == 0), "the first segment begins at 0");
        for (rows, heads) in [(q, self.heads), (k, self.kv_heads), (v, self.kv_heads)] {
            let width = heads.checked_mul(self.head_dim);
            let fits = |width| fits(self.tokens(), width, rows.stride, rows.data.len());
            assert!(width.is_some_and(fits), "rows of heads leave their slice");
        }
    }
}

#[cfg(test)]
mod tests;
