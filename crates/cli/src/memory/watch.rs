//! `model-garden memory watch`.

use super::{
    live::{self, Ending, View},
    options::{Format, Options, Patterns},
    overwrite::Input,
};
use anyhow::{Context, Result};
use garden_memory::{
    LogFollower, Recorder, StepBoard, StepSocket,
    probe::{Probe, find_training},
};
use std::{path::PathBuf, process::ExitCode, sync::mpsc::channel};

const EXAMPLES: &str = "\
Examples:
  model-garden memory watch --pid 177381
  model-garden memory watch --find-training --dataset-size 663 --samples-per-step 8
  model-garden memory watch --pid 177381 --interval 5s --out run.jsonl --format text

Steps are read from --socket, and from the process's output if that goes to a file.
Exit code 0 when the watch ended, whatever the verdict; 2 if there is nothing to watch.";

/// Flags of `memory watch`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    options: Options,
    /// What to show; the default is a live screen on a terminal and text elsewhere.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Listen at this path for messages of a training callback (see docs/memory-socket.md).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Read steps from this log as it grows, instead of from the file behind the process's output.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    patterns: Patterns,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Target {
    /// The process to watch.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Watch the largest process tree that trains, and say which and why: Python or a launcher with PyTorch,
    /// TensorFlow, JAX or CUDA loaded or steps in its log, or our own training.
    #[arg(long)]
    find_training: bool,
}

/// Watches until the process ends, the time is up or Ctrl-C is pressed.
pub fn run(args: Args) -> Result<ExitCode> {
    let mut notes = Vec::new();
    let pid = match args.target.pid {
        Some(pid) => pid,
        None => {
            let found = find_training()?;
            notes.push(found.to_string());
            found.chosen.pid
        }
    };
    let mut probe = Probe::attach(pid)?;
    let members =
        probe.snapshot()?.map_or_else(Vec::new, |tree| tree.processes.iter().map(|row| row.pid).collect());
    let board = StepBoard::default();
    let log = LogFollower::open(&members, args.log.as_deref(), board.clone(), &args.patterns.steps())?;
    notes.extend(log.files().map(|file| format!("steps are read from {}", file.display())));
    let listen = |path: &PathBuf| {
        StepSocket::bind(path, board.clone()).with_context(|| format!("cannot listen on {}", path.display()))
    };
    let _socket = args.socket.as_ref().map(listen).transpose()?;
    let facts = args.options.facts()?;
    let logs = log.files().map(|file| Input::new("the log", file)).collect();
    let trace = args.options.trace(&format!("process {pid}"), &facts, logs)?;
    let mut recorder = Recorder::new(probe, board, facts, trace).reading_along(log);

    let (sender, wakes) = channel();
    garden_memory::listen(sender.clone()).context("cannot listen for signals")?;
    let format = args.format.unwrap_or_else(Format::for_terminal);
    let mut view = View::open(format, live::Place::Watch, sender)?;
    notes.iter().for_each(|note| view.note(note));
    let ended =
        garden_memory::watch(&mut recorder, args.options.interval, args.options.duration, &wakes, &mut view);
    let how = ended.to_string();
    view.close(&Ending { how: Some(&how), after: recorder.elapsed() });
    Ok(ExitCode::SUCCESS)
}
