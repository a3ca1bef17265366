//! What a training run will take, before anything runs.
//!
//! In come a model's sizes, how its weights are held, what is trained and the longest batch; out comes every part in bytes.
//! The activations are those of the arena's own layout, so the plan and the run cannot disagree about them.

use super::session::{Recompute, SessionError, choose};
use super::slots::{Shapes, Training};
use crate::config::ModelConfig;
use crate::lora::{LoraError, LoraSettings};
use crate::parameters::{Part, parameters};
use garden_engine::arena::Purpose;
use garden_engine::{StoredAs, stored_bytes};

/// What a process takes before any weight: code, threads, allocator, tokenizer. An estimate.
const PROCESS: usize = 20 << 20;
/// Batches in memory at once: the one at work and those fetched ahead.
const BATCHES: usize = 3;

/// How a run holds and trains its model.
#[derive(Debug, Clone)]
pub struct PlanRequest<'a> {
    /// How attention and MLP matrices are held.
    pub matrices: StoredAs,
    /// How the other matrices are held: embedding, merger, head.
    pub others: StoredAs,
    /// The adapter; `None` trains the weights themselves.
    pub lora: Option<&'a LoraSettings>,
    /// Bytes of optimizer state per trained value: 8 for AdamW in f32, 2 in 8 bits.
    pub optimizer_bytes: usize,
    /// The longest batch.
    pub shapes: Shapes,
    /// How much is recomputed.
    pub recompute: Recompute,
}

/// Every part of a run's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The model's weights as they are held.
    pub weights: usize,
    /// The adapter's values.
    pub adapters: usize,
    /// Gradients of what is trained.
    pub gradients: usize,
    /// State of the optimizer.
    pub optimizer: usize,
    /// Kept from forward to backward.
    pub activations: usize,
    /// Everything else of the arena: recomputed blocks, gradients of activations, packed panels, logits.
    pub work: usize,
    /// Batches at work and fetched ahead.
    pub batches: usize,
    /// The process itself.
    pub process: usize,
}

impl MemoryPlan {
    /// The plan of a run; nothing is read but the configuration.
    pub fn new(config: &ModelConfig, request: &PlanRequest<'_>) -> Result<Self, PlanError> {
        let list = parameters(config);
        let weights = list.iter().map(|parameter| {
            let (rows, cols) = (parameter.shape[0], parameter.shape[1..].iter().product());
            match (parameter.shape.len(), parameter.quantizable) {
                (1, _) => 4 * rows,
                (_, true) => stored_bytes(rows, cols, request.matrices),
                (_, false) => stored_bytes(rows, cols, request.others),
            }
        });
        let trained = match request.lora {
            Some(lora) => lora.parameters(config)?,
            None => list.iter().map(|parameter| parameter.elements()).sum(),
        };
        let training = training(config, request.lora)?;
        let layout = choose(config, training, request.shapes, request.recompute)?.layout;
        let activations = layout.largest(Purpose::Activation);
        let Shapes { tokens, patches, .. } = request.shapes;
        Ok(Self {
            weights: weights.sum(),
            adapters: if request.lora.is_some() { 4 * trained } else { 0 },
            gradients: 4 * trained,
            optimizer: request.optimizer_bytes * trained,
            activations,
            work: layout.bytes() - activations,
            batches: BATCHES * (8 * tokens + patches * super::batch::compact_values(config)),
            process: PROCESS,
        })
    }

    /// All parts together.
    pub fn total(&self) -> usize {
        self.parts().into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// The parts by name, in the order in which a run takes them.
    pub fn parts(&self) -> [(&'static str, usize); 8] {
        [
            ("process", self.process),
            ("weights", self.weights),
            ("adapters", self.adapters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("work and recompute", self.work),
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
    /// The budget is too small.
    #[error(transparent)]
    Session(#[from] SessionError),
}

fn training(config: &ModelConfig, lora: Option<&LoraSettings>) -> Result<Training, LoraError> {
    let Some(lora) = lora else {
        return Ok(Training { rank: [0; 2], full: true, through_vision: true, dropout: false });
    };
    let targets = lora.targets(config)?;
    let rank = [Part::Vision, Part::Language]
        .map(|part| if targets.iter().any(|linear| linear.part == part) { lora.rank } else { 0 });
    Ok(Training { rank, full: false, through_vision: rank[0] > 0, dropout: lora.dropout > 0.0 })
}
