//! The settings of a run: options with their defaults filled in and their contradictions refused.
//!
//! Takes [`TrainOptions`] and gives a [`RunConfig`] in which every value is usable as it stands. Errors name
//! the setting as a configuration file does.

mod describe;
mod engine;
mod file;
mod options;
mod resolve;
mod words;

pub use describe::{OptionInfo, ValueKind};
pub use engine::Engine;
pub use file::{FileError, FrontEndOptions, KeyError, NoFrontEnd};
pub use options::{Checkpointing, EvalStrategy, Method, OnBadRow, OnMemoryLimit, ReportTo, TrainOptions};

use crate::{
    optimizer::{AdamSettings, OptimizerKind},
    schedule::{Shape, Warmup},
    selective_loss::Level,
    trainer::{TrainerSettings, When},
};
use garden_data::{Columns, OnLongRow, TrainOn};
use garden_model::{LayerGroups, LoraError, LoraSettings, target_pattern};
use serde::Serialize;
use std::path::PathBuf;

/// Why options cannot be followed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Something without a default is missing.
    #[error("{0} is needed")]
    Missing(&'static str),
    /// A value out of its range.
    #[error("{setting} {value}: {reason}")]
    Value {
        /// The setting.
        setting: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        reason: &'static str,
    },
    /// A count out of its range.
    #[error("{setting} {value}: from {least} to {most}")]
    Count {
        /// The setting.
        setting: &'static str,
        /// What was given.
        value: u64,
        /// The least that is accepted.
        least: u64,
        /// The most that is accepted.
        most: u64,
    },
    /// Two options that exclude each other.
    #[error("{0} and {1} exclude each other")]
    Conflict(&'static str, &'static str),
    /// An adapter to start from, and an option that contradicts it.
    #[error("{setting} {asked} contradicts the adapter {}, which has {has}: leave {setting} out", adapter.display())]
    AdapterHas {
        /// The setting.
        setting: &'static str,
        /// What was given.
        asked: String,
        /// The adapter.
        adapter: PathBuf,
        /// What it has.
        has: String,
    },
    /// An adapter to start from that cannot be read.
    #[error("adapter: {0}")]
    Adapter(String),
    /// An option that the engine cannot follow.
    #[error("{setting} is not followed by engine {engine}: {reason}")]
    NotFollowed {
        /// The setting.
        setting: &'static str,
        /// The engine.
        engine: Engine,
        /// Why, and what to do instead.
        reason: &'static str,
    },
    /// An option that needs another one.
    #[error("{setting} needs {}", any_of.join(" or "))]
    Needs {
        /// The setting.
        setting: &'static str,
        /// Those of which one is needed.
        any_of: &'static [&'static str],
    },
}

/// How frozen weights are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// As the files have them.
    AsStored,
    /// NF4 with double quantisation.
    FourBit,
    /// Eight bits.
    EightBit,
    /// bf16.
    SixteenBit,
}

/// Which rows evaluation uses.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvalRows {
    /// None.
    None,
    /// A dataset of its own, or a split of it.
    Dataset {
        /// File, folder or hub id.
        name: String,
        /// Which split, where the user names one.
        split: Option<String>,
    },
    /// Another split of the dataset that is trained on.
    Split(String),
    /// A share of the training rows, held out.
    Share(f64),
    /// A number of the training rows, held out.
    Count(u64),
}

impl EvalRows {
    /// How many of the training rows are held out, where there are this many rows.
    pub fn held_out(&self, rows: u64) -> u64 {
        match self {
            Self::Count(count) => *count,
            Self::Share(share) => (share * rows as f64).round().max(1.0) as u64,
            Self::None | Self::Dataset { .. } | Self::Split(_) => 0,
        }
    }
}

/// Which checkpoint to continue from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resume {
    /// The newest whole one, if there is any.
    Auto,
    /// This one.
    From(PathBuf),
    /// None.
    Never,
}

/// The part of a run that concerns LoRA.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoraConfig {
    /// The adapter whose weights are the start; a fresh one if there is none.
    pub adapter: Option<PathBuf>,
    /// Rank.
    pub r: usize,
    /// Numerator of the scale.
    pub alpha: f64,
    /// Share of inputs set to zero.
    pub dropout: f64,
    /// Scale by the root of the rank.
    pub rslora: bool,
    /// A regular expression over module names.
    pub target_modules: Option<String>,
    /// Adapt the vision tower.
    pub vision: bool,
    /// Adapt the language model.
    pub language: bool,
    /// Adapt attention.
    pub attention: bool,
    /// Adapt the MLPs.
    pub mlp: bool,
}

impl LoraConfig {
    /// The settings as the model takes them; an error if no adapter can be made with them.
    pub fn settings(&self) -> Result<LoraSettings, LoraError> {
        let groups = LayerGroups {
            vision: self.vision,
            language: self.language,
            attention: self.attention,
            mlp: self.mlp,
        };
        let chosen = self.target_modules.as_deref().map(target_pattern);
        let target_modules = chosen.map_or_else(|| groups.pattern(), Ok)?;
        let settings = LoraSettings {
            rank: self.r,
            alpha: self.alpha as f32,
            dropout: self.dropout as f32,
            rslora: self.rslora,
            target_modules,
        };
        settings.check()?;
        Ok(settings)
    }
}

/// The part of a run that concerns its rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DataConfig {
    /// Which turns have labels.
    pub train_on: TrainOn,
    /// What to do with a bad row.
    pub on_bad_row: OnBadRow,
    /// What to do with a row that is too long.
    pub on_long_row: OnLongRow,
    /// Largest share of bad rows that are skipped.
    pub max_bad_share: f64,
    /// Smallest image area.
    pub min_pixels: Option<u64>,
    /// Largest image area.
    pub max_pixels: Option<u64>,
    /// Which split is trained on, where the user names one.
    pub split: Option<String>,
    /// Folders that rows read their images from, besides that of their file.
    pub image_roots: Vec<PathBuf>,
    /// Fetch images by their address.
    pub allow_remote_images: bool,
    /// Which columns mean what.
    pub columns: Columns,
    /// Threads.
    pub workers: Option<usize>,
    /// Bytes prepared ahead; a few batches if not given.
    pub prefetch_bytes: Option<u64>,
    /// Longest row in tokens.
    pub max_seq_length: usize,
    /// Selective loss.
    pub selective_loss: Level,
    /// Keys that it masks, where given.
    pub selective_loss_keys: Option<Vec<String>>,
    /// Its first epoch.
    pub selective_loss_start_epoch: u64,
}

/// The part of a run that concerns memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryConfig {
    /// Memory for the whole run.
    pub budget: Option<u64>,
    /// Recompute.
    pub checkpointing: Checkpointing,
    /// Steps between samples.
    pub every: u64,
    /// Bytes that must not be exceeded.
    pub limit: Option<u64>,
    /// What to do before a limit.
    pub on_limit: OnMemoryLimit,
    /// Steps between clean-ups; zero for none.
    pub cleanup_every: u64,
}

/// Rows to train on, and how often an epoch sees each of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Portion {
    /// File, folder or hub id.
    pub dataset: String,
    /// How often.
    pub weight: u64,
}

/// Everything about a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunConfig {
    /// Folder or hub id of the model.
    pub base_model: String,
    /// File, folder or hub id of the rows.
    pub dataset: String,
    /// The same rows and those that are mixed with them.
    pub portions: Vec<Portion>,
    /// Where results go.
    pub output_dir: PathBuf,
    /// What computes the steps.
    pub engine: Engine,
    /// The interpreter of an engine in Python, where the user names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<PathBuf>,
    /// Rows to evaluate on.
    pub eval_rows: EvalRows,
    /// What is trained.
    pub method: Method,
    /// How frozen weights are held.
    pub precision: Precision,
    /// Adapters.
    pub lora: LoraConfig,
    /// Rows.
    pub data: DataConfig,
    /// Memory.
    pub memory: MemoryConfig,
    /// Passes over the data.
    pub epochs: f64,
    /// Ends earlier.
    pub max_steps: Option<u64>,
    /// Rows of a forward pass.
    pub batch_size: u64,
    /// Batches of an optimizer step.
    pub accumulation: u64,
    /// Peak rate.
    pub learning_rate: f64,
    /// How the rate moves.
    pub schedule: Shape,
    /// How it starts.
    pub warmup: Warmup,
    /// The optimizer.
    pub optimizer: OptimizerKind,
    /// Its constants.
    pub adam: AdamSettings,
    /// Clipping.
    pub max_grad_norm: f64,
    /// Seed of everything random.
    pub seed: u64,
    /// Steps between logs.
    pub logging_steps: u64,
    /// When to evaluate.
    pub evaluate: When,
    /// When to save.
    pub save: When,
    /// Checkpoints kept.
    pub save_total_limit: usize,
    /// Where to continue from.
    pub resume: Resume,
    /// Evaluations without improvement.
    pub early_stopping_patience: Option<u64>,
    /// Where numbers go.
    pub report_to: Vec<ReportTo>,
}

impl RunConfig {
    /// The names of the rows to train on, with how often an epoch sees them.
    pub fn dataset_names(&self) -> String {
        let name = |portion: &Portion| match portion.weight {
            1 => portion.dataset.clone(),
            weight => format!("{} ({weight} times an epoch)", portion.dataset),
        };
        self.portions.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// How weights are to be loaded: those that are trained as f32, frozen ones as asked.
    pub fn weights_precision(&self) -> garden_model::Precision {
        use garden_model::Precision as Weights;
        match (self.method, self.precision) {
            (Method::Full, _) => Weights::F32,
            (_, Precision::AsStored) => Weights::AsStored,
            (_, Precision::FourBit) => Weights::Bits4,
            (_, Precision::EightBit) => Weights::Bits8,
            (_, Precision::SixteenBit) => Weights::Bits16,
        }
    }

    /// The part that the training loop needs. What depends on the rows is filled in when they are known.
    pub fn trainer(&self) -> TrainerSettings {
        TrainerSettings {
            epochs: self.epochs,
            max_steps: self.max_steps,
            accumulation: self.accumulation,
            optimizer: self.optimizer,
            adam: self.adam,
            max_gradient_norm: self.max_grad_norm,
            logging_steps: self.logging_steps,
            evaluate: self.evaluate,
            save: self.save,
            save_limit: Some(self.save_total_limit),
            seed: self.seed,
            data_fingerprint: 0,
        }
    }
}
