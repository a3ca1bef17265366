//! `model-garden dataset convert IN OUT`.

use super::flags::SourceFlags;
use crate::progress::Bars;
use anyhow::{Result, ensure};
use garden_data::{Dataset, convert};
use garden_memory::counted;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

const EXAMPLES: &str = "\
Examples:
  model-garden dataset convert llava.json train.jsonl
  model-garden dataset convert train.jsonl train.parquet
  model-garden dataset convert owner/name train.parquet";

/// Flags of `dataset convert`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A dataset of any format and shape: a file, a folder, or a dataset on the hub.
    #[arg(value_name = "IN")]
    from: String,
    /// The file to write; its name ends in .jsonl, .json or .parquet.
    #[arg(value_name = "OUT")]
    to: PathBuf,
    #[command(flatten)]
    source: SourceFlags,
}

/// Writes the dataset and prints how many rows it has.
pub fn run(args: &Args) -> Result<ExitCode> {
    check_apart(Path::new(&args.from), &args.to)?;
    let bars = Bars::default();
    let dataset = Arc::new(Dataset::open(&args.from, &args.source.options(), &bars)?);
    SourceFlags::say_not_read(&dataset);
    let rows = convert(&dataset, &args.to, &bars)?;
    println!("{} in {}", counted(rows, "row"), args.to.display());
    Ok(ExitCode::SUCCESS)
}

/// Refuses to write the rows into the folder they come from, where they would be read twice.
fn check_apart(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let inside = match (from.is_dir(), folder.canonicalize(), from.canonicalize()) {
        (true, Ok(folder), Ok(from)) => folder.starts_with(from),
        // A folder that does not exist is reported when the file is written.
        _ => false,
    };
    ensure!(
        !inside,
        "{} is inside {}: its rows would be read twice the next time; write them elsewhere",
        to.display(),
        from.display()
    );
    Ok(())
}
