//! One block of either tower: attention and a gated MLP, each behind a norm and beside the residual stream.
//!
//! Takes the rows of the residual stream and the block's weights, and gives the rows after the block. What
//! the backward reads is kept on the way, or computed again: then the last product is left out, whose result
//! the next block's input already held. The MLP is computed a part of its inner width after another, the same
//! parts whether they are kept or not.

mod backward;

pub(super) use backward::{Trained, input_gradient};

use super::cache::Past;
use super::model::{Block, Projection};
use super::slots::{BlockSlots, Kept, Work};
use super::training::Training;
use crate::config::ModelConfig;
use garden_engine::ops::attention;
use garden_engine::ops::dropout::Mask;
use garden_engine::ops::linear::Input;
use garden_engine::ops::rotary::{self, Table};
use garden_engine::ops::{Rows, RowsMut, norm, swiglu};
use garden_engine::{Arena, Slot};
use std::ops::Range;

/// Columns of a part of the MLP. At the medium shape (548 rows, an inner width of 5504, two threads) a step
/// that recomputes is 1 % faster in parts of 1024 than in one piece, one that keeps up to 1 % slower; what
/// the first works in is 49 MB, in one piece 90. Parts of 1536 are no faster and take 5 MB more, smaller ones
/// pack the same rows too often.
const PART: usize = 1024;

/// How much of an inner width is computed at a time while training. Without a backward nothing else is kept
/// beside it; a width that is less than two parts stays whole.
fn part_of(inner: usize, training: Training) -> usize {
    if training.divided && training.backward && inner >= 2 * PART { PART } else { inner }
}

/// Sizes of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BlockShape {
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub inner: usize,
    /// Columns of the inner width that are computed at a time.
    pub part: usize,
    pub causal: bool,
    pub epsilon: f32,
    /// Rank of its pairs; zero for none.
    pub rank: usize,
    /// Matrices that queries, keys and values come from: one or three.
    pub qkv_parts: usize,
    /// Whether the pairs drop some of their inputs.
    pub dropout: bool,
    /// Whether a row's bits must not depend on the rows beside it.
    pub rowwise: bool,
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
            part: part_of(vision.intermediate_size, training),
            causal: false,
            epsilon: vision.norm_epsilon,
            rank: training.rank.vision,
            qkv_parts: 1,
            dropout: training.dropout && training.rank.vision > 0,
            rowwise: training.rowwise(),
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
            part: part_of(text.intermediate_size, training),
            causal: true,
            epsilon: text.norm_epsilon,
            rank: training.rank.text,
            qkv_parts: 3,
            dropout: training.dropout && training.rank.text > 0,
            rowwise: training.rowwise(),
        }
    }

    pub(super) fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// The widest input that is dropped from; zero without dropout.
    pub(super) fn dropped_width(&self) -> usize {
        if self.dropout { self.width.max(self.part) } else { 0 }
    }

    /// The inner width, a part after another.
    fn parts(&self) -> impl Iterator<Item = Range<usize>> {
        let (inner, part) = (self.inner, self.part);
        (0..inner).step_by(part.max(1)).map(move |first| first..(first + part).min(inner))
    }

    /// Linear layers of the block.
    pub(super) fn projections(&self) -> usize {
        self.qkv_parts + 4
    }

    pub(super) fn attention<'a>(&self, segments: &'a [usize]) -> attention::Shape<'a> {
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
    /// The first moment of its forward or backward.
    pub moment: usize,
    pub shape: BlockShape,
    pub block: Block<'a>,
    pub rows: usize,
    /// The rows, ascending, that go on after attention: nobody reads the others, whose keys and values are
    /// all that is needed of them. Without a choice all rows go on.
    pub picked: Option<&'a [usize]>,
    pub segments: &'a [usize],
    pub cos: Slot,
    pub sin: Slot,
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

    /// The narrow product of the layer's pair, on what dropout leaves of `x`.
    fn project(&self, projection: &Projection<'_>, x: &[f32], narrow: &mut [f32], room: &mut Room<'_>) {
        match self.shape.rowwise {
            true => project_rowwise(projection, x, narrow, room),
            false => project(projection, self.dropout, x, narrow, room),
        }
    }

    /// The rows after the block go to `output`. With a past the rows go on after the tokens in it.
    pub(super) fn forward(
        &self,
        arena: &mut Arena,
        slots: &BlockSlots,
        output: Slot,
        past: Option<Past<'_>>,
    ) {
        let (kept, work) = (&slots.forward, &slots.forward_work);
        self.forward_attention(arena, slots.input, kept, work, past);
        arena.reach(self.moment + 1);
        self.begin_mlp(arena, kept, work);
        let (shape, rows) = (&self.shape, self.rows_after());
        let [middle, gate, up, narrow, normed, mlp, dropped, output] = arena.get([
            kept.middle,
            kept.gate,
            kept.up,
            kept.narrow,
            work.normed,
            work.mlp,
            work.dropped,
            output,
        ]);
        for part in shape.parts() {
            let place = self.place(kept, &part);
            let (gate, up) = (&mut gate[place.clone()], &mut up[place]);
            let (activated, packed) = mlp.split_at_mut(gate.len());
            let room = &mut Room { dropped, packed };
            let mut inner = Inner { columns: part.clone(), gate, up, activated };
            self.expand(&mut inner, normed, narrow, room);
            self.activate(&mut inner, narrow, room);
            let (narrow, down) = (self.narrow(self.down(), narrow), self.block.down.linear.of_inputs(&part));
            let output = RowsMut { data: &mut *output, stride: shape.width };
            down.forward(Input { x: inner.activated, narrow, rows }, output, Some(middle), room.packed);
        }
    }

    /// All that a backward reads of the forward, except for what belongs to the parts of the MLP: it computes
    /// them as it comes to them.
    fn recompute(&self, arena: &mut Arena, input: Slot, kept: &Kept, work: &Work) {
        self.forward_attention(arena, input, kept, work, None);
        arena.reach(self.moment + 1);
        self.begin_mlp(arena, kept, work);
    }

    /// The numbers of the MLP's pairs among those of the block: the widening ones, and the one behind them.
    fn gate(&self) -> usize {
        self.shape.qkv_parts + 1
    }
    fn up(&self) -> usize {
        self.shape.qkv_parts + 2
    }
    fn down(&self) -> usize {
        self.shape.qkv_parts + 3
    }

    /// Where a part of the inner width lies in the buffers of gate and up.
    fn place(&self, kept: &Kept, part: &Range<usize>) -> Range<usize> {
        let first = if kept.all_parts { self.rows_after() * part.start } else { 0 };
        first..first + self.rows_after() * part.len()
    }

    /// The normed rows, and the narrow products of the pairs that read them.
    fn begin_mlp(&self, arena: &mut Arena, kept: &Kept, work: &Work) {
        let (shape, block, rows) = (&self.shape, &self.block, self.rows_after());
        let [middle, inverse, narrow, normed, dropped, packed] =
            arena.get([kept.middle, kept.inverse2, kept.narrow, work.normed, work.dropped, work.mlp]);
        let normed = &mut normed[..rows * shape.width];
        norm::forward(&middle[..normed.len()], block.norm2, shape.epsilon, normed, &mut inverse[..rows]);
        let room = &mut Room { dropped, packed };
        for (index, projection) in [(self.gate(), &block.gate), (self.up(), &block.up)] {
            self.project(projection, normed, self.narrow(index, narrow), room);
        }
    }

    /// A part of gate and up.
    fn expand(&self, part: &mut Inner<'_>, normed: &[f32], narrow: &mut [f32], room: &mut Room<'_>) {
        let Inner { columns, gate, up, .. } = part;
        let layers = [(self.gate(), &self.block.gate, gate), (self.up(), &self.block.up, up)];
        for (index, projection, out) in layers {
            let linear = projection.linear.of_outputs(columns);
            let input = Input { x: normed, narrow: self.narrow(index, narrow), rows: self.rows_after() };
            linear.forward(input, RowsMut { data: out, stride: columns.len() }, None, room.packed);
        }
    }

    /// The activation of a part, and what it adds to the narrow product behind it.
    fn activate(&self, part: &mut Inner<'_>, narrow: &mut [f32], room: &mut Room<'_>) {
        let Inner { columns, gate, up, activated } = part;
        swiglu::forward(gate, up, activated);
        let down = self.block.down.of_inputs(columns);
        self.project(&down, activated, self.narrow(self.down(), narrow), room);
    }

    fn forward_attention(
        &self,
        arena: &mut Arena,
        input: Slot,
        kept: &Kept,
        work: &Work,
        past: Option<Past<'_>>,
    ) {
        arena.reach(self.moment);
        let (shape, block, rows) = (&self.shape, &self.block, self.rows);
        let [x, inverse, qkv, attended, log_sum_exp, middle, narrow, normed, cos, sin, dropped, packed] =
            arena.get([
                input,
                kept.inverse1,
                kept.qkv,
                kept.attended,
                kept.log_sum_exp,
                kept.middle,
                kept.narrow,
                work.normed,
                self.cos,
                self.sin,
                work.dropped,
                work.attention,
            ]);
        let gathered = self.picked.map_or(0, |picked| picked.len() * shape.width);
        let (gathered, packed) = packed.split_at_mut(gathered);
        let room = &mut Room { dropped, packed };
        let x = &x[..rows * shape.width];
        let normed = &mut normed[..rows * shape.width];
        norm::forward(x, block.norm1, shape.epsilon, normed, &mut inverse[..rows]);
        let stride = shape.qkv_width();
        let mut column = 0;
        for (index, projection) in block.qkv.iter().enumerate() {
            let narrow = self.narrow(index, narrow);
            self.project(projection, normed, narrow, room);
            let out = RowsMut { data: &mut qkv[column..], stride };
            projection.linear.forward(Input { x: normed, narrow, rows }, out, None, room.packed);
            column += projection.linear.outputs();
        }
        let qkv = &mut qkv[..rows * stride];
        let turned = RowsMut { data: &mut *qkv, stride };
        rotary::forward(turned, shape.heads + shape.kv_heads, self.table(cos, sin));
        let [q, k, v] = self.heads(qkv);
        let attended = &mut attended[..rows * shape.width];
        let log_sum_exp = &mut log_sum_exp[..rows * shape.heads];
        let attention = shape.attention(self.segments);
        match past {
            None => attention::forward(&attention, q, k, v, attended, log_sum_exp),
            Some(past) => past.attend(&attention, [q, k, v], attended, log_sum_exp),
        }
        let (attended, x) = match self.picked {
            None => (&*attended, x),
            Some(picked) => {
                (gather(attended, picked, shape.width, normed), gather(x, picked, shape.width, gathered))
            }
        };
        let narrow = self.narrow(shape.qkv_parts, narrow);
        self.project(&block.out, attended, narrow, room);
        let input = Input { x: attended, narrow, rows: self.rows_after() };
        let middle = RowsMut { data: middle, stride: shape.width };
        block.out.linear.forward(input, middle, Some(x), room.packed);
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

/// The narrow product of a layer's pair, on what the step's dropout leaves of `x`.
pub(super) fn project(
    projection: &Projection<'_>,
    dropout: Option<Mask>,
    x: &[f32],
    narrow: &mut [f32],
    room: &mut Room<'_>,
) {
    let inputs = projection.linear.inputs();
    let x = masked(projection.mask(dropout), x, inputs, room.dropped);
    projection.linear.project(x, x.len() / inputs, narrow, room.packed);
}

/// The same without dropout, a row's bits whatever rows are beside it.
pub(super) fn project_rowwise(
    projection: &Projection<'_>,
    x: &[f32],
    narrow: &mut [f32],
    room: &mut Room<'_>,
) {
    projection.linear.project_rowwise(x, x.len() / projection.linear.inputs(), narrow, room.packed);
}

/// The picked rows of `from`, one after another in `to`.
fn gather<'a>(from: &[f32], picked: &[usize], width: usize, to: &'a mut [f32]) -> &'a [f32] {
    let to = &mut to[..picked.len() * width];
    for (to, &row) in to.chunks_exact_mut(width).zip(picked) {
        to.copy_from_slice(&from[row * width..][..width]);
    }
    to
}

/// A part of an MLP's inner width on its way through the block.
struct Inner<'a> {
    columns: Range<usize>,
    gate: &'a mut [f32],
    up: &'a mut [f32],
    activated: &'a mut [f32],
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
