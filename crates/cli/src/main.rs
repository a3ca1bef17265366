//! The `model-garden` command: flags in, calls out.
//!
//! Each command is a module with its flags (`Args`) and a `run` that returns an exit code; the libraries do
//! the work. Errors become one line and exit code 2.

#[macro_use]
mod print;

mod advice;
mod completions;
mod dataset;
mod demo;
mod errors;
mod exit;
mod flags;
mod generate;
mod init;
mod inspect;
mod memory;
mod merge;
mod progress;
mod serve;
mod serve_children;
mod serve_host;
mod train_vision;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Fine-tune vision-language models in flat memory, and tell a leak from a fill from a warm-up.
#[derive(Parser)]
#[command(name = "model-garden", version, propagate_version = true, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// See it work: make a tiny model, train it, ask it.
    Demo(demo::Args),
    /// Fine-tune a vision-language model in flat memory.
    TrainVision(Box<train_vision::Args>),
    /// Watch, judge and limit the memory of any process.
    #[command(subcommand)]
    Memory(memory::Command),
    /// Serve fine-tuning jobs, chat and pages over HTTP, with OpenAI's API.
    Serve(Box<serve::Args>),
    #[command(hide = true)]
    ServeKeep(serve_children::KeepArgs),
    #[command(hide = true)]
    ServePlan(serve_children::PlanArgs),
    #[command(hide = true)]
    ServeHost(serve_host::Args),
    /// Write an adapter and its base as one model.
    Merge(merge::Args),
    /// Check, make and convert datasets.
    #[command(subcommand)]
    Dataset(dataset::Command),
    /// Make a new model with random weights.
    Init(init::Args),
    /// Ask a model about images, and stream its answer.
    Generate(Box<generate::Args>),
    /// Say what a model folder, an adapter or a file of tensors is.
    Inspect(inspect::Args),
    /// Print a completion script for a shell.
    Completions(completions::Args),
}

fn main() -> ExitCode {
    serve_children::end_with_parent();
    let cli = Cli::try_parse().unwrap_or_else(|error| errors::wrong_use(&error));
    run(cli.command).unwrap_or_else(|error| errors::report(&error))
}

fn run(command: Command) -> Result<ExitCode> {
    if command.computes() {
        garden_train::Isa::check()?;
    }
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::TrainVision(args) => train_vision::run(*args),
        Command::Memory(command) => memory::run(command),
        Command::Serve(args) => serve::run(*args),
        Command::ServeKeep(args) => serve_children::run_keep(&args),
        Command::ServePlan(args) => serve_children::run_plan(&args),
        Command::ServeHost(args) => serve_host::run(args),
        Command::Merge(args) => merge::run(&args),
        Command::Dataset(command) => dataset::run(command),
        Command::Init(args) => init::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Completions(args) => completions::run(&args),
    }
}

impl Command {
    /// Whether it computes with a model, or plans to, and so needs the processor's instructions.
    /// `train-vision` checks them itself, because its errors have a format.
    fn computes(&self) -> bool {
        match self {
            Self::Demo(_) | Self::Merge(_) | Self::Init(_) | Self::Generate(_) | Self::ServeHost(_) => true,
            Self::Memory(command) => command.computes(),
            // The server's children compute, and check for themselves.
            Self::TrainVision(_)
            | Self::Serve(_)
            | Self::ServeKeep(_)
            | Self::ServePlan(_)
            | Self::Dataset(_)
            | Self::Inspect(_)
            | Self::Completions(_) => false,
        }
    }
}
