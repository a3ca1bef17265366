//! `model-garden train-vision`.

mod group;
mod interrupts;
mod observer;
mod screen;
mod words;

pub use observer::{Terminal, supervised};
pub use screen::Lines;

use crate::{
    errors::AsJson,
    exit,
    flags::{DisplayOptions, LogFormat, RunFlags},
};
use anyhow::{Error, Result};
use garden_train::{
    Isa, RunConfig, RunReport, TrainOptions,
    events::{End, EndReason},
    groups::Group,
    train_together,
};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  model-garden train-vision --base-model models/qwen --dataset rows.jsonl --output-dir out
  model-garden train-vision --config run.toml --learning-rate 1e-4
  model-garden train-vision --base-model models/qwen --dataset rows.jsonl --output-dir out --load-in-4bit --eval-split 5%
  model-garden train-vision --config run.toml --engine transformers --python ~/torch/bin/python
  model-garden memory run --limit 8GB --on-limit restart -- model-garden train-vision --config run.toml

The same command continues a run that was stopped or killed, to the same result. docs/training.md tells more.
Exit code: 0 when done, 75 if the run stopped at a memory limit after a checkpoint, 130 if it was interrupted. At the
first Ctrl-C, or when the terminal is closed, the run finishes its step and writes a checkpoint. A second Ctrl-C ends it at
once, without one. The last line names the last checkpoint. Under `nohup`, closing the terminal changes nothing.";

/// Flags of `train-vision`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    run: RunFlags,
}

/// Trains the model.
pub fn run(args: Args) -> Result<ExitCode> {
    let asked = args.run.log_format();
    // First of all: the others wait for a process that fails before it joins them.
    let group = group::join().map_err(|error| in_format(error, asked, None))?;
    let report = match train(args.run, asked, &group) {
        Ok(report) => report,
        Err(error) if group.size() == 1 => return Err(error),
        Err(error) => return Ok(group::give_up(&group, &error)),
    };
    group.part()?;
    Ok(match report.reason {
        EndReason::MemoryLimit => ExitCode::from(exit::AT_LIMIT),
        EndReason::Cancelled => ExitCode::from(exit::INTERRUPTED),
        _ => ExitCode::SUCCESS,
    })
}

fn train(flags: RunFlags, asked: Option<LogFormat>, group: &Group) -> Result<RunReport> {
    let (mut options, display) = flags.options().map_err(|error| in_format(error, asked, None))?;
    // A shell makes an empty name of a variable that is not set.
    options.dataset = options.dataset.filter(|name| !name.trim().is_empty());
    options.output_dir = options.output_dir.filter(|dir| !dir.as_os_str().is_empty());
    let (report, failed) = checked_run(options, display, group);
    report.map_err(|error| in_format(error, display.log_format, failed))
}

/// Runs what the options ask for; gives the last event too where the run failed.
fn checked_run(
    options: TrainOptions,
    display: DisplayOptions,
    group: &Group,
) -> (Result<RunReport>, Option<Box<End>>) {
    let config = match Isa::check().map_err(Error::from).and_then(|()| Ok(RunConfig::resolve(options)?)) {
        Ok(config) => config,
        Err(error) => return (Err(error), None),
    };
    // The first process speaks for all.
    let quiet = display.quiet.unwrap_or_default() || !group.is_first();
    let lines = Lines::new(display.log_format.unwrap_or_default(), quiet);
    supervised(lines, |observer, cancel| Ok(train_together(&config, observer, cancel, group)?))
}

/// An error in the format of the lines: a program that reads JSON reads errors as JSON too.
fn in_format(error: Error, format: Option<LogFormat>, end: Option<Box<End>>) -> Error {
    if format == Some(LogFormat::Json) { AsJson { error, end }.into() } else { error }
}
