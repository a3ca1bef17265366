//! `model-garden memory ...`: one module per command.

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// The `memory` commands.
#[derive(Subcommand)]
pub enum Command {}

/// Runs one of them.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {}
}
