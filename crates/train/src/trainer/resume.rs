//! Continues a run from a checkpoint.
//!
//! Takes a checkpoint whose sums were checked and brings a trainer to where it was written. Tensors that do
//! not match are refused by name, and so is a checkpoint of other rows: a place in one dataset means nothing
//! in another.

use super::{
    BatchSource, BoxError, Learner, LogEntry, TRAINER_STATE, TrainError, Trainer, TrainerSettings,
    TrainerState,
    progress::{PROGRESS, Progress},
};
use crate::checkpoint::{Checkpoint, CheckpointError};
use std::path::Path;

impl<L: Learner, S: BatchSource<Batch = L::Batch>> Trainer<'_, '_, L, S> {
    /// Continues from a checkpoint whose sums were checked.
    pub fn resume(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        let dir = &checkpoint.path;
        let contents = |error: BoxError| CheckpointError::Contents(error);
        self.progress = read_json(&dir.join(PROGRESS))?;
        self.progress.position = self.progress.position.normalised(self.data.rows());
        self.learner.load(dir, self.progress.optimizer_step).map_err(contents)?;
        check_same_rows(&self.progress, &self.settings, dir)?;
        let saved: TrainerState = read_json(&dir.join(TRAINER_STATE))?;
        // What was reached comes from the checkpoint, what is planned from this run's settings.
        self.state.global_step = saved.global_step;
        self.state.epoch = saved.epoch;
        self.state.num_input_tokens_seen = saved.num_input_tokens_seen;
        self.state.log_history = saved.log_history;
        let evaluated = |entry: &&LogEntry| entry.values.contains_key("eval_loss");
        self.evaluated_at = self.state.log_history.iter().rfind(evaluated).map(|entry| entry.step);
        self.state.best_metric = saved.best_metric;
        self.state.best_global_step = saved.best_global_step;
        self.state.best_model_checkpoint = saved.best_model_checkpoint;
        self.saved = Some(checkpoint.clone());
        for callback in &mut self.callbacks {
            let kept = callback.keep().and_then(|(name, _)| saved.stateful_callbacks.get(name));
            if let Some(kept) = kept {
                callback.restore(kept).map_err(contents)?;
            }
        }
        Ok(())
    }
}

/// A place in the data means the same only with the same rows in the same order.
pub(super) fn check_same_rows(
    progress: &Progress,
    settings: &TrainerSettings,
    dir: &Path,
) -> Result<(), CheckpointError> {
    let differs = if progress.seed != settings.seed {
        format!(
            "was made with seed {}, this run has {}: the order of rows would differ",
            progress.seed, settings.seed
        )
    } else if progress.data_fingerprint != settings.data_fingerprint {
        "was made with other rows: the dataset has changed since. Go on with the rows it was made with, or choose another \
         output folder to begin anew"
            .to_owned()
    } else {
        return Ok(());
    };
    Err(CheckpointError::AnotherRun { path: dir.to_owned(), differs })
}

/// A small file of a checkpoint.
pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, CheckpointError> {
    let text = std::fs::read(path).map_err(CheckpointError::io(path))?;
    serde_json::from_slice(&text)
        .map_err(|error| CheckpointError::Damaged { path: path.to_owned(), reason: error.to_string() })
}
