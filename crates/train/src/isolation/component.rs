//! One part of our own pipeline, repeated in a process of its own.
//!
//! Takes a dataset, a model and the name of a part. The part works through the same few rows as often as
//! asked, reports each step, and frees what it made. With `retain` it keeps everything instead, which shows
//! what a leak in this part alone looks like.

use crate::{
    config::{RunConfig, TrainOptions},
    model_folder::ModelFolder,
    optimizer::Optimizer,
    plan::{Load, room},
    run::{RunError, VisionModel, open_data},
    trainer::{BatchSource, BoxError, NextBatch, TrainableModel},
};
use garden_data::{
    Batch, Dataset, DatasetOptions, DecodeLimits, ImageDecoder, ImageWorkspace, PixelLimits, Position,
    RowReader, SplitChoice,
};
use garden_memory::{ByteSize, RunFacts, SupervisorLink};
use std::{
    any::Any,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// The shortest step: readings every few steps need steps that can be told apart.
const SHORTEST_STEP: Duration = Duration::from_millis(20);
/// Kept with what a step made, so that even a leak of small things shows within seconds.
const BALLAST: usize = 1 << 20;
/// A run that keeps things ends at this size: enough to judge, not enough to do harm.
const MOST_KEPT: usize = 2_000_000_000;

/// A part of the pipeline; each includes the parts before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Component {
    /// Reads rows.
    Rows,
    /// Decodes their images.
    Decode,
    /// Resizes and cuts them into patches.
    Process,
    /// Tokenises, and packs batches.
    Collate,
    /// Computes the loss of each batch.
    Forward,
    /// Also computes gradients and updates the adapter.
    Step,
}

impl Component {
    /// All of them, in the order of the pipeline.
    pub const ALL: [Self; 6] =
        [Self::Rows, Self::Decode, Self::Process, Self::Collate, Self::Forward, Self::Step];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Decode => "decode",
            Self::Process => "process",
            Self::Collate => "collate",
            Self::Forward => "forward",
            Self::Step => "step",
        }
    }
}

/// What a part works on.
#[derive(Debug, Clone)]
pub struct Work<'a> {
    /// A file, folder or hub id.
    pub dataset: &'a str,
    /// How it is read.
    pub source: &'a DatasetOptions,
    /// A model's folder.
    pub base_model: &'a Path,
    /// How many rows of the dataset it works through.
    pub rows: u64,
    /// How often it does so.
    pub rounds: u64,
    /// Rows of a batch, for the parts that make batches.
    pub batch_size: u64,
    /// Keep what is made.
    pub retain: bool,
}

/// Reports steps at an even pace, and keeps things if asked to.
struct Bench {
    link: SupervisorLink,
    steps: u64,
    steps_per_round: u64,
    step_began: Instant,
    warm: bool,
    kept: Option<Vec<Box<dyn Any>>>,
    kept_bytes: usize,
}

impl Bench {
    fn new(rows: u64, per_step: u64, retain: bool) -> Self {
        let link = SupervisorLink::from_environment();
        link.tell_facts(&RunFacts {
            dataset_size: Some(rows),
            samples_per_step: Some(per_step),
            ..RunFacts::default()
        });
        Self {
            link,
            steps: 0,
            steps_per_round: rows.div_ceil(per_step.max(1)).max(1),
            step_began: Instant::now(),
            warm: false,
            kept: retain.then(Vec::new),
            kept_bytes: 0,
        }
    }

    /// Ends a step that made this, of about so many bytes. The first step is not reported: what a part needs
    /// to work at all is not growth.
    fn done<T: Any + Clone>(&mut self, made: &T, bytes: usize) {
        if !std::mem::replace(&mut self.warm, true) {
            return;
        }
        if let Some(kept) = &mut self.kept {
            kept.push(Box::new((made.clone(), vec![1u8; BALLAST])));
            self.kept_bytes += bytes + BALLAST;
        }
        self.steps += 1;
        self.link.tell_step(self.steps, self.steps as f64 / self.steps_per_round as f64);
        thread::sleep(SHORTEST_STEP.saturating_sub(self.step_began.elapsed()));
        self.step_began = Instant::now();
    }

    /// Whether no more may be kept.
    fn is_full(&self) -> bool {
        self.kept_bytes >= MOST_KEPT
    }
}

/// Does the work of one part; returns when all rounds are done.
pub fn run_component(component: Component, work: &Work<'_>) -> Result<(), RunError> {
    match component {
        Component::Rows | Component::Decode | Component::Process => row_by_row(component, work),
        Component::Collate | Component::Forward | Component::Step => batch_by_batch(component, work),
    }
}

fn row_by_row(component: Component, work: &Work<'_>) -> Result<(), RunError> {
    let dataset = Arc::new(Dataset::open(work.dataset, work.source, &())?);
    let limits = DecodeLimits::default();
    let processor = ModelFolder::open(work.base_model)?.processor(PixelLimits::default())?;
    let mut reader = RowReader::new(dataset.clone());
    let (mut decoder, mut workspace, mut patches) =
        (ImageDecoder::default(), ImageWorkspace::default(), Vec::new());
    let rows = work.rows.min(dataset.rows());
    let mut bench = Bench::new(rows, 1, work.retain);
    for number in (0..work.rounds).flat_map(|_| 0..rows) {
        let row = reader.read(number)?;
        patches.clear();
        let mut pixels = Vec::new();
        let mut read = 0;
        for image in row.conversation.images() {
            let bytes = reader.image_bytes(number, image)?;
            read += bytes.len();
            let failed =
                |error: garden_data::ImageError| RunError::Other(format!("{}: {error}", row.id).into());
            match component {
                Component::Decode => pixels.push(decoder.decode(&bytes, limits).map_err(failed)?.clone()),
                Component::Process => {
                    processor.append_patches(&bytes, &mut workspace, &mut patches).map_err(failed)?;
                }
                _ => {}
            }
        }
        match component {
            Component::Decode => {
                let bytes = pixels.iter().map(|image| 3 * image.width as usize * image.height as usize).sum();
                bench.done(&pixels, bytes);
            }
            Component::Process => bench.done(&patches, patches.len()),
            _ => bench.done(&row.conversation, read),
        }
        if bench.is_full() {
            break;
        }
    }
    Ok(())
}

fn batch_by_batch(component: Component, work: &Work<'_>) -> Result<(), RunError> {
    let whole = Dataset::open(work.dataset, work.source, &())?.rows();
    // Held-out rows are not worked on.
    let held_out = whole.saturating_sub(work.rows);
    let config = config(work, held_out).map_err(|error| RunError::Other(error.into()))?;
    let folder = ModelFolder::open(work.base_model)?;
    let mut data = open_data(&config, &folder, &())?;
    let load = data.load;
    let source = &mut data.training;
    let mut learner = match component {
        Component::Collate => None,
        _ => Some(Learner::new(&config, &folder, &load)?),
    };
    let rows = source.rows();
    let mut bench = Bench::new(rows, work.batch_size, work.retain);
    for epoch in 0..work.rounds {
        source.seek(Position::start_of(epoch)).map_err(RunError::Other)?;
        while let Some(NextBatch { batch, end }) = source.next().map_err(RunError::Other)? {
            // One process has all batches.
            let Some(batch) = batch else { continue };
            if let Some(learner) = &mut learner {
                learner.work(component, &batch).map_err(RunError::Other)?;
            }
            bench.done(&batch, batch.patches.len() + 8 * batch.ids.len());
            source.recycle(batch);
            if bench.is_full() {
                return Ok(());
            }
            if end.epoch > epoch {
                break;
            }
        }
    }
    Ok(())
}

/// A model with its optimizer.
struct Learner {
    model: VisionModel,
    optimizer: Optimizer,
    rate: f64,
}

impl Learner {
    fn new(config: &RunConfig, folder: &ModelFolder, load: &Load) -> Result<Self, RunError> {
        let mut model = VisionModel::load(config, folder, load, room(), |_| {})?;
        let mut shapes = Vec::new();
        model.visit(&mut |tensor| shapes.push(tensor.shape));
        let settings = config.trainer();
        let optimizer = Optimizer::new(settings.optimizer, settings.adam, shapes);
        Ok(Self { model, optimizer, rate: config.learning_rate })
    }

    fn work(&mut self, component: Component, batch: &Batch) -> Result<(), BoxError> {
        if component == Component::Forward {
            return self.model.evaluate(batch).map(drop);
        }
        self.model.gradients().fill(0.0);
        let sums = self.model.forward_backward(batch, 0)?;
        let scale = 1.0 / sums.label_tokens.max(1) as f32;
        self.optimizer.begin_step();
        let mut number = 0;
        self.model.visit(&mut |tensor| {
            self.optimizer.update(number, tensor, self.rate, scale);
            number += 1;
        });
        Ok(())
    }
}

fn config(work: &Work<'_>, held_out: u64) -> Result<RunConfig, crate::config::ConfigError> {
    RunConfig::resolve(TrainOptions {
        base_model: Some(work.base_model.to_string_lossy().into_owned()),
        dataset: Some(work.dataset.to_owned()),
        split: match &work.source.split {
            SplitChoice::Named(name) => Some(name.clone()),
            SplitChoice::Training | SplitChoice::Evaluation => None,
        },
        image_root: Some(work.source.image_roots.clone()),
        allow_remote_images: Some(work.source.allow_remote_images),
        columns: Some(work.source.columns.clone()),
        output_dir: Some(std::env::temp_dir()),
        eval_split: (held_out > 0).then(|| held_out.to_string()),
        batch_size: Some(work.batch_size),
        // Batches that wait for a slow reader would look like growth until the queue is full.
        prefetch_bytes: Some(ByteSize(1_000_000)),
        lora_r: Some(4),
        ..TrainOptions::default()
    })
}
