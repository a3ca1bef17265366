//! `model-garden dataset ...`: look at, make and convert datasets.

mod check;
mod convert;
mod create;
pub mod flags;
mod show;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// The `dataset` commands.
#[derive(Subcommand)]
pub enum Command {
    /// Check every row: shapes, sizes, token lengths, which rows are left out and why.
    Check(check::Args),
    /// Show single rows: what they say, their images, and what a model reads and learns of them.
    Show(show::Args),
    /// Make a dataset for trials and benchmarks.
    Create(create::Args),
    /// Convert a dataset to another format: messages, with every image inside its row.
    Convert(convert::Args),
}

/// Runs one of them.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Check(args) => check::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Create(args) => create::run(&args),
        Command::Convert(args) => convert::run(&args),
    }
}
