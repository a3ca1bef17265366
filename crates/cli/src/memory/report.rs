//! `model-garden memory report`.

use super::{analyze::save, options::Known};
use anyhow::Result;
use garden_memory::report::{Run, html};
use std::{path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  model-garden memory report before.jsonl after.jsonl --html compare.html
  model-garden memory report run1.log run2.log --dataset-size 663 --samples-per-step 8 --html runs.html";

/// Flags of `memory report`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Traces and logs, as `memory analyze` reads them.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Where the page goes.
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
    #[command(flatten)]
    known: Known,
}

/// Writes the page and says what is on it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let told = args.known.facts();
    let runs: Vec<Run> = args.traces.iter().map(|path| Run::read(path, &told)).collect::<Result<_, _>>()?;
    save(&args.html, &html::html(&runs))?;
    for run in &runs {
        println!("{}: {}", run.name, run.assessment.verdict.name());
    }
    println!("written to {}", args.html.display());
    Ok(ExitCode::SUCCESS)
}
