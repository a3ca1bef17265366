//! `init`: a new model with random weights.

use clap::{Args as Flags, ValueEnum};
use garden_memory::ByteSize;
use garden_model::init::{Plan, Preset};
use garden_train::grouped;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  model-garden init --preset tiny --output tiny-model
  model-garden init --preset 3b --output random-3b --seed 7    # the published shape, 7.5 GB

The folder is what Hugging Face's from_pretrained loads: weights, tokenizer, processor and chat template.";

/// Make a new model with random weights, in Hugging Face's format.
#[derive(Flags)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which shape to make.
    #[arg(long, value_enum)]
    preset: Shape,
    /// The folder to make; it must be new or empty.
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// The same seed makes the same bytes.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shape {
    /// 1.6 million parameters, for tests and demos.
    Tiny,
    /// 51 million parameters, for quick measurements.
    Small,
    /// 439 million parameters, for measurements.
    Medium,
    /// The published 3B shape, bf16, 7.5 GB.
    #[value(name = "3b")]
    B3,
    /// The published 7B shape, bf16, 16.6 GB.
    #[value(name = "7b")]
    B7,
}

impl From<Shape> for Preset {
    fn from(shape: Shape) -> Self {
        match shape {
            Shape::Tiny => Self::Tiny,
            Shape::Small => Self::Small,
            Shape::Medium => Self::Medium,
            Shape::B3 => Self::B3,
            Shape::B7 => Self::B7,
        }
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = Plan::new(args.preset.into())?;
    let bar = ProgressBar::new(plan.size().bytes).with_style(ProgressStyle::with_template(
        "weights [{bar:30}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
    )?);
    let made = plan.write(&args.output, args.seed, |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    println!("{}: {} parameters, {}", args.output.display(), grouped(made.parameters), ByteSize(made.bytes));
    Ok(ExitCode::SUCCESS)
}
