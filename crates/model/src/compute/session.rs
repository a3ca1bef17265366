//! A model at work on batches: the arena, the gradients, and the order of a step.
//!
//! Takes a model, the shapes of the longest batch and how much memory may be used, then batches. Gives sums
//! of losses; gradients of the summed loss collect until they are cleared. A batch larger than the shapes is
//! refused.

use super::batch::{BatchError, PackedBatch, Prepared};
use super::block::BlockShape;
use super::model::{Gradients, Model, TrainableTensor};
use super::slots::{Clock, Planned, Shapes, StepSlots, plan};
use super::training::Training;
use super::{text, vision};
use crate::config::ModelConfig;
use garden_engine::ops::attention;
use garden_engine::ops::dropout::Mask;
use garden_engine::ops::embedding::OutOfVocabulary;
use garden_engine::{Arena, Usage};
use garden_engine::{in_pool, product};

/// How much of the forward is kept for the backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recompute {
    /// Everything is kept.
    Never,
    /// Every block is computed again.
    Always,
    /// Of all blocks that backward visits, so many are kept.
    Keep(usize),
    /// As few blocks are computed again as fit an arena of so many bytes.
    Within(usize),
}

/// Why a session cannot be made or a step cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The batch is at fault.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A token is not in the vocabulary.
    #[error(transparent)]
    Vocabulary(#[from] OutOfVocabulary),
    /// The system does not have that much memory.
    #[error(
        "cannot allocate {bytes} bytes for activations: {source}; use smaller batches or a memory budget"
    )]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// Even with every block recomputed the arena is larger than the budget.
    #[error(
        "activations need {needed} bytes with every block recomputed, the budget leaves {budget}; \
         use a smaller batch or shorter sequences"
    )]
    Budget {
        /// Bytes of the smallest arena.
        needed: usize,
        /// Bytes allowed.
        budget: usize,
    },
}

/// Sums over the label tokens of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LossSums {
    /// Sum of the token losses.
    pub loss: f64,
    /// Tokens with a label.
    pub tokens: usize,
    /// Labels that were the likeliest token.
    pub correct: usize,
}

/// A point of the forward that can be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Patches after their embedding, in window order.
    Patches,
    /// Rows after a block of the vision tower, in window order.
    VisionBlock(usize),
    /// Rows after a layer of the language model.
    TextLayer(usize),
    /// The predicting rows after the last norm.
    Normed,
}

pub(super) type Observer<'a> = dyn FnMut(Stage, &[f32]) + Send + 'a;

/// One batch on its way through the model.
pub(super) struct Step<'a> {
    pub model: &'a Model,
    pub slots: &'a StepSlots,
    pub clock: Clock,
    pub training: Training,
    pub prepared: &'a Prepared,
    pub segments: &'a [usize],
    pub rows: usize,
    /// Only while training, and only with an adapter that has it.
    pub dropout: Option<Mask>,
}

/// Lets every thread allocate what it computes with, before the first step rather than in the first one that
/// it gets work in.
pub(super) fn prepare_threads(model: &Model) {
    let (config, training) = (model.config(), model.training());
    for shape in [BlockShape::vision(config, training), BlockShape::text(config, training)] {
        attention::prepare_threads(&shape.attention(&[]));
    }
    product::prepare_threads();
}

/// What a step with gradients needs to know.
#[derive(Debug, Clone, Copy)]
struct Backward {
    scale: f32,
    noise: u64,
}

/// Memory for one model and its batches.
#[derive(Debug)]
pub struct Session {
    arena: Arena,
    slots: StepSlots,
    shapes: Shapes,
    gradients: Gradients,
}

impl Session {
    /// Lays out memory for batches up to `shapes`.
    pub fn new(model: &Model, shapes: Shapes, recompute: Recompute) -> Result<Self, SessionError> {
        let Planned { slots, layout } = choose(model.config(), model.training(), shapes, recompute)?;
        let bytes = layout.bytes();
        let arena = Arena::new(layout).map_err(|source| SessionError::Memory { bytes, source })?;
        prepare_threads(model);
        Ok(Self { arena, slots, shapes, gradients: Gradients::new(model) })
    }

    /// Adds the gradients of `scale` times the batch's summed loss. `noise` seeds the adapter's dropout:
    /// equal numbers drop the same values, so a run gives every batch another one and a resumed run the same
    /// ones again.
    pub fn step(
        &mut self,
        model: &Model,
        batch: &PackedBatch<'_>,
        scale: f32,
        noise: u64,
    ) -> Result<LossSums, SessionError> {
        self.run(model, batch, Some(Backward { scale, noise }), &mut |_, _| {})
    }

    /// Loss and hits without gradients.
    pub fn evaluate(&mut self, model: &Model, batch: &PackedBatch<'_>) -> Result<LossSums, SessionError> {
        self.run(model, batch, None, &mut |_, _| {})
    }

    /// The same, showing the hidden rows on the way.
    pub fn observe(
        &mut self,
        model: &Model,
        batch: &PackedBatch<'_>,
        watch: &mut Observer<'_>,
    ) -> Result<LossSums, SessionError> {
        self.run(model, batch, None, watch)
    }

    fn run(
        &mut self,
        model: &Model,
        batch: &PackedBatch<'_>,
        backward: Option<Backward>,
        watch: &mut Observer<'_>,
    ) -> Result<LossSums, SessionError> {
        in_pool(|| self.run_in_pool(model, batch, backward, watch))
    }

    fn run_in_pool(
        &mut self,
        model: &Model,
        batch: &PackedBatch<'_>,
        backward: Option<Backward>,
        watch: &mut Observer<'_>,
    ) -> Result<LossSums, SessionError> {
        let prepared = Prepared::new(model.config(), batch)?;
        self.check(batch, &prepared)?;
        let step = Step {
            model,
            slots: &self.slots,
            clock: Clock::of(model.config()),
            training: model.training(),
            prepared: &prepared,
            segments: batch.segments,
            rows: batch.ids.len(),
            dropout: backward.and_then(|backward| dropout(model, backward.noise)),
        };
        let arena = &mut self.arena;
        vision::forward(&step, arena, batch.patches, watch);
        text::forward(&step, arena, batch, watch)?;
        let gradients = backward.map(|backward| (&mut self.gradients, backward.scale));
        let totals = text::head(&step, arena, gradients, watch)?;
        if backward.is_some() {
            text::backward(&step, arena, batch, &mut self.gradients)?;
            if step.training.through_vision {
                vision::backward(&step, arena, &mut self.gradients);
            }
        }
        arena.reach(step.clock.end() + 1);
        Ok(LossSums { loss: totals.loss, tokens: prepared.targets.len(), correct: totals.correct })
    }

    fn check(&self, batch: &PackedBatch<'_>, prepared: &Prepared) -> Result<(), BatchError> {
        let Shapes { tokens, patches, labels } = self.shapes;
        let counts = [
            ("tokens", tokens, batch.ids.len()),
            ("patches", patches, prepared.patches()),
            ("labels", labels, prepared.targets.len()),
        ];
        match counts.into_iter().find(|(_, limit, found)| found > limit) {
            None => Ok(()),
            Some((what, limit, found)) => Err(BatchError::TooLarge { what, limit, found }),
        }
    }

    /// Sets all gradients to zero.
    pub fn clear_gradients(&mut self) {
        self.gradients.values.fill(0.0);
    }

    /// The gradients of all trained tensors, one after another in the order of [`Session::visit`]. Whoever puts other
    /// values in their place leaves at least as many.
    pub fn gradients_mut(&mut self) -> &mut Vec<f32> {
        &mut self.gradients.values
    }

    /// Shows every trained tensor with its gradient, always in the same order.
    pub fn visit(&self, model: &mut Model, visit: &mut dyn FnMut(TrainableTensor<'_>)) {
        model.visit(&self.gradients, visit);
    }

    /// What the arena holds now, which is nothing between steps, and what it held at the fullest moment of
    /// the last one.
    pub fn usage(&self) -> Usage {
        self.arena.usage()
    }
}

fn dropout(model: &Model, noise: u64) -> Option<Mask> {
    let probability = model.adapter()?.settings.dropout;
    (probability > 0.0).then(|| Mask::new(noise, probability))
}

/// The layout with as few recomputed blocks as `recompute` allows.
pub(super) fn choose(
    config: &ModelConfig,
    training: Training,
    shapes: Shapes,
    recompute: Recompute,
) -> Result<Planned, SessionError> {
    let visited = training.visited(config);
    let visited = visited.vision + visited.text;
    let with = |kept| plan(config, shapes, training, kept);
    let budget = match recompute {
        Recompute::Never => return Ok(with(visited)),
        Recompute::Always => return Ok(with(0)),
        Recompute::Keep(blocks) => return Ok(with(blocks)),
        Recompute::Within(budget) => budget,
    };
    let smallest = with(0);
    if smallest.layout.bytes() > budget {
        return Err(SessionError::Budget { needed: smallest.layout.bytes(), budget });
    }
    // More kept blocks never need less memory, so the most that fit are found by halving.
    let (mut fits, mut beyond) = (0, visited + 1);
    let mut best = smallest;
    while fits + 1 < beyond {
        let middle = fits.midpoint(beyond);
        let planned = with(middle);
        match planned.layout.bytes() <= budget {
            true => (fits, best) = (middle, planned),
            false => beyond = middle,
        }
    }
    Ok(best)
}
