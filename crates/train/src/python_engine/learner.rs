//! A worker as a learner.
//!
//! Pads each batch of the loader as PyTorch's models take it and sends the batches of a step together. The
//! rows, their order and their labels are therefore those of the native engine.

use super::{
    find::Interpreter,
    settings::{PrivateFolder, WorkerSettings},
    worker::{Array, Worker, WorkerError},
};
use crate::{
    announce::Announcer,
    cancel::Cancel,
    config::{Method, RunConfig},
    event::Topic,
    merge::{copy_companions, write_config},
    model_folder::ModelFolder,
    monitor::{TensorMemory, TensorUsage},
    run::RunError,
    schedule::Schedule,
    trainer::{BatchSums, BoxError, Learner, Move, Moved, NotMoved},
};
use garden_data::{Batch, NO_LABEL, Padded, PixelLimits, Processor};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Stands behind shorter rows, where the mask hides it.
const PAD: u32 = 0;

/// A model in a Python process.
pub struct PythonLearner<'a, 'o> {
    worker: Worker,
    announcer: &'a Announcer<'o>,
    processor: Processor,
    /// The batches of the step at hand, with their seeds.
    step: Vec<(Padded, u64)>,
    begun: bool,
    usage: TensorUsage,
    parameters: (u64, u64),
    /// The model folder, where all weights are trained.
    whole: Option<PathBuf>,
}

/// What a worker says when its model is loaded.
#[derive(Deserialize)]
struct Ready {
    trained_parameters: u64,
    parameters: u64,
}

#[derive(Deserialize)]
struct Stepped {
    /// Mean loss of the label tokens; nothing if it is not finite.
    loss: Option<f64>,
    gradient_norm: Option<f64>,
    #[serde(default)]
    memory: TensorMemory,
}

#[derive(Deserialize)]
struct Evaluated {
    /// Sum over the label tokens.
    loss: Option<f64>,
    correct: u64,
}

#[derive(Deserialize)]
struct Checked {
    tensor: Option<String>,
}

#[derive(Deserialize)]
struct Done {}

impl<'a, 'o> PythonLearner<'a, 'o> {
    /// Starts a worker and waits until it has the model; gives nothing if the run is to end before.
    pub fn start(
        interpreter: &Interpreter,
        config: &RunConfig,
        folder: &ModelFolder,
        schedule: &Schedule,
        max_steps: u64,
        announcer: &'a Announcer<'o>,
        cancel: &Cancel,
    ) -> Result<Option<Self>, RunError> {
        // Gone when the worker is ready.
        let private = PrivateFolder::make(&config.output_dir)?;
        let settings = WorkerSettings::of(config, folder, schedule, max_steps, private.path())?;
        let settings = settings.write(private.path())?;
        let pixels = PixelLimits { min: config.data.min_pixels, max: config.data.max_pixels };
        let processor = folder.processor(pixels)?;
        let mut worker = Worker::start(interpreter, &settings, &config.output_dir)?;
        let ready = worker.ready(cancel, &mut |text| announcer.note(Topic::Engine, text));
        if !matches!(ready, Ok(Some(_))) {
            worker.forget_empty_log();
        }
        let Some(ready) = ready? else { return Ok(None) };
        let ready: Ready = read(ready)?;
        Ok(Some(Self {
            worker,
            announcer,
            processor,
            step: Vec::new(),
            begun: false,
            usage: TensorUsage::default(),
            parameters: (ready.trained_parameters, ready.parameters),
            whole: (config.method == Method::Full).then(|| folder.path().to_owned()),
        }))
    }

    /// Trained parameters, and all parameters.
    pub fn parameters(&self) -> (u64, u64) {
        self.parameters
    }

    /// What the worker holds on its GPU, readable while the trainer has the learner.
    pub fn usage(&self) -> TensorUsage {
        self.usage.clone()
    }

    /// Begins to train, from a checkpoint if there is one.
    fn begin(&mut self, checkpoint: Option<&Path>) -> Result<(), WorkerError> {
        if !std::mem::replace(&mut self.begun, true) {
            self.ask::<Done>(&json!({"do": "begin", "checkpoint": checkpoint}), &[])?;
        }
        Ok(())
    }

    fn ask<T: DeserializeOwned>(&mut self, header: &Value, arrays: &[Array<'_>]) -> Result<T, WorkerError> {
        let announcer = self.announcer;
        read(self.worker.ask(header, arrays, &mut |text| announcer.note(Topic::Engine, text))?)
    }

    fn take_step(&mut self, how: Move) -> Result<Stepped, WorkerError> {
        self.begin(None)?;
        let step = std::mem::take(&mut self.step);
        let arrays: Vec<Vec<Array<'_>>> = step.iter().map(|(batch, _)| arrays(batch)).collect();
        let batches: Vec<Value> = step
            .iter()
            .zip(&arrays)
            .map(|((batch, noise), arrays)| {
                let arrays: Vec<Value> = arrays.iter().map(Array::header).collect();
                json!({"arrays": arrays, "label_tokens": label_tokens(batch), "noise": noise})
            })
            .collect();
        let label_tokens = how.label_tokens;
        let header =
            json!({"do": "step", "rate": how.rate, "label_tokens": label_tokens, "batches": batches});
        let arrays: Vec<Array<'_>> = arrays.into_iter().flatten().collect();
        self.ask(&header, &arrays)
    }

    /// The sums of a batch, without its loss.
    fn sums(batch: &Batch, padded: &Padded) -> BatchSums {
        BatchSums {
            label_tokens: label_tokens(padded),
            tokens: batch.ids.len() as u64,
            images: batch.images.len() as u64,
            rows: batch.len() as u64,
            ..BatchSums::default()
        }
    }
}

fn read<T: DeserializeOwned>(answer: Value) -> Result<T, WorkerError> {
    let said = answer.to_string();
    serde_json::from_value(answer).map_err(|_| WorkerError::Strange(said))
}

/// Tokens that are learned: the first token of a row is predicted by nothing.
fn label_tokens(batch: &Padded) -> u64 {
    let rows = batch.labels.chunks(batch.length.max(1));
    let learned = rows.flat_map(|row| row.iter().skip(1)).filter(|label| **label != i64::from(NO_LABEL));
    learned.count() as u64
}

/// The arrays of a batch by the names that Hugging Face's models have for them. A batch without images has
/// none of images.
fn arrays(batch: &Padded) -> Vec<Array<'_>> {
    let tokens = |name, values| Array {
        name,
        kind: "int64",
        shape: vec![batch.rows, batch.length],
        bytes: bytemuck::cast_slice::<i64, u8>(values),
    };
    let mut arrays = vec![
        tokens("input_ids", &batch.input_ids),
        tokens("attention_mask", &batch.attention_mask),
        tokens("labels", &batch.labels),
        tokens("mm_token_type_ids", &batch.mm_token_type_ids),
    ];
    let images = batch.image_grid_thw.len() / 3;
    if images > 0 {
        let patches: i64 = batch.image_grid_thw.chunks(3).map(|grid| grid.iter().product::<i64>()).sum();
        let patches = patches as usize;
        arrays.push(Array {
            name: "pixel_values",
            kind: "float32",
            shape: vec![patches, batch.pixel_values.len() / patches.max(1)],
            bytes: bytemuck::cast_slice(&batch.pixel_values),
        });
        arrays.push(Array {
            name: "image_grid_thw",
            kind: "int64",
            shape: vec![images, 3],
            bytes: bytemuck::cast_slice(&batch.image_grid_thw),
        });
    }
    arrays
}

impl Learner for PythonLearner<'_, '_> {
    type Batch = Batch;

    fn begin_step(&mut self) {
        self.step.clear();
    }

    fn add(&mut self, batch: &Batch, noise: u64) -> Result<BatchSums, BoxError> {
        if batch.is_empty() {
            return Ok(BatchSums::default());
        }
        let padded = Padded::new(batch, &self.processor, PAD);
        let sums = Self::sums(batch, &padded);
        self.step.push((padded, noise));
        Ok(sums)
    }

    /// The worker adds the gradients of all batches itself, when it has all of them.
    fn end_round(&mut self, _: usize) -> Result<(), BoxError> {
        Ok(())
    }

    fn end_step(&mut self, how: Move) -> Result<Moved, NotMoved> {
        let step = self.take_step(how).map_err(|error| NotMoved::Failed(error.into()))?;
        self.usage.set(step.memory);
        let [loss, gradient_norm] = [step.loss, step.gradient_norm].map(|value| value.unwrap_or(f64::NAN));
        Moved { loss: loss * how.label_tokens as f64, gradient_norm }.check()
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<BatchSums, BoxError> {
        if batch.is_empty() {
            return Ok(BatchSums::default());
        }
        self.begin(None)?;
        let padded = Padded::new(batch, &self.processor, PAD);
        let arrays = arrays(&padded);
        let headers: Vec<Value> = arrays.iter().map(Array::header).collect();
        let header = json!({"do": "evaluate", "batches": [{"arrays": headers}]});
        let found: Evaluated = self.ask(&header, &arrays)?;
        let loss = found.loss.unwrap_or(f64::NAN);
        Ok(BatchSums { loss, correct: found.correct, ..Self::sums(batch, &padded) })
    }

    fn first_not_finite(&mut self) -> Result<Option<String>, BoxError> {
        self.begin(None)?;
        let checked: Checked = self.ask(&json!({"do": "check"}), &[])?;
        Ok(checked.tensor)
    }

    /// Compared between processes only, and this engine has one.
    fn fingerprint(&mut self) -> u64 {
        0
    }

    fn save(&mut self, dir: &Path) -> Result<(), BoxError> {
        self.begin(None)?;
        // The worker may be in another folder by now.
        let place = std::path::absolute(dir)?;
        self.ask::<Done>(&json!({"do": "save", "folder": place}), &[])?;
        match &self.whole {
            Some(base) => {
                // As the native engine leaves it, with nothing in it that was only for training.
                write_config(base, dir, "float32", None)?;
                Ok(copy_companions(base, dir)?)
            }
            None => Ok(()),
        }
    }

    fn load(&mut self, dir: &Path, _: u64) -> Result<(), BoxError> {
        let place = std::path::absolute(dir)?;
        Ok(self.begin(Some(&place))?)
    }

    /// The worker's optimizer keeps its own count in its own file.
    fn optimizer_step(&self) -> u64 {
        0
    }
}
