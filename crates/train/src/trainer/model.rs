//! What the trainer needs of a model and of its data.
//!
//! A model takes batches and gives sums of losses; it keeps gradients until they are cleared. Gradients are
//! those of the SUM of the token losses: the trainer divides by the label tokens of the whole optimizer step,
//! so that how rows are cut into batches does not change what is learned.

use garden_data::Position;
use garden_model::TrainableTensor;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Any error of a part that the trainer only carries upwards.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Sums over the label tokens of a batch, and what the batch was made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchSums {
    /// Sum of the token losses.
    pub loss: f64,
    /// Tokens with a label.
    pub label_tokens: u64,
    /// Label tokens that the model would have chosen; counted in evaluation only.
    pub correct: u64,
    /// All tokens.
    pub tokens: u64,
    /// Images.
    pub images: u64,
    /// Dataset rows.
    pub rows: u64,
}

impl std::ops::AddAssign for BatchSums {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.label_tokens += other.label_tokens;
        self.correct += other.correct;
        self.tokens += other.tokens;
        self.images += other.images;
        self.rows += other.rows;
    }
}

impl BatchSums {
    /// Mean loss of a label token; zero where there is none.
    pub fn mean_loss(&self) -> f64 {
        if self.label_tokens == 0 { 0.0 } else { self.loss / self.label_tokens as f64 }
    }

    /// Share of the label tokens that the model would have chosen.
    pub fn accuracy(&self) -> f64 {
        if self.label_tokens == 0 { 0.0 } else { self.correct as f64 / self.label_tokens as f64 }
    }
}

/// A model that the trainer can train.
pub trait TrainableModel {
    /// What it is fed.
    type Batch;

    /// Adds the gradients of the batch's summed loss. `noise` seeds dropout: equal seeds give equal results.
    fn forward_backward(&mut self, batch: &Self::Batch, noise: u64) -> Result<BatchSums, BoxError>;

    /// Loss and hits without gradients.
    fn evaluate(&mut self, batch: &Self::Batch) -> Result<BatchSums, BoxError>;

    /// The gradients of all trained tensors, one after another in the order of [`TrainableModel::visit`]. Whoever puts other
    /// values in their place leaves at least as many.
    fn gradients(&mut self) -> &mut Vec<f32>;

    /// Shows every trainable tensor, always in the same order.
    fn visit(&mut self, visit: &mut dyn FnMut(TrainableTensor<'_>));

    /// Writes what is trained into a folder.
    fn save(&mut self, dir: &Path) -> Result<(), BoxError>;

    /// Reads what [`TrainableModel::save`] wrote.
    fn load(&mut self, dir: &Path) -> Result<(), BoxError>;
}

/// A batch, whoever of several processes has it.
#[derive(Debug)]
pub struct NextBatch<B> {
    /// The batch, where this process has it.
    pub batch: Option<B>,
    /// The position after it: after the epoch's last batch, the first row of the next epoch.
    pub end: Position,
}

/// Batches in an order that depends on nothing but the seed.
pub trait BatchSource {
    /// What it gives.
    type Batch;

    /// Rows of an epoch.
    fn rows(&self) -> u64;

    /// Rows of an epoch that come in batches; the others are dropped.
    fn usable_rows(&self) -> u64 {
        self.rows()
    }

    /// Rows of a full batch.
    fn batch_size(&self) -> u64;

    /// Goes to a position: the batches that follow are the rest of its epoch.
    fn seek(&mut self, position: Position) -> Result<(), BoxError>;

    /// How many batches of the epoch that was sought are left, but at most as many as asked for.
    fn ahead(&mut self, most: u64) -> Result<u64, BoxError>;

    /// The next batch of the epoch that was sought; nothing when no batch of that epoch is left.
    fn next(&mut self) -> Result<Option<NextBatch<Self::Batch>>, BoxError>;

    /// Rows of this epoch that turned out bad in this process.
    fn bad_rows(&self) -> u64 {
        0
    }

    /// Fails if so many rows of an epoch may not be bad: those of all processes.
    fn check_bad_rows(&self, _bad: u64) -> Result<(), BoxError> {
        Ok(())
    }

    /// Frees what is held for the next batches, since none will be asked for in a while.
    fn pause(&mut self) {}

    /// Takes a used batch back, to use its buffers again.
    fn recycle(&mut self, batch: Self::Batch);
}
