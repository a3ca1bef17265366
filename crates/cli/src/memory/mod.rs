//! `model-garden memory ...`: one module per command.

mod analyze;
mod components;
mod isolate;
mod limit;
mod live;
mod options;
mod overwrite;
mod plan;
mod report;
mod run;
mod trials;
mod watch;

pub use run::guard_program;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// The `memory` commands.
#[derive(Subcommand)]
pub enum Command {
    /// Watch a running process and all its descendants.
    Watch(Box<watch::Args>),
    /// Run a command under watch, and stop it before it reaches a limit.
    Run(Box<run::Args>),
    /// Find out what keeps memory: measure commands, or the parts of training, one at a time, each with its
    /// own verdict.
    Isolate(isolate::Args),
    /// Judge a trace or a log: leak, fill, warm-up, steady or undecided.
    Analyze(Box<analyze::Args>),
    /// Show how much memory a training run will take, part by part, before anything runs.
    Plan(Box<plan::Args>),
    /// Compare runs on one page that opens offline.
    Report(Box<report::Args>),
    /// The process that keeps a command's tree together.
    #[command(name = "__guard", hide = true)]
    Guard(run::GuardArgs),
    /// One part of training, for `isolate`.
    #[command(name = "__component", hide = true)]
    Component(components::ComponentArgs),
}

impl Command {
    /// Whether it computes with a model, or plans to.
    pub fn computes(&self) -> bool {
        matches!(self, Self::Plan(_) | Self::Isolate(_) | Self::Component(_))
    }
}

/// Runs one of them.
pub fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Watch(args) => watch::run(*args),
        Command::Run(args) => run::run(*args),
        Command::Isolate(args) => isolate::run(&args),
        Command::Analyze(args) => analyze::run(&args),
        Command::Plan(args) => plan::run(*args),
        Command::Report(args) => report::run(&args),
        Command::Guard(args) => run::guard(&args),
        Command::Component(args) => components::component(&args),
    }
}
