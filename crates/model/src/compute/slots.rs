//! Which buffers a step needs, how large they are, and when.
//!
//! In come the model's sizes, the longest batch and the choice of blocks to recompute; out comes a placed [`Layout`] with
//! the slot of every buffer. A step is a row of moments (see [`Clock`]): a buffer lives from the moment that fills
//! it to the last that reads it, and the arena lets others have its place before and after.

use super::block::BlockShape;
use crate::config::ModelConfig;
use garden_engine::arena::{Layout, Purpose, Slot};
use garden_engine::ops::{linear, loss};
use garden_engine::product;

/// The longest batch that memory is laid out for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shapes {
    /// Tokens of all rows.
    pub tokens: usize,
    /// Patches of all pictures.
    pub patches: usize,
    /// Tokens with a label.
    pub labels: usize,
}

/// What is trained, as far as memory is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Training {
    /// Rank of the pairs in the vision tower and in the language model; zero for none.
    pub rank: [usize; 2],
    /// Whether weights themselves are trained.
    pub full: bool,
    /// Whether gradients go down into the vision tower.
    pub through_vision: bool,
    /// Whether the pairs drop some of their inputs.
    pub dropout: bool,
    /// Whether there is a backward at all.
    pub backward: bool,
}

/// The moments of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub depth: usize,
    pub layers: usize,
}

impl Clock {
    pub fn patches(&self) -> usize {
        0
    }
    pub fn vision_forward(&self, block: usize) -> usize {
        1 + block
    }
    pub fn merger(&self) -> usize {
        1 + self.depth
    }
    pub fn embedding(&self) -> usize {
        2 + self.depth
    }
    pub fn text_forward(&self, layer: usize) -> usize {
        3 + self.depth + layer
    }
    pub fn head(&self) -> usize {
        3 + self.depth + self.layers
    }
    pub fn text_backward(&self, layer: usize) -> usize {
        self.head() + self.layers - layer
    }
    pub fn merger_backward(&self) -> usize {
        self.head() + self.layers + 1
    }
    pub fn vision_backward(&self, block: usize) -> usize {
        self.merger_backward() + self.depth - block
    }
    pub fn end(&self) -> usize {
        self.merger_backward() + self.depth + 1
    }
}

/// What a block's backward reads of its forward.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub inverse1: Slot,
    pub qkv: Slot,
    pub attended: Slot,
    pub log_sum_exp: Slot,
    pub middle: Slot,
    pub inverse2: Slot,
    pub gate: Slot,
    pub up: Slot,
    /// The narrow products of the pairs, one after another.
    pub narrow: Slot,
}

/// What a block needs only while it is computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub normed: Slot,
    pub activated: Slot,
    /// What is left of a pair's input after dropout, or the gradient on its way through the same mask.
    pub dropped: Slot,
}

/// What a block's backward needs beside `Work`.
#[derive(Debug, Clone, Copy)]
pub(super) struct BackwardWork {
    pub work: Work,
    pub grad_normed: Slot,
    pub grad_qkv: Slot,
    pub grad_attended: Slot,
    pub grad_narrow: Slot,
}

/// The buffers of one block.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockSlots {
    /// Input of the block.
    pub input: Slot,
    /// Where forward writes what backward would read.
    pub forward: Kept,
    pub forward_work: Work,
    /// For a trained pass: where backward finds it; other slots than `forward` when it is recomputed.
    pub backward: Option<(Kept, BackwardWork)>,
    pub recompute: bool,
}

/// The buffers of one tower.
#[derive(Debug, Clone)]
pub(super) struct TowerSlots {
    pub blocks: Vec<BlockSlots>,
    /// Output of the last block.
    pub output: Slot,
    pub cos: Slot,
    pub sin: Slot,
    /// Gradient of the residual stream.
    pub grad: Slot,
}

/// The buffers of a step.
#[derive(Debug, Clone)]
pub(super) struct StepSlots {
    pub vision: TowerSlots,
    pub text: TowerSlots,
    pub patches: Slot,
    pub folded: Slot,
    pub merger_inverse: Slot,
    pub merger_normed: Slot,
    pub merger_inner: Slot,
    pub merger_activated: Slot,
    pub merged: Slot,
    pub grad_merged: Slot,
    pub grad_merger_inner: Slot,
    pub grad_merger_normed: Slot,
    pub head_normed: Slot,
    pub head_inverse: Slot,
    pub grad_head_normed: Slot,
    pub head_scratch: Slot,
    pub scratch: Slot,
}

/// Everything laid out.
pub(super) struct Planned {
    pub slots: StepSlots,
    pub layout: Layout,
}

/// Lays out a step in which the last `kept` blocks of all that backward visits keep their activations.
pub(super) fn plan(config: &ModelConfig, shapes: Shapes, training: Training, kept: usize) -> Planned {
    let mut layout = Layout::default();
    let clock = Clock { depth: config.vision.depth, layers: config.text.layers };
    let vision_shape = BlockShape::vision(config, training);
    let text_shape = BlockShape::text(config, training);
    // Backward visits language layers from the last, then vision blocks from the last: the ones it needs first are kept.
    let text_kept = kept.min(clock.layers);
    let vision_kept = kept.saturating_sub(clock.layers).min(clock.depth);
    let vision_end = if training.through_vision { clock.end() } else { clock.merger() };
    let vision = tower(
        &mut layout,
        &vision_shape,
        Rows { all: shapes.patches, last: shapes.patches },
        Times {
            forward: &|block| clock.vision_forward(block),
            backward: training.through_vision.then_some(&|block| clock.vision_backward(block)),
            start: clock.patches(),
            table_end: vision_end,
            output_end: if training.through_vision { clock.merger_backward() } else { clock.merger() },
            grad: (clock.merger_backward(), clock.end()),
        },
        clock.depth,
        vision_kept,
    );
    let text = tower(
        &mut layout,
        &text_shape,
        Rows { all: shapes.tokens, last: shapes.labels },
        Times {
            forward: &|layer| clock.text_forward(layer),
            backward: training.backward.then_some(&|layer| clock.text_backward(layer)),
            start: clock.embedding(),
            table_end: clock.text_backward(0),
            output_end: clock.head(),
            grad: (clock.head(), clock.merger_backward()),
        },
        clock.layers,
        text_kept,
    );
    let scratch = scratch_len(config, &vision_shape, &text_shape, shapes, training);
    let slots = rest(&mut layout, config, shapes, training, clock, vision, text, scratch);
    layout.place();
    Planned { slots, layout }
}

/// Rows of a tower, and those of them that the last block gives: nobody reads the others.
#[derive(Clone, Copy)]
struct Rows {
    all: usize,
    last: usize,
}

/// Rows of a block before and after its attention.
#[derive(Clone, Copy)]
struct BlockRows {
    before: usize,
    after: usize,
}

struct Times<'a> {
    forward: &'a dyn Fn(usize) -> usize,
    backward: Option<&'a dyn Fn(usize) -> usize>,
    start: usize,
    table_end: usize,
    /// Last moment that reads the output of the last block.
    output_end: usize,
    grad: (usize, usize),
}

fn tower(
    layout: &mut Layout,
    shape: &BlockShape,
    rows: Rows,
    times: Times<'_>,
    count: usize,
    kept: usize,
) -> TowerSlots {
    let mut blocks = Vec::with_capacity(count);
    for block in 0..count {
        let now = (times.forward)(block);
        let filled = if block == 0 { times.start } else { now - 1 };
        let recompute = block + kept < count;
        let after = if block + 1 == count { rows.last } else { rows.all };
        let block_rows = BlockRows { before: rows.all, after };
        let back = times.backward.map(|backward| backward(block));
        let input = layout.request(Purpose::Activation, rows.all * shape.width, filled..=back.unwrap_or(now));
        let forward_end = match back {
            Some(back) if !recompute => back,
            _ => now,
        };
        let purpose = if forward_end == now { Purpose::Work } else { Purpose::Activation };
        let forward = kept_slots(layout, shape, block_rows, purpose, (now, forward_end));
        let forward_work = work_slots(layout, shape, block_rows, now);
        let backward = back.map(|back| {
            let kept = match recompute {
                true => kept_slots(layout, shape, block_rows, Purpose::Recompute, (back, back)),
                false => forward,
            };
            (kept, backward_slots(layout, shape, block_rows, back))
        });
        blocks.push(BlockSlots {
            input,
            forward,
            forward_work,
            backward,
            recompute: recompute && back.is_some(),
        });
    }
    let last = if count == 0 { times.start } else { (times.forward)(count - 1) };
    let table = rows.all * shape.head_dim / 2;
    TowerSlots {
        blocks,
        output: layout.request(Purpose::Work, rows.last * shape.width, last..=times.output_end),
        cos: layout.request(Purpose::Activation, table, times.start..=times.table_end),
        sin: layout.request(Purpose::Activation, table, times.start..=times.table_end),
        grad: match times.backward {
            Some(_) => layout.request(Purpose::Work, rows.all * shape.width, times.grad.0..=times.grad.1),
            None => layout.request(Purpose::Work, 0, 0..=0),
        },
    }
}

fn kept_slots(
    layout: &mut Layout,
    shape: &BlockShape,
    BlockRows { before, after }: BlockRows,
    purpose: Purpose,
    (from, to): (usize, usize),
) -> Kept {
    let mut request = |rows: usize, width: usize| layout.request(purpose, rows * width, from..=to);
    Kept {
        inverse1: request(before, 1),
        qkv: request(before, shape.qkv_width()),
        attended: request(before, shape.width),
        log_sum_exp: request(before, shape.heads),
        middle: request(after, shape.width),
        inverse2: request(after, 1),
        gate: request(after, shape.inner),
        up: request(after, shape.inner),
        narrow: request(before, shape.rank * shape.projections()),
    }
}

fn work_slots(layout: &mut Layout, shape: &BlockShape, rows: BlockRows, now: usize) -> Work {
    let mut request = |len: usize| layout.request(Purpose::Work, len, now..=now);
    Work {
        normed: request(rows.before * shape.width),
        // The picked rows of the input stand here for a moment, before there is an activation.
        activated: request(rows.after * shape.inner.max(shape.width)),
        dropped: request(rows.before * shape.dropped_width()),
    }
}

fn backward_slots(layout: &mut Layout, shape: &BlockShape, rows: BlockRows, now: usize) -> BackwardWork {
    let work = work_slots(layout, shape, rows, now);
    let mut request = |width: usize| layout.request(Purpose::Work, rows.before * width, now..=now);
    BackwardWork {
        work,
        grad_normed: request(shape.width),
        grad_qkv: request(shape.qkv_width()),
        grad_attended: request(shape.width),
        grad_narrow: request(shape.rank * shape.projections()),
    }
}

#[allow(clippy::too_many_arguments)]
fn rest(
    layout: &mut Layout,
    config: &ModelConfig,
    shapes: Shapes,
    training: Training,
    clock: Clock,
    vision: TowerSlots,
    text: TowerSlots,
    scratch: usize,
) -> StepSlots {
    let (width, joined) = (config.text.hidden_size, config.vision.merger_size());
    let merged = shapes.patches / config.vision.merge_unit();
    let compact = super::batch::compact_values(config);
    let (merger, back) = (clock.merger(), clock.merger_backward());
    let merger_end = if training.through_vision { back } else { merger };
    let patches_end = if training.through_vision && training.full { clock.end() } else { clock.patches() };
    let grad = |len: usize| if training.through_vision { len } else { 0 };
    let head = clock.head();
    let mut request = |len, life| layout.request(Purpose::Work, len, life);
    StepSlots {
        vision,
        text,
        patches: request(shapes.patches * compact, 0..=patches_end),
        folded: request(config.vision.hidden_size * compact, 0..=clock.end()),
        merger_inverse: request(shapes.patches, merger..=merger_end),
        merger_normed: request(merged * joined, merger..=merger_end),
        merger_inner: request(merged * joined, merger..=merger_end),
        merger_activated: request(merged * joined, merger..=merger_end),
        merged: request(merged * width, merger..=clock.embedding()),
        grad_merged: request(grad(merged * width), back..=back),
        grad_merger_inner: request(grad(merged * joined), back..=back),
        grad_merger_normed: request(grad(merged * joined), back..=back),
        head_normed: request(shapes.labels * width, head..=head),
        head_inverse: request(shapes.labels, head..=head),
        grad_head_normed: request(shapes.labels * width, head..=head),
        head_scratch: request(head_scratch(config, shapes, training), head..=head),
        scratch: request(scratch, 0..=clock.end()),
    }
}

/// What the head needs: for a loss the logits of a slice, for generation all those of one row.
fn head_scratch(config: &ModelConfig, shapes: Shapes, training: Training) -> usize {
    let (width, vocabulary) = (config.text.hidden_size, config.text.vocab_size);
    match training.backward {
        true => loss::scratch_len(shapes.labels, width, vocabulary),
        false => vocabulary + product::scratch_len(1, width),
    }
}

/// The most that any product of the step packs.
fn scratch_len(
    config: &ModelConfig,
    vision: &BlockShape,
    text: &BlockShape,
    shapes: Shapes,
    training: Training,
) -> usize {
    let compact = super::batch::compact_values(config);
    let joined = config.vision.merger_size();
    let merged = shapes.patches / config.vision.merge_unit();
    let plain = |rows, outputs, inputs| linear::scratch_len(rows, outputs, inputs, 0, training.full);
    [
        block_scratch(vision, shapes.patches, training.full),
        block_scratch(text, shapes.tokens, training.full),
        plain(shapes.patches, config.vision.hidden_size, compact),
        plain(merged, joined, joined),
        plain(merged, config.text.hidden_size, joined),
    ]
    .into_iter()
    .max()
    .unwrap_or(0)
}

/// The most that a product of a block packs.
fn block_scratch(shape: &BlockShape, rows: usize, trained: bool) -> usize {
    let (width, inner, rank) = (shape.width, shape.inner, shape.rank);
    [
        linear::scratch_len(rows, inner, width, rank, trained),
        linear::scratch_len(rows, width, inner, rank, trained),
        linear::scratch_len(rows, shape.qkv_width(), width, 3 * rank, trained),
    ]
    .into_iter()
    .max()
    .unwrap_or(0)
}
