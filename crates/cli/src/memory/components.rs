//! The parts of training alone: `memory isolate --dataset`, and the hidden command that is one part.

use super::{isolate::signed, trials::Trials};
use crate::{advice::memory::name_flags, dataset::flags::SourceFlags, exit, progress::Format};
use anyhow::{Context, Result, bail};
use garden_memory::{ByteSize, Reading, RunFacts, Verdict, listen, supervise::Passage};
use garden_model::init::{Plan, Preset};
use garden_train::isolate::{Component, Host, Measured, Trial, Work, measure, run_component};
use serde::Serialize;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::mpsc::channel,
    time::Duration,
};

/// What to isolate, and how.
pub struct Isolation<'a> {
    pub dataset: &'a str,
    pub source: &'a SourceFlags,
    pub base_model: Option<&'a Path>,
    pub rows: u64,
    pub rounds: u64,
    pub interval: Duration,
    pub format: Format,
}

/// A part as it is, and the same part when it keeps everything it makes.
#[derive(Serialize)]
struct Pair {
    component: &'static str,
    plain: Measured,
    retaining: Measured,
}

/// Measures every part twice and prints what was found.
pub fn run(isolation: &Isolation<'_>) -> Result<ExitCode> {
    let made = tempfile::tempdir().context("no temporary folder")?;
    let base_model = match isolation.base_model {
        Some(folder) => folder.to_owned(),
        None => {
            let folder = made.path().join("model");
            Plan::new(Preset::Tiny)?.write(&folder, 0, |_| {})?;
            folder
        }
    };
    let (sender, wakes) = channel();
    listen(sender.clone()).context("cannot listen for signals")?;
    let guard = super::run::guard_program();
    let host = Host { wakes: &wakes, sender: &sender, guard: &guard };
    let mut pairs = Vec::new();
    let mut progress = Trials::new(2 * Component::ALL.len(), isolation.format);
    for component in Component::ALL {
        let mut one = |retain| {
            let how = if retain { ", keeping what it makes" } else { "" };
            progress.begin(format!("{}{how}", component.name()));
            let trial = trial(isolation, &base_model, component, retain)?;
            // A part prints nothing unless it fails; then it prints why.
            let mut show = |reading: &Reading| progress.reading(reading);
            let mut measured = measure(&trial, isolation.interval, Passage::Through, &host, &mut show)?;
            name_flags(&mut measured.assessment);
            progress.end(&measured);
            if measured.exit_code != 0 {
                bail!("the part `{}` ended with exit code {}", measured.name, measured.exit_code);
            }
            Ok(measured)
        };
        pairs.push(Pair { component: component.name(), plain: one(false)?, retaining: one(true)? });
    }
    drop(progress);
    match isolation.format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&pairs)?),
        Format::Text => show(&pairs),
    }
    let leaks = pairs.iter().any(|pair| pair.plain.assessment.verdict == Verdict::Leak);
    Ok(if leaks { ExitCode::from(exit::NEGATIVE) } else { ExitCode::SUCCESS })
}

/// This program, run as one part.
fn trial(isolation: &Isolation<'_>, base_model: &Path, component: Component, retain: bool) -> Result<Trial> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command: Vec<OsString> = vec![program.into()];
    command
        .extend(["memory", "__component", component.name(), "--dataset", isolation.dataset].map(Into::into));
    command.extend(["--base-model".into(), base_model.into()]);
    let numbers = [("--rows", isolation.rows), ("--rounds", isolation.rounds)];
    command.extend(numbers.into_iter().flat_map(|(flag, number)| [flag.into(), number.to_string().into()]));
    command.extend(isolation.source.arguments());
    if retain {
        command.push("--retain".into());
    }
    Ok(Trial { name: component.name().to_owned(), command, facts: RunFacts::default() })
}

fn show(pairs: &[Pair]) {
    println!(
        "{:<10} {:<11} {:>10} {:>10} {:>7}   if it kept all it makes",
        "part", "verdict", "peak", "kept", "steps"
    );
    for Pair { component, plain, retaining } in pairs {
        println!(
            "{component:<10} {:<11} {:>10} {:>10} {:>7}   {:<11} {:>10}",
            plain.assessment.verdict.name(),
            ByteSize(plain.peak_bytes).to_string(),
            signed(plain.kept_bytes as f64),
            plain.steps,
            retaining.assessment.verdict.name(),
            signed(retaining.kept_bytes as f64),
        );
    }
}

/// Flags of the hidden command.
#[derive(clap::Args)]
pub struct ComponentArgs {
    component: Component,
    #[arg(long)]
    dataset: String,
    #[arg(long)]
    base_model: PathBuf,
    #[arg(long)]
    rows: u64,
    #[arg(long)]
    rounds: u64,
    #[arg(long)]
    retain: bool,
    #[command(flatten)]
    source: SourceFlags,
}

/// Rows of a batch, in the parts that make batches.
const BATCH_SIZE: u64 = 2;

/// Runs as one part until its rounds are done.
pub fn component(args: &ComponentArgs) -> Result<ExitCode> {
    let work = Work {
        dataset: &args.dataset,
        source: &args.source.options(),
        base_model: &args.base_model,
        rows: args.rows,
        rounds: args.rounds,
        batch_size: BATCH_SIZE,
        retain: args.retain,
    };
    run_component(args.component, &work)?;
    Ok(ExitCode::SUCCESS)
}
