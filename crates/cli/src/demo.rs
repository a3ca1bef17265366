//! `model-garden demo`.

use crate::{
    exit,
    flags::LogFormat,
    progress::Format,
    train_vision::{Lines, Terminal, supervised},
};
use anyhow::{Result, bail};
use garden_train::{Cancel, demo};
use std::{path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  model-garden demo
  model-garden demo --output garden-demo --format json

Makes a tiny model with random weights and images of coloured shapes, trains an adapter, and asks it about images it
has not seen. Everything stays in the output folder.";

/// Flags of `demo`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A new or empty folder.
    #[arg(long, value_name = "DIR", default_value = "garden-demo")]
    output: PathBuf,
    /// Seed of the weights, the images and the order of rows.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// What to print.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Runs the demo and prints what it shows.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.output.exists() && args.output.read_dir()?.next().is_some() {
        bail!("{} is not empty: name another folder with --output", args.output.display());
    }
    let lines = Lines::new(LogFormat::Text, false);
    let shown =
        |observer: &mut Terminal, cancel: &Cancel| Ok(demo(&args.output, args.seed, observer, cancel)?);
    let Some(result) = supervised(lines.clone(), shown).0? else {
        let folder = args.output.display();
        lines.text(&format!(
            "a demo cannot be resumed: remove {folder}, or name another folder with --output"
        ));
        return Ok(ExitCode::from(exit::INTERRUPTED));
    };
    if args.format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&result)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("\nWhich colour is it? Images that were not trained on:");
    for answer in &result.shown {
        let mark = if answer.given == answer.right {
            "right".to_owned()
        } else {
            format!("wrong, it is {}", answer.right)
        };
        println!("  {}  {:<8}{mark}", answer.image.display(), answer.given);
    }
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    println!(
        "Exactly right on {} such images, in its own words: {} before training, {} after; guessing among the colours would give {}.",
        result.images,
        percent(result.before),
        percent(result.after),
        percent(result.chance)
    );
    println!("Report: {}", result.report.display());
    Ok(ExitCode::SUCCESS)
}
