//! `model-garden dataset create --kind KIND --rows N --size WxH --output DIR`.

use super::flags::cores;
use crate::progress::Bars;
use anyhow::Result;
use clap::ValueEnum;
use garden_data::{CreateKind, CreateOptions, create_dataset};
use garden_memory::counted;
use std::{path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  model-garden dataset create --kind shapes --rows 200 --size 112x112 --output shapes
  model-garden dataset create --kind photos --rows 663 --size 3000x2048 --output photos";

/// Flags of `dataset create`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What the images show.
    #[arg(long, value_enum)]
    kind: KindFlag,
    /// Number of rows.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// Width and height of the images.
    #[arg(long, value_name = "WxH", value_parser = size)]
    size: (u32, u32),
    /// A new or empty folder.
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// The same seed makes the same data.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum KindFlag {
    /// Coloured shapes in PNG files, with questions that a small model learns to answer.
    Shapes,
    /// The same images; every question is about the colour.
    Colours,
    /// Images with the detail of photos, as base64 JPEG inside the rows.
    Photos,
}

fn size(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("'{text}' is not a size: write width x height, such as 640x480");
    let (width, height) = text.split_once(['x', 'X']).ok_or_else(wrong)?;
    let side = |text: &str| text.parse().map_err(|_| wrong());
    Ok((side(width)?, side(height)?))
}

/// Makes the dataset and prints where it is.
pub fn run(args: &Args) -> Result<ExitCode> {
    let kind = match args.kind {
        KindFlag::Shapes => CreateKind::Shapes,
        KindFlag::Colours => CreateKind::Colours,
        KindFlag::Photos => CreateKind::Photos,
    };
    let (width, height) = args.size;
    let options = CreateOptions { kind, rows: args.rows, width, height, seed: args.seed, workers: cores() };
    let data = create_dataset(&args.output, &options, &Bars::default())?;
    println!("{} in {}", counted(args.rows, "row"), data.display());
    Ok(ExitCode::SUCCESS)
}
