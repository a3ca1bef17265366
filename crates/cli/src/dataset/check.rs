//! `model-garden dataset check PATH`.

use super::flags::{MeasureFlags, SourceFlags, cores};
use crate::{
    advice::data::{about_line, about_row},
    exit,
    progress::{Bars, Format},
};
use anyhow::Result;
use garden_data::{Dataset, RowError, SurveyOptions, SurveyReport, survey};
use std::{process::ExitCode, sync::Arc};

const EXAMPLES: &str = "\
Examples:
  model-garden dataset check train.jsonl
  model-garden dataset check data/ --base-model ./Qwen2.5-VL-3B-Instruct --max-seq-length 2048
  model-garden dataset check owner/name --format json

Exits with 1 if a row is bad.";

/// Flags of `dataset check`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A .jsonl, .json or .parquet file, a folder of them, or a dataset of the hub (owner/name,
    /// owner/name@revision).
    path: String,
    /// Leave out rows with more tokens than this.
    #[arg(long, value_name = "N", requires = "base_model")]
    max_seq_length: Option<usize>,
    /// Rows in a batch, to estimate its cost.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: u64,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    measure: MeasureFlags,
    #[command(flatten)]
    source: SourceFlags,
}

/// Reads every row and prints the report.
pub fn run(args: &Args) -> Result<ExitCode> {
    let bars = Bars::default();
    let dataset = Arc::new(Dataset::open(&args.path, &args.source.options(), &bars)?);
    SourceFlags::say_not_read(&dataset);
    let measure = args.measure.measure(args.max_seq_length)?;
    let options = SurveyOptions { measure, workers: cores(), held_out: None, decode: true };
    let survey = survey(&dataset, options, &bars)?;
    let report =
        SurveyReport { survey: &survey, batch_size: args.batch_size, max_tokens: args.max_seq_length };
    match args.format {
        Format::Text => report.lines().iter().for_each(|line| match about_line(line) {
            Some(advice) => println!("{}; {advice}", line.text),
            None => println!("{}", line.text),
        }),
        Format::Json => println!("{:#}", json(&report)),
    }
    Ok(if survey.bad > 0 { ExitCode::from(exit::NEGATIVE) } else { ExitCode::SUCCESS })
}

/// The report for programs, which are told what helps about a bad row as people are.
fn json(report: &SurveyReport<'_>) -> serde_json::Value {
    let mut json = report.to_json();
    let told = |row: &RowError| match about_row(&row.reason) {
        Some(advice) => format!("{row}; {advice}"),
        None => row.to_string(),
    };
    json["bad"]["rows"] = report.survey.bad_rows.iter().map(told).collect();
    json
}
