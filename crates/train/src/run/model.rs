//! The model behind the trainer's interface.
//!
//! Takes batches from the loader and gives sums and gradients, computed in one planned arena. What is trained
//! is written as a PEFT adapter, or as a whole model where all weights are trained. It is read back only if
//! every tensor fits.

use super::RunError;
use crate::{
    config::{Method, RunConfig},
    merge::{copy_companions, write_config},
    model_folder::ModelFolder,
    monitor::{TensorMemory, TensorUsage},
    plan::{Load, check_limit, plan},
    trainer::{BatchSums, BoxError, TrainableModel},
};
use garden_data::Batch;
use garden_model::{
    Adapter, Checkpoint, Dtype, Grid, LoraSettings, LossSums, MemoryPlan, Model, ModelConfig, ModelWeights,
    PackedBatch, Session, TensorSpec, TensorWriter, TrainableTensor, parameters, read_matrix,
};
use std::path::{Path, PathBuf};

/// A model, its arena, and where it came from.
pub struct VisionModel {
    model: Model,
    session: Session,
    grids: Vec<Grid>,
    base: PathBuf,
    base_name: String,
    usage: TensorUsage,
    plan: MemoryPlan,
}

impl VisionModel {
    /// Loads a model and lays out memory for the longest batch, in what `room` says is left; `progress` is told the share
    /// loaded.
    pub fn load(
        config: &RunConfig,
        folder: &ModelFolder,
        load: &Load,
        room: Option<u64>,
        progress: impl FnMut(f32),
    ) -> Result<Self, RunError> {
        let model_config = folder.config().clone();
        let checkpoint = folder.weights()?;
        let plan = plan(config, &model_config, folder.source().clone(), load, room)?
            .keeping(config.memory.budget.map(|bytes| bytes as usize))?;
        check_limit(config, &plan)?;
        // Settings are checked before gigabytes are read.
        let adapter = match config.method {
            Method::Lora => Some(first_adapter(config, &model_config)?),
            Method::Full => None,
        };
        let weights = ModelWeights::load(&checkpoint, &model_config, config.weights_precision(), progress)?;
        let model = match adapter {
            Some(adapter) => Model::with_adapter(model_config, weights, adapter),
            None => Model::full(model_config, weights),
        };
        let session = Session::new(&model, load.shapes, plan.session_recompute())?;
        let (grids, usage) = Default::default();
        let base_name = config.base_model.clone();
        Ok(Self { model, session, grids, base: folder.path().to_owned(), base_name, usage, plan })
    }

    /// Trained parameters, and all parameters.
    pub fn parameters(&self) -> (u64, u64) {
        let all =
            parameters(self.model.config()).iter().map(|parameter| parameter.elements() as u64).sum::<u64>();
        let trained = self.model.trainable_values() as u64;
        (trained, if self.model.adapter().is_some() { all + trained } else { all })
    }

    /// What the arena held at the fullest moment of the last step, readable while the trainer has the model.
    pub fn usage(&self) -> TensorUsage {
        self.usage.clone()
    }

    /// What the process will need at its peak, part by part.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The model itself, to ask it something.
    #[cfg(test)]
    pub fn model(&self) -> &Model {
        &self.model
    }

    fn packed<'a>(grids: &'a mut Vec<Grid>, batch: &'a Batch) -> PackedBatch<'a> {
        grids.clear();
        grids.extend(
            batch.images.iter().map(|image| [1, image.grid.rows as usize, image.grid.columns as usize]),
        );
        PackedBatch {
            ids: &batch.ids,
            labels: &batch.labels,
            segments: &batch.segments,
            patches: &batch.patches,
            grids,
        }
    }

    fn sums(&self, batch: &Batch, sums: LossSums) -> BatchSums {
        let usage = self.session.usage();
        self.usage.set(TensorMemory {
            live: usage.fullest_bytes as u64,
            peak: usage.peak_bytes as u64,
            buffers: usage.fullest_buffers as u64,
        });
        BatchSums {
            loss: sums.loss,
            label_tokens: sums.tokens as u64,
            correct: sums.correct as u64,
            tokens: batch.ids.len() as u64,
            images: batch.images.len() as u64,
            rows: batch.len() as u64,
        }
    }

    /// Adds to a batch's error the rows that the batch was made of.
    fn in_rows(batch: &Batch, error: impl std::fmt::Display) -> BoxError {
        let rows: Vec<String> = batch.rows.iter().map(|row| (row + 1).to_string()).collect();
        format!("rows {}: {error}", rows.join(", ")).into()
    }
}

/// The adapter that training begins with: a fresh one, or the one to start from.
pub fn first_adapter(config: &RunConfig, model: &ModelConfig) -> Result<Adapter, RunError> {
    let settings = config.lora.settings()?;
    let Some(dir) = &config.lora.adapter else {
        return Ok(Adapter::fresh(model, settings, config.seed)?);
    };
    let read = Adapter::read(dir, model)?;
    let chosen = settings.targets(model)?;
    if !read.pairs.iter().map(|pair| &pair.module).eq(chosen.iter().map(|linear| &linear.module)) {
        let (dir, there, chosen) = (dir.clone(), read.pairs.len(), chosen.len());
        return Err(RunError::AdapterLayers { dir, there, chosen });
    }
    Ok(Adapter { settings, ..read })
}

impl TrainableModel for VisionModel {
    type Batch = Batch;

    fn forward_backward(&mut self, batch: &Batch, noise: u64) -> Result<BatchSums, BoxError> {
        if batch.is_empty() {
            return Ok(BatchSums::default());
        }
        let packed = Self::packed(&mut self.grids, batch);
        let sums = self
            .session
            .step(&self.model, &packed, 1.0, noise)
            .map_err(|error| Self::in_rows(batch, error))?;
        Ok(self.sums(batch, sums))
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<BatchSums, BoxError> {
        if batch.is_empty() {
            return Ok(BatchSums::default());
        }
        let packed = Self::packed(&mut self.grids, batch);
        let sums =
            self.session.evaluate(&self.model, &packed).map_err(|error| Self::in_rows(batch, error))?;
        Ok(self.sums(batch, sums))
    }

    fn gradients(&mut self) -> &mut Vec<f32> {
        self.session.gradients_mut()
    }

    fn visit(&mut self, visit: &mut dyn FnMut(TrainableTensor<'_>)) {
        self.session.visit(&mut self.model, visit);
    }

    fn save(&mut self, dir: &Path) -> Result<(), BoxError> {
        match self.model.adapter() {
            Some(adapter) => Ok(adapter.write(dir, &self.base_name)?),
            None => self.save_whole(dir),
        }
    }

    fn load(&mut self, dir: &Path) -> Result<(), BoxError> {
        let config = self.model.config().clone();
        let Some(adapter) = self.model.adapter_mut() else { return self.load_whole(dir) };
        let read = Adapter::read(dir, &config)?;
        if read.settings != adapter.settings {
            let differing = differing_settings(&read.settings, &adapter.settings);
            let message = format!("{}: its adapter was made with other settings: {differing}", dir.display());
            return Err(message.into());
        }
        let [there, here] = [&read, &*adapter].map(|adapter| adapter.pairs.iter().map(|pair| &pair.module));
        // An adapter with fewer pairs would give the optimizer's state to other layers.
        if !there.clone().eq(here.clone()) {
            let (there, here) = (there.len(), here.len());
            let message = format!(
                "{}: its adapter holds {there} layers, not the {here} that its settings choose; is the file complete?",
                dir.display()
            );
            return Err(message.into());
        }
        *adapter = read;
        Ok(())
    }
}

impl VisionModel {
    /// All weights, as a folder that loads like its base.
    fn save_whole(&mut self, dir: &Path) -> Result<(), BoxError> {
        let spec = |parameter: garden_model::Parameter| TensorSpec {
            name: parameter.name,
            dtype: Dtype::F32,
            shape: parameter.shape,
        };
        let specs: Vec<TensorSpec> = parameters(self.model.config()).into_iter().map(spec).collect();
        let mut writer = TensorWriter::create(&dir.join("model.safetensors"), &specs, &[("format", "pt")])?;
        let mut written = Ok(());
        self.visit(&mut |tensor| {
            if written.is_ok() {
                written = writer.write_f32(tensor.values);
            }
        });
        written?;
        writer.finish()?;
        // The base may have been in 16 or 4 bits.
        write_config(&self.base, dir, "float32", None)?;
        Ok(copy_companions(&self.base, dir)?)
    }

    fn load_whole(&mut self, dir: &Path) -> Result<(), BoxError> {
        let checkpoint = Checkpoint::open(dir)?;
        checkpoint.check(self.model.config())?;
        let mut read = Ok(());
        self.visit(&mut |tensor| {
            if read.is_ok() {
                read = read_matrix(&checkpoint, tensor.name, [1, tensor.values.len()])
                    .map(|weight| weight.read(0, 0, tensor.values));
            }
        });
        Ok(read?)
    }
}

/// The settings that differ between a checkpoint's adapter and this run's, by name.
fn differing_settings(then: &LoraSettings, now: &LoraSettings) -> String {
    let fields = |lora: &LoraSettings| {
        [
            ("lora-r", lora.rank.to_string()),
            ("lora-alpha", lora.alpha.to_string()),
            ("lora-dropout", lora.dropout.to_string()),
            ("use-rslora", lora.rslora.to_string()),
            ("target-modules", lora.target_modules.clone()),
        ]
    };
    let pairs = fields(then).into_iter().zip(fields(now)).filter(|(then, now)| then != now);
    let said = pairs.map(|((name, then), (_, now))| format!("{name} was {then}, now {now}"));
    said.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
