//! The backward of a block.
//!
//! Takes the gradient of a block's output and what its forward kept, and gives the gradient of its input, in
//! the same place, and those of what is trained in it. Frozen layers only pass gradients on.

use super::super::model::{Gradients, Projection};
use super::super::slots::{BackwardWork, BlockSlots, Kept, Work};
use super::{Inner, Pass, Room, gather, masked};
use garden_engine::ops::attention::{self, Saved};
use garden_engine::ops::dropout::Mask;
use garden_engine::ops::{Rows, RowsMut, Write, norm, rotary, swiglu};
use garden_engine::product::{Output, Start, multiply, scratch_len};
use garden_engine::{Arena, Slot};

impl Pass<'_> {
    /// A layer with the gradient of its output and what forward kept for it.
    fn trained<'a, 'b>(
        &self,
        projection: &'b Projection<'a>,
        rows: usize,
        grad: Rows<'b>,
        narrow: &'b [f32],
    ) -> Trained<'a, 'b> {
        Trained { projection, rows, grad, narrow, mask: projection.mask(self.dropout) }
    }

    /// Turns the gradient of the block's output in `grad` into that of its input; leaves it undone below the
    /// lowest trained layer (`to_input` false), where nobody reads it. A block without slots for a backward
    /// is passed over.
    pub(in super::super) fn backward(
        &self,
        arena: &mut Arena,
        slots: &BlockSlots,
        grad: Slot,
        to_input: bool,
        gradients: &mut Gradients,
    ) {
        let Some((kept, work)) = &slots.backward else { return };
        match slots.recompute {
            true => self.recompute(arena, slots.input, kept, &work.work),
            false => self.normed_again(arena, kept, &work.work),
        }
        let buffers = Buffers { input: slots.input, kept, work, grad, recompute: slots.recompute };
        self.backward_mlp(arena, &buffers, gradients);
        arena.reach(self.moment + 2);
        self.backward_out(arena, &buffers, gradients);
        self.backward_attention(arena, &buffers, to_input, gradients);
    }

    /// What the MLP's layers read, where it was not kept.
    fn normed_again(&self, arena: &mut Arena, kept: &Kept, work: &Work) {
        arena.reach(self.moment + 1);
        let (shape, rows) = (&self.shape, self.rows_after());
        let [middle, inverse, normed] = arena.get([kept.middle, kept.inverse2, work.normed]);
        let normed = &mut normed[..rows * shape.width];
        let middle = &middle[..normed.len()];
        norm::forward(middle, self.block.norm2, shape.epsilon, normed, &mut inverse[..rows]);
    }

    fn backward_mlp(&self, arena: &mut Arena, buffers: &Buffers<'_>, gradients: &mut Gradients) {
        let Buffers { kept, work, grad, recompute, .. } = *buffers;
        let (shape, block, rows) = (&self.shape, &self.block, self.rows_after());
        let [middle, inverse, gate, up, narrow, normed, mlp, dropped, grad_normed, grad_narrow, grad] = arena
            .get([
                kept.middle,
                kept.inverse2,
                kept.gate,
                kept.up,
                kept.narrow,
                work.work.normed,
                work.work.mlp,
                work.work.dropped,
                work.grad_rows,
                work.grad_narrow,
                grad,
            ]);
        let wide = rows * shape.width;
        let (normed, grad_normed) = (&normed[..wide], &mut grad_normed[..wide]);
        for part in shape.parts() {
            let place = self.place(kept, &part);
            let (gate, up) = (&mut gate[place.clone()], &mut up[place]);
            let (activated, packed) = mlp.split_at_mut(gate.len());
            let room = &mut Room { dropped, packed };
            if recompute {
                let mut inner = Inner {
                    columns: part.clone(),
                    gate: &mut *gate,
                    up: &mut *up,
                    activated: &mut *activated,
                };
                self.expand(&mut inner, normed, narrow, room);
                self.activate(&mut inner, narrow, room);
            } else {
                swiglu::forward(gate, up, activated);
            }
            let down = block.down.of_inputs(&part);
            let down_narrow = self.narrow(self.down(), grad_narrow);
            let grad_out = Rows { data: &grad[..wide], stride: shape.width };
            let down = self.trained(&down, rows, grad_out, self.narrow(self.down(), narrow));
            down.gradients(activated, down_narrow, gradients, room);
            // The activation has done its work: its place takes its own gradient.
            input_gradient(&[(&down, down_narrow)], activated, room);
            swiglu::backward_in_place(gate, up, activated);

            let room = &mut Room { dropped, packed: mlp };
            let layers = [(&block.gate, gate, self.gate()), (&block.up, up, self.up())];
            let layers = layers.map(|(layer, grad, index)| (layer.of_outputs(&part), grad, index));
            let len = self.rows * shape.rank;
            let (of_gate, of_up) = grad_narrow[self.gate() * len..].split_at_mut(len);
            let [gate, up] = layers.each_ref().map(|(layer, grad, index)| {
                let grad = Rows { data: grad, stride: part.len() };
                self.trained(layer, rows, grad, &narrow[index * len..][..len])
            });
            gate.gradients(normed, of_gate, gradients, room);
            up.gradients(normed, &mut of_up[..len], gradients, room);
            input_gradient(&[(&gate, of_gate), (&up, &of_up[..len])], grad_normed, room);
        }
        let (middle, inverse) = (&middle[..wide], &inverse[..rows]);
        if let Some(id) = block.norm_ids[1] {
            norm::backward_weight(middle, inverse, grad_normed, gradients.of(id));
        }
        norm::backward(middle, block.norm2, inverse, grad_normed, Write::Add, &mut grad[..wide]);
    }

    /// Back through the projection after attention, and to all rows again where only some went on.
    fn backward_out(&self, arena: &mut Arena, buffers: &Buffers<'_>, gradients: &mut Gradients) {
        let Buffers { kept, work, grad, .. } = *buffers;
        let (shape, rows) = (&self.shape, self.rows_after());
        let [attended, narrow, normed, grad_attended, grad_narrow, grad, dropped, packed] = arena.get([
            kept.attended,
            kept.narrow,
            work.work.normed,
            work.grad_rows,
            work.grad_narrow,
            grad,
            work.work.dropped,
            work.attention,
        ]);
        let room = &mut Room { dropped, packed };
        let (wide, all) = (rows * shape.width, self.rows * shape.width);
        let out_narrow = self.narrow(shape.qkv_parts, grad_narrow);
        let narrow = self.narrow(shape.qkv_parts, narrow);
        let grad_out = Rows { data: &grad[..wide], stride: shape.width };
        let out = self.trained(&self.block.out, rows, grad_out, narrow);
        let attended = match self.picked {
            None => &attended[..wide],
            Some(picked) => gather(attended, picked, shape.width, normed),
        };
        out.gradients(attended, out_narrow, gradients, room);
        input_gradient(&[(&out, out_narrow)], &mut grad_attended[..wide], room);
        if let Some(picked) = self.picked {
            spread(&mut grad_attended[..all], picked, shape.width);
            spread(&mut grad[..all], picked, shape.width);
        }
    }

    fn backward_attention(
        &self,
        arena: &mut Arena,
        buffers: &Buffers<'_>,
        to_input: bool,
        gradients: &mut Gradients,
    ) {
        let Buffers { input, kept, work, grad, .. } = *buffers;
        let (shape, block, rows) = (&self.shape, &self.block, self.rows);
        let wide = rows * shape.width;
        let [qkv, attended, log_sum_exp, grad_attended, grad_qkv, cos, sin] = arena.get([
            kept.qkv,
            kept.attended,
            kept.log_sum_exp,
            work.grad_rows,
            work.grad_qkv,
            self.cos,
            self.sin,
        ]);
        let [q, k, v] = self.heads(qkv);
        let log_sum_exp = &log_sum_exp[..rows * shape.heads];
        let saved = Saved { q, k, v, out: &attended[..wide], log_sum_exp };
        let stride = shape.qkv_width();
        let grad_qkv = &mut grad_qkv[..rows * stride];
        let attention = shape.attention(self.segments);
        let grads = RowsMut { data: &mut *grad_qkv, stride };
        attention::backward(&attention, &saved, &grad_attended[..wide], grads);
        let grads = RowsMut { data: grad_qkv, stride };
        rotary::backward(grads, shape.heads + shape.kv_heads, self.table(cos, sin));

        let [x, inverse, narrow, normed, grad_normed, grad_qkv, grad_narrow, grad, dropped, packed] = arena
            .get([
                input,
                kept.inverse1,
                kept.narrow,
                work.work.normed,
                work.grad_rows,
                work.grad_qkv,
                work.grad_narrow,
                grad,
                work.work.dropped,
                work.attention,
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
            let grad = Rows { data: &grad_qkv[column..], stride };
            let trained = self.trained(projection, rows, grad, &narrow[index * len..][..len]);
            trained.gradients(normed, self.narrow(index, grad_narrow), gradients, room);
            layers.push(trained);
            column += projection.linear.outputs();
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

/// The buffers of a block on its way back.
struct Buffers<'a> {
    /// Input of the block.
    input: Slot,
    kept: &'a Kept,
    work: &'a BackwardWork,
    /// Gradient of the output, then of the input.
    grad: Slot,
    /// Whether the parts of the MLP are to be computed again.
    recompute: bool,
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
    /// Gradient of the output.
    pub grad: Rows<'b>,
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
        let (Projection { linear, ids }, rows, grad) = (self.projection, self.rows, self.grad);
        linear.backward_narrow(grad, rows, grad_narrow, room.packed);
        if let Some(id) = ids.b {
            linear.backward_b(grad, self.narrow, rows, gradients.of(id), room.packed);
        }
        if let Some(id) = ids.a.filter(|_| linear.ends_outputs()) {
            let x = masked(self.mask, x, linear.inputs(), room.dropped);
            linear.backward_a(grad_narrow, x, rows, gradients.of(id), room.packed);
        }
        if let Some(id) = ids.weight {
            linear.backward_weight(grad, x, rows, gradients.of(id), room.packed);
        }
        if let Some(id) = ids.bias {
            linear.backward_bias(grad, rows, gradients.of(id));
        }
    }
}

/// The gradient of the one input of all `layers`, each given with the gradient of its narrow product. It is a
/// sum of products, of as many at a time as there is room to pack; pairs with dropout come last, their
/// gradient goes through the mask first. Layers given as parts of their outputs go on with the sum in `out`,
/// unless they are the first parts.
pub(in super::super) fn input_gradient(
    layers: &[(&Trained<'_, '_>, &[f32])],
    out: &mut [f32],
    room: &mut Room<'_>,
) {
    let Some((first, _)) = layers.first() else { return };
    let (rows, linear) = (first.rows, &first.projection.linear);
    let inputs = linear.inputs();
    let mut start = if linear.begins_outputs() { Start::ZERO } else { Start::ACCUMULATE };
    let (mut terms, mut depth) = (Vec::with_capacity(2 * layers.len()), 0);
    for (layer, narrow) in layers {
        let linear = &layer.projection.linear;
        let more = linear.outputs() + linear.rank();
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
