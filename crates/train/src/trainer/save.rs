//! Writes a checkpoint of a run.
//!
//! A checkpoint holds the model's part, `optimizer.safetensors`, `trainer_state.json` and `progress.json`.
//! Values that are not finite are refused: a run resumed from them would give nothing but NaN.

use super::{BatchSource, BoxError, TrainError, TrainableModel, Trainer, progress::PROGRESS};
use crate::{
    checkpoint::Checkpoint,
    event::{Note, Topic},
    optimizer::StateValues,
};
use garden_model::{TensorFileError, TensorSpec, TensorWriter};
use std::path::Path;

/// The optimizer's state in a checkpoint.
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";

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
                let text =
                    format!("an old checkpoint could not be removed ({error}); trying again at the next one");
                let note = Note { topic: Topic::Checkpoint, text };
                self.tell(|callback, _| callback.on_note(&note))?;
            }
        }
        self.tell(|callback, state| callback.on_save(state, &checkpoint.path))?;
        self.saved = Some(checkpoint.clone());
        Ok(checkpoint)
    }

    fn fill(&mut self, dir: &Path) -> Result<(), BoxError> {
        self.model.save(dir)?;
        self.save_optimizer(&dir.join(OPTIMIZER))?;
        self.state.save(dir)?;
        garden_files::write(&dir.join(PROGRESS), &serde_json::to_vec_pretty(&self.progress)?)?;
        for (name, contents) in &self.carried {
            garden_files::write(&dir.join(name), contents)?;
        }
        Ok(())
    }

    /// Refuses values and moments that are infinite or not a number.
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

    /// Names of the trained tensors, in their order.
    pub(super) fn tensor_names(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        self.model.visit(&mut |tensor| names.push(tensor.name.to_owned()));
        names
    }
}

/// Whether no value is infinite or not a number.
fn is_finite(values: &[f32]) -> bool {
    // Not stopping at the first such value lets the loop vectorise, and there is hardly ever one.
    values.iter().fold(true, |finite, value| finite & value.is_finite())
}
