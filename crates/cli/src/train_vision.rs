//! `model-garden train-vision`.

use crate::{errors::AsJson, exit, flags::RunFlags};
use anyhow::{Error, Result};
use garden_train::{
    Isa,
    config::{LogFormat, RunConfig},
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
Exit code: 0 when done, 75 if it stopped at a memory limit after a checkpoint, 130 if it was interrupted. The first Ctrl-C
or a closed terminal finishes the step and writes a checkpoint; a second Ctrl-C ends at once, without one. The last line
says which one is the last. Under `nohup` a closed terminal changes nothing.";

/// Flags of `train-vision`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    run: RunFlags,
}

/// Trains.
pub fn run(args: Args) -> Result<ExitCode> {
    let asked = args.run.log_format();
    let mut options = args.run.options().map_err(|error| in_format(error, asked))?;
    // An empty name is what a shell makes of a variable that is not set.
    options.dataset = options.dataset.filter(|name| !name.trim().is_empty());
    options.output_dir = options.output_dir.filter(|dir| !dir.as_os_str().is_empty());
    let format = options.log_format;
    train(RunConfig::resolve(options).map_err(Error::from)).map_err(|error| in_format(error, format))
}

fn train(config: Result<RunConfig>) -> Result<ExitCode> {
    Isa::check()?;
    Ok(match run::train(&config?)? {
        Ended::Done => ExitCode::SUCCESS,
        Ended::AtMemoryLimit => ExitCode::from(exit::AT_LIMIT),
        Ended::Interrupted => ExitCode::from(exit::INTERRUPTED),
    })
}

/// Who reads lines of JSON reads errors so too.
fn in_format(error: Error, format: Option<LogFormat>) -> Error {
    if format == Some(LogFormat::Json) { AsJson(error).into() } else { error }
}
