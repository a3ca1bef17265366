//! What a checkpoint holds of a run, and how the run goes on from it.
//!
//! In comes a trainer between two steps; out comes a folder with the model's part, `optimizer.safetensors`,
//! `trainer_state.json` and `progress.json`, and from it the same trainer again. Tensors that do not match are refused by name.

use super::{BatchSource, Position, StepFacts, TrainError, TrainableModel, Trainer, TrainerState};
use crate::{
    checkpoint::{Checkpoint, CheckpointError},
    optimizer::StateValues,
};
use garden_model::tensor_file::{TensorFile, TensorFileError, TensorSpec, TensorWriter};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

const OPTIMIZER: &str = "optimizer.safetensors";
const PROGRESS: &str = "progress.json";

/// What a run must remember besides the model, the optimizer and the history.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// The next row to use.
    pub position: Position,
    /// Seeds dropout; a resumed run must have the same.
    seed: u64,
    /// The rows that `position` is a place in.
    data_fingerprint: u64,
    /// The optimizer's own count.
    optimizer_step: u64,
    /// Step losses since the last log.
    loss_since_log: f64,
    steps_since_log: u64,
    #[serde(skip)]
    seconds_since_log: f64,
    #[serde(skip)]
    tokens_since_log: u64,
    #[serde(skip)]
    images_since_log: u64,
    gradient_norm: f64,
    learning_rate: f64,
    /// The most label tokens of an evaluation: one on fewer of them cannot be the best.
    #[serde(default)]
    pub evaluated_tokens: Option<u64>,
}

impl Progress {
    pub(super) fn add(&mut self, facts: &StepFacts) {
        self.loss_since_log += facts.sums.mean_loss();
        self.steps_since_log += 1;
        self.seconds_since_log += facts.seconds;
        self.tokens_since_log += facts.sums.tokens;
        self.images_since_log += facts.sums.images;
        self.gradient_norm = facts.gradient_norm;
        self.learning_rate = facts.learning_rate;
    }

    /// The numbers of a log entry over the steps since the last one.
    pub(super) fn take_log(&mut self) -> Option<BTreeMap<String, f64>> {
        if self.steps_since_log == 0 {
            return None;
        }
        let seconds = self.seconds_since_log.max(1e-9);
        let values = BTreeMap::from([
            ("loss".to_owned(), self.loss_since_log / self.steps_since_log as f64),
            ("grad_norm".to_owned(), self.gradient_norm),
            ("learning_rate".to_owned(), self.learning_rate),
            ("tokens_per_second".to_owned(), self.tokens_since_log as f64 / seconds),
            ("images_per_second".to_owned(), self.images_since_log as f64 / seconds),
        ]);
        let kept =
            Self { position: self.position, evaluated_tokens: self.evaluated_tokens, ..Self::default() };
        *self = kept;
        Some(values)
    }
}

impl<M: TrainableModel, S: BatchSource<Batch = M::Batch>> Trainer<'_, '_, M, S> {
    /// Writes a checkpoint of this step and removes those beyond the limit.
    pub(super) fn save(&mut self) -> Result<Checkpoint, TrainError> {
        let step = self.state.global_step;
        self.check_finite()?;
        self.progress.seed = self.settings.seed;
        self.progress.data_fingerprint = self.settings.data_fingerprint;
        self.progress.optimizer_step = self.optimizer.step();
        let kept = self.callbacks.iter().filter_map(|callback| callback.keep());
        self.state.stateful_callbacks = kept.map(|(name, value)| (name.to_owned(), value)).collect();
        let store = self.checkpoints.clone();
        let checkpoint = store.write(step, |dir| self.fill(dir))?;
        if let Some(limit) = self.settings.save_limit {
            let pruned = self.checkpoints.prune(limit, self.state.best_global_step, step);
            if let Err(error) = pruned {
                let note =
                    format!("an old checkpoint could not be removed ({error}); trying again at the next one");
                self.tell(|callback, _| callback.on_note(&note))?;
            }
        }
        self.tell(|callback, state| callback.on_save(state, &checkpoint.path))?;
        self.saved = Some(checkpoint.clone());
        Ok(checkpoint)
    }

    fn fill(&mut self, dir: &Path) -> Result<(), super::BoxError> {
        self.model.save(dir)?;
        self.save_optimizer(&dir.join(OPTIMIZER))?;
        self.state.save(dir)?;
        garden_files::write(&dir.join(PROGRESS), &serde_json::to_vec_pretty(&self.progress)?)?;
        for (name, contents) in &self.carried {
            garden_files::write(&dir.join(name), contents)?;
        }
        Ok(())
    }

    /// A checkpoint of values that are not finite would be resumed from, and give nothing but NaN.
    fn check_finite(&mut self) -> Result<(), TrainError> {
        let mut wrong = None;
        let (optimizer, mut number) = (&self.optimizer, 0);
        self.model.visit(&mut |tensor| {
            if !is_finite(tensor.values) {
                wrong.get_or_insert_with(|| tensor.name.to_owned());
            }
            for (part, values) in optimizer.state(number) {
                if let StateValues::F32(values) = values
                    && !is_finite(values)
                {
                    wrong.get_or_insert_with(|| format!("the optimizer's {part} of {}", tensor.name));
                }
            }
            number += 1;
        });
        let step = self.state.global_step;
        wrong.map_or(Ok(()), |tensor| Err(TrainError::NotFinite { step, tensor }))
    }

    fn save_optimizer(&mut self, path: &Path) -> Result<(), TensorFileError> {
        let names = self.tensor_names();
        let parts = |number| self.optimizer.state(number);
        let spec = |name: &str, part: &str, values: &StateValues| TensorSpec {
            name: format!("{name}.{part}"),
            dtype: values.dtype(),
            shape: vec![values.elements()],
        };
        let specs = names.iter().enumerate();
        let specs = specs
            .flat_map(|(number, name)| parts(number).map(move |(part, values)| spec(name, part, values)));
        let mut writer = TensorWriter::create(path, &specs.collect::<Vec<_>>(), &[])?;
        for (_, values) in (0..names.len()).flat_map(parts) {
            writer.write(values.bytes())?;
        }
        writer.finish()
    }

    fn tensor_names(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        self.model.visit(&mut |tensor| names.push(tensor.name.to_owned()));
        names
    }

    fn load_optimizer(&mut self, path: &Path) -> Result<(), TensorFileError> {
        let file = TensorFile::open(path)?;
        for (number, name) in self.tensor_names().iter().enumerate() {
            for (part, values) in self.optimizer.state_mut(number) {
                file.read_into(&format!("{name}.{part}"), values.dtype(), values.bytes_mut())?;
            }
        }
        Ok(())
    }

    /// Continues from a checkpoint whose sums were checked.
    pub fn resume(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        let dir = &checkpoint.path;
        let contents = |error: super::BoxError| CheckpointError::Contents(error);
        self.model.load(dir).map_err(contents)?;
        self.load_optimizer(&dir.join(OPTIMIZER)).map_err(|error| contents(error.into()))?;
        self.progress = read_json(&dir.join(PROGRESS))?;
        self.optimizer.set_step(self.progress.optimizer_step);
        check_same_rows(&self.progress, &self.settings, dir)?;
        let saved: TrainerState = read_json(&dir.join(super::TRAINER_STATE))?;
        // What was reached comes from the checkpoint, what is planned from this run's settings.
        self.state.global_step = saved.global_step;
        self.state.epoch = saved.epoch;
        self.state.num_input_tokens_seen = saved.num_input_tokens_seen;
        self.state.log_history = saved.log_history;
        let evaluated = |entry: &&super::LogEntry| entry.values.contains_key("eval_loss");
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
fn check_same_rows(
    progress: &Progress,
    settings: &super::TrainerSettings,
    dir: &Path,
) -> Result<(), CheckpointError> {
    let differs = if progress.seed != settings.seed {
        format!(
            "was made with --seed {}, this run has {}: the order of rows would differ",
            progress.seed, settings.seed
        )
    } else if progress.data_fingerprint != settings.data_fingerprint {
        "was made with other rows: the dataset has changed since. Go on with the rows it was made with, or choose another \
         --output-dir to begin anew"
            .to_owned()
    } else {
        return Ok(());
    };
    Err(CheckpointError::AnotherRun { path: dir.to_owned(), differs })
}

/// Whether no value is infinite or not a number.
fn is_finite(values: &[f32]) -> bool {
    // Not stopping at the first lets it vectorise, and there is hardly ever one.
    values.iter().fold(true, |finite, value| finite & value.is_finite())
}

/// Why a run has nothing left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All steps were taken.
    Steps,
    /// As many evaluations as early stopping waits for brought nothing better.
    Patience,
}

/// Why a run of `max_steps` steps with these settings and this patience has nothing left to do after a checkpoint, if that is so.
/// An error if the checkpoint was made with other rows.
pub fn end_of(
    checkpoint: &Checkpoint,
    settings: &super::TrainerSettings,
    max_steps: u64,
    patience: Option<u64>,
) -> Result<Option<End>, CheckpointError> {
    let progress: Progress = read_json(&checkpoint.path.join(PROGRESS))?;
    check_same_rows(&progress, settings, &checkpoint.path)?;
    let state: TrainerState = read_json(&checkpoint.path.join(super::TRAINER_STATE))?;
    let spent =
        state.stateful_callbacks.get(super::callback::EARLY_STOPPING).and_then(|spent| spent.as_u64());
    Ok(if settings.is_done(state.global_step, max_steps, progress.position) {
        Some(End::Steps)
    } else if patience.zip(spent).is_some_and(|(patience, spent)| spent >= patience) {
        Some(End::Patience)
    } else {
        None
    })
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, CheckpointError> {
    let text = std::fs::read(path).map_err(CheckpointError::io(path))?;
    serde_json::from_slice(&text)
        .map_err(|error| CheckpointError::Damaged { path: path.to_owned(), reason: error.to_string() })
}
