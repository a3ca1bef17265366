//! The way back through a block.
//!
//! In come the gradient of a block's output and what its forward kept; out come the gradient of its input, in the same place,
//! and those of what is trained in it. Frozen layers only pass gradients on.

use super::super::model::{Gradients, Projection};
use super::super::slots::{BackwardWork, Kept};
use super::{Pass, Room, gather, masked};
use garden_engine::arena::{Arena, Slot};
use garden_engine::ops::attention::{self, Saved};
use garden_engine::ops::dropout::Mask;
use garden_engine::ops::linear::{backward_bias, backward_matrix};
use garden_engine::ops::{Write, norm, rotary, swiglu};
use garden_engine::product::{Output, Start, multiply, scratch_len};

impl Pass<'_> {
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

    /// Turns the gradient of the block's output in `grad` into that of its input; leaves it undone below the lowest trained
    /// layer (`to_input` false), where nobody reads it.
    #[allow(clippy::too_many_arguments)]
    pub(in super::super) fn backward(
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

/// A linear layer with the gradient of its output at hand.
pub(in super::super) struct Trained<'a, 'b> {
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
    pub(in super::super) fn gradients(
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

/// The gradient of the one input of all `layers`, each given with the gradient of its narrow product. It is a sum of
/// products, of as many at a time as there is room to pack; pairs with dropout come last, their gradient goes through the
/// mask first.
pub(in super::super) fn input_gradient(
    layers: &[(&Trained<'_, '_>, &[f32])],
    out: &mut [f32],
    room: &mut Room<'_>,
) {
    let Some((first, _)) = layers.first() else { return };
    let (rows, inputs) = (first.rows, first.projection.linear.weight.cols());
    let (mut terms, mut depth, mut start) = (Vec::with_capacity(2 * layers.len()), 0, Start::ZERO);
    for (layer, narrow) in layers {
        let linear = &layer.projection.linear;
        let more = linear.weight.rows() + linear.rank();
        if depth > 0 && scratch_len(rows, depth + more) > room.packed.len() {
            multiply(Output::new(out, rows, inputs), start, &terms, room.packed);
            terms.clear();
            (depth, start) = (0, Start::ACCUMULATE);
        }
        depth += more;
        terms.push(linear.weight_input_term(layer.grad, rows));
        terms.extend(linear.pair_input_term(narrow, rows).filter(|_| layer.mask.is_none()));
    }
    multiply(Output::new(out, rows, inputs), start, &terms, room.packed);
    for (layer, narrow) in layers {
        let pair = layer.projection.linear.pair_input_term(narrow, rows);
        if let Some((mask, pair)) = layer.mask.zip(pair) {
            let dropped = &mut room.dropped[..rows * inputs];
            multiply(Output::new(dropped, rows, inputs), Start::ZERO, &[pair], room.packed);
            mask.backward_add(dropped, inputs, &mut out[..rows * inputs]);
        }
    }
}
