//! `model-garden memory isolate`: any two commands against each other, or each part of our own pipeline
//! alone.

use super::{components, options::parse_interval, trials::Trials};
use crate::{advice::memory::name_flags, dataset::flags::SourceFlags, exit, progress::Format};
use anyhow::{Context, Result, bail};
use garden_memory::{ByteSize, Reading, RunFacts, Verdict, listen, supervise::Passage};
use garden_train::isolate::{Difference, Host, Measured, Trial, compare, measure};
use std::{path::PathBuf, process::ExitCode, sync::mpsc::channel, time::Duration};

const EXAMPLES: &str = "\
Examples:
  model-garden memory isolate --cmd 'python train.py' --cmd 'python train.py --lazy-images'
  model-garden memory isolate --rounds 5 --format json --cmd './a' --cmd './b'
  model-garden memory isolate --dataset rows.jsonl --base-model models/qwen

Each command runs in turn, under watch, as often as --rounds says. The result says which of the two keeps more
memory, and the confidence that this is not chance. With --dataset, each part of training (rows, decode, process, collate,
forward, step) works through the same rows alone, in a process of its own. It does so once more while it keeps everything
it makes, which shows what a leak in that part would look like.
Exit code: 0 if no run leaks, 1 if one does; runs that keep things on purpose do not count.";

/// Flags of `memory isolate`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A command to measure, as a shell would run it; give it twice to compare two.
    #[arg(long, value_name = "CMD", required_unless_present = "dataset")]
    cmd: Vec<String>,
    /// Measure the parts of training on these rows, instead of commands.
    #[arg(long, value_name = "PATH|HUB_ID", conflicts_with = "cmd")]
    dataset: Option<String>,
    /// The model folder for these parts; a tiny model is made if not given.
    #[arg(long, value_name = "DIR", requires = "dataset")]
    base_model: Option<PathBuf>,
    /// How many rows of the dataset a part works through in each round.
    #[arg(long, value_name = "N", default_value_t = 32, requires = "dataset", value_parser = clap::value_parser!(u64).range(2..))]
    rows: u64,
    /// How often each command runs (default 3), or a part works through its rows (default 8).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Time between two readings (default 100ms for commands, 20ms for parts).
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    interval: Option<Duration>,
    /// Rows in the dataset of the commands.
    #[arg(long, value_name = "N")]
    dataset_size: Option<u64>,
    /// Rows used by one optimizer step.
    #[arg(long, value_name = "N")]
    samples_per_step: Option<u64>,
    #[command(flatten)]
    source: SourceFlags,
    /// What to print.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Measures and compares.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(dataset) = &args.dataset {
        return components::run(&components::Isolation {
            dataset,
            source: &args.source,
            base_model: args.base_model.as_deref(),
            rows: args.rows,
            rounds: args.rounds.unwrap_or(8).into(),
            interval: args.interval.unwrap_or(Duration::from_millis(20)),
            format: args.format,
        });
    }
    let facts = RunFacts {
        dataset_size: args.dataset_size,
        samples_per_step: args.samples_per_step,
        ..RunFacts::default()
    };
    let trials = args.cmd.iter().map(|command| shell(command, &facts)).collect::<Vec<_>>();
    let runs = rounds(&trials, args)?;
    let difference = match runs.as_slice() {
        [a, b] => Some(compare(a, b)),
        _ => None,
    };
    match args.format {
        Format::Json => {
            let value = serde_json::json!({ "runs": runs, "difference": difference });
            println!("{}", serde_json::to_string_pretty(&value)?);
        }
        Format::Text => show(&runs, difference),
    }
    let leaks = runs.iter().flatten().any(|run| run.assessment.verdict == Verdict::Leak);
    Ok(if leaks { ExitCode::from(exit::NEGATIVE) } else { ExitCode::SUCCESS })
}

fn shell(command: &str, facts: &RunFacts) -> Trial {
    let words = ["sh", "-c", command].map(Into::into);
    Trial { name: command.to_owned(), command: words.into(), facts: facts.clone() }
}

/// Runs the trials in turn, so that other load on the machine affects all of them alike.
fn rounds(trials: &[Trial], args: &Args) -> Result<Vec<Vec<Measured>>> {
    let (sender, wakes) = channel();
    listen(sender.clone()).context("cannot listen for signals")?;
    let guard = super::run::guard_program();
    let host = Host { wakes: &wakes, sender: &sender, guard: &guard };
    let mut runs = vec![Vec::new(); trials.len()];
    let (rounds, interval) = (args.rounds.unwrap_or(3), args.interval.unwrap_or(Duration::from_millis(100)));
    let mut progress = Trials::new(rounds as usize * trials.len(), args.format);
    for round in 1..=rounds {
        for (trial, runs) in trials.iter().zip(&mut runs) {
            progress.begin(format!("round {round} of {rounds}, {}", trial.name));
            let mut show = |reading: &Reading| progress.reading(reading);
            let mut measured = measure(trial, interval, Passage::Swallowed, &host, &mut show)?;
            name_flags(&mut measured.assessment);
            progress.end(&measured);
            if measured.exit_code != 0 {
                bail!("`{}` ended with exit code {}", trial.name, measured.exit_code);
            }
            runs.push(measured);
        }
    }
    Ok(runs)
}

fn show(runs: &[Vec<Measured>], difference: Option<Difference>) {
    println!("{:<11} {:>10} {:>10} {:>7} {:>8}  command", "verdict", "peak", "kept", "steps", "seconds");
    for run in runs.iter().flatten() {
        println!(
            "{:<11} {:>10} {:>10} {:>7} {:>8.1}  {}",
            run.assessment.verdict.name(),
            ByteSize(run.peak_bytes).to_string(),
            signed(run.kept_bytes as f64),
            run.steps,
            run.seconds,
            run.name
        );
    }
    let Some(difference) = difference else { return };
    let which = if difference.bytes < 0.0 { "second" } else { "first" };
    let amount = ByteSize(difference.bytes.abs() as u64);
    match (difference.interval, difference.confidence) {
        (Some((low, high)), Some(confidence)) => println!(
            "the {which} keeps {amount} more (first minus second: {} to {} with 95 % probability); confidence {:.1} %",
            signed(low),
            signed(high),
            100.0 * confidence
        ),
        _ => {
            println!("the {which} keeps {amount} more; use --rounds 2 or more to know whether that is chance")
        }
    }
}

pub(super) fn signed(bytes: f64) -> String {
    let sign = if bytes < 0.0 { "-" } else { "+" };
    format!("{sign}{}", ByteSize(bytes.abs() as u64))
}
