//! Writes a checkpoint of a run.
//!
//! A checkpoint holds the learner's part (weights and the optimizer's state), `trainer_state.json` and
//! `progress.json`.
//! Values that are not finite are refused: a run resumed from them would give nothing but NaN.

use super::{BatchSource, BoxError, Learner, TrainError, Trainer, progress::PROGRESS};
use crate::{
    checkpoint::Checkpoint,
    event::{Note, Topic},
};
use std::path::Path;

impl<L: Learner, S: BatchSource<Batch = L::Batch>> Trainer<'_, '_, L, S> {
    /// Writes a checkpoint of this step and removes those beyond the limit.
    pub(super) fn save(&mut self) -> Result<Checkpoint, TrainError> {
        let step = self.state.global_step;
        self.check_finite()?;
        self.check_equal()?;
        self.progress.seed = self.settings.seed;
        self.progress.data_fingerprint = self.settings.data_fingerprint;
        self.progress.optimizer_step = self.learner.optimizer_step();
        let kept = self.callbacks.iter().filter_map(|callback| callback.keep());
        self.state.stateful_callbacks = kept.map(|(name, value)| (name.to_owned(), value)).collect();
        let (store, group) = (self.checkpoints.clone(), self.group.clone());
        let checkpoint = group.by_first(
            || Ok::<_, TrainError>(store.write(step, |dir| self.fill(dir))?),
            || Checkpoint { step, path: store.path_of(step) },
        )?;
        if group.is_first() {
            self.prune()?;
        }
        self.tell(|callback, state| callback.on_save(state, &checkpoint.path))?;
        self.saved = Some(checkpoint.clone());
        Ok(checkpoint)
    }

    /// Removes checkpoints beyond the limit.
    fn prune(&mut self) -> Result<(), TrainError> {
        let Some(limit) = self.settings.save_limit else { return Ok(()) };
        let pruned = self.checkpoints.prune(limit, self.state.best_global_step, self.state.global_step);
        let Err(error) = pruned else { return Ok(()) };
        let text = format!("an old checkpoint could not be removed ({error}); trying again at the next one");
        let note = Note { topic: Topic::Checkpoint, text };
        self.tell(|callback, _| callback.on_note(&note))
    }

    fn fill(&mut self, dir: &Path) -> Result<(), BoxError> {
        self.learner.save(dir)?;
        self.state.save(dir)?;
        garden_files::write(&dir.join(PROGRESS), &serde_json::to_vec_pretty(&self.progress)?)?;
        for (name, contents) in &self.carried {
            garden_files::write(&dir.join(name), contents)?;
        }
        Ok(())
    }

    /// Refuses values and moments that are infinite or not a number.
    fn check_finite(&mut self) -> Result<(), TrainError> {
        let step = self.state.global_step;
        let wrong = self.learner.first_not_finite().map_err(|source| TrainError::Step { step, source })?;
        wrong.map_or(Ok(()), |tensor| Err(TrainError::NotFinite { step, tensor }))
    }

    /// Refuses to go on if another process has other weights: then each would train a model of its own.
    fn check_equal(&mut self) -> Result<(), TrainError> {
        if self.group.size() == 1 {
            return Ok(());
        }
        let marks = self.group.gather(&self.learner.fingerprint())?;
        let step = self.state.global_step;
        let other = marks.iter().position(|mark| *mark != marks[0]);
        other.map_or(Ok(()), |rank| Err(TrainError::Apart { step, rank }))
    }
}
