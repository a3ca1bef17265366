//! `model-garden dataset show PATH`.

use super::flags::{MeasureFlags, SourceFlags};
use crate::{
    exit,
    progress::{Bars, Format},
};
use anyhow::{Result, bail};
use clap::ValueEnum;
use garden_data::{DataError, Dataset, PreviewImages, RowReader, RowShare, preview};
use garden_train::{RunConfig, TrainOptions};
use std::{path::PathBuf, process::ExitCode, sync::Arc};

const EXAMPLES: &str = "\
Examples:
  model-garden dataset show train.jsonl
  model-garden dataset show train.jsonl --row 7 --base-model ./Qwen2.5-VL-3B-Instruct
  model-garden dataset show data/ --held-out 5% --count 3 --format json --images thumbnails

With --base-model the row is shown as the model reads it, with marks around what is learned.
Exits with 1 if JSON tells of a bad row.";

/// Which images the JSON holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Images {
    /// None: their sizes alone.
    #[default]
    None,
    /// Small ones, as JPEG.
    Thumbnails,
    /// As they are stored.
    Stored,
}

/// Flags of `dataset show`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A .jsonl, .json or .parquet file, a folder of them, or a dataset of the hub (owner/name,
    /// owner/name@revision).
    path: String,
    /// The first row to show, counted from 1.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    row: u64,
    /// How many rows to show.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    count: u64,
    /// Count only the rows that a run with this --eval-split holds out: a share such as 5%, or a number.
    #[arg(long, value_name = "SHARE")]
    held_out: Option<String>,
    /// The seed of that run.
    #[arg(long, value_name = "N", default_value_t = 3407, requires = "held_out")]
    seed: u64,
    /// Output format; JSON has one object a line, one for each row.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Images to put into the JSON, as data URIs.
    #[arg(long, value_enum, default_value_t)]
    images: Images,
    /// Longest side of a small image, in pixels.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(8..=2048))]
    thumbnail_side: u32,
    #[command(flatten)]
    measure: MeasureFlags,
    #[command(flatten)]
    source: SourceFlags,
}

/// Shows the rows.
pub fn run(args: &Args) -> Result<ExitCode> {
    let dataset = Arc::new(Dataset::open(&args.path, &args.source.options(), &Bars::default())?);
    SourceFlags::say_not_read(&dataset);
    let share = share(args, dataset.rows())?;
    let measure = args.measure.measure(None)?;
    let mut reader = RowReader::new(dataset.clone());
    let last = share.rows(dataset.rows());
    if args.row > last {
        bail!("--row {}: there are {last} rows", args.row);
    }
    let images = match args.images {
        Images::None => PreviewImages::None,
        Images::Thumbnails => PreviewImages::Thumbnails(args.thumbnail_side),
        Images::Stored => PreviewImages::Stored,
    };
    let mut code = ExitCode::SUCCESS;
    for place in (args.row..=last).take(usize::try_from(args.count)?) {
        let number = share.row(place - 1, dataset.rows());
        match (preview(&mut reader, number, &measure, images), args.format) {
            (Ok(seen), Format::Json) => println!("{}", seen.to_json(last)),
            (Ok(seen), Format::Text) => println!("{}", seen.text()),
            // A program is told of a bad row in its place, and of the others too.
            (Err(DataError::Row { row, reason }), Format::Json) => {
                let error = DataError::Row { row, reason }.to_string();
                println!("{}", serde_json::json!({"row": number + 1, "rows": last, "error": error}));
                code = ExitCode::from(exit::NEGATIVE);
            }
            (Err(error), _) => return Err(error.into()),
        }
    }
    Ok(code)
}

/// The rows among which rows are counted.
fn share(args: &Args, rows: u64) -> Result<RowShare> {
    let Some(held_out) = &args.held_out else { return Ok(RowShare::All) };
    let config = RunConfig::resolve(TrainOptions {
        base_model: Some("none".into()),
        dataset: Some("none".into()),
        output_dir: Some(PathBuf::new()),
        eval_split: Some(held_out.clone()),
        ..TrainOptions::default()
    })?;
    match config.eval_rows.held_out(rows) {
        0 => bail!("--held-out {held_out}: a share such as 5%, or a number of rows"),
        rows => Ok(RowShare::HeldOut { rows, seed: args.seed }),
    }
}
