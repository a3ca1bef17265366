//! `model-garden demo`.

use crate::progress::Format;
use anyhow::{Result, bail};
use garden_train::{config::LogFormat, demo::demo, screen::Screen};
use std::{path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  model-garden demo
  model-garden demo --output garden-demo --format json

Makes a tiny model with random weights and pictures of coloured shapes, trains an adapter, and asks it about pictures it
has not seen. Everything stays in the output folder.";

/// Flags of `demo`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A new or empty folder.
    #[arg(long, value_name = "DIR", default_value = "garden-demo")]
    output: PathBuf,
    /// Decides the weights, the pictures and the order.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// What to print.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Shows what training does.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.output.exists() && args.output.read_dir()?.next().is_some() {
        bail!("{} is not empty: name another folder with --output", args.output.display());
    }
    let screen = Screen::new(LogFormat::Text, false);
    let result = demo(&args.output, args.seed, &screen)?;
    if args.format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&result)?);
        return Ok(ExitCode::SUCCESS);
    }
    for answer in &result.shown {
        let mark = if answer.given == answer.right { "right" } else { "wrong" };
        println!("  {}: {} ({mark}: it is {})", answer.picture.display(), answer.given, answer.right);
    }
    println!(
        "on pictures it has not seen: {:.0} % right before, {:.0} % after (guessing gives {:.0} %)",
        100.0 * result.before,
        100.0 * result.after,
        100.0 * result.chance
    );
    println!("report: {}", result.report.display());
    Ok(ExitCode::SUCCESS)
}
