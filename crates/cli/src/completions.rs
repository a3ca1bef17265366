//! `model-garden completions SHELL`.

use anyhow::Result;
use clap::CommandFactory;
use std::{io, process::ExitCode};

/// Flags of `completions`.
#[derive(clap::Args)]
pub struct Args {
    /// The shell to write for.
    shell: clap_complete::Shell,
}

/// Writes the script to standard output.
pub fn run(args: &Args) -> Result<ExitCode> {
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "model-garden", &mut io::stdout());
    Ok(ExitCode::SUCCESS)
}
