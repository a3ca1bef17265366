//! `model-garden memory plan`.

use super::analyze::style;
use crate::{
    exit,
    flags::PrecisionFlags,
    progress::{Bars, Format},
};
use anyhow::Result;
use garden_memory::ByteSize;
use garden_train::{
    config::{Checkpointing, Method, RunConfig, TrainOptions},
    optimizer::OptimizerKind,
    plan::{Load, PlanReport, Source, plan, room},
    run::open_data,
};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

const EXAMPLES: &str = "\
Examples:
  model-garden memory plan --base-model 3b --load-in-4bit --max-seq-length 1024 --image-tokens 512
  model-garden memory plan --base-model ./Qwen2.5-VL-7B-Instruct --dataset rows.jsonl --load-in-4bit
  model-garden memory plan --base-model ./config.json --batch-size 4 --memory-budget 12GB --format json

Nothing is loaded: --base-model may be a model's folder, a config.json alone, or the name of a shape (tiny, small, medium,
3b, 7b, 32b, 72b). The lines are those of the run's own memory layout.
Exit code 4 if it does not fit this machine, or --memory-budget if that is given.";

/// Flags of `memory plan`; those of a run mean what they mean in `train-vision`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A model's folder, a config.json, or the name of a shape.
    #[arg(long, value_name = "DIR|FILE|NAME")]
    base_model: String,
    /// Rows to train on: their lengths and pictures instead of the longest that are allowed. Needs a model's folder.
    #[arg(long, value_name = "PATH")]
    dataset: Option<String>,
    /// Rows of a batch [default: 2].
    #[arg(long, value_name = "N")]
    batch_size: Option<u64>,
    /// Longest row in tokens [default: 2048].
    #[arg(long, value_name = "N")]
    max_seq_length: Option<usize>,
    /// Tokens of a row that are a picture's, the others being learned, without --dataset [default: the most of either].
    #[arg(long, value_name = "N", conflicts_with = "dataset")]
    image_tokens: Option<usize>,
    /// Largest image area in pixels, with --dataset [default: the checkpoint's].
    #[arg(long, value_name = "N", requires = "dataset")]
    max_pixels: Option<u64>,
    /// Rank of the adapters [default: 16].
    #[arg(long, value_name = "N")]
    lora_r: Option<usize>,
    /// Share of an adapter's inputs set to zero [default: 0].
    #[arg(long, value_name = "SHARE")]
    lora_dropout: Option<f64>,
    /// Modules to adapt, a regular expression over their names.
    #[arg(long, value_name = "REGEX")]
    target_modules: Option<String>,
    /// Adapt the vision tower [default: true].
    #[arg(long, value_name = "BOOL")]
    finetune_vision_layers: Option<bool>,
    /// Train adapters or all weights [default: lora].
    #[arg(long, value_enum)]
    method: Option<Method>,
    #[command(flatten)]
    weights: PrecisionFlags,
    /// Moments in f32 or 8 bits [default: adamw_8bit].
    #[arg(long, value_enum)]
    optim: Option<OptimizerKind>,
    /// Memory for the whole run; blocks are recomputed until it fits.
    #[arg(long, value_name = "SIZE")]
    memory_budget: Option<ByteSize>,
    /// Recompute activations: as few as needed, all, none [default: auto].
    #[arg(long, value_enum)]
    gradient_checkpointing: Option<Checkpointing>,
    /// Most memory for batches prepared ahead.
    #[arg(long, value_name = "SIZE")]
    prefetch_bytes: Option<ByteSize>,
    /// What to print.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Plans and prints.
pub fn run(args: &Args) -> Result<ExitCode> {
    let config = RunConfig::resolve(args.options())?;
    let (model, source) = Source::find(&args.base_model)?;
    let load = match &args.dataset {
        Some(_) => {
            let data = open_data(&config, Path::new(&args.base_model), &Bars::default())?;
            data.load
        }
        None => Load::assumed(&model, config.batch_size, config.data.max_seq_length, args.image_tokens),
    };
    let room = room();
    let plan = plan(&config, &model, source, &load, room)?;
    let report =
        PlanReport { name: &args.base_model, config: &config, model: &model, load: &load, plan: &plan, room };
    match args.format {
        Format::Json => println!("{:#}", report.json()),
        Format::Text => print!("{}", report.text(style())),
    }
    Ok(if report.fits() { ExitCode::SUCCESS } else { ExitCode::from(exit::WILL_NOT_FIT) })
}

impl Args {
    fn options(&self) -> TrainOptions {
        TrainOptions {
            base_model: Some(self.base_model.clone()),
            // A plan asks for neither, and a run's settings are whole only with both.
            dataset: Some(self.dataset.clone().unwrap_or_default()),
            output_dir: Some(PathBuf::new()),
            batch_size: self.batch_size,
            max_seq_length: self.max_seq_length,
            max_pixels: self.max_pixels,
            lora_r: self.lora_r,
            lora_dropout: self.lora_dropout,
            target_modules: self.target_modules.clone(),
            finetune_vision_layers: self.finetune_vision_layers,
            method: self.method,
            load_in_4bit: Some(self.weights.load_in_4bit),
            load_in_8bit: Some(self.weights.load_in_8bit),
            load_in_16bit: Some(self.weights.load_in_16bit),
            optim: self.optim,
            memory_budget: self.memory_budget,
            gradient_checkpointing: self.gradient_checkpointing,
            prefetch_bytes: self.prefetch_bytes,
            ..TrainOptions::default()
        }
    }
}
