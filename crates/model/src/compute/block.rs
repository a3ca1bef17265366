//! One block of either tower: attention and a gated MLP, each behind a norm and beside the residual stream.
//!
//! In come the rows of the residual stream and the block's weights; out come the rows after the block. What the backward
//! reads is kept on the way, or computed again: then [`Pass::forward`] runs without its last product, whose result the next
//! block's input already held.

mod backward;

pub(super) use backward::{Trained, input_gradient};

use super::cache::Past;
use super::model::{Block, Projection};
use super::slots::{Kept, Training, Work};
use crate::config::ModelConfig;
use garden_engine::arena::{Arena, Slot};
use garden_engine::ops::attention::{self, Rows};
use garden_engine::ops::dropout::Mask;
use garden_engine::ops::rotary::{self, Table};
use garden_engine::ops::{norm, swiglu};

/// Sizes of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BlockShape {
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub inner: usize,
    pub causal: bool,
    pub epsilon: f32,
    /// Rank of its pairs; zero for none.
    pub rank: usize,
    /// Matrices that queries, keys and values come from: one or three.
    pub qkv_parts: usize,
    /// Whether the pairs drop some of their inputs.
    pub dropout: bool,
}

impl BlockShape {
    pub(super) fn vision(config: &ModelConfig, training: Training) -> Self {
        let vision = &config.vision;
        Self {
            width: vision.hidden_size,
            heads: vision.heads,
            kv_heads: vision.heads,
            head_dim: vision.head_size(),
            inner: vision.intermediate_size,
            causal: false,
            epsilon: vision.norm_epsilon,
            rank: training.rank[0],
            qkv_parts: 1,
            dropout: training.dropout && training.rank[0] > 0,
        }
    }

    pub(super) fn text(config: &ModelConfig, training: Training) -> Self {
        let text = &config.text;
        Self {
            width: text.hidden_size,
            heads: text.heads,
            kv_heads: text.kv_heads,
            head_dim: text.head_size(),
            inner: text.intermediate_size,
            causal: true,
            epsilon: text.norm_epsilon,
            rank: training.rank[1],
            qkv_parts: 3,
            dropout: training.dropout && training.rank[1] > 0,
        }
    }

    pub(super) fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// The widest input that is dropped from; zero without dropout.
    pub(super) fn dropped_width(&self) -> usize {
        if self.dropout { self.width.max(self.inner) } else { 0 }
    }

    /// Linear layers of the block.
    pub(super) fn projections(&self) -> usize {
        self.qkv_parts + 4
    }

    fn attention<'a>(&self, segments: &'a [usize]) -> attention::Shape<'a> {
        attention::Shape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            segments,
            causal: self.causal,
        }
    }
}

/// A block on its way through one batch.
pub(super) struct Pass<'a> {
    pub shape: BlockShape,
    pub block: Block<'a>,
    pub rows: usize,
    /// The rows, ascending, that go on after attention: nobody reads the others, whose keys and values are all that is
    /// needed of them. Without a choice all rows go on.
    pub picked: Option<&'a [usize]>,
    pub segments: &'a [usize],
    pub cos: Slot,
    pub sin: Slot,
    pub scratch: Slot,
    /// The step's dropout: each pair has its own fork of it.
    pub dropout: Option<Mask>,
}

impl Pass<'_> {
    /// Rows after attention.
    pub(super) fn rows_after(&self) -> usize {
        self.picked.map_or(self.rows, <[usize]>::len)
    }

    /// The part of `narrow` that projection `index` fills.
    fn narrow<'b>(&self, index: usize, narrow: &'b mut [f32]) -> &'b mut [f32] {
        let len = self.rows * self.shape.rank;
        &mut narrow[index * len..][..len]
    }

    /// What is dropped from the input of the layer's pair.
    fn mask(&self, projection: &Projection<'_>) -> Option<Mask> {
        projection.ids.a.zip(self.dropout).map(|(id, dropout)| dropout.fork(id as u64))
    }

    /// The narrow product of the layer's pair, on what dropout leaves of `x`.
    fn project(&self, projection: &Projection<'_>, x: &[f32], narrow: &mut [f32], room: &mut Room<'_>) {
        let x = masked(self.mask(projection), x, projection.linear.weight.cols(), room.dropped);
        projection.linear.project(x, x.len() / projection.linear.weight.cols(), narrow, room.packed);
    }

    /// The rows after the block go to `output`; without one, only what backward reads is computed. With a past the rows go on
    /// after the tokens in it.
    pub(super) fn forward(
        &self,
        arena: &mut Arena,
        input: Slot,
        kept: &Kept,
        work: &Work,
        output: Option<Slot>,
        past: Option<Past<'_>>,
    ) {
        self.forward_attention(arena, input, kept, work, past);
        let (shape, block, rows) = (&self.shape, &self.block, self.rows_after());
        let first = shape.qkv_parts + 1;
        let [middle, inverse, gate, up, narrow, normed, activated, dropped, packed] = arena.get([
            kept.middle,
            kept.inverse2,
            kept.gate,
            kept.up,
            kept.narrow,
            work.normed,
            work.activated,
            work.dropped,
            self.scratch,
        ]);
        let room = &mut Room { dropped, packed };
        let middle = &middle[..rows * shape.width];
        let normed = &mut normed[..rows * shape.width];
        norm::forward(middle, block.norm2, shape.epsilon, normed, &mut inverse[..rows]);
        for (at, (projection, out)) in
            [(&block.gate, &mut *gate), (&block.up, &mut *up)].into_iter().enumerate()
        {
            let narrow = self.narrow(first + at, narrow);
            self.project(projection, normed, narrow, room);
            projection.linear.forward(normed, narrow, rows, (out, shape.inner), None, room.packed);
        }
        let activated = &mut activated[..rows * shape.inner];
        swiglu::forward(&gate[..activated.len()], &up[..activated.len()], activated);
        self.project(&block.down, activated, self.narrow(first + 2, narrow), room);
        if let Some(output) = output {
            let [middle, narrow, activated, packed, output] =
                arena.get([kept.middle, kept.narrow, work.activated, self.scratch, output]);
            let (narrow, down) = (self.narrow(first + 2, narrow), &block.down.linear);
            down.forward(activated, narrow, rows, (output, shape.width), Some(middle), packed);
        }
    }

    fn forward_attention(
        &self,
        arena: &mut Arena,
        input: Slot,
        kept: &Kept,
        work: &Work,
        past: Option<Past<'_>>,
    ) {
        let (shape, block, rows) = (&self.shape, &self.block, self.rows);
        let [
            x,
            inverse,
            qkv,
            attended,
            log_sum_exp,
            middle,
            narrow,
            normed,
            activated,
            cos,
            sin,
            dropped,
            packed,
        ] = arena.get([
            input,
            kept.inverse1,
            kept.qkv,
            kept.attended,
            kept.log_sum_exp,
            kept.middle,
            kept.narrow,
            work.normed,
            work.activated,
            self.cos,
            self.sin,
            work.dropped,
            self.scratch,
        ]);
        let room = &mut Room { dropped, packed };
        let x = &x[..rows * shape.width];
        let normed = &mut normed[..rows * shape.width];
        norm::forward(x, block.norm1, shape.epsilon, normed, &mut inverse[..rows]);
        let stride = shape.qkv_width();
        let mut column = 0;
        for (index, projection) in block.qkv.iter().enumerate() {
            let narrow = self.narrow(index, narrow);
            self.project(projection, normed, narrow, room);
            projection.linear.forward(normed, narrow, rows, (&mut qkv[column..], stride), None, room.packed);
            column += projection.linear.weight.rows();
        }
        let qkv = &mut qkv[..rows * stride];
        rotary::forward(qkv, stride, shape.heads + shape.kv_heads, self.table(cos, sin));
        let [q, k, v] = self.heads(qkv);
        let attended = &mut attended[..rows * shape.width];
        let log_sum_exp = &mut log_sum_exp[..rows * shape.heads];
        let attention = shape.attention(self.segments);
        match past {
            None => attention::forward(&attention, q, k, v, attended, log_sum_exp),
            Some(past) => past.attend(&attention, rows, [q, k, v], attended, log_sum_exp),
        }
        let (attended, x) = match self.picked {
            None => (&*attended, x),
            Some(picked) => {
                (gather(attended, picked, shape.width, normed), gather(x, picked, shape.width, activated))
            }
        };
        let narrow = self.narrow(shape.qkv_parts, narrow);
        self.project(&block.out, attended, narrow, room);
        let middle = (&mut *middle, shape.width);
        block.out.linear.forward(attended, narrow, self.rows_after(), middle, Some(x), room.packed);
    }

    fn table<'b>(&self, cos: &'b [f32], sin: &'b [f32]) -> Table<'b> {
        let half = self.shape.head_dim / 2;
        Table { cos: &cos[..self.rows * half], sin: &sin[..self.rows * half], half }
    }

    /// Queries, keys and values inside their common rows.
    fn heads<'b>(&self, qkv: &'b [f32]) -> [Rows<'b>; 3] {
        let (shape, stride) = (&self.shape, self.shape.qkv_width());
        let keys = shape.heads * shape.head_dim;
        let values = keys + shape.kv_heads * shape.head_dim;
        [0, keys, values].map(|start| Rows { data: &qkv[start..], stride })
    }
}

/// The picked rows of `from`, one after another in `to`.
fn gather<'a>(from: &[f32], picked: &[usize], width: usize, to: &'a mut [f32]) -> &'a [f32] {
    let to = &mut to[..picked.len() * width];
    for (to, &row) in to.chunks_exact_mut(width).zip(picked) {
        to.copy_from_slice(&from[row * width..][..width]);
    }
    to
}

/// Places for what a product needs beside its operands.
pub(super) struct Room<'a> {
    /// An input after dropout, or a gradient before it; empty without dropout.
    pub dropped: &'a mut [f32],
    /// Packed panels.
    pub packed: &'a mut [f32],
}

/// `x` as the mask leaves it, in `dropped`; `x` itself without a mask.
fn masked<'a>(mask: Option<Mask>, x: &'a [f32], width: usize, dropped: &'a mut [f32]) -> &'a [f32] {
    let Some(mask) = mask else { return x };
    let dropped = &mut dropped[..x.len()];
    mask.forward(x, width, dropped);
    dropped
}
