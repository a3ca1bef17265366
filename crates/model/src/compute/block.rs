//! One block of either tower: attention and a gated MLP, each behind a norm and beside the residual stream.
//!
//! In come the rows of the residual stream and the block's weights; out come the rows after the block, and on the way back
//! the gradient of its input and of what is trained in it. Backward reads what forward kept; a block that is
//! recomputed runs [`Pass::forward`] again without its last product, whose result the next block's input already held.

use super::cache::Past;
use super::model::{Block, Gradients, Projection};
use super::slots::{BackwardWork, Kept, Training, Work};
use crate::config::ModelConfig;
use garden_engine::arena::{Arena, Slot};
use garden_engine::ops::attention::{self, Rows, Saved};
use garden_engine::ops::dropout::Mask;
use garden_engine::ops::linear::{backward_bias, backward_matrix};
use garden_engine::ops::rotary::{self, Table};
use garden_engine::ops::{Write, norm, swiglu};
use garden_engine::product::{Output, Start, Term, multiply};

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

    /// A layer with the gradient of its output and what forward kept for it.
    fn trained<'a, 'b>(
        &self,
        projection: &'b Projection<'a>,
        rows: usize,
        grad: (&'b [f32], usize),
        narrow: &'b [f32],
    ) -> Trained<'a, 'b> {
        Trained { projection, rows, grad, narrow, mask: self.mask(projection) }
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

    /// Turns the gradient of the block's output in `grad` into that of its input; leaves it undone below the lowest trained
    /// layer (`to_input` false), where nobody reads it.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn backward(
        &self,
        arena: &mut Arena,
        input: Slot,
        kept: &Kept,
        work: &BackwardWork,
        grad: Slot,
        to_input: bool,
        gradients: &mut Gradients,
    ) {
        self.backward_mlp(arena, kept, work, grad, gradients);
        self.backward_attention(arena, input, kept, work, grad, to_input, gradients);
    }

    fn backward_mlp(
        &self,
        arena: &mut Arena,
        kept: &Kept,
        work: &BackwardWork,
        grad: Slot,
        gradients: &mut Gradients,
    ) {
        let (shape, block, rows) = (&self.shape, &self.block, self.rows_after());
        let first = shape.qkv_parts + 1;
        let [
            middle,
            inverse,
            gate,
            up,
            narrow,
            normed,
            activated,
            dropped,
            grad_normed,
            grad_narrow,
            grad,
            packed,
        ] = arena.get([
            kept.middle,
            kept.inverse2,
            kept.gate,
            kept.up,
            kept.narrow,
            work.work.normed,
            work.work.activated,
            work.work.dropped,
            work.grad_normed,
            work.grad_narrow,
            grad,
            self.scratch,
        ]);
        let room = &mut Room { dropped, packed };
        let (wide, inner) = (rows * shape.width, rows * shape.inner);
        let (gate, up, activated) = (&mut gate[..inner], &mut up[..inner], &mut activated[..inner]);
        swiglu::forward(gate, up, activated);
        let down_narrow = self.narrow(first + 2, grad_narrow);
        let down =
            self.trained(&block.down, rows, (&grad[..wide], shape.width), self.narrow(first + 2, narrow));
        down.gradients(activated, down_narrow, gradients, room);
        // The activation has done its work: its place takes its own gradient.
        input_gradient(&[(&down, down_narrow)], activated, room);
        swiglu::backward_in_place(gate, up, activated);

        let middle = &middle[..wide];
        let (normed, grad_normed) = (&mut normed[..wide], &mut grad_normed[..wide]);
        let inverse = &mut inverse[..rows];
        norm::forward(middle, block.norm2, shape.epsilon, normed, inverse);
        let len = self.rows * shape.rank;
        let (gate_narrow, up_narrow) = grad_narrow[first * len..(first + 2) * len].split_at_mut(len);
        let [of_gate, of_up] =
            [(&block.gate, gate, first), (&block.up, up, first + 1)].map(|(projection, grad, index)| {
                self.trained(projection, rows, (grad, shape.inner), &narrow[index * len..][..len])
            });
        of_gate.gradients(normed, gate_narrow, gradients, room);
        of_up.gradients(normed, up_narrow, gradients, room);
        input_gradient(&[(&of_gate, gate_narrow), (&of_up, up_narrow)], grad_normed, room);
        if let Some(id) = block.norm_ids[1] {
            norm::backward_weight(middle, inverse, grad_normed, gradients.of(id));
        }
        norm::backward(middle, block.norm2, inverse, grad_normed, Write::Add, &mut grad[..wide]);
    }

    /// Back through the projection after attention, and to all rows again where only some went on.
    fn backward_out(
        &self,
        arena: &mut Arena,
        kept: &Kept,
        work: &BackwardWork,
        grad: Slot,
        gradients: &mut Gradients,
    ) {
        let (shape, rows) = (&self.shape, self.rows_after());
        let [attended, narrow, normed, grad_normed, grad_attended, grad_narrow, grad, dropped, packed] =
            arena.get([
                kept.attended,
                kept.narrow,
                work.work.normed,
                work.grad_normed,
                work.grad_attended,
                work.grad_narrow,
                grad,
                work.work.dropped,
                self.scratch,
            ]);
        let room = &mut Room { dropped, packed };
        let (wide, all) = (rows * shape.width, self.rows * shape.width);
        let out_narrow = self.narrow(shape.qkv_parts, grad_narrow);
        let narrow = self.narrow(shape.qkv_parts, narrow);
        let out = self.trained(&self.block.out, rows, (&grad[..wide], shape.width), narrow);
        match self.picked {
            None => {
                out.gradients(&attended[..wide], out_narrow, gradients, room);
                input_gradient(&[(&out, out_narrow)], &mut grad_attended[..wide], room);
            }
            Some(picked) => {
                out.gradients(gather(attended, picked, shape.width, normed), out_narrow, gradients, room);
                input_gradient(&[(&out, out_narrow)], &mut grad_normed[..wide], room);
                grad_attended[..wide].copy_from_slice(&grad_normed[..wide]);
                spread(&mut grad_attended[..all], picked, shape.width);
                spread(&mut grad[..all], picked, shape.width);
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn backward_attention(
        &self,
        arena: &mut Arena,
        input: Slot,
        kept: &Kept,
        work: &BackwardWork,
        grad: Slot,
        to_input: bool,
        gradients: &mut Gradients,
    ) {
        self.backward_out(arena, kept, work, grad, gradients);
        let (shape, block, rows) = (&self.shape, &self.block, self.rows);
        let wide = rows * shape.width;
        let [qkv, attended, log_sum_exp, grad_attended, grad_qkv, cos, sin] = arena.get([
            kept.qkv,
            kept.attended,
            kept.log_sum_exp,
            work.grad_attended,
            work.grad_qkv,
            self.cos,
            self.sin,
        ]);
        let [q, k, v] = self.heads(qkv);
        let log_sum_exp = &log_sum_exp[..rows * shape.heads];
        let saved = Saved { q, k, v, out: &attended[..wide], log_sum_exp };
        let stride = shape.qkv_width();
        let grad_qkv = &mut grad_qkv[..rows * stride];
        attention::backward(
            &shape.attention(self.segments),
            &saved,
            &grad_attended[..wide],
            grad_qkv,
            stride,
        );
        rotary::backward(grad_qkv, stride, shape.heads + shape.kv_heads, self.table(cos, sin));

        let [x, inverse, narrow, normed, grad_normed, grad_qkv, grad_narrow, grad, dropped, packed] = arena
            .get([
                input,
                kept.inverse1,
                kept.narrow,
                work.work.normed,
                work.grad_normed,
                work.grad_qkv,
                work.grad_narrow,
                grad,
                work.work.dropped,
                self.scratch,
            ]);
        let room = &mut Room { dropped, packed };
        let x = &x[..wide];
        let (normed, grad_normed, inverse) =
            (&mut normed[..wide], &mut grad_normed[..wide], &mut inverse[..rows]);
        norm::forward(x, block.norm1, shape.epsilon, normed, inverse);
        let len = rows * shape.rank;
        let mut column = 0;
        let mut layers = Vec::with_capacity(block.qkv.len());
        for (index, projection) in block.qkv.iter().enumerate() {
            let grad = (&grad_qkv[column..], stride);
            let trained = self.trained(projection, rows, grad, &narrow[index * len..][..len]);
            trained.gradients(normed, self.narrow(index, grad_narrow), gradients, room);
            layers.push(trained);
            column += projection.linear.weight.rows();
        }
        if !to_input && block.norm_ids[0].is_none() {
            return;
        }
        let layers: Vec<(&Trained<'_, '_>, &[f32])> = (layers.iter().enumerate())
            .map(|(index, layer)| (layer, &grad_narrow[index * len..][..len]))
            .collect();
        input_gradient(&layers, grad_normed, room);
        if let Some(id) = block.norm_ids[0] {
            norm::backward_weight(x, inverse, grad_normed, gradients.of(id));
        }
        norm::backward(x, block.norm1, inverse, grad_normed, Write::Add, &mut grad[..wide]);
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

/// Moves the first rows to the places of the picked ones, ascending, and clears all others.
fn spread(rows: &mut [f32], picked: &[usize], width: usize) {
    let mut left = picked.len();
    // From the last row on, so that no row is overwritten before it has moved.
    for row in (0..rows.len() / width).rev() {
        let to = row * width;
        match picked[..left].last() {
            Some(&last) if last == row => {
                left -= 1;
                rows.copy_within(left * width..(left + 1) * width, to);
            }
            _ => rows[to..to + width].fill(0.0),
        }
    }
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

/// A linear layer with the gradient of its output at hand.
pub(super) struct Trained<'a, 'b> {
    pub projection: &'b Projection<'a>,
    pub rows: usize,
    /// Gradient of the output, and how far its rows are apart.
    pub grad: (&'b [f32], usize),
    /// The narrow product that forward kept.
    pub narrow: &'b [f32],
    /// What was dropped from the input of its pair.
    pub mask: Option<Mask>,
}

impl Trained<'_, '_> {
    /// Fills `grad_narrow` and adds the gradients of whatever is trained in the layer, `x` being its input.
    pub(super) fn gradients(
        &self,
        x: &[f32],
        grad_narrow: &mut [f32],
        gradients: &mut Gradients,
        room: &mut Room<'_>,
    ) {
        let Projection { linear, ids } = self.projection;
        let (rows, rank, inputs) = (self.rows, linear.rank(), linear.weight.cols());
        let wide = (self.grad.0, self.grad.1, linear.weight.rows());
        linear.backward_narrow(self.grad, rows, grad_narrow, room.packed);
        if let Some(id) = ids.b {
            backward_matrix(wide, (self.narrow, rank), rows, gradients.of(id), room.packed);
        }
        if let Some(id) = ids.a {
            let x = masked(self.mask, x, inputs, room.dropped);
            backward_matrix((grad_narrow, rank, rank), (x, inputs), rows, gradients.of(id), room.packed);
        }
        if let Some(id) = ids.weight {
            backward_matrix(wide, (x, inputs), rows, gradients.of(id), room.packed);
        }
        if let Some(id) = ids.bias {
            backward_bias(self.grad, rows, gradients.of(id));
        }
    }
}

/// The gradient of the one input of all `layers`, each given with the gradient of its narrow product. It is one sum of
/// products, but for pairs with dropout: their gradient goes through the mask first.
pub(super) fn input_gradient(layers: &[(&Trained<'_, '_>, &[f32])], out: &mut [f32], room: &mut Room<'_>) {
    let mut terms: Vec<Term<'_>> = Vec::with_capacity(2 * layers.len());
    for (layer, narrow) in layers {
        let linear = &layer.projection.linear;
        terms.push(linear.weight_input_term(layer.grad, layer.rows));
        terms.extend(linear.pair_input_term(narrow, layer.rows).filter(|_| layer.mask.is_none()));
    }
    let Some((first, _)) = layers.first() else { return };
    let (rows, inputs) = (first.rows, first.projection.linear.weight.cols());
    multiply(Output::new(out, rows, inputs), Start::ZERO, &terms, room.packed);
    for (layer, narrow) in layers {
        let pair = layer.projection.linear.pair_input_term(narrow, rows);
        if let Some((mask, pair)) = layer.mask.zip(pair) {
            let dropped = &mut room.dropped[..rows * inputs];
            multiply(Output::new(dropped, rows, inputs), Start::ZERO, &[pair], room.packed);
            mask.backward_add(dropped, inputs, &mut out[..rows * inputs]);
        }
    }
}
