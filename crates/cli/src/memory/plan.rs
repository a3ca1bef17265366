//! `model-garden memory plan`.

use super::analyze::style;
use crate::{
    exit,
    flags::RunFlags,
    progress::{Bars, Format},
};
use anyhow::{Error, Result};
use garden_train::{Planned, PlannedError, Setting};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  model-garden memory plan --base-model 3b --load-in-4bit --max-seq-length 1024 --image-tokens 512
  model-garden memory plan --base-model ./Qwen2.5-VL-7B-Instruct --dataset rows.jsonl --load-in-4bit
  model-garden memory plan --base-model ./config.json --batch-size 4 --memory-budget 12GB --format json
  model-garden memory plan --config run.toml

The flags are those of train-vision and mean the same, so any run can be planned; --output-dir and --dataset may be left out.
Nothing is loaded: --base-model may be a model folder, a config.json alone, or the name of a shape (tiny, small, medium,
3b, 7b, 32b, 72b); --dataset needs a model folder. The lines are those of the run's own memory layout.
Exit code 4 if the run does not fit this machine, or --memory-budget if that is given.";

/// Flags of `memory plan`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    run: RunFlags,
    /// Tokens of a row that belong to its image, where no --dataset is given; all remaining tokens are
    /// labelled [default: the most of either].
    #[arg(long, value_name = "N")]
    image_tokens: Option<usize>,
    /// What to print.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Plans and prints.
pub fn run(args: Args) -> Result<ExitCode> {
    let (options, _) = args.run.options()?;
    let planned = Planned::of(options, args.image_tokens, &Bars::default()).map_err(cause)?;
    let report = planned.report(written);
    match args.format {
        Format::Json => println!("{:#}", report.json()),
        Format::Text => print!("{}", report.text(style())),
    }
    Ok(if report.fits() { ExitCode::SUCCESS } else { ExitCode::from(exit::WILL_NOT_FIT) })
}

/// The error itself: advice is about what went wrong, not about who asked.
fn cause(error: PlannedError) -> Error {
    match error {
        PlannedError::NoPlan(_) => error.into(),
        PlannedError::Config(error) => error.into(),
        PlannedError::Source(error) => error.into(),
        PlannedError::Folder(error) => error.into(),
        PlannedError::Data(error) => error.into(),
        PlannedError::Plan(error) => error.into(),
    }
}

/// A setting as a flag.
fn written(setting: &Setting) -> String {
    match setting.value.as_str() {
        "true" => format!("--{}", setting.name),
        value => format!("--{} {value}", setting.name),
    }
}
