//! What a training run will take, before anything runs.
//!
//! Takes a model's sizes, how its weights are held, what is trained and the longest batch, and gives every
//! part in bytes. The activations are those of the arena's own layout, so the plan and the run cannot
//! disagree about them.

use super::session::{Recompute, SessionError, choose};
use super::slots::Shapes;
use super::training::Training;
use crate::config::ModelConfig;
use crate::held::Held;
use crate::lora::{LoraError, LoraSettings};
use crate::parameters::{Linear, MatrixShape, Parameter, parameters};
use garden_engine::Purpose;

/// Shapes of the tensors that a run trains, in their order: those of an adapter, or all weights.
pub fn trained_shapes(
    config: &ModelConfig,
    lora: Option<&LoraSettings>,
) -> Result<Vec<MatrixShape>, LoraError> {
    Ok(match lora {
        Some(lora) => {
            let pair = |linear: &Linear| lora.pair_shapes(linear.inputs, linear.outputs);
            lora.targets(config)?.iter().flat_map(pair).collect()
        }
        None => parameters(config).iter().map(Parameter::matrix).collect(),
    })
}

/// How a run holds and trains its model.
#[derive(Debug, Clone)]
pub struct PlanRequest<'a> {
    /// How weights are held.
    pub held: Held,
    /// The adapter; `None` trains the weights themselves.
    pub lora: Option<&'a LoraSettings>,
    /// Bytes of the optimizer's state for the tensors that [`trained_shapes`] gives.
    pub optimizer: usize,
    /// Bytes that adding up the gradients of a step's batches takes, besides those of one batch.
    pub gradient_sum: usize,
    /// The longest batch.
    pub shapes: Shapes,
    /// Batches at work and prepared ahead, and images on their way into them, in bytes.
    pub batches: usize,
    /// What the process takes before any weight, in bytes.
    pub process: usize,
}

/// Every part of a run's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The process itself.
    pub process: usize,
    /// The model's weights as they are held.
    pub weights: usize,
    /// The adapter's values.
    pub adapters: usize,
    /// Gradients of what is trained, and their sum.
    pub gradients: usize,
    /// State of the optimizer.
    pub optimizer: usize,
    /// Kept from forward to backward.
    pub activations: usize,
    /// Computed again in the backward.
    pub recompute: usize,
    /// The rest of the arena: gradients of activations, packed panels, logits.
    pub work: usize,
    /// Batches at work and prepared ahead.
    pub batches: usize,
    /// Blocks that backward visits.
    pub blocks: usize,
    /// Those of them that are computed again.
    pub recomputed_blocks: usize,
}

impl MemoryPlan {
    /// The plan of a run that recomputes as `recompute` says; nothing is read but the configuration.
    pub fn new(
        config: &ModelConfig,
        request: &PlanRequest<'_>,
        recompute: Recompute,
    ) -> Result<Self, PlanError> {
        let without_arena = Self::without_arena(config, request)?;
        without_arena.with_arena(config, request, recompute)
    }

    /// The plan of a run that should fit `budget` as a whole: as few blocks are recomputed as that needs, all
    /// of them where even that is not enough.
    pub fn within(config: &ModelConfig, request: &PlanRequest<'_>, budget: usize) -> Result<Self, PlanError> {
        let without_arena = Self::without_arena(config, request)?;
        let left = budget.saturating_sub(without_arena.total());
        match without_arena.with_arena(config, request, Recompute::Within(left)) {
            Err(PlanError::Session(SessionError::Budget { .. })) => {
                without_arena.with_arena(config, request, Recompute::Always)
            }
            other => other,
        }
    }

    /// Itself, unless it exceeds the budget.
    pub fn keeping(self, budget: Option<usize>) -> Result<Self, PlanError> {
        let (needed, recomputed, blocks) = (self.total(), self.recomputed_blocks, self.blocks);
        match budget {
            Some(budget) if needed > budget => Err(PlanError::Budget { needed, budget, recomputed, blocks }),
            _ => Ok(self),
        }
    }

    /// What a session must be told to do as this plan says.
    pub fn session_recompute(&self) -> Recompute {
        Recompute::Keep(self.blocks - self.recomputed_blocks)
    }

    fn without_arena(config: &ModelConfig, request: &PlanRequest<'_>) -> Result<Self, PlanError> {
        let trained = trained_shapes(config, request.lora)?;
        let values: usize = trained.into_iter().map(MatrixShape::elements).sum();
        Ok(Self {
            process: request.process,
            weights: request.held.bytes(),
            adapters: if request.lora.is_some() { 4 * values } else { 0 },
            gradients: 4 * values + request.gradient_sum,
            optimizer: request.optimizer,
            activations: 0,
            recompute: 0,
            work: 0,
            batches: request.batches,
            blocks: 0,
            recomputed_blocks: 0,
        })
    }

    fn with_arena(
        self,
        config: &ModelConfig,
        request: &PlanRequest<'_>,
        recompute: Recompute,
    ) -> Result<Self, PlanError> {
        let training = training(config, request)?;
        let planned = choose(config, training, request.shapes, recompute)?;
        let (layout, slots) = (planned.layout, planned.slots);
        let activations = layout.largest(Purpose::Activation);
        // The two are not always largest at the same moment; what is left for the rest must not go below
        // nothing.
        let recompute = layout.largest(Purpose::Recompute).min(layout.bytes() - activations);
        let blocks = || slots.vision.blocks.iter().chain(&slots.text.blocks);
        Ok(Self {
            activations,
            recompute,
            work: layout.bytes() - activations - recompute,
            blocks: blocks().filter(|block| block.backward.is_some()).count(),
            recomputed_blocks: blocks().filter(|block| block.recompute).count(),
            ..self
        })
    }

    /// All parts together.
    pub fn total(&self) -> usize {
        self.parts().into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of the arena.
    pub fn arena(&self) -> usize {
        self.activations + self.recompute + self.work
    }

    /// The parts by name, in the order in which a run takes them.
    pub fn parts(&self) -> [(&'static str, usize); 9] {
        [
            ("process", self.process),
            ("weights", self.weights),
            ("adapters", self.adapters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("recompute", self.recompute),
            ("work", self.work),
            ("batches", self.batches),
        ]
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The adapter cannot be made.
    #[error(transparent)]
    Lora(#[from] LoraError),
    /// The arena cannot be laid out.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The budget is too small.
    #[error(
        "the run needs {needed} bytes with {recomputed} of {blocks} blocks recomputed, the budget is {budget}; use a \
         smaller batch, shorter sequences or fewer bits{}",
        if recomputed < blocks { ", or let more be recomputed" } else { "" }
    )]
    Budget {
        /// Bytes that are planned.
        needed: usize,
        /// Bytes allowed.
        budget: usize,
        /// Blocks that are computed again.
        recomputed: usize,
        /// Blocks that could be.
        blocks: usize,
    },
}

fn training(config: &ModelConfig, request: &PlanRequest<'_>) -> Result<Training, LoraError> {
    let divided = request.held.divided();
    let Some(lora) = request.lora else { return Ok(Training::full(divided)) };
    let targets = lora.targets(config)?;
    Ok(Training::pairs(targets.iter().map(|linear| &*linear.module), Some(lora), divided))
}
