//! Which buffers a step needs, how large they are, and when.
//!
//! Takes the model's sizes, the longest batch and the choice of blocks to recompute, and gives a placed
//! [`Layout`] with the slot of every buffer. A step is a row of moments (see [`Clock`]): a buffer lives from
//! the moment that fills it to the last that reads it, and the arena lets others have its place before and
//! after.

use super::block::BlockShape;
use super::training::{PerTower, Training};
use crate::config::ModelConfig;
use garden_engine::ops::{linear, loss};
use garden_engine::product;
use garden_engine::{Layout, Purpose, Slot};

/// The longest batch that memory is laid out for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shapes {
    /// Tokens of all sequences.
    pub tokens: usize,
    /// Patches of all images.
    pub patches: usize,
    /// Tokens with a label.
    pub labels: usize,
}

/// The moments of a step. A block's forward takes two, attention and MLP; its backward takes three: attention
/// once more where it is recomputed, then back through MLP and attention. What is given for a block is its
/// first moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub depth: usize,
    pub layers: usize,
}

/// Linear layers of the merger.
const MERGER_LAYERS: usize = 2;
/// Moments of a block's forward and of its backward.
const FORWARD: usize = 2;
const BACKWARD: usize = 3;

impl Clock {
    pub fn of(config: &ModelConfig) -> Self {
        Self { depth: config.vision.depth, layers: config.text.layers }
    }
    pub fn patches(&self) -> usize {
        0
    }
    pub fn vision_forward(&self, block: usize) -> usize {
        1 + FORWARD * block
    }
    pub fn merger(&self) -> usize {
        self.vision_forward(self.depth)
    }
    pub fn embedding(&self) -> usize {
        self.merger() + 1
    }
    pub fn text_forward(&self, layer: usize) -> usize {
        self.embedding() + 1 + FORWARD * layer
    }
    pub fn head(&self) -> usize {
        self.text_forward(self.layers)
    }
    pub fn text_backward(&self, layer: usize) -> usize {
        self.head() + 1 + BACKWARD * (self.layers - 1 - layer)
    }
    pub fn merger_backward(&self) -> usize {
        self.head() + 1 + BACKWARD * self.layers
    }
    pub fn vision_backward(&self, block: usize) -> usize {
        self.merger_backward() + 1 + BACKWARD * (self.depth - 1 - block)
    }
    pub fn end(&self) -> usize {
        self.merger_backward() + 1 + BACKWARD * self.depth
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
    /// Whether `gate` and `up` have room for all parts of the inner width, one after another, or for one at a
    /// time.
    pub all_parts: bool,
    /// The narrow products of the pairs, one after another.
    pub narrow: Slot,
}

/// What a block needs only while it is computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub normed: Slot,
    /// What is left of a pair's input after dropout, or the gradient on its way through the same mask.
    pub dropped: Slot,
    /// What the products of attention pack; before it the rows of the input that go on, where not all do.
    pub attention: Slot,
    /// The activation of a part of the inner width, then what the products of the MLP pack.
    pub mlp: Slot,
}

/// What a block's backward needs beside `Work`.
#[derive(Debug, Clone, Copy)]
pub(super) struct BackwardWork {
    pub work: Work,
    /// Gradient of the normed rows, and of the attended ones.
    pub grad_rows: Slot,
    pub grad_qkv: Slot,
    pub grad_narrow: Slot,
    /// As `Work::attention`, on the way back.
    pub attention: Slot,
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
    pub patch_scratch: Slot,
    pub grad_folded: Slot,
    pub grad_patch_scratch: Slot,
    pub merger_inverse: Slot,
    pub merger_normed: Slot,
    pub merger_inner: Slot,
    pub merger_activated: Slot,
    /// The narrow products of the merger's pairs, one after the other.
    pub merger_narrow: Slot,
    pub merger_dropped: Slot,
    pub merger_scratch: Slot,
    pub merged: Slot,
    pub grad_merged: Slot,
    pub grad_merger_inner: Slot,
    pub grad_merger_normed: Slot,
    pub grad_merger_narrow: Slot,
    pub grad_merger_dropped: Slot,
    pub grad_merger_scratch: Slot,
    pub head_normed: Slot,
    pub head_inverse: Slot,
    pub grad_head_normed: Slot,
    pub head_scratch: Slot,
}

/// Everything laid out.
pub(super) struct Planned {
    pub slots: StepSlots,
    pub layout: Layout,
}

/// Lays out a step in which the last `kept` blocks of all that backward visits keep their activations.
pub(super) fn plan(config: &ModelConfig, shapes: Shapes, training: Training, kept: usize) -> Planned {
    let mut layout = Layout::default();
    let clock = Clock::of(config);
    let vision_shape = BlockShape::vision(config, training);
    let text_shape = BlockShape::text(config, training);
    // Backward visits language layers from the last, then vision blocks from the last: the ones it needs
    // first are kept.
    let visited = training.visited(config);
    let text_kept = kept.min(visited.text);
    let vision_kept = kept.saturating_sub(visited.text).min(visited.vision);
    let vision_end = if training.through_vision { clock.end() } else { clock.merger() };
    let vision = Tower {
        shape: &vision_shape,
        rows: Rows { all: shapes.patches, picked: None },
        count: clock.depth,
        kept: vision_kept,
        full: training.full,
        times: Times {
            forward: &|block| clock.vision_forward(block),
            backward: (visited.vision > 0).then_some(&|block| clock.vision_backward(block)),
            lowest: training.lowest.vision,
            start: clock.patches(),
            table_end: vision_end,
            output_end: if training.through_vision { clock.merger_backward() } else { clock.merger() },
            grad: training.through_vision.then_some((clock.merger_backward(), clock.end())),
        },
    }
    .slots(&mut layout);
    let text = Tower {
        shape: &text_shape,
        rows: Rows { all: shapes.tokens, picked: Some(shapes.labels) },
        count: clock.layers,
        kept: text_kept,
        full: training.full,
        times: Times {
            forward: &|layer| clock.text_forward(layer),
            backward: (visited.text > 0).then_some(&|layer| clock.text_backward(layer)),
            lowest: training.lowest.text,
            start: clock.embedding(),
            table_end: clock.merger_backward(),
            output_end: clock.head(),
            grad: training.backward.then_some((clock.head(), clock.merger_backward())),
        },
    }
    .slots(&mut layout);
    let slots = rest(&mut layout, config, shapes, training, PerTower { vision, text });
    layout.place();
    Planned { slots, layout }
}

/// Rows of a tower, and those of them that go on after the last block's attention, where not all do.
#[derive(Clone, Copy)]
struct Rows {
    all: usize,
    picked: Option<usize>,
}

/// Rows of a block before and after its attention.
#[derive(Clone, Copy)]
struct BlockRows {
    before: usize,
    picked: Option<usize>,
}

impl BlockRows {
    fn after(self) -> usize {
        self.picked.unwrap_or(self.before)
    }
}

struct Times<'a> {
    forward: &'a dyn Fn(usize) -> usize,
    backward: Option<&'a dyn Fn(usize) -> usize>,
    /// The lowest block that backward visits.
    lowest: usize,
    start: usize,
    table_end: usize,
    /// Last moment that reads the output of the last block.
    output_end: usize,
    /// The moments between which there is a gradient of the rows, if there ever is.
    grad: Option<(usize, usize)>,
}

/// First moment of what a block's backward reads, and the last ones of what is read back through the MLP and
/// through attention.
#[derive(Clone, Copy)]
struct Life {
    from: usize,
    mlp: usize,
    attention: usize,
}

impl Life {
    /// Not beyond the forward that begins at `now`.
    fn forward(now: usize) -> Self {
        Self { from: now, mlp: now + 1, attention: now }
    }

    /// From moment `from` into the backward that begins at `back`.
    fn into_backward(from: usize, back: usize) -> Self {
        Self { from, mlp: back + 1, attention: back + 2 }
    }
}

/// A tower to lay out.
struct Tower<'a> {
    shape: &'a BlockShape,
    rows: Rows,
    /// Its blocks.
    count: usize,
    /// How many of the last ones keep their activations.
    kept: usize,
    /// Whether weights themselves are trained.
    full: bool,
    times: Times<'a>,
}

impl Tower<'_> {
    fn slots(self, layout: &mut Layout) -> TowerSlots {
        let Self { shape, rows, count, kept, full, times } = self;
        let mut blocks = Vec::with_capacity(count);
        for block in 0..count {
            let now = (times.forward)(block);
            let filled = if block == 0 { times.start } else { now - 1 };
            let picked = rows.picked.filter(|_| block + 1 == count);
            let block_rows = BlockRows { before: rows.all, picked };
            let visited = times.backward.filter(|_| block >= times.lowest);
            let back = visited.map(|backward| backward(block));
            let input_end = back.map_or(now, |back| back + 2);
            let input = layout.request(Purpose::Activation, rows.all * shape.width, filled..=input_end);
            let keep = back.filter(|_| block + kept >= count);
            let forward = match keep {
                Some(back) => {
                    let life = Life::into_backward(now, back);
                    kept_slots(layout, shape, block_rows, Purpose::Activation, life, true)
                }
                None => kept_slots(layout, shape, block_rows, Purpose::Work, Life::forward(now), false),
            };
            let forward_work = work_slots(layout, shape, block_rows, full, (now, now + 1));
            let backward = back.map(|back| {
                let kept = match keep {
                    Some(_) => forward,
                    None => {
                        let life = Life::into_backward(back, back);
                        kept_slots(layout, shape, block_rows, Purpose::Recompute, life, false)
                    }
                };
                (kept, backward_slots(layout, shape, block_rows, full, back))
            });
            let recompute = back.is_some() && keep.is_none();
            blocks.push(BlockSlots { input, forward, forward_work, backward, recompute });
        }
        let last = if count == 0 { times.start } else { (times.forward)(count) - 1 };
        let table = rows.all * shape.head_dim / 2;
        let given = rows.picked.unwrap_or(rows.all);
        TowerSlots {
            blocks,
            output: layout.request(Purpose::Work, given * shape.width, last..=times.output_end),
            cos: layout.request(Purpose::Activation, table, times.start..=times.table_end),
            sin: layout.request(Purpose::Activation, table, times.start..=times.table_end),
            grad: match times.grad {
                Some((from, to)) => layout.request(Purpose::Work, rows.all * shape.width, from..=to),
                None => layout.request(Purpose::Work, 0, 0..=0),
            },
        }
    }
}

fn kept_slots(
    layout: &mut Layout,
    shape: &BlockShape,
    rows: BlockRows,
    purpose: Purpose,
    life: Life,
    all_parts: bool,
) -> Kept {
    let (before, after) = (rows.before, rows.after());
    let inner = if all_parts { shape.inner } else { shape.part };
    let mut request = |from, to, rows: usize, width: usize| layout.request(purpose, rows * width, from..=to);
    let Life { from, mlp, attention } = life;
    Kept {
        inverse1: request(from, attention, before, 1),
        qkv: request(from, attention, before, shape.qkv_width()),
        attended: request(from, attention, before, shape.width),
        log_sum_exp: request(from, attention, before, shape.heads),
        middle: request(from, mlp, after, shape.width),
        inverse2: request(from, mlp, after, 1),
        gate: request(from + 1, mlp, after, inner),
        up: request(from + 1, mlp, after, inner),
        all_parts,
        narrow: request(from, mlp.max(attention), before, shape.rank * shape.projections()),
    }
}

/// For the two moments of a forward; what is also needed on the way back lives until `end`.
fn work_slots(
    layout: &mut Layout,
    shape: &BlockShape,
    rows: BlockRows,
    full: bool,
    (now, end): (usize, usize),
) -> Work {
    let mut request = |len: usize, life| layout.request(Purpose::Work, len, life);
    let gathered = rows.picked.map_or(0, |picked| picked * shape.width);
    Work {
        normed: request(rows.before * shape.width, now..=end),
        dropped: request(rows.before * shape.dropped_width(), now..=end),
        attention: request(gathered + attention_scratch(shape, rows, full), now..=now),
        mlp: request(rows.after() * shape.part + mlp_scratch(shape, rows, full), now + 1..=now + 1),
    }
}

fn backward_slots(
    layout: &mut Layout,
    shape: &BlockShape,
    rows: BlockRows,
    full: bool,
    back: usize,
) -> BackwardWork {
    let end = back + 2;
    let work = work_slots(layout, shape, rows, full, (back, end));
    let mut request = |len: usize, from: usize| layout.request(Purpose::Work, len, from..=end);
    BackwardWork {
        work,
        grad_rows: request(rows.before * shape.width, back + 1),
        grad_qkv: request(rows.before * shape.qkv_width(), end),
        grad_narrow: request(rows.before * shape.rank * shape.projections(), back + 1),
        attention: request(attention_scratch(shape, rows, full), end),
    }
}

/// The most that a product of a block's attention packs.
fn attention_scratch(shape: &BlockShape, rows: BlockRows, trained: bool) -> usize {
    let of = |outputs, rank| linear::scratch_len(rows.before, outputs, shape.width, rank, trained);
    of(shape.width, shape.rank).max(of(shape.qkv_width(), 3 * shape.rank))
}

/// The most that a product of a part of a block's MLP packs.
fn mlp_scratch(shape: &BlockShape, rows: BlockRows, trained: bool) -> usize {
    let of = |outputs, inputs| linear::scratch_len(rows.after(), outputs, inputs, shape.rank, trained);
    of(shape.part, shape.width).max(of(shape.width, shape.part))
}

fn rest(
    layout: &mut Layout,
    config: &ModelConfig,
    shapes: Shapes,
    training: Training,
    PerTower { vision, text }: PerTower<TowerSlots>,
) -> StepSlots {
    let clock = Clock::of(config);
    let (width, joined) = (config.text.hidden_size, config.vision.merger_size());
    let merged = shapes.patches / config.vision.merge_unit();
    let compact = config.vision.patch_bytes();
    let kernel = config.vision.hidden_size * compact;
    let (merger, back, end) = (clock.merger(), clock.merger_backward(), clock.end());
    let merger_end = if training.through_vision { back } else { merger };
    let patches_end = if training.full { end } else { clock.patches() };
    let grad = |len: usize| if training.through_vision { len } else { 0 };
    let full = |len: usize| if training.full { len } else { 0 };
    let scratch =
        |rows, outputs, inputs, rank| linear::scratch_len(rows, outputs, inputs, rank, training.full);
    let patch_scratch = scratch(shapes.patches, config.vision.hidden_size, compact, 0);
    let rank = training.merger_rank;
    let merger_scratch = scratch(merged, joined, joined, rank).max(scratch(merged, width, joined, rank));
    let merger_narrow = MERGER_LAYERS * merged * rank;
    let merger_dropped = if training.merger_drops() { merged * joined } else { 0 };
    let head = clock.head();
    let mut request = |len, life| layout.request(Purpose::Work, len, life);
    StepSlots {
        vision,
        text,
        patches: request(shapes.patches * compact, 0..=patches_end),
        folded: request(kernel, 0..=0),
        patch_scratch: request(patch_scratch, 0..=0),
        grad_folded: request(full(kernel), end..=end),
        grad_patch_scratch: request(full(patch_scratch), end..=end),
        merger_inverse: request(shapes.patches, merger..=merger_end),
        merger_normed: request(merged * joined, merger..=merger_end),
        merger_inner: request(merged * joined, merger..=merger_end),
        merger_activated: request(merged * joined, merger..=merger_end),
        merger_narrow: request(merger_narrow, merger..=merger_end),
        merger_dropped: request(merger_dropped, merger..=merger),
        merger_scratch: request(merger_scratch, merger..=merger),
        merged: request(merged * width, merger..=clock.embedding()),
        grad_merged: request(grad(merged * width), back..=back),
        grad_merger_inner: request(grad(merged * joined), back..=back),
        grad_merger_normed: request(grad(merged * joined), back..=back),
        grad_merger_narrow: request(grad(merger_narrow), back..=back),
        grad_merger_dropped: request(grad(merger_dropped), back..=back),
        grad_merger_scratch: request(grad(merger_scratch), back..=back),
        head_normed: request(shapes.labels * width, head..=head),
        head_inverse: request(shapes.labels, head..=head),
        grad_head_normed: request(shapes.labels * width, head..=head),
        head_scratch: request(head_scratch(config, shapes, training), head..=head),
    }
}

/// What the head needs: for a loss the logits of a slice, for generation all those of every row.
fn head_scratch(config: &ModelConfig, shapes: Shapes, training: Training) -> usize {
    let (width, vocabulary) = (config.text.hidden_size, config.text.vocab_size);
    match training.backward {
        true => loss::scratch_len(shapes.labels, width, vocabulary),
        false => shapes.labels * vocabulary + product::scratch_len(shapes.labels, width),
    }
}
