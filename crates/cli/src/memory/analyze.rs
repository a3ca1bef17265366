//! `model-garden memory analyze`.

use super::{
    options::{Known, Reading},
    overwrite::{self, Input, Output},
};
use crate::exit;
use anyhow::{Context, Result};
use clap::ValueEnum;
use garden_memory::{
    Answer, Assessment, format_names,
    report::{self, Chart, Style},
};
use serde::Serialize;
use std::{
    io::{ErrorKind, IsTerminal, Write, stdout},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Examples, the formats that are read, and the exit codes.
fn after_help() -> String {
    format!("{EXAMPLES}\n\nReads {}, plain or packed by gzip or zstd.\n{READING}", format_names())
}

const EXAMPLES: &str = "\
Examples:
  model-garden memory analyze run2.log --dataset-size 663 --samples-per-step 8 --limit 32GB
  model-garden memory analyze run.jsonl --format json
  model-garden memory analyze mprofile.dat --svg curve.svg --html page.html
  zcat logs/*.gz | model-garden memory analyze - --memory-pattern 'host=([0-9]+)(MB|GB)'";
const READING: &str = "\
`memory watch` and `memory run` write traces of Model Garden. A CSV table has a header. A training log has lines such as
'Step 10 ... RAM: 5552 MB'. docs/compatibility.md shows what is read from which tool.
Exit code 0: steady, a warm-up or a fill that fits the limit; 1: leak; 3: undecided; 4: bounded, but it will not fit;
2: wrong use or unreadable input.";

/// What is printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Verdict, curve, numbers, evidence and advice.
    Text,
    /// One JSON object.
    Json,
}

/// Flags of `memory analyze`.
#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Args {
    /// The trace or log; `-` for standard input.
    file: PathBuf,
    #[command(flatten)]
    known: Known,
    #[command(flatten)]
    reading: Reading,
    /// What to print.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Put the curve into the JSON: its lines, levels and epochs, thinned to what a picture shows.
    #[arg(long)]
    with_chart: bool,
    /// Also write a page with charts here.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write a picture of the curve here.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The assessment, and which run it is about.
#[derive(Serialize)]
struct Answered<'a> {
    name: &'a str,
    samples: u64,
    limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chart: Option<Chart>,
    #[serde(flatten)]
    assessment: &'a Assessment,
}

/// Judges the file.
pub fn run(args: &Args) -> Result<ExitCode> {
    let outputs = [Output::of("--svg", args.svg.as_ref()), Output::of("--html", args.html.as_ref())];
    overwrite::refuse(&[Input::new("the trace", &args.file)], &outputs)?;
    let run = args.reading.read(&args.file, &args.known.facts_of_file()?)?;
    let limit = run.analyst.facts().limit;
    if let Some(path) = &args.svg {
        save(path, &report::svg(&run))?;
    }
    if let Some(path) = &args.html {
        save(path, &report::html(std::slice::from_ref(&run)))?;
    }
    let output = match args.format {
        Format::Text => report::text(&run, style()),
        Format::Json => {
            let samples = run.analyst.samples();
            let chart = args.with_chart.then(|| report::chart(&run));
            let answered = Answered { name: &run.name, samples, limit, chart, assessment: &run.assessment };
            serde_json::to_string_pretty(&answered)? + "\n"
        }
    };
    match stdout().write_all(output.as_bytes()) {
        // The exit code is an answer too, even for a reader that has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.context("cannot write the answer")?,
    }
    Ok(match run.assessment.answer(limit) {
        Answer::Fine => ExitCode::SUCCESS,
        Answer::Leak => exit::NEGATIVE.into(),
        Answer::Undecided => exit::UNDECIDED.into(),
        Answer::WillNotFit => exit::WILL_NOT_FIT.into(),
    })
}

/// Writes a report to a file.
pub(super) fn save(path: &Path, content: &str) -> Result<()> {
    garden_files::write(path, content.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

/// How the terminal wants its text.
pub(super) fn style() -> Style {
    const USUAL_WIDTH: u16 = 80;
    let terminal = stdout().is_terminal();
    let width = ratatui::crossterm::terminal::size().map_or(USUAL_WIDTH, |(columns, _)| columns);
    Style {
        color: terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        width: usize::from(if terminal { width } else { USUAL_WIDTH }),
    }
}
