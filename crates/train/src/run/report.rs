//! How a run ended, for whoever started it.
//!
//! Takes the outcome of the trainer and gives the report that [`super::train`] returns, and the event that
//! says the same.

use super::RunError;
use crate::{
    announce::LastSeen,
    checkpoint::Checkpoint,
    event,
    monitor::MemorySummary,
    trainer::{End, Outcome, StopReason, TrainerState},
};
use event::EndReason;
use std::path::{Path, PathBuf};

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct RunReport {
    /// Why it ended; never [`EndReason::Failed`], which is an error.
    pub reason: EndReason,
    /// The limit that was near, where that was the reason.
    pub message: Option<String>,
    /// Where its results are, or what it goes on from.
    pub output_dir: PathBuf,
    /// The last checkpoint; none where it was cancelled before its first.
    pub checkpoint: Option<PathBuf>,
    /// Steps, epochs, the best evaluation and the history of all numbers.
    pub state: TrainerState,
    /// The verdict on its memory, where it trained.
    pub memory: Option<MemorySummary>,
}

impl RunReport {
    /// A run that trained.
    pub(super) fn of(output: &Path, outcome: Outcome, memory: MemorySummary) -> Self {
        let (reason, message) = match outcome.stopped {
            None => (EndReason::Finished, None),
            Some(StopReason::EarlyStopping) => (EndReason::EarlyStopping, None),
            Some(StopReason::MemoryLimit(reason)) => (EndReason::MemoryLimit, Some(reason)),
            Some(StopReason::Cancelled) => (EndReason::Cancelled, None),
        };
        Self {
            reason,
            message,
            output_dir: output.to_owned(),
            checkpoint: Some(outcome.checkpoint.path),
            state: outcome.state,
            memory: Some(memory),
        }
    }

    /// A run that had nothing left to do.
    pub(super) fn already(end: End, output: &Path, checkpoint: &Checkpoint) -> Result<Self, RunError> {
        let path = &checkpoint.path;
        let reason = match end {
            End::Steps => EndReason::AlreadyFinished,
            End::Patience => EndReason::AlreadyStopped,
        };
        let state = TrainerState::load(path).map_err(RunError::io(path))?;
        Ok(Self { state, ..Self::without_training(reason, output, Some(path.clone())) })
    }

    /// A run that was cancelled before its first step.
    pub(super) fn cancelled_early(output: &Path, from: Option<Checkpoint>) -> Result<Self, RunError> {
        let state = |from: &Checkpoint| TrainerState::load(&from.path).map_err(RunError::io(&from.path));
        let state = from.as_ref().map(state).transpose()?.unwrap_or_default();
        let checkpoint = from.map(|checkpoint| checkpoint.path);
        Ok(Self { state, ..Self::without_training(EndReason::Cancelled, output, checkpoint) })
    }

    fn without_training(reason: EndReason, output: &Path, checkpoint: Option<PathBuf>) -> Self {
        let state = TrainerState::default();
        Self { reason, message: None, output_dir: output.to_owned(), checkpoint, state, memory: None }
    }
}

/// The last event of a run that came as far as `last`.
pub(super) fn end(result: &Result<RunReport, RunError>, last: LastSeen) -> event::End {
    match result {
        Ok(report) => event::End {
            reason: report.reason,
            message: report.message.clone(),
            step: report.state.global_step,
            checkpoint: report.checkpoint.clone(),
            best_step: report.state.best_global_step,
            memory: report.memory.as_ref().map(|memory| memory.verdict.clone()),
        },
        Err(error) => event::End {
            reason: EndReason::Failed,
            message: Some(error.to_string()),
            step: last.step,
            checkpoint: last.checkpoint,
            best_step: last.best_step,
            memory: None,
        },
    }
}
