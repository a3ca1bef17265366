//! The vision tower and the merger: from compact patches to rows of the language model.
//!
//! Takes bytes of patches and a prepared batch, and gives merged rows in the order of the images' tokens; the
//! backward gives the gradients of what is trained in the tower. Patches are laid in window order from the
//! start, so that windows and images are runs of rows; the merged rows are put back in their own order at the
//! end.

use super::block::{BlockShape, Pass, Room, Trained, input_gradient, project, project_rowwise};
use super::model::{Gradients, Model, Projection};
use super::session::{Observer, Stage, Step};
use crate::config::{CHANNEL_DEVIATION, CHANNEL_MEAN};
use garden_engine::Arena;
use garden_engine::ops::linear::{Input, backward_matrix};
use garden_engine::ops::rotary::Frequencies;
use garden_engine::ops::{Rows, RowsMut, Write, gelu, norm};
use garden_engine::product::{Matrix, Output, Right, Start, Term, multiply, multiply_rowwise};
use rayon::prelude::*;

/// Forward over the whole tower; the merged rows end up in `slots.merged`, in window order.
pub(super) fn forward(step: &Step<'_>, arena: &mut Arena, bytes: &[u8], watch: &mut Observer<'_>) {
    let (model, slots, clock) = (step.model, step.slots, step.clock);
    let config = model.config();
    let rows = step.prepared.patches();
    if rows == 0 {
        return;
    }
    arena.reach(clock.patches());
    embed_patches(step, arena, bytes);
    let [first] = arena.get([slots.vision.blocks.first().map_or(slots.vision.output, |block| block.input)]);
    watch(Stage::Patches, &first[..rows * config.vision.hidden_size]);
    let frequencies = Frequencies::two_axes(config.vision.head_size(), config.vision.rope_theta);
    let table = rows * frequencies.half();
    let [cos, sin] = arena.get([slots.vision.cos, slots.vision.sin]);
    let axes = &step.prepared.patch_positions;
    frequencies.fill(&[&axes[0], &axes[1]], &mut cos[..table], &mut sin[..table]);
    for index in 0..config.vision.depth {
        let block = &slots.vision.blocks[index];
        let next = slots.vision.blocks.get(index + 1).map_or(slots.vision.output, |next| next.input);
        let pass = pass(step, index, clock.vision_forward(index));
        pass.forward(arena, block, next, None);
        let [out] = arena.get([next]);
        watch(Stage::VisionBlock(index), &out[..rows * config.vision.hidden_size]);
    }
    arena.reach(clock.merger());
    merge(step, arena);
}

fn pass<'a>(step: &'a Step<'_>, index: usize, moment: usize) -> Pass<'a> {
    let config = step.model.config();
    let full = config.vision.is_full_attention(index);
    Pass {
        moment,
        shape: BlockShape::vision(config, step.training),
        block: step.model.vision_block(index),
        rows: step.prepared.patches(),
        picked: None,
        segments: if full { &step.prepared.images } else { &step.prepared.windows },
        cos: step.slots.vision.cos,
        sin: step.slots.vision.sin,
        dropout: step.dropout,
    }
}

/// Normalises the bytes in window order and multiplies them with the patch kernel, folded over its equal
/// frames.
fn embed_patches(step: &Step<'_>, arena: &mut Arena, bytes: &[u8]) {
    let (model, slots) = (step.model, step.slots);
    let config = model.config();
    let (rows, width, compact) =
        (step.prepared.patches(), config.vision.hidden_size, config.vision.patch_bytes());
    let unit = config.vision.merge_unit();
    let input = slots.vision.blocks.first().map_or(slots.vision.output, |block| block.input);
    let [patches, folded, input, scratch] =
        arena.get([slots.patches, slots.folded, input, slots.patch_scratch]);
    fold(model, folded);
    let plane = compact / config.vision.channels;
    let tokens = patches[..rows * compact].par_chunks_exact_mut(unit * compact).zip(&step.prepared.order);
    tokens.for_each(|(to, &token)| {
        let from = &bytes[token as usize * unit * compact..][..unit * compact];
        for (at, (to, from)) in to.chunks_exact_mut(plane).zip(from.chunks_exact(plane)).enumerate() {
            let channel = at % config.vision.channels % CHANNEL_MEAN.len();
            let (mean, deviation) = (CHANNEL_MEAN[channel] as f32, CHANNEL_DEVIATION[channel] as f32);
            let (mean, deviation) = (mean * 255.0, deviation * 255.0);
            for (to, from) in to.iter_mut().zip(from) {
                *to = (f32::from(*from) - mean) / deviation;
            }
        }
    });
    let kernel = Matrix::new(&folded[..width * compact], width, compact);
    let left = Matrix::new(patches, rows, compact);
    let term = Term { left, right: Right::Dense(kernel.t()) };
    let multiply = if step.training.rowwise() { multiply_rowwise } else { multiply };
    multiply(Output::new(input, rows, width), Start::ZERO, &[term], scratch);
}

/// Sums the kernel over its frames: a still image shows the same in all of them.
fn fold(model: &Model, folded: &mut [f32]) {
    let config = model.config();
    let (frames, channels) = (config.vision.temporal_patch_size, config.vision.channels);
    let plane = config.vision.patch_size * config.vision.patch_size;
    let mut frame_values = vec![0.0; plane];
    for row in 0..config.vision.hidden_size {
        for channel in 0..channels {
            let to = &mut folded[(row * channels + channel) * plane..][..plane];
            to.fill(0.0);
            for frame in 0..frames {
                let from = (channel * frames + frame) * plane;
                model.weights().vision.patch_embed.read(row, from, &mut frame_values);
                to.iter_mut().zip(&frame_values).for_each(|(to, value)| *to += value);
            }
        }
    }
}

/// The merger: norm, four patches side by side, linear, GELU, linear.
fn merge(step: &Step<'_>, arena: &mut Arena) {
    let (model, slots) = (step.model, step.slots);
    let config = model.config();
    let rows = step.prepared.patches();
    let (merged, joined) = (rows / config.vision.merge_unit(), config.vision.merger_size());
    let [x, inverse, normed, inner, activated, out, narrow, dropped, packed] = arena.get([
        slots.vision.output,
        slots.merger_inverse,
        slots.merger_normed,
        slots.merger_inner,
        slots.merger_activated,
        slots.merged,
        slots.merger_narrow,
        slots.merger_dropped,
        slots.merger_scratch,
    ]);
    let wide = rows * config.vision.hidden_size;
    let weight = &model.weights().vision.merger_norm;
    norm::forward(&x[..wide], weight, config.vision.norm_epsilon, &mut normed[..wide], &mut inverse[..rows]);
    let [first, second] = [0, 1].map(|index| model.merger_layer(index));
    let len = merged * step.training.merger_rank;
    let (of_first, of_second) = narrow[..2 * len].split_at_mut(len);
    let room = &mut Room { dropped, packed };
    let project = |layer: &Projection<'_>, x: &[f32], narrow: &mut [f32], room: &mut Room<'_>| match step
        .training
        .rowwise()
    {
        true => project_rowwise(layer, x, narrow, room),
        false => project(layer, step.dropout, x, narrow, room),
    };
    project(&first, &normed[..wide], of_first, room);
    let input = Input { x: &normed[..wide], narrow: of_first, rows: merged };
    first.linear.forward(input, RowsMut { data: &mut *inner, stride: joined }, None, room.packed);
    let activated = &mut activated[..merged * joined];
    gelu::forward(&inner[..merged * joined], activated);
    project(&second, activated, of_second, room);
    let input = Input { x: activated, narrow: of_second, rows: merged };
    let out = RowsMut { data: out, stride: config.text.hidden_size };
    second.linear.forward(input, out, None, room.packed);
}

/// Backward from `slots.grad_merged`, in window order, down to the lowest block with something to train.
pub(super) fn backward(step: &Step<'_>, arena: &mut Arena, gradients: &mut Gradients) {
    let (model, slots, clock) = (step.model, step.slots, step.clock);
    if step.prepared.patches() == 0 {
        return;
    }
    arena.reach(clock.merger_backward());
    merge_backward(step, arena, gradients);
    let lowest = step.training.lowest.vision;
    for index in (0..model.config().vision.depth).rev().take_while(|index| *index >= lowest) {
        let to_input = index > lowest || step.training.full;
        let pass = pass(step, index, clock.vision_backward(index));
        pass.backward(arena, &slots.vision.blocks[index], slots.vision.grad, to_input, gradients);
    }
    if let Some(id) = model.id("model.visual.patch_embed.proj.weight") {
        patch_gradient(step, arena, gradients.of(id));
    }
}

fn merge_backward(step: &Step<'_>, arena: &mut Arena, gradients: &mut Gradients) {
    let (model, slots) = (step.model, step.slots);
    let config = model.config();
    let rows = step.prepared.patches();
    let (merged, joined) = (rows / config.vision.merge_unit(), config.vision.merger_size());
    let (width, wide) = (config.text.hidden_size, rows * config.vision.hidden_size);
    let [
        x,
        inverse,
        normed,
        inner,
        activated,
        narrow,
        grad_narrow,
        dropped,
        packed,
        out,
        mid,
        grad_normed,
        grad,
    ] = arena.get([
        slots.vision.output,
        slots.merger_inverse,
        slots.merger_normed,
        slots.merger_inner,
        slots.merger_activated,
        slots.merger_narrow,
        slots.grad_merger_narrow,
        slots.grad_merger_dropped,
        slots.grad_merger_scratch,
        slots.grad_merged,
        slots.grad_merger_inner,
        slots.grad_merger_normed,
        slots.vision.grad,
    ]);
    let (grad_out, grad_inner) = (out, mid);
    let [first, second] = [0, 1].map(|index| model.merger_layer(index));
    let len = merged * step.training.merger_rank;
    let (narrow, grad_narrow) = (narrow[..2 * len].split_at(len), grad_narrow[..2 * len].split_at_mut(len));
    let room = &mut Room { dropped, packed };
    let of_second = Trained {
        projection: &second,
        rows: merged,
        grad: Rows { data: grad_out, stride: width },
        narrow: narrow.1,
        mask: second.mask(step.dropout),
    };
    of_second.gradients(&activated[..merged * joined], grad_narrow.1, gradients, room);
    input_gradient(&[(&of_second, &*grad_narrow.1)], grad_inner, room);
    gelu::backward_in_place(&inner[..merged * joined], &mut grad_inner[..merged * joined]);
    let of_first = Trained {
        projection: &first,
        rows: merged,
        grad: Rows { data: grad_inner, stride: joined },
        narrow: narrow.0,
        mask: first.mask(step.dropout),
    };
    of_first.gradients(&normed[..wide], grad_narrow.0, gradients, room);
    input_gradient(&[(&of_first, &*grad_narrow.0)], grad_normed, room);
    let (x, inverse, grad_normed) = (&x[..wide], &inverse[..rows], &grad_normed[..wide]);
    if let Some(id) = model.id("model.visual.merger.ln_q.weight") {
        norm::backward_weight(x, inverse, grad_normed, gradients.of(id));
    }
    let weight = &model.weights().vision.merger_norm;
    norm::backward(x, weight, inverse, grad_normed, Write::Replace, &mut grad[..wide]);
}

/// Every frame of the kernel saw the same patch, so all get the same gradient.
fn patch_gradient(step: &Step<'_>, arena: &mut Arena, gradient: &mut [f32]) {
    let config = step.model.config();
    let (rows, width, compact) =
        (step.prepared.patches(), config.vision.hidden_size, config.vision.patch_bytes());
    let slots = step.slots;
    arena.reach(step.clock.end());
    let [patches, folded, grad, scratch] =
        arena.get([slots.patches, slots.grad_folded, slots.vision.grad, slots.grad_patch_scratch]);
    let folded = &mut folded[..width * compact];
    folded.fill(0.0);
    let (grad, patches) = (Matrix::new(grad, rows, width), Matrix::new(patches, rows, compact));
    backward_matrix(grad, patches, folded, scratch);
    let (frames, plane) = (config.vision.temporal_patch_size, compact / config.vision.channels);
    for (to, from) in gradient.chunks_exact_mut(frames * plane).zip(folded.chunks_exact(plane)) {
        for to in to.chunks_exact_mut(plane) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
    }
}
