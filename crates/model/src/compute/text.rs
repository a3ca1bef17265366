//! The language model: embedding with images in their places, layers, and the head on the rows that predict a
//! label.
//!
//! Takes a prepared batch and the merged rows of its images, and gives the summed loss; the backward gives
//! the gradients of what is trained and of the merged rows. Final norm and head run only on rows with a
//! label.

use super::batch::PackedBatch;
use super::block::{BlockShape, Pass};
use super::cache::{Cache, Past};
use super::model::Gradients;
use super::session::{Observer, SessionError, Stage, Step};
use garden_engine::ops::attention::Reading;
use garden_engine::ops::loss::{self, Totals};
use garden_engine::ops::rotary::Frequencies;
use garden_engine::ops::{Write, embedding, norm};
use garden_engine::product::{Matrix, Output, Right, Start, Term, multiply};
use garden_engine::{Arena, Slot};

/// From token ids to the output of the last layer.
pub(super) fn forward(
    step: &Step<'_>,
    arena: &mut Arena,
    batch: &PackedBatch<'_>,
    watch: &mut Observer<'_>,
) -> Result<(), SessionError> {
    let width = step.model.config().text.hidden_size;
    let [x, merged] = embed(step, arena, batch.ids)?;
    for (window_place, &token) in step.prepared.order.iter().enumerate() {
        let row = step.prepared.image_rows[token as usize];
        x[row * width..][..width].copy_from_slice(&merged[window_place * width..][..width]);
    }
    layers(step, arena, watch);
    Ok(())
}

/// Rows of an image that new tokens show.
pub(super) struct Shown<'a> {
    /// The row of the first of these tokens.
    pub row: usize,
    pub rows: &'a [f32],
}

/// The same for new tokens of sequences whose past is kept.
pub(super) fn read(
    step: &Step<'_>,
    arena: &mut Arena,
    ids: &[u32],
    images: &[Shown<'_>],
    cache: &mut Cache,
    readings: &[Reading<'_>],
) -> Result<(), SessionError> {
    let width = step.model.config().text.hidden_size;
    let [x, _] = embed(step, arena, ids)?;
    for shown in images {
        x[shown.row * width..][..shown.rows.len()].copy_from_slice(shown.rows);
    }
    for layer in 0..step.clock.layers {
        one_layer(step, arena, layer, Some(cache.layer(layer, readings)));
    }
    Ok(())
}

/// Embeds the tokens and fills the table of angles; gives the embedded rows and the merged ones of the images.
fn embed<'a>(step: &Step<'_>, arena: &'a mut Arena, ids: &[u32]) -> Result<[&'a mut [f32]; 2], SessionError> {
    let (model, slots, clock) = (step.model, step.slots, step.clock);
    let (text, rows) = (&model.config().text, ids.len());
    arena.reach(clock.embedding());
    let input = slots.text.blocks.first().map_or(slots.text.output, |block| block.input);
    let [x, merged, cos, sin] = arena.get([input, slots.merged, slots.text.cos, slots.text.sin]);
    let x = &mut x[..rows * text.hidden_size];
    embedding::forward(&model.weights().text.embedding, ids, x)?;
    let frequencies = Frequencies::sections(&text.mrope_section, text.rope_theta);
    let table = rows * frequencies.half();
    let axes = step.prepared.positions.each_ref().map(|axis| axis.as_slice());
    frequencies.fill(&axes, &mut cos[..table], &mut sin[..table]);
    Ok([x, merged])
}

fn layers(step: &Step<'_>, arena: &mut Arena, watch: &mut Observer<'_>) {
    let width = step.model.config().text.hidden_size;
    for index in 0..step.clock.layers {
        let (rows, next) = one_layer(step, arena, index, None);
        let [out] = arena.get([next]);
        watch(Stage::TextLayer(index), &out[..rows * width]);
    }
}

/// Gives the rows after the layer, and where they are.
fn one_layer(step: &Step<'_>, arena: &mut Arena, index: usize, past: Option<Past<'_>>) -> (usize, Slot) {
    let blocks = &step.slots.text.blocks;
    let next = blocks.get(index + 1).map_or(step.slots.text.output, |next| next.input);
    let pass = pass(step, index, step.clock.text_forward(index));
    pass.forward(arena, &blocks[index], next, past);
    (pass.rows_after(), next)
}

fn pass<'a>(step: &'a Step<'_>, index: usize, moment: usize) -> Pass<'a> {
    Pass {
        moment,
        shape: BlockShape::text(step.model.config(), step.training),
        block: step.model.text_layer(index),
        rows: step.rows,
        // Of the last layer's rows only those that predict a label are read.
        picked: (index + 1 == step.clock.layers).then_some(&step.prepared.predicting),
        segments: step.segments,
        cos: step.slots.text.cos,
        sin: step.slots.text.sin,
        dropout: step.dropout,
    }
}

/// Norm, head and cross-entropy on the predicting rows, which the last layer gave; with gradients, theirs
/// too.
pub(super) fn head(
    step: &Step<'_>,
    arena: &mut Arena,
    gradients: Option<(&mut Gradients, f32)>,
    watch: &mut Observer<'_>,
) -> Result<Totals, SessionError> {
    let (model, slots) = (step.model, step.slots);
    let text = &model.config().text;
    let (width, count) = (text.hidden_size, step.prepared.predicting.len());
    arena.reach(step.clock.head());
    let [x, normed, inverse, grad_normed, grad, scratch] = arena.get([
        slots.text.output,
        slots.head_normed,
        slots.head_inverse,
        slots.grad_head_normed,
        slots.text.grad,
        slots.head_scratch,
    ]);
    let len = count * width;
    let (x, normed, inverse) = (&x[..len], &mut normed[..len], &mut inverse[..count]);
    let weight = &model.weights().text.norm;
    norm::forward(x, weight, text.norm_epsilon, normed, inverse);
    watch(Stage::Normed, normed);
    let (head, head_id) = model.head();
    let targets = &step.prepared.targets;
    let Some((gradients, scale)) = gradients else {
        return Ok(loss::run(head, normed, targets, None, scratch)?);
    };
    let grad_normed = &mut grad_normed[..len];
    let wanted = loss::Gradients { scale, hidden: grad_normed, head: head_id.map(|id| gradients.of(id)) };
    let totals = loss::run(head, normed, targets, Some(wanted), scratch)?;
    if let Some(id) = model.id("model.language_model.norm.weight") {
        norm::backward_weight(x, inverse, grad_normed, gradients.of(id));
    }
    norm::backward(x, weight, inverse, grad_normed, Write::Replace, &mut grad[..len]);
    Ok(totals)
}

/// The logits of every token of the vocabulary after each predicting row.
pub(super) fn logits<'a>(step: &Step<'_>, arena: &'a mut Arena) -> &'a [f32] {
    let slots = step.slots;
    let (head, _) = step.model.head();
    let (width, rows) = (head.cols(), step.prepared.predicting.len());
    arena.reach(step.clock.head());
    let [x, normed, inverse, scratch] =
        arena.get([slots.text.output, slots.head_normed, slots.head_inverse, slots.head_scratch]);
    let (x, normed) = (&x[..rows * width], &mut normed[..rows * width]);
    let epsilon = step.model.config().text.norm_epsilon;
    norm::forward(x, &step.model.weights().text.norm, epsilon, normed, &mut inverse[..rows]);
    let (logits, packed) = scratch.split_at_mut(rows * head.rows());
    let term = Term { left: Matrix::new(normed, rows, width), right: Right::WeightT(head) };
    multiply(Output::new(logits, rows, head.rows()), Start::ZERO, &[term], packed);
    logits
}

/// Backward over the layers, then to the embedding and the images' rows.
pub(super) fn backward(
    step: &Step<'_>,
    arena: &mut Arena,
    batch: &PackedBatch<'_>,
    gradients: &mut Gradients,
) -> Result<(), SessionError> {
    let (model, slots, clock) = (step.model, step.slots, step.clock);
    let width = model.config().text.hidden_size;
    let below = step.training.through_vision;
    let lowest = step.training.lowest.text;
    for index in (0..model.config().text.layers).rev().take_while(|index| *index >= lowest) {
        let to_input = index > lowest || below;
        let pass = pass(step, index, clock.text_backward(index));
        pass.backward(arena, &slots.text.blocks[index], slots.text.grad, to_input, gradients);
    }
    if !below {
        return Ok(());
    }
    arena.reach(clock.merger_backward());
    let [grad, grad_merged] = arena.get([slots.text.grad, slots.grad_merged]);
    for (window_place, &token) in step.prepared.order.iter().enumerate() {
        let row = &mut grad[step.prepared.image_rows[token as usize] * width..][..width];
        grad_merged[window_place * width..][..width].copy_from_slice(row);
        // An image's row does not come from the embedding.
        row.fill(0.0);
    }
    if let Some(id) = model.id("model.language_model.embed_tokens.weight") {
        embedding::backward(batch.ids, &grad[..step.rows * width], width, gradients.of(id))?;
    }
    Ok(())
}
