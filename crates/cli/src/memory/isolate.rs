//! `model-garden memory isolate`.

use super::options::parse_duration;
use crate::{exit, progress::Format};
use anyhow::{Context, Result, bail};
use garden_memory::{ByteSize, RunFacts, Verdict, supervise};
use garden_train::isolate::{Difference, Measured, Signals, Trial, compare, measure};
use std::{process::ExitCode, sync::mpsc::channel, time::Duration};

const EXAMPLES: &str = "\
Examples:
  model-garden memory isolate --cmd 'python train.py' --cmd 'python train.py --lazy-images'
  model-garden memory isolate --rounds 5 --format json --cmd './a' --cmd './b'

Each command runs in turn, under watch, as often as --rounds says. Which of the two keeps more memory is told with the
confidence that it is not chance.
Exit code: 0 if no run leaks, 1 if one does.";

/// Flags of `memory isolate`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A command to measure, as a shell would run it; give it twice to compare two.
    #[arg(long, value_name = "CMD", required = true)]
    cmd: Vec<String>,
    /// How often each command runs.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Time between two readings.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_duration)]
    interval: Duration,
    /// Rows in the dataset of the commands.
    #[arg(long, value_name = "N")]
    dataset_size: Option<u64>,
    /// Rows used by one optimizer step.
    #[arg(long, value_name = "N")]
    samples_per_step: Option<u64>,
    /// What to print.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Measures and compares.
pub fn run(args: &Args) -> Result<ExitCode> {
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

/// Runs the trials in turn, so that what else happens on the machine meets all of them.
fn rounds(trials: &[Trial], args: &Args) -> Result<Vec<Vec<Measured>>> {
    let (sender, wakes) = channel();
    supervise::listen(sender.clone()).context("cannot listen for signals")?;
    let signals = Signals { wakes: &wakes, sender: &sender };
    let mut runs = vec![Vec::new(); trials.len()];
    for round in 1..=args.rounds {
        for (trial, runs) in trials.iter().zip(&mut runs) {
            if args.format == Format::Text {
                eprintln!("round {round} of {}: {}", args.rounds, trial.name);
            }
            let measured = measure(trial, args.interval, &signals)?;
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
            "the {which} keeps {amount} more (first less second: {} to {} with 95 % probability); confidence {:.1} %",
            signed(low),
            signed(high),
            100.0 * confidence
        ),
        _ => {
            println!("the {which} keeps {amount} more; run --rounds 2 or more to know whether that is chance")
        }
    }
}

fn signed(bytes: f64) -> String {
    let sign = if bytes < 0.0 { "-" } else { "+" };
    format!("{sign}{}", ByteSize(bytes.abs() as u64))
}
