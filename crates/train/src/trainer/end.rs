//! Decides whether a checkpoint is the end of its run.

use super::{
    TRAINER_STATE, TrainerSettings, TrainerState, callback,
    progress::{PROGRESS, Progress},
    resume::{check_same_rows, read_json},
};
use crate::checkpoint::{Checkpoint, CheckpointError};
use serde::{Deserialize, Serialize};

/// Why a run has nothing left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// All steps were taken.
    Steps,
    /// As many evaluations as early stopping waits for brought nothing better.
    Patience,
}

/// Why a run of `max_steps` steps with these settings and this patience has nothing left to do after a
/// checkpoint; nothing if it has. An error if the checkpoint was made with other rows.
pub fn end_of(
    checkpoint: &Checkpoint,
    settings: &TrainerSettings,
    max_steps: u64,
    patience: Option<u64>,
) -> Result<Option<End>, CheckpointError> {
    let progress: Progress = read_json(&checkpoint.path.join(PROGRESS))?;
    check_same_rows(&progress, settings, &checkpoint.path)?;
    let state: TrainerState = read_json(&checkpoint.path.join(TRAINER_STATE))?;
    let spent = state.stateful_callbacks.get(callback::EARLY_STOPPING).and_then(|spent| spent.as_u64());
    Ok(if settings.is_done(state.global_step, max_steps, progress.position) {
        Some(End::Steps)
    } else if patience.zip(spent).is_some_and(|(patience, spent)| spent >= patience) {
        Some(End::Patience)
    } else {
        None
    })
}
