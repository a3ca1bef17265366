//! `model-garden train-vision`.

use crate::exit;
use anyhow::Result;
use garden_train::{
    config::{RunConfig, TrainOptions},
    run::{self, Ended},
};
use std::{path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  model-garden train-vision --base-model models/qwen --dataset rows.jsonl --output-dir out
  model-garden train-vision --config run.toml --learning-rate 1e-4
  model-garden train-vision --base-model models/qwen --dataset rows.jsonl --output-dir out --load-in-4bit --eval-split 5%
  model-garden memory run --limit 8GB --on-limit restart -- model-garden train-vision --config run.toml

The same command continues a run that was stopped or killed, to the same result. docs/training.md tells more.
Exit code: 0 when done, 75 if it stopped at a memory limit after a checkpoint, 130 if it was interrupted after one.";

/// Flags of `train-vision`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A TOML or YAML file with any of these options; flags win.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: TrainOptions,
}

/// Trains.
pub fn run(args: Args) -> Result<ExitCode> {
    let file = args.config.map(|path| TrainOptions::from_file(&path)).transpose()?.unwrap_or_default();
    let config = RunConfig::resolve(args.options.over(file))?;
    let ended = run::train(&config)?;
    Ok(match ended {
        Ended::Done => ExitCode::SUCCESS,
        Ended::AtMemoryLimit => ExitCode::from(exit::AT_LIMIT),
        Ended::Interrupted => ExitCode::from(exit::INTERRUPTED),
    })
}
