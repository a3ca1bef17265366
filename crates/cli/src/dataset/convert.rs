//! `model-garden dataset convert IN OUT`.

use super::flags::SourceFlags;
use crate::progress::Bars;
use anyhow::Result;
use garden_data::{Dataset, convert::convert};
use std::{path::PathBuf, process::ExitCode, sync::Arc};

const EXAMPLES: &str = "\
Examples:
  model-garden dataset convert llava.json train.jsonl
  model-garden dataset convert train.jsonl train.parquet
  model-garden dataset convert owner/name train.parquet";

/// Flags of `dataset convert`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A dataset of any format and shape: a file, a folder or a dataset of the hub.
    #[arg(value_name = "IN")]
    from: String,
    /// A new file; its name ends in .jsonl, .json or .parquet.
    #[arg(value_name = "OUT")]
    to: PathBuf,
    #[command(flatten)]
    source: SourceFlags,
}

/// Writes the dataset and says how many rows it has.
pub fn run(args: &Args) -> Result<ExitCode> {
    let bars = Bars::default();
    let dataset = Arc::new(Dataset::open(&args.from, &args.source.options(), &bars)?);
    SourceFlags::say_not_read(&dataset);
    let rows = convert(&dataset, &args.to, &bars)?;
    println!("{rows} rows in {}", args.to.display());
    Ok(ExitCode::SUCCESS)
}
