//! One part of our own pipeline, over and over, as a program of its own.
//!
//! In come a dataset, a model and the name of a part; the part works through all rows as often as asked, telling each step, and gives back what it
//! made. With `retain` it keeps everything instead: what a leak in just this part looks like.

use crate::{
    config::{RunConfig, TrainOptions},
    run::{RunData, RunError, VisionModel, longest_batch, open_data},
    supervisor_link::SupervisorLink,
    trainer::{BatchSource, Position, TrainableModel},
};
use garden_data::{
    Dataset, DatasetOptions, RowReader,
    image::{DecodeLimits, Decoder},
    processor::{PixelLimits, Processor, Workspace},
};
use garden_memory::RunFacts;
use std::{any::Any, path::Path, sync::Arc};

/// A part of the pipeline, each including what comes before it.
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
    /// Computes gradients too.
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
    /// A model's folder.
    pub base_model: &'a Path,
    /// Passes over the rows.
    pub rounds: u64,
    /// Rows of a batch, for the parts that make batches.
    pub batch_size: u64,
    /// Keep what is made.
    pub retain: bool,
}

/// Tells steps, and keeps things if asked to.
struct Bench {
    link: SupervisorLink,
    steps: u64,
    steps_per_round: u64,
    kept: Option<Vec<Box<dyn Any>>>,
}

impl Bench {
    fn new(rows: u64, per_step: u64, retain: bool) -> Self {
        let link = SupervisorLink::from_environment();
        link.tell_facts(&RunFacts {
            dataset_size: Some(rows),
            samples_per_step: Some(per_step),
            ..RunFacts::default()
        });
        let steps_per_round = rows.div_ceil(per_step.max(1)).max(1);
        Self { link, steps: 0, steps_per_round, kept: retain.then(Vec::new) }
    }

    /// A step is done, and this is what it made.
    fn done<T: Any + Clone>(&mut self, made: &T) {
        if let Some(kept) = &mut self.kept {
            kept.push(Box::new(made.clone()));
        }
        self.steps += 1;
        self.link.tell_step(self.steps, self.steps as f64 / self.steps_per_round as f64);
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
    let dataset = Arc::new(Dataset::open(work.dataset, &DatasetOptions::default(), &())?);
    let limits = DecodeLimits::default();
    let processor = Processor::from_dir(work.base_model, PixelLimits::default(), limits)?;
    let mut reader = RowReader::new(dataset.clone());
    let (mut decoder, mut workspace, mut patches) = (Decoder::default(), Workspace::default(), Vec::new());
    let mut bench = Bench::new(dataset.rows(), 1, work.retain);
    for _ in 0..work.rounds {
        for number in 0..dataset.rows() {
            let row = reader.read(number)?;
            if component == Component::Rows {
                bench.done(&row.conversation);
                continue;
            }
            patches.clear();
            let mut pixels = Vec::new();
            for image in row.conversation.images() {
                let bytes = reader.image_bytes(number, image)?;
                let failed = |error: garden_data::image::ImageError| {
                    RunError::Other(format!("{}: {error}", row.id).into())
                };
                if component == Component::Decode {
                    let decoded = decoder.decode(&bytes, limits).map_err(failed)?;
                    if work.retain {
                        pixels.push(decoded.clone());
                    }
                } else {
                    processor.append_patches(&bytes, &mut workspace, &mut patches).map_err(failed)?;
                }
            }
            if component == Component::Decode { bench.done(&pixels) } else { bench.done(&patches) }
        }
    }
    Ok(())
}

fn batch_by_batch(component: Component, work: &Work<'_>) -> Result<(), RunError> {
    let config = config(work).map_err(|error| RunError::Other(error.into()))?;
    let mut data = open_data(&config, work.base_model, &())?;
    let load = longest_batch(&config, &data);
    let mut model = match component {
        Component::Collate => None,
        _ => Some(VisionModel::load(&config, work.base_model, &load, |_| {})?),
    };
    let RunData { training, .. } = &mut data;
    let mut bench = Bench::new(training.rows(), work.batch_size, work.retain);
    for epoch in 0..work.rounds {
        training.seek(Position { epoch, row: 0 }).map_err(RunError::Other)?;
        while let Some((batch, end)) = training.next().map_err(RunError::Other)? {
            if let Some(model) = &mut model {
                model.zero_gradients();
                let done = match component {
                    Component::Forward => model.evaluate(&batch),
                    _ => model.forward_backward(&batch, 0),
                };
                done.map_err(RunError::Other)?;
            }
            bench.done(&batch);
            training.recycle(batch);
            if end.row >= training.rows() {
                break;
            }
        }
    }
    Ok(())
}

fn config(work: &Work<'_>) -> Result<RunConfig, crate::config::ConfigError> {
    RunConfig::resolve(TrainOptions {
        base_model: Some(work.base_model.to_string_lossy().into_owned()),
        dataset: Some(work.dataset.to_owned()),
        output_dir: Some(std::env::temp_dir()),
        batch_size: Some(work.batch_size),
        lora_r: Some(4),
        ..TrainOptions::default()
    })
}
