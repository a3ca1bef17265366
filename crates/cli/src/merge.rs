//! `model-garden merge`.

use crate::progress;
use anyhow::Result;
use garden_data::check_folder;
use garden_memory::{ByteSize, counted};
use garden_train::{MergedAs, merge};
use std::{path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  model-garden merge --base-model models/qwen --adapter out --output merged
  model-garden merge --base-model models/qwen --adapter out --output merged-4bit --save-as 4bit

The folder is complete: weights, configuration, tokenizer and processor files. It needs neither base nor adapter, and a
result that equals its base is refused.";

/// Flags of `merge`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The model folder that the adapter was trained on.
    #[arg(long, value_name = "DIR")]
    base_model: PathBuf,
    /// Folder of the adapter: a run's output, or one of its checkpoints.
    #[arg(long, value_name = "DIR")]
    adapter: PathBuf,
    /// The folder to make.
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// How the weights are stored.
    #[arg(long, value_enum, default_value = "16bit")]
    save_as: MergedAs,
    /// What to print.
    #[arg(long, value_enum, default_value = "text")]
    format: progress::Format,
}

/// Merges and prints what was written.
pub fn run(args: &Args) -> Result<ExitCode> {
    [&args.base_model, &args.adapter].into_iter().try_for_each(|folder| check_folder(folder))?;
    let bar = progress::share_bar("merging");
    let merged = merge(&args.base_model, &args.adapter, &args.output, args.save_as, |share| {
        bar.set_position((1000.0 * share) as u64);
    })?;
    bar.finish_and_clear();
    match args.format {
        progress::Format::Json => println!("{}", serde_json::to_string_pretty(&merged)?),
        progress::Format::Text => println!(
            "{}: {}, {}; the adapter changed {} {}",
            args.output.display(),
            counted(merged.tensors as u64, "tensor"),
            ByteSize(merged.bytes),
            merged.changed_matrices,
            if merged.changed_matrices == 1 { "matrix" } else { "matrices" },
        ),
    }
    Ok(ExitCode::SUCCESS)
}
