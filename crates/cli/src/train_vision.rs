//! `model-garden train-vision`.

use crate::{exit, flags::RunFlags};
use anyhow::Result;
use garden_train::{
    config::RunConfig,
    run::{self, Ended},
};
use std::process::ExitCode;

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
    #[command(flatten)]
    run: RunFlags,
}

/// Trains.
pub fn run(args: Args) -> Result<ExitCode> {
    let config = RunConfig::resolve(args.run.options()?)?;
    let ended = run::train(&config)?;
    Ok(match ended {
        Ended::Done => ExitCode::SUCCESS,
        Ended::AtMemoryLimit => ExitCode::from(exit::AT_LIMIT),
        Ended::Interrupted => ExitCode::from(exit::INTERRUPTED),
    })
}
