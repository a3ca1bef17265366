//! `model-garden memory report`.

use super::{
    analyze::save,
    options::{Known, Reading},
    overwrite::{self, Input, Output},
};
use anyhow::{Context, Result};
use garden_memory::report::{self, Run};
use std::{path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  model-garden memory report before.jsonl after.jsonl --html compare.html
  model-garden memory report before.jsonl after.jsonl --svg compare.svg --title 'Before and after'
  model-garden memory report run1.log run2.log --dataset-size 663 --samples-per-step 8 --html runs.html";

/// Flags of `memory report`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Traces and logs, as `memory analyze` reads them.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Write a page with charts, evidence and advice here.
    #[arg(long, value_name = "FILE", required_unless_present = "svg")]
    html: Option<PathBuf>,
    /// Write a picture with the curves of all runs here.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The title of the picture.
    #[arg(long, value_name = "TEXT", default_value = "Memory", requires = "svg")]
    title: String,
    #[command(flatten)]
    known: Known,
    #[command(flatten)]
    reading: Reading,
}

/// Writes page and picture, and prints what is on them.
pub fn run(args: &Args) -> Result<ExitCode> {
    let inputs: Vec<Input> = args.traces.iter().map(|path| Input::new("the trace", path)).collect();
    let outputs = [Output::of("--svg", args.svg.as_ref()), Output::of("--html", args.html.as_ref())];
    overwrite::refuse(&inputs, &outputs)?;
    let told = args.known.facts_of_file()?;
    let runs: Vec<Run> =
        args.traces.iter().map(|path| args.reading.read(path, &told)).collect::<Result<_>>()?;
    if let Some(path) = &args.html {
        save(path, &report::html(&runs))?;
    }
    if let Some(path) = &args.svg {
        let picture = report::overlay(&args.title, &runs)
            .context("the runs cannot share a picture: one has only steps, another only times")?;
        save(path, &picture)?;
    }
    for run in &runs {
        println!("{}: {}", run.name, run.assessment.verdict.name());
    }
    for path in args.html.iter().chain(&args.svg) {
        println!("written to {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}
