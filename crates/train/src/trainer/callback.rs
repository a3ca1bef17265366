//! The parts of a run that act on its steps: the memory monitor, the loggers, early stopping, the observer's
//! teller.
//!
//! A callback is told what happens in order. It may ask for a checkpoint or for the end, and may add numbers
//! to a log entry before others see it. Its error ends the run: a logger that may fail without harm handles
//! that itself.

use crate::event::Note;

use super::{
    model::{BatchSums, BoxError},
    state::{LogEntry, TrainerState},
};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Why a run ended before its last step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// Evaluations did not improve within the user's patience.
    EarlyStopping,
    /// A memory limit is near; the message says which and how near.
    MemoryLimit(String),
    /// Somebody asked for it.
    Cancelled,
}

/// What callbacks ask of the trainer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Write a checkpoint after this step.
    pub save: bool,
    /// End the run after this step; a checkpoint is written first.
    pub stop: Option<StopReason>,
}

impl Control {
    /// Whether the run ends now, and leaves what is still due to the run that resumes it.
    pub fn must_end(&self) -> bool {
        matches!(self.stop, Some(StopReason::Cancelled | StopReason::MemoryLimit(_)))
    }
}

/// One optimizer step as it went.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepFacts {
    /// Sums over its batches.
    pub sums: BatchSums,
    /// Norm of its gradient before clipping.
    pub gradient_norm: f64,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Seconds it took, waiting for data included.
    pub seconds: f64,
    /// Seconds of these spent waiting for data.
    pub data_seconds: f64,
    /// What it was like for each of several processes.
    pub group: Option<GroupFacts>,
}

/// A step of several processes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupFacts {
    /// Seconds that this process waited for others.
    pub waited_seconds: f64,
    /// The process that the others waited for: the one that computed for the longest.
    pub slowest: usize,
    /// By how many seconds it took longer than the fastest.
    pub apart_seconds: f64,
}

/// Follows a run.
#[allow(unused_variables)]
pub trait Callback {
    /// Before anything is written: a run that is refused here leaves nothing behind.
    fn prepare(&mut self, state: &TrainerState) -> Result<(), BoxError> {
        Ok(())
    }

    /// Before the first step.
    fn on_start(&mut self, state: &TrainerState, control: &mut Control) -> Result<(), BoxError> {
        Ok(())
    }

    /// Before each optimizer step.
    fn on_step_begin(&mut self, state: &TrainerState) -> Result<(), BoxError> {
        Ok(())
    }

    /// After each optimizer step.
    fn on_step_end(
        &mut self,
        state: &TrainerState,
        step: &StepFacts,
        control: &mut Control,
    ) -> Result<(), BoxError> {
        Ok(())
    }

    /// After each batch of an evaluation: a callback that must end the run at once asks for it here too.
    fn on_evaluation_batch(&mut self, control: &mut Control) -> Result<(), BoxError> {
        Ok(())
    }

    /// After an evaluation; `improved` says whether it was the best so far.
    fn on_evaluate(
        &mut self,
        state: &TrainerState,
        improved: bool,
        control: &mut Control,
    ) -> Result<(), BoxError> {
        Ok(())
    }

    /// Before a log entry becomes part of the history.
    fn on_log(&mut self, state: &TrainerState, entry: &mut LogEntry) -> Result<(), BoxError> {
        Ok(())
    }

    /// After a checkpoint was written.
    fn on_save(&mut self, state: &TrainerState, checkpoint: &Path) -> Result<(), BoxError> {
        Ok(())
    }

    /// Something went wrong that the run can do without.
    fn on_note(&mut self, note: &Note) -> Result<(), BoxError> {
        Ok(())
    }

    /// After the last step.
    fn on_end(&mut self, state: &TrainerState, stopped: Option<&StopReason>) -> Result<(), BoxError> {
        Ok(())
    }

    /// What must survive a resume, under a name of its own.
    fn keep(&self) -> Option<(&'static str, serde_json::Value)> {
        None
    }

    /// Takes back what [`Callback::keep`] gave.
    fn restore(&mut self, kept: &serde_json::Value) -> Result<(), BoxError> {
        Ok(())
    }
}

/// Under this name a checkpoint keeps the patience that was spent.
pub(super) const EARLY_STOPPING: &str = "EarlyStopping";

/// Ends a run after a number of evaluations without a better one.
pub struct EarlyStopping {
    patience: u64,
    spent: u64,
}

impl EarlyStopping {
    /// Waits for this many evaluations.
    pub fn new(patience: u64) -> Self {
        Self { patience, spent: 0 }
    }
}

impl Callback for EarlyStopping {
    /// A run that was killed before it could stop, or is started again after it stopped, ends at once.
    fn on_start(&mut self, _: &TrainerState, control: &mut Control) -> Result<(), BoxError> {
        if self.spent > 0 && self.spent >= self.patience {
            control.stop = Some(StopReason::EarlyStopping);
        }
        Ok(())
    }

    fn on_evaluate(
        &mut self,
        _: &TrainerState,
        improved: bool,
        control: &mut Control,
    ) -> Result<(), BoxError> {
        self.spent = if improved { 0 } else { self.spent + 1 };
        if self.spent >= self.patience {
            control.stop = Some(StopReason::EarlyStopping);
        }
        Ok(())
    }

    fn keep(&self) -> Option<(&'static str, serde_json::Value)> {
        Some((EARLY_STOPPING, self.spent.into()))
    }

    fn restore(&mut self, kept: &serde_json::Value) -> Result<(), BoxError> {
        self.spent = kept.as_u64().unwrap_or(0);
        Ok(())
    }
}
