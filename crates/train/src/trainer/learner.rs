//! What takes the steps of a run: the native engine, or an engine in another process.
//!
//! A learner is given the batches of a step one by one and then moves the weights once. It keeps what a
//! checkpoint must hold of it: weights and the optimizer's state. When to log, evaluate, save and end is the
//! trainer's business.

use super::{BatchSums, BoxError};
use std::{path::Path, time::Duration};

/// How a step is to move the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Move {
    /// Learning rate.
    pub rate: f64,
    /// Label tokens of all batches of the step: the loss is their mean.
    pub label_tokens: u64,
    /// Sum of the token losses, where it is known yet.
    pub loss: f64,
}

/// A step that was taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moved {
    /// Sum of the token losses.
    pub loss: f64,
    /// Norm of its gradient before clipping.
    pub gradient_norm: f64,
}

/// Why a step was not taken.
#[derive(Debug)]
pub enum NotMoved {
    /// A loss or gradient is infinite or not a number.
    Diverged {
        /// `loss` or `gradient norm`.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// The engine failed.
    Failed(BoxError),
}

impl Moved {
    /// Refuses a step whose loss or gradient is not finite.
    pub fn check(self) -> Result<Self, NotMoved> {
        let figures = [("loss", self.loss), ("gradient norm", self.gradient_norm)];
        match figures.into_iter().find(|(_, value)| !value.is_finite()) {
            Some((what, value)) => Err(NotMoved::Diverged { what, value }),
            None => Ok(self),
        }
    }
}

/// An engine that can be trained.
pub trait Learner {
    /// What it is fed.
    type Batch;

    /// Begins a step: nothing of the one before is left.
    fn begin_step(&mut self);

    /// Adds a batch to the step. `noise` seeds dropout: equal seeds give equal results. The loss in the sums
    /// need not be known yet; [`Learner::end_step`] gives it.
    fn add(&mut self, batch: &Self::Batch, noise: u64) -> Result<BatchSums, BoxError>;

    /// Ends a round, in which each of the first `contributions` processes added a batch: its gradients belong to the step.
    fn end_round(&mut self, contributions: usize) -> Result<(), BoxError>;

    /// Ends a step that comes to nothing, because all its rows turned out bad: the weights stay where they are.
    fn drop_step(&mut self) -> Result<(), BoxError> {
        Ok(())
    }

    /// How long this process waited for the gradients of others in this step.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    /// Moves the weights by the batches of the step. A step that diverged leaves nothing worth saving.
    fn end_step(&mut self, how: Move) -> Result<Moved, NotMoved>;

    /// Loss and hits without gradients.
    fn evaluate(&mut self, batch: &Self::Batch) -> Result<BatchSums, BoxError>;

    /// The first trained tensor, or part of the optimizer's state, that holds values that are not finite.
    fn first_not_finite(&mut self) -> Result<Option<String>, BoxError>;

    /// Changes when a trained value does, if only by a bit.
    fn fingerprint(&mut self) -> u64;

    /// Writes weights and the optimizer's state into a folder.
    fn save(&mut self, dir: &Path) -> Result<(), BoxError>;

    /// Reads what [`Learner::save`] wrote after the optimizer had taken so many steps.
    fn load(&mut self, dir: &Path, optimizer_step: u64) -> Result<(), BoxError>;

    /// Steps that the optimizer has taken, by its own count.
    fn optimizer_step(&self) -> u64;
}
